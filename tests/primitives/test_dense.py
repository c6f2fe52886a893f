import functools

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bandgnn import primitives
from keras_bandgnn.primitives import Edges, Grouped, Plan, Segment
from keras_bandgnn.primitives.dense import Dense, intervals
from keras_bandgnn.testing import random_graph
from tests.oracles.dense import typed_messages

NUM_NODES, NUM_TYPES, WIDTH, UNITS = 40, 3, 4, 5
CAPACITY = 161


def small_graphs(seed, lengths, weighted=False, num_types=NUM_TYPES):
    """Edges of graphs side by side, and the graph of each edge."""
    rng = np.random.default_rng(seed)
    parts, start = [], 0
    for number, length in enumerate(lengths):
        count = int(rng.integers(0, 4 * length))
        ends = rng.integers(0, length, (2, count)) + start
        # Neighbours, loops and repeats, and nodes without edges.
        ends[1] = np.clip(
            ends[0] + rng.integers(-2, 3, count), start, ends[1].max(initial=start)
        )
        parts.append([*ends, np.full(count, number)])
        start += length
    sender, receiver, graph = np.concatenate(parts, axis=1).astype(np.int32)
    kind = rng.integers(0, num_types, len(sender)).astype(np.int32)
    weight = rng.normal(size=len(sender)).astype(np.float32) if weighted else None
    return Edges(sender, receiver, kind, start, num_types, weight), graph


def batch_of(chosen, all_edges):
    """Plan arrays of supergraphs, [G, ...] each."""
    # One capacity, so that backends compile few shapes.
    names = chosen.sizes(all_edges[0], np.zeros(len(all_edges[0]), np.int64), 1)
    budget = dict.fromkeys(names, CAPACITY)
    packed = [chosen.pack(edges, budget) for edges in all_edges]
    return keras.tree.map_structure(lambda *a: np.stack(a), *packed)


@functools.cache
def compiled(num_nodes, dtype):
    """Function of arrays, x, kernel, bias, grad: the output and its gradients."""

    def call(arrays, x, kernel, bias):
        prepared = primitives.prepare(arrays, num_nodes, kernel.shape[0], dtype)
        return primitives.propagate(prepared, x, kernel, bias)

    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        def run(arrays, *tensors):
            out, pull = jax.vjp(lambda *t: call(arrays, *t), *tensors[:-1])
            return out, pull(tensors[-1])

        return jax.jit(run)
    if backend == "tensorflow":
        import tensorflow as tf

        @tf.function
        def run(arrays, *tensors):
            with tf.GradientTape() as tape:
                tape.watch(tensors[:-1])
                out = call(arrays, *tensors[:-1])
            slopes = tape.gradient(out, tensors[:-1], tensors[-1])
            return out, [tf.convert_to_tensor(slope) for slope in slopes]

        return run
    import torch

    def run(arrays, *tensors):
        leaves = [tensor.requires_grad_() for tensor in tensors[:-1]]
        out = call(arrays, *leaves)
        return out.detach(), torch.autograd.grad(out, leaves, tensors[-1])

    return run


def evaluate(chosen, all_edges, x, kernel, bias, grad, dtype="float32"):
    """Output [G, N, U], and gradients of sum(out * grad), compiled."""
    tree = (batch_of(chosen, all_edges), x, kernel, bias, grad)
    arrays, *tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, tree)
    tensors = [keras.ops.cast(t, dtype) for t in tensors]
    out, slopes = compiled(all_edges[0].num_nodes, dtype)(arrays, *tensors)
    return numpy(out), [numpy(slope) for slope in slopes]


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")))


