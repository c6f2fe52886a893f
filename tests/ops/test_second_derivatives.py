"""Gradients written by hand have gradients themselves, on every backend."""

import ast
import contextlib
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops
from registered import backbone_and_loader, registered

import keras_bandgnn as kb
from keras_bandgnn import ops as graph_ops
from keras_bandgnn import primitives
from keras_bandgnn.ops import edges, remat
from keras_bandgnn.ops.attention import edge_attention, full_attention
from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.ops.lookup import LookedUp, lookup_sum
from keras_bandgnn.ops.loops import with_gradient
from keras_bandgnn.ops.remat import checkpoint
from keras_bandgnn.ops.sparse import filtered_sum
from keras_bandgnn.primitives import Edges, Grouped, Plan, Segment

BACKEND = keras.backend.backend()
rng = np.random.default_rng(0)


def array(*shape):
    return rng.normal(size=shape).astype("float32")


SENDER, RECEIVER = rng.integers(0, 5, (2, 1, 12)).astype("int32")
RECEIVER.sort()
ENDS = {"sender": SENDER, "receiver": RECEIVER}


def plan(rest, weight=None):
    """A function that propagates states [1, 5, 4] under a plan with transposes."""
    given = Edges(
        SENDER[0], RECEIVER[0], SENDER[0] % 2, 5, 2, weight=weight, transpose=True
    )
    made = Plan(rest=rest)
    sizes = made.sizes(given, np.zeros(12, np.int64), 1)
    packed = made.pack(given, {name: int(v[0]) for name, v in sizes.items()})
    arrays = keras.tree.map_structure(lambda a: a[None], packed)
    kernel = array(2, 4, 4)

    def run(x):
        given = keras.tree.map_structure(ops.convert_to_tensor, arrays)
        prepared = primitives.prepare(given, 5, 2, "float32")
        return primitives.propagate(prepared, x, ops.convert_to_tensor(kernel))

    return run


def attend(x, bias=None):
    if bias is not None and not isinstance(bias, LookedUp):
        bias = ops.sum(x) * bias
    out, logs = edge_attention(
        x, 2 * x, ops.sin(x), bias, None, *map(ops.convert_to_tensor, ENDS.values()), 2
    )
    return ops.concatenate([out, ops.where(logs > -1e29, logs, 0.0)], axis=-1)


@contextlib.contextmanager
def every_size():
    """Fuse operations of few edges, too."""
    before = backend.fused_edges and backend.fused_edges.apply_to
    if before:
        backend.fused_edges.apply_to = lambda *_: True
    try:
        yield
    finally:
        if before:
            backend.fused_edges.apply_to = before


FILTERS = [array(3, 4), array(4), array(4, 4), array(4)]
EDGES = array(1, 12, 3)


def filtered(x):
    weights = [ops.convert_to_tensor(w) * ops.mean(x) for w in FILTERS]
    edge = {name: ops.convert_to_tensor(ids) for name, ids in ENDS.items()}
    factor = ops.ones((1, 12))
    with every_size():
        return filtered_sum(
            x, ops.convert_to_tensor(EDGES), factor, weights, edge, activate=True
        )


def attend_without_logs(x):
    mask = ops.convert_to_tensor(np.array([[1, 1, 2, 2, 0]], "int32"))
    return full_attention(x, 2 * x, ops.sin(x), mask, None, None, 2, logs=False)[0]


def attend_to_all(x, pieces=1):
    # Two pieces of queries, each computed again for the gradient.
    from keras_bandgnn.ops import attention as module

    before, module._PAIRS = module._PAIRS, 5 * 5 if pieces == 1 else 15
    try:
        mask = ops.ones((1, 5), "int32")
        return full_attention(x, 2 * x, ops.sin(x), mask, None, None, 2)[0]
    finally:
        module._PAIRS = before


LAYER_NORMALIZATION = kb.layers.LayerNormalization()
LAYER_NORMALIZATION.build((None, None, 4))


def layer_normalized(x):
    # Constant rows would only be shifted.
    return LAYER_NORMALIZATION(x * ops.cos(x))


