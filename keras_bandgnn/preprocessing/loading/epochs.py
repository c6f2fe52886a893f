"""`Epochs`: which graphs form which supergraph in each epoch."""

from collections.abc import Mapping, Sequence

import numpy as np

from keras_bandgnn.assembly.assembler import Supergraph
from keras_bandgnn.preprocessing.batching.batcher import Batcher
from keras_bandgnn.preprocessing.batching.packing import spread

_TRIALS = 9
_FEW_TRIALS = 3
_MANY_GRAPHS = 20_000
_ATTEMPTS = 64
# Shapes among which the first two batches are chosen.
_MOST_COMPARED = 200


class Epochs:
    """Compositions of epochs, from the sizes of the graphs alone.

    All epochs have the same number of steps, and each holds every graph once (except
    those that the batcher drops).

    Args:
        sizes: Resource -> int64 [n], what each graph needs.
        batcher: What packs.
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
        self.bucket, self.budgets = batcher.split(sizes)
        self.length = self._plan_length()

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
