"""Add labels, weights and a validation split to graphs, from arguments of `fit`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_bandgnn.arrays import narrowed, refuse_masked
from keras_bandgnn.checks import instance, one_of, refuse
from keras_bandgnn.data.converters.attributes import as_numpy
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import (
    SAMPLE_WEIGHT,
    check_columns,
    label_weights,
    weight_column,
)
from keras_bandgnn.data.sources import parts_of
from keras_bandgnn.graph import Graph
from keras_bandgnn.models.inputs import Inputs, read_graphs, read_inputs
from keras_bandgnn.models.item_labels import (
    check_index,
    check_size,
    columns_of,
    rows_of,
)
from keras_bandgnn.models.label_checks import check_node_set
from keras_bandgnn.models.validation_split import same_to_model, split_off
from keras_bandgnn.preprocessing.graph_layer import applied_layers, layer_for
from keras_bandgnn.preprocessing.loading.loader import Loader


def labelled(
    task,
    name: str,
    x,
    y=None,
    sample_weight=None,
    class_weight=None,
    split: float | None = None,
    adapt: bool = False,
) -> tuple:
    """Return graphs with labels and weights, and validation graphs or None.

    Args:
        task: The task.
        name: Name of the argument, for errors.
        x: Graphs, raw data, or `Inputs` of these.
        y: Labels, see `with_labels`; names of columns of a data frame.
        sample_weight: See `with_sample_weights`.
        class_weight: See `with_class_weights`.
        split: Share to validate on, see `split_off`.
        adapt: Whether an encoder learns from the data.
    """
    inputs = read_inputs(name, x)
    y = list(y) if isinstance(y, Iterator) else y
    node_set = getattr(task, "node_set", None)
    check_index("y", inputs.source, y, node_set)
    check_index("sample_weight", inputs.source, sample_weight, node_set)
    if inputs.items is not None:
        y = columns_of(inputs.source, y)
        sample_weight = columns_of(inputs.source, sample_weight)
    inputs = read_graphs(task, name, inputs, adapt, required=True)
    if all(option is None for option in (y, sample_weight, class_weight, split)):
        return inputs.data, None
    graphs, order = graphs_for_labels(name, inputs.data)
    if inputs.positions is not None:
        options = {
            "positions": inputs.positions,
            "count": len(inputs.items),
            "graphs": graphs,
            "level": task.output_level,
            "node_set": node_set,
        }
        y = rows_of("y", y, **options)
        sample_weight = rows_of(SAMPLE_WEIGHT, sample_weight, **options)
    names = getattr(task, "class_names", None)
    y = class_numbers(y, names)
    if node_set is not None:
        y = _of_nodes("y", graphs, y, node_set)
        sample_weight = _of_nodes(SAMPLE_WEIGHT, graphs, sample_weight, node_set)
    if y is not None:
        level = "graph" if task.output_level == "candidate" else task.output_level
        graphs = with_labels(graphs, y, level, order)
    if sample_weight is not None:
        graphs = with_sample_weights(graphs, sample_weight, order)
    valid = None
    if split is not None:
        graphs, valid = _split_off_groups(task, inputs, graphs, split)
    if class_weight is not None:
        num_classes = None if task.labels is None else task.labels.num_classes
        graphs = with_class_weights(graphs, class_weight, num_classes, names)
    return graphs, valid


def _split_off_groups(task, inputs: Inputs, graphs: FlatGraphs, split: float) -> tuple:
    """Return graphs to train and to validate on; equal ones are on one side."""
    encoder = groups = None
    if inputs.positions is not None:
        # Graphs are compared as the model sees them.
        encoder = task.preprocessor.encoder
        items = inputs.items
        groups = [
            b"%d" % i if isinstance(items[i], Graph) else encoder.group(items[i])
            for i in inputs.positions
        ]
    if task.preprocessor is not None:
        # Also for the comparison; loaders do not transform them again.
        graphs = task.preprocessor.transform(graphs)
    groups = same_to_model(task, graphs, encoder, groups)
    return split_off(graphs, split, groups)


def _numbers(name: str, values: Any) -> np.ndarray:
    """Convert numbers of any form to an array, with NaN for missing labels."""
    refuse_masked(name, values)
    array = as_numpy(values.to_numpy() if hasattr(values, "to_numpy") else values)
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        array = np.asarray(values)
        if array.dtype.kind == "O":
            # Columns with None for missing values.
            missing = np.array([v is None for v in array.ravel()]).reshape(array.shape)
            try:
                array = np.where(missing, np.nan, array).astype(np.float64)
            except (TypeError, ValueError):
                array = None
        elif array.dtype.kind not in "biuf":
            array = None
    if array is None:
        refuse(name, "numbers", values, _number_advice(values))
    return narrowed(name, array, missing=True)


def _number_advice(values: Any) -> str:
    try:
        np.asarray(values).astype(np.float64)
    except (TypeError, ValueError):
        return (
            "Map the names of classes to 0, 1, 2, ..., such as with np.unique(names, "
            "return_inverse=True)."
        )
    return "Convert text to numbers, such as with np.asarray(values).astype(float)."


def _per_row(
    name: str, graphs: FlatGraphs, values: Any, level: str, order: np.ndarray | None
) -> np.ndarray:
    """Return values of nodes or edges as one array, from a list or a flat array.

    Args:
        name: Name of the argument, for errors.
        graphs: n graphs.
        values: A list of n arrays, or one array.
        level: "node" or "edge".
        order: Place of each edge of the graphs among the values; None for the same.
    """
    if graphs.origin is not None:
        raise ValueError(
            f"Expected graphs in the order of `{name}`. Received: compiled graphs, "
            "whose nodes are reordered. Set the labels before compiling: Graph(..., "
            f"label=..., label_level={level!r})."
        )
    counts = graphs.num_nodes if level == "node" else graphs.num_edges
    array = _joined(name, values, counts, level)
    return array if level == "node" or order is None else array[order]


def _joined(name: str, values: Any, counts: np.ndarray, what: str) -> np.ndarray:
    """Return the rows of all graphs as one array, from a list or a flat array.

    Args:
        name: Name of the argument, for errors.
        values: A list of n arrays, or one array.
        counts: int [n], rows of each graph.
        what: What a row is of, such as "node".
    """
    nested = isinstance(values, list | tuple) and len(values) == len(counts)
    if nested and all(np.ndim(as_numpy(value)) for value in values):
        arrays = [_numbers(f"{name}[{i}]", value) for i, value in enumerate(values)]
        for i, (array, count) in enumerate(zip(arrays, counts, strict=True)):
            check_size(f"{name}[{i}]", array, count, what, i)
        array = np.concatenate(arrays)
    else:
        array = _numbers(name, values)
    total = int(counts.sum())
    if array.ndim == 0 or len(array) != total:
        raise ValueError(
            f"Expected `{name}` to have a row for each of {total} {what}s: a list of "
            f"one array per graph, or one array. Received: shape {array.shape}."
        )
    return array


def _of_nodes(name: str, graphs: FlatGraphs, values: Any, node_set: str) -> Any:
    """Return values of all nodes, from those of a node set; missing for the others.

    Args:
        name: Name of the argument, for errors.
        graphs: n graphs.
        values: A list of n arrays, or one array: a row for each row of the set.
        node_set: The node set.
    """
    if values is None:
        return None
    check_node_set(graphs, node_set)
    counts = np.diff(graphs.set_ptr[node_set])
    array = _joined(name, values, counts, f"{node_set!r} node")
    here = graphs.node["set"] == [*graphs.sets].index(node_set)
    rows = graphs.set_ptr[node_set][:-1].repeat(graphs.num_nodes)
    rows = rows[here] + graphs.node["set_row"][here]
    missing = 0 if name == SAMPLE_WEIGHT else -1 if array.dtype.kind == "i" else np.nan
    out = np.full((len(here), *array.shape[1:]), missing, array.dtype)
    out[here] = array[rows]
    return out


def _per_graph(name: str, graphs: FlatGraphs, values: Any) -> np.ndarray:
    array = _numbers(name, values)
    if array.ndim == 0 or len(array) != len(graphs):
        raise ValueError(
            f"Expected `{name}` to have a row for each of {len(graphs)} graphs. "
            f"Received: shape {array.shape}."
        )
    return array


def _replaced(graphs: FlatGraphs, changes: Mapping[str, np.ndarray]) -> FlatGraphs:
    """Return graphs with some columns added or replaced."""
    columns = graphs.columns()
    if any(name.startswith("label/") for name in changes):
        columns = {k: v for k, v in columns.items() if not k.startswith("label/")}
    columns |= changes
    check_columns(columns, None)
    out = FlatGraphs.from_columns(columns, graphs.info)
    if hasattr(graphs, "metadata"):
        out.metadata = graphs.metadata
    return out


def class_numbers(y: Any, names: Sequence[str] | None) -> Any:
    """Convert labels that are names of classes to numbers; return others unchanged.

    Args:
        y: Labels, or a list of arrays of them; None without labels.
        names: Names of the classes; None for classes without names.

    Raises:
        ValueError: For a name that is no class. None and NaN are missing labels, -1.
    """
    if y is None or names is None:
        return y
    refuse_masked("y", y)
    values = y.to_numpy() if hasattr(y, "to_numpy") else y
    nested = isinstance(values, list | tuple) and any(
        np.ndim(labels) for labels in values
    )
    if nested:
        return [class_numbers(labels, names) for labels in values]
    values = np.asarray(values) if not hasattr(values, "detach") else values
    if getattr(values, "dtype", np.dtype(float)).kind not in "OUS":
        return y
    numbers = {name: number for number, name in enumerate(names)}
    flat = []
    for value in values.ravel().tolist():
        missing = value is None or isinstance(value, float) and math.isnan(value)
        if not missing and value not in numbers:
            raise ValueError(
                f"Expected labels in `y` to be among class_names={list(names)}. "
                f"Received: {value!r}."
            )
        flat.append(-1 if missing else numbers[value])
    return np.array(flat, np.int32).reshape(values.shape)


def with_labels(
    graphs: FlatGraphs, y: Any, level: str, order: np.ndarray | None = None
) -> FlatGraphs:
    """Return graphs with their labels replaced by `y`.

    Args:
        graphs: n graphs.
        y: For `"graph"` [n] or [n, D]; for `"node"` and `"edge"` a list of n arrays, or
            one array for all nodes or edges. NaN where missing.
        level: `"graph"`, `"node"` or `"edge"`.
        order: See `graphs_for_labels`.

    Raises:
        ValueError: For labels that do not fit the graphs.
    """
    if level == "graph":
        label = _per_graph("y", graphs, y)
    else:
        label = _per_row("y", graphs, y, level, order)
    return _replaced(graphs, {f"label/{level}": label})


def with_sample_weights(
    graphs: FlatGraphs, sample_weight: Any, order: np.ndarray | None = None
) -> FlatGraphs:
    """Return graphs with weights of their labels, a feature `sample_weight`.

    Args:
        graphs: n graphs with labels.
        sample_weight: [n]; where labels are of nodes or edges also a list of n arrays,
            or one array for all of them.
        order: See `graphs_for_labels`.

    Raises:
        ValueError: For weights that do not fit the graphs, or negative ones.
    """
    level = graphs.label_level
    counts = {"node": graphs.num_nodes, "edge": graphs.num_edges}.get(level)
    if hasattr(sample_weight, "to_numpy"):
        sample_weight = sample_weight.to_numpy()
    array = as_numpy(sample_weight)
    by_graph = isinstance(array, np.ndarray) and array.shape[:1] == (len(graphs),)
    if isinstance(sample_weight, list | tuple) and counts is not None:
        # A list of arrays has no numbers per graph.
        by_graph = by_graph and not any(np.ndim(entry) for entry in sample_weight)
    if counts is None or by_graph and int(counts.sum()) != len(graphs):
        weight = _per_graph(SAMPLE_WEIGHT, graphs, sample_weight)
        weight = weight if counts is None else weight.repeat(counts)
    else:
        weight = _per_row(SAMPLE_WEIGHT, graphs, sample_weight, level, order)
    if weight.shape[1:] == (1,):
        weight = weight[:, 0]
    if weight.ndim != 1 or not np.isfinite(weight).all() or (weight < 0).any():
        raise ValueError(
            f"Expected `sample_weight` to be one number >= 0 per {level}. Received: "
            f"shape {weight.shape} in [{weight.min()}, {weight.max()}]."
        )
    return _replaced(graphs, {weight_column(level): weight.astype(np.float32)})


def with_class_weights(
    graphs: FlatGraphs,
    class_weight: Any,
    num_classes: int | None,
    names: Sequence[str] | None = None,
) -> FlatGraphs:
    """Return graphs with their weights multiplied by class weights.

    Args:
        graphs: Graphs with labels.
        class_weight: Class -> weight, 1 for others; or `"balanced"`, n / (C n_c), where
            the known labels have n weights in all and those of the class n_c of them,
            and C counts the classes that occur with a weight above 0.
        num_classes: Number of classes; None for labels that are no classes.
        names: Names of the classes, which `class_weight` may have.

    Raises:
        ValueError: For labels that are no classes, unknown classes or negative weights.
    """
    balanced = isinstance(class_weight, str)
    if balanced:
        one_of("class_weight", class_weight, ("balanced",))
        class_weight = {}
    expected = "a dict of weights by class, or 'balanced'"
    instance("class_weight", class_weight, Mapping, expected)
    if names is not None:
        numbers = {name: number for number, name in enumerate(names)}
        class_weight = {numbers.get(k, k): v for k, v in class_weight.items()}
    label = graphs.label
    if not num_classes or label is None or label.size != len(label):
        raise ValueError(
            "Expected class_weight with labels of one class each. Received: "
            f"class_weight={'balanced' if balanced else dict(class_weight)!r}. Use "
            "sample_weight, or weights in the loss."
        )
    _check_class_weight(class_weight, num_classes)
    weights = np.ones(num_classes, np.float32)
    weights[list(class_weight)] = list(class_weight.values())
    classes = np.nan_to_num(np.asarray(label, np.float64).reshape(-1), nan=-1.0)
    has_class = (classes >= 0) & (classes < num_classes)
    if balanced:
        counts = np.bincount(
            classes[has_class].astype(int),
            label_weights(graphs)[has_class],
            num_classes,
        )
        occurs = counts > 0
        weights[occurs] = counts.sum() / (occurs.sum() * counts[occurs])
    weight = weights[np.where(has_class, classes, 0).astype(int)]
    name = weight_column(graphs.label_level)
    return _replaced(graphs, {name: weight * graphs.columns().get(name, np.float32(1))})


def _check_class_weight(class_weight: Mapping, num_classes: int) -> None:
    """Refuse what is no class, and weights that are no numbers of at least 0."""
    for name, weight in class_weight.items():
        is_class = isinstance(name, int | np.integer) and not isinstance(name, bool)
        if not is_class or not 0 <= name < num_classes:
            problem = f"the class {name!r}"
        elif not isinstance(weight, int | float | np.number) or not weight >= 0:
            problem = f"class_weight[{name}]={weight!r}"
        else:
            continue
        raise ValueError(
            f"Expected class_weight to be {{class: weight >= 0}} with classes in [0, "
            f"{num_classes}). Received: {problem}."
        )


def graphs_for_labels(name: str, graphs: Any) -> tuple[FlatGraphs, np.ndarray | None]:
    """Return graphs as one `FlatGraphs`, to add labels and weights to.

    Returns:
        The graphs, whose edges are sorted by receiver, and the place of each of their
        edges in the given graphs; None if they had this order.

    Raises:
        ValueError: For a loader, whose graphs are assembled already, and for program
            graphs, whose label is one of their candidates.
    """
    expected = "graphs to add labels, weights or a validation split to"
    if isinstance(graphs, Loader):
        refuse(name, expected, graphs, "Pass the graphs that the loader was made of.")
    first = graphs[0] if isinstance(graphs, list | tuple) and graphs else None
    encoder = layer_for(first)
    if encoder is not None:
        refuse(
            name, expected, first, f"Encode them first: {encoder.__name__}()(graphs)."
        )
    parts = parts_of(graphs)
    if not parts:
        raise ValueError(f"Expected at least one graph in `{name}`. Received: none.")
    flat = FlatGraphs.concatenate(parts)
    layers = applied_layers(graphs)
    if layers:
        flat = FlatGraphs.from_columns(flat.columns(), flat.info)
        flat.metadata = {"layers": layers}
    order = None
    if isinstance(first, Graph):
        orders = [np.argsort(graph.receivers, kind="stable") for graph in graphs]
        order = np.concatenate(orders) + flat.edge_ptr[:-1].repeat(flat.num_edges)
    return flat, order
