"""Unpacks zip and tar archives without trusting the names in them."""

import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from keras_bandgnn.data.datasets.checksums import checksum

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")


def is_archive(path: Path) -> bool:
    """Whether the name of a file is that of an archive.

    Example:
    >>> is_archive(Path("MUTAG.zip")), is_archive(Path("MUTAG_A.txt"))
    (True, False)
    """
    return path.name.endswith(ARCHIVES)


def unpack(archive: Path, folder: Path) -> Path:
    """Unpacks an archive into a new folder and returns that.

    The folder has the name of the archive and the start of its checksum, and appears
    only when complete; if it is there already, nothing is done.

    Args:
        archive: A `.zip`, `.tar`, `.tar.gz` or `.tgz` file.
        folder: Where to make the folder.

    Raises:
        ValueError: If a member has an absolute name, leads out of the folder, or is
            neither a file nor a folder; or if the archive is damaged.
    """
    name = archive.name
    for suffix in sorted(ARCHIVES, key=len, reverse=True):
        name = name.removesuffix(suffix)
    target = folder / f"{name}-{checksum(archive)[:12]}"
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder))
    try:
        for member, content in _members(archive):
            path = temporary / _safe_name(archive, member)
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                shutil.copyfileobj(content, file)
        os.replace(temporary, target)
    except (EOFError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"Expected {archive} to be a whole archive. Received: {error}. "
            "Delete it and get it again."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _members(archive: Path) -> Iterator[tuple[str, Any]]:
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                mode = info.external_attr >> 16
                if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    _refuse(archive, info.filename, "a link or device")
                if not info.is_dir():
                    with packed.open(info) as content:
                        yield info.filename, content
        return
    with tarfile.open(archive) as packed:
        for info in packed:
            if info.isfile():
                yield info.name, packed.extractfile(info)
            elif not info.isdir():
                _refuse(archive, info.name, "a link or device")


def _safe_name(archive: Path, member: str) -> PurePosixPath:
    name = PurePosixPath(member.replace("\\", "/"))
    if name.is_absolute() or ".." in name.parts or ":" in member or not name.parts:
        _refuse(archive, member, "a name that leads out of the folder")
    return name


def _refuse(archive: Path, member: str, what: str) -> None:
    raise ValueError(
        f"Expected {archive} to hold plain files with relative names. Received: "
        f"{member!r}, {what}. Nothing was unpacked; get the archive from its "
        "official address."
    )
