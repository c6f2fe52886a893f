"""States that are equal in several graphs of a supergraph, computed once."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from keras_bandgnn.primitives.base import is_step_resource

# Room above the mean that is left, in standard deviations.
_DEVIATIONS = 3.0
# The share of the largest size from which on a supergraph counts as full.
_FULL = 0.9
# The largest share of the capacities that is worth another shape.
_WORTH = 0.98
# Capacities are multiples of 64, and of this where they are larger: oneDNN makes a
# program for each number of rows.
_STEP, _MANY = 256, 4096


def first_equal_row(colour: np.ndarray) -> np.ndarray:
    """Return the first row with the colour of each, int32 [R].

    Args:
        colour: uint64 [R], equal where rows are.
    """
    order = np.argsort(colour)
    ordered = colour[order]
    begins = np.ones(len(order), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=begins[1:])
    starts = np.flatnonzero(begins)
    equal = np.empty(len(order), np.int32)
    if len(order):
        first = np.minimum.reduceat(order, starts)
        equal[order] = first.repeat(np.diff(starts, append=len(order)))
    return equal


@dataclasses.dataclass
class StepGraph:
    """The rows and edges of a step in one supergraph.

    Args:
        state: int32 [R], row of the old state of each row in the list before.
        sender: int32 [E], row in the list before.
        receiver: int32 [E], row, sorted.
        type: int32 [E].
    """

    state: np.ndarray
    sender: np.ndarray
    receiver: np.ndarray
    type: np.ndarray

    def deduplicate(self, equal: np.ndarray) -> tuple["StepGraph", np.ndarray]:
        """Remove duplicates by `first_equal_row`; return also the new row of each."""
        is_first = equal == np.arange(len(equal))
        place = (np.cumsum(is_first) - 1).astype(np.int32)[equal]
        edges = is_first[self.receiver]
        rows = StepGraph(
            self.state[is_first],
            self.sender[edges],
            place[self.receiver[edges]],
            self.type[edges],
        )
        return rows, place

    def remap_inputs(self, place: np.ndarray) -> "StepGraph":
        """Return the rows with `place` applied to those of the list before."""
        return dataclasses.replace(
            self, state=place[self.state], sender=place[self.sender]
        )


@dataclasses.dataclass
class DeduplicatedBudget:
    """How large the arrays of supergraphs are whose graphs share states.

    Args:
        usual: The budget of most supergraphs.
        smaller: What nearly all of those need; None for what each needs.
    """

    usual: dict[str, int]
    smaller: dict[str, int] | None

    @classmethod
    def of(
        cls,
        usual: dict[str, int],
        needed: Sequence[Mapping[str, int]],
    ) -> "DeduplicatedBudget | None":
        """Estimate the smaller budget; None if it is hardly smaller.

        Args:
            usual: The budget of most supergraphs.
            needed: What some of these need.
        """
        names = [name for name in needed[0] if name in usual]
        smaller = dict(usual)
        for name in names:
            sizes = np.array([table[name] for table in needed])
            # Those that are partly filled say nothing on full ones.
            sizes = sizes[sizes >= _FULL * sizes.max()]
            bound = sizes.max()
            if len(sizes) > 1:
                bound = max(bound, sizes.mean() + _DEVIATIONS * sizes.std(ddof=1))
            smaller[name] = min(usual[name], _rounded(bound))
        before, after = (sum(b[n] for n in names) for b in (usual, smaller))
        return cls(usual, smaller) if after <= _WORTH * before else None

    @staticmethod
    def may_differ(usual: Mapping[str, int]) -> bool:
        """Return whether any array is long enough to vary from batch to batch."""
        sizes = (size for name, size in usual.items() if is_step_resource(name))
        return max(sizes, default=0) >= _MANY

    def budgets(
        self,
        budgets: Sequence[dict[str, int]],
        needed: Sequence[Mapping[str, int]],
        replicas: int,
    ) -> list[dict[str, int]]:
        """Return budgets in which supergraphs fit, the same for all of a batch.

        Args:
            budgets: Of the supergraphs, without sharing.
            needed: What each needs.
            replicas: Supergraphs of a batch.
        """
        out = []
        for first in range(0, len(budgets), replicas):
            budget, batch = budgets[first], needed[first : first + replicas]
            if self.smaller is None:
                capacities = {
                    name: min(size, _rounded(max(table[name] for table in batch)))
                    for name, size in budget.items()
                    if name in batch[0] and size >= _MANY
                }
                budget = {**budget, **capacities}
            elif budget == self.usual and all(
                size <= self.smaller[name]
                for table in batch
                for name, size in table.items()
            ):
                budget = self.smaller
            out += [budget] * replicas
        return out


def _rounded(size: float) -> int:
    """Return a capacity for a size, of few different ones."""
    step = _STEP if size >= _MANY else 64
    return step * max(1, int(np.ceil(size / step)))
