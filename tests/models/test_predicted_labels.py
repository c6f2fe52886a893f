"""Probabilities, classes by name, and tables of errors."""

import keras
import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.models import (
    EdgeClassifier,
    GCNBackbone,
    GGNNBackbone,
    GraphClassifier,
    GraphRegressor,
    NodeClassifier,
    NodeRegressor,
    NodeSelector,
)
from keras_bandgnn.preprocessing import GraphPreprocessor, RCMKCompile, StaticBatcher

NAMES = ["red", "green", "blue"]


def graphs_of(level="graph", count=6, seed=0, label=None):
    rng = np.random.default_rng(seed)
    graphs = []
    for number in range(count):
        nodes = int(rng.integers(3, 7))
        rows = {"graph": 1, "node": nodes, "edge": 2 * nodes}[level]
        values = rng.integers(-1, 3, rows) if label is None else label(rng, rows)
        if level == "graph":
            values = number % 4 - 1 if label is None else values[0]
        graphs.append(
            Graph(
                nodes,
                *rng.integers(0, nodes, (2, 2 * nodes)),
                node={"kind": rng.integers(0, 4, nodes)},
                label=values,
                label_level=level,
            )
        )
    return graphs


def task_of(cls, outputs=3, **options):
    keras.utils.set_random_seed(0)
    preprocessor = GraphPreprocessor([RCMKCompile(4)], StaticBatcher(3))
    return cls(GCNBackbone({"kind": 4}, 8), outputs, preprocessor, **options)


CLASSIFIERS = {"graph": GraphClassifier, "node": NodeClassifier, "edge": EdgeClassifier}


def softmax(z):
    z = np.exp(np.float64(z) - np.float64(z).max(axis=-1, keepdims=True))
    return z / z.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("level", CLASSIFIERS)
def test_probabilities_and_classes(level):
    graphs = graphs_of(level)
    task = task_of(CLASSIFIERS[level], class_names=NAMES)
    plain = task_of(CLASSIFIERS[level])
    logits, shares = task.predict(graphs), task.predict_proba(graphs)
    classes, numbers = task.predict_labels(graphs), plain.predict_labels(graphs)
    for z, share, name, number in zip(logits, shares, classes, numbers, strict=True):
        np.testing.assert_allclose(share, softmax(z), atol=1e-6)
        np.testing.assert_array_equal(number, z.argmax(axis=-1))
        assert np.array_equal(name, np.array(NAMES, object)[z.argmax(axis=-1)])
    assert level != "graph" or isinstance(classes[0], str)
    assert level != "graph" or isinstance(numbers[0], int)
    many = task_of(CLASSIFIERS[level], multi_label=True, class_names=NAMES)
    z, shares = many.predict(graphs)[0], many.predict_proba(graphs)[0]
    np.testing.assert_allclose(shares, 1 / (1 + np.exp(-z)), atol=1e-6)
    np.testing.assert_array_equal(many.predict_labels(graphs)[0], z > 0)
    # Of a batch, as from Keras.
    x = task.loader(graphs)[0][0]
    np.testing.assert_allclose(
        task.predict_proba(x, verbose=0), softmax(task.predict(x, verbose=0)), atol=1e-6
    )


def test_names_are_saved_and_follow_the_head(tmp_path):
    graphs = graphs_of()
    task = task_of(GraphClassifier, class_names=NAMES)
    task.save_to_preset(tmp_path / "preset")
    again = GraphClassifier.from_preset(tmp_path / "preset")
    assert again.predict_labels(graphs) == task.predict_labels(graphs)
    assert again.head_config() == task.head_config()
    # New names leave the weights.
    other = GraphClassifier.from_preset(tmp_path / "preset", class_names=list("abc"))
    np.testing.assert_allclose(other.predict(graphs), task.predict(graphs), atol=1e-5)
    assert set(other.predict_labels(graphs)) <= {*"abc"}
    fewer = GraphClassifier.from_preset(tmp_path / "preset", num_classes=2)
    assert fewer.class_names is None
    # Files of tasks without names are as before.
    assert task_of(NodeClassifier).head_config() == {"num_classes": 3}
    many = task_of(NodeClassifier, multi_label=True)
    many.save_to_preset(tmp_path / "many")
    assert NodeClassifier.from_preset(tmp_path / "many").multi_label
    one = NodeClassifier.from_preset(tmp_path / "many", multi_label=False)
    assert not one.multi_label
    for names in (["a", "b"], ["a", "a", "b"]):
        with pytest.raises(ValueError, match="`class_names` to be 3 distinct names"):
            task_of(GraphClassifier, class_names=names)


