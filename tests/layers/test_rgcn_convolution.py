import warnings

import keras
import numpy as np
import pytest
from registered import plans_of_primitives

from keras_bandgnn import Graph
from keras_bandgnn import ops as graph_ops
from keras_bandgnn.layers import RGCNConvolution
from keras_bandgnn.models import RGCNBackbone
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphLoader,
    NeighborSampler,
    SampleLoader,
)
from keras_bandgnn.primitives import (
    Banded,
    BlockSparse,
    Dense,
    Edges,
    Grouped,
    Plan,
    Segment,
    Supernode,
)
from keras_bandgnn.primitives.plan import mean_by_type, prepare, propagate
from keras_bandgnn.testing import run_layer_test
from tests.compiled import compiled
from tests.oracles.convolutions import rgcn_convolution

TYPES, WIDTH, UNITS = 3, 6, 4
PLANS = plans_of_primitives(
    {
        "segment": [Plan()],
        "grouped": [Plan(rest=Grouped(4)), Plan(rest=Grouped(8, "aggregate"))],
        "banded": [Plan(Banded(4)), Plan(Banded(64, "band"), rest=Grouped())],
        "block_sparse": [Plan(rest=BlockSparse(8)), Plan(BlockSparse(4, 3))],
        "dense": [Plan(Dense(10))],
        "supernode": [Plan(Supernode(2), Banded(4), rest=Segment())],
    }
)
CASES = [pytest.param(plan, id=str(plan)) for plans in PLANS.values() for plan in plans]
OPTIONS = {
    "mean": {},
    "sum": {"reduce": "sum"},
    "bases": {"num_bases": 2},
    "blocks": {"num_blocks": 2},
    "sum of blocks": {"reduce": "sum", "num_blocks": 2},
    "no bias": {"use_bias": False},
}


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")))


def graphs_of(count=3, seed=0, types=TYPES):
    """Graphs with loops, parallel edges, and nodes and types without edges."""
    rng = np.random.default_rng(seed)
    graphs = []
    for number in range(count):
        n = 5 + 4 * number
        ends = rng.integers(0, n - 1, (2, 4 * n))
        ends[:, 1] = ends[:, 0]
        kind = rng.integers(0, max(types - number % 2, 1), ends.shape[1])
        kind[1] = kind[0]
        graphs.append(
            Graph(
                n,
                *ends,
                edge_type=kind,
                node={"h": rng.normal(size=(n, WIDTH))},
                edge={"w": rng.uniform(-1.0, 2.0, ends.shape[1])},
            )
        )
    return graphs


def batch_of(graphs, plan=None, **options):
    batcher = DynamicBatcher(len(graphs) + 1)
    options = {"num_edge_types": TYPES, **options}
    loader = GraphLoader(graphs, batcher, plan or Plan(), shuffle=False, **options)
    return loader[0][0]


def layer_of(types=TYPES, **options):
    layer = RGCNConvolution(UNITS, types, **options)
    layer.build((None, None, WIDTH))
    rng = np.random.default_rng(1)
    layer.set_weights([rng.normal(size=w.shape) / 2 for w in layer.weights])
    return layer


def weights_of(layer):
    return {
        weight.path.split("/", 1)[1]: np.asarray(value, np.float64)
        for weight, value in zip(layer.weights, layer.get_weights(), strict=True)
    }


def tensors_of(values):
    return keras.tree.map_structure(keras.ops.convert_to_tensor, values)


def rows_of(layer, x, graphs):
    """The rows of each graph, without padding."""
    out = numpy(compiled(layer)(x["node"]["h"], x))[0]
    assert np.isfinite(out).all()
    ends = np.cumsum([graph.num_nodes for graph in graphs])
    return np.split(out, ends)[: len(graphs)]


def check(layer, x, graphs, weighted=False):
    for rows, graph in zip(rows_of(layer, x, graphs), graphs, strict=True):
        expected = rgcn_convolution(
            graph,
            np.asarray(graph.node["h"], np.float64),
            weights_of(layer),
            layer.reduce,
            graph.edge["w"] if weighted else None,
        )
        np.testing.assert_allclose(rows, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["mean", "sum"])
