"""`type_reduce` of `SAGEConvolution` and `GraphAttention`: weights per type of edge."""

import warnings

import keras
import numpy as np
import pytest
from registered import plans_of_primitives

import keras_bandgnn as kb
from keras_bandgnn import ops as graph_ops
from keras_bandgnn.layers import GraphAttention, SAGEConvolution
from keras_bandgnn.layers.typed_edges import typed_senders
from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader, NeighborSampler
from keras_bandgnn.primitives import Banded, Grouped, Plan
from keras_bandgnn.testing import run_layer_test
from tests.oracles.convolutions import typed_attention, typed_sage

WIDTH, UNITS = 6, 8
SETS = ("author", "paper", "venue")
# In the order of edge types; two are between the same sets.
EDGE_SETS = (
    ("author", "cites", "author"),
    ("author", "reviewed", "paper"),
    ("author", "wrote", "paper"),
    ("paper", "in", "venue"),
    ("paper", "rev_wrote", "author"),
)
TYPES = len(EDGE_SETS)
# The edge sets into each node set.
INTO = [[k for k, (*_, target) in enumerate(EDGE_SETS) if target == s] for s in SETS]
PLANS = plans_of_primitives(
    {"grouped": [Plan(rest=Grouped(8, "aggregate"))], "banded": [Plan(Banded(4))]}
)
CASES = [pytest.param(plan, id=str(plan)) for plans in PLANS.values() for plan in plans]
BOTH = pytest.mark.parametrize("type_reduce", ["sum", "mean"])


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")))


def tensors_of(values):
    return keras.tree.map_structure(keras.ops.convert_to_tensor, values)


def graph_of(number=0, size=4, degree=2, full=False, **options):
    """Node sets of different sizes, parallel edges, and nodes without edges.

    With `full` each node has edges of all types into its set.
    """
    rng = np.random.default_rng(number)
    sizes = {"author": size + 3, "paper": 2 * size, "venue": size - 1}
    edges = {}
    for source, relation, target in EDGE_SETS:
        count = degree * sizes[target]
        # The last node of each set receives nothing.
        senders = rng.integers(0, sizes[source], count)
        receivers = rng.integers(0, max(sizes[target] - 1, 1), count)
        senders[1], receivers[1] = senders[0], receivers[0]
        if full:
            senders = np.append(senders, rng.integers(0, sizes[source], sizes[target]))
            receivers = np.append(receivers, np.arange(sizes[target]))
        count = len(senders)
        edges[source, relation, target] = {
            "edge_index": np.stack([senders, receivers]),
            "w": rng.uniform(0.5, 2.0, count),
            "e": rng.normal(size=(count, WIDTH)),
        }
    return kb.data.from_sets(
        {name: {"x": rng.normal(size=(n, 3))} for name, n in sizes.items()},
        edges,
        node={"h": {name: rng.normal(size=(n, WIDTH)) for name, n in sizes.items()}},
        **options,
    )


def graphs_of(count=3, **options):
    return [graph_of(number, 4 + number, **options) for number in range(count)]


def batch_of(graphs, plan=None, **options):
    options = {"num_edge_types": TYPES, "shuffle": False, **options}
    batcher = DynamicBatcher(len(graphs) + 1)
    return GraphLoader(graphs, batcher, plan or Plan(), **options)[0][0]


def with_weights(layer, *edge_states):
    layer.build((None, None, WIDTH), None, *edge_states)
    rng = np.random.default_rng(1)
    layer.set_weights([rng.normal(size=w.shape) / 2 for w in layer.weights])
    return layer


def sage(type_reduce="sum", node_sets=SETS, types=TYPES, **options):
    options = {"num_edge_types": types, "node_sets": node_sets, **options}
    return with_weights(SAGEConvolution(UNITS, type_reduce=type_reduce, **options))


def gat(type_reduce="sum", heads=2, types=TYPES, **options):
    options = {"num_edge_types": types, "type_reduce": type_reduce, **options}
    return with_weights(GraphAttention(UNITS, heads, **options))


