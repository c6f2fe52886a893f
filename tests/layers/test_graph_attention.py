import keras
import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.layers import GraphAttention
from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader
from keras_bandgnn.testing import run_layer_test
from tests.oracles.convolutions import graph_attention


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")))


def graphs_of(count=3, seed=0, scale=1.0):
    """With loops, repeats and nodes without edges."""
    rng = np.random.default_rng(seed)
    graphs = []
    for number in range(count):
        n = 5 + 4 * number
        ends = rng.integers(0, n - 1, (2, 3 * n))
        graphs.append(Graph(n, *ends, node={"h": scale * rng.normal(size=(n, 6))}))
    return [*graphs, Graph(2, [], [], node={"h": scale * np.ones((2, 6))})]


def batch_of(graphs, replicas=1):
    batcher = DynamicBatcher(len(graphs) + 1)
    return GraphLoader(graphs, batcher, shuffle=False, replicas=replicas)[0][0]


def layer_of(units=8, heads=2, **options):
    layer = GraphAttention(units, heads, **options)
    layer.build((None, None, 6))
    layer.bias.assign(np.random.default_rng(1).normal(size=units))
    return layer


def weights(layer):
    return {
        w.path.split("/", 1)[1] if "transform" in w.path else w.name: value
        for w, value in zip(layer.weights, layer.get_weights(), strict=True)
    }


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("replicas", [1, 2])
def test_equals_the_oracle(heads, replicas):
    graphs = graphs_of()
    x = batch_of(graphs, replicas)
    layer = layer_of(heads=heads)
    out = numpy(layer(x["node"]["h"], x))
    assert np.isfinite(out).all()
    for group in range(replicas):
        ids, counts = x["graph"]["id"][group], x["graph"]["n_node"][group]
        start = 0
        for graph, count in zip(ids, counts, strict=True):
            if not count:
                continue
            expected = graph_attention(
                graphs[graph], graphs[graph].node["h"], weights(layer)
            )
            rows = out[group, start : start + count]
            np.testing.assert_allclose(rows, expected, atol=1e-5)
            start += count


def test_large_scores_neither_overflow_nor_vanish():
    graphs = graphs_of(scale=1000.0)
    x = batch_of(graphs)
    layer = layer_of()
    out, start = numpy(layer(x["node"]["h"], x))[0], 0
    for graph in graphs:
        expected = graph_attention(graph, graph.node["h"], weights(layer))
        rows = out[start : start + graph.num_nodes]
        np.testing.assert_allclose(rows, expected, rtol=1e-3, atol=1.0)
        start += graph.num_nodes


def test_without_a_kernel_it_is_the_one_of_an_identity():
    x = batch_of(graphs_of())
    layer, bare = layer_of(6), GraphAttention(6, 2, use_kernel=False)
    bare.build((None, None, 6))
    values = layer.get_weights()
    place = [w.name for w in layer.weights].index("kernel")
    bare.set_weights(values[:place] + values[place + 1 :])
    values[place] = np.eye(6)
    layer.set_weights(values)
    expected = numpy(layer(x["node"]["h"], x))
    run_layer_test(GraphAttention(6, use_kernel=False), x["node"]["h"], x)
    out = numpy(bare(x["node"]["h"], x))
    np.testing.assert_allclose(out, expected, atol=1e-5)


def test_config_shapes_and_reduced_precision():
    x = batch_of(graphs_of())
    out = run_layer_test(GraphAttention(4, 2), x["node"]["h"], x)
    assert out.shape[-1] == 4
    layer = GraphAttention(4, use_bias=False)
    layer.build((None, None, 6))
    assert len(layer.weights) == 3


def test_dropout_acts_on_the_weights_in_training_only():
    graph = Graph(2, [], [], node={"h": np.ones((2, 6))})
    x = batch_of([graph] * 40)
    layer = layer_of(dropout=0.5)
    layer.bias.assign(np.zeros(8))
    still = numpy(layer(x["node"]["h"], x))
    np.testing.assert_array_equal(still, numpy(layer(x["node"]["h"], x)))
    trained = numpy(layer(x["node"]["h"], x, training=True))[:, :80]
    kept = np.abs(trained).reshape(-1, 2, 4).max(axis=-1) > 0
    assert 0.2 < kept.mean() < 0.8
    # A head keeps or loses the whole message, twice as large.
    doubled = trained.reshape(-1, 2, 4)[kept]
    expected = 2 * still[:, :80].reshape(-1, 2, 4)[kept]
    np.testing.assert_allclose(doubled, expected, atol=1e-5)


@pytest.mark.parametrize("heads", [1, 2])
def test_equals_torch_geometric(heads):
    nn = pytest.importorskip("torch_geometric.nn")
    import torch

    graph = graphs_of(2)[1]
    layer = layer_of(heads=heads)
    own = weights(layer)
    other = nn.GATConv(6, 8 // heads, heads)
    with torch.no_grad():
        for target, value in (
            (other.lin.weight, own["transform/kernel"].T),
            (other.att_src, own["sender_kernel"][None]),
            (other.att_dst, own["receiver_kernel"][None]),
            (other.bias, own["bias"]),
        ):
            target.copy_(torch.from_numpy(np.ascontiguousarray(value)))
        ends = np.stack([graph.senders, graph.receivers]).astype("int64")
        states = torch.from_numpy(graph.node["h"].copy())
        expected = other(states, torch.from_numpy(ends)).numpy()
    x = batch_of([graph])
    out = numpy(layer(x["node"]["h"], x))[0, : graph.num_nodes]
    np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: GraphAttention(4, use_kernel=False).build((None, None, 6)),
            "4 channels",
        ),
        (lambda: GraphAttention(0), "`units` to be at least 1"),
        (lambda: GraphAttention(8, 3), "multiple of `num_heads`.*units=8, num_heads=3"),
        (lambda: GraphAttention(8, dropout=1.0), r"in \[0, 1\)"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
