"""Files with program graphs or source code."""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from keras_bandgnn.checks import as_path, one_of, strings
from keras_bandgnn.graph import Graph
from keras_bandgnn.programs.encode import encode_program
from keras_bandgnn.programs.program_graph import ProgramGraph
from keras_bandgnn.programs.python_source.files import read_file
from keras_bandgnn.programs.python_source.listing import SPLITS, named_files, split_of
from keras_bandgnn.programs.varmisuse import read_varmisuse, varmisuse_split_files

MAX_BYTES = 1_000_000
_GRAPH_FILES = (".json", ".jsonl", ".gz")

Named = list[tuple[str, str]]


def find_programs(
    path: str | os.PathLike, exclude: Iterable[str] = (), by: str = "file"
) -> tuple[str, dict[str, Named]]:
    """Detect the type of input at a path, and the files of each split.

    Args:
        path: Python source (a file or folder), or files of Allamanis et al.: one
            file, a folder of them, or a folder with `graphs-train` and so on.
        exclude: Patterns of Python files and folders to skip.
        by: `"file"`, `"package"`, or `"none"` to put all source into the split "all".

    Returns:
        ("python" or "varmisuse", split -> [(path, name)]).

    Raises:
        FileNotFoundError: If there is nothing to read.
    """
    path = as_path("path", path)
    exclude = strings("exclude", exclude)
    one_of("by", by, ("file", "package", "none"))
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"Expected a file or folder at {path}. Received: no such path. Check it."
        )
    splits = {}
    for split in (*SPLITS, "testonly") if path.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):
            files = varmisuse_split_files(path, split)
            splits[split] = [(str(f), os.path.relpath(f, path)) for f in files]
    if splits:
        return "varmisuse", splits
    named = [] if path.name.endswith(_GRAPH_FILES) else named_files(path, exclude)
    entries = [path] if path.is_file() else sorted(path.iterdir())
    graphs = [f for f in entries if f.name.endswith(_GRAPH_FILES) and f.is_file()]
    # A folder of source code may also contain JSON files.
    if graphs and not named:
        return "varmisuse", {"all": [(str(f), f.name) for f in graphs]}
    if not named:
        raise FileNotFoundError(
            f"Expected Python files, or program graphs (.jsonl.gz, .json.gz), in "
            f"{path}. Received: none. Check the path."
        )
    if by == "none":
        return "python", {"all": named}
    return "python", _split(named, by)


def _split(named: Named, by: str) -> dict[str, Named]:
    """Split files; three files or packages are enough for three splits."""
    groups: dict[str, Named] = {}
    for file, name in named:
        group = name if by == "file" else name.split("/")[0].removesuffix(".py")
        groups.setdefault(group, []).append((file, name))
    names: dict[str, list[str]] = {split: [] for split in SPLITS}
    for group, files in groups.items():
        names[split_of(files[0][1], by=by)].append(group)
    for members in names.values():
        largest = max(names.values(), key=len)
        if not members and len(groups) >= len(SPLITS):
            # A few groups could all fall into one split by chance.
            members.append(largest.pop())
    return {
        split: [file for group in members for file in groups[group]]
        for split, members in names.items()
        if members
    }


def digest(files: Named, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a digest of inputs and options, to identify a job for resuming.

    Args:
        files: (path, name) pairs.
        options: JSON options.
    """
    total = hashlib.sha256()
    for path, name in files:
        total.update(f"{name}\0".encode(errors="surrogateescape"))
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                continue
            total.update(f"{os.path.getsize(path)}\0".encode())
            with open(path, "rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        except OSError:
            continue  # skipped when it is read
    return {"files": len(files), "sha256": total.hexdigest(), "options": dict(options)}


def read_programs(
    kind: str, path: str, name: str, options: Mapping[str, Any]
) -> tuple[list[ProgramGraph] | None, list[str]]:
    """Read the instances of one file.

    Args:
        kind: "python" or "varmisuse".
        path: The file.
        name: Its name for `info` and seeds.
        options: Options of `program_graphs`, for Python source.

    Returns:
        The instances, None if the file cannot be read, and the reasons for what was
        skipped.
    """
    if kind == "python":
        return read_file(path, name, MAX_BYTES, dict(options))
    reasons: list[str] = []
    try:
        programs = list(read_varmisuse(path, on_error="skip", report=reasons))
    except (OSError, ValueError) as error:
        return None, [str(error)]
    return programs, reasons


def read_encoded(
    kind: str,
    path: str,
    name: str,
    options: Mapping[str, Any],
    encoding: Mapping[str, Any],
) -> tuple[list[Graph] | None, list[str]]:
    """Read one file and encode its instances; see `read_programs`.

    Args:
        kind: "python" or "varmisuse".
        path: The file.
        name: Its name for `info` and seeds.
        options: Options of `program_graphs`, for Python source.
        encoding: Options of `encode_program`.
    """
    with naming(name):
        programs, reasons = read_programs(kind, path, name, options)
        if programs is None:
            return None, reasons
        return [encode_program(p.shuffled(), **encoding) for p in programs], reasons


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Add the name of a file to an unexpected error."""
    try:
        yield
    except Exception as error:
        raise RuntimeError(
            f"Expected to read and compile {name}. Received: {type(error).__name__}: "
            f"{error}. Skip this file: move it away, or pass it to --exclude (Python "
            "source)."
        ) from error
