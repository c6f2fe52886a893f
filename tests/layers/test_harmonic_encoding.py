"""`HarmonicEncoding` against the equation in NumPy."""

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.layers import HarmonicEncoding, NodeEncoder
from keras_bandgnn.testing import run_layer_test


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(tensor))


def oracle(layer, values):
    """The equation of the docstring, in float64."""
    frequency = np.exp(numpy(layer.log_frequency).astype(float))
    waves = np.cos(values * frequency + numpy(layer.phase).astype(float))
    return waves @ numpy(layer.dense.kernel) + numpy(layer.dense.bias)


def test_equation():
    keras.utils.set_random_seed(0)
    values = np.random.default_rng(0).uniform(0, 50, (2, 7, 1)).astype("float32")
    layer = HarmonicEncoding(5, num_frequencies=6)
    layer.build(values.shape)
    layer.phase.assign(np.linspace(0, 3, 6))
    out = numpy(layer(values))
    np.testing.assert_allclose(out, oracle(layer, values.astype(float)), atol=2e-4)


def test_frequencies_begin_as_a_geometric_series():
    layer = HarmonicEncoding(2, num_frequencies=10)
    layer.build((None, 1))
    frequency = np.exp(numpy(layer.log_frequency))
    np.testing.assert_allclose(frequency, 10.0 ** -np.arange(10), rtol=1e-4)
    single = HarmonicEncoding(2, num_frequencies=1)
    single.build((None, 1))
    np.testing.assert_allclose(np.exp(numpy(single.log_frequency)), 10**-4.5, rtol=1e-4)


def test_layer():
    values = np.linspace(0, 20, 6, dtype="float32").reshape(1, 6, 1)
    run_layer_test(HarmonicEncoding(4, num_frequencies=3), values)


def test_numbers_keep_their_precision_in_mixed_precision():
    # 4,097 and 4,096 are one number in bfloat16.
    values = np.array([[[4096.0], [4097.0]]], "float32")
    layer = HarmonicEncoding(3, num_frequencies=4, dtype="mixed_bfloat16")
    layer.build(values.shape)
    out = layer(values)
    assert keras.backend.standardize_dtype(out.dtype) == "bfloat16"
    expected = oracle(layer, values.astype(float))
    np.testing.assert_allclose(
        numpy(keras.ops.cast(out, "float32")), expected, atol=0.05
    )


def test_ages_of_edges_reach_the_states():
    rng = np.random.default_rng(0)
    graph = kb.Graph(
        6,
        *rng.integers(0, 6, (2, 20)),
        node={"id": np.arange(6)},
        edge={"time": rng.integers(0, 10**6, 20)},
    )
    backbone = kb.models.GINEBackbone(
        {"id": 6}, 8, 1, edge_inputs={"age": {"harmonic": 4}}
    )
    task = kb.models.LinkPredictor(backbone)
    one, other = (
        task.predict(kb.data.edges_before(graph, time, age=True), [[0, 1], [2, 3]])
        for time in (10**6, 2 * 10**6)
    )
    assert np.abs(one - other).max() > 1e-4
    with pytest.raises(ValueError, match="edges_before"):
        task.predict(graph, [[0, 1]])


def test_an_encoder_checks_the_channels():
    encoder = NodeEncoder(4, {"age": {"harmonic": 8}})
    assert encoder.inputs == {"age": {"harmonic": 8}}
    encoder.check({"age": np.zeros(5, "float32")})
    with pytest.raises(ValueError, match="with 1 channels"):
        encoder.check({"age": np.zeros((5, 2), "float32")})
    assert encoder({"age": np.zeros((1, 5), "float32")}).shape[-1] == 4
    again = NodeEncoder.from_config(encoder.get_config())
    assert again.inputs == encoder.inputs
