"""`GraphStore`: graphs on disk, read at random without copying."""

import operator
import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_bandgnn.checks import as_path
from keras_bandgnn.data.files import restore_replaced
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import (
    check_index,
    check_indices,
    check_same_spec,
    pointers,
)
from keras_bandgnn.data.reading import read_json, refuse
from keras_bandgnn.data.store_format import (
    DESCRIPTION,
    SIZES,
    check_features,
    check_file,
    check_header,
    check_sum,
    check_units,
    read_arrow,
    read_shard,
)
from keras_bandgnn.graph import Graph

_AGAIN = "Copy the store again, or write it again."


def open_store(path: str | os.PathLike) -> "GraphStore":
    """Opens a store that `write_store` or `StoreWriter` made.

    Only the description and the sizes are read; shards are mapped into memory when
    they are first used. Then their bytes are compared with their checksums and their
    content is checked, once: about 1.3 s per GB, 0.8 s for a million graphs of ten
    nodes. `store.verify()` compares the checksums of all.

    Raises:
        FileNotFoundError: If the directory or one of its files is missing.
        ValueError: If a file is truncated, not part of a store, or of a newer version.

    Example:
    >>> from keras_bandgnn import Graph
    >>> from keras_bandgnn.data import write_store
    >>> path = write_store("pairs.store", [Graph(2, [0], [1])]).path
    >>> with open_store(path) as store:
    ...     print(len(store), store[-1].num_nodes)
    1 2
    """
    return GraphStore(path)


class _Shards(Sequence):
    """The shards that hold graphs, checked and mapped on first use."""

    def __init__(self, store: "GraphStore", units: list[dict]):
        self._store = weakref.proxy(store)
        self._units = units
        self._mapped: list[FlatGraphs | None] | None = [None] * len(units)

    def __len__(self) -> int:
        return len(self._units)

    def __getitem__(self, index: int) -> FlatGraphs:
        if self._mapped is None:
            raise ValueError(
                f"Expected an open store. Received: {self._store.path}, closed. "
                "Open it again with open_store."
            )
        shard = self._mapped[index]
        if shard is None:
            shard = self._store._read(operator.index(index) % len(self))
            self._mapped[index] = shard
        return shard

    def close(self) -> None:
        self._mapped = None


