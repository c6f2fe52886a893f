"""`CompileJob`: files of programs, and the store that is made of them."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from keras_bandgnn.data.files import json_text
from keras_bandgnn.data.program_files import Named, digest
from keras_bandgnn.data.ray_pool import RayPool
from keras_bandgnn.data.store import GraphStore, open_store
from keras_bandgnn.data.store_unfinished import check_job, settle
from keras_bandgnn.data.store_writer import StoreWriter
from keras_bandgnn.preprocessing.compile_piece import (
    compile_piece,
    compile_piece_alone,
    compiled_pieces,
)
from keras_bandgnn.preprocessing.graph_preprocessor import GraphPreprocessor
from keras_bandgnn.preprocessing.program_encoder import ProgramEncoder

# Files of one shard: enough graphs for a file, little work lost by a kill.
_FILES_PER_UNIT = {"python": 32, "varmisuse": 1}


class CompileJob:
    """What `compile_programs` does, checked before any work.

    The files are read once, for their checksum; nothing is written before `run`.

    Args:
        kind: "python" or "varmisuse", as `find_programs` says.
        files: (path, name) pairs.
        path: Store to write.
        preprocessor: Its first layer must be a `ProgramEncoder`.
        options: Options of `program_graphs`, for Python source.
        overwrite: Whether to replace a store.
        restart: Whether to throw away an unfinished run with other options.

    Attributes:
        store: The store, if it is finished already; else None.

    Raises:
        FileExistsError: If something is at `path` that may not be replaced.
        ValueError: If the unfinished store is that of another job.
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
                f"Received: {type(first).__name__}."
            )
        self.kind, self.files, self.path = kind, files, Path(path).absolute()
        self.preprocessor, self.options = preprocessor, dict(options or {})
        self._described = {
            "kind": kind,
            "read": self.options,
            "layers": preprocessor.layers_config(),
        }
        self._replace = {"overwrite": overwrite, "restart": restart}
        # As a store gives it back, with lists for tuples.
        fingerprint = json_text("options", digest(files, self._described))
        self._fingerprint = json.loads(fingerprint)
        self.store = self._finished(overwrite)
        if self.store is None:
            check_job(self.path, self._fingerprint, overwrite, restart)

    def _finished(self, overwrite: bool) -> GraphStore | None:
        settle(self.path)
        if overwrite or not (self.path / "store.json").is_file():
            return None
        store = open_store(self.path)
        if store.fingerprint == self._fingerprint:
            return store
        raise FileExistsError(
            f"Expected {self.path} to be new, or a store of the same files and "
            "options. Received: a store of others. Pass overwrite=True (--overwrite) "
            "or choose another folder."
        )

    def run(
        self,
        processes: int | None = None,
        pool: RayPool | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> GraphStore:
        """Does what is left to do.

        Args:
            processes: Number of processes of this machine; one per core if omitted.
            pool: An entered `RayPool` that works instead of them.
            progress: Called with (files done, files in all).

        Returns:
            The store, the same bytes whoever did the work.
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
            left = units[writer.done :]
            count = sum(map(len, units[: writer.done]))

            def advance(files: int) -> None:
                nonlocal count
                count += files
                if progress is not None:
                    progress(count, len(self.files))

            advance(0)
            if pool is None:
                every = compiled_pieces(
                    self.kind, left, self.preprocessor, self.options, processes, advance
                )
                for graphs, report in every:
                    writer.add(graphs, report)
            else:
                for piece in self._pieces(pool, left, writer.partial, advance):
                    writer.take(piece)
            self.store = writer.finish()
        return self.store

    def _pieces(self, pool: RayPool, left: list[Named], folder: Path, advance):
        config = self.preprocessor.get_config()
        # Workers know the library's layers only; this says so before they start.
        GraphPreprocessor.from_config(config)
        fixed = (str(folder), self.kind, config, self.options)
        return pool.ordered_map(
            compile_piece,
            [
                (*fixed, [(os.path.abspath(path), name) for path, name in unit])
                for unit in left
            ],
            rescue=compile_piece_alone,
            done=lambda index: advance(len(left[index])),
        )
