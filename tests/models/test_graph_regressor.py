import json

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_bandgnn as kb
from keras_bandgnn import Graph
from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.models import GGNNBackbone, GraphRegressor, NodeSelector, Task
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphPreprocessor,
    RCMKCompile,
    TargetNormalizer,
)
from keras_bandgnn.primitives import Banded, Grouped, Plan
from tests.oracles.dense import regressor_outputs

PLANS = {
    "segment": Plan(),
    "grouped": Plan(rest=Grouped()),
    "banded:8": Plan(Banded(8)),
    "banded:64": Plan(Banded(64), rest=Grouped()),
}
ELEMENTS = 10


def graphs_of(count, seed=0, low=1, high=30, targets=None):
    """Random graphs; labels grow with the graph."""
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        n = int(rng.integers(low, high))
        edges = rng.integers(0, n, (2, 2 * n))
        atoms = rng.integers(1, ELEMENTS, n)
        label = -40.0 * n + 3.0 * float((atoms == 6).sum())
        graphs.append(
            Graph(
                n,
                *edges,
                edge_type=rng.integers(0, 3, 2 * n),
                node={"atomic_number": atoms},
                label=label if targets is None else label * np.arange(1, targets + 1),
            )
        )
    return graphs


def make_task(dtype=None, **options):
    keras.utils.set_random_seed(0)
    backbone = GGNNBackbone(
        {"atomic_number": ELEMENTS},
        hidden_dim=8,
        num_steps=2,
        num_edge_types=3,
        dtype=dtype,
    )
    task = GraphRegressor(backbone, **options)
    rng = np.random.default_rng(1)
    for weight in [*backbone.weights, *task.head.weights]:
        if "bias" in weight.path:
            weight.assign(0.3 * rng.normal(size=weight.shape))
    return task


def preprocessor(plan="auto", batch_size=6, layers=()):
    return GraphPreprocessor(layers, DynamicBatcher(batch_size - 1), plan)


def with_labels(graphs, labels):
    columns = FlatGraphs.from_graphs(graphs).columns()
    columns["label/graph"] = np.asarray(labels, np.float32)
    return FlatGraphs.from_columns(columns)


def labels_of(graphs):
    return np.array([np.atleast_1d(g.label) for g in graphs], float)


def assert_close(rows, expected, tolerance=1e-5):
    scale = max(1.0, max(np.abs(e).max() for e in expected))
    assert len(rows) == len(expected)
    for own, other in zip(rows, expected, strict=True):
        assert own.shape == other.shape
        np.testing.assert_allclose(own, other, atol=tolerance * scale)


@pytest.mark.parametrize("name", PLANS)
def test_predictions_equal_the_oracle_under_every_plan(name):
    task = make_task(num_targets=2)
    graphs = graphs_of(12)
    task.preprocessor = preprocessor(PLANS[name], layers=[RCMKCompile(8)])
    rows = task.predict(graphs)
    assert rows[0].shape == (2,)
    assert_close(rows, [regressor_outputs(graph, task) for graph in graphs])


@pytest.mark.parametrize("key", [None, "atomic_number"])
@pytest.mark.parametrize(("mode", "readout"), [("graph", "mean"), ("atom", "sum")])
def test_predictions_are_in_the_units_of_the_labels(mode, key, readout):
    graphs = graphs_of(30, targets=2)
    normalizer = TargetNormalizer(mode, key)
    normalizer.adapt([g.replace(label=g.label * np.array([1, 2])) for g in graphs])
    task = make_task(num_targets=2, readout=readout, normalizer=normalizer)
    rows = task.predict(graphs)
    assert_close(rows, [regressor_outputs(graph, task) for graph in graphs])
    bare = make_task(num_targets=2, readout=readout, normalizer=None)
    assert_close(
        bare.predict(graphs), [regressor_outputs(graph, bare) for graph in graphs]
    )
    assert np.abs(rows[0] - bare.predict(graphs[:1])[0]).min() > 1


TASK = make_task(readout="sum")
GRAPHS = graphs_of(15, seed=7)
TASK.normalizer.adapt(GRAPHS)
EXPECTED = [regressor_outputs(graph, TASK) for graph in GRAPHS]


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), batch_size=st.sampled_from([2, 3, 16]))
def test_nothing_about_the_batch_changes_a_prediction(seed, batch_size):
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(GRAPHS))[: rng.integers(1, len(GRAPHS))]
    graphs = [GRAPHS[i].subgraph(rng.permutation(GRAPHS[i].num_nodes)) for i in chosen]
    TASK.preprocessor = GraphPreprocessor(
        [RCMKCompile(8)], DynamicBatcher(batch_size - 1, {"node": 40 * batch_size})
    )
    assert_close(TASK.predict(graphs), [EXPECTED[i] for i in chosen])


