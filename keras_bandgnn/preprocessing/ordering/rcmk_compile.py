"""`RCMKCompile`: reorder each graph so that its edges are near the diagonal."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Unpack

import numpy as np

from keras_bandgnn.checks import positive_int
from keras_bandgnn.graph import Graph
from keras_bandgnn.host_keras import keras
from keras_bandgnn.preprocessing.graph_layer import GraphLayer, applied_layers
from keras_bandgnn.preprocessing.ordering.orderings import checked_ordering, node_order
from keras_bandgnn.registration import callable_entry, check_registered

if TYPE_CHECKING:
    from keras_bandgnn.aliases import LayerOptions

# Graphs whose bandwidths `stats()` reports: the last ones.
_REPORTED = 1 << 16


class _Seen:
    def __init__(self):
        self.before = collections.deque(maxlen=_REPORTED)
        self.after = collections.deque(maxlen=_REPORTED)
        self.edges = self.covered = 0


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class RCMKCompile(GraphLayer):
    """Reorders the nodes of a graph so that its edges are near the diagonal.

    Every field that belongs to nodes moves with them: features, candidates, slot and
    labels. `graph.origin` keeps the permutation (`origin[k]` is the caller's id of
    node k), so predictions return to the caller's order.

    Orderings:

    - `"rcmk"`: Reverse Cuthill-McKee (SciPy), for the smallest bandwidth: if it is
      below S, the band carries every edge. Linear time.
    - `"bisection"`: for the most edges with |i - j| < S, where the bandwidth stays
      above S; no fewer than with `"rcmk"`. About 20 ms for a graph of 1,000 nodes.
    - `"metis"`: clusters of about S nodes with few edges between them; the extra
      `metis`. About 5 ms.
    - `"breadth_first"`: by the number of edges to a read node (candidates and slot),
      for models whose later steps need only the nodes that are near.
    - `"natural"`: as given.

    Share of the edges with |i - j| < S in 800 program graphs of the VarMisuse data set,
    without and with nodes for subtokens (docs/orderings.md has more):

    | S | natural | rcmk | breadth_first | bisection | metis |
    | --- | --- | --- | --- | --- | --- |
    | 128 | 70, 42 % | 45, 26 % | 44, 27 % | 97, 78 % | 96, 71 % |
    | 256 | 74, 49 % | 60, 39 % | 60, 38 % | 99, 86 % | 98, 77 % |

    `stats()` reports bandwidths and coverage of the graphs that the layer has seen.

    Args:
        block_size: S of the banded plan that the order is meant for: `plan="auto"`
            compares banded plans of S, S / 2 and 2 S, or takes S where nothing is
            measured. `stats()` reports the share of edges with |i - j| < S.
        ordering: `"rcmk"`, `"natural"`, `"breadth_first"`, `"bisection"`, `"metis"`, or
            your own: a function of a graph and S, or an object that is called in this
            way, which returns int [N], the node that comes k-th. Register it with
            `keras.saving.register_keras_serializable` to save it in presets.

    Raises:
        ValueError: For other arguments, and if your own ordering does not return each
            node once.
        ImportError: When a graph is compiled with `"metis"` and pymetis is absent.

    Reference:
        Cuthill and McKee 1969; Balog et al. 2019, Section 3.1. The other orderings
        name theirs, see `keras_bandgnn.preprocessing.ordering.orderings`.

    Example:
    >>> compiled = RCMKCompile(64)(Graph(4, [0, 1, 2], [3, 3, 1]))
    >>> compiled.bandwidth
    1
    """

    def __init__(
        self,
        block_size: int = 128,
        ordering: str | Callable[[Graph, int], np.ndarray] = "rcmk",
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.block_size = positive_int("block_size", block_size)
        self.ordering = checked_ordering(ordering)
        self.reset_stats()

    def reset_stats(self) -> None:
        """Forget the graphs seen so far."""
        # In a tuple, so that Keras neither tracks it nor slows assignments down.
        self._seen = (_Seen(),)

    def call(self, graph: Graph) -> Graph:
        """Return the reordered graph."""
        before = graph.bandwidth
        if self.ordering != "natural":
            graph = graph.subgraph(node_order(graph, self.ordering, self.block_size))
        distance = np.abs(graph.senders - graph.receivers)
        (seen,) = self._seen
        seen.before.append(before)
        seen.after.append(int(distance.max(initial=0)))
        seen.edges += distance.size
        seen.covered += int(np.count_nonzero(distance < self.block_size))
        return graph

    def stats(self) -> dict:
        """Return bandwidths and band coverage of the graphs seen so far.

        `bandwidth_before` and `bandwidth_after`: int64 arrays, one entry per graph, of
        the last 65,536 graphs; `covered_edges`: share of the edges of all graphs with
        |i - j| < S after reordering.
        """
        (seen,) = self._seen
        return {
            "bandwidth_before": np.array(seen.before, np.int64),
            "bandwidth_after": np.array(seen.after, np.int64),
            "covered_edges": seen.covered / max(seen.edges, 1),
        }

    def check_registered(self) -> None:
        """Raise a ValueError if a file cannot name the layer, or its ordering."""
        super().check_registered()
        if not isinstance(self.ordering, str):
            check_registered(self.ordering)

    def get_config(self) -> dict:
        """Return the arguments of the constructor."""
        ordering = self.ordering
        if not isinstance(ordering, str):
            ordering = callable_entry(ordering)
        return {
            **super().get_config(),
            "block_size": self.block_size,
            "ordering": ordering,
        }

    def __reduce__(self):
        rebuild, (cls, config) = super().__reduce__()
        # The ordering itself, which need not be registered to be copied.
        return rebuild, (cls, {**config, "ordering": self.ordering})


def block_size_of(graphs, layers: Sequence[dict] = ()) -> int:
    """Return S of the banded plan that graphs were ordered for.

    Args:
        graphs: What `GraphLoader` takes. The metadata of compiled graphs name the
            layers that were applied.
        layers: The layers to be applied to graphs that are not compiled yet; see
            `GraphPreprocessor.layers_config`.

    Returns:
        `block_size` of their `RCMKCompile`, or 128, its default.
    """
    sizes = [
        entry["config"]["block_size"]
        for entry in applied_layers(graphs) or layers
        if entry["class_name"] == "RCMKCompile"
    ]
    return int(sizes[-1]) if sizes else 128
