"""`Loader`: the batches of epochs, for `fit`, `evaluate` and `predict`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bandgnn import keras_bases
from keras_bandgnn import ops as graph_ops
from keras_bandgnn.assembly.assembler import BatchAssembler, Supergraph
from keras_bandgnn.batch import in_order
from keras_bandgnn.checks import (
    INT32_MAX,
    boolean,
    instance,
    optional,
    positive_int,
    refuse,
    seed_number,
)
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.host_keras import keras
from keras_bandgnn.preprocessing.loading.batch_builder import (
    BatchBuilder,
    Composer,
    LoaderStats,
)
from keras_bandgnn.primitives.base import is_step_resource
from keras_bandgnn.primitives.grouped import Grouped
from keras_bandgnn.primitives.plan import Plan

if TYPE_CHECKING:
    import grain
    import tensorflow as tf
    import torch.utils.data

    from keras_bandgnn.aliases import Batch, Config, MaybeNone, Values
    from keras_bandgnn.data.link_ends import NodePairs
    from keras_bandgnn.graph import Graph
    from keras_bandgnn.preprocessing.sampling.sampler import Sampler

_STATE = {"batch", "epoch", "fingerprint"}


@dataclasses.dataclass
class Source:
    """The data of a loader, and how its batches carry the edges.

    Attributes:
        parts: The graphs.
        num_edge_types: P.
        plan: Which primitive processes which edges.
        edge_weight: Edge feature that is the factor of each message, or None.
        num_filtered: Graphs that the plan's filter leaves out.
        configs: Options, which JSON can hold, that change the batches.
        graph: The large graph from which batches are cut, or of which they have pairs.
        sampler: Neighbour or subgraph sampler; None for whole graphs.
        pairs: The true pairs of a `LinkLoader`; None for labels of graphs.
    """

    parts: Sequence[FlatGraphs]
    num_edge_types: int
    plan: Plan
    edge_weight: str | None = None
    num_filtered: int = 0
    configs: Sequence = ()
    graph: Any = None
    sampler: Any = None
    pairs: Any = None


def loader_options(
    shuffle, seed, replicas=1, prefetch=2, threads=1, host=0, num_hosts=1
) -> dict[str, Any]:
    """Return the options of orders, of building ahead and of hosts, after checks."""
    options = {
        "shuffle": boolean("shuffle", shuffle),
        "seed": seed_number("seed", seed),
        "replicas": positive_int("replicas", replicas),
        "prefetch": positive_int("prefetch", prefetch, 0),
        "threads": positive_int("threads", threads),
        "num_hosts": positive_int("num_hosts", num_hosts),
        "host": positive_int("host", host, 0),
    }
    if host >= num_hosts:
        refuse("host", f"in [0, {num_hosts}), as num_hosts={num_hosts}", host)
    return options


class Loader(keras_bases.PyDataset):
    """Batches of static shapes, assembled ahead of the device.

    `GraphLoader`, `SampleLoader`, `LinkLoader` and `SequenceLoader` make loaders, and
    `task.loader(graphs)` those of a task. The composer says which ids (graphs, items of
    a sampler, pairs) form which batch, and the assembler makes its arrays. Both depend
    on `seed` and the numbers of the epoch and the step alone: the length is the same in
    every epoch, and any batch can be built at any time by any number of threads.

    Args:
        source: What the batches are made of.
        composer: Deals out the ids of each epoch.
        assembler: Makes the arrays of a batch, and draws what is random.
        shuffle: Whether each epoch has a new order and new draws.
        seed: Of the orders and the draws.
        replicas: G, supergraphs per batch; see `GraphLoader`, also for the others.
        prefetch: Batches to assemble in advance; 0 for none.
        threads: Number of threads that assemble batches.
        host: Index of this host.
        num_hosts: Number of hosts that train together.

    Attributes:
        parts: The graphs, a list of `FlatGraphs`.
        starts: int64 [parts + 1], the id of the first graph of each part.
        plan: Which primitive processes which edges.
        num_edge_types: P.
        edge_weight: Edge feature that is the factor of each message, or None.
        num_filtered: Graphs that the plan's filter leaves out.
        graph: The large graph of samples, pairs and sequences, or None.
        sampler: Neighbour or subgraph sampler, or None.
        pairs: The true pairs of a `LinkLoader`, or None.
        epoch: Number of the current epoch.

    Example:
    >>> from keras_bandgnn import Graph
    >>> from keras_bandgnn.preprocessing import GraphLoader
    >>> whole = GraphLoader([Graph(2, [0], [1])] * 3, shuffle=False)
    >>> source = Source(whole.parts, whole.num_edge_types, whole.plan)
    >>> loader = Loader(source, whole.composer, whole.assembler, shuffle=False)
    >>> [x["graph"]["mask"].sum().item() for x, *_ in loader]
    [3]
    """

    parts: Sequence[FlatGraphs]
    num_edge_types: int
    plan: Plan
    edge_weight: str | None
    num_filtered: int
    configs: Sequence
    graph: Graph | MaybeNone
    sampler: Sampler | MaybeNone
    pairs: NodePairs | MaybeNone
    shuffle: bool
    seed: int
    replicas: int
    prefetch: int
    threads: int
    host: int
    num_hosts: int

    def __init__(
        self,
        source: Source,
        composer: Composer,
        assembler: BatchAssembler,
        *,
        shuffle: bool = True,
        seed: int = 0,
        replicas: int = 1,
        prefetch: int = 2,
        threads: int = 1,
        host: int = 0,
        num_hosts: int = 1,
    ):
        super().__init__(workers=1)
        instance("source", source, Source, "a Source")
        instance("composer", composer, Composer, "a Composer")
        instance("assembler", assembler, BatchAssembler, "a BatchAssembler")
        options = loader_options(
            shuffle, seed, replicas, prefetch, threads, host, num_hosts
        )
        for fields in (vars(source), options):
            for name, value in fields.items():
                setattr(self, name, value)
        self.starts = np.cumsum([0, *(len(part) for part in self.parts)])
        self.composer, self.assembler = composer, assembler
        self._sharing_is_known = False
        self._resumed_batches, self._hold_resume = 0, False
        self.epoch = 0
        self.begin()

    def begin(self) -> None:
        """Create threads and locks, as a forked process must."""
        self._builder = BatchBuilder(
            self.composer,
            self.assembler,
            replicas=self.replicas,
            host=self.host,
            num_hosts=self.num_hosts,
            prefetch=self.prefetch,
            threads=self.threads,
        )
        self._builder.stats = LoaderStats(self.epoch)

    def _share_states(self) -> None:
        """Let graphs share states, before the first batch: predictions need not."""
        if self._sharing_is_known:
            return
        self._sharing_is_known = True
        backend = keras.backend.backend()
        # Hosts that train together have equal shapes, and a data set of TensorFlow has
        # one signature.
        one_shape = self.num_hosts > 1 or backend == "tensorflow"
        if self.plan.schedule is None or one_shape:
            return
        self.assembler.share_states(
            [s for s in self.composition(0) if s.budget == self.budgets[0]],
            # Eager products by type take any number of rows.
            exact=backend == "torch"
            and not graph_ops.has_accelerator()
            and all(isinstance(p, Grouped) for p in self.plan.primitives),
        )

    def keep_states_apart(self) -> None:
        """Compute equal states of different graphs apart, from the next batch on.

        `fit` does so where a model has dropout, as graphs that share a state also share
        its mask.
        """
        self._sharing_is_known = True
        if self.shares_states:
            self.stop_threads()
            self.assembler.keep_states_apart()
            # Without the batches that have been built already.
            self.begin()

    @property
    def stats(self) -> LoaderStats:
        """Figures of the current epoch, as far as it has been read."""
        return self._builder.stats

    @property
    def sizes(self) -> Mapping[str, np.ndarray]:
        """Resource -> int64 [n], needs of graphs; or [1], needs of an epoch."""
        return self.composer.sizes

    @property
    def item(self) -> str:
        """Unit of an epoch: "graph", "item" of a sampler, "pair", "sequence"."""
        return self.composer.item

    @property
    def has_labels(self) -> bool:
        """Whether batches have labels: those of all graphs, or of pairs."""
        if self.pairs is not None:
            return True
        return all(part.label is not None for part in self.parts)

    @property
    def budgets(self) -> list[dict[str, int]]:
        """The usual budget and, where batches exceed it, larger ones."""
        return self.composer.budgets

    @property
    def has_one_shape(self) -> bool:
        """Whether all batches have one shape; those of samples as long as they fit."""
        return self.composer.has_one_shape and not self.shares_states

    @property
    def shares_states(self) -> bool:
        """Whether graphs of a supergraph share states; see `ReceptiveField`."""
        self._share_states()
        return self.assembler.shared_budget is not None

    @property
    def num_dropped(self) -> int:
        """Graphs, or other items, of an epoch that are left out."""
        return self.composer.num_dropped(self.composition(self.epoch))

    @property
    def num_oversized(self) -> int:
        """Graphs above the budget; of samples the budgets beyond the usual one."""
        return self.composer.num_oversized

    def composition(self, epoch: int) -> list[Supergraph]:
        """Return the supergraphs of an epoch, over all replicas and hosts.

        Each has the ids of its graphs (items, pairs) as `members` and its sizes as
        `budget`.
        """
        return self._builder.composition(epoch)

    def usage(self, epoch: int | None = None) -> dict[str, np.ndarray]:
        """Return the sizes of an epoch's batches, real and padded.

        Args:
            epoch: Number of the epoch; the current one if omitted.

        Returns:
            Resource ("graph", "node", "edge" and those of the plan) -> int64
            [2, batches]: what its real graphs need, and what they are padded to, over
            all replicas and hosts. Where graphs share states, both are those without
            sharing: the arrays of steps are smaller.
        """
        optional(positive_int, "epoch", epoch, 0)
        epoch = self.epoch if epoch is None else epoch
        return self.composer.usage(self.composition(epoch))

    def fill(self, epoch: int | None = None) -> dict[str, float]:
        """Return the share of each resource of an epoch that real graphs use.

        Args:
            epoch: Number of the epoch; the current one if omitted.

        Example:
        >>> from keras_bandgnn import Graph
        >>> from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader
        >>> batcher = DynamicBatcher(budget={"node": 65, "edge": 32, "graph": 17})
        >>> loader = GraphLoader([Graph(4, [0], [1])] * 16, batcher)
        >>> round(loader.fill()["graph"], 2)
        0.94
        """
        totals = {name: counts.sum(1) for name, counts in self.usage(epoch).items()}
        return {k: float(used / all_) for k, (used, all_) in totals.items() if all_}

    def summary(self) -> str:
        """Return in words how many batches an epoch has, their shapes, and how full.

        Example:
        >>> from keras_bandgnn import Graph
        >>> from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader
        >>> batcher = DynamicBatcher(budget={"node": 65, "edge": 32, "graph": 17})
        >>> GraphLoader([Graph(4, [0], [1])] * 16, batcher).summary()
        '1 batch of 65 nodes and 32 edges, 98 % and 50 % filled'
        """
        usage, fill = self.usage(), self.fill()
        names = ["node"]
        if self.plan.schedule is None:
            # With a schedule no array is as long as the edges.
            names.append("edge")
        sizes = []
        for name in names:
            low, high = usage[name][1].min(), usage[name][1].max()
            size = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            sizes.append(f"{size} {name}s")
        full = [f"{100 * fill.get(name, 0):.0f} %" for name in names]
        count = len(usage["node"][1])
        text = f"{count:,} batch{'es' if count > 1 else ''} of {' and '.join(sizes)}, "
        text += f"{' and '.join(full)} filled"
        steps = [usage[name].sum(1) for name in usage if is_step_resource(name)]
        if steps:
            used, room = np.sum(steps, axis=0)
            text += f" (rows and edges of the steps {100 * used / room:.0f} %)"
        return text

    def __len__(self) -> int:
        return self.composer.length - self._resumed_batches

    def supergraphs(self, index: int, epoch: int) -> list[Supergraph]:
        """Return the supergraphs of this host in batch `index` of an epoch."""
        return self._builder.supergraphs(index, epoch)

    def build(self, index: int, epoch: int) -> tuple:
        """Build batch `index` of `epoch`: (x, y, sample_weight), or (x,).

        Raises:
            IndexError: If an epoch has no such batch.
        """
        positive_int("index", index, -INT32_MAX)
        positive_int("epoch", epoch, 0)
        if not 0 <= index < self.composer.length:
            raise IndexError(
                f"Expected a batch in [0, {self.composer.length}). Received: {index}."
            )
        self._share_states()
        return self._builder.build(range(index, index + 1), epoch)[0][0]

    def build_as(self, groups: Sequence[np.ndarray], budget: dict[str, int]) -> tuple:
        """Build a batch of chosen graphs (items, pairs), padded to a budget.

        Args:
            groups: For each supergraph of the batch the ids of its graphs.
            budget: Capacities by name.
        """
        key = (self.seed, 0, 0)
        supergraphs = [Supergraph(np.asarray(i, np.int64), budget, key) for i in groups]
        built = self.assembler.build_within(supergraphs, len(supergraphs))
        return in_order(built)[0][0]

    def __getitem__(self, index: int) -> tuple:
        if not 0 <= index < len(self):
            raise IndexError(
                f"Expected a batch index in [0, {len(self)}). Received: {index}."
            )
        began = time.perf_counter()
        self._share_states()
        epoch, index = self.epoch, index + self._resumed_batches
        if self.stats.epoch != epoch or index == self._resumed_batches:
            self._builder.stats = LoaderStats(epoch)
        batch, figures = self._builder.get(index, epoch)
        if index == self.composer.length // 2 and self.shuffle:
            self._builder.compose_in_background(epoch + 1)
        self.stats.handed_out(began, figures)
        return batch

    def end_after(self, epoch: int | None) -> None:
        """Build no batches ahead after an epoch; None if more may follow on any."""
        self._builder.final = epoch

    def stop_threads(self) -> None:
        """Stop the threads that assemble, as the end of an epoch does.

        The next request for a batch starts them again.
        """
        self._builder.stop()

    def on_epoch_end(self) -> None:
        """Move on to the next epoch, from its first batch."""
        if self.shuffle:
            self.epoch += 1
        if not self._hold_resume:
            self._resumed_batches = 0

    def fingerprint(self) -> str:
        """Return a hash that tells apart loaders whose epochs differ."""
        order = [self.shuffle, self.seed, self.replicas * self.num_hosts]
        text = json.dumps([order, list(self.configs)], default=str)
        digest = hashlib.sha256(text.encode())
        for part in self.parts:
            if part.label is not None:
                digest.update(np.ascontiguousarray(part.label))
        for name in sorted(self.sizes):
            digest.update(np.ascontiguousarray(self.sizes[name]))
        return digest.hexdigest()

    def state_dict(self, batches: int = 0, epoch: int | None = None) -> Config:
        """Return where training is, for `load_state_dict` to resume from.

        Args:
            batches: Batches of the epoch that were used.
            epoch: The epoch, by default the current one.

        Returns:
            A dict that JSON can hold.
        """
        optional(positive_int, "epoch", epoch, 0)
        return {
            "epoch": self.epoch if epoch is None else int(epoch),
            "batch": positive_int("batches", batches, 0),
            "fingerprint": self.fingerprint(),
        }

    def load_state_dict(self, state: Values, hold: bool = False) -> None:
        """Resume at a batch within an epoch; `len` is the number of batches left.

        Args:
            state: What `state_dict()` returned.
            hold: Whether to stay there until `clear_resume` is called. Keras ends an
                epoch that it only looks at, so `fit` needs that; in a custom loop
                `on_epoch_end` moves on to a whole epoch.

        Raises:
            ValueError: If the graphs, the batcher, the plan or the seed differ, or for
                a state that `state_dict` does not return. The loader is unchanged.
        """
        if not isinstance(state, Mapping) or not _STATE.issubset(state):
            refuse(
                "state",
                f"a mapping with {sorted(_STATE)}",
                state,
                "Pass what state_dict() returned.",
            )
        boolean("hold", hold)
        epoch = positive_int("epoch", state["epoch"], 0)
        batch = positive_int("batch", state["batch"], 0)
        if state["fingerprint"] != self.fingerprint():
            raise ValueError(
                "Expected the graphs, labels or mask, batcher or sampler, plan, seed "
                "and number of replicas that training began with. Received: others. "
                "Start again without the saved progress, or restore them."
            )
        if batch > self.composer.length:
            raise ValueError(
                f"Expected a batch in [0, {self.composer.length}]. Received: {batch}."
            )
        self.epoch, self._resumed_batches = epoch, batch
        self._hold_resume = hold

    @property
    def resumed_batches(self) -> int:
        """Batches of the epoch that were used before `load_state_dict`."""
        return self._resumed_batches

    def clear_resume(self) -> None:
        """Give epochs all their batches again, as before `load_state_dict`."""
        self._resumed_batches, self._hold_resume = 0, False

    @property
    def batches_per_epoch(self) -> int:
        """Batches of a whole epoch."""
        return self.composer.length

    def inputs(self) -> Batch:
        """Return inputs of a functional Keras model that takes the batches.

        Sizes that depend on the budget are None, so the model also takes the batches of
        other loaders with the same features and the same plan. Layers, backbones and
        tasks are called on them as on a batch.

        Returns:
            A dict like `x` of the batches, with results of `keras.Input`, which are
            named after their place, such as "node_mask".

        Example:
        >>> import keras
        >>> from keras_bandgnn import Graph, models
        >>> from keras_bandgnn.preprocessing import GraphLoader
        >>> loader = GraphLoader([Graph(2, [0], [1], node={"kind": [0, 1]})] * 3)
        >>> inputs = loader.inputs()
        >>> states = models.GCNBackbone({"kind": 2}, 8)(inputs)
        >>> states.shape
        (None, None, 8)
        >>> model = keras.Model(inputs, keras.layers.Dense(1)(states))
        >>> model.predict(loader, verbose=0).shape[-1]
        1
        """
        from keras_bandgnn.preprocessing.loading import exports

        return exports.inputs(self)

    def to_tf_data(self) -> tf.data.Dataset:
        """Return a `tf.data.Dataset` of the batches of an epoch.

        Its signature says which sizes vary, so TensorFlow traces once whatever the
        batcher. Each further pass over it is the next epoch, in its own order.
        """
        from keras_bandgnn.preprocessing.loading import exports

        return exports.to_tf_data(self, new_orders=True)

    def to_torch(self, epochs: int = 1) -> torch.utils.data.Dataset:
        """Return a map-style `torch.utils.data.Dataset` of batches of tensors.

        Use it with `DataLoader(dataset, batch_size=None, num_workers=...)`.

        Args:
            epochs: Epochs one after the other, each with its own order.
        """
        from keras_bandgnn.preprocessing.loading import exports

        return exports.to_torch(self, positive_int("epochs", epochs))

    def to_grain(self, epochs: int = 1) -> grain.MapDataset:
        """Return a `grain.MapDataset` of batches of arrays.

        Args:
            epochs: Epochs one after the other, each with its own order.
        """
        from keras_bandgnn.preprocessing.loading import exports

        return exports.to_grain(self, positive_int("epochs", epochs))

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_builder"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.begin()

    def __repr__(self) -> str:
        cut = "" if self.sampler is None else f", sampler={self.sampler}"
        return (
            f"{type(self).__name__}({self.item}s={self.composer.count}, "
            f"batches={len(self)}, budget={self.budgets[0]}, plan={self.plan}{cut})"
        )
