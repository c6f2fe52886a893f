"""Units of a store of programs: compiled here, or written by another process."""

import itertools
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.program_files import Named, naming, read_encoded
from keras_bandgnn.data.store_piece import write_piece
from keras_bandgnn.data.workers import alone, ordered_map
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.graph_layer import GraphLayer
from keras_bandgnn.preprocessing.graph_preprocessor import GraphPreprocessor
from keras_bandgnn.preprocessing.program_encoder import ProgramEncoder

_DIED = (None, ["process died"])


def compiled_files(
    kind: str,
    files: Named,
    encoder: ProgramEncoder,
    layers: Iterable[GraphLayer] = (),
    options: Mapping[str, Any] | None = None,
    processes: int | None = None,
) -> Iterator[tuple[str, list[Graph], list[str]]]:
    """Yields (name, compiled graphs, reasons for what was left out) of each file.

    Files are read and encoded by several processes; the layers run in this one.

    Args:
        kind: "python" or "varmisuse", as `find_programs` says.
        files: (path, name) pairs.
        encoder: How to encode.
        layers: Graph layers to apply, in order.
        options: Options of `program_graphs`, for Python source.
        processes: Number of processes; one per core if omitted. With 0 each file has
            a process of its own, so that only its own death can take it away.
    """
    options = dict(options or {}) if kind == "python" else {}
    encoding = dict(encoder.options)
    jobs = [(kind, path, name, options, encoding) for path, name in files]
    if processes == 0:
        outcomes = (alone(read_encoded, job, _DIED) for job in jobs)
    else:
        processes = processes or os.cpu_count() or 1
        outcomes = ordered_map(read_encoded, jobs, processes, _DIED)
    for (_, name), (found, reasons) in zip(files, outcomes, strict=True):
        graphs = found or []
        with naming(name):
            for layer in layers:
                graphs = [layer(graph) for graph in graphs]
        yield name, graphs, reasons


def compiled_pieces(
    kind: str,
    units: list[Named],
    preprocessor: GraphPreprocessor,
    options: Mapping[str, Any],
    processes: int | None,
    advance: Callable[[int], None] | None = None,
) -> Iterator[tuple[list[Graph], dict]]:
    """Yields the graphs and the report of each unit.

    Args:
        kind: "python" or "varmisuse".
        units: (path, name) pairs of each unit.
        preprocessor: Layers, the first of which is a `ProgramEncoder`.
        options: Options of `program_graphs`, for Python source.
        processes: See `compiled_files`.
        advance: Called with the number of files just done.
    """
    encoder, *layers = preprocessor.graph_layers
    files = [file for unit in units for file in unit]
    outcomes = compiled_files(kind, files, encoder, layers, options, processes)
    for unit in units:
        graphs: list[Graph] = []
        skipped: list[list[str]] = []
        for name, found, reasons in itertools.islice(outcomes, len(unit)):
            graphs += found
            skipped += [[name, reason] for reason in reasons]
            if advance is not None:
                advance(1)
        yield graphs, {"files": len(unit), "skipped": skipped}


def compile_piece(
    folder: str,
    kind: str,
    config: Mapping[str, Any],
    options: Mapping[str, Any],
    files: Named,
    processes: int = 1,
) -> dict:
    """Compiles one unit and writes it; the work of one process of a cluster.

    Args:
        folder: That of the unfinished store.
        kind: "python" or "varmisuse".
        config: The preprocessor's configuration.
        options: Options of `program_graphs`, for Python source.
        files: (path, name) pairs of the unit.
        processes: See `compiled_files`.

    Returns:
        See `write_piece`.

    Raises:
        FileNotFoundError: If this machine does not see the folder or a file.
    """
    for path in (folder, *(path for path, _ in files)):
        if not os.path.exists(path):
            raise FileNotFoundError(
                f"Expected every machine of the cluster to see {path}. Received: "
                f"{socket.gethostname()} does not. Use a folder that all share."
            )
    preprocessor = GraphPreprocessor.from_config(config)
    ((graphs, report),) = compiled_pieces(
        kind, [files], preprocessor, options, processes
    )
    return write_piece(folder, FlatGraphs.from_graphs(graphs), report)


def compile_piece_alone(*arguments: Any) -> dict:
    """`compile_piece` for files that kill the process that reads them."""
    return compile_piece(*arguments, processes=0)
