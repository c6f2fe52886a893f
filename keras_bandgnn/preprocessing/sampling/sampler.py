"""`Sampler`: base class of samplers, which cut a large graph into batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn.preprocessing.sampling.sampled_graph import SampledGraph, Subgraph
from keras_bandgnn.registration import constructor_arguments

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Item


class Sampler:
    """Cuts subgraphs from a large graph, one per step and device.

    An epoch deals out items: nodes to train on, roots of walks, or clusters. Each
    comes once per epoch. `task.fit(graph, sampler=...)` makes batches of them.

    Subclasses set `batch_size`, the items of a subgraph, and override `items` and
    `subgraph`. The arguments of the constructor are attributes of the same names, or
    `get_config` is overridden, too.
    """

    batch_size: int
    # Number of layers whose rows are trimmed to what the next layer reads; None if all
    # layers compute all rows.
    num_hops: int | None = None
    # Whether a subgraph has all that L layers need for exact or unbiased messages into
    # its nodes, so that layers may read nothing but neighbours.
    of_neighbours = False
    # Whether messages stand for those in the whole graph, so that its degrees count;
    # otherwise a subgraph is a graph of its own. Neighbour samplers are both, samplers
    # of subgraphs this alone, clusters neither.
    of_whole_graph = False
    # How edges are drawn that are earlier than the time of an item, which `subgraph`
    # then takes as `times`; None for all edges.
    time: str | None = None
    # Share of the items that an epoch uses. Below 1 each subgraph has `batch_size`
    # items drawn at random; otherwise each item comes once per epoch.
    share = 1.0

    def items(self, graph: SampledGraph, targets: np.ndarray) -> np.ndarray:
        """Return the ids of the items of an epoch, int64 [m].

        Args:
            graph: The graph.
            targets: int64 [t], nodes with labels to train on.
        """
        raise NotImplementedError

    def owners(
        self, graph: SampledGraph, ids: np.ndarray, num_hosts: int
    ) -> np.ndarray | None:
        """Return the host that trains on each item, int [m]; None for any.

        Args:
            graph: The graph.
            ids: int64 [m], the items of an epoch.
            num_hosts: Number of hosts.
        """
        del graph, ids, num_hosts

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

    def remembered(self, graph: SampledGraph, make: Callable) -> Item:
        """Return `make(graph)`, computed once per graph: the one value of the sampler.

        Args:
            graph: The graph; loaders with other labels of the same edges share it.
            make: From the graph to anything.
        """
        key = repr(self)
        if key not in graph.notes:
            recent = self.__dict__.setdefault("_recent", [])
            edges = graph.flat.senders
            matches = [value for senders, value in recent if senders is edges]
            value = matches[0] if matches else make(graph)
            # Those of the last two graphs, such as training and validation.
            self._recent = [*recent[-1:], (edges, value)]
            graph.notes[key] = value
        return graph.notes[key]

    def __getstate__(self):
        return {name: v for name, v in self.__dict__.items() if name != "_recent"}

    def rescales(self, sums_messages: bool) -> bool:
        """Return whether edges get weights, so that sums of messages are unbiased.

        Args:
            sums_messages: Whether it matters to the backbone how many messages there
                are, as it does to sums, and to attention to the node itself.
        """
        del sums_messages
        return False

    def degrees(self, graph: SampledGraph) -> tuple[np.ndarray, np.ndarray]:
        """Return the edges into each node that messages stand for, and its loops.

        Args:
            graph: The graph.
        """
        return graph.degree, graph.loops

    def type_degrees(self, graph: SampledGraph, num_types: int) -> np.ndarray:
        """Return the edges into each node per type that messages stand for, [N, P].

        Args:
            graph: The graph.
            num_types: P.
        """
        return graph.type_degrees(num_types)

    def label_weight(self, graph: SampledGraph, groups: int) -> float | None:
        """Return the weight of a label in a subgraph, in the mean over subgraphs.

        A step then divides the sum of its losses by what the weights of all labels add
        up to in the mean, and its gradient is an unbiased estimate of that of the whole
        graph. By default None: a step divides by the weights that it has.

        Args:
            graph: The graph.
            groups: Subgraphs of an epoch.
        """
        del graph, groups
        return None

    def bound(self, graph: SampledGraph) -> tuple[list[int], list[int]]:
        """Return the most nodes within, and edges into, each distance."""
        return [graph.num_nodes], [graph.num_edges]

    def get_config(self) -> dict:
        """Return the arguments of the constructor, attributes of the same names."""
        return constructor_arguments(self)

    def __repr__(self) -> str:
        options = ", ".join(f"{k}={v!r}" for k, v in self.get_config().items())
        return f"{type(self).__name__}({options})"
