"""`Dataset`: what is known about a data set; `locate`: where its files are."""

import fnmatch
import os
import urllib.error
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from keras_bandgnn.data.datasets.archives import is_archive, unpack
from keras_bandgnn.data.datasets.download import Remote, fetch, verify

_DEPTH = 3


@dataclass(frozen=True)
class Form:
    """A form in which the files of a data set come.

    Attributes:
        reader: `"module:function"` that reads it, a module of this package.
        files: Pattern of each file that must be there, by its role for the reader.
            A pattern may have folders.
        options: Options of the reader that this data set needs.
    """

    reader: str
    files: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Dataset:
    """What is known about a data set.

    Attributes:
        name: Its name for `load`.
        summary: What it is, in a line.
        graphs: How many graphs there are, and how large, in words.
        task: What is to be predicted.
        licence: Licence as published, or where it is said.
        forms: Forms in which its files are read; the first that is there is taken.
        downloads: The official files; together they make one of the forms.
        refused: Why files are not read although people have them, by pattern.
    """

    name: str
    summary: str
    graphs: str
    task: str
    licence: str
    forms: tuple[Form, ...]
    downloads: tuple[Remote, ...] = ()
    refused: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


Found = tuple[Form, dict[str, Path]]


def cache_folder(dataset: Dataset, cache: str | os.PathLike | None) -> Path:
    """Folder that the files of a data set are kept in.

    Args:
        dataset: The data set.
        cache: Folder of all data sets; `$KERAS_BANDGNN_DATA` or
            `~/.cache/keras_bandgnn` if omitted.

    Example:
    >>> toy = Dataset("tu:TOY", "a toy", "1", "none", "none", forms=())
    >>> cache_folder(toy, "data").as_posix()
    'data/tu_TOY'
    """
    root = cache or os.environ.get("KERAS_BANDGNN_DATA") or "~/.cache/keras_bandgnn"
    return Path(root).expanduser() / dataset.name.replace(":", "_")


def locate(
    dataset: Dataset,
    path: str | os.PathLike | None = None,
    cache: str | os.PathLike | None = None,
    download: bool = True,
    progress: bool = True,
) -> Found:
    """Finds the files of a data set, downloading them where needed.

    Args:
        dataset: The data set.
        path: A file, an archive, or a folder; the cache if omitted.
        cache: As in `cache_folder`.
        download: Whether to download what the cache does not have.
        progress: Whether to draw a bar.

    Returns:
        The form, and the path of each of its files by role.

    Raises:
        FileNotFoundError: If the files are not there and may not be downloaded.
        ConnectionError: If they cannot be downloaded.
        ValueError: If only files that are refused are there, or a checksum differs.
    """
    folder = cache_folder(dataset, cache)
    if path is not None:
        return _from_path(dataset, Path(path).expanduser(), folder)
    found = _search(dataset, [folder, *_unpacked(dataset, folder, folder)])
    there = [r for r in dataset.downloads if (folder / r.name).exists()]
    broken_off = 0 < len(there) < len(dataset.downloads)
    if download and dataset.downloads and (found is None or broken_off):
        _raise_if_refused(dataset, folder)
        _download(dataset, folder, progress)
        found = _search(dataset, [folder, *_unpacked(dataset, folder, folder)])
    if found is None:
        _raise_if_refused(dataset, folder)
        reason = "they are not there"
        if not dataset.downloads:
            reason += ", and there is nothing to download"
        raise FileNotFoundError(_missing(dataset, folder, reason))
    for file in found[1].values():
        if file.is_file():
            verify(file)
    return found


def _from_path(dataset: Dataset, path: Path, folder: Path) -> Found:
    if not path.exists():
        raise FileNotFoundError(
            f"Expected a file or folder at path={str(path)!r}. Received: nothing is "
            f"there.\n{_wanted(dataset)}"
        )
    if path.is_dir():
        found = _search(dataset, [path, *_unpacked(dataset, path, folder)])
    else:
        found = _of_file(dataset, path)
        if found is None and is_archive(path):
            _raise_if_refused(dataset, path)
            found = _search(dataset, [unpack(path, folder)])
    if found is not None:
        return found
    _raise_if_refused(dataset, path)
    raise FileNotFoundError(
        f"Expected files of {dataset.name!r} at path={str(path)!r}. Received: none "
        f"of the forms that are read.\n{_wanted(dataset)}"
    )