@pytest.mark.parametrize("plan", CASES)
def test_equals_the_oracle_under_every_plan(plan, name):
    graphs = graphs_of()
    check(layer_of(**OPTIONS[name]), batch_of(graphs, plan), graphs)


@pytest.mark.parametrize("name", OPTIONS)
def test_equals_the_oracle_with_every_option(name):
    graphs = graphs_of()
    check(layer_of(**OPTIONS[name]), batch_of(graphs, Plan(Banded(4))), graphs)


@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("plan", CASES)
def test_edge_weights_are_factors_of_messages(plan, reduce):
    graphs = graphs_of()
    x = batch_of(graphs, plan, edge_weight="w")
    check(layer_of(reduce=reduce), x, graphs, weighted=True)


@pytest.mark.parametrize("plan", CASES)
@pytest.mark.release(elsewhere=True)
def test_one_type_has_one_mean(plan):
    graphs = graphs_of(types=1)
    check(layer_of(1), batch_of(graphs, plan, num_edge_types=1), graphs)


@pytest.mark.every_backend("False")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("plan", CASES)
def test_transposes_of_the_host_have_the_weights_of_means(plan, weighted):
    """As large supergraphs have them, for the gradient of the states."""
    graph = graphs_of(2)[1]
    weight = graph.edge["w"] if weighted else np.ones(graph.num_edges, "float32")
    order = np.argsort(graph.receivers, kind="stable")
    edges = Edges(
        *(a[order] for a in (graph.senders, graph.receivers, graph.edge_type)),
        num_nodes=graph.num_nodes,
        num_types=TYPES,
        weight=weight[order] if weighted else None,
        transpose=True,
    )
    owner = np.zeros(len(edges), np.int64)
    sizes = plan.sizes(edges, owner, 1)
    budget = {name: int(size[0]) + 3 for name, size in sizes.items()}
    arrays = keras.tree.map_structure(
        lambda a: keras.ops.convert_to_tensor(a[None]), plan.pack(edges, budget)
    )
    rng = np.random.default_rng(2)
    kernel = rng.normal(size=(TYPES, WIDTH, UNITS)).astype("float32")
    count = np.zeros((graph.num_nodes, TYPES))
    np.add.at(count, (graph.receivers, graph.edge_type), 1)
    matrix = np.zeros((graph.num_nodes, TYPES, graph.num_nodes))
    np.add.at(
        matrix,
        (graph.receivers, graph.edge_type, graph.senders),
        weight / count[graph.receivers, graph.edge_type],
    )
    direction = rng.normal(size=(graph.num_nodes, UNITS)).astype("float32")

    @compiled
    def results(arrays, states, kernel, direction):
        means = mean_by_type(arrays, graph.num_nodes, TYPES)
        prepared = prepare(means, graph.num_nodes, TYPES, "float32")

        def combined(states):
            return keras.ops.sum(propagate(prepared, states, kernel) * direction)

        value, slope = graph_ops.value_and_gradient(combined, states)
        return prepared["degree"], value, slope

    states = np.asarray(graph.node["h"], "float32")[None]
    degree, value, slope = results(arrays, *tensors_of((states, kernel, direction)))
    # The degree of biases is that of the weights.
    np.testing.assert_allclose(numpy(degree)[0], matrix.sum(-1), atol=1e-5)
    expected = np.einsum("npj,phu,nu->jh", matrix, kernel, direction)
    np.testing.assert_allclose(numpy(slope)[0], expected, atol=1e-5)
    total = (expected * graph.node["h"]).sum()
    np.testing.assert_allclose(numpy(value), total, atol=1e-4)


