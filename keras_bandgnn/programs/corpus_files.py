"""The files of a corpus: functions of many packages, a file for each package."""

import gzip
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_bandgnn.checks import existing_folder, one_of, strings
from keras_bandgnn.data.files import atomic_write, json_text
from keras_bandgnn.data.reading import (
    open_unpacked,
    parse_json,
    read_json,
    reading,
    refuse_file,
)
from keras_bandgnn.programs.function_source import Signatures
from keras_bandgnn.programs.python_source.listing import SPLITS

SUMMARY = "corpus.json"
_SUMMARY = {"name": str, "version": str, "licence": str, "split": str}
_SUMMARY |= {"kept": int, "kept_lines": int}
_PACKAGE = {"package": str, "version": str, "licence": str}
_MODULE = {
    "path": str,
    "lines": int,
    "imports": dict,
    "variables": list,
    "classes": dict,
    "signatures": dict,
    "functions": list,
}
_FUNCTION = {"name": str, "line": int, "source": str}


@dataclass(frozen=True)
class CorpusFunction:
    """A function of a corpus and the names that it may refer to.

    Attributes:
        name: Its qualified name, such as `Cache.get`.
        line: Its first line in the file, from 1; a decorator counts.
        source: Its lines, indented as in the file.
        module: Its module: `path`, `imports` (bound name -> what it stands for),
            `variables`, `classes` (name -> `bases` and `attributes`) and `signatures`
            (name -> names of parameters).
        package: Its package: `package`, `version`, `licence`, and `signatures`, those
            of all modules by their path.
    """

    name: str
    line: int
    source: str
    module: Mapping[str, Any]
    package: Mapping[str, Any]


def write_lines(path: Path, values: Iterable[Any]) -> None:
    """Write JSON lines, compressed; the bytes depend only on the values."""
    with atomic_write(path) as file:
        with gzip.GzipFile("", "wb", 6, fileobj=file, mtime=0) as packed:
            for value in values:
                packed.write(json_text(path.name, value).encode() + b"\n")


def read_lines(path: Path) -> Iterator[dict]:
    """Yield the header and the modules of a package's file.

    Raises:
        ValueError: If the file is damaged, or a line has another form.
    """
    with reading(path, what="to be a file of a corpus"), open_unpacked(path) as stream:
        form = _PACKAGE
        for number, line in enumerate(stream, start=1):
            value = parse_json(line)
            _check(path, f"line {number}", value, form)
            for function in value.get("functions", ()):
                _check(path, f"line {number}, a function", function, _FUNCTION)
            yield value
            form = _MODULE
        if form is _PACKAGE:
            refuse_file(path, "to begin with a package", "an empty file")


def _check(path: Path, where: str, value: Any, form: Mapping[str, type]) -> None:
    kinds = {k: type(v) for k, v in value.items()} if isinstance(value, dict) else {}
    wrong = [name for name, kind in form.items() if kinds.get(name) is not kind]
    if wrong:
        expected = f"to have {', '.join(form)} in {where}"
        refuse_file(path, expected, f"{', '.join(wrong)} missing or of another type")


def read_corpus(
    path: str | os.PathLike, split: str, packages: Iterable[str] | None = None
) -> Iterator[CorpusFunction]:
    """Yield the functions of a split, package by package.

    Memory is that of one package.

    Args:
        path: A folder that `examples.corpora` wrote.
        split: `"train"`, `"valid"` or `"test"`.
        packages: Names of the packages to read, in this order; all of the split if
            omitted. `corpus_packages` lists them.

    Raises:
        FileNotFoundError: If the corpus is not finished, or a file is missing.
        ValueError: If a file is damaged.

    Example:
    >>> for function in read_corpus("corpus", "train"):  # doctest: +SKIP
    ...     print(function.package["package"], function.name)
    """
    folder = existing_folder("path", path)
    files = {
        package["name"]: folder / package["file"]
        for package in corpus_packages(folder, split)
    }
    names = list(files) if packages is None else strings("packages", packages)
    if unknown := sorted(set(names) - set(files)):
        raise ValueError(
            f"Expected packages of the split {split!r}. Received: {unknown}. "
            f"It has {len(files)}, such as {list(files)[:3]}."
        )
    return _functions([files[name] for name in names])


def corpus_packages(path: str | os.PathLike, split: str) -> list[dict]:
    """Return the summaries of the packages of a split that have functions.

    Args:
        path: See `read_corpus`.
        split: See `read_corpus`.

    Returns:
        For each package `name`, `version`, `licence`, `kept` (its number of functions),
        `kept_lines`, and others.

    Raises:
        FileNotFoundError: If the corpus is not finished.
        ValueError: If its summary is damaged.
    """
    folder = existing_folder("path", path)
    one_of("split", split, SPLITS)
    summary = folder / SUMMARY
    if not summary.is_file():
        raise FileNotFoundError(
            f"Expected a finished corpus in {folder}. Received: no {SUMMARY}. Run "
            "python -m examples.corpora again with the same options; it resumes."
        )
    packages = []
    with reading(summary, what="to be the summary of a corpus"):
        for package in read_json(summary, dict)["packages"]:
            name = package["file"]
            if name:
                _check(summary, "a package", package, _SUMMARY)
            if package["split"] == split and name:
                # Only names that the command writes: nothing outside of the folder.
                if Path(name).parts[:-1] != (split,) or Path(name).is_absolute():
                    refuse_file(summary, f"to name files in {split}/", name)
                packages.append(package)
    return packages


def _functions(files: list[Path]) -> Iterator[CorpusFunction]:
    for path in files:
        package, *modules = read_lines(path)
        signatures = {module["path"]: module["signatures"] for module in modules}
        package = {**package, "signatures": signatures}
        for module in modules:
            functions = module.pop("functions")
            module["signatures"] = Signatures(module["signatures"])
            for item in functions:
                yield CorpusFunction(
                    item["name"], item["line"], item["source"], module, package
                )
