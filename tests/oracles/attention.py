"""Graph transformers with distances, types and biases, dense and pair by pair."""

import math

import keras
import numpy as np

from keras_bandgnn.preprocessing.attention.path_cover import canonical_path


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(tensor))


def distances(graph):
    """Steps between nodes along edges, both ways, [N, N]; inf without a way."""
    n = graph.num_nodes
    near = np.zeros((n, n), bool)
    near[graph.receivers, graph.senders] = near[graph.senders, graph.receivers] = True
    steps = np.full((n, n), np.inf)
    seen = front = np.eye(n, dtype=bool)
    steps[front] = 0
    for step in range(1, n):
        front = (front.astype(int) @ near > 0) & ~seen
        seen = seen | front
        steps[front] = step
    return steps


def types(graph):
    """Type + 1 of the edge from j to i, else of that from i to j, else 0, [N, N]."""
    own = np.full((graph.num_nodes,) * 2, np.inf)
    np.minimum.at(own, (graph.receivers, graph.senders), graph.edge_type)
    own = np.where(np.isinf(own), own.T, own)
    np.fill_diagonal(own, np.inf)
    return np.where(np.isinf(own), 0, own + 1).astype(int)


def edges_of(graph, names):
    """The edge that speaks for each pair, int [N, N], -1 where there is none."""
    out = np.full((graph.num_nodes,) * 2, -1)

    def rank(edge):
        features = [graph.edge[name][edge].ravel().tolist() for name in names]
        return graph.edge_type[edge], *features

    for edge, pair in enumerate(zip(graph.receivers, graph.senders, strict=True)):
        if out[pair] < 0 or rank(edge) < rank(out[pair]):
            out[pair] = edge
    out = np.where(out < 0, out.T, out)
    np.fill_diagonal(out, -1)
    return out


def links(graph):
    """The links of the path through all nodes, bool [N, N]."""
    order = canonical_path(graph)
    assert sorted(order.tolist()) == list(range(graph.num_nodes))
    out = np.zeros((graph.num_nodes,) * 2, bool)
    out[order[:-1], order[1:]] = out[order[1:], order[:-1]] = True
    return out


def states(backbone, graph):
    """States [N, H] of a `GraphTransformerBackbone` over one graph."""
    encode = [x for x in backbone.graph_layers() if "Encoding" in type(x).__name__]
    encoded = graph
    for layer in encode:
        encoded = layer(encoded)
    weights = {w.path.split("/", 1)[1]: numpy(w) for w in backbone.weights}

    def of(*names):
        (found,) = [v for k, v in weights.items() if all(n in k for n in names)]
        return found

    def norm(x, *names):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
        return x * of(*names, "gamma") + of(*names, "beta")

    def dense(x, *names):
        return x @ of(*names, "kernel") + of(*names, "bias")

    n, heads, width = graph.num_nodes, backbone.num_heads, backbone.hidden_dim
    rows = []
    for name, spec in backbone.encoder.inputs.items():
        if "features" in spec:
            rows.append(dense(encoded.node[name], f"encode_{name}"))
        else:
            rows.append(of(f"encode_{name}", "embeddings")[encoded.node[name]])
    states, size = sum(rows), n
    # The most steps that have a number of their own.
    most, steps = backbone.max_distance, distances(graph)
    linked = steps <= 1
    if backbone.attention == "augment":
        linked = linked | links(encoded)
    bias = np.zeros((n, n, heads))
    token_bias = np.zeros(heads)
    if backbone.use_bias:
        table = of("attention_bias", "distances")
        bias = table[np.minimum(steps, most + 1).astype(int)] - table[-1]
        if backbone.num_edge_types > 1:
            kinds = of("attention_bias", "types")
            bias = bias + kinds[types(graph)] - kinds[0]
        if backbone.global_token:
            token_bias = of("attention_bias", "tokens")[0] - table[-1]
    if backbone.edge_encoder is not None:
        inputs, total = backbone.edge_encoder.inputs, 0.0
        for name, spec in inputs.items():
            values = graph.edge[name]
            if "features" in spec:
                total = total + dense(values, "edge_encoder", f"encode_{name}")
                continue
            tables, first = of("edge_encoder", f"encode_{name}", "embeddings"), 0
            sizes = spec.get("columns", [spec.get("ids")])
            rows = values.reshape(len(values), -1).T
            for column, count in zip(rows, sizes, strict=True):
                total = total + tables[first : first + count][column]
                first += count
        speaker = edges_of(graph, inputs)
        bias = bias + np.where((speaker >= 0)[..., None], total[speaker], 0.0)
    if backbone.global_token:
        states, size = np.concatenate([states, numpy(backbone.token)[None]]), n + 1
        bias = np.pad(bias, ((0, 1), (0, 1), (0, 0)))
        bias[:n, n] = token_bias
        linked = np.pad(linked, ((0, 1), (0, 1)), constant_values=True)
    for number in range(backbone.num_layers):
        name = f"block_{number}"
        seen = linked if backbone.pattern_of(number) == "sparse" else True
        x = norm(states, name, "attention_norm")
        q, k, v = (
            dense(x, name, "attention", f"{part}/").reshape(size, heads, -1)
            for part in ("query", "key", "value")
        )
        logits = np.einsum("ihd,jhd->ijh", q, k) / np.sqrt(width // heads) + bias
        logits = np.where(np.broadcast_to(seen, (size, size))[..., None], logits, -1e30)
        share = np.exp(logits - logits.max(1, keepdims=True))
        share /= share.sum(1, keepdims=True)
        out = np.einsum("ijh,jhd->ihd", share, v).reshape(size, width)
        states = states + dense(out, name, "attention", "output/")
        x = dense(norm(states, name, "ffn_norm"), name, "inner")
        x = 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))
        states = states + dense(x, name, "outer")
    return norm(states, "last_norm")[:n]
