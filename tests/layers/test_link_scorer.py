"""Scores of pairs against their equations in NumPy."""

import keras
import numpy as np
import pytest

from keras_bandgnn.layers import LinkScorer
from keras_bandgnn.layers.link_scorer import SCORES
from keras_bandgnn.testing import run_layer_test

NODES, WIDTH, PAIRS, RELATIONS = 7, 6, 9, 3
CASES = [
    (score, relations, symmetric)
    for score in SCORES
    for relations in (None, RELATIONS)
    for symmetric in (False, True)
    if (relations is None or score != "dot")
    and (relations is not None or score not in ("distmult", "complex"))
    and not (score == "complex" and symmetric)
]


def numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)


def states_of(groups=2, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(groups, NODES, WIDTH)).astype("float32")


def batch_of(groups=2, seed=1):
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, NODES, (2, groups, PAIRS)).astype("int32")
    kind = rng.integers(0, RELATIONS, (groups, PAIRS)).astype("int32")
    return {"pair": {"sender": ends[0], "receiver": ends[1], "type": kind}}


def scorer_of(score, relations, symmetric, seed=2, **options):
    layer = LinkScorer(score, relations, 4, "tanh", symmetric, **options)
    layer.build((None, None, WIDTH))
    rng = np.random.default_rng(seed)
    layer.set_weights([rng.normal(size=w.shape) for w in layer.weights])
    return layer


def oracle(layer, sender, receiver, kind):
    """The equation of one pair."""
    w = {weight.path: numpy(weight) for weight in layer.weights}

    def of(name):
        return next(v for path, v in w.items() if path.endswith(name))

    relation = 0
    if "relations" in " ".join(w):
        relation = of("relations")[kind if layer.num_relations else 0]

    def plain(one, other):
        if layer.score == "dot":
            return one @ other
        if layer.score == "bilinear":
            return one @ relation @ other
        if layer.score == "distmult":
            return (one * relation * other).sum()
        if layer.score == "complex":
            half = WIDTH // 2
            h, r, t = (v[:half] + 1j * v[half:] for v in (one, relation, other))
            return (h * r * t.conj()).sum().real
        hidden = one @ of("sender/kernel") + other @ of("receiver/kernel")
        hidden = np.tanh(hidden + of("receiver/bias") + relation)
        return (hidden @ of("output/kernel") + of("output/bias"))[0]

    if layer.symmetric:
        return 0.5 * (plain(sender, receiver) + plain(receiver, sender))
    return plain(sender, receiver)


@pytest.mark.parametrize("score, relations, symmetric", CASES)
def test_equals_its_equation(score, relations, symmetric):
    layer = scorer_of(score, relations, symmetric)
    states, batch = states_of(), batch_of()
    out = numpy(layer(states, batch))
    tables = {
        end: numpy(layer.score_nodes(states, batch, end))
        for end in ("receiver", "sender")
    }
    assert out.shape == (2, PAIRS)
    assert tables["sender"].shape == (2, PAIRS, NODES)
    pair = batch["pair"]
    for g, q in np.ndindex(out.shape):
        s, r, t = (pair[name][g, q] for name in ("sender", "receiver", "type"))
        expected = oracle(layer, states[g, s], states[g, r], t)
        assert out[g, q] == pytest.approx(expected, abs=1e-4)
        for node in range(NODES):
            own = states[g, node]
            expected = oracle(layer, states[g, s], own, t)
            assert tables["receiver"][g, q, node] == pytest.approx(expected, abs=1e-4)
            expected = oracle(layer, own, states[g, r], t)
            assert tables["sender"][g, q, node] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("score, relations, symmetric", CASES)
def test_symmetry(score, relations, symmetric):
    layer = scorer_of(score, relations, symmetric)
    states, batch = states_of(), batch_of()
    pair = batch["pair"]
    turned = {**pair, "sender": pair["receiver"], "receiver": pair["sender"]}
    out, back = numpy(layer(states, batch)), numpy(layer(states, {"pair": turned}))
    assert layer.is_symmetric == np.allclose(out, back, atol=1e-4)


@pytest.mark.parametrize("score, relations, symmetric", CASES)
def test_config_shapes_and_reduced_precision(score, relations, symmetric):
    layer = LinkScorer(score, relations, 4, "tanh", symmetric)
    out = run_layer_test(layer, states_of(1), batch_of(1))
    assert out.shape == (1, PAIRS)


