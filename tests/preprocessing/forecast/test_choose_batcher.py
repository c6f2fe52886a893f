import dataclasses
import random
import warnings

import keras
import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.data import FlatGraphs, open_store, write_store
from keras_bandgnn.models import GGNNBackbone, GraphRegressor
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphLoader,
    GraphPreprocessor,
    RCMKCompile,
    StaticBatcher,
)
from keras_bandgnn.preprocessing.forecast.batching_forecast import (
    BatchingForecast,
    TimeModel,
    count_shapes,
)
from keras_bandgnn.preprocessing.forecast.choose_batcher import (
    ALGORITHMS,
    AlgorithmForecast,
    BatcherChoice,
    choose_batcher,
    fastest,
)
from keras_bandgnn.preprocessing.forecast.step_timer import StepTimer
from keras_bandgnn.training import RecompileGuard

SIZES = np.random.default_rng(0).integers(3, 60, 90)


def graphs_of(sizes=SIZES, **changes):
    rng = np.random.default_rng(1)
    return [
        Graph(
            int(n),
            *rng.integers(0, n, (2, 3 * n)),
            **{"node": {"kind": rng.integers(0, 5, n)}, "label": float(n), **changes},
        )
        for n in sizes
    ]


def make_task(**options):
    keras.utils.set_random_seed(0)
    backbone = GGNNBackbone({"kind": 5}, hidden_dim=4, num_steps=1, num_edge_types=1)
    return GraphRegressor(backbone, **options)


def batchers(batch_size):
    yield "dynamic", DynamicBatcher(batch_size - 1)
    yield "best_fit", DynamicBatcher(batch_size - 1, packing="best_fit")
    for padding in ("constant", "64", "power_of_two"):
        yield padding, StaticBatcher(batch_size - 1, padding)


@pytest.mark.parametrize("steps", [1, 7, 60])
def test_shapes_are_those_of_the_loader(steps):
    graphs = FlatGraphs.from_graphs(graphs_of())
    for name, batcher in batchers(5):
        loader = GraphLoader(graphs, batcher, seed=3)
        found = count_shapes(loader.sizes, batcher, steps, seed=3)
        met, first, real, padded, count = {}, {}, 0, 0, 0
        for step in range(steps):
            epoch, index = divmod(step, len(loader))
            (s,) = loader.supergraphs(index, epoch)
            shape = tuple(sorted(s.budget.items()))
            met[shape] = met.get(shape, 0) + 1
            first.setdefault(shape, step)
            real += int(loader.sizes["node"][s.members].sum())
            padded += s.budget["node"]
            count += len(s.members)
        shapes = [tuple(sorted(e.budget.items())) for e in found.examples]
        assert found.exact and set(shapes) == set(met), name
        assert dict(zip(shapes, found.first.tolist(), strict=True)) == first, name
        assert found.after(3) == sum(step < 3 for step in first.values())
        if found.steps == steps:
            assert dict(zip(shapes, found.counts.tolist(), strict=True)) == met
            assert found.graphs_per_step == pytest.approx(count / steps)
            assert found.waste("node") == pytest.approx(1 - real / padded)
        else:
            assert batcher.fixed_shapes
            assert found.graphs_per_step == pytest.approx(count / steps, rel=0.1)
        sizes = [e.budget["node"] for e in found.at((0.0, 0.5, 1.0))]
        assert min(sizes) == min(e.budget["node"] for e in found.examples)
        for example in found.examples:
            loader.build_as([example.members], example.budget)


def test_shapes_beyond_the_limit_are_a_lower_bound():
    graphs = FlatGraphs.from_graphs(graphs_of())
    batcher = StaticBatcher(4, "64")
    loader = GraphLoader(graphs, batcher)
    found = count_shapes(loader.sizes, batcher, 1000, limit=50)
    assert (found.steps, found.exact) == (50, False)
    assert count_shapes(loader.sizes, batcher, 50).after(50) == found.after(50)


def test_a_hundred_thousand_steps_take_seconds():
    rng = np.random.default_rng(0)
    nodes = np.clip(rng.normal(18, 3, 20_000), 3, 29).astype(int)
    sizes = {"node": nodes, "edge": nodes * (nodes - 1)}
    for padding, least, most in (("64", 50, 200), ("power_of_two", 2, 12)):
        batcher = StaticBatcher(31, padding)
        batcher.adapt(sizes)
        found = count_shapes(sizes, batcher, 100_000)
        assert found.exact and found.counts.sum() == 100_000
        # Speckhard et al., Figure 3: 4 (powers of two) and 89 (multiples of 64).
        assert least <= len(found.examples) <= most


