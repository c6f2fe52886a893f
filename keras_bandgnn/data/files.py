"""Atomic writes of files and folders, locks, and JSON.

Everything the library writes goes through this module. Content is written under a
unique hidden name in the same folder, synced to disk, and renamed in one step. A lock
that ends with the process tells whether the writer of a hidden file is alive. So a
killed process leaves the old content, and at most a hidden leftover that the next write
to the same name removes.
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
    errno.ENOSPC: "Free some disk space, or choose another location.",
    errno.EDQUOT: "Free some of your disk quota, or choose another location.",
    errno.EFBIG: "Raise the limit (ulimit -f), or choose another file system.",
    errno.EROFS: "Choose a location that is not read-only.",
    errno.EACCES: "Change the permissions, or choose another location.",
    errno.EPERM: "Change the permissions, or choose another location.",
    errno.ENOENT: "Create its folder first.",
    errno.ENOTDIR: "Choose a location inside a folder.",
    errno.EISDIR: "Choose a name that is not a folder's.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.EIO: "Check the disk, or choose another location.",
}
# Errors that only writing raises, whichever library reports them.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY = getattr(os, "O_DIRECTORY", 0)
_SWAP = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS


# === Errors ===


def _concerns(name: Any, path: Path) -> bool:
    """Return whether a name in an error is `path`, or a file that becomes it."""
    if not isinstance(name, str | os.PathLike):
        return name is None
    name = Path(name)
    if name in path.parents:
        return True
    if not name.is_relative_to(path.parent):
        return False
    first = name.relative_to(path.parent).parts[0]
    # The path itself, an unfinished store, or a hidden file.
    names = (path.name, f"{path.name}.partial")
    return first in names or first.endswith(f".partial.{path.name}")


def _write_error_code(error: Exception, path: Path) -> int | None:
    """Return the errno of a failed write; None for other errors."""
    inner = getattr(error, "written", None)
    if inner is not None:
        # A nested write of a file inside `path`, under a hidden name.
        return error.errno if inner != path and _concerns(inner, path) else None
    if isinstance(error, ValueError) or str(error).startswith("Expected"):
        return None
    code = getattr(error, "errno", None)
    if code in FULL:
        return code
    if isinstance(error, OSError) and code in _ADVICE:
        # Not an error of the caller's reading.
        return code if _concerns(error.filename, path) else None
    # HDF5, Arrow and backends wrap or lose the error of the operating system.
    for full in FULL:
        if f"errno = {full}" in str(error) or os.strerror(full) in str(error):
            return full
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
    """Add the file's name and advice to errors of the operating system.

    Args:
        path: The path as the user knows it.

    Raises:
        OSError: With the name and the original `errno`.
    """
    path = Path(path)
    note = " The previous content is unchanged." if path.exists() else ""
    try:
        yield
    except Exception as error:
        code = _write_error_code(error, path)
        if code is None:
            raise
        kind = type(OSError(code, ""))
        new = kind(
            f"Expected to write {path}. Received: {os.strerror(code)}. "
            f"{_ADVICE[code]}{note}"
        )
        new.errno, new.written = code, path
        raise new from error


# === One writer at a time ===


def refuse_link(path: Path) -> None:
    """Raise a FileExistsError if a path is a symbolic link."""
    if path.is_symlink():
        raise FileExistsError(
            f"Expected {path} to be new or a folder. Received: a symbolic link, which "
            "is not followed. Remove it, or pass the folder that it points to."
        )


def _flock(handle: int) -> bool:
    """Lock an open file or folder; return False if another process holds it."""
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
    """Locks a folder against other processes until `close`, or this process ends.

    Args:
        folder: The folder; created if it is missing.

    Raises:
        RuntimeError: If another process holds the lock.
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
            # The previous holder may have moved or removed it in the meantime.
            if _is_at(handle, folder):
                self._handle, handle = handle, None
        finally:
            if handle is not None:
                os.close(handle)

    def close(self) -> None:
        """Release the lock."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


# === Hidden names ===

# Hidden files of this process, for `discard_unfinished`.
_unfinished: set[Path] = set()


def discard_unfinished() -> None:
    """Remove the unfinished files of this process.

    Called before a process exits without its `finally` blocks; another thread may still
    be writing.
    """
    for path in list(_unfinished):
        # A file that is completed in the meantime no longer has this name.
        with contextlib.suppress(OSError):
            target = path.with_name(f".{secrets.token_hex(4)}{path.name[9:]}")
            os.rename(path, target)
            _remove(target)


def _hidden_name(path: Path) -> Path:
    return path.with_name(f".{secrets.token_hex(4)}.partial.{path.name}")


def _create(path: Path, folder: bool) -> tuple[Path, int | None]:
    """Create and lock a hidden file or folder next to `path`."""
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
        # Another writer may remove it as a leftover before it is locked.
        if _flock(handle) and _is_at(handle, hidden):
            _unfinished.add(hidden)
            return hidden, handle
        os.close(handle)


def remove_leftovers(path: Path) -> None:
    """Remove hidden files that killed writers of `path` left, if not in use."""
    if fcntl is None:  # cannot tell whether a writer is alive
        return
    pattern = re.compile(r"\.[0-9a-f]{8}\.partial\." + re.escape(path.name))
    try:
        names = [name for name in os.listdir(path.parent) if pattern.fullmatch(name)]
    except OSError:
        return
    for name in names:
        leftover = path.with_name(name)
        # Opening a link fails, so links stay. Another process may remove it as well.
        with contextlib.suppress(OSError):
            handle = os.open(leftover, os.O_RDONLY | _NO_FOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(leftover)
            finally:
                os.close(handle)


def remove_folder(path: Path) -> None:
    """Remove a folder atomically; a killed process may leave a hidden folder."""
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
    """Make renames and new files in a directory durable."""
    if os.name != "nt":  # directories cannot be opened there
        _sync(path)


@contextlib.contextmanager
def _hidden_file(path: Path) -> Iterator[tuple[Path, int]]:
    """Yield a locked file that is renamed to `path` at the end of the block."""
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
    """Open a binary file that appears at `path` only when it is complete.

    If the block raises, the new file is removed and an earlier file at `path` is
    unchanged. A pipe or a device, such as `/dev/stdout`, is written to directly.

    Raises:
        OSError: If it cannot be written, with its name and advice.
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
    """Like `atomic_write`, but yields a path with the same suffix."""
    with _hidden_file(Path(path)) as (hidden, _):
        yield hidden


