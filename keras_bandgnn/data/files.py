"""Files and folders that are whole or absent, at any moment, and JSON of plain values.

Everything the library writes goes through here. What is written gets its name in one
step, after it is on the disk; until then it lies beside it under a hidden name that
nobody else takes, and a lock that ends with the process tells whether its writer is
still alive. So a kill leaves the old content, and at most a hidden rest that the next
write to the same name removes.
"""

import contextlib
import ctypes
import errno
import io
import json
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from keras_bandgnn.checks import as_path

try:
    import fcntl
except ImportError:  # no such locks on Windows
    fcntl = None

_ADVICE = {
    errno.ENOSPC: "Free some space on that disk, or choose another place.",
    errno.EDQUOT: "Free some of your quota there, or choose another place.",
    errno.EFBIG: "Raise the limit (ulimit -f), or choose another file system.",
    errno.EROFS: "Choose a place that is not read-only.",
    errno.EACCES: "Get the right to write there, or choose another place.",
    errno.EPERM: "Get the right to write there, or choose another place.",
    errno.ENOENT: "Make its folder first.",
    errno.ENOTDIR: "Choose a place below a folder.",
    errno.EISDIR: "Choose a name that no folder has.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.EIO: "Check that disk, or choose another place.",
}
# Errors that only writing has, whichever library reports them.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY = getattr(os, "O_DIRECTORY", 0)
_SWAP = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS


# === Errors ===


def _belongs(name: Any, path: Path) -> bool:
    """Whether a name in an error is that of `path`, or of where its bytes go."""
    if not isinstance(name, str | os.PathLike):
        return name is None
    name = Path(name)
    if name in path.parents:
        return True
    if not name.is_relative_to(path.parent):
        return False
    first = name.relative_to(path.parent).parts[0]
    # Its own, that of an unfinished store, or a hidden one.
    own = (path.name, f"{path.name}.partial")
    return first in own or first.endswith(f".partial.{path.name}")


def _code(error: Exception, path: Path) -> int | None:
    """The number of what went wrong in writing; None if something else did."""
    inner = getattr(error, "written", None)
    if inner is not None:
        # A part of what is written here, under a hidden name that means nothing.
        return error.errno if inner != path and _belongs(inner, path) else None
    if isinstance(error, ValueError) or str(error).startswith("Expected"):
        return None
    code = getattr(error, "errno", None)
    if code in FULL:
        return code
    if isinstance(error, OSError) and code in _ADVICE:
        # Not what the caller could not read meanwhile.
        return code if _belongs(error.filename, path) else None
    # HDF5, Arrow and backends wrap the error of the system, or lose it.
    for known in FULL:
        if f"errno = {known}" in str(error) or os.strerror(known) in str(error):
            return known
    try:
        with tempfile.TemporaryFile(dir=path.parent) as file:
            file.write(bytes(1 << 16))
            file.flush()
            os.fsync(file.fileno())
    except OSError as found:
        return found.errno if found.errno in FULL else None
    return None


@contextlib.contextmanager
def writing(path: str | os.PathLike) -> Iterator[None]:
    """Makes errors of the system name the file, and say what to do.

    Args:
        path: What is written, as the user knows it.

    Raises:
        OSError: In place of one without the name, with the same `errno`.
    """
    path = Path(path)
    left = " What was there before is unchanged." if path.exists() else ""
    try:
        yield
    except Exception as error:
        code = _code(error, path)
        if code is None:
            raise
        kind = type(OSError(code, ""))
        named = kind(
            f"Expected to write {path}. Received: {os.strerror(code)}. "
            f"{_ADVICE[code]}{left}"
        )
        named.errno, named.written = code, path
        raise named from error


# === One writer at a time ===


def refuse_link(path: Path) -> None:
    """Raises a FileExistsError if a path is a symbolic link, which is not followed."""
    if path.is_symlink():
        raise FileExistsError(
            f"Expected {path} to be new or a folder. Received: a symbolic link, which "
            "is not followed. Remove it, or name the folder that it leads to."
        )


def _flock(handle: int) -> bool:
    """Locks what is open; False if another one holds it."""
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
    return True


