"""Checks of the labels of a task."""

from collections.abc import Iterable

import numpy as np

from keras_bandgnn.arrays import TIME
from keras_bandgnn.checks import strings
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import weight_column
from keras_bandgnn.models.labels import NumberLabels


def require_label_level(part: FlatGraphs, level: str, task: str) -> None:
    """Raise a ValueError if labels belong to another level.

    Args:
        part: Graphs with labels.
        level: "node", "edge" or "graph".
        task: Name of the task in the message.
    """
    received = None
    if part.candidates is not None:
        received = "graphs with candidates, whose label is the position of one of them"
    elif part.label_level != level:
        received = f"labels of {part.label_level}s (label_level={part.label_level!r})"
    if received:
        raise ValueError(
            f"Expected labels of {level}s for {task}. Received: {received}. "
            f"Set Graph(..., label=..., label_level={level!r})."
        )


def check_classes(part: FlatGraphs, num_classes: int) -> int:
    """Raise a ValueError if a label is not a class; return the number of known labels.

    Args:
        part: Graphs with labels. -1 and NaN are missing.
        num_classes: C.
    """
    if part.label.ndim > 2 or part.label.shape[1:] not in ((), (1,)):
        one_hot = np.isin(part.label, (0, 1)).all() and (part.label.sum(-1) == 1).all()
        advice = f"For several targets per {part.label_level} set multi_label=True."
        if one_hot:
            advice = f"Write np.argmax(label, axis=-1) for one-hot labels. {advice}"
        raise ValueError(
            "Expected one class per label. "
            f"Received: labels of shape {part.label.shape[1:]}. {advice}"
        )
    label = np.asarray(part.label, np.float64).reshape(-1)
    classes = label[~(np.isnan(label) | (label == -1))]
    in_range = (classes >= 0) & (classes < num_classes)
    wrong = classes[~in_range | (classes != np.floor(classes))]
    if wrong.size:
        advice = "Count classes from 0, or raise num_classes."
        if wrong[0] != np.floor(wrong[0]):
            advice = "Classes are whole numbers; a regressor predicts others."
        raise ValueError(
            f"Expected classes in [0, {num_classes}), as num_classes={num_classes}, or "
            f"-1 where the class is not known. Received: {wrong[0]:g}. {advice}"
        )
    return classes.size


def refuse_signs(label: np.ndarray, num_classes: int) -> None:
    """Raise a ValueError if the labels of two classes are -1 and 1.

    Here -1 means an unknown label, so that only one class would remain.

    Args:
        label: Labels to train on.
        num_classes: C.
    """
    label = np.asarray(label, np.float64)
    values = np.unique(label[~np.isnan(label)]).tolist()
    if num_classes == 2 and values == [-1.0, 1.0]:
        raise ValueError(
            "Expected the classes 0 and 1. Received: labels of -1 and 1 alone, where "
            "-1 stands for an unknown class. Write (label + 1) // 2."
        )


def check_targets(part: FlatGraphs, num_targets: int, task: str) -> int:
    """Raise a ValueError if a label is not 0 or 1; return the number of known labels.

    Args:
        part: Graphs with labels. NaN is missing.
        num_targets: Targets per graph, node or edge.
        task: Name of the task in the message.
    """
    label = part.label
    width = 1 if label.ndim == 1 else label.shape[-1]
    if label.ndim > 2 or width != num_targets:
        raise ValueError(
            f"Expected labels with {num_targets} targets per {part.label_level}, as "
            f"num_classes={num_targets}. Received: shape {label.shape[1:]}. "
            f"Set {task}(..., num_classes=...)."
        )
    targets = label[~np.isnan(label)]
    wrong = targets[(targets != 0) & (targets != 1)]
    if wrong.size:
        raise ValueError(
            "Expected targets that are 0 or 1, or NaN where not known. "
            f"Received: {wrong[0]:g}. Write NaN for unknown targets; for classes leave "
            "multi_label=False."
        )
    return targets.size


def distinct_names(
    argument: str, names: Iterable[str] | None, count: int, counted: str
) -> tuple[str, ...] | None:
    """Return the names of classes or targets, or None.

    Args:
        argument: Name of the argument with the names.
        names: The names, distinct and one for each class or target.
        count: Number of classes or targets.
        counted: Name of the argument with this number.
    """
    if names is None:
        return None
    names = tuple(strings(argument, names))
    if len(names) != count or len(set(names)) != count:
        raise ValueError(
            f"Expected `{argument}` to be {count} distinct names, as "
            f"{counted}={count}. Received: {argument}={list(names)!r}."
        )
    return names