def fused(operation, *arguments):
    """A function of states by an operation of `ops.edges`; None without it."""
    if backend.fused_edges is None or operation is None:
        return None
    ends = SENDER, RECEIVER

    def run(x):
        given = [each(x) if callable(each) else each for each in arguments]
        with every_size():
            out = operation(*given, *map(ops.convert_to_tensor, ends))
        return out if not isinstance(out, tuple) else out[0] * out[1] + ops.sum(out[2])

    return run


def relu_sum_of_a_table(x, table, *ends):
    ids = ops.convert_to_tensor(EDGE_IDS)
    return edges.relu_sum(x, LookedUp(table, ids), *ends)


def looked_up(x):
    ids, weight = (ops.convert_to_tensor(a) for a in (ROW_IDS, ROW_WEIGHTS))
    return lookup_sum(ops.exp(x[0]), ids, weight)


def attend_by_scores(x, wanted, rows, sender, receiver):
    factors = ops.ones((1, 12, 2)) * 0.5, ops.ones((1, 5, 2))
    ends = sender, receiver
    return edges.score_attention(x, wanted, rows, lambda: factors, 0.2, *ends)


def sum_of_vectors(x, rows, directions, *ends):
    wide = ops.concatenate([ops.exp(x), ops.sin(x), x], axis=-1)
    vectors = ops.stack([ops.cos(x), ops.exp(x), x * x], axis=2)
    kernel = ops.concatenate([x[0, :3], ops.sin(x[0, :3]), x[0, 2:]], axis=-1)
    given = wide, vectors, rows, kernel, directions
    scalars, sums = edges.vector_sum(*given, *ends)
    return ops.concatenate([scalars[:, :, None], sums], axis=2)


def constant(rows):
    return lambda x: ops.convert_to_tensor(rows)


def triples(x):
    return of_edges(x, 3)


def has(name):
    return getattr(backend.fused_edges, name, None) is not None


def of_edges(x, width=4):
    return ops.sin(ops.repeat(x, 3, axis=1)[:, :12, :width])


def normalized(x):
    mask = ops.convert_to_tensor([[True, True, False, True, False]])
    scale = ops.mean(x, (0, 1))
    averages = ops.zeros((4,)), ops.ones((4,))
    return backend.normalized_rows(x, mask, scale, ops.sin(scale), averages, 0.9, 1e-3)[
        0
    ]


EDGE_IDS = np.array([[0, 2, 1, 1, 0, 2, 2, 1, 0, 0, 1, 2]], "int32")
ROW_IDS = np.array([[[0, 4], [2, 2], [1, 4]]], "int32")
ROW_WEIGHTS = array(1, 3, 2)
GRU = [array(4, 12), array(12), array(4, 12), array(12)]
KINDS = np.array([[0, 1, 1, 0, 1]], "int32")


def in_chunks(x):
    before, remat._ROWS = remat._ROWS, 2
    weight = ops.sum(x)
    try:
        return checkpoint(
            lambda x: remat.by_rows(lambda rows: ops.exp(ops.sin(rows) * weight), x), x
        )
    finally:
        remat._ROWS = before


def by_hand(x):
    def forward(x):
        out = ops.exp(x)
        return (out,), (out, x)

    def backward(kept, slope):
        return (kept[0] * slope,)

    return with_gradient(forward, backward, x)[0]


def gated_by_chunks(x):
    from keras_bandgnn.ops.backend.jax_gates import gated_by_chunks

    weights = map(ops.convert_to_tensor, GRU)
    return gated_by_chunks(2, x[0], ops.sin(x[0]), *weights)


