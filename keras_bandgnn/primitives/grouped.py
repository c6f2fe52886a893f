"""`Grouped`: products only for the (node, type) pairs that occur."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import positive_int, refuse
from keras_bandgnn.host_keras import keras, ops
from keras_bandgnn.ops import CSR, RowIndex
from keras_bandgnn.primitives.base import (
    Load,
    Primitive,
    of_pairs,
    per_receiver,
    times,
)
from keras_bandgnn.primitives.csr import (
    back_arrays,
    csr_pair,
    row_counts,
    row_sums,
    transposed,
)
from keras_bandgnn.primitives.edges import Edges, pad
from keras_bandgnn.primitives.segment import largest

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Tensor
    from keras_bandgnn.planning.cost import Hardware

_GROUP = 64


def group_sizes() -> tuple[int, ...]:
    """Return the sizes of groups that may pay on this backend and device."""
    if keras.backend.backend() == "torch" and not graph_ops.has_accelerator():
        # All groups of a type are one product.
        return (16,)
    return (16, 64, 256)


class Grouped(Primitive):
    """Products with the kernel for the (node, type) pairs that have edges.

    The pairs are sorted by type and split into groups of `group_size` rows of one type,
    so the transformation is one batched matmul with gathered kernels. Program graphs
    have about 3 such pairs per node, out of 20 possible.

    Args:
        group_size: Rows per group. Each type wastes less than one group.
        first: `"transform"`: each (sender, type) is transformed once, then summed by
            receiver. `"aggregate"`: the states are summed per (receiver, type), then
            transformed. The one with fewer pairs is cheaper.

    Example:
    >>> Grouped(64, first="aggregate").get_config()
    {'group_size': 64, 'first': 'aggregate'}
    """

    name = "grouped"
    covers_all = True
    transforms = True
    bipartite = True

    def __init__(self, group_size: int = _GROUP, first: str = "transform"):
        if first not in ("transform", "aggregate"):
            refuse("first", "'transform' or 'aggregate'", first)
        self.group_size = positive_int("group_size", group_size)
        self.first = first

    def arguments(self) -> tuple[int | str, ...]:
        """Those of the keys `"grouped"`, `"grouped:R"`, `"grouped:aggregate"`, ..."""
        size = () if self.group_size == _GROUP else (self.group_size,)
        return size if self.first == "transform" else (*size, self.first)

    @classmethod
    def from_arguments(cls, *arguments: int | str) -> Grouped:
        """Build the primitive from the arguments in a key."""
        if arguments[-1:] == ("aggregate",):
            return cls(*(arguments[:-1] or (_GROUP,)), "aggregate")
        return cls(*arguments)

    @property
    def takes_maximum(self) -> bool:
        """Whether each message has a row."""
        return self.first == "transform"

    def _pair_of(self, edges: Edges) -> np.ndarray:
        """Type * M + node of each edge, int64 [E]."""
        if self.first == "transform":
            nodes, ends = edges.senders, edges.sender
        else:
            nodes, ends = edges.num_nodes, edges.receiver
        pair = edges.type.astype(np.int64)
        pair *= nodes
        pair += ends
        return pair

    def _pairs(self, edges: Edges) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pairs type * M + node that occur, the pair of each edge, pairs per type."""
        types = edges.num_types
        nodes = edges.senders if self.first == "transform" else edges.num_nodes
        pair = self._pair_of(edges)
        if types * nodes > 64 * len(edges):
            pairs, row = np.unique(pair, return_inverse=True)
            return pairs, row, np.bincount(pairs // nodes, minlength=types)
        # A table of all pairs is faster than sorting the edges.
        occurs = np.zeros(types * nodes, bool)
        occurs[pair] = True
        place = occurs.cumsum(dtype=np.int32)
        counts = place[nodes - 1 :: nodes].copy()
        counts[1:] -= counts[:-1].copy()
        row = place.take(pair)
        row -= 1
        return np.flatnonzero(occurs), row, counts

    def sizes(self, edges: Edges, graph_of_edge: np.ndarray, num_graphs: int) -> dict:
        """Edges, and (node, type) pairs as rows."""
        transform = self.first == "transform"
        nodes = edges.senders if transform else edges.num_nodes
        if num_graphs == 1 and edges.num_types * nodes <= 64 * len(edges):
            # Without the place of each pair.
            occurs = np.zeros(edges.num_types * nodes, bool)
            occurs[self._pair_of(edges)] = True
            counts = len(edges), np.count_nonzero(occurs)
            names = self.key(), f"{self.key()}.row"
            return {n: np.array([c]) for n, c in zip(names, counts, strict=True)}
        pairs, _, _ = self._pairs(edges)
        graph_of_node = np.zeros(nodes, np.int64)
        graph_of_node[edges.sender if transform else edges.receiver] = graph_of_edge
        rows = np.bincount(graph_of_node[pairs % nodes], minlength=num_graphs)
        edge_counts = np.bincount(graph_of_edge, minlength=num_graphs)
        return {self.key(): edge_counts, f"{self.key()}.row": rows}

    def num_groups(self, rows: int, num_types: int) -> int:
        """Return the groups needed for `rows` pairs, for any distribution of types."""
        return -(-rows // self.group_size) + num_types

    def pack(self, edges: Edges, budget: dict[str, int]) -> dict[str, np.ndarray]:
        """Node and type of the groups of rows, and the row of each edge.

        `node` int32 [groups, R] (senders, or receivers for "aggregate"), `type` int32
        [groups]; of the edges `row` and the other end, `receiver` or `sender`. With
        `edges.transpose` also the transposes and `degree` float32 [N, P].
        """
        size, key = self.group_size, self.key()
        groups = self.num_groups(budget[f"{key}.row"], edges.num_types)
        transform = self.first == "transform"
        if transform:
            edges = edges.sorted_by(edges.receiver)
        pairs, row, counts = self._pairs(edges)
        groups_of_type = -(-counts // size)
        if groups_of_type.sum() > groups:
            raise ValueError(
                f"Expected at most {groups} groups of {size} rows for "
                f"'{key}.row'. Received: {groups_of_type.sum()}. Raise the "
                f"budget of '{key}.row'."
            )
        shift = (groups_of_type.cumsum() - groups_of_type) * size
        shift -= counts.cumsum() - counts
        place = (shift.repeat(counts) + np.arange(pairs.size)).astype(np.int32)
        nodes = edges.senders if transform else edges.num_nodes
        first = np.arange(edges.num_types) * nodes
        node_of_pair = (pairs - first.repeat(counts)).astype(np.int32)
        node = np.full(groups * size, 0 if transform else nodes, np.int32)
        node[place] = node_of_pair
        kinds = np.arange(edges.num_types, dtype=np.int32).repeat(groups_of_type)
        row = place.take(row)
        if not transform:
            order = np.argsort(row, kind="stable")
            row, edges = row[order], edges.keep(order)
        length, rows = budget[key], groups * size
        arrays = {
            "node": node.reshape(groups, size),
            # Padding has the last type, so that types stay sorted.
            "type": pad(kinds, groups, edges.num_types - 1, f"{key}.row"),
            "row": pad(row, length, 0 if transform else rows, key),
        }
        if transform:
            arrays["receiver"] = pad(edges.receiver, length, edges.num_nodes, key)
        else:
            arrays["sender"] = pad(edges.sender, length, 0, key)
        if edges.weight is not None:
            arrays["weight"] = pad(edges.weight, length, 0, key)
        if not edges.transpose:
            return arrays
        if transform:
            shape = (edges.num_nodes, rows)
            arrays |= back_arrays(edges.receiver, edges, shape, length, key, row)
        else:
            arrays |= back_arrays(row, edges, (rows, edges.senders), length, key)
        read = transposed(place, node_of_pair, (rows, nodes), rows, f"{key}.row")
        names = ("row", "column", "pointer")
        arrays |= {f"node_{name}": read[name] for name in names}
        arrays["degree"] = self._degree(edges)
        return arrays

    @staticmethod
    def _degree(edges: Edges) -> np.ndarray:
        """Return the weights of edges into each node, by type, float32 [N, P]."""
        pair = edges.receiver * edges.num_types + edges.type
        size = edges.num_nodes * edges.num_types
        degree = np.bincount(pair, edges.weight, minlength=size)
        return degree.astype(np.float32).reshape(-1, edges.num_types)

    def prepare(self, arrays: dict, num_nodes: int, num_types: int, dtype: str) -> dict:
        """The matrix of the edges, and that of the rows of each node."""
        groups, count, size = ops.shape(arrays["node"])
        num_rows = count * size
        node = ops.reshape(arrays["node"], (groups, num_rows))
        prepared = {n: arrays[n] for n in ("type", "degree") if n in arrays}
        # The rows of each node, if the host laid them out.
        names = ("row", "column", "pointer")
        by_node = None
        if "node_row" in arrays:
            by_node = CSR(*(arrays[f"node_{name}"] for name in names))
        if self.first == "transform":
            ends = arrays["receiver"], arrays["row"]
            prepared["sum"] = csr_pair(arrays, *ends, num_nodes, num_rows)
            prepared["read"] = (
                graph_ops.with_scatter_index(node, num_nodes)
                if by_node is None
                else RowIndex(node, by_node)
            )
            return prepared
        num_senders = num_nodes
        if "back_pointer" in arrays:
            num_senders = ops.shape(arrays["back_pointer"])[1] - 1
        ends = arrays["row"], arrays["sender"]
        prepared["sum"] = csr_pair(arrays, *ends, num_rows, num_senders)
        if by_node is None:
            order = ops.argsort(node, axis=1)
            sorted_nodes = ops.take_along_axis(node, order, axis=1)
            by_node = CSR(sorted_nodes, ops.cast(order, "int32"))
        prepared["out"] = graph_ops.with_transpose(by_node, num_nodes, num_rows)
        return prepared

    def apply(self, prepared: dict, x: Tensor, kernel: Tensor) -> Tensor:
        """Incoming messages of every node over the covered edges, [G, N, U]."""
        kinds, matrix = prepared["type"], prepared["sum"]
        if self.first == "transform":
            rows = graph_ops.gathered_grouped_matmul(x, prepared["read"], kinds, kernel)
            return graph_ops.sparse_matmul(matrix, rows)
        rows = graph_ops.sparse_matmul(matrix, x)
        rows = graph_ops.grouped_matmul(rows, kinds, kernel)
        return graph_ops.sparse_matmul(prepared["out"], rows)

    def degree(self, prepared: dict, num_nodes: int, num_types: int) -> Tensor:
        """Sum of the weights of each receiver's edges per type, float32 [G, N, P]."""
        if "degree" in prepared:
            return prepared["degree"]
        kinds, matrix = prepared["type"], prepared["sum"].forward
        if self.first == "transform":
            receiver, row, values = matrix.row, matrix.column, matrix.weight
            if values is None:
                values = ops.ones(ops.shape(row), "int32")
        else:
            receiver, row = prepared["out"].forward[:2]
            values = ops.take_along_axis(row_sums(matrix), row, axis=1)
        kind = ops.take_along_axis(kinds, row // self.group_size, axis=1)
        # Padding belongs to a node behind the last one.
        arrays = {"receiver": receiver, "type": kind}
        return per_receiver(arrays, values, num_nodes + 1, num_types)[:, :num_nodes]

    def count(self, prepared: dict, num_nodes: int, num_types: int) -> Tensor:
        """Edges per receiver, [G, N]."""
        counts = row_counts(prepared["sum"].forward.pointer)
        if self.first == "transform":
            return counts
        rows = ops.expand_dims(counts, -1)
        return graph_ops.sparse_matmul(prepared["out"], rows)[..., 0]

    def _kind(self, arrays: dict, row):
        """Return the type of some rows, int32 [G, E]."""
        group = ops.minimum(row // self.group_size, ops.shape(arrays["type"])[1] - 1)
        return ops.take_along_axis(arrays["type"], group, axis=1)

    def type_count(self, arrays: dict, num_nodes: int, num_types: int) -> Tensor:
        """Count each receiver's edges per type, float32 [G, N, P]."""
        counts = ops.ones(ops.shape(arrays["row"]), "int32")
        if self.first == "transform":
            receiver, kind = arrays["receiver"], self._kind(arrays, arrays["row"])
        else:
            receiver, kind = self._row_pairs(arrays)
            counts = graph_ops.batched_segment_sum(
                counts, arrays["row"], ops.shape(receiver)[1], is_sorted=True
            )
        ends = {"receiver": receiver, "type": kind}
        # Padding belongs to a node behind the last one.
        return per_receiver(ends, counts, num_nodes + 1, num_types)[:, :num_nodes]

    def weigh(self, arrays: dict, factor: Tensor) -> dict:
        """Multiply the weights of edges by a factor of their receiver and type."""
        # The degrees of the host do not have it.
        weighed = {name: array for name, array in arrays.items() if name != "degree"}
        if self.first == "transform":

            def of_edge(receiver, row):
                return of_pairs(factor, receiver, self._kind(arrays, row))

            names = ("receiver", "row"), ("back_column", "back_row")
        else:
            of_row = of_pairs(factor, *self._row_pairs(arrays))
            of_row = ops.pad(of_row, ((0, 0), (0, 1)))

            def of_edge(row):
                return graph_ops.batched_gather(of_row, row)

            names = ("row",), ("back_column",)
        for weight, ends in zip(("weight", "back_weight"), names, strict=True):
            if ends[0] in arrays:
                factors = of_edge(*(arrays[name] for name in ends))
                weighed[weight] = times(arrays.get(weight), factors)
        return weighed

    def _row_pairs(self, arrays: dict) -> tuple:
        """Return the node and the type of all rows, int32 [G, rows]."""
        groups, count, size = ops.shape(arrays["node"])
        node = ops.reshape(arrays["node"], (groups, count * size))
        return node, ops.repeat(arrays["type"], size, axis=1)

    def maximum(
        self, prepared: dict, x: Tensor, kernel: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """Largest message per receiver and unit, [G, N, U]; 0 without messages."""
        matrix, kinds = prepared["sum"].forward, prepared["type"]
        rows = graph_ops.gathered_grouped_matmul(x, prepared["read"], kinds, kernel)
        if bias is not None:
            share = ops.repeat(graph_ops.gather(bias, kinds), self.group_size, axis=1)
            rows = rows + share
        messages = graph_ops.batched_gather(rows, matrix.column)
        num_nodes = ops.shape(matrix.pointer)[1] - 1
        return largest(matrix, messages, matrix.row, num_nodes)

    def cost(self, load: Load, hardware: Hardware) -> float:
        """A gather, a grouped product and a sparse product."""
        key = self.key()
        rows = load.sizes[f"{key}.row"] + load.num_types * self.group_size / 2
        size = self.group_size
        seconds = hardware.grouped_seconds(rows, load.width, load.units, size)
        if self.first == "transform":
            return (
                seconds
                + hardware.gather_seconds(rows, load.width)
                + hardware.sparse_seconds(
                    load.sizes[key], load.sizes["node"], load.units
                )
            )
        return (
            seconds
            + hardware.sparse_seconds(load.sizes[key], rows, load.width)
            + hardware.sparse_seconds(rows, load.sizes["node"], load.units)
        )

    @classmethod
    def candidates(cls, num_types: int, block_size: int) -> list[Primitive]:
        """Return groups of several sizes, for several edge types."""
        # With one type there is a row per node in any case.
        sizes = reversed(group_sizes()) if num_types > 1 else ()
        return [cls(n, first) for n in sizes for first in ("transform", "aggregate")]
