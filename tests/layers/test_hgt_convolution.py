import warnings

import keras
import numpy as np
import pytest
from scipy.special import erf

import keras_bandgnn as kb
from keras_bandgnn import ops as graph_ops
from keras_bandgnn.layers import HGTConvolution
from keras_bandgnn.layers.batch_layer import hop_batch
from keras_bandgnn.layers.node_set_dense import NodeSetDense
from keras_bandgnn.models import HGTBackbone
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphLoader,
    NeighborSampler,
)
from keras_bandgnn.primitives import Banded, Plan
from keras_bandgnn.testing import run_layer_test

HEADS, WIDTH = 2, 8
SETS = ("author", "paper", "venue")
# In the order of edge types. No edge leads to a venue.
EDGE_SETS = (
    ("author", "cites", "author"),
    ("author", "rev_wrote", "paper"),
    ("paper", "wrote", "author"),
    ("venue", "holds", "paper"),
)
TYPES = len(EDGE_SETS)


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")))


def tensors_of(values):
    return keras.tree.map_structure(keras.ops.convert_to_tensor, values)


def graph_of(number=0, size=4, degree=3, edge_sets=EDGE_SETS, **options):
    """Node sets of different sizes, parallel edges, and nodes without edges."""
    rng = np.random.default_rng(number)
    sizes = {"author": size + 3, "paper": 2 * size, "venue": size - 2}
    edges = {}
    for source, relation, target in edge_sets:
        count = degree * sizes[target]
        # The last node of each set receives nothing.
        ends = (
            rng.integers(0, sizes[source], count),
            rng.integers(0, max(sizes[target] - 1, 1), count),
        )
        edges[source, relation, target] = np.stack(ends)
    return kb.data.from_sets(
        {name: {"x": rng.normal(size=(n, 3))} for name, n in sizes.items()},
        edges,
        node={
            "h": {name: rng.normal(size=(n, WIDTH)) for name, n in sizes.items()},
        },
        **options,
    )


def batch_of(graphs, plan=None):
    loader = GraphLoader(
        graphs,
        DynamicBatcher(len(graphs) + 1),
        plan or Plan(),
        shuffle=False,
        num_edge_types=TYPES,
    )
    return loader[0][0]


@pytest.fixture(params=[None, EDGE_SETS], ids=["types", "edge_sets"], autouse=True)
def edge_sets(request, monkeypatch):
    """Every test of a layer or a backbone runs with and without its edge sets."""
    monkeypatch.setitem(OPTIONS, "edge_sets", request.param)
    return request.param


OPTIONS = {}


def layer_of(units=WIDTH, heads=HEADS, width=WIDTH, **options):
    layer = HGTConvolution(units, SETS, TYPES, heads, **OPTIONS, **options)
    layer.build((None, None, width))
    rng = np.random.default_rng(1)
    layer.set_weights([rng.normal(size=w.shape) / 2 for w in layer.weights])
    return layer


def weights_of(layer):
    return {
        weight.path.split(f"{layer.name}/", 1)[1]: np.asarray(value, np.float64)
        for weight, value in zip(layer.weights, layer.get_weights(), strict=True)
    }


