"""`GraphLoader`: batches of graphs for `fit`, `evaluate` and `predict`."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.assembly.assembler import (
    Assembler,
    Supergraph,
    apply_filter,
    merge_parts,
    resource_sizes,
    with_edge_types,
)
from keras_bandgnn.checks import (
    INT32_MAX,
    boolean,
    instance,
    optional,
    positive_int,
    refuse,
    seed_number,
    string,
)
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.sources import parts_of
from keras_bandgnn.preprocessing.batching.batcher import Batcher, supergraph_nodes
from keras_bandgnn.preprocessing.batching.dynamic_batcher import DynamicBatcher
from keras_bandgnn.preprocessing.loading.epochs import BatchBuilder, Epochs, LoaderStats
from keras_bandgnn.preprocessing.ordering.rcmk_compile import block_size_of
from keras_bandgnn.primitives.base import is_step_resource
from keras_bandgnn.primitives.grouped import Grouped
from keras_bandgnn.primitives.plan import Plan

_STATE = {"batch", "epoch", "fingerprint"}


class GraphLoader(keras.utils.PyDataset):
    """Supergraphs of static shapes, assembled ahead of the device.

    The composition of an epoch follows from the graphs' sizes, `seed` and the number
    of the epoch alone: the length is known and the same in every epoch, any batch can
    be built at any time by any number of threads, and every graph occurs exactly once
    per epoch.

    Args:
        graphs: A list of `Graph`, a `FlatGraphs`, an opened store, or anything else
            that yields graphs: a generator, a data set of torch, TensorFlow or Grain.
        batcher: `DynamicBatcher` or `StaticBatcher`; one without a budget is adapted
            to these graphs.
        plan: A `Plan`, or `"auto"`: the cheapest exact one by the constants that
            `bandgnn calibrate` has measured on this machine (see
            `planning.choose_plan`). Without them: `Grouped` for typed edges
            and `Segment` for untyped ones on CPUs, `Banded` with an exact rest on
            GPUs and TPUs. `Banded` takes the `block_size` of the `RCMKCompile` that
            ordered the graphs.
        shuffle: Whether each epoch has a new order.
        seed: Seed of the orders.
        num_edge_types: P; by default one more than the largest type that occurs. With
            0 types are not read, and P is 1.
        replicas: G, supergraphs per batch.
        prefetch: Batches to assemble in advance; 0 for none.
        threads: Number of threads that assemble batches.
        host: Index of this host, if several train together.
        num_hosts: Number of hosts that train together. Each gets its own supergraphs of
            every step; all have as many batches, of equal shapes.
        edge_weight: Edge feature, a number per edge, that is the factor of its
            message; 1 for all edges if omitted.

    By default, Keras' `fit` shuffles the batches of a `PyDataset` once more. Pass
    `shuffle=False` to the `fit` of a model that is not a task: the loader defines the
    order.

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

    _sharing_is_known = False

    def __init__(
        self,
        graphs,
        batcher: Batcher | None = None,
        plan: Plan | str = "auto",
        shuffle: bool = True,
        seed: int = 0,
        num_edge_types: int | None = None,
        replicas: int = 1,
        prefetch: int = 2,
        threads: int = 1,
        host: int = 0,
        num_hosts: int = 1,
        edge_weight: str | None = None,
    ):
        super().__init__(workers=1)
        # Checked before the graphs are read, which may take minutes.
        expected = "a batcher, such as DynamicBatcher(32)"
        optional(instance, "batcher", batcher, Batcher, expected)
        if not isinstance(plan, str) or plan != "auto":
            instance("plan", plan, Plan, "'auto' or a keras_bandgnn.plans.Plan")
        self._take_options(shuffle, seed, replicas, prefetch, threads, host, num_hosts)
        optional(positive_int, "num_edge_types", num_edge_types, 0)
        self.edge_weight = optional(string, "edge_weight", edge_weight)
        self.parts = merge_parts(parts_of(graphs))
        self.parts, self.num_edge_types = with_edge_types(self.parts, num_edge_types)
        self.batcher = DynamicBatcher() if batcher is None else batcher
        if plan == "auto":
            from keras_bandgnn.planning.plan_choice import choose_plan

            plan = choose_plan(
                self.parts,
                self.num_edge_types,
                nodes=supergraph_nodes(self.parts, self.batcher),
                num_hosts=num_hosts,
                block_size=block_size_of(graphs),
            ).plan
        self.plan = plan
        self.parts, self.num_filtered = apply_filter(self.parts, self.plan)
        self.starts = np.cumsum([0, *(len(part) for part in self.parts)])
        self._assembler, self.sizes = make_assembler(
            self.parts, self.plan, self.num_edge_types, edge_weight
        )
        self._epochs = Epochs(
            self.sizes,
            self.batcher,
            self.seed if self.shuffle else None,
            self.replicas * self.num_hosts,
        )
        # A copy: the batcher may be adapted to other graphs later.
        self._configs = [self.batcher.plain_config(), self.plan.get_config()]
        self._resumed_batches, self._hold_resume = 0, False
        self.epoch = 0
        self.begin()

    def _share_states(self) -> None:
        """Let graphs share states, before the first batch: predictions need not."""
        if self._sharing_is_known or not self._may_vary:
            return
        self._assembler.share_states(
            [s for s in self.composition(0) if s.budget == self.budgets[0]],
            # Eager products by type take any number of rows.
            exact=keras.backend.backend() == "torch"
            and not graph_ops.has_accelerator()
            and all(isinstance(p, Grouped) for p in self.plan.primitives),
        )
        self._sharing_is_known = True

    def keep_states_apart(self) -> None:
        """Compute equal states of different graphs apart, from the next batch on.

        `fit` does so where a model has dropout, as graphs that share a state also share
        its mask.
        """
        self._sharing_is_known = True
        if self.shares_states:
            self.stop_threads()
            self._assembler.keep_states_apart()
            # Without the batches that have been built already.
            self.begin()

    @property
    def _may_vary(self) -> bool:
        """Whether the arrays of steps may have other sizes in some batches."""
        schedule = self.plan.schedule
        if schedule is None or schedule.order != "compact":
            return False
        # Hosts that train together have equal shapes, and a data set of TensorFlow has
        # one signature.
        return self.num_hosts == 1 and keras.backend.backend() != "tensorflow"

    def _take_options(
        self, shuffle, seed, replicas, prefetch, threads, host, num_hosts
    ) -> None:
        """Set the options of orders, of building ahead and of hosts, after checks."""
        self.shuffle = boolean("shuffle", shuffle)
        self.seed = seed_number("seed", seed)
        self.replicas = positive_int("replicas", replicas)
        self.prefetch = positive_int("prefetch", prefetch, 0)
        self.threads = positive_int("threads", threads)
        self.num_hosts = positive_int("num_hosts", num_hosts)
        self.host = positive_int("host", host, 0)
        if self.host >= self.num_hosts:
            raise ValueError(
                f"Expected `host` in [0, {num_hosts}), as num_hosts={num_hosts}. "
                f"Received: host={host}."
            )

    def begin(self) -> None:
        """Create threads and locks, as a forked process must."""
        self._builder = BatchBuilder(
            self._epochs,
            self._assembler,
            replicas=self.replicas,
            host=self.host,
            num_hosts=self.num_hosts,
            prefetch=self.prefetch,
            threads=self.threads,
        )
        self._builder.stats = LoaderStats(self.epoch)

    @property
    def stats(self) -> LoaderStats:
        """Figures of the current epoch, as far as it has been read."""
        return self._builder.stats

    @property
    def budgets(self) -> list[dict[str, int]]:
        """The batcher's budget and, where graphs exceed it, the larger one."""
        return self._epochs.budgets

    @property
    def has_one_shape(self) -> bool:
        """Whether all batches have one shape; those of samples as long as they fit."""
        by_step = isinstance(self.batcher, Batcher) and not self.batcher.fixed_shapes
        return len(self.budgets) == 1 and not by_step and not self.shares_states

    @property
    def shares_states(self) -> bool:
        """Whether graphs of a supergraph share states; see `ReceptiveField`."""
        self._share_states()
        return getattr(self._assembler, "shared_budget", None) is not None

    @property
    def num_dropped(self) -> int:
        """Graphs of an epoch that the batcher drops."""
        packed = sum(len(s.members) for s in self.composition(self.epoch))
        return int(self.starts[-1]) - packed

    @property
    def num_oversized(self) -> int:
        """Graphs above the budget."""
        return int((self._epochs.bucket > 0).sum())

    def composition(self, epoch: int) -> list[Supergraph]:
        """Return the supergraphs of an epoch, over all replicas and hosts.

        Each has the ids of its graphs as `members` and its sizes as `budget`.
        """
        return self._builder.composition(epoch)

    def usage(self, epoch: int | None = None) -> dict[str, np.ndarray]:
        """Return what the batches of an epoch hold, from the sizes of the graphs.

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
        return self._epochs.usage(self.composition(epoch))

    def fill(self, epoch: int | None = None) -> dict[str, float]:
        """Return the share of each resource of an epoch that real graphs use.

        Args:
            epoch: Number of the epoch; the current one if omitted.

        Example:
        >>> from keras_bandgnn import Graph
        >>> from keras_bandgnn.preprocessing import DynamicBatcher
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
        >>> from keras_bandgnn.preprocessing import DynamicBatcher
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
        return self._epochs.length - self._resumed_batches

    @property
    def num_batches(self) -> int:
        """Batches that an epoch has, or that are left of a resumed one."""
        return len(self)

    def supergraphs(self, index: int, epoch: int) -> list[Supergraph]:
        """Return the supergraphs of this host in batch `index` of an epoch."""
        return self._builder.supergraphs(index, epoch)

    def build(self, index: int, epoch: int):
        """Build batch `index` of `epoch`: (x, y, sample_weight), or (x,).

        Raises:
            IndexError: If an epoch has no such batch.
        """
        positive_int("index", index, -INT32_MAX)
        positive_int("epoch", epoch, 0)
        if not 0 <= index < self._epochs.length:
            raise IndexError(
                f"Expected a batch in [0, {self._epochs.length}). Received: {index}."
            )
        self._share_states()
        return self._builder.build(range(index, index + 1), epoch)[0][0]

    def build_as(self, groups: list[np.ndarray], budget: dict[str, int]):
        """Build a batch of chosen graphs, padded to a budget.

        Args:
            groups: For each supergraph of the batch the ids of its graphs.
            budget: Capacities by name.
        """
        supergraphs = [Supergraph(np.asarray(ids, np.int64), budget) for ids in groups]
        build = getattr(self._assembler, "build_within", self._assembler.build)
        return build(supergraphs, len(supergraphs))[0][0]

    def __getitem__(self, index: int):
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
        if index == self._epochs.length // 2 and self.shuffle:
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
        """Move on to the next epoch, whole and in its own order."""
        if self.shuffle:
            self.epoch += 1
        if not self._hold_resume:
            self._resumed_batches = 0

    def fingerprint(self) -> str:
        """Return a hash that tells apart loaders whose epochs differ."""
        order = [self.shuffle, self.seed, self.replicas * self.num_hosts]
        text = json.dumps([order, self._configs], default=str)
        digest = hashlib.sha256(text.encode())
        for part in self.parts:
            if part.label is not None:
                digest.update(np.ascontiguousarray(part.label))
        for name in sorted(self.sizes):
            digest.update(np.ascontiguousarray(self.sizes[name]))
        return digest.hexdigest()

    def state_dict(self, batches: int = 0, epoch: int | None = None) -> dict[str, Any]:
        """Return where training is, for `load_state_dict` to resume from.

        Args:
            batches: Batches of the epoch that were used.
            epoch: The epoch, by default the current one.

        Returns:
            A dict that JSON can hold.
        """
        return {
            "epoch": self.epoch if epoch is None else epoch,
            "batch": batches,
            "fingerprint": self.fingerprint(),
        }

    def load_state_dict(self, state: dict[str, Any], hold: bool = False) -> None:
        """Resume at a batch within an epoch; `len` is the number of batches left.

        Args:
            state: What `state_dict()` returned.
            hold: Whether to stay there until `clear_resume` is called. Keras ends an
                epoch that it only looks at, so `fit` needs that; in a custom loop
                `on_epoch_end` moves on to a whole epoch.

        Raises:
            ValueError: If the graphs, the batcher, the plan or the seed differ.
        """
        if not isinstance(state, Mapping) or not _STATE.issubset(state):
            refuse(
                "state",
                f"a mapping with {sorted(_STATE)}",
                state,
                "Pass what state_dict() returned.",
            )
        if state["fingerprint"] != self.fingerprint():
            raise ValueError(
                "Expected the graphs, labels or mask, batcher or sampler, plan, seed "
                "and number of replicas that training began with. Received: others. "
                "Start again without the saved progress, or restore them."
            )
        self._resumed_batches = 0
        batch = positive_int("batch", state["batch"], 0)
        if batch > self._epochs.length:
            raise ValueError(
                f"Expected a batch in [0, {self._epochs.length}]. Received: {batch}."
            )
        self.epoch, self._resumed_batches = state["epoch"], batch
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
        return self._epochs.length

    def to_tf_data(self):
        """Return a `tf.data.Dataset` of the batches of an epoch.

        Its signature says which sizes vary, so TensorFlow traces once whatever the
        batcher. Each further pass over it is the next epoch, in its own order.
        """
        from keras_bandgnn.preprocessing.loading import exports as loader_exports

        return loader_exports.to_tf_data(self, new_orders=True)

    def to_torch(self, epochs: int = 1):
        """Return a map-style `torch.utils.data.Dataset` of batches of tensors.

        Use it with `DataLoader(dataset, batch_size=None, num_workers=...)`.

        Args:
            epochs: Epochs one after the other, each with its own order.
        """
        from keras_bandgnn.preprocessing.loading import exports as loader_exports

        return loader_exports.to_torch(self, positive_int("epochs", epochs))

    def to_grain(self, epochs: int = 1):
        """Return a `grain.MapDataset` of batches of arrays.

        Args:
            epochs: Epochs one after the other, each with its own order.
        """
        from keras_bandgnn.preprocessing.loading import exports as loader_exports

        return loader_exports.to_grain(self, positive_int("epochs", epochs))

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_builder"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.begin()

    def __repr__(self) -> str:
        return (
            f"GraphLoader(graphs={self.starts[-1]}, batches={len(self)}, "
            f"budget={self.batcher.budget}, plan={self.plan})"
        )


