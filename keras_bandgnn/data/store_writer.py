"""`StoreWriter` and `write_store`: graphs onto disk, whole or resumable."""

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
from keras_bandgnn.data.store import (
    DESCRIPTION,
    FORMAT,
    SIZES,
    VERSION,
    GraphStore,
    check_file,
    check_header,
    check_units,
    open_store,
    read_shard,
    write_arrow,
    write_shard,
)
from keras_bandgnn.graph import Graph

# A unit of a store as a file of its own, before the store counts it.


def write_piece(folder: str | os.PathLike, flat: FlatGraphs, report: Any) -> dict:
    """Writes the graphs of a unit into the folder of an unfinished store.

    No other call takes the same name, so a unit that is written twice, or by a process
    that was given up, harms nothing. `StoreWriter.take` gives the file its place; what
    it does not take is removed with the other rests.

    Args:
        folder: `StoreWriter.partial`.
        flat: Graphs of the unit; none is fine.
        report: JSON-like facts about the unit.

    Returns:
        JSON-like: "unit", the entry of the progress file, and "spec", the features.
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


def place_piece(folder: Path, written: str, name: str) -> None:
    """Gives the file of a piece its name in the store.

    Raises:
        FileNotFoundError: If the file is not there.
    """
    try:
        os.replace(folder / written, folder / name)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"Expected {folder / written}, written by another process. Received: it is "
            "not there. All machines must see this folder under the same path."
        ) from error
    sync_directory(folder)


# Unfinished stores: their progress file, and whose they are.


PROGRESS = "progress.jsonl"
# What a kill leaves of files that were being written.
_HIDDEN = re.compile(r"^\.[0-9a-f]{8}\.partial\.|\.tmp$")


def read_progress(partial: Path) -> tuple[dict | None, list[dict]]:
    """Returns the header and the finished units; a torn last line does not count."""
    progress = partial / PROGRESS
    if progress.exists():
        check_file(progress)
        lines = progress.read_bytes().split(b"\n")[:-1]
        with reading(progress):
            found = [parse_json(line) for line in lines]
        if found:
            check_units(progress, found[1:])
            return found[0], found[1:]
    if (partial / DESCRIPTION).exists():
        # Killed after the last step of writing but before the new name.
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
    """Raises a FileExistsError unless `path` is free or a store to be replaced."""
    refuse_link(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not _is_store(path):
        raise FileExistsError(
            f"Expected nothing, or a store, at {path}. Received: something else is "
            "there, which is never overwritten. Choose another path."
        )
    if not overwrite:
        raise FileExistsError(
            f"Expected nothing at {path}. Received: a store is there. "
            "Pass overwrite=True (--overwrite) or choose another path."
        )


def put_in_place(partial: Path, path: Path) -> None:
    """Gives a complete directory its name; a store that had it is removed after.

    The progress file stays until then: by it `settle` knows, after a kill, that the
    directory `partial` is what was replaced.
    """
    replaces = _is_store(path)
    if not replaces:
        (partial / PROGRESS).unlink(missing_ok=True)
    # What is replaced gets the name `partial`, which nobody else may take up.
    with FolderLock(path) if replaces else contextlib.nullcontext():
        replace_folder(partial, path)
    (path / PROGRESS).unlink(missing_ok=True)


def settle(path: Path) -> None:
    """Completes the replacement of a store that was killed between its steps.

    Raises:
        RuntimeError: If another job is writing the store.
    """
    restore_replaced(path)
    if not (_is_store(path) and (path / PROGRESS).is_file()):
        return
    partial = path.with_name(path.name + ".partial")
    check_partial(partial)
    with FolderLock(partial):
        for file in partial.iterdir():
            file.unlink()
        partial.rmdir()
        (path / PROGRESS).unlink(missing_ok=True)


def is_unfinished(partial: Path) -> bool:
    """Whether a directory holds nothing but parts of an unfinished store."""
    if not partial.is_dir():
        return False
    if any(file.is_symlink() or file.is_dir() for file in partial.iterdir()):
        return False
    names = {_HIDDEN.sub("", file.name) for file in partial.iterdir()}
    names -= {PROGRESS, SIZES, DESCRIPTION}
    return all(n.startswith("shard-") and n.endswith(".arrow") for n in names)


def check_partial(partial: Path) -> None:
    """Raises a FileExistsError if something else than an unfinished store is there."""
    refuse_link(partial)
    if partial.exists() and not is_unfinished(partial):
        raise FileExistsError(
            f"Expected {partial} to be an unfinished store. Received: something else "
            "is there. Move it away or choose another path."
        )


def check_same_job(partial: Path, found: Mapping, fingerprint: Mapping) -> None:
    """Raises a ValueError if the header `found` there is that of another job."""
    check_header(partial / PROGRESS, found)
    if found.get("fingerprint") != fingerprint:
        differing = [*_differing(found.get("fingerprint"), fingerprint)]
        fields = "; ".join(differing[:5]) + "; ..." * (len(differing) > 5)
        raise ValueError(
            f"Expected the unfinished store {partial} to have the fingerprint "
            f"of this job. Received: another one: {fields}. Pass "
            "restart=True (--restart), or delete that directory, to begin anew."
        )


def _differing(old: Any, new: Any, name: str = "fingerprint") -> Iterator[str]:
    """Yields which fields differ, with their values in this job and before."""
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
    """Raises the errors that a `StoreWriter` would raise, and touches nothing.

    Args:
        path: The store to be written.
        fingerprint: As JSON gives it back.
        overwrite: Whether a store there may be replaced.
        restart: Whether an unfinished store of another job may be thrown away.
    """
    check_target(path, overwrite)
    partial = path.with_name(path.name + ".partial")
    check_partial(partial)
    if partial.exists() and not restart:
        found, _ = read_progress(partial)
        if found is not None:
            check_same_job(partial, found, fingerprint)


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
