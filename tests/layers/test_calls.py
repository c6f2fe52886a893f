"""Layers that read the graph are called as `layer(states, batch, ...)`.

They are made and called as in the examples of their docstrings, on one batch.
"""

import functools
import inspect
import random

import keras
import numpy as np
import pytest
from docstrings import calls_of, sample

import keras_bandgnn as kb
from keras_bandgnn import layers

E = 12
RNG = np.random.default_rng(0)
GRAPH = kb.Graph(
    6,
    RNG.integers(0, 6, E),
    RNG.integers(0, 6, E),
    node={
        "kind": RNG.integers(0, 2, 6),
        "atomic_number": [1, 6, 8, 1, 6, 8],
        "set": [0, 1, 1, 0, 1, 0],
        "set_row": [0, 0, 1, 1, 2, 2],
    },
    edge={"displacement": RNG.normal(size=(E, 3)), "distance": RNG.integers(0, 3, E)},
    # Those of the examples of layers that read node sets.
    sets={"item": {"kind": np.zeros(3, int)}, "user": {"kind": np.zeros(3, int)}},
)
BATCH = kb.preprocessing.GraphLoader(
    [GRAPH], kb.preprocessing.StaticBatcher(1), kb.primitives.Plan()
)[0][0]
LINKED = kb.preprocessing.LinkLoader(GRAPH, [[0, 1], [2, 3]])[0][0]
BATCH = {**BATCH, "pair": LINKED["pair"]}
N, PADDED = BATCH["node"]["mask"].shape[1], BATCH["edge"]["mask"].shape[1]


def rows(*shape):
    rng = np.random.default_rng(random.getrandbits(32))
    return rng.normal(size=(1, *shape)).astype("float32")


def is_layer(name):
    return isinstance(getattr(layers, name), type)


def parameters(name):
    return [*inspect.signature(getattr(layers, name).call).parameters][1:]


LAYERS = sorted(filter(is_layer, layers.__all__))
# Called with what they compute from alone, without a batch.
PLAIN = {name for name in LAYERS if "batch" not in parameters(name)}
# Called with the batch alone.
BATCH_ALONE = {name for name in LAYERS if parameters(name)[0] == "batch"}
STATES_LAYERS = sorted({*LAYERS} - PLAIN - BATCH_ALONE)


def rows_of_batch(argument, example):
    """An argument of an example, with rows for the nodes or edges of `BATCH`."""
    edges = example["batch"].get("edge", {})
    count = PADDED if argument is not example["states"] else N
    if "sender" not in edges or np.shape(argument)[1] != edges["sender"].shape[1]:
        count = N
    return rows(count, *np.shape(argument)[2:])


@functools.cache
def call(name):
    """A layer and its arguments, by the example in its docstring."""
    # Neither the seeds of other layers nor those of the process: two units of a readout
    # may both be 0 by chance.
    random.seed(name)
    cls = getattr(layers, name)
    args, kwargs = calls_of(cls)[1]
    example = inspect.signature(cls.call).bind(None, *args, **kwargs).arguments
    values = {"edge_states": rows(PADDED, *np.shape(example.get("states"))[-1:])}
    for key, value in example.items():
        if key == "batch" or np.ndim(value) > 1:
            values[key] = BATCH if key == "batch" else rows_of_batch(value, example)
    return sample(cls), tuple(values[key] for key in parameters(name) if key in values)


CALLED = [name for name in LAYERS if name not in PLAIN]


def close(one, other):
    for a, b in zip(keras.tree.flatten(one), keras.tree.flatten(other), strict=True):
        if a is not None:
            a, b = keras.ops.convert_to_numpy(a), keras.ops.convert_to_numpy(b)
            np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_takes_states_and_batch(name):
    if name in PLAIN:
        (args, _), *_ = calls_of(getattr(layers, name))[1:]
        assert not any(isinstance(argument, dict) for argument in args)
        return
    layer, arguments = call(name)
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


@pytest.mark.parametrize("name", STATES_LAYERS)
def test_wrong_arguments_are_refused(name):
    layer, (states, _, *others) = call(name)
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


@pytest.mark.parametrize("name", CALLED)
def test_a_part_of_the_batch_is_refused(name):
    layer, arguments = call(name)
    layer(*arguments)
    parts = [part for part in BATCH.values() if isinstance(part, dict)]
    form = "batch" if name in BATCH_ALONE else "states, batch, ..."
    message = rf"with a part '\w+'.*layer\({form}\)|Expected node features"
    for wrong in (*parts, {"edges": {}}):
        if name == "NodeEncoder" and "kind" in wrong:
            continue  # It takes the features alone.
        with pytest.raises(ValueError, match=message):
            layer(*(wrong if argument is BATCH else argument for argument in arguments))


def test_messages_name_calls_that_work():
    for name in BATCH_ALONE:
        with pytest.raises(ValueError, match=r"Call the layer as layer\(batch\)"):
            call(name)[0](rows(N, 4))
    with pytest.raises(ValueError, match=r"as layer.prepare\(batch\)"):
        call("BandedMessagePassing")[0].prepare(rows(N, 4))
