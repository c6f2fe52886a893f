"""`ReceptiveField`: the nodes that each propagation step has to update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn.checks import boolean, one_of, optional, positive_int, string
from keras_bandgnn.registration import constructor_arguments

if TYPE_CHECKING:
    from keras_bandgnn.data.flat import FlatGraphs


class ReceptiveField:
    """A schedule that updates only nodes in the receptive field of the nodes read.

    Use it for tasks that read few nodes: the candidates and the slot of a
    `NodeSelector`, or the nodes that a feature marks. Of T steps, step t has to update
    only the nodes at most T - 1 - t edges from a node that is read. Outputs and
    gradients are those of the full computation.

    With `merge`, nodes of a graph with equal states are computed once. States are equal
    after t steps if the nodes have the same colour after t rounds of colour refinement
    (Weisfeiler and Leman): equal features, and in every round equal states received
    over equal types. This is exact only without randomness, which excludes dropout on
    states or messages in training. Colours are 64-bit hashes: the probability of a
    collision among a million distinct nodes of a supergraph is 3e-8. A `GraphLoader`
    with at least eight supergraphs an epoch merges equal states of different graphs,
    too, where their graph-level features agree; steps then have smaller arrays.
    `fit` keeps them apart where a model has dropout.

    Args:
        steps: T, the number of propagation steps of the model.
        merge: Whether to compute equal states once.
        read: Node feature (bool or int) that is true for the nodes that are read;
            the candidates and the slot if omitted.
        order: `"compact"`: each step has a separate list of nodes and edges (for plans
            of `Segment` or `Grouped`). `"blocks"`: graphs keep their node order and
            each step has a list of active blocks (for `Banded`, without `merge`); order
            the graphs with `RCMKCompile(ordering="breadth_first")`, so that few blocks
            are active.

    Example:
    >>> ReceptiveField(steps=8).merge
    True
    """

    def __init__(
        self,
        steps: int,
        merge: bool = True,
        read: str | None = None,
        order: str = "compact",
    ):
        self.steps = positive_int("steps", steps)
        self.merge = boolean("merge", merge)
        self.read = optional(string, "read", read)
        self.order = one_of("order", order, ("compact", "blocks"))
        if self.merge and self.order == "blocks":
            raise ValueError(
                "Expected merge=False with order='blocks', as blocks have a row for "
                "every node. Received: merge=True. Set ReceptiveField("
                f"{self.steps}, merge=False, order='blocks')."
            )

    get_config = constructor_arguments

    @classmethod
    def from_config(cls, config: Mapping) -> ReceptiveField:
        """Build the schedule from `get_config()`."""
        return cls(**config)

    def read_nodes(self, graphs: FlatGraphs) -> np.ndarray:
        """Return a mask of the nodes of a `FlatGraphs` that are read, bool [N]."""
        read = np.zeros(int(graphs.node_ptr[-1]), bool)
        if self.read is not None:
            if self.read not in graphs.node:
                raise ValueError(
                    f"Expected a node feature {self.read!r} that marks the nodes to "
                    f"read. Received: features {sorted(graphs.node)}."
                )
            values = graphs.node[self.read]
            read[:] = values.reshape(len(read), -1).any(axis=1)
            return read
        if graphs.candidates is None:
            raise ValueError(
                "Expected graphs with candidates for a plan with a schedule. Received: "
                "graphs with candidates=None. Name a node feature that marks the nodes "
                "to read: ReceptiveField(..., read='name')."
            )
        first = graphs.node_ptr[:-1]
        read[graphs.candidates + first.repeat(np.diff(graphs.candidate_ptr))] = True
        slotted = graphs.slot >= 0
        read[(graphs.slot + first)[slotted]] = True
        return read

    def distances(self, graphs: FlatGraphs) -> np.ndarray:
        """Return hops to the nearest node that is read, int16 [N], at most T + 1."""
        first = graphs.node_ptr[:-1].repeat(graphs.num_edges)
        sender, receiver = graphs.senders + first, graphs.receivers + first
        far = self.steps + 1
        distance = np.where(self.read_nodes(graphs), 0, far).astype(np.int16)
        for step in range(1, far):
            reached = sender[distance[receiver] == step - 1]
            reached = reached[distance[reached] == far]
            if not reached.size:
                break
            distance[reached] = step
        return distance

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, ReceptiveField)
        return same and self.get_config() == other.get_config()

    def __hash__(self) -> int:
        return hash(tuple(self.get_config().values()))

    def __repr__(self) -> str:
        merged = "" if self.merge else ", merge=False"
        read = f", read={self.read!r}" if self.read else ""
        order = f", order={self.order!r}" if self.order != "compact" else ""
        return f"ReceptiveField({self.steps}{merged}{read}{order})"
