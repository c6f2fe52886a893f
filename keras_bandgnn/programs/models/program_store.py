"""`ProgramStoreJob`, `compile_programs`: stores of compiled program graphs."""

import itertools
import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_bandgnn.data.files import json_text, restore_replaced
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.store import GraphStore, open_store
from keras_bandgnn.data.store_writer import (
    StoreWriter,
    check_job,
    write_piece,
)
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.graph_layer import GraphLayer
from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor
from keras_bandgnn.programs.models.program_encoder import ProgramEncoder
from keras_bandgnn.programs.program_files import Named, digest, naming, read_encoded
from keras_bandgnn.programs.ray_pool import RayPool
from keras_bandgnn.workers import ordered_map, run_isolated

_DIED = (None, ["process died"])


def compiled_files(
    kind: str,
    files: Named,
    encoder: ProgramEncoder,
    layers: Iterable[GraphLayer] = (),
    options: Mapping[str, Any] | None = None,
    processes: int | None = None,
) -> Iterator[tuple[str, list[Graph], list[str]]]:
    """Yield (name, compiled graphs, reasons for skipped parts) of each file.

    Files are read and encoded by several processes; the layers run in this one.

    Args:
        kind: "python" or "varmisuse", as `find_programs` says.
        files: (path, name) pairs.
        encoder: The encoder.
        layers: Graph layers to apply, in order.
        options: Options of `program_graphs`, for Python source.
        processes: Number of processes; one per core if omitted. With 0, each file is
            read in a separate process, so that a crash affects only this file.
    """
    options = dict(options or {}) if kind == "python" else {}
    encoding = dict(encoder.options)
    jobs = [(kind, path, name, options, encoding) for path, name in files]
    if processes == 0:
        outcomes = (run_isolated(read_encoded, job, _DIED) for job in jobs)
    else:
        processes = processes or os.cpu_count() or 1
        outcomes = ordered_map(read_encoded, jobs, processes, _DIED)
    for (_, name), (file_graphs, reasons) in zip(files, outcomes, strict=True):
        graphs = file_graphs or []
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
    """Yield the graphs and the report of each unit.

    Args:
        kind: "python" or "varmisuse".
        units: (path, name) pairs of each unit.
        preprocessor: Layers, the first of which is a `ProgramEncoder`.
        options: Options of `program_graphs`, for Python source.
        processes: See `compiled_files`.
        advance: Called with the number of newly finished files.
    """
    encoder, *layers = preprocessor.graph_layers
    files = [file for unit in units for file in unit]
    outcomes = compiled_files(kind, files, encoder, layers, options, processes)
    for unit in units:
        graphs: list[Graph] = []
        skipped: list[list[str]] = []
        for name, file_graphs, reasons in itertools.islice(outcomes, len(unit)):
            graphs += file_graphs
            skipped += [[name, reason] for reason in reasons]
            if advance is not None:
                advance(1)
        yield graphs, {"files": len(unit), "skipped": skipped}


