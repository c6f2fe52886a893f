import json

import keras
import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.preprocessing import GraphLoader, TargetNormalizer
from keras_bandgnn.testing import run_layer_test

ENERGIES = {1: -0.5, 6: -38.0, 8: -75.0}


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(tensor))


def molecules(count=40, seed=0, noise=0.0, targets=None):
    """Bags of atoms; the label is the sum of the atoms' energies, and noise."""
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        atoms = rng.choice(list(ENERGIES), rng.integers(1, 12))
        label = sum(ENERGIES[int(a)] for a in atoms) + noise * rng.normal()
        if targets:
            label = label * np.arange(1, targets + 1)
        graphs.append(
            Graph(len(atoms), [], [], node={"atomic_number": atoms}, label=label)
        )
    return graphs


def with_labels(graphs, labels):
    columns = FlatGraphs.from_graphs(graphs).columns()
    columns["label/graph"] = np.asarray(labels, np.float32)
    return FlatGraphs.from_columns(columns)


def columns_of(graphs):
    labels = np.array([np.atleast_1d(g.label) for g in graphs], float)
    return labels, np.array([[g.num_nodes] for g in graphs])


def real(values, x):
    """Rows of real graphs, in the order of the data."""
    mask = x["graph"]["mask"]
    rows = numpy(values)[mask]
    return rows[np.argsort(x["graph"]["id"][mask])]


def batch(graphs):
    loader = GraphLoader(graphs, shuffle=False)
    assert len(loader) == 1
    return loader[0]