def hgt_convolution(graph, states, weights, heads=HEADS, factor=None):
    """Eqs. 3 to 5 of Hu et al. 2020, edge by edge."""

    def mapped(part, rows):
        return np.stack(
            [
                row @ weights[f"{part}/set_{kind}/kernel"]
                + weights[f"{part}/set_{kind}/bias"]
                for row, kind in zip(rows, graph.node["set"], strict=True)
            ]
        )

    keys, queries, values = np.split(mapped("projection", states), 3, axis=1)
    units = keys.shape[1]
    depth = units // heads
    sums = np.zeros((graph.num_nodes, heads, depth))
    factor = np.ones(graph.num_edges) if factor is None else factor
    for node in range(graph.num_nodes):
        edges = np.flatnonzero((graph.receivers == node) & (factor > 0))
        for head in range(heads if len(edges) else 0):
            part = slice(head * depth, (head + 1) * depth)
            scores, messages = [], []
            for edge in edges:
                sender, kind = graph.senders[edge], graph.edge_type[edge]
                attention = weights["attention_kernel"][kind, head]
                score = keys[sender, part] @ attention @ queries[node, part]
                scores.append(score * weights["prior"][kind, head] / depth**0.5)
                message = weights["message_kernel"][kind, head]
                messages.append(values[sender, part] @ message)
            share = factor[edges] * np.exp(scores - np.max(scores))
            sums[node, head] = share @ messages / share.sum()
    sums = sums.reshape(-1, units)
    out = mapped("output", 0.5 * sums * (1 + erf(sums / 2**0.5)))
    if "skip" not in weights:
        return out
    share = 1 / (1 + np.exp(-weights["skip"][graph.node["set"]]))[:, None]
    return share * out + (1 - share) * states


def rows_of(layer, x, graphs):
    """The rows of each graph, without padding."""
    out = numpy(layer(x["node"]["h"], x))[0]
    assert np.isfinite(out).all()
    ends = np.cumsum([graph.num_nodes for graph in graphs])
    return np.split(out, ends)[: len(graphs)]


def check(layer, x, graphs, heads=HEADS):
    for rows, graph in zip(rows_of(layer, x, graphs), graphs, strict=True):
        states = np.asarray(graph.node["h"], np.float64)
        expected = hgt_convolution(graph, states, weights_of(layer), heads)
        np.testing.assert_allclose(rows, expected, atol=1e-5)


def kind_of_rows(layer, x):
    """Rows of keys: of nodes and all types, of senders by type, or of node sets."""
    typed = layer._typed(tensors_of(x), x["node"]["state_row"].shape[1])
    return "sets" if "nodes" in typed else "edges" if "type" in typed else "nodes"


@pytest.mark.parametrize("plan", [None, Plan(Banded(4))], ids=["segment", "banded"])
@pytest.mark.parametrize("heads", [1, HEADS])
def test_equals_the_oracle(plan, heads):
    graphs = [graph_of(number, 4 + number) for number in range(3)]
    check(layer_of(heads=heads), batch_of(graphs, plan), graphs, heads)


@pytest.mark.release(elsewhere=True)
def test_few_edges_of_many_types_are_mapped_by_edge():
    """Fewer than pairs of a node and a type."""
    name = "a.v-1"
    sets = {name: {"h": np.random.default_rng(0).normal(size=(120, WIDTH))}}
    types = 12
    rng = np.random.default_rng(0)
    edges = {
        (name, f"r{kind:02}", name): rng.integers(0, 120, (2, 7 * (kind % 4) + kind))
        for kind in range(types)
    }
    graph = kb.data.from_sets(sets, edges, node={"h": {name: sets[name]["h"]}})
    loader = GraphLoader([graph], plan=Plan(), num_edge_types=types)
    x = loader[0][0]
    layer = HGTConvolution(WIDTH, [name], types, HEADS)
    layer.build((None, None, WIDTH))
    assert kind_of_rows(layer, x) == "edges"
    check(layer, x, [graph])
    # One set is the source of all types: more rows than edges.
    layer = HGTConvolution(WIDTH, [name], types, HEADS, edge_sets=[*sorted(edges)])
    layer.build((None, None, WIDTH))
    assert kind_of_rows(layer, x) == "edges"
    check(layer, x, [graph])
    small = "nodes" if OPTIONS["edge_sets"] is None else "sets"
    assert kind_of_rows(layer_of(), batch_of([graph_of()])) == small


def test_units_of_another_width_have_no_skip():
    graphs = [graph_of()]
    layer = layer_of(units=6)
    assert layer.skip is None
    check(layer, batch_of(graphs), graphs)


