import functools

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bandgnn import Graph
from keras_bandgnn.layers import GRUReadout
from keras_bandgnn.models import (
    GATBackbone,
    GCNBackbone,
    GraphClassifier,
    GraphRegressor,
    NodeClassifier,
)
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphLoader,
    GraphPreprocessor,
    RCMKCompile,
)
from keras_bandgnn.primitives import Banded, Grouped, Plan
from keras_bandgnn.testing import gradients_of
from tests.oracles import convolutions as oracle

PLANS = {
    "segment": Plan(),
    "grouped": Plan(rest=Grouped()),
    "banded": Plan(Banded(8)),
}
INPUTS = {"kind": 7, "h": {"features": 3}}


def graphs_of(count, seed=0, low=1, high=25, types=1, classes=3, loops=True):
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        n = int(rng.integers(low, high))
        ends = rng.integers(0, n, (2, 2 * n))
        if not loops:
            ends = ends[:, ends[0] != ends[1]]
        graphs.append(
            Graph(
                n,
                *ends,
                edge_type=rng.integers(0, types, ends.shape[1]),
                node={
                    "kind": rng.integers(0, 7, n),
                    "h": rng.normal(size=(n, 3)),
                },
                label=rng.integers(0, classes, n),
                label_level="node",
            )
        )
    return graphs


def backbone_of(name, types=1, **options):
    keras.utils.set_random_seed(0)
    if name == "gcn":
        made = GCNBackbone(INPUTS, 8, 2, num_edge_types=types, **options)
    else:
        made = GATBackbone(INPUTS, 8, 2, 2, num_edge_types=types, **options)
    rng = np.random.default_rng(1)
    drawn = ("bias", "beta", "gamma", "alpha", "moving_mean", "virtual_state")
    for weight in made.weights:
        if weight.path.endswith(drawn):
            weight.assign(0.3 * rng.normal(size=weight.shape))
        elif weight.path.endswith("moving_variance"):
            weight.assign(rng.uniform(0.5, 2, weight.shape))
    return made


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")))


@pytest.mark.parametrize("types", [1, 3])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_states_equal_the_oracle(name, plan, types):
    backbone = backbone_of(name, types)
    graphs = graphs_of(6, types=types)
    loader = GraphLoader(graphs, DynamicBatcher(7), PLANS[plan], shuffle=False)
    (x,) = loader[0][:1]
    out, start = numpy(backbone(x))[0], 0
    for number in x["graph"]["id"][0][x["graph"]["mask"][0]]:
        expected = oracle.backbone(graphs[number], backbone)
        rows = out[start : start + len(expected)]
        np.testing.assert_allclose(rows, expected, atol=1e-5)
        start += len(expected)
    assert np.isfinite(out).all()