@pytest.mark.parametrize("mode", ["graph", "atom"])
def test_constants_are_mean_and_deviation(mode):
    graphs = molecules(20, targets=2)
    normalizer = TargetNormalizer(mode)
    assert not normalizer.is_adapted
    normalizer.adapt(graphs)
    labels, sizes = columns_of(graphs)
    per = sizes if mode == "atom" else np.ones_like(sizes)
    mean, std = (labels / per).mean(0), (labels / per).std(0)
    np.testing.assert_allclose(numpy(normalizer.mean), mean, rtol=1e-5)
    np.testing.assert_allclose(numpy(normalizer.std), std, rtol=1e-5)
    x, y, _ = batch(graphs)
    normalized = normalizer.normalize(y, x)
    expected = (labels - mean * per) / std
    np.testing.assert_allclose(real(normalized, x), expected, atol=1e-4)
    back = normalizer.denormalize(normalized, x)
    np.testing.assert_allclose(real(back, x), labels, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(numpy(normalizer(normalized, x)), numpy(back))


@pytest.mark.parametrize("mode", ["graph", "atom"])
def test_least_squares_find_the_reference_values(mode):
    graphs = molecules(60, noise=0.1)
    normalizer = TargetNormalizer(mode, element_key="atomic_number")
    normalizer.adapt(graphs)
    references = normalizer.get_config()["references"]
    assert sorted(references, key=int) == ["1", "6", "8"]
    for element, value in ENERGIES.items():
        assert references[str(element)] == pytest.approx([value], abs=0.1)
    # What is left is the noise.
    x, y, _ = batch(graphs[:20])
    normalized = real(normalizer.normalize(y, x), x)
    sizes = columns_of(graphs[:20])[1] if mode == "atom" else 1
    assert 0.5 < (normalized / sizes).std() < 2
    assert float(numpy(normalizer.std)[0]) < 0.3
    back = normalizer.denormalize(normalizer.normalize(y, x), x)
    np.testing.assert_allclose(real(back, x), real(y, x), rtol=1e-4, atol=1e-3)


def test_the_constant_is_fitted_together_with_the_references():
    graphs = [g.replace(label=g.label + 1000.0) for g in molecules(60)]
    normalizer = TargetNormalizer("graph", "atomic_number")
    normalizer.adapt(graphs)
    config = normalizer.get_config()
    assert config["mean"] == pytest.approx([1000.0], abs=0.01)
    for element, value in ENERGIES.items():
        assert config["references"][str(element)] == pytest.approx([value], abs=0.01)


def test_given_references_are_kept():
    graphs = molecules(30, targets=2)
    given = {1: 0.0, 6: [-38.0, -76.0], 8: [-75.0, -150.0]}
    normalizer = TargetNormalizer("graph", "atomic_number", given)
    normalizer.adapt(graphs)
    counts = [int((g.node["atomic_number"] == 1).sum()) for g in graphs]
    rest = np.outer(counts, [-0.5, -1.0])
    np.testing.assert_allclose(numpy(normalizer.mean), rest.mean(0), rtol=1e-3)
    assert normalizer.get_config()["references"]["1"] == [0.0, 0.0]
    with pytest.raises(ValueError, match=r"reference value: \[1, 6\].*Received: \[8\]"):
        TargetNormalizer("graph", "atomic_number", {1: 0.0, 6: 1.0}).adapt(graphs)


def test_missing_labels_do_not_count():
    graphs = molecules(40, targets=2)
    labels, _ = columns_of(graphs)
    labels[::3, 0] = np.nan
    labels[5:, 1] = np.nan
    normalizer = TargetNormalizer()
    normalizer.adapt(with_labels(graphs, labels))
    np.testing.assert_allclose(
        numpy(normalizer.mean), np.nanmean(labels, axis=0), rtol=1e-5
    )
    np.testing.assert_allclose(
        numpy(normalizer.std), np.nanstd(labels, axis=0), rtol=1e-5
    )
    labels[::3, 0] = np.nan
    labels[5:, 1] = labels[5:, 0] * 2
    normalizer = TargetNormalizer("graph", "atomic_number")
    normalizer.adapt(with_labels(graphs, labels))
    references = normalizer.get_config()["references"]
    assert references["6"] == pytest.approx([-38.0, -76.0], rel=1e-3)
    labels[:, 1] = np.nan
    with pytest.raises(ValueError, match=r"for each target.*Received: \[26, 0\]"):
        normalizer.adapt(with_labels(graphs, labels))


def test_constant_labels_stay_on_their_scale():
    normalizer = TargetNormalizer()
    normalizer.adapt([g.replace(label=0.1) for g in molecules(7)])
    np.testing.assert_array_equal(numpy(normalizer.std), [1.0])
    # Labels that the elements explain entirely leave only rounding.
    normalizer = TargetNormalizer("atom", "atomic_number")
    normalizer.adapt(molecules(50))
    np.testing.assert_array_equal(numpy(normalizer.std), [1.0])


def test_config_is_json_and_exact():
    graphs = molecules(30, noise=0.3, targets=3)
    for normalizer in (
        TargetNormalizer("atom"),
        TargetNormalizer("graph", "atomic_number"),
        TargetNormalizer("atom", "atomic_number", {1: -0.1, 6: 2.0, 8: [1, 2, 3]}),
    ):
        for _ in range(2):
            text = json.dumps(normalizer.get_config(), allow_nan=False)
            again = TargetNormalizer.from_config(json.loads(text))
            assert again.get_config() == normalizer.get_config()
            assert again.is_adapted == normalizer.is_adapted
            normalizer.adapt(graphs)
        for own, other in zip(again.weights, normalizer.weights, strict=True):
            assert own.path.split("/")[-1] == other.path.split("/")[-1]


def test_it_is_a_layer():
    graphs = molecules(10, noise=1.0)
    normalizer = TargetNormalizer("atom", "atomic_number")
    normalizer.adapt(graphs)
    x = batch(graphs)[0]
    values = np.ones((*x["graph"]["mask"].shape, 1), "float32")
    run_layer_test(normalizer, values, x, mixed=False)
    assert not normalizer.trainable_weights


@pytest.mark.parametrize("mode", ["graph", "atom"])
def test_the_distance_of_labels(mode):
    def graphs(scale, extra=()):
        labels = [*(scale * np.array([1.0, 2.0, 4.0, 5.0])), *extra]
        sizes = (1, 2, 3, 2, 1)[: len(labels)]
        return [
            Graph(n, [0], [0], label=[label])
            for n, label in zip(sizes, labels, strict=True)
        ]

    normalizer = TargetNormalizer(mode=mode)
    normalizer.adapt(graphs(1.0))
    assert normalizer.distance(graphs(1.0)) == pytest.approx(1, rel=1e-5)
    assert normalizer.distance(graphs(1.0, [np.nan])) == pytest.approx(1, rel=1e-5)
    assert normalizer.distance(graphs(100.0)) > 50


def test_it_adapts_to_loaders_and_flat_graphs():
    graphs = molecules(50)
    flat = FlatGraphs.from_graphs(graphs)
    configs = []
    for source in (graphs, flat, GraphLoader(flat)):
        normalizer = TargetNormalizer()
        normalizer.adapt(source)
        configs.append(normalizer.get_config())
    assert configs[0] == configs[1] == configs[2]


def test_unknown_elements_are_refused():
    normalizer = TargetNormalizer("graph", "atomic_number")
    normalizer.build((None, None, 1))
    other = Graph(1, [], [], node={"atomic_number": [7]}, label=1.0)
    flat = FlatGraphs.from_graphs([other])
    normalizer.check(flat)  # Nothing is known before it is adapted.
    normalizer.adapt(molecules(30))
    with pytest.raises(ValueError, match=r"Received: \[7\]. Adapt to graphs"):
        normalizer.check(flat)
    for node in ({"atomic_number": [119]}, {"atomic_number": [0.5]}, {"kind": [1]}):
        with pytest.raises(ValueError, match="Expected elements|one element id"):
            normalizer.adapt([Graph(1, [], [], node=node, label=1.0)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": None}, "label=None"),
        ({"label": [1.0], "label_level": "node", "num_nodes": 1}, "labels of nodes"),
        ({"label": [[1.0]]}, r"shape \(1, 1\)"),
        ({"label": 0, "candidates": [0]}, "position of one of them"),
    ],
)
def test_labels_of_other_kinds_are_refused(change, message):
    graph = Graph(**{"num_nodes": 1, "senders": [], "receivers": [], **change})
    with pytest.raises(ValueError, match=message):
        TargetNormalizer().adapt([graph])


def test_bad_arguments():
    graphs = molecules(5)
    normalizer = TargetNormalizer(mean=[0.0, 1.0], std=[1.0, 2.0])
    for make, message in (
        (lambda: TargetNormalizer("nodes"), "`mode` to be one of"),
        (lambda: TargetNormalizer("node", "z"), "`element_key` with mode="),
        (lambda: TargetNormalizer(references={1: 0.0}), "`references` with"),
        (lambda: TargetNormalizer(mean=1.0), "`mean` and `std` together"),
        (lambda: TargetNormalizer("atom", "z", mean=1.0, std=1.0), "`references` with"),
        (lambda: TargetNormalizer(mean=1.0, std=0.0), "std above 0"),
        (lambda: TargetNormalizer(mean=1.0, std=[1.0, 2.0]), "one entry per target"),
        (lambda: TargetNormalizer("atom", "z", {120: 0.0}), "element 120"),
        (lambda: TargetNormalizer("atom", "z", {1: np.nan}), "finite"),
        (
            lambda: TargetNormalizer("atom", "z", {1: [1, 2]}, mean=[0], std=[1]),
            "1 values per element",
        ),
        (lambda: normalizer.adapt(graphs), "2 targets per graph.*Received: 1"),
        (
            lambda: TargetNormalizer().adapt(with_labels(graphs, [np.inf] * 5)),
            "infinite",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make()


@pytest.mark.parametrize("weight, label", [(0.0, 5.0), (1.0, np.nan)])
@pytest.mark.parametrize("mode", ["graph", "atom"])
def test_elements_without_a_label_that_counts_have_no_reference(mode, weight, label):
    graphs = [
        Graph(g.num_nodes, [], [], node=g.node, context={"sample_weight": 1.0})
        for g in molecules()
    ]
    labels = [float(g.label) for g in molecules()]
    other = Graph(
        1, [], [], node={"atomic_number": [9]}, context={"sample_weight": weight}
    )
    normalizer = TargetNormalizer(mode, element_key="atomic_number")
    with pytest.raises(ValueError, match=r"reference value: \[1, 6, 8\].*\[9\]"):
        normalizer.adapt(with_labels([*graphs, other], [*labels, label]))
    # The failed call leaves no constants behind.
    assert not normalizer.is_adapted
    normalizer.check(FlatGraphs.from_graphs([other]))
    normalizer.adapt(with_labels(graphs, labels))
    with pytest.raises(ValueError, match="reference value"):
        normalizer.check(FlatGraphs.from_graphs([other]))
