"""`Dataset`, the description of a data set, and `locate`, which finds its files."""

import fnmatch
import os
import urllib.error
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from keras_bandgnn import config
from keras_bandgnn.data.datasets.archives import is_archive, unpack
from keras_bandgnn.data.datasets.download import Remote, fetch, verify

_DEPTH = 3


@dataclass(frozen=True)
class Form:
    """A file format of a data set.

    Attributes:
        reader: `"module:function"` of its reader in this package. It is called with
            the paths by role, the options and, if it names them, `split` and
            `progress` of `load`.
        files: Pattern of each required file, by its role for the reader. A pattern may
            contain folders.
        options: Options of the reader for this data set.
    """

    reader: str
    files: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Dataset:
    """Description of a data set.

    Attributes:
        name: Name for `load`.
        summary: One-line description.
        graphs: Number and size of the graphs, as text.
        task: The prediction task.
        licence: The published licence, or where to find it.
        forms: Supported file formats; the first one whose files exist is used.
        downloads: The official files; together they form one of the formats.
        refused: Why common files are not supported, by pattern.
    """

    name: str
    summary: str
    graphs: str
    task: str
    licence: str
    forms: tuple[Form, ...]
    downloads: tuple[Remote, ...] = ()
    refused: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


Match = tuple[Form, dict[str, Path]]


def cache_folder(dataset: Dataset, cache: str | os.PathLike | None) -> Path:
    """Return the cache folder of a data set.

    Args:
        dataset: The data set.
        cache: Folder of all data sets; `config.cache_folder()` if omitted.

    Example:
    >>> toy = Dataset("tu:TOY", "a toy", "1", "none", "none", forms=())
    >>> cache_folder(toy, "data").as_posix()
    'data/tu_TOY'
    """
    root = Path(cache).expanduser() if cache else config.cache_folder()
    return root / dataset.name.replace(":", "_")


def locate(
    dataset: Dataset,
    path: str | os.PathLike | None = None,
    cache: str | os.PathLike | None = None,
    download: bool = True,
    progress: bool = True,
) -> Match:
    """Find the files of a data set, downloading them if necessary.

    Args:
        dataset: The data set.
        path: A file, an archive, or a folder; the cache if omitted.
        cache: As in `cache_folder`.
        download: Whether to download missing files.
        progress: Whether to show a progress bar.

    Returns:
        The format, and the path of each of its files by role.

    Raises:
        FileNotFoundError: If files are missing and may not be downloaded.
        ConnectionError: If they cannot be downloaded.
        ValueError: If only unsupported files exist, or a checksum differs.
    """
    folder = cache_folder(dataset, cache)
    if path is not None:
        return _from_path(dataset, Path(path).expanduser(), folder)
    match = _search(dataset, [folder, *_unpacked(dataset, folder, folder)])
    downloaded = [r for r in dataset.downloads if (folder / r.name).exists()]
    incomplete = 0 < len(downloaded) < len(dataset.downloads)
    if download and dataset.downloads and (match is None or incomplete):
        _raise_if_refused(dataset, folder)
        _download(dataset, folder, progress)
        match = _search(dataset, [folder, *_unpacked(dataset, folder, folder)])
    if match is None:
        _raise_if_refused(dataset, folder)
        reason = "no such files"
        if not dataset.downloads:
            reason += ", and none can be downloaded"
        raise FileNotFoundError(_missing(dataset, folder, reason))
    for file in match[1].values():
        if file.is_file():
            verify(file)
    return match


def _from_path(dataset: Dataset, path: Path, folder: Path) -> Match:
    if not path.exists():
        raise FileNotFoundError(
            f"Expected a file or folder at path={str(path)!r}. Received: nothing is "
            f"there.\n{_supported_files(dataset)}"
        )
    if path.is_dir():
        match = _search(dataset, [path, *_unpacked(dataset, path, folder)])
    else:
        match = _match_file(dataset, path)
        if match is None and is_archive(path):
            _raise_if_refused(dataset, path)
            match = _search(dataset, [unpack(path, folder)])
    if match is not None:
        return match
    _raise_if_refused(dataset, path)
    raise FileNotFoundError(
        f"Expected files of {dataset.name!r} at path={str(path)!r}. Received: none "
        f"in a supported format.\n{_supported_files(dataset)}"
    )


def _folders(folder: Path) -> Iterator[Path]:
    """Yield the folder and its subfolders, in breadth-first order."""
    level = [folder] if folder.is_dir() else []
    for _ in range(_DEPTH + 1):
        yield from level
        level = [
            child
            for parent in level
            for child in sorted(parent.iterdir())
            if child.is_dir() and not child.name.startswith(".")
        ]


def _search(dataset: Dataset, roots: Sequence[Path]) -> Match | None:
    folders = [folder for root in roots for folder in _folders(root)]
    # The files of a format are in one folder, or in one folder per archive.
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
    matches = (min(folder.glob(pattern), default=None) for folder in folders)
    return next((path for path in matches if path), None)


def _match_file(dataset: Dataset, path: Path) -> Match | None:
    """Return the format of a single file, by its name or its suffix."""
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
    """Unpack the official archives in a folder."""
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
                reason = f"the server responded with {error.code} {error.reason}"
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
                        f"Received: {file}. {why}\n{_supported_files(dataset)}"
                    )


def _supported_files(dataset: Dataset) -> str:
    lines = ["Supported files, one of:"]
    lines += [f"  {', '.join(form.files.values())}" for form in dataset.forms]
    if dataset.downloads:
        lines.append("Official addresses:")
        lines += [f"  {r.url}  ->  {r.name}" for r in dataset.downloads]
    return "\n".join(lines)


def _missing(dataset: Dataset, folder: Path, reason: str) -> str:
    return (
        f"Expected the files of {dataset.name!r} in {folder}. Received: {reason}.\n"
        f"{_supported_files(dataset)}\n"
        f"Put the files into {folder}, or pass path= with their file or folder."
    )
