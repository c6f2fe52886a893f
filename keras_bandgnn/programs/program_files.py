"""Files that hold program graphs or the source to make them from."""

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
    """Finds out what a path holds and which files belong to which split.

    Args:
        path: Python source (a file or folder), or files of Allamanis et al.: one
            file, a folder of them, or a folder with `graphs-train` and so on.
        exclude: Patterns of Python files and folders to leave out.
        by: `"file"`, `"package"`, or `"none"` to put all source into split "all".

    Returns:
        ("python" or "varmisuse", split -> [(path, name)]).

    Raises:
        FileNotFoundError: If there is nothing to read.
    """
    path = as_path("path", path)
    exclude = strings("exclude", exclude)
    one_of("by", by, ("file", "package", "none"))
    if not path.exists():
        raise FileNotFoundError(
            f"Expected a file or folder at {path}. Received: nothing is there."
        )
    found = {}
    for split in (*SPLITS, "testonly") if path.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):
            files = varmisuse_split_files(path, split)
            found[split] = [(str(f), os.path.relpath(f, path)) for f in files]
    if found:
        return "varmisuse", found
    named = [] if path.name.endswith(_GRAPH_FILES) else named_files(path, exclude)
    here = [path] if path.is_file() else sorted(path.iterdir())
    graphs = [f for f in here if f.name.endswith(_GRAPH_FILES) and f.is_file()]
    # A folder of source code may hold JSON as well.
    if graphs and not named:
        return "varmisuse", {"all": [(str(f), f.name) for f in graphs]}
    if not named:
        raise FileNotFoundError(
            f"Expected Python files, or program graphs (.jsonl.gz, .json.gz), in "
            f"{path}. Received: none."
        )
    if by == "none":
        return "python", {"all": named}
    return "python", _split(named, by)


def _split(named: Named, by: str) -> dict[str, Named]:
    """Files of each split; three files or packages are enough for three splits."""
    groups: dict[str, Named] = {}
    for file, name in named:
        group = name if by == "file" else name.split("/")[0].removesuffix(".py")
        groups.setdefault(group, []).append((file, name))
    found: dict[str, list[str]] = {split: [] for split in SPLITS}
    for group, files in groups.items():
        found[split_of(files[0][1], by=by)].append(group)
    for members in found.values():
        largest = max(found.values(), key=len)
        if not members and len(groups) >= len(SPLITS):
            # Few groups can all fall into one split by chance.
            members.append(largest.pop())
    return {
        split: [file for group in members for file in groups[group]]
        for split, members in found.items()
        if members
    }


def digest(files: Named, options: Mapping[str, Any]) -> dict[str, Any]:
    """Describes inputs and options by their content, for resuming a job.

    Args:
        files: (path, name) pairs.
        options: JSON-like options.
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
            continue  # It is left out when its turn to be read comes.
    return {"files": len(files), "sha256": total.hexdigest(), "options": dict(options)}


def read_programs(
    kind: str, path: str, name: str, options: Mapping[str, Any]
) -> tuple[list[ProgramGraph] | None, list[str]]:
    """Reads the instances of one file.

    Args:
        kind: "python" or "varmisuse".
        path: The file.
        name: Its name for `info` and seeds.
        options: Options of `program_graphs`, for Python source.

    Returns:
        (instances, None if the file cannot be used; reasons for what was left out).
    """
    if kind == "python":
        return read_file(path, name, MAX_BYTES, dict(options))
    reasons: list[str] = []
    try:
        found = list(read_varmisuse(path, on_error="skip", report=reasons))
    except (OSError, ValueError) as error:
        return None, [str(error)]
    return found, reasons


def read_encoded(
    kind: str,
    path: str,
    name: str,
    options: Mapping[str, Any],
    encoding: Mapping[str, Any],
) -> tuple[list[Graph] | None, list[str]]:
    """Reads one file and encodes its instances; see `read_programs`.

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
    """Adds the name of a file to an error that nobody foresaw."""
    try:
        yield
    except Exception as error:
        raise RuntimeError(
            f"Expected to read and compile {name}. Received: {type(error).__name__}: "
            f"{error}. Leave this file out: move it away, or name it after --exclude "
            "(Python source)."
        ) from error