# As Luo et al. 2024 and 2025 use them, and every other option once.
OPTIONS = {
    "linear residual": {
        "norm": "layer",
        "residual": "linear",
        "activation": "relu",
        "activation_first": False,
    },
    "residual": {
        "norm": "batch",
        "residual": True,
        "activation_first": False,
        "feed_forward": True,
        "virtual_node": True,
    },
    "activation first": {
        "norm": "graph",
        "residual": True,
        "jumping_knowledge": "concat",
        "first_kernel": False,
    },
    "ego separation": {
        "norm": "pair",
        "ego_separation": True,
        "jumping_knowledge": "max",
        "virtual_node": True,
    },
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_options_equal_the_oracle(name, options):
    backbone = backbone_of(name, **OPTIONS[options])
    task = NodeClassifier(backbone, 3)
    graphs = graphs_of(6, low=2)
    for found, graph in zip(task.embed(graphs), graphs, strict=True):
        expected = oracle.backbone(graph, backbone)
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(found, expected, atol=1e-5 * scale)
    again = type(backbone).from_config(backbone.get_config())
    assert again.get_config() == backbone.get_config()


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_gradients_with_options_equal_differences_of_the_oracle(name):
    backbone = backbone_of(name, **OPTIONS["linear residual"])
    task = NodeClassifier(backbone, 3, GraphPreprocessor())
    check_gradients_of(task, graphs_of(4, seed=3))


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_masks_follow_the_rates_of_dropout(name):
    (graph,) = graphs_of(1, low=24)
    (x,) = GraphLoader([graph])[0][:1]
    options = {"activation": "relu", "first_kernel": True}

    def zeros(**more):
        out = numpy(backbone_of(name, **options, **more)(x, training=True))
        return (out == 0).mean()

    # The last layer of the papers ends without an activation.
    assert zeros(dropout=0.9) == 0
    plain = zeros(activation_first=False)
    assert 0 < plain < 0.9 < zeros(activation_first=False, dropout=0.95)
    one, two = (
        numpy(backbone_of(name, dropout=0.5, input_dropout=rate)(x, training=True))
        for rate in (0.5, 0.0)
    )
    assert np.abs(one - two).max() > 1e-3


GRAPHS = graphs_of(10, seed=7)


@functools.cache
def task_of(name):
    return NodeClassifier(backbone_of(name), 3, GraphPreprocessor())


@functools.cache
def expected(name):
    task = task_of(name)
    head = task.head.get_weights()[0]
    return [oracle.backbone(graph, task.backbone) @ head for graph in GRAPHS]


@pytest.mark.parametrize("name", ["gcn", "gat"])
@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    batch_size=st.sampled_from([2, 3, 16]),
    plan=st.sampled_from(sorted(PLANS)),
    ordering=st.sampled_from(["natural", "rcmk"]),
)
def test_nothing_about_the_batch_changes_a_prediction(
    name, seed, batch_size, plan, ordering
):
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(GRAPHS))[: rng.integers(1, len(GRAPHS))]
    orders = [rng.permutation(GRAPHS[i].num_nodes) for i in chosen]
    graphs = [GRAPHS[i].subgraph(o) for i, o in zip(chosen, orders, strict=True)]
    task = task_of(name)
    task.preprocessor = GraphPreprocessor(
        [RCMKCompile(8, ordering)],
        DynamicBatcher(batch_size - 1, {"node": 40 * batch_size}),
        PLANS[plan],
    )
    rows = task.predict(graphs)
    for own, number, order in zip(rows, chosen, orders, strict=True):
        np.testing.assert_allclose(own, expected(name)[number][order], atol=1e-5)


def loss_batch(task, graphs):
    loader = task.loader(graphs)
    assert len(loader) == 1
    return loader[0]


def check_gradients_of(task, graphs):
    gradients = gradients_of(task, loss_batch(task, graphs))
    strip = {path.split("/", 1)[1]: g for path, g in gradients.items()}
    weights = {**oracle.weights_of(task.backbone), **head_weights(task)}
    strip = {head_name(path): g for path, g in strip.items()}
    count = sum(g.num_nodes for g in graphs)

    def loss(weights):
        total = 0.0
        for graph in graphs:
            states = oracle.backbone(graph, task.backbone, weights)
            logits = states @ weights["head/kernel"] + weights["head/bias"]
            total += oracle.cross_entropy(logits, graph.label)
        return total / count

    oracle.check_gradients(strip, weights, loss)


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_gradients_equal_differences_of_the_oracle(name):
    task = NodeClassifier(backbone_of(name), 3, GraphPreprocessor())
    check_gradients_of(task, graphs_of(4, seed=3))


def head_name(path):
    return f"head/{path}" if path in ("kernel", "bias") else path


def head_weights(task):
    kernel, bias = (w.astype("float64") for w in task.head.get_weights())
    return {"head/kernel": kernel, "head/bias": bias}


