"""All kinds of loaders: random access, threads, pickles and state."""

import json
import pickle

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn import preprocessing
from keras_bandgnn.testing import random_graph

N = 60


def graph(**changes):
    rng = np.random.default_rng(0)
    made = kb.Graph(
        N,
        *rng.integers(0, N, (2, 240)),
        node={"h": rng.normal(size=(N, 3)).astype("float32")},
        label=rng.integers(0, 3, N),
        label_level="node",
    )
    return made.replace(**changes)


def pairs():
    return np.random.default_rng(1).integers(0, N, (30, 2))


def links(seed, negatives=None, **options):
    return preprocessing.LinkLoader(
        graph(label=None),
        pairs(),
        negatives or preprocessing.NegativeSampler(),
        batch_size=8,
        seed=seed,
        **options,
    )


def sampled(seed, **options):
    sampler = preprocessing.NeighborSampler([3, 2], batch_size=16)
    return preprocessing.SampleLoader(graph(**options), sampler, seed=seed)


def whole_graphs(seed):
    rng = np.random.default_rng(2)
    graphs = [random_graph(rng, int(n)) for n in rng.integers(4, 9, 24)]
    return preprocessing.GraphLoader(graphs, preprocessing.DynamicBatcher(4), seed=seed)


KINDS = {
    "GraphLoader": whole_graphs,
    "SampleLoader": sampled,
    "LinkLoader": links,
    "LinkLoader of shared negatives": lambda seed: links(
        seed, preprocessing.SharedNegatives(5)
    ),
    "LinkLoader of samples": lambda seed: links(seed, loader=sampled(0, label=None)),
    "SequenceLoader": lambda seed: preprocessing.SequenceLoader(graph(), 16, seed=seed),
}


def equal(one, two):
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(equal(one[k], two[k]) for k in one)
    if isinstance(one, tuple | list):
        return len(one) == len(two) and all(map(equal, one, two))
    return np.array_equal(one, two) and one.dtype == two.dtype


def epoch_of(loader):
    batches = [loader[index] for index in range(len(loader))]
    loader.on_epoch_end()
    return batches


def test_every_public_loader_is_here():
    public = {name for name in preprocessing.__all__ if name.endswith("Loader")}
    assert public == {name.split()[0] for name in KINDS} | {"Loader"}


@pytest.mark.parametrize("kind", KINDS)
def test_batches_depend_on_seed_epoch_and_step_alone(kind):
    loader = KINDS[kind](3)
    assert isinstance(loader, preprocessing.Loader) and len(loader) > 1
    epochs = [epoch_of(loader) for _ in range(3)]
    assert not equal(epochs[0], epochs[1])
    again = KINDS[kind](3)
    for epoch in (2, 0, 1):
        for index in reversed(range(len(again))):
            assert equal(again.build(index, epoch), epochs[epoch][index])
    copy = pickle.loads(pickle.dumps(again))
    assert equal(epoch_of(copy), epochs[0]) and equal(epoch_of(copy), epochs[1])
    assert copy.has_labels and repr(copy) == repr(again)
    assert copy.usage().keys() == loader.usage().keys() and copy.summary()


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_are_those_of_the_batches(kind):
    loader = KINDS[kind](3)
    inputs, (x, *_) = loader.inputs(), loader[0]
    keras.tree.assert_same_structure(inputs, x)
    leaves = keras.tree.flatten(inputs)
    assert len({leaf.name for leaf in leaves}) == len(leaves)
    for symbol, array in zip(leaves, keras.tree.flatten(x), strict=True):
        assert symbol.dtype == str(array.dtype) and symbol.shape[0] is None
        assert len(symbol.shape) == array.ndim
        sizes = zip(symbol.shape, array.shape, strict=True)
        assert all(a in (None, b) for a, b in sizes), symbol


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_batches_are_in_order(kind):
    """Functional models of Keras pair inputs by position on torch."""

    def check(tree):
        assert list(tree) == sorted(tree)
        for value in tree.values():
            if isinstance(value, dict):
                check(value)

    loader = KINDS[kind](3)
    check(loader[0][0])
    check(loader.inputs())


def test_functional_models_do_not_depend_on_the_order_of_features():
    def loader(names):
        values = {"a": [1.0, 2.0], "b": [3.0, -1.0]}
        context = {name: values[name] for name in names}
        graphs = [kb.Graph(2, [0], [1], node={"k": [0, 1]}, context=context)] * 3
        return preprocessing.GraphLoader(graphs, shuffle=False)

    inputs = loader("ab").inputs()
    context = inputs["graph"]["a"] - 2 * inputs["graph"]["b"]
    model = keras.Model(inputs, context)
    one, two = (model.predict(loader(names), verbose=0) for names in ("ab", "ba"))
    np.testing.assert_array_equal(one, two)
    assert one[0, 0].tolist() == [-5.0, 4.0]


def test_inputs_have_names_that_keras_takes():
    node = {"a.b": np.zeros((3, 2), "float32"), "a b": [0, 1, 2], "a_b": [1, 1, 1]}
    loader = preprocessing.GraphLoader([kb.Graph(3, [0], [1], node=node)] * 3)
    names = {name: symbol.name for name, symbol in loader.inputs()["node"].items()}
    assert names["a b"] == "node_a_b" and names["mask"] == "node_mask"
    assert len(set(names.values())) == len(names)
    assert loader.inputs()["node"]["a.b"].shape == (None, None, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_state_resumes_within_an_epoch(kind):
    loader = KINDS[kind](3)
    epoch_of(loader)
    rest = epoch_of(loader)[1:]
    following = epoch_of(loader)
    resumed = KINDS[kind](3)
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict(1, epoch=1))))
    assert equal(epoch_of(resumed), rest) and equal(epoch_of(resumed), following)
    with pytest.raises(ValueError, match="training began with"):
        KINDS[kind](4).load_state_dict(loader.state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_checked_whole(kind):
    loader = KINDS[kind](3)
    state = json.loads(json.dumps(loader.state_dict(1, epoch=1)))
    wrong = {
        "epoch": (-1, 1.5, "2", None, True, float("nan"), [1], 1 << 40),
        "batch": (-1, 0.5, "1", None, True, loader.batches_per_epoch + 1),
        "fingerprint": ("", None, 3, state["fingerprint"][:-1]),
    }
    assert wrong.keys() == state.keys(), "add what is wrong for a new entry"
    states = [{}, None, [state], *({**state, n: v} for n in wrong for v in wrong[n])]
    states += [{k: v for k, v in state.items() if k != name} for name in state]
    for changed in states:
        with pytest.raises(ValueError, match="^Expected"):
            loader.load_state_dict(changed)
        assert (loader.epoch, loader.resumed_batches) == (0, 0), changed
    for arguments in ((-1,), (0.5,), (0, -1), (0, "1")):
        with pytest.raises(ValueError, match="^Expected"):
            loader.state_dict(*arguments)
    with pytest.raises(ValueError, match="Expected `hold`"):
        loader.load_state_dict(state, hold="no")
    loader.load_state_dict(state)
    assert (loader.epoch, loader.resumed_batches) == (1, 1)
