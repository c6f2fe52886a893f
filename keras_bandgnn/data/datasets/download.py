"""Downloads a file: resumed where it broke off, verified, and whole or absent."""

import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_bandgnn.data.datasets.checksums import checksum, matches, record
from keras_bandgnn.data.datasets.progress import progress_bar

_CHUNK = 1 << 18
_TIMEOUT_SECONDS = 60
_HEADERS = {"User-Agent": "keras-bandgnn"}


@dataclass(frozen=True)
class Remote:
    """A published file.

    Attributes:
        name: Name that it gets in the cache.
        url: Its official address.
        checksum: The published checksum, such as `"md5:..."`; None if there is none.
    """

    name: str
    url: str
    checksum: str | None = None


def fetch(remote: Remote, folder: Path, progress: bool) -> Path:
    """Downloads a file into a folder and returns its path.

    The bytes go to `<name>.part`. If that is there from an earlier attempt and the
    server still has the same file, only the rest is asked for. The SHA-256 is kept in
    `<name>.sha256`.

    Args:
        remote: What to download.
        folder: Where to put it.
        progress: Whether to draw a bar.

    Raises:
        OSError: If the server cannot be reached, refuses, or breaks off.
        ValueError: If the file does not have the published checksum.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / remote.name
    partial = target.with_name(target.name + ".part")
    tag = target.with_name(target.name + ".part.tag")
    try:
        response = _open(remote.url, partial, tag)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # the range asked for is not there: begin again
            raise
        partial.unlink(missing_ok=True)
        response = _open(remote.url, partial, tag)
    with response:
        _receive(response, partial, tag, progress)
    if remote.checksum and not matches(partial, remote.checksum):
        kind = remote.checksum.partition(":")[0]
        found = checksum(partial, kind)
        partial.unlink()
        tag.unlink(missing_ok=True)
        raise ValueError(
            f"Expected {remote.url} to have the checksum {remote.checksum}. Received: "
            f"{kind}:{found}. It was not kept. Try again; if this repeats, the address "
            "no longer has the published file: get it elsewhere and pass path=."
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
    done = partial.stat().st_size if resumed else 0
    length = response.headers.get("Content-Length")
    total = None if length is None else done + int(length)
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
        advance(done)
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            advance(len(chunk))
            done += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    if total is not None and done != total:
        raise ConnectionError(
            f"the connection broke off after {done:,} of {total:,} bytes"
        )
