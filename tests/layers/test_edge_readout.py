import keras
import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn import ops as graph_ops
from keras_bandgnn.layers import EdgeReadout
from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader
from keras_bandgnn.testing import run_layer_test

WIDTH, TYPES = 5, 3
PLACES = [2, 4]


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
                edge={
                    "length": rng.normal(size=(count, 2)),
                    "place": rng.integers(0, PLACES, (count, len(PLACES))),
                },
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


@pytest.mark.parametrize("symmetric", [False, True])
def test_ids_beside_numbers_and_alone(symmetric):
    """Ids alone are one sum of rows on some backends, with a gradient of its own."""
    x = batch()
    x["edge"]["length"] = np.zeros_like(x["edge"]["length"])
    states = states_of(x)
    x = keras.tree.map_structure(keras.ops.convert_to_tensor, x)
    ids = {"type": TYPES, "place": PLACES}
    results = []
    for inputs in (ids, {**ids, "length": {"features": 2}}):
        layer = EdgeReadout(3, inputs, 4, symmetric=symmetric)
        layer.build((None, None, WIDTH))
        rng = np.random.default_rng(2)
        shared = [w for w in layer.weights if "length" not in w.path]
        for weight in shared:
            weight.assign(rng.normal(size=weight.shape))
        shared = [id(w) for w in shared]

        def squares(values, layer=layer):
            out, _ = layer.stateless_call(values[1:], [], values[0], x)
            mask = keras.ops.cast(x["edge"]["mask"][..., None], "float32")
            return keras.ops.sum(keras.ops.square(out) * mask)

        values = [keras.ops.convert_to_tensor(states)]
        values += [keras.ops.convert_to_tensor(numpy(w)) for w in layer.weights]
        _, slopes = graph_ops.value_and_gradient(squares, values)
        weights = zip(layer.weights, slopes[1:], strict=True)
        slopes = [slopes[0], *(s for w, s in weights if id(w) in shared)]
        results.append([numpy(layer(states, x)[:, :12]), *map(numpy, slopes)])
    assert len(results[0]) == 2 + 7
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5)


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
