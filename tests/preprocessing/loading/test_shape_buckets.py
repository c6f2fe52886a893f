from types import SimpleNamespace

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn import models
from keras_bandgnn.planning import plan_choice
from keras_bandgnn.preprocessing import DynamicBatcher, GraphPreprocessor, StaticBatcher
from keras_bandgnn.preprocessing.loading.shape_buckets import (
    prediction_batches,
    scaled_budget,
)
from keras_bandgnn.primitives import Banded, Plan, ReceptiveField

pytestmark = pytest.mark.every_backend("compile_once")


def ring(n, **options):
    a = np.arange(n)
    return kb.Graph(
        n,
        np.append(a, (a + 1) % n),
        np.append((a + 1) % n, a),
        node={"kind": a % 3},
        label=n % 2,
        **options,
    )


def make(preprocessor=None):
    return models.GraphClassifier(
        models.GGNNBackbone({"kind": 3}, 4, 1, num_edge_types=1), 2, preprocessor
    )


def shapes(task, sizes, keep=False):
    found = set()
    for n in sizes:
        graph = ring(int(n))
        loader = task.loader([graph], training=False)
        batcher = None if keep else task.preprocessor.batcher
        (x,) = prediction_batches(loader, batcher)
        assert x["graph"]["mask"].sum() == 1 and x["node"]["mask"].sum() == n
        found.add((x["node"]["mask"].shape[1], x["edge"]["mask"].shape[1]))
    return found


SIZES = np.unique(np.geomspace(1, 1500, 40).astype(int))


def test_graphs_within_the_budget_have_few_shapes():
    task = make(GraphPreprocessor(batcher=DynamicBatcher(budget={"node": 2048})))
    task.loader([ring(n) for n in SIZES], adapt=True)
    found = sorted(shapes(task, SIZES))
    assert [n for n, _ in found] == [64, 128, 256, 512, 1024, 2048]
    # All sizes of a shape are those of the budget, divided by one number.
    budget = task.preprocessor.batcher.budget
    assert all(
        edges == np.ceil(budget["edge"] * nodes / 2048) for nodes, edges in found
    )


def test_larger_graphs_have_a_shape_per_doubling():
    task = make(GraphPreprocessor(batcher=DynamicBatcher(budget={"node": 64})))
    task.loader([ring(n) for n in (3, 4, 50)], adapt=True)
    assert len(shapes(task, SIZES[SIZES > 63])) == 5


@pytest.mark.parametrize("batcher", [DynamicBatcher(7), StaticBatcher(1, padding="64")])
def test_without_a_budget_sizes_are_rounded_one_by_one(batcher):
    task = make(GraphPreprocessor(batcher=batcher))
    found = shapes(task, range(500, 1500, 10))
    assert len(found) <= 14 < len(shapes(task, range(500, 1500, 10), keep=True))
    for nodes, _ in found:
        assert nodes % (1 << (nodes.bit_length() - 3)) == 0


def test_many_graphs_are_padded_to_the_budget():
    task = make(GraphPreprocessor(batcher=DynamicBatcher(3)))
    graphs = [ring(30)] * 20
    task.loader(graphs, adapt=True)
    loader = task.loader(graphs, training=False)
    assert len(loader) > 1
    found = {
        x["node"]["mask"].shape[1]
        for x in prediction_batches(loader, task.preprocessor.batcher)
    }
    assert found == {task.preprocessor.batcher.budget["node"]}


def test_rungs_hold_what_is_needed():
    budget = {"node": 640, "edge": 1280, "graph": 33, "overflow": 0, "candidate": 5}
    found = scaled_budget({"node": 3, "edge": 0, "graph": 2, "candidate": 2}, budget)
    assert found == {"node": 80, "edge": 160, "graph": 5, "overflow": 0, "candidate": 5}
    found = scaled_budget({"node": 3, "edge": 161, "graph": 2}, budget)
    assert found["node"] == 160 and found["candidate"] == 5
    # What there was no room for.
    found = scaled_budget({"node": 3, "overflow": 3, "candidate": 9}, budget)
    assert found["overflow"] == 4 and found["candidate"] == 16


