"""Flat columns: what each array of `FlatGraphs` has a row for, checks and sorting."""

import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_bandgnn.arrays import INT32_MAX, integers, narrowed
from keras_bandgnn.checks import int_array, shown

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
    ptr, indices = int_array("ptr", ptr), int_array("indices", indices)
    starts = ptr[indices]
    counts = ptr[indices + 1] - starts
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


def check_index(index: Any, count: int) -> int:
    """Returns an id in `[0, count)`; a negative one counts from the end."""
    try:
        i = operator.index(index)
    except TypeError as error:
        raise TypeError(
            f"Expected an index, an integer. Received: {shown(index)}. Several graphs "
            "are take(indices)."
        ) from error
    i += count if i < 0 else 0
    if not 0 <= i < count:
        raise IndexError(
            f"Expected an index in [{-count}, {count}). Received: {index}."
        )
    return i


def check_indices(indices: Any, count: int) -> np.ndarray:
    """Returns int64 ids in `[0, count)`; negative ones count from the end."""
    try:
        array = np.asarray(indices)
    except ValueError as error:
        raise IndexError(
            "Expected `indices` to be a 1-D array of integers. Received: rows of "
            "differing lengths."
        ) from error
    if array.size == 0:
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise IndexError(
            "Expected `indices` to be a 1-D array of integer indices. "
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


_LOWEST = {"num_nodes": 1, "num_candidates": 1, "slot": -1}
"""Smallest value of the columns of integers that do not begin at 0."""


def to_32_bit(name: str, values: Any) -> np.ndarray:
    """Converts a column to int32, or float32 where features may be fractions.

    Args:
        name: Name of the column, such as `"senders"` or `"node/type"`.
        values: The column.

    Raises:
        ValueError: If it holds something else, such as NaN (which only labels may
            have), a value that 32 bits cannot hold, or a negative count or type.
    """
    kind, _, key = name.partition("/")
    if key:
        shown = f"label ({key})" if kind == "label" else f"{kind}[{key!r}]"
        array = narrowed(shown, values, missing=kind == "label")
        if array.ndim == 0:
            raise ValueError(
                f"Expected `{shown}` to have a row for each {level_of(name)}. "
                "Received: a single number."
            )
        return np.ascontiguousarray(array)
    array, low = integers(name, values), _LOWEST.get(name, 0)
    upper = INT32_MAX + (name in COUNTS.values())
    if array.size and (array.min() < low or array.max() >= upper):
        bad = int(np.flatnonzero((array < low) | (array >= upper))[0])
        raise ValueError(
            f"Expected every value of `{name}` in [{low}, {upper}). Received: "
            f"{name}[{bad}]={int(array[bad])}."
        )
    return np.ascontiguousarray(array, np.int32)


def check_columns(columns: Mapping[str, np.ndarray], info: Sequence | None) -> None:
    """Checks how columns of int32 and float32 fit together.

    Raises:
        ValueError: If lengths disagree, an id is no node of its graph, or a label no
            position of a candidate.
    """
    graphs = len(columns["num_nodes"])
    if "candidates" in columns and "num_candidates" not in columns:
        raise ValueError(
            "Expected `num_candidates` with `candidates`. Received: only `candidates`."
        )
    totals = {"graph": graphs}
    for level, name in COUNTS.items():
        totals[level] = int(columns.get(name, np.zeros(0)).sum(dtype=np.int64))
    lengths = {k: (len(v), totals[level_of(k)]) for k, v in columns.items()}
    lengths["info"] = (graphs if info is None else len(info), graphs)
    for name, (length, expected) in lengths.items():
        if length != expected:
            raise ValueError(
                f"Expected `{name}` to have {expected} rows, as many as the counts of "
                f"the graphs add up to. Received: {length}."
            )
    for name in ("senders", "receivers", "candidates", "slot"):
        if name in columns:
            check_within(columns, name, "num_nodes")
    if "candidates" in columns and "label/graph" in columns:
        label = columns["label/graph"]
        if label.ndim != 1 or label.dtype.kind != "i":
            raise ValueError(
                "Expected `label` to be the position of the right candidate of each "
                f"graph, an integer. Received: shape {label.shape}, dtype "
                f"{label.dtype}. If labels are node ids, pass their positions in "
                "`candidates`."
            )
        check_within(columns, "label/graph", "num_candidates")


def check_within(columns: Mapping[str, np.ndarray], name: str, limit: str) -> None:
    """Raises a ValueError unless each value is below the `limit` of its graph."""
    array, upper, low = columns[name], columns[limit], _LOWEST.get(name, 0)
    # Most often no value exceeds what the smallest graph allows.
    if not array.size or (array.min() >= low and array.max() < upper.min()):
        return
    counts = columns.get(COUNTS.get(level_of(name), ""))
    upper = upper if counts is None else np.repeat(upper, counts)
    bad = np.flatnonzero((array < low) | (array >= upper))
    if bad.size:
        at = int(bad[0])
        raise ValueError(
            f"Expected every value of `{name}` in [{low}, {limit}) of its graph, "
            f"{upper[at]} here. Received: {name}[{at}]={array[at]}. Ids and positions "
            "count from 0 within each graph."
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
    """Facts of each graph as an Arrow array of JSON text, parsed when asked for.

    Args:
        texts: The Arrow array.
        source: The file that it comes from, for errors.
    """

    def __init__(self, texts: Any, source: str = "a store"):
        self.texts = texts
        self.source = source

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict:
        text = self.texts[index].as_py()
        try:
            info = json.loads(text)
        except (ValueError, RecursionError) as error:
            info = error
        if not isinstance(info, dict):
            raise ValueError(
                f"Expected the info of graph {index} in {self.source} to be a JSON "
                f"object. Received: {str(info)[:80]}. Write the store again."
            )
        return info

    def take(self, indices: np.ndarray) -> "JsonInfo":
        """The facts of some graphs."""
        return JsonInfo(self.texts.take(indices), self.source)

    @staticmethod
    def concatenate(parts: Sequence["JsonInfo"]) -> "JsonInfo":
        """The facts of several lists of graphs, one after the other."""
        import pyarrow as pa

        source = ", ".join(dict.fromkeys(part.source for part in parts[:3]))
        return JsonInfo(pa.concat_arrays([part.texts for part in parts]), source)
