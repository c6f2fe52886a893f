"""Reads and writes the variable-misuse files of Allamanis et al. (ICLR 2018)."""

import codecs
import gzip
import itertools
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from keras_bandgnn.checks import (
    as_path,
    boolean,
    existing_folder,
    instance,
    one_of,
    seed_number,
    string,
)
from keras_bandgnn.data.files import atomic_write, json_text
from keras_bandgnn.data.reading import open_unpacked, parse_json
from keras_bandgnn.graph import Graph
from keras_bandgnn.programs.encode import encode_program
from keras_bandgnn.programs.node_text import KEYWORDS
from keras_bandgnn.programs.program_graph import ProgramGraph
from keras_bandgnn.programs.varmisuse_sample import from_sample, to_sample

_CHUNK = 2**20


def samples(file: Path) -> Iterator[tuple[str, Any]]:
    """Yield each sample with its location, or a ValueError for an invalid one."""
    where = "line 1"
    try:
        with open_unpacked(file) as stream:
            head = stream.peek(64).lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
            for where, sample in _array(stream) if head == b"[" else _lines(stream):
                yield where, sample
    except (ValueError, OSError) as error:
        packed = file.suffix == ".gz"
        what = "a complete gzip file" if packed else "a file of UTF-8 text"
        after = f"an unreadable file after {where} ({type(error).__name__}: {error})"
        message = f"Expected {what}. Received: {after}. Copy or download it again."
        yield where, ValueError(message)


def _not_json(error: Exception) -> ValueError:
    return ValueError(
        f"Expected valid JSON. Received: {error}. Copy or download the file again."
    )


def _lines(stream: BinaryIO) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        try:
            sample = parse_json(line)
        except ValueError as error:
            sample = _not_json(error)
        yield f"line {number}", sample


