import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn import preprocessing
from keras_bandgnn.primitives import Plan

keras_tuner = pytest.importorskip("keras_tuner")
from keras_bandgnn.tuning import spaces  # noqa: E402
from keras_bandgnn.tuning.dataset_spec import DatasetSpec  # noqa: E402
from keras_bandgnn.tuning.failures import StopDiverged, failed_trials  # noqa: E402
from keras_bandgnn.tuning.hypermodel import Objective  # noqa: E402

FailedTrialError = keras_tuner.errors.FailedTrialError


def selections(count, seed=0):
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        marked = int(rng.integers(2))
        graphs.append(
            kb.Graph(
                5,
                [2, 3, 0, 1, 4],
                [0, 1, 1, 0, 0],
                edge_type=[0, 0, 1, 1, 0],
                node={"type": [0, 0, 1 + marked, 2 - marked, 0]},
                candidates=[0, 1],
                label=marked,
            )
        )
    return graphs


def molecules(count):
    rng = np.random.default_rng(0)
    graphs = []
    for _ in range(count):
        number = rng.choice([1, 6, 8], 3)
        node = {"atomic_number": number, "position": np.eye(3) * 1.2}
        graphs.append(kb.Graph(3, [], [], node=node, label=float(number.sum())))
    return graphs


def drawn(hypermodel, **values):
    """Hyperparameters with some values set."""
    hp = keras_tuner.HyperParameters()
    hypermodel.declare_hyperparameters(hp)
    hp.values.update(values)
    hp.ensure_active_values()
    return hp


def all_active(hp):
    return {p.name for p in hp.space if hp.is_active(p)}


# === Spaces ===


def test_appendix_e():
    graphs = selections(4)
    for name, rates, steps in (
        ("paper", [0.03, 0.1, 0.3, 1.0, 3.0], [100_000, 300_000]),
        ("paper-large-batch", [1.0, 3.0, 7.0, 10.0, 30.0], [500, 1000, 5000, 10_000]),
    ):
        hypermodel = kb.tuning.GGNNHyperModel(graphs, space=name)
        space = {p.name: p for p in drawn(hypermodel).space}
        assert space["learning_rate"].values == rates
        assert space["decay_steps"].values == steps
        assert space["dropout_keep_prob"].values == [0.6, 0.7, 0.8, 0.9]
        assert space["label_smoothing"].values == [0.0, 0.005, 0.05]
        assert space["weight_decay"].values == [1e-7, 1e-6, 1e-5, 1e-4, 1e-3]
        assert space["end_factor"].values == [0.1, 1.0]
        assert space["momentum"].values == [0.3, 0.5, 0.7, 0.9, 0.95, 0.97]
        assert space["gradient_clip"].values == [0.003, 0.01, 0.1, 0.3]
        assert type(space["nesterov"]).__name__ == "Boolean"
        assert len(space) == 9


