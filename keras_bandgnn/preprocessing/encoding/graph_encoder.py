"""`GraphEncoder`: the first layer of a preprocessor, from raw items to graphs."""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack, overload

import numpy as np

from keras_bandgnn.checks import as_path, one_of, optional, positive_int, refuse
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import SETS, check_same_spec
from keras_bandgnn.data.sources import CHUNK_BYTES, CHUNK_GRAPHS, graph_bytes
from keras_bandgnn.graph import Graph
from keras_bandgnn.host_keras import keras
from keras_bandgnn.preprocessing.encoding.raw_items import (
    beside_graphs,
    first_item,
    raw_items,
)
from keras_bandgnn.preprocessing.encoding.vocabulary import is_missing
from keras_bandgnn.preprocessing.graph_layer import GraphLayer
from keras_bandgnn.progress import progress_bar

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Data, Item, LayerOptions

_LOG = logging.getLogger(__name__)
# Items per job of a worker process.
_JOB_ITEMS = 2000
# Items from which processes are started by default.
_MANY_ITEMS = 10_000
_MOST_SHOWN = 3


class Encoded(NamedTuple):
    """Graphs, and the items that they were made of.

    Attributes:
        graphs: The graphs of all items that could be converted; None if none could.
        positions: int64 [n], position of each graph's item.
        errors: Why the other items could not be converted, by position.
    """

    graphs: FlatGraphs | None
    positions: np.ndarray
    errors: dict[int, str]

    def require_graphs(self) -> None:
        """Raise a ValueError if no item could be converted."""
        if self.graphs is None:
            why = f" ({next(iter(self.errors.values()))})" if self.errors else ""
            raise ValueError(
                "Expected at least one item that can be converted to a graph. "
                f"Received: none of {len(self.errors)}{why}."
            )


def _merged(graphs: list[Graph], positions: list[int], errors: dict) -> Encoded:
    """Merge graphs; see `Encoded`.

    Raises:
        ValueError: If graphs disagree in their features, naming the items.
    """
    try:
        flat = FlatGraphs.from_graphs(graphs) if graphs else None
    except ValueError:
        first, *specs = (FlatGraphs.from_graphs([graph]).spec() for graph in graphs)
        for position, spec in zip(positions[1:], specs, strict=True):
            check_same_spec(f"item {position}", spec, f"item {positions[0]}", first)
        raise
    return Encoded(flat, np.array(positions, np.int64), errors)


