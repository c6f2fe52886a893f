"""Safe reading of untrusted data files: limits, and errors that name the file.

Sizes, compression ratios and nesting depths that a file declares are not trusted. Sizes
are compared with the bytes in the file before anything is allocated, and with `Limits`,
which the caller can raise. Any error that a library raises about a file becomes a
ValueError with the name of the file.
"""

import bz2
import contextlib
import gzip
import io
import json
import lzma
import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from keras_bandgnn.arrays import check_finite
from keras_bandgnn.checks import positive_int, shown

_OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
"""Errors that libraries raise for damaged compressed data."""

_KINDS = {"integers": "iub", "numbers": "iubf", "text": "U"}
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_AGAIN = "Download or copy the file again."
LARGEST_NUMBER = 1e30
"""Larger numbers in files of models give infinity or NaN in float32."""


@dataclass(frozen=True)
class Limits:
    """Limits on the memory and disk space that reading a data file may use.

    Pass them to `load`, or set them for all readers with a `with` statement.

    Args:
        array_bytes: Maximum size of an array or text, in bytes.
        unpacked_bytes: Maximum unpacked size of a compressed file or archive, in bytes.
        ratio: Maximum number of unpacked or allocated bytes per byte of the file.
            Applies to sizes above `free_bytes` only.
        free_bytes: Size that any file may unpack to or allocate, however small it is.
        members: Maximum number of files in an archive.

    Raises:
        ValueError: If a limit is not a positive integer.

    Example:
    >>> with Limits(ratio=5000):
    ...     Limits.current().ratio
    5000
    """

    array_bytes: int = 16 << 30
    unpacked_bytes: int = 128 << 30
    ratio: int = 200
    free_bytes: int = 64 << 20
    members: int = 1_000_000

    def __post_init__(self):
        for name in self.__dataclass_fields__:
            positive_int(name, getattr(self, name), maximum=2**62)

    @staticmethod
    def current() -> "Limits":
        """Return the limits in effect; the default ones outside of `with`."""
        return (_STACK.get() or (_DEFAULT,))[-1]

    def __enter__(self) -> "Limits":
        _STACK.set((*_STACK.get(), self))
        return self

    def __exit__(self, *_: Any) -> None:
        _STACK.set(_STACK.get()[:-1])

    def check(self, what: str, requested: int, stored: int, of: str = "array") -> None:
        """Raise a ValueError if a size exceeds the limits.

        Args:
            what: The file, and the part of it.
            requested: Bytes to allocate or unpack.
            stored: Bytes in the file that represent them.
            of: `"array"` or `"unpacked"`, the limit that applies.
        """
        name = f"{of}_bytes"
        if requested > getattr(self, name):
            limit, advice = getattr(self, name), f"{name}={requested}"
        elif requested > max(self.free_bytes, self.ratio * stored):
            limit = max(self.free_bytes, self.ratio * stored)
            advice = f"ratio={math.ceil(requested / max(stored, 1))}"
        else:
            return
        raise ValueError(
            f"Expected {what} to need at most {limit:,} bytes. Received: {requested:,} "
            f"bytes, for {stored:,} in the file. If you trust the file, raise the "
            f"limit with limits=kb.data.Limits({advice})."
        )


_DEFAULT = Limits()
_STACK: ContextVar[tuple[Limits, ...]] = ContextVar("limits", default=())


def refuse_file(
    path: Path | str,
    expected: str,
    received: Any,
    advice: str = _AGAIN,
    cause: Any = None,
) -> NoReturn:
    """Raise a ValueError for an invalid file.

    Args:
        path: The file.
        expected: The expectation, such as `"to have a member 'y'"`.
        received: The actual content; long values are truncated.
        advice: What to do.
        cause: The exception that caused it.
    """
    text = received if isinstance(received, str) else shown(received)
    text = text if len(text) <= 300 else text[:300] + "..."
    message = f"Expected {path} {expected}. Received: {text.rstrip('.')}. {advice}"
    raise ValueError(message) from cause


