"""Validation and conversion of arrays: 32-bit, contiguous and read-only."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from keras_bandgnn.checks import LAST_ELEMENT, instance

RESERVED = {
    "node": ("graph_id", "mask", "state_row"),
    "edge": ("sender", "receiver", "type", "mask", "message_weight"),
    "context": ("mask", "n_node", "n_edge", "id"),
    "sets": ("mask", "node", "time"),
}
"""Names of features that batches reserve."""

TIME = "time"
"""Column of nodes and of edges with their times, int64, which no batch has."""

LAST_TIME = 2**62
"""Times are below it, so that their differences are int64."""

TARGETS = (("node", "force"), ("context", "stress"))
"""Features that are trained on: NaN, as in labels, where a value is not known."""

INT32_MAX = np.iinfo(np.int32).max


def refuse_masked(name: str, values: Any) -> None:
    """Raise a ValueError for a masked array with masked entries."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise ValueError(
            f"Expected `{name}` to be an array without masked entries. Received: "
            f"{int(np.ma.getmaskarray(values).sum())} of {values.size} masked. Fill "
            "them first: values.astype(float).filled(np.nan) where labels are not "
            "known."
        )


def integers(name: str, values: Any) -> np.ndarray:
    """Return a 1-D array of integers of any width, or raise a ValueError."""
    refuse_masked(name, values)
    try:
        array = np.asarray(values)
    except ValueError:  # rows of differing lengths
        array = np.asarray(values, object)
    if array.size == 0 and array.ndim == 1:
        array = array.astype(np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"Expected `{name}` to be a 1-D array of integers. "
            f"Received: {name} of shape {array.shape} and dtype {array.dtype}. "
            "Convert it with np.asarray(..., dtype=np.int32)."
        )
    return array


def checked_ids(name: str, values: Any, upper: int, what: str) -> np.ndarray:
    """Check a 1-D array of ids in `[0, upper)` and return it as read-only int32."""
    array = integers(name, values)
    if array.size and (array.min() < 0 or array.max() >= upper):
        bad = int(np.flatnonzero((array < 0) | (array >= upper))[0])
        raise ValueError(
            f"Expected every id in `{name}` in [0, {what}) with {what}={upper}. "
            f"Received: {name}[{bad}]={int(array[bad])}."
            + (" Node ids count from 0 within each graph." if upper < INT32_MAX else "")
        )
    return frozen(array.astype(np.int32))


def frozen(array: np.ndarray) -> np.ndarray:
    """Return a contiguous, read-only array; copy views of writable data."""
    array = np.ascontiguousarray(array) if array.ndim else array.copy()
    if array.flags.writeable:
        array = array.copy() if array.base is not None else array
        array.flags.writeable = False
    return array


def _converted(array: np.ndarray, dtype: type, share: bool) -> np.ndarray:
    """Convert an array to another dtype; share memory only if it is read-only."""
    base, fixed = array, True
    while isinstance(base, np.ndarray):
        fixed = fixed and not base.flags.writeable
        base = base.base
    return array.astype(dtype, copy=not (fixed or share))


def narrowed(
    name: str, values: Any, missing: bool = False, share: bool = True
) -> np.ndarray:
    """Convert numbers to int32 or float32; raise an error if they do not fit.

    Args:
        name: Name of the values in errors.
        values: Numbers of any shape.
        missing: Whether NaN is allowed for missing values, as in labels.
        share: Whether the result may share writable memory.

    Raises:
        ValueError: If rows differ in length, or a value is not numeric, not finite or
            too large for 32 bits.
    """
    refuse_masked(name, values)
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(
            f"Expected `{name}` to be a rectangular array. Received: rows of "
            "differing lengths. Pad the rows to one length first."
        ) from error
    if array.dtype.kind in "biu":
        if array.size and (array.max() > INT32_MAX or array.min() < -INT32_MAX - 1):
            raise ValueError(
                f"Expected `{name}` to fit into int32. Received: values from "
                f"{array.min()} to {array.max()}. Map the ids to a smaller range."
            )
        return _converted(array, np.int32, share)
    if array.dtype.kind != "f":
        raise ValueError(
            f"Expected `{name}` to be an array of numbers. Received: dtype "
            f"{array.dtype}. Pad ragged rows, and map strings to ids."
        )
    low, high = check_finite(name, array, missing)
    if max(high, -low) > float(np.finfo(np.float32).max):
        raise ValueError(
            f"Expected `{name}` to fit into float32. "
            f"Received: values up to {max(high, -low)}. Rescale them."
        )
    return _converted(array, np.float32, share)


