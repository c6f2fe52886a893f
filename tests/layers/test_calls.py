"""Layers that read the graph are called as `layer(states, batch, ...)`."""

import inspect

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn import layers

C, E = 8, 12
# Called with what they compute from alone.
PLAIN = {
    "CharacterEncoder",
    "ContinuousFilter",
    "CosineCutoff",
    "CumulativeLink",
    "ElementEmbedding",
    "GaussianBasis",
    "GRUUpdate",
    "LayerNormalization",
    "PaiNNUpdate",
    "SineBasis",
}
RNG = np.random.default_rng(0)
GRAPH = kb.Graph(
    6,
    RNG.integers(0, 6, E),
    RNG.integers(0, 6, E),
    node={"kind": RNG.integers(0, 3, 6), "atomic_number": [1, 6, 8, 1, 6, 8]},
    edge={"displacement": RNG.normal(size=(E, 3)), "distance": RNG.integers(0, 3, E)},
)
BATCH = kb.preprocessing.GraphLoader(
    [GRAPH], kb.preprocessing.StaticBatcher(1), kb.primitives.Plan()
)[0][0]
LINKED = kb.preprocessing.LinkLoader(GRAPH, [[0, 1], [2, 3]])[0][0]
BATCH = {**BATCH, "pair": LINKED["pair"]}
N, PADDED = BATCH["node"]["mask"].shape[1], BATCH["edge"]["mask"].shape[1]


def rows(*shape):
    return RNG.normal(size=(1, *shape)).astype("float32")


STATES, EDGES = rows(N, C), rows(PADDED, C)
MESSAGE = (rows(N, 3, C), rows(PADDED, 5), rows(PADDED), rows(PADDED, 3))
# Layer and arguments.
CALLS = {
    "AttentionBias": (layers.AttentionBias(2, 2), (BATCH,)),
    "BandedMessagePassing": (layers.BandedMessagePassing(C), (STATES, BATCH)),
    "DualInterleavedAttention": (
        layers.DualInterleavedAttention(2, 4),
        (STATES, BATCH),
    ),
    "EdgeReadout": (layers.EdgeReadout(2), (STATES, BATCH)),
    "GRUReadout": (layers.GRUReadout(C), (STATES, BATCH)),
    "GINConvolution": (layers.GINConvolution(C), (STATES, BATCH, EDGES)),
    "GatedGraphConvolution": (layers.GatedGraphConvolution(C), (STATES, BATCH)),
    "GraphAttention": (layers.GraphAttention(C), (STATES, BATCH)),
    "GraphAttentionV2": (layers.GraphAttentionV2(C, 2), (STATES, BATCH, EDGES)),
    "GraphConvolution": (layers.GraphConvolution(C), (STATES, BATCH)),
    "GraphNormalization": (layers.GraphNormalization(), (STATES, BATCH)),
    "GraphReadout": (layers.GraphReadout(2), (STATES, BATCH)),
    "GraphTransformerLayer": (layers.GraphTransformerLayer(2, 4, 16), (STATES, BATCH)),
    "LinkScorer": (layers.LinkScorer(), (STATES, BATCH)),
    "MPEUInteraction": (layers.MPEUInteraction(C), (STATES, BATCH, EDGES)),
    "MaskedBatchNormalization": (layers.MaskedBatchNormalization(), (STATES, BATCH)),
    "NodeEncoder": (layers.NodeEncoder(C, {"kind": 3}), (BATCH,)),
    "PNAConvolution": (layers.PNAConvolution(C), (STATES, BATCH, EDGES)),
    "PairNormalization": (layers.PairNormalization(), (STATES, BATCH)),
    "SAGEConvolution": (layers.SAGEConvolution(C), (STATES, BATCH, EDGES)),
    "PaiNNMessage": (layers.PaiNNMessage(C), (STATES, BATCH, *MESSAGE)),
    "ReadoutHead": (layers.ReadoutHead(2, layers.GRUReadout(C)), (STATES, BATCH)),
    "SchNetInteraction": (layers.SchNetInteraction(C), (STATES, BATCH, EDGES)),
    "SignNet": (layers.SignNet(C), (STATES, BATCH)),
    "ZBLRepulsion": (layers.ZBLRepulsion(), (BATCH,)),
}
# Called with the batch alone.
BATCH_ALONE = ("AttentionBias", "NodeEncoder", "ZBLRepulsion")


