"""Flat columns: what each array of `FlatGraphs` has a row for, checks and sorting."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

EDGE_COLUMNS = ("senders", "receivers", "edge_type")
COUNTS = {"node": "num_nodes", "edge": "num_edges", "candidate": "num_candidates"}


def pointers(counts: np.ndarray) -> np.ndarray:
    """Returns int64 [n + 1]: the rows of item i are `[ptr[i], ptr[i + 1])`."""
    ptr = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ptr[1:])
    return ptr


def gather_rows(ptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Returns the flat rows of some items, one item after the other.

    Args:
        ptr: int [n + 1], the rows of item i are `[ptr[i], ptr[i + 1])`.
        indices: int [m], items in any order; repeats are fine.

    Returns:
        int64 [sum of the items' row counts].

    Example:
    >>> gather_rows(np.array([0, 2, 3, 6]), np.array([2, 0])).tolist()
    [3, 4, 5, 0, 1]
    """
    starts = ptr[indices]
    counts = ptr[np.asarray(indices) + 1] - starts
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - counts), counts) + np.arange(total)


def level_of(column: str) -> str:
    """What a column has one row for: `node`, `edge`, `candidate` or `graph`."""
    if column in EDGE_COLUMNS or column.startswith("edge/"):
        return "edge"
    if column in ("origin", "label/node") or column.startswith("node/"):
        return "node"
    return "candidate" if column == "candidates" else "graph"


def spec_of(columns: Mapping[str, np.ndarray]) -> dict[str, list]:
    """`[dtype, trailing shape]` of each column."""
    return {k: [v.dtype.name, list(v.shape[1:])] for k, v in columns.items()}


def check_same_spec(what: str, spec: dict, like: str, expected: dict) -> None:
    """Raises a ValueError that names the first feature in which two specs differ."""
    if spec == expected:
        return

    def show(entry: list | None) -> str:
        return "none" if entry is None else f"{entry[0]} of shape [..., {entry[1]}]"

    for name in [*expected, *spec]:
        if spec.get(name) != expected.get(name):
            kind, _, key = name.partition("/")
            shown = f"{kind}[{key!r}]" if kind in ("node", "edge", "context") else name
            raise ValueError(
                f"Expected `{shown}` to be {show(expected.get(name))} in {what}, as in "
                f"{like}. Received: {show(spec.get(name))}. Give every graph the same "
                "features, candidates and labels, with equal dtypes and shapes."
            )


def check_indices(indices: Any, count: int) -> np.ndarray:
    """Returns int64 ids in `[0, count)`; negative ones count from the end."""
    array = np.asarray(indices)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise IndexError(
            "Expected a 1-D array of integer indices. "
            f"Received: shape {array.shape}, dtype {array.dtype}."
        )
    array = np.where(array < 0, array + count, array).astype(np.int64)
    if array.size and (array.min() < 0 or array.max() >= count):
        bad = int(np.flatnonzero((array < 0) | (array >= count))[0])
        raise IndexError(
            f"Expected indices in [{-count}, {count}). "
            f"Received: indices[{bad}]={int(np.asarray(indices)[bad])}."
        )
    return array


def to_32_bit(name: str, values: Any) -> np.ndarray:
    """Converts a column to int32, or float32 where features may be fractions."""
    array = np.asarray(values)
    fixed = "/" not in name
    if array.dtype.kind in "biu" or (array.size == 0 and fixed):
        return np.ascontiguousarray(array, np.int32)
    if array.dtype.kind == "f" and not fixed:
        return np.ascontiguousarray(array, np.float32)
    raise ValueError(
        f"Expected `{name}` to be an array of {'integers' if fixed else 'numbers'}. "
        f"Received: dtype {array.dtype}."
    )


def check_columns(columns: Mapping[str, np.ndarray], info: Sequence | None) -> None:
    """Raises a ValueError if lengths disagree or ids are not nodes of their graph."""
    graphs = len(columns["num_nodes"])
    if "candidates" in columns and "num_candidates" not in columns:
        raise ValueError(
            "Expected `num_candidates` with `candidates`. Received: only `candidates`."
        )
    totals = {"graph": graphs}
    for level, name in COUNTS.items():
        totals[level] = int(columns.get(name, np.zeros(0)).sum())
    lengths = {k: (len(v), totals[level_of(k)]) for k, v in columns.items()}
    lengths["info"] = (graphs if info is None else len(info), graphs)
    for name, (length, expected) in lengths.items():
        if length != expected:
            raise ValueError(
                f"Expected `{name}` to have {expected} rows, as many as the counts of "
                f"the graphs add up to. Received: {length}."
            )
    for name in ("senders", "receivers", "candidates", "slot"):
        if name not in columns:
            continue
        counts = columns.get(COUNTS.get(level_of(name), ""), np.ones(graphs, np.int32))
        upper = np.repeat(columns["num_nodes"], counts)
        low = -1 if name == "slot" else 0
        bad = np.flatnonzero((columns[name] < low) | (columns[name] >= upper))
        if bad.size:
            at = int(bad[0])
            raise ValueError(
                f"Expected every id in `{name}` in [{low}, num_nodes) of its graph, "
                f"{upper[at]} here. Received: {name}[{at}]={columns[name][at]}. "
                "Node ids count from 0 within each graph."
            )


def sorted_by_receiver(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Sorts the edges of each graph by receiver, stably, where they are not."""
    graph = np.repeat(np.arange(len(columns["num_edges"])), columns["num_edges"])
    nodes = pointers(columns["num_nodes"])
    key = nodes[graph] + columns["receivers"]
    if (key[1:] >= key[:-1]).all():
        return columns
    order = np.argsort(key, kind="stable")
    return {
        name: array.take(order, axis=0) if level_of(name) == "edge" else array
        for name, array in columns.items()
    }


class JsonInfo(Sequence):
    """Facts of each graph as an Arrow array of JSON text, parsed when asked for."""

    def __init__(self, texts: Any):
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict:
        return json.loads(self.texts[index].as_py())

    def take(self, indices: np.ndarray) -> "JsonInfo":
        """The facts of some graphs."""
        return JsonInfo(self.texts.take(indices))

    @staticmethod
    def concatenate(parts: Sequence["JsonInfo"]) -> "JsonInfo":
        """The facts of several lists of graphs, one after the other."""
        import pyarrow as pa

        return JsonInfo(pa.concat_arrays([part.texts for part in parts]))