class GraphStore(Sequence):
    """A directory of graphs, memory-mapped; made by `open_store`.

    Indexing gives a `Graph` of read-only views into the files, a slice a list of
    them. A store pickles as its path, so that worker processes map the same memory.

    Attributes:
        path: The directory.
        metadata: The facts that the store was written with.
        fingerprint: Description of the job that wrote it.
        features: `[dtype, trailing shape]` by feature, such as `"node/type"`.
        reports: The report of each unit of the job.
        num_nodes: int32 [n], nodes of each graph, without touching the graphs.
        num_edges: int32 [n], edges of each graph.
        shards: Sequence of `FlatGraphs`, mapped on first use.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = as_path("path", path).absolute()
        description = _read_description(self.path)
        self.metadata: dict[str, Any] = description["metadata"]
        self.fingerprint: dict[str, Any] = description["fingerprint"]
        self.features: dict[str, list] = description["features"]
        units = description["units"]
        self.reports: list = [unit["report"] for unit in units]
        self._files = [unit for unit in units if unit["file"]]
        for unit in self._files:
            check_file(self.path / unit["file"], unit["bytes"])
        self._starts = pointers([unit["graphs"] for unit in self._files])
        sizes = _read_sizes(self.path / SIZES, description["graphs"])
        self.num_nodes: np.ndarray = sizes["num_nodes"]
        self.num_edges: np.ndarray = sizes["num_edges"]
        self.shards = _Shards(self, self._files)

    def _read(self, index: int) -> FlatGraphs:
        """Maps a shard and checks it against what the store says of it."""
        unit = self._files[index]
        path = self.path / unit["file"]
        shard = read_shard(path, unit)
        check_same_spec(str(path), shard.spec(), DESCRIPTION, self.features)
        rows = slice(self._starts[index], self._starts[index + 1])
        for name in ("num_nodes", "num_edges"):
            if not np.array_equal(getattr(shard, name), getattr(self, name)[rows]):
                refuse(path, f"to have the {name} that {SIZES} lists", "others", _AGAIN)
        return shard

    def locate(self, indices: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns the shard of each graph and its row there, both int64 [m].

        Raises:
            IndexError: If an index is out of range.
        """
        indices = check_indices(indices, len(self))
        shard = np.searchsorted(self._starts, indices, side="right") - 1
        return shard, indices - self._starts[shard]

    def take(self, indices: Any) -> FlatGraphs:
        """Copies the graphs at `indices`, in their order, into one `FlatGraphs`.

        Raises:
            IndexError: If an index is out of range.
        """
        shard, row = self.locate(indices)
        if not len(self.shards):
            return FlatGraphs.from_graphs([])
        used = np.unique(shard) if len(shard) else [0]
        parts = [self.shards[s].take(row[shard == s]) for s in used]
        joined = FlatGraphs.concatenate(parts)
        if (shard[1:] >= shard[:-1]).all():
            return joined
        back = np.empty(len(row), np.int64)
        back[np.argsort(shard, kind="stable")] = np.arange(len(row))
        return joined.take(back)

    def verify(self) -> None:
        """Reads all shards and compares their checksums.

        Raises:
            ValueError: If the bytes of a shard are not those that were written.
        """
        for unit in self._files:
            check_sum(self.path / unit["file"], unit["sha256"])

    def close(self) -> None:
        """Lets go of the files; graphs that were taken before stay valid."""
        self.shards.close()

    def __enter__(self) -> "GraphStore":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __reduce__(self):
        return open_store, (str(self.path),)

    def __len__(self) -> int:
        return len(self.num_nodes)

    def __getitem__(self, index: int | slice) -> Graph | list[Graph]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = check_index(index, len(self))
        shard = int(np.searchsorted(self._starts, i, side="right")) - 1
        return self.shards[shard][i - self._starts[shard]]

    def __iter__(self) -> Iterator[Graph]:
        for shard in self.shards:
            yield from shard

    def __repr__(self) -> str:
        return f"GraphStore({str(self.path)!r}, graphs={len(self)})"


def _read_sizes(path: Path, graphs: int) -> dict[str, np.ndarray]:
    """Numbers of nodes and edges of each graph."""
    batch, _ = read_arrow(path)
    sizes = {}
    for name, low in (("num_nodes", 1), ("num_edges", 0)):
        found = batch.column(name) if name in batch.schema.names else None
        if found is None or str(found.type) != "int32" or found.null_count:
            refuse(path, f"to have a column {name} of int32", batch.schema.names)
        sizes[name] = found.to_numpy()
        if len(found) != graphs:
            refuse(path, f"to list {graphs} graphs", str(len(found)), _AGAIN)
        if len(found) and sizes[name].min() < low:
            refuse(path, f"to have {name} of at least {low}", str(sizes[name].min()))
    return sizes


def _read_description(directory: Path) -> dict[str, Any]:
    path = directory / DESCRIPTION
    partial = directory.with_name(directory.name + ".partial")
    restore_replaced(directory)
    if not directory.is_dir():
        hint = "Check the path."
        if partial.is_dir():
            hint = f"An unfinished one lies at {partial}: run its job again to resume."
        raise FileNotFoundError(
            f"Expected a store, a directory, at {directory}. Received: no directory is "
            f"there. {hint}"
        )
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected {directory} to be a store, with a {DESCRIPTION}. Received: a "
            "directory without it. Pass a directory made by write_store."
        )
    check_file(path)
    description = read_json(path)
    check_header(path, description)
    keys = {"metadata", "fingerprint", "features", "units", "graphs"}
    if missing := sorted(keys - description.keys()):
        refuse(path, f"to have the keys {sorted(keys)}", f"without {missing}", _AGAIN)
    for key in ("metadata", "fingerprint", "features"):
        if not isinstance(description[key], dict):
            refuse(path, f"to have an object {key!r}", description[key], _AGAIN)
    check_features(path, description["features"])
    check_units(path, description["units"])
    count = sum(unit["graphs"] for unit in description["units"])
    if type(description["graphs"]) is not int or description["graphs"] != count:
        refuse(
            path,
            f"to list {description['graphs']} graphs",
            f"units of {count} graphs",
            _AGAIN,
        )
    return description
