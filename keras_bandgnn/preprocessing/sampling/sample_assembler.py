"""`SampleAssembler`: batches of subgraphs that a sampler cuts from a large graph."""

from collections.abc import Mapping, Sequence

import numpy as np

from keras_bandgnn.assembly.assembler import Supergraph
from keras_bandgnn.assembly.padded_rows import stack
from keras_bandgnn.data.flat_columns import SAMPLE_WEIGHT
from keras_bandgnn.preprocessing.batching.batcher import round_up_64
from keras_bandgnn.preprocessing.sampling.reused_memory import ReusedMemory
from keras_bandgnn.preprocessing.sampling.sampled_graph import (
    SampledGraph,
    Subgraph,
    key_of,
)
from keras_bandgnn.preprocessing.sampling.sampler import Sampler
from keras_bandgnn.primitives.edges import Edges
from keras_bandgnn.primitives.segment import Segment

# Factor between the budgets of batches that do not fit the usual one.
_GROWTH = 1.25


class SampledGroup(Supergraph):
    """The items of a subgraph, and the numbers that its random draws depend on."""

    key: tuple[int, ...] = (0,)

    @classmethod
    def of(cls, items, budget: dict[str, int], key: tuple[int, ...]) -> "SampledGroup":
        """Return a group with a key."""
        group = cls(items, budget)
        group.key = key
        return group


def needed_sizes(subgraph: Subgraph, trimmed: bool) -> dict[str, int]:
    """Return the sizes of a subgraph by the name of their capacity."""
    return named_sizes(subgraph.node_ends, subgraph.edge_ends, trimmed)


def named_sizes(nodes: Sequence[int], edges: Sequence[int], trimmed: bool) -> dict:
    """Return sizes by the name of their capacity.

    Args:
        nodes: Nodes within each distance.
        edges: Edges into the nodes within each distance.
        trimmed: Whether each layer reads no more rows than it needs.

    Returns:
        "node" and "edge", rows of the first layer; if trimmed also "node:n", rows after
        n layers, and "edge:n", edges that layer n reads.
    """
    sizes = {}
    for kind, counts in (("node", nodes), ("edge", edges)):
        names = capacity_names(kind, len(counts) if trimmed else 1)
        sizes |= zip(names, counts[::-1], strict=False)
    return sizes


def capacity_names(kind: str, layers: int) -> list[str]:
    """Return the names of a "node" or "edge" capacity, in the order of the layers."""
    return [kind, *(f"{kind}:{number}" for number in range(1, layers))]


