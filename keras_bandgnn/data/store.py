"""`GraphStore`: graphs on disk, memory-mapped for random access."""

from __future__ import annotations

import operator
import os
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from keras_bandgnn.checks import as_path
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import (
    check_index,
    check_indices,
    check_same_spec,
    pointers,
)
from keras_bandgnn.data.store_files import (
    DESCRIPTION,
    SIZES,
    check_file,
    check_sum,
    read_description,
    read_shard,
    read_sizes,
    refuse_part,
)
from keras_bandgnn.graph import Graph

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def open_store(path: str | os.PathLike) -> GraphStore:
    """Open a store written by `write_store` or `StoreWriter`.

    Reads only the description and the sizes. Shards are memory-mapped on first use,
    when their checksums and their content are verified once: about 1.3 s per GB, 0.8 s
    for a million graphs of ten nodes. `store.verify()` compares all checksums.

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
    """The non-empty shards, verified and memory-mapped on first use."""

    def __init__(self, store: GraphStore, units: list[dict]):
        self._store = weakref.proxy(store)
        self._units = units
        self._mapped: list[FlatGraphs | None] | None = [None] * len(units)

    def __len__(self) -> int:
        return len(self._units)

    def __getitem__(self, index: int) -> FlatGraphs:
        if self._mapped is None:
            raise ValueError(
                f"Expected an open store. Received: the closed {self._store.path}. "
                "Open it again with open_store."
            )
        shard = self._mapped[index]
        if shard is None:
            shard = self._store._read(operator.index(index) % len(self))
            self._mapped[index] = shard
        return shard

    def close(self) -> None:
        self._mapped = None


class GraphStore(Sequence[Graph]):
    """A memory-mapped directory of graphs, returned by `open_store`.

    Indexing returns a `Graph` of read-only views into the files; a slice returns a list
    of graphs. A store is pickled as its path, so that worker processes map the same
    memory.

    Attributes:
        path: The directory.
        metadata: Free-form metadata of the store.
        fingerprint: Description of the job that wrote it.
        features: `[dtype, trailing shape]` by feature, such as `"node/type"`.
        reports: The report of each unit of the job.
        num_nodes: int32 [n], nodes of each graph, available without reading graphs.
        num_edges: int32 [n], edges of each graph.
        shards: Sequence of `FlatGraphs`, mapped on first use.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = as_path("path", path).absolute()
        description = read_description(self.path)
        self.metadata: dict[str, Any] = description["metadata"]
        self.fingerprint: dict[str, Any] = description["fingerprint"]
        self.features: dict[str, list] = description["features"]
        units = description["units"]
        self.reports: list = [unit["report"] for unit in units]
        self._files = [unit for unit in units if unit["file"]]
        for unit in self._files:
            check_file(self.path / unit["file"], unit["bytes"])
        self._starts = pointers([unit["graphs"] for unit in self._files])
        sizes = read_sizes(self.path / SIZES, description["graphs"])
        self.num_nodes: np.ndarray = sizes["num_nodes"]
        self.num_edges: np.ndarray = sizes["num_edges"]
        self.shards = _Shards(self, self._files)

    def _read(self, index: int) -> FlatGraphs:
        """Map a shard and verify it against the store's description."""
        unit = self._files[index]
        path = self.path / unit["file"]
        shard = read_shard(path, unit)
        check_same_spec(str(path), shard.spec(), DESCRIPTION, self.features)
        rows = slice(self._starts[index], self._starts[index + 1])
        for name in ("num_nodes", "num_edges"):
            if not np.array_equal(getattr(shard, name), getattr(self, name)[rows]):
                refuse_part(
                    path, f"to have the {name} listed in {SIZES}", "other values"
                )
        return shard

    def locate(self, indices: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Return the shard of each graph and its row in the shard, both int64 [m].

        Raises:
            IndexError: If an index is out of range.
        """
        indices = check_indices(indices, len(self))
        shard = np.searchsorted(self._starts, indices, side="right") - 1
        return shard, indices - self._starts[shard]

    def take(self, indices: ArrayLike) -> FlatGraphs:
        """Copy the graphs at `indices`, in this order, into one `FlatGraphs`.

        Raises:
            IndexError: If an index is out of range.
        """
        shard, row = self.locate(indices)
        if not len(self.shards):
            return FlatGraphs.from_graphs([])
        numbers = np.unique(shard) if len(shard) else [0]
        parts = [self.shards[s].take(row[shard == s]) for s in numbers]
        merged = FlatGraphs.concatenate(parts)
        if (shard[1:] >= shard[:-1]).all():
            return merged
        inverse = np.empty(len(row), np.int64)
        inverse[np.argsort(shard, kind="stable")] = np.arange(len(row))
        return merged.take(inverse)

    def verify(self) -> None:
        """Read all shards and verify their checksums.

        Raises:
            ValueError: If the checksum of a shard differs.
        """
        for unit in self._files:
            check_sum(self.path / unit["file"], unit["sha256"])

    def close(self) -> None:
        """Close the files; graphs returned before stay valid."""
        self.shards.close()

    def __enter__(self) -> GraphStore:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __reduce__(self):
        return open_store, (str(self.path),)

    def __len__(self) -> int:
        return len(self.num_nodes)

    @overload
    def __getitem__(self, index: int) -> Graph: ...

    @overload
    def __getitem__(self, index: slice) -> list[Graph]: ...

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