def _array(stream: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Parse an array element by element, with about one element in memory."""
    text = _Text(stream)
    text.take()  # the opening bracket
    if text.peek() == "]":
        return
    for position in itertools.count():
        where = f"array position {position}"
        try:
            sample = text.value()
        except (ValueError, RecursionError) as error:
            yield where, _not_json(error)
            return
        yield where, sample
        if (mark := text.take()) != ",":
            break
    if mark != "]":
        received = repr(mark) if mark else "the end of the file"
        yield where, _not_json(ValueError(f"{received} instead of ',' or ']' after it"))
    elif tail := text.peek():
        yield where, _not_json(ValueError(f"{tail!r} after the end of the array"))


class _Text:
    """Decoded text of a stream, read in chunks and parsed incrementally."""

    def __init__(self, stream: BinaryIO):
        self._stream = stream
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._parse = json.JSONDecoder().raw_decode
        self._text = ""
        self._at = 0
        self._ended = False

    def _grow(self) -> None:
        # Doubles the text, so that long values take few attempts.
        size = max(_CHUNK, len(self._text) - self._at)
        data = self._stream.read(size)
        self._ended = not data
        self._text = self._text[self._at :] + self._decode(data, self._ended)
        self._at = 0

    def peek(self) -> str:
        """Return the next character that is not whitespace; empty at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in " \t\r\n":
                    return self._text[self._at]
                self._at += 1
            if self._ended:
                return ""
            self._grow()

    def take(self) -> str:
        """Like `peek`, and consumes the character."""
        character = self.peek()
        self._at += len(character)
        return character

    def value(self) -> Any:
        """Parse the next value, reading more text until it is complete."""
        self.peek()
        while True:
            try:
                value, end = self._parse(self._text, self._at)
                # A number at the end of the text may be incomplete.
                if end < len(self._text) or self._ended:
                    self._at = end
                    return value
            except ValueError:
                if self._ended:
                    raise
            self._grow()


_SUFFIXES = (".json", ".jsonl", ".gz")

Paths = str | os.PathLike | Iterable[str | os.PathLike]


def read_varmisuse(
    path: Paths, *, on_error: str = "raise", report: list[str] | None = None
) -> Iterator[ProgramGraph]:
    """Read program graphs one at a time.

    A file contains a JSON array of samples (as in the original archive) or one sample
    per line, compressed (`.gz`) or not; its first character determines the format.
    Samples are parsed lazily. The slot has the kind `"Slot"`, candidates have
    `"Candidate"`, sources of Child edges their label, and other nodes a token class:
    `"Identifier"`, `"Keyword"`, `"Number"`, `"String"`, `"Operator"`. `info` has
    `filename`, `slotTokenIdx` and `variable`, the correct name. `EdgeValues` of later
    data sets are ignored.

    Args:
        path: A file, a directory (all its `.json`, `.jsonl` and `.gz` files, sorted
            by name), or several of these.
        on_error: `"raise"`, or `"skip"` to skip invalid samples.
        report: With `"skip"`, called with one message per skipped sample; each is a
            warning if omitted.

    Raises:
        ValueError: For an invalid file or sample; the message names file, line (or
            position in the array) and key.
        FileNotFoundError: If there is no such file.

    Example:
    >>> from keras_bandgnn.programs import program_graphs
    >>> source = "def area(width, height): return width * height"
    >>> write_varmisuse("graphs.jsonl.gz", program_graphs(source))
    >>> for program in read_varmisuse("graphs.jsonl.gz"):
    ...     print(program.info["filename"], program.info["variable"])
    <source> width
    <source> height
    """
    return read_samples(path, from_sample, on_error, report)


def write_varmisuse(
    path: str | os.PathLike,
    programs: Iterable[ProgramGraph],
    *,
    correct_first: bool = False,
) -> None:
    """Write program graphs in the same format; equal graphs give equal bytes.

    `.json` and `.json.gz` files contain an array, `.jsonl` and `.jsonl.gz` files one
    sample per line. The file appears only when it is complete. Two extra keys, which
    other readers ignore, store values outside of the format: `Info` for metadata, and
    `ContextGraph.NodeKinds` for kinds that do not follow from the labels.

    Args:
        path: File to write; its suffix determines the format.
        programs: The program graphs; their correct candidates must be known.
        correct_first: Whether to list the correct candidate first, as the original
            files do, instead of keeping the order.

    Raises:
        ValueError: If the suffix is unknown or a program has no correct candidate.
    """
    path = as_path("path", path)
    instance("programs", programs, Iterable, "an iterable of ProgramGraph")
    boolean("correct_first", correct_first)
    plain = path.name.removesuffix(".gz")
    lines = plain.endswith(".jsonl")
    if not lines and not plain.endswith(".json"):
        raise ValueError(
            "Expected a file name that ends in .json, .jsonl, .json.gz or .jsonl.gz. "
            f"Received: {path.name}. Rename the file."
        )
    with atomic_write(path) as file:
        if plain == path.name:
            _write(file, programs, lines, correct_first)
        else:  # no name and time in the header, for reproducible bytes
            with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
                _write(packed, programs, lines, correct_first)


def varmisuse_split_files(root: str | os.PathLike, split: str) -> list[Path]:
    """Return the files of a split: `<root>/graphs-<split>/` or one folder deeper.

    Args:
        root: Folder of the data set, or of its projects.
        split: `"train"`, `"valid"`, `"test"` or `"testonly"`.

    Raises:
        FileNotFoundError: If there are none.
    """
    root = as_path("root", root)
    string("split", split)
    name = f"graphs-{split}"
    folders = (
        [root / name] if (root / name).is_dir() else sorted(root.glob(f"*/{name}"))
    )
    if files := [file for folder in folders for file in sample_files(folder)]:
        return files
    names = sorted({f.name for p in ("graphs*", "*/graphs*") for f in root.glob(p)})
    raise FileNotFoundError(
        f"Expected files in {root / name} or in {root / '*' / name}. "
        f"Received: {names or 'no such folders'}. Check the root and the split."
    )


def load_varmisuse(
    path: str | os.PathLike,
    split: str,
    *,
    seed: int = 0,
    on_error: str = "raise",
    report: list[str] | None = None,
    language: str = "csharp",
    **encode: Callable | None,
) -> Iterator[Graph]:
    """Read and encode a split, one graph at a time.

    Args:
        path: Folder of the data set, as in `varmisuse_split_files`.
        split: `"train"`, `"valid"`, `"test"` or `"testonly"`.
        seed: Seed of the candidates' order, combined with each graph's position.
        on_error: As in `read_varmisuse`.
        report: As in `read_varmisuse`.
        language: As in `encode_program`.
        **encode: Further options of `encode_program`.
    """
    path = existing_folder("path", path)
    seed_number("seed", seed)
    one_of("language", language, tuple(KEYWORDS))
    one_of("on_error", on_error, ("raise", "skip"))
    files = varmisuse_split_files(path, split)
    programs = read_varmisuse(files, on_error=on_error, report=report)
    return (
        encode_program(program, language=language, seed=(seed, index), **encode)
        for index, program in enumerate(programs)
    )


def sample_files(path: Paths) -> list[Path]:
    """Return the files at paths, those of a folder sorted by name."""
    if isinstance(path, Iterable) and not isinstance(path, str | bytes | Mapping):
        return [file for entry in path for file in sample_files(entry)]
    path = as_path("path", path)
    if os.path.isdir(path):
        return sorted(f for f in path.iterdir() if f.name.endswith(_SUFFIXES))
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"Expected `path` to be a file or folder. Received: {path}, which does not "
            "exist. Check the path."
        )
    return [path]


def read_samples(
    path: Paths, convert: Callable, on_error: str, report: list[str] | None
) -> Iterator[Any]:
    """Return `convert(sample, where)` of each sample; see `read_varmisuse`."""
    one_of("on_error", on_error, ("raise", "skip"))
    return _converted(sample_files(path), convert, on_error == "skip", report)


def _converted(
    files: list[Path], convert: Callable, skip: bool, report: list[str] | None
) -> Iterator[Any]:
    for file in files:
        for where, sample in samples(file):
            where = f"{file}, {where}"
            try:
                if isinstance(sample, Exception):
                    raise ValueError(f"{where}: {sample}") from sample
                item = convert(sample, where)
            except ValueError as error:
                if not skip:
                    raise
                if report is None:
                    warnings.warn(f"Skipped: {error}", stacklevel=3)
                else:
                    report.append(str(error))
                continue
            yield item


def _write(
    file: Any, programs: Iterable[ProgramGraph], lines: bool, correct_first: bool
) -> None:
    before, between, after = ("", "", "\n") if lines else ("[", ",\n", "")
    file.write(before.encode())
    for index, program in enumerate(programs):
        what = f"program {index}"
        instance(f"programs[{index}]", program, ProgramGraph, "a ProgramGraph")
        sample = to_sample(program, what, correct_first)
        head = between if index else ""
        file.write((head + json_text(what, sample) + after).encode())
    file.write(b"" if lines else b"]\n")
