"""`SubgraphSampler`: the nodes of random walks, normalised."""

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


class SubgraphSampler(Sampler):
    """Trains on subgraphs of the nodes that random walks visit.

    A batch has the nodes of `batch_size` walks of `walk_length` steps against the
    direction of messages, and all edges between them. Nodes that walks visit often
    would count more; as in the paper, subgraphs that are drawn beforehand give how
    often each node and edge occurs, C[n] and C[j, n]. Then the loss of a node has the
    factor 1 / C[n], and a message C[n] / C[j, n], so that sums of messages over all
    neighbours, and of losses over all nodes, are estimated without bias. Suits any
    backbone; layers whose messages attend or take the largest have no factors.

    An epoch has as many steps as are needed to visit as many nodes as there are.

    Args:
        batch_size: Walks per step and device.
        walk_length: Steps of a walk.
        coverage: How often a node is drawn beforehand, in the mean; 0 for no factors,
            and degrees within the subgraph.

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
        """Return the nodes of walks from some roots, and the edges between them."""
        found = self._walks(graph, items, rng)
        if not rescale:
            return found
        of_node, of_edge = self.remembered(graph, self._count)
        into = of_node[found.nodes]
        weight = into[found.receiver] / of_edge[found.edges]
        # Of mean 1 over subgraphs, if each node were drawn as often as counted.
        share = of_node.mean() / into
        return found._replace(
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

    def _count(self, graph: SampledGraph) -> tuple[np.ndarray, np.ndarray]:
        """Count how often nodes and edges occur in subgraphs, at least once."""
        of_node = np.zeros(graph.num_nodes)
        of_edge = np.zeros(graph.num_edges)
        goal, number = self.coverage * graph.num_nodes, 0
        size = min(self.batch_size, graph.num_nodes)
        with progress_bar("Drawing subgraphs", goal, True) as advance:
            drawn = 0
            while drawn < goal:
                rng = key_of(_ESTIMATE, number)
                roots = rng.choice(graph.num_nodes, size, replace=False)
                found = self._walks(graph, roots, rng)
                of_node[found.nodes] += 1
                of_edge[found.edges] += 1
                drawn, number = drawn + len(found.nodes), number + 1
                advance(len(found.nodes))
        # Those that did not occur are rare.
        return np.maximum(of_node, 1.0), np.maximum(of_edge, 1.0)

    def bound(self, graph: SampledGraph) -> tuple[list[int], list[int]]:
        """Return the most nodes and edges of a batch."""
        most = min(self.batch_size * (self.walk_length + 1), graph.num_nodes)
        return [most], [graph.num_edges]

    def get_config(self) -> dict:
        """Return the arguments of the constructor."""
        return {
            "batch_size": self.batch_size,
            "walk_length": self.walk_length,
            "coverage": self.coverage,
        }
