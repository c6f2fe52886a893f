import keras
import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.layers import GraphConvolution
from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader
from keras_bandgnn.primitives import (
    Banded,
    BlockSparse,
    Dense,
    Grouped,
    Plan,
    Segment,
    Supernode,
)
from keras_bandgnn.testing import run_layer_test
from tests.oracles.convolutions import graph_convolution

PLANS = {
    "segment": Plan(),
    "grouped": Plan(rest=Grouped()),
    "aggregate": Plan(rest=Grouped(8, "aggregate")),
    "banded": Plan(Banded(4)),
    "banded whole": Plan(Banded(64), rest=Grouped()),
    "block_sparse": Plan(BlockSparse(8)),
    "dense": Plan(Dense(16)),
    "supernode": Plan(Supernode(2), rest=Segment()),
}


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")))


def graphs_of(count=3, loops=True, types=1, seed=0):
    rng = np.random.default_rng(seed)
    graphs = []
    for number in range(count):
        n = 5 + 4 * number
        ends = rng.integers(0, n, (2, 3 * n))
        if not loops:
            ends = ends[:, ends[0] != ends[1]]
        graphs.append(
            Graph(
                n,
                *ends,
                edge_type=rng.integers(0, types, ends.shape[1]),
                node={"h": rng.normal(size=(n, 6))},
                edge={"w": rng.uniform(0.5, 2.0, ends.shape[1])},
            )
        )
    return graphs


def batch_of(graphs, plan=None, **options):
    batcher = DynamicBatcher(len(graphs) + 1)
    loader = GraphLoader(graphs, batcher, plan or Plan(), shuffle=False, **options)
    return loader[0][0]


def layer_of(units=5, types=1, **options):
    layer = GraphConvolution(units, types, **options)
    layer.build((None, None, 6))
    layer.bias.assign(np.random.default_rng(1).normal(size=units))
    return layer


def weights(layer):
    kernel, bias = layer.get_weights()
    return {"kernel": kernel.astype("float64"), "bias": bias.astype("float64")}


def check(layer, x, graphs, **options):
    out, start = numpy(layer(x["node"]["h"], x))[0], 0
    for graph in graphs:
        expected = graph_convolution(
            graph,
            graph.node["h"],
            weights(layer),
            graph.edge["w"] if "edge_weight" in options else None,
        )
        rows = out[start : start + graph.num_nodes]
        np.testing.assert_allclose(rows, expected, atol=1e-5)
        start += graph.num_nodes
    assert np.isfinite(out).all()


@pytest.mark.every_backend("segment-3", "grouped-3", "banded-3")
@pytest.mark.parametrize("types", [1, 3])
@pytest.mark.parametrize("name", PLANS)
def test_equals_the_oracle_under_every_plan(name, types):
    graphs = graphs_of(types=types)
    check(layer_of(types=types), batch_of(graphs, PLANS[name]), graphs)


@pytest.mark.parametrize("name", ["segment", "grouped", "banded"])
def test_edge_weights_make_a_weighted_matrix(name):
    graphs = graphs_of(loops=False) + [
        # One loop, which has its weight instead of 1.
        Graph(2, [0, 1], [1, 1], node={"h": np.ones((2, 6))}, edge={"w": [2.0, 3.0]})
    ]
    x = batch_of(graphs, PLANS[name], edge_weight="w")
    check(layer_of(), x, graphs, edge_weight="w")


@pytest.mark.parametrize("weight", [-1.0, -3.0])
def test_a_degree_of_at_most_0_has_no_root(weight):
    graph = Graph(2, [1], [0], node={"h": np.ones((2, 6))}, edge={"w": [weight]})
    other = Graph(1, [0], [0], node={"h": np.ones((1, 6))}, edge={"w": [1.0]})
    x = batch_of([graph, other], edge_weight="w")
    out = numpy(layer_of()(x["node"]["h"], x))[0]
    assert np.isnan(out[0]).all()
    assert np.isfinite(out[1:]).all()


