import functools
import json

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bandgnn import Graph
from keras_bandgnn.models import GGNNBackbone, NodeSelector, list_presets
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphLoader,
    GraphPreprocessor,
    ProgramEncoder,
    RCMKCompile,
    ReachabilityFilter,
)
from keras_bandgnn.primitives import Banded, Edges, Grouped, Plan
from keras_bandgnn.programs import program_graphs
from keras_bandgnn.testing import random_graph
from keras_bandgnn.training import make_optimizer
from tests.oracles.dense import ggnn, selector_logits

pytestmark = pytest.mark.every_backend(
    "one_compilation", "above_the_budget", "resumed", "mixed_precision"
)

INPUTS = {"type": 10, "subtoken": 10, "x": {"features": 2}}
STEPS = 3
PLANS = {
    "segment": Plan(),
    "grouped": Plan(rest=Grouped()),
    "banded:8": Plan(Banded(8)),
    "banded:64": Plan(Banded(64), rest=Grouped()),
}


def make_task(readout="slot", **options):
    keras.utils.set_random_seed(0)
    backbone = GGNNBackbone(
        INPUTS, hidden_dim=8, num_steps=STEPS, num_edge_types=3, **options
    )
    task = NodeSelector(backbone, readout=readout)
    rng = np.random.default_rng(1)
    for weight in task.weights:
        if "bias" in weight.path:
            weight.assign(rng.normal(size=weight.shape))
    return task


def graphs_of(count, seed=0, low=2, high=40):
    rng = np.random.default_rng(seed)
    return [random_graph(rng, int(rng.integers(low, high))) for _ in range(count)]


def preprocessor(plan="auto", batch_size=6, layers=True):
    steps = [ReachabilityFilter(STEPS), RCMKCompile(8)] if layers else []
    return GraphPreprocessor(steps, DynamicBatcher(batch_size - 1), plan)


def predict(task, graphs, **options):
    task.preprocessor = preprocessor(**options)
    return task.predict(graphs)


def assert_close(logits, expected):
    scale = max(1.0, max(np.abs(e).max() for e in expected))
    for own, other in zip(logits, expected, strict=True):
        np.testing.assert_allclose(own, other, atol=1e-5 * scale)


@pytest.mark.parametrize("readout", ["candidate", "slot"])
@pytest.mark.parametrize("name", PLANS)
def test_logits_equal_the_oracle_under_every_plan(name, readout):
    task = make_task(readout)
    graphs = graphs_of(12)
    expected = [selector_logits(graph, task) for graph in graphs]
    assert_close(predict(task, graphs, plan=PLANS[name]), expected)


def test_states_equal_the_oracle():
    task = make_task()
    graph = graphs_of(1)[0]
    x = GraphLoader([graph], plan=Plan(Banded(8)))[0][0]
    states = keras.ops.convert_to_numpy(task.backbone(x))[0, : graph.num_nodes]
    np.testing.assert_allclose(states, ggnn(graph, task.backbone), atol=1e-5)


def test_lossy_banded_differs_only_through_the_dropped_edges():
    task = make_task()
    for graph in graphs_of(5, low=60, high=90):
        plan = Plan(Banded(16), rest="drop")
        edges = Edges(
            graph.senders, graph.receivers, graph.edge_type, graph.num_nodes, 3
        )
        dropped = plan.dropped(edges)
        assert 0 < dropped.sum() < graph.num_edges
        thinner = graph.replace(
            senders=graph.senders[~dropped],
            receivers=graph.receivers[~dropped],
            edge_type=graph.edge_type[~dropped],
        )
        lossy = predict(task, [graph], plan=plan, layers=False)
        exact = predict(task, [thinner], plan=Plan(), layers=False)
        assert_close(lossy, exact)
        assert_close(lossy, [selector_logits(graph, task, keep=~dropped)])


GRAPHS = graphs_of(15, seed=7)


