"""GCN, GAT and the readout of AttentiveFP as plain loops, in float64."""

import numpy as np


def weights_of(model) -> dict[str, np.ndarray]:
    """Weights in float64, by path without the name of the model."""
    return {
        w.path.split("/", 1)[1]: np.asarray(value, np.float64)
        for w, value in zip(model.weights, model.get_weights(), strict=True)
    }


def below(weights, prefix) -> dict[str, np.ndarray]:
    """Weights of a layer, by path below it."""
    start = f"{prefix}/"
    return {k[len(start) :]: v for k, v in weights.items() if k.startswith(start)}


def _leaky_relu(x, slope):
    return np.where(x > 0, x, slope * x)


def _elu(x):
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def softmax(x) -> np.ndarray:
    """Softmax over axis 0."""
    x = np.exp(x - x.max(axis=0))
    return x / x.sum(axis=0)


def graph_convolution(graph, states, weights, edge_weight=None) -> np.ndarray:
    """D^-1/2 (A + I) D^-1/2 H W + b; a node's own edges count once."""
    count = graph.num_nodes
    matrix = np.eye(count)
    for edge in range(graph.num_edges):
        sender, receiver = graph.senders[edge], graph.receivers[edge]
        if edge_weight is not None:
            # A loop of the data is there instead of the 1.
            matrix[receiver, sender] += edge_weight[edge] - (sender == receiver)
        elif sender != receiver:
            matrix[receiver, sender] += 1
    scale = 1 / np.sqrt(matrix.sum(axis=1))
    matrix = scale[:, None] * matrix * scale
    if "kernel" in weights:
        states = states @ weights["kernel"]
    return matrix @ states + weights["bias"]


def rgcn_convolution(
    graph, states, weights, aggregate="mean", edge_weight=None
) -> np.ndarray:
    """H W_own + b and, of each type of edge, the mean or sum of messages H W_p."""
    out = states @ weights["own/kernel"] + weights.get("own/bias", 0.0)
    if "bases" in weights:
        kernels = np.einsum("pb,bhu->phu", weights["coefficients"], weights["bases"])
    elif "blocks" in weights:
        types, count, height, width = weights["blocks"].shape
        kernels = np.zeros((types, count * height, count * width))
        for kind, block in np.ndindex(types, count):
            rows = slice(block * height, (block + 1) * height)
            columns = slice(block * width, (block + 1) * width)
            kernels[kind, rows, columns] = weights["blocks"][kind, block]
    else:
        kernels = weights["kernel"]
    for node, kind in np.ndindex(graph.num_nodes, len(kernels)):
        edges = (graph.receivers == node) & (graph.edge_type == kind)
        for edge in np.flatnonzero(edges):
            weight = 1.0 if edge_weight is None else edge_weight[edge]
            weight = weight / edges.sum() if aggregate == "mean" else weight
            out[node] += weight * states[graph.senders[edge]] @ kernels[kind]
    return out


def graph_attention(graph, states, weights, slope=0.2) -> np.ndarray:
    """Attention of each node over its senders and itself, head by head."""
    heads, width = weights["sender_kernel"].shape
    if "transform/kernel" in weights:
        states = states @ weights["transform/kernel"]
    rows = states.reshape(-1, heads, width)
    out = np.zeros((graph.num_nodes, heads, width))
    for node in range(graph.num_nodes):
        into = (graph.receivers == node) & (graph.senders != node)
        near = np.append(graph.senders[into], node)
        score = (rows[near] * weights["sender_kernel"]).sum(-1)
        score = score + (rows[node] * weights["receiver_kernel"]).sum(-1)
        share = softmax(_leaky_relu(score, slope))
        out[node] = (share[..., None] * rows[near]).sum(axis=0)
    return out.reshape(graph.num_nodes, -1) + weights["bias"]


def _own(graph, states, weights):
    """W_own h + b of each node, or with the weights of its set."""
    if "own/kernel" in weights:
        return states @ weights["own/kernel"] + weights.get("own/bias", 0.0)
    rows = [
        row @ weights[f"own/set_{kind}/kernel"]
        + weights.get(f"own/set_{kind}/bias", 0.0)
        for row, kind in zip(states, graph.node["set"], strict=True)
    ]
    return np.stack(rows)


