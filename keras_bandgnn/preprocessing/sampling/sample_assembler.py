"""`SampleAssembler`: batches of subgraphs that a sampler cuts from a large graph."""

from collections.abc import Mapping, Sequence

import numpy as np

from keras_bandgnn.assembly.assembler import BatchAssembler, Supergraph
from keras_bandgnn.assembly.padded_rows import PaddedRows, picked_rows, stack
from keras_bandgnn.batch import AGE, STATE_ROW
from keras_bandgnn.data.flat_columns import SAMPLE_WEIGHT, on_host
from keras_bandgnn.preprocessing.batching.batcher import round_up_64
from keras_bandgnn.preprocessing.sampling.reused_memory import ReusedMemory
from keras_bandgnn.preprocessing.sampling.sampled_graph import (
    SampledGraph,
    Subgraph,
    key_of,
)
from keras_bandgnn.preprocessing.sampling.sampled_sets import SampledSets
from keras_bandgnn.preprocessing.sampling.sampler import Sampler
from keras_bandgnn.primitives.edges import Edges
from keras_bandgnn.primitives.segment import Segment

# Factor between the budgets of batches that do not fit the usual one.
_GROWTH = 1.25


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


class SampleAssembler(BatchAssembler):
    """Samples and lays out batches; see `keras_bandgnn.batch`, sampled batches.

    Args:
        graph: The large graph.
        sampler: Neighbour or subgraph sampler.
        num_types: P.
        trimmed: Whether each layer reads no more rows than it needs.
        rescale: Whether edges are weighed so that sums of messages are unbiased.
        targets: bool [N], nodes whose labels count.
        features: Names of the features that batches have, of "node" and "edge"; by
            default all of them.
        type_degrees: Whether batches have the edges into each node per type, if P > 1.
    """

    def __init__(
        self,
        graph: SampledGraph,
        sampler: Sampler,
        num_types: int,
        trimmed: bool,
        rescale: bool,
        targets: np.ndarray,
        features: Mapping[str, Sequence[str]] | None = None,
        type_degrees: bool = False,
    ):
        self.graph = graph
        self.sampler = sampler
        self.num_types = num_types
        self.trimmed = trimmed
        self.rescale = rescale
        self.targets = targets
        # The usual capacities by name, "graph" 2 among them, and larger ones.
        self.budgets: list[dict[str, int]] = [{}]
        self._memory = ReusedMemory()
        self.sets = None
        if graph.flat.sets and (features is None or STATE_ROW in features["node"]):
            self.sets = SampledSets(graph.flat)
        # What labels add up to in a subgraph, [C] of the targets; see `expect_labels`.
        self._expected: dict[str, np.ndarray] = {}
        self._degrees: dict[str, np.ndarray] = {}
        # Whether the budget is that of trees around pairs; see `LinkLoader`.
        self.seeds_of_pairs = False
        self.times: np.ndarray | None = None
        typed = type_degrees and num_types > 1
        self._types_of_degrees = num_types if typed else None
        if sampler.time is not None:
            from keras_bandgnn.preprocessing.sampling.time_trees import times_of_nodes

            self.times = times_of_nodes(graph)
        elif sampler.of_whole_graph:
            degree, loops = (v.astype(np.float32) for v in sampler.degrees(graph))
            self._degrees = {"degree": degree, "loops": loops}
            if typed:
                counts = sampler.type_degrees(graph, num_types)
                self._degrees["type_degree"] = counts.astype(np.float32)
        flat = graph.flat
        names = features or {"node": tuple(flat.node), "edge": (*flat.edge, AGE)}
        self._reads_age = sampler.time is not None and AGE in names["edge"]
        self.node, self.edge = (
            {
                name: values
                for name, values in getattr(flat, kind).items()
                if name in names[kind] and not on_host(kind, name)
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
        labelled = known_labels(np.asarray(flat.label), classes) & self.targets[:, None]
        count = total = labelled.sum(0, dtype=np.float64)
        if SAMPLE_WEIGHT in flat.node:
            total = np.asarray(flat.node[SAMPLE_WEIGHT], np.float64) @ labelled
        numbers = {"count": weight * count, "total": weight * total}
        self._expected = {n: v.astype(np.float32) for n, v in numbers.items()}

    def subgraph(self, group: Supergraph) -> Subgraph:
        """Return the subgraph of a group of items."""
        rng, options = key_of(*group.key), {}
        if self.sampler.time is not None:
            times = group.times
            options["times"] = self.times[group.members] if times is None else times
        return self.sampler.subgraph(
            self.graph, group.members, rng, self.rescale, **options
        )

    def needed(self, subgraph: Subgraph) -> dict[str, int]:
        """Return the sizes of a subgraph by the name of their capacity."""
        sizes = needed_sizes(subgraph, self.trimmed)
        return sizes if self.sets is None else sizes | self.sets.sizes(subgraph.nodes)

    def build(self, groups: Sequence[Supergraph], replicas: int) -> list[tuple]:
        """Build batches; see `BatchAssembler.build`. "graph" counts items.

        Args:
            groups: The items of the batches, one after the other.
            replicas: G, groups per batch.
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
        tables = [self.needed(subgraph) for subgraph in subgraphs]
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
        nodes = picked_rows([s.nodes for s in subgraphs], budget["node"], "nodes")
        edges = picked_rows([s.edges for s in subgraphs], budget["edge"], "edges")
        x = {
            "node": self._nodes(nodes, self.node if columns is None else columns),
            "edge": self._edges(edges, subgraphs, budget),
            "graph": self._graphs(subgraphs),
        }
        if self.sets is not None:
            row, x["set"] = self.sets.lay_out([s.nodes for s in subgraphs], budget)
            x["node"][STATE_ROW] = row
        if self.sampler.of_whole_graph:
            x["sampled"] = self._whole_degrees(nodes, subgraphs)
            if self.rescale:
                weight = _joined(subgraphs, "edge_weight")
                x["sampled"]["weight"] = _whole(
                    edges, edges.padded(weight, 0, np.float32)
                )
        steps = [self._plans(subgraph, budget) for subgraph in subgraphs]
        x["hops" if self.trimmed else "plan"] = stack(steps)
        name = f"node:{self.sampler.num_hops}" if self.trimmed else "node"
        targets = [s.nodes[: s.node_ends[0]] for s in subgraphs]
        rows = picked_rows(targets, budget[name], "nodes")
        read = _whole(rows, rows.column([self.targets]))
        x["read"] = {"mask": read}
        if self.graph.flat.label is None:
            return (x,)
        for name, values in self._expected.items():
            x["read"][name] = np.repeat(values[None], len(subgraphs), 0)
        flat, weight = self.graph.flat, read.astype(np.float32)
        y = _whole(rows, rows.column([flat.label]))
        if SAMPLE_WEIGHT in flat.node:
            weight *= _whole(rows, rows.column([flat.node[SAMPLE_WEIGHT]]))
        if subgraphs[0].node_weight is not None:
            factor = rows.padded(_joined(subgraphs, "node_weight"), 0, np.float32)
            x["read"]["weight"] = _whole(rows, factor)
            weight = weight * x["read"]["weight"]
        return x, y, weight

    def _whole_degrees(self, rows: PaddedRows, subgraphs) -> dict[str, np.ndarray]:
        """Return the degrees that messages stand for, those of trees by their time."""
        if self.sampler.time is None:
            degrees = {k: rows.column([v]) for k, v in self._degrees.items()}
        else:
            from keras_bandgnn.preprocessing.sampling.time_trees import degrees_before

            tables = [
                degrees_before(self.sampler, self.graph, s, self._types_of_degrees)
                for s in subgraphs
            ]
            degrees = {
                name: rows.aligned(np.concatenate([table[name] for table in tables]))
                for name in tables[0]
            }
        return {name: _whole(rows, values) for name, values in degrees.items()}

    def _features(self, rows: PaddedRows, columns: Mapping) -> dict[str, np.ndarray]:
        return {
            name: _whole(rows, rows.column([values], empty=self._memory.empty))
            for name, values in columns.items()
        }

    def _nodes(self, rows: PaddedRows, columns: Mapping) -> dict[str, np.ndarray]:
        mask = _whole(rows, rows.mask())
        # The padding is in the second graph.
        graph_id = (~mask).astype(np.int32)
        return {**self._features(rows, columns), "graph_id": graph_id, "mask": mask}

    def _edges(self, rows: PaddedRows, subgraphs, budget) -> dict[str, np.ndarray]:
        columns = {
            "sender": rows.padded(_joined(subgraphs, "sender"), 0),
            "receiver": rows.padded(_joined(subgraphs, "receiver"), budget["node"]),
            "type": np.zeros(rows.offsets[-1], np.int32),
            "mask": rows.mask(),
        }
        if self.num_types > 1:
            columns["type"] = rows.column([self.graph.flat.edge_type])
        if self._reads_age:
            from keras_bandgnn.preprocessing.sampling.time_trees import ages

            age = [ages(self.graph, subgraph) for subgraph in subgraphs]
            columns[AGE] = rows.aligned(np.concatenate(age))
        columns = {name: _whole(rows, values) for name, values in columns.items()}
        return {**self._features(rows, self.edge), **columns}

    def _graphs(self, subgraphs) -> dict[str, np.ndarray]:
        # The context is that of the graph; several have none in common.
        rows = picked_rows([np.zeros(1, np.int64)] * len(subgraphs), 2, "graphs")
        columns = {
            name: rows.column([v if len(v) == 1 else np.zeros_like(v[:1])])
            for name, v in self.graph.flat.context.items()
        }
        columns |= {
            "mask": rows.mask(),
            "n_node": rows.padded([len(s.nodes) for s in subgraphs], 0),
            "n_edge": rows.padded([len(s.edges) for s in subgraphs], 0),
            "id": rows.padded(np.zeros(len(subgraphs)), -1),
        }
        return {name: _whole(rows, values) for name, values in columns.items()}

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


def known_labels(label: np.ndarray, classes: bool) -> np.ndarray:
    """Return which labels are known, bool [N, C] of C targets.

    Args:
        label: [N] or [N, ...]; NaN, and of classes -1, where not known.
        classes: Whether labels may be classes.
    """
    mask = ~np.isnan(label) if label.dtype.kind == "f" else np.ones(label.shape, bool)
    if classes and label.ndim == 1:
        mask &= label != -1
    return mask.reshape(len(label), -1)


def _whole(rows: PaddedRows, values: np.ndarray) -> np.ndarray:
    """Return a padded column by supergraphs, [G, capacity, ...]."""
    return rows.cut(values, 0, len(rows.place))


def _joined(subgraphs: Sequence[Subgraph], name: str) -> np.ndarray:
    if len(subgraphs) == 1:
        return getattr(subgraphs[0], name)
    return np.concatenate([getattr(subgraph, name) for subgraph in subgraphs])


def _figures(groups, subgraphs, budget) -> dict[str, tuple[int, int]]:
    total = len(subgraphs)
    return {
        "node": (sum(len(s.nodes) for s in subgraphs), total * budget["node"]),
        "edge": (sum(len(s.edges) for s in subgraphs), total * budget["edge"]),
        "graph": (sum(len(g.members) for g in groups), total * budget["item"]),
    }
