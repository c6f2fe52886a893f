"""`Composer`: which ids form which batch; `BatchBuilder` builds them ahead of use."""

import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from keras_bandgnn.assembly.assembler import Supergraph
from keras_bandgnn.batch import in_order

# A block of batches that are built together has at most this many, and this many rows.
_LONGEST_BLOCK = 8
_MOST_ROWS = 131_072
# Orders whose packing takes longer than these seconds are packed ahead.
_LONG_S = 0.01


class Composer:
    """Deals out the supergraphs of each epoch: ids, sizes and the key of random draws.

    A composer reads sizes, not arrays, so that the length of an epoch is exact and any
    step of any epoch can be asked for. Subclasses set `length`, `count`, `sizes` and
    `budgets`, and override `composition` and `usage`.
    """

    # Name of what the ids count.
    item = "graph"
    # Number of ids, and of steps of every epoch.
    count: int
    length: int
    # Supergraphs of a step, over all replicas and hosts.
    per_step = 1
    # Whether each epoch has an order of its own.
    differ = True
    # Whether every batch has the sizes of one of `budgets`, and the sizes that never
    # vary where this is False.
    fixed_shapes = True
    fixed_sizes: Sequence[str] = ("graph", "candidate")
    # Resource -> int64 [n], what graphs need; or [1], what an epoch needs in all.
    sizes: Mapping[str, np.ndarray]
    # The usual capacities by name and, where batches exceed them, larger ones.
    budgets: list[dict[str, int]]

    def composition(self, epoch: int) -> list[Supergraph]:
        """Return the supergraphs of an epoch; each `per_step` of them make a step."""
        raise NotImplementedError

    def usage(self, supergraphs: Sequence[Supergraph]) -> dict[str, np.ndarray]:
        """Return the real and padded sizes of an epoch's steps; see `Loader.usage`.

        Without sizes of each id all steps hold as much in the mean.
        """
        budget, steps = self.budgets[0], len(supergraphs) // self.per_step
        usage = {}
        for name, total in self.sizes.items():
            room = self.per_step * budget[name]
            means = int(total[0]) // steps, room
            usage[name] = np.repeat(np.array([means]).T, steps, axis=1)
        return usage

    @property
    def has_one_shape(self) -> bool:
        """Whether all batches so far have one shape."""
        return len(self.budgets) == 1

    @property
    def num_oversized(self) -> int:
        """Ids, or budgets, above the usual one."""
        return len(self.budgets) - 1

    def num_dropped(self, supergraphs: Sequence[Supergraph]) -> int:
        """Return how many ids the supergraphs of an epoch leave out."""
        del supergraphs
        return 0


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
        composer: Which ids form which supergraph.
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
        composer: Composer,
        assembler,
        replicas: int,
        host: int,
        num_hosts: int,
        prefetch: int,
        threads: int,
    ):
        self.stats = LoaderStats()
        self.final: int | None = None
        self._composer = composer
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
        sizes, batches = self._composer.sizes, self._composer.length * self._num_hosts
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
        return self._last_block == 0 and not self._composer.differ

    def build(self, indices: range, epoch: int) -> list[tuple]:
        """Build batches, each with the figures that `stats` counts."""
        batches, seconds = self._build(indices, epoch)
        self.stats.assembled(seconds, len(batches))
        return batches

    def _build(self, indices: range, epoch: int) -> tuple:
        supergraphs = [s for i in indices for s in self.supergraphs(i, epoch)]
        began = time.perf_counter()
        batches = in_order(self._assembler.build(supergraphs, self._replicas))
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
                future.set_result(self._composer.composition(epoch))
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
        return (self._composer.length - 1) // self._block_length

    def _indices(self, block: int) -> range:
        first = block * self._block_length
        return range(first, min(first + self._block_length, self._composer.length))

    def _block(self, block: int, epoch: int) -> list:
        if not self._threads:
            return self.build(self._indices(block), epoch)
        ahead = range(block, block + self._blocks + 1)
        keys = [(epoch, b) for b in ahead if b <= self._last_block]
        if self._composer.differ and (self.final is None or epoch < self.final):
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
