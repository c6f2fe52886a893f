import keras
import numpy as np
import pytest

from keras_bandgnn.layers import PaiNNMessage, PaiNNUpdate

N, E, PADDED, C, K = 6, 18, 3, 5, 4


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")))


def inputs(groups=1, seed=0):
    rng = np.random.default_rng(seed)
    sender = rng.integers(0, N, (groups, E + PADDED))
    receiver = np.sort(rng.integers(0, N, (groups, E + PADDED)), axis=1)
    sender[:, E:], receiver[:, E:] = 0, N
    directions = rng.normal(size=(groups, E + PADDED, 3))
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    given = {
        "states": rng.normal(size=(groups, N, C)),
        "vectors": rng.normal(size=(groups, N, 3, C)),
        "basis": rng.normal(size=(groups, E + PADDED, K)),
        "factor": rng.uniform(size=(groups, E + PADDED)),
        "directions": directions,
    }
    given = {name: array.astype("float32") for name, array in given.items()}
    ends = {"sender": sender.astype("int32"), "receiver": receiver.astype("int32")}
    return {**given, "batch": {"edge": ends}}


def built(layer, *shapes):
    layer.build(*shapes)
    rng = np.random.default_rng(5)
    layer.set_weights([0.4 * rng.normal(size=w.shape) for w in layer.weights])
    return layer


def message_layer():
    shapes = (None, None, C), (None, None, 3, C), (None, None, K)
    return built(PaiNNMessage(C), *shapes)


def update_layer(**options):
    return built(PaiNNUpdate(C, **options), (None, None, C), (None, None, 3, C))


def silu(x):
    return x / (1 + np.exp(-x))


def message_oracle(layer, given, group):
    w1, b1, w2, b2, w3, b3 = (np.asarray(w, np.float64) for w in layer.get_weights())
    states = given["states"][group].astype(float)
    vectors = given["vectors"][group].astype(float)
    new_states, new_vectors = states.copy(), vectors.copy()
    ends = zip(
        given["batch"]["edge"]["sender"][group],
        given["batch"]["edge"]["receiver"][group],
        strict=True,
    )
    for index, (j, i) in enumerate(ends):
        if i == N:
            continue
        context = silu(states[j] @ w1 + b1) @ w2 + b2
        filters = given["basis"][group, index] @ w3 + b3
        a, b, c = np.split(context * filters * given["factor"][group, index], 3)
        new_states[i] += a
        direction = given["directions"][group, index]
        new_vectors[i] += np.outer(direction, b) + vectors[j] * c
    return new_states, new_vectors


def update_oracle(layer, states, vectors):
    mix, w1, b1, w2, b2 = (np.asarray(w, np.float64) for w in layer.get_weights())
    new_states, new_vectors = states.astype(float), vectors.astype(float)
    for node in range(len(states)):
        first, second = np.split(vectors[node] @ mix, 2, axis=-1)
        norm = np.sqrt((first**2).sum(axis=0) + layer.epsilon)
        context = silu(np.concatenate([states[node], norm]) @ w1 + b1) @ w2 + b2
        alone, gate, product = np.split(context, 3)
        new_states[node] = states[node] + alone + product * (first * second).sum(axis=0)
        new_vectors[node] = vectors[node] + gate * second
    return new_states, new_vectors


@pytest.mark.parametrize("groups", [1, 2])
def test_messages_equal_the_oracle(groups):
    given, layer = inputs(groups), message_layer()
    states, vectors = layer(**given)
    for group in range(groups):
        expected = message_oracle(layer, given, group)
        np.testing.assert_allclose(numpy(states)[group], expected[0], atol=1e-5)
        np.testing.assert_allclose(numpy(vectors)[group], expected[1], atol=1e-5)


def test_no_vectors_are_vectors_of_0():
    given, layer = inputs(), message_layer()
    zeros = layer(**{**given, "vectors": np.zeros((1, N, 3, C), "float32")})
    absent = layer(**{**given, "vectors": None})
    for left, right in zip(zeros, absent, strict=True):
        np.testing.assert_allclose(numpy(left), numpy(right), atol=1e-6)


@pytest.mark.parametrize("epsilon", [1e-8, 0.5])
def test_updates_equal_the_oracle(epsilon):
    given, layer = inputs(), update_layer(epsilon=epsilon)
    states, vectors = layer(given["states"], given["vectors"])
    expected = update_oracle(layer, given["states"][0], given["vectors"][0])
    np.testing.assert_allclose(numpy(states)[0], expected[0], atol=1e-5)
    np.testing.assert_allclose(numpy(vectors)[0], expected[1], atol=1e-5)


def test_both_turn_with_the_structure():
    rotation, _ = np.linalg.qr(np.random.default_rng(9).normal(size=(3, 3)))
    rotation = rotation.astype("float32")
    given, message, update = inputs(), message_layer(), update_layer()

    def run(given):
        return [numpy(out) for out in update(*message(**given))]

    states, vectors = run(given)
    turned = {
        **given,
        "directions": given["directions"] @ rotation.T,
        "vectors": np.einsum("ab,gnbc->gnac", rotation, given["vectors"]),
    }
    new_states, new_vectors = run(turned)
    np.testing.assert_allclose(new_states, states, atol=2e-5)
    expected = np.einsum("ab,gnbc->gnac", rotation, vectors)
    np.testing.assert_allclose(new_vectors, expected, atol=2e-5)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_configs_shapes_and_reduced_precision(dtype):
    given = inputs()
    for cls in (PaiNNMessage, PaiNNUpdate):
        config = cls(C).get_config()
        assert cls.from_config(config).get_config() == config
    symbolic = keras.tree.map_structure(
        lambda a: keras.KerasTensor(a.shape, a.dtype.name), given
    )
    spec = PaiNNMessage(C)(**symbolic)
    assert [tuple(s.shape) for s in spec] == [(1, N, C), (1, N, 3, C)]
    assert [tuple(s.shape) for s in PaiNNUpdate(C)(*spec)] == [(1, N, C), (1, N, 3, C)]
    message = PaiNNMessage(C, dtype=dtype)
    update = PaiNNUpdate(C, dtype=dtype)
    # Vectors of 0, whose norm is too small for float16.
    zeros = np.zeros((1, N, 3, C), "float32")
    for given_vectors in (given["vectors"], zeros):
        states, vectors = update(*message(**{**given, "vectors": given_vectors}))
        for out in (states, vectors):
            found = keras.backend.standardize_dtype(out.dtype)
            assert found == dtype.removeprefix("mixed_")
            assert np.isfinite(numpy(out)).all()


def test_bad_arguments():
    with pytest.raises(ValueError, match="`units` to be at least 1"):
        PaiNNMessage(0)
    with pytest.raises(ValueError, match="`epsilon` to be positive"):
        PaiNNUpdate(4, epsilon=0)
    with pytest.raises(ValueError, match="`vectors` with 4 channels"):
        PaiNNUpdate(4).build((1, 2, 4), (1, 2, 3, 5))
