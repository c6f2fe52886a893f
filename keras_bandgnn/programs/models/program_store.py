"""`ProgramStoreJob`, `compile_programs`: stores of compiled program graphs."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bandgnn.data.files import json_text, restore_replaced
from keras_bandgnn.data.store import GraphStore, open_store
from keras_bandgnn.data.store_writer import StoreWriter, check_job
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.graph_layer import GraphLayer
from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor
from keras_bandgnn.programs.models.program_encoder import ProgramEncoder
from keras_bandgnn.programs.program_files import Named, digest, naming, read_encoded
from keras_bandgnn.programs.ray_pool import RayPool
from keras_bandgnn.workers import ordered_map

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Values

_DIED = (None, ["process died"])


def compiled_files(
    kind: str,
    files: Named,
    encoder: ProgramEncoder,
    layers: Iterable[GraphLayer] = (),
    options: Mapping[str, Any] | None = None,
    processes: int | None = None,
    pool: RayPool | None = None,
) -> Iterator[tuple[str, list[Graph], list[str]]]:
    """Yield (name, compiled graphs, reasons for skipped parts) of each file.

    Files are read and encoded by several processes, and the layers run in this one;
    workers of a cluster do both.

    Args:
        kind: "python" or "varmisuse", as `find_programs` says.
        files: (path, name) pairs.
        encoder: The encoder.
        layers: Graph layers to apply, in order.
        options: Options of `program_graphs`, for Python source.
        processes: Number of processes; one per core if omitted.
        pool: An entered `RayPool` to use instead of local processes.
    """
    options = dict(options or {}) if kind == "python" else {}
    if pool is not None:
        config = GraphPreprocessor([encoder, *layers]).get_config()
        # Workers know only the library's layers; this fails before they start.
        GraphPreprocessor.from_config(config)
        jobs = ((kind, os.path.abspath(p), name, options, config) for p, name in files)
        outcomes, layers = pool.ordered_map(read_compiled, jobs, _DIED), ()
    else:
        encoding = dict(encoder.options)
        jobs = [(kind, path, name, options, encoding) for path, name in files]
        processes = processes or os.cpu_count() or 1
        outcomes = ordered_map(read_encoded, jobs, processes, _DIED)
    for (_, name), (graphs, reasons) in zip(files, outcomes, strict=True):
        yield name, _compiled(name, graphs or [], layers), reasons


def _compiled(
    name: str, graphs: list[Graph], layers: Iterable[GraphLayer]
) -> list[Graph]:
    with naming(name):
        for layer in layers:
            graphs = [layer(graph) for graph in graphs]
    return graphs


def read_compiled(
    kind: str, path: str, name: str, options: Mapping[str, Any], config: Mapping
) -> tuple[list[Graph], list[str]]:
    """Read a file and apply all layers, in a worker of a cluster.

    Raises:
        FileNotFoundError: If this machine does not see the file.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"Expected every machine of the cluster to see {path}. Received: "
            f"{socket.gethostname()} does not. Use a shared folder."
        )
    encoder, *layers = GraphPreprocessor.from_config(config).graph_layers
    graphs, reasons = read_encoded(kind, path, name, options, dict(encoder.options))
    return _compiled(name, graphs or [], layers), reasons


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
            done = sum(map(len, units[: writer.done]))
            encoder, *layers = self.preprocessor.graph_layers
            files = self.files[done:]
            outcomes = compiled_files(
                self.kind, files, encoder, layers, self.options, processes, pool
            )
            progress = progress or (lambda done, total: None)
            progress(done, len(self.files))
            with contextlib.closing(outcomes):
                for unit in units[writer.done :]:
                    graphs: list[Graph] = []
                    skipped: list[list[str]] = []
                    for name, part, reasons in itertools.islice(outcomes, len(unit)):
                        graphs += part
                        skipped += [[name, reason] for reason in reasons]
                        done += 1
                        progress(done, len(self.files))
                    writer.add(graphs, {"files": len(unit), "skipped": skipped})
            self.store = writer.finish()
        return self.store


def compile_programs(
    kind: str,
    files: Named,
    path: str | os.PathLike,
    preprocessor: GraphPreprocessor,
    options: Values | None = None,
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
