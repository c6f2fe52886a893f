"""Checksums of files: the published ones, and those of the first download."""

import hashlib
import re
from pathlib import Path

from keras_bandgnn.data.files import atomic_write

_CHUNK = 1 << 20
_SHA256 = re.compile("[0-9a-f]{64}")


def checksum(path: Path, kind: str = "sha256") -> str:
    """Returns the checksum of a file as lower-case hexadecimal digits.

    Args:
        path: The file.
        kind: `"sha256"`, `"md5"`, or `"git"` for the id that Git gives its content.

    Example:
    >>> _ = Path("empty").write_bytes(b"")
    >>> checksum(Path("empty"), "git")
    'e69de29bb2d1d6434b8b29ae775ad8c2e48c5391'
    """
    digest = hashlib.new({"git": "sha1"}.get(kind, kind), usedforsecurity=False)
    if kind == "git":
        digest.update(b"blob %d\0" % path.stat().st_size)
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def matches(path: Path, expected: str) -> bool:
    """Whether a file has a checksum such as `"md5:d41d8cd9..."`."""
    kind, _, digits = expected.partition(":")
    return checksum(path, kind) == digits


def sidecar(path: Path) -> Path:
    """The file beside `path` that holds its checksum, in the form of `sha256sum`."""
    return path.with_name(path.name + ".sha256")


def record(path: Path, name: str) -> None:
    """Writes the checksum of `path` beside it, as that of the file `name`."""
    with atomic_write(sidecar(path.with_name(name))) as file:
        file.write(f"{checksum(path)}  {name}\n".encode())


def verify(path: Path) -> None:
    """Raises a ValueError if a file differs from the checksum beside it, if any."""
    beside = sidecar(path)
    if not beside.exists():
        return
    words = beside.read_text("utf-8", "replace").split()
    expected = words[0] if words else ""
    if not _SHA256.fullmatch(expected):
        raise ValueError(
            f"Expected {beside} to begin with the SHA-256 of {path.name}. Received: "
            f"{expected[:80]!r}. Delete it to accept {path.name} as it is."
        )
    found = checksum(path)
    if found != expected:
        raise ValueError(
            f"Expected {path} to have the SHA-256 {expected}, as when it was "
            f"downloaded. Received: {found}. The file was changed or damaged: delete "
            f"it and {beside.name} to download it again, or delete {beside.name} "
            "alone to accept it as it is."
        )
