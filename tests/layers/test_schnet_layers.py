import keras
import numpy as np
import pytest

from keras_bandgnn.layers import (
    ContinuousFilter,
    CosineCutoff,
    GaussianBasis,
    MPEUInteraction,
    SchNetInteraction,
)
from keras_bandgnn.layers.edge_geometry import in_degrees
from keras_bandgnn.testing import run_layer_test

N, E, PADDED, C = 7, 20, 4, 6


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")))


def edges(groups=1, seed=0):
    """Random edges sorted by receiver, the last ones padding."""
    rng = np.random.default_rng(seed)
    sender = rng.integers(0, N, (groups, E + PADDED))
    receiver = np.sort(rng.integers(0, N - 1, (groups, E + PADDED)), axis=1)
    sender[:, E:], receiver[:, E:] = 0, N
    return {"sender": sender.astype("int32"), "receiver": receiver.astype("int32")}


def normal(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def built(layer, *shapes, seed=2):
    layer.build(*shapes)
    rng = np.random.default_rng(seed)
    layer.set_weights([0.5 * rng.normal(size=w.shape) for w in layer.weights])
    return layer


def ssp(x):
    return np.logaddexp(x, 0.0) - np.log(2)


def weights_of(layer):
    return [np.asarray(w, np.float64) for w in layer.get_weights()]


def incidence(edge, group):
    """Two matrices [N, E]: 1 where a node receives, or sends, a real edge."""
    nodes = np.arange(N)[:, None]
    real = edge["receiver"][group] < N
    receives = nodes == edge["receiver"][group]
    return receives.astype(float), (nodes == edge["sender"][group]) * real


def schnet_oracle(weights, states, filters, edge, group, mean):
    send, hidden, hidden_bias, out, out_bias = weights
    receives, sends = incidence(edge, group)
    messages = receives @ ((sends.T @ states @ send) * filters)
    if mean:
        messages /= np.maximum(receives.sum(axis=1, keepdims=True), 1)
    return states + ssp(messages @ hidden + hidden_bias) @ out + out_bias


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("use_bias", [False, True])
def test_interaction_equals_the_oracle(groups, mean, use_bias):
    edge = edges(groups)
    states, filters = normal(groups, N, C), normal(groups, E + PADDED, 5, seed=3)
    layer = SchNetInteraction(C, use_bias=use_bias)
    built(layer, (None, None, C), (None, None, 5))
    weights = weights_of(layer)
    if not use_bias:
        weights = [*weights[:2], 0.0, weights[2], 0.0]
    degree = in_degrees(edge, N) if mean else None
    out = numpy(layer(states, {"edge": edge}, filters, degree))
    for group in range(groups):
        inputs = states[group].astype(float), filters[group].astype(float)
        expected = schnet_oracle(weights, *inputs, edge, group, mean)
        np.testing.assert_allclose(out[group], expected, atol=1e-5)


@pytest.mark.parametrize("activate", [False, True])
@pytest.mark.parametrize("factor", [None, normal(1, 9)])
def test_filters_equal_the_oracle(activate, factor):
    layer = ContinuousFilter(C, use_bias=True, activate_output=activate)
    built(layer, (None, None, 4))
    hidden, hidden_bias, out, out_bias = weights_of(layer)
    x = normal(1, 9, 4)
    expected = ssp(x @ hidden + hidden_bias) @ out + out_bias
    expected = ssp(expected) if activate else expected
    if factor is not None:
        expected = expected * factor[..., None]
    np.testing.assert_allclose(numpy(layer(x, factor)), expected, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("width", [11, C])
def test_edge_updates_equal_the_oracle(groups, width):
    edge = edges(groups)
    states, rows = normal(groups, N, C), normal(groups, E + PADDED, width, seed=3)
    layer = built(MPEUInteraction(C), (None, None, C), (None, None, width))
    edge_hidden, edge_out, first, second, send, hidden, out = weights_of(layer)
    new_states, new_rows = layer(states, {"edge": edge}, rows, in_degrees(edge, N))
    for group in range(groups):
        h = states[group].astype(float)
        receives, sends = incidence(edge, group)
        both = [sends.T @ h, receives.T @ h, rows[group]]
        expected = ssp(np.concatenate(both, axis=1) @ edge_hidden) @ edge_out
        real = slice(E)
        np.testing.assert_allclose(
            numpy(new_rows)[group, real], expected[real], atol=1e-5
        )
        filters = ssp(ssp(expected @ first) @ second)
        weights = send, hidden, 0.0, out, 0.0
        expected = schnet_oracle(weights, h, filters, edge, group, mean=True)
        np.testing.assert_allclose(numpy(new_states)[group], expected, atol=1e-5)


def test_block_equals_torch_geometric():
    torch = pytest.importorskip("torch")
    schnet = pytest.importorskip("torch_geometric.nn.models.schnet")
    gaussians, filters, cutoff = 12, 5, 4.0
    torch.manual_seed(0)
    block = schnet.InteractionBlock(C, gaussians, filters, cutoff)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    rng = np.random.default_rng(0)
    edge, states = edges(), normal(1, N, C)
    distances = rng.uniform(0.5, cutoff, (1, E + PADDED)).astype("float32")

    def values(linear):
        found = [linear.weight.detach().numpy().T]
        return found if linear.bias is None else [*found, linear.bias.detach().numpy()]

    own = ContinuousFilter(filters, use_bias=True, activate_output=False)
    own.build((None, None, gaussians))
    own.set_weights([*values(block.mlp[0]), *values(block.mlp[2])])
    layer = SchNetInteraction(C, use_bias=True)
    layer.build((None, None, C), (None, None, filters))
    linears = (block.conv.lin1, block.conv.lin2, block.lin)
    layer.set_weights([v for linear in linears for v in values(linear)])
    basis = GaussianBasis(gaussians, cutoff)(distances)
    made = own(basis, CosineCutoff(cutoff)(distances))
    out = numpy(layer(states, {"edge": edge}, made))[0]
    ends = torch.tensor(np.stack([edge["sender"][0, :E], edge["receiver"][0, :E]]))
    length = torch.tensor(distances[0, :E])
    with torch.no_grad():
        smeared = schnet.GaussianSmearing(0.0, cutoff, gaussians)(length)
        h = torch.tensor(states[0])
        expected = h + block(h, ends.long(), length, smeared)
    np.testing.assert_allclose(out, expected.numpy(), atol=1e-5)


def test_configs_shapes_and_reduced_precision():
    edge, states, rows = edges(), normal(1, N, C), normal(1, E + PADDED, 5)
    assert run_layer_test(ContinuousFilter(8, True, False), rows).shape[-1] == 8
    degree, batch = numpy(in_degrees(edge, N)), {"edge": edge}
    run_layer_test(SchNetInteraction(C, use_bias=True), states, batch, rows)
    run_layer_test(SchNetInteraction(C), states, batch, rows, degree)
    layer = MPEUInteraction(C, dtype="mixed_bfloat16")
    assert type(layer).from_config(layer.get_config()).units == C
    out, new = layer(states, batch, rows, degree)
    assert tuple(out.shape) == (1, N, C) and tuple(new.shape) == (1, E + PADDED, C)
    for array in (out, new):
        assert keras.backend.standardize_dtype(array.dtype) == "bfloat16"
    symbolic = keras.tree.map_structure(
        lambda a: keras.KerasTensor(a.shape, a.dtype.name), (states, batch, rows)
    )
    shapes = [s.shape for s in MPEUInteraction(C)(*symbolic)]
    assert shapes == [(1, N, C), (1, E + PADDED, C)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_hubs_keep_all_messages_in_half_precision(dtype):
    count = 3000
    edge = {
        "sender": np.arange(count, dtype="int32")[None],
        "receiver": np.zeros((1, count), "int32"),
    }
    layer = SchNetInteraction(1, dtype=dtype)
    layer.build((None, None, 1), (None, None, 1))
    layer.set_weights([np.ones((1, 1))] * 3)
    ones = keras.ops.ones((1, count, 1), dtype)
    out = numpy(layer(ones, {"edge": edge}, ones))[0, 0, 0]
    assert abs(out - count) < 0.01 * count


def test_padded_edges_add_nothing():
    states, rows = normal(1, N, C), normal(1, E + PADDED, 5)
    edge = edges()
    layer = built(SchNetInteraction(C), (None, None, C), (None, None, 5))
    expected = numpy(layer(states, {"edge": edge}, rows))
    other = rows.copy()
    other[:, E:] = 1e4
    np.testing.assert_array_equal(numpy(layer(states, {"edge": edge}, other)), expected)
    cut = {name: ids[:, :E] for name, ids in edge.items()}
    np.testing.assert_allclose(
        numpy(layer(states, {"edge": cut}, rows[:, :E])), expected, atol=1e-6
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ContinuousFilter(0), "`units` to be at least 1"),
        (lambda: SchNetInteraction(0), "`units` to be at least 1"),
        (lambda: MPEUInteraction(2.5), "to be an integer"),
        (
            lambda: SchNetInteraction(3).build((1, 2, 4), (1, 2, 3)),
            "`states` with 3 channels",
        ),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("activate", [False, True])
def test_filters_and_sums_in_one_pass(use_bias, activate):
    rng = np.random.default_rng(0)
    layer = ContinuousFilter(6, use_bias, activate)
    layer.build((None, None, 5))
    layer.set_weights([rng.normal(size=w.shape) for w in layer.get_weights()])
    sent, basis = rng.normal(size=(2, 4, 6)), rng.normal(size=(2, 7, 5))
    factor = rng.random((2, 7))
    # The last edge of each supergraph is padding.
    edge = {
        "sender": rng.integers(0, 4, (2, 7)).astype("int32"),
        "receiver": np.array([[0, 0, 1, 1, 3, 3, 4], [0, 1, 2, 3, 3, 3, 4]], "int32"),
    }
    sent, basis, factor = (a.astype("float32") for a in (sent, basis, factor))
    filters = numpy(layer(basis, factor))
    want = np.zeros((2, 5, 6))
    for g in range(2):
        messages = sent[g][edge["sender"][g]] * filters[g]
        np.add.at(want[g], edge["receiver"][g], messages)
    edge = {name: keras.ops.convert_to_tensor(ids) for name, ids in edge.items()}
    tensors = [keras.ops.convert_to_tensor(a) for a in (sent, basis, factor)]
    found = layer.convolve(tensors[0], tensors[1], edge, tensors[2])
    np.testing.assert_allclose(numpy(found), want[:, :4], atol=1e-5)
    if keras.backend.backend() != "torch":
        return
    weights = [tensors[0].requires_grad_(), *(v.value for v in layer.weights)]
    slope = keras.ops.convert_to_tensor(rng.normal(size=found.shape).astype("float32"))

    def gradients(basis):
        for weight in weights:
            weight.grad = None
        layer.convolve(tensors[0], basis, edge, tensors[2]).backward(slope)
        return [numpy(w.grad) for w in weights]

    fused = gradients(tensors[1])
    # Gradients of the edges ask for one operation after the other.
    plain = gradients(tensors[1].clone().requires_grad_())
    for one, other in zip(fused, plain, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