def weights_of(layer):
    return {
        weight.path.split(f"{layer.name}/", 1)[1]: np.asarray(value, np.float64)
        for weight, value in zip(layer.weights, layer.get_weights(), strict=True)
    }


def rows_of(layer, x, graphs, *edge_states):
    """The rows of each graph, without padding."""
    out = numpy(layer(x["node"]["h"], x, *edge_states))[0]
    assert np.isfinite(out).all()
    ends = np.cumsum([graph.num_nodes for graph in graphs])
    return np.split(out, ends)[: len(graphs)]


def oracle(layer, graph, **options):
    states = np.asarray(graph.node["h"], np.float64)
    weights = weights_of(layer)
    if isinstance(layer, GraphAttention):
        slope = layer.negative_slope
        return typed_attention(
            graph, states, weights, layer.type_reduce, slope, **options
        )
    reduce = (layer.reduce, layer.type_reduce)
    return typed_sage(graph, states, weights, *reduce, **options)


def check(layer, x, graphs):
    for rows, graph in zip(rows_of(layer, x, graphs), graphs, strict=True):
        np.testing.assert_allclose(rows, oracle(layer, graph), atol=1e-5)


def by_receiver(x):
    """The graph of a batch, with its edges in the order of the batch."""
    real = np.asarray(x["edge"]["mask"])[0]
    edge = {name: np.asarray(values)[0, real] for name, values in x["edge"].items()}
    graph = graph_of()
    return real, graph.replace(
        senders=edge["sender"],
        receivers=edge["receiver"],
        edge_type=edge["type"],
        edge={},
    )


@pytest.mark.parametrize("node_sets", [None, SETS], ids=["shared", "sets"])
@BOTH
@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("plan", CASES)
def test_sums_and_means_equal_the_oracle_under_every_plan(
    plan, reduce, type_reduce, node_sets
):
    graphs = graphs_of()
    layer = sage(type_reduce, node_sets, reduce=reduce)
    check(layer, batch_of(graphs, plan), graphs)


@BOTH
@pytest.mark.parametrize("reduce", ["max", "pool"])
def test_maxima_equal_the_oracle(reduce, type_reduce):
    graphs = graphs_of()
    check(sage(type_reduce, reduce=reduce), batch_of(graphs), graphs)


@BOTH
@pytest.mark.parametrize("reduce", ["mean", "sum", "max", "pool"])
def test_messages_with_edge_states_equal_the_oracle(reduce, type_reduce):
    x = batch_of([graph_of()])
    layer = sage(type_reduce, reduce=reduce)
    rng = np.random.default_rng(2)
    states = rng.normal(size=(*x["edge"]["mask"].shape, WIDTH)).astype("float32")
    real, graph = by_receiver(x)
    (rows,) = rows_of(layer, x, [graph], states)
    expected = oracle(layer, graph, edge_states=states[0, real])
    np.testing.assert_allclose(rows, expected, atol=1e-5)


@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("plan", CASES)
def test_edge_weights_are_factors_of_messages(plan, reduce):
    graph = graph_of()
    x = batch_of([graph], plan, edge_weight="w")
    layer = sage("mean", reduce=reduce)
    (rows,) = rows_of(layer, x, [graph])
    expected = oracle(layer, graph, edge_weight=graph.edge["w"])
    np.testing.assert_allclose(rows, expected, atol=1e-5)


@BOTH
@pytest.mark.parametrize("heads", [1, 4])
def test_attention_equals_the_oracle(heads, type_reduce):
    graphs = graphs_of()
    check(gat(type_reduce, heads), batch_of(graphs), graphs)


@pytest.mark.parametrize("make", [gat, lambda kind: sage(kind, reduce="pool")])
@pytest.mark.release(elsewhere=True)
def test_few_edges_of_many_types_are_mapped_by_edge(make):
    """Fewer than pairs of a node and a type."""
    graph = graph_of(0, 150, 1)
    x, layer = batch_of([graph]), make("mean")
    edge = tensors_of(x["edge"])
    nodes = x["node"]["mask"].shape[1]
    assert "type" in typed_senders(edge, nodes, TYPES, WIDTH)
    small = batch_of([graph_of()])
    edge, nodes = tensors_of(small["edge"]), small["node"]["mask"].shape[1]
    assert "type" not in typed_senders(edge, nodes, TYPES, WIDTH)
    check(layer, x, [graph])


