"""Several targets with losses, weights and metrics of their own, against NumPy."""

import keras
import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.models import (
    EdgeRegressor,
    GCNBackbone,
    GraphClassifier,
    GraphRegressor,
    NodeClassifier,
    NodeRegressor,
    Task,
)
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphPreprocessor,
    StaticBatcher,
    TargetNormalizer,
)

# Losses and metrics of every task are tested on every backend in test_keras_numbers.py.
NAMES = ["gap", "dipole", "charge"]
STD = [2.0, 0.5, 4.0]
LEVELS = {"graph": GraphRegressor, "node": NodeRegressor, "edge": EdgeRegressor}


def graphs_of(level="graph", count=7, seed=0, targets=3):
    """Graphs with labels of several targets, of which some are missing."""
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        nodes = int(rng.integers(2, 6))
        rows = {"graph": 1, "node": nodes, "edge": 2 * nodes}[level]
        label = rng.normal(size=(rows, targets))
        label[rng.uniform(size=label.shape) < 0.4] = np.nan
        graphs.append(
            Graph(
                nodes,
                *rng.integers(0, nodes, (2, 2 * nodes)),
                node={"kind": rng.integers(0, 4, nodes)},
                label=label[0] if level == "graph" else label,
                label_level=level,
            )
        )
    return graphs


def task_of(level="graph", batcher=None, **options):
    keras.utils.set_random_seed(0)
    backbone = GCNBackbone({"kind": 4}, 8)
    normalizer = TargetNormalizer(level, mean=[0.0, 1.0, -1.0], std=STD)
    options = {"normalizer": normalizer, "target_names": NAMES, **options}
    preprocessor = GraphPreprocessor([], batcher or DynamicBatcher(2))
    return LEVELS[level](backbone, 3, preprocessor, **options)


def rows_of(task, graphs):
    """Predictions and labels of all graphs, [n, 3]."""
    rows = [np.float64(r).reshape(-1, 3) for r in task.predict(graphs)]
    labels = [np.float64(g.label).reshape(-1, 3) for g in graphs]
    return np.concatenate(rows), np.concatenate(labels)


def means(values, known):
    return np.array([v[k].mean() for v, k in zip(values.T, known.T, strict=True)])


LOSSES = {"gap": "mae", "dipole": "mse", "charge": keras.losses.Huber(0.5)}
FACTORS = {"gap": 2.0, "charge": 0.25}


def expected(task, graphs):
    rows, labels = rows_of(task, graphs)
    known = ~np.isnan(labels)
    error = (rows - labels) / STD
    small = np.abs(error) <= 0.5
    huber = np.where(small, 0.5 * error**2, 0.5 * np.abs(error) - 0.125)
    gap, dipole, charge = (means(v, known) for v in (np.abs(error), error**2, huber))
    mae = means(np.abs(rows - labels), known)
    return {
        "loss": 2.0 * gap[0] + dipole[1] + 0.25 * charge[2],
        "gap_loss": gap[0],
        "dipole_loss": dipole[1],
        "charge_loss": charge[2],
        "gap_mae": mae[0],
        "charge_mae": mae[2],
        "charge_rmse": np.sqrt(means((rows - labels) ** 2, known)[2]),
    }


METRICS = {"charge": ["mae", "rmse"], "gap": "mae"}


@pytest.mark.parametrize("level", LEVELS)
def test_logs_equal_numpy(level):
    graphs, valid = graphs_of(level), graphs_of(level, 3, seed=1)
    task = task_of(level)
    # With a rate of 0 all steps have the same weights.
    task.compile(keras.optimizers.SGD(0.0), LOSSES, FACTORS, METRICS)
    if level != "graph":
        out = task.evaluate(graphs, verbose=0, return_dict=True)
        assert out == pytest.approx(expected(task, graphs), rel=1e-4)
        return
    numbers = [expected(task, data) for data in (graphs, valid)]
    history = task.fit(graphs, validation_data=valid, epochs=1, verbose=0).history
    logs = {name: values[0] for name, values in history.items()}
    assert logs == pytest.approx(
        {**numbers[0], **{f"val_{name}": v for name, v in numbers[1].items()}},
        rel=1e-4,
    )
    # As a list, and by any batch.
    task.preprocessor = GraphPreprocessor([], StaticBatcher(len(valid)))
    losses, factors = list(LOSSES.values()), [2.0, 1.0, 0.25]
    task.compile(keras.optimizers.SGD(0.0), losses, factors, METRICS)
    (batch,) = list(task.loader(valid))
    out = task.test_on_batch(*batch, return_dict=True)
    assert out == pytest.approx(numbers[1], rel=1e-4)


def test_weights_alone_and_one_loss():
    graphs = graphs_of()
    task = task_of()
    rows, labels = rows_of(task, graphs)
    known = ~np.isnan(labels)
    squares = ((rows - labels) / STD) ** 2
    task.preprocessor = GraphPreprocessor([], StaticBatcher(len(graphs)))
    (batch,) = list(task.loader(graphs))
    x, y, weight = keras.tree.map_structure(keras.ops.convert_to_tensor, batch)
    outputs = task(x)
    for weights, loss in (
        (None, squares[known].mean()),
        (0.5, 0.5 * squares[known].mean()),
        ([1.0, 0.0, 2.0], means(squares, known) @ [1.0, 0.0, 2.0]),
        ({"gap": 3.0}, means(squares, known) @ [3.0, 1.0, 1.0]),
    ):
        for given in (["mse"], "auto"):
            task.compile("sgd", given, weights)
            value = task.compute_loss(x, y, outputs, weight)
            assert np.float64(keras.ops.convert_to_numpy(value)) == pytest.approx(
                loss, rel=1e-4
            )
    out = task.evaluate(graphs, verbose=0, return_dict=True)
    assert set(out) == {
        "loss",
        "mae",
        "rmse",
        *(f"{name}_{each}" for name in NAMES for each in ("loss", "mae")),
    }
    # In a list the loss is first, as ever.
    values = task.evaluate(graphs, verbose=0)
    assert values[0] == pytest.approx(out["loss"]) and len(values) == len(out)