def test_what_a_budget_does_not_name_is_a_power_of_two():
    found = scaled_budget(
        {"node": 70, "rows": 70, "graph": 2}, {"node": 512, "graph": 9}
    )
    assert found == {"node": 128, "rows": 128, "graph": 3}
    # The budget of a preset is that of another plan.
    batcher = DynamicBatcher(budget={"node": 2048, "edge": 4096, "segment": 4096})
    task = make(GraphPreprocessor(batcher=batcher, plan=Plan(Banded(16))))
    found = sorted(shapes(task, SIZES))
    assert [n for n, _ in found] == [64, 128, 256, 512, 1024, 2048]


@pytest.mark.parametrize("plan", [Plan(), Plan(Banded(16))])
def test_shapes_do_not_change_predictions(plan):
    task = make(GraphPreprocessor(batcher=DynamicBatcher(3), plan=plan))
    graphs = [ring(n) for n in (3, 40, 60, 90, 20, 5)]
    task.loader(graphs, adapt=True)
    together = task.predict(graphs)
    for graph, expected in zip(graphs, together, strict=True):
        np.testing.assert_allclose(task.predict(graph)[0], expected, atol=1e-5)
    larger = ring(700)
    own = make(GraphPreprocessor(batcher=DynamicBatcher(1), plan=plan))
    own.set_weights(task.get_weights())
    expected = own.predict(task.loader([larger], training=False))
    np.testing.assert_allclose(task.predict(larger)[0], expected[0], atol=1e-5)


@pytest.mark.parametrize("order", ["compact", "blocks"])
def test_schedules_are_cut_alike(order):
    plan = Plan(schedule=ReceptiveField(2))
    if order == "blocks":
        plan = Plan(Banded(16), schedule=ReceptiveField(2, merge=False, order="blocks"))
    graphs = [ring(n, candidates=[0, 1]) for n in (5, 30, 60, 7, 9)]
    backbone = models.GGNNBackbone({"kind": 3}, 4, 2, num_edge_types=1)
    task = models.NodeSelector(
        backbone, GraphPreprocessor(batcher=DynamicBatcher(4), plan=plan)
    )
    task.loader(graphs, adapt=True)
    together = task.predict(graphs)
    for graph, expected in zip(graphs, together, strict=True):
        np.testing.assert_allclose(task.predict([graph])[0], expected, atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="counts programs of JAX")
@pytest.mark.release(elsewhere=True)
def test_single_graphs_compile_once_per_shape():
    import jax

    graphs = [ring(n) for n in SIZES[SIZES < 500]]
    task = make()
    task.fit(graphs, epochs=1, verbose=0)
    counts = []

    def listener(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            counts.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        for graph in graphs:
            task.predict([graph])
        # As documented; what loads a batch or a result is compiled, too.
        nodes = task.preprocessor.batcher.budget["node"]
        bound = 1 + np.log2(nodes / 64)
        assert nodes >= 500
        counts.clear()
        task.make_predict_function(force=True)
        for graph in graphs:
            task.predict([graph])
        assert 0 < len(counts) <= bound
        counts.clear()
        for graph in graphs:
            task.predict([graph])
        assert not counts
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)


def test_graphs_to_predict_keep_the_plan(monkeypatch):
    """What a calibrated machine would choose for other graphs is another program."""
    plans = [Plan(Banded(16)), Plan(Banded(32)), Plan(Banded(64))]
    chosen = []

    def choose(parts, num_types, **options):
        chosen.append(sum(map(len, parts)))
        return SimpleNamespace(plan=plans[len(chosen) - 1])

    monkeypatch.setattr(plan_choice, "choose_plan", choose)
    monkeypatch.setattr(plan_choice.Hardware, "calibrated", lambda dtype: object())
    task = make()
    trained = task.loader([ring(9), ring(20)] * 30, adapt=True)
    assert trained.plan.keys == plans[0].keys and chosen == [60]
    for graphs in ([ring(20)], [ring(3)] * 40, ring(9)):
        assert task.loader(graphs, training=False).plan.keys == plans[0].keys
    # A larger graph gets a plan of its own, and training looks anew.
    assert task.loader([ring(40)], training=False).plan.keys == plans[1].keys
    assert task.loader([ring(20)], training=False).plan.keys == plans[1].keys
    assert task.loader([ring(9)] * 9, adapt=True).plan.keys == plans[2].keys
    assert len(chosen) == 3
