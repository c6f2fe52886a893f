import warnings

import keras
import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.layers import GraphReadout, ReadoutHead, Set2SetReadout
from keras_bandgnn.models import GATBackbone, GraphRegressor
from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader
from keras_bandgnn.testing import run_layer_test
from tests.oracles.convolutions import set2set_readout

SIZES, WIDTH = (3, 1, 7, 4), 6


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")))


def batch(replicas=1, sizes=SIZES):
    """Graphs of SIZES, with more slots for nodes and graphs than there are."""
    batcher = DynamicBatcher(budget={"node": 24, "graph": 7})
    graphs = [Graph(n, [], []) for n in sizes]
    return GraphLoader(graphs, batcher, shuffle=False, replicas=replicas)[0][0]


def states_for(x, seed=0):
    shape = (*x["node"]["mask"].shape, WIDTH)
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def with_weights(layer, seed=1):
    layer.build((None, None, WIDTH))
    rng = np.random.default_rng(seed)
    layer.set_weights([0.5 * rng.normal(size=w.shape) for w in layer.weights])
    return layer


def rows_of(x, states):
    for group, slot in np.argwhere(x["graph"]["mask"]):
        rows = x["node"]["mask"][group] & (x["node"]["graph_id"][group] == slot)
        yield (group, slot), states[group][rows].astype("float64")


@pytest.mark.parametrize("num_steps", [1, 3])
@pytest.mark.parametrize("replicas", [1, 2])
def test_equals_the_oracle(num_steps, replicas):
    x = batch(replicas)
    states = states_for(x)
    layer = with_weights(Set2SetReadout(2 * WIDTH, num_steps))
    out = numpy(layer(states, x))
    names = ("cell/kernel", "cell/recurrent_kernel", "cell/bias")
    values = [w.astype("float64") for w in layer.get_weights()]
    weights = dict(zip(names, values, strict=True))
    for place, rows in rows_of(x, states):
        expected = set2set_readout(rows, weights, num_steps)
        np.testing.assert_allclose(out[place], expected, atol=1e-5)
    # Slots without a graph.
    assert not out[~x["graph"]["mask"]].any()


def test_config_shapes_and_reduced_precision():
    x = batch()
    for layer in (Set2SetReadout(12, 2), ReadoutHead(2, Set2SetReadout(12))):
        assert run_layer_test(layer, states_for(x), x).shape == (1, 7, layer.units)


def test_padding_order_and_other_graphs_change_nothing():
    x = batch()
    states = states_for(x)
    layer = with_weights(Set2SetReadout(2 * WIDTH))
    expected = numpy(layer(states, x))
    other = np.where(x["node"]["mask"][..., None], states, np.nan).astype("float32")
    np.testing.assert_array_equal(numpy(layer(other, x)), expected)
    # Nodes of a graph need not lie side by side.
    order = np.random.default_rng(0).permutation(states.shape[1])
    node = {k: x["node"][k][:, order] for k in ("mask", "graph_id")}
    mixed = layer(states[:, order], {**x, "node": node})
    np.testing.assert_allclose(numpy(mixed), expected, atol=1e-5)
    alone = batch(sizes=SIZES[2:3])
    rows = np.zeros_like(states)
    rows[:, :7] = states[:, 4:11]
    np.testing.assert_allclose(
        numpy(layer(rows, alone))[0, 0], expected[0, 2], atol=1e-5
    )


def test_a_task_reads_graphs_with_it():
    graphs = [
        Graph(n, [0], [n - 1], node={"kind": [1] * n}, label=float(n))
        for n in range(1, 9)
    ]
    backbone = GATBackbone({"kind": 2}, 8, num_heads=2)
    task = GraphRegressor(backbone, readout=Set2SetReadout(16))
    assert np.isfinite(task.fit(graphs, epochs=2, verbose=0).history["loss"]).all()


def peers(x, states):
    """`torch_geometric.nn.aggr`, with the real nodes and their graphs."""
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        # torch_geometric deprecates parts of torch as it loads.
        warnings.simplefilter("ignore", DeprecationWarning)
        aggregations = pytest.importorskip("torch_geometric.nn.aggr")
    real = x["node"]["mask"][0]
    nodes = torch.from_numpy(states[0][real])
    graph = torch.from_numpy(x["node"]["graph_id"][0][real].astype("int64"))
    return torch, aggregations, nodes, graph


def test_equals_that_of_torch_geometric():
    x = batch()
    states = states_for(x)
    torch, aggregations, nodes, graph = peers(x, states)
    layer = with_weights(Set2SetReadout(2 * WIDTH, 4))
    peer = aggregations.Set2Set(WIDTH, 4)
    kernel, recurrent, bias = layer.get_weights()
    with torch.no_grad():
        # Both have the gates in the order i, f, g, o; torch has two biases.
        peer.lstm.weight_ih_l0.copy_(torch.from_numpy(kernel.T.copy()))
        peer.lstm.weight_hh_l0.copy_(torch.from_numpy(recurrent.T.copy()))
        peer.lstm.bias_ih_l0.copy_(torch.from_numpy(bias))
        peer.lstm.bias_hh_l0.zero_()
        expected = peer(nodes, graph).numpy()
    out = numpy(layer(states, x))[0, : len(SIZES)]
    np.testing.assert_allclose(out, expected, atol=1e-5)


def test_attention_equals_global_attention_of_torch_geometric():
    x = batch()
    states = states_for(x)
    torch, aggregations, nodes, graph = peers(x, states)
    layer = with_weights(GraphReadout(5, "attention", activation="relu"))
    network = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 3), torch.nn.ReLU(), torch.nn.Linear(3, 5)
    )
    peer = aggregations.AttentionalAggregation(
        torch.nn.Linear(WIDTH, 1, bias=False), network
    )
    values = [torch.from_numpy(w.T.copy()) for w in layer.get_weights()]
    targets = [*network.parameters(), peer.gate_nn.weight]
    with torch.no_grad():
        for target, value in zip(targets, values, strict=True):
            target.copy_(value)
        expected = peer(nodes, graph).numpy()
    out = numpy(layer(states, x))[0, : len(SIZES)]
    np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Set2SetReadout(0), "`units` to be at least 1"),
        (lambda: Set2SetReadout(5), "`units` to be an even number.*5"),
        (lambda: Set2SetReadout(4, 0), "`num_steps` to be at least 1"),
        (lambda: Set2SetReadout(4).build((None, None, 5)), "2 channels"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
