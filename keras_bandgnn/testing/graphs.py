"""Random typed graphs."""

import numpy as np

from keras_bandgnn.graph import Graph


def random_graph(
    rng: np.random.Generator,
    num_nodes: int = 12,
    num_edges: int | None = None,
    num_types: int = 3,
    num_ids: int = 10,
    candidates: int = 3,
) -> Graph:
    """Return a random graph with ids, a slot, candidates and a label.

    It may contain self-loops and parallel edges.

    Args:
        rng: Source of randomness.
        num_nodes: N.
        num_edges: E, 3 N if omitted.
        num_types: P.
        num_ids: Exclusive upper bound of the node features "type" and "subtoken".
        candidates: Maximum number of candidates.
    """
    count = 3 * num_nodes if num_edges is None else num_edges
    candidate_nodes = rng.permutation(num_nodes)[: min(candidates, num_nodes)]
    return Graph(
        num_nodes,
        senders=rng.integers(0, num_nodes, count),
        receivers=rng.integers(0, num_nodes, count),
        edge_type=rng.integers(0, num_types, count),
        node={
            "type": rng.integers(0, num_ids, num_nodes),
            "subtoken": rng.integers(0, num_ids, (num_nodes, 3)),
            "x": rng.normal(size=(num_nodes, 2)),
        },
        candidates=candidate_nodes,
        label=int(rng.integers(len(candidate_nodes))),
        slot=int(rng.integers(num_nodes)),
    )
