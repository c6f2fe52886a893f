"""Explanations against finite differences, and what must not change them."""

import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
from registered import BACKBONES, plain_graphs, registered, sample_of

import keras_bandgnn as kb
from keras_bandgnn import explain, models
from keras_bandgnn.explain import gradients
from keras_bandgnn.explain.measures import masked_rows
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphPreprocessor,
    RCMKCompile,
    StaticBatcher,
)
from keras_bandgnn.primitives import Banded, Plan

pytestmark = pytest.mark.every_backend("is_the_gradient")

METHODS = {
    "saliency": {},
    "integrated_gradients": {"steps": 16},
    "gnn_explainer": {"steps": 3},
}


def drawn(task, scale=0.4, seed=0):
    """The task with weights that are not small."""
    rng = np.random.default_rng(seed)
    values = []
    for weight, value in zip(task.weights, task.get_weights(), strict=True):
        if value.dtype.kind == "f":
            value = scale * rng.normal(size=value.shape)
        values.append(np.abs(value) if "variance" in weight.path else value)
    task.set_weights(values)
    return task


def graph_labels(graphs):
    return [g.replace(label=n % 3, label_level="graph") for n, g in enumerate(graphs)]


def gcn(preprocessor=None, num_layers=2, **options):
    backbone = models.GCNBackbone(
        {"h": {"features": 3}}, 8, num_layers, num_edge_types=2
    )
    return drawn(models.GraphClassifier(backbone, 3, preprocessor, **options))


def without(graph, edges):
    """The graph without some of its edges."""
    keep = np.setdiff1d(np.arange(graph.num_edges), edges)
    return graph.replace(
        senders=graph.senders[keep],
        receivers=graph.receivers[keep],
        edge_type=graph.edge_type[keep],
        edge={name: values[keep] for name, values in graph.edge.items()},
    )


@pytest.mark.parametrize("name", ["GGNNBackbone", "GraphormerBackbone"])
def test_edge_features_are_weighed_with_their_edges(name):
    test_every_backbone_weighs_edges(name, edge_inputs={"w": {"features": 2}})


# Without messages, edges change nothing.
ALONE = {"EmbeddingBackbone"}


@pytest.mark.parametrize("name", sorted(set(registered(kb.models.Backbone)) - ALONE))
def test_every_backbone_weighs_edges(name, **options):
    """Edges of factor 0 are as if they were not there."""
    backbone, graphs = sample_of(BACKBONES, name)(**options)
    assert type(backbone).weighs_edges, "see `Backbone.weighs_edges`"
    graphs = graph_labels(graphs)[:2]
    if options:
        ends = [np.stack([g.senders, g.receivers], axis=1) for g in graphs]
        pairs = zip(graphs, ends, strict=True)
        graphs = [g.replace(edge={"w": w / 9.0}) for g, w in pairs]
    prepared = GraphPreprocessor(backbone.graph_layers())
    graphs = [prepared.transform([graph])[0] for graph in graphs]
    plan = backbone.auto_plan() or Plan()
    task = models.GraphClassifier(backbone, 3, GraphPreprocessor(plan=plan))
    drawn(task)
    found = explain.saliency(task, graphs)
    assert all(one.edge.any() for one in found)
    removed = [np.arange(0, graph.num_edges, 3) for graph in graphs]
    masks = []
    for graph, edges in zip(graphs, removed, strict=True):
        mask = np.ones(graph.num_edges)
        mask[edges] = 0
        masks.append(mask)
    rows = masked_rows(task, found, masks, "edge")
    fewer = [without(*pair) for pair in zip(graphs, removed, strict=True)]
    whole = [one.prediction for one in found]
    for row, other in zip(whole + rows, task.predict(graphs + fewer), strict=True):
        np.testing.assert_allclose(row, other, atol=1e-5)


