"""Row k of what methods of tasks take and return is that of item k."""

import inspect

import keras
import numpy as np
import pytest
from models import task_samples

import keras_bandgnn as kb
from keras_bandgnn.models import Task
from keras_bandgnn.preprocessing.encoding.graph_encoder import GraphEncoder

# Items that the encoder skips.
BROKEN = (0, 3)


class Packet:
    """A raw item: a graph, or none."""

    def __init__(self, graph=None):
        self.graph = graph


@keras.saving.register_keras_serializable(package="tests")
class PacketEncoder(GraphEncoder):
    """Takes graphs out of packets."""

    @classmethod
    def accepts(cls, item):
        return isinstance(item, Packet)

    def encode_item(self, item):
        if item.graph is None:
            raise ValueError("an empty packet.")
        return item.graph

    def content(self, item):
        return repr(item).encode()

    def inputs(self):
        return task_samples.INPUTS


def tasks():
    # Those of link prediction take one graph and pairs of its nodes.
    return sorted(set(task_samples.TASKS) - {"LinkPredictor"})


def packed(name, encoder=True):
    """A task, packets with some that are skipped, and the graphs that are not."""
    flat = task_samples.data_of(name, 5)
    graphs = [flat[i] for i in range(len(flat))]
    backbone = "GATBackbone" if name != "ForceRegressor" else None
    task = task_samples.task_of(name, backbone)
    first = [PacketEncoder(on_error="skip")] if encoder else []
    task.preprocessor = kb.preprocessing.GraphPreprocessor(
        [*first, *task.backbone.default_layers(graphs)]
    )
    items = [Packet(graph) for graph in graphs]
    for position in BROKEN:
        items.insert(position, Packet())
    return task, items, graphs


def spread(rows):
    """Rows of all items from those of the graphs that are not skipped."""
    rows = list(rows)
    for position in BROKEN:
        rows.insert(position, None)
    return rows


def explained(explanations):
    return [
        None if one is None else np.concatenate([one.node, one.prediction.ravel()])
        for one in explanations
    ]


def _explain(method, **options):
    def call(task, graphs):
        index = 1 if task.output_level == "node" else None
        target = 0 if task.output_level != "candidate" else None
        one = getattr(kb.explain, method)(task, graphs, target, index, **options)
        return explained(one)

    return call


# What has a row for each item, by name of the method.
METHODS = {
    "predict": lambda task, graphs: task.predict(graphs),
    "predict_proba": lambda task, graphs: task.predict_proba(graphs),
    "predict_labels": lambda task, graphs: task.predict_labels(graphs),
    "predict_forces": lambda task, graphs: task.predict_forces(graphs),
    "rewrite_probabilities": lambda task, graphs: task.rewrite_probabilities(graphs),
    "embed": lambda task, graphs: task.embed(graphs),
    "attention_weights": lambda task, graphs: [
        None if layers is None else layers[0].weights
        for layers in task.attention_weights(graphs)
    ],
}
EXPLAIN = {
    "attention": {},
    "gnn_explainer": {"steps": 2, "edges": False},
    "integrated_gradients": {"steps": 4, "tolerance": 1e9, "edges": False},
    "saliency": {},
}
# Methods that take graphs and return none of their rows, or only those of graphs.
OTHERS = {
    *("call", "check", "adapt", "evaluate", "fit", "loader", "preprocess", "export"),
    *("default_preprocessor", "labelled", "batches", "in_given_order", "outputs"),
    "complete",
    *("check_labels", "train_on_batch", "test_on_batch", "predict_on_batch"),
    *("entries", "loss_terms", "compute_loss", "compute_metrics"),
    # With cells, which no sample has; with layers of message passing, not raw items.
    *("predict_stress", "predict_by_layer"),
}


