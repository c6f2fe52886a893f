"""Neighbours by time: disjoint trees of earlier edges, one for each seed."""

import numpy as np

from keras_bandgnn.arrays import TIME
from keras_bandgnn.batch import AGE
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.preprocessing.sampling.sampled_graph import SampledGraph, Subgraph


def check_times(graph: SampledGraph, sampler) -> None:
    """Raise a ValueError for a graph without the times that a sampler needs.

    Args:
        graph: The graph.
        sampler: A `NeighborSampler` with `time`.
    """
    flat = graph.flat
    if TIME not in flat.edge:
        raise ValueError(
            f"Expected edges with times for {sampler!r}. Received: edge features "
            f"{sorted(flat.edge)}. Give them, integers of one unit: "
            "Graph(..., edge={'time': t})."
        )
    if AGE in flat.edge:
        raise ValueError(
            f"Expected no edge feature {AGE!r} with {sampler!r}, which computes it. "
            "Received: one. Leave it out, or rename it."
        )
    labelled = flat.label is not None and flat.label_level == "node"
    if labelled and TIME not in flat.node:
        raise ValueError(
            f"Expected nodes with times for {sampler!r}, those of their labels. "
            f"Received: node features {sorted(flat.node)}. Give them, in the unit of "
            "those of edges: Graph(..., node={'time': t})."
        )


def times_of_nodes(graph: SampledGraph) -> np.ndarray:
    """Return the time of each node as a seed, int64 [N].

    Nodes without times and labels are seeds after the last edge.

    Args:
        graph: A graph whose edges have times.
    """
    if TIME in graph.flat.node:
        return np.asarray(graph.flat.node[TIME])
    last = int(graph.flat.edge[TIME].max(initial=-1)) + 1
    return np.broadcast_to(np.int64(last), graph.num_nodes)


