"""MalNet-Tiny: call graphs of Android programs, as text files of edges."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from keras_bandgnn.data.datasets.parts import SPLITS
from keras_bandgnn.data.datasets.tables import read_matrix
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.reading import Limits, read_bytes, read_text, refuse_file
from keras_bandgnn.progress import progress_bar

_FILES = {"train": "train.txt", "valid": "val.txt", "test": "test.txt"}
_COMMENT = re.compile(rb"^#.*\n?", re.MULTILINE)


def read(files: Mapping[str, Path], *, split: str | None, progress: bool) -> FlatGraphs:
    """Read `<type>/<family>/<name>.edgelist` files, listed by three split files.

    Args:
        files: `{"graphs": folder of the types, "train": path of train.txt}`; `val.txt`
            and `test.txt` are in the same folder.
        split: Reads only the graphs of this split; all if None.
        progress: Whether to show a progress bar.

    Returns:
        Directed graphs without features; label int32 [n]: the type, numbered in
        alphabetical order; `info` has `file` and `type`; context `split`.

    Raises:
        FileNotFoundError: If a listed file is missing.
        ValueError: If a file does not hold pairs of numbers.
    """
    folder, lists = files["graphs"], files["train"].parent
    # Classes are numbered over all splits, whichever split is read.
    listed = {s: _read_names(lists / name) for s, name in _FILES.items()}
    types = sorted(
        {name.partition("/")[0] for names in listed.values() for name in names}
    )
    splits = [split] if split else list(SPLITS)
    names = [name for s in splits for name in listed[s]]
    codes = [SPLITS.index(s) for s in splits for _ in listed[s]]
    texts = []
    with progress_bar("Reading MalNet-Tiny", len(names), progress) as advance:
        for name in names:
            texts.append(_read_edge_lines(folder / f"{name}.edgelist"))
            advance(1)
    num_edges = np.array([text.count(b"\n") for text in texts])
    ends = read_matrix(b"".join(texts), folder, " ")
    if not ends.size:
        ends = ends.reshape(0, 2)
    if ends.dtype.kind != "i" or ends.shape != (num_edges.sum(), 2) or (ends < 0).any():
        received = f"{ends.shape[1]} columns of type {ends.dtype}, or negative ids"
        refuse_file(
            folder, "to have lines of two ids, the sender and the receiver", received
        )
    return FlatGraphs(
        num_nodes=_num_nodes(ends, num_edges),
        num_edges=num_edges,
        senders=ends[:, 0],
        receivers=ends[:, 1],
        context={"split": codes},
        label=np.searchsorted(types, [name.partition("/")[0] for name in names]),
        info=[{"file": name, "type": name.partition("/")[0]} for name in names],
    )


def _read_names(path: Path) -> list[str]:
    """Read the names `<type>/<family>/<name>` of a split."""
    names = read_text(path).split()
    for name in names:
        if name.count("/") != 2 or {"", ".", ".."} & set(name.split("/")):
            refuse_file(path, "to list names <type>/<family>/<name>", name)
    return names


def _read_edge_lines(path: Path) -> bytes:
    """Read the lines "sender receiver", without comments."""
    if not path.exists():
        raise FileNotFoundError(
            f"Expected {path}, which the split lists. Received: no such file. "
            "Unpack the archive again."
        )
    text = _COMMENT.sub(b"", read_bytes(path).replace(b"\r", b"")).replace(b"\t", b" ")
    lines = [line for line in text.split(b"\n") if line.strip()]
    return b"".join(line.strip() + b"\n" for line in lines)


def _num_nodes(ends: np.ndarray, num_edges: np.ndarray) -> np.ndarray:
    """Return the largest id of each graph plus 1; 1 for a graph without edges."""
    num_nodes = np.ones(len(num_edges), np.int64)
    nonempty = num_edges > 0
    if nonempty.any():
        starts = (np.cumsum(num_edges) - num_edges)[nonempty]
        num_nodes[nonempty] = np.maximum.reduceat(ends.max(axis=1), starts) + 1
    # Node ids from 0 have few gaps.
    bad = np.flatnonzero(num_nodes > Limits.current().ratio * (num_edges + 1))
    if bad.size:
        raise ValueError(
            f"Expected the {num_edges[bad[0]]} edges of graph {bad[0]} to join nodes "
            f"that are numbered from 0. Received: the id {num_nodes[bad[0]] - 1}. Get "
            "the set again."
        )
    return num_nodes
