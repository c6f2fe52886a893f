"""Checks of weights files (HDF5) before Keras reads them.

HDF5 files can refer to other files, even for the values of arrays, and declare more
data than they contain. Files written by Keras do neither.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from keras_bandgnn.data.reading import LARGEST_NUMBER, reading, refuse_file


def check_weights(path: Path, finite: bool = True) -> tuple[int, int]:
    """Check a weights file before Keras reads it.

    Args:
        path: The file.
        finite: Whether to reject NaN and infinite values.

    Returns:
        The number of values and the number of arrays.

    Raises:
        ValueError: If it is damaged, links to other files, contains non-numeric arrays,
            declares more bytes than it has, or contains values that are not finite; the
            message names the array.
    """
    size = path.stat().st_size
    numbers = arrays = total = 0
    with reading(path):
        try:
            file = h5py.File(path)
        except OSError as error:
            raise ValueError(
                f"Expected weights in {path}. Received: a damaged file ({error}). "
                "Download or copy it again."
            ) from error
        with file:
            for name, item in _datasets(path, file):
                total += item.dtype.itemsize * math.prod(item.shape)
                if item.dtype.kind not in "fiub" or total > size:
                    received = f"{item.dtype} of shape {item.shape}"
                    refuse_file(
                        path, f"to have numbers in {name} and their bytes", received
                    )
                numbers += math.prod(item.shape)
                arrays += 1
                if finite and item.dtype.kind == "f":
                    received = _absurd(item[()])
                    if received:
                        refuse_file(
                            path,
                            f"to have finite weights in {name}, at most "
                            f"{LARGEST_NUMBER:g}",
                            received,
                            "Train again, or download the file again.",
                        )
    return numbers, arrays


def check_loaded_weights(weights: Mapping[str, Any]) -> None:
    """Check weights that Keras has read from a file.

    Args:
        weights: Arrays by the path of their variable.

    Raises:
        ValueError: If weights are not finite or too large to compute with.
    """
    for path, values in weights.items():
        received = _absurd(values) if values.dtype.kind == "f" else None
        if received:
            raise ValueError(
                f"Expected the file of this model to have finite weights, at most "
                f"{LARGEST_NUMBER:g}. Received: {received} in {path}. Train again, or "
                "load another file."
            )


def _absurd(values: np.ndarray) -> str | None:
    """Return what is wrong with weights, or None."""
    with np.errstate(over="ignore"):  # those of models are float32
        values = values.astype(np.float32, copy=False)
    if (np.abs(values) <= LARGEST_NUMBER).all():
        return None
    finite = np.isfinite(values).all()
    return f"{np.abs(values).max():g}" if finite else "NaN or infinite values"


def _datasets(path: Path, file: h5py.File) -> Iterator[tuple[str, h5py.Dataset]]:
    """Yield the arrays of a file, without following links to other files."""
    addresses = set()
    stack: list[tuple[str, h5py.Group]] = [("", file)]
    while stack:
        prefix, group = stack.pop()
        for key in group:
            name = f"{prefix}/{key}"
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                refuse_file(path, f"to have an array or a group {name}", "a link")
            item = group[key]
            address = h5py.h5o.get_info(item.id).addr
            if address in addresses:
                refuse_file(path, f"to have {name} once", "two names for one object")
            addresses.add(address)
            if isinstance(item, h5py.Group):
                stack.append((name, item))
                continue
            if not isinstance(item, h5py.Dataset) or item.shape is None:
                refuse_file(path, f"to have an array {name}", repr(item))
            if item.is_virtual or item.external:
                refuse_file(
                    path, f"to have the values of {name}", "a name of another file"
                )
            if item.compression or item.scaleoffset or item.fletcher32 or item.shuffle:
                refuse_file(path, f"to have plain values in {name}", "a filter")
            yield name, item


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array of a weights file, checking it."""
    with h5py.File(path) as file:
        return {name: item.shape for name, item in _datasets(path, file)}


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sum(path: Path, sums: Any) -> None:
    """Raise a ValueError if the checksum of a file differs.

    Args:
        path: The file.
        sums: Checksums by file name; files without a checksum are not verified.
    """
    if isinstance(sums, Mapping) and path.name in sums:
        digest = checksum(path)
        if digest != sums[path.name]:
            refuse_file(
                path,
                f"to have sha256 {str(sums[path.name])[:64]}",
                f"a damaged file, of {digest}",
                "Download or copy it again. If you changed it yourself, remove "
                "'sha256' from the JSON file next to it.",
            )
