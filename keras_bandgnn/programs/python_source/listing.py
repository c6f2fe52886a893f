"""Listing of source files, and their assignment to splits."""

import hashlib
import os
import pathlib
import stat
from collections.abc import Iterable, Iterator

import pathspec

from keras_bandgnn.checks import (
    as_path,
    instance,
    non_negative_number,
    one_of,
    seed_number,
    sequence,
    strings,
)

SPLITS = ("train", "valid", "test")
_BY = ("file", "package")

PathLike = str | os.PathLike


def pattern_spec(patterns: Iterable[str]) -> pathspec.GitIgnoreSpec:
    """Return what tells files that patterns match, as those of a .gitignore, by name.

    Raises:
        ValueError: For what is no pattern.
    """
    patterns = list(patterns)
    try:
        return pathspec.GitIgnoreSpec.from_lines(patterns)
    except ValueError as error:
        raise ValueError(
            "Expected patterns as in .gitignore, such as 'tests' or '*_pb2.py'. "
            f"Received: {patterns}, {error}."
        ) from None


def _walk(root: str, skipped: pathspec.GitIgnoreSpec) -> Iterator[tuple[str, str]]:
    for folder, folders, files in os.walk(root, followlinks=False):
        inside = pathlib.PurePath(os.path.relpath(folder, root)).as_posix()
        prefix = "" if inside == "." else inside + "/"
        folders[:] = [x for x in folders if not skipped.match_file(f"{prefix}{x}/")]
        for file in files:
            if file.endswith(".py") and not skipped.match_file(prefix + file):
                yield os.path.join(folder, file), prefix + file


def named_files(
    paths: PathLike | Iterable[PathLike], exclude: Iterable[str] = ()
) -> list[tuple[str, str]]:
    """List Python files with their names relative to the searched folder.

    Args:
        paths: As in `python_files`.
        exclude: As in `python_files`.

    Returns:
        (path, name) pairs, sorted by path, each path once.

    Raises:
        FileNotFoundError: If one of `paths` does not exist.
    """
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    paths = [as_path("paths", path) for path in sequence("paths", paths, "paths")]
    patterns = [exclude] if isinstance(exclude, str) else exclude
    skipped = pattern_spec(strings("exclude", patterns))
    names: dict[str, str] = {}
    for path in map(os.fspath, paths):
        if os.path.isdir(path):
            for file, name in _walk(path, skipped):
                names.setdefault(file, name)
        elif os.path.lexists(path):
            names.setdefault(path, os.path.basename(path))
        else:
            raise FileNotFoundError(
                "Expected `paths` to name files and folders that exist. "
                f"Received: {path!r}."
            )
    return sorted(names.items(), key=lambda item: pathlib.PurePath(item[0]).parts)


def python_files(
    paths: PathLike | Iterable[PathLike], exclude: Iterable[str] = ()
) -> list[str]:
    """List the Python files in folders, and single files, in sorted order.

    Links to folders are not followed.

    Args:
        paths: Folders, searched for `*.py`, and files with any suffix.
        exclude: Patterns of files and folders to skip, as in a .gitignore of the
            searched folder.

    Returns:
        Paths, each once, sorted by their parts.

    Raises:
        FileNotFoundError: If one of `paths` does not exist.
    """
    return [path for path, _ in named_files(paths, exclude)]


def read_source(path: str, max_bytes: int) -> bytes:
    """Read a regular file of at most `max_bytes`.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is too large or not a regular file.
    """
    state = os.stat(path)
    if not stat.S_ISREG(state.st_mode):
        raise ValueError("not a regular file")
    if state.st_size > max_bytes:
        raise ValueError(f"{state.st_size} bytes, more than {max_bytes}")
    with open(path, "rb") as file:
        return file.read()


def split_of(
    filename: PathLike,
    root: PathLike = "",
    by: str = "file",
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1),
    seed: int = 0,
) -> str:
    """Return the split of a file's instances, the same on every machine.

    Args:
        filename: Path of the file, under `root` or relative to it.
        root: Folder that names are relative to.
        by: `"file"`, or `"package"` to keep each top-level package or module together.
        fractions: Expected shares of train, valid and test.
        seed: Seed.

    Returns:
        `"train"`, `"valid"` or `"test"`.

    Raises:
        ValueError: If `by` is unknown or `fractions` is not three shares of 1.
    """
    one_of("by", by, _BY)
    fractions = sequence("fractions", fractions, "three shares that sum up to 1")
    fractions = [non_negative_number("fractions", share) for share in fractions]
    if len(fractions) != 3 or abs(sum(fractions) - 1) > 1e-6:
        raise ValueError(
            "Expected `fractions` to be three shares that sum up to 1. "
            f"Received: fractions={fractions}."
        )
    seed_number("seed", seed)
    path = pathlib.PurePath(as_path("filename", filename))
    instance("root", root, str | os.PathLike, "a path")
    if path.is_relative_to(root):
        path = path.relative_to(root)
    key = path.as_posix() if by == "file" else path.parts[0].removesuffix(".py")
    digest = hashlib.sha256(f"{seed}:{key}".encode(errors="surrogateescape")).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    if place < fractions[0]:
        return SPLITS[0]
    return SPLITS[1] if place < fractions[0] + fractions[1] else SPLITS[2]