def _is_at(handle: int, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    return False


class FolderLock:
    """Keeps other processes out of a folder until `close`, or this process ends.

    Args:
        folder: It is made if it is missing.

    Raises:
        RuntimeError: If another one holds it.
        FileExistsError: If it is a symbolic link.
    """

    def __init__(self, folder: str | os.PathLike):
        folder = Path(folder)
        self._handle = None
        while self._handle is None:
            refuse_link(folder)
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
            if fcntl is None:
                return
            with contextlib.suppress(FileNotFoundError):
                self._take(folder)

    def _take(self, folder: Path) -> None:
        handle = os.open(folder, os.O_RDONLY | _DIRECTORY | _NO_FOLLOW)
        try:
            if not _flock(handle):
                raise RuntimeError(
                    f"Expected {folder} to be written by one job at a time. Received: "
                    "another job holds it. Wait for it to end, or choose another path."
                )
            # Its last holder may have moved or removed it meanwhile.
            if _is_at(handle, folder):
                self._handle, handle = handle, None
        finally:
            if handle is not None:
                os.close(handle)

    def close(self) -> None:
        """Lets others in."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


# === Hidden names ===

# Those of this process, for `discard_unfinished`.
_unfinished: set[Path] = set()


def discard_unfinished() -> None:
    """Removes what this process was writing and now never completes.

    For the moment before a process ends without its `finally` blocks; another thread
    may still be writing.
    """
    for path in list(_unfinished):
        # What gets its name meanwhile is complete: no longer there under this one.
        with contextlib.suppress(OSError):
            gone = path.with_name(f".{secrets.token_hex(4)}{path.name[9:]}")
            os.rename(path, gone)
            _remove(gone)


def _hidden_name(path: Path) -> Path:
    return path.with_name(f".{secrets.token_hex(4)}.partial.{path.name}")


def _create(path: Path, folder: bool) -> tuple[Path, int | None]:
    """Makes a hidden file or folder beside `path`, and locks it."""
    while True:
        hidden = _hidden_name(path)
        if folder:
            hidden.mkdir()
            if fcntl is None:
                return hidden, None
            try:
                handle = os.open(hidden, os.O_RDONLY | _DIRECTORY | _NO_FOLLOW)
            except FileNotFoundError:
                continue
        else:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
            handle = os.open(hidden, flags, 0o666)
        # Another writer may take it for a rest before it is locked.
        if _flock(handle) and _is_at(handle, hidden):
            _unfinished.add(hidden)
            return hidden, handle
        os.close(handle)


def remove_leftovers(path: Path) -> None:
    """Removes what killed writers of `path` left beside it; not what is in use."""
    if fcntl is None:  # nothing tells whether a writer is alive
        return
    pattern = re.compile(r"\.[0-9a-f]{8}\.partial\." + re.escape(path.name))
    try:
        names = [name for name in os.listdir(path.parent) if pattern.fullmatch(name)]
    except OSError:
        return
    for name in names:
        rest = path.with_name(name)
        # Links are not opened, and so stay; so does what another one removes, too.
        with contextlib.suppress(OSError):
            handle = os.open(rest, os.O_RDONLY | _NO_FOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(rest)
            finally:
                os.close(handle)


def remove_folder(path: Path) -> None:
    """Removes a folder; after a kill it is whole, or a hidden rest of no meaning."""
    hidden = _hidden_name(path)
    os.rename(path, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# === Files ===


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_directory(path: Path) -> None:
    """Makes renames and new names in a directory survive a power failure."""
    if os.name != "nt":  # directories cannot be opened there
        _sync(path)


@contextlib.contextmanager
def _hidden_file(path: Path) -> Iterator[tuple[Path, int]]:
    """A locked file that takes the name `path` at the end of the block."""
    with writing(path):
        remove_leftovers(path)
        hidden, handle = _create(path, folder=False)
        try:
            yield hidden, handle
            os.fsync(handle)
            if os.name == "nt":  # open files keep their names there
                os.close(handle)
                handle = None
            os.replace(hidden, path)
            sync_directory(path.parent)
        except BaseException:
            hidden.unlink(missing_ok=True)
            raise
        finally:
            _unfinished.discard(hidden)
            if handle is not None:
                os.close(handle)


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Opens a binary file that takes the name `path` only once it is complete.

    If the block raises, nothing is left and an earlier file at `path` stays as it was.
    A pipe or a device, such as `/dev/stdout`, is written to as it is.

    Raises:
        OSError: If it cannot be written, with its name and what to do.
    """
    path = Path(path)
    try:
        special = not stat.S_ISREG(path.stat().st_mode) and not path.is_dir()
    except OSError:
        special = False
    if special:
        with writing(path), open(path, "wb") as file:
            yield file
        return
    with _hidden_file(path) as (_, handle), open(os.dup(handle), "wb") as file:
        yield file


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike) -> Iterator[Path]:
    """Like `atomic_write`, for what wants a name: yields one with the same suffix."""
    with _hidden_file(Path(path)) as (hidden, _):
        yield hidden


