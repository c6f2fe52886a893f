"""`NegativeSampler`: pairs of nodes that are no edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn.checks import (
    boolean,
    one_of,
    optional,
    positive_int,
    refuse,
    seed_number,
    string,
)
from keras_bandgnn.data.identity import both_ways
from keras_bandgnn.data.link_ends import NodePairs, as_pairs
from keras_bandgnn.graph import Graph
from keras_bandgnn.registration import constructor_arguments

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from keras_bandgnn.aliases import Pairs

KINDS = ("uniform", "source", "typed")
ENDS = ("receiver", "sender", "either")


class NegativeSampler:
    """Draws pairs that are no edges, for each pair that is one.

    No pair is rejected and drawn again: the free places of a row of the adjacency
    matrix are numbered, and a number is drawn, so draws are exact in dense graphs, too.
    Relations and times are those of the positive. Pairs that are known to be true are
    so at all times: with `exclude_known=False` negatives may be pairs of other times.

    Args:
        per_positive: K, negatives for each positive pair.
        kind: `"uniform"`: both nodes anew, all free pairs of the relation with equal
            probability. `"source"`: one node replaced by any node. `"typed"`: one node
            replaced by one that occurs at that end of the relation, or by one with the
            same value of the node feature `node_type`; where none is free, by any.
        replace: Which node `"source"` and `"typed"` replace: `"receiver"`, `"sender"`,
            or `"either"`, drawn for each positive; if no node is free at that end, the
            other.
        exclude_known: Whether pairs that are known to be true are not drawn. Otherwise
            a negative may also be its positive.
        self_pairs: Whether pairs of a node with itself are drawn, which
            `LinkPredictor.rank` compares, too, unless its `self_pairs` is False.
        node_type: Node feature of integers that `"typed"` keeps, None for the nodes
            seen at that end.

    Raises:
        ValueError: For arguments out of range.

    Example:
    >>> from keras_bandgnn.data import NodePairs
    >>> sampler = NegativeSampler(2, kind="source")
    >>> drawn = sampler.sample(NodePairs([0, 1], [1, 2]), num_nodes=3)
    >>> drawn.senders.tolist(), drawn.receivers.tolist()
    ([0, 0, 1, 1], [2, 2, 0, 0])
    """

    def __init__(
        self,
        per_positive: int = 1,
        kind: str = "uniform",
        replace: str = "receiver",
        exclude_known: bool = True,
        self_pairs: bool = False,
        node_type: str | None = None,
    ):
        self.per_positive = positive_int("per_positive", per_positive)
        self.kind = one_of("kind", kind, KINDS)
        self.replace = one_of("replace", replace, ENDS)
        self.exclude_known = boolean("exclude_known", exclude_known)
        self.self_pairs = boolean("self_pairs", self_pairs)
        self.node_type = optional(string, "node_type", node_type)
        if self.node_type is not None and self.kind != "typed":
            refuse("node_type", f"None with kind={kind!r}", node_type)

    def sample(
        self,
        pairs: Pairs,
        num_nodes: int,
        known: Pairs | None = None,
        node_types: ArrayLike | None = None,
        seed: int = 0,
        epoch: int = 0,
        step: int = 0,
        undirected: bool = False,
    ) -> NodePairs:
        """Return K negatives for each pair, one pair after the other.

        They follow from the arguments alone.

        Args:
            pairs: `NodePairs` that are edges, or int [Q, 2] or [Q, 3].
            num_nodes: N.
            known: Further pairs that are true, in the same form.
            node_types: int [N], values of the feature `node_type`.
            seed: Seed of the draws.
            epoch: Number of the epoch.
            step: Number of the step.
            undirected: Whether the reverse of a true pair is true, too.

        Returns:
            `NodePairs` of length Q K.

        Raises:
            ValueError: If all pairs that could be drawn are known.
        """
        key = [
            seed_number(name, value)
            for name, value in (("seed", seed), ("epoch", epoch), ("step", step))
        ]
        draw = self.prepare(pairs, num_nodes, known, node_types, undirected)
        return draw(slice(None), np.random.default_rng(key))

    def types_of(self, graph: Graph) -> np.ndarray | None:
        """Return the feature `node_type` of a graph, or None if there is none to read.

        Raises:
            ValueError: For a graph without it.
        """
        if self.node_type is None:
            return None
        if self.node_type not in graph.node:
            raise ValueError(
                f"Expected a node feature {self.node_type!r} as `node_type` of the "
                f"NegativeSampler. Received: node features {sorted(graph.node)}."
            )
        return graph.node[self.node_type]

    def prepare(
        self,
        pairs: Pairs,
        num_nodes: int,
        known: Pairs | None = None,
        node_types: ArrayLike | None = None,
        undirected: bool = False,
        nodes: Mapping[str, np.ndarray] | None = None,
    ) -> Callable:
        """Return a function that draws for some of the pairs: (index, generator).

        Args:
            pairs: See `sample`.
            num_nodes: N.
            known: See `sample`.
            node_types: See `sample`.
            undirected: See `sample`.
            nodes: `"sender"` and `"receiver"` -> int [n], ascending, the nodes that may
                be drawn at that end; None for all nodes.
        """
        num_nodes = positive_int("num_nodes", num_nodes)
        pairs = as_pairs("pairs", pairs, num_nodes)
        if not len(pairs):
            return lambda index, rng: pairs
        true = pairs.without_time()
        if known is not None:
            others = as_pairs("known", known, num_nodes).without_time()
            true = NodePairs.concatenate([true, others])
        taken = true if self.exclude_known else true.take(slice(0))
        # Ends of "typed" stay those of the pairs: users rate items, not items users.
        if boolean("undirected", undirected):
            taken = both_ways(taken)
        if nodes is None:
            nodes = dict.fromkeys(("sender", "receiver"), np.arange(num_nodes))
        if self.kind == "uniform":
            return self._uniform(pairs, taken, num_nodes, nodes)
        ends = [e for e in ("receiver", "sender") if self.replace in (e, "either")]
        nodes = {end: nodes[end] for end in ends}
        sides = self._sides(self.kind, nodes, pairs, taken, true, num_nodes, node_types)
        if self.kind == "typed":
            # Where no node of the type is free.
            sides += self._sides("source", nodes, pairs, taken, true, num_nodes)
        free = np.stack([side.free > 0 for _, side in sides])
        self._check_free(pairs, free)

        def draw(index, rng) -> NodePairs:
            positive, able = pairs.take(index), free[:, index]
            which = rng.integers(0, len(ends), len(positive))
            possible = able[which, np.arange(len(positive))]
            which = np.where(possible, which, able.argmax(axis=0))
            senders, receivers, types = (
                np.repeat(ids, self.per_positive)
                for ids in (positive.senders, positive.receivers, positive.types)
            )
            drawn = {"sender": senders, "receiver": receivers}
            for number, (end, side) in enumerate(sides):
                slots = np.flatnonzero(np.repeat(which == number, self.per_positive))
                rows = np.repeat(side.row[index], self.per_positive)[slots]
                drawn[end][slots] = side.draw(rows, rng)
            return NodePairs(senders, receivers, types, time=self._times(positive))

        return draw

    def _check_free(self, pairs: NodePairs, free: np.ndarray) -> None:
        """Refuse pairs without a free node at any end; free is bool [ends, n]."""
        if not free.any(axis=0).all():
            k = int(np.flatnonzero(~free.any(axis=0))[0])
            raise ValueError(
                "Expected a free node for each of `pairs`. Received: the pair of nodes "
                f"{pairs.senders[k]} and {pairs.receivers[k]} of type "
                f"{pairs.types[k]}, for which all pairs that replace={self.replace!r} "
                "could draw are known. Use kind='uniform', replace='either', or "
                "exclude_known=False."
            )

    def _sides(
        self, kind, nodes, pairs, taken, true, num_nodes, node_types=None
    ) -> list[tuple[str, CorruptedEnd]]:
        """Return each end that may be replaced, and its possible replacements."""
        sides = []
        for end, choices in nodes.items():
            seen = true if end == "receiver" else true.reversed()
            groups = self._groups(kind, seen, num_nodes, choices, node_types)
            pair_sets = [pairs, taken]
            if end == "sender":
                pair_sets = [pair_set.reversed() for pair_set in pair_sets]
            sides.append(
                (end, CorruptedEnd(*pair_sets, num_nodes, self.self_pairs, *groups))
            )
        return sides

    def _uniform(
        self, pairs: NodePairs, taken: NodePairs, num_nodes: int, nodes: Mapping
    ) -> Callable:
        first, second = nodes["sender"], nodes["receiver"]
        number = np.full((2, num_nodes), -1, np.int64)
        number[0, first], number[1, second] = (
            np.arange(len(first)),
            np.arange(len(second)),
        )
        taken = taken.take(
            (number[0, taken.senders] >= 0) & (number[1, taken.receivers] >= 0)
        )
        width = len(second)
        types, row = np.unique(pairs.types, return_inverse=True)
        place = np.searchsorted(types, taken.types)
        same = types[np.minimum(place, len(types) - 1)] == taken.types
        taken, place = taken.take(same), place[same]
        rows = place, number[0, taken.senders] * width + number[1, taken.receivers]
        if not self.self_pairs:
            both = np.flatnonzero((number >= 0).all(axis=0))
            diagonal = number[0, both] * width + number[1, both]
            loops = (
                np.arange(len(types)).repeat(len(both)),
                np.tile(diagonal, len(types)),
            )
            rows = tuple(map(np.concatenate, zip(rows, loops, strict=True)))
        places = FreePlaces(*rows, np.full(len(types), len(first) * width))
        if not places.free.all():
            raise ValueError(
                "Expected a pair of nodes that is not known for each type of `pairs`. "
                f"Received: all pairs of type {types[np.argmin(places.free)]} of "
                f"{len(first)} senders and {width} receivers are known. Use "
                "exclude_known=False."
            )

        def draw(index, rng) -> NodePairs:
            rows = np.repeat(row[index], self.per_positive)
            drawn = places.draw(rows, rng)
            ends = first[drawn // width], second[drawn % width]
            return NodePairs(*ends, types[rows], time=self._times(pairs.take(index)))

        return draw

    def _times(self, positive: NodePairs) -> np.ndarray | None:
        """Return the times of the negatives of some pairs; None without times."""
        if positive.time is None:
            return None
        return np.repeat(positive.time, self.per_positive)

    def _groups(
        self, kind: str, true: NodePairs, num_nodes: int, choices, node_types
    ) -> tuple:
        """Return groups of nodes of which each may replace any other.

        Args:
            kind: `"source"` or `"typed"`.
            true: Pairs whose receivers are to be replaced.
            num_nodes: N.
            choices: int [n], nodes that may replace them.
            node_types: See `sample`.

        Returns:
            A function of types and nodes to the group of each; the members of the
            groups, ascending in each; and where each group begins among them.
        """
        if kind == "source":
            pointer = np.array([0, len(choices)])
            return (lambda types, nodes: 0 * nodes, choices, pointer)
        if self.node_type is None:
            seen = np.stack([true.types, true.receivers]).astype(np.int64)
            seen = np.unique(seen, axis=1)
            return (lambda types, nodes: types, seen[1], _pointer(seen[0]))
        label = np.asarray(node_types)
        if label.shape != (num_nodes,) or label.dtype.kind not in "iu":
            raise ValueError(
                f"Expected `node_types` to be integers [{num_nodes}], the feature "
                f"{self.node_type!r} of nodes. Received: {label.dtype} of shape "
                f"{label.shape}. Pass node_types=graph.node[{self.node_type!r}]."
            )
        _, label = np.unique(label, return_inverse=True)
        members = choices[np.argsort(label[choices], kind="stable")]
        pointer = _pointer(label[choices], int(label.max(initial=-1)) + 1)
        return (lambda types, nodes: label[nodes], members, pointer)

    get_config = constructor_arguments

    def __repr__(self) -> str:
        options = ", ".join(f"{k}={v!r}" for k, v in self.get_config().items())
        return f"NegativeSampler({options})"


def _pointer(groups: np.ndarray, count: int = 0) -> np.ndarray:
    """Return where each group begins among sorted group numbers, and the end."""
    return np.concatenate([[0], np.cumsum(np.bincount(groups, minlength=count))])


class FreePlaces:
    """Places of rows that are not taken, each drawn with the same probability.

    Args:
        row: int [n], row of each place that is taken.
        place: int [n], the place, below the size of its row.
        sizes: int [R], places of each row.

    Attributes:
        free: int64 [R], places of each row that are not taken.
    """

    def __init__(self, row: np.ndarray, place: np.ndarray, sizes: np.ndarray):
        self._width = int(sizes.max(initial=1))
        if len(sizes) * self._width >= 2**63:
            raise ValueError(
                "Expected fewer than 2**63 places. Received: "
                f"{len(sizes)} rows of {self._width}. Use kind='source'."
            )
        keys = np.unique(row.astype(np.int64) * self._width + place)
        starts = np.arange(len(sizes) + 1) * self._width
        self._before = np.searchsorted(keys, starts)
        self.free = np.asarray(sizes, np.int64) - np.diff(self._before)
        # Number of free places before each excluded one: its rank for inverse sampling.
        self._ranks = keys - np.arange(len(keys))

    def draw(self, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return a free place of each row, int64 [m].

        Args:
            rows: int [m], rows with free places.
            rng: Source of random numbers.
        """
        start = rows * self._width
        rank = start - self._before[rows] + rng.integers(0, self.free[rows])
        return rank + np.searchsorted(self._ranks, rank, side="right") - start