def expected(edges, x, kernel, bias, grad):
    """Output and gradients from the dense matrix [N, P, N], in float64."""
    matrix = np.zeros((edges.num_nodes, edges.num_types, edges.num_nodes))
    weight = np.ones(len(edges)) if edges.weight is None else edges.weight
    np.add.at(matrix, (edges.receiver, edges.type, edges.sender), weight)
    degree = matrix.sum(axis=2)
    sums = np.einsum("npj,jh->nph", matrix, x)
    out = np.einsum("nph,phu->nu", sums, kernel) + degree @ bias
    slopes = [
        np.einsum("npj,nu,phu->jh", matrix, grad, kernel),
        np.einsum("nph,nu->phu", sums, grad),
        np.einsum("np,nu->pu", degree, grad),
    ]
    return out, slopes


def values(seed, groups, num_nodes=NUM_NODES, num_types=NUM_TYPES):
    rng = np.random.default_rng(seed)
    shapes = (
        (groups, num_nodes, WIDTH),
        (num_types, WIDTH, UNITS),
        (num_types, UNITS),
        (groups, num_nodes, UNITS),
    )
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


def check_against_oracle(chosen, all_edges, tolerance, dtype="float32"):
    """Output and gradients, relative to the largest entry of each."""
    groups, edges = len(all_edges), all_edges[0]
    x, kernel, bias, grad = values(7, groups, edges.num_nodes, edges.num_types)
    out, slopes = evaluate(chosen, all_edges, x, kernel, bias, grad, dtype)
    parts = [expected(e, x[g], kernel, bias, grad[g]) for g, e in enumerate(all_edges)]
    wanted = [
        np.stack([p[0] for p in parts]),
        np.stack([p[1][0] for p in parts]),
        sum(p[1][1] for p in parts),
        sum(p[1][2] for p in parts),
    ]
    for own, other in zip([out, *slopes], wanted, strict=True):
        scale = max(1.0, np.abs(other).max())
        np.testing.assert_allclose(own, other, atol=tolerance * scale, rtol=0)


LENGTHS = ([6, 3, 8, 1, 12, 2, 8], [12, 12, 4, 12], [40])
RESTS = {"segment": Segment(), "grouped": Grouped(8)}


@pytest.mark.parametrize("rest", RESTS)
@pytest.mark.parametrize(("weighted", "groups"), [(False, 1), (True, 3)])
def test_equals_the_oracle(rest, weighted, groups):
    all_edges = [
        small_graphs(seed, lengths, weighted)[0]
        for seed, lengths in enumerate(LENGTHS[:groups])
    ]
    chosen = Plan(Dense(8), rest=RESTS[rest])
    check_against_oracle(chosen, all_edges, 1e-5)


def test_bfloat16_is_close():
    edges = small_graphs(0, LENGTHS[0])[0]
    # bfloat16 keeps 8 bits: 2**-8 of the largest term, a few terms per sum.
    check_against_oracle(Plan(Dense(8)), [edges], 0.03, "bfloat16")


def test_intervals_hold_what_hangs_together():
    ends = np.array([[0, 3, 5, 9, 7], [2, 3, 6, 8, 9]], np.int32)
    edges = Edges(*ends, np.zeros(5, np.int32), 11, 1)
    interval, first = intervals(edges)
    assert first.tolist() == [0, 3, 4, 5, 7, 10]
    assert interval.tolist() == [0, 1, 3, 4, 4]


def test_small_neighbours_share_a_block():
    # Intervals 0-2, 3, 5-6 and 7-9 in blocks of 4: (0-3), (5-6), (7-9).
    ends = np.array([[0, 3, 5, 9, 7], [2, 3, 6, 8, 9]], np.int32)
    edges = Edges(*ends, np.zeros(5, np.int32), 11, 1)
    budget = {"dense:4": 4, "dense:4.edge": 6}
    arrays = Dense(4).pack(edges, budget)
    assert arrays["row"].tolist() == [2, 3, 5, 9, 10, 0]
    assert arrays["column"].tolist() == [0, 3, 0, 2, 0, 0]
    assert arrays["node"].tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10] + [11] * 6
    assert arrays["place"].tolist() == [0, 1, 2, 3, 4, 5, 8, 9, 10, 11] + [16] * 6


