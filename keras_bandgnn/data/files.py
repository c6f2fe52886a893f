"""Files that are either whole or absent, and JSON text of plain facts."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np


def sync_directory(path: Path) -> None:
    """Makes renames and new names in a directory survive a power failure."""
    if os.name == "nt":  # directories cannot be opened there
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Opens a binary file that takes the name `path` only once it is complete.

    The bytes go to `<path>.tmp`, are flushed to the disk and renamed. If the block
    raises, nothing is left and an earlier file at `path` stays as it was.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"a value of type {type(value).__name__}")


def json_text(what: str, value: Any, indent: int | None = None) -> str:
    """Returns `value` as JSON text in ASCII; NumPy values and paths are accepted.

    Args:
        what: Name of the value in errors.
        value: What to write.
        indent: Spaces per level; one line when omitted.

    Raises:
        ValueError: If JSON has no form for a value.
    """
    separators = (",", ": ") if indent else (",", ":")
    try:
        return json.dumps(value, default=_plain, indent=indent, separators=separators)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"Expected `{what}` to hold JSON-like values (text, numbers, lists, "
            f"dictionaries). Received: {error}. Convert it to one of these first."
        ) from error
