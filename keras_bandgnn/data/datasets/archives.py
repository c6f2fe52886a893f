"""Safe extraction of zip and tar archives."""

import functools
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from keras_bandgnn.data.datasets.download import checksum
from keras_bandgnn.data.reading import Limits, reading, refuse_file, size_of

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")

_NAME_BYTES = 255  # the limit of common file systems


def is_archive(path: Path) -> bool:
    """Return whether a file is an archive, by its suffix.

    Example:
    >>> is_archive(Path("MUTAG.zip")), is_archive(Path("MUTAG_A.txt"))
    (True, False)
    """
    return path.name.endswith(ARCHIVES)


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack an archive into a new folder and return the folder.

    The folder is named after the archive and its checksum, and appears only when it is
    complete. If it exists already, nothing is unpacked.

    Args:
        archive: A `.zip`, `.tar`, `.tar.gz` or `.tgz` file.
        folder: Parent of the new folder.

    Raises:
        ValueError: If a member has an absolute or duplicate name, a path outside of the
            folder, or is neither a file nor a folder; if the archive is damaged, or its
            unpacked size exceeds the limits.
    """
    size_of(archive)  # a file, not a folder of this name
    name = archive.name
    for suffix in sorted(ARCHIVES, key=len, reverse=True):
        name = name.removesuffix(suffix)
    target = folder / f"{name}-{checksum(archive)[:12]}"
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder))
    try:
        with reading(archive, what="to be a complete archive"):
            for member, content in members(archive):
                path = temporary / member
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(path, "wb") as file:
                    shutil.copyfileobj(content, file, 1 << 20)
        os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def members(archive: Path) -> Iterator[tuple[PurePosixPath, BinaryIO]]:
    """Yield the safe relative path and the open content of each file in an archive.

    Args:
        archive: A zip or tar archive, or a wheel; a tar archive may be compressed.

    Raises:
        ValueError: If a name is unsafe or occurs twice, or the unpacked size exceeds
            the limits.
    """
    size, limits, total = size_of(archive), Limits.current(), 0
    names: dict[str, bool] = {}  # whether it is a file
    zipped = archive.name.endswith((".zip", ".whl"))
    entries = _zip_entries if zipped else _tar_entries
    for count, (name, declared, opened) in enumerate(entries(archive), start=1):
        if count > limits.members:
            refuse_file(
                archive,
                f"to hold at most {limits.members:,} members",
                "more",
                "Raise the limit with limits=kb.data.Limits(members=...).",
            )
        if opened is None:  # a folder
            continue
        path = _safe_name(archive, name)
        total += declared
        limits.check(str(archive), total, size, "unpacked")
        _check_distinct(archive, path, names)
        with opened() as content:
            yield path, content


_Entry = tuple[str, int, Callable[[], BinaryIO] | None]


def _zip_entries(archive: Path) -> Iterator[_Entry]:
    with zipfile.ZipFile(archive) as packed:
        for info in packed.infolist():
            mode = info.external_attr >> 16
            if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                _refuse(archive, info.filename, "a link or device")
            opened = None if info.is_dir() else functools.partial(packed.open, info)
            yield info.filename, info.file_size, opened


def _tar_entries(archive: Path) -> Iterator[_Entry]:
    with tarfile.open(archive) as packed:
        for info in packed:
            if not info.isfile() and not info.isdir():
                _refuse(archive, info.name, "a link or device")
            if info.issparse():
                _refuse(archive, info.name, "a sparse file")
            opened = functools.partial(packed.extractfile, info)
            yield info.name, info.size, None if info.isdir() else opened


def _check_distinct(archive: Path, path: PurePosixPath, names: dict[str, bool]) -> None:
    """Raise a ValueError for a duplicate name, or a file with a folder's name."""
    # Some file systems are case-insensitive.
    folders = [str(parent).casefold() for parent in path.parents]
    if str(path).casefold() in names or any(names.get(name) for name in folders):
        _refuse(archive, str(path), "a name that another file has, ignoring case")
    names |= dict.fromkeys(folders, False) | {str(path).casefold(): True}


def _safe_name(archive: Path, member: str) -> PurePosixPath:
    name = PurePosixPath(member.replace("\\", "/"))
    if name.is_absolute() or ".." in name.parts or ":" in member or "\0" in member:
        _refuse(archive, member, "a path outside of the folder")
    if not name.parts:
        _refuse(archive, member, "an empty name")
    if max(len(os.fsencode(part)) for part in name.parts) > _NAME_BYTES:
        _refuse(archive, member[:80], f"a name above {_NAME_BYTES} bytes")
    return name


def _refuse(archive: Path, member: str, what: str) -> None:
    raise ValueError(
        f"Expected {archive} to hold plain files with relative names. Received: "
        f"{member!r}, {what}. Nothing was unpacked. Download the archive from its "
        "official address."
    )
