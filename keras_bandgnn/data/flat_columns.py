"""The columns of `FlatGraphs`: levels, checks, conversion and sorting."""

import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_bandgnn.arrays import (
    INT32_MAX,
    TARGETS,
    TIME,
    check_set_rows,
    checked_times,
    integers,
    is_time,
    narrowed,
)
from keras_bandgnn.checks import int_array, shown

EDGE_COLUMNS = ("senders", "receivers", "edge_type")
COUNTS = {"node": "num_nodes", "edge": "num_edges", "candidate": "num_candidates"}
# Columns of node sets: "sets/<set>/<feature>", and "set_rows/<set>", their counts.
SETS, SET_ROWS = "sets", "set_rows"
# Features of the level of labels.
LEVELS = {"graph": "context", "node": "node", "edge": "edge"}
SAMPLE_WEIGHT = "sample_weight"
"""Feature of graphs (context), nodes or edges that weighs their labels."""


def on_host(kind: str, name: str) -> bool:
    """Return whether a column stays on the host: weights of labels, and times.

    Args:
        kind: `"node"`, `"edge"` or `"context"`.
        name: Its name.
    """
    return name == SAMPLE_WEIGHT or is_time(kind, name)


def time_column(level: str) -> str:
    """Return the column with the times of a level, "node" or "edge"."""
    return f"{level}/{TIME}"


def weight_column(level: str) -> str:
    """Return the column with the weights of labels of a level."""
    return f"{LEVELS[level]}/{SAMPLE_WEIGHT}"


def label_weights(graphs) -> np.ndarray:
    """Return the weight of each label, float64 [n], 1 without `sample_weight`.

    Args:
        graphs: `FlatGraphs` with labels.
    """
    weight = graphs.columns().get(weight_column(graphs.label_level))
    return np.ones(len(graphs.label)) if weight is None else np.float64(weight)


def pointers(counts: np.ndarray) -> np.ndarray:
    """Return int64 [n + 1]: item i has the rows `[ptr[i], ptr[i + 1])`."""
    ptr = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ptr[1:])
    return ptr


