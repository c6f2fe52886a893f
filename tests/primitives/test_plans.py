import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bandgnn import primitives
from keras_bandgnn.primitives import Banded, Edges, Grouped, Plan, Segment
from keras_bandgnn.testing import random_graph
from tests.compiled import compiled
from tests.oracles.dense import typed_messages

# One capacity, so that backends compile few shapes.
CAPACITY = 130
PLANS = {
    "segment": Plan(),
    "grouped": Plan(rest=Grouped()),
    "grouped:8": Plan(rest=Grouped(8)),
    "banded:4": Plan(Banded(4)),
    "banded:64": Plan(Banded(64)),
    "banded:4:band": Plan(Banded(4, "band")),
    "banded+grouped": Plan(Banded(8), rest=Grouped()),
    "two bands": Plan(Banded(2), Banded(4)),
}


def edges_of(graph, num_types):
    return Edges(
        graph.senders, graph.receivers, graph.edge_type, graph.num_nodes, num_types
    )


def packed(plan, graph, num_types):
    edges = edges_of(graph, num_types)
    sizes = plan.sizes(edges, np.zeros(len(edges), np.int64), 1)
    assert all(0 <= values[0] <= len(edges) for values in sizes.values())
    arrays = plan.pack(edges, dict.fromkeys(sizes, CAPACITY))
    return keras.tree.map_structure(lambda a: a[None], arrays)


def run(plan, graph, states, kernel, bias, dtype="float32"):
    arrays = keras.tree.map_structure(
        keras.ops.convert_to_tensor, packed(plan, graph, kernel.shape[0])
    )
    tensors = [
        None if t is None else keras.ops.convert_to_tensor(t, dtype)
        for t in (states[None], kernel, bias)
    ]

    @compiled
    def call(arrays, *tensors):
        prepared = primitives.prepare(arrays, graph.num_nodes, kernel.shape[0], dtype)
        return primitives.propagate(prepared, *tensors)

    out = call(arrays, *tensors)
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(out, "float32")))[0]


def problem(seed, num_nodes=13, num_types=3, width=4, units=5):
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, num_nodes, num_types=num_types)
    shape = (num_types, width, units)
    states = rng.normal(size=(num_nodes, width)).astype("float32")
    kernel = rng.normal(size=shape).astype("float32")
    bias = rng.normal(size=(num_types, units)).astype("float32")
    return graph, states, kernel, bias


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("with_bias", [True, False])
def test_plan_equals_the_oracle(name, with_bias):
    graph, states, kernel, bias = problem(0)
    bias = bias if with_bias else None
    expected = typed_messages(graph, states, kernel, bias)
    out = run(PLANS[name], graph, states, kernel, bias)
    np.testing.assert_allclose(out, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", PLANS)
def test_bfloat16_is_close(name):
    graph, states, kernel, bias = problem(1)
    expected = typed_messages(graph, states, kernel, bias)
    out = run(PLANS[name], graph, states, kernel, bias, "bfloat16")
    # bfloat16 keeps 8 bits: 2**-8 of the largest term, a few terms per sum.
    np.testing.assert_allclose(out, expected, atol=0.03 * np.abs(expected).max())


@pytest.mark.release(elsewhere=True)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    num_nodes=st.sampled_from([1, 7, 40]),
    num_types=st.sampled_from([1, 3]),
    name=st.sampled_from(sorted(PLANS)),
)
def test_every_plan_equals_every_other(seed, num_nodes, num_types, name):
    graph, states, kernel, bias = problem(seed, num_nodes, num_types)
    out = run(PLANS[name], graph, states, kernel, bias)
    other = run(Plan(), graph, states, kernel, bias)
    scale = max(1.0, np.abs(other).max())
    np.testing.assert_allclose(out, other, atol=1e-5 * scale)


@pytest.mark.parametrize("name", PLANS)
def test_gradients_equal_those_of_segment(name):
    graph, states, kernel, bias = problem(2)
    weights = np.random.default_rng(3).normal(size=(13, 5)).astype("float32")
    gradients = [
        gradient(PLANS[n], graph, states, kernel, bias, weights)
        for n in (name, "segment")
    ]
    for own, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(own, other, atol=1e-4)
    # The oracle is linear in the kernel, so differences give its exact gradient.
    step = np.zeros_like(kernel)
    step[1, 2, 3] = 1.0
    slope = typed_messages(graph, states, kernel + step, bias) - typed_messages(
        graph, states, kernel, bias
    )
    assert abs((slope * weights).sum() - gradients[0][1][1, 2, 3]) < 1e-3


def gradient(plan, graph, states, kernel, bias, weights):
    """Gradients of sum(out * weights) with respect to states, kernel and bias."""
    weights = keras.ops.convert_to_tensor(weights)
    variables = [keras.Variable(v) for v in (states[None], kernel, bias)]
    arrays = keras.tree.map_structure(
        keras.ops.convert_to_tensor, packed(plan, graph, kernel.shape[0])
    )

    def loss(*tensors):
        prepared = primitives.prepare(
            arrays, graph.num_nodes, kernel.shape[0], "float32"
        )
        return keras.ops.sum(primitives.propagate(prepared, *tensors) * weights)

    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        out = jax.jit(jax.grad(loss, (0, 1, 2)))(*(v.value for v in variables))
    elif backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = loss(*(v.value for v in variables))
        out = tape.gradient(value, [v.value for v in variables])
        out = [tf.convert_to_tensor(g) for g in out]
    else:
        import torch

        value = loss(*(v.value for v in variables))
        out = torch.autograd.grad(value, [v.value for v in variables])
    return [np.asarray(keras.ops.convert_to_numpy(g)) for g in out]