def subgraph_of_trees(
    sampler, graph: SampledGraph, items, times, rng, rescale: bool
) -> Subgraph:
    """Return the trees of some seeds, which share no node and no edge.

    A tree has each of its nodes once, and only edges that are strictly earlier than its
    seed, also into nodes that were found on the way.

    Args:
        sampler: A `NeighborSampler` with `time`.
        graph: The graph.
        items: int64 [b], nodes of the seeds; may repeat.
        times: int64 [b], times of the seeds.
        rng: Random numbers.
        rescale: Whether to weigh edges so that sums of messages are unbiased.
    """
    times = np.asarray(times, np.int64)
    ranks = graph.histories().ranks(times)
    count = graph.num_nodes
    # A row is a node in a tree; keys of rows, and their places.
    keys = np.arange(len(items)) * count + items
    places = np.arange(len(items))
    nodes, trees, ends = [items], [np.arange(len(items))], [len(items)]
    edges, senders, counts, edge_ends = [], [], [], [0]
    for fan_out in sampler.fan_outs:
        tree = trees[-1]
        drawn, into = sampler.draw(graph, nodes[-1], fan_out, rng, ranks[tree])
        key = tree.repeat(into) * count + graph.senders[drawn]
        keys, places, row = _numbered(key, keys, places)
        new = keys[places >= ends[-1]]
        nodes.append(new % count)
        trees.append(new // count)
        edges.append(drawn)
        counts.append(into)
        senders.append(row.astype(np.int32))
        edge_ends.append(edge_ends[-1] + len(drawn))
        ends.append(ends[-1] + len(new))
    by_type = sampler.draws_by_type([len(into) for into in counts])
    counts, drawn = np.concatenate(counts), np.concatenate(edges)
    nodes, trees = np.concatenate(nodes), np.concatenate(trees)
    weight = None
    if rescale:
        into = slice(len(counts))
        weight = sampler.edge_weights(
            graph, nodes[into], counts, drawn, by_type, ranks[trees[into]]
        )
    return Subgraph(
        nodes,
        drawn,
        np.concatenate(senders),
        np.arange(len(counts), dtype=np.int32).repeat(counts),
        tuple(ends),
        tuple(edge_ends[1:]),
        weight,
        time=times[trees],
    )


def _numbered(
    key: np.ndarray, keys: np.ndarray, places: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Number keys: old ones by their places, new ones by the next ones, ascending.

    Args:
        key: int64 [e].
        keys: int64 [n], old keys.
        places: int64 [n], their places, which are 0 to n - 1.

    Returns:
        All keys, ascending, their places, and the place of each of `key`.
    """
    every, inverse = np.unique(np.concatenate([keys, key]), return_inverse=True)
    inverse, count = inverse.reshape(-1), len(keys)
    place = np.full(len(every), -1)
    place[inverse[:count]] = places
    new = np.flatnonzero(place < 0)
    place[new] = count + np.arange(len(new))
    return every, place, place[inverse[count:]]


def ages(graph: SampledGraph, subgraph: Subgraph) -> np.ndarray:
    """Return the time of the seed minus that of each edge, float32 [e].

    Args:
        graph: The graph.
        subgraph: Trees of earlier edges.
    """
    times = np.asarray(graph.flat.edge[TIME])[subgraph.edges]
    return (subgraph.time[subgraph.receiver] - times).astype(np.float32)


def with_ages(flat: FlatGraphs) -> FlatGraphs:
    """Return graphs with ages of 0, for checks of the features that batches have.

    Args:
        flat: The graphs.
    """
    zeros = np.broadcast_to(np.float32(0), len(flat.senders))
    columns = {**flat.columns(), f"edge/{AGE}": zeros}
    return FlatGraphs.from_columns(columns, flat.info)


def degrees_before(
    sampler, graph: SampledGraph, subgraph: Subgraph, num_types: int | None
) -> dict[str, np.ndarray]:
    """Return the degrees of the nodes of trees that messages stand for.

    Those of all earlier edges, or of the draws of the most recent ones.

    Args:
        sampler: A `NeighborSampler` with `time`.
        graph: The graph.
        subgraph: Trees of earlier edges.
        num_types: P, for degrees by type; None for none.

    Returns:
        "degree" and "loops", float32 [n], and maybe "type_degree", float32 [n, P].
    """
    count = len(subgraph.nodes)
    if sampler.time == "recent":
        leaves = slice(subgraph.node_ends[-2], None)
        ranks = graph.histories().ranks(subgraph.time[leaves])
        nodes = subgraph.nodes[leaves]
        more, into = sampler.draw(graph, nodes, sampler.fan_outs[-1], None, ranks)
        edges = np.concatenate([subgraph.edges, more])
        rows = np.arange(leaves.start, count).repeat(into)
        rows = np.concatenate([subgraph.receiver, rows])
        is_loop = graph.senders[edges] == subgraph.nodes[rows]
        out = {
            "degree": np.bincount(rows, minlength=count),
            "loops": np.bincount(rows[is_loop], minlength=count),
        }
        if num_types:
            cell = rows * num_types + np.asarray(graph.flat.edge_type)[edges]
            typed = np.bincount(cell, minlength=count * num_types)
            out["type_degree"] = typed.reshape(-1, num_types)
        return {name: values.astype(np.float32) for name, values in out.items()}
    out = {"loops": np.zeros(count)}
    types = slice(None)
    if all(isinstance(fan_out, dict) for fan_out in sampler.fan_outs):
        types = sorted({kind for fan_out in sampler.fan_outs for kind in fan_out})
    if num_types or types != slice(None):
        typed = _degrees_by_type(graph, subgraph, "type")
    if types == slice(None):
        histories = graph.histories()
        ranks = histories.ranks(subgraph.time)
        out["degree"] = histories.before(subgraph.nodes, ranks)[1]
    else:
        out["degree"] = typed[:, types].sum(axis=1)
    if num_types:
        missing = max(0, num_types - typed.shape[1])
        out["type_degree"] = np.pad(typed, [(0, 0), (0, missing)])[:, :num_types]
    if graph.loops.any():
        out["loops"] = _degrees_by_type(graph, subgraph, "loop")[:, types].sum(axis=1)
    return {name: values.astype(np.float32) for name, values in out.items()}


def _degrees_by_type(graph: SampledGraph, subgraph: Subgraph, rows: str) -> np.ndarray:
    """Return the earlier edges into nodes per type, int64 [n, P].

    Args:
        graph: The graph.
        subgraph: Has the nodes, and their times.
        rows: "type", or "loop" for edges from a node to itself alone.
    """
    num_types, histories = graph.by_type()[2], graph.histories(rows)
    cells = subgraph.nodes[:, None] * num_types + np.arange(num_types)
    ranks = histories.ranks(subgraph.time).repeat(num_types)
    return histories.before(cells.reshape(-1), ranks)[1].reshape(-1, num_types)