def test_values_become_a_task():
    hypermodel = kb.tuning.GGNNHyperModel(selections(4), hidden_dim=4, num_steps=2)
    values = {"dropout_keep_prob": 0.6, "label_smoothing": 0.05, "nesterov": True}
    values |= {"learning_rate": 0.3, "decay_steps": 300_000, "end_factor": 0.1}
    values |= {"momentum": 0.95, "gradient_clip": 0.01, "weight_decay": 1e-3}
    task = hypermodel.build(drawn(hypermodel, **values))
    assert task.backbone.dropout == 0.4 and task.label_smoothing == 0.05
    optimizer = task.optimizer
    assert optimizer.momentum == 0.95 and optimizer.nesterov
    assert optimizer.global_clipnorm == 0.01
    rate = optimizer._learning_rate
    assert (rate.initial_learning_rate, rate.decay_steps) == (0.3, 300_000)
    squares = sum(
        float(np.sum(np.square(keras.ops.convert_to_numpy(w))))
        for w in task.trainable_variables
        if w.path.endswith(("kernel", "embeddings"))
    )
    found = sum(float(keras.ops.convert_to_numpy(loss)) for loss in task.losses)
    assert found == pytest.approx(1e-3 * squares, rel=1e-5)
    # Trials begin with the same weights.
    again = hypermodel.build(drawn(hypermodel, **values))
    for one, other in zip(task.weights, again.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_what_only_some_plans_have():
    hypermodel = kb.tuning.GGNNHyperModel(selections(4), hidden_dim=4, system=True)
    common = {"plan", "batcher", "batch_size"}
    for plan, own in {
        "auto": set(),
        "segment": {"schedule"},
        "banded": {"ordering", "block_size", "rest"},
        "block_sparse": {"ordering", "tile_size", "tile_budget"},
    }.items():
        active = all_active(drawn(hypermodel, plan=plan))
        assert active - set(spaces.APPENDIX_E) == common | own
    hp = drawn(
        hypermodel,
        plan="banded",
        block_size=64,
        rest="drop",
        ordering="bisection",
        batcher="64",
        batch_size=16,
    )
    made = hypermodel.build(hp).preprocessor
    assert made.plan == Plan(kb.primitives.Banded(64), rest="drop")
    names = [type(layer).__name__ for layer in made.graph_layers]
    assert names == ["ReachabilityFilter", "RCMKCompile"]
    assert made.graph_layers[1].get_config()["ordering"] == "bisection"
    assert isinstance(made.batcher, preprocessing.StaticBatcher)
    assert (made.batcher.padding, made.batcher.graphs) == ("64", 16)
    hp = drawn(hypermodel, plan="block_sparse", tile_size=8, tile_budget=4)
    assert hypermodel.build(hp).preprocessor.plan.keys == (
        "block_sparse:8:4",
        "segment",
    )


def test_facts_of_stored_graphs(tmp_path):
    preprocessor = preprocessing.GraphPreprocessor(
        [preprocessing.ReachabilityFilter(3), preprocessing.RCMKCompile(64)]
    )
    compiled = preprocessor.transform(selections(6))
    spec = DatasetSpec.of(compiled)
    assert spec.steps == 3 and spec.num_edge_types == 2 and not spec.slots
    assert spec.label == "candidate" and spec.inputs == {"type": {"ids": 3}}
    hypermodel = kb.tuning.GGNNHyperModel(compiled, hidden_dim=4, system=True)
    hp = drawn(hypermodel, plan="banded", ordering="breadth_first", block_size=32)
    task = hypermodel.build(hp)
    assert task.backbone.num_steps == 3
    # Another order of stored graphs is that of graphs that were never stored.
    made = hypermodel._prepared(task.preprocessor, compiled)
    fresh = task.preprocessor.transform(selections(6))
    for name, column in fresh.columns().items():
        np.testing.assert_array_equal(made.columns()[name], column, err_msg=name)
    assert hypermodel._prepared(task.preprocessor, compiled) is made
    hp = drawn(hypermodel, plan="segment")
    assert hypermodel._prepared(hypermodel.build(hp).preprocessor, compiled) is compiled


# === Trials ===


def test_a_lossy_trial_is_validated_with_all_edges():
    train, valid = selections(24), selections(12, 1)
    hypermodel = kb.tuning.GGNNHyperModel(
        train,
        valid,
        space="adam",
        hidden_dim=4,
        num_steps=1,
        system=True,
        epochs=2,
        objective="time-to-accuracy",
        target=2.0,
        seconds=50.0,
    )
    values = {"plan": "banded", "block_size": 32, "rest": "drop", "batcher": "dynamic"}
    hp = drawn(hypermodel, batch_size=16, ordering="rcmk", **values)
    task = hypermodel.build(hp)
    found = hypermodel.fit(hp, task, train, valid)
    assert task.preprocessor.plan == Plan(kb.primitives.Banded(32))
    assert 0 <= found["val_accuracy"] <= 1 and found["steps"] == 4
    # Not reached: no failure, but behind every trial that gets there.
    assert 100.0 < found["time_to_accuracy"] <= 150.0


def test_regression_in_a_given_time():
    graphs = molecules(16)
    edges = [preprocessing.FullyConnectedGraph(), preprocessing.RadiusGraph(3.0)]
    hypermodel = kb.tuning.GraphRegressorHyperModel(
        graphs,
        graphs,
        edges=edges,
        hidden_dim=4,
        num_steps=1,
        batch_size=8,
        objective="accuracy-in-time",
        seconds=0.02,
    )
    hp = drawn(hypermodel)
    assert [p.name for p in hp.space] == ["learning_rate", "edges"]
    assert hypermodel.objective.direction == "min"
    found = hypermodel.fit(hp, hypermodel.build(hp), graphs, graphs)
    # The limit and the report read the clock microseconds apart.
    assert 0.019 <= found["seconds"] < 5 and found["val_rmse"] > 0
    for model in ("mpeu", "painn"):
        other = kb.tuning.GraphRegressorHyperModel(graphs, model=model, hidden_dim=4)
        assert other.build(drawn(other)).backbone.hidden_dim == 4


def test_transformer_on_one_graph_with_masks():
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 20)
    graph = kb.Graph(
        20,
        rng.integers(0, 20, 40),
        rng.integers(0, 20, 40),
        node={
            "x": rng.normal(size=(20, 2)),
            "train_mask": np.arange(20) % 2,
            "valid_mask": 1 - np.arange(20) % 2,
        },
        label=label,
        label_level="node",
    )
    hypermodel = kb.tuning.GraphTransformerHyperModel(
        graph, hidden_dim=8, num_layers=1, num_heads=2, epochs=1, system=True
    )
    assert hypermodel.spec.inputs == {"x": {"features": 2}}
    hp = drawn(hypermodel, attention="sparse")
    assert "max_distance" not in all_active(hp)
    full = all_active(drawn(hypermodel, attention="periodic"))
    assert {"max_distance", "full_every"} <= full and "tiles" not in full
    task = hypermodel.build(drawn(hypermodel, attention="sparse", tiles=False))
    found = hypermodel.fit(
        hp, task, graph, mask="train_mask", validation_mask="valid_mask"
    )
    assert 0 <= found["val_accuracy"] <= 1