@functools.cache
def known_logits():
    task = make_task()
    return task, [selector_logits(graph, task) for graph in GRAPHS]


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), batch_size=st.sampled_from([3, 6]))
def test_nothing_about_the_batch_changes_a_prediction(seed, batch_size):
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(GRAPHS))
    task, logits = known_logits()
    graphs, expected = [], []
    for index in chosen:
        graph = GRAPHS[index].subgraph(rng.permutation(GRAPHS[index].num_nodes))
        order = rng.permutation(len(graph.candidates))
        graphs.append(
            graph.replace(
                candidates=graph.candidates[order],
                label=int(np.argwhere(order == graph.label)[0, 0]),
            )
        )
        expected.append(logits[index][order])
    task.preprocessor = GraphPreprocessor(
        [RCMKCompile(8)], DynamicBatcher(batch_size - 1, {"node": 40 * batch_size})
    )
    assert_close(task.predict(graphs), expected)


@pytest.mark.release
def test_fit_learns_and_evaluate_agrees_with_predict():
    # The right candidate is the one of type 9.
    graphs = []
    for graph in graphs_of(60, low=4):
        kinds = np.array(graph.node["type"]) % 9
        kinds[graph.candidates[int(graph.label)]] = 9
        graphs.append(graph.replace(node={**graph.node, "type": kinds}))
    task = make_task()
    task.preprocessor = preprocessor()
    task.compile(make_optimizer("adam", 0.01))
    history = task.fit(graphs, validation_data=graphs[:20], epochs=12, verbose=0)
    assert history.history["accuracy"][-1] > 0.9
    assert history.history["val_accuracy"][-1] > 0.9
    right = [
        np.argmax(logits) == graph.label
        for logits, graph in zip(task.predict(graphs), graphs, strict=True)
    ]
    scores = task.evaluate(graphs, verbose=0, return_dict=True)
    assert scores["accuracy"] == pytest.approx(np.mean(right), abs=1e-6)


@pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="torch runs eagerly by default"
)
def test_one_compilation_per_fit(monkeypatch):
    compiled, traces = [], []
    jax = keras.backend.backend() == "jax"
    if jax:
        from keras.src.backend.jax import trainer as module
    else:
        import tensorflow as module
    name = "jit" if jax else "function"
    real = getattr(module, name)

    def counting(function, *args, **kwargs):
        index = len(compiled)

        @functools.wraps(function)
        def traced(*inputs):
            traces.append(index)
            return function(*inputs)

        # The cache of compiled programs is shared, and may be full after other tests.
        compiled.append(real(traced if jax else function, *args, **kwargs))
        return compiled[-1]

    task = make_task()
    task.preprocessor = preprocessor(batch_size=8)
    task.compile("adam")
    graphs = graphs_of(50)
    monkeypatch.setattr(module, name, counting)
    task.fit(graphs, validation_data=graphs[:20], epochs=3, verbose=0)
    if jax:
        assert traces == [0, 1]
    else:
        counts = [f.experimental_get_tracing_count() for f in compiled]
        # Per function a compiled step and the loop around it.
        # Keras' loops over a `tf.data.Dataset` are not used.
        assert counts == [1, 0, 1, 0]


@pytest.mark.release(elsewhere=True)
def test_graphs_above_the_budget_train_and_predict():
    task = make_task()
    task.preprocessor = GraphPreprocessor([], DynamicBatcher(3, {"node": 64}))
    graphs = graphs_of(12) + graphs_of(2, low=100, high=120)
    task.fit(graphs, validation_data=graphs, epochs=2, verbose=0)
    assert_close(task.predict(graphs), [selector_logits(g, task) for g in graphs])


