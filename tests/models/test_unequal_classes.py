"""Ordered and rare classes: ordinal tasks, focal losses and balanced weights."""

import keras
import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.models import (
    EdgeClassifier,
    GCNBackbone,
    GraphClassifier,
    GraphRegressor,
    NodeClassifier,
    Task,
)
from keras_bandgnn.preprocessing import DynamicBatcher, GraphPreprocessor

# Losses of every task are compared with NumPy on every backend in
# test_keras_numbers.py.
CLASSES = {"graph": GraphClassifier, "node": NodeClassifier, "edge": EdgeClassifier}
STILL = keras.optimizers.SGD


def graphs_of(level="graph", count=7, classes=3, seed=0):
    """Graphs of several sizes; some labels are unknown."""
    rng = np.random.default_rng(seed)
    graphs = []
    for number in range(count):
        nodes = int(rng.integers(2, 6))
        rows = {"graph": 1, "node": nodes, "edge": 2 * nodes}[level]
        label = rng.integers(-1, classes, rows)
        if level == "graph":
            label = number % (classes + 1) - 1
        graphs.append(
            Graph(
                nodes,
                *rng.integers(0, nodes, (2, 2 * nodes)),
                node={"kind": rng.integers(0, 4, nodes), "train": np.arange(nodes) > 0},
                label=label,
                label_level=level,
            )
        )
    return graphs


def task_of(level="graph", classes=3, **options):
    keras.utils.set_random_seed(0)
    preprocessor = GraphPreprocessor([], DynamicBatcher(2))
    return CLASSES[level](GCNBackbone({"kind": 4}, 8), classes, preprocessor, **options)


def known_rows(task, graphs):
    """Probabilities and classes of all known labels, [n, C] and [n]."""
    shares = [np.atleast_2d(rows) for rows in task.predict_proba(graphs)]
    label = np.concatenate([np.atleast_1d(graph.label) for graph in graphs])
    known = label >= 0
    assert 0 < known.sum() < len(label)
    return np.float64(np.concatenate(shares))[known], label[known]


def loss_of(task, graphs, **options):
    return task.evaluate(graphs, verbose=0, return_dict=True, **options)["loss"]


@pytest.mark.parametrize("level", CLASSES)
def test_focal_losses_against_numpy(level):
    graphs, task = graphs_of(level), task_of(level)
    shares, label = known_rows(task, graphs)
    right = shares[np.arange(len(label)), label]
    focal = -np.log(right) * (1 - right) ** 2
    alpha = [0.2, 0.3, 0.5]
    for loss, expected in (
        ("categorical_focal_crossentropy", 0.25 * focal),
        (
            keras.losses.CategoricalFocalCrossentropy(alpha, 2.0, from_logits=True),
            np.array(alpha)[label] * focal,
        ),
    ):
        task.compile("sgd", loss, metrics=["categorical_focal_crossentropy"])
        logs = task.evaluate(graphs, verbose=0, return_dict=True)
        assert logs["loss"] == pytest.approx(expected.mean(), rel=1e-5)
        metric = logs["categorical_focal_crossentropy"]
        assert metric == pytest.approx(0.25 * focal.mean(), rel=1e-5)


def test_binary_focal_loss_of_two_classes(tmp_path):
    graphs, task = graphs_of(classes=2), task_of(classes=2)
    shares, label = known_rows(task, graphs)
    right = shares[np.arange(len(label)), label]
    weight = np.where(label == 1, 0.75, 0.25)
    loss = keras.losses.BinaryFocalCrossentropy(
        apply_class_balancing=True, alpha=0.75, gamma=1.5, from_logits=True
    )
    task.compile(STILL(0.0), loss)
    expected = -(weight * np.log(right) * (1 - right) ** 1.5).mean()
    history = task.fit(graphs, verbose=0).history
    assert history["loss"][0] == pytest.approx(expected, rel=1e-5)
    task.save(tmp_path / "task.keras")
    again = keras.saving.load_model(tmp_path / "task.keras")
    assert loss_of(again, graphs) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="from_logits=True in the loss"):
        task.compile("sgd", keras.losses.BinaryFocalCrossentropy())
    for loss in ("binary_focal_crossentropy", "binary_crossentropy"):
        with pytest.raises(ValueError, match="Expected a loss for labels"):
            task_of().compile("sgd", loss)


