"""Every pattern of attention against a plain one, with gradients."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.ops import attention
from keras_bandgnn.ops.attention import (
    EMPTY,
    attend_to_one,
    edge_attention,
    full_attention,
    join,
    tile_attention,
    with_itself,
)
from keras_bandgnn.ops.lookup import LookedUp
from keras_bandgnn.ops.loops import scan_chunks

G, N, E, K, D = 2, 9, 40, 3, 4
SHAPES = {"q": (G, N, K * D), "k": (G, N, K * D), "v": (G, N, K * D), "bias": (G, E, K)}


def numpy(tensor):
    return np.asarray(ops.convert_to_numpy(tensor))


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(size=shape).astype("float32") for name, shape in SHAPES.items()
    }


def graph(seed=0):
    """Distinct edges, sorted by receiver; node 3 has none, the last 4 are padding."""
    rng = np.random.default_rng(seed)
    pairs = [(i, j) for i in range(N) for j in range(N) if i != 3]
    sender, receiver = np.zeros((G, E), "int32"), np.full((G, E), N, "int32")
    for g in range(G):
        chosen = sorted(rng.choice(len(pairs), E - 4, replace=False))
        ends = np.array([pairs[c] for c in chosen])
        receiver[g, : E - 4], sender[g, : E - 4] = ends.T
    weight = (rng.random((G, E, K)) < 0.7) / 0.7
    return sender, receiver, weight.astype("float32")


def plain(q, k, v, bias, sender, receiver, weight=None):
    """Dense attention with minus infinity where there is no edge."""

    def table(values, start):
        group = np.repeat(np.arange(G), E).astype("int32")
        place = (group, receiver.ravel(), sender.ravel())
        place = tuple(ops.convert_to_tensor(p) for p in place)
        out = graph_ops.scatter_add(
            place, ops.reshape(values, (-1, K)), (G, N + 1, N, K)
        )
        return out[:, :N] + ops.convert_to_tensor(start)

    has = np.zeros((G, N + 1, N, 1), "float32")
    has[np.arange(G)[:, None], receiver, sender] = 1.0
    has = has[:, :N]
    q, k, v = (ops.reshape(t, (G, N, K, D)) for t in (q, k, v))
    logits = ops.einsum("gqhd,gkhd->gqkh", q, k) / D**0.5
    logits = logits + table(bias, np.where(has > 0, 0.0, -np.inf).astype("float32"))
    # A row without edges is all minus infinity.
    safe = ops.where(ops.convert_to_tensor(has.any(2, keepdims=True)), logits, 0.0)
    share = ops.softmax(safe, axis=2) * ops.convert_to_tensor(has)
    if weight is not None:
        share = share * table(ops.convert_to_tensor(weight), np.zeros(1, "float32"))
    return ops.reshape(ops.einsum("gqkh,gkhd->gqhd", share, v), (G, N, K * D))


def values_and_slopes(function, given):
    """The result, and the gradients of a weighted sum of it."""
    rng = np.random.default_rng(5)
    cuts = np.cumsum([v.size for v in given.values()])
    flat = np.concatenate([v.ravel() for v in given.values()])
    slope = ops.convert_to_tensor(rng.normal(size=SHAPES["q"]).astype("float32"))
    parts = np.split(np.arange(flat.size), cuts[:-1])

    def result(z):
        tensors = [
            ops.reshape(z[int(p[0]) : int(p[-1]) + 1], v.shape)
            for p, v in zip(parts, given.values(), strict=True)
        ]
        return function(*tensors)

    def both(z):
        slopes = graph_ops.value_and_gradient(lambda z: ops.sum(result(z) * slope), z)
        return result(z), slopes[1]

    if keras.backend.backend() == "jax":
        import jax

        # One program, instead of one for each operation.
        both = jax.jit(both)
    values, slopes = both(ops.convert_to_tensor(flat))
    return numpy(values), np.split(numpy(slopes), cuts[:-1])


def assert_alike(one, other):
    np.testing.assert_allclose(one[0], other[0], atol=1e-5)
    for a, b in zip(one[1], other[1], strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def tensors(*arrays):
    return [ops.convert_to_tensor(a) for a in arrays]


# A piece of None: in one operation, where the backend has it.
@pytest.mark.parametrize("piece", [7, 8192, None])
@pytest.mark.parametrize("dropout", [False, True])
def test_attention_along_edges_is_masked_attention(monkeypatch, piece, dropout):
    if piece is not None:
        monkeypatch.setattr(attention.backend, "flat_edge_attention", None)
        monkeypatch.setattr(attention, "_EDGES", piece)
    sender, receiver, weight = graph()
    weight = weight if dropout else None

    def ours(q, k, v, bias):
        dropped = None if weight is None else ops.convert_to_tensor(weight)
        ends = tensors(sender, receiver)
        return edge_attention(q, k, v, bias, dropped, *ends, K)[0]

    def theirs(*given):
        return plain(*given, sender, receiver, weight)

    assert_alike(*(values_and_slopes(f, inputs()) for f in (ours, theirs)))


def test_there_may_be_more_edges_than_pairs_of_nodes():
    """Each edge several times has the attention of one."""
    times = 9
    sender, receiver, _ = graph()
    assert times * sender.size > (G * N) ** 2
    ends = tensors(*(np.repeat(ids, times, axis=1) for ids in (sender, receiver)))

    def ours(q, k, v, bias):
        return edge_attention(q, k, v, ops.repeat(bias, times, 1), None, *ends, K)[0]

    def theirs(*given):
        return plain(*given, sender, receiver, None)

    assert_alike(*(values_and_slopes(f, inputs()) for f in (ours, theirs)))


@pytest.mark.parametrize("accelerator", [False, True])
def test_chunks_are_as_long_as_suits_the_device(monkeypatch, accelerator):
    sizes, given = [], inputs()
    width = given["q"].shape[-1]

    def scan(step, carry, rows, size, like=None):
        sizes.append(size)
        return scan_chunks(step, carry, rows, size, like)

    monkeypatch.setattr(attention.backend, "flat_edge_attention", None)
    monkeypatch.setattr(attention.backend, "has_accelerator", lambda: accelerator)
    monkeypatch.setattr(attention, "scan_chunks", scan)
    monkeypatch.setattr(attention, "_EDGES", 2)
    monkeypatch.setattr(attention, "_NUMBERS", 5 * width)
    sender, receiver, _ = graph()

    def ours(q, k, v, bias):
        return edge_attention(q, k, v, bias, None, *tensors(sender, receiver), K)[0]

    def theirs(*arguments):
        return plain(*arguments, sender, receiver, None)

    assert_alike(*(values_and_slopes(f, given) for f in (ours, theirs)))
    assert set(sizes) == {5 if accelerator else 2}


@pytest.mark.parametrize("piece", [7, 8192])
@pytest.mark.parametrize("dropout", [False, True])
def test_biases_of_a_table_are_those_of_edges(monkeypatch, piece, dropout):
    monkeypatch.setattr(attention.backend, "flat_edge_attention", None)
    monkeypatch.setattr(attention, "_EDGES", piece)
    sender, receiver, weight = graph()
    rng = np.random.default_rng(2)
    row = rng.integers(0, 4, sender.shape).astype("int32")
    keep = rng.random(sender.shape) < 0.8
    given = inputs()
    given["bias"] = rng.normal(size=(4, K)).astype("float32")
    more = [ops.convert_to_tensor(weight) if dropout else None]
    more += tensors(sender, receiver)

    def ours(q, k, v, table):
        bias = LookedUp(table, ops.convert_to_tensor(row))
        return edge_attention(q, k, v, bias, *more, K, ops.convert_to_tensor(keep))[0]

    def theirs(q, k, v, table):
        bias = graph_ops.gather(table, ops.convert_to_tensor(row))
        return edge_attention(q, k, v, bias, *more, K, ops.convert_to_tensor(keep))[0]

    assert_alike(*(values_and_slopes(f, given) for f in (ours, theirs)))


def test_receivers_without_edges_are_zero_and_large_logits_are_safe():
    sender, receiver, _ = graph()
    given = {name: 100 * value for name, value in inputs().items()}
    facts = tensors(*given.values())
    out, logs = edge_attention(*facts, None, *tensors(sender, receiver), K)
    assert np.isfinite(numpy(out)).all()
    assert (numpy(out)[:, 3] == 0).all()
    assert (numpy(logs)[:, 3] == np.float32(EMPTY)).all()


@pytest.mark.parametrize("pairs", [1 << 20, 2 * N * 2])
def test_full_attention_in_pieces_is_plain_attention(monkeypatch, pairs):
    monkeypatch.setattr(attention, "_PAIRS", pairs)
    sender, receiver, _ = graph()
    mask = np.repeat([[1, 1, 1, 1, 2, 2, 2, 2, 0]], G, axis=0).astype("int32")
    group = np.repeat(np.arange(G), E).astype("int32")
    place = tensors(group, receiver.ravel(), sender.ravel())

    def ours(q, k, v, bias):
        rows = ops.reshape(bias, (-1, K))
        return full_attention(q, k, v, mask, rows, place, K)[0]

    def theirs(q, k, v, bias):
        added = graph_ops.scatter_add(
            tuple(place), ops.reshape(bias, (-1, K)), (G, N + 1, N, K)
        )
        q, k, v = (ops.reshape(t, (G, N, K, D)) for t in (q, k, v))
        logits = ops.einsum("gqhd,gkhd->gqkh", q, k) / D**0.5 + added[:, :N]
        seen = (mask[:, :, None] == mask[:, None]) & (mask[:, :, None] > 0)
        logits = ops.where(ops.convert_to_tensor(seen[..., None]), logits, -1e9)
        share = ops.softmax(logits, axis=2) * ops.convert_to_tensor(
            (mask > 0).astype("float32")[..., None, None]
        )
        out = ops.einsum("gqkh,gkhd->gqhd", share, v)
        return ops.reshape(out, (G, N, K * D))

    assert_alike(*(values_and_slopes(f, inputs()) for f in (ours, theirs)))


MASKS = {
    "segments": [[1, 1, 1, 1, 2, 2, 2, 2, 0], [3, 4, 4, 4, 4, 4, 4, 4, 4]],
    "a segment a sequence": [[1, 1, 1, 1, 1, 1, 0, 0, 0], [2, 2, 2, 2, 2, 2, 2, 2, 2]],
    "one is empty": [[0] * 9, [1, 1, 1, 0, 0, 0, 0, 0, 0]],
    "padding": [[0] * 9, [0] * 9],
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=list(MASKS))
def test_full_attention_without_its_logs_is_the_same(mask):
    mask = np.asarray(mask, "int32")
    given = {name: inputs()[name][:2] for name in ("q", "k", "v")}

    def attend(logs):
        def rows(q, k, v):
            out, found = full_attention(q, k, v, mask, None, None, K, logs=logs)
            assert (found is not None) is logs
            return out

        return values_and_slopes(rows, given)

    assert_alike(attend(False), attend(True))


def tiles_of(sender, receiver, size, chosen):
    """Tiles that hold the chosen edges, and the list of the others."""
    blocks = -(-N // size)
    key = receiver // size * blocks + sender // size
    count = max(len(np.unique(key[g][chosen[g]])) for g in range(G)) + 1
    rest = np.full((G, E), E, "int32")
    out = {
        "row": np.zeros((G, count), "int32"),
        "column": np.zeros((G, count), "int32"),
        "edge": np.full((G, count, size, size), E, "int32"),
    }
    for g in range(G):
        keys, tile = np.unique(key[g][chosen[g]], return_inverse=True)
        out["row"][g, : len(keys)] = keys // blocks
        out["column"][g, : len(keys)] = keys % blocks
        e = np.flatnonzero(chosen[g])
        out["edge"][g, tile, receiver[g, e] % size, sender[g, e] % size] = e
        left = np.flatnonzero(~chosen[g])
        rest[g, : len(left)] = left
    return out, rest


@pytest.mark.parametrize("everything", [True, False])
def test_tiles_and_single_edges_are_attention_along_edges(everything):
    sender, receiver, weight = graph()
    real = receiver < N
    chosen = real if everything else real & (sender + receiver < 9)
    tiles, rest = tiles_of(sender, receiver, 4, chosen)
    if everything:
        assert (rest[:, :4] >= E - 4).all()
    facts = {k: ops.convert_to_tensor(v) for k, v in tiles.items()}
    ends = tensors(
        np.take_along_axis(np.pad(sender, ((0, 0), (0, 1))), rest, 1),
        np.take_along_axis(
            np.pad(receiver, ((0, 0), (0, 1)), constant_values=N), rest, 1
        ),
    )
    factors = ops.convert_to_tensor(weight)

    def of_rest(values):
        values = ops.pad(values, ((0, 0), (0, 1), (0, 0)))
        return graph_ops.batched_gather(values, ops.convert_to_tensor(rest))

    def ours(q, k, v, bias):
        one = tile_attention(q, k, v, bias, factors, facts, K)
        two = edge_attention(q, k, v, of_rest(bias), of_rest(factors), *ends, K)
        return join([one, two], K)

    def theirs(*given):
        return plain(*given, sender, receiver, weight)

    assert_alike(*(values_and_slopes(f, inputs()) for f in (ours, theirs)))


@pytest.mark.release(elsewhere=True)
def test_dropout_of_full_attention_keeps_the_mean():
    q, k, v, _ = tensors(*inputs().values())
    mask = np.ones((G, N), "int32")
    seeds = keras.random.SeedGenerator(0)
    want, _ = full_attention(q, k, v, mask, None, None, K)
    seen = [
        numpy(full_attention(q, k, v, mask, None, None, K, 0.3, seeds.next())[0])
        for _ in range(200)
    ]
    np.testing.assert_allclose(np.mean(seen, axis=0), numpy(want), atol=0.25)
    assert np.std(seen, axis=0).max() > 0.01


@pytest.mark.parametrize("weighted", [False, True])
def test_attention_of_nodes_to_themselves_is_that_of_two_parts(weighted):
    given = inputs()
    weight = np.random.default_rng(1).random((G, N, K)).astype("float32") * 2
    logs = np.random.default_rng(2).normal(size=(G, N, K)).astype("float32")
    # Receivers without edges.
    logs[:, 3] = EMPTY
    bias = ops.convert_to_tensor(np.arange(K, dtype="float32"))
    rows = np.where(logs[..., :1] > EMPTY, given["k"] - given["q"], 0.0)
    parts = [tensors(rows.astype("float32"), logs)]
    factors = ops.convert_to_tensor(weight) if weighted else None

    def plain(q, k, v):
        return join([*parts, attend_to_one(q, k, v, bias, factors, K)], K)

    def fused(q, k, v):
        return with_itself(parts[0], q, k, v, bias, factors, K)

    three = {name: given[name] for name in "qkv"}
    assert_alike(values_and_slopes(fused, three), values_and_slopes(plain, three))
