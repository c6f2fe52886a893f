"""The batch contract: the arrays that loaders yield and models receive.

A batch is `(x, y, sample_weight)`, or `(x,)` without labels. `x` is a nested dict of
arrays with static shapes. Axis 0 is always G, the number of supergraphs (one per
replica; G = 1 on one device). A supergraph is the disjoint union of several graphs,
padded to N nodes, E edges, B graphs and C candidates per graph. Missing parts are
omitted, never None; all ids are int32.

| `x["node"]` | shape       | meaning                                 | padding |
|-------------|-------------|-----------------------------------------|---------|
| a feature   | [G, N, ...] | int32 or float32, under its own name    | 0       |
| `graph_id`  | [G, N]      | graph slot of the node                  | B - 1   |
| `mask`      | [G, N] bool | whether the node is real                | False   |

| `x["edge"]` | shape       | meaning                                 | padding |
|-------------|-------------|-----------------------------------------|---------|
| a feature   | [G, E, ...] | int32 or float32, under its own name    | 0       |
| `sender`    | [G, E]      | node id within the supergraph           | 0       |
| `receiver`  | [G, E]      | node id within the supergraph, sorted   | N       |
| `type`      | [G, E]      | edge type                               | 0       |
| `mask`      | [G, E] bool | whether the edge is real                | False   |
| `message_weight` | [G, E] | the `edge_weight` of the loader, if any | 0       |

| `x["set"][s]` | shape       | meaning                                 | padding |
|---------------|-------------|-----------------------------------------|---------|
| a feature     | [G, M, ...] | of node set s, with M rows              | 0       |
| `mask`        | [G, M] bool | whether the row is real                 | False   |
| `node`        | [G, M]      | node of the row, 0 if it was dropped    | 0       |

Batches of graphs with node sets have `x["set"]`, and in `x["node"]` the set of each
node, `set` [G, N], its row in the table of its graph, `set_row`, and `state_row`, its
row among all tables, which follow one another in the order of the sets' names.

Sums over receivers have N + 1 segments, and the last one is dropped, so padding edges
never contribute to a real node.

**Pairs and target edges.** `AttentionEdges` replaces the edges by pairs of nodes with
the features `attend` and `distance`. With its `target_type` there are also target
edges, those of the graph that a task over edges predicts for, behind the pairs of their
receiver. They have `attend` 0, `type` 0 and a `distance` above any other, so attention
does not read them; `target` is 1 + the type that they had, 0 for pairs. Labels of pairs
are NaN.

| `x["graph"]` | shape       | meaning                                | padding |
|--------------|-------------|----------------------------------------|---------|
| a feature    | [G, B, ...] | a context feature, under its own name  | 0       |
| `mask`       | [G, B] bool | whether the slot holds a graph         | False   |
| `n_node`     | [G, B]      | nodes of the graph                     | 0       |
| `n_edge`     | [G, B]      | edges of the graph                     | 0       |
| `id`         | [G, B]      | position of the graph in the data      | -1      |
| `n_read`     | [G, B]      | nodes that are read (compact schedule) | 0       |

The last graph slot is always padding.

| `x["candidate"]` | shape          | meaning                          | padding |
|------------------|----------------|----------------------------------|---------|
| `node`           | [G, B, C]      | node id within the supergraph    | 0       |
| `mask`           | [G, B, C] bool | whether the candidate is real    | False   |
| `slot`           | [G, B]         | node id, if all graphs have one  | 0       |

| `x["pair"]` | shape       | meaning                                    | padding |
|-------------|-------------|--------------------------------------------|---------|
| `sender`    | [G, Q]      | node id within the supergraph              | 0       |
| `receiver`  | [G, Q]      | node id within the supergraph              | 0       |
| `type`      | [G, Q]      | relation of the pair                       | 0       |
| `mask`      | [G, Q] bool | whether the pair is real                   | False   |
| `positive`  | [G, P]      | positions of the true pairs, K + 1 apart   |         |

Pairs are those of `LinkLoader`, Q = P (K + 1): each true pair is followed by its K
negatives. With `SharedNegatives` Q = P, and `shared_receiver` and `shared_sender`,
[G, C], or one of the two, are nodes that all pairs are compared with at that end; -1
where there are fewer.

| labels       | `y`         | `sample_weight` float32                          |
|--------------|-------------|--------------------------------------------------|
| of selection | [G, B]      | [G, B], 1 for real graphs, 0 for padding         |
| of graphs    | [G, B, D]   | [G, B], D >= 1                                   |
| of nodes     | [G, N, ...] | [G, N]                                           |
| of edges     | [G, E, ...] | [G, E]                                           |
| of pairs     | [G, Q]      | [G, Q], 1 for real pairs, 0 for padding          |

`x["plan"]` maps the key of each primitive, "segment", "banded:128", ..., to a dict of
arrays. The `pack` method of each primitive documents them; docs/architecture.md lists
them all.

**Compact schedules.** Under a plan with `ReceptiveField(T, order="compact")` a
supergraph has N_0 rows before the first step and N_{t+1} after step t: one row per node
whose state is still needed; nodes with equal states share a row. `x["node"]` has the
N_0 rows, and `x["edge"]` is omitted. Candidates and node labels refer to the N_T rows
after the last step; labels of edges are refused.

| `x["plan"]["step:t"]`       | shape        | meaning                      | padding |
|-----------------------------|--------------|------------------------------|---------|
| `["state"]["index"]`        | [G, N_{t+1}] | row of the old state, of N_t | 0       |
| `["state"]["back_row"]`     | [G, N_{t+1}] | `index`, sorted              | N_t     |
| `["state"]["back_column"]`  | [G, N_{t+1}] | new row of each `back_row`   | 0       |
| `["state"]["back_pointer"]` | [G, N_t + 1] | start of each old row        |         |
| `[key]`                     | a dict       | arrays of a primitive        |         |

Senders of step t are among N_t rows, receivers among N_{t+1}.

**Block schedules.** With `order="blocks"`, nodes, edges, candidates and labels are the
same as without a schedule; labels of nodes that are not read have weight 0. The plan
has K = ceil(N / S) blocks of S nodes, and step t updates A_t of them.

| `x["plan"]`           | shape    | meaning                                          |
|-----------------------|----------|--------------------------------------------------|
| `["banded:S"]`        | a dict   | arrays of `Banded(S)`, the same for all steps    |
| `["blocks"]["order"]` | [G, K]   | blocks by descending last active step            |
| `["blocks"]["place"]` | [G, K]   | position of each block in `order`                |
| `["step:t"]["block"]` | [G, A_t] | the first A_t of `order`, which step t updates   |
| `["step:t"][key]`     | a dict   | arrays of the rest, for edges outside the blocks |

The rest numbers nodes in the order of the blocks.

**Sampled batches.** A batch that a `Sampler` cuts from a large graph counts as one
graph, whose rows come in the order in which they were found: first the nodes to train
on, then those at a distance of one edge, and so on.

| part                          | shape         | meaning                          |
|-------------------------------|---------------|----------------------------------|
| `x["read"]["mask"]`           | [G, R] bool   | whether labels of a row count    |
| `x["read"]["weight"]`         | [G, R]        | factor of losses, if any         |
| `x["read"]["count"]`          | [G, C]        | mean number of labels, if known  |
| `x["read"]["total"]`          | [G, C]        | mean sum of their weights        |
| `x["sampled"]["degree"]`      | [G, N]        | edges into the node in the graph |
| `x["sampled"]["loops"]`       | [G, N]        | those from the node to itself    |
| `x["sampled"]["weight"]`      | [G, E]        | factor for unbiased sums, if any |
| `x["sampled"]["type_degree"]` | [G, N, P]     | edges into it per type, if used  |
| `x["hops"][l]["node_mask"]`   | [G, N_l] bool | real rows after layer "0", ...   |
| `x["hops"][l]["edge_mask"]`   | [G, E_l] bool | real edges that layer l reads    |
| `x["hops"][l]["plan"]`        | a dict        | arrays of a primitive            |

If a sampler draws by time, rows are those of disjoint trees, one for each node to train
on or for each end of a pair and its time: a node has a row in every tree that it is in,
degrees are those before the time of the tree, and `x["edge"]["age"]`, float32 [G, E],
is that time minus the time of the edge, 0 where padded.

Subgraphs that stand for themselves (`ClusterSampler`) have no `"sampled"`. `"hops"`
stands for `"plan"` where layers are trimmed: layer l reads the first E_l edges and
computes the first N_l rows, those that later layers read, and R is the number of rows
after the last layer. Otherwise R = N. Labels have R rows, of C targets.
`sample_weight` has the factors of `"weight"`, of nodes by how often they are drawn. The
loss of a step is divided by `"count"`, the labels of a subgraph in the mean over all.

**Explanations.** `keras_bandgnn.explain` adds a part `x["explained"]`, through which it
varies what a model sees. No loader yields it, and a model without it is unchanged.

| `x["explained"]` | shape       | meaning                                           |
|------------------|-------------|---------------------------------------------------|
| `["edge"]`       | [G, E]      | factor of each edge: 1 as it is, 0 without it     |
| `["node"][name]` | [G, N, H]   | embedded node features, instead of embedding ids  |
| `["states"]`     | [G, N, H]   | states of the nodes, instead of the backbone's    |
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from keras_bandgnn.checks import refuse

# Edge feature of batches with the weights of a loader with `edge_weight`.
MESSAGE_WEIGHT = "message_weight"
# Edge feature of batches by time: time of the seed minus that of the edge.
AGE = "age"
# Column of nodes with their rows among the tables of all node sets.
STATE_ROW = "state_row"


def in_order(built: list[tuple]) -> list[tuple]:
    """Return batches and their figures, with the names of inputs in alphabetical order.

    Functional models of Keras pair inputs by position on torch, by name elsewhere.
    """

    def ordered(tree):
        if isinstance(tree, dict):
            return {name: ordered(tree[name]) for name in sorted(tree)}
        return tree

    return [((ordered(x), *labels), figures) for (x, *labels), figures in built]


def explained(x, part: str) -> Any:
    """Return a part of `x["explained"]`, or None.

    Args:
        x: A batch, or a part of it.
        part: "edge", "node" or "states".
    """
    parts = x.get("explained") if isinstance(x, Mapping) else None
    return parts.get(part) if isinstance(parts, Mapping) else None


def unbatch(values, x, level: str) -> list[tuple[int, np.ndarray]]:
    """Split a model's output into one array per real graph.

    Args:
        values: [G, N, ...] for level "node"; [G, E, ...] for "edge"; [G, B, ...] for
            "graph"; [G, B, C] for "candidate".
        x: The batch that the values belong to.
        level: "node", "edge", "graph" or "candidate".

    Returns:
        (position of the graph in the loader's data, its rows) for each real graph.
        Rows of nodes and edges are in the order of the compiled graph.
    """
    values = np.asarray(values)
    mask = np.asarray(x["graph"]["mask"])
    ids = np.asarray(x["graph"]["id"])
    counts = np.asarray(x["graph"].get("n_read", x["graph"]["n_node"]))
    if level == "edge":
        counts = np.asarray(x["graph"]["n_edge"])
    starts = np.cumsum(counts, axis=1) - counts
    out = []
    for group, slot in np.argwhere(mask):
        if level in ("node", "edge"):
            start = starts[group, slot]
            rows = values[group, start : start + counts[group, slot]]
        elif level == "graph":
            rows = values[group, slot]
        elif level == "candidate":
            rows = values[group, slot][np.asarray(x["candidate"]["mask"])[group, slot]]
        else:
            refuse("level", "'node', 'edge', 'graph' or 'candidate'", level)
        out.append((int(ids[group, slot]), rows))
    return out


class GraphRows(NamedTuple):
    """Where a graph is in a batch.

    Attributes:
        id: Position of the graph in the loader's data.
        group: Number of its supergraph.
        slot: Its graph slot.
        nodes: Its nodes.
        edges: Its edges.
    """

    id: int
    group: int
    slot: int
    nodes: slice
    edges: slice


def graph_rows(x) -> Iterator[GraphRows]:
    """Yield where each real graph of a batch is.

    Args:
        x: The batch.
    """
    graph = x["graph"]
    stops = [np.cumsum(graph[name], axis=1) for name in ("n_node", "n_edge")]
    for group, slot in np.argwhere(graph["mask"]):
        place = group, slot
        nodes, edges = (
            slice(int(stop[place] - graph[name][place]), int(stop[place]))
            for stop, name in zip(stops, ("n_node", "n_edge"), strict=True)
        )
        yield GraphRows(int(graph["id"][place]), int(group), int(slot), nodes, edges)
