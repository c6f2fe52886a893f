"""Atomic writes of files and folders, locks, and JSON.

Everything the library writes goes through this module. Content is written under a
unique hidden name in the same folder, synced to disk, and renamed. A killed process
leaves the old content, and at most a hidden file or folder with a name such as
`.1a2b3c4d.partial.model`.
"""

import contextlib
import errno
import io
import json
import os
import re
import secrets
import shutil
import stat
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from keras_bandgnn.checks import as_path

# Errors that only writing raises.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def writing(path: str | os.PathLike, hidden: str | os.PathLike = "") -> Iterator[None]:
    """Name the file that the user knows in errors of the operating system.

    Args:
        path: The path as the user knows it.
        hidden: The temporary name under which it is written.

    Raises:
        OSError: With the name and the original `errno`.
    """
    try:
        yield
    except OSError as error:
        name = error.filename
        if name is None and error.errno in FULL:
            name = path
        elif hidden and isinstance(name, str) and Path(name).is_relative_to(hidden):
            name = Path(path, Path(name).relative_to(hidden))
        else:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(name)) from error


# === One writer at a time ===


def refuse_link(path: Path) -> None:
    """Raise a FileExistsError if a path is a symbolic link."""
    if path.is_symlink():
        raise FileExistsError(
            f"Expected {path} to be new or a folder. Received: a symbolic link, which "
            "is not followed. Remove it, or pass the folder that it points to."
        )


class FolderLock:
    """Locks a folder against other writers until `close`, or this process ends.

    The lock file `.<name>.lock` is next to the folder, which may be replaced or removed
    while it is locked, or inside it if the parent folder is read-only.

    Args:
        folder: The folder.
        create: Whether to create it if it is missing.
        wait: Seconds to wait for another writer.

    Raises:
        RuntimeError: If another writer holds the lock.
        FileExistsError: If it is a symbolic link.
    """

    def __init__(self, folder: str | os.PathLike, create: bool = True, wait: float = 0):
        # Imported late, since it imports asyncio.
        from filelock import FileLock, Timeout

        folder = Path(folder).absolute()
        refuse_link(folder)
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        parent = folder.parent if os.access(folder.parent, os.W_OK) else folder
        self._lock = FileLock(parent / f".{folder.name}.lock", thread_local=False)
        try:
            self._lock.acquire(timeout=wait)
        except Timeout as error:
            raise RuntimeError(
                f"Expected {folder} to be written by one job at a time. Received: "
                "another job holds it. Wait for it to end, or choose another path."
            ) from error
        _locks.add(self)
        if create:  # the previous holder may have removed it
            folder.mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        """Release the lock."""
        _locks.discard(self)
        if self._lock.is_locked:
            # Before the release: afterwards it may be the file of another holder.
            with contextlib.suppress(OSError):  # open files stay on Windows
                os.unlink(self._lock.lock_file)
            self._lock.release()

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


# === Hidden names ===

# Hidden files and locks of this process, for `discard_unfinished`.
_unfinished: set[Path] = set()
_locks: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def discard_unfinished() -> None:
    """Remove the unfinished files of this process, and its lock files.

    Called before a process exits without its `finally` blocks; another thread may still
    be writing.
    """
    for path in list(_unfinished):
        # A file that is completed in the meantime no longer has this name.
        with contextlib.suppress(OSError):
            target = _hidden_name(path)
            os.rename(path, target)
            _remove(target)
    for lock in list(_locks):
        lock.close()


def _hidden_name(path: Path) -> Path:
    return path.with_name(f".{secrets.token_hex(4)}.partial.{path.name}")


@contextlib.contextmanager
def _hidden(path: Path) -> Iterator[Path]:
    """Yield a hidden name next to `path`, which no longer exists after the block."""
    hidden = _hidden_name(path)
    _unfinished.add(hidden)
    try:
        with writing(path, hidden):
            yield hidden
    finally:
        _unfinished.discard(hidden)
        _remove(hidden)


def remove_leftovers(path: Path) -> None:
    """Remove hidden files that killed writers of `path` left.

    Call it while a `FolderLock` tells that nobody else writes to `path`.
    """
    pattern = re.compile(r"\.[0-9a-f]{8}\.partial\." + re.escape(path.name))
    with contextlib.suppress(OSError):
        for name in filter(pattern.fullmatch, os.listdir(path.parent)):
            _remove(path.with_name(name))


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
def atomic_path(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a hidden path with the same suffix, renamed to `path` after the block.

    If the block raises, the new file is removed and an earlier file at `path` is
    unchanged.

    Raises:
        OSError: If it cannot be written, with its name.
    """
    path = Path(path)
    with _hidden(path) as hidden:
        yield hidden
        _sync(hidden)
        os.replace(hidden, path)
        sync_directory(path.parent)


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Like `atomic_path`, but yields an open binary file.

    A pipe or a device, such as `/dev/stdout`, is written to directly.
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
        special = not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
    except OSError:
        special = False
    if special:
        with writing(path), open(path, "wb") as file:
            yield file
        return
    with atomic_path(path) as hidden, open(hidden, "xb") as file:
        yield file


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
        OSError: If it cannot be written, with its name.
        RuntimeError: If another job is writing it.
    """
    path = check_target(path, names, what)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FolderLock(path, create=False), _hidden(path) as hidden:
        _restore(path)
        remove_leftovers(path)
        hidden.mkdir()
        yield hidden
        replace_folder(hidden, check_target(path, names, what))


def replace_folder(new: Path, path: Path) -> None:
    """Move a complete folder to `path`, which is locked, and remove an earlier one.

    Between two renames the earlier folder is called `.<name>.replaced`, and
    `restore_replaced` restores it if the process ends in between.
    """
    for folder, _, names in os.walk(new):
        for name in names:
            _sync(Path(folder, name))
        sync_directory(Path(folder))
    refuse_link(path)
    old = _replaced(path)
    if path.is_dir():
        _remove(old)
        os.rename(path, old)
    try:
        os.rename(new, path)
    except BaseException:
        _restore(path)
        raise
    sync_directory(path.parent)
    _remove(old)


def _replaced(path: Path) -> Path:
    return path.with_name(f".{path.name}.replaced")


def _restore(path: Path) -> None:
    old = _replaced(path)
    if not old.is_symlink() and old.is_dir() and not os.path.lexists(path):
        os.rename(old, path)


def restore_replaced(path: str | os.PathLike) -> None:
    """Restore a folder whose replacement was interrupted between two renames."""
    path = Path(path)
    if os.path.isdir(_replaced(path)) and not os.path.lexists(path):
        # A writer that is between the two renames holds the lock for a moment.
        with contextlib.suppress(OSError, RuntimeError):
            with FolderLock(path, create=False, wait=10):
                _restore(path)


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