def test_every_replica_has_its_own_rows():
    graphs, layer = [graph_of(number, 4 + number) for number in range(2)], layer_of()
    loader = GraphLoader(
        graphs,
        DynamicBatcher(1, packing="sequential"),
        Plan(),
        shuffle=False,
        num_edge_types=TYPES,
        replicas=2,
    )
    x = loader[0][0]
    out = numpy(layer(x["node"]["h"], x))
    for rows, graph in zip(out, graphs, strict=True):
        expected = hgt_convolution(graph, graph.node["h"], weights_of(layer))
        np.testing.assert_allclose(rows[: graph.num_nodes], expected, atol=1e-5)


def test_padding_the_batch_and_the_order_of_nodes_change_nothing():
    graphs, layer = [graph_of(number, 3 + number) for number in range(4)], layer_of()
    together = batch_of(graphs)
    for graph, same in zip(graphs, rows_of(layer, together, graphs), strict=True):
        alone = batch_of([graph])
        assert alone["node"]["mask"].shape != together["node"]["mask"].shape
        (rows,) = rows_of(layer, alone, [graph])
        np.testing.assert_allclose(rows, same, atol=1e-5)
        nodes = np.random.default_rng(3).permutation(graph.num_nodes)
        moved = graph.subgraph(nodes)
        (rows,) = rows_of(layer, batch_of([moved]), [moved])
        np.testing.assert_allclose(rows, same[nodes], atol=1e-5)
        # Rows of tables whose nodes were dropped.
        some = graph.subgraph(nodes[: len(nodes) // 2])
        check(layer, batch_of([some]), [some])


def test_explanations_weigh_the_edges():
    graph = graph_of()
    x, layer = batch_of([graph]), layer_of()
    receiver = np.asarray(x["edge"]["receiver"])
    factor = np.random.default_rng(0).choice([0.0, 0.5, 1.0], receiver.shape)
    x = {**x, "explained": {"edge": factor.astype("float32")}}
    real = np.asarray(x["edge"]["mask"])[0]
    edges = graph.replace(
        senders=np.asarray(x["edge"]["sender"])[0, real],
        receivers=receiver[0, real],
        edge_type=np.asarray(x["edge"]["type"])[0, real],
    )
    expected = hgt_convolution(
        edges, graph.node["h"], weights_of(layer), factor=factor[0, real]
    )
    (rows,) = rows_of(layer, x, [graph])
    np.testing.assert_allclose(rows, expected, atol=1e-5)


def test_prepared_batches_give_the_same():
    x, layer = batch_of([graph_of()]), layer_of()
    arrays = tensors_of(x)
    again = layer(arrays["node"]["h"], layer.prepare(arrays))
    np.testing.assert_array_equal(numpy(layer(x["node"]["h"], x)), numpy(again))


def test_config_shapes_and_reduced_precision():
    x = batch_of([graph_of(), graph_of(1)])
    layer = HGTConvolution(WIDTH, SETS, TYPES, HEADS)
    assert run_layer_test(layer, x["node"]["h"], x).shape[-1] == WIDTH
    dense = NodeSetDense(5, SETS)
    assert run_layer_test(dense, x["node"]["h"], x).shape[-1] == 5


@pytest.mark.release(elsewhere=True)
@pytest.mark.parametrize(("size", "degree"), [(4, 3), (40, 1)])
def test_equals_torch_geometric(size, degree):
    """Outputs, and gradients of the states and of all weights, in float32."""
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        # torch_geometric deprecates parts of torch as it loads.
        warnings.simplefilter("ignore", DeprecationWarning)
        peer = pytest.importorskip("torch_geometric.nn")
    graph, layer = graph_of(2, size, degree), layer_of()
    x = batch_of([graph])
    expected = {4: "nodes", 40: "edges"}[size]
    assert kind_of_rows(layer, x) == ("sets" if layer.edge_sets else expected)
    other = peer.HGTConv(WIDTH, WIDTH, (list(SETS), list(EDGE_SETS)), HEADS)
    weights = dict(zip(weights_of(layer), layer.get_weights(), strict=True))

    def relations(name):
        """Theirs are [K P, d, d], the matrices of a head one after the other."""
        return weights[name].swapaxes(0, 1).reshape(-1, *weights[name].shape[2:])

    pairs = [
        (other.k_rel.weight, relations("attention_kernel")),
        (other.v_rel.weight, relations("message_kernel")),
    ]
    for number, name in enumerate(SETS):
        for part, lins in (("projection", other.kqv_lin), ("output", other.out_lin)):
            theirs = lins.lins[name]
            pairs += [
                (theirs.weight, weights[f"{part}/set_{number}/kernel"].T),
                (theirs.bias, weights[f"{part}/set_{number}/bias"]),
            ]
        pairs.append((other.skip[name], weights["skip"][number : number + 1]))
    for number, key in enumerate(EDGE_SETS):
        pairs.append((other.p_rel["__".join(key)], weights["prior"][number][None]))
    assert len(pairs) == len([*other.parameters()])
    with torch.no_grad():
        for tensor, value in pairs:
            assert tensor.shape == value.shape
            tensor.copy_(torch.from_numpy(np.array(value)))
    kind = graph.node["set"]
    rows = {
        name: torch.tensor(np.array(graph.node["h"][kind == number]))
        for number, name in enumerate(SETS)
    }
    for row in rows.values():
        row.requires_grad_()
    parts = kb.data.to_sets(graph)["edges"]
    ends = {
        key: torch.from_numpy(parts[key]["edge_index"].astype("int64"))
        for key in EDGE_SETS
    }
    expected = other(rows, ends)
    rng = np.random.default_rng(5)
    direction = rng.normal(size=(*x["node"]["mask"].shape, WIDTH)).astype("float32")
    # Theirs gives venues no states, as no edge leads to one.
    assert set(expected) == {"author", "paper"}
    direction[0, graph.num_nodes :] = 0
    direction[0, : graph.num_nodes][kind == 2] = 0
    total = 0.0
    for number, name in enumerate(SETS[:2]):
        picked = direction[0, : graph.num_nodes][kind == number]
        total = total + (expected[name] * torch.from_numpy(picked)).sum()
    total.backward()

    arrays, ways = tensors_of((x, direction))

    def combined(values):
        out, _ = layer.stateless_call(values[1:], [], values[0], arrays)
        return keras.ops.sum(out * ways)

    values = [arrays["node"]["h"], *tensors_of(layer.get_weights())]
    _, slopes = graph_ops.value_and_gradient(combined, values)

    def close(ours, theirs):
        np.testing.assert_allclose(
            ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max()
        )

    (ours,) = rows_of(layer, x, [graph])
    for number, name in enumerate(SETS[:2]):
        close(ours[kind == number], expected[name].detach().numpy())
    of_states = numpy(slopes[0])[0, : graph.num_nodes]
    for number, name in enumerate(SETS):
        close(of_states[kind == number], rows[name].grad.numpy())
    slopes = dict(zip(weights, map(numpy, slopes[1:]), strict=True))
    weights = slopes
    close(relations("attention_kernel"), other.k_rel.weight.grad.numpy())
    close(relations("message_kernel"), other.v_rel.weight.grad.numpy())
    for number, name in enumerate(SETS):
        theirs = other.kqv_lin.lins[name]
        close(slopes[f"projection/set_{number}/kernel"].T, theirs.weight.grad.numpy())
        close(slopes[f"projection/set_{number}/bias"], theirs.bias.grad.numpy())
        if name == SETS[2]:
            continue
        theirs = other.out_lin.lins[name]
        close(slopes[f"output/set_{number}/kernel"].T, theirs.weight.grad.numpy())
        close(slopes[f"output/set_{number}/bias"], theirs.bias.grad.numpy())
        close(slopes["skip"][number : number + 1], other.skip[name].grad.numpy())
    prior = [other.p_rel["__".join(key)].grad.numpy()[0] for key in EDGE_SETS]
    close(slopes["prior"], np.stack(prior))


INPUTS = {"sets": {name: {"x": {"features": 3}} for name in SETS}}


def backbone_of(**options):
    options = {"num_layers": 2, "num_edge_types": TYPES, "num_heads": HEADS, **options}
    options = {**OPTIONS, **options}
    keras.utils.set_random_seed(0)
    return HGTBackbone(INPUTS, WIDTH, **options)


def labelled(size=30, degree=3):
    graph = graph_of(7, size, degree)
    label = np.random.default_rng(0).integers(0, 3, graph.num_nodes)
    return graph.replace(label=label, label_level="node")


@pytest.mark.parametrize("degree", [3, 6])
@pytest.mark.release(elsewhere=True)
def test_all_neighbours_give_the_states_of_the_whole_graph(degree):
    graph = labelled(size=120, degree=degree)
    task = kb.models.NodeClassifier(backbone_of(), 3)
    whole = task.embed([graph])[0]
    loader = task.loader(graph, sampler=NeighborSampler([-1, -1], 13), shuffle=False)
    count = 0
    for step in range(len(loader)):
        x = loader[step][0]
        rows = x["hops"]["1"]["node_mask"].shape[1]
        # The last layer maps fewer rows than the tables have.
        assert all(table["node"].shape[1] > rows for table in x["set"].values())
        hop = hop_batch(tensors_of(x), 0)
        expected = {3: "edges", 6: "nodes"}[degree]
        layer = task.backbone.messages[0]
        assert kind_of_rows(layer, hop) == ("sets" if layer.edge_sets else expected)
        out = numpy(task.backbone(tensors_of(x)))[0]
        seeds = loader.supergraphs(step, 0)[0].members
        np.testing.assert_allclose(out[: len(seeds)], whole[seeds], atol=1e-5)
        count += len(seeds)
    assert count == graph.num_nodes


@pytest.mark.release(elsewhere=True)
def test_exported_models_predict_the_same(tmp_path):
    pytest.importorskip("torch" if keras.backend.backend() == "torch" else "tensorflow")
    form = {"torch": "torch"}.get(keras.backend.backend(), "tf_saved_model")
    graph = labelled(size=30, degree=1)
    task = kb.models.NodeClassifier(backbone_of(), 3)
    path = task.export(tmp_path / "out", form, [graph], verbose=False)
    (rows,) = kb.serving.ExportedModel(path, trusted=True).predict([graph])
    np.testing.assert_allclose(rows, task.predict([graph])[0], atol=1e-5)


@pytest.mark.release(elsewhere=True)
def test_predictions_by_layer_are_those_of_the_whole_graph():
    graph = labelled()
    task = kb.models.NodeClassifier(backbone_of(norm="layer", residual=True), 3)
    whole = task.predict([graph])[0]
    by_layer = task.predict_by_layer([graph], block_size=16)[0]
    np.testing.assert_allclose(by_layer, whole, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"edge_weight": "p", "replace": True}])