class CorruptedEnd:
    """Nodes that may replace the receivers of pairs.

    Args:
        pairs: The positive pairs.
        taken: Pairs that must not be drawn.
        num_nodes: N.
        self_pairs: Whether a sender may become its own receiver.
        group_of: From types and nodes to the group of each.
        members: Nodes of the groups, one group after the other, ascending in each.
        pointer: Where each group begins among them.

    Attributes:
        row: int64 [Q], the row of each positive: those with equal rows have the same
            free nodes.
        free: int64 [Q], number of free nodes of each positive.
    """

    def __init__(self, pairs, taken, num_nodes, self_pairs, group_of, members, pointer):
        groups = len(pointer) - 1

        def rows_of(pairs):
            group = group_of(pairs.types, pairs.receivers).astype(np.int64)
            key = (pairs.types * np.int64(groups) + group) * num_nodes + pairs.senders
            return group, key

        group, key = rows_of(pairs)
        keys, first, self.row = np.unique(key, return_index=True, return_inverse=True)
        group, sender = group[first], pairs.senders[first]
        # Where each node is among the members of its group.
        member_keys = (
            np.repeat(np.arange(groups), np.diff(pointer)) * num_nodes + members
        )

        def place_of(group, node):
            member_key = group * np.int64(num_nodes) + node
            place = np.searchsorted(member_keys, member_key)
            is_member = member_keys[np.minimum(place, len(members) - 1)] == member_key
            return place - pointer[group], is_member

        taken_group, taken_key = rows_of(taken)
        row = np.searchsorted(keys, taken_key)
        here = keys[np.minimum(row, len(keys) - 1)] == taken_key
        place, in_group = place_of(taken_group, taken.receivers)
        here &= in_group
        rows = row[here], place[here]
        if not self_pairs:
            loops, in_group = place_of(group, sender)
            loops = np.flatnonzero(in_group), loops[in_group]
            rows = tuple(map(np.concatenate, zip(rows, loops, strict=True)))
        self._places = FreePlaces(*rows, np.diff(pointer)[group])
        self._first, self._members = pointer[group], members
        self.free = self._places.free[self.row]

    def draw(self, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return a free node for each row."""
        return self._members[self._first[rows] + self._places.draw(rows, rng)]