def make_assembler(
    parts: Sequence[FlatGraphs], plan: Plan, num_types: int, edge_weight: str | None
) -> tuple:
    """Return the assembler of a plan's batches, and what each graph needs.

    Args:
        parts: The graphs.
        plan: Which primitive processes which edges, with or without a schedule.
        num_types: P.
        edge_weight: Edge feature that is the factor of each message, or None.

    Returns:
        The assembler, and resource -> int64 [n].
    """
    _check_weight(parts, plan, edge_weight)
    # Batches have the same keys throughout: slots only if every graph has one.
    slots = all(part.slot.min() >= 0 for part in parts)
    if plan.schedule is None:
        sizes = resource_sizes(parts, plan, num_types)
        return Assembler(parts, plan, num_types, slots, edge_weight), sizes
    if any(p.label is not None and p.label_level == "edge" for p in parts):
        raise ValueError(
            "Expected a plan without a schedule for labels of edges, as schedules "
            f"leave out nodes that are not read. Received: {plan}. Pass Plan(..., "
            "schedule=None)."
        )
    from keras_bandgnn.assembly.block_assembler import BlockAssembler
    from keras_bandgnn.assembly.schedule_assembler import ScheduleAssembler

    blocks = plan.schedule.order == "blocks"
    cls = BlockAssembler if blocks else ScheduleAssembler
    assembler = cls(parts, plan, num_types, slots)
    return assembler, assembler.sizes()


def _check_weight(parts: Sequence[FlatGraphs], plan: Plan, name: str | None) -> None:
    if name is None:
        return
    if plan.schedule is not None:
        raise ValueError(
            "Expected a plan without a schedule for weighted edges. Received: "
            f"edge_weight={name!r}, plan={plan}."
        )
    for part in parts:
        if name not in part.edge or part.edge[name].ndim != 1:
            features = {k: v.shape[1:] for k, v in part.edge.items()}
            raise ValueError(
                f"Expected `edge_weight` to be an edge feature, {name!r}, a number per "
                f"edge. Received: edge features {features} (with the shape of an "
                "edge's entry)."
            )