@contextlib.contextmanager
def reading(
    *paths: Path, what: str = "to be a data file of a known form"
) -> Iterator[None]:
    """Add the file's name to errors; wrap every reader.

    A ValueError that names no file is prefixed with the name. Other errors that a
    library raises for unexpected content become a ValueError. Errors for missing files,
    missing permissions and missing packages are not changed.

    Args:
        *paths: The files that the block reads, the most important one first.
        what: The expectation, for errors.

    Example:
    >>> with reading(Path("data.json")):
    ...     {}["y"]
    Traceback (most recent call last):
    ...
    ValueError: Expected data.json to be a data file of a known form. Received: ...
    """
    try:
        yield
    except (ImportError, Warning):
        raise
    except MemoryError as error:
        refuse_file(
            paths[0],
            "to fit into memory",
            str(error) or "a larger file",
            "Check that it is the right file, or use a machine with more memory.",
            error,
        )
    except Exception as error:
        text = str(error)
        if isinstance(error, OSError) and error.errno is not None:
            if "Expected" in text:
                raise
            name = error.filename or paths[0]  # not set if the disk is full
            name = name if str(name) == str(paths[0]) else f"{name}, for {paths[0]},"
            raise OSError(
                error.errno,
                f"Expected {name} to be read and written. Received: {error.strerror}. "
                "Check that it exists, its permissions and the free disk space.",
            ) from error
        if isinstance(error, FileNotFoundError | ValueError) and any(
            str(name) in text for path in paths for name in (path, path.parent)
        ):
            raise
        if type(error) is ValueError and text.startswith("Expected"):
            raise ValueError(f"{paths[0]}: {text}") from error
        refuse_file(paths[0], what, f"{type(error).__name__}: {text}", cause=error)


def size_of(path: Path) -> int:
    """Return the size of a regular file; raise a ValueError for anything else."""
    if not path.exists():
        raise FileNotFoundError(
            f"Expected a file at {path}. Received: no file, or a broken link. Check "
            "the path."
        )
    if not path.is_file():
        refuse_file(
            path, "to be a file", "a folder, a pipe or a device", "Pass a file."
        )
    return path.stat().st_size


