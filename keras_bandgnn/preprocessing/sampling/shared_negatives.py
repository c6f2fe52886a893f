"""`SharedNegatives`: nodes with which all pairs of a step are compared."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from keras_bandgnn.checks import one_of, optional, positive_int, seed_number
from keras_bandgnn.registration import constructor_arguments

SIDES = ("receiver", "sender", "both")


class SharedNegatives:
    """Compares all pairs of a step with the same nodes: with all of them, or a sample.

    A pair (s, r) of relation t asks for its receiver among r and other nodes, given s
    and t, and for its sender likewise. As all pairs of a step share the other nodes,
    their scores are one product of matrices. With all nodes this is the objective
    1vsAll of knowledge graphs. It is for `LinkPredictor(objective="softmax")` with any
    head but `"mlp"`.

    Nodes that are known to be other true answers are among the negatives, as in the
    publications; the true node itself is not. A step of P pairs has scores of shape
    [P, 1 + C] for C nodes at each side, and their gradients, in memory: choose
    `batch_size` accordingly.

    Args:
        count: C, nodes drawn anew for each step, each at most once; None for all nodes.
        sides: Which node of a pair is asked for: `"receiver"`, `"sender"` or `"both"`.
            With `edge_set` receivers are compared with nodes of the target set, and
            senders with those of the source set.

    Raises:
        ValueError: For arguments out of range.

    Reference:
        1vsAll: Lacroix et al. 2018, https://arxiv.org/abs/1806.07297. Compared with
        drawn negatives: Ruffinelli et al. 2020, https://openreview.net/forum?id=BkxSmlBFvr.

    Example:
    >>> shared = SharedNegatives(2, sides="receiver")
    >>> nodes = shared.sample(5, seed=1)
    >>> {end: ids.shape for end, ids in nodes.items()}
    {'receiver': (2,)}
    """

    # Batches have pairs alone.
    per_positive = 0

    def __init__(self, count: int | None = None, sides: str = "both"):
        self.count = optional(positive_int, "count", count)
        self.sides = one_of("sides", sides, SIDES)

    @property
    def ends(self) -> tuple[str, ...]:
        """Ends of pairs that are asked for, `"receiver"` and `"sender"`."""
        return SIDES[:2] if self.sides == "both" else (self.sides,)

    def sample(self, num_nodes: int, seed: int = 0) -> dict[str, np.ndarray]:
        """Return the nodes of a step, int64 [C], for each end that is asked for.

        Args:
            num_nodes: N.
            seed: Seed of the draws.
        """
        positive_int("num_nodes", num_nodes)
        rng = np.random.default_rng(seed_number("seed", seed))
        return self.draw(dict.fromkeys(self.ends, np.arange(num_nodes)), rng)

    def draw(
        self, nodes: Mapping[str, np.ndarray], rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Return the nodes of a step, int64 [C], for each end that is asked for.

        Args:
            nodes: `"sender"` and `"receiver"` -> int [n], the nodes of that end.
            rng: Source of random numbers.

        Returns:
            End -> nodes; -1 at the end of the shorter list, if the ends have different
            numbers of nodes.
        """
        drawn = {}
        for end in self.ends:
            drawn[end] = nodes[end]
            if self.count is not None and self.count < len(nodes[end]):
                drawn[end] = rng.choice(nodes[end], self.count, replace=False)
        width = max(map(len, drawn.values()))
        return {
            end: np.pad(ids, (0, width - len(ids)), constant_values=-1)
            for end, ids in drawn.items()
        }

    get_config = constructor_arguments

    def __repr__(self) -> str:
        return f"SharedNegatives(count={self.count!r}, sides={self.sides!r})"
