"""`compile_programs`: files of programs into a store of compiled graphs."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_bandgnn.data.program_files import Named
from keras_bandgnn.data.ray_pool import RayPool
from keras_bandgnn.data.store import GraphStore
from keras_bandgnn.preprocessing.compile_job import CompileJob
from keras_bandgnn.preprocessing.compile_piece import compiled_files as compiled_files
from keras_bandgnn.preprocessing.graph_preprocessor import GraphPreprocessor


def compile_programs(
    kind: str,
    files: Named,
    path: str | os.PathLike,
    preprocessor: GraphPreprocessor,
    options: Mapping[str, Any] | None = None,
    *,
    processes: int | None = None,
    pool: RayPool | None = None,
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
        pool: An entered `RayPool` that works instead of them, on one machine or many.
        progress: Called with (files done, files in all).
        overwrite: Whether to replace a store.
        restart: Whether to throw away an unfinished run with other options.

    Returns:
        The store. Its metadata holds the layers, so loaders do not apply them again.
    """
    job = CompileJob(
        kind, files, path, preprocessor, options, overwrite=overwrite, restart=restart
    )
    return job.run(processes, pool, progress)


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