@pytest.mark.parametrize("plan", CASES)
def test_every_replica_has_its_own_means(plan):
    graphs, layer = graphs_of(2), layer_of()
    loader = GraphLoader(
        graphs,
        DynamicBatcher(1, packing="sequential"),
        plan,
        shuffle=False,
        num_edge_types=TYPES,
        replicas=2,
    )
    x = loader[0][0]
    out = numpy(compiled(layer)(x["node"]["h"], x))
    assert len(out) == 2
    for rows, graph in zip(out, graphs, strict=True):
        expected = rgcn_convolution(graph, graph.node["h"], weights_of(layer))
        np.testing.assert_allclose(rows[: graph.num_nodes], expected, atol=1e-5)


def test_padding_the_batch_and_the_order_of_nodes_change_nothing():
    graphs, layer = graphs_of(6), layer_of(num_bases=2)
    together = batch_of(graphs)
    for graph, same in zip(graphs, rows_of(layer, together, graphs), strict=True):
        alone = batch_of([graph])
        assert alone["node"]["mask"].shape != together["node"]["mask"].shape
        (rows,) = rows_of(layer, alone, [graph])
        np.testing.assert_allclose(rows, same, atol=1e-5)
        nodes = np.random.default_rng(3).permutation(graph.num_nodes)
        moved = graph.subgraph(nodes)
        for plan in (Plan(), Plan(Banded(4))):
            (rows,) = rows_of(layer, batch_of([moved], plan), [moved])
            np.testing.assert_allclose(rows, same[nodes], atol=1e-5)


def test_dropped_edges_do_not_count():
    graph = Graph(
        6,
        [0, 0, 5, 1],
        [1, 1, 1, 4],
        edge_type=[0, 0, 0, 1],
        node={"h": np.random.default_rng(0).normal(size=(6, WIDTH))},
    )
    near = np.abs(graph.senders - graph.receivers) < 2
    fewer = graph.replace(
        senders=graph.senders[near],
        receivers=graph.receivers[near],
        edge_type=graph.edge_type[near],
    )
    x = batch_of([graph], Plan(Banded(2, "band"), rest="drop"))
    check(layer_of(), x, [fewer])


SAMPLERS = {
    "uniform": lambda: NeighborSampler([2], 13),
    "by type": lambda: NeighborSampler([{0: 1, 1: 2, 2: 1}], 13),
    "by weight": lambda: NeighborSampler([3], 13, replace=True, edge_weight="p"),
}


@pytest.mark.release(elsewhere=True)
@pytest.mark.parametrize(
    ("name", "types"), [*((name, TYPES) for name in SAMPLERS), ("uniform", 1)]
)
def test_means_of_sampled_neighbours_are_unbiased(name, types):
    graph = graphs_of(3, types=types)[2]
    numbers = np.arange(graph.num_nodes)
    chance = np.arange(graph.num_edges) % 4
    graph = graph.replace(
        node={**graph.node, "number": numbers}, edge={"p": chance.astype("float32")}
    )
    layer, sampler = layer_of(types), SAMPLERS[name]()
    options = {"num_edge_types": types, "type_degrees": True}
    loader = SampleLoader(graph, sampler, rescale=True, **options)
    assert ("type_degree" in loader[0][0]["sampled"]) == (types > 1)
    draws = []
    for epoch in range(400):
        x = loader.build(0, epoch)[0]
        out = numpy(layer(x["node"]["h"], x))[0, : graph.num_nodes]
        draws.append(np.zeros_like(out))
        draws[-1][np.asarray(x["node"]["number"])[0, : graph.num_nodes]] = out
    counted = chance > 0 if name == "by weight" else np.ones(graph.num_edges, bool)
    graph = graph.replace(
        senders=graph.senders[counted],
        receivers=graph.receivers[counted],
        edge_type=graph.edge_type[counted],
        edge={},
    )
    whole = rgcn_convolution(graph, graph.node["h"], weights_of(layer))
    error = np.std(draws, axis=0) / np.sqrt(len(draws))
    assert error.max() > 0.01
    assert (np.abs(np.mean(draws, axis=0) - whole) < 5 * error + 1e-4).all()