def test_gradients_of_the_readout_equal_differences_of_the_oracle():
    graphs = [
        g.replace(label=number % 3, label_level="graph")
        for number, g in enumerate(graphs_of(5, seed=3))
    ]
    readout = GRUReadout(8, 2, name="readout")
    task = GraphClassifier(backbone_of("gcn"), 3, GraphPreprocessor(), readout=readout)
    gradients = gradients_of(task, loss_batch(task, graphs))
    gradients = {
        path.split("/", 1)[1]: g for path, g in gradients.items() if "readout/" in path
    }
    gradients = {path.split("readout/")[-1]: g for path, g in gradients.items()}
    weights = {
        w.path.split("readout/")[-1]: value.astype("float64")
        for w, value in zip(readout.weights, readout.get_weights(), strict=True)
    }
    kernel, bias = (w.astype("float64") for w in task.head.output_dense.get_weights())

    def loss(weights):
        logits = [
            oracle.gru_readout(oracle.backbone(g, task.backbone), weights, 2) @ kernel
            for g in graphs
        ]
        labels = np.array([int(g.label) for g in graphs])
        return oracle.cross_entropy(np.array(logits) + bias, labels) / len(graphs)

    oracle.check_gradients(gradients, weights, loss)


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_config_round_trip_and_mixed_precision(name):
    backbone = backbone_of(name, dropout=0.5)
    again = type(backbone).from_config(backbone.get_config())
    assert again.get_config() == backbone.get_config()
    again.set_weights(backbone.get_weights())
    (x,) = GraphLoader(graphs_of(4), shuffle=False)[0][:1]
    exact = numpy(backbone(x))
    np.testing.assert_array_equal(numpy(again(x)), exact)
    config = {**backbone.get_config(), "dtype": "mixed_bfloat16"}
    mixed = type(backbone).from_config(config)
    mixed.set_weights(backbone.get_weights())
    out = mixed(x)
    assert keras.backend.standardize_dtype(out.dtype) == "bfloat16"
    np.testing.assert_allclose(numpy(out), exact, atol=0.1 * np.abs(exact).max())
    trained = numpy(backbone(x, training=True))
    assert np.abs(trained - exact).max() > 1e-3


def test_a_regressor_takes_a_readout_and_keeps_its_own(tmp_path):
    graphs = [
        g.replace(label=float(g.num_nodes), label_level="graph") for g in graphs_of(12)
    ]
    for options, mode in (
        ({"readout": GRUReadout(8)}, "graph"),
        ({"readout": "attention"}, "graph"),
        ({"readout": "sum"}, "atom"),
    ):
        task = GraphRegressor(backbone_of("gcn"), **options)
        assert task.normalizer.mode == mode
        task.fit(graphs, epochs=1, verbose=0)
        expected = task.predict(graphs)
        task.save_to_preset(tmp_path / "preset")
        again = GraphRegressor.from_preset(tmp_path / "preset")
        assert again.head_config() == task.head_config()
        np.testing.assert_allclose(again.predict(graphs), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GCNBackbone({}), "at least one node feature"),
        (lambda: GCNBackbone({"a": 3}, num_layers=0), "`num_layers` to be at least 1"),
        (lambda: GCNBackbone({"a": 3}, dropout=1.0), r"`dropout` in \[0, 1\)"),
        (lambda: GATBackbone({"a": 3}, 8, 3), "multiple of `num_heads`"),
        (
            lambda: GATBackbone({"a": 3}, attention_dropout=-1),
            r"`attention_dropout` in \[0, 1\)",
        ),
        (
            lambda: GCNBackbone({"a": 3}, residual="quadratic"),
            "`residual` to be one of True, False, 'linear'",
        ),
        (
            lambda: GCNBackbone({"a": 3}, edge_inputs={"bond": 4}),
            "`edge_inputs` to be None.*Use GINEBackbone",
        ),
        (
            lambda: NodeClassifier(backbone_of("gcn"), 3).fit(graphs_of(2, types=3)),
            "Raise num_edge_types",
        ),
        (
            lambda: GraphRegressor(backbone_of("gcn"), readout=GRUReadout(8), hidden=4),
            "`hidden` only with readouts by name",
        ),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_gcn_without_its_last_kernel_leaves_it_to_the_head():
    pytest.importorskip("torch")
    nn = pytest.importorskip("torch_geometric.nn")
    import torch

    (graph,) = graphs_of(1, loops=False)
    pairs = np.unique(np.stack([graph.senders, graph.receivers]), axis=1)
    graph = graph.replace(senders=pairs[0], receivers=pairs[1], edge_type=None)
    backbone = GCNBackbone({"h": {"features": 3}}, 8, 2, last_kernel=False)
    task = NodeClassifier(backbone, 3)
    rng = np.random.default_rng(0)
    task.set_weights([rng.normal(size=w.shape) for w in task.get_weights()])
    first, second = nn.GCNConv(3, 8), nn.GCNConv(8, 3)
    named = {w.path: keras.ops.convert_to_numpy(w) for w in task.trainable_variables}
    assert sum(path.endswith("kernel") for path in named) == 2

    def of(*parts):
        (found,) = [v for k, v in named.items() if all(p in k for p in parts)]
        return torch.tensor(found)

    ends = torch.tensor(pairs.astype("int64"))
    with torch.no_grad():
        first.lin.weight.copy_(of("encode_h", "kernel").T)
        first.bias.zero_()
        second.lin.weight.copy_(of("head", "kernel").T)
        second.bias.zero_()
        for path in named:
            if path.endswith("bias"):
                (variable,) = [w for w in task.trainable_variables if w.path == path]
                variable.assign(np.zeros(variable.shape))
        want = second(first(torch.tensor(graph.node["h"]), ends).relu(), ends)
    (found,) = task.predict([graph])
    np.testing.assert_allclose(found, want.numpy(), atol=1e-5)


