"""The batch contract: what a loader gives and a model takes.

A batch is `(x, y, sample_weight)`, or `(x,)` without labels. `x` is a nested dict of
arrays; every array has axis 0 = G, the number of supergraphs (one per replica; G = 1
on one device). A supergraph holds several graphs side by side, padded to N nodes, E
edges and B graphs. Absent features are omitted, never None.

`x["node"]`
    Each node feature of the graphs under its name: int32 [G, N, ...] or float
    [G, N, ...].
    `graph_id` int32 [G, N]: graph slot of the node; padding nodes have B - 1.
    `mask` bool [G, N]: True for real nodes.
`x["edge"]`
    Each edge feature under its name, [G, E, ...].
    `sender`, `receiver` int32 [G, E]: node ids within the supergraph, sorted by
    receiver. Padded edges have sender 0 and receiver N, so sums over N + 1 segments
    drop them.
    `type` int32 [G, E]; `mask` bool [G, E].
`x["graph"]`
    Each context feature under its name, [G, B, ...].
    `mask` bool [G, B]; the last slot is always padding.
    `n_node`, `n_edge` int32 [G, B]: sizes, 0 where padded.
    `id` int32 [G, B]: position of the graph in the loader's data, -1 where padded.
    `n_read` int32 [G, B] (plans with a schedule): nodes of the graph that are read.
`x["candidate"]` (graphs with candidates)
    `node` int32 [G, B, C]: node ids within the supergraph; `mask` bool [G, B, C].
    `slot` int32 [G, B]: node id of the slot (graphs with a slot).
`x["plan"]`
    One dict of arrays per primitive, by its key ("banded:128", "segment", ...); the
    primitive's `pack` documents them.

Plans with a schedule (`ReceptiveField`)
    `x["plan"]` has a dict "step:t" for each step t: the arrays of the plan's primitives
    from the rows of the list before to those of the step's own list, and `state`, the
    gather (`layout.transposed`) of each row's old state. `x["node"]` has the rows of
    the first list: of nodes that are computed as one, one. `x["candidate"]` counts in
    rows of the last list, and so do labels of nodes. There is no `x["edge"]`.
    With order="blocks" nodes, edges and candidates are those of plans without a
    schedule. `x["plan"]` then has "banded:S", "blocks" with `order` and its inverse
    `place`, int32 [G, K], and for each step t "step:t" with `block` int32 [G, A_t], the
    blocks that it updates, and the arrays of the rest.

`y` and `sample_weight`
    Selection: y int32 [G, B], weight float [G, B].
    Graph labels: y [G, B, D], weight [G, B].
    Node labels: y [G, N, ...], weight [G, N].
    Weights are 1 where the entry is real and 0 where it is padding.
"""

import numpy as np


def unbatch(values, x, level: str) -> list[tuple[int, np.ndarray]]:
    """Cuts a model's output into one array per real graph.

    Args:
        values: [G, N, ...] for level "node"; [G, B, ...] for "graph"; [G, B, C] for
            "candidate".
        x: The batch that the values belong to.
        level: "node", "graph" or "candidate".

    Returns:
        (position of the graph in the loader's data, its rows) for each real graph.
        Rows of nodes are in the order of the compiled graph.
    """
    values = np.asarray(values)
    mask = np.asarray(x["graph"]["mask"])
    ids = np.asarray(x["graph"]["id"])
    counts = np.asarray(x["graph"].get("n_read", x["graph"]["n_node"]))
    starts = np.cumsum(counts, axis=1) - counts
    out = []
    for group, slot in np.argwhere(mask):
        if level == "node":
            start = starts[group, slot]
            rows = values[group, start : start + counts[group, slot]]
        elif level == "graph":
            rows = values[group, slot]
        elif level == "candidate":
            rows = values[group, slot][np.asarray(x["candidate"]["mask"])[group, slot]]
        else:
            raise ValueError(
                "Expected `level` to be 'node', 'graph' or 'candidate'. "
                f"Received: level={level!r}."
            )
        out.append((int(ids[group, slot]), rows))
    return out