class SampleAssembler:
    """Samples and lays out batches; see `keras_bandgnn.batch`, sampled batches.

    Args:
        graph: The large graph.
        sampler: What cuts it.
        num_types: P.
        trimmed: Whether each layer reads no more rows than it needs.
        rescale: Whether edges are weighed so that sums of messages are unbiased.
        targets: bool [N], nodes whose labels count.
        budget: Capacities by name; "graph" is 2.
        features: Names of the features that batches have, of "node" and "edge"; by
            default all of them.
    """

    def __init__(
        self,
        graph: SampledGraph,
        sampler: Sampler,
        num_types: int,
        trimmed: bool,
        rescale: bool,
        targets: np.ndarray,
        budget: Mapping[str, int],
        features: Mapping[str, Sequence[str]] | None = None,
    ):
        self.graph = graph
        self.sampler = sampler
        self.num_types = num_types
        self.trimmed = trimmed
        self.rescale = rescale
        self.targets = targets
        self.budgets = [dict(budget)]
        self._memory = ReusedMemory()
        # What labels add up to in a subgraph, [C] of the targets; see `expect_labels`.
        self._expected: dict[str, np.ndarray] = {}
        self._degrees = sampler.degrees(graph) if sampler.of_whole_graph else None
        flat = graph.flat
        names = features or {"node": tuple(flat.node), "edge": tuple(flat.edge)}
        self.node, self.edge = (
            {
                name: values
                for name, values in getattr(flat, kind).items()
                if name in names[kind] and name != SAMPLE_WEIGHT
            }
            for kind in ("node", "edge")
        )

    def expect_labels(self, weight: float | None, classes: bool) -> None:
        """Set the number of labels that a subgraph has in the mean.

        Args:
            weight: The mean weight of a label in a subgraph; None if it is not known.
            classes: Whether labels may be classes.
        """
        flat = self.graph.flat
        if weight is None or flat.label is None or flat.label_level != "node":
            return
        known = known_labels(np.asarray(flat.label), classes) & self.targets[:, None]
        count = total = known.sum(0, dtype=np.float64)
        if SAMPLE_WEIGHT in flat.node:
            total = np.asarray(flat.node[SAMPLE_WEIGHT], np.float64) @ known
        numbers = {"count": weight * count, "total": weight * total}
        self._expected = {n: v.astype(np.float32) for n, v in numbers.items()}

    def subgraph(self, group: SampledGroup) -> Subgraph:
        """Return the subgraph of a group of items."""
        rng = key_of(*group.key)
        return self.sampler.subgraph(self.graph, group.members, rng, self.rescale)

    def build(self, groups: Sequence[SampledGroup], replicas: int) -> list[tuple]:
        """Build batches.

        Args:
            groups: The items of the batches, one after the other.
            replicas: G, groups per batch.

        Returns:
            For each batch (x, y, sample_weight), or (x,) without labels, and for
            "node", "edge" and "graph" how many rows are real and how many there are;
            "graph" counts items.
        """
        batches = []
        for first in range(0, len(groups), replicas):
            some = groups[first : first + replicas]
            subgraphs = [self.subgraph(group) for group in some]
            budget = self.budget_for(subgraphs, some[0].budget)
            batches.append(
                (self.lay_out(subgraphs, budget), _figures(some, subgraphs, budget))
            )
        return batches

    def budget_for(
        self, subgraphs: Sequence[Subgraph], budget: Mapping
    ) -> dict[str, int]:
        """Return a budget that holds the subgraphs: the usual one, or a larger one."""
        tables = [needed_sizes(each, self.trimmed) for each in subgraphs]
        needed = {name: max(table[name] for table in tables) for name in tables[0]}
        budget = dict(budget)
        while any(size > budget[name] for name, size in needed.items()):
            rows = {name: int(round_up_64(_GROWTH * budget[name])) for name in needed}
            budget = {**budget, **rows}
            if budget not in self.budgets:
                self.budgets.append(budget)
        return budget

    def lay_out(
        self, subgraphs: Sequence[Subgraph], budget: Mapping, columns=None
    ) -> tuple:
        """Return the batch of subgraphs, padded to a budget.

        Args:
            subgraphs: The subgraphs.
            budget: Capacities by name.
            columns: Columns of the nodes by name, each [N, ...]; by default the
                features of the graph.
        """
        node = self._nodes(subgraphs, budget, columns)
        edge = self._edges(subgraphs, budget)
        x = {
            "node": node,
            "edge": edge,
            "graph": self._graphs(subgraphs),
        }
        if self.sampler.of_whole_graph:
            x["sampled"] = self._sampled(subgraphs, budget)
        steps = [self._plans(each, budget) for each in subgraphs]
        if self.trimmed:
            x["hops"] = stack(steps)
        else:
            x["plan"] = stack(steps)
        name = f"node:{self.sampler.num_hops}" if self.trimmed else "node"
        ids = [each.nodes[: each.node_ends[0]] for each in subgraphs]
        read = gathered(self.targets, ids, budget[name])
        x["read"] = {"mask": read}
        if self.graph.flat.label is None:
            return (x,)
        for name, values in self._expected.items():
            x["read"][name] = np.repeat(values[None], len(subgraphs), 0)
        y, weight = self._labels(subgraphs, ids, read)
        if subgraphs[0].node_weight is not None:
            factor = np.zeros(read.shape, np.float32)
            for g, each in enumerate(subgraphs):
                factor[g, : each.node_ends[0]] = each.node_weight
            x["read"]["weight"] = factor
            weight = weight * factor
        return x, y, weight

    def _nodes(self, subgraphs, budget, columns=None) -> dict[str, np.ndarray]:
        count = budget["node"]
        ids = [each.nodes for each in subgraphs]
        columns = self.node if columns is None else columns
        out = {name: self._gathered(v, ids, count) for name, v in columns.items()}
        out["graph_id"] = np.ones((len(ids), count), np.int32)
        out["mask"] = np.zeros((len(ids), count), bool)
        for g, each in enumerate(ids):
            out["graph_id"][g, : len(each)] = 0
            out["mask"][g, : len(each)] = True
        return out

    def _gathered(self, values, ids, count: int) -> np.ndarray:
        return gathered(values, ids, count, memory=self._memory)

    def _edges(self, subgraphs, budget) -> dict[str, np.ndarray]:
        count, flat = budget["edge"], self.graph.flat
        ids = [each.edges for each in subgraphs]
        out = {name: self._gathered(v, ids, count) for name, v in self.edge.items()}
        shape = (len(ids), count)
        out["sender"] = np.zeros(shape, np.int32)
        out["receiver"] = np.full(shape, budget["node"], np.int32)
        out["type"] = np.zeros(shape, np.int32)
        if self.num_types > 1:
            out["type"] = gathered(flat.edge_type, ids, count)
        out["mask"] = np.zeros(shape, bool)
        for g, each in enumerate(subgraphs):
            length = len(each.edges)
            out["sender"][g, :length] = each.sender
            out["receiver"][g, :length] = each.receiver
            out["mask"][g, :length] = True
        return out

    def _graphs(self, subgraphs) -> dict[str, np.ndarray]:
        shape = (len(subgraphs), 2)
        out = {}
        for name, values in self.graph.flat.context.items():
            out[name] = np.zeros((*shape, *values.shape[1:]), values.dtype)
            if len(values) == 1:
                out[name][:, 0] = values[0]
        out["mask"] = np.zeros(shape, bool)
        out["mask"][:, 0] = True
        for name in ("n_node", "n_edge"):
            out[name] = np.zeros(shape, np.int32)
        out["id"] = np.full(shape, -1, np.int32)
        out["id"][:, 0] = 0
        for g, each in enumerate(subgraphs):
            out["n_node"][g, 0] = len(each.nodes)
            out["n_edge"][g, 0] = len(each.edges)
        return out

    def _sampled(self, subgraphs, budget) -> dict[str, np.ndarray]:
        ids = [each.nodes for each in subgraphs]
        out = {
            name: gathered(values, ids, budget["node"], np.float32)
            for name, values in zip(("degree", "loops"), self._degrees, strict=True)
        }
        if self.rescale:
            out["weight"] = np.zeros((len(ids), budget["edge"]), np.float32)
            for g, each in enumerate(subgraphs):
                out["weight"][g, : len(each.edges)] = each.edge_weight
        return out

    def _plans(self, subgraph: Subgraph, budget: Mapping) -> dict:
        """Return `x["plan"]` of a subgraph, or `x["hops"]` if it is trimmed."""
        if not self.trimmed:
            return self._plan(subgraph, budget["node"], budget["node"], budget["edge"])
        names = [("node", "edge")]
        numbers = range(1, len(subgraph.edge_ends))
        names += [(f"node:{number}", f"edge:{number}") for number in numbers]
        hops = {}
        for number, (before, edge) in enumerate(names):
            after = budget[f"node:{number + 1}"]
            # Counted from the layer nearest to the output.
            distance = len(names) - 1 - number
            nodes, edges = subgraph.node_ends[distance], subgraph.edge_ends[distance]
            node_mask, edge_mask = np.zeros(after, bool), np.zeros(budget[edge], bool)
            node_mask[:nodes], edge_mask[:edges] = True, True
            plan = self._plan(subgraph, budget[before], after, budget[edge], edges)
            hops[str(number)] = {
                "node_mask": node_mask,
                "edge_mask": edge_mask,
                "plan": plan,
            }
        return hops

    def _plan(self, subgraph, senders, receivers, capacity, count=None) -> dict:
        some = slice(0, len(subgraph.edges) if count is None else count)
        kind = np.zeros(some.stop, np.int32)
        if self.num_types > 1:
            kind = np.asarray(self.graph.flat.edge_type[subgraph.edges[some]])
        weight = subgraph.edge_weight
        edges = Edges(
            subgraph.sender[some],
            subgraph.receiver[some],
            kind,
            num_nodes=receivers,
            num_types=self.num_types,
            weight=None if weight is None else weight[some],
            num_senders=senders,
            transpose=True,
        )
        segment = Segment()
        return {segment.key(): segment.pack(edges, {segment.key(): capacity})}

    def _labels(self, subgraphs, ids, read) -> tuple[np.ndarray, np.ndarray]:
        """Return the labels of the rows after the last layer, and sample weights."""
        flat, count = self.graph.flat, read.shape[1]
        y, weight = gathered(flat.label, ids, count), read.astype(np.float32)
        own = flat.node.get(SAMPLE_WEIGHT)
        if own is not None:
            weight *= gathered(own, ids, count)
        return y, weight


