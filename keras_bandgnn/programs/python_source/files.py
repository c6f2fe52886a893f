"""`read_tree`: instances of many files, by several processes."""

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
from keras_bandgnn.programs.workers import ordered_map

DIED = (None, ["its process died"])

_Outcome = tuple[list[ProgramGraph] | None, list[str]]


def read_file(path: str, name: str, max_bytes: int, options: dict) -> _Outcome:
    """Reads one file.

    Args:
        path: The file.
        name: Its name for `info` and seeds.
        max_bytes: Larger files are not read.
        options: Options of `program_graphs`.

    Returns:
        The instances, None if the file cannot be used, and reasons.
    """
    reasons: list[str] = []
    try:
        source = read_source(path, max_bytes)
        graphs = program_graphs(source, name, on_skip=reasons.append, **options)
    except Exception as error:
        # Whatever is odd about one file must not end the reading of a tree.
        return None, [reason_of(error)]
    return graphs, reasons


def reason_of(error: Exception) -> str:
    """Why a file was left out, on one line."""
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
    """Reads files and folders of Python source in sorted order.

    What comes out does not depend on the number of processes. A file that cannot be
    used (it does not parse, has an unknown encoding, is too large or no regular file)
    is reported and left out. The source is never run.

    With several processes, a script must call this under
    `if __name__ == "__main__":`, for they are spawned.

    Args:
        paths: Files and folders, see `python_files`.
        processes: Number of processes; one for each core if omitted. With 1, files
            are read in this process.
        seed: Seed. A file's instances depend on it, on the file's path inside the
            folder searched, and on the file's content alone.
        max_instances: At most so many instances of a file; None for all.
        max_candidates: See `program_graphs`.
        steps: See `program_graphs`.
        max_nodes: See `program_graphs`.
        context: See `program_graphs`.
        exclude: Patterns of files and folders to leave out, see `python_files`.
        max_bytes: Leave out larger files.
        on_skip: Called with (path, reason) for each file left out and for each
            function that is too large.
        progress: Called with (files done, files in all) after each file.

    Yields:
        (path, instances) of each file that was read, also if it has no instance. In
        `info` the `filename` is the path inside the folder searched.

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
    program_graphs("", **options)  # Refuses bad arguments before any file is read.
    if processes is None:
        processes = os.cpu_count() or 1
    positive_int("processes", processes)
    positive_int("max_bytes", max_bytes, maximum=2**62)
    optional(function, "on_skip", on_skip)
    optional(function, "progress", progress)
    named = named_files(paths, exclude)
    jobs = [(path, name, max_bytes, options) for path, name in named]
    outcomes = ordered_map(read_file, jobs, processes, DIED)
    return _reported(named, outcomes, on_skip, progress)


def _reported(
    named: list[tuple[str, str]],
    outcomes: Iterator[_Outcome],
    on_skip: Callable[[str, str], None] | None,
    progress: Callable[[int, int], None] | None,
) -> Iterator[tuple[str, list[ProgramGraph]]]:
    for done, ((path, _), (graphs, reasons)) in enumerate(
        zip(named, outcomes, strict=True), start=1
    ):
        for reason in reasons:
            if on_skip is not None:
                on_skip(path, reason)
        if progress is not None:
            progress(done, len(named))
        if graphs is not None:
            yield path, graphs