def test_errors_of_classes_of_graphs():
    graphs = graphs_of(count=9)
    task = task_of(GraphClassifier, class_names=NAMES)
    table = task.errors(graphs)
    known = [n for n, graph in enumerate(graphs) if graph.label >= 0]
    assert 2 < len(known) < 9
    assert list(table) == ["graph", "label", "prediction", "probability", "loss"]
    np.testing.assert_array_equal(table["graph"], known)
    shares = softmax(task.predict(graphs))
    label = np.array([int(graphs[n].label) for n in known])
    np.testing.assert_allclose(table["probability"], shares[known, label], atol=1e-6)
    np.testing.assert_allclose(table["loss"], -np.log(shares[known, label]), atol=1e-5)
    assert list(table["label"]) == [NAMES[i] for i in label]
    assert list(table["prediction"]) == [task.predict_labels(graphs)[n] for n in known]
    mean = task.evaluate(graphs, verbose=0, return_dict=True)
    assert table["loss"].mean() == pytest.approx(mean["loss"], rel=1e-4)


@pytest.mark.parametrize("level", ["node", "edge"])
def test_errors_of_nodes_and_edges(level):
    graphs = graphs_of(level)
    task = task_of(CLASSIFIERS[level])
    table = task.errors(graphs)
    assert list(table) == ["graph", "labels", "accuracy", "loss"]
    for n, graph in enumerate(graphs):
        known = graph.label >= 0
        right = task.predict_labels(graphs)[n] == graph.label
        assert table["labels"][n] == known.sum()
        assert table["accuracy"][n] == pytest.approx(right[known].mean())
    out = task.evaluate(graphs, verbose=0, return_dict=True)
    total = np.average(table["loss"], weights=table["labels"])
    assert total == pytest.approx(out["loss"], rel=1e-4)
    many = task_of(CLASSIFIERS[level], multi_label=True)
    targets = [g.replace(label=np.eye(4)[g.label][:, :3]) for g in graphs]
    table, out = many.errors(targets), many.evaluate(targets, verbose=0)
    total = np.average(table["loss"], weights=table["labels"])
    assert total == pytest.approx(out[0], rel=1e-4)


def test_errors_of_numbers():
    graphs = graphs_of(label=lambda rng, rows: rng.normal(size=rows))
    task = task_of(GraphRegressor, 1)
    table = task.errors(graphs)
    values = np.ravel(task.predict(graphs))
    label = np.array([float(graph.label) for graph in graphs])
    np.testing.assert_allclose(table["prediction"], values, atol=1e-6)
    np.testing.assert_allclose(table["error"], values - label, atol=1e-6)
    two = [
        g.replace(label=[g.label, np.nan if n % 2 else 1.0])
        for n, g in enumerate(graphs)
    ]
    names = ["x", "y"]
    table = task_of(GraphRegressor, 2, target_names=names).errors(two)
    columns = ("label", "prediction", "error")
    assert list(table) == ["graph", *(f"{n}_{c}" for n in names for c in columns)]
    np.testing.assert_array_equal(np.isnan(table["y_error"]), [0, 1] * 3)
    assert "target_1_error" in task_of(GraphRegressor, 2).errors(two)

    def label(rng, rows):
        values = rng.normal(size=rows)
        values[0] = np.nan
        return values

    graphs = graphs_of("node", label=label)
    task = task_of(NodeRegressor, 1)
    table = task.errors(graphs)
    pairs = zip(task.predict(graphs), graphs, strict=True)
    error = [rows[1:, 0] - graph.label[1:] for rows, graph in pairs]
    mae = [np.abs(e).mean() for e in error]
    np.testing.assert_allclose(table["mae"], mae, rtol=1e-4)
    rmse = [np.sqrt((e**2).mean()) for e in error]
    np.testing.assert_allclose(table["rmse"], rmse, rtol=1e-4)
    assert table["labels"].tolist() == [g.num_nodes - 1 for g in graphs]