class _BufferedFile(io.BytesIO):
    def __init__(self, path: Path):
        super().__init__()
        self._path = path

    def __str__(self) -> str:
        return str(self._path)


@contextlib.contextmanager
def buffered_write(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Like `atomic_write`, but buffers the bytes in memory until the block ends.

    For HDF5, which aborts the process when a disk is full. The file's `str` is the
    path, which Keras requires.
    """
    file = _BufferedFile(Path(path))
    yield file
    with atomic_write(path) as target:
        target.write(file.getbuffer())


# === Folders ===


def check_target(path, names: Sequence[str], what: str) -> Path:
    """Raise a ValueError if a folder cannot be created or replaced at a path.

    Args:
        path: The folder.
        names: The files that it may hold. An existing folder must hold the first one.
        what: Description of such a folder, for errors.
    """
    path = as_path("path", path)
    refuse_link(path)
    entries = {p.name for p in path.iterdir()} if path.is_dir() else set()
    if path.is_file() or (entries and names[0] not in entries):
        raise ValueError(
            f"Expected {path} to be new, an empty folder or {what}. Received: "
            f"other content, {', '.join(sorted(entries)[:3]) or 'a file'}. Choose "
            "another folder, or delete it."
        )
    if entries - set(names):
        raise ValueError(
            f"Expected {path} to hold only {what}, which would be replaced. "
            f"Received: also {sorted(entries - set(names))}. Choose another folder, or "
            "move these files."
        )
    return path


@contextlib.contextmanager
def atomic_folder(path, names: Sequence[str], what: str) -> Iterator[Path]:
    """Yield a folder to write to, which replaces `path` at the end of the block.

    Args:
        path: See `check_target`.
        names: See `check_target`.
        what: See `check_target`.

    Raises:
        OSError: If it cannot be written, with its name and advice.
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


def replace_folder(new: Path, path: Path) -> None:
    """Move a complete folder to `path`, and remove a folder that was there.

    A complete folder exists at `path` at any time. Where two folders cannot be swapped
    in one step (Windows, some network file systems), the old one is called
    `.<name>.replaced` between two renames, and `restore_replaced` restores it if the
    process ends in between.
    """
    for folder, _, names in os.walk(new):
        for name in names:
            _sync(Path(folder, name))
        sync_directory(Path(folder))
    refuse_link(path)
    old = new
    try:
        # Succeeds if `path` is absent or an empty folder.
        os.rename(new, path)
    except OSError:
        if not path.is_dir():
            raise
        if not _exchange(new, path):
            old = _replaced(path)
            _remove(old)
            os.rename(path, old)
            try:
                os.rename(new, path)
            except BaseException:
                os.rename(old, path)
                raise
    sync_directory(path.parent)
    _remove(old)
    _remove(_replaced(path))


def _replaced(path: Path) -> Path:
    return path.with_name(f".{path.name}.replaced")


def restore_replaced(path: str | os.PathLike) -> None:
    """Restore a folder whose replacement was interrupted between two renames."""
    path = Path(path)
    old = _replaced(path)
    if not old.is_symlink() and old.is_dir() and not os.path.lexists(path):
        # Another process may restore it at the same time.
        with contextlib.suppress(OSError):
            os.rename(old, path)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two paths atomically; return False where this is not supported."""
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


def _json_value(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"a value of type {type(value).__name__}")


def json_text(what: str, value: Any, indent: int | None = None) -> str:
    """Return `value` as ASCII JSON text; accept NumPy values and paths.

    Args:
        what: Name of the value in errors.
        value: The value.
        indent: Spaces per level; one line if omitted.

    Raises:
        ValueError: If a value cannot be represented in JSON.
    """
    separators = (",", ": ") if indent else (",", ":")
    try:
        return json.dumps(
            value, default=_json_value, indent=indent, separators=separators
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"Expected `{what}` to hold JSON values (text, numbers, lists, "
            f"dictionaries). Received: {error}. Convert it to one of these first."
        ) from error


def write_json(path: str | os.PathLike, value: Any, indent: int | None = None) -> None:
    """Write a JSON file atomically; see `json_text`."""
    text = json_text(Path(path).name, value, indent)
    with atomic_write(path) as file:
        file.write(text.encode() + b"\n")