def _of_types(graph, message, units, type_reduce, factor):
    """The sum or mean over types of message(p, edges of type p) at each node."""
    out = np.zeros((graph.num_nodes, units))
    for node in range(graph.num_nodes):
        into = (graph.receivers == node) & (factor > 0)
        parts = [
            message(kind, np.flatnonzero(into & (graph.edge_type == kind)))
            for kind in np.unique(graph.edge_type[into])
        ]
        if parts:
            total = sum(parts)
            out[node] = total / len(parts) if type_reduce == "mean" else total
    return out


def typed_sage(
    graph, states, weights, reduce, type_reduce, edge_states=None, edge_weight=None
) -> np.ndarray:
    """The reduced messages of each type times its matrix, and W_own h + b."""
    ones = np.ones(graph.num_edges)
    weight = ones if edge_weight is None else edge_weight

    def message(kind, edges):
        rows = states[graph.senders[edges]]
        if reduce == "pool":
            rows = rows @ weights["pool_kernel"][kind] + weights["pool_bias"][kind]
            rows = np.maximum(rows, 0)
        if edge_states is not None:
            rows = np.maximum(rows + edge_states[edges], 0)
        if reduce in ("max", "pool"):
            rows = rows.max(axis=0)
        else:
            rows = (weight[edges, None] * rows).sum(axis=0)
            rows = rows / len(edges) if reduce == "mean" else rows
        return rows @ weights["kernel"][kind]

    units = weights["kernel"].shape[-1]
    total = _of_types(graph, message, units, type_reduce, ones)
    return total + _own(graph, states, weights)


def typed_attention(
    graph, states, weights, type_reduce, slope=0.2, factor=None
) -> np.ndarray:
    """Attention along the edges of each type, head by head."""
    _, heads, width = weights["sender_kernel"].shape
    factor = np.ones(graph.num_edges) if factor is None else factor
    rows = np.einsum("nh,phu->pnu", states, weights["kernel"])
    rows = rows.reshape(*rows.shape[:2], heads, width)

    def message(kind, edges):
        near, node = graph.senders[edges], graph.receivers[edges[0]]
        score = (rows[kind, near] * weights["sender_kernel"][kind]).sum(-1)
        score = score + states[node] @ weights["receiver_kernel"][kind]
        score = _leaky_relu(score, slope) + np.log(factor[edges])[:, None]
        share = softmax(score)
        return (share[..., None] * rows[kind, near]).sum(axis=0).ravel()

    out = _of_types(graph, message, heads * width, type_reduce, factor)
    return out + weights.get("bias", 0.0)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru_readout(states, weights, num_steps) -> np.ndarray:
    """State [C] of one graph, for the states [N, C] of its nodes."""
    width = states.shape[1]
    rows = states @ weights["transform/kernel"]
    state = np.maximum(states.sum(axis=0), 0)
    for _ in range(num_steps):
        wanted = state @ weights["transform/kernel"] @ weights["graph_score/kernel"]
        score = _leaky_relu(rows @ weights["node_score/kernel"] + wanted, 0.01)
        context = _elu((softmax(score) * rows).sum(axis=0) + weights["bias"])
        given = context @ weights["update/input/kernel"] + weights["update/input/bias"]
        own = state @ weights["update/recurrent/kernel"]
        own = own + weights["update/recurrent/bias"]
        z, r = _sigmoid(given[: 2 * width] + own[: 2 * width]).reshape(2, width)
        new = np.tanh(given[2 * width :] + r * own[2 * width :])
        state = np.maximum((1 - z) * new + z * state, 0)
    return state


def set2set_readout(states, weights, num_steps) -> np.ndarray:
    """Readout [2 C] of one graph, for the states [N, C] of its nodes."""
    width = states.shape[1]
    out, memory = np.zeros(2 * width), np.zeros(width)
    for _ in range(num_steps):
        gates = out @ weights["cell/kernel"] + weights["cell/bias"]
        gates = gates + out[:width] @ weights["cell/recurrent_kernel"]
        enter, forget, new, leave = gates.reshape(4, width)
        memory = _sigmoid(forget) * memory + _sigmoid(enter) * np.tanh(new)
        query = _sigmoid(leave) * np.tanh(memory)
        shares = softmax((states @ query)[:, None])
        out = np.concatenate([query, (shares * states).sum(axis=0)])
    return out


