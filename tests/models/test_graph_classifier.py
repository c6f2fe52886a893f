import json

import keras
import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.layers import GraphReadout, GRUReadout
from keras_bandgnn.models import GCNBackbone, GraphClassifier, Task
from keras_bandgnn.preprocessing import DynamicBatcher, GraphPreprocessor
from tests.oracles.convolutions import cross_entropy

READOUTS = {
    "mean": lambda: "mean",
    "sum": lambda: "sum",
    "attention": lambda: "attention",
    "gru": lambda: GRUReadout(8),
}


def molecules(count, seed=0):
    """Rings and paths of 3 to 9 nodes; the class is 1 with more nodes 0 than 1."""
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        n = int(rng.integers(3, 10))
        a = np.arange(n - rng.integers(2))
        b = (a + 1) % n
        kind = rng.integers(0, 3, n)
        graphs.append(
            Graph(
                n,
                np.concatenate([a, b]),
                np.concatenate([b, a]),
                node={"kind": kind},
                label=int((kind == 0).sum() > (kind == 1).sum()),
            )
        )
    return graphs


def task_of(num_classes=2, readout="mean", batch_size=16, **options):
    keras.utils.set_random_seed(0)
    backbone = GCNBackbone({"kind": 3}, hidden_dim=8)
    preprocessor = GraphPreprocessor(batcher=DynamicBatcher(batch_size - 1))
    return GraphClassifier(
        backbone, num_classes, preprocessor, readout=readout, **options
    )


def with_labels(graphs, labels):
    columns = FlatGraphs.from_graphs(graphs).columns()
    return FlatGraphs.from_columns({**columns, "label/graph": np.asarray(labels)})


@pytest.mark.release
def test_it_learns_and_reports():
    train, test = molecules(200), molecules(60, seed=1)
    task = task_of(readout=GRUReadout(8))
    task.compile(keras.optimizers.Adam(0.01))
    history = task.fit(train, validation_data=test, epochs=40, verbose=0).history
    logits = np.array(task.predict(test))
    labels = np.array([int(g.label) for g in test])
    accuracy = (logits.argmax(axis=1) == labels).mean()
    assert accuracy > 0.9
    out = task.evaluate(test, verbose=0, return_dict=True)
    assert out["accuracy"] == pytest.approx(accuracy)
    assert history["val_accuracy"][-1] == pytest.approx(accuracy)
    one = task.evaluate(test[:9], verbose=0, return_dict=True)
    expected = cross_entropy(logits[:9].astype("float64"), labels[:9]) / 9
    assert one["loss"] == pytest.approx(expected, rel=1e-3)


def test_missing_classes_count_nowhere():
    graphs = molecules(20)
    labels = np.array([float(g.label) for g in graphs], "float32")
    labels[::4], labels[1::4] = np.nan, -1
    task = task_of(batch_size=30)
    out = task.evaluate(with_labels(graphs, labels), verbose=0, return_dict=True)
    known = labels >= 0
    logits = np.array(task.predict(graphs), "float64")[known]
    truth = labels[known].astype(int)
    assert out["loss"] == pytest.approx(cross_entropy(logits, truth) / 10, rel=1e-4)
    assert out["accuracy"] == pytest.approx((logits.argmax(axis=1) == truth).mean())


