"""Usages of one file in pieces of bounded size, as one job of a worker process."""

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.graph import Graph
from keras_bandgnn.programs.encode import encode_program
from keras_bandgnn.programs.program_files import MAX_BYTES, Named
from keras_bandgnn.programs.python_source.files import reason_of
from keras_bandgnn.programs.python_source.instances import InstanceMaker, Usage
from keras_bandgnn.programs.python_source.listing import read_source
from keras_bandgnn.programs.python_source.unit import SourceUnit
from keras_bandgnn.programs.varmisuse import read_varmisuse

# Source of one job: a few hundred usages, so that little lies in memory at a time.
_JOB_BYTES = 16_384
# Nodes and usages of one piece: neighbours that share most of a function.
_PIECE_NODES = 8192
_PIECE_USAGES = 64
# A job ends after so many nodes. Every usage of a function has a graph of all of it,
# so a long function takes memory and time by the square of its usages.
_JOB_NODES = 1 << 19


@dataclasses.dataclass
class UsagePieces:
    """What a job found.

    Args:
        pieces: Graphs of neighbouring usages, in source order; None if the file
            cannot be used.
        reasons: Why the file, or some of its usages, were left out.
        unsampled: Usages that were not looked at, as `max_instances` says.
        too_large: Usages in functions that are too large.
        following: The usage of the part to go on with, if the job had to end before.
    """

    pieces: list[FlatGraphs] | None
    reasons: list[str] = dataclasses.field(default_factory=list)
    unsampled: int = 0
    too_large: int = 0
    following: int | None = None


def usage_jobs(
    kind: str, files: Named, options: Mapping[str, Any], encoding: Mapping[str, Any]
) -> list[tuple]:
    """Arguments of `read_usages`, several jobs for a long file.

    Args:
        kind: "python" or "varmisuse", as `find_programs` says.
        files: (path, name) pairs.
        options: Options of `program_graphs`, for Python source.
        encoding: Options of `encode_program`.
    """
    options, encoding = dict(options), dict(encoding)
    jobs = []
    for path, name in files:
        parts = 1
        if kind == "python" and options.get("max_instances") is None:
            try:
                parts = 1 + min(os.path.getsize(path), MAX_BYTES) // _JOB_BYTES
            except OSError:
                parts = 1  # Reading it says what is wrong.
        for part in range(parts):
            jobs.append((kind, path, name, options, encoding, (part, parts)))
    return jobs


def read_usages(
    kind: str,
    path: str,
    name: str,
    options: Mapping[str, Any],
    encoding: Mapping[str, Any],
    part: tuple[int, int],
    start: int = 0,
) -> UsagePieces:
    """Reads and encodes one part of the usages of a file, or the beginning of it.

    Args:
        kind: "python" or "varmisuse".
        path: The file.
        name: Its name for `info` and seeds.
        options: Options of `program_graphs`, for Python source.
        encoding: Options of `encode_program`.
        part: Which part, and of how many.
        start: Usages of the part that earlier calls have read, as `following` says.
    """
    found = UsagePieces([])
    try:
        if kind == "python":
            graphs = _python_graphs(path, name, options, encoding, part, start, found)
        else:
            programs = read_varmisuse(path, on_error="skip", report=found.reasons)
            graphs = (encode_program(p.shuffled(), **encoding) for p in programs)
        for piece in _in_pieces(graphs):
            for info in piece.info:
                # Where an editor finds it; the name is that inside a folder.
                info["path"] = path
            found.pieces.append(piece)
    except Exception as error:
        # Whatever is odd about one file must not end the run over a tree.
        return UsagePieces(None, [reason_of(error)])
    return found


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
    path, name, options, encoding, part, start: int, found: UsagePieces
) -> Iterator[Graph]:
    options = {"max_instances": None, "seed": 0, "steps": 8, **options}
    state = os.stat(path)
    stamp = state.st_size, state.st_mtime_ns
    maker, usages = _parsed(path, name, options["seed"], stamp)
    number, parts = part
    first, last = (len(usages) * k // parts for k in (number, number + 1))
    usages = usages[first + start : last]
    skipped: dict[str, int] = {}
    most = options["max_instances"]
    if most is not None:
        maker.random("sample").shuffle(usages)
    waiting = iter(usages)
    made = maker.graphs(waiting, options["steps"], None, skipped)
    if most is not None:
        programs = dict(itertools.islice(made, most))
        found.unsampled = sum(1 for _ in waiting)
        made = ((token, programs[token]) for token in sorted(programs))
    nodes = 0
    for _, program in made:
        graph = encode_program(program.shuffled(), **encoding)
        yield graph
        nodes += graph.num_nodes
        if most is None and nodes >= _JOB_NODES:
            left = sum(1 for _ in waiting)
            found.following = start + len(usages) - left if left else None
            break
    found.reasons += sorted(skipped)
    found.too_large = sum(skipped.values())


@functools.lru_cache(1)
def _parsed(
    path: str, name: str, seed: int, stamp: tuple
) -> tuple[InstanceMaker, list[Usage]]:
    """One file for all of its jobs; `stamp` tells when it has changed."""
    del stamp
    source = read_source(path, MAX_BYTES)
    maker = InstanceMaker(SourceUnit(source), name, seed, 10, "function")
    return maker, maker.usages()