@pytest.mark.parametrize("width", [8, 100])
def test_blocks_are_as_long_as_matrices_are_wide(width):
    x = batch_of([graph_of(0, 150, 1)])
    edge = tensors_of(x["edge"])
    typed = typed_senders(edge, 10**6, TYPES, width)
    rows, blocks = typed["sender"].shape[1], typed["type"].shape[1]
    assert rows == blocks * (64 if width == 8 else 128)
    row, real = numpy(typed["row"])[0].astype(int), np.asarray(x["edge"]["mask"])[0]
    assert len({*row[real]}) == real.sum()
    sender, kind = (numpy(typed[name])[0].astype(int) for name in ("sender", "type"))
    np.testing.assert_array_equal(sender[row], x["edge"]["sender"][0])
    np.testing.assert_array_equal(
        kind[row // (rows // blocks)][real], x["edge"]["type"][0, real]
    )


def one_type(graph):
    return graph.replace(edge_type=np.zeros(graph.num_edges, int), info={})


@BOTH
@pytest.mark.parametrize("reduce", ["mean", "sum", "max", "pool"])
def test_one_type_gives_the_layer_without_types(reduce, type_reduce):
    graphs = [one_type(graph) for graph in graphs_of()]
    x = batch_of(graphs, num_edge_types=1)
    layer = sage(type_reduce, None, 1, reduce=reduce)
    plain = with_weights(SAGEConvolution(UNITS, reduce))
    weights = weights_of(layer)
    plain.own_dense.kernel.assign(weights["own/kernel"])
    plain.sum_dense.kernel.assign(weights["kernel"][0])
    plain.sum_dense.bias.assign(weights["own/bias"])
    if reduce == "pool":
        plain.pool_dense.kernel.assign(weights["pool_kernel"][0])
        plain.pool_dense.bias.assign(weights["pool_bias"][0])
    rows = zip(rows_of(layer, x, graphs), rows_of(plain, x, graphs), strict=True)
    for ours, same in rows:
        np.testing.assert_allclose(ours, same, atol=1e-5)


@BOTH
def test_attention_of_one_type_with_loops_is_that_without_types(type_reduce):
    """There a node attends to itself once, here along its edges."""
    graph = one_type(graph_of())
    other = graph.senders != graph.receivers
    nodes = np.arange(graph.num_nodes)
    graph = graph.replace(
        senders=np.append(graph.senders[other], nodes),
        receivers=np.append(graph.receivers[other], nodes),
        edge_type=np.zeros(other.sum() + graph.num_nodes, int),
        edge={},
    )
    x = batch_of([graph], num_edge_types=1)
    layer, plain = gat(type_reduce, types=1), with_weights(GraphAttention(UNITS, 2))
    weights = weights_of(layer)
    plain.sender_kernel.assign(weights["sender_kernel"][0])
    plain.bias.assign(weights["bias"])
    plain.transform.kernel.assign(weights["kernel"][0])
    # b_r = W a_r
    kernel = np.asarray(weights["kernel"][0]).reshape(WIDTH, 2, -1)
    receiver = numpy(plain.receiver_kernel)
    columns = np.einsum("hkd,kd->hk", kernel, receiver)
    layer.receiver_kernel.assign(columns[None])
    (ours,), (same,) = rows_of(layer, x, [graph]), rows_of(plain, x, [graph])
    np.testing.assert_allclose(ours, same, atol=1e-5)


LAYERS = {
    "sage, mean": lambda **o: sage("mean", reduce="mean", **o),
    "sage, pool": lambda **o: sage("mean", reduce="pool", **o),
    "sage, shared": lambda **o: sage("sum", None, normalize=True, **o),
    "sage, no bias": lambda **o: sage("sum", use_bias=False, **o),
    "gat, sum": lambda **o: gat("sum", **o),
    "gat, mean": lambda **o: gat("mean", use_bias=False, **o),
}
ALL = pytest.mark.parametrize("name", LAYERS)


@ALL
def test_padding_the_batch_and_the_order_of_nodes_change_nothing(name):
    graphs, layer = graphs_of(), LAYERS[name]()
    together = batch_of(graphs)
    for graph, same in zip(graphs, rows_of(layer, together, graphs), strict=True):
        alone = batch_of([graph])
        assert alone["node"]["mask"].shape != together["node"]["mask"].shape
        (rows,) = rows_of(layer, alone, [graph])
        np.testing.assert_allclose(rows, same, atol=1e-5)
        nodes = np.random.default_rng(3).permutation(graph.num_nodes)
        moved = graph.subgraph(nodes)
        (rows,) = rows_of(layer, batch_of([moved], Plan(Banded(4))), [moved])
        np.testing.assert_allclose(rows, same[nodes], atol=1e-5)


@ALL
def test_every_replica_has_its_own_types(name):
    graphs, layer = graphs_of(2), LAYERS[name]()
    loader = GraphLoader(
        graphs,
        DynamicBatcher(1, packing="sequential"),
        shuffle=False,
        num_edge_types=TYPES,
        replicas=2,
    )
    x = loader[0][0]
    out = numpy(layer(x["node"]["h"], x))
    for rows, graph in zip(out, graphs, strict=True):
        (expected,) = rows_of(layer, batch_of([graph]), [graph])
        np.testing.assert_allclose(rows[: graph.num_nodes], expected, atol=1e-5)


@ALL
def test_prepared_batches_give_the_same(name):
    x, layer = tensors_of(batch_of(graphs_of())), LAYERS[name]()
    again = layer(x["node"]["h"], layer.prepare(x))
    np.testing.assert_array_equal(numpy(layer(x["node"]["h"], x)), numpy(again))


@pytest.mark.parametrize("name", ["sage, pool", "gat, sum", "gat, mean"])
def test_edges_of_factor_zero_are_as_if_they_were_not_there(name):
    graph = graph_of()
    x, layer = batch_of([graph]), LAYERS[name]()
    factor = np.ones(x["edge"]["mask"].shape, "float32")
    real, edges = by_receiver(x)
    # All edges of some types, and some of others.
    dropped = (np.arange(real.sum()) % 3 == 0) | (edges.edge_type == 2)
    factor[0, : real.sum()][dropped] = 0
    (rows,) = rows_of(layer, {**x, "explained": {"edge": factor}}, [graph])
    fewer = edges.replace(
        senders=edges.senders[~dropped],
        receivers=edges.receivers[~dropped],
        edge_type=edges.edge_type[~dropped],
    )
    (expected,) = rows_of(layer, batch_of([fewer]), [fewer])
    np.testing.assert_allclose(rows, expected, atol=1e-5)


def test_explanations_weigh_shares_within_types():
    x, layer = batch_of([graph_of()]), gat("mean")
    real, graph = by_receiver(x)
    factor = np.random.default_rng(0).choice([0.25, 0.5, 1.0], real.shape)
    x = {**x, "explained": {"edge": factor[None].astype("float32")}}
    (rows,) = rows_of(layer, x, [graph])
    expected = oracle(layer, graph, factor=factor[real])
    np.testing.assert_allclose(rows, expected, atol=1e-5)


def test_dropped_edges_do_not_count():
    graph = graph_of()
    near = np.abs(graph.senders - graph.receivers) < 4
    assert 0 < near.sum() < near.size
    fewer = graph.replace(
        senders=graph.senders[near],
        receivers=graph.receivers[near],
        edge_type=graph.edge_type[near],
        edge={},
    )
    for reduce in ("mean", "sum"):
        layer = sage("mean", reduce=reduce)
        x = batch_of([graph], Plan(Banded(4, "band"), rest="drop"))
        check(layer, x, [fewer])


@ALL
def test_config_shapes_and_reduced_precision(name):
    x = batch_of(graphs_of())
    layer = LAYERS[name]()
    fresh = type(layer).from_config(layer.get_config())
    assert run_layer_test(fresh, x["node"]["h"], x).shape[-1] == UNITS


@pytest.mark.parametrize("types", [1, TYPES])
def test_layers_read_types_of_edges_only_with_type_reduce(types):
    plain = SAGEConvolution(UNITS, num_edge_types=types)
    assert "type" not in plain.reads["edge"] and "set" not in plain.reads
    layer = sage(node_sets=None)
    assert "type" in layer.reads["edge"] and "set" not in layer.reads
    assert "set" in sage().reads
    assert SAGEConvolution.reads == plain.reads


# === torch_geometric ===


def peer_of(layer, aggregate):
    """A `HeteroConv` that computes the same, and pairs of their weights and ours."""
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        # torch_geometric deprecates parts of torch as it loads.
        warnings.simplefilter("ignore", DeprecationWarning)
        peer = pytest.importorskip("torch_geometric.nn")
    ours, convolutions = weights_of(layer), {}
    for kind, key in enumerate(EDGE_SETS):
        target = SETS.index(key[-1])
        if isinstance(layer, GraphAttention):
            heads = layer.num_heads
            conv = peer.GATConv(
                (WIDTH, WIDTH),
                UNITS // heads,
                heads,
                add_self_loops=False,
                bias=False,
            )
            pairs = [
                (conv.lin_src.weight, ours["kernel"][kind].T),
                (conv.att_src, ours["sender_kernel"][kind][None]),
            ]
        else:
            pool = layer.reduce == "pool"
            conv = peer.SAGEConv(
                (WIDTH, WIDTH),
                UNITS,
                aggr="max" if pool else layer.reduce,
                project=pool,
            )
            # Theirs has a W_own and b per relation.
            share = 1 if aggregate == "mean" else 1 / len(INTO[target])
            pairs = [
                (conv.lin_l.weight, ours["kernel"][kind].T),
                (conv.lin_r.weight, share * ours[f"own/set_{target}/kernel"].T),
                (conv.lin_l.bias, share * ours[f"own/set_{target}/bias"]),
            ]
            if pool:
                pairs += [
                    (conv.lin.weight, ours["pool_kernel"][kind].T),
                    (conv.lin.bias, ours["pool_bias"][kind]),
                ]
        with torch.no_grad():
            for tensor, value in pairs:
                assert tensor.shape == value.shape
                tensor.copy_(torch.from_numpy(value))
        convolutions[key] = conv.double()
    if isinstance(layer, GraphAttention):
        columns = [
            np.einsum(
                "kdh,kd->hk",
                conv.lin_dst.weight.detach().numpy().reshape(heads, -1, WIDTH),
                conv.att_dst.detach().numpy()[0],
            )
            for conv in convolutions.values()
        ]
        layer.receiver_kernel.assign(np.stack(columns))
    return torch, peer.HeteroConv(convolutions, aggr=aggregate), convolutions


def close(ours, theirs):
    difference = np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1.0)
    assert difference < 1e-5, difference


