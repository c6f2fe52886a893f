import keras
import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.layers import GraphReadout
from keras_bandgnn.layers.graph_readout import REDUCTIONS
from keras_bandgnn.ops.graph_segments import GraphSegments
from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader
from keras_bandgnn.testing import run_layer_test
from tests.oracles.dense import graph_readout

SIZES = (3, 1, 7, 4)


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")))


def batch(replicas=1):
    """Graphs of SIZES, with more slots for nodes and graphs than there are."""
    batcher = DynamicBatcher(budget={"node": 24, "graph": 7})
    graphs = [Graph(n, [], []) for n in SIZES]
    loader = GraphLoader(graphs, batcher, shuffle=False, replicas=replicas)
    return loader[0][0]


def states_for(x, width=6, seed=0):
    shape = (*x["node"]["mask"].shape, width)
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def with_weights(layer, width=6, seed=1):
    layer.build((None, None, width))
    rng = np.random.default_rng(seed)
    layer.set_weights([rng.normal(size=w.shape) for w in layer.weights])
    return layer


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_equals_the_oracle(reduce, use_bias, replicas):
    x = batch(replicas)
    states = states_for(x)
    layer = with_weights(GraphReadout(2, reduce, use_bias=use_bias))
    out = numpy(layer(states, x))
    seen = 0
    for group in range(replicas):
        for slot in range(7):
            rows = x["node"]["mask"][group] & (x["node"]["graph_id"][group] == slot)
            expected = graph_readout(states[group][rows], layer)
            np.testing.assert_allclose(out[group, slot], expected, atol=1e-5)
            seen += rows.any()
            assert rows.any() or not out[group, slot].any()
    assert seen == len(SIZES)


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_the_output_is_linear_in_the_features(reduce, use_bias):
    """`LastLayerLaplace` depends on it."""
    x = batch(2)
    states = states_for(x)
    layer = with_weights(GraphReadout(2, reduce, use_bias=use_bias))
    kernel = np.concatenate(
        [numpy(w).reshape(-1, 2) for w in layer.output_dense.weights]
    )
    expected = numpy(layer.features(states, x)) @ kernel
    np.testing.assert_allclose(numpy(layer(states, x)), expected, atol=1e-5)


def test_config_shapes_and_reduced_precision():
    x = batch()
    states = states_for(x)
    for layer in (GraphReadout(3), GraphReadout(1, "mean", 5, "tanh", False)):
        assert run_layer_test(layer, states, x).shape == (1, 7, layer.units)
    assert GraphReadout(1, activation="relu").get_config()["activation"] == "relu"


def test_the_hidden_layer_is_half_as_wide_as_the_states():
    def count(layer, width=64):
        layer.build((None, None, width))
        return layer.count_params()

    # 64 * 32 + 32, without biases.
    assert count(GraphReadout(1, use_bias=False)) == 2080
    assert count(GraphReadout(1, hidden=64)) == 64 * 64 + 64 + 64 + 1
    assert count(GraphReadout(1, use_bias=False), 1) == 2


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_padding_and_the_order_of_nodes_change_nothing(reduce):
    x = batch()
    states = states_for(x)
    layer = with_weights(GraphReadout(2, reduce))
    expected = numpy(layer(states, x))
    other = np.where(x["node"]["mask"][..., None], states, np.nan).astype("float32")
    np.testing.assert_array_equal(numpy(layer(other, x)), expected)
    # Nodes of a graph need not lie side by side.
    order = np.random.default_rng(0).permutation(states.shape[1])
    node = {k: x["node"][k][:, order] for k in ("mask", "graph_id")}
    mixed = layer(states[:, order], {**x, "node": node})
    np.testing.assert_allclose(numpy(mixed), expected, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_adds_up_in_float32(dtype):
    count = 3000
    x = GraphLoader([Graph(count, [], [])])[0][0]
    states = np.ones((1, x["node"]["mask"].shape[1], 2), "float32")
    for reduce, expected in (("sum", 30.0 * count), ("mean", 30.0)):
        layer = GraphReadout(1, reduce, activation="relu", dtype=dtype)
        layer.build((None, None, 2))
        values = [[1.0], [1.0]], [1.0], [[10.0]], [0.0]
        layer.set_weights([np.array(value) for value in values])
        out = numpy(layer(keras.ops.cast(states, dtype), x))[0, 0, 0]
        if reduce == "sum" and dtype == "float16":
            assert np.isinf(out)  # Only the result is beyond float16 ...
        else:
            assert abs(out - expected) < 0.01 * expected  # ... not the mean.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GraphReadout(0), "`units` to be at least 1"),
        (lambda: GraphReadout(1, "max"), "`reduce` to be one of 'sum', 'mean'"),
        (lambda: GraphReadout(1, hidden=0), "`hidden` to be at least 1"),
        (lambda: GraphReadout(1, activation="zigzag"), "zigzag"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("sizes", [(5000, 700, 1), (2047,), (1000, 1100, 40)])
def test_sums_of_many_nodes_keep_their_digits(sizes):
    rng = np.random.default_rng(0)
    graphs = [Graph(n, [], [], node={"h": rng.uniform(1, 2, (n, 1))}) for n in sizes]
    batcher = DynamicBatcher(max(2, len(sizes)) - 1)
    (batch,) = GraphLoader(graphs, batcher, shuffle=False)[0]
    segments = GraphSegments(batch)
    sums = keras.ops.convert_to_numpy(segments.sum(batch["node"]["h"]))
    ids = np.asarray(batch["graph"]["id"])[0]
    for slot in np.flatnonzero(ids >= 0):
        exact = graphs[ids[slot]].node["h"].sum(dtype=np.float64)
        assert sums[0, slot, 0] == pytest.approx(exact, rel=3e-7)
    assert not sums[0, ids < 0].any()