@pytest.mark.release(elsewhere=True)
def test_many_draws_by_type_or_weight_are_near_the_whole_graph(options):
    """The weights of drawn edges are factors of their shares in the softmax."""
    graph = labelled(size=12, degree=400)
    chance = 1.0 + 9 * (graph.senders % 2)
    graph = graph.replace(edge={"p": chance.astype("float32")})
    backbone = backbone_of(num_layers=1)
    assert backbone.is_local and backbone.trims_hops and backbone.sums_messages
    rng = np.random.default_rng(0)
    # The same on all backends.
    backbone.set_weights([rng.normal(size=w.shape) / 2 for w in backbone.weights])
    task = kb.models.NodeClassifier(backbone, 3)
    whole = task.embed([graph])[0]
    fan_out = 1000 if options else {0: 400, 1: 400, 2: 100, 3: 100}
    sampler = NeighborSampler([fan_out], 64, **options)
    loader = task.loader(graph, sampler=sampler, shuffle=False)
    x = loader[0][0]
    assert "weight" in x["sampled"]
    seeds = loader.supergraphs(0, 0)[0].members
    out = numpy(task.backbone(tensors_of(x)))[0, : len(seeds)]
    # Without the weights the largest difference is at least twice as large.
    bare = {k: v for k, v in x["sampled"].items() if k != "weight"}
    plain = numpy(task.backbone(tensors_of({**x, "sampled": bare})))[0, : len(seeds)]
    error, bias = (np.abs(rows - whole[seeds]).max() for rows in (out, plain))
    assert 2 * error < bias


