"""Columns of a data frame as features and back; `x[0]`, `x[1]` make a vector `x`."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

_ENTRY = re.compile(r"(.+)\[(\d+(?:,\d+)*)\]")


def features_of(what: str, table: Any, without: set[str]) -> dict[str, np.ndarray]:
    """Returns the columns of a table as arrays by name.

    Args:
        what: Name of the table in errors.
        table: A data frame.
        without: Columns to leave out.

    Raises:
        ValueError: If a column is not numeric, misses a value, or an entry of a
            vector is missing.
    """
    features, entries = {}, {}
    for column in table.columns:
        if column in without:
            continue
        array = _numbers(what, column, table[column])
        match = _ENTRY.fullmatch(str(column))
        if match is None:
            features[str(column)] = array
        else:
            index = tuple(int(i) for i in match[2].split(","))
            entries.setdefault(match[1], {})[index] = array
    for name, arrays in entries.items():
        shape = tuple(np.array(list(arrays)).max(axis=0) + 1)
        lacking = [index for index in np.ndindex(shape) if index not in arrays]
        if lacking:
            raise ValueError(
                f"Expected the columns of {name!r} in the table {what} to make an "
                f"array of shape {shape}. Received: no column "
                f"{entry(name, lacking[0])!r}."
            )
        stacked = np.stack([arrays[index] for index in np.ndindex(shape)], axis=1)
        features[name] = stacked.reshape(len(table), *shape)
    return features


def _numbers(what: str, column: Any, values: Any) -> np.ndarray:
    if values.isna().any():
        row = int(np.flatnonzero(values.isna())[0])
        raise ValueError(
            f"Expected a value in every row of the column {column!r} of {what}. "
            f"Received: none in row {row}. Fill them in with .fillna, or drop the "
            "column."
        )
    # Nullable columns are numbers of NumPy once no value is missing.
    dtype = getattr(values.dtype, "numpy_dtype", values.dtype)
    if dtype.kind not in "biuf":
        raise ValueError(
            f"Expected the column {column!r} of {what} to be numeric. Received: dtype "
            f"{values.dtype}, such as {values.iloc[0]!r:.60}. Map it to ids, for "
            'example with .astype("category").cat.codes, or drop the column.'
        )
    return values.to_numpy(dtype)


def columns_of(features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns one column per number of a row of each feature.

    Example:
    >>> list(columns_of({"id": np.zeros(4), "x": np.zeros((4, 2))}))
    ['id', 'x[0]', 'x[1]']
    """
    columns = {}
    for name, array in features.items():
        if array.ndim == 1:
            columns[name] = array
            continue
        for index in np.ndindex(array.shape[1:]):
            columns[entry(name, index)] = array[:, *index]
    return columns


def entry(name: str, index: tuple[int, ...]) -> str:
    """The name of the column of one entry of a feature."""
    return f"{name}[{','.join(map(str, index))}]"