def encode_unit(
    folder: str,
    kind: str,
    config: Mapping[str, Any],
    options: Mapping[str, Any],
    files: Named,
    processes: int = 1,
) -> dict:
    """Encode and write one unit, in a worker of a cluster.

    Args:
        folder: The folder of the unfinished store.
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
                f"{socket.gethostname()} does not. Use a shared folder."
            )
    preprocessor = GraphPreprocessor.from_config(config)
    ((graphs, report),) = compiled_pieces(
        kind, [files], preprocessor, options, processes
    )
    return write_piece(folder, FlatGraphs.from_graphs(graphs), report)


def encode_unit_isolated(*arguments: Any) -> dict:
    """Call `encode_unit` on files that may crash the process that reads them."""
    return encode_unit(*arguments, processes=0)


# Files of one shard: enough graphs for a file, little work lost by a kill.
_FILES_PER_UNIT = {"python": 32, "varmisuse": 1}


class ProgramStoreJob:
    """The job of `compile_programs`, validated before any work.

    The files are read once, for their checksums; nothing is written before `run`.

    Args:
        kind: "python" or "varmisuse", as `find_programs` says.
        files: (path, name) pairs.
        path: Store to write.
        preprocessor: Its first layer must be a `ProgramEncoder`.
        options: Options of `program_graphs`, for Python source.
        overwrite: Whether to replace a store.
        restart: Whether to discard an unfinished run with other options.

    Attributes:
        store: The store if it is finished already, otherwise None.

    Raises:
        FileExistsError: If `path` exists and may not be replaced.
        ValueError: If the unfinished store belongs to another job.
    """

    def __init__(
        self,
        kind: str,
        files: Named,
        path: str | os.PathLike,
        preprocessor: GraphPreprocessor,
        options: Mapping[str, Any] | None = None,
        *,
        overwrite: bool = False,
        restart: bool = False,
    ):
        first, *_ = [*preprocessor.graph_layers, None]
        if not isinstance(first, ProgramEncoder):
            raise ValueError(
                "Expected the preprocessor's first layer to be a ProgramEncoder. "
                f"Received: {type(first).__name__}. Put a ProgramEncoder first."
            )
        self.kind, self.files, self.path = kind, files, Path(path).absolute()
        self.preprocessor, self.options = preprocessor, dict(options or {})
        self._described = {
            "kind": kind,
            "read": self.options,
            "layers": preprocessor.layers_config(),
        }
        self._replace = {"overwrite": overwrite, "restart": restart}
        # As read back from a store, with lists in place of tuples.
        fingerprint = json_text("options", digest(files, self._described))
        self._fingerprint = json.loads(fingerprint)
        self.store = self._finished(overwrite)
        if self.store is None:
            check_job(self.path, self._fingerprint, overwrite, restart)

    def _finished(self, overwrite: bool) -> GraphStore | None:
        restore_replaced(self.path)
        if overwrite or not (self.path / "store.json").is_file():
            return None
        store = open_store(self.path)
        if store.fingerprint == self._fingerprint:
            return store
        raise FileExistsError(
            f"Expected {self.path} to be new, or a store of the same files and "
            "options. Received: another store. Pass overwrite=True (--overwrite) or "
            "choose another folder."
        )

    def run(
        self,
        processes: int | None = None,
        pool: RayPool | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> GraphStore:
        """Encode the units that are not done yet.

        Args:
            processes: Number of local processes; one per core if omitted.
            pool: An entered `RayPool` to use instead of local processes.
            progress: Called with (files done, total files).

        Returns:
            The store; its bytes do not depend on where the work was done.
        """
        if self.store is not None:
            return self.store
        size = _FILES_PER_UNIT[self.kind]
        units = [self.files[i : i + size] for i in range(0, len(self.files), size)]
        with StoreWriter(
            self.path,
            fingerprint=self._fingerprint,
            metadata=self._described,
            **self._replace,
        ) as writer:
            remaining = units[writer.done :]
            count = sum(map(len, units[: writer.done]))

            def advance(files: int) -> None:
                nonlocal count
                count += files
                if progress is not None:
                    progress(count, len(self.files))

            advance(0)
            if pool is None:
                every = compiled_pieces(
                    self.kind,
                    remaining,
                    self.preprocessor,
                    self.options,
                    processes,
                    advance,
                )
                for graphs, report in every:
                    writer.add(graphs, report)
            else:
                for piece in self._pieces(pool, remaining, writer.partial, advance):
                    writer.take(piece)
            self.store = writer.finish()
        return self.store

    def _pieces(self, pool: RayPool, units: list[Named], folder: Path, advance):
        config = self.preprocessor.get_config()
        # Workers know only the library's layers; this fails before they start.
        GraphPreprocessor.from_config(config)
        fixed = (str(folder), self.kind, config, self.options)
        return pool.ordered_map(
            encode_unit,
            [
                (*fixed, [(os.path.abspath(path), name) for path, name in unit])
                for unit in units
            ],
            rescue=encode_unit_isolated,
            done=lambda index: advance(len(units[index])),
        )


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
    """Read, encode, filter and reorder programs, and write them to a store.

    Files are read and encoded by several processes; the result has the same bytes for
    any number of them. A killed run resumes, and a finished store of the same files and
    options is returned unchanged. Files that cannot be read are skipped and listed in
    the store's reports.

    Args:
        kind: "python" or "varmisuse", as `find_programs` says.
        files: (path, name) pairs.
        path: Store to write.
        preprocessor: Its first layer must be a `ProgramEncoder`.
        options: Options of `program_graphs`, for Python source.
        processes: Number of processes; one per core if omitted.
        pool: An entered `RayPool` to use instead of local processes.
        progress: Called with (files done, total files).
        overwrite: Whether to replace a store.
        restart: Whether to discard an unfinished run with other options.

    Returns:
        The store. Its metadata holds the layers, so loaders do not apply them again.
    """
    job = ProgramStoreJob(
        kind, files, path, preprocessor, options, overwrite=overwrite, restart=restart
    )
    return job.run(processes, pool, progress)


def bandwidths(store) -> tuple[np.ndarray, np.ndarray]:
    """Return each graph's bandwidth before and after reordering.

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
