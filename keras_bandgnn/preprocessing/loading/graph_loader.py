"""`GraphLoader`: batches of graphs for `fit`, `evaluate` and `predict`."""

import dataclasses
import hashlib
import json
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import keras
import numpy as np

from keras_bandgnn.assembly.assembler import Supergraph, merge_parts
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
from keras_bandgnn.data.sources import parts_of
from keras_bandgnn.preprocessing.batching.batcher import PER_GRAPH, Batcher
from keras_bandgnn.preprocessing.batching.dynamic_batcher import DynamicBatcher
from keras_bandgnn.preprocessing.loading import exports as loader_exports
from keras_bandgnn.preprocessing.loading.epochs import Epochs
from keras_bandgnn.preprocessing.loading.loader_plan import (
    apply_filter,
    block_size_of,
    cheapest_plan,
    make_assembler,
    with_edge_types,
)
from keras_bandgnn.preprocessing.loading.prefetch import Prefetcher, choose_block_length
from keras_bandgnn.primitives.plan import Plan

_STATE = {"batch", "epoch", "fingerprint"}


@dataclasses.dataclass
class LoaderStats:
    """Figures of the batches of one epoch, as far as it has been read.

    Attributes:
        epoch: Number of the epoch.
        batches: Batches that were handed out.
        graphs: Real graphs in them.
        used: Resource -> what the real graphs needed.
        padded: Resource -> what they were padded to.
        assembly_ms: Milliseconds of assembling each batch, in any thread.
        waited_s: Seconds in which the consumer waited for a batch.
        elapsed_s: Seconds from the first request to the last batch.
    """

    epoch: int = 0
    batches: int = 0
    graphs: int = 0
    used: dict[str, int] = dataclasses.field(default_factory=dict)
    padded: dict[str, int] = dataclasses.field(default_factory=dict)
    assembly_ms: list[float] = dataclasses.field(default_factory=list)
    waited_s: float = 0.0
    elapsed_s: float = 0.0

    def __post_init__(self):
        self._lock = threading.Lock()
        self._began = None

    @property
    def fill(self) -> dict[str, float]:
        """Share of each resource that real graphs used."""
        return {k: self.used[k] / v for k, v in self.padded.items() if v}

    @property
    def waiting(self) -> float:
        """Share of the time in which the consumer waited for batches."""
        return self.waited_s / self.elapsed_s if self.elapsed_s else 0.0

    def assembled(self, seconds: float, batches: int) -> None:
        """Count the work of batches that were built together."""
        with self._lock:
            self.assembly_ms += [1000 * seconds / batches] * batches

    def handed_out(self, began: float, figures: Mapping) -> None:
        """Count a batch that was asked for at `began` and is ready now.

        Args:
            began: From `time.perf_counter`.
            figures: Resource -> real rows, and all rows.
        """
        now = time.perf_counter()
        with self._lock:
            self._began = began if self._began is None else self._began
            self.waited_s += now - began
            self.elapsed_s = now - self._began
            self.batches += 1
            self.graphs += figures["graph"][0]
            for name, (used, padded) in figures.items():
                self.used[name] = self.used.get(name, 0) + used
                self.padded[name] = self.padded.get(name, 0) + padded

    def summary(self) -> str:
        """Return the figures as a few lines of text."""
        fill = ", ".join(f"{k} {100 * v:.1f} %" for k, v in self.fill.items())
        times = np.array(self.assembly_ms or [0.0])
        return (
            f"epoch {self.epoch}: {self.batches} batches, {self.graphs} graphs\n"
            f"filled: {fill}\n"
            f"assembly: median {np.median(times):.2f} ms, mean {times.mean():.2f} ms "
            f"a batch; waited for batches {100 * self.waiting:.1f} % of the time"
        )