def _encode(graph, inputs, weights):
    total = 0.0
    for name, spec in inputs.items():
        own = below(weights, f"node_encoder/encode_{name}")
        if "features" in spec:
            total = total + graph.node[name] @ own["kernel"] + own["bias"]
        else:
            total = total + own["embeddings"][graph.node[name]]
    return total


def _norm(states, kind, own) -> np.ndarray:
    """The norm of a frame for one graph, batch norm by its moving statistics."""
    if kind == "batch":
        mean, variance = own["moving_mean"], own["moving_variance"]
    elif kind == "layer":
        mean = states.mean(axis=1, keepdims=True)
        variance = states.var(axis=1, keepdims=True)
    elif kind == "graph":
        mean = own["alpha"] * states.mean(axis=0)
        variance = ((states - mean) ** 2).mean(axis=0)
    else:
        mean, own = states.mean(axis=0), {"gamma": 1.0, "beta": 0.0}
        variance = ((states - mean) ** 2).sum(axis=1).mean()
    return (states - mean) / np.sqrt(variance + 1e-5) * own["gamma"] + own["beta"]


def backbone(graph, model, weights=None) -> np.ndarray:
    """States [N, H] under a `GCNBackbone` or a `GATBackbone`."""
    weights = weights_of(model) if weights is None else weights
    config = model.get_config()
    active = {"elu": _elu, "relu": lambda x: np.maximum(x, 0)}[config["activation"]]
    name = "attention" if "num_heads" in config else "convolution"
    message = graph_attention if name == "attention" else graph_convolution

    def dense(rows, prefix):
        return rows @ weights[f"{prefix}/kernel"] + weights[f"{prefix}/bias"]

    def normed(rows, prefix):
        if config["norm"] is None:
            return rows
        return _norm(rows, config["norm"], below(weights, prefix))

    states = _encode(graph, config["inputs"], weights)
    seen, virtual = [states], weights.get("virtual_state", 0.0)
    for number in range(config["num_layers"]):
        states = states + virtual
        first = config["activation_first"]
        rows = active(states) if first and number else states
        out = message(graph, rows, below(weights, f"{name}_{number}"))
        if config["ego_separation"]:
            out = dense(np.concatenate([rows, out], axis=1), f"ego_{number}")
        if config["residual"] == "linear":
            out = out + dense(rows, f"linear_{number}")
        out = normed(out, f"norm_{number}")
        if not first:
            out = active(out)
        states = states + out if config["residual"] is True else out
        if config["feed_forward"]:
            rows = dense(active(dense(states, f"inner_{number}")), f"outer_{number}")
            states = normed(states + rows, f"outer_norm_{number}")
        if config["virtual_node"] and number < config["num_layers"] - 1:
            rows = dense(states.sum(axis=0) + virtual, f"virtual_inner_{number}")
            rows = active(dense(active(rows), f"virtual_outer_{number}"))
            virtual = virtual + rows if config["residual"] else rows
        seen.append(states)
    if config["jumping_knowledge"] == "concat":
        return dense(np.concatenate(seen, axis=1), "jump")
    join = {"max": np.max, "sum": np.sum}.get(config["jumping_knowledge"])
    return states if join is None else join(seen, axis=0)


def cross_entropy(logits, labels) -> float:
    """Cross-entropy of logits [n, C], the sum over the rows."""
    logits = logits - logits.max(axis=1, keepdims=True)
    share = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -share[np.arange(len(labels)), labels].sum()


def check_gradients(gradients, weights, loss, tolerance=2e-4) -> None:
    """Compares gradients with central differences of a float64 loss.

    Args:
        gradients: By path, float32.
        weights: By the same paths, float64.
        loss: Weights -> number.
        tolerance: Of slopes, as a share of the largest gradient.
    """
    rng = np.random.default_rng(0)
    assert set(gradients) == set(weights)
    scale = max(np.abs(g).max() for g in gradients.values())
    for path, gradient in gradients.items():
        way = rng.normal(size=gradient.shape)
        way /= np.linalg.norm(way)
        step = 1e-6
        ends = [
            loss({**weights, path: weights[path] + sign * step * way})
            for sign in (1, -1)
        ]
        slope = (ends[0] - ends[1]) / (2 * step)
        assert abs(slope - (gradient * way).sum()) < tolerance * scale, path