class _HeldFile(io.BytesIO):
    def __init__(self, path: Path):
        super().__init__()
        self._path = path

    def __str__(self) -> str:
        return str(self._path)


@contextlib.contextmanager
def held_write(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Like `atomic_write`, but the bytes stay in memory until the block ends.

    For HDF5, which ends the whole process when a disk is full. Its `str` is the path,
    as Keras asks for.
    """
    file = _HeldFile(Path(path))
    yield file
    with atomic_write(path) as target:
        target.write(file.getbuffer())


# === Folders ===


def check_target(path, names: Sequence[str], what: str) -> Path:
    """Raises a ValueError if a folder cannot be written, or replaced, at a path.

    Args:
        path: The folder.
        names: The files that it may hold; one that is there must have the first.
        what: What such a folder is called.
    """
    path = as_path("path", path)
    refuse_link(path)
    found = {p.name for p in path.iterdir()} if path.is_dir() else set()
    if path.is_file() or (found and names[0] not in found):
        raise ValueError(
            f"Expected {path} to be new, an empty folder or {what}. Received: "
            "something else is there. Choose another folder."
        )
    if found - set(names):
        raise ValueError(
            f"Expected {path} to hold nothing but {what}, which would be replaced. "
            f"Received: also {sorted(found - set(names))}. Choose another folder, or "
            "move these."
        )
    return path


@contextlib.contextmanager
def whole_folder(path, names: Sequence[str], what: str) -> Iterator[Path]:
    """A folder to write to, which takes the place of `path` when all is written.

    Args:
        path: See `check_target`.
        names: See `check_target`.
        what: See `check_target`.

    Raises:
        OSError: If it cannot be written, with its name and what to do.
    """
    path = check_target(path, names, what)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        restore_replaced(path)
        remove_leftovers(path)
        hidden, handle = _create(path, folder=True)
        try:
            yield hidden
            replace_folder(hidden, check_target(path, names, what))
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            raise
        finally:
            _unfinished.discard(hidden)
            if handle is not None:
                os.close(handle)


def replace_folder(made: Path, path: Path) -> None:
    """Gives a complete folder its name; one that had it is removed after.

    There is a whole folder at `path` at any moment. Where two names cannot be swapped
    in one step (Windows, some network file systems) the old one waits in
    `.<name>.replaced` for the moment between two renames, and `restore_replaced` brings
    it back if the process ends there.
    """
    for folder, _, names in os.walk(made):
        for name in names:
            _sync(Path(folder, name))
        sync_directory(Path(folder))
    refuse_link(path)
    old = made
    try:
        # Works where there is nothing, or an empty folder.
        os.rename(made, path)
    except OSError:
        if not path.is_dir():
            raise
        if not _exchange(made, path):
            old = _replaced(path)
            _remove(old)
            os.rename(path, old)
            try:
                os.rename(made, path)
            except BaseException:
                os.rename(old, path)
                raise
    sync_directory(path.parent)
    _remove(old)
    _remove(_replaced(path))


def _replaced(path: Path) -> Path:
    return path.with_name(f".{path.name}.replaced")


def restore_replaced(path: str | os.PathLike) -> None:
    """Brings back a folder whose replacement was killed between two renames."""
    path = Path(path)
    old = _replaced(path)
    if not old.is_symlink() and old.is_dir() and not os.path.lexists(path):
        # Another process may do the same.
        with contextlib.suppress(OSError):
            os.rename(old, path)


def _exchange(one: Path, other: Path) -> bool:
    """Swaps two names in one step; False where that is not to be had."""
    name = {"linux": "renameat2", "darwin": "renamex_np"}.get(sys.platform)
    try:
        swap = getattr(ctypes.CDLL(None, use_errno=True), name or "")
    except (AttributeError, OSError, TypeError):
        return False
    paths = os.fsencode(one.absolute()), os.fsencode(other.absolute())
    if name == "renamex_np":
        return swap(*paths, _SWAP) == 0
    at = -100  # AT_FDCWD; unused, as the paths are absolute
    return swap(at, paths[0], at, paths[1], ctypes.c_uint(_SWAP)) == 0


# === JSON ===


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


def write_json(path: str | os.PathLike, value: Any, indent: int | None = None) -> None:
    """Writes a JSON file that is whole at any moment; see `json_text`."""
    text = json_text(Path(path).name, value, indent)
    with atomic_write(path) as file:
        file.write(text.encode() + b"\n")
