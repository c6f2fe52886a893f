"""`StoreWriter` and `write_store`: atomic and resumable writing of stores."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    shown,
)
from keras_bandgnn.data.files import (
    FolderLock,
    atomic_write,
    json_text,
    refuse_link,
    replace_folder,
    restore_replaced,
    sync_directory,
    writing,
)
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import check_same_spec
from keras_bandgnn.data.reading import parse_json, read_json, reading
from keras_bandgnn.data.store import GraphStore, open_store
from keras_bandgnn.data.store_files import (
    DESCRIPTION,
    FORMAT,
    SIZES,
    VERSION,
    check_file,
    check_header,
    check_units,
    read_shard,
    write_arrow,
    write_shard,
)
from keras_bandgnn.graph import Graph

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Values


def write_piece(folder: str | os.PathLike, flat: FlatGraphs, report: Any) -> dict:
    """Write the graphs of a unit into the folder of an unfinished store.

    The file name is unique, so a unit may be written twice, or by a worker that has
    been abandoned. `StoreWriter.take` adds the file to the store; files that it does
    not take are removed.

    Args:
        folder: `StoreWriter.partial`.
        flat: Graphs of the unit; may be empty.
        report: JSON metadata of the unit.

    Returns:
        A JSON dict: "unit", the entry of the progress file, and "spec", the features.
    """
    unit = {"file": None, "graphs": len(flat), "report": report}
    if not len(flat):
        return {"unit": unit, "spec": None}
    unit["file"] = f"shard-{uuid.uuid4().hex}.arrow.tmp"
    path = Path(folder) / unit["file"]
    try:
        with writing(path), open(path, "xb") as file:
            write_shard(file, flat)
            file.flush()
            os.fsync(file.fileno())
        unit["bytes"] = path.stat().st_size
        with open(path, "rb") as file:
            unit["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return {"unit": unit, "spec": flat.spec()}


def move_piece(folder: Path, filename: str, name: str) -> None:
    """Rename the file of a piece to its name in the store.

    Raises:
        FileNotFoundError: If the file is missing.
    """
    try:
        os.replace(folder / filename, folder / name)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"Expected {folder / filename}, written by another process. Received: no "
            "such file. Mount this folder under the same path on all machines."
        ) from error
    sync_directory(folder)


# Unfinished stores.

PROGRESS = "progress.jsonl"
# Names of temporary files that a killed process leaves.
_HIDDEN = re.compile(r"^\.[0-9a-f]{8}\.partial\.|\.tmp$")


def read_progress(partial: Path) -> tuple[dict | None, list[dict]]:
    """Return the header and the finished units; ignore an incomplete last line."""
    progress = partial / PROGRESS
    if progress.exists():
        check_file(progress)
        lines = progress.read_bytes().split(b"\n")[:-1]
        with reading(progress):
            entries = [parse_json(line) for line in lines]
        if entries:
            check_units(progress, entries[1:])
            return entries[0], entries[1:]
    if (partial / DESCRIPTION).exists():
        # Killed after writing everything but before renaming the folder.
        check_file(partial / DESCRIPTION)
        description = read_json(partial / DESCRIPTION)
        check_header(partial / DESCRIPTION, description)
        check_units(partial / DESCRIPTION, description.get("units"))
        return description, description["units"]
    return None, []


def _is_store(path: Path) -> bool:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return json.loads((path / DESCRIPTION).read_bytes()).get("format") == FORMAT
    return False


def check_target(path: Path, overwrite: bool) -> None:
    """Raise a FileExistsError unless `path` is free or a store to overwrite."""
    refuse_link(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not _is_store(path):
        raise FileExistsError(
            f"Expected nothing, or a store, at {path}. Received: other content, which "
            "is never overwritten. Choose another path."
        )
    if not overwrite:
        raise FileExistsError(
            f"Expected nothing at {path}. Received: an existing store. "
            "Pass overwrite=True (--overwrite) or choose another path."
        )


def is_unfinished(partial: Path) -> bool:
    """Return whether a directory holds only files of an unfinished store."""
    if not partial.is_dir():
        return False
    if any(file.is_symlink() or file.is_dir() for file in partial.iterdir()):
        return False
    names = {_HIDDEN.sub("", file.name) for file in partial.iterdir()}
    names -= {PROGRESS, SIZES, DESCRIPTION}
    return all(n.startswith("shard-") and n.endswith(".arrow") for n in names)


def check_partial(partial: Path) -> None:
    """Raise a FileExistsError if a path is anything but an unfinished store."""
    refuse_link(partial)
    if partial.exists() and not is_unfinished(partial):
        raise FileExistsError(
            f"Expected {partial} to be an unfinished store. Received: other content. "
            "Move it away or choose another path."
        )


def check_same_job(partial: Path, header: Mapping, fingerprint: Mapping) -> None:
    """Raise a ValueError if `header` belongs to another job."""
    check_header(partial / PROGRESS, header)
    if header.get("fingerprint") != fingerprint:
        differing = [*_differing(header.get("fingerprint"), fingerprint)]
        fields = "; ".join(differing[:5]) + "; ..." * (len(differing) > 5)
        raise ValueError(
            f"Expected the unfinished store {partial} to have the fingerprint "
            f"of this job. Received: another one: {fields}. To start over, pass "
            "restart=True (--restart) or delete the directory."
        )


def _differing(old: Any, new: Any, name: str = "fingerprint") -> Iterator[str]:
    """Yield the fields that differ, with their new and old values."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*new, *old]):
            if key not in old or key not in new:
                yield f"{name}.{key} is {'new' if key in new else 'missing'}"
            else:
                yield from _differing(old[key], new[key], f"{name}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for k, (before, now) in enumerate(zip(old, new, strict=True)):
            yield from _differing(before, now, f"{name}[{k}]")
    elif old != new:
        yield f"{name} is {shown(new)}, was {shown(old)}"


def check_job(path: Path, fingerprint: Mapping, overwrite: bool, restart: bool) -> None:
    """Raise the errors that a `StoreWriter` would raise, without changing anything.

    Args:
        path: The store to write.
        fingerprint: The fingerprint, as read back from JSON.
        overwrite: Whether an existing store may be replaced.
        restart: Whether an unfinished store of another job may be discarded.
    """
    check_target(path, overwrite)
    partial = path.with_name(path.name + ".partial")
    check_partial(partial)
    if partial.exists() and not restart:
        header, _ = read_progress(partial)
        if header is not None:
            check_same_job(partial, header, fingerprint)


_WRITTEN_AT_ONCE = {"writer": "write_store"}


def write_store(
    path: str | os.PathLike,
    graphs: Iterable[Graph],
    *,
    shard_size: int = 1024,
    metadata: Values | None = None,
    overwrite: bool = False,
) -> GraphStore:
    """Write graphs to a store, a directory of memory-mappable shards.

    Graphs are consumed one shard at a time. The store appears at `path` only when it is
    complete; until then it is in `<path>.partial`. The edges of each graph are sorted
    by receiver.

    Args:
        path: Directory to create.
        graphs: Any iterable of graphs with the same features. Without graphs, such as
            for an empty split, the store has length 0.
        shard_size: Graphs per shard.
        metadata: JSON metadata of the store.
        overwrite: Whether to replace an existing store.

    Returns:
        The open store.

    Raises:
        FileExistsError: If `path` exists and may not be replaced.
        ValueError: If graphs differ in their features, or if `path` is not a path or
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
            f"{type(graphs).__name__}. Pass the path first."
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

    Each unit becomes one shard, written atomically into `<path>.partial` with an entry
    in a progress file. To resume a killed job, create the writer with the same
    fingerprint and skip the first `done` units; the result has the same bytes as an
    uninterrupted job.

    Args:
        path: Directory to create.
        fingerprint: JSON description of the job: its inputs and options. A job resumes
            only with an equal fingerprint. Stored in the store.
        metadata: JSON metadata of the store.
        overwrite: Whether to replace an existing store.
        restart: Whether to discard an unfinished store instead of resuming it.

    Raises:
        FileExistsError: If `path` exists and may not be replaced.
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
        fingerprint: Values,
        metadata: Values | None = None,
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
        # A JSON round trip, so that it equals what is read back (tuples become lists).
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
        """Number of finished units, including units of an earlier run."""
        return len(self._units)

    @property
    def reports(self) -> list:
        """The report of each finished unit."""
        return [unit["report"] for unit in self._units]

    def add(self, graphs: Iterable[Graph], report: object = None) -> None:
        """Write the next unit; it is durable when this returns.

        Args:
            graphs: Graphs of the unit; may be empty.
            report: JSON metadata of the unit, stored in the store.

        Raises:
            ValueError: If the graphs differ from the earlier ones in their features.
        """
        flat = graphs
        if not isinstance(flat, FlatGraphs):
            flat = FlatGraphs.from_graphs(graphs)
        self._check(flat.spec() if len(flat) else None)
        self.take(write_piece(self.partial, flat, report))

    def take(self, piece: Values) -> None:
        """Add a piece as the next unit; it is durable when this returns.

        Args:
            piece: Result of `write_piece`, in this process or in another one with
                access to the same folder.

        Raises:
            ValueError: If its graphs differ from the earlier ones in their features.
            FileNotFoundError: If its file is missing.
        """
        unit, spec = dict(piece["unit"]), piece["spec"]
        self._check(spec)
        filename, unit["file"] = unit["file"], None
        if filename:
            unit["file"] = f"shard-{self.done:05d}.arrow"
        line = json_text(f"report of unit {self.done}", unit)
        if filename:
            move_piece(self.partial, filename, unit["file"])
        self._spec = spec if self._spec is None else self._spec
        with writing(self.path):
            self._progress.write(line.encode() + b"\n")
            self._progress.flush()
            os.fsync(self._progress.fileno())
        self._units.append(json.loads(line))

    def _check(self, spec: Mapping | None) -> None:
        """Reject graphs that differ from the earlier ones, and a closed writer."""
        if self._progress is None:
            raise ValueError(
                "Expected an open writer. Received: a closed one. Create a new "
                "StoreWriter with the same fingerprint to resume."
            )
        if spec is not None and self._spec is not None:
            like = "the earlier units"
            check_same_spec(f"unit {self.done}", spec, like, self._spec)

    def finish(self) -> GraphStore:
        """Complete the store, move it to its path and open it."""
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
        self._remove_other_files({PROGRESS, SIZES, DESCRIPTION})
        check_target(self.path, self._overwrite)
        self._close_progress()
        (self.partial / PROGRESS).unlink(missing_ok=True)
        with writing(self.path), FolderLock(self.path, create=False):
            replace_folder(self.partial, self.path)
        self.close()
        return open_store(self.path)

    def discard(self) -> None:
        """Discard the finished units."""
        self._units, self._spec = [], None
        self._remove_stale_files()

    def close(self) -> None:
        """Close the writer; an unfinished store can be resumed later."""
        self._close_progress()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _close_progress(self) -> None:
        if self._progress is not None:
            # If the disk is full, flushing the buffered bytes fails.
            with contextlib.suppress(OSError):
                self._progress.close()
            self._progress = None

    def _abandon(self) -> None:
        """Remove the unfinished store."""
        self._close_progress()
        shutil.rmtree(self.partial, ignore_errors=True)
        self.close()

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def _open(self, restart: bool) -> None:
        """Restore the finished units of an earlier run, and remove stale files."""
        check_partial(self.partial)
        restore_replaced(self.path)
        check_target(self.path, self._overwrite)
        self._lock = FolderLock(self.partial)
        try:
            self._open_progress()
            header, units = (None, []) if restart else read_progress(self.partial)
            if header is not None:
                check_same_job(self.partial, header, self._header["fingerprint"])
            self._units = list(itertools.takewhile(self._is_intact, units))
            self._spec = None
            for unit in self._units:
                if unit["file"]:
                    self._spec = read_shard(self.partial / unit["file"], unit).spec()
                    break
            self._remove_stale_files()
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

    def _remove_stale_files(self) -> None:
        """Keep only the finished units, and a progress file that lists them."""
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
        self._remove_other_files({PROGRESS})

    def _remove_other_files(self, names: set[str]) -> None:
        """Remove all files except `names` and files of finished units."""
        names = names | {unit["file"] for unit in self._units}
        for file in self.partial.iterdir():
            if file.name not in names:
                file.unlink(missing_ok=True)