# Functions of x [1, 5, 4]; None where the backend has no such operation.
FUNCTIONS = {
    "segment": plan(Segment()),
    "weighted": plan(Segment(), array(12)),
    "grouped": plan(Grouped(2)),
    "aggregate": plan(Grouped(2, "aggregate")),
    "grouped_matmul": lambda x: graph_ops.grouped_matmul(
        x, ops.convert_to_tensor(KINDS), ops.stack([x[0, :4], ops.sin(x[0, :4])])
    ),
    "gated_update": lambda x: graph_ops.gated_update(
        x, ops.sin(x), *(ops.convert_to_tensor(w) for w in GRU)
    ),
    "gated_by_chunks": gated_by_chunks if BACKEND == "jax" else None,
    "edge_attention": attend,
    "edge_attention_with_biases": lambda x: attend(x, ops.ones((1, 12, 2))),
    "edge_attention_with_a_table": lambda x: attend(
        x, LookedUp(ops.sin(x[0, :3, :2]), ops.convert_to_tensor(SENDER // 2))
    ),
    "filtered_sum": filtered if backend.filtered_sum else None,
    "relu_sum": fused(edges.relu_sum, ops.exp, of_edges),
    "relu_sum_of_a_table": fused(
        relu_sum_of_a_table, ops.exp, lambda x: ops.sin(x[0, :3])
    ),
    "lookup_sum": looked_up if backend.lookup_sum else None,
    "gated_sum": fused(edges.gated_sum, ops.exp, ops.sin, ops.cos, of_edges),
    "scores": fused(
        edges.scores, ops.exp, ops.sin, of_edges, lambda x: x[0, :2, :2], 0.2
    ),
    "share_sum": fused(edges.share_sum, lambda x: of_edges(x, 2), ops.exp),
    **{
        name: fused(
            sum_of_vectors if has("vector_sum") else None, lambda x: x, rows, directions
        )
        # Of weights, and of positions, too.
        for name, rows, directions in (
            ("vector_sum", constant(EDGES), constant(np.sin(EDGES))),
            ("vector_sum_of_positions", triples, lambda x: ops.sin(triples(x))),
        )
    },
    "score_attention": fused(
        attend_by_scores if has("score_attention") else None,
        lambda x: x[..., :2],
        lambda x: ops.sin(x[..., 2:]),
        ops.exp,
    ),
    "normalized_rows": normalized if backend.normalized_rows else None,
    "column_sum": lambda x: backend.column_sum(ops.exp(x[0])),
    "layer_normalization": layer_normalized,
    "full_attention": attend_to_all,
    "full_attention_without_logs": attend_without_logs,
    "pieces": lambda x: attend_to_all(x, 2),
    "sum_over_replicas": lambda x: backend.sum_over_replicas(ops.exp(x)),
    "checkpoint": lambda x: checkpoint(lambda x: ops.exp(ops.sin(x)), x),
    "rows_in_chunks": in_chunks if backend.map_rows else None,
    "with_gradient": by_hand,
}
# The functions above that go through each gradient written by hand.
BY_HAND = {
    "torch": {
        "edge_attention": "edge_attention",
        "segment_attention": "full_attention_without_logs",
        "filtered_sum": "filtered_sum",
        "gated_update": "gated_update",
        "gated_sum": "gated_sum",
        "grouped_matmul": "grouped_matmul",
        "norm": "normalized_rows",
        "lookup_sum": "lookup_sum",
        "relu_sum": "relu_sum",
        "score_attention": "score_attention",
        "scores": "scores",
        "share_sum": "share_sum",
        # Linear, and their own gradients.
        "_Exchange": "sum_over_replicas",
        "_Total": "sum_over_replicas",
        "_Function": "relu_sum",
        "_GatherRows": "grouped",
        "_ReplicaSum": "sum_over_replicas",
        "_SparseMatmul": "segment",
        "_WithGradient": "with_gradient",
    },
    "jax": {
        "_filtered_sum": "filtered_sum",
        "_layer_normalization": "layer_normalization",
        "_scores": "scores",
        "column_sum": "column_sum",
        "fused_operation": "relu_sum",
        "gated_by_chunks": "gated_by_chunks",
        "gated_sum": "gated_sum",
        "_relu_sum": "relu_sum",
        "share_sum": "share_sum",
        "vector_sum": "vector_sum",
        "_recomputed": "checkpoint",
        "flat_gather_rows": "grouped",
        "flat_sparse_matmul": "segment",
        "map_rows": "rows_in_chunks",
        "with_gradient": "with_gradient",
    },
    "tensorflow": {
        "_last_gradient": "pieces",
        "recomputed": "checkpoint",
        "with_gradient": "with_gradient",
    },
}
# What computes again says no on TensorFlow.
REFUSED = {"tensorflow": ("checkpoint", "pieces")}.get(BACKEND, ())


def gradient(function, x):
    return graph_ops.value_and_gradient(
        lambda x: ops.reshape(ops.sum(ops.sin(function(x))), (1,)), x
    )[1]


def curvature(function, x, direction):
    """The product of the second derivatives with a direction."""
    direction = ops.convert_to_tensor(direction)
    return graph_ops.value_and_gradient(
        lambda x: ops.reshape(ops.sum(gradient(function, x) * direction), (1,)), x
    )[1]


def compiled(function):
    if BACKEND == "jax":
        import jax

        return jax.jit(function)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(function, autograph=False)
    return function


def check(function, x, bound=0.02, both=True):
    direction = np.random.default_rng(1).normal(size=x.shape).astype("float32")
    slope = lambda x: gradient(function, x)  # noqa: E731
    slope = compiled(slope) if both else slope

    def difference(step):
        ends = [
            np.asarray(
                ops.convert_to_numpy(slope(ops.convert_to_tensor(x + s * direction)))
            )
            for s in (step, -step)
        ]
        return (ends[0] - ends[1]) / (2 * step)

    expected, closer = difference(2e-3), difference(1e-3)
    runs = [lambda x: curvature(function, x, direction)]
    if BACKEND == "tensorflow" and both:
        # Compiled and eager gradients are recorded in different ways.
        runs.append(compiled(runs[0]))
    elif BACKEND == "jax":
        runs = [compiled(runs[0])]
    for run in runs:
        found = np.asarray(ops.convert_to_numpy(run(ops.convert_to_tensor(x))))
        scale = np.abs(found).max()
        assert scale > 1e-3
        # A kink, as that of a ReLU, between the ends is no curvature.
        smooth = np.abs(expected - closer) <= bound / 2 * scale
        assert smooth.mean() > 0.9
        np.testing.assert_allclose(found[smooth], expected[smooth], atol=bound * scale)


def test_every_gradient_written_by_hand_is_looked_at():
    folder = Path(kb.__file__).parent / "ops" / "backend"
    marks = {
        "torch": ("torch.autograd.Function", "= fused_operation("),
        "jax": ("jax.custom_vjp", "= fused_operation(", "return fused_operation("),
        "tensorflow": ("tf.custom_gradient", "tf.recompute_grad"),
    }
    for name, samples in BY_HAND.items():
        found = set()
        for path in folder.glob(f"{name}*.py"):
            for node in ast.parse(path.read_text()).body:
                if any(mark in ast.unparse(node) for mark in marks[name]):
                    name_of = (
                        node.targets[0].id if hasattr(node, "targets") else node.name
                    )
                    found.add(name_of)
        assert found == set(samples), f"add what is missing to BY_HAND[{name!r}]"
        assert set(samples.values()) <= set(FUNCTIONS)


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n not in REFUSED])
def test_second_derivatives_are_those_of_differences(name):
    if FUNCTIONS[name] is None:
        pytest.skip("only other backends have it")
    x = np.random.default_rng(2).normal(size=(1, 5, 4)).astype("f")
    if (
        graph_ops.has_accelerator()
        and FUNCTIONS[name](ops.convert_to_tensor(x)) is None
    ):
        pytest.skip("not on this device")
    check(FUNCTIONS[name], x)


@pytest.mark.parametrize("name", REFUSED)
def test_second_derivatives_that_are_not_there_say_so(name):
    x = ops.ones((1, 5, 4))
    with pytest.raises(NotImplementedError, match="second derivative.*KERAS_BACKEND"):
        curvature(FUNCTIONS[name], x, np.ones((1, 5, 4), "float32"))


@pytest.mark.release(elsewhere=True)
@pytest.mark.parametrize("name", sorted(registered(kb.models.Backbone)))
def test_backbones_have_second_derivatives(name):
    backbone, loader = backbone_and_loader(name)
    (x, *_) = loader[0]
    kind = "edge" if "displacement" in x["edge"] else "node"
    key = "displacement" if kind == "edge" else "h"
    real = x["node"]["mask"][..., None]

    def states(values):
        out = backbone({**x, kind: {**x[kind], key: values}})
        return ops.where(real, out, 0.0)

    both = BACKEND == "jax"
    check(states, np.asarray(x[kind][key], "float32"), 0.1, both)
