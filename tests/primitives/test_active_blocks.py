import keras
import numpy as np
import pytest

from keras_bandgnn.models import GGNNBackbone, NodeSelector
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphLoader,
    GraphPreprocessor,
    RCMKCompile,
)
from keras_bandgnn.primitives import Banded, Grouped, Plan, ReceptiveField
from keras_bandgnn.testing import random_graph
from keras_bandgnn.training import RecompileGuard

STEPS = 3
SIZE = 4
SCHEDULE = ReceptiveField(STEPS, merge=False, order="blocks")
# Without a rest it must not matter where graphs lie: "band".
PLANS = {
    "segment": Plan(Banded(SIZE), schedule=SCHEDULE),
    "grouped": Plan(Banded(SIZE), rest=Grouped(8), schedule=SCHEDULE),
    "drop": Plan(Banded(SIZE, cover="band"), rest="drop", schedule=SCHEDULE),
}
REFERENCES = {"segment": Plan(), "grouped": Plan(), "drop": None}
GROUPS = [np.array([3, 0, 5]), np.array([1, 2, 4])]


def graphs_of(count, ordering="breadth_first", seed=0, density=1.2):
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        nodes = int(rng.integers(12, 40))
        graphs.append(random_graph(rng, nodes, int(density * nodes)))
    return [RCMKCompile(SIZE, ordering=ordering)(graph) for graph in graphs]


def make_task(**options):
    keras.utils.set_random_seed(0)
    inputs = {"type": 10, "x": {"features": 2}}
    backbone = GGNNBackbone(
        inputs, hidden_dim=6, num_steps=STEPS, num_edge_types=3, **options
    )
    task = NodeSelector(backbone, readout="slot")
    rng = np.random.default_rng(1)
    for weight in task.weights:
        if "bias" in weight.path:
            weight.assign(rng.normal(size=weight.shape))
    return task


def batch_of(graphs, plan, room=lambda value: value):
    """The graphs of `GROUPS` as one batch of two supergraphs."""
    loader = GraphLoader(graphs, DynamicBatcher(5), plan, num_edge_types=3, prefetch=0)
    budget = {"graph": 4}
    for name, values in loader.sizes.items():
        budget[name] = room(max(int(values[group].sum()) for group in GROUPS))
    # Not a multiple of the block size.
    budget["node"] += 1 + budget["node"] % 2
    budget["candidate"] = int(loader.sizes["candidate"].max())
    return loader.build_as(GROUPS, budget)


def logits_and_gradients(task, batch):
    """Logits, and gradients of their sum with random weights, by weight."""
    x = keras.tree.map_structure(keras.ops.convert_to_tensor, batch[0])
    factor = np.random.default_rng(2).normal(size=x["candidate"]["mask"].shape)
    factor = keras.ops.convert_to_tensor(
        np.where(batch[0]["candidate"]["mask"], factor, 0).astype("float32")
    )
    backend, weights = keras.backend.backend(), task.trainable_weights
    if backend == "jax":
        import jax

        # As an argument: the compiler would spend minutes on folding constants.
        def loss(values, x):
            logits, _ = task.stateless_call(values, [], x)
            return keras.ops.sum(logits * factor), logits

        values = [weight.value for weight in weights]
        step = jax.jit(jax.value_and_grad(loss, has_aux=True))
        (_, logits), out = step(values, x)
    elif backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            logits = task(x)
            loss = keras.ops.sum(logits * factor)
        out = tape.gradient(loss, [weight.value for weight in weights])
        out = [tf.convert_to_tensor(gradient) for gradient in out]
    else:
        import torch

        logits = task(x)
        values = [weight.value for weight in weights]
        out = torch.autograd.grad(keras.ops.sum(logits * factor), values)
    out = {
        w.path: keras.ops.convert_to_numpy(g) for w, g in zip(weights, out, strict=True)
    }
    return keras.ops.convert_to_numpy(logits), out


def states_of(backbone, x, training=False, variables=None):
    """States of the nodes, and the variables that are not trained afterwards."""
    x = keras.tree.map_structure(keras.ops.convert_to_tensor, x)
    trained = [weight.value for weight in backbone.trainable_variables]
    if variables is None:
        variables = [v.value for v in backbone.non_trainable_variables]

    def call(variables, x):
        return backbone.stateless_call(trained, variables, x, training=training)

    if keras.backend.backend() == "jax":
        import jax

        call = jax.jit(call)
    states, variables = call(variables, x)
    return keras.ops.convert_to_numpy(states), variables