@pytest.mark.parametrize("name", sorted(registered(kb.models.Backbone)))
def test_every_backbone_is_explained_by_attention_or_says_why_not(name):
    backbone, graphs = sample_of(BACKBONES, name)()
    task = models.GraphClassifier(backbone, 3)
    graphs = graph_labels(graphs)[:2]
    if hasattr(backbone, "attention_terms"):
        for one in explain.attention(task, graphs):
            assert (one.edge >= 0).all() and one.edge.any()
    else:
        with pytest.raises(ValueError, match="Expected a backbone with attention"):
            explain.attention(task, graphs)


def test_columns_of_ids_are_explained_beside_edges_of_the_same_name():
    rng = np.random.default_rng(0)
    graphs = [
        g.replace(
            node={"feature": rng.integers(0, [4, 2], (g.num_nodes, 2))},
            edge={"feature": rng.integers(0, [3, 2, 2], (g.num_edges, 3))},
        )
        for g in graph_labels(plain_graphs(2))
    ]
    backbone = models.GINEBackbone(
        {"feature": [4, 2]}, 8, 1, edge_inputs={"feature": [3, 2, 2]}, norm=None
    )
    task = drawn(models.GraphClassifier(backbone, 3))
    for one in explain.saliency(task, graphs):
        assert one.node.any() and one.edge.any()


def test_saliency_is_the_gradient():
    """By features, and by weights of edges, as finite differences give it."""
    graphs = graph_labels(plain_graphs(2))
    graphs = [
        g.replace(edge={"w": 1.0 + np.arange(g.num_edges) / g.num_edges})
        for g in graphs
    ]
    task = gcn(GraphPreprocessor(edge_weight="w"))
    found = explain.saliency(task, graphs, target=2)
    step = 1e-2
    for graph, one in zip(graphs, found, strict=True):
        assert one.target == 2

        def slope(change, graph=graph):
            rows = task.predict([change(graph, step), change(graph, -step)])
            return abs(rows[0][2] - rows[1][2]) / (2 * step)

        for number in (0, 5, 11):

            def heavier(graph, by, number=number):
                weight = graph.edge["w"].copy()
                weight[number] *= 1 + by
                return graph.replace(edge={"w": weight})

            assert slope(heavier) == pytest.approx(one.edge[number], abs=2e-3)
        for node, column in ((0, 0), (4, 2)):

            def moved(graph, by, node=node, column=column):
                h = graph.node["h"].copy()
                h[node, column] += by
                return graph.replace(node={"h": h})

            score = one.node_features["h"][node, column]
            assert slope(moved) == pytest.approx(score, abs=2e-3)
    np.testing.assert_allclose(
        found[0].node, found[0].node_features["h"].sum(axis=1), rtol=1e-5
    )


def reordered(graphs, seed=1):
    """The graphs with other numbers of nodes and another order of edges."""
    rng = np.random.default_rng(seed)
    out = []
    for graph in graphs:
        nodes = rng.permutation(graph.num_nodes)
        edges = rng.permutation(graph.num_edges)
        moved = graph.subgraph(nodes).replace(origin=None)
        moved = moved.replace(
            senders=moved.senders[edges],
            receivers=moved.receivers[edges],
            edge_type=moved.edge_type[edges],
        )
        out.append((moved, nodes, edges))
    return out


