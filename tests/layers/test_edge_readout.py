import keras
import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.layers import EdgeReadout
from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader
from keras_bandgnn.testing import run_layer_test

WIDTH, TYPES = 5, 3


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")))


def graphs_of(seed=0):
    rng = np.random.default_rng(seed)
    graphs = []
    for nodes, count in ((4, 7), (1, 0), (3, 5)):
        graphs.append(
            Graph(
                nodes,
                *rng.integers(0, nodes, (2, count)),
                edge_type=rng.integers(0, TYPES, count),
                edge={"length": rng.normal(size=(count, 2))},
            )
        )
    return graphs


def batch(replicas=1):
    """Graphs with more room for nodes and edges than they need."""
    batcher = DynamicBatcher(budget={"node": 12, "edge": 20, "graph": 5})
    options = {"shuffle": False, "replicas": replicas, "num_edge_types": TYPES}
    return GraphLoader(graphs_of(), batcher, **options)[0][0]


def states_of(x, seed=1):
    shape = (*x["node"]["mask"].shape, WIDTH)
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def silu(x):
    return x / (1 + np.exp(-x))


def oracle(layer, sender, receiver, length, kind):
    """The network of one edge, over its two states and features, in NumPy."""
    w = {weight.path: numpy(weight) for weight in layer.weights}

    def of(name):
        return next(v for path, v in w.items() if path.endswith(name))

    def network(one, other):
        hidden = one @ of("sender/kernel") + other @ of("receiver/kernel")
        hidden = hidden + of("receiver/bias")
        hidden = hidden + length @ of("encode_length/kernel") + of("encode_length/bias")
        hidden = silu(hidden + of("embeddings")[kind])
        return hidden @ of("output/kernel") + of("output/bias")

    if layer.symmetric:
        return 0.5 * (network(sender, receiver) + network(receiver, sender))
    return network(sender, receiver)


def with_weights(layer, seed=2):
    layer.build((None, None, WIDTH))
    rng = np.random.default_rng(seed)
    layer.set_weights([rng.normal(size=w.shape) for w in layer.weights])
    return layer


@pytest.mark.parametrize("symmetric, replicas", [(False, 1), (True, 2)])
def test_equals_a_network_per_edge(symmetric, replicas):
    x = batch(replicas)
    states = states_of(x)
    inputs = {"length": {"features": 2}, "type": TYPES}
    layer = with_weights(EdgeReadout(3, inputs, 4, symmetric=symmetric))
    out = numpy(layer(states, x))
    assert out.shape == (*x["edge"]["mask"].shape, 3)
    assert np.isfinite(out).all()
    seen = 0
    for group, place in np.argwhere(x["edge"]["mask"]):
        edge = {name: values[group, place] for name, values in x["edge"].items()}
        ends = (states[group, edge[name]] for name in ("sender", "receiver"))
        expected = oracle(layer, *ends, edge["length"], edge["type"])
        np.testing.assert_allclose(out[group, place], expected, atol=2e-5)
        seen += 1
    assert seen == 12


def test_config_shapes_and_reduced_precision():
    x = batch()
    states = states_of(x)
    inputs = {"length": {"features": 2}, "type": TYPES}
    for layer in (EdgeReadout(3), EdgeReadout(1, inputs, 6, "tanh", True, False)):
        assert run_layer_test(layer, states, x).shape == (1, 20, layer.units)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="inputs.*to be a vocabulary size"):
        EdgeReadout(2, {"length": "numbers"})
    with pytest.raises(ValueError, match="edge features.*'width' is missing"):
        x = batch()
        EdgeReadout(2, {"width": {"features": 1}})(states_of(x), x)
    x.pop("edge")
    with pytest.raises(ValueError, match="a part 'edge'"):
        EdgeReadout(2)(states_of(x), x)