def differences(layer, x, graph, aggregate):
    """Compare outputs, and gradients of the states and of all weights.

    Theirs are in float64, so that all differences are ours.
    """
    torch, other, convolutions = peer_of(layer, aggregate)
    kind = graph.node["set"]
    states = {
        name: torch.tensor(np.array(graph.node["h"][kind == number], np.float64))
        for number, name in enumerate(SETS)
    }
    for rows in states.values():
        rows.requires_grad_()
    parts = kb.data.to_sets(graph)["edges"]
    ends = {
        key: torch.from_numpy(parts[key]["edge_index"].astype("int64"))
        for key in EDGE_SETS
    }
    expected = other(states, ends)
    rng = np.random.default_rng(5)
    direction = rng.normal(size=(*x["node"]["mask"].shape, UNITS)).astype("float32")
    direction[0, graph.num_nodes :] = 0
    total = 0.0
    for number, name in enumerate(SETS):
        picked = direction[0, : graph.num_nodes][kind == number]
        total = total + (expected[name] * torch.from_numpy(picked)).sum()
    total.backward()

    arrays, ways = tensors_of((x, direction))

    def combined(values):
        out, _ = layer.stateless_call(values[1:], [], values[0], arrays)
        return keras.ops.sum(out * ways)

    values = [arrays["node"]["h"], *tensors_of(layer.get_weights())]
    _, slopes = graph_ops.value_and_gradient(combined, values)
    (ours,) = rows_of(layer, x, [graph])
    of_states = numpy(slopes[0])[0, : graph.num_nodes]
    for number, name in enumerate(SETS):
        close(ours[kind == number], expected[name].detach().numpy())
        close(of_states[kind == number], states[name].grad.numpy())
    slopes = dict(zip(weights_of(layer), map(numpy, slopes[1:]), strict=True))
    return convolutions.values(), slopes


