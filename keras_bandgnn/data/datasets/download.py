"""Resumable, verified and atomic downloads."""

import hashlib
import os
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_bandgnn.data.files import atomic_write
from keras_bandgnn.progress import progress_bar

_BLOCK = 1 << 20
_SHA256 = re.compile("[0-9a-f]{64}")


def checksum(path: Path, kind: str = "sha256") -> str:
    """Return the checksum of a file as lower-case hexadecimal digits.

    Args:
        path: The file.
        kind: `"sha256"`, `"md5"`, or `"git"` for the Git blob id.

    Example:
    >>> _ = Path("empty").write_bytes(b"")
    >>> checksum(Path("empty"), "git")
    'e69de29bb2d1d6434b8b29ae775ad8c2e48c5391'
    """
    digest = hashlib.new({"git": "sha1"}.get(kind, kind), usedforsecurity=False)
    if kind == "git":
        digest.update(b"blob %d\0" % path.stat().st_size)
    with open(path, "rb") as file:
        while chunk := file.read(_BLOCK):
            digest.update(chunk)
    return digest.hexdigest()


def matches(path: Path, expected: str) -> bool:
    """Return whether a file has a checksum such as `"md5:d41d8cd9..."`."""
    kind, _, digits = expected.partition(":")
    return checksum(path, kind) == digits


def sidecar(path: Path) -> Path:
    """Return the path of a file's checksum, in the format of `sha256sum`."""
    return path.with_name(path.name + ".sha256")


def record(path: Path, name: str) -> None:
    """Write the checksum of `path` next to it, as that of the file `name`."""
    with atomic_write(sidecar(path.with_name(name))) as file:
        file.write(f"{checksum(path)}  {name}\n".encode())


def verify(path: Path) -> None:
    """Raise a ValueError if a file does not match its stored checksum, if any."""
    sums = sidecar(path)
    if not sums.exists():
        return
    words = sums.read_text("utf-8", "replace").split()
    expected = words[0] if words else ""
    if not _SHA256.fullmatch(expected):
        raise ValueError(
            f"Expected {sums} to begin with the SHA-256 of {path.name}. Received: "
            f"{expected[:80]!r}. Delete it to accept {path.name} as it is."
        )
    digest = checksum(path)
    if digest != expected:
        raise ValueError(
            f"Expected {path} to have the SHA-256 {expected}, as when it was "
            f"downloaded. Received: {digest}. The file was changed or damaged: delete "
            f"it and {sums.name} to download it again, or delete only {sums.name} to "
            "accept it as it is."
        )


_CHUNK = 1 << 18
_TIMEOUT_SECONDS = 60
_HEADERS = {"User-Agent": "keras-bandgnn"}


@dataclass(frozen=True)
class Remote:
    """A published file.

    Attributes:
        name: Name in the cache, which may have a folder.
        url: Its official address.
        checksum: The published checksum, such as `"md5:..."`; None if there is none.
    """

    name: str
    url: str
    checksum: str | None = None


def fetch(remote: Remote, folder: Path, progress: bool) -> Path:
    """Download a file into a folder and return its path.

    The bytes are written to `<name>.part`. If an earlier attempt left this file and the
    server still has the same version, only the rest is requested. The SHA-256 is stored
    in `<name>.sha256`.

    Args:
        remote: The file to download.
        folder: The target folder.
        progress: Whether to show a progress bar.

    Raises:
        OSError: If the server cannot be reached, returns an error, or disconnects.
        ValueError: If the file does not have the published checksum.
    """
    target = folder / remote.name
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".part")
    tag = target.with_name(target.name + ".part.tag")
    try:
        response = _open(remote.url, partial, tag)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # range not satisfiable: start over
            raise
        partial.unlink(missing_ok=True)
        response = _open(remote.url, partial, tag)
    with response:
        _receive(response, partial, tag, progress)
    if remote.checksum and not matches(partial, remote.checksum):
        kind = remote.checksum.partition(":")[0]
        digest = checksum(partial, kind)
        partial.unlink()
        tag.unlink(missing_ok=True)
        raise ValueError(
            f"Expected {remote.url} to have the checksum {remote.checksum}. Received: "
            f"{kind}:{digest}. The download was deleted. Try again; if this repeats, "
            "the published file is no longer at this address: obtain it elsewhere and "
            "pass path=."
        )
    record(partial, target.name)
    os.replace(partial, target)
    tag.unlink(missing_ok=True)
    return target


def _open(url: str, partial: Path, tag: Path) -> Any:
    headers = dict(_HEADERS)
    if partial.exists() and partial.stat().st_size and tag.exists():
        # If-Range: a server that has a newer file sends all of it.
        headers["Range"] = f"bytes={partial.stat().st_size}-"
        headers["If-Range"] = tag.read_text()
    request = urllib.request.Request(url, headers=headers)
    return urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)


def _receive(response: Any, partial: Path, tag: Path, progress: bool) -> None:
    resumed = response.status == 206
    size = partial.stat().st_size if resumed else 0
    length = response.headers.get("Content-Length")
    total = None if length is None else size + int(length)
    name = response.headers.get("ETag") or response.headers.get("Last-Modified")
    if name and not name.startswith("W/"):  # weak tags do not fit If-Range
        tag.write_text(name)
    else:
        tag.unlink(missing_ok=True)
    title = f"Downloading {partial.name.removesuffix('.part')}"
    with (
        open(partial, "ab" if resumed else "wb") as file,
        progress_bar(title, total, progress) as advance,
    ):
        advance(size)
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            advance(len(chunk))
            size += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    if total is not None and size != total:
        raise ConnectionError(
            f"the connection was closed after {size:,} of {total:,} bytes"
        )