def test_a_target_without_labels_adds_nothing():
    graphs = graphs_of()
    graphs = [g.replace(label=g.label * [1.0, np.nan, 1.0]) for g in graphs]
    task = task_of()
    task.compile("adam", LOSSES, metrics=METRICS)
    before = task.get_weights()
    history = task.fit(graphs, epochs=2, verbose=0).history
    assert np.isfinite([v for values in history.values() for v in values]).all()
    assert any((a != b).any() for a, b in zip(before, task.get_weights(), strict=True))
    assert all(np.isfinite(w).all() for w in task.get_weights())


def test_files_keep_names_and_losses(tmp_path):
    graphs = graphs_of()
    task = task_of()
    task.compile("adam", LOSSES, FACTORS, METRICS)
    task.fit(graphs, epochs=1, verbose=0)
    out = task.evaluate(graphs, verbose=0, return_dict=True)
    task.save(tmp_path / "task.keras")
    again = keras.saving.load_model(tmp_path / "task.keras")
    assert again.evaluate(graphs, verbose=0, return_dict=True) == pytest.approx(out)
    task.save_to_preset(tmp_path / "preset")
    again = Task.from_preset(tmp_path / "preset")
    assert again.target_names == tuple(NAMES)
    np.testing.assert_allclose(again.predict(graphs), task.predict(graphs), atol=1e-5)
    fewer = GraphRegressor.from_preset(tmp_path / "preset", num_targets=2)
    assert fewer.target_names is None and not fewer.normalizer.is_adapted
    other = GraphRegressor.from_preset(tmp_path / "preset", target_names=list("abc"))
    np.testing.assert_allclose(other.predict(graphs), task.predict(graphs), atol=1e-5)


def test_targets_that_are_yes_or_no():
    graphs = graphs_of()
    label = [np.where(np.isnan(g.label), np.nan, g.label > 0) for g in graphs]
    graphs = [g.replace(label=row) for g, row in zip(graphs, label, strict=True)]
    keras.utils.set_random_seed(0)
    options = {"multi_label": True, "class_names": NAMES}
    task = GraphClassifier(GCNBackbone({"kind": 4}, 8), 3, **options)
    loss = {name: "binary_crossentropy" for name in NAMES}
    task.compile("sgd", loss, {"gap": 0.0}, {"gap": ["accuracy", "AUC"]})
    out = task.evaluate(graphs, verbose=0, return_dict=True)
    z, y = rows_of(task, graphs)
    known = ~np.isnan(y)
    losses = means(np.logaddexp(0, z) - np.where(known, y, 0.0) * z, known)
    assert out["loss"] == pytest.approx(losses[1] + losses[2], rel=1e-4)
    right = ((z > 0) == (y > 0))[:, 0][known[:, 0]]
    assert out["gap_accuracy"] == pytest.approx(right.mean(), rel=1e-5)
    assert 0 <= out["gap_AUC"] <= 1
    # A loss of weight 0 is not logged.
    assert "gap_loss" not in out
    assert out["dipole_loss"] == pytest.approx(losses[1], rel=1e-4)


def test_wrong_arguments():
    task, plain = task_of(), task_of(target_names=None)
    for wrong, arguments, message in (
        (task, {"loss": ["mae", "mse"]}, "one for all 3 targets, or a list of 3"),
        (task, {"loss": {"gap": "mae"}}, "the targets.*as its keys.*Received"),
        (task, {"loss": {**LOSSES, "other": "mae"}}, "the targets.*as its keys"),
        (plain, {"loss": LOSSES}, "targets with names.*target_names="),
        (task, {"loss_weights": [1.0, 2.0]}, "loss_weights.*one for all 3 targets"),
        (task, {"loss_weights": {"gap": "x", "dipole": 1}}, "loss_weights"),
        (task, {"metrics": {"other": "mae"}}, "by name of a target.*Received"),
        (task, {"loss": ["mae", "mse", "bce"]}, "labels that are numbers"),
        (
            task,
            {"loss": [keras.losses.MeanSquaredError(reduction="sum")] * 3},
            "means over their labels",
        ),
    ):
        with pytest.raises(ValueError, match=f"(?s)Expected.*{message}"):
            wrong.compile("adam", **arguments)
    with pytest.raises(ValueError, match="`target_names` to be 3 distinct names"):
        task_of(target_names=["gap", "gap", "charge"])
    with pytest.raises(ValueError, match="one loss, as a task has one output"):
        NodeClassifier(GCNBackbone({"kind": 4}, 8), 2).compile("adam", ["ce", "ce"])
    with pytest.raises(ValueError, match="of labels of nodes.*'node'"):
        task_of("node", normalizer=TargetNormalizer("atom"))