def test_prepared_batches_give_the_same():
    x = batch_of(graphs_of(), Plan(Banded(4)))
    layer = layer_of()
    direct = numpy(layer(x["node"]["h"], x))
    arrays = tensors_of(x)
    again = layer(arrays["node"]["h"], layer.prepare(arrays))
    np.testing.assert_array_equal(direct, numpy(again))


def test_blocks_and_bases_have_fewer_weights():
    names = ("mean", "bases", "blocks")
    sizes = {name: layer_of(**OPTIONS[name]).count_params() for name in names}
    own = WIDTH * UNITS + UNITS
    assert sizes["mean"] == own + TYPES * WIDTH * UNITS
    assert sizes["bases"] == own + 2 * WIDTH * UNITS + 2 * TYPES
    assert sizes["blocks"] == own + TYPES * WIDTH * UNITS // 2


@pytest.mark.parametrize("name", OPTIONS)
def test_config_shapes_and_reduced_precision(name):
    x = batch_of(graphs_of())
    layer = RGCNConvolution(UNITS, TYPES, **OPTIONS[name])
    assert run_layer_test(layer, x["node"]["h"], x).shape[-1] == UNITS


@pytest.mark.parametrize("plan", CASES)
def test_half_precision_counts_all_edges(plan):
    """A sum of ones in bfloat16 stops at 256."""
    count = 700
    graph = Graph(
        3,
        np.r_[np.zeros(count, int), 2],
        np.r_[np.ones(count, int), 1],
        edge_type=np.r_[np.ones(count, int), 0],
        node={"h": np.ones((3, WIDTH))},
    )
    x = batch_of([graph], plan)
    layer = layer_of(dtype="mixed_bfloat16")
    weights = weights_of(layer)
    expected = rgcn_convolution(graph, np.ones((3, WIDTH)), weights)
    rows = rows_of(layer, x, [graph])[0]
    np.testing.assert_allclose(rows, expected, atol=0.05)


def test_gradients_of_weights_are_those_of_differences():
    graphs = graphs_of(2)
    for options in OPTIONS.values():
        layer = layer_of(**options)
        x = tensors_of(batch_of(graphs, Plan(Banded(4))))
        mask = keras.ops.cast(x["node"]["mask"][..., None], "float32")
        values = tensors_of(layer.get_weights())

        def loss(values, layer=layer, x=x, mask=mask):
            out, _ = layer.stateless_call(values, [], x["node"]["h"], x)
            return keras.ops.sum(keras.ops.square(out) * mask)

        _, slopes = graph_ops.value_and_gradient(loss, values)
        weights, rng = weights_of(layer), np.random.default_rng(0)

        def exact(weights, layer=layer):
            rows = [
                rgcn_convolution(g, g.node["h"], weights, layer.reduce) for g in graphs
            ]
            return sum((r**2).sum() for r in rows)

        for name, slope in zip(weights, slopes, strict=True):
            way = rng.normal(size=slope.shape)
            ends = [
                exact({**weights, name: weights[name] + step * way})
                for step in (1e-4, -1e-4)
            ]
            expected = (ends[0] - ends[1]) / 2e-4
            assert (numpy(slope) * way).sum() == pytest.approx(expected, rel=1e-3)


PEERS = {
    "mean": ({}, {}),
    "sum": ({"reduce": "sum"}, {"aggr": "add"}),
    "mean, bases": ({"num_bases": 2}, {"num_bases": 2}),
    "sum, bases": (
        {"reduce": "sum", "num_bases": 2},
        {"aggr": "add", "num_bases": 2},
    ),
    "mean, blocks": ({"num_blocks": 2}, {"num_blocks": 2}),
    "sum, blocks": (
        {"reduce": "sum", "num_blocks": 2},
        {"aggr": "add", "num_blocks": 2},
    ),
}


