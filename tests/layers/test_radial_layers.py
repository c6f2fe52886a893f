import keras
import numpy as np
import pytest

from keras_bandgnn.layers import (
    CosineCutoff,
    ElementEmbedding,
    GaussianBasis,
    SineBasis,
    shifted_softplus,
)
from keras_bandgnn.layers.edge_geometry import (
    edge_directions,
    edge_distances,
    in_degrees,
)
from keras_bandgnn.testing import run_layer_test

DISTANCES = np.array([[0.0, 0.3, 1.0, 2.7], [3.9, 4.0, 7.3, 14.9]], "float32")


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(tensor))


def gradient(function, x):
    """Gradient of the sum of `function(x)`, as NumPy."""
    x = keras.ops.convert_to_tensor(x)
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return numpy(jax.grad(lambda x: function(x).sum())(x))
    if backend == "torch":
        x.requires_grad_()
        function(x).sum().backward()
        return numpy(x.grad)
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(x)
        out = function(x)
    return numpy(tape.gradient(out, x))


def test_gaussians_of_the_profiled_models():
    layer = GaussianBasis(150, stop=14.9, gamma=10.0)
    out = run_layer_test(layer, DISTANCES)
    expected = np.exp(-((DISTANCES[..., None] - 0.1 * np.arange(150)) ** 2) / 0.1)
    np.testing.assert_allclose(out, expected, atol=2e-6)


def test_gaussians_have_their_spacing_as_deviation_by_default():
    out = numpy(GaussianBasis(9, stop=4.0)(DISTANCES))
    centres = np.linspace(0, 4, 9)
    expected = np.exp(-0.5 * ((DISTANCES[..., None] - centres) / 0.5) ** 2)
    np.testing.assert_allclose(out, expected, atol=1e-6)


def test_sines():
    out = run_layer_test(SineBasis(5, cutoff=4.0), DISTANCES)
    away = np.maximum(DISTANCES, 1e-12)[..., None].astype(float)
    expected = np.sin(away * np.arange(1, 6) * np.pi / 4) / away
    np.testing.assert_allclose(out, expected, atol=1e-5)


def test_the_cutoff_ends_smoothly():
    out = run_layer_test(CosineCutoff(4.0), DISTANCES)
    expected = 0.5 * (np.cos(np.pi * DISTANCES / 4) + 1) * (DISTANCES < 4)
    np.testing.assert_allclose(out, expected, atol=1e-6)
    assert not out[1, 1:].any()
    slopes = gradient(CosineCutoff(4.0), np.array([0.0, 3.9999, 4.0, 5.0], "float32"))
    np.testing.assert_allclose(slopes, 0.0, atol=1e-3)


def test_shifted_softplus():
    x = np.linspace(-30, 30, 61).astype("float32")
    expected = np.log(0.5 * np.exp(x.astype(float)) + 0.5)
    np.testing.assert_allclose(numpy(shifted_softplus(x)), expected, atol=4e-6)
    config = keras.activations.serialize(shifted_softplus)
    assert keras.activations.get(config) is shifted_softplus


@pytest.mark.parametrize(
    "make", [lambda: GaussianBasis(7, 5.0), lambda: SineBasis(7, 5.0)]
)
def test_gradients_of_the_bases(make):
    layer = make()
    x = np.array([0.0, 0.5, 1.3, 4.2], "float32")
    slopes = gradient(layer, x)
    assert np.isfinite(slopes).all()
    step = 1e-2
    for point, slope in zip(x[1:], slopes[1:], strict=True):
        near = numpy(layer(np.array([point - step, point + step], "float32")))
        np.testing.assert_allclose(
            slope, (near[1] - near[0]).sum() / 2 / step, atol=2e-2
        )


def test_mixed_precision_does_not_round_distances():
    # In bfloat16 both distances are 10.
    x = np.array([10.0, 10.02], "float32")
    for layer in (
        GaussianBasis(3, 20.0, gamma=2000.0, dtype="mixed_bfloat16"),
        SineBasis(80, 10.0, dtype="mixed_bfloat16"),
        CosineCutoff(10.04, dtype="mixed_bfloat16"),
    ):
        out = numpy(keras.ops.cast(layer(keras.ops.convert_to_tensor(x)), "float32"))
        assert np.abs(out[0] - out[1]).max() > 0.4 * np.abs(out).max()


def test_lengths_directions_and_counts():
    displacement = np.array([[[3.0, 0, 4.0], [0, 0, 0], [0, -2, 0]]], "float32")
    edge = {"displacement": displacement, "receiver": np.array([[0, 2, 3]], "int32")}
    distances = edge_distances(edge)
    np.testing.assert_allclose(numpy(distances), [[5, 0, 2]])
    expected = [[[0.6, 0, 0.8], [0, 0, 0], [0, -1, 0]]]
    np.testing.assert_allclose(
        numpy(edge_directions(edge, distances)), expected, atol=1e-6
    )
    # The last edge is padding: N is 3.
    np.testing.assert_allclose(numpy(in_degrees(edge, 3)), [[1, 1, 1]])
    edge["receiver"] = np.array([[0, 0, 0]], "int32")
    np.testing.assert_allclose(numpy(in_degrees(edge, 3)), [[3, 1, 1]])

    def length(displacement):
        return edge_distances({"displacement": displacement})

    np.testing.assert_allclose(gradient(length, displacement), expected, atol=1e-6)
    only = {"distance": np.array([[1.5]], "float32")}
    np.testing.assert_allclose(numpy(edge_distances(only)), [[1.5]])
    with pytest.raises(ValueError, match="'displacement' or 'distance'"):
        edge_distances({"mask": 0})
    with pytest.raises(ValueError, match="no direction"):
        edge_directions(only, only["distance"])


def test_elements_are_rows_of_a_table():
    numbers = np.array([[6, 1, 9, 1, 0]], "int32")  # The last is padding.
    layer = ElementEmbedding(3, elements=(1, 6, 9))
    out = run_layer_test(layer, numbers)
    table = layer.get_weights()[0]
    assert table.shape == (3, 3)
    np.testing.assert_array_equal(out[0, :4], table[[1, 0, 2, 0]])
    unknown = np.array([[-7, 0, 2, 8, 10, 2**31 - 1]], "int32")
    assert not numpy(layer(unknown)).any()  # no other element's row
    layer.check(numbers[0, :4])
    with pytest.raises(ValueError, match=r"\[0, 8\]"):
        layer.check(np.array([8, 6, 0]))
    below = ElementEmbedding(3, elements=10)
    np.testing.assert_array_equal(
        numpy(below(numbers))[0], below.get_weights()[0][[numbers[0]]][0]
    )
    with pytest.raises(ValueError, match=r"elements=10.*\[10\]"):
        below.check(np.array([10]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussianBasis(1, 3.0), "`num_functions` to be at least 2"),
        (lambda: GaussianBasis(3, -1.0), "`stop` to be positive"),
        (lambda: GaussianBasis(3, 1.0, gamma=0), "`gamma` to be positive"),
        (lambda: SineBasis(0, 3.0), "`num_functions` to be at least 1"),
        (lambda: SineBasis(2, float("nan")), "`cutoff` to be positive and finite"),
        (lambda: CosineCutoff("far"), "`cutoff` to be a number"),
        (lambda: ElementEmbedding(2, (1, 1)), "distinct"),
        (lambda: ElementEmbedding(2, ()), "at least one"),
        (lambda: ElementEmbedding(2, (1, -6)), "at least 0"),
        (lambda: ElementEmbedding(2, "H"), "to be an integer"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
