"""From chosen graphs to the arrays of one batch."""

from collections.abc import Mapping, Sequence

import numpy as np

from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.primitives.base import Edges
from keras_bandgnn.primitives.plan import Plan


def _rows(values: np.ndarray, length: int, fill=0) -> np.ndarray:
    out = np.full((length, *values.shape[1:]), fill, values.dtype)
    out[: values.shape[0]] = values
    return out


def supergraph_edges(part: FlatGraphs, num_nodes: int, num_types: int) -> Edges:
    """The edges of graphs laid side by side, node ids counted through."""
    offset = np.repeat(part.node_ptr[:-1], part.num_edges).astype(np.int32)
    return Edges(
        sender=part.senders + offset,
        receiver=part.receivers + offset,
        type=part.edge_type,
        num_nodes=num_nodes,
        num_types=num_types,
    )


def _candidates(
    part: FlatGraphs, graphs: int, width: int, slots: bool
) -> dict[str, np.ndarray]:
    counts = np.diff(part.candidate_ptr)
    offset = np.repeat(part.node_ptr[:-1], counts).astype(np.int32)
    mask = np.zeros((graphs, width), bool)
    mask[: len(part)] = np.arange(width) < counts[:, None]
    node = np.zeros((graphs, width), np.int32)
    node[mask] = part.candidates + offset
    out = {"node": node, "mask": mask}
    if slots:
        out["slot"] = _rows((part.slot + part.node_ptr[:-1]).astype(np.int32), graphs)
    return out


def assemble_supergraph(
    part: FlatGraphs,
    ids: np.ndarray,
    budget: Mapping[str, int],
    plan: Plan,
    num_types: int,
    slots: bool = False,
) -> tuple[dict, np.ndarray | None, np.ndarray | None]:
    """Lays graphs side by side and pads them to the budget.

    Args:
        part: The graphs.
        ids: int [m], their positions in the loader's data.
        budget: Capacities: "node" N, "edge" E, "graph" B, "candidate" C, and those
            of the plan.
        plan: Who carries which edge.
        num_types: P.
        slots: Whether every graph of the data has a slot.

    Returns:
        (x, y, sample_weight) without the axis G; y and weight are None without labels.
    """
    num_nodes, num_edges, graphs = budget["node"], budget["edge"], budget["graph"]
    edges = supergraph_edges(part, num_nodes, num_types)
    total = int(part.node_ptr[-1])
    graph_id = np.repeat(np.arange(len(part), dtype=np.int32), part.num_nodes)
    real_graph = np.arange(graphs) < len(part)
    x = {
        "node": {k: _rows(v, num_nodes) for k, v in part.node.items()},
        "edge": {k: _rows(v, num_edges) for k, v in part.edge.items()},
        "graph": {k: _rows(v, graphs) for k, v in part.context.items()},
    }
    x["node"]["graph_id"] = _rows(graph_id, num_nodes, graphs - 1)
    x["node"]["mask"] = np.arange(num_nodes) < total
    x["edge"]["sender"] = _rows(edges.sender, num_edges)
    x["edge"]["receiver"] = _rows(edges.receiver, num_edges, num_nodes)
    x["edge"]["type"] = _rows(edges.type, num_edges)
    x["edge"]["mask"] = np.arange(num_edges) < len(edges)
    x["graph"]["mask"] = real_graph
    x["graph"]["n_node"] = _rows(part.num_nodes, graphs)
    x["graph"]["n_edge"] = _rows(part.num_edges, graphs)
    x["graph"]["id"] = _rows(np.asarray(ids, np.int32), graphs, -1)
    if part.candidates is not None:
        x["candidate"] = _candidates(part, graphs, budget["candidate"], slots)
    x["plan"] = plan.pack(edges, budget)
    if part.label is None:
        return x, None, None
    if part.label_level == "node":
        return x, _rows(part.label, num_nodes), x["node"]["mask"].astype(np.float32)
    label = part.label
    if part.candidates is None and label.ndim == 1:
        label = label[:, None]
    return x, _rows(label, graphs), real_graph.astype(np.float32)


def stack(trees: Sequence) -> dict | np.ndarray | None:
    """Joins the arrays of G supergraphs along a new axis 0."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: stack([tree[key] for tree in trees]) for key in first}
    if first is None:
        return None
    return np.stack(trees) if len(trees) > 1 else first[None]
