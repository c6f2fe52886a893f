"""`StoreWriter` and `write_store`: graphs onto disk, whole or resumable."""

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from keras_bandgnn.checks import (
    as_path,
    boolean,
    instance,
    mapping,
    optional,
    positive_int,
    refuse,
)
from keras_bandgnn.data.files import FolderLock, atomic_write, json_text, writing
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import check_same_spec
from keras_bandgnn.data.store import GraphStore, open_store
from keras_bandgnn.data.store_format import (
    DESCRIPTION,
    FORMAT,
    SIZES,
    VERSION,
    read_shard,
    write_arrow,
)
from keras_bandgnn.data.store_piece import place_piece, write_piece
from keras_bandgnn.data.store_unfinished import (
    PROGRESS,
    check_partial,
    check_same_job,
    check_target,
    put_in_place,
    read_progress,
    settle,
)
from keras_bandgnn.graph import Graph

_WRITTEN_AT_ONCE = {"writer": "write_store"}


def write_store(
    path: str | os.PathLike,
    graphs: Iterable[Graph],
    *,
    shard_size: int = 1024,
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> GraphStore:
    """Writes graphs to a store, a directory of memory-mappable shards.

    Graphs are taken one shard at a time. The store appears under its name only when
    complete; until then it lies in `<path>.partial`. Edges of each graph are sorted
    by receiver.

    Args:
        path: Directory to make.
        graphs: Graphs with the same features, from any iterable; of none, such as an
            empty split, comes a store of length 0.
        shard_size: Graphs per shard.
        metadata: JSON-like facts about the whole store.
        overwrite: Whether to replace a store that is already there.

    Returns:
        The store, open.

    Raises:
        FileExistsError: If something is at `path` that may not be replaced.
        ValueError: If graphs differ in their features, or if `path` is no path or
            `graphs` is one.

    Example:
    >>> store = write_store("molecules.store", [Graph(2, [0], [1])])
    >>> store[0].num_nodes
    2
    """
    if not isinstance(path, str | os.PathLike) or isinstance(graphs, str | os.PathLike):
        raise ValueError(
            "Expected a `path` and `graphs`, write_store(path, graphs). Received: a "
            f"path of type {type(path).__name__} and graphs of type "
            f"{type(graphs).__name__}."
        )
    as_path("path", path)
    if isinstance(graphs, Mapping):
        refuse("graphs", "an iterable of Graph", graphs)
    instance("graphs", graphs, Iterable, "an iterable of Graph")
    positive_int("shard_size", shard_size)
    writer = StoreWriter(
        path, fingerprint=_WRITTEN_AT_ONCE, metadata=metadata, overwrite=overwrite
    )
    with writer:
        try:
            writer.discard()
            graphs = iter(graphs)
            while shard := list(itertools.islice(graphs, shard_size)):
                writer.add(shard)
            return writer.finish()
        except BaseException:
            writer._abandon()
            raise


class StoreWriter:
    """Writes a store as a sequence of work units, so that a long job can resume.

    Each unit becomes one shard, written atomically into `<path>.partial` with an
    entry in a progress file. A job that was killed starts again with the same
    fingerprint, skips the first `done` units and ends with the same bytes as a job
    that ran through.

    Args:
        path: Directory to make.
        fingerprint: JSON-like description of what is written: inputs and options.
            Only a job with an equal fingerprint resumes; kept in the store.
        metadata: JSON-like facts about the whole store.
        overwrite: Whether to replace a store that is already there.
        restart: Whether to throw away an unfinished store instead of resuming it.

    Raises:
        FileExistsError: If something is at `path` that may not be replaced.
        ValueError: If the unfinished store has another fingerprint.
        RuntimeError: If another job is writing the same store.

    Example:
    >>> with StoreWriter("big.store", fingerprint={"files": 2}) as writer:
    ...     for unit in range(writer.done, 2):
    ...         writer.add([Graph(unit + 1, [], [])])
    ...     store = writer.finish()
    """

    def __init__(
        self,
        path: str | os.PathLike,
        *,
        fingerprint: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        restart: bool = False,
    ):
        self.path = as_path("path", path).absolute()
        instance("fingerprint", fingerprint, Mapping, "a dict")
        optional(mapping, "metadata", metadata)
        boolean("overwrite", overwrite)
        boolean("restart", restart)
        self.partial = self.path.with_name(self.path.name + ".partial")
        self._overwrite = overwrite
        # Through JSON, so that it equals what is read back (tuples become lists).
        fingerprint = json.loads(json_text("fingerprint", dict(fingerprint)))
        self._header = {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": fingerprint,
        }
        self._metadata = json.loads(json_text("metadata", dict(metadata or {})))
        self._lock = self._progress = None
        self._open(restart)

    @property
    def done(self) -> int:
        """Number of finished units, those of an earlier run included."""
        return len(self._units)

    @property
    def reports(self) -> list:
        """The report of each finished unit."""
        return [unit["report"] for unit in self._units]

    def add(self, graphs: Iterable[Graph], report: Any = None) -> None:
        """Writes the next unit; it is finished when this returns.

        Args:
            graphs: Graphs of the unit; none is fine.
            report: JSON-like facts about the unit, kept in the store.

        Raises:
            ValueError: If the graphs differ from the earlier ones in their features.
        """
        flat = graphs
        if not isinstance(flat, FlatGraphs):
            flat = FlatGraphs.from_graphs(graphs)
        self._check(flat.spec() if len(flat) else None)
        self.take(write_piece(self.partial, flat, report))

    def take(self, piece: Mapping[str, Any]) -> None:
        """Makes a piece the next unit; it is finished when this returns.

        Args:
            piece: What `write_piece` returned, in this process or in another one that
                sees the same folder.

        Raises:
            ValueError: If its graphs differ from the earlier ones in their features.
            FileNotFoundError: If its file is not there.
        """
        unit, spec = dict(piece["unit"]), piece["spec"]
        self._check(spec)
        written, unit["file"] = unit["file"], None
        if written:
            unit["file"] = f"shard-{self.done:05d}.arrow"
        line = json_text(f"report of unit {self.done}", unit)
        if written:
            place_piece(self.partial, written, unit["file"])
        self._spec = spec if self._spec is None else self._spec
        with writing(self.path):
            self._progress.write(line.encode() + b"\n")
            self._progress.flush()
            os.fsync(self._progress.fileno())
        self._units.append(json.loads(line))

    def _check(self, spec: Mapping | None) -> None:
        """Refuses graphs that differ from the earlier ones, and a closed writer."""
        if self._progress is None:
            raise ValueError(
                "Expected an open writer. Received: a closed one. Make a new "
                "StoreWriter with the same fingerprint to go on."
            )
        if spec is not None and self._spec is not None:
            like = "the earlier units"
            check_same_spec(f"unit {self.done}", spec, like, self._spec)

    def finish(self) -> GraphStore:
        """Completes the store, gives it its name and opens it."""
        sizes = {"num_nodes": [], "num_edges": []}
        for unit in self._units:
            file = unit["file"]
            shard = read_shard(self.partial / file, unit) if file else None
            for name, parts in sizes.items():
                parts.append(getattr(shard, name, np.zeros(0, np.int32)))
        columns = {
            name: pa.array(np.concatenate([np.zeros(0, np.int32), *parts]))
            for name, parts in sizes.items()
        }
        with atomic_write(self.partial / SIZES) as file:
            write_arrow(file, columns, {})
        description = {
            **self._header,
            "graphs": sum(unit["graphs"] for unit in self._units),
            "features": self._spec or {},
            "metadata": self._metadata,
            "units": self._units,
        }
        with atomic_write(self.partial / DESCRIPTION) as file:
            file.write(json_text(DESCRIPTION, description, indent=1).encode() + b"\n")
        self._remove_rests({PROGRESS, SIZES, DESCRIPTION})
        check_target(self.path, self._overwrite)
        self._close_progress()
        with writing(self.path):
            put_in_place(self.partial, self.path)
        self.close()
        return open_store(self.path)

    def discard(self) -> None:
        """Throws away the finished units."""
        self._units, self._spec = [], None
        self._clear_rests()

    def close(self) -> None:
        """Leaves the unfinished store as it is, to be resumed later."""
        self._close_progress()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _close_progress(self) -> None:
        if self._progress is not None:
            # After a full disk there may be bytes that no flush brings out.
            with contextlib.suppress(OSError):
                self._progress.close()
            self._progress = None

    def _abandon(self) -> None:
        """Removes the unfinished store."""
        self._close_progress()
        shutil.rmtree(self.partial, ignore_errors=True)
        self.close()

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def _open(self, restart: bool) -> None:
        """Takes up the finished units of an earlier run, removes its rests."""
        check_partial(self.partial)
        settle(self.path)
        check_target(self.path, self._overwrite)
        self._lock = FolderLock(self.partial)
        try:
            self._open_progress()
            found, units = (None, []) if restart else read_progress(self.partial)
            if found is not None:
                check_same_job(self.partial, found, self._header["fingerprint"])
            self._units = list(itertools.takewhile(self._is_intact, units))
            self._spec = None
            for unit in self._units:
                if unit["file"]:
                    self._spec = read_shard(self.partial / unit["file"], unit).spec()
                    break
            self._clear_rests()
        except BaseException:
            self.close()
            raise

    def _open_progress(self) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        flags |= getattr(os, "O_NOFOLLOW", 0)
        with writing(self.path):
            handle = os.open(self.partial / PROGRESS, flags, 0o666)
        self._progress = open(handle, "a+b")

    def _is_intact(self, unit: Mapping) -> bool:
        file = unit["file"] and self.partial / unit["file"]
        return not file or (file.is_file() and file.stat().st_size == unit["bytes"])

    def _clear_rests(self) -> None:
        """Leaves the finished units and a progress file that lists just these."""
        lines = [json_text("unit", entry) for entry in (self._header, *self._units)]
        text = "".join(line + "\n" for line in lines).encode()
        self._progress.seek(0)
        with writing(self.path):
            if self._progress.read(len(text)) != text:
                self._progress.truncate(0)
                self._progress.write(text)
            self._progress.truncate(len(text))
            self._progress.flush()
            os.fsync(self._progress.fileno())
        self._remove_rests({PROGRESS})

    def _remove_rests(self, kept: set[str]) -> None:
        """Removes what is neither in `kept` nor a finished unit."""
        kept = kept | {unit["file"] for unit in self._units}
        for file in self.partial.iterdir():
            if file.name not in kept:
                file.unlink(missing_ok=True)
