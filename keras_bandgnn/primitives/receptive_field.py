"""`ReceptiveField`: which nodes each propagation step has to update."""

from collections.abc import Mapping

import numpy as np

from keras_bandgnn.checks import boolean, one_of, optional, positive_int, string


class ReceptiveField:
    """A schedule for tasks that read few nodes: others are updated while they count.

    After the last of T steps only the read nodes count: the candidates and the slot of
    a `NodeSelector`, or the nodes that a feature marks. Before it their senders count
    too, and so on: step t has to update only the nodes from which a read node is at
    most T - 1 - t edges away. Outputs and gradients are those of the full computation.

    With `merge` nodes of a graph whose states are equal are computed once. States are
    equal after t steps if features were equal, and if in every step the same senders'
    states came in over the same types: the colours of t rounds of colour refinement
    (Weisfeiler and Leman). This is exact as long as nothing is random, so dropout on
    states or messages rules it out in training. Colours are 64-bit hashes: the chance
    that two of a million differing nodes of a graph meet is 3e-8.

    Args:
        steps: T, the number of propagation steps of the model.
        merge: Whether to compute equal states once.
        read: Node feature (bool or int) that is true for the nodes that are read;
            the candidates and the slot if omitted.
        order: `"compact"`: each step has its own list of nodes and edges (for plans of
            `Segment` or `Grouped`). `"blocks"`: each graph keeps its order and each
            step a list of active blocks (for `Banded`, without `merge`); order the
            graphs with `RCMKCompile(ordering="breadth_first")`, so that few blocks are
            active.
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

    def get_config(self) -> dict:
        """Return the arguments of the constructor."""
        return {
            "steps": self.steps,
            "merge": self.merge,
            "read": self.read,
            "order": self.order,
        }

    @classmethod
    def from_config(cls, config: Mapping) -> "ReceptiveField":
        """Build the schedule from `get_config()`."""
        return cls(**config)

    def read_nodes(self, graphs) -> np.ndarray:
        """Which nodes of a `FlatGraphs` are read, bool [N]."""
        read = np.zeros(int(graphs.node_ptr[-1]), bool)
        if self.read is not None:
            if self.read not in graphs.node:
                raise ValueError(
                    f"Expected a node feature {self.read!r} that marks the nodes which "
                    f"are read. Received: features {sorted(graphs.node)}."
                )
            values = graphs.node[self.read]
            read[:] = values.reshape(len(read), -1).any(axis=1)
            return read
        if graphs.candidates is None:
            raise ValueError(
                "Expected graphs with candidates for a plan with a schedule. Received: "
                "graphs with candidates=None. Name a node feature that marks the nodes "
                "which are read: ReceptiveField(..., read='name')."
            )
        first = graphs.node_ptr[:-1]
        read[graphs.candidates + first.repeat(np.diff(graphs.candidate_ptr))] = True
        slotted = graphs.slot >= 0
        read[(graphs.slot + first)[slotted]] = True
        return read

    def distances(self, graphs) -> np.ndarray:
        """Edges from each node to the nearest read one, int16 [N]; T + 1 if further."""
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
