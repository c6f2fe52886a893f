"""The validation split of `fit`, which keeps equal graphs together."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_bandgnn.batch import STATE_ROW
from keras_bandgnn.checks import fraction
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.identity import graph_keys, merged_groups


def split_off(
    graphs: FlatGraphs, validation_split: Any, groups: Sequence[int]
) -> tuple[FlatGraphs, FlatGraphs]:
    """Split graphs into training and validation graphs.

    As in Keras these are the last ones. Groups stay together, such as the rows of one
    molecule: from the end on, whole groups are set aside until the share is full.

    Args:
        graphs: All graphs.
        validation_split: The share to validate on, in (0, 1).
        groups: The group of each graph, see `same_to_model`.

    Raises:
        ValueError: If one of the parts is empty.
    """
    share = fraction("validation_split", validation_split)
    count = len(graphs)
    target = count - math.floor(count * (1.0 - share))
    members: dict[int, list[int]] = {}
    for i in range(count - 1, -1, -1):
        members.setdefault(groups[i], []).append(i)
    valid: list[int] = []
    for rows in list(members.values())[:-1]:
        if not valid or len(valid) + len(rows) <= target:
            valid += rows
    if not valid:
        raise ValueError(
            "Expected at least two distinct graphs, to train and to validate on. "
            f"Received: {len(members)} distinct ones, validation_split="
            f"{validation_split}. Pass validation_data=(x, y), or masks of nodes."
        )
    training = np.setdiff1d(np.arange(count), valid)
    return _taken(graphs, training), _taken(graphs, np.sort(valid))


def _taken(graphs: FlatGraphs, indices: np.ndarray) -> FlatGraphs:
    out = graphs.take(indices)
    if hasattr(graphs, "metadata"):
        out.metadata = graphs.metadata
    return out


def same_to_model(task, graphs: FlatGraphs, encoder=None, groups=None) -> list[int]:
    """Return the group of each graph; graphs of a group are equal to the model.

    Graphs are compared as the task's preprocessor returns them, by the features that
    the task reads.

    Args:
        task: The task.
        graphs: The graphs, after the layers of the task.
        encoder: The encoder of raw data that they were made of, or None.
        groups: For each graph bytes that items of one kind share, or None.
    """
    read = task.features_read()
    if read is not None:
        weight = getattr(task.preprocessor, "edge_weight", None)
        read = {**read, "edge": (*read.get("edge", ()), *([weight] if weight else ()))}
        has = {"node": graphs.node, "edge": graphs.edge, "graph": graphs.context}
        if graphs.sets:
            has["node"] = {**graphs.node, STATE_ROW: graphs.node["set_row"]}
        if any({*names} - {*has[level]} for level, names in read.items()):
            # Layers that run later compute them from other features.
            read = None
    keys = graph_keys(
        graphs,
        read,
        ignored=() if encoder is None else encoder.varying(),
        types=task.backbone.num_edge_types != 0,
    ).tolist()
    return merged_groups(keys, *([] if groups is None else [groups]))