def known_labels(label: np.ndarray, classes: bool) -> np.ndarray:
    """Return which labels are known, bool [N, C] of C targets.

    Args:
        label: [N] or [N, ...]; NaN, and of classes -1, where not known.
        classes: Whether labels may be classes.
    """
    known = ~np.isnan(label) if label.dtype.kind == "f" else np.ones(label.shape, bool)
    if classes and label.ndim == 1:
        known &= label != -1
    return known.reshape(len(label), -1)


def gathered(
    values, ids: Sequence[np.ndarray], count: int, dtype=None, memory=None
) -> np.ndarray:
    """Return rows of a column, [G, count, ...], padded with zeros.

    Args:
        values: [n, ...].
        ids: Of each supergraph the rows, int64.
        count: Capacity.
        dtype: That of the result; by default that of `values`.
        memory: `ReusedMemory` for the result, or None.
    """
    empty = np.empty if memory is None else memory.empty
    out = empty((len(ids), count, *values.shape[1:]), dtype or values.dtype)
    for g, rows in enumerate(ids):
        if out.dtype == values.dtype and len(rows):
            # With "wrap" NumPy writes into `out` directly; the rows are in range.
            values.take(rows, axis=0, out=out[g, : len(rows)], mode="wrap")
        else:
            out[g, : len(rows)] = values[rows]
        out[g, len(rows) :] = 0
    return out


def _figures(groups, subgraphs, budget) -> dict[str, tuple[int, int]]:
    total = len(subgraphs)
    return {
        "node": (sum(len(s.nodes) for s in subgraphs), total * budget["node"]),
        "edge": (sum(len(s.edges) for s in subgraphs), total * budget["edge"]),
        "graph": (sum(len(g.members) for g in groups), total * budget["item"]),
    }