def is_layer(name):
    return isinstance(getattr(layers, name), type)


def close(one, other):
    for a, b in zip(keras.tree.flatten(one), keras.tree.flatten(other), strict=True):
        if a is not None:
            a, b = keras.ops.convert_to_numpy(a), keras.ops.convert_to_numpy(b)
            np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("name", [*filter(is_layer, layers.__all__)])
def test_every_layer_takes_states_and_batch(name):
    if name in PLAIN:
        parameters = inspect.signature(getattr(layers, name).call).parameters
        assert "batch" not in parameters
        return
    layer, arguments = CALLS[name]
    place = next(n for n, argument in enumerate(arguments) if argument is BATCH)
    assert place == min(1, len(arguments) - 1)
    out = layer(*arguments)
    named = {"batch": BATCH, "training": False}
    if "training" not in inspect.signature(layer.call).parameters:
        named.pop("training")
    if len(arguments) <= 2:
        close(out, layer(*arguments[:-1], **named))
    # A file of this layer names shapes of its arguments.
    again = type(layer).from_config(layer.get_config())
    again.build_from_config(layer.get_build_config())
    again.set_weights(layer.get_weights())
    close(out, again(*arguments))


STATES_LAYERS = [name for name in CALLS if name not in BATCH_ALONE]


@pytest.mark.parametrize("name", STATES_LAYERS)
def test_wrong_arguments_are_refused(name):
    layer, (states, _, *others) = CALLS[name]
    form = r"Expected.*Received: .*layer\(states, batch, ...\)"
    for batch in (None, BATCH["edge"]["sender"], (BATCH, None, None)):
        with pytest.raises(ValueError, match=form):
            layer(states, batch, *others)
    if not others:
        with pytest.raises(ValueError, match=form):
            layer(BATCH, states)
    for wrong in (states[:, :-1], np.concatenate([states, states])):
        with pytest.raises(ValueError, match=r"Expected `states`.*Received: shape"):
            layer(wrong, BATCH, *others)
    with pytest.raises((TypeError, ValueError)):
        layer(states, *others, x=BATCH)


# The part of the batch without which a layer cannot be called.
PARTS = {
    "AttentionBias": "edge",
    "BandedMessagePassing": "plan",
    "EdgeReadout": "edge",
    "GINConvolution": "edge",
    "GatedGraphConvolution": "edge",
    "GraphAttention": "edge",
    "GraphAttentionV2": "edge",
    "LinkScorer": "pair",
    "MPEUInteraction": "edge",
    "PNAConvolution": "edge",
    "PaiNNMessage": "edge",
    "SAGEConvolution": "edge",
    "SchNetInteraction": "edge",
    "ZBLRepulsion": "node",
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_the_batch_is_refused(name):
    layer, arguments = CALLS[name]
    layer(*arguments)
    form = "batch" if name in BATCH_ALONE else "states, batch, ..."
    message = rf"with a part '{PARTS[name]}'.*layer\({form}\)"
    for wrong in (BATCH[PARTS[name]], {"edges": {}}):
        with pytest.raises(ValueError, match=message):
            layer(*(wrong if each is BATCH else each for each in arguments))


def test_messages_name_calls_that_work():
    for name in BATCH_ALONE:
        with pytest.raises(ValueError, match=r"Call the layer as layer\(batch\)"):
            CALLS[name][0](STATES)
    with pytest.raises(ValueError, match=r"as layer.prepare\(batch\)"):
        CALLS["BandedMessagePassing"][0].prepare(STATES)