def test_several_targets_with_missing_labels():
    graphs = molecules(60)
    rng = np.random.default_rng(0)
    first = np.array([int(g.label) for g in graphs])
    even = np.array([g.num_nodes % 2 for g in graphs])
    labels = np.stack([first, even, np.ones(60)], axis=1).astype("float32")
    labels[rng.uniform(size=labels.shape) < 0.3] = np.nan
    labels[:5] = np.nan
    flat = with_labels(graphs, labels)
    task = task_of(3, multi_label=True, batch_size=80)
    spread = [10.0 * w for w in task.head.get_weights()]
    task.head.set_weights(spread)
    out = task.evaluate(flat, verbose=0, return_dict=True)
    logits = np.array(task.predict(flat), "float64")
    known = ~np.isnan(labels)
    losses = np.logaddexp(0, logits) - np.where(known, labels, 0) * logits
    assert out["loss"] == pytest.approx(losses[known].mean(), rel=1e-4)
    right = ((logits > 0) == labels)[known].mean()
    assert out["accuracy"] == pytest.approx(right, rel=1e-5)
    areas = []
    for column in (0, 1):  # The third has no negative graph.
        # Graphs of the same nodes differ by rounding alone.
        own = logits[:, column].round(3)
        wins = np.sign(
            own[labels[:, column] == 1][:, None] - own[labels[:, column] == 0]
        )
        areas.append((wins + 1).mean() / 2)
    assert out["roc_auc"] == pytest.approx(np.mean(areas), abs=5e-3)
    task.compile(keras.optimizers.SGD(0.1))
    history = task.fit(flat, epochs=2, verbose=0).history
    # Graphs without any label change nothing.
    other = task_of(3, multi_label=True, batch_size=80)
    other.head.set_weights(spread)
    other.compile(keras.optimizers.SGD(0.1))
    kept = other.fit(flat.take(np.arange(5, 60)), epochs=2, verbose=0).history
    np.testing.assert_allclose(kept["loss"], history["loss"], rtol=1e-4)


@pytest.mark.parametrize("name", READOUTS)
def test_preset_round_trip(name, tmp_path):
    graphs = molecules(20)
    task = task_of(3, READOUTS[name](), multi_label=True)
    labels = np.stack([[int(g.label), 0, 1] for g in graphs]).astype("float32")
    task.fit(with_labels(graphs, labels), epochs=1, verbose=0)
    expected = task.predict(graphs)
    task.save_to_preset(tmp_path / "preset")
    again = Task.from_preset(tmp_path / "preset")
    assert again.head_config() == task.head_config()
    assert again.multi_label
    np.testing.assert_allclose(again.predict(graphs), expected, atol=1e-5)
    task.save(tmp_path / "task.keras")
    again = keras.saving.load_model(tmp_path / "task.keras")
    np.testing.assert_allclose(again.predict(graphs), expected, atol=1e-5)


def test_a_preset_names_registered_layers_only(tmp_path):
    task = task_of(readout=GRUReadout(8))
    task.save_to_preset(tmp_path / "preset")
    path = tmp_path / "preset" / "task.json"
    entry = json.loads(path.read_text())
    entry["config"]["readout"] = {"registered_name": "os>system", "config": {}}
    path.write_text(json.dumps(entry))
    with pytest.raises(ValueError, match="a registered layer.*'os>system'"):
        Task.from_preset(tmp_path / "preset")


def test_a_readout_of_any_width_fits():
    task = task_of(readout=GraphReadout(5, "mean"))
    assert task.head.output_dense.kernel.shape == (5, 2)
    assert task.predict(molecules(3))[0].shape == (2,)


def test_bad_input_is_refused_before_training():
    good = molecules(6)
    many = task_of(2, multi_label=True)
    for task, graphs, message in (
        (task_of(), [g.replace(label=None) for g in good], "to have labels"),
        (
            task_of(),
            [g.replace(label=[0] * g.num_nodes, label_level="node") for g in good],
            "labels of graphs for GraphClassifier.*labels of nodes",
        ),
        (
            task_of(),
            [g.replace(candidates=[0], label=0) for g in good],
            "graphs with candidates",
        ),
        (task_of(), [g.replace(label=2) for g in good], r"classes in \[0, 2\)"),
        (task_of(), [g.replace(label=[0, 1]) for g in good], "multi_label=True"),
        (task_of(), [g.replace(label=-1) for g in good], "at least one graph with"),
        (many, [g.replace(label=[0, 2]) for g in good], "0 or 1, or NaN.*Received: 2"),
        (many, good, "labels with 2 targets per graph"),
    ):
        for call in (task.fit, task.evaluate):
            with pytest.raises(ValueError, match=message):
                call(graphs, verbose=0)
    for options, message in (
        ({"num_classes": 1}, "`num_classes` to be at least 2"),
        ({"readout": "max"}, "`readout` to be one of"),
        ({"readout": keras.layers.Flatten()}, "a layer that has `units`"),
        (
            {"readout": GRUReadout(8), "hidden": 4},
            "`hidden` only with readouts by name",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            task_of(**options)
