"""What the attention of a graph transformer is made of, pair by pair, on the host."""

import numpy as np
from keras import ops


def terms(steps, biases, edge) -> list[dict]:
    """What the device gives for each layer.

    Args:
        steps: For each layer its `GraphTransformerLayer` and what goes into it: states
            float [G, N, H], and tokens [G, B, H] or None.
        biases: What `AttentionBias` returns, or three times None.
        edge: `x["edge"]`.

    Returns:
        Queries and keys of nodes [G, N, K d] and tokens [G, B, K d], and biases of
        edges [G, E, K], of nodes themselves and of tokens [K]; what there is.
    """
    edges, own, token = biases
    if edges is not None:
        shape = (*ops.shape(ops.convert_to_tensor(edge["sender"])), edges.shape[-1])
        edges = ops.broadcast_to(edges, shape)
    shared = {"edge_bias": edges, "own_bias": own, "token_bias": token}
    out = []
    for block, given in steps:
        found = dict(shared)
        for name, rows in zip(("", "token_"), given, strict=True):
            if rows is not None:
                query, key = block.queries_and_keys(rows)
                found |= {f"{name}query": query, f"{name}key": key}
        found = {k: v for k, v in found.items() if v is not None}
        out.append({k: ops.cast(v, "float32") for k, v in found.items()})
    return out


def pairs(layer, terms, graph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs that attend to each other in one graph, and their logits.

    Args:
        layer: A `DualInterleavedAttention`.
        terms: `bias_terms` and `row_terms`, cut to the graph.
        graph: `SeenGraph`.

    Returns:
        Senders and receivers int [P], and float [P, K]; the token is node N.
    """
    own, heads = np.arange(graph.num_nodes), layer.num_heads
    edge_bias = terms.get("edge_bias", np.zeros((len(graph.senders), heads)))
    own_bias = terms.get("own_bias", np.zeros(heads))
    parts = []
    if layer.pattern == "full":
        bias = np.zeros((graph.num_nodes, graph.num_nodes, heads), np.float32)
        np.add.at(bias, (graph.receivers, graph.senders), edge_bias)
        bias[own, own] += own_bias
        receivers, senders = np.divmod(np.arange(own.size**2), max(own.size, 1))
        parts.append((senders, receivers, bias.reshape(-1, heads)))
    else:
        seen = graph.edge.get("attend", np.ones_like(graph.senders)) > 0
        parts.append((graph.senders[seen], graph.receivers[seen], edge_bias[seen]))
        if layer.self_loops:
            parts.append((own, own, np.broadcast_to(own_bias, (own.size, heads))))
    query, key = terms["query"], terms["key"]
    if "token_query" in terms:
        token = np.full(own.size, own.size)
        linked = terms.get("token_bias", np.zeros(heads))
        parts.append((token, own, np.broadcast_to(linked, (own.size, heads))))
        every = np.append(own, own.size)
        parts.append((every, np.full_like(every, own.size), np.zeros((every.size, 1))))
        query = np.concatenate([query, terms["token_query"][None]])
        key = np.concatenate([key, terms["token_key"][None]])
    senders, receivers = (np.concatenate([p[i] for p in parts]) for i in (0, 1))
    bias = np.concatenate([np.broadcast_to(p[2], (len(p[0]), heads)) for p in parts])
    products = (query[receivers] * key[senders]).reshape(len(senders), heads, -1)
    return senders, receivers, products.sum(-1) * layer.key_dim**-0.5 + bias