@pytest.mark.parametrize(
    "name, ordering",
    [*((name, "breadth_first") for name in PLANS), ("segment", "natural")],
)
def test_logits_and_gradients_equal_those_without_a_schedule(name, ordering):
    task, graphs = make_task(), graphs_of(6, ordering)
    plan = PLANS[name]
    reference = REFERENCES[name] or plan.replace(schedule=None)
    logits, gradients = logits_and_gradients(task, batch_of(graphs, plan))
    expected, slopes = logits_and_gradients(task, batch_of(graphs, reference))
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    assert set(gradients) == set(slopes) and len(slopes) > 5
    for path, slope in slopes.items():
        scale = max(1.0, np.abs(slope).max())
        np.testing.assert_allclose(gradients[path], slope, atol=1e-5 * scale)
        assert np.abs(slope).max() > 0


def test_blocks_beyond_those_needed_change_nothing():
    task, graphs = make_task(), graphs_of(6)
    tight = batch_of(graphs, PLANS["segment"])
    wide = batch_of(graphs, PLANS["segment"], room=lambda value: 64 + 2 * value)
    counts = [
        b[0]["plan"][f"step:{STEPS - 1}"]["block"].shape[1] for b in (tight, wide)
    ]
    assert counts[0] < counts[1]
    shape = tight[0]["candidate"]["mask"].shape
    assert shape == wide[0]["candidate"]["mask"].shape
    logits = [logits_and_gradients(task, batch)[0] for batch in (tight, wide)]
    np.testing.assert_allclose(*logits, atol=1e-5)


def test_nodes_that_do_not_count_are_never_updated():
    graphs = graphs_of(6)
    x = batch_of(graphs, PLANS["segment"])[0]
    blocks = x["plan"]["blocks"]
    first = x["plan"]["step:0"]["block"].shape[1]
    assert first < blocks["order"].shape[1]
    task = make_task()
    before = np.asarray(keras.ops.convert_to_numpy(task.backbone.encoder(x)))
    after, _ = states_of(task.backbone, x)
    for g in range(2):
        block = np.arange(after.shape[1]) // SIZE
        idle = np.isin(block, blocks["order"][g, first:])
        assert idle.any()
        np.testing.assert_array_equal(after[g, idle], before[g, idle])


@pytest.mark.parametrize("dropout", ["dropout", "message_dropout"])
def test_dropout_trains(dropout):
    task = make_task(**{dropout: 0.5})
    x = batch_of(graphs_of(6), PLANS["segment"])[0]
    states, seeds = states_of(task.backbone, x, training=True)
    assert np.isfinite(states).all()
    again, _ = states_of(task.backbone, x, training=True, variables=seeds)
    assert np.abs(states - again).max() > 1e-3


def test_one_compilation():
    graphs = graphs_of(40)
    task = make_task()
    batcher = DynamicBatcher(5)
    task.preprocessor = GraphPreprocessor([], batcher, PLANS["grouped"])
    jit = keras.backend.backend() != "torch"
    task.compile("adam", jit_compile=jit)
    guard = RecompileGuard(budget=1)
    task.fit(graphs, epochs=2, verbose=0, callbacks=[guard])
    assert guard.count == int(jit)
    assert len(task.predict(graphs)) == 40


def test_the_number_of_steps_must_be_the_model_s():
    plan = PLANS["drop"].replace(
        schedule=ReceptiveField(STEPS + 1, merge=False, order="blocks")
    )
    x = batch_of(graphs_of(6), plan)[0]
    with pytest.raises(ValueError, match="schedule of 3 steps.*4 steps"):
        make_task().backbone(x)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: ReceptiveField(8, order="blocks"), "merge=False.*order='blocks'"),
        (lambda: Plan(schedule=SCHEDULE), "Banded.S. and one rest"),
        (
            lambda: Plan(Banded(4), Banded(8), rest="drop", schedule=SCHEDULE),
            "Banded.S. and one rest",
        ),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_plan_config_round_trip():
    for plan in PLANS.values():
        assert Plan.from_config(plan.get_config()) == plan
