"""MalNet-Tiny: call graphs of Android programs, as text files of edges."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from keras_bandgnn.data.datasets.parts import SPLITS
from keras_bandgnn.data.datasets.progress import progress_bar
from keras_bandgnn.data.datasets.tables import read_matrix
from keras_bandgnn.data.flat import FlatGraphs

_FILES = {"train": "train.txt", "valid": "val.txt", "test": "test.txt"}
_COMMENT = re.compile(rb"^#.*\n?", re.MULTILINE)


def read(files: Mapping[str, Path], *, split: str | None, progress: bool) -> FlatGraphs:
    """Reads `<type>/<family>/<name>.edgelist` files, listed by three split files.

    Args:
        files: `{"graphs": folder of the types, "train": path of train.txt}`; `val.txt`
            and `test.txt` lie beside it.
        split: Read the graphs of this split alone; all if None.
        progress: Whether to draw a bar.

    Returns:
        Directed graphs without features; label int32 [n]: the type, numbered in
        alphabetical order; `info` has `file` and `type`; context `split`.

    Raises:
        FileNotFoundError: If a listed file is missing.
        ValueError: If a file does not hold pairs of numbers.
    """
    folder, lists = files["graphs"], files["train"].parent
    # Classes are numbered by all lists, whichever split is read.
    listed = {s: (lists / name).read_text().split() for s, name in _FILES.items()}
    types = sorted(
        {name.partition("/")[0] for names in listed.values() for name in names}
    )
    wanted = [split] if split else list(SPLITS)
    names = [name for s in wanted for name in listed[s]]
    codes = [SPLITS.index(s) for s in wanted for _ in listed[s]]
    texts = []
    with progress_bar("Reading MalNet-Tiny", len(names), progress) as advance:
        for name in names:
            texts.append(_edges(folder / f"{name}.edgelist"))
            advance(1)
    num_edges = np.array([text.count(b"\n") for text in texts])
    ends = read_matrix(b"".join(texts), folder.name, " ").reshape(-1, 2)
    return FlatGraphs(
        num_nodes=_num_nodes(ends, num_edges),
        num_edges=num_edges,
        senders=ends[:, 0],
        receivers=ends[:, 1],
        context={"split": codes},
        label=np.searchsorted(types, [name.partition("/")[0] for name in names]),
        info=[{"file": name, "type": name.partition("/")[0]} for name in names],
    )


def _edges(path: Path) -> bytes:
    """Lines "sender receiver" without the comments at the top."""
    if not path.exists():
        raise FileNotFoundError(
            f"Expected {path}, which the split lists. Received: it is not there. "
            "Unpack the archive again."
        )
    text = _COMMENT.sub(b"", path.read_bytes().replace(b"\r", b"")).replace(b"\t", b" ")
    lines = [line for line in text.split(b"\n") if line.strip()]
    return b"".join(line.strip() + b"\n" for line in lines)


def _num_nodes(ends: np.ndarray, num_edges: np.ndarray) -> np.ndarray:
    """One more than the largest id of each graph; 1 for a graph without edges."""
    num_nodes = np.ones(len(num_edges), np.int64)
    some = num_edges > 0
    if some.any():
        starts = (np.cumsum(num_edges) - num_edges)[some]
        num_nodes[some] = np.maximum.reduceat(ends.max(axis=1), starts) + 1
    return num_nodes
