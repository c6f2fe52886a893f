"""Labels that are classes: what is missing, and what is wrong."""

import numpy as np

from keras_bandgnn.data.flat import FlatGraphs


def check_level(part: FlatGraphs, level: str, task: str) -> None:
    """Raises a ValueError if labels belong to something else.

    Args:
        part: Graphs with labels.
        level: "node" or "graph".
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
    """Raises a ValueError if a label is no class; returns how many are there.

    Args:
        part: Graphs with labels. -1 and NaN are missing.
        num_classes: C.
    """
    if part.label.ndim > 2 or part.label.shape[1:] not in ((), (1,)):
        raise ValueError(
            "Expected one class per label. "
            f"Received: labels of shape {part.label.shape[1:]}. For several targets "
            "per graph take GraphClassifier(..., multi_label=True)."
        )
    label = np.asarray(part.label, np.float64).reshape(-1)
    given = label[~(np.isnan(label) | (label == -1))]
    wrong = given[(given < 0) | (given >= num_classes) | (given != np.floor(given))]
    if wrong.size:
        raise ValueError(
            f"Expected classes in [0, {num_classes}), as num_classes={num_classes}, or "
            f"-1 where the class is not known. Received: {wrong[0]:g}. Count classes "
            "from 0, or raise num_classes."
        )
    return given.size


def check_some(count: int, what: str) -> None:
    """Raises a ValueError if nothing has a label."""
    if not count:
        raise ValueError(
            f"Expected at least one {what} with a label. Received: none. Labels of -1 "
            "or NaN count nowhere, nor do nodes outside the mask."
        )