@pytest.mark.parametrize("score, relations, symmetric", CASES)
def test_scores_begin_small_for_any_number_of_relations(score, relations, symmetric):
    states = np.random.default_rng(0).normal(size=(1, NODES, 64)).astype("float32")
    deviations = []
    for count in (relations, relations and 100 * relations):
        keras.utils.set_random_seed(0)
        layer = LinkScorer(score, count, symmetric=symmetric)
        deviations.append(numpy(layer(states, batch_of(1))).std())
    # At most about that of dot products.
    assert deviations[0] < 4 * 64**0.5
    assert 0.5 < deviations[1] / deviations[0] < 2.0


def test_wrong_arguments():
    for score in ("distmult", "complex"):
        with pytest.raises(ValueError, match="num_relations.*a number of relations"):
            LinkScorer(score)
    with pytest.raises(ValueError, match="num_relations.*None for .*Relations need"):
        LinkScorer("dot", 2)
    with pytest.raises(ValueError, match="symmetric.*Use 'distmult'"):
        LinkScorer("complex", 2, symmetric=True)
    with pytest.raises(ValueError, match="even width.*hidden_dim=6"):
        LinkScorer("complex", 2).build((None, None, 5))
    with pytest.raises(ValueError, match="a part 'pair'"):
        LinkScorer("dot")(states_of(), {"node": {}})
    with pytest.raises(ValueError, match="`end` to be"):
        scorer_of("dot", None, False).score_nodes(states_of(), batch_of(), "both")


# === Shared nodes ===


@pytest.mark.parametrize(
    ("score", "relations", "symmetric"), [c for c in CASES if c[0] != "mlp"]
)
def test_shared_nodes_are_compared_with_each_pair(score, relations, symmetric):
    layer, states, batch = (
        scorer_of(score, relations, symmetric),
        states_of(),
        batch_of(),
    )
    shared = {"receiver": [[1, 3, -1], [0, 2, 6]], "sender": [[5, 4, 2], [3, -1, -1]]}
    pair = batch["pair"]
    for end, nodes in shared.items():
        pair[f"shared_{end}"] = np.array(nodes, "int32")
    out = numpy(layer.compare(states, batch))
    assert out.shape == (2, 2, PAIRS, 4)
    scores = numpy(layer(states, batch))
    for side, end in enumerate(("receiver", "sender")):
        table = numpy(layer.score_nodes(states, batch, end))
        np.testing.assert_allclose(out[:, side, :, 0], scores, atol=1e-5)
        for group in range(2):
            for q in range(PAIRS):
                for column, node in enumerate(shared[end][group]):
                    value = out[group, side, q, 1 + column]
                    if node in (-1, pair[end][group, q]):
                        assert value == -1e9
                    else:
                        expected = table[group, q, node]
                        assert value == pytest.approx(expected, abs=1e-5)
    # One end alone.
    del pair["shared_receiver"]
    np.testing.assert_allclose(numpy(layer.compare(states, batch)), out[:, 1:])


def test_shared_nodes_are_refused_where_there_are_none():
    with pytest.raises(ValueError, match="nodes of SharedNegatives"):
        scorer_of("dot", None, False).compare(states_of(), batch_of())
    with pytest.raises(ValueError, match="product of states"):
        scorer_of("mlp", None, False).compare(states_of(), batch_of())


# === N3 ===


@pytest.mark.parametrize("score", ["distmult", "complex"])
def test_nuclear_norms_are_those_of_numpy(score):
    layer, states, batch = scorer_of(score, RELATIONS, False), states_of(), batch_of()
    weights, pair = numpy(layer.relations), batch["pair"]
    norms = numpy(layer.nuclear_norm(states, batch))
    assert norms.shape == (2, PAIRS)
    for group in range(2):
        for q in range(PAIRS):
            ends = [
                states[group, pair[end][group, q]] for end in ("sender", "receiver")
            ]
            total = 0.0
            for factor in (*ends, weights[pair["type"][group, q]]):
                if score == "complex":
                    factor = factor[: WIDTH // 2] + 1j * factor[WIDTH // 2 :]
                total += (np.abs(factor) ** 3).sum()
            assert norms[group, q] == pytest.approx(total, rel=1e-5)


def test_nuclear_norms_of_other_scores_are_refused():
    with pytest.raises(ValueError, match="score"):
        scorer_of("bilinear", RELATIONS, False).nuclear_norm(states_of(), batch_of())
