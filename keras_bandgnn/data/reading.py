"""The door that data files come in by: limits, and errors that name the file.

A file says how large its arrays are, how often a byte repeats and how deep its lists
are nested. None of that is believed: sizes are compared with the bytes that are there
before anything is allocated, and with `Limits`, which the caller can raise. Whatever a
library raises about a file becomes a ValueError with the name of the file.
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
"""What libraries raise about compressed bytes."""

_KINDS = {"integers": "iub", "numbers": "iubf", "text": "U"}
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_AGAIN = "Get the file again."


@dataclass(frozen=True)
class Limits:
    """How much a data file may ask for.

    Pass them to `load`, or set them for all readers with a `with` statement.

    Args:
        array_bytes: Size of the largest array or text, in bytes.
        unpacked_bytes: What one compressed file or archive may unpack to, in bytes.
        ratio: Bytes that each byte of a file may stand for: those it unpacks to, or
            those of a dense array that its sizes ask for. Up to `free_bytes` it is
            not looked at.
        free_bytes: What any file may unpack to or ask for, however small it is.
        members: How many files an archive may hold.

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
        """The limits that hold here; the default ones outside of `with`."""
        return (_STACK.get() or (_DEFAULT,))[-1]

    def __enter__(self) -> "Limits":
        _STACK.set((*_STACK.get(), self))
        return self

    def __exit__(self, *_: Any) -> None:
        _STACK.set(_STACK.get()[:-1])

    def check(self, what: str, asked: int, stored: int, of: str = "array") -> None:
        """Raises a ValueError if bytes are too many for those that a file has.

        Args:
            what: Which file, and which part of it.
            asked: Bytes that are to be allocated or unpacked.
            stored: Bytes of the file that stand for them.
            of: `"array"` or `"unpacked"`, the limit that holds.
        """
        name = f"{of}_bytes"
        if asked > getattr(self, name):
            limit, advice = getattr(self, name), f"{name}={asked}"
        elif asked > max(self.free_bytes, self.ratio * stored):
            limit = max(self.free_bytes, self.ratio * stored)
            advice = f"ratio={math.ceil(asked / max(stored, 1))}"
        else:
            return
        raise ValueError(
            f"Expected {what} to need at most {limit:,} bytes. Received: {asked:,} "
            f"bytes, for {stored:,} in the file. If the file is what you want, raise "
            f"the limit with limits=kb.data.Limits({advice})."
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
    """Raises the ValueError of a file that is not what it should be.

    Args:
        path: The file.
        expected: What was expected of it, such as `"to have a member 'y'"`.
        received: What came instead; long values are cut.
        advice: What to do.
        cause: The error that showed it.
    """
    text = received if isinstance(received, str) else shown(received)
    text = text if len(text) <= 300 else text[:300] + "..."
    message = f"Expected {path} {expected}. Received: {text.rstrip('.')}. {advice}"
    raise ValueError(message) from cause


@contextlib.contextmanager
def reading(
    *paths: Path, what: str = "to be a data file of a known form"
) -> Iterator[None]:
    """Gives errors about files the name of the file; the net around every reader.

    A ValueError that names no file gets its name in front. What else a library raises
    about content that it does not expect becomes a ValueError. Missing files, files
    that may not be read and packages that are not installed stay what they are.

    Args:
        *paths: The files that are read inside, the most important one first.
        what: What was expected of them.

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
            str(error) or "more than there is",
            "Check that it is the right file, or use a machine with more memory.",
            error,
        )
    except Exception as error:
        text = str(error)
        if isinstance(error, OSError) and error.errno is not None:
            if "Expected" in text:
                raise
            name = error.filename or paths[0]  # there is none for a full disk
            name = name if str(name) == str(paths[0]) else f"{name}, for {paths[0]},"
            raise OSError(
                error.errno,
                f"Expected {name} to be read and written. Received: {error.strerror}. "
                "Check that it is there, its permissions and the space on the disk.",
            ) from error
        if isinstance(error, FileNotFoundError | ValueError) and any(
            str(name) in text for path in paths for name in (path, path.parent)
        ):
            raise
        if type(error) is ValueError and text.startswith("Expected"):
            raise ValueError(f"{paths[0]}: {text}") from error
        refuse_file(paths[0], what, f"{type(error).__name__}: {text}", cause=error)


def size_of(path: Path) -> int:
    """Bytes of an ordinary file; a ValueError for anything else, such as a device."""
    if not path.exists():
        raise FileNotFoundError(
            f"Expected a file at {path}. Received: nothing is there, or a link that "
            "leads nowhere. Check the path."
        )
    if not path.is_file():
        refuse_file(
            path, "to be a file", "a folder, a pipe or a device", "Pass a file."
        )
    return path.stat().st_size


@contextlib.contextmanager
def open_unpacked(path: Path) -> Iterator[BinaryIO]:
    """Opens a file for reading; `.gz`, `.bz2` and `.xz` are unpacked.

    Raises:
        ValueError: Here or while it is read, if the file is damaged or cut short, or
            unpacks to more than the limits allow.
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
    """What a compressed file unpacks to, up to the limit."""

    def __init__(self, path: Path, stream: BinaryIO, size: int):
        self._path, self._stream, self._size = path, stream, size
        self._limits, self._done = Limits.current(), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read1(len(buffer))  # before the damage
        except DAMAGED as error:
            what = f"to be a whole {self._path.suffix} file"
            refuse_file(
                self._path, what, f"{type(error).__name__}: {error}", cause=error
            )
        if not data and not self._done and not self._size:
            refuse_file(
                self._path, f"to be a whole {self._path.suffix} file", "no bytes"
            )
        self._done += len(data)
        self._limits.check(str(self._path), self._done, self._size, "unpacked")
        buffer[: len(data)] = data
        return len(data)


def read_bytes(path: Path) -> bytes:
    """Reads a whole file, unpacking it where its name says so."""
    with open_unpacked(path) as file:
        limits, parts, done = Limits.current(), [], 0
        while part := file.read(1 << 24):
            done += len(part)
            limits.check(str(path), done, done)
            parts.append(part)
    return b"".join(parts)


def read_text(path: Path) -> str:
    """Reads a file of UTF-8 text."""
    data = read_bytes(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        refuse_file(path, "to be UTF-8 text", f"line {line}: {error}", cause=error)


def parse_json(text: str | bytes) -> Any:
    """Parses JSON; a ValueError for what is none, or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("lists or objects nested too deeply") from error


def read_json(path: Path, kind: type | None = None) -> Any:
    """Reads a JSON file.

    Args:
        path: The file.
        kind: `dict` or `list`, what its value must be.
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
    """The arrays of an npz file, each checked before it is read.

    Args:
        path: The file.
        packed: The opened file.

    Raises:
        ValueError: If members have equal names, or unpack to too much.
    """

    def __init__(self, path: Path, packed: zipfile.ZipFile):
        self.path, self._packed = path, packed
        infos = packed.infolist()
        self._infos = {info.filename.removesuffix(".npy"): info for info in infos}
        self._size, limits = size_of(path), Limits.current()
        if len(self._infos) < len(infos):
            refuse_file(path, "to have members of distinct names", "a name twice")
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
        """Raises the ValueError of a member that is not what it should be."""
        refuse_file(
            self.path, f"to have a member {name!r} {expected}", received, cause=cause
        )

    def load(self, name: str) -> np.ndarray:
        """Reads a member of numbers, truth values or text, of any shape.

        Raises:
            ValueError: If there is none, it is damaged or holds objects of Python, or
                its header asks for another number of bytes than it has.
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
                    raise ValueError(f"values of type {dtype}, which are not read")
                asked, there = math.prod(shape) * dtype.itemsize, info.file_size - begin
                if min(shape, default=0) < 0 or asked != there:
                    raise ValueError(
                        f"shape {shape} of type {dtype}, which takes {asked:,} bytes, "
                        f"where it has {there:,}"
                    )
                data = file.read(asked)
                file.read(1)  # at the end the checksum is compared
            array = np.frombuffer(data, dtype)
            if dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
                raise ValueError("truth values other than 0 and 1")
            return array.reshape(shape, order="F" if fortran else "C")
        except Exception as error:  # zipfile and numpy raise many kinds
            kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
            self.refuse(name, "that is whole", f"{kind}{error}", error)

    def take(
        self,
        name: str,
        kind: str,
        shape: Sequence[int | None],
        missing: bool = False,
    ) -> np.ndarray:
        """Reads a member of one kind and shape.

        Args:
            name: The member.
            kind: `"integers"`, `"numbers"` or `"text"`.
            shape: Size of each axis; None for any.
            missing: Whether numbers may be NaN.

        Raises:
            ValueError: As `load`, and if the member is something else or not finite.
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
        """Reads pointers [n + 1] and returns the rows of each item, int64 [n].

        Args:
            name: The member; item i has the rows `[ptr[i], ptr[i + 1])`.
            rows: How many rows there are.
            of: What has these rows, for errors.

        Raises:
            ValueError: If pointers do not begin at 0, descend, or end elsewhere.
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
    """Shape, order, type and length of the header of an npy file."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of the npy format")
    return *_HEADERS[version](file), file.tell()


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[Arrays]:
    """Opens an npz file.

    Raises:
        ValueError: Here or from `Arrays`, if the file or a member is damaged.
    """
    try:
        packed = zipfile.ZipFile(path) if size_of(path) else None
    except Exception as error:  # zipfile raises many kinds about a damaged directory
        if isinstance(error, OSError) and error.filename is not None:
            raise
        received = f"{type(error).__name__}: {error}"
        refuse_file(path, "to be an npz file (a zip of arrays)", received, cause=error)
    if packed is None:
        refuse_file(path, "to be an npz file (a zip of arrays)", "an empty file")
    with packed:
        yield Arrays(path, packed)