def graph_and_layer(make, aggregate, plan=None, **options):
    """Theirs counts all relations into a set: equal if each node has all of them."""
    graph = graph_of(2, 6, full=aggregate == "mean")
    return make(aggregate, **options), batch_of([graph], plan), graph


@pytest.mark.release(elsewhere=True)
@BOTH
@pytest.mark.parametrize(
    ("reduce", "plan"),
    [("mean", p) for p in CASES[:4]] + [("sum", CASES[0]), ("max", None)],
)
def test_sage_equals_torch_geometric(reduce, plan, type_reduce):
    plan = plan.values[0] if hasattr(plan, "values") else plan
    layer, x, graph = graph_and_layer(sage, type_reduce, plan, reduce=reduce)
    check_sage_gradients(layer, x, graph, type_reduce)


def check_sage_gradients(layer, x, graph, aggregate):
    convolutions, slopes = differences(layer, x, graph, aggregate)
    convolutions = [*convolutions]
    for kind, conv in enumerate(convolutions):
        close(slopes["kernel"][kind].T, conv.lin_l.weight.grad.numpy())
        if layer.reduce == "pool":
            close(slopes["pool_kernel"][kind].T, conv.lin.weight.grad.numpy())
            close(slopes["pool_bias"][kind], conv.lin.bias.grad.numpy())
    for number, kinds in enumerate(INTO):
        share = 1 if aggregate == "mean" else 1 / len(kinds)
        for part, name in (("kernel", "lin_r.weight"), ("bias", "lin_l.bias")):
            theirs = [convolutions[k].get_parameter(name).grad.numpy() for k in kinds]
            close(slopes[f"own/set_{number}/{part}"], share * sum(theirs).T)


