"""Checks of tasks that read one node set of graphs."""

import numpy as np

from keras_bandgnn.data.flat import FlatGraphs


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
