"""Files of weights (HDF5): checked before Keras reads them.

HDF5 files can name other files, also in place of values, and declare more than they
hold. Files that Keras writes do neither.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from keras_bandgnn.data.reading import reading, refuse_file


def check_weights(path: Path, finite: bool = True) -> tuple[int, int]:
    """Checks a file of weights before Keras reads it.

    Args:
        path: The file.
        finite: Whether NaN and infinite values are refused.

    Returns:
        How many numbers it holds, and in how many arrays.

    Raises:
        ValueError: If it is damaged, holds links to other files or arrays that are
            not numbers, declares more bytes than it has, or holds a number that is
            not finite; the message names the array.
    """
    size = path.stat().st_size
    numbers = arrays = total = 0
    with reading(path):
        try:
            file = h5py.File(path)
        except OSError as error:
            raise ValueError(
                f"Expected weights in {path}. Received: a damaged file ({error}). "
                "Fetch or copy it again."
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
                    values = item[()]
                    if not np.isfinite(values).all():
                        refuse_file(
                            path,
                            f"to have finite weights in {name}",
                            "NaN or infinite values",
                            "Train again, or fetch the file again.",
                        )
    return numbers, arrays


def _datasets(path: Path, file: h5py.File) -> Iterator[tuple[str, h5py.Dataset]]:
    """The arrays of a file, each once, without following links out of it."""
    seen = set()
    left: list[tuple[str, h5py.Group]] = [("", file)]
    while left:
        prefix, group = left.pop()
        for key in group:
            name = f"{prefix}/{key}"
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                refuse_file(path, f"to have an array or a group {name}", "a link")
            item = group[key]
            place = h5py.h5o.get_info(item.id).addr
            if place in seen:
                refuse_file(path, f"to have {name} once", "two names for one object")
            seen.add(place)
            if isinstance(item, h5py.Group):
                left.append((name, item))
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
    """The shape of each array of a file of weights that was checked."""
    with h5py.File(path) as file:
        return {name: item.shape for name, item in _datasets(path, file)}


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sum(path: Path, sums: Any) -> None:
    """Raises a ValueError if a file is not the one whose checksum was written.

    Args:
        path: The file.
        sums: Checksums by name; files without one are taken as they are.
    """
    if isinstance(sums, Mapping) and path.name in sums:
        found = checksum(path)
        if found != sums[path.name]:
            refuse_file(
                path,
                f"to have sha256 {str(sums[path.name])[:64]}",
                f"a damaged file, of {found}",
                "Fetch or copy it again. If you changed it yourself, remove 'sha256' "
                "from the JSON file beside it.",
            )