class GraphEncoder(GraphLayer):
    """Base of layers that convert raw items, such as molecules, to graphs.

    An encoder is the first layer of a `GraphPreprocessor`; tasks then take raw items
    wherever they take graphs. Graphs pass unchanged. What an encoder learns from data,
    such as vocabularies, are constructor arguments that `adapt` sets: presets keep
    them. `fit` adapts an encoder that has not been adapted.

    Subclasses define `accepts(item)`, `encode_item(item)` and `content(item)`, and,
    if they learn from data, `is_adapted` and `learn(items)`.

    Args:
        on_error: `"raise"` an error for the first item that cannot be converted, or
            `"skip"` such items: they are counted in a warning, left out of training,
            and `predict` returns None for them.

    Attributes:
        processes: Number of processes that convert data. None, unless set: one per
            core for 10,000 items or more of the library's encoders for which this
            pays, otherwise 1. They import the libraries anew, but not the script.
        cache: Folder that keeps converted data by content, None unless set. Neither is
            saved with the encoder.
    """

    def __init__(self, on_error: str = "raise", **kwargs: Unpack[LayerOptions]):
        super().__init__(**kwargs)
        self.on_error = one_of("on_error", on_error, ("raise", "skip"))
        self.processes: int | None = None
        self.cache: str | None = None

    @classmethod
    def accepts(cls, item: Item) -> bool:
        """Return whether an item is of the kind that this encoder converts.

        It imports no library.
        """
        raise NotImplementedError

    @classmethod
    def for_item(cls, item: Item) -> GraphEncoder:
        """Return an encoder for data that begins with this item."""
        del item
        return cls()

    @property
    def is_adapted(self) -> bool:
        """Whether the encoder knows all that it learns from data."""
        return True

    @property
    def num_edge_types(self) -> int:
        """P, for backbones that read types of edges."""
        return 1

    def splits(self, items: Sequence) -> bool:
        """Return whether several processes convert many items by default.

        Where this is faster, and the items reach other processes unchanged.
        """
        del items
        return False

    def encode_item(self, item: Item) -> Graph:
        """Convert one item.

        Raises:
            ValueError: If it cannot be converted.
        """
        raise NotImplementedError

    def content(self, item: Item) -> bytes:
        """Return bytes that two items share exactly if they are the same."""
        raise NotImplementedError

    def group(self, item: Item) -> bytes:
        """Return bytes that items of one kind share, such as spellings of a molecule.

        `validation_split` keeps such items together, and also items whose graphs the
        model cannot tell apart.
        """
        return self.content(item)

    def varying(self) -> tuple[str, ...]:
        """Return the features in which items of one kind may differ, none by default.

        They do not count where `validation_split` compares graphs.
        """
        return ()

    def learn(self, items: Iterable[Item]) -> None:
        """Learn vocabularies and the like from data."""

    def adapt(self, items: Data) -> GraphEncoder:
        """Learn vocabularies and the like from data, and return the encoder.

        Args:
            items: Raw items in any form that `fit` takes; graphs teach nothing.

        Raises:
            ValueError: If there are items, and the encoder converts none of them.
        """
        items = [item for item in raw_items(items) if not isinstance(item, Graph)]
        present = [item for item in items if not is_missing(item)]
        if present and not any(map(self.accepts, present)):
            refuse("items", self._expected(), present[0], self._advice(present[0]))
        self.learn(items)
        return self

    def inputs(self) -> dict[str, dict[str, int]]:
        """Return the `inputs` of a backbone for the node features of the graphs."""
        raise NotImplementedError

    def edge_inputs(self) -> dict[str, dict] | None:
        """Return the `edge_inputs` of a backbone for the edge features of the graphs.

        None if edges have none, as backbones take it. Types of edges are among them,
        as `"type"`, where no other feature says the same.
        """
        return None

    def categories(self) -> dict[str, list[str]]:
        """Return the features with a vocabulary, by level; their id 0 is unknown.

        Levels are `"node"`, `"edge"`, `"context"`, and `"sets/<set>"` of node sets.
        """
        return {}

    def label_advice(self) -> str:
        """Return how the encoder would give labels that it leaves out, or nothing."""
        return ""

    @overload
    def __call__(self, graphs: str) -> Graph: ...

    @overload
    def __call__(self, graphs: Sequence) -> FlatGraphs: ...

    @overload
    def __call__(self, graphs: Item) -> Item: ...

    def __call__(self, graphs: Data) -> Graph | FlatGraphs:
        """Convert one item, or each of several; see `encode`."""
        if isinstance(graphs, Graph) or self.accepts(graphs):
            return self.call(graphs)
        if isinstance(graphs, FlatGraphs) or hasattr(graphs, "shards"):
            return graphs
        encoded = self.encode(graphs)
        encoded.require_graphs()
        return encoded.graphs

    def call(self, item: Item) -> Graph:
        """Convert an item; a `Graph` is returned as it is."""
        if isinstance(item, Graph):
            return item
        self._check(item)
        self.require_adapted()
        return self.encode_item(item)

    def _check(self, item: Any) -> None:
        """Raise a ValueError if an item is of another kind."""
        if not self.accepts(item):
            refuse("item", self._expected(), item, self._advice(item))

    def require_adapted(self) -> None:
        """Raise a ValueError if the encoder has yet to learn from data."""
        if not self.is_adapted:
            raise ValueError(
                f"Expected an adapted {type(self).__name__}. Received: one that has "
                "seen no data. Call encoder.adapt(items), or fit a task first."
            )

    def _advice(self, item: Any) -> str:
        """Return what to do with an item of another kind."""
        if isinstance(item, Mapping):
            return f"For tables write TableEncoder(column, {type(self).__name__}())."
        return ""

    def _expected(self) -> str:
        return f"an item that {type(self).__name__} converts"

    def encode(self, items: Data, progress: bool = True, first: int = 0) -> Encoded:
        """Convert items to graphs.

        Args:
            items: Raw items or graphs, in any form that `fit` takes.
            progress: Whether to show a progress bar on standard error after two
                seconds.
            first: Position of the first item, in errors and warnings.

        Returns:
            Graphs, positions and errors, see `Encoded`.

        Raises:
            ValueError: If an item cannot be converted, naming its position, unless
                `on_error="skip"`.
        """
        from keras_bandgnn.data.store import open_store
        from keras_bandgnn.data.store_writer import write_store

        items = raw_items(items)
        self.require_adapted()
        optional(positive_int, "processes", self.processes)
        if self.cache is None:
            return self._encode(items, progress, first)
        path = as_path("cache", self.cache) / f"{self._digest(items)}.bgnn"
        if not path.exists():
            encoded = self._encode(items, progress, first)
            if encoded.graphs is None:
                return encoded
            record = {
                "positions": encoded.positions.tolist(),
                "errors": [[k, v] for k, v in encoded.errors.items()],
            }
            path.parent.mkdir(parents=True, exist_ok=True)
            write_store(path, encoded.graphs, metadata={"encoded": record})
            return encoded
        store = open_store(path)
        record = store.metadata["encoded"]
        encoded = Encoded(
            FlatGraphs.concatenate(list(store.shards)),
            np.array(record["positions"], np.int64),
            {int(k): v for k, v in record["errors"]},
        )
        self._warn(encoded.errors, len(items), first)
        return encoded

    def _digest(self, items: Sequence) -> str:
        config = self.plain_config()
        text = json.dumps([type(self).__name__, config], sort_keys=True)
        digest = hashlib.sha256(text.encode())
        for item in items:
            graph = isinstance(item, Graph)
            content = _graph_content(item) if graph else self.content(item)
            digest.update(len(content).to_bytes(8, "little") + content)
        return digest.hexdigest()

    def _encode(self, items: Sequence, progress: bool, start: int) -> Encoded:
        parts, positions, errors = [], [], {}
        with progress_bar("Converting to graphs", len(items), progress) as advance:
            for piece in self._pieces(items, advance):
                if piece.errors and self.on_error == "raise":
                    position, why = min(piece.errors.items())
                    raise ValueError(
                        f"Expected items that {type(self).__name__} converts to "
                        f"graphs. Received: item {start + position}: {why} To leave "
                        f"out such items, set {type(self).__name__}(on_error='skip')."
                    )
                errors |= piece.errors
                if piece.graphs is None:
                    continue
                parts.append(piece.graphs)
                positions.append(piece.positions)
                check_same_spec(
                    f"item {start + piece.positions[0]}",
                    piece.graphs.spec(),
                    f"item {start + positions[0][0]}",
                    parts[0].spec(),
                )
        self._warn(errors, len(items), start)
        if not parts:
            return Encoded(None, np.zeros(0, np.int64), errors)
        merged, positions = FlatGraphs.concatenate(parts), np.concatenate(positions)
        self._warn_unknown(merged, start + positions)
        return Encoded(merged, positions, errors)

    def _warn_unknown(self, graphs: FlatGraphs, positions: Sequence[int]) -> None:
        """Warn of graphs in which no value of a feature is in its vocabulary."""
        pointers = {
            "node": graphs.node_ptr,
            "edge": graphs.edge_ptr,
            "context": np.arange(len(graphs) + 1),
            **{f"{SETS}/{name}": ptr for name, ptr in graphs.set_ptr.items()},
        }
        columns = graphs.columns()
        for level, names in self.categories().items():
            pointer = pointers[level]
            for name in names:
                counts = np.cumsum(columns[f"{level}/{name}"] > 0)
                counts = np.diff(np.concatenate([[0], counts])[pointer])
                unknown = np.flatnonzero((counts == 0) & (np.diff(pointer) > 0))
                if unknown.size:
                    _LOG.warning(
                        "%s knows no value of %s[%r] in %d of %d graphs (first: item "
                        "%d). Their ids are 0, as of missing values.",
                        type(self).__name__,
                        level,
                        name,
                        unknown.size,
                        len(graphs),
                        positions[unknown[0]],
                    )

    def _warn(self, errors: Mapping[int, str], count: int, start: int) -> None:
        if errors:
            first = list(errors.items())[:_MOST_SHOWN]
            _LOG.warning(
                "%s left out %d of %d items: %s%s",
                type(self).__name__,
                len(errors),
                count,
                "; ".join(f"item {start + k}: {v}" for k, v in first),
                "; ..." if len(errors) > _MOST_SHOWN else "",
            )

    def pieces(
        self, items: Sequence, first: int, advance: Callable
    ) -> Iterator[Encoded]:
        """Yield the graphs of consecutive items, some at a time.

        Subclasses whose library converts many items at once override it.

        Args:
            items: Raw items or graphs.
            first: Position of the first one.
            advance: Is called with the number of items that are done.

        Returns:
            `Encoded` for the next items, with positions that count from `first`. An
            item that cannot be converted is the last one unless `on_error="skip"`.
        """
        graphs, positions, errors, size = [], [], {}, 0
        for position, item in enumerate(items, first):
            try:
                graph = self.call(item)
            except ValueError as error:
                errors[position] = str(error)
                if self.on_error == "raise":
                    break
            else:
                graphs.append(graph)
                positions.append(position)
                size += graph_bytes(graph)
            advance(1)
            if len(graphs) >= CHUNK_GRAPHS or size > CHUNK_BYTES:
                yield _merged(graphs, positions, errors)
                graphs, positions, errors, size = [], [], {}, 0
        if positions or errors:
            yield _merged(graphs, positions, errors)

    def _pieces(self, items: Sequence, advance: Callable) -> Iterator[Encoded]:
        """Yield what `pieces` yields, converted by `processes` processes."""
        from keras_bandgnn.workers import ordered_map

        processes = self.processes
        if processes is None:
            several = len(items) >= _MANY_ITEMS and self.splits(items)
            # Daemons have no children.
            several = several and not multiprocessing.current_process().daemon
            processes = (os.cpu_count() or 1) if several else 1
        processes = min(processes, -(-len(items) // _JOB_ITEMS))
        if processes == 1:
            yield from self.pieces(items, 0, advance)
            return
        jobs = [
            (self, items[first : first + _JOB_ITEMS], first)
            for first in range(0, len(items), _JOB_ITEMS)
        ]
        # An encoder of a user's own, alone or within another, may need Keras.
        encoders = (self, getattr(self, "encoder", self))
        of_library = [type(e).__module__.startswith("keras_bandgnn.") for e in encoders]
        results = ordered_map(
            _pieces_of, jobs, processes, None, host_only=all(of_library)
        )
        for (_, part, first), pieces in zip(jobs, results, strict=True):
            if pieces is None:
                why = "the process that converted it ended."
                numbers = range(first, first + len(part))
                pieces = [_merged([], [], dict.fromkeys(numbers, why))]
            yield from pieces
            advance(len(part))

    def get_config(self) -> dict:
        """Return the arguments of the constructor."""
        return {**super().get_config(), "on_error": self.on_error}


def _graph_content(graph: Graph) -> bytes:
    columns = sorted(FlatGraphs.from_graphs([graph]).columns().items())
    text = [(name, str(array.dtype), array.shape) for name, array in columns]
    arrays = [np.ascontiguousarray(array).tobytes() for _, array in columns]
    return b"\0".join([repr(text).encode(), repr(graph.info).encode(), *arrays])


def accepting(item: Any) -> type[GraphEncoder] | None:
    """Return the registered encoder class that converts an item, or None."""
    for cls in keras.saving.get_custom_objects().values():
        if not isinstance(cls, type) or not issubclass(cls, GraphEncoder):
            continue
        if cls is not GraphEncoder and cls.accepts(item):
            return cls
    return None


def encoder_for(item: Any) -> GraphEncoder:
    """Return a new encoder for data that begins with this item.

    Raises:
        ValueError: If no registered encoder converts it.
    """
    cls = accepting(item)
    if cls is None:
        refuse("x", "SMILES strings, molecules, structures, graphs or rows", item)
    return cls.for_item(item)


def is_raw(data: Any) -> bool:
    """Return whether data is raw items that a registered encoder converts.

    A list with a graph and other items, None among them, is raw data, too: encoders
    return graphs as they are, and number all items as the caller does.
    """
    if isinstance(data, Graph | FlatGraphs) or hasattr(data, "shards"):
        return False
    if beside_graphs(data):
        return True
    item = first_item(data)
    # What Keras takes as one batch is a dict, too.
    if item is data and isinstance(data, Mapping) and "edge_index" not in data:
        return False
    return item is not None and accepting(item) is not None


def _pieces_of(encoder: GraphEncoder, items: Sequence, first: int) -> list[Encoded]:
    return list(encoder.pieces(items, first, lambda count: None))


def refuse_beside_graphs(data: Any, item: Any) -> None:
    """Raise a ValueError if a list has items beside graphs that no encoder converts.

    Args:
        data: The list.
        item: Its `first_item`.
    """
    others = beside_graphs(data)
    if others and (item is None or accepting(item) is None):
        position, other = next(iter(others.items()))
        raise ValueError(
            f"Expected graphs, as there is no encoder. Received: item {position}: "
            f"{other!r:.60}. Remove it."
        )
