"""Counts and sums stay right where there are many edges, and in half precision."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops
from registered import plans_of_primitives

from keras_bandgnn import ops as graph_ops
from keras_bandgnn import primitives
from keras_bandgnn.ops import CSR, CSRPair
from keras_bandgnn.primitives import Edges, Plan
from keras_bandgnn.primitives.banded import Banded, banded_tiles
from keras_bandgnn.primitives.block_sparse import BlockSparse
from keras_bandgnn.primitives.csr import row_sums
from keras_bandgnn.primitives.dense import Dense
from keras_bandgnn.primitives.grouped import Grouped
from keras_bandgnn.primitives.segment import Segment
from keras_bandgnn.primitives.supernode import Supernode

LARGE = 1 << 24
PARALLEL = 1000
# A plan whose edges are all carried by the primitive.
PLANS = plans_of_primitives(
    {
        "banded": [Plan(Banded(4)), Plan(Banded(4, "band"))],
        "block_sparse": [Plan(rest=BlockSparse(4))],
        "dense": [Plan(Dense(8))],
        "grouped": [Plan(rest=Grouped(4)), Plan(rest=Grouped(4, "aggregate"))],
        "segment": [Plan()],
        "supernode": [Plan(Supernode(2))],
    }
)
CASES = [pytest.param(plan, id=str(plan)) for plans in PLANS.values() for plan in plans]


def numpy(tensor):
    return np.asarray(ops.convert_to_numpy(ops.cast(tensor, "float32")))


# Rows that begin at odd numbers beyond what float32 tells apart.
POINTER = np.array([[0, LARGE - 1, LARGE, LARGE + 3, LARGE + 1004]], "int32")
COUNTS = [[LARGE - 1, 1, 3, 1001]]


def test_rows_are_counted_right_behind_many_edges():
    counts = np.array(COUNTS, "float32")
    pointer = ops.convert_to_tensor(POINTER)
    matrix = CSR(None, None, pointer)
    np.testing.assert_array_equal(numpy(row_sums(matrix)), counts)
    prepared = {"matrix": CSRPair(matrix)}
    found = Segment().count(prepared, num_nodes=4, num_types=1)
    np.testing.assert_array_equal(numpy(found), counts)
    found = Segment().count(prepared, num_nodes=2, num_types=2)
    np.testing.assert_array_equal(numpy(found), [[LARGE, 1004]])
    found = Grouped().count({"sum": CSRPair(matrix)}, num_nodes=4, num_types=1)
    np.testing.assert_array_equal(numpy(found), counts)


def test_rows_of_pairs_are_counted_right_behind_many_edges():
    # Four pairs, of which node 0 has two.
    row, column = np.array([[0, 0, 1, 2]], "int32"), np.array([[1, 2, 0, 3]], "int32")
    ends = ops.convert_to_tensor(row), ops.convert_to_tensor(column)
    out = graph_ops.with_transpose(CSR(*ends), 3, 4)
    matrix = CSR(None, None, ops.convert_to_tensor(POINTER))
    prepared = {"sum": CSRPair(matrix), "out": out}
    found = Grouped(first="aggregate").count(prepared, num_nodes=3, num_types=1)
    np.testing.assert_array_equal(numpy(found), [[4, LARGE - 1, 1001]])


def problem(num_types=2, width=3, units=2):
    """Parallel edges into one node from one sender, and a few others."""
    rng = np.random.default_rng(0)
    sender = np.repeat([1, 2, 3, 0], [PARALLEL, 3, 1, 2]).astype("int32")
    receiver = np.repeat([0, 0, 2, 3], [PARALLEL, 3, 1, 2]).astype("int32")
    kind = np.repeat([1, 0, 1, 0], [PARALLEL, 3, 1, 2]).astype("int32")
    edges = Edges(sender, receiver, kind, num_nodes=6, num_types=num_types)
    states = rng.uniform(0.5, 1.5, (6, width)).astype("float32")
    kernel = rng.uniform(0.5, 1.5, (num_types, width, units)).astype("float32")
    return edges, states, kernel


def summed(edges, states, kernel):
    out = np.zeros((edges.num_nodes, kernel.shape[2]))
    for s, r, p in zip(edges.sender, edges.receiver, edges.type, strict=True):
        out[r] += states[s] @ kernel[p]
    return out


def carried_out(plan, edges, states, kernel, dtype, reduce="sum"):
    sizes = plan.sizes(edges, np.zeros(len(edges), np.int64), 1)
    capacity = {name: int(size[0]) + 2 for name, size in sizes.items()}
    arrays = keras.tree.map_structure(
        lambda a: ops.convert_to_tensor(a[None]), plan.pack(edges, capacity)
    )
    prepared = primitives.prepare(
        arrays, edges.num_nodes, edges.num_types, dtype, reduce=reduce
    )
    given = (ops.convert_to_tensor(t, dtype) for t in (states[None], kernel))
    return prepared, numpy(primitives.propagate(prepared, *given, reduce=reduce))[0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("plan", CASES)
@pytest.mark.release(elsewhere=True)
def test_parallel_edges_all_count_in_half_precision(plan, dtype):
    edges, states, kernel = problem()
    prepared, found = carried_out(plan, edges, states, kernel, dtype)
    expected = summed(edges, states, kernel)
    # A few roundings; a sum of ones that stops at 256 lacks three quarters.
    bound = {"bfloat16": 0.03, "float16": 0.004, "float32": 1e-4}[dtype]
    np.testing.assert_allclose(found, expected, rtol=bound, atol=bound)
    degree = np.zeros((edges.num_nodes, edges.num_types))
    np.add.at(degree, (edges.receiver, edges.type), 1)
    np.testing.assert_array_equal(numpy(prepared["degree"])[0], degree)

    _, mean = carried_out(plan, edges, states, kernel, dtype, "mean")
    expected /= np.maximum(degree.sum(axis=1), 1)[:, None]
    np.testing.assert_allclose(mean, expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.release(elsewhere=True)
def test_maxima_are_right_where_many_edges_hold_them(dtype):
    edges, states, kernel = problem()
    many = dataclasses.replace(
        edges,
        **{n: np.repeat(getattr(edges, n), 70) for n in ("sender", "receiver", "type")},
    )
    for plan in (Plan(), Plan(rest=Grouped(4))):
        _, found = carried_out(plan, many, states, kernel, dtype, "max")
        single = dataclasses.replace(edges)
        _, expected = carried_out(plan, single, states, kernel, "float32", "max")
        np.testing.assert_allclose(found, expected, rtol=0.02)


def test_gradients_of_gathers_add_up_in_half_precision():
    ids = ops.zeros((1, PARALLEL), "int32")

    def total(x):
        return ops.sum(graph_ops.batched_gather(x, ids))

    x = ops.ones((1, 2, 3), "bfloat16")
    _, slopes = graph_ops.value_and_gradient(total, x)
    np.testing.assert_allclose(numpy(slopes)[0, 0], PARALLEL, rtol=0.01)


def test_tiles_hold_counts_above_256():
    ids = np.zeros((1, PARALLEL), "int32")
    ones = ops.ones((1, PARALLEL), "bfloat16")
    tiles = banded_tiles(*map(ops.convert_to_tensor, (ids, ids, ids)), ones, 8, 2, 4)
    assert float(ops.max(tiles)) == PARALLEL
