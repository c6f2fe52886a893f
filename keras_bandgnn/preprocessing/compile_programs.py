"""`compile_programs`: files of programs into a store of compiled graphs."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_bandgnn.data.program_files import Named, digest, read_encoded
from keras_bandgnn.data.store import GraphStore, open_store
from keras_bandgnn.data.store_writer import StoreWriter
from keras_bandgnn.data.workers import ordered_map
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.graph_layer import GraphLayer
from keras_bandgnn.preprocessing.graph_preprocessor import GraphPreprocessor
from keras_bandgnn.preprocessing.program_encoder import ProgramEncoder

# Files of one shard: enough graphs for a file, little work lost by a kill.
_FILES_PER_UNIT = {"python": 32, "varmisuse": 1}


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
        processes: Number of processes; one per core if omitted.
    """
    options = dict(options or {}) if kind == "python" else {}
    encoding = dict(encoder.options)
    jobs = [(kind, path, name, options, encoding) for path, name in files]
    outcomes = ordered_map(
        read_encoded, jobs, processes or os.cpu_count() or 1, (None, ["process died"])
    )
    for (_, name), (found, reasons) in zip(files, outcomes, strict=True):
        graphs = found or []
        for layer in layers:
            graphs = [layer(graph) for graph in graphs]
        yield name, graphs, reasons


def compile_programs(
    kind: str,
    files: Named,
    path: str | os.PathLike,
    preprocessor: GraphPreprocessor,
    options: Mapping[str, Any] | None = None,
    *,
    processes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    overwrite: bool = False,
    restart: bool = False,
) -> GraphStore:
    """Reads, encodes, filters and reorders programs, and writes them to a store.

    Files are read and encoded by several processes and end in the same bytes for any
    number of them. A killed run goes on where it was, and a finished store of the same
    files and options is returned as it is. Files that cannot be used are
    left out and listed in the store's reports.

    Args:
        kind: "python" or "varmisuse", as `find_programs` says.
        files: (path, name) pairs.
        path: Store to write.
        preprocessor: Its first layer must be a `ProgramEncoder`.
        options: Options of `program_graphs`, for Python source.
        processes: Number of processes; one per core if omitted.
        progress: Called with (files done, files in all).
        overwrite: Whether to replace a store.
        restart: Whether to throw away an unfinished run with other options.

    Returns:
        The store. Its metadata holds the layers, so loaders do not apply them again.
    """
    encoder, *layers = preprocessor.graph_layers
    if not isinstance(encoder, ProgramEncoder):
        raise ValueError(
            "Expected the preprocessor's first layer to be a ProgramEncoder. "
            f"Received: {type(encoder).__name__}."
        )
    options = dict(options or {})
    described = {"kind": kind, "read": options, "layers": preprocessor.layers_config()}
    size = _FILES_PER_UNIT[kind]
    units = [files[i : i + size] for i in range(0, len(files), size)]
    fingerprint = digest(files, described)
    if not overwrite and (Path(path) / "store.json").is_file():
        store = open_store(path)
        if store.fingerprint == fingerprint:
            return store
        raise FileExistsError(
            f"Expected {path} to be new, or a store of the same files and options. "
            "Received: a store of others. Pass overwrite=True (--overwrite) or choose "
            "another folder."
        )
    with StoreWriter(
        path,
        fingerprint=fingerprint,
        metadata=described,
        overwrite=overwrite,
        restart=restart,
    ) as writer:
        left = [file for unit in units[writer.done :] for file in unit]
        outcomes = compiled_files(kind, left, encoder, layers, options, processes)
        count = len(files) - len(left)
        for unit in units[writer.done :]:
            graphs: list[Graph] = []
            skipped: list[list[str]] = []
            for name, found, reasons in itertools.islice(outcomes, len(unit)):
                graphs += found
                skipped += [[name, reason] for reason in reasons]
                count += 1
                if progress is not None:
                    progress(count, len(files))
            writer.add(graphs, report={"files": len(unit), "skipped": skipped})
        return writer.finish()


def bandwidths(store) -> tuple[np.ndarray, np.ndarray]:
    """Bandwidth of each graph before and after it was reordered.

    "Before" is in the caller's order of the nodes that are left.

    Args:
        store: A store or a sequence of graphs with `origin`.

    Returns:
        Two int64 arrays, one entry per graph.
    """
    before, after = [], []
    for graph in store:
        after.append(graph.bandwidth)
        if graph.origin is None or not graph.num_edges:
            before.append(after[-1])
            continue
        rank = np.argsort(np.argsort(graph.origin))
        before.append(int(np.abs(rank[graph.senders] - rank[graph.receivers]).max()))
    return np.array(before, np.int64), np.array(after, np.int64)