@pytest.mark.release(elsewhere=True)
@BOTH
def test_pooling_equals_torch_geometric(type_reduce):
    layer, x, graph = graph_and_layer(sage, type_reduce, reduce="pool")
    check_sage_gradients(layer, x, graph, type_reduce)


@pytest.mark.release(elsewhere=True)
@BOTH
@pytest.mark.parametrize("heads", [1, 4])
def test_attention_equals_torch_geometric(heads, type_reduce):
    layer, x, graph = graph_and_layer(gat, type_reduce, heads=heads, use_bias=False)
    convolutions, slopes = differences(layer, x, graph, type_reduce)
    for kind, conv in enumerate(convolutions):
        close(slopes["kernel"][kind].T, conv.lin_src.weight.grad.numpy())
        close(slopes["sender_kernel"][kind], conv.att_src.grad.numpy()[0])
        # Both of their weights give b_r = a_r W_r.
        slope = slopes["receiver_kernel"][kind]
        weight, vector = conv.lin_dst.weight, conv.att_dst
        matrix = weight.detach().numpy().reshape(heads, -1, WIDTH)
        close(np.einsum("kdh,hk->kd", matrix, slope), vector.grad.numpy()[0])
        outer = np.einsum("kd,hk->kdh", vector.detach().numpy()[0], slope)
        close(outer.reshape(-1, WIDTH), weight.grad.numpy())