def test_tiles_of_a_transformer():
    pytest.importorskip("pymetis")
    graphs = [
        kb.Graph(
            4, [0], [1], node={"k": [0] * 4}, label=[0, 1, 0, 1], label_level="node"
        )
    ]
    hypermodel = kb.tuning.GraphTransformerHyperModel(
        graphs, model="gt", hidden_dim=8, num_layers=1, num_heads=2, system=True
    )
    values = {"tiles": True, "tile_size": 8, "tile_budget": 2.0}
    made = hypermodel.build(
        drawn(hypermodel, attention="sparse", **values)
    ).preprocessor
    assert made.plan.block_size == 8 and made.plan.share == 2.0
    assert type(made.graph_layers[0]).__name__ == "ClusterCompile"


# === Failures and goals ===


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("a graph of\n9 nodes"), "does not fit: a graph of 9 nodes"),
        (MemoryError(), "too large: MemoryError"),
        (RuntimeError("RESOURCE_EXHAUSTED: 9 GB"), "too large: RESOURCE_EXHAUSTED"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "too large"),
    ],
)
def test_reasons_of_failures(error, reason):
    with pytest.raises(FailedTrialError, match=reason), failed_trials():
        raise error


def test_mistakes_are_no_failures_of_a_trial():
    with pytest.raises(TypeError), failed_trials():
        raise TypeError("wrong")
    graphs = selections(4)
    hypermodel = kb.tuning.GGNNHyperModel(graphs, hidden_dim=4, num_steps=1)
    with pytest.raises(keras_tuner.errors.FatalValueError, match="validation_data"):
        hypermodel.fit(drawn(hypermodel), None, graphs)


def test_a_loss_that_is_not_finite_fails():
    StopDiverged().on_epoch_end(0, {"loss": 1.0})
    with pytest.raises(FailedTrialError, match="the loss of epoch 3 is nan"):
        StopDiverged().on_epoch_end(2, {"loss": float("nan")})


def test_goals():
    goal = Objective("time-to-accuracy", "val_accuracy", 0.8, 10.0)
    scores = []
    for values in ([0.8], [0.7], [0.2], [float("nan")]):
        watch = goal.watch()
        watch.curve = [{"value": v, "smoothed": v, "seconds": 4.0} for v in values]
        watch.crossing = watch.curve[0] if values[0] >= 0.8 else None
        scores.append(goal.results(watch)["time_to_accuracy"])
    assert scores[0] == 4.0 and scores == sorted(scores) and max(scores) == 30.0
    with pytest.raises(ValueError, match="`target`"):
        Objective("time-to-accuracy", "val_accuracy", seconds=3.0)
    with pytest.raises(ValueError, match="`seconds`"):
        Objective("accuracy-in-time", "val_accuracy")
    with pytest.raises(ValueError, match="`objective`"):
        Objective("speed", "val_accuracy")


def test_graphs_that_do_not_fit_a_hypermodel():
    with pytest.raises(ValueError, match="with labels"):
        DatasetSpec.of([kb.Graph(1, [], [])])
    with pytest.raises(ValueError, match="atomic_number"):
        kb.tuning.GraphRegressorHyperModel(selections(2))
