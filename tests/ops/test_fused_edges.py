"""Fused messages of edges are those of all edges at once, with their gradients."""

import importlib

import keras
import numpy as np
import pytest
from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.ops import edges
from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.ops.lookup import LookedUp
from tests.compiled import compiled

pytestmark = pytest.mark.skipif(
    backend.fused_edges is None or backend.has_accelerator(),
    reason="the backend has no fused messages, or not on this device",
)
NODES, EDGES, PADDING, WIDTH, HEADS = 9, 30, 5, 6, 2


def array(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def ends():
    rng = np.random.default_rng(3)
    # The last nodes have no edges.
    receiver = np.sort(rng.integers(0, NODES - 2, EDGES - PADDING))
    receiver = np.append(receiver, [NODES] * PADDING)
    sender = rng.integers(0, NODES, EDGES) * (receiver < NODES)
    return sender[None].astype("int32"), receiver[None].astype("int32")


SENDER, RECEIVER = ends()


def sent(x):
    return ops.take(x[0], SENDER[0], axis=0)


def received(x):
    return ops.take(ops.pad(x[0], ((0, 1), (0, 0))), RECEIVER[0], axis=0)


def total(rows):
    """The sums at receivers, by a product with a matrix."""
    matrix = (RECEIVER == np.arange(NODES)[:, None]).astype("float32")
    return ops.matmul(ops.convert_to_tensor(matrix), rows)


def relu_sum(x, e):
    return total(ops.relu(sent(x) + e[0]))


def fused_table_sum(x, table, *ends):
    return edges.relu_sum(x, LookedUp(table, ops.convert_to_tensor(IDS)), *ends)


def table_sum(x, table):
    return relu_sum(x, LookedUp(table, ops.convert_to_tensor(IDS)).rows())


def gated_sum(x, wanted, messages, e=None):
    logits = sent(x) + received(wanted) + (0.0 if e is None else e[0])
    gates = ops.sigmoid(logits)
    real = ops.cast(RECEIVER[0] < NODES, "float32")[:, None]
    logits = None if e is None else logits * real
    return total(gates), total(gates * sent(messages)), logits


def scores(x, wanted, e, kernel):
    rows = sent(x) + received(wanted) + (0.0 if e is None else e[0])
    rows = ops.leaky_relu(rows, 0.2)
    rows = ops.sum(ops.reshape(rows, (EDGES, HEADS, -1)) * kernel, axis=-1)
    return rows * ops.cast(RECEIVER[0] < NODES, "float32")[:, None]


def share_sum(shares, x):
    rows = ops.reshape(sent(x), (EDGES, HEADS, -1)) * shares[0][..., None]
    return total(ops.reshape(rows, (EDGES, WIDTH)))


def vector_sum(x, vectors, rows, kernel, directions):
    """The sums of scalars, and those of each axis."""
    messages = sent(x) * ops.matmul(rows[0], kernel)
    scalar, radial, carried = ops.split(messages, 3, axis=-1)
    sums = []
    for axis in range(3):
        rows = radial * directions[0, :, axis : axis + 1]
        if vectors is not None:
            rows = rows + carried * sent(vectors[:, :, axis])
        sums.append(total(rows))
    return total(scalar), ops.stack(sums, axis=1)


def score_attention(sent_scores, wanted, x, weights=None):
    """The softmax, by matrices of all pairs."""
    scores = sent(sent_scores) + received(wanted)
    scores = ops.leaky_relu(scores, 0.2)
    own = ops.leaky_relu(sent_scores[0] + wanted[0], 0.2)
    seen = (RECEIVER[0] < NODES) & (SENDER[0] != RECEIVER[0])
    shares = ops.exp(scores) * ops.convert_to_tensor(seen[:, None].astype("float32"))
    sums = total(shares) + ops.exp(own)
    edge_weights, own_weights = weights or (1.0, 1.0)
    rows = ops.reshape(sent(x), (EDGES, HEADS, -1))
    out = total(ops.reshape(rows * (shares * edge_weights)[..., None], (EDGES, WIDTH)))
    rows = ops.reshape(x[0], (NODES, HEADS, -1))
    rows = rows * (ops.exp(own) * own_weights)[..., None]
    out = ops.reshape(out, rows.shape) + rows
    return ops.reshape(out / sums[..., None], (NODES, WIDTH))


def fused_score_attention(sent, wanted, x, *ends):
    return edges.score_attention(sent, wanted, x, None, 0.2, *ends)


def dropped_score_attention(sent, wanted, x, *ends):
    weights = [ops.convert_to_tensor(w) for w in WEIGHTS]
    return edges.score_attention(sent, wanted, x, lambda: weights, 0.2, *ends)


def plain_dropped(sent, wanted, x):
    weights = [ops.convert_to_tensor(w[0]) for w in WEIGHTS]
    return score_attention(sent, wanted, x, weights)


def fused_scores(x, wanted, e, kernel, *ends):
    return edges.scores(x, wanted, e, kernel, 0.2, *ends)


X, Y, Z = (array(1, NODES, WIDTH, seed=seed) for seed in range(3))
E = array(1, EDGES, WIDTH, seed=4)
KERNEL, SHARES = array(HEADS, WIDTH // HEADS, seed=5), array(1, EDGES, HEADS, seed=6)
SENT, WANTED = (array(1, NODES, HEADS, seed=seed) for seed in (7, 8))
WEIGHTS = [np.abs(array(1, count, HEADS, seed=9)) for count in (EDGES, NODES)]
ROWS, DIRECTIONS = array(1, EDGES, 4, seed=10), array(1, EDGES, 3, seed=11)
CONTEXT, FILTER = array(1, NODES, 3 * WIDTH, seed=12), array(4, 3 * WIDTH, seed=13)
VECTORS = array(1, NODES, 3, WIDTH, seed=14)
TABLE = array(6, WIDTH, seed=15)
IDS = np.random.default_rng(16).integers(0, 6, (1, EDGES)).astype("int32")
CASES = {
    "relu_sum": (edges.relu_sum, relu_sum, [X, E]),
    "relu_sum_of_a_table": (fused_table_sum, table_sum, [X, TABLE]),
    "gated_sum": (edges.gated_sum, gated_sum, [X, Y, Z, E]),
    "gated_sum_without_edges": (edges.gated_sum, gated_sum, [X, Y, Z, None]),
    "scores": (fused_scores, scores, [X, Y, E, KERNEL]),
    "scores_without_edges": (fused_scores, scores, [X, Y, None, KERNEL]),
    "share_sum": (edges.share_sum, share_sum, [SHARES, X]),
}
if backend.fused_edges is not None and backend.fused_edges.vector_sum is not None:
    given = [ROWS, FILTER, DIRECTIONS]
    CASES |= {
        "vector_sum": (edges.vector_sum, vector_sum, [CONTEXT, VECTORS, *given]),
        "vector_sum_of_none": (edges.vector_sum, vector_sum, [CONTEXT, None, *given]),
    }
if backend.fused_edges is not None and backend.fused_edges.score_attention is not None:
    given = [SENT, WANTED, X]
    CASES |= {
        "score_attention": (fused_score_attention, score_attention, given),
        "score_attention_dropped": (dropped_score_attention, plain_dropped, given),
    }


@pytest.mark.parametrize("chunk", [7, 1000])
@pytest.mark.parametrize("name", CASES)
def test_equal_to_all_edges_at_once(name, chunk, monkeypatch):
    fused, plain, arguments = CASES[name]
    for kind in ("edges", "filters"):
        module = importlib.import_module(f"{backend.__name__}_{kind}")
        monkeypatch.setattr(module, "_EDGES", chunk, raising=False)
    monkeypatch.setattr(backend.fused_edges, "apply_to", lambda *_: True)
    ids = [ops.convert_to_tensor(each) for each in (SENDER, RECEIVER)]

    def run(function):
        """The outputs, and the gradient of each argument."""

        def value(tensors):
            given = iter(tensors)
            out = function(*(None if a is None else next(given) for a in arguments))
            out = out if isinstance(out, tuple) else (out,)
            parts = [ops.sum(ops.sin(each)) for each in out if each is not None]
            return ops.reshape(sum(parts), (1,))

        tensors = [ops.convert_to_tensor(a) for a in arguments if a is not None]
        results = compiled(
            lambda *tensors: graph_ops.value_and_gradient(value, [*tensors])
        )
        values, slopes = results(*tensors)
        return [ops.convert_to_numpy(each) for each in (values, *slopes)]

    found = run(lambda *given: fused(*given, *ids))
    for a, b in zip(found, run(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="a sort of JAX")
@pytest.mark.parametrize(
    ("size", "count"),
    # One, two and three sorts; without and with a full last digit.
    [(7, 50), (1 << 16, 1 << 16), (65_537, 1 << 16), (1 << 25, 1 << 20), (9, 1)],
)
def test_sorted_ids_are_those_of_argsort(size, count):
    ids = np.random.default_rng(0).integers(0, size, (2, count)).astype("int32")
    ids[0, -1], ids[1, 0] = size - 1, 0
    order, found = backend.sorted_ids(ops.convert_to_tensor(ids), size)
    expected = np.argsort(ids, axis=1, kind="stable")
    np.testing.assert_array_equal(order, expected)
    np.testing.assert_array_equal(found, np.take_along_axis(ids, expected, 1))
    assert found.dtype == ids.dtype


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="a sort of JAX")
def test_more_sorts_than_pay_off_are_left_to_argsort():
    assert backend.sorted_ids(ops.zeros((1, 1 << 24), "int32"), (1 << 24) + 1) is None
    assert backend.sorted_ids(ops.zeros((1, 0), "int32"), 3) is None


@pytest.mark.skipif(
    backend.fused_edges is None or backend.fused_edges.score_attention is None,
    reason="the backend has no such operation",
)
def test_scores_far_apart_do_not_underflow():
    far = np.linspace(-400.0, 400.0, NODES, dtype="float32")[None, :, None]
    scores = np.repeat(far, HEADS, axis=2)
    ids = [ops.convert_to_tensor(each) for each in (SENDER, RECEIVER)]
    given = [ops.convert_to_tensor(a) for a in (scores, 0.0 * WANTED, X)]
    found = ops.convert_to_numpy(edges.score_attention(*given, None, 0.2, *ids))[
        0
    ].reshape(NODES, HEADS, -1)
    score = np.where(far < 0, 0.2 * far, far)[0, :, 0].astype("float64")
    for node in range(NODES):
        into = (RECEIVER[0] == node) & (SENDER[0] != node)
        senders = np.append(SENDER[0][into], node)
        shares = np.exp(score[senders] - score[senders].max())
        shares /= shares.sum()
        rows = X[0].reshape(NODES, HEADS, -1)[senders]
        want = (shares[:, None, None] * rows).sum(axis=0)
        np.testing.assert_allclose(found[node], want, atol=1e-5)
