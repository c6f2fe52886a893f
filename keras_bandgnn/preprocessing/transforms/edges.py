"""`ToUndirected` and `AddSelfLoops`: edges that convolutions expect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

import numpy as np

from keras_bandgnn.arrays import TIME
from keras_bandgnn.checks import boolean, mapping, number, positive_int
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.graph_layer import (
    GraphLayer,
    refuse_edge_labels,
    refuse_edge_sets,
)
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import LayerOptions


@serializable
class ToUndirected(GraphLayer):
    """Adds the reverse of each edge where it is missing, with its type and features.

    Two edges are the same if sender, receiver and type are. Of each the result has one:
    the first in the graph, or else the reverse of the first. Edges of the graph keep
    their order and come before those that are added. In graphs with times edges are the
    same if their times are, too: the reverse of an edge has its time.

    Args:
        self_loops: Whether to keep self-loops.

    Raises:
        ValueError: When applied: for labels of edges, and for edge sets.

    Example:
    >>> graph = ToUndirected()(Graph(3, [0, 1, 1], [1, 0, 2], edge={"w": [1, 2, 3]}))
    >>> list(zip(graph.senders.tolist(), graph.receivers.tolist()))
    [(0, 1), (1, 0), (1, 2), (2, 1)]
    >>> graph.edge["w"].tolist()
    [1, 2, 3, 3]
    """

    def __init__(self, self_loops: bool = True, **kwargs: Unpack[LayerOptions]):
        super().__init__(**kwargs)
        self.self_loops = boolean("self_loops", self_loops)

    def call(self, graph: Graph) -> Graph:
        """Return the graph with edges both ways."""
        refuse_edge_labels(graph, self)
        refuse_edge_sets(graph, self)
        senders, receivers = graph.senders, graph.receivers
        row = np.arange(graph.num_edges)
        if not self.self_loops:
            row = np.flatnonzero(senders != receivers)
        ends = np.stack([senders[row], receivers[row]])
        ends, row = np.concatenate([ends, ends[::-1]], axis=1), np.tile(row, 2)
        # Edge types may be large: their ranks fit beside the pair of nodes.
        kind = np.unique(graph.edge_type, return_inverse=True)[1].reshape(-1)
        pair = ends[0].astype(np.int64) * graph.num_nodes + ends[1]
        keys = [pair, kind[row]]
        if TIME in graph.edge:
            keys.append(graph.edge[TIME][row])
        order = np.lexsort((np.arange(row.size), *keys[::-1]))
        first = np.ones(row.size, bool)
        first[1:] = np.any([np.diff(key[order]) != 0 for key in keys], axis=0)
        keep = np.sort(order[first])
        return _with_edges(graph, *ends[:, keep], row[keep])


def _with_edges(graph: Graph, senders, receivers, row: np.ndarray) -> Graph:
    """Return the graph with other edges; `row` has their types and features."""
    return graph.replace(
        senders=senders,
        receivers=receivers,
        edge_type=graph.edge_type[row],
        edge={name: values[row] for name, values in graph.edge.items()},
    )


@serializable
class AddSelfLoops(GraphLayer):
    """Adds an edge from each node to itself where there is none.

    Layers of the library that need self-loops, such as `GraphConvolution` and
    `GraphAttention`, add their own; edges between nodes are enough for them. This one
    is for layers that read the edges alone, and for features of loops.

    Args:
        fill_value: Value, which may be negative, of the edge features of added loops: a
            number for all, or one for each feature by name. Features of integers need
            an integer.
        edge_type: Type of added loops.

    Raises:
        ValueError: When applied: for labels of edges, edge sets, a feature that has no
            value, times of edges that have no value of their own, or a feature of
            integers whose value is a fraction.

    Example:
    >>> graph = AddSelfLoops(edge_type=1)(Graph(2, [0, 1], [1, 1], edge={"w": [5, 6]}))
    >>> graph.senders.tolist(), graph.edge_type.tolist(), graph.edge["w"].tolist()
    ([0, 1, 0], [0, 0, 1], [5, 6, 1])
    """

    def __init__(
        self,
        fill_value: float | Mapping[str, float] = 1.0,
        edge_type: int = 0,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        if isinstance(fill_value, Mapping):
            values = mapping("fill_value", fill_value)
            self.fill_value = {k: number("fill_value", v) for k, v in values.items()}
        else:
            self.fill_value = number("fill_value", fill_value)
        self.edge_type = positive_int("edge_type", edge_type, minimum=0)

    def call(self, graph: Graph) -> Graph:
        """Return the graph with self-loops."""
        refuse_edge_labels(graph, self)
        refuse_edge_sets(graph, self)
        alone = np.ones(graph.num_nodes, bool)
        alone[graph.senders[graph.senders == graph.receivers]] = False
        loops = np.flatnonzero(alone)
        if not loops.size:
            return graph
        edge = {}
        for name, values in graph.edge.items():
            shape = (loops.size, *values.shape[1:])
            filled = np.full(shape, self._value(name, values.dtype), values.dtype)
            edge[name] = np.concatenate([values, filled])
        types = np.full(loops.size, self.edge_type, np.int32)
        return graph.replace(
            senders=np.concatenate([graph.senders, loops]),
            receivers=np.concatenate([graph.receivers, loops]),
            edge_type=np.concatenate([graph.edge_type, types]),
            edge=edge,
        )

    def _value(self, name: str, dtype: np.dtype) -> float:
        value = self.fill_value
        if name == TIME and not isinstance(value, Mapping):
            raise ValueError(
                "Expected `fill_value` to name the time of added loops, as edges have "
                f"times. Received: {value}. Pass {{'time': t}}, with a time before all "
                "others, and values of the other features; or leave the layer out."
            )
        if isinstance(value, Mapping):
            if name not in value:
                raise ValueError(
                    f"Expected `fill_value` to have a value for the edge feature "
                    f"{name!r}. Received: values for {sorted(value)}. Add one."
                )
            value = value[name]
        if dtype.kind == "i" and value != int(value):
            raise ValueError(
                f"Expected an integer in `fill_value` for the edge feature {name!r} of "
                f"integers. Received: {value}. Pass {{{name!r}: 0}}, say."
            )
        return value
