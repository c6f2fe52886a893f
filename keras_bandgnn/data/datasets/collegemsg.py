"""Reader of CollegeMsg: private messages between users, with times."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from keras_bandgnn.arrays import TIME
from keras_bandgnn.data.datasets.tables import read_matrix
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.reading import refuse_file
from keras_bandgnn.graph import Graph


def read(files: Mapping[str, Path]):
    """Read messages as one graph whose edges have times.

    Each line has the sender, the receiver and the time in seconds since 1970, separated
    by blanks, as the temporal networks of SNAP have them.

    Args:
        files: Path of `messages`, compressed (`.gz`) or not.

    Returns:
        `FlatGraphs` of one graph. Nodes are the users in the order of their numbers,
        with the feature `id`; edges go from the sender to the receiver of a message and
        have its `time`.

    Raises:
        ValueError: If a line has no three integers, or a number is below 0.
    """
    path = files["messages"]
    rows = read_matrix(path, delimiter=" ")
    if not len(rows) or rows.dtype.kind != "i" or rows.shape[1] != 3:
        received = f"{rows.shape[1]} columns of {rows.dtype}" if len(rows) else "none"
        expected = "to have lines of three integers: sender, receiver and time"
        refuse_file(path, expected, received)
    if rows.min() < 0:
        refuse_file(path, "to have numbers of at least 0", str(rows.min()))
    users, ends = np.unique(rows[:, :2], return_inverse=True)
    senders, receivers = ends.reshape(-1, 2).T
    graph = Graph(
        len(users),
        senders,
        receivers,
        node={"id": np.arange(len(users))},
        edge={TIME: rows[:, 2]},
    )
    return FlatGraphs.from_graphs([graph])