def test_a_backbone_stacks_layers():
    graph = graph_of()
    backbone = backbone_of()
    states = [
        numpy(s)[0] for s in backbone.hidden_states(tensors_of(batch_of([graph])))
    ]
    expected = states[0][: graph.num_nodes].astype(np.float64)
    for layer, rows in zip(backbone.messages, states[1:], strict=True):
        expected = hgt_convolution(graph, expected, weights_of(layer))
        np.testing.assert_allclose(rows[: graph.num_nodes], expected, atol=1e-5)


def test_other_graphs_are_refused():
    plain = kb.Graph(3, [0], [1], node={"h": np.ones((3, WIDTH))})
    (x,) = GraphLoader([plain], num_edge_types=TYPES)[0]
    with pytest.raises(
        ValueError, match=r"node sets \['author'.*Received: \[\].*from_sets"
    ):
        layer_of()(x["node"]["h"], x)
    x = batch_of([graph_of()])
    layer = HGTConvolution(WIDTH, SETS[:2], TYPES, HEADS)
    with pytest.raises(ValueError, match=r"node sets \['author', 'paper'\].*Received"):
        layer(x["node"]["h"], x)
    others = graph_of(edge_sets=[*EDGE_SETS[:3], ("venue", "has", "paper")])
    task = kb.models.NodeClassifier(backbone_of(edge_sets=EDGE_SETS), 3)
    with pytest.raises(ValueError, match="with the edge sets .* as the backbone"):
        task.predict([others])
    assert len(task.predict([graph_of()])[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HGTConvolution(0, SETS), "`units` to be at least 1"),
        (lambda: HGTConvolution(8, []), "`node_sets` to be names of one or more"),
        (lambda: HGTConvolution(8, ["a", "a"]), "`node_sets`.*each once.*Received"),
        (lambda: HGTConvolution(8, "paper"), "`node_sets` to be a list of strings"),
        (lambda: HGTConvolution(8, ["a b"]), "names of node sets of letters"),
        (lambda: HGTConvolution(8, SETS, 0), "`num_edge_types` to be at least 1"),
        (
            lambda: HGTConvolution(8, SETS, 2, edge_sets=EDGE_SETS),
            "`edge_sets` to be 2 edge sets, as `num_edge_types`",
        ),
        (
            lambda: HGTConvolution(8, SETS[:1], TYPES, edge_sets=EDGE_SETS),
            r"\(source set, relation, target set\) of \['author'\]",
        ),
        (
            lambda: HGTBackbone(INPUTS, 8, edge_sets=["cites"]),
            r"\(source set, relation, target set\)",
        ),
        (
            lambda: HGTConvolution(8, SETS, num_heads=3),
            "`units` to be a multiple of `num_heads`.*units=8, num_heads=3",
        ),
        (
            lambda: HGTBackbone({"h": 3}, 8),
            "`inputs` with node sets.*Received: inputs=.*from_sets.*RGCNBackbone",
        ),
        (
            lambda: HGTBackbone(INPUTS, 8, num_heads=3),
            "`hidden_dim` to be a multiple of `num_heads`.*hidden_dim=8, num_heads=3",
        ),
        (
            lambda: HGTBackbone(INPUTS, 8, edge_inputs={"type": 2}),
            "Expected `edge_inputs` to be None.*HGTBackbone",
        ),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