def gather_rows(ptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Return the concatenated rows of the selected items.

    Args:
        ptr: int [n + 1], item i has the rows `[ptr[i], ptr[i + 1])`.
        indices: int [m], items in any order; may repeat.

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


def count_column(level: str) -> str | None:
    """Return the column with the rows of each graph at a level; None for `graph`."""
    kind, _, name = level.partition("/")
    return f"{SET_ROWS}/{name}" if kind == SETS else COUNTS.get(level)


def level_of(column: str) -> str:
    """Return the level of a column.

    It is `node`, `edge`, `candidate`, `graph`, or `sets/<set>` for a node set.
    """
    if column.startswith(f"{SETS}/"):
        return "/".join(column.split("/")[:2])
    if column in (*EDGE_COLUMNS, "label/edge") or column.startswith("edge/"):
        return "edge"
    if column in ("origin", "label/node") or column.startswith("node/"):
        return "node"
    return "candidate" if column == "candidates" else "graph"


def spec_of(columns: Mapping[str, np.ndarray]) -> dict[str, list]:
    """Return `[dtype, trailing shape]` of each column."""
    return {k: [v.dtype.name, list(v.shape[1:])] for k, v in columns.items()}


def check_same_spec(what: str, spec: dict, like: str, expected: dict) -> None:
    """Raise a ValueError that names the first difference of two specs."""
    if spec == expected:
        return

    def show(entry: list | None) -> str:
        if entry is None:
            return "none"
        return (
            f"{entry[0]} rows of shape {entry[1]}"
            if entry[1]
            else f"{entry[0]} numbers"
        )

    for name in [*expected, *spec]:
        if spec.get(name) != expected.get(name):
            kind, *keys = name.split("/", 2 if name.startswith(f"{SETS}/") else 1)
            shown = name
            if kind in ("node", "edge", "context", SETS):
                shown = kind + "".join(f"[{key!r}]" for key in keys)
            raise ValueError(
                f"Expected `{shown}` to be {show(expected.get(name))} in {what}, as in "
                f"{like}. Received: {show(spec.get(name))}. Give every graph the same "
                "features, candidates and labels, with the same dtypes and shapes."
            )


def check_index(index: Any, count: int) -> int:
    """Return an index in `[0, count)`; negative ones count from the end."""
    try:
        i = operator.index(index)
    except TypeError as error:
        raise TypeError(
            f"Expected an integer index. Received: {shown(index)}. For several graphs, "
            "call take(indices)."
        ) from error
    i += count if i < 0 else 0
    if not 0 <= i < count:
        raise IndexError(
            f"Expected an index in [{-count}, {count}). Received: {index}."
        )
    return i


def check_indices(indices: Any, count: int) -> np.ndarray:
    """Return int64 indices in `[0, count)`; negative ones count from the end."""
    try:
        array = np.asarray(indices)
    except ValueError as error:
        raise IndexError(
            "Expected `indices` to be a 1-D array of integers. Received: a ragged "
            "sequence. Pass a flat list of integers."
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
"""Smallest value of the integer columns whose minimum is not 0."""


def to_32_bit(name: str, values: Any) -> np.ndarray:
    """Convert a column to int32, or float32 with fractions; times to int64.

    Args:
        name: Name of the column, such as `"senders"` or `"node/type"`.
        values: The column.

    Raises:
        ValueError: If a value is invalid, such as NaN outside of labels, forces and
            stresses, a value too large for 32 bits, or a negative count or type.
    """
    kind, _, key = name.partition("/")
    if key and kind != SET_ROWS:
        shown = f"label ({key})" if kind == "label" else f"{kind}[{key!r}]"
        if is_time(kind, key):
            return np.ascontiguousarray(checked_times(shown, values, share=True))
        array = narrowed(shown, values, kind == "label" or (kind, key) in TARGETS)
        if array.ndim == 0:
            raise ValueError(
                f"Expected `{shown}` to have a row for each {level_of(name)}. "
                "Received: a single number. Pass an array."
            )
        return np.ascontiguousarray(array)
    array, low = integers(name, values), _LOWEST.get(name, 0)
    upper = INT32_MAX + (name in COUNTS.values() or kind == SET_ROWS)
    if array.size and (array.min() < low or array.max() >= upper):
        bad = int(np.flatnonzero((array < low) | (array >= upper))[0])
        raise ValueError(
            f"Expected every value of `{name}` in [{low}, {upper}). Received: "
            f"{name}[{bad}]={int(array[bad])}."
        )
    return np.ascontiguousarray(array, np.int32)


def check_columns(columns: Mapping[str, np.ndarray], info: Sequence | None) -> None:
    """Check that the columns of graphs are consistent.

    Raises:
        ValueError: If lengths disagree, an id is not a node of its graph, or a label is
            not the position of a candidate.
    """
    graphs = len(columns["num_nodes"])
    if "candidates" in columns and "num_candidates" not in columns:
        raise ValueError(
            "Expected `num_candidates` with `candidates`. Received: only `candidates`. "
            "Pass the number of candidates of each graph."
        )
    totals = {"graph": graphs}
    for level in sorted({*COUNTS, *map(level_of, columns)} - {"graph"}):
        name = count_column(level)
        if name not in columns and level not in COUNTS:
            raise ValueError(
                f"Expected `{name}`, the rows of each graph, with features of a node "
                f"set. Received: {sorted(columns)}."
            )
        totals[level] = int(columns.get(name, np.zeros(0)).sum(dtype=np.int64))
    lengths = {k: (len(v), totals[level_of(k)]) for k, v in columns.items()}
    lengths["info"] = (graphs if info is None else len(info), graphs)
    for name, (length, expected) in lengths.items():
        if length != expected:
            raise ValueError(
                f"Expected `{name}` to have {expected} rows, the sum of the graphs' "
                f"counts. Received: {length}. Check the counts."
            )
    for name in ("senders", "receivers", "candidates", "slot"):
        if name in columns:
            check_within(columns, name, "num_nodes")
    _check_sets(columns)
    if "candidates" in columns and "label/graph" in columns:
        label = columns["label/graph"]
        if label.ndim != 1 or label.dtype.kind != "i":
            raise ValueError(
                "Expected `label` to be the position of the correct candidate of each "
                f"graph, an integer. Received: shape {label.shape}, dtype "
                f"{label.dtype}. If labels are node ids, pass their positions in "
                "`candidates`."
            )
        check_within(columns, "label/graph", "num_candidates")


def _check_sets(columns: Mapping[str, np.ndarray]) -> None:
    sizes = set_sizes(columns)
    if not sizes:
        return
    node = {name: columns.get(f"node/{name}") for name in ("set", "set_row")}
    check_set_rows(node, np.stack(list(sizes.values()), axis=1), columns["num_nodes"])


def set_sizes(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the rows of each graph in each node set, in the order of their names."""
    names = sorted(name for name in columns if name.startswith(f"{SET_ROWS}/"))
    return {name.partition("/")[2]: columns[name] for name in names}


def check_within(columns: Mapping[str, np.ndarray], name: str, limit: str) -> None:
    """Raise a ValueError unless each value is below the `limit` of its graph."""
    array, upper, low = columns[name], columns[limit], _LOWEST.get(name, 0)
    # Fast path: all values are below the smallest limit.
    if not array.size or (array.min() >= low and array.max() < upper.min()):
        return
    counts = columns.get(count_column(level_of(name)))
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
    """Sort the edges of each graph by receiver, stably, if they are not sorted."""
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
    """Metadata of each graph as an Arrow array of JSON text, parsed on access.

    Args:
        texts: The Arrow array.
        source: Name of the file, for errors.
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
        """Return the metadata of the selected graphs."""
        return JsonInfo(self.texts.take(indices), self.source)

    @staticmethod
    def concatenate(parts: Sequence["JsonInfo"]) -> "JsonInfo":
        """Concatenate the metadata of several lists of graphs."""
        import pyarrow as pa

        source = ", ".join(dict.fromkeys(part.source for part in parts[:3]))
        return JsonInfo(pa.concat_arrays([part.texts for part in parts]), source)