def same(received, expected):
    assert len(received) == len(expected)
    for one, other in zip(received, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def _takes_graphs(function) -> bool:
    parameters = inspect.signature(function).parameters
    return bool({"x", "graphs", "functions"} & set(parameters))


def test_all_methods_are_here():
    taken = set()
    for name in task_samples.exported(Task) - {"LinkPredictor"}:
        cls = getattr(kb.models, name)
        for method, function in inspect.getmembers(cls, inspect.isfunction):
            ours = str(function.__module__).startswith("keras_bandgnn")
            if ours and not method.startswith("_") and _takes_graphs(function):
                taken.add(method)
    assert taken - set(METHODS) - OTHERS == {"errors"}
    explain = {n for n in kb.explain.__all__ if _takes_graphs(getattr(kb.explain, n))}
    assert explain - {"randomization_check"} == set(EXPLAIN)


@pytest.mark.parametrize("name", tasks())
def test_skipped_items_are_counted(name):
    task, items, graphs = packed(name)
    for method, call in METHODS.items():
        forces = name == "ForceRegressor"
        needs = {"predict_forces": forces, "attention_weights": not forces}
        if hasattr(task, method) and needs.get(method, True):
            same(call(task, items), spread(call(task, graphs)))
    if not hasattr(task, "errors"):
        return
    whole, some = task.errors(items), task.errors(graphs)
    numbers = np.setdiff1d(np.arange(len(items)), BROKEN)
    np.testing.assert_array_equal(whole.pop("graph"), numbers[some.pop("graph")])
    for column, values in some.items():
        np.testing.assert_allclose(whole[column], values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", tasks())
@pytest.mark.parametrize("broken", [Packet(), None, 5])
def test_lists_that_start_with_a_graph_are_counted(name, broken, tmp_path):
    task, _, graphs = packed(name)
    items = [graphs[0], broken, *graphs[1:], Packet()]

    def spread(rows):
        rows = list(rows)
        return [rows[0], None, *rows[1:], None]

    for method in {"predict", "embed"} & set(dir(task)):
        same(METHODS[method](task, items), spread(METHODS[method](task, graphs)))
    if name == "GraphClassifier":
        call = _explain("saliency")
        same(call(task, items), spread(call(task, graphs)))
        y = [0, 9, *range(1, len(graphs)), 9]
        y = [9 if label == 9 else label % 2 for label in y]
        task.fit(items, y, epochs=1, verbose=0, validation_split=0.4)
        assert np.isfinite(task.evaluate(items, y, verbose=0)).all()
    if hasattr(task, "errors"):
        numbers = np.setdiff1d(np.arange(len(items)), (1, len(items) - 1))
        some = task.errors(graphs)["graph"]
        np.testing.assert_array_equal(task.errors(items)["graph"], numbers[some])
    # Without an encoder such a list is refused.
    task, _, graphs = packed(name, encoder=False)
    with pytest.raises(ValueError, match="item 1"):
        task.predict([graphs[0], None if broken == 5 else 5, *graphs[1:]])


@pytest.mark.parametrize("name", tasks())
def test_labels_have_an_entry_for_each_item(name):
    task, items, graphs = packed(name)
    labels = [np.asarray(graph.label) for graph in graphs]
    y = spread(labels)
    if task.output_level not in ("node", "edge"):
        y = [0 * labels[0] if label is None else label for label in y]
    values = task.evaluate(items, y, verbose=0)
    inside = task.evaluate(graphs, verbose=0)
    np.testing.assert_allclose(values, inside, rtol=1e-4, atol=1e-5)
    for short in (labels, y[:-1], [*y, y[-1]]):
        for call in (task.evaluate, task.fit, getattr(task, "errors", task.fit)):
            with pytest.raises(ValueError, match=f"of the 7 items.*{len(short)} ent"):
                call(items, short)
    with pytest.raises(ValueError, match="`sample_weight`.*of the 7 items.*5 ent"):
        task.fit(items, y, sample_weight=[np.ones(np.shape(v)) for v in labels])
    # Item 4 is the third graph.
    wrong = [v if v is None else np.array(v, np.float32) for v in y]
    wrong[4][...] = np.inf
    with pytest.raises(ValueError, match=r"y\[4"):
        task.fit(items, wrong)
    if task.output_level in ("node", "edge"):
        wrong[4] = np.zeros(len(wrong[4]) + 1)
        with pytest.raises(ValueError, match=r"y\[4\].*graph 4"):
            task.evaluate(items, wrong)


def test_caches_tell_graphs_apart(tmp_path):
    encoder = PacketEncoder(on_error="skip")
    encoder.cache = str(tmp_path)
    for feature in (1.0, 2.0):
        graph = kb.Graph(1, [], [], node={"x": [feature]})
        encoded = encoder.encode([graph, Packet()])
        assert encoded.graphs.node["x"].tolist() == [feature]


@pytest.mark.parametrize("method", EXPLAIN)
@pytest.mark.parametrize("name", ["GraphClassifier", "NodeClassifier", "NodeSelector"])
def test_explanations_are_of_the_item(name, method):
    task, items, graphs = packed(name)
    call = _explain(method, **EXPLAIN[method])
    same(call(task, items), spread(call(task, graphs)))
    # Rows that are asked for are numbered alike.
    asked = [0] * len(items)
    index = asked if name == "NodeClassifier" else None
    one = getattr(kb.explain, method)(task, items, asked, index, **EXPLAIN[method])
    for item, explanation in zip(items, one, strict=True):
        assert (explanation is None) == (item.graph is None)
        assert explanation is None or explanation.source is item
    if method == "saliency":
        level = "node"
        assert 0 <= kb.explain.sparsity(one, level=level) <= 1
        truth = [
            None if item.graph is None else np.arange(item.graph.num_nodes) == 0
            for item in items
        ]
        areas = kb.explain.ground_truth_auc(one, truth, level)
        np.testing.assert_array_equal(np.flatnonzero(np.isnan(areas)), BROKEN)
        alike = kb.explain.randomization_check(
            task, items, kb.explain.saliency, level, index=index
        )
        np.testing.assert_array_equal(np.flatnonzero(np.isnan(alike)), BROKEN)
        assert 0 <= kb.explain.fidelity(task, one, 0.5, level).plus <= 1


def test_nothing_that_can_be_converted():
    task, items, _ = packed("GraphClassifier")
    nothing = [Packet(), Packet()]
    calls = [call for name, call in METHODS.items() if hasattr(task, name)]
    for call in (*calls, *map(_explain, EXPLAIN)):
        assert call(task, nothing) == [None, None]
    with pytest.raises(ValueError, match="at least one item"):
        task.errors(nothing)


def test_spreads_of_ensembles_and_posteriors():
    task, items, graphs = packed("GraphRegressor")
    other = task_samples.task_of("GraphRegressor", "GATBackbone")
    other.preprocessor = task.preprocessor
    ensemble = kb.models.Ensemble([task, other])
    for rows, expected in zip(
        ensemble.predict_spread(items), ensemble.predict_spread(graphs), strict=True
    ):
        same(rows, spread(expected))
    posterior = kb.models.LastLayerLaplace(task).fit(items)
    assert [row is None for row in posterior.predict(items)] == [
        item.graph is None for item in items
    ]