@pytest.mark.every_backend
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX compiles per shape")
@pytest.mark.release(elsewhere=True)
def test_compilations_are_those_of_a_real_fit():
    graphs = graphs_of(3 + SIZES % 6)
    batcher = StaticBatcher(8, "64")
    steps = 2 * -(-len(graphs) // 8)
    forecast = BatchingForecast(
        graphs, make_task(), 8, steps, ["64"], seconds=0.1, verbose=False
    )
    (row,) = forecast.rows()
    guard = RecompileGuard(action="count")
    task = make_task(preprocessor=GraphPreprocessor(batcher=batcher))
    task.fit(graphs, epochs=2, verbose=0, callbacks=[guard])
    assert guard.count == row.compilations == row.shapes > 1


def test_choice_is_ready_and_nothing_changed(tmp_path):
    graphs = graphs_of(3 + SIZES % 7)
    task = make_task()
    weights = [np.array(w) for w in task.get_weights()]
    states = random.getstate(), np.random.get_state()[1].tolist()
    config, compiled = task.get_config(), task.get_compile_config()
    options = {"batch_size": 10, "steps": 50, "packing": "sequential"}
    choice = choose_batcher(graphs, task, verbose=False, **options)
    assert all(map(np.array_equal, weights, task.get_weights()))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states
    assert task.get_config() == config and task.get_compile_config() == compiled
    assert not task.optimizer.built and task.preprocessor is None
    assert task.normalizer.is_adapted is False
    assert [row.algorithm for row in choice.table] == list(ALGORITHMS)
    for row in choice.table:
        assert 0 <= row.node_waste < 1 and 0 <= row.edge_waste < 1
        assert row.graphs_per_step <= 10
        assert min(row.update_ms, row.batching_ms, row.steady_ms) > 0
        assert row.step_ms >= row.steady_ms >= row.batching_ms
        assert row.graph_us == pytest.approx(1e3 * row.step_ms / row.graphs_per_step)
    assert choice["dynamic"].shapes == choice["constant"].shapes == 1
    assert choice["64"].shapes >= choice["power_of_two"].shapes > 1
    assert choice["constant"].node_waste > choice["64"].node_waste
    loader = GraphLoader(graphs, choice.batcher)
    assert choice.batcher.is_adapted(loader.sizes)
    text = choice.summary()
    assert f"{choice.algorithm} is chosen for 50 steps" in text
    assert len(text.splitlines()) == 6
    task.fit(loader, epochs=1, verbose=0)


def test_layers_and_plan_of_the_preprocessor_are_used():
    task = make_task(preprocessor=GraphPreprocessor([RCMKCompile(16)]))
    options = {"batch_size": 5, "steps": 20, "algorithms": ["constant"]}
    sizes = BatchingForecast(
        graphs_of(), task, **options, seconds=1.0, verbose=False
    ).sizes
    assert len(sizes["node"]) == len(SIZES)
    assert task.preprocessor.batcher.budget == {}


def test_any_keras_model_and_a_store(tmp_path):
    write_store(tmp_path / "store", graphs_of())
    store = open_store(tmp_path / "store")
    loader = GraphLoader(store, StaticBatcher(5), prefetch=0)

    @keras.saving.register_keras_serializable("test_choose_batcher")
    class Mean(keras.Model):
        def __init__(self, units=4, **kwargs):
            super().__init__(**kwargs)
            self.units = units
            self.embed = keras.layers.Embedding(5, units)
            self.head = keras.layers.Dense(1)

        def call(self, x):
            h = keras.ops.mean(self.embed(x["node"]["kind"]), axis=1, keepdims=True)
            slots = keras.ops.ones_like(keras.ops.cast(x["graph"]["mask"], "float32"))
            return self.head(h * slots[..., None])

        def get_config(self):
            return {**super().get_config(), "units": self.units}

    model = Mean()
    model.compile("sgd", "mse")
    model(loader[0][0])
    choice = choose_batcher(
        store, model, 6, 30, ["64", "constant"], criterion="graph", verbose=False
    )
    assert choice.algorithm in ("64", "constant")
    assert choice.criterion == "graph" and " us per graph" in choice.summary()


def test_errors():
    graphs, task = graphs_of(SIZES[:8]), make_task()
    loader = GraphLoader(graphs)
    bare = keras.Sequential([keras.layers.Dense(1)])
    for arguments, message in (
        ((graphs, bare), "`model` to be a compiled model"),
        ((graphs, "model"), "`model` to be a keras.Model"),
        ((loader, task), "Pass the graphs that it was made of"),
        ((graphs_of(SIZES[:8], label=None), task), "Expected graphs with labels"),
        ((graphs, task, 0), "`batch_size` to be at least 1"),
        ((graphs, task, 4, 0), "`steps` to be at least 1"),
        ((graphs, task, 4, 9, ["32"]), "`algorithm` to be one of"),
        ((graphs, task, 4, 9, "64"), "`algorithms` to be a list"),
        ((graphs, task, 4, 9, ["dynamic"], "tight"), "`packing`"),
        ((graphs_of(SIZES[:8], label=[1.0, 2.0]), task), "num_targets=1"),
        ((graphs_of(SIZES[:8], node={}), task), "'kind' is missing"),
    ):
        with pytest.raises(ValueError, match=message):
            choose_batcher(*arguments, verbose=False)
    with pytest.raises(ValueError, match="`criterion` to be one of"):
        choose_batcher(graphs, task, criterion="epoch")

    class Local(keras.Model):
        def __init__(self, thing):
            super().__init__()

        def call(self, x):
            return x

    local = Local(object())
    local.compile("sgd", "mse")
    with pytest.raises(ValueError, match="make again from its configuration"):
        choose_batcher(graphs, local, verbose=False)


def row(name, step_ms, compilations=1, graphs=10.0, steady=None, compile_s=1.0):
    return AlgorithmForecast(
        algorithm=name,
        shapes=compilations,
        exact=True,
        compilations=compilations,
        node_waste=0.1,
        edge_waste=0.1,
        graphs_per_step=graphs,
        batching_ms=0.1,
        update_ms=1.0,
        steady_ms=step_ms if steady is None else steady,
        compile_s=compile_s,
        step_ms=step_ms,
        graph_us=1e3 * step_ms / graphs,
    )


def test_rule_of_the_choice():
    rows = [row("dynamic", 2.0), row("64", 1.99, 50), row("constant", 4.0, graphs=40.0)]
    # Equal within 2 %: the one that compiles less.
    assert fastest(rows, "step").algorithm == "dynamic"
    assert fastest(rows, "graph").algorithm == "constant"
    rows[1] = dataclasses.replace(rows[1], step_ms=1.5)
    assert fastest(rows, "step").algorithm == "64"


def test_explanation_compares_with_the_second():
    rows = (row("dynamic", 2.0), row("64", 2.5, 100))
    choice = BatcherChoice(None, "dynamic", rows, "step", 100_000, 0.01)
    text = choice.explanation()
    assert text.startswith("dynamic is chosen for 100,000 steps: 2.00 ms per step")
    assert text.endswith("64 would take 1.25 times as long.")
    rows = (rows[0], row("64", 1.99, 100))
    equal = dataclasses.replace(choice, table=rows).explanation()
    assert equal.endswith("64 would take 0.99 times as long and compile more often.")
    with pytest.raises(ValueError, match="one of 'dynamic', '64'"):
        choice["constant"]


def test_times_of_other_shapes_follow_from_measured_ones():
    def shape(node, edge, **others):
        return {"graph": 8, "edge": edge, "node": node, "candidate": 3, **others}

    shapes = [shape(64, 128), shape(64, 512), shape(128, 192), shape(1024, 4096)]
    times = [1 + 0.01 * s["node"] + 0.002 * s["edge"] for s in shapes]
    model = TimeModel(shapes, times)
    assert model.residual < 1e-6
    assert model.ms(shape(1280, 1280)) == pytest.approx(1 + 12.8 + 2.56)
    # Rows of a plan that agree with the edges change nothing; others have a share.
    equal = [{**s, "segment": s["edge"]} for s in shapes]
    assert TimeModel(equal, times).ms(equal[0]) == pytest.approx(times[0])
    rows = [{**s, "row": n} for s, n in zip(shapes, (10, 90, 20, 70), strict=True)]
    more = [t + 0.1 * s["row"] for s, t in zip(rows, times, strict=True)]
    assert TimeModel(rows, more).residual < 1e-6
    # Errors are relative: 10 % off at one shape is 10 % at most anywhere.
    off = [times[0] * 1.1, *times[1:]]
    assert 0.01 < TimeModel(shapes, off).residual < 0.1


def test_other_work_and_epochs_do_not_count(monkeypatch):
    timer = StepTimer(make_task())
    steps, seconds = [], iter([9.0, 0.53, 0.68, 1.1, 4.1, 1.1, 1.1])

    def fit(data):
        steps.append(len(data))
        return next(seconds)

    monkeypatch.setattr(timer, "fit", fit)
    # An epoch takes 0.5 s and each step 0.03 s; the first step compiles.
    timer.add("key", None)
    assert timer.epoch_s == pytest.approx(0.5)
    for _ in range(4):
        timer.visit("key", 0.6)
    assert steps == [1, 1, 6, 33, 33, 33, 33]
    assert timer.ms("key") == pytest.approx(600 / 33)
    assert timer.compile_s() == pytest.approx(8.5 - 0.6 / 33)
    # Of long steps one is enough to know how long they are.
    seconds = iter([9.0, 2.5, 2.5])
    timer.add("long", None)
    timer.visit("long")
    assert steps[7:] == [1, 1, 1] and timer.ms("long") == pytest.approx(2000)


def test_programs_of_each_backend():
    def programs(**options):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [StepTimer(model).programs(n) for n in (0, 1, 9)]

    assert programs(run_eagerly=True) == [0, 0, 0]
    expected = {"jax": [0, 1, 9], "tensorflow": [0, 1, 1], "torch": [0, 0, 0]}
    assert programs() == expected[keras.backend.backend()]
    if keras.backend.backend() != "jax":
        most = {"tensorflow": 9, "torch": 2}[keras.backend.backend()]
        assert programs(jit_compile=True) == [0, 1, most]
