"""`Supernode`: dense rows and columns for nodes with many edges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import positive_int
from keras_bandgnn.host_keras import ops
from keras_bandgnn.ops.batched import supergraph_ids
from keras_bandgnn.primitives.base import STEPS, Load, Primitive
from keras_bandgnn.primitives.edges import Edges, pad

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Tensor
    from keras_bandgnn.planning.cost import Hardware

# Rows per group of one type: small, as rows are few.
_GROUP = 8


class Supernode(Primitive):
    """Covers the edges of hubs, by one dense row or column per hub and type.

    A node with at least d incoming edges of one type gets a dense row over all nodes;
    its messages are one row of a matmul with the states. Of the remaining edges, those
    of nodes with at least d outgoing edges of one type go into a dense column. An edge
    between two hubs is in the row. Hubs prevent a banded adjacency, so this precedes
    `Banded` in a plan: the edges that `Banded` covers depend on the position of a
    graph, and degrees must not.

    Args:
        min_degree: d, at least 1. A row or column takes the memory of N numbers.

    Resources: `"supernode:d"`, edges; with the suffix `.in`, rows; `.out`, columns.

    Reference:
        Balog et al. 2019 name supernodes as future work.

    Example:
    >>> import numpy as np
    >>> from keras_bandgnn.primitives import Edges
    >>> from keras_bandgnn.primitives.supernode import Supernode
    >>> ends = (np.array([1, 2, 0, 3], np.int32), np.array([0, 0, 3, 4], np.int32))
    >>> edges = Edges(*ends, np.zeros(4, np.int32), num_nodes=5, num_types=1)
    >>> Supernode(min_degree=2).cover(edges)
    array([ True,  True, False, False])
    """

    name = "supernode"
    transforms = True
    depends_on_edges = True

    def __init__(self, min_degree: int = 64):
        self.min_degree = positive_int("min_degree", min_degree)

    def _sides(self, edges: Edges) -> tuple[np.ndarray, np.ndarray]:
        """Return masks of the edges in dense rows and in dense columns, bool [E]."""
        kind = edges.type.astype(np.int64) * edges.num_nodes
        into = self._frequent(kind + edges.receiver)
        out = ~into
        out[out] = self._frequent((kind + edges.sender)[out])
        return into, out

    def _frequent(self, pair: np.ndarray) -> np.ndarray:
        _, place, count = np.unique(pair, return_inverse=True, return_counts=True)
        return (count >= self.min_degree)[place]

    def cover(self, edges: Edges) -> np.ndarray:
        """Return a mask of the edges into and out of hubs, bool [E]."""
        into, out = self._sides(edges)
        return into | out

    def sizes(self, edges: Edges, graph_of_edge: np.ndarray, num_graphs: int) -> dict:
        """Count the covered edges, dense rows and dense columns."""
        counts = []
        sides = self._sides(edges)
        for side, node in zip(sides, (edges.receiver, edges.sender), strict=True):
            pair = edges.type[side].astype(np.int64) * edges.num_nodes + node[side]
            _, first = np.unique(pair, return_index=True)
            graphs = graph_of_edge[side][first]
            counts.append(np.bincount(graphs, minlength=num_graphs))
        covered = graph_of_edge[sides[0] | sides[1]]
        key = self.key()
        return {
            key: np.bincount(covered, minlength=num_graphs),
            f"{key}.in": counts[0],
            f"{key}.out": counts[1],
        }

    def pack(self, edges: Edges, budget: dict[str, int]) -> dict[str, np.ndarray]:
        """Pack the covered edges, and the hubs of rows and columns by type.

        `row` int32 [E] is the index of an edge's dense row (out of range if it has
        none) and `column` that of its dense column. `in_node`, `out_node` int32 [L] are
        the hubs, in groups of equal types `in_type`, `out_type` int32 [groups].
        """
        key, length = self.key(), budget[self.key()]
        arrays = edges.padded(length, key, mask=True)
        sides, ends = self._sides(edges), (edges.receiver, edges.sender)
        for name, place, side, node, fill in zip(
            ("in", "out"),
            ("row", "column"),
            sides,
            ends,
            (edges.num_nodes, 0),
            strict=True,
        ):
            resource = f"{key}.{name}"
            hubs, kinds, place_of_edge = _grouped(
                edges.keep(side), node[side], budget[resource], resource, fill
            )
            where = np.full(len(edges), len(hubs), np.int32)
            where[side] = place_of_edge
            arrays |= {
                f"{name}_node": hubs,
                f"{name}_type": kinds,
                place: pad(where, length, len(hubs), key),
            }
        return arrays

    def prepare(self, arrays: dict, num_nodes: int, num_types: int, dtype: str) -> dict:
        """Build the dense rows [G, L, N] and columns [G, N, L].

        Parallel edges are counted with multiplicity. Counts are summed in float32 and
        then rounded to the compute dtype.
        """
        row, column = arrays["row"], arrays["column"]
        groups, num_rows = ops.shape(arrays["in_node"])
        num_columns = ops.shape(arrays["out_node"])[1]
        sender, receiver = arrays["sender"], arrays["receiver"]
        values = ops.cast(arrays.get("weight", arrays["mask"]), "float32")
        into, out = row < num_rows, column < num_columns
        # Edges of the other side add 0 at a valid index.
        row, column = ops.where(into, row, 0), ops.where(out, column, 0)
        in_value, out_value = ops.where(into, values, 0), ops.where(out, values, 0)
        group = supergraph_ids(row)
        return {
            "rows": _scatter(
                (group, row, sender),
                ops.cast(in_value, dtype),
                (groups, num_rows, num_nodes),
            ),
            "columns": _scatter(
                (group, receiver, column),
                ops.cast(out_value, dtype),
                (groups, num_nodes, num_columns),
            ),
            **arrays,
        }

    def apply(self, prepared: dict, x: Tensor, kernel: Tensor) -> Tensor:
        """Return the incoming messages of every node over the covered edges, [G, N, U].

        Args:
            prepared: Result of `prepare`.
            x: [G, N, H].
            kernel: [P, H, U].
        """
        num_nodes = ops.shape(x)[1]
        into = ops.matmul(prepared["rows"], x)
        into = graph_ops.grouped_matmul(into, prepared["in_type"], kernel)
        out = graph_ops.batched_gather(x, prepared["out_node"])
        out = graph_ops.grouped_matmul(out, prepared["out_type"], kernel)
        total = graph_ops.batched_segment_sum(into, prepared["in_node"], num_nodes)
        return total + ops.matmul(prepared["columns"], out)

    @classmethod
    def candidates(cls, num_types: int, block_size: int) -> list[Primitive]:
        """Return rows and columns for nodes of 64 edges."""
        return (cls(64),)

    def cost(self, load: Load, hardware: Hardware) -> float:
        """Estimate products with dense rows and columns, and grouped products.

        The cost of building rows and columns is spread over the steps.
        """
        key, nodes = self.key(), load.sizes["node"]
        rows, columns = (
            _num_groups(load.sizes[f"{key}.{side}"], load.num_types) * _GROUP
            for side in ("in", "out")
        )
        return (
            hardware.matmul_seconds(rows, nodes, load.width, blocks=True)
            + hardware.matmul_seconds(nodes, columns, load.units)
            + hardware.grouped_seconds(rows + columns, load.width, load.units, _GROUP)
            + hardware.scatter_seconds(rows, load.units)
            + hardware.gather_seconds(columns, load.width)
            + hardware.write_seconds((rows + columns) * nodes) / STEPS
            + hardware.scatter_seconds(load.sizes[key] / STEPS, 1)
        )


def _num_groups(rows: float, num_types: int) -> int:
    """Return how many groups hold a number of rows, for any split into types."""
    # Each type has at most one group that is not full, and no group is empty.
    return max(1, int(min(rows, rows // _GROUP + num_types)))


def _grouped(edges: Edges, node: np.ndarray, capacity: int, what: str, fill: int):
    """Sort hubs by type into groups of one type each.

    Returns:
        Hubs int32 [L], `fill` where padded; types int32 [groups]; row of each edge.
    """
    nodes = edges.num_nodes
    pair = edges.type.astype(np.int64) * nodes + node
    pairs, of_edge = np.unique(pair, return_inverse=True)
    if len(pairs) > capacity:
        raise ValueError(
            f"Expected at most {capacity} entries for '{what}'. "
            f"Received: {len(pairs)}. Raise the budget of '{what}'."
        )
    kind, hub = np.divmod(pairs, nodes)
    count = np.bincount(kind, minlength=edges.num_types)
    needed = -(-count // _GROUP)
    shift = (needed.cumsum() - needed) * _GROUP - (count.cumsum() - count)
    place = np.arange(len(pairs)) + shift[kind]
    groups = _num_groups(capacity, edges.num_types)
    hubs = np.full(groups * _GROUP, fill, np.int32)
    hubs[place] = hub
    kinds = np.arange(edges.num_types, dtype=np.int32).repeat(needed)
    # Pad with the last type, so that types stay sorted.
    return hubs, pad(kinds, groups, edges.num_types - 1, what), place[of_edge]


def _scatter(indices, values, shape):
    indices = tuple(ops.reshape(index, (-1,)) for index in indices)
    return graph_ops.scatter_add(indices, ops.reshape(values, (-1,)), shape)
