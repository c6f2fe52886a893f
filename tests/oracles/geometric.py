"""SchNet, MPEU and PaiNN as plain loops over edges, in float64."""

import numpy as np


def weights_of(model) -> dict[str, np.ndarray]:
    """Weights in float64 by path, without the name of the model."""
    names = [w.path.split("/", 1)[1] for w in model.weights]
    return dict(zip(names, map(np.float64, model.get_weights()), strict=True))


def ssp(x):
    return np.logaddexp(x, 0.0) - np.log(2)


def silu(x):
    return x / (1 + np.exp(-x))


def dense(weights, name, x):
    return x @ weights[f"{name}/kernel"] + weights.get(f"{name}/bias", 0.0)


def gaussians(config, distance):
    count = config["num_gaussians"]
    if config.get("cutoff") is None:
        return np.exp(-((distance - 0.1 * np.arange(count)) ** 2) / 0.1)
    centres = np.linspace(0, config["cutoff"], count)
    return np.exp(-0.5 * ((distance - centres) / centres[1]) ** 2)


def cosine(cutoff, distance):
    return 0.5 * (np.cos(np.pi * distance / cutoff) + 1) * (distance < cutoff)


def first_states(weights, config, numbers):
    elements = config["elements"]
    elements = list(range(elements)) if isinstance(elements, int) else elements
    return weights["embedding/table/embeddings"][[elements.index(z) for z in numbers]]


def schnet(graph, config, weights, displacement):
    """States [N, C] of a `SchNetBackbone`."""
    states = first_states(weights, config, graph.node["atomic_number"])
    ends = list(zip(graph.senders, graph.receivers, strict=True))
    for step in range(config["num_steps"]):
        name = 0 if config["share_weights"] else step
        sums, count = np.zeros_like(states), np.zeros((len(states), 1))
        sent = dense(weights, f"interaction_{name}/send", states)
        for (j, i), vector in zip(ends, displacement, strict=True):
            length = np.linalg.norm(vector)
            filters = ssp(
                dense(weights, f"filter_{name}/hidden", gaussians(config, length))
            )
            filters = dense(weights, f"filter_{name}/output", filters)
            filters = ssp(filters) if config["activate_filters"] else filters
            if config["cutoff"] is not None:
                filters = filters * cosine(config["cutoff"], length)
            sums[i] += sent[j] * filters
            count[i] += 1
        if config["reduce"] == "mean":
            sums = sums / np.maximum(count, 1)
        hidden = ssp(dense(weights, f"interaction_{name}/hidden", sums))
        states = states + dense(weights, f"interaction_{name}/output", hidden)
    return states


def mpeu(graph, config, weights, displacement):
    """States [N, C] of an `MPEUBackbone`."""
    states = first_states(weights, config, graph.node["atomic_number"])
    ends = list(zip(graph.senders, graph.receivers, strict=True))
    rows = [gaussians(config, np.linalg.norm(vector)) for vector in displacement]
    for step in range(config["num_steps"]):
        own = f"interaction_{step}"
        sums, count = np.zeros_like(states), np.zeros((len(states), 1))
        sent = dense(weights, f"{own}/interaction/send", states)
        for edge, (j, i) in enumerate(ends):
            whole = np.concatenate([states[j], states[i], rows[edge]])
            hidden = ssp(dense(weights, f"{own}/edge_hidden", whole))
            rows[edge] = dense(weights, f"{own}/edge_output", hidden)
            filters = ssp(dense(weights, f"{own}/filter/hidden", rows[edge]))
            filters = ssp(dense(weights, f"{own}/filter/output", filters))
            sums[i] += sent[j] * filters
            count[i] += 1
        if config["reduce"] == "mean":
            sums = sums / np.maximum(count, 1)
        hidden = ssp(dense(weights, f"{own}/interaction/hidden", sums))
        states = states + dense(weights, f"{own}/interaction/output", hidden)
    return states


def radial(config, distance):
    """Radial functions of a `PaiNNBackbone`."""
    count, cutoff = config["num_functions"], config["cutoff"]
    if config["basis"] == "sine":
        return np.sin(np.arange(1, count + 1) * np.pi * distance / cutoff) / distance
    centres = np.linspace(0, cutoff, count)
    return np.exp(-0.5 * ((distance - centres) * count / cutoff) ** 2)


def painn(graph, config, weights, displacement):
    """States [N, C] and vectors [N, 3, C] of a `PaiNNBackbone`."""
    states = first_states(weights, config, graph.node["atomic_number"])
    vectors = np.zeros((len(states), 3, states.shape[1]))
    ends = list(zip(graph.senders, graph.receivers, strict=True))
    for step in range(config["num_steps"]):
        context = silu(dense(weights, f"message_{step}/context_hidden", states))
        context = dense(weights, f"message_{step}/context_output", context)
        new_states, new_vectors = states.copy(), vectors.copy()
        for (j, i), vector in zip(ends, displacement, strict=True):
            length = np.linalg.norm(vector)
            filters = dense(weights, f"message_{step}/filter", radial(config, length))
            filters = filters * cosine(config["cutoff"], length)
            a, b, c = np.split(context[j] * filters, 3)
            new_states[i] += a
            new_vectors[i] += np.outer(vector / length, b) + vectors[j] * c
        states, vectors = new_states, new_vectors
        first, second = np.split(dense(weights, f"update_{step}/mix", vectors), 2, -1)
        norm = np.sqrt((first**2).sum(axis=1) + config["epsilon"])
        whole = np.concatenate([states, norm], axis=1)
        context = silu(dense(weights, f"update_{step}/context_hidden", whole))
        context = dense(weights, f"update_{step}/context_output", context)
        alone, gate, product = np.split(context, 3, axis=1)
        states = states + alone + product * (first * second).sum(axis=1)
        vectors = vectors + gate[:, None] * second
    return states, vectors
