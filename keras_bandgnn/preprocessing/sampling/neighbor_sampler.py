"""`NeighborSampler`: a fixed number of neighbours per node and layer."""

from collections.abc import Mapping, Sequence

import numpy as np

from keras_bandgnn.checks import (
    boolean,
    one_of,
    optional,
    positive_int,
    refuse,
    shown,
    string,
)
from keras_bandgnn.preprocessing.sampling.row_draws import (
    uniform,
    uniform_again,
    weighted,
    weighted_again,
)
from keras_bandgnn.preprocessing.sampling.sampled_graph import (
    SampledGraph,
    Subgraph,
    node_ids,
    ranges,
)
from keras_bandgnn.preprocessing.sampling.sampler import Sampler

TIMES = ("uniform", "recent")


class NeighborSampler(Sampler):
    """Draws a fixed number of neighbours of each node, layer by layer.

    A batch holds `batch_size` nodes to train on, at most `fan_outs[0]` of the nodes
    that send messages to each of them, at most `fan_outs[1]` of those that send
    messages to each of these, and so on. A layer computes only the rows that later
    layers read, if the backbone is a `MessagePassingBackbone`. Nodes that are found
    several times have one row. Batches are padded to one shape.

    With all neighbours, `fan_outs=[-1, ...]`, outputs are those of the whole graph.
    Otherwise with k of the d edges into a node n, drawn uniformly,

        sum[n] = d / k sum over the drawn (j -> n) of m[j, n]

    has the expectation of the sum over all d, and sum[n] / d that of their mean, as in
    Algorithm 2 of the paper. With numbers by type of the edge d and k are those of the
    type, so that types count by their edges and not by their draws. The softmax of
    attention counts a message d / k times, which is consistent: its bias goes to 0 with
    the fan-outs. Maxima, minima and deviations are those of the draws, and biased.
    Degrees that a layer reads are those of the whole graph. As activations are not
    linear, outputs of several layers are consistent. Every node with a label comes once
    per epoch, and a step divides by the labels that one has in the mean, so that losses
    and gradients of steps have the mean over the nodes as their expectation, whichever
    a mask selects.

    Args:
        fan_outs: Edges to draw into each node, one number per layer of the backbone,
            the layer nearest to the output first; -1 for all. With types of edges
            each may be a dict from the type to a number; types that are not named
            have none, and if no layer names a type, degrees are those without it.
        batch_size: Nodes to train on, per step and device.
        replace: Whether an edge may be drawn several times.
        edge_weight: Edge feature, a number of at least 0 per edge: the chance of an
            edge is proportional to it. None for equal chances. Then sums and attention
            need `replace=True`, and are those over all edges of weights above 0. Means
            are those in which edges count by their weights, with `replace=False` only
            approximately, and maxima and minima those of the draws.
        part: Node feature, an id from 0, such as `"cluster"` after `ClusterCompile`:
            of several hosts each trains on the nodes of the parts that are its number
            modulo their count, so it reads mostly rows of its own parts. None for
            nodes of all parts on all hosts.
        time: How to draw edges that are strictly earlier than the node to train on, by
            `edge["time"]` and `node["time"]`, or than the pair that a node is an end
            of: `"uniform"`, as without times; or `"recent"`, the last ones, over which
            sums and means then are. Each node to train on has neighbours of its own, so
            that none shows another what is later, and `edge["age"]` of a batch is its
            time minus that of the edge. None for edges of all times.

    Raises:
        ValueError: For arguments out of range; from `fit` for a graph without the
            feature or without times, weights below 0, or weights with sums that would
            be biased.

    Reference:
        Hamilton et al. 2017, https://arxiv.org/abs/1706.02216, Algorithm 2.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(
    ...     4, [0, 1, 2, 3], [1, 2, 3, 0], node={"kind": [0, 0, 1, 1]},
    ...     label=[0, 0, 1, 1], label_level="node",
    ... )
    >>> backbone = kb.models.SAGEBackbone({"kind": 2}, hidden_dim=8, num_layers=2)
    >>> task = kb.models.NodeClassifier(backbone, 2)
    >>> sampler = NeighborSampler([2, 1], batch_size=2)
    >>> history = task.fit(graph, sampler=sampler, epochs=1, verbose=0)
    >>> len(history.history["loss"])
    1
    """

    of_neighbours = True
    of_whole_graph = True

    def __init__(
        self,
        fan_outs: Sequence[int | Mapping[int, int]],
        batch_size: int = 1024,
        replace: bool = False,
        edge_weight: str | None = None,
        part: str | None = None,
        time: str | None = None,
    ):
        if isinstance(fan_outs, str | Mapping) or not isinstance(fan_outs, Sequence):
            refuse("fan_outs", "a list of numbers, one per layer", fan_outs)
        if not len(fan_outs):
            refuse("fan_outs", "at least one number", fan_outs)
        self.fan_outs = [_checked(fan_out) for fan_out in fan_outs]
        self.batch_size = positive_int("batch_size", batch_size)
        self.replace = boolean("replace", replace)
        self.edge_weight = optional(string, "edge_weight", edge_weight)
        self.part = optional(string, "part", part)
        self.time = optional(one_of, "time", time, TIMES)
        if self.time is not None and self.edge_weight is not None:
            refuse("edge_weight", "None with `time`", edge_weight)
        if self.time == "recent" and self.replace:
            refuse("replace", "False with time='recent'", replace)
        self.num_hops = len(self.fan_outs)

    def items(self, graph: SampledGraph, targets: np.ndarray) -> np.ndarray:
        """Return the nodes to train on."""
        if self.time is not None:
            from keras_bandgnn.preprocessing.sampling.time_trees import check_times

            check_times(graph, self)
        if self.edge_weight is not None:
            self._weights(graph)
        for fan_out in self.fan_outs:
            if isinstance(fan_out, dict):
                types = graph.by_type()[2]
                for kind in fan_out:
                    if kind >= types:
                        raise ValueError(
                            f"Expected types of edges in [0, {types}) in `fan_outs`, as"
                            f" the graph has. Received: type {kind} in {fan_out}."
                        )
        return targets

    def subgraph(
        self,
        graph: SampledGraph,
        items: np.ndarray,
        rng: np.random.Generator,
        rescale: bool = False,
        times: np.ndarray | None = None,
    ) -> Subgraph:
        """Return nodes, and the neighbours that are drawn for them.

        Args:
            graph: The graph.
            items: int64 [b], nodes, distinct without times.
            rng: Random numbers.
            rescale: Whether to weigh edges so that sums of messages are unbiased.
            times: int64 [b], times of the nodes, with the option `time`.
        """
        if self.time is not None:
            from keras_bandgnn.preprocessing.sampling.time_trees import (
                subgraph_of_trees,
            )

            return subgraph_of_trees(self, graph, items, times, rng, rescale)
        number = graph.numbering()
        number[items] = np.arange(len(items), dtype=np.int32)
        nodes, ends = [items], [len(items)]
        edges, senders, counts, edge_ends = [], [], [], []
        frontier = items
        try:
            for fan_out in self.fan_outs:
                drawn, count = self.draw(graph, frontier, fan_out, rng)
                sender = graph.senders[drawn]
                frontier = _number_new(number, sender, ends[-1])
                nodes.append(frontier)
                ends.append(ends[-1] + len(frontier))
                edges.append(drawn)
                counts.append(count)
                senders.append(number[sender])
                edge_ends.append((edge_ends[-1] if edge_ends else 0) + len(drawn))
        finally:
            for hop in nodes:
                number[hop] = -1
        by_type = self.draws_by_type([len(count) for count in counts])
        counts, drawn = np.concatenate(counts), np.concatenate(edges)
        receiver = np.arange(len(counts), dtype=np.int32).repeat(counts)
        nodes = np.concatenate(nodes)
        weight = None
        if rescale:
            receivers = nodes[: len(counts)]
            weight = self.edge_weights(graph, receivers, counts, drawn, by_type)
        return Subgraph(
            nodes,
            drawn,
            np.concatenate(senders),
            receiver,
            tuple(ends),
            tuple(edge_ends),
            weight,
        )

    def owners(
        self, graph: SampledGraph, ids: np.ndarray, num_hosts: int
    ) -> np.ndarray | None:
        """Return the host that trains on each node, by `part`."""
        if self.part is None:
            return None
        return node_ids(graph, self.part, "part")[ids] % num_hosts

    def draws_by_type(self, rows: Sequence[int]) -> np.ndarray:
        """Return whether edges into nodes are drawn by type, bool [sum of rows].

        Args:
            rows: Nodes at each distance.
        """
        return np.repeat([isinstance(f, dict) for f in self.fan_outs], rows)

    def draw(
        self,
        graph: SampledGraph,
        nodes: np.ndarray,
        fan_out: int | dict[int, int],
        rng: np.random.Generator,
        ranks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return ids of drawn edges by receiver, and how many go into each node.

        Args:
            graph: The graph.
            nodes: int64 [n].
            fan_out: Number of edges, or one for each type.
            rng: Random numbers.
            ranks: int64 [n], ranks of the times that edges are earlier than, see
                `EdgeHistories`; None for edges of all times.
        """
        if not isinstance(fan_out, dict):
            first, degree, order = _rows(graph, nodes, None, ranks)
            return self._draw_from(graph, first, degree, fan_out, rng, order)
        drawn, rows = [], []
        for kind, limit in fan_out.items():
            first, degree, order = _rows(graph, nodes, kind, ranks)
            edges, counts = self._draw_from(graph, first, degree, limit, rng, order)
            drawn.append(edges)
            rows.append(np.arange(len(nodes)).repeat(counts))
        rows = np.concatenate(rows)
        by_receiver = np.argsort(rows, kind="stable")
        counts = np.bincount(rows, minlength=len(nodes))
        return np.concatenate(drawn)[by_receiver], counts

    def _draw_from(self, graph, first, degree, fan_out, rng, order=None) -> tuple:
        """Draw from rows of edges that begin at `first` and are `degree` long."""
        if self.time == "recent":
            counts = degree if fan_out == -1 else np.minimum(degree, fan_out)
            edges = ranges(first + degree - counts, counts)
        elif fan_out == -1 and not (self.replace and self.edge_weight):
            edges, counts = ranges(first, degree), degree
        elif self.edge_weight is not None:
            weight = self._weights(graph)
            if order is not None:
                weight = weight[order]
            draw = weighted_again if self.replace else weighted
            edges, counts = draw(first, degree, fan_out, weight, rng)
        else:
            draw = uniform_again if self.replace else uniform
            offsets, counts = draw(degree, fan_out, rng)
            edges = first[:, None] + offsets
            if (counts == fan_out).all():
                edges = edges.reshape(-1)
            else:
                edges = edges[np.arange(fan_out) < counts[:, None]]
        return (edges if order is None else order[edges]), counts

    def edge_weights(
        self,
        graph: SampledGraph,
        receivers: np.ndarray,
        counts: np.ndarray,
        drawn: np.ndarray,
        by_type: np.ndarray,
        ranks: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the factors with which sums over drawn edges are unbiased.

        An edge of the chance p among k draws has the factor 1 / (k p). Draws are from
        all edges into a node, or from those of a type.

        Args:
            graph: The graph.
            receivers: int64 [r], nodes.
            counts: int64 [r], edges drawn into each.
            drawn: int64 [e], these edges.
            by_type: bool [r], whether draws are from those of a type.
            ranks: See `draw`.
        """
        rows = np.arange(len(receivers)).repeat(counts)
        group, num_types = rows, 1
        available = _rows(graph, receivers, None, ranks)[1][rows]
        if by_type.any():
            kinds = np.asarray(graph.flat.edge_type)
            num_types = graph.by_type()[2]
            kind = np.where(by_type[rows], kinds[drawn], 0)
            group = rows * num_types + kind
            ranks = None if ranks is None else ranks[rows]
            typed = _rows(graph, receivers[rows], kind, ranks)[1]
            available = np.where(by_type[rows], typed, available)
        draws = np.bincount(group)[group]
        if self.edge_weight is None:
            return (available / draws).astype(np.float32)
        if not self.replace:
            raise ValueError(
                "Expected replace=True for weighted draws of a backbone that sums "
                "messages or attends to them, as sums over weighted draws without "
                f"replacement are biased. Received: {self!r}. Use replace=True, or a "
                "mean."
            )
        weight = self._weights(graph)
        edges, degree = graph.edges_into(receivers)
        key = np.arange(len(receivers)).repeat(degree) * num_types
        if num_types > 1:
            key += np.where(by_type.repeat(degree), kinds[edges], 0)
        total = np.bincount(key, weight[edges])[group]
        return (total / (weight[drawn] * draws)).astype(np.float32)

    def _weights(self, graph: SampledGraph) -> np.ndarray:
        """Return the weights of all edges, float64 [E], after checking them."""
        return self.remembered(graph, self._checked_weights)

    def _checked_weights(self, graph: SampledGraph) -> np.ndarray:
        features = graph.flat.edge
        weight = features.get(self.edge_weight)
        if weight is None or weight.ndim != 1:
            shapes = {name: list(values.shape[1:]) for name, values in features.items()}
            raise ValueError(
                f"Expected an edge feature {self.edge_weight!r}, a number per edge, as "
                f"`edge_weight` of the sampler. Received: edge features {shapes}."
            )
        weight = np.asarray(weight, np.float64)
        if (weight < 0).any():
            raise ValueError(
                f"Expected edge[{self.edge_weight!r}] of at least 0, as chances are "
                f"proportional to it. Received: {weight.min()}."
            )
        return weight

    def rescales(self, sums_messages: bool) -> bool:
        """Return whether edges get weights, unless all edges are read.

        For sums and attention, and for means over draws by type.
        """
        if self.time == "recent":
            # The draws are the neighbourhood.
            return False
        numbers = [_numbers(fan_out) for fan_out in self.fan_outs]
        again = self.replace and self.edge_weight is not None
        if not again and all(n == -1 for fan_out in numbers for n in fan_out):
            return False
        by_type = any(isinstance(fan_out, dict) for fan_out in self.fan_outs)
        if by_type and self.edge_weight is not None and not sums_messages:
            raise ValueError(
                "Expected uniform draws for means over `fan_outs` by type. Received: "
                f"{self!r}. Leave edge_weight out, or pass numbers as fan_outs."
            )
        return sums_messages or by_type

    def degrees(self, graph: SampledGraph) -> tuple[np.ndarray, np.ndarray]:
        """Return edges into each node, and loops, that may be drawn.

        Those of the types that layers name, and of weights above 0.
        """
        some = np.ones(graph.num_edges, bool)
        if all(isinstance(fan_out, dict) for fan_out in self.fan_outs):
            names = sorted({kind for fan_out in self.fan_outs for kind in fan_out})
            some = np.isin(graph.flat.edge_type, names)
        if self.edge_weight is not None:
            some &= self._weights(graph) > 0
        if some.all():
            return graph.degree, graph.loops
        receivers, count = graph.receivers[some], graph.num_nodes
        loops = receivers[graph.senders[some] == receivers]
        return np.bincount(receivers, minlength=count), np.bincount(
            loops, minlength=count
        )

    def type_degrees(self, graph: SampledGraph, num_types: int) -> np.ndarray:
        """Return edges into each node per type with weights above 0, [N, P]."""
        if self.edge_weight is None:
            return graph.type_degrees(num_types)
        return graph.type_degrees(num_types, self._weights(graph) > 0)

    def label_weight(self, graph: SampledGraph, groups: int) -> float:
        """Return the chance of a label: each comes once per epoch."""
        del graph
        return 1.0 / groups

    def bound(self, graph: SampledGraph) -> tuple[list[int], list[int]]:
        """Return the most nodes within, and edges into, each distance."""
        # By time each item has nodes and edges of its own.
        copies = 1 if self.time is None else self.batch_size
        num_nodes, num_edges = copies * graph.num_nodes, copies * graph.num_edges
        nodes, edges = [min(self.batch_size, num_nodes)], []
        new = nodes[0]
        for fan_out in self.fan_outs:
            limits = _numbers(fan_out)
            limit = num_edges
            if min(limits) >= 0:
                limit = new * sum(limits)
            if not self.replace:
                limit = min(limit, num_edges)
            edges.append((edges[-1] if edges else 0) + limit)
            new = min(limit, num_nodes - nodes[-1])
            nodes.append(nodes[-1] + new)
        return nodes, edges


def _number_new(number: np.ndarray, nodes: np.ndarray, first: int) -> np.ndarray:
    """Number the nodes that have no number yet, and return them, each once."""
    new = nodes[number[nodes] < 0]
    # The last occurrence of each node counts.
    place = np.arange(len(new), dtype=np.int32)
    number[new] = place
    new = new[number[new] == place].astype(np.int64)
    number[new] = np.arange(first, first + len(new), dtype=np.int32)
    return new


def _rows(graph: SampledGraph, nodes, kind, ranks) -> tuple:
    """Return where edges into nodes begin, how many there are, and their order.

    Args:
        graph: The graph.
        nodes: int64 [n].
        kind: A type of edges, or int [n]; None for all types.
        ranks: See `NeighborSampler.draw`.

    Returns:
        int64 [n], int64 [n], and int64 [E], edges in the order of the rows, or None if
        they are in it.
    """
    typed = kind is not None
    rows = nodes * graph.by_type()[2] + kind if typed else nodes
    if ranks is not None:
        histories = graph.histories("type" if typed else "node")
        return (*histories.before(rows, ranks), histories.order)
    order, pointer = graph.by_type()[:2] if typed else (None, graph.pointer)
    first = pointer[rows]
    return first, pointer[rows + 1] - first, order


def _numbers(fan_out) -> list[int]:
    return list(fan_out.values()) if isinstance(fan_out, dict) else [fan_out]


def _checked(fan_out) -> int | dict[int, int]:
    if isinstance(fan_out, Mapping):
        if not fan_out:
            refuse("fan_outs", "types of edges with a number each", fan_out)
        return {
            positive_int("type of `fan_outs`", kind, 0): _checked_number(limit)
            for kind, limit in fan_out.items()
        }
    return _checked_number(fan_out)


def _checked_number(limit) -> int:
    number = positive_int("fan_outs", limit, -1)
    if number == 0:
        raise ValueError(
            "Expected each of `fan_outs` to be at least 1, or -1 for all edges. "
            f"Received: {shown(limit)}. Leave types of edges out that are not read."
        )
    return number