def test_resumed_training_goes_on_as_if_it_had_not_stopped(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    def fit(*callbacks):
        task = make_task(dropout=0.3)
        task.preprocessor = preprocessor()
        task.compile("adam")
        history = task.fit(
            graphs_of(20), epochs=4, callbacks=list(callbacks), verbose=0
        )
        return task, history.history["loss"]

    task, losses = fit()
    backup = [keras.callbacks.BackupAndRestore(tmp_path / "b") for _ in range(2)]
    with pytest.raises(KeyboardInterrupt):
        fit(backup[0], Stop())
    resumed, rest = fit(backup[1])
    np.testing.assert_allclose(rest, losses[2:], rtol=1e-5)
    for own, other in zip(resumed.get_weights(), task.get_weights(), strict=True):
        np.testing.assert_allclose(own, other, atol=1e-5)


def test_label_smoothing_over_real_candidates_only():
    from keras_bandgnn.training import SelectionCrossentropy

    logits = np.array([[[1.0, 2.0, -1e9], [0.5, -1e9, -1e9]]], "float32")
    labels = np.array([[1, 0]], "int32")
    loss = SelectionCrossentropy(0.1, reduction=None)
    share = np.log(np.exp([1.0, 2.0]) / np.exp([1.0, 2.0]).sum())
    expected = [-(0.05 * share[0] + 0.95 * share[1]), 0.0]
    out = keras.ops.convert_to_numpy(loss(labels, logits))
    np.testing.assert_allclose(out, [expected], atol=1e-6)
    weighted = SelectionCrossentropy(0.1)
    out = weighted(labels, logits, sample_weight=np.array([[1.0, 0.0]]))
    assert float(out) == pytest.approx(expected[0], abs=1e-6)
    again = SelectionCrossentropy.from_config(loss.get_config())
    assert again.get_config() == loss.get_config()


@pytest.mark.parametrize("readout", ["candidate", "slot"])
def test_preset_round_trip(tmp_path, readout):
    task = make_task(readout)
    graphs = graphs_of(8)
    task.preprocessor = preprocessor(PLANS["banded:8"])
    expected = task.predict(graphs)
    task.save_to_preset(tmp_path / "preset")
    again = NodeSelector.from_preset(tmp_path / "preset")
    assert again.preprocessor.get_config() == task.preprocessor.get_config()
    assert_close(again.predict(graphs), expected)
    fresh = NodeSelector.from_preset(tmp_path / "preset", load_weights=False)
    assert np.abs(fresh.predict(graphs)[0] - expected[0]).max() > 1e-3
    # Saving over a preset replaces it; anything else is left alone.
    task.save_to_preset(tmp_path / "preset")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="new, an empty folder or a preset"):
        task.save_to_preset(tmp_path / "other")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "preset"]


def test_keras_file_round_trip(tmp_path):
    task = make_task()
    graphs = graphs_of(6)
    task.preprocessor = preprocessor()
    expected = task.predict(graphs)
    task.save(tmp_path / "task.keras")
    again = keras.saving.load_model(tmp_path / "task.keras")
    assert_close(again.predict(graphs), expected)


def test_presets_name_only_classes_of_the_library(tmp_path):
    task = make_task()
    task.save_to_preset(tmp_path / "p")
    entry = json.loads((tmp_path / "p" / "config.json").read_text())
    entry["class_name"] = "Popen"
    (tmp_path / "p" / "config.json").write_text(json.dumps(entry))
    with pytest.raises(ValueError, match="to name classes of Keras.*Popen"):
        NodeSelector.from_preset(tmp_path / "p")
    (tmp_path / "p" / "config.json").write_text("{")
    with pytest.raises(ValueError, match="to be JSON"):
        NodeSelector.from_preset(tmp_path / "p")


def test_bundled_presets():
    assert "ggnn_varmisuse" in list_presets()
    task = NodeSelector.from_preset("ggnn_varmisuse", load_weights=False)
    with pytest.raises(ValueError, match="load_weights=False"):
        NodeSelector.from_preset("ggnn_varmisuse")
    backbone = task.backbone
    assert (backbone.hidden_dim, backbone.num_steps) == (128, 8)
    assert backbone.num_edge_types == 22
    with pytest.raises(ValueError, match="Did you mean 'ggnn_varmisuse'"):
        NodeSelector.from_preset("ggnn_varmissuse")