def require_labels(count: int, level: str, unknown: str = "-1 or NaN") -> None:
    """Raise a ValueError if there are no labels.

    Args:
        count: The number of labels.
        level: Level of the labels, such as "graph".
        unknown: Values of missing labels.
    """
    if not count:
        raise ValueError(
            f"Expected at least one {level} with a label. Received: none. Labels of "
            f"{unknown} are ignored, as are nodes and edges outside the mask."
        )


def require_weights(task, parts: Iterable[FlatGraphs]) -> None:
    """Raise a ValueError if all labels have a `sample_weight` of 0.

    Losses and metrics would be 0 for all predictions.

    Args:
        task: The task, whose `known_slopes` count as labels.
        parts: Graphs with labels.
    """
    numbers, number = isinstance(task.labels, NumberLabels), 0
    for part in parts:
        weight = part.columns().get(weight_column(part.label_level))
        if weight is None:
            return
        label = np.asarray(part.label, np.float64).reshape(len(part.label), -1)
        has_label = (~np.isnan(label) if numbers else label >= 0).any(axis=1)
        if task.known_slopes(part):
            has_label[:] = True
        if (np.asarray(weight)[has_label] > 0).any():
            return
        number += int(has_label.sum())
    raise ValueError(
        "Expected at least one label whose sample_weight is above 0. Received: "
        f"{number} labels, all of weight 0. Losses and metrics would be 0 whatever the "
        "predictions. Pass other weights, or none."
    )


def check_labelled(task, loader, name: str) -> None:
    """Raise a ValueError if a task cannot train on or evaluate a loader.

    Args:
        task: The task.
        loader: Its loader.
        name: Name of the argument with the graphs.
    """
    if not task.compiled:
        raise ValueError(
            "Expected a compiled task. Received: a task that was created with "
            "compile=False. Call task.compile() before fit and evaluate."
        )
    if not loader.has_labels:
        pair = "fit(x, y)" if name == "x" else f"{name}=(x, y)"
        raise ValueError(
            f"Expected the graphs in `{name}` to have labels. Received: graphs "
            f"with label=None. Set Graph(..., label=...), or pass labels: {pair}."
            f"{task.encoder_advice()}"
        )
    task.check_labels(loader)
    if loader.pairs is None:
        require_weights(task, loader.parts)
        _check_times(task, loader)


def _check_times(task, loader) -> None:
    """Raise a ValueError for edges that are not earlier than labelled nodes.

    Samplers by time draw earlier ones alone.
    """
    sampler = getattr(loader.assembler, "sampler", None)
    if sampler is not None and sampler.time is not None:
        return
    for part in loader.parts:
        if part.label_level != "node" or not (TIME in part.node and TIME in part.edge):
            continue
        label = np.asarray(part.label, np.float64).reshape(len(part.label), -1)
        numbers = isinstance(task.labels, NumberLabels)
        labelled = (~np.isnan(label) if numbers else label >= 0).any(axis=1)
        graphs = np.arange(len(part))
        first = np.full(len(part), np.iinfo(np.int64).max)
        of_node = graphs.repeat(part.num_nodes)[labelled]
        np.minimum.at(first, of_node, np.asarray(part.node[TIME])[labelled])
        late = part.edge[TIME] >= first[graphs.repeat(part.num_edges)]
        if late.any():
            raise ValueError(
                "Expected edges that are earlier than all nodes with labels, as both "
                f"have times. Received: {int(late.sum())} of {len(late)} edges at or "
                "after the first of these nodes. Pass sampler=NeighborSampler(..., "
                "time='uniform'), which draws earlier edges for each node, or a graph "
                "of edges_before(graph, time); without times of nodes all edges count."
            )


def check_node_set(part: FlatGraphs, name: str) -> None:
    """Raise a ValueError unless graphs have a node set, and labels in no other."""
    if name not in part.sets:
        raise ValueError(
            f"Expected graphs with the node set {name!r}, the task's `node_set`. "
            f"Received: {[*part.sets] or 'graphs without node sets'}. Make them with "
            "keras_bandgnn.data.from_sets."
        )
    if part.label is None or part.label_level != "node":
        return
    others = part.label[part.node["set"] != [*part.sets].index(name)]
    labelled = others >= 0 if others.dtype.kind == "i" else ~np.isnan(others)
    if labelled.any():
        raise ValueError(
            f"Expected labels of nodes of {name!r} alone, the task's `node_set`. "
            f"Received: {int(labelled.sum())} labels of other nodes. Give them -1 or "
            f"NaN, or pass label={{{name!r}: y}} to from_sets."
        )
