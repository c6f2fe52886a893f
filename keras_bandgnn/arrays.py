"""Arrays of a graph: checked, 32 bits wide, contiguous and read-only."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

RESERVED = {
    "node": ("graph_id", "mask"),
    "edge": ("sender", "receiver", "type", "mask"),
    "context": ("mask", "n_node", "n_edge", "id"),
}
"""Names that a batch gives to arrays of its own."""

INT32_MAX = np.iinfo(np.int32).max


def checked_ids(name: str, values: Any, upper: int, what: str) -> np.ndarray:
    """Checks a 1-D array of ids in `[0, upper)` and returns it as read-only int32."""
    array = np.asarray(values)
    if array.size == 0 and array.ndim == 1:
        array = array.astype(np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"Expected `{name}` to be a 1-D array of integers. "
            f"Received: {name} of shape {array.shape} and dtype {array.dtype}. "
            "Convert it with np.asarray(..., dtype=np.int32)."
        )
    if array.size and (array.min() < 0 or array.max() >= upper):
        bad = int(np.flatnonzero((array < 0) | (array >= upper))[0])
        raise ValueError(
            f"Expected every id in `{name}` in [0, {what}) with {what}={upper}. "
            f"Received: {name}[{bad}]={int(array[bad])}. "
            "Node ids count from 0 within each graph."
        )
    return frozen(array.astype(np.int32))


def frozen(array: np.ndarray) -> np.ndarray:
    """Returns the array contiguous and read-only; a view of writable data is copied."""
    array = np.ascontiguousarray(array) if array.ndim else array.copy()
    if array.flags.writeable:
        array = array.copy() if array.base is not None else array
        array.flags.writeable = False
    return array


def _converted(array: np.ndarray, dtype: type) -> np.ndarray:
    """The array in another dtype; the same memory if nobody can write to it."""
    base, fixed = array, True
    while isinstance(base, np.ndarray):
        fixed = fixed and not base.flags.writeable
        base = base.base
    return array.astype(dtype, copy=not fixed)


def checked_feature(name: str, values: Any) -> np.ndarray:
    """Converts a feature to read-only int32 or float32, refusing what is neither."""
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
                f"Expected `{name}` to fit into int32. "
                f"Received: values up to {array.max()}. Map the ids to a smaller range."
            )
        return frozen(_converted(array, np.int32))
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            bad = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise ValueError(
                f"Expected `{name}` to be finite. Received: {name}{list(bad)}="
                f"{array[bad]}. Replace missing values, for example with np.nan_to_num."
            )
        with np.errstate(over="ignore"):
            narrow = _converted(array, np.float32)
        if not np.isfinite(narrow).all():
            raise ValueError(
                f"Expected `{name}` to fit into float32. "
                f"Received: values up to {np.abs(array).max()}. Rescale them."
            )
        return frozen(narrow)
    raise ValueError(
        f"Expected `{name}` to be an array of numbers. Received: dtype {array.dtype}. "
        "Ragged rows must be padded, strings mapped to ids."
    )


def checked_features(
    kind: str, values: Mapping | None, length: int | None, count: str
) -> Mapping[str, np.ndarray]:
    """Checks features by name, each with `length` rows, and makes them read-only."""
    out = {}
    for name, value in (values or {}).items():
        if name in RESERVED[kind]:
            raise ValueError(
                f"Expected a name for `{kind}[{name!r}]` that batches do not use "
                f"themselves: {RESERVED[kind]}. Rename the feature."
            )
        array = checked_feature(f"{kind}[{name!r}]", value)
        if length is not None and (array.ndim == 0 or array.shape[0] != length):
            raise ValueError(
                f"Expected `{kind}[{name!r}]` to have one row per {kind}, "
                f"{count}={length}. Received: shape {array.shape}."
            )
        out[name] = array
    return MappingProxyType(out)