@pytest.mark.parametrize("method", METHODS)
def test_scores_are_those_of_the_callers_nodes_and_edges(method):
    """Whatever the order, the batch, the padding and the plan."""
    call, options = getattr(explain, method), METHODS[method]
    graphs = graph_labels(plain_graphs(3))
    plain = call(gcn(), graphs, **options)
    moved = reordered(graphs)
    others = {
        "compiled": (gcn(GraphPreprocessor([RCMKCompile(4)], plan=Plan(Banded(4)))),),
        "padded": (gcn(GraphPreprocessor([], StaticBatcher(1, padding="64"))),),
        "moved": (gcn(GraphPreprocessor([RCMKCompile(4)], DynamicBatcher(2))), moved),
    }
    for name, (task, *given) in others.items():
        found = call(task, [m[0] for m in moved] if given else graphs, **options)
        for number, (one, other) in enumerate(zip(plain, found, strict=True)):
            nodes, edges = slice(None), slice(None)
            if given:
                _, nodes, edges = moved[number]
            options_of_test = {"atol": 2e-5, "err_msg": name}
            np.testing.assert_allclose(other.node, one.node[nodes], **options_of_test)
            np.testing.assert_allclose(other.edge, one.edge[edges], **options_of_test)
            assert other.target == one.target
            np.testing.assert_array_equal(other.senders, other.graph.senders)


def test_nodes_candidates_and_numbers():
    graphs = plain_graphs(2)
    backbone = models.GCNBackbone({"h": {"features": 3}}, 8, 1, num_edge_types=2)
    nodes = drawn(models.NodeClassifier(backbone, 3))
    outputs = nodes.predict(graphs)
    found = explain.saliency(nodes, graphs, index=[4, 2])
    for one, rows, graph in zip(found, outputs, graphs, strict=True):
        np.testing.assert_allclose(one.prediction, rows[one.index], atol=1e-5)
        assert one.target == rows[one.index].argmax()
        # One layer: the node, its neighbours and theirs by the degree.
        near = {one.index, *graph.senders[graph.receivers == one.index].tolist()}
        assert set(np.flatnonzero(one.node).tolist()) <= near
    (one,) = explain.gnn_explainer(nodes, graphs[:1], index=4, steps=5)
    near = graphs[0].senders[graphs[0].receivers == 4]
    matters = np.isin(graphs[0].receivers, [4, *near])
    assert not one.edge[~matters].any() and one.edge[graphs[0].receivers == 4].all()

    chosen = [g.replace(label=None, candidates=[3, 5, 7]) for g in graphs]
    selector = drawn(models.NodeSelector(backbone))
    for one, row in zip(
        explain.integrated_gradients(selector, chosen, target=1),
        selector.predict(chosen),
        strict=True,
    ):
        assert one.output == pytest.approx(row[1], abs=1e-5)
        assert abs(one.residual) < 2e-3
    plain = [g.replace(label=None, label_level="graph") for g in graphs]
    regressor = drawn(models.GraphRegressor(backbone, 2, normalizer=None))
    (one, _) = explain.gnn_explainer(regressor, plain, target=1, steps=3)
    assert one.target == 1 and 0 < one.edge.max() < 1
    with pytest.raises(ValueError, match="`target`, one of the 2 outputs of GraphReg"):
        explain.saliency(regressor, plain)


def test_scores_that_do_not_add_up_are_named(monkeypatch):
    """Networks with kinks take more points; those that do not suffice are reported."""
    graphs = graph_labels(plain_graphs(2))
    for one in explain.integrated_gradients(gcn(), graphs, tolerance=1e-3):
        change = abs(one.output - one.baseline)
        assert abs(one.residual) <= 1e-3 * max(change, 1) + 1e-5
    monkeypatch.setattr(gradients, "_MOST_PIECES", 2)
    with pytest.warns(UserWarning, match="more than tolerance=1e-09, with 4 points"):
        explain.integrated_gradients(gcn(), graphs, steps=2, tolerance=1e-9)


# Backbones with means or maxima over edges; see the table in docs/explanations.md.
JUMPS = ("LightGCNBackbone", "PNABackbone", "RGCNBackbone", "SAGEBackbone")
CASES = [(name, {}) for name in sorted(set(registered(kb.models.Backbone)) - ALONE)]
OPTIONS = [
    ("RGCNBackbone", {"reduce": "sum"}),
    ("SAGEBackbone", {"reduce": "sum"}),
    ("SAGEBackbone", {"reduce": "max"}),
    ("SAGEBackbone", {"reduce": "sum", "type_reduce": "sum", "edge_inputs": None}),
]