def check_finite(
    name: str, array: np.ndarray, missing: bool = False
) -> tuple[float, float]:
    """Return the smallest and the largest value; raise an error if not finite.

    Unlike `np.isfinite(array).all()`, this allocates no temporary array.

    Args:
        name: Name of the values in errors.
        array: Floating-point numbers.
        missing: Whether NaN is allowed for missing values.
    """
    if not array.size:
        return 0.0, 0.0
    low, high = float(array.min()), float(array.max())
    if missing and np.isnan(low):
        low, high = (float(f.reduce(array, axis=None)) for f in (np.fmin, np.fmax))
        low, high = (0.0, 0.0) if np.isnan(low) else (low, high)
    if not (np.isfinite(low) and np.isfinite(high)):
        bad = np.isinf(array) if missing else ~np.isfinite(array)
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        place = f"{name}{list(at) if at else ''}"
        raise ValueError(
            f"Expected `{name}` to be finite. Received: {place}={array[at]}. "
            + (
                "Write NaN where a value is not known."
                if missing
                else "Correct the value, or leave out what has it."
            )
        )
    return low, high


def checked_feature(name: str, values: Any, missing: bool = False) -> np.ndarray:
    """Convert a feature to read-only int32 or float32; raise an error otherwise.

    Args:
        name: Its name in errors.
        values: The values.
        missing: Whether NaN is allowed for missing values.
    """
    return frozen(narrowed(name, values, missing, share=False))


def is_time(kind: str, name: str) -> bool:
    """Return whether a column is the reserved one of times.

    Args:
        kind: `"node"`, `"edge"`, `"context"` or `"sets"`.
        name: Its name.
    """
    return name == TIME and kind in ("node", "edge")


def checked_times(name: str, values: Any, share: bool = False) -> np.ndarray:
    """Return times as int64 [n]; raise an error for others than integers.

    Args:
        name: Name of the times in errors.
        values: Integers of one unit, such as seconds or milliseconds.
        share: Whether the result may share writable memory.

    Raises:
        ValueError: For numbers with fractions, dates, missing times, or times too large
            for differences of int64.
    """
    refuse_masked(name, values)
    try:
        array = np.asarray(values)
    except ValueError:  # rows of differing lengths
        array = np.asarray(values, object)
    if array.size == 0 and array.ndim == 1 and array.dtype.kind == "f":
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        # NaN and NaT equal nothing.
        count = int((array != array).sum()) if array.dtype.kind in "fmM" else 0
        missing = f", {count} of them missing: leave out what has no time"
        missing = missing if count else ""
        raise ValueError(
            f"Expected `{name}` to be a 1-D array of integers: times of one unit, kept "
            f"as int64. Received: shape {array.shape} and dtype {array.dtype}{missing}."
            " Convert seconds with fractions by np.round(1000 * t).astype(np.int64), "
            "as floats round times, and dates by t.astype('datetime64[ms]').astype("
            "np.int64). A feature that is no time needs another name than 'time'."
        )
    if array.size and (array.max() >= LAST_TIME or array.min() <= -LAST_TIME):
        raise ValueError(
            f"Expected times within 2**62 of 0 in `{name}`, whose differences are "
            f"int64. Received: values from {array.min()} to {array.max()}. Choose a "
            "larger unit."
        )
    return _converted(array, np.int64, share)


def check_feature_name(kind: str, name: Any) -> None:
    """Raise a ValueError for an invalid name, or one that batches reserve."""
    if not isinstance(name, str) or not name:
        raise ValueError(
            f"Expected the names of features in `{kind}` to be strings that are not "
            f"empty. Received: {name!r}. Name the feature."
        )
    if name in RESERVED[kind]:
        raise ValueError(
            f"Expected a name for `{kind}[{name!r}]` that batches do not reserve. "
            f"Received: one of {RESERVED[kind]}. Rename the feature."
        )


def checked_features(
    kind: str,
    values: Mapping | None,
    length: int | None,
    count: str,
    shown: str | None = None,
) -> Mapping[str, np.ndarray]:
    """Validate features by name, each with `length` rows; return read-only arrays.

    Args:
        kind: Kind of the features, such as `"node"`.
        values: The features.
        length: Number of rows; None for features of any shape.
        count: Name of the number of rows, for errors.
        shown: Name of the features, for errors; `kind` if omitted.
    """
    shown = shown or kind
    out = {}
    values = {} if values is None else instance(kind, values, Mapping, "a dict")
    for name, value in values.items():
        check_feature_name(kind, name)
        missing = (kind, name) in TARGETS
        if is_time(kind, name):
            array = frozen(checked_times(f"{shown}[{name!r}]", value))
        else:
            array = checked_feature(f"{shown}[{name!r}]", value, missing)
        if length is not None and (array.ndim == 0 or array.shape[0] != length):
            per = "node" if kind == "sets" else kind
            raise ValueError(
                f"Expected `{shown}[{name!r}]` to have one row per {per}, "
                f"{count}={length}. Received: shape {array.shape}."
            )
        out[name] = array
    return MappingProxyType(out)