def test_errors_of_labels_beside():
    for level, cls in CLASSIFIERS.items():
        graphs, task = graphs_of(level), task_of(cls)
        labels = [graph.label for graph in graphs]
        bare = [g.replace(label=None, label_level="graph") for g in graphs]
        if level == "graph":
            labels = np.array(labels)
        expected, table = task.errors(graphs), task.errors(bare, labels)
        for name, column in expected.items():
            np.testing.assert_allclose(table[name], column, atol=1e-6)


def test_probabilities_and_errors_of_a_selection():
    rng = np.random.default_rng(0)
    graphs = []
    for number in range(7):
        nodes, count = 4 + number % 3, 2 + number % 2
        graphs.append(
            Graph(
                nodes,
                *rng.integers(0, nodes, (2, 2 * nodes)),
                node={"kind": np.r_[0, 1, 2, rng.integers(0, 4, nodes - 3)]},
                candidates=range(count),
                label=number % count,
            )
        )
    keras.utils.set_random_seed(0)
    backbone = GGNNBackbone({"kind": 4}, 8, num_steps=1, num_edge_types=1)
    preprocessor = GraphPreprocessor([], StaticBatcher(3))
    task = NodeSelector(backbone, preprocessor, label_smoothing=0.1)
    logits, shares = task.predict(graphs), task.predict_proba(graphs)
    assert [len(share) for share in shares] == [len(g.candidates) for g in graphs]
    for z, share in zip(logits, shares, strict=True):
        np.testing.assert_allclose(share, softmax(z), atol=1e-6)
    table = task.errors(graphs)
    label = [int(graph.label) for graph in graphs]
    assert table["graph"].tolist() == list(range(7))
    assert table["label"].tolist() == label
    assert table["prediction"].tolist() == [int(z.argmax()) for z in logits]
    right = [share[k] for share, k in zip(shares, label, strict=True)]
    np.testing.assert_allclose(table["probability"], right, atol=1e-6)
    np.testing.assert_allclose(table["loss"], -np.log(right), atol=1e-5)
    task.compile("sgd", "sparse_categorical_crossentropy")
    loss = task.evaluate(graphs, verbose=0, return_dict=True)["loss"]
    assert table["loss"].mean() == pytest.approx(loss, rel=1e-4)
    # Of a batch the candidates that pad it have no share.
    x = task.loader(graphs)[0][0]
    share = task.predict_proba(x, verbose=0)
    assert (share[~x["candidate"]["mask"] & x["graph"]["mask"][..., None]] == 0).all()
    bare = [graph.replace(label=None) for graph in graphs]
    other = task.errors(bare, label)
    np.testing.assert_allclose(other["loss"], table["loss"], atol=1e-6)


def test_errors_as_a_frame():
    pandas = pytest.importorskip("pandas")
    task, graphs = task_of(GraphClassifier, class_names=NAMES), graphs_of()
    frame = task.errors(graphs, as_frame=True)
    assert isinstance(frame, pandas.DataFrame)
    assert frame["label"].isin(NAMES).all()
    with pytest.raises(ValueError, match="to have labels"):
        task.errors([g.replace(label=None) for g in graphs])
    with pytest.raises(ValueError, match="labels of graphs"):
        task.errors(graphs_of("node"))
