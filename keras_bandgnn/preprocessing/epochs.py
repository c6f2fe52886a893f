"""`Epochs`: which graphs form which supergraph in each epoch."""

from collections.abc import Mapping, Sequence

import numpy as np

from keras_bandgnn.preprocessing.dynamic_batcher import DynamicBatcher
from keras_bandgnn.preprocessing.packing import spread

_TRIALS = 9
_ATTEMPTS = 64


class Epochs:
    """Compositions of epochs, from the sizes of the graphs alone.

    All epochs have the same number of supergraphs, and each holds every graph once.

    Args:
        sizes: Resource -> int64 [n], what each graph needs.
        bucket: int8 [n], budget of each graph; none if it is not in `budgets`.
        budgets: Capacities by name, the usual ones first.
        batcher: What packs.
        seed: Seed of the orders; None for the given order in every epoch.
        replicas: The number of supergraphs is a multiple of it.
    """

    def __init__(
        self,
        sizes: Mapping[str, np.ndarray],
        bucket: np.ndarray,
        budgets: Sequence[Mapping[str, int]],
        batcher: DynamicBatcher,
        seed: int | None,
        replicas: int,
    ):
        self.sizes = sizes
        self.bucket = bucket
        self.budgets = budgets
        self.batcher = batcher
        self.seed = seed
        self.replicas = replicas
        self.length = self._plan_length()

    def _compose(self, order: np.ndarray) -> list[tuple[np.ndarray, int]]:
        """Supergraphs of an order of all graphs, each with its bucket."""
        return [
            (members, bucket)
            for bucket in range(len(self.budgets))
            for members in self._pack(order[self.bucket[order] == bucket], bucket)
        ]

    def _pack(self, order: np.ndarray, bucket: int) -> list[np.ndarray]:
        if not order.size:
            return []
        packed = self.batcher.pack(self.sizes, order, self.budgets[bucket])
        return spread(packed, -(-len(packed) // self.replicas) * self.replicas)

    def _order(self, epoch: int, attempt: int) -> np.ndarray:
        total = len(self.bucket)
        if self.seed is None:
            return np.arange(total)
        return np.random.default_rng([self.seed, epoch, attempt]).permutation(total)

    def _plan_length(self) -> int:
        """Number of supergraphs of every epoch: the median over a few orders."""
        counts = [len(self._compose(self._order(0, a))) for a in range(_TRIALS)]
        if not max(counts):
            raise ValueError(
                "Expected at least one graph within the budget "
                f"{self.batcher.budget}. Received: none (oversize='drop')."
            )
        self._shortest = int(np.argmin(counts))
        middle = int(np.median(counts))
        return -(-middle // self.replicas) * self.replicas

    def composition(self, epoch: int) -> list[tuple[np.ndarray, int]]:
        """The graphs of each supergraph of an epoch, with their bucket."""
        for attempt in range(_ATTEMPTS):
            packed = self._compose(self._order(epoch, attempt))
            if len(packed) <= self.length:
                break
        else:
            packed = self._compose(self._order(0, self._shortest))
        # Keras reads the length once per fit, so all epochs have the same.
        usual = [members for members, bucket in packed if bucket == 0]
        large = [(members, 1) for members, bucket in packed if bucket == 1]
        usual = spread(usual, self.length - len(large))
        packed = [(members, 0) for members in usual] + large
        if not large:
            return packed
        # TensorFlow takes its signature from the first two batches of a fit: they
        # must show both shapes. The others are shuffled.
        blocks = np.arange(len(packed) // self.replicas)
        large_blocks = len(large) // self.replicas
        if self.seed is not None:
            rng = np.random.default_rng([self.seed, epoch, _ATTEMPTS])
            blocks[1:-1] = rng.permutation(blocks[1:-1])
        elif large_blocks == len(blocks):
            return packed
        order = [blocks[-1], *blocks[:-1]]
        return [
            packed[b * self.replicas + r] for b in order for r in range(self.replicas)
        ]