def _folders(folder: Path) -> Iterator[Path]:
    """The folder and those below it, the shallow ones first."""
    level = [folder] if folder.is_dir() else []
    for _ in range(_DEPTH + 1):
        yield from level
        level = [
            child
            for parent in level
            for child in sorted(parent.iterdir())
            if child.is_dir() and not child.name.startswith(".")
        ]


def _search(dataset: Dataset, roots: Sequence[Path]) -> Found | None:
    folders = [folder for root in roots for folder in _folders(root)]
    # Files of one form lie side by side, or each where its own archive put it.
    for groups in ([[folder] for folder in folders], [folders]):
        for form in dataset.forms:
            for group in groups:
                files = {
                    role: _first(group, pattern) for role, pattern in form.files.items()
                }
                if all(files.values()):
                    return form, files
    return None


def _first(folders: Iterable[Path], pattern: str) -> Path | None:
    found = (min(folder.glob(pattern), default=None) for folder in folders)
    return next((path for path in found if path), None)


def _of_file(dataset: Dataset, path: Path) -> Found | None:
    """The form that a single file belongs to, by its name, else by its suffix."""
    for form in dataset.forms:
        if any(fnmatch.fnmatch(path.name, p) for p in form.files.values()):
            files = {
                role: path
                if fnmatch.fnmatch(path.name, pattern)
                else _first([path.parent], pattern)
                for role, pattern in form.files.items()
            }
            if all(files.values()):
                return form, files
    for form in dataset.forms:
        if len(form.files) == 1:
            ((role, pattern),) = form.files.items()
            suffix = pattern[pattern.rindex("*") + 1 :] if "*" in pattern else ""
            if path.name.endswith(suffix or Path(pattern).suffix):
                return form, {role: path}
    return None


def _unpacked(dataset: Dataset, folder: Path, into: Path) -> list[Path]:
    """Unpacks the official archives that are in a folder."""
    archives = [folder / remote.name for remote in dataset.downloads]
    archives = [path for path in archives if is_archive(path) and path.exists()]
    for path in archives:
        verify(path)
    return [unpack(path, into) for path in archives]


def _download(dataset: Dataset, folder: Path, progress: bool) -> None:
    for remote in dataset.downloads:
        if (folder / remote.name).exists():
            continue
        try:
            fetch(remote, folder, progress)
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError):
                reason = f"the server answers {error.code} {error.reason}"
                error.close()
            else:
                reason = str(getattr(error, "reason", None) or error)
            reason = f"{remote.url}: {reason}"
            raise ConnectionError(_missing(dataset, folder, reason)) from error


def _raise_if_refused(dataset: Dataset, path: Path) -> None:
    folders = [path.parent] if path.is_file() else list(_folders(path))
    for pattern, why in dataset.refused.items():
        for folder in folders:
            for file in folder.glob(pattern):
                if path.is_dir() or file == path:
                    raise ValueError(
                        f"Expected files of {dataset.name!r} that are plain data. "
                        f"Received: {file}. {why}\n{_wanted(dataset)}"
                    )


def _wanted(dataset: Dataset) -> str:
    lines = ["Files that are read, in any of these forms:"]
    lines += [f"  {', '.join(form.files.values())}" for form in dataset.forms]
    if dataset.downloads:
        lines.append("Official addresses:")
        lines += [f"  {r.url}  ->  {r.name}" for r in dataset.downloads]
    return "\n".join(lines)


def _missing(dataset: Dataset, folder: Path, reason: str) -> str:
    return (
        f"Expected the files of {dataset.name!r} in {folder}. Received: {reason}.\n"
        f"{_wanted(dataset)}\n"
        f"Put the files into {folder}, or pass path= with the file or folder that "
        "has them."
    )