def test_means_of_torch_geometric_are_sums_with_scaled_weights():
    """It divides by all relations into a set, also where a node has none of them."""
    graph = graph_of(2, 6)
    layer = sage("mean", reduce="mean")
    _, other, _ = peer_of(layer, "mean")
    number = {target: len(INTO[k]) for k, target in enumerate(SETS)}
    scale = np.array([number[target] for *_, target in EDGE_SETS])
    summed = sage("sum", reduce="mean")
    summed.kernel.assign(weights_of(layer)["kernel"] / scale[:, None, None])
    (ours,) = rows_of(summed, batch_of([graph]), [graph])
    torch = pytest.importorskip("torch")
    kind = graph.node["set"]
    parts = kb.data.to_sets(graph)["edges"]
    expected = other(
        {
            name: torch.tensor(np.array(graph.node["h"][kind == k], np.float64))
            for k, name in enumerate(SETS)
        },
        {
            key: torch.from_numpy(parts[key]["edge_index"].astype("int64"))
            for key in EDGE_SETS
        },
    )
    for k, name in enumerate(SETS):
        close(ours[kind == k], expected[name].detach().numpy())


# === Backbones ===

INPUTS = {"sets": {name: {"x": {"features": 3}} for name in SETS}}
BACKBONES = {
    "sage, mean": (kb.models.SAGEBackbone, {"type_reduce": "mean"}),
    "sage, sum": (kb.models.SAGEBackbone, {"type_reduce": "sum", "reduce": "sum"}),
    "sage, pool": (kb.models.SAGEBackbone, {"type_reduce": "mean", "reduce": "pool"}),
    "gat, sum": (kb.models.GATBackbone, {"type_reduce": "sum", "num_heads": 2}),
    "gat, mean": (
        kb.models.GATBackbone,
        {"type_reduce": "mean", "num_heads": 2, "residual": "linear"},
    ),
}
STACKS = pytest.mark.parametrize("name", BACKBONES)


def task_of(name, num_layers=2, **options):
    cls, more = BACKBONES[name]
    keras.utils.set_random_seed(0)
    options = {"num_layers": num_layers, "num_edge_types": TYPES, **more, **options}
    backbone = cls(INPUTS, UNITS, **options)
    return kb.models.NodeClassifier(backbone, 3)


def labelled(size=30, degree=2):
    graph = graph_of(7, size, degree)
    label = np.random.default_rng(0).integers(0, 3, graph.num_nodes)
    return graph.replace(label=label, label_level="node")


@STACKS
@pytest.mark.release(elsewhere=True)
def test_samples_and_blocks_give_what_the_whole_graph_gives(name):
    graph, task = labelled(), task_of(name, norm="layer")
    whole, rows = task.embed([graph])[0], task.predict([graph])[0]
    sampler = NeighborSampler([-1, -1], 13)
    loader = task.loader(graph, sampler=sampler, shuffle=False)
    count = 0
    for step in range(len(loader)):
        x = loader[step][0]
        assert "hops" in x
        out = numpy(task.backbone(tensors_of(x)))[0]
        seeds = loader.supergraphs(step, 0)[0].members
        np.testing.assert_allclose(out[: len(seeds)], whole[seeds], atol=1e-5)
        count += len(seeds)
    assert count == graph.num_nodes
    by_layer = task.predict_by_layer([graph], block_size=16)[0]
    np.testing.assert_allclose(by_layer, rows, atol=1e-5)