def table_of_models():
    """The backbones of the page that have scores which do not add up."""
    page = Path(__file__).parents[2] / "docs" / "explanations.md"
    lines = page.read_text("utf-8").splitlines()
    (row,) = (line for line in lines if "| do not add up |" in line)
    return row.split("|")[1].replace(" ", "").split(",")


@pytest.mark.parametrize(("name", "options"), CASES + OPTIONS)
def test_jumps_are_named(name, options, monkeypatch):
    """Scores add up, or a warning says why more points cannot help."""
    monkeypatch.setattr(gradients, "_MOST_PIECES", 1)
    backbone, graphs = sample_of(BACKBONES, name)(**options)
    graphs = graph_labels(graphs)[:2]
    prepared = GraphPreprocessor(backbone.graph_layers())
    graphs = [prepared.transform([graph])[0] for graph in graphs]
    plan = backbone.auto_plan() or Plan()
    task = drawn(models.GraphClassifier(backbone, 3, GraphPreprocessor(plan=plan)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        explained = explain.integrated_gradients(task, graphs, tolerance=0.05)
    named = ["More `steps` cannot help" in str(one.message) for one in caught]
    jumps = name in JUMPS and "sum" not in options.values()
    assert sum(named) == jumps
    assert jumps == any(abs(one.residual) > 0.05 for one in explained)
    if not options:
        assert jumps == (name.removesuffix("Backbone") in table_of_models())


def test_outputs_that_are_not_finite_are_refused():
    graphs = graph_labels(plain_graphs(3))
    for method, options in METHODS.items():
        task = gcn()
        task.set_weights([np.full_like(w, np.nan) for w in task.get_weights()])
        with pytest.raises(ValueError, match="finite output.*nan for graph 0"):
            getattr(explain, method)(task, graphs, **options)


def test_embedded_ids_and_made_edges():
    """Ids have one score each; edges made by preprocessing are given with it."""
    from keras_bandgnn.preprocessing import FullyConnectedGraph

    rng = np.random.default_rng(0)
    atoms = [
        kb.Graph(
            n,
            [],
            [],
            node={
                "atomic_number": rng.integers(1, 9, n),
                "position": rng.normal(size=(n, 3)),
            },
        )
        for n in (3, 5)
    ]
    backbone = models.SchNetBackbone(9, 8, 1, num_gaussians=8)
    task = models.GraphRegressor(
        backbone,
        preprocessor=GraphPreprocessor([FullyConnectedGraph()]),
        normalizer=None,
    )
    for graph, one in zip(atoms, explain.saliency(drawn(task), atoms), strict=True):
        n = graph.num_nodes
        assert one.node_features["atomic_number"].shape == (n,)
        assert len(one.edge) == len(one.senders) == n * (n - 1)
        assert one.graph is graph and (one.node > 0).all()


def test_graphs_without_edges_and_without_graphs():
    task = gcn()
    assert explain.saliency(task, []) == []
    alone = kb.Graph(2, [], [], node={"h": np.ones((2, 3))})
    for method, options in METHODS.items():
        (one,) = getattr(explain, method)(task, alone, **options)
        assert one.edge.shape == (0,) and one.node.any()
        (of_generator,) = getattr(explain, method)(
            task, (g for g in [alone]), **options
        )
        np.testing.assert_allclose(of_generator.node, one.node, atol=1e-6)


@keras.saving.register_keras_serializable(package="tests")
class OwnBackbone(models.Backbone):
    """A backbone that knows nothing of explanations."""

    hidden_dim, num_edge_types = 3, 0

    def call(self, batch, training=False):
        return keras.ops.convert_to_tensor(batch["node"]["h"])


def test_clear_errors():
    graphs = graph_labels(plain_graphs(2))
    own = models.GraphClassifier(OwnBackbone(), 3)
    with pytest.raises(ValueError, match="OwnBackbone, which does not set `weighs_ed"):
        explain.saliency(own, graphs)
    (one, _) = explain.saliency(own, graphs, edges=False)
    assert one.node.all() and not one.edge.any()
    with pytest.raises(ValueError, match="Expected edges or features to explain"):
        explain.saliency(own, graphs, edges=False, features=False)
    task = gcn()
    with pytest.raises(ValueError, match=r"`index` to be None, as GraphClassifier pre"):
        explain.saliency(task, graphs, index=1)
    with pytest.raises(ValueError, match=r"`target` in \[0, 3\).*target=3 for graph 0"):
        explain.saliency(task, graphs, target=3)
    with pytest.raises(ValueError, match="one for each of the 2 graphs. Received: 3"):
        explain.saliency(task, graphs, target=[0, 1, 2])
    backbone = models.GCNBackbone({"h": {"features": 3}}, 8, 1, num_edge_types=2)
    nodes = models.NodeClassifier(backbone, 3)
    with pytest.raises(ValueError, match="`index` to be a node of each graph"):
        explain.saliency(nodes, plain_graphs(1))
    with pytest.raises(ValueError, match=r"a node in \[0, 9\) that.*index=9 for graph"):
        explain.saliency(nodes, plain_graphs(1), index=9)
    lossy = gcn(GraphPreprocessor(plan=Plan(Banded(2), rest="drop")))
    with pytest.raises(ValueError, match="a plan that keeps all edges"):
        explain.saliency(lossy, graphs)


def test_measures_follow_their_definitions():
    graphs = graph_labels(plain_graphs(4))
    task = gcn()
    found = explain.saliency(task, graphs)
    chosen = [one.selection(0.3) for one in found]
    alone = [
        without(g, np.flatnonzero(~m)) for g, m in zip(graphs, chosen, strict=True)
    ]
    fewer = [without(g, np.flatnonzero(m)) for g, m in zip(graphs, chosen, strict=True)]
    whole, of_alone, of_fewer = (
        np.stack(task.predict(each)) for each in (graphs, alone, fewer)
    )
    measured = explain.fidelity(task, found, 0.3)
    best = whole.argmax(axis=1)
    assert measured.plus == pytest.approx((of_fewer.argmax(axis=1) != best).mean())
    assert measured.minus == pytest.approx((of_alone.argmax(axis=1) != best).mean())
    p, q = (np.exp(r) / np.exp(r).sum(1, keepdims=True) for r in (whole, of_alone))
    divergence = (p * np.log(p / q)).sum(axis=1)
    assert measured.unfaithfulness == pytest.approx(
        np.mean(1 - np.exp(-divergence)), abs=1e-5
    )
    share = explain.Fidelity(0.8, 0.4, 0.0).characterization
    assert share == pytest.approx(2 / (1 / 0.8 + 1 / 0.6))
    assert explain.Fidelity(0.0, 1.0, 0.0).characterization == 0
    assert 0 <= explain.fidelity(task, found, 0.3, "node").minus <= 1
    sizes = np.concatenate([one.edge / one.edge.max() for one in found])
    assert explain.sparsity(found, 0.5) == pytest.approx((sizes < 0.5).mean())
    truth = [one.edge > np.median(one.edge) for one in found]
    assert (explain.ground_truth_auc(found, truth) == 1).all()
    assert (explain.ground_truth_auc(found, [~t for t in truth]) == 0).all()
    assert np.isnan(explain.ground_truth_auc(found, [t | True for t in truth])).all()
    weights = task.get_weights()
    alike = explain.randomization_check(task, graphs, explain.saliency)
    assert (np.abs(alike) <= 1).all() and alike.mean() < 0.9
    for before, after in zip(weights, task.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    regressor = models.GraphRegressor(task.backbone)
    with pytest.raises(ValueError, match="`task` to predict classes or binary"):
        explain.fidelity(regressor, found)
