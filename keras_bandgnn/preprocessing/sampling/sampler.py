"""`Sampler`: base class of what cuts a large graph into batches."""

import numpy as np

from keras_bandgnn.preprocessing.sampling.sampled_graph import SampledGraph, Subgraph


class Sampler:
    """Cuts subgraphs from a large graph, one per step and device.

    An epoch deals out items: nodes to train on, roots of walks, or clusters. Each
    comes once per epoch. `task.fit(graph, sampler=...)` makes batches of them.

    Subclasses set `batch_size`, the items of a subgraph, and override `items`,
    `subgraph` and `get_config`.
    """

    batch_size: int
    # Number of layers whose rows are trimmed to what the next layer reads; None if all
    # layers compute all rows.
    num_hops: int | None = None
    # Whether a subgraph has all that L layers need for exact or unbiased messages into
    # its nodes, so that layers may read nothing but neighbours.
    of_neighbours = False

    def items(self, graph: SampledGraph, targets: np.ndarray) -> np.ndarray:
        """Return the ids of the items of an epoch, int64 [m].

        Args:
            graph: The graph.
            targets: int64 [t], nodes with labels to train on.
        """
        raise NotImplementedError

    def subgraph(
        self,
        graph: SampledGraph,
        items: np.ndarray,
        rng: np.random.Generator,
        rescale: bool,
    ) -> Subgraph:
        """Return the subgraph of some items.

        Args:
            graph: The graph.
            items: int64 [b], at most `batch_size`.
            rng: Random numbers; equal ones give equal subgraphs.
            rescale: Whether to weigh edges so that sums of messages are unbiased.
        """
        raise NotImplementedError

    def bound(self, graph: SampledGraph) -> tuple[list[int], list[int]]:
        """Return the most nodes within, and edges into, each distance."""
        return [graph.num_nodes], [graph.num_edges]

    def get_config(self) -> dict:
        """Return the arguments of the constructor."""
        raise NotImplementedError

    def __repr__(self) -> str:
        options = ", ".join(f"{k}={v!r}" for k, v in self.get_config().items())
        return f"{type(self).__name__}({options})"