@pytest.mark.parametrize("cover", ["blocks", "band"])
def test_dropping_the_rest_drops_exactly_the_uncovered_edges(cover):
    graph, states, kernel, bias = problem(4, num_nodes=40)
    plan = Plan(Banded(4, cover), rest="drop")
    dropped = plan.dropped(edges_of(graph, 3))
    assert 0 < dropped.sum() < graph.num_edges
    expected = typed_messages(graph, states, kernel, bias, keep=~dropped)
    out = run(plan, graph, states, kernel, bias)
    np.testing.assert_allclose(out, expected, atol=1e-5, rtol=1e-5)
    distance = np.abs(graph.senders - graph.receivers)
    assert not dropped[distance < 4].any()
    assert dropped[distance >= (4 if cover == "band" else 8)].all()


def test_banded_blocks_have_the_layout_of_algorithm_1():
    # Receiver 5 (block 1, s = 1), type 2 of 3, sender 2 (block 0, column 2), S = 4.
    edges = Edges(*(np.array([v], np.int32) for v in (2, 5, 2)), 12, 3)
    arrays = Banded(4).pack(edges, {"banded:4": 2})
    arrays = {k: keras.ops.convert_to_tensor(v[None]) for k, v in arrays.items()}
    blocks = Banded(4).prepare(arrays, 12, 3, "float32")["blocks"]
    blocks = np.asarray(keras.ops.convert_to_numpy(blocks))
    # Supergraph, block, tile of columns (senders k - 1, k, k + 1), row, column.
    assert blocks.shape == (1, 3, 3, 12, 4)
    assert np.argwhere(blocks).tolist() == [[0, 1, 0, 1 * 3 + 2, 2]]


def test_each_edge_goes_to_exactly_one_primitive():
    graph, *_ = problem(5, num_nodes=40)
    arrays = packed(PLANS["two bands"], graph, 3)
    real = [
        int(arrays["banded:2"]["mask"].sum()),
        int(arrays["banded:4"]["mask"].sum()),
        int((arrays["segment"]["receiver"] < 40).sum()),
    ]
    assert min(real) > 0 and sum(real) == graph.num_edges


def test_grouped_rows_are_the_distinct_sender_type_pairs():
    graph, *_ = problem(6, num_nodes=30)
    edges = edges_of(graph, 3)
    sizes = Grouped().sizes(edges, np.zeros(len(edges), np.int64), 1)
    pairs = set(zip(graph.senders.tolist(), graph.edge_type.tolist(), strict=True))
    assert sizes["grouped.row"].tolist() == [len(pairs)]


def test_plans_show_all_they_hold():
    assert repr(Plan(Segment(), Banded(8))) == "Plan('banded:8', rest='segment')"
    assert repr(Plan(Banded(8), rest="drop")) == "Plan('banded:8', rest='drop')"


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_plan_config_round_trip(plan):
    assert Plan.from_config(plan.get_config()) == plan
    lossy = Plan(Banded(8), rest="drop")
    assert Plan.from_config(lossy.get_config()) == lossy != Plan(Banded(8))


def test_a_graph_without_edges_gives_zeros():
    graph, states, kernel, bias = problem(7)
    graph = graph.replace(senders=[], receivers=[], edge_type=[])
    for plan in PLANS.values():
        assert not run(plan, graph, states, kernel, bias).any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Banded(0), "`block_size` to be at least 1"),
        (lambda: Banded(2.5), "`block_size` to be an integer"),
        (lambda: Banded(4, "all"), "'blocks' or 'band'"),
        (lambda: Grouped(0), "`group_size` to be at least 1"),
        (lambda: Plan(rest="drop"), "at least one primitive"),
        (lambda: Plan("banded"), "Expected instances of Primitive"),
        (lambda: Plan(Banded(4), rest=Banded(8)), "to cover every edge"),
        (lambda: Plan(Banded(4), rest=None), "'drop' or a primitive"),
        (lambda: Plan(Banded(4), Banded(4)), "each primitive once"),
        (lambda: Plan(rest="segment:9"), "key of a primitive"),
        (lambda: Plan(rest="dense-ish"), "key of a primitive"),
        (lambda: Plan(rest="segments"), "Did you mean 'segment'"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_too_small_a_budget_names_the_resource():
    graph, *_ = problem(8)
    edges = edges_of(graph, 3)
    for primitive in (Segment(), Banded(64), Grouped(2)):
        budget = dict.fromkeys((primitive.key(), f"{primitive.key()}.row"), 1)
        with pytest.raises(ValueError, match=f"budget of '{primitive.key()}"):
            primitive.pack(edges, budget)
