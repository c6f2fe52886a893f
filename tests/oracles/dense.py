"""The mathematics as plain loops over nodes and edges, in float64."""

import numpy as np


def typed_messages(graph, states, kernel, bias=None, keep=None) -> np.ndarray:
    """out[n] = sum over edges (j -> n, type p) of (states[j] kernel[p] + bias[p]).

    Args:
        graph: A `Graph`.
        states: [N, H].
        kernel: [P, H, U].
        bias: [P, U] or None.
        keep: bool [E], the edges to use; all if omitted.
    """
    out = np.zeros((graph.num_nodes, kernel.shape[-1]))
    for edge in range(graph.num_edges):
        if keep is not None and not keep[edge]:
            continue
        kind = graph.edge_type[edge]
        message = np.asarray(states[graph.senders[edge]], np.float64) @ kernel[kind]
        if bias is not None:
            message = message + bias[kind]
        out[graph.receivers[edge]] += message
    return out


def _sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def _gru(messages, states, weights):
    given = messages @ weights["input/kernel"] + weights["input/bias"]
    own = states @ weights["recurrent/kernel"] + weights["recurrent/bias"]
    width = states.shape[1]
    z = _sigmoid(given[:, :width] + own[:, :width])
    r = _sigmoid(given[:, width : 2 * width] + own[:, width : 2 * width])
    n = np.tanh(given[:, 2 * width :] + r * own[:, 2 * width :])
    return (1 - z) * n + z * states


def backbone_weights(backbone) -> dict[str, np.ndarray]:
    """Weights of a `GGNNBackbone` in float64, by "layer/weight"."""
    return {
        "/".join(w.path.split("/")[-2:]): np.asarray(w.numpy(), np.float64)
        if hasattr(w, "numpy")
        else np.asarray(w.value, np.float64)
        for w in backbone.weights
    }


def _encode(graph, inputs, weights) -> np.ndarray:
    total = 0.0
    for name, spec in inputs.items():
        values = graph.node[name]
        if "features" in spec:
            kernel = weights[f"encode_{name}/kernel"]
            total = total + values @ kernel + weights[f"encode_{name}/bias"]
            continue
        table = weights[f"encode_{name}/embeddings"]
        if values.ndim == 1:
            total = total + table[values]
            continue
        rows = np.zeros((graph.num_nodes, table.shape[1]))
        for node, ids in enumerate(values):
            real = [i for i in ids if i > 0]
            if real:
                rows[node] = table[real].mean(axis=0)
        total = total + rows
    return total


def _encode_edges(graph, inputs, weights) -> np.ndarray:
    """Embedded features [E, H] of edges: numbers, ids and columns of ids."""
    total = 0.0
    for name, spec in inputs.items():
        values = graph.edge_type if name == "type" else graph.edge[name]
        if "features" in spec:
            kernel = weights[f"encode_{name}/kernel"]
            total = total + values @ kernel + weights[f"encode_{name}/bias"]
            continue
        table, first = weights[f"encode_{name}/embeddings"], 0
        sizes = spec.get("columns", [spec.get("ids")])
        for column, size in zip(values.reshape(len(values), -1).T, sizes, strict=True):
            total = total + table[first : first + size][column]
            first += size
    return total


def ggnn(graph, backbone, keep=None) -> np.ndarray:
    """States [N, H] of a graph under a `GGNNBackbone`, one edge at a time."""
    weights = backbone_weights(backbone)
    states = _encode(graph, backbone.encoder.inputs, weights)
    kernel = weights["message_passing/kernel"]
    bias = weights["message_passing/bias"]
    sums = np.zeros_like(states)
    if backbone.edge_encoder is not None:
        rows = _encode_edges(graph, backbone.edge_encoder.inputs, weights)
        for receiver, row in zip(graph.receivers, rows, strict=True):
            sums[receiver] += row
    for _ in range(backbone.num_steps):
        messages = typed_messages(graph, states, kernel, bias, keep) + sums
        states = _gru(messages, states, weights)
    return states


def selector_logits(graph, task, keep=None) -> np.ndarray:
    """Logits [C] of a graph's candidates under a `NodeSelector` with a GGNN."""
    states = ggnn(graph, task.backbone, keep)
    kernel = np.asarray(task.head.get_weights()[0], np.float64)
    bias = np.asarray(task.head.get_weights()[1], np.float64)
    chosen = states[graph.candidates]
    if task.readout == "slot":
        slot = np.broadcast_to(states[graph.slot], chosen.shape)
        chosen = np.concatenate([chosen, slot, chosen * slot], axis=1)
    return (chosen @ kernel + bias)[:, 0]


def graph_readout(states, layer) -> np.ndarray:
    """Output [D] of a `GraphReadout` (silu) for the states [N, C] of one graph."""
    weights = [np.asarray(w, np.float64) for w in layer.get_weights()]
    if layer.use_bias:
        kernel, bias, out_kernel, out_bias = weights
    else:
        (kernel, out_kernel), bias, out_bias = weights, 0.0, 0.0
    total = np.zeros(layer.units)
    for state in np.asarray(states, np.float64):
        hidden = state @ kernel + bias
        total = total + hidden * _sigmoid(hidden) @ out_kernel + out_bias
    return total / max(len(states), 1) if layer.reduce == "mean" else total


def regressor_outputs(graph, task) -> np.ndarray:
    """Predictions [D] of a `GraphRegressor` with a GGNN, in the labels' units."""
    out = graph_readout(ggnn(graph, task.backbone), task.head)
    if task.normalizer is None:
        return out
    config = task.normalizer.get_config()
    if config["mean"] is None:
        return out
    per = graph.num_nodes if config["mode"] == "atom" else 1
    out = out * config["std"] + np.array(config["mean"]) * per
    for element in graph.node[config["element_key"]] if config["element_key"] else ():
        out = out + config["references"][str(element)]
    return out