def test_larger_intervals_are_left_to_the_rest():
    edges, _ = small_graphs(2, [30, 5])
    covered = Dense(8).cover(edges)
    interval, first = intervals(edges)
    length = np.diff(first, append=edges.num_nodes)[interval]
    assert 0 < covered.sum() < len(edges)
    np.testing.assert_array_equal(covered, length <= 8)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    lengths=st.lists(st.integers(1, 14), min_size=1, max_size=12),
    size=st.sampled_from([1, 4, 8, 16]),
)
def test_capacities_suffice_wherever_graphs_lie(seed, lengths, size):
    chosen = Plan(Dense(size))
    edges, graph = small_graphs(seed, lengths)
    sizes = chosen.sizes(edges, graph, len(lengths))
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(lengths))[: rng.integers(1, len(lengths) + 1)]
    part = joined(edges, graph, lengths, order)
    budget = {name: int(values[order].sum()) for name, values in sizes.items()}
    arrays = chosen.pack(part, budget)
    count = arrays[f"dense:{size}"]["mask"].sum()
    assert count + (arrays["segment"]["receiver"] < part.num_nodes).sum() == len(part)


def joined(edges, graph, lengths, order):
    """The edges of the graphs `order` in a supergraph of their own."""
    starts, shift, parts = np.cumsum([0, *lengths]), 0, []
    for number in order:
        part = edges.keep(graph == number)
        move = np.int32(shift - starts[number])
        parts.append((part.sender + move, part.receiver + move, part.type))
        shift += lengths[number]
    ends = [np.concatenate(p).astype(np.int32) for p in zip(*parts, strict=True)]
    return Edges(*ends, shift, edges.num_types)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), size=st.sampled_from([4, 16]))
def test_equals_segment_alone(seed, size):
    lengths = [7, 5, 16, 1, 11]
    edges = small_graphs(seed, lengths)[0]
    inputs = values(seed, 1)
    other, _ = evaluate(Plan(), [edges], *inputs)
    for rest in RESTS.values():
        own, _ = evaluate(Plan(Dense(size), rest=rest), [edges], *inputs)
        np.testing.assert_allclose(own, other, atol=1e-5 * max(1, np.abs(other).max()))


def test_equals_the_loop_over_edges():
    graph = random_graph(np.random.default_rng(3), 12, num_types=2)
    edges = Edges(graph.senders, graph.receivers, graph.edge_type, 12, 2)
    x, kernel, bias, grad = values(1, 1, 12, 2)
    out, _ = evaluate(Plan(Dense(16)), [edges], x, kernel, bias, grad)
    np.testing.assert_allclose(
        out[0], typed_messages(graph, x[0], kernel, bias), atol=1e-5, rtol=1e-5
    )


def test_no_edges_give_zeros():
    empty = np.zeros(0, np.int32)
    edges = Edges(empty, empty, empty, 5, 2)
    assert not evaluate(Plan(Dense(8)), [edges], *values(1, 1, 5, 2))[0].any()


def test_key_round_trip_and_errors():
    assert Dense.from_key("dense:17") == Dense(17) != Dense(18)
    chosen = Plan(Dense(8), rest=Grouped())
    assert Plan.from_config(chosen.get_config()) == chosen
    for bad in (0, 2.5, "8"):
        with pytest.raises(ValueError, match="`max_nodes` to be (at l|an int)"):
            Dense(bad)
    for key in ("dense", "dense:8:2", "dense:x"):
        with pytest.raises(ValueError, match="key of a primitive"):
            Plan(rest=key)
    edges = small_graphs(0, LENGTHS[0])[0]
    edges = edges.keep(Dense(8).cover(edges))
    with pytest.raises(ValueError, match="blocks for 'dense:8'.*budget of 'dense:8'"):
        Dense(8).pack(edges, {"dense:8": 1, "dense:8.edge": 999})
    with pytest.raises(ValueError, match="budget of 'dense:8.edge'"):
        Dense(8).pack(edges, {"dense:8": 99, "dense:8.edge": 1})