@pytest.mark.parametrize("level", CLASSES)
def test_balanced_weights_are_those_of_scikit_learn(level):
    graphs = graphs_of(level)
    task = task_of(level)
    task.compile(STILL(0.0))
    shares, label = known_rows(task, graphs)
    weight = len(label) / (3 * np.bincount(label))[label]
    losses = -np.log(shares[np.arange(len(label)), label])
    history = task.fit(graphs, class_weight="balanced", verbose=0).history
    assert history["loss"][0] == pytest.approx((weight * losses).mean(), rel=1e-5)
    weights = np.bincount(label, weight)
    np.testing.assert_allclose(weights, len(label) / 3)


def test_balanced_weights_count_what_the_mask_selects():
    graphs, task = graphs_of("node"), task_of("node")
    task.compile(STILL(0.0))
    selected = [
        g.replace(label=np.where(g.node["train"] == 1, g.label, -1)) for g in graphs
    ]
    shares, label = known_rows(task, selected)
    weight = len(label) / (3 * np.bincount(label))[label]
    losses = -np.log(shares[np.arange(len(label)), label])
    history = task.fit(
        graphs,
        mask="train",
        validation_mask="train",
        class_weight="balanced",
        verbose=0,
    ).history
    assert history["loss"][0] == pytest.approx((weight * losses).mean(), rel=1e-5)
    # As in Keras, weights of classes are for training alone.
    assert history["val_loss"][0] == pytest.approx(losses.mean(), rel=1e-5)


def test_wrong_balanced_weights():
    graphs = graphs_of()
    with pytest.raises(ValueError, match="`class_weight` to be one of 'balanced'"):
        task_of().fit(graphs, class_weight="equal", verbose=0)
    numbers = [graph.replace(label=1.0) for graph in graphs]
    task = GraphRegressor(GCNBackbone({"kind": 4}, 8))
    with pytest.raises(ValueError, match="labels of one class each.*'balanced'"):
        task.fit(numbers, class_weight="balanced", verbose=0)


@pytest.mark.parametrize("level", CLASSES)
def test_ordered_classes(level, tmp_path):
    names = ["low", "middle", "high"]
    graphs, task = graphs_of(level), task_of(level, ordinal=True, class_names=names)
    shares, label = known_rows(task, graphs)
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)
    (score, *_), (steps,) = task.head.get_weights(), task.link.get_weights()
    assert score.shape[-1] == 1 or level != "node"
    assert steps.shape == (2,)
    losses = -np.log(shares[np.arange(len(label)), label])
    assert loss_of(task, graphs) == pytest.approx(losses.mean(), rel=1e-5)
    table = task.errors(graphs)
    many = np.atleast_1d(table.get("labels", np.ones(len(table["loss"]))))
    mean = np.average(table["loss"], weights=many)
    assert mean == pytest.approx(losses.mean(), rel=1e-5)
    task.fit(graphs, class_weight="balanced", verbose=0)
    assert (task.link.get_weights()[0] != steps).all()
    task.save_to_preset(tmp_path / "preset")
    again = Task.from_preset(tmp_path / "preset")
    for one, other in zip(again.predict(graphs), task.predict(graphs), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert again.ordinal
    plain = type(task).from_preset(tmp_path / "preset", ordinal=False)
    assert plain.link is None and "ordinal" not in plain.head_config()


def test_ordered_classes_are_learnt_from_one_score():
    """Grades by the number of nodes: a score that grows, and thresholds between."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 13, 60)
    graphs = [
        Graph(n, [0], [0], node={"kind": [1] * n}, label=min((n - 1) // 3, 3))
        for n in sizes.tolist()
    ]
    keras.utils.set_random_seed(0)
    task = GraphClassifier(GCNBackbone({"kind": 4}, 8), 4, readout="sum", ordinal=True)
    task.compile(keras.optimizers.Adam(0.05))
    task.fit(graphs, epochs=40, verbose=0)
    found = np.array(task.predict_labels(graphs))
    label = np.array([int(graph.label) for graph in graphs])
    assert (found == label).mean() > 0.85 and np.abs(found - label).max() <= 1
    thresholds = keras.ops.convert_to_numpy(task.link.thresholds())
    assert (np.diff(thresholds) > 0).all()


def test_ordered_targets_are_refused():
    with pytest.raises(ValueError, match="with ordinal=True.*multi_label=True"):
        task_of(ordinal=True, multi_label=True)