@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_options_equal_layers_of_torch_geometric(name, norm):
    """The networks of Luo et al. 2024, put together from torch_geometric's layers."""
    torch = pytest.importorskip("torch")
    nn = pytest.importorskip("torch_geometric.nn")
    (graph,) = graphs_of(1, low=20, loops=False)
    pairs = np.unique(np.stack([graph.senders, graph.receivers]), axis=1)
    graph = graph.replace(senders=pairs[0], receivers=pairs[1], edge_type=None)
    backbone = backbone_of(
        name, norm=norm, residual="linear", activation="relu", activation_first=False
    )
    weights = {
        path: torch.tensor(value.astype("float32"))
        for path, value in oracle.weights_of(backbone).items()
    }
    encoded = backbone.encoder(
        {name: value[None] for name, value in graph.node.items() if name in INPUTS}
    )
    states = torch.tensor(numpy(encoded)[0])
    ends = torch.tensor(pairs.astype("int64"))
    with torch.no_grad():
        for number in range(2):
            layer = f"{'attention' if name == 'gat' else 'convolution'}_{number}"
            own = oracle.below(weights, layer)
            if name == "gcn":
                conv = nn.GCNConv(8, 8)
                conv.lin.weight.copy_(own["kernel"].T)
            else:
                conv = nn.GATConv(8, 4, heads=2)
                conv.lin.weight.copy_(own["transform/kernel"].T)
                conv.att_src[0] = own["sender_kernel"]
                conv.att_dst[0] = own["receiver_kernel"]
            conv.bias.copy_(own["bias"])
            added = oracle.below(weights, f"linear_{number}")
            rows = conv(states, ends) + states @ added["kernel"] + added["bias"]
            own = oracle.below(weights, f"norm_{number}")
            if norm == "layer":
                normed = torch.nn.LayerNorm(8)
            else:
                normed = torch.nn.BatchNorm1d(8).eval()
                normed.running_mean.copy_(own["moving_mean"])
                normed.running_var.copy_(own["moving_variance"])
            normed.weight.copy_(own["gamma"])
            normed.bias.copy_(own["beta"])
            states = normed(rows).relu()
    (found,) = NodeClassifier(backbone, 3).embed([graph])
    np.testing.assert_allclose(found, states.numpy(), atol=1e-5)
