"""`Epochs`: which graphs form which batch; `BatchBuilder` builds them ahead of use."""

import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from keras_bandgnn.assembly.assembler import Supergraph
from keras_bandgnn.preprocessing.batching.batcher import PER_GRAPH, Batcher

_TRIALS = 9
_FEW_TRIALS = 3
_MANY_GRAPHS = 20_000
_ATTEMPTS = 64
# Shapes among which the first two batches are chosen.
_MOST_COMPARED = 200
# A block of batches that are built together has at most this many, and this many rows.
_LONGEST_BLOCK = 8
_MOST_ROWS = 131_072
# Orders whose packing takes longer than these seconds are packed ahead.
_LONG_S = 0.01


class Epochs:
    """Compositions of epochs, from the sizes of the graphs alone.

    All epochs have the same number of steps, and each holds every graph once (except
    those that the batcher drops). `differ` says whether each has an order of its own.

    Args:
        sizes: Resource -> int64 [n], what each graph needs.
        batcher: What packs. One without a budget is adapted to the graphs.
        seed: Seed of the orders; None for the given order in every epoch.
        per_step: Supergraphs per step, over all replicas and hosts.
    """

    def __init__(
        self,
        sizes: Mapping[str, np.ndarray],
        batcher: Batcher,
        seed: int | None,
        per_step: int,
    ):
        self.sizes = sizes
        self.batcher = batcher
        self.seed = seed
        self.per_step = per_step
        batcher.check_names(sizes)
        if not batcher.is_adapted(sizes):
            batcher.complete(sizes)
        self.bucket, self.budgets = batcher.split(sizes)
        self.length = self._plan_length()
        self.differ = seed is not None and len(self.bucket) > 1

    def _pack(self, order: np.ndarray) -> list[list[np.ndarray]]:
        """Pack an order of all graphs into supergraphs: whole steps for each bucket."""
        out = []
        for bucket, budget in enumerate(self.budgets):
            members = order[self.bucket[order] == bucket]
            packed = self.batcher.pack(self.sizes, members, budget)
            packed = [m for m in packed if m.size]
            out.append(spread(packed, -(-len(packed) // self.per_step) * self.per_step))
        return out

    def _order(self, epoch: int, attempt: int) -> np.ndarray:
        total = len(self.bucket)
        if self.seed is None:
            return np.arange(total)
        return np.random.default_rng([self.seed, epoch, attempt]).permutation(total)

    def _steps(self, packed: list) -> int:
        return sum(map(len, packed)) // self.per_step

    def _plan_length(self) -> int:
        """Return the steps of every epoch: the median over a few orders."""
        trials = _TRIALS if len(self.bucket) < _MANY_GRAPHS else _FEW_TRIALS
        if self.seed is None:
            trials = 1
        counts = [self._steps(self._pack(self._order(0, a))) for a in range(trials)]
        if not max(counts):
            raise ValueError(
                "Expected at least one graph within the budget "
                f"{self.batcher.budget}. Received: none (oversize="
                f"{self.batcher.oversize!r})."
            )
        self._shortest = int(np.argmin(counts))
        return int(np.median(counts))

    def composition(self, epoch: int) -> list[Supergraph]:
        """Return the supergraphs of an epoch; each `per_step` of them make a step."""
        for attempt in range(_ATTEMPTS):
            packed = self._pack(self._order(epoch, attempt))
            if self._steps(packed) <= self.length:
                break
        else:
            packed = self._pack(self._order(0, self._shortest))
        # Keras reads the length once per fit, so all epochs have the same.
        missing = (self.length - self._steps(packed)) * self.per_step
        # Supergraphs with most graphs are split, so that no step is empty.
        most = [max(map(len, supergraphs), default=0) for supergraphs in packed]
        fullest = int(np.argmax(most))
        packed[fullest] = spread(packed[fullest], len(packed[fullest]) + missing)
        steps, budgets = [], []
        for bucket, members in enumerate(packed):
            groups = [
                members[i : i + self.per_step]
                for i in range(0, len(members), self.per_step)
            ]
            steps += groups
            if groups:
                budgets += self.batcher.shapes(self.sizes, groups, self.budgets[bucket])
        order = np.arange(len(steps))
        if self.seed is not None and len(self.budgets) > 1:
            rng = np.random.default_rng([self.seed, epoch, _ATTEMPTS])
            order = rng.permutation(len(steps))
        return [
            Supergraph(members, budgets[step])
            for step in _show_shapes_first(order, budgets)
            for members in steps[step]
        ]

    def usage(self, supergraphs: Sequence[Supergraph]) -> dict[str, np.ndarray]:
        """Return what steps hold, see `GraphLoader.usage`.

        Args:
            supergraphs: Those of an epoch.
        """
        members = np.concatenate([s.members for s in supergraphs])
        owner = np.repeat(
            np.arange(len(supergraphs)), [len(s.members) for s in supergraphs]
        )
        sizes = {k: v[members] for k, v in self.sizes.items() if k not in PER_GRAPH}
        sizes["graph"] = np.ones(len(members), np.int64)
        usage = {}
        for name, needed in sizes.items():
            used = np.bincount(owner, needed, len(supergraphs))
            padded = [s.budget[name] for s in supergraphs]
            counts = np.array([used, padded]).astype(np.int64)
            usage[name] = counts.reshape(2, -1, self.per_step).sum(-1)
        return usage


def spread(supergraphs: list, count: int) -> list:
    """Split the fullest supergraphs until there are `count`.

    Supergraphs that cannot be split further are followed by empty ones.
    """
    out = list(supergraphs)
    while len(out) < count:
        fullest = max(range(len(out)), key=lambda i: len(out[i]), default=None)
        if fullest is None or len(out[fullest]) < 2:
            out.append(np.zeros(0, np.int64))
            continue
        half = len(out[fullest]) // 2
        out.append(out[fullest][half:])
        out[fullest] = out[fullest][:half]
    return out


def _show_shapes_first(order: np.ndarray, budgets: Sequence[Mapping]) -> list[int]:
    """Move two steps to the front that differ in as many sizes as possible.

    TensorFlow takes its signature from the first two batches of a fit: sizes that
    differ there may vary.
    """
    first_with: dict[tuple, int] = {}
    for step in order.tolist():
        first_with.setdefault(tuple(budgets[step].values()), step)
    if len(first_with) == 1:
        return order.tolist()
    shapes = np.array(list(first_with))[:_MOST_COMPARED]
    steps = list(first_with.values())[:_MOST_COMPARED]
    differing = (shapes[:, None] != shapes[None]).sum(axis=2)
    pair = np.unravel_index(int(differing.argmax()), differing.shape)
    # The larger first: memory that suffices for it suffices for all.
    pair = sorted(pair, key=lambda i: -shapes[i].sum())
    lead = [steps[i] for i in pair]
    return lead + [step for step in order.tolist() if step not in lead]


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


class BatchBuilder:
    """Builds the batches of a host, in background threads ahead of use.

    Blocks of consecutive batches are built together. After epoch `final` no more are
    built ahead.

    Args:
        epochs: Which graphs form which supergraph.
        assembler: Lays out the arrays.
        replicas: G, supergraphs per batch.
        host: Index of the host.
        num_hosts: Number of hosts that train together.
        prefetch: Batches to build before they are requested; with 0 each block is
            built on request.
        threads: Number of threads.
    """

    def __init__(
        self,
        epochs: Epochs,
        assembler,
        replicas: int,
        host: int,
        num_hosts: int,
        prefetch: int,
        threads: int,
    ):
        self.stats = LoaderStats()
        self.final: int | None = None
        self._epochs = epochs
        self._assembler = assembler
        self._replicas, self._host, self._num_hosts = replicas, host, num_hosts
        self._block_length = self._choose_block_length()
        ahead = -(-prefetch // self._block_length)
        self._blocks = max(threads, ahead) if prefetch else 0
        self._threads = threads if prefetch else 0
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: dict[tuple[int, int], Future] = {}
        self._composed: dict[int, Future] = {}
        self._composing_s = 0.0
        self._current: tuple = (None, [])
        self._last_index = -1

    def _choose_block_length(self) -> int:
        """Return how many batches one call should build."""
        sizes, batches = self._epochs.sizes, self._epochs.length * self._num_hosts
        rows = sum(int(sizes[name].sum()) for name in ("node", "edge")) // batches
        return max(1, min(_LONGEST_BLOCK, _MOST_ROWS // max(rows, 1)))

    def get(self, index: int, epoch: int) -> tuple:
        """Return batch `index` of an epoch and its figures, and build those to come."""
        block, place = divmod(index, self._block_length)
        current, last = self._current, self._last_index
        self._last_index = index
        if current[0] != (epoch, block):
            if index not in (0, last + 1):
                # Random access: the rest of the block would be built needlessly.
                return self.build(range(index, index + 1), epoch)[0]
            built = current[1] if self._comes_again else []
            self._current = current = (epoch, block), built or self._block(block, epoch)
            if block == self._last_block:
                # A loader that is kept after its last batch should not keep threads.
                self._end_threads()
        batch, figures = current[1][place]
        # Whatever a step does to it, a batch that comes again stays as it is.
        return _copy(batch) if self._comes_again else batch, figures

    @property
    def _comes_again(self) -> bool:
        """Whether all epochs are the same block, such as a whole graph."""
        return self._last_block == 0 and not self._epochs.differ

    def build(self, indices: range, epoch: int) -> list[tuple]:
        """Build batches, each with the figures that `stats` counts."""
        batches, seconds = self._build(indices, epoch)
        self.stats.assembled(seconds, len(batches))
        return batches

    def _build(self, indices: range, epoch: int) -> tuple:
        supergraphs = [s for i in indices for s in self.supergraphs(i, epoch)]
        began = time.perf_counter()
        batches = self._assembler.build(supergraphs, self._replicas)
        return batches, time.perf_counter() - began

    def supergraphs(self, index: int, epoch: int) -> list[Supergraph]:
        """Return the supergraphs of the host in batch `index` of an epoch."""
        first = (index * self._num_hosts + self._host) * self._replicas
        return self.composition(epoch)[first : first + self._replicas]

    def composition(self, epoch: int) -> list[Supergraph]:
        """Return the supergraphs of an epoch, packed once."""
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
                began = time.perf_counter()
                future.set_result(self._epochs.composition(epoch))
                self._composing_s = time.perf_counter() - began
            except BaseException as error:
                self._composed.pop(epoch, None)
                future.set_exception(error)
        return future.result()

    def compose_in_background(self, epoch: int) -> None:
        """Pack the supergraphs of an epoch ahead, where that takes a while."""
        if self._threads and self._composing_s > _LONG_S:
            # In a separate thread, which ends with the call: the pool may have stopped.
            pool = ThreadPoolExecutor(1, "graph-loader")
            pool.submit(self.composition, epoch)
            pool.shutdown(wait=False)

    def stop(self) -> None:
        """Stop the threads; the next request starts them again."""
        with self._lock:
            for future in self._waiting.values():
                future.cancel()
            self._waiting = {}
        self._end_threads()

    def _end_threads(self) -> None:
        """Let the threads end with the blocks that they were given."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)

    @property
    def _last_block(self) -> int:
        return (self._epochs.length - 1) // self._block_length

    def _indices(self, block: int) -> range:
        first = block * self._block_length
        return range(first, min(first + self._block_length, self._epochs.length))

    def _block(self, block: int, epoch: int) -> list:
        if not self._threads:
            return self.build(self._indices(block), epoch)
        ahead = range(block, block + self._blocks + 1)
        keys = [(epoch, b) for b in ahead if b <= self._last_block]
        if self._epochs.differ and (self.final is None or epoch < self.final):
            # The first blocks of the next epoch follow on the last ones of this.
            later = [b - self._last_block - 1 for b in ahead[len(keys) :]]
            keys += [(epoch + 1, b) for b in later if b <= self._last_block]
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, "graph-loader")
            self._waiting = {
                key: self._waiting.get(key)
                or self._pool.submit(self._build, self._indices(key[1]), key[0])
                for key in keys
            }
            future = self._waiting.pop((epoch, block))
        batches, seconds = future.result()
        self.stats.assembled(seconds, len(batches))
        return batches


def _copy(batch):
    if isinstance(batch, dict):
        return {name: _copy(value) for name, value in batch.items()}
    return tuple(map(_copy, batch)) if isinstance(batch, tuple) else batch.copy()