def test_prepared_batches_give_the_same():
    x = batch_of(graphs_of(), Plan(Banded(4)))
    layer = layer_of()
    direct = numpy(layer(x["node"]["h"], x))
    arrays = keras.tree.map_structure(keras.ops.convert_to_tensor, x)
    again = layer(arrays["node"]["h"], layer.prepare(arrays))
    np.testing.assert_array_equal(direct, numpy(again))


def test_without_a_kernel_it_is_the_one_of_an_identity():
    x = batch_of(graphs_of())
    layer, bare = layer_of(6), GraphConvolution(6, use_kernel=False)
    bare.build((None, None, 6))
    values = layer.get_weights()
    place = [w.name for w in layer.weights].index("kernel")
    bare.set_weights(values[:place] + values[place + 1 :])
    values[place] = np.eye(6)
    layer.set_weights(values)
    expected = numpy(layer(x["node"]["h"], x))
    run_layer_test(GraphConvolution(6, use_kernel=False), x["node"]["h"], x)
    out = numpy(bare(x["node"]["h"], x))
    np.testing.assert_allclose(out, expected, atol=1e-5)


def test_config_shapes_and_reduced_precision():
    x = batch_of(graphs_of(types=3))
    out = run_layer_test(GraphConvolution(4, 3), x["node"]["h"], x)
    assert out.shape[-1] == 4
    layer = GraphConvolution(4, use_bias=False)
    layer.build((None, None, 6))
    assert len(layer.weights) == 1


@pytest.mark.parametrize("loops", [True, False])
def test_equals_torch_geometric(loops):
    nn = pytest.importorskip("torch_geometric.nn")
    import torch

    graphs = graphs_of(1, loops)
    layer = layer_of()
    other = nn.GCNConv(6, 5)
    kernel, bias = layer.get_weights()
    with torch.no_grad():
        other.lin.weight.copy_(torch.from_numpy(kernel.T.copy()))
        other.bias.copy_(torch.from_numpy(bias.copy()))
        ends = np.stack([graphs[0].senders, graphs[0].receivers]).astype("int64")
        states = torch.from_numpy(graphs[0].node["h"].copy())
        expected = other(states, torch.from_numpy(ends)).numpy()
    x = batch_of(graphs)
    out = numpy(layer(x["node"]["h"], x))[0, : graphs[0].num_nodes]
    np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: GraphConvolution(4, use_kernel=False).build((None, None, 6)),
            "4 channels",
        ),
        (lambda: GraphConvolution(0), "`units` to be at least 1"),
        (lambda: GraphConvolution(4, 0), "`num_edge_types` to be at least 1"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.every_backend
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("types", [1, 3])
def test_without_added_self_loops_degrees_are_those_of_the_edges(kernel, plan, types):
    graphs = graphs_of(types=types)
    options = {"use_kernel": kernel, "self_loops": False}
    layer = layer_of(5 if kernel else 6, types, **options)
    x = batch_of(graphs, PLANS[plan], num_edge_types=types)
    out, start = numpy(layer(x["node"]["h"], x))[0], 0
    for graph in graphs:
        matrix = np.zeros((graph.num_nodes,) * 2)
        np.add.at(matrix, (graph.receivers, graph.senders), 1.0)
        degree = matrix.sum(axis=1)
        root = np.where(degree > 0, 1 / np.sqrt(np.maximum(degree, 1)), 0)
        states = graph.node["h"]
        if kernel:
            states = states @ numpy(layer.kernel)
        expected = root[:, None] * matrix @ (root[:, None] * states)
        rows = out[start : start + graph.num_nodes]
        np.testing.assert_allclose(rows, expected + numpy(layer.bias), atol=1e-5)
        start += graph.num_nodes
    again = GraphConvolution.from_config(layer.get_config())
    assert again.self_loops is False
