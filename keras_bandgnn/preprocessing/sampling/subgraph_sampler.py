"""`SubgraphSampler`: the nodes of random walks, normalised."""

from typing import NamedTuple

import numpy as np

from keras_bandgnn.checks import positive_int
from keras_bandgnn.preprocessing.sampling.sampled_graph import (
    SampledGraph,
    Subgraph,
    key_of,
)
from keras_bandgnn.preprocessing.sampling.sampler import Sampler
from keras_bandgnn.progress import progress_bar

# Number that keeps the draws of the estimate apart from those of epochs.
_ESTIMATE = 1 << 41


class Occurrences(NamedTuple):
    """How often nodes and edges occur in some subgraphs.

    Attributes:
        of_node: float64 [N].
        of_edge: float64 [E].
        subgraphs: Number of subgraphs.
    """

    of_node: np.ndarray
    of_edge: np.ndarray
    subgraphs: int

    @property
    def mean_chance(self) -> float:
        """The mean over the nodes of the chance to occur."""
        return float(self.of_node.mean()) / self.subgraphs


class SubgraphSampler(Sampler):
    """Trains on subgraphs of the nodes that random walks visit.

    A batch has the nodes of `batch_size` walks of `walk_length` steps against the
    direction of messages, and all edges between them. With the chances p[n] and p[j, n]
    that a node and an edge are in it, losses and messages have the factors of Section
    3.2 of the paper:

        loss = 1 / |T| sum over n in the batch and T of loss[n] / p[n]
        sum[n] = sum over edges (j -> n) in the batch of p[n] / p[j, n] m[j, n]

    for T, all nodes with labels that the mask selects. The gradient of a loss has, for
    large `coverage`, the expectation of that over T, whichever nodes T has, and a sum
    has that of the sum over all edges, given that n is in the batch. A mean is sum[n]
    over the degree in the whole graph. The softmax of attention counts a message p[n] /
    p[j, n] times, which is consistent: its bias goes to 0 with the size of batches.
    Maxima, attention of graph transformers and norms over graphs have no factors and
    are biased.

    Chances are estimated from subgraphs drawn beforehand. If C[n] of c have the node,
    1 / p[n] is (c + 1) / (C[n] + 1), also for C[n] = 0, of which the expectation is
    (1 - (1 - p[n])^(c + 1)) / p[n]; and likewise for the edges into n among its C[n]
    subgraphs. Rare edges, as those into nodes of a degree far above C[n], count too
    little: raise `coverage` for them.

    Losses and metrics that are printed are ratios, of the sum of loss[n] / p[n] over
    that of 1 / p[n]: consistent, and exact for a loss that all nodes have.

    An epoch has as many steps as are needed to visit as many nodes as there are. With
    the same weights of the model all steps are independent but for the roots of an
    epoch, which are distinct until all nodes were roots.

    Args:
        batch_size: Walks per step and device.
        walk_length: Steps of a walk.
        coverage: How often a node is drawn beforehand, in the mean; 0 for no factors,
            and degrees within the subgraph. Then losses, gradients and metrics are
            those of nodes as often as walks visit them.

    Raises:
        ValueError: For arguments out of range.

    Reference:
        Zeng et al. 2020 (GraphSAINT), https://arxiv.org/abs/1907.04931, Algorithm 1 and
        Section 3.2, the random walk sampler.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(
    ...     4, [0, 1, 2, 3], [1, 2, 3, 0], node={"kind": [0, 0, 1, 1]},
    ...     label=[0, 0, 1, 1], label_level="node",
    ... )
    >>> task = kb.models.NodeClassifier(kb.models.GCNBackbone({"kind": 2}, 8), 2)
    >>> loader = task.loader(graph, sampler=SubgraphSampler(1, walk_length=1))
    >>> int(loader[0][0]["graph"]["n_node"][0, 0])
    2
    """

    def __init__(self, batch_size: int, walk_length: int = 2, coverage: int = 50):
        self.batch_size = positive_int("batch_size", batch_size)
        self.walk_length = positive_int("walk_length", walk_length)
        self.coverage = positive_int("coverage", coverage, 0)
        self.of_whole_graph = self.coverage > 0
        self.share = 1.0 / (self.walk_length + 1)

    def items(self, graph: SampledGraph, targets: np.ndarray) -> np.ndarray:
        """Return the possible roots, all nodes."""
        if self.coverage:
            self.remembered(graph, self._count)
        return np.arange(graph.num_nodes)

    def rescales(self, sums_messages: bool) -> bool:
        """Return whether edges get weights: always, but with `coverage=0`."""
        del sums_messages
        return self.of_whole_graph

    def subgraph(
        self,
        graph: SampledGraph,
        items: np.ndarray,
        rng: np.random.Generator,
        rescale: bool = False,
    ) -> Subgraph:
        """Return the nodes of walks from some roots, and the edges between them.

        Args:
            graph: The graph.
            items: Numbers of the items of the batch.
            rng: Generator of random numbers.
            rescale: Whether to weigh edges so that sums of messages are unbiased.
        """
        subgraph = self._walks(graph, items, rng)
        if not rescale:
            return subgraph
        counts = self.remembered(graph, self._count)
        into = counts.of_node[subgraph.nodes] + 1.0
        weight = into[subgraph.receiver] / (counts.of_edge[subgraph.edges] + 1.0)
        # Times the mean of all chances, so that factors are about 1.
        share = counts.mean_chance * (counts.subgraphs + 1.0) / into
        return subgraph._replace(
            edge_weight=weight.astype(np.float32), node_weight=share.astype(np.float32)
        )

    def _walks(self, graph, roots, rng) -> Subgraph:
        visited = [roots]
        for _ in range(self.walk_length):
            at = visited[-1]
            first = graph.pointer[at]
            degree = graph.pointer[at + 1] - first
            edge = first + (rng.random(len(at)) * degree).astype(np.int64)
            # A walk ends where no edge leads on.
            on = degree > 0
            visited.append(at.copy())
            visited[-1][on] = graph.senders[edge[on]]
        return graph.induced(np.unique(np.concatenate(visited)))

    def label_weight(self, graph: SampledGraph, groups: int) -> float | None:
        """Return the mean of all chances, which factors of losses have; see there."""
        del groups
        if not self.coverage:
            return None
        return self.remembered(graph, self._count).mean_chance

    def _count(self, graph: SampledGraph) -> "Occurrences":
        """Count how often nodes and edges occur in subgraphs."""
        of_node = np.zeros(graph.num_nodes)
        of_edge = np.zeros(graph.num_edges)
        goal, number = self.coverage * graph.num_nodes, 0
        size = min(self.batch_size, graph.num_nodes)
        with progress_bar("Drawing subgraphs", goal, True) as advance:
            drawn = 0
            while drawn < goal:
                rng = key_of(_ESTIMATE, number)
                roots = rng.choice(graph.num_nodes, size, replace=False)
                subgraph = self._walks(graph, roots, rng)
                of_node[subgraph.nodes] += 1
                of_edge[subgraph.edges] += 1
                drawn, number = drawn + len(subgraph.nodes), number + 1
                advance(len(subgraph.nodes))
        return Occurrences(of_node, of_edge, number)

    def bound(self, graph: SampledGraph) -> tuple[list[int], list[int]]:
        """Return the most nodes and edges of a batch."""
        limit = min(self.batch_size * (self.walk_length + 1), graph.num_nodes)
        return [limit], [graph.num_edges]
