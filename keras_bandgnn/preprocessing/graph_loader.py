"""`GraphLoader`: batches of graphs for `fit`, `evaluate` and `predict`."""

import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import keras
import numpy as np

from keras_bandgnn.checks import positive_int
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.assemble import (
    assemble_supergraph,
    stack,
    supergraph_edges,
)
from keras_bandgnn.preprocessing.dynamic_batcher import DynamicBatcher
from keras_bandgnn.preprocessing.epochs import Epochs
from keras_bandgnn.primitives.auto import auto_plan
from keras_bandgnn.primitives.plan import Plan, is_resource


class GraphLoader(keras.utils.PyDataset):
    """Supergraphs of one static shape, assembled ahead of the device.

    The composition of an epoch follows from the graphs' sizes, `seed` and the number
    of the epoch alone: the length is known and the same in every epoch, any batch can
    be built at any time, and every graph occurs exactly once per epoch.

    Args:
        graphs: A list of `Graph`, a `FlatGraphs` or an opened store.
        batcher: `DynamicBatcher`; one without a budget is adapted to these graphs.
        plan: A `Plan`, or `"auto"`: `Grouped` for typed edges and `Segment` for
            untyped ones on CPUs, `Banded` with an exact rest on GPUs and TPUs.
        shuffle: Whether each epoch has a new order.
        seed: Seed of the orders.
        num_edge_types: P; by default one more than the largest type that occurs.
        replicas: G, supergraphs per batch.
        prefetch: Batches that a thread assembles ahead; 0 for none.

    Raises:
        ValueError: For no graphs, graphs that disagree, or graphs above the budget
            when the batcher says `oversize="raise"`.

    Example:
    >>> from keras_bandgnn import Graph
    >>> loader = GraphLoader([Graph(2, [0], [1], label=1.5)] * 10)
    >>> x, y, weight = loader[0]
    >>> int(weight.sum())
    10
    """

    def __init__(
        self,
        graphs,
        batcher: DynamicBatcher | None = None,
        plan: Plan | str = "auto",
        shuffle: bool = True,
        seed: int = 0,
        num_edge_types: int | None = None,
        replicas: int = 1,
        prefetch: int = 2,
    ):
        super().__init__(workers=1)
        self.parts = _parts(graphs)
        self.starts = np.cumsum([0, *(len(part) for part in self.parts)])
        if not self.starts[-1]:
            raise ValueError("Expected at least one graph. Received: none.")
        occurring = max(int(p.edge_type.max(initial=0)) + 1 for p in self.parts)
        self.num_edge_types = num_edge_types or occurring
        if occurring > self.num_edge_types:
            raise ValueError(
                f"Expected edge types in [0, {self.num_edge_types}), as "
                f"num_edge_types={num_edge_types}. Received: type {occurring - 1}. "
                "Raise num_edge_types of the model."
            )
        self.batcher = batcher or DynamicBatcher()
        self.plan = auto_plan(self.num_edge_types) if plan == "auto" else plan
        if not isinstance(self.plan, Plan):
            raise ValueError(
                "Expected `plan` to be 'auto' or a keras_bandgnn.primitives.Plan. "
                f"Received: plan={plan!r}."
            )
        self.shuffle = bool(shuffle)
        self.seed = positive_int("seed", seed, 0)
        self.replicas = positive_int("replicas", replicas)
        self.prefetch = positive_int("prefetch", prefetch, 0)
        # Batches have the same keys throughout: slots only if every graph has one.
        self._slots = all(part.slot.min() >= 0 for part in self.parts)
        self.sizes = self._measure()
        self._budget()
        self.epoch = 0
        self._lock = threading.Lock()
        self._pool = None
        self._ahead: dict[tuple, Future] = {}
        self._composed: tuple | None = None
        self._epochs = Epochs(
            self.sizes,
            self._bucket,
            self.budgets,
            self.batcher,
            self.seed if self.shuffle else None,
            self.replicas,
        )

    def _measure(self) -> dict[str, np.ndarray]:
        tables = []
        for part in self.parts:
            table = {"node": part.num_nodes, "edge": part.num_edges}
            if part.candidates is not None:
                table["candidate"] = np.diff(part.candidate_ptr)
            total = int(part.node_ptr[-1])
            edges = supergraph_edges(part, total, self.num_edge_types)
            graph = np.repeat(np.arange(len(part)), part.num_edges)
            table.update(self.plan.sizes(edges, graph, len(part)))
            tables.append(table)
        return {
            name: np.concatenate([np.asarray(t[name], np.int64) for t in tables])
            for name in tables[0]
        }

    def _budget(self) -> None:
        known = {*self.sizes, "graph", "candidate"}
        # A saved budget may hold the resources of another plan.
        unknown = [
            name
            for name in self.batcher.given
            if name not in known and not is_resource(name)
        ]
        if unknown:
            raise ValueError(
                f"Expected a budget of {sorted({*self.sizes, 'graph'})}. "
                f"Received: unknown resources {unknown}."
            )
        if set(self.sizes) - set(self.batcher.budget) or (
            "graph" not in self.batcher.budget
        ):
            self.batcher.adapt(self.sizes)
        large = ~self.batcher.fits(self.sizes)
        # Bucket of each graph: 0 the budget, 1 the larger one, 2 left out.
        self._bucket = large.astype(np.int8)
        self.budgets = [self.batcher.budget]
        self.num_dropped = 0
        if not large.any():
            return
        if self.batcher.oversize == "raise":
            first = int(np.flatnonzero(large)[0])
            needs = {name: int(values[first]) for name, values in self.sizes.items()}
            raise ValueError(
                f"Expected every graph to fit the budget {self.batcher.budget}. "
                f"Received: {large.sum()} graphs above it, first graph {first} "
                f"with {needs}. Raise the budget or use oversize='bucket'."
            )
        if self.batcher.oversize == "drop":
            self.num_dropped = int(large.sum())
            self._bucket[large] = 2
            return
        self.budgets.append(self.batcher.bucket(self.sizes, large))

    def composition(self, epoch: int) -> list[tuple[np.ndarray, int]]:
        """The graphs of each supergraph of an epoch, with their bucket."""
        return self._epochs.composition(epoch)

    def _composition(self, epoch: int) -> list:
        with self._lock:
            if self._composed is None or self._composed[0] != epoch:
                self._composed = (epoch, self.composition(epoch))
            return self._composed[1]

    def __len__(self) -> int:
        return self._epochs.length // self.replicas

    @property
    def num_batches(self) -> int:
        """Batches per epoch."""
        return len(self)

    def _take(self, members: np.ndarray) -> tuple[FlatGraphs, np.ndarray]:
        if len(self.parts) == 1:
            return self.parts[0].take(members), members
        members = np.sort(members)
        shard = np.searchsorted(self.starts, members, side="right") - 1
        taken = [
            self.parts[s].take(members[shard == s] - self.starts[s])
            for s in np.unique(shard)
        ]
        return FlatGraphs.concatenate(taken or [self.parts[0].take(members)]), members

    def build(self, index: int, epoch: int):
        """Builds batch `index` of `epoch`: (x, y, sample_weight), or (x,)."""
        first = index * self.replicas
        chosen = self._composition(epoch)[first : first + self.replicas]
        built = []
        for members, bucket in chosen:
            part, members = self._take(members)
            built.append(
                assemble_supergraph(
                    part,
                    members,
                    self.budgets[bucket],
                    self.plan,
                    self.num_edge_types,
                    self._slots,
                )
            )
        x, y, weight = (stack(column) for column in zip(*built, strict=True))
        return (x,) if y is None else (x, y, weight)

    def __getitem__(self, index: int):
        if not 0 <= index < len(self):
            raise IndexError(
                f"Expected a batch index in [0, {len(self)}). Received: {index}."
            )
        if not self.prefetch:
            return self.build(index, self.epoch)
        epoch = self.epoch
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, "graph-loader")
            wanted = range(index, min(index + 1 + self.prefetch, len(self)))
            keys = {(epoch, i) for i in wanted}
            self._ahead = {k: f for k, f in self._ahead.items() if k in keys}
            for i in wanted:
                if (epoch, i) not in self._ahead:
                    self._ahead[epoch, i] = self._pool.submit(self.build, i, epoch)
            future = self._ahead.pop((epoch, index))
        return future.result()

    def on_epoch_end(self) -> None:
        """Moves on to the order of the next epoch."""
        if self.shuffle:
            self.epoch += 1

    def __repr__(self) -> str:
        return (
            f"GraphLoader(graphs={self.starts[-1]}, batches={len(self)}, "
            f"budget={self.batcher.budget}, plan={self.plan})"
        )


def _parts(graphs) -> list[FlatGraphs]:
    if isinstance(graphs, FlatGraphs):
        return [graphs]
    if hasattr(graphs, "shards"):
        return [part for part in graphs.shards if len(part)]
    if not isinstance(graphs, Iterable):
        raise ValueError(
            "Expected a list of Graph, a FlatGraphs or an opened store. "
            f"Received: {type(graphs).__name__}."
        )
    graphs = list(graphs)
    wrong = [item for item in graphs if not isinstance(item, Graph)]
    if wrong:
        raise ValueError(
            f"Expected every item to be a Graph. Received: {type(wrong[0]).__name__}."
        )
    return [FlatGraphs.from_graphs(graphs)]
