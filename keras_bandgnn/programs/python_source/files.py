"""`read_tree`: instances from many files, with several processes."""

import os
from collections.abc import Callable, Iterable, Iterator

from keras_bandgnn.checks import function, optional, positive_int
from keras_bandgnn.programs.program_graph import ProgramGraph
from keras_bandgnn.programs.python_source.instances import program_graphs
from keras_bandgnn.programs.python_source.listing import (
    PathLike,
    named_files,
    read_source,
)
from keras_bandgnn.programs.python_source.tokens import NewerSyntax
from keras_bandgnn.workers import ordered_map

DIED = (None, ["its process died"])

_Outcome = tuple[list[ProgramGraph] | None, list[str]]


def read_file(path: str, name: str, max_bytes: int, options: dict) -> _Outcome:
    """Read one file.

    Args:
        path: The file.
        name: Its name for `info` and seeds.
        max_bytes: Larger files are skipped.
        options: Options of `program_graphs`.

    Returns:
        The instances, None if the file cannot be read, and reasons.
    """
    reasons: list[str] = []
    try:
        source = read_source(path, max_bytes)
        graphs = program_graphs(source, name, on_skip=reasons.append, **options)
    except Exception as error:
        # An unexpected error in one file must not abort the whole tree.
        return None, [reason_of(error)]
    return graphs, reasons


def reason_of(error: Exception) -> str:
    """Return why a file was skipped, in one line."""
    if isinstance(error, NewerSyntax):
        return str(error)
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}".removesuffix(": ")


def read_tree(
    paths: PathLike | Iterable[PathLike],
    *,
    processes: int | None = None,
    seed: int = 0,
    max_instances: int | None = 20,
    max_candidates: int = 10,
    steps: int = 8,
    max_nodes: int | None = None,
    context: str = "function",
    exclude: Iterable[str] = (),
    max_bytes: int = 1_000_000,
    on_skip: Callable[[str, str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[tuple[str, list[ProgramGraph]]]:
    """Read files and folders of Python source in sorted order.

    The result does not depend on the number of processes. A file that cannot be used
    (invalid syntax, unknown encoding, too large, not a regular file) is reported and
    skipped. The source is never executed.

    Args:
        paths: Files and folders, see `python_files`.
        processes: Number of processes; one per core if omitted. With 1, files are read
            in this process.
        seed: Seed. A file's instances depend only on the seed, the file's path inside
            the searched folder, and its content.
        max_instances: Maximum number of instances per file, at least 0; None for all.
        max_candidates: See `program_graphs`.
        steps: See `program_graphs`.
        max_nodes: See `program_graphs`.
        context: See `program_graphs`.
        exclude: Patterns of files and folders to skip, see `python_files`.
        max_bytes: Maximum size of a file; larger files are skipped.
        on_skip: Called with (path, reason) for each skipped file and each function that
            is too large.
        progress: Called with (files done, total files) after each file.

    Yields:
        (path, instances) of each file, even without instances. `info["filename"]` is
        the path inside the searched folder.

    Raises:
        FileNotFoundError: If one of `paths` does not exist.
        ValueError: For arguments out of range.
    """
    options = {
        "seed": seed,
        "max_instances": max_instances,
        "max_candidates": max_candidates,
        "steps": steps,
        "max_nodes": max_nodes,
        "context": context,
    }
    program_graphs("", **options)  # validates the options before reading files
    if processes is None:
        processes = os.cpu_count() or 1
    positive_int("processes", processes)
    positive_int("max_bytes", max_bytes, maximum=2**62)
    optional(function, "on_skip", on_skip)
    optional(function, "progress", progress)
    files = named_files(paths, exclude)
    jobs = [(path, name, max_bytes, options) for path, name in files]
    outcomes = ordered_map(read_file, jobs, processes, DIED)
    return _reported(files, outcomes, on_skip, progress)


def _reported(
    files: list[tuple[str, str]],
    outcomes: Iterator[_Outcome],
    on_skip: Callable[[str, str], None] | None,
    progress: Callable[[int, int], None] | None,
) -> Iterator[tuple[str, list[ProgramGraph]]]:
    for done, ((path, _), (graphs, reasons)) in enumerate(
        zip(files, outcomes, strict=True), start=1
    ):
        for reason in reasons:
            if on_skip is not None:
                on_skip(path, reason)
        if progress is not None:
            progress(done, len(files))
        if graphs is not None:
            yield path, graphs