def test_program_graphs_go_straight_in():
    source = "def area(width, height):\n    return width * height\n" * 3
    programs = program_graphs(source)
    task = NodeSelector.from_preset("ggnn_varmisuse", load_weights=False)
    task.backbone.num_steps = 1
    logits = task.predict(programs)
    assert [row.shape for row in logits] == [(2,)] * len(programs)
    compiled = task.preprocessor.transform(programs)
    assert task.preprocessor.transform(compiled) is compiled
    assert_close(task.predict(compiled), logits)
    assert task.predict([]) == []


def test_graphs_compiled_otherwise_are_refused():
    source = "def area(width, height):\n    return width * height\n"
    other = GraphPreprocessor([ProgramEncoder(subtoken_nodes=False)])
    task = NodeSelector.from_preset("ggnn_varmisuse", load_weights=False)
    with pytest.raises(ValueError, match="Compile them again"):
        task.predict(other.transform(program_graphs(source)))


def test_predicting_before_training_fixes_no_budget():
    task = make_task()
    task.preprocessor = preprocessor(batch_size=8)
    graphs = graphs_of(30)
    task.predict(graphs[:1])
    assert task.preprocessor.batcher.budget == {}
    task.fit(graphs, epochs=1, verbose=0)
    budget = dict(task.preprocessor.batcher.budget)
    task.predict(graphs[:1])
    assert task.preprocessor.batcher.budget == budget


def test_some_graphs_without_a_slot():
    task = make_task("candidate")
    task.preprocessor = GraphPreprocessor([], DynamicBatcher(budget={"node": 40}))
    graphs = graphs_of(4, low=30)
    graphs[1] = graphs[1].replace(slot=None)
    task.fit(graphs, epochs=1, verbose=0)
    assert len(task.predict(graphs)) == 4


def test_bad_input_is_refused_before_training():
    task = make_task()
    good = graphs_of(2)
    for graphs, message in (
        ([g.replace(candidates=None, label=None) for g in good], "with candidates"),
        ([g.replace(slot=None) for g in good], "with a slot"),
        ([g.replace(label=None) for g in good], "to have labels"),
        ([g.replace(edge_type=g.edge_type + 5) for g in good], "num_edge_types"),
        (
            [Graph(2, [], [], node={"type": [1, 2]}, candidates=[0], label=0, slot=0)],
            "'subtoken' is missing|Expected node features",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            task.fit(graphs, verbose=0)
    with pytest.raises(ValueError, match="those of the preprocessor"):
        task.fit(good, steps_per_epoch=3, verbose=0)
    with pytest.raises(ValueError, match="`preprocessor`"):
        NodeSelector(task.backbone, 5)
    with pytest.raises(ValueError, match="a Backbone"):
        NodeSelector(keras.layers.Dense(3))
    with pytest.raises(ValueError, match="`readout` to be one of"):
        NodeSelector(task.backbone, readout="mean")


def test_ids_beyond_the_vocabulary_are_refused():
    task = make_task()
    graph = graphs_of(1)[0]
    kinds = np.array(graph.node["type"])
    kinds[0] = 10
    with pytest.raises(ValueError, match=r"'type'.*\[0, 10\).*10"):
        task.predict([graph.replace(node={**graph.node, "type": kinds})])


def test_mixed_precision_keeps_float32_logits():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        task = make_task()
    finally:
        keras.config.set_dtype_policy("float32")
    graphs = graphs_of(4)
    logits = predict(task, graphs, plan=PLANS["banded:8"])
    exact = make_task()
    exact.set_weights(task.get_weights())
    for own, other in zip(logits, predict(exact, graphs), strict=True):
        assert own.dtype == np.float32
        np.testing.assert_allclose(own, other, atol=0.15)


def test_backbone_config_round_trip():
    backbone = make_task(dropout=0.1, message_dropout=0.2).backbone
    again = GGNNBackbone.from_config(backbone.get_config())
    assert again.get_config() == backbone.get_config()
    # Encoder 10 * 8 * 2 + 2 * 8 + 8, messages 3 * (8 * 8 + 8), GRU 2 * (8 * 24 + 24).
    assert backbone.count_params() == 184 + 216 + 432
