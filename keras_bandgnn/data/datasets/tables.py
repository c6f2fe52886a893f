"""Fast reading of numeric text files."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from keras_bandgnn.data.reading import open_unpacked, refuse_file

# Longer than any line of a table of graphs.
_LINE = 1 << 16


def read_table(path: Path, delimiter: str = ",") -> Mapping[str, Any]:
    """Read a CSV file with a header, compressed (`.gz`) or not.

    Args:
        path: The file.
        delimiter: Column separator.

    Returns:
        A `pyarrow.Table`.

    Raises:
        ValueError: If rows have differing numbers of columns.
    """
    import pyarrow.csv as csv

    # SMILES and names may be quoted; a quoted field may span several lines.
    options = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    with open_unpacked(path) as file:
        try:
            table = csv.read_csv(file, parse_options=options)
        except ValueError as error:  # Arrow's errors are ValueErrors
            refuse_file(path, "to be a table in CSV form", str(error), cause=error)
    if len(set(table.column_names)) < table.num_columns:
        refuse_file(path, "to have columns of distinct names", table.column_names)
    return table


def read_matrix(
    source: Path | bytes, what: str | Path | None = None, delimiter: str = ","
) -> np.ndarray:
    r"""Read a matrix of numbers without a header; empty fields become NaN.

    Args:
        source: A file, compressed (`.gz`) or not, or its bytes.
        what: Name of the bytes in errors, unused for files.
        delimiter: Column separator; blanks beside it are ignored.

    Returns:
        int64 or float64 [rows, columns].

    Raises:
        ValueError: If something is not a number or rows differ in length.

    Example:
    >>> read_matrix(b"1, 2\n3, 4\n", "numbers").tolist()
    [[1, 2], [3, 4]]
    """
    if isinstance(source, bytes):
        if not source.strip():
            return np.zeros((0, 0), np.int64)
        # Arrow takes a single line without an end for an empty file.
        return _matrix(io.BytesIO(source + b"\n"), what, delimiter)
    with open_unpacked(source) as file:
        start = file.read(_LINE)
        whole = b"\n" not in start and not file.read(1)
    if whole and start.strip():
        return read_matrix(start, source, delimiter)
    with open_unpacked(source) as file:
        return _matrix(file, source, delimiter)


def read_integers(path: Path, columns: int | None = None) -> np.ndarray:
    """Read integers as `read_matrix` does, int64 [rows, columns].

    Raises:
        ValueError: If there are other numbers, or another number of columns.
    """
    values = read_matrix(path)
    if values.dtype.kind != "i" or columns not in (None, values.shape[1]):
        received = f"{values.shape[1]} columns of type {values.dtype}"
        refuse_file(path, f"to have {columns or 'some'} columns of integers", received)
    return values


def _matrix(file: BinaryIO, what: str | Path, delimiter: str) -> np.ndarray:
    import pyarrow as pa
    import pyarrow.csv as csv

    try:
        table = csv.read_csv(
            file,
            read_options=csv.ReadOptions(autogenerate_column_names=True),
            parse_options=csv.ParseOptions(delimiter=delimiter),
        )
    except ValueError as error:
        refuse_file(what, "to be a table of numbers", str(error), cause=error)
    columns = []
    for column in table.columns:
        if pa.types.is_null(column.type):
            column = column.cast(pa.float64())
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            bad = next((value for value in column.to_pylist() if value), None)
            received = f"a column of {column.type}, such as {bad!r}"
            refuse_file(what, "to hold only numbers", received)
        columns.append(column.to_numpy())
    return np.stack(columns, axis=1)