def paths(count, seed=0):
    """Paths of up to 11 nodes; the label counts the nodes of one kind."""
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        n = int(rng.integers(1, 12))
        atoms = rng.integers(1, 4, n)
        label = 500.0 + 20.0 * float((atoms == 3).sum())
        node = {"atomic_number": atoms}
        graphs.append(
            Graph(n, np.arange(n - 1), np.arange(1, n), node=node, label=label)
        )
    return graphs


@pytest.mark.release
def test_it_learns_to_count_and_reports_in_units():
    train, test = paths(400), paths(100, seed=1)
    keras.utils.set_random_seed(0)
    backbone = GGNNBackbone(
        {"atomic_number": ELEMENTS}, hidden_dim=16, num_steps=1, num_edge_types=1
    )
    task = GraphRegressor(
        backbone,
        preprocessor=preprocessor(batch_size=16),
        readout="sum",
        normalizer=TargetNormalizer(),
    )
    task.compile(keras.optimizers.Adam(0.02))
    history = task.fit(train, validation_data=test, epochs=14, verbose=0).history
    assert history["loss"][-1] < 0.01 * history["loss"][0]
    predicted = np.array(task.predict(test))[:, 0]
    truth = labels_of(test)[:, 0]
    rmse = np.sqrt(np.mean((predicted - truth) ** 2))
    # The mean predictor is off by the deviation of the labels, about 30.
    assert rmse < 0.1 * truth.std()
    scores = task.evaluate(test, verbose=0, return_dict=True)
    assert sorted(scores) == ["loss", "mae", "rmse"]
    assert scores["rmse"] == pytest.approx(rmse, rel=1e-3)
    assert scores["mae"] == pytest.approx(np.abs(predicted - truth).mean(), rel=1e-3)
    assert history["val_rmse"][-1] == pytest.approx(rmse, rel=1e-3)
    one = task.evaluate(test[:5], verbose=0, return_dict=True)
    errors = (predicted - truth)[:5] / float(task.normalizer.std[0])
    assert one["loss"] == pytest.approx(np.mean(errors**2), rel=1e-3)


