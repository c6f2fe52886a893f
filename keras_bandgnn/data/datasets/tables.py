"""Numbers from text files, many at a time."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def read_table(path: Path, delimiter: str = ",") -> Mapping[str, Any]:
    """Reads a CSV file with a header, compressed (`.gz`) or not.

    Args:
        path: The file.
        delimiter: What is between columns.

    Returns:
        A `pyarrow.Table`.

    Raises:
        ValueError: If rows have differing numbers of columns.
    """
    import pyarrow.csv as csv

    # SMILES and names may be quoted; a quoted text may run over several lines.
    options = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    try:
        return csv.read_csv(path, parse_options=options)
    except ValueError as error:  # Arrow's errors are ValueErrors
        raise ValueError(
            f"Expected {path} to be a table in CSV form. Received: {error}. "
            "Get the file again."
        ) from error


def read_matrix(source: Path | bytes, what: str, delimiter: str = ",") -> np.ndarray:
    r"""Reads numbers without a header, one row a line; empty fields become NaN.

    Args:
        source: A file, compressed (`.gz`) or not, or its bytes.
        what: Name of the source in errors.
        delimiter: What is between columns; blanks beside it are ignored.

    Returns:
        int64 or float64 [rows, columns].

    Raises:
        ValueError: If something is not a number or rows differ in length.

    Example:
    >>> read_matrix(b"1, 2\n3, 4\n", "numbers").tolist()
    [[1, 2], [3, 4]]
    """
    import pyarrow as pa
    import pyarrow.csv as csv

    if isinstance(source, bytes) and not source.strip():
        return np.zeros((0, 0), np.int64)
    try:
        table = csv.read_csv(
            io.BytesIO(source) if isinstance(source, bytes) else source,
            read_options=csv.ReadOptions(autogenerate_column_names=True),
            parse_options=csv.ParseOptions(delimiter=delimiter),
        )
    except ValueError as error:
        raise ValueError(
            f"Expected {what} to be a table of numbers. Received: {error}. "
            "Get the file again."
        ) from error
    columns = []
    for column in table.columns:
        if pa.types.is_null(column.type):
            column = column.cast(pa.float64())
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            bad = next((value for value in column.to_pylist() if value), None)
            raise ValueError(
                f"Expected {what} to hold numbers alone. Received: a column of "
                f"{column.type}, such as {bad!r}. Get the file again."
            )
        columns.append(column.to_numpy())
    return np.stack(columns, axis=1)