@STACKS
@pytest.mark.release(elsewhere=True)
def test_few_draws_by_type_train(name):
    graph, task = labelled(), task_of(name)
    fan_out = {0: 1, 1: 1, 2: 2, 3: 1, 4: 1}
    sampler = NeighborSampler([fan_out, fan_out], 16)
    x = task.loader(graph, sampler=sampler)[0][0]
    means = "mean" in BACKBONES[name][1].values() or name == "sage, mean"
    assert ("type_degree" in x["sampled"]) == means
    history = task.fit(graph, sampler=sampler, epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


@pytest.mark.release(elsewhere=True)
@BOTH
@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_sums_and_means_of_sampled_neighbours_are_unbiased(reduce, type_reduce):
    graph = graph_of(3, 8, 4)
    graph = graph.replace(node={**graph.node, "number": np.arange(graph.num_nodes)})
    layer = sage(type_reduce, reduce=reduce)
    sampler = NeighborSampler([{k: 1 + k % 2 for k in range(TYPES)}], graph.num_nodes)
    loader = kb.preprocessing.SampleLoader(
        graph, sampler, rescale=True, num_edge_types=TYPES, type_degrees=True
    )
    draws = []
    for epoch in range(400):
        x = loader.build(0, epoch)[0]
        out = numpy(layer(x["node"]["h"], x))[0, : graph.num_nodes]
        draws.append(np.zeros_like(out))
        draws[-1][np.asarray(x["node"]["number"])[0, : graph.num_nodes]] = out
    error = np.std(draws, axis=0) / np.sqrt(len(draws))
    assert error.max() > 0.01
    whole = oracle(layer, graph)
    assert (np.abs(np.mean(draws, axis=0) - whole) < 5 * error + 1e-4).all()


@STACKS
@pytest.mark.release(elsewhere=True)
def test_exported_models_predict_the_same(name, tmp_path):
    pytest.importorskip("torch" if keras.backend.backend() == "torch" else "tensorflow")
    form = {"torch": "torch"}.get(keras.backend.backend(), "tf_saved_model")
    graph, task = labelled(degree=1), task_of(name)
    path = task.export(tmp_path / "out", form, [graph], verbose=False)
    (rows,) = kb.serving.ExportedModel(path, trusted=True).predict([graph])
    np.testing.assert_allclose(rows, task.predict([graph])[0], atol=1e-5)


@STACKS
@pytest.mark.release(elsewhere=True)
def test_presets_hold_the_option(name, tmp_path):
    graph, task = labelled(), task_of(name)
    task.save_to_preset(tmp_path / "preset")
    loaded = kb.models.Task.from_preset(tmp_path / "preset")
    assert loaded.backbone.type_reduce == BACKBONES[name][1]["type_reduce"]
    rows = loaded.predict([graph])[0]
    np.testing.assert_allclose(rows, task.predict([graph])[0], atol=1e-5)


def test_node_sets_have_weights_of_their_own():
    layer = task_of("sage, mean").backbone.messages[0]
    assert layer.node_sets == sorted(SETS)
    plain = kb.models.SAGEBackbone({"h": 3}, UNITS, type_reduce="sum")
    assert plain.messages[0].node_sets is None


def test_attention_of_several_types_is_refused():
    with pytest.raises(ValueError, match="one softmax per node.*type_reduce='sum'"):
        task_of("gat, sum").attention_weights([labelled()])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SAGEConvolution(4, type_reduce="max"), "`type_reduce`.*sum.*mean"),
        (lambda: GraphAttention(4, type_reduce=True), "`type_reduce`.*sum.*mean"),
        (
            lambda: SAGEConvolution(4, node_sets=SETS),
            "`node_sets` only with `type_reduce`.*Received: node_sets=.*Pass",
        ),
        (
            lambda: SAGEConvolution(4, type_reduce="sum", node_sets=[]),
            "`node_sets` to be names of one or more",
        ),
        (
            lambda: GraphAttention(4, use_kernel=False, type_reduce="sum"),
            "`use_kernel=True` with `type_reduce`.*Received: use_kernel=False.*Leave",
        ),
        (
            lambda: GraphAttention(4, num_edge_types=0),
            "`num_edge_types` to be at least",
        ),
        (
            lambda: kb.models.GATBackbone(
                {"h": 3}, 8, first_kernel=False, type_reduce="sum"
            ),
            "`first_kernel` to be None or True.*Received: first_kernel=False.*Leave",
        ),
        (
            lambda: kb.models.SAGEBackbone(
                {"h": 3}, 8, edge_inputs={"bond": 3}, type_reduce="sum"
            ),
            "`num_edge_types` to be at least 1 with `type_reduce`",
        ),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_batches_without_the_node_sets_are_refused():
    plain = kb.Graph(3, [0], [1], node={"h": np.ones((3, WIDTH))})
    (x,) = GraphLoader([plain], num_edge_types=TYPES)[0]
    with pytest.raises(ValueError, match=r"node sets \['author'.*Received: \[\]"):
        sage()(x["node"]["h"], x)