def _check_removed(options: Mapping) -> None:
    """Raise an error for arguments that version 0.1.0 had, or that are unknown."""
    for name in options:
        if name not in ("schedule", "width", "known_plans"):
            raise TypeError(
                "Expected an argument of GraphLoader. Received: "
                f"{name}={options[name]!r}. Look up its name in the documentation."
            )
        raise TypeError(
            "Expected the plan itself: a GraphLoader no longer takes "
            f"{name!r}. Received: {name}={options[name]!r}. Use "
            "GraphPreprocessor(...).loader(graphs, schedule=..., width=...), or pass "
            "plan=Plan(..., schedule=...)."
        )


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
            `primitives.choose_plan`). Without them: `Grouped` for typed edges
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
        **removed,
    ):
        super().__init__(workers=1)
        _check_removed(removed)
        # Checked before the graphs are read, which may take minutes.
        expected = "a batcher, such as DynamicBatcher(32)"
        optional(instance, "batcher", batcher, Batcher, expected)
        if not isinstance(plan, str) or plan != "auto":
            instance("plan", plan, Plan, "'auto' or a keras_bandgnn.primitives.Plan")
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
        optional(positive_int, "num_edge_types", num_edge_types, 0)
        self.edge_weight = optional(string, "edge_weight", edge_weight)
        self.parts = merge_parts(parts_of(graphs))
        self.parts, self.num_edge_types = with_edge_types(self.parts, num_edge_types)
        self.batcher = DynamicBatcher() if batcher is None else batcher
        if plan == "auto":
            plan = cheapest_plan(
                self.parts,
                self.num_edge_types,
                self.batcher,
                num_hosts=num_hosts,
                block_size=block_size_of(graphs),
            )
        self.plan = plan
        self.parts, self.num_filtered = apply_filter(self.parts, self.plan)
        self.starts = np.cumsum([0, *(len(part) for part in self.parts)])
        self._assembler, self.sizes = make_assembler(
            self.parts, self.plan, self.num_edge_types, edge_weight
        )
        self.batcher.check_names(self.sizes)
        if not self.batcher.is_adapted(self.sizes):
            self.batcher.complete(self.sizes)
        # A copy: the batcher may be adapted to other graphs later.
        self._configs = [self.batcher.plain_config(), self.plan.get_config()]
        self._resumed_batches, self._hold_resume = 0, False
        self._epochs = Epochs(
            self.sizes,
            self.batcher,
            self.seed if self.shuffle else None,
            self.replicas * self.num_hosts,
        )
        self._block_length = choose_block_length(self.sizes, len(self) * self.num_hosts)
        self.epoch = 0
        self.begin()

    def begin(self) -> None:
        """Create threads and locks, as a forked process must."""
        self.stats = LoaderStats(self.epoch)
        self._lock = threading.Lock()
        self._prefetcher = Prefetcher(
            self._build_several,
            self._epochs.length,
            self._block_length,
            self.prefetch,
            self.threads,
        )
        self._composed: dict[int, Future] = {}

    @property
    def budgets(self) -> list[dict[str, int]]:
        """The batcher's budget and, where graphs exceed it, the larger one."""
        return self._epochs.budgets

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
        with self._lock:
            future = self._composed.get(epoch)
            missing = future is None
            if missing:
                # This epoch, the next and the previous one suffice.
                recent = list(self._composed.items())[-2:]
                future = Future()
                self._composed = {**dict(recent), epoch: future}
        if missing:
            try:
                future.set_result(self._epochs.composition(epoch))
            except BaseException as error:
                self._composed.pop(epoch, None)
                future.set_exception(error)
        return future.result()

    def usage(self, epoch: int | None = None) -> dict[str, np.ndarray]:
        """Return what the batches of an epoch hold, from the sizes of the graphs.

        Args:
            epoch: Number of the epoch; the current one if omitted.

        Returns:
            Resource ("graph", "node", "edge" and those of the plan) -> int64
            [2, batches]: what its real graphs need, and what they are padded to, over
            all replicas and hosts.
        """
        optional(positive_int, "epoch", epoch, 0)
        supergraphs = self.composition(self.epoch if epoch is None else epoch)
        members = np.concatenate([s.members for s in supergraphs])
        owner = np.repeat(
            np.arange(len(supergraphs)), [len(s.members) for s in supergraphs]
        )
        sizes = {k: v[members] for k, v in self.sizes.items() if k not in PER_GRAPH}
        sizes["graph"] = np.ones(len(members), np.int64)
        usage, width = {}, self.replicas * self.num_hosts
        for name, needed in sizes.items():
            used = np.bincount(owner, needed, len(supergraphs))
            padded = [s.budget[name] for s in supergraphs]
            counts = np.array([used, padded]).astype(np.int64)
            usage[name] = counts.reshape(2, -1, width).sum(-1)
        return usage

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

    def __len__(self) -> int:
        return self._epochs.length - self._resumed_batches

    @property
    def num_batches(self) -> int:
        """Batches that an epoch has, or that are left of a resumed one."""
        return len(self)

    def supergraphs(self, index: int, epoch: int) -> list[Supergraph]:
        """Return the supergraphs of this host in batch `index` of an epoch."""
        first = (index * self.num_hosts + self.host) * self.replicas
        return self.composition(epoch)[first : first + self.replicas]

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
        return self._build_several(range(index, index + 1), epoch)[0][0]

    def build_as(self, groups: list[np.ndarray], budget: dict[str, int]):
        """Build a batch of chosen graphs, padded to a budget.

        Args:
            groups: For each supergraph of the batch the ids of its graphs.
            budget: Capacities by name.
        """
        supergraphs = [Supergraph(np.asarray(ids, np.int64), budget) for ids in groups]
        return self._assembler.build(supergraphs, len(supergraphs))[0][0]

    def _build_several(self, indices: range, epoch: int) -> list[tuple]:
        """Return batches, each with the figures that `stats` counts."""
        supergraphs = [s for i in indices for s in self.supergraphs(i, epoch)]
        began = time.perf_counter()
        batches = self._assembler.build(supergraphs, self.replicas)
        self.stats.assembled(time.perf_counter() - began, len(batches))
        return batches

    def __getitem__(self, index: int):
        if not 0 <= index < len(self):
            raise IndexError(
                f"Expected a batch index in [0, {len(self)}). Received: {index}."
            )
        began = time.perf_counter()
        epoch, index = self.epoch, index + self._resumed_batches
        if self.stats.epoch != epoch or index == self._resumed_batches:
            self.stats = LoaderStats(epoch)
        batch, figures = self._prefetcher.get(index, epoch)
        if index == self._epochs.length // 2 and self.shuffle:
            self._prefetcher.run_in_background(self.composition, epoch + 1)
        self.stats.handed_out(began, figures)
        return batch

    def stop_threads(self) -> None:
        """Stop the threads that assemble, as the end of an epoch does.

        The next request for a batch starts them again.
        """
        self._prefetcher.stop()

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
                "Expected the graphs, batcher, plan, seed and number of replicas that "
                "training began with. Received: others. Start again without the saved "
                "progress, or restore them."
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

    # Names of version 0.1.0.

    def state(self, batches: int = 0, epoch: int | None = None) -> dict[str, Any]:
        """Alias of `state_dict`."""
        return self.state_dict(batches, epoch)

    def resume(self, state: dict[str, Any], hold: bool = False) -> None:
        """Alias of `load_state_dict`."""
        self.load_state_dict(state, hold)

    def whole_epochs(self) -> None:
        """Alias of `clear_resume`."""
        self.clear_resume()

    @property
    def skipped(self) -> int:
        """Alias of `resumed_batches`."""
        return self._resumed_batches

    def to_tf_data(self):
        """Return a `tf.data.Dataset` of the batches of an epoch.

        Its signature says which sizes vary, so TensorFlow traces once whatever the
        batcher. Each further pass over it is the next epoch, in its own order.
        """
        return loader_exports.to_tf_data(self, new_orders=True)

    def to_torch(self, epochs: int = 1):
        """Return a map-style `torch.utils.data.Dataset` of batches of tensors.

        Use it with `DataLoader(dataset, batch_size=None, num_workers=...)`.

        Args:
            epochs: Epochs one after the other, each with its own order.
        """
        return loader_exports.to_torch(self, positive_int("epochs", epochs))

    def to_grain(self, epochs: int = 1):
        """Return a `grain.MapDataset` of batches of arrays.

        Args:
            epochs: Epochs one after the other, each with its own order.
        """
        return loader_exports.to_grain(self, positive_int("epochs", epochs))

    def __getstate__(self) -> dict[str, Any]:
        local = ("_lock", "_prefetcher", "_composed", "stats")
        return {k: v for k, v in self.__dict__.items() if k not in local}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.begin()

    def __repr__(self) -> str:
        return (
            f"GraphLoader(graphs={self.starts[-1]}, batches={len(self)}, "
            f"budget={self.batcher.budget}, plan={self.plan})"
        )