@contextlib.contextmanager
def open_unpacked(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading; decompress `.gz`, `.bz2` and `.xz`.

    Raises:
        ValueError: On opening or reading, if the file is damaged or truncated, or its
            unpacked size exceeds the limits.
    """
    size, opener = size_of(path), _OPENERS.get(path.suffix)
    with contextlib.ExitStack() as stack:
        if opener is None:
            Limits.current().check(str(path), size, size, "unpacked")
            stream = stack.enter_context(open(path, "rb"))
        else:
            raw = _Unpacked(path, stack.enter_context(opener(path)), size)
            stream = stack.enter_context(io.BufferedReader(raw, 1 << 18))
        yield stream


class _Unpacked(io.RawIOBase):
    """Decompressed content of a file, up to the limit."""

    def __init__(self, path: Path, stream: BinaryIO, size: int):
        self._path, self._stream, self._size = path, stream, size
        self._limits, self._done = Limits.current(), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read1(len(buffer))  # returns the data before the damage
        except DAMAGED as error:
            what = f"to be a complete {self._path.suffix} file"
            refuse_file(
                self._path, what, f"{type(error).__name__}: {error}", cause=error
            )
        if not data and not self._done and not self._size:
            refuse_file(
                self._path, f"to be a complete {self._path.suffix} file", "no bytes"
            )
        self._done += len(data)
        self._limits.check(str(self._path), self._done, self._size, "unpacked")
        buffer[: len(data)] = data
        return len(data)


def read_bytes(path: Path) -> bytes:
    """Read a file, decompressing it according to its suffix."""
    with open_unpacked(path) as file:
        limits, parts, size = Limits.current(), [], 0
        while part := file.read(1 << 24):
            size += len(part)
            limits.check(str(path), size, size)
            parts.append(part)
    return b"".join(parts)


def read_text(path: Path) -> str:
    """Read a file of UTF-8 text."""
    data = read_bytes(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        refuse_file(path, "to be UTF-8 text", f"line {line}: {error}", cause=error)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raise a ValueError if it is invalid or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("lists or objects nested too deeply") from error


def read_json(path: Path, kind: type | None = None) -> Any:
    """Read a JSON file.

    Args:
        path: The file.
        kind: Required type of the value, `dict` or `list`.
    """
    text = read_text(path)
    try:
        value = parse_json(text)
    except ValueError as error:
        refuse_file(path, "to be JSON", str(error), cause=error)
    if kind is not None and not isinstance(value, kind):
        name = "an object" if kind is dict else "a list"
        refuse_file(path, f"to hold {name}", f"{str(value)[:80]}")
    return value


class Arrays:
    """The arrays of an npz file, checked before they are read.

    Args:
        path: The file.
        packed: The opened file.

    Raises:
        ValueError: If members have the same name, or there are too many.
    """

    def __init__(self, path: Path, packed: zipfile.ZipFile):
        self.path, self._packed = path, packed
        infos = packed.infolist()
        self._infos = {info.filename.removesuffix(".npy"): info for info in infos}
        self._size, limits = size_of(path), Limits.current()
        if len(self._infos) < len(infos):
            refuse_file(path, "to have members of distinct names", "a duplicate name")
        if len(infos) > limits.members:
            refuse_file(
                path,
                f"to have at most {limits.members:,} members",
                f"{len(infos):,}",
                "Raise the limit with limits=kb.data.Limits(members=...).",
            )

    @property
    def names(self) -> list[str]:
        """The names of the members."""
        return list(self._infos)

    def __contains__(self, name: str) -> bool:
        return name in self._infos

    def refuse(self, name: str, expected: str, received: Any, cause: Any = None):
        """Raise a ValueError for an invalid member."""
        refuse_file(
            self.path, f"to have a member {name!r} {expected}", received, cause=cause
        )

    def load(self, name: str) -> np.ndarray:
        """Read a member of numbers, booleans or text, of any shape.

        Raises:
            ValueError: If it is missing or damaged, holds Python objects, or its header
                does not match its number of bytes.
        """
        if name not in self._infos:
            self.refuse(name, "of numbers", f"members {', '.join(self.names)}")
        info = self._infos[name]
        stored = min(info.compress_size, self._size)
        what = f"the member {name!r} of {self.path}"
        Limits.current().check(what, info.file_size, stored)
        try:
            with self._packed.open(info) as file:
                shape, fortran, dtype, begin = _header(file)
                if dtype.hasobject or dtype.kind not in "biufU":
                    raise ValueError(f"values of the unsupported type {dtype}")
                expected, available = (
                    math.prod(shape) * dtype.itemsize,
                    info.file_size - begin,
                )
                if min(shape, default=0) < 0 or expected != available:
                    raise ValueError(
                        f"shape {shape} of type {dtype}, which takes {expected:,} "
                        f"bytes, but it has {available:,}"
                    )
                data = file.read(expected)
                file.read(1)  # zipfile compares the checksum at the end
            array = np.frombuffer(data, dtype)
            if dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
                raise ValueError("booleans other than 0 and 1")
            return array.reshape(shape, order="F" if fortran else "C")
        except Exception as error:  # zipfile and numpy raise many types
            kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
            self.refuse(name, "that is complete", f"{kind}{error}", error)

    def take(
        self,
        name: str,
        kind: str,
        shape: Sequence[int | None],
        missing: bool = False,
    ) -> np.ndarray:
        """Read a member of a given kind and shape.

        Args:
            name: The member.
            kind: `"integers"`, `"numbers"` or `"text"`.
            shape: Size of each axis; None for any size.
            missing: Whether NaN is allowed.

        Raises:
            ValueError: As `load`, and if kind or shape differ or a value is not finite.
        """
        array = self.load(name)
        fits = array.dtype.kind in _KINDS[kind] and array.ndim == len(shape)
        sizes = zip(array.shape, shape, strict=False)
        if not (fits and all(want in (None, size) for size, want in sizes)):
            axes = ", ".join("any" if size is None else str(size) for size in shape)
            received = f"shape {array.shape} of type {array.dtype}"
            self.refuse(name, f"of {kind} of shape [{axes}]", received)
        if array.dtype.kind == "f":
            try:
                check_finite(name, array, missing)
            except ValueError as error:
                raise ValueError(f"{self.path}: {error}") from error
        return array

    def counts(self, name: str, rows: int, of: str) -> np.ndarray:
        """Read pointers [n + 1] and return the number of rows per item, int64 [n].

        Args:
            name: The member; item i has the rows `[ptr[i], ptr[i + 1])`.
            rows: Total number of rows.
            of: Name of the array with these rows, for errors.

        Raises:
            ValueError: If the pointers do not ascend from 0 to `rows`.
        """
        ptr = self.take(name, "integers", (None,))
        if not ptr.size or ptr[0] != 0 or ptr[-1] != rows or (ptr[1:] < ptr[:-1]).any():
            self.refuse(
                name,
                f"of pointers that ascend from 0 to {rows}, the number of rows of {of}",
                f"{len(ptr)} values, {ptr[:3].tolist()} to {ptr[-1:].tolist()}",
            )
        return np.diff(ptr.astype(np.int64))


def _header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Read shape, order, dtype and length of the header of an npy file."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of the npy format")
    return *_HEADERS[version](file), file.tell()


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[Arrays]:
    """Open an npz file.

    Raises:
        ValueError: On opening or from `Arrays`, if the file or a member is damaged.
    """
    try:
        packed = zipfile.ZipFile(path) if size_of(path) else None
    except Exception as error:  # zipfile raises many types for a damaged directory
        if isinstance(error, OSError) and error.filename is not None:
            raise
        received = f"{type(error).__name__}: {error}"
        refuse_file(path, "to be an npz file (a zip of arrays)", received, cause=error)
    if packed is None:
        refuse_file(path, "to be an npz file (a zip of arrays)", "an empty file")
    with packed:
        yield Arrays(path, packed)
