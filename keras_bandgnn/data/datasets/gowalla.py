"""Reader of lists of items of users, the form of Gowalla's check-ins of LightGCN."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from keras_bandgnn.data.converters.node_sets import from_sets
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.reading import read_text, refuse_file

FILES = {"train": "train.txt", "test": "test.txt"}


def read(files: Mapping[str, Path]):
    """Read lists of items as one graph with the node sets `user` and `item`.

    Each line has the number of a user and those of the items that the user visited,
    separated by spaces. Numbers begin at 0 and leave none out.

    Args:
        files: Paths by the names of `FILES`.

    Returns:
        `FlatGraphs` of one graph. Its edge sets are user `visits` item and the other
        direction; the edge features `train_mask` and `test_mask` say which file a pair
        is from, see `split_by_masks`. The feature `id` of users and items is their
        number.

    Raises:
        ValueError: If a line has other words than numbers, numbers are left out, or a
            pair comes twice.
    """
    parts = {name: _pairs(files[name]) for name in FILES}
    pairs = np.concatenate([*parts.values()], axis=1)
    counts = {}
    for name, numbers in zip(("user", "item"), pairs, strict=True):
        present = np.unique(numbers)
        counts[name] = len(present)
        if present[-1] != len(present) - 1:
            missing = np.flatnonzero(present != np.arange(len(present)))[0]
            expected = f"to have all numbers of {name}s from 0 to {present[-1]}"
            refuse_file(files["train"], expected, f"none of {name} {missing}")
    keys = np.unique(pairs[0] * counts["item"] + pairs[1])
    if len(keys) < pairs.shape[1]:
        count = pairs.shape[1] - len(keys)
        refuse_file(
            files["train"], "and test.txt to have a pair once", f"{count} twice"
        )
    tested = np.repeat([False, True], [part.shape[1] for part in parts.values()])
    graph = from_sets(
        {name: {"id": np.arange(count)} for name, count in counts.items()},
        {
            ("user", "visits", "item"): {
                "edge_index": pairs,
                "train_mask": ~tested,
                "test_mask": tested,
            }
        },
        reverse=True,
    )
    return FlatGraphs.from_graphs([graph])


def _pairs(path: Path) -> np.ndarray:
    """Return the users and items of the lines of a file, int64 [2, n]."""
    lines = [line.split() for line in read_text(path).splitlines()]
    counts = np.array([max(len(line) - 1, 0) for line in lines], np.int64)
    if not counts.sum():
        refuse_file(path, "to have a user and items in a line", "none")
    try:
        users = np.array([line[0] if line else "0" for line in lines]).astype(np.int64)
        items = [item for line in lines for item in line[1:]]
        items = np.array(items).astype(np.int64)
    except (ValueError, OverflowError) as error:
        refuse_file(path, "to have integers alone", str(error)[:80], cause=error)
    if min(users.min(), items.min()) < 0:
        refuse_file(path, "to have numbers of at least 0", "a negative one")
    return np.stack([users.repeat(counts), items])
