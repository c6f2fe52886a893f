"""Layers that read the graph are called as `layer(states, batch, ...)`."""

import inspect

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn import layers
from keras_bandgnn.layers.batch_layer import BatchLayer

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
    [GRAPH], kb.preprocessing.StaticBatcher(2), kb.primitives.Plan()
)[0][0]
LINKED = kb.preprocessing.LinkLoader(GRAPH, [[0, 1], [2, 3]])[0][0]
BATCH = {**BATCH, "pair": LINKED["pair"]}
N, PADDED = BATCH["node"]["mask"].shape[1], BATCH["edge"]["mask"].shape[1]


def rows(*shape):
    return RNG.normal(size=(1, *shape)).astype("float32")


STATES, EDGES = rows(N, C), rows(PADDED, C)
MESSAGE = (rows(N, 3, C), rows(PADDED, 5), rows(PADDED), rows(PADDED, 3))
# Layer, arguments now, and arguments of version 0.1.0 where they were others.
CALLS = {
    "AttentionBias": (layers.AttentionBias(2, 2), (BATCH,), (BATCH["edge"],)),
    "BandedMessagePassing": (
        layers.BandedMessagePassing(C),
        (STATES, BATCH),
        (STATES, BATCH["plan"]),
    ),
    "DualInterleavedAttention": (
        layers.DualInterleavedAttention(2, 4),
        (STATES, BATCH),
        None,
    ),
    "EdgeReadout": (layers.EdgeReadout(2), (STATES, BATCH), None),
    "GRUReadout": (layers.GRUReadout(C), (STATES, BATCH), None),
    "GINConvolution": (layers.GINConvolution(C), (STATES, BATCH, EDGES), None),
    "GatedGraphConvolution": (layers.GatedGraphConvolution(C), (STATES, BATCH), None),
    "GraphAttention": (
        layers.GraphAttention(C),
        (STATES, BATCH),
        (STATES, BATCH["edge"]),
    ),
    "GraphAttentionV2": (layers.GraphAttentionV2(C, 2), (STATES, BATCH, EDGES), None),
    "GraphConvolution": (layers.GraphConvolution(C), (STATES, BATCH), None),
    "GraphNormalization": (layers.GraphNormalization(), (STATES, BATCH), None),
    "GraphReadout": (layers.GraphReadout(2), (STATES, BATCH), None),
    "GraphTransformerLayer": (
        layers.GraphTransformerLayer(2, 4, 16),
        (STATES, BATCH),
        None,
    ),
    "LinkScorer": (layers.LinkScorer(), (STATES, BATCH), None),
    "MPEUInteraction": (
        layers.MPEUInteraction(C),
        (STATES, BATCH, EDGES),
        (STATES, EDGES, BATCH["edge"]),
    ),
    "MaskedBatchNormalization": (
        layers.MaskedBatchNormalization(),
        (STATES, BATCH),
        None,
    ),
    "NodeEncoder": (layers.NodeEncoder(C, {"kind": 3}), (BATCH,), (BATCH["node"],)),
    "PNAConvolution": (layers.PNAConvolution(C), (STATES, BATCH, EDGES), None),
    "PairNormalization": (layers.PairNormalization(), (STATES, BATCH), None),
    "SAGEConvolution": (layers.SAGEConvolution(C), (STATES, BATCH, EDGES), None),
    "PaiNNMessage": (
        layers.PaiNNMessage(C),
        (STATES, BATCH, *MESSAGE),
        (STATES, *MESSAGE, BATCH["edge"]),
    ),
    "ReadoutHead": (
        layers.ReadoutHead(2, layers.GRUReadout(C)),
        (STATES, BATCH),
        None,
    ),
    "SchNetInteraction": (
        layers.SchNetInteraction(C),
        (STATES, BATCH, EDGES),
        (STATES, EDGES, BATCH["edge"]),
    ),
    "SignNet": (layers.SignNet(C), (STATES, BATCH), None),
    "ZBLRepulsion": (layers.ZBLRepulsion(), (BATCH,), None),
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
    layer, arguments, old = CALLS[name]
    place = next(n for n, argument in enumerate(arguments) if argument is BATCH)
    assert place == min(1, len(arguments) - 1)
    out = layer(*arguments)
    named = {"batch": BATCH, "training": False}
    if "training" not in inspect.signature(layer.call).parameters:
        named.pop("training")
    if len(arguments) <= 2:
        close(out, layer(*arguments[:-1], **named))
    if old is not None:
        close(out, layer(*old))
    if isinstance(layer, BatchLayer) and len(arguments) == 2:
        close(out, layer(arguments[0], x=arguments[1]))
    # A file of this layer, also one of version 0.1.0, names shapes of its arguments.
    again = type(layer).from_config(layer.get_config())
    config = layer.get_build_config()
    if "shapes_dict" in config:
        shapes = {
            ("x_shape" if key == "batch_shape" else key): value
            for key, value in config["shapes_dict"].items()
        }
        config = {"shapes_dict": shapes}
    again.build_from_config(config)
    again.set_weights(layer.get_weights())
    close(out, again(*arguments))


@pytest.mark.parametrize("name", ["GraphAttention", "SchNetInteraction"])
def test_what_is_no_batch_is_refused(name):
    layer, (states, _, *others), _ = CALLS[name]
    layer(states, BATCH, *others)
    for wrong in ({"node": {}}, {"edges": {}}):
        with pytest.raises(ValueError, match=r"layer\(states, batch, ...\)"):
            layer(states, wrong, *others)


@pytest.mark.parametrize(
    ("name", "old"),
    [("SchNetInteraction", "edge"), ("SchNetInteraction", "x")]
    + [("MPEUInteraction", "edge"), ("PaiNNMessage", "edge")],
)
def test_old_names_of_the_batch_next_to_other_arrays(name, old):
    layer, (states, _, *others), _ = CALLS[name]
    batch = BATCH[old] if old in BATCH else BATCH
    close(layer(states, BATCH, *others), layer(states, *others, **{old: batch}))


STATES_LAYERS = [name for name in CALLS if name not in BATCH_ALONE]


@pytest.mark.parametrize("name", STATES_LAYERS)
def test_wrong_arguments_are_refused(name):
    layer, (states, _, *others), _ = CALLS[name]
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


def test_messages_name_calls_that_work():
    for name in BATCH_ALONE:
        with pytest.raises(ValueError, match=r"Call the layer as layer\(batch\)"):
            CALLS[name][0](STATES)
    with pytest.raises(ValueError, match=r"as layer.prepare\(batch\)"):
        CALLS["BandedMessagePassing"][0].prepare(STATES)