_SET_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def check_set_name(name: Any) -> None:
    """Raise a ValueError for an invalid name of a node set."""
    if not isinstance(name, str) or not _SET_NAME.fullmatch(name):
        raise ValueError(
            "Expected names of node sets of letters, digits, '_', '.' and '-'. "
            f"Received: {name!r}. Rename the set."
        )


def checked_sets(
    values: Mapping | None, node: Mapping[str, np.ndarray]
) -> Mapping[str, Mapping[str, np.ndarray]]:
    """Validate the tables of node sets; return them by name, in the order of names.

    Args:
        values: Node set -> features by name, each with a row for each of its nodes.
        node: The node features, of which `set` and `set_row` name a node's row.
    """
    values = {} if values is None else instance("sets", values, Mapping, "a dict")
    for name in values:
        check_set_name(name)
    tables, sizes = {}, []
    for name in sorted(values):
        kind = f"sets[{name!r}]"
        instance(kind, values[name], Mapping, "a dict of features")
        if not values[name]:
            raise ValueError(
                f"Expected `{kind}` to have a feature. Received: none. Give nodes "
                "without any a column of zeros, {'kind': np.zeros(n, int)}, for one "
                "embedding of the whole set."
            )
        first = np.shape(next(iter(values[name].values())))
        count = first[0] if first else 0
        tables[name] = checked_features("sets", values[name], count, "rows", kind)
        sizes.append(count)
    if not tables:
        return MappingProxyType(tables)
    check_set_rows(node, np.array(sizes)[None])
    return MappingProxyType(tables)


def check_set_rows(
    node: Mapping[str, np.ndarray], sizes: np.ndarray, counts: Any = None
) -> None:
    """Raise a ValueError unless each node names a row of a table of its graph.

    Args:
        node: Node features, with `set` and `set_row`, int [N].
        sizes: int [n, S], rows of the tables of each graph.
        counts: int [n], nodes of each graph; None for one graph.
    """
    for name in ("set", "set_row"):
        column = node.get(name)
        if column is None or column.ndim != 1 or column.dtype.kind != "i":
            raise ValueError(
                f"Expected integers `node[{name!r}]`, one for each node, with `sets`. "
                f"Received: {'none' if column is None else column.dtype}. Use "
                "keras_bandgnn.data.from_sets, which sets them."
            )
    sets, rows, num_sets = node["set"], node["set_row"], sizes.shape[1]
    counts = [len(sets)] if counts is None else counts
    graph = np.repeat(np.arange(len(sizes)), counts)
    valid = (sets >= 0) & (sets < num_sets) & (rows >= 0)
    valid &= rows < sizes[graph, np.clip(sets, 0, num_sets - 1)]
    if not valid.all():
        at = int(np.argmin(valid))
        raise ValueError(
            f"Expected `node['set']` in [0, {num_sets}) and `node['set_row']` below "
            f"the rows of that set, {sizes[graph[at]].tolist()} here. Received: set "
            f"{sets[at]}, row {rows[at]} of node {at}. Sets are numbered in the order "
            "of their names."
        )


# Rows with more columns of ids are a bag, such as words, and no list of properties.
_MOST_COLUMNS = 64


def id_input(
    arrays: Sequence[np.ndarray], bags: bool = True
) -> dict[str, int | list[int]]:
    """Return how a `NodeEncoder` embeds a feature of ids: see its `inputs`.

    Ids [n, K] are a bag of one vocabulary if zeros only follow them, as padding does,
    otherwise columns with a vocabulary each.

    Args:
        arrays: The feature in some graphs, int [n] or [n, K] each.
        bags: Whether it may be a bag.
    """
    widths = {array.shape[1:] for array in arrays}
    width = next(iter(widths)) if len(widths) == 1 else ()
    if width and 1 < width[0] <= _MOST_COLUMNS:
        zeros = (array == 0 for array in arrays)
        if not bags or any(bool((z[:, :-1] & ~z[:, 1:]).any()) for z in zeros):
            tops = np.max([a.max(axis=0, initial=0) for a in arrays], axis=0)
            return {"columns": [int(top) + 1 for top in tops]}
    return {"ids": 1 + max((int(a.max(initial=0)) for a in arrays), default=0)}


def cutoff_table(cutoffs: Mapping[int, float], cutoff: float) -> np.ndarray:
    """Return the cutoff of each atomic number, float64 [120]; the last is for others.

    Args:
        cutoffs: Those that differ from `cutoff`.
        cutoff: That of all other elements.
    """
    table = np.full(LAST_ELEMENT + 2, cutoff)
    for element, radius in cutoffs.items():
        table[element] = radius
    return table