def test_missing_labels_teach_and_count_nothing():
    graphs = graphs_of(40, targets=2)
    labels = labels_of(graphs)
    labels[::2, 1] = np.nan
    labels[:10] = np.nan
    flat = with_labels(graphs, labels)
    task = make_task(num_targets=2)
    task.preprocessor = preprocessor(batch_size=50)
    task.compile(keras.optimizers.SGD(0.01))
    expected = task.evaluate(flat, verbose=0, return_dict=True)
    errors = np.array(task.predict(flat)) - labels
    assert expected["mae"] == pytest.approx(np.nanmean(np.abs(errors)), rel=1e-4)
    assert expected["rmse"] == pytest.approx(np.sqrt(np.nanmean(errors**2)), rel=1e-4)
    # Not adapted, the loss is in units as well.
    assert expected["loss"] == pytest.approx(np.nanmean(errors**2), rel=1e-4)
    history = task.fit(flat, epochs=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    # Graphs without any label change neither the loss nor the weights.
    other = make_task(num_targets=2, normalizer=TargetNormalizer())
    other.preprocessor = preprocessor(batch_size=50)
    other.compile(keras.optimizers.SGD(0.01))
    kept = other.fit(flat.take(np.arange(10, 40)), epochs=2, verbose=0).history
    np.testing.assert_allclose(kept["loss"], history["loss"], rtol=1e-4)
    for own, own2 in zip(task.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(own, own2, rtol=1e-3, atol=1e-4)


def test_a_target_without_labels_gets_no_gradient():
    graphs = graphs_of(8, targets=2)
    labels = labels_of(graphs)
    labels[:, 1] = np.nan
    task = make_task(num_targets=2, normalizer=None)
    task.compile(keras.optimizers.SGD(1e-6))
    before = task.head.get_weights()
    task.fit(with_labels(graphs, labels), epochs=1, verbose=0)
    for old, new in zip(before[2:], task.head.get_weights()[2:], strict=True):
        np.testing.assert_array_equal(old[..., 1], new[..., 1])
        assert (old[..., 0] != new[..., 0]).any()


def test_labels_of_another_unit_are_named(caplog):
    """The normaliser of a preset is that of the labels that it was trained on."""
    graphs = [kb.Graph(2, [0], [1], node={"kind": [0, 1]}) for _ in range(4)]
    task = kb.models.GraphRegressor(kb.models.GCNBackbone({"kind": 2}, 4))
    task.fit(graphs, [1.0, 2.0, 3.0, 4.0], epochs=1, verbose=0)
    task.fit(graphs, [2.0, 2.0, 4.0, 4.0], epochs=1, verbose=0)
    assert not caplog.records
    task.fit(graphs, [100.0, 200.0, 300.0, np.nan], epochs=1, verbose=0)
    (record,) = caplog.records
    assert "standard deviations" in record.getMessage()
    assert "num_targets=1" in record.getMessage()


def test_the_normalizer_adapts_once_to_the_training_graphs():
    graphs = graphs_of(30)
    task = make_task()
    assert not task.normalizer.is_adapted
    task.predict(graphs)
    task.evaluate(graphs, verbose=0)
    assert not task.normalizer.is_adapted
    task.fit(graphs[:20], validation_data=graphs[20:], epochs=1, verbose=0)
    mean = labels_of(graphs[:20]).mean()
    assert float(task.normalizer.mean[0]) == pytest.approx(mean, rel=1e-5)
    # Predictions follow, though `predict` was compiled before.
    assert_close(task.predict(graphs), [regressor_outputs(g, task) for g in graphs])
    task.fit(graphs[20:], epochs=1, verbose=0)
    assert float(task.normalizer.mean[0]) == pytest.approx(mean, rel=1e-5)
    assert make_task(readout="sum").normalizer.mode == "atom"


@pytest.mark.parametrize("key", [None, "atomic_number"])
def test_preset_round_trip(tmp_path, key):
    graphs = graphs_of(40, targets=2)
    task = make_task(
        num_targets=2,
        readout="sum",
        hidden=5,
        activation="tanh",
        use_bias=False,
        normalizer=TargetNormalizer("atom", key),
        preprocessor=preprocessor(PLANS["banded:8"], layers=[RCMKCompile(8)]),
    )
    task.fit(graphs, epochs=1, verbose=0)
    expected = task.predict(graphs)
    task.save_to_preset(tmp_path / "preset")
    again = Task.from_preset(tmp_path / "preset")
    assert again.head_config() == task.head_config()
    assert again.preprocessor.get_config() == task.preprocessor.get_config()
    assert_close(again.predict(graphs), expected)
    fresh = GraphRegressor.from_preset(tmp_path / "preset", load_weights=False)
    assert np.abs(fresh.predict(graphs)[0] - expected[0]).max() > 1e-3
    entry = json.loads((tmp_path / "preset" / "task.json").read_text())
    assert entry["config"]["normalizer"]["mode"] == "atom"
    with pytest.raises(ValueError, match="holds a GraphRegressor"):
        NodeSelector.from_preset(tmp_path / "preset")
    task.save(tmp_path / "task.keras")
    again = keras.saving.load_model(tmp_path / "task.keras")
    assert_close(again.predict(graphs), expected)
    task.save_weights(tmp_path / "task.weights.h5")
    new = make_task(
        num_targets=2,
        readout="sum",
        hidden=5,
        activation="tanh",
        use_bias=False,
        normalizer=TargetNormalizer("atom", key),
    )
    new.optimizer.build(new.trainable_variables)  # The file holds its state, too.
    new.load_weights(tmp_path / "task.weights.h5")
    assert new.normalizer.is_adapted
    assert_close(new.predict(graphs), expected)


def test_graphs_above_the_budget_train_and_predict():
    task = make_task()
    task.preprocessor = GraphPreprocessor([], DynamicBatcher(3, {"node": 64}))
    graphs = graphs_of(12) + graphs_of(2, low=100, high=120)
    task.fit(graphs, validation_data=graphs, epochs=2, verbose=0)
    assert_close(task.predict(graphs), [regressor_outputs(g, task) for g in graphs])


def test_plain_batches_without_weights_are_masked_as_well():
    task = make_task()
    graphs = graphs_of(5)
    x, y, weight = task.loader(graphs)[0]
    assert weight.sum() == 5 < weight.size
    expected = task.test_on_batch(x, y, weight, return_dict=True)
    task.reset_metrics()
    assert task.test_on_batch(x, y[..., 0], return_dict=True) == pytest.approx(expected)


def test_mixed_precision_keeps_float32_predictions():
    task = make_task(dtype="mixed_bfloat16")
    graphs = graphs_of(6)
    task.fit(graphs, epochs=1, verbose=0)
    exact = make_task()
    exact.set_weights(task.get_weights())
    deviation = float(task.normalizer.std[0])
    for own, other in zip(task.predict(graphs), exact.predict(graphs), strict=True):
        assert own.dtype == np.float32
        np.testing.assert_allclose(own, other, atol=0.1 * deviation)


def test_training_defaults():
    task = make_task()
    assert isinstance(task.optimizer, keras.optimizers.Adam)
    rate = task.optimizer.get_config()["learning_rate"]["config"]
    assert rate["initial_learning_rate"] == 1e-4 and rate["staircase"]
    assert (rate["decay_steps"], rate["decay_rate"]) == (100_000, 0.96)
    # Readout 8 * 4 + 4 + 4 + 1; mean, std and a flag do not train.
    trainable = sum(int(np.prod(w.shape)) for w in task.head.trainable_weights)
    assert trainable == 41
    assert len(task.trainable_weights) == len(task.backbone.weights) + 4


def test_bad_input_is_refused_before_training():
    good = graphs_of(6)
    task = make_task()
    for graphs, message in (
        ([g.replace(label=None) for g in good], "to have labels"),
        ([g.replace(label=[1.0, 2.0]) for g in good], "with 1 numbers.*Received: 2"),
        ([g.replace(label=[[1.0]]) for g in good], "one vector"),
        (
            [g.replace(label=[0.0] * g.num_nodes, label_level="node") for g in good],
            "labels of nodes",
        ),
        ([g.replace(candidates=[0], label=0) for g in good], "graphs with candidates"),
        ([g.replace(node={}) for g in good], "'atomic_number' is missing"),
    ):
        with pytest.raises(ValueError, match=message):
            task.fit(graphs, verbose=0)
        if "missing" not in message:
            with pytest.raises(ValueError, match=message):
                task.evaluate(graphs, verbose=0)
            assert len(task.predict(graphs)) == 6
    with pytest.raises(ValueError, match="to have labels"):
        task.fit(good, validation_data=[g.replace(label=None) for g in good], verbose=0)
    wide = TargetNormalizer(mean=[0.0, 0.0], std=[1.0, 1.0])
    for options, message in (
        ({"num_targets": 0}, "`num_targets` to be at least 1"),
        ({"readout": "max"}, "`readout` to be one of"),
        ({"normalizer": "atom"}, "`normalizer` to be 'auto'"),
        ({"normalizer": wide}, "2 targets per graph.*Received: 1"),
    ):
        with pytest.raises(ValueError, match=message):
            make_task(**options)


def test_elements_that_training_lacked_are_refused():
    graphs = graphs_of(30)
    task = make_task(normalizer=TargetNormalizer("graph", "atomic_number"))
    seen = [
        g.replace(node={"atomic_number": g.node["atomic_number"] % 5}) for g in graphs
    ]
    task.fit(seen, epochs=1, verbose=0)
    with pytest.raises(ValueError, match="Expected elements with a reference value"):
        task.predict(graphs)


@pytest.mark.parametrize("task_class", [GraphRegressor, kb.models.ForceRegressor])
def test_order_and_names_of_arguments(task_class):
    preprocessor = kb.preprocessing.GraphPreprocessor()
    backbone = kb.models.SchNetBackbone((1, 6), 8, num_steps=1)
    for task in (
        task_class(backbone, 1, preprocessor),
        task_class(backbone, preprocessor=preprocessor),
    ):
        assert task.preprocessor is preprocessor and task.num_targets == 1
    task = task_class(backbone, readout="attention")
    assert task.head_config()["readout"] == "attention"
    assert task_class.from_config(task.get_config()).head.reduce == "attention"
    with pytest.raises(ValueError, match="Expected `num_targets` to be an integer"):
        task_class(backbone, None)
    # Keras' own message for an argument that nothing takes.
    with pytest.raises((TypeError, ValueError), match="reduce"):
        task_class(backbone, reduce="sum")
