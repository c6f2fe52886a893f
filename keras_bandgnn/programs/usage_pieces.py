"""Usages of a file in pieces of bounded size, as jobs of worker processes."""

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.graph import Graph
from keras_bandgnn.programs.encode import encode_program
from keras_bandgnn.programs.program_files import MAX_BYTES
from keras_bandgnn.programs.python_source.files import reason_of
from keras_bandgnn.programs.python_source.instances import InstanceBuilder, Usage
from keras_bandgnn.programs.python_source.listing import read_source
from keras_bandgnn.programs.python_source.tokens import NewerSyntax
from keras_bandgnn.programs.python_source.unit import SourceUnit
from keras_bandgnn.programs.varmisuse import read_varmisuse
from keras_bandgnn.workers import ordered_map

# Bytes of source per job: a few hundred usages, to bound memory use.
_JOB_BYTES = 16_384
# Nodes and usages of one piece: neighbours that share most of a function.
_PIECE_NODES = 8192
_PIECE_USAGES = 64
# A job ends after this many nodes. Every usage in a function has a graph of the whole
# function, so memory and time grow with the square of its usages.
_JOB_NODES = 1 << 19


@dataclasses.dataclass
class UsagePieces:
    """The result of a job.

    Args:
        pieces: Graphs of neighbouring usages, in source order; None if the file cannot
            be read.
        reasons: Why the file, or some of its usages, were skipped.
        unsampled: Usages skipped because of `max_instances`.
        too_large: Usages in functions that are too large.
        following: The usage at which to continue, if the job stopped early.
    """

    pieces: list[FlatGraphs] | None
    reasons: list[str] = dataclasses.field(default_factory=list)
    unsampled: int = 0
    too_large: int = 0
    following: int | None = None


def usage_jobs(
    kind: str,
    path: str,
    name: str,
    options: Mapping[str, Any],
    encoding: Mapping[str, Any],
    text: str | None = None,
) -> list[tuple]:
    """Return arguments of `read_usages`, with several jobs for long source.

    Args:
        kind: "python" or "varmisuse", from `find_programs`.
        path: The file.
        name: Its name for `info` and seeds.
        options: Options of `program_graphs`, for Python source.
        encoding: Options of `encode_program`.
        text: Source to read in place of the file.
    """
    options, encoding, size = dict(options), dict(encoding), 0
    if kind == "python" and options.get("max_instances") is None:
        # Reading the file reports an error.
        with contextlib.suppress(OSError):
            size = len(text) if text is not None else os.path.getsize(path)
    parts = 1 + min(size, MAX_BYTES) // _JOB_BYTES
    return [
        (kind, path, name, options, encoding, text, (part, parts))
        for part in range(parts)
    ]


def read_usages(
    kind: str,
    path: str,
    name: str,
    options: Mapping[str, Any],
    encoding: Mapping[str, Any],
    text: str | None,
    part: tuple[int, int],
    start: int = 0,
) -> UsagePieces:
    """Read and encode a part of the usages of a file, or the beginning of the part.

    See `usage_jobs` for the arguments; `part` is the index of a part and the number of
    parts, `start` the number of usages read by earlier calls, from `following`.
    """
    outcome = UsagePieces([])
    try:
        if kind == "python":
            source = read_source(path, MAX_BYTES) if text is None else text
            graphs = _python_graphs(
                source, name, options, encoding, part, start, outcome
            )
        else:
            programs = read_varmisuse(path, on_error="skip", report=outcome.reasons)
            graphs = (encode_program(p.shuffled(), **encoding) for p in programs)
        outcome.pieces += _in_pieces(graphs)
    except NewerSyntax as error:
        outcome.reasons.append(str(error))
    except Exception as error:
        # An unexpected error in one file must not abort the whole tree.
        return UsagePieces(None, [reason_of(error)])
    for piece in outcome.pieces:
        for info in piece.info:
            # The path for editors; the name is relative to a folder.
            info["path"] = path
    return outcome


def usage_outcomes(
    jobs: list[tuple], processes: int, here: bool
) -> Iterator[tuple[tuple, UsagePieces]]:
    """Yield each job with its outcome, and with those at which it continues.

    Args:
        jobs: Arguments of `read_usages`.
        processes: See `ordered_map`.
        here: See `ordered_map`.
    """
    died = UsagePieces(None, ["its process died"])
    outcomes = ordered_map(read_usages, jobs, processes, died, here=here)
    with contextlib.closing(outcomes):
        for job, outcome in zip(jobs, outcomes, strict=True):
            yield job, outcome
            while outcome.following is not None:
                # A function too long for one job is read as the model consumes it.
                outcome = read_usages(*job, outcome.following)
                yield job, outcome


def _in_pieces(graphs: Iterable[Graph]) -> Iterator[FlatGraphs]:
    piece: list[Graph] = []
    nodes = 0
    for graph in graphs:
        full = nodes + graph.num_nodes > _PIECE_NODES or len(piece) >= _PIECE_USAGES
        if piece and full:
            yield FlatGraphs.from_graphs(piece)
            piece, nodes = [], 0
        piece.append(graph)
        nodes += graph.num_nodes
    if piece:
        yield FlatGraphs.from_graphs(piece)


def _python_graphs(
    source: str | bytes,
    name,
    options,
    encoding,
    part,
    start: int,
    outcome: UsagePieces,
) -> Iterator[Graph]:
    options = {"max_instances": None, "seed": 0, "steps": 8, **options}
    maker, usages = _parsed(source, name, options["seed"])
    number, parts = part
    first, last = (len(usages) * k // parts for k in (number, number + 1))
    usages = usages[first + start : last]
    skipped: dict[str, int] = {}
    limit = options["max_instances"]
    if limit is not None:
        maker.random("sample").shuffle(usages)
    waiting = iter(usages)
    graphs = maker.graphs(waiting, options["steps"], None, skipped)
    if limit is not None:
        programs = dict(itertools.islice(graphs, limit))
        outcome.unsampled = sum(1 for _ in waiting)
        graphs = ((token, programs[token]) for token in sorted(programs))
    nodes = 0
    for _, program in graphs:
        graph = encode_program(program.shuffled(), **encoding)
        yield graph
        nodes += graph.num_nodes
        if limit is None and nodes >= _JOB_NODES:
            remaining = sum(1 for _ in waiting)
            outcome.following = start + len(usages) - remaining if remaining else None
            break
    outcome.reasons += sorted(skipped)
    outcome.too_large = sum(skipped.values())


@functools.lru_cache(1)
def _parsed(
    source: str | bytes, name: str, seed: int
) -> tuple[InstanceBuilder, list[Usage]]:
    """Cache a parsed file for all its jobs."""
    maker = InstanceBuilder(SourceUnit(source), name, seed, 10, "function")
    return maker, maker.usages()