@pytest.mark.release(elsewhere=True)
@pytest.mark.parametrize("plan", CASES)
@pytest.mark.parametrize("name", PEERS)
def test_equals_torch_geometric(name, plan):
    """Outputs, and gradients of the states and of all weights, in float32."""
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        # torch_geometric deprecates parts of torch as it loads.
        warnings.simplefilter("ignore", DeprecationWarning)
        peer = pytest.importorskip("torch_geometric.nn")
    options, theirs = PEERS[name]
    graphs = graphs_of(2)
    x, layer = batch_of(graphs, plan), layer_of(**options)
    other = peer.RGCNConv(WIDTH, UNITS, TYPES, **theirs)
    copies = {
        "own/kernel": other.root,
        "own/bias": other.bias,
        "coefficients": getattr(other, "comp", None),
    }
    tensors = [copies.get(path, other.weight) for path in weights_of(layer)]
    with torch.no_grad():
        for tensor, value in zip(tensors, layer.get_weights(), strict=True):
            tensor.copy_(torch.from_numpy(np.array(value)))
    rng = np.random.default_rng(5)
    real = np.asarray(x["node"]["mask"])
    direction = rng.normal(size=(*real.shape, UNITS)).astype("float32")
    direction *= real[..., None]
    start, total, expected, rows = 0, 0.0, [], []
    for graph in graphs:
        ends = np.stack([graph.senders, graph.receivers]).astype("int64")
        kind = torch.from_numpy(graph.edge_type.astype("int64"))
        rows.append(torch.tensor(np.array(graph.node["h"]), requires_grad=True))
        out = other(rows[-1], torch.from_numpy(ends), kind)
        expected.append(out.detach().numpy())
        picked = direction[0, start : start + graph.num_nodes]
        total = total + (out * torch.from_numpy(picked)).sum()
        start += graph.num_nodes
    total.backward()

    arrays, ways = tensors_of((x, direction))

    def combined(values):
        out, _ = layer.stateless_call(values[1:], [], values[0], arrays)
        return keras.ops.sum(out * ways)

    values = [arrays["node"]["h"], *tensors_of(layer.get_weights())]
    _, slopes = graph_ops.value_and_gradient(combined, values)
    for ours, same in zip(rows_of(layer, x, graphs), expected, strict=True):
        np.testing.assert_allclose(ours, same, atol=1e-5, rtol=1e-5)
    of_states = np.concatenate([row.grad.numpy() for row in rows])
    np.testing.assert_allclose(
        numpy(slopes[0])[0, :start], of_states, atol=1e-5, rtol=1e-5
    )
    for ours, tensor in zip(slopes[1:], tensors, strict=True):
        same = tensor.grad.numpy()
        np.testing.assert_allclose(numpy(ours), same, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RGCNConvolution(0), "`units` to be at least 1"),
        (lambda: RGCNConvolution(4, 0), "`num_edge_types` to be at least 1"),
        (lambda: RGCNConvolution(4, 2, "max"), r"`reduce`.*mean.*Received: .*max"),
        (
            lambda: RGCNConvolution(4, 2, num_bases=2, num_blocks=2),
            "Expected `num_bases` or `num_blocks`.*Received: num_bases=2, "
            "num_blocks=2. Leave one of them out",
        ),
        (lambda: RGCNConvolution(4, num_bases=0), "`num_bases` to be at least 1"),
        (
            lambda: RGCNConvolution(4, num_blocks=3),
            "`units` to be a multiple of `num_blocks`.*Received: units=4, num_blocks=3",
        ),
        (
            lambda: RGCNConvolution(4, num_blocks=4).build((None, None, WIDTH)),
            r"`states.shape\[-1\]` to be a multiple.*=6, num_blocks=4. Choose",
        ),
        (
            lambda: RGCNBackbone({"h": 3}, 8, num_blocks=3),
            "`hidden_dim` to be a multiple of `num_blocks`.*hidden_dim=8, num_blocks=3",
        ),
        (
            lambda: RGCNBackbone({"h": 3}, 8, edge_inputs={"type": 2}),
            "Expected `edge_inputs` to be None.*RGCNBackbone",
        ),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
