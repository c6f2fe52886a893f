"""`LastLayerLaplace`: its posterior equals NumPy's, whatever the readout."""

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.models.last_layer_laplace import maximise_evidence

pytestmark = pytest.mark.every_backend("of_the_posterior")

READOUTS = {
    "mean": dict(readout="mean"),
    "sum": dict(readout="sum"),
    "attention": dict(readout="attention"),
    "without bias": dict(readout="sum", use_bias=False),
    "GRUReadout": dict(readout=lambda: kb.layers.GRUReadout(8)),
    "two targets": dict(readout="mean", num_targets=2),
    "without normaliser": dict(readout="mean", normalizer=None),
}


def networks(count=24, targets=1, seed=0):
    rng, out = np.random.default_rng(seed), []
    for _ in range(count):
        size = int(rng.integers(3, 8))
        kind = rng.integers(0, 3, size)
        label = kind.sum() + rng.normal(scale=0.1, size=targets)
        edges = rng.integers(0, size, (2, 2 * size))
        out.append(kb.Graph(size, *edges, node={"kind": kind}, label=label))
    return out


def regressor(readout="mean", **options):
    keras.utils.set_random_seed(0)
    readout = readout() if callable(readout) else readout
    backbone = kb.models.GCNBackbone({"kind": 3}, 8)
    return kb.models.GraphRegressor(backbone, readout=readout, **options)


def trained(graphs, epochs=3, rate=None, **options):
    task = regressor(**options)
    if rate is not None:
        task.compile(keras.optimizers.Adam(rate))
    task.fit(graphs, epochs=epochs, verbose=0)
    return task


def features_of(task, graph):
    """The derivative of the output by the weights of the last layer, by differences."""
    layer = task.head.output_dense
    before = keras.ops.convert_to_numpy(layer.kernel).copy()
    rows = []
    for place in range(before.shape[0]):
        values = []
        for step in (0.5, -0.5):
            changed = before.copy()
            changed[place, 0] += step
            layer.kernel.assign(changed)
            values.append(task.predict([graph])[0][0])
        rows.append(values[0] - values[1])
    layer.kernel.assign(before)
    if layer.use_bias:
        bias = keras.ops.convert_to_numpy(layer.bias).copy()
        values = []
        for step in (0.5, -0.5):
            changed = bias.copy()
            changed[0] += step
            layer.bias.assign(changed)
            values.append(task.predict([graph])[0][0])
        layer.bias.assign(bias)
        rows.append(values[0] - values[1])
    return np.array(rows, np.float64)


@pytest.mark.parametrize("name", READOUTS)
@pytest.mark.release(elsewhere=True)
def test_spread_is_that_of_the_posterior(name):
    options = READOUTS[name]
    graphs = networks(targets=options.get("num_targets", 1))
    task = trained(graphs, **options)
    laplace = kb.models.LastLayerLaplace(task).fit(graphs)
    mean, std = laplace.predict_spread(graphs)
    for one, other in zip(mean, task.predict(graphs), strict=True):
        np.testing.assert_allclose(one, other, 1e-5, 1e-6)
    _, alone = laplace.predict_spread(graphs, noise=False)
    scale = 1.0
    if task.normalizer is not None:
        scale = float(keras.ops.convert_to_numpy(task.normalizer.std)[0])
    for graph, row, bare in zip(graphs[:3], std, alone, strict=False):
        feature = features_of(task, graph)
        expected = np.sqrt(feature @ laplace.covariance[0] @ feature)
        np.testing.assert_allclose(bare[0], expected, 1e-3)
        noise = scale * laplace.noise_std[0]
        np.testing.assert_allclose(row[0], np.hypot(expected, noise), 1e-3)


def test_evidence_finds_noise_and_prior():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(4000, 6))
    weights = rng.normal(scale=2.0, size=6)
    labels = features @ weights + rng.normal(scale=0.3, size=4000)
    found = np.linalg.lstsq(features, labels, rcond=None)[0]
    covariance, noise = maximise_evidence(features, labels - features @ found, found)
    assert noise == pytest.approx(0.3, rel=0.03)
    alpha = 6 / (found @ found)
    expected = np.linalg.inv(alpha * np.eye(6) + features.T @ features / noise**2)
    np.testing.assert_allclose(covariance, expected, rtol=1e-2, atol=1e-9)


def test_more_weights_than_graphs_and_labels_that_fit_exactly():
    graphs = networks(3)
    laplace = kb.models.LastLayerLaplace(trained(graphs)).fit(graphs)
    assert np.isfinite(laplace.predict_spread(graphs)[1]).all()
    features, weights = np.eye(3), np.zeros(3)
    covariance, noise = maximise_evidence(features, np.zeros(3), weights)
    assert np.isfinite(covariance).all() and noise >= 0


def test_graphs_unlike_those_of_training_have_a_larger_spread():
    graphs = networks(60)
    task = trained(graphs, epochs=100, rate=1e-2, readout="sum")
    laplace = kb.models.LastLayerLaplace(task).fit(graphs)
    far = [
        kb.Graph(20, [0] * 5, [1, 2, 3, 4, 5], node={"kind": [kind] * 20})
        for kind in (0, 2)
    ]
    near = np.mean(laplace.predict_spread(graphs, noise=False)[1])
    assert np.mean(laplace.predict_spread(far, noise=False)[1]) > 3 * near


def test_calibration_gives_squares_of_one():
    graphs, others = networks(40), networks(40, seed=1)
    laplace = kb.models.LastLayerLaplace(trained(graphs)).fit(graphs).calibrate(others)
    mean, std = laplace.predict_spread(others)
    labels = [graph.label for graph in others]
    report = kb.training.calibration_report(labels, mean, std)
    assert report["scale"] == pytest.approx(1.0, abs=1e-4)
    again = laplace.factor.copy()
    np.testing.assert_allclose(laplace.calibrate(others).factor, again)


def test_labels_that_are_missing_do_not_count():
    graphs = networks(20, 2)
    task = trained(graphs, num_targets=2)
    partly = [
        kb.Graph(
            g.num_nodes,
            g.senders,
            g.receivers,
            node=g.node,
            label=[g.label[0] if at % 2 else np.nan, g.label[1]],
        )
        for at, g in enumerate(graphs)
    ]
    found = kb.models.LastLayerLaplace(task).fit(partly)
    odd = kb.models.LastLayerLaplace(task).fit(graphs[1::2])
    np.testing.assert_allclose(found.covariance[0], odd.covariance[0], rtol=1e-4)
    whole = kb.models.LastLayerLaplace(task).fit(graphs)
    np.testing.assert_allclose(found.covariance[1], whole.covariance[1], rtol=1e-4)
    with pytest.raises(ValueError, match="label of target 0"):
        kb.models.LastLayerLaplace(task).fit(partly[::2])


def test_order_and_batches_change_nothing():
    graphs = networks(20)
    task = trained(graphs)
    laplace = kb.models.LastLayerLaplace(task).fit(graphs)
    expected = laplace.predict_spread(graphs)[1]
    again = kb.models.LastLayerLaplace(task).fit(graphs[::-1])
    np.testing.assert_allclose(again.predict_spread(graphs)[1], expected, 1e-4)
    for graph, std in zip(graphs[:3], expected, strict=False):
        np.testing.assert_allclose(laplace.predict_spread([graph])[1][0], std, 1e-4)
    assert laplace.predict([]) == []


def test_noise_of_energies_per_atom_grows_with_the_atoms():
    numbers = [[8, 1, 1], [8, 1, 1, 8, 1, 1]]
    rng, graphs = np.random.default_rng(0), []
    for number in numbers * 6:
        position = rng.uniform(0, 3, (len(number), 3)).astype(np.float32)
        graphs.append(
            kb.Graph(
                len(number),
                [],
                [],
                node={
                    "atomic_number": np.array(number, np.int32),
                    "position": position,
                    "force": np.zeros_like(position),
                },
                label=float(-70 * number.count(8)),
            )
        )
    task = kb.models.ForceRegressor(
        kb.models.SchNetBackbone([1, 8], 8, num_gaussians=4),
        preprocessor=kb.preprocessing.GraphPreprocessor(
            [kb.preprocessing.RadiusGraph(4.0)]
        ),
        per_atom=True,
    )
    task.fit(graphs, epochs=1, verbose=0)
    laplace = kb.models.LastLayerLaplace(task).fit(graphs)
    assert laplace.noise == "atom"
    (_, std), (_, bare) = (laplace.predict_spread(graphs, on) for on in (True, False))
    noise = np.sqrt(np.square(std) - np.square(bare)).ravel()
    np.testing.assert_allclose(noise[1], 2 * noise[0], 1e-2)


def test_saved_and_loaded(tmp_path):
    graphs = networks()
    laplace = kb.models.LastLayerLaplace(trained(graphs)).fit(graphs)
    laplace.calibrate(networks(seed=1))
    for _ in range(2):
        laplace.save_to_preset(tmp_path / "laplace")
    loaded = kb.models.LastLayerLaplace.from_preset(tmp_path / "laplace")
    np.testing.assert_allclose(
        loaded.predict_spread(graphs)[1], laplace.predict_spread(graphs)[1], 1e-5
    )
    assert loaded.noise == laplace.noise
    assert (tmp_path / "laplace" / "task" / "README.md").is_file()
    kb.models.GraphRegressor.from_preset(tmp_path / "laplace" / "task")


def test_damaged_files_are_refused(tmp_path):
    graphs = networks(4)
    path = tmp_path / "laplace"
    laplace = kb.models.LastLayerLaplace(trained(graphs)).fit(graphs)
    laplace.save_to_preset(path)
    with np.load(path / "laplace.npz") as data:
        arrays = dict(data)
    for name, value in (
        ("covariance", arrays["covariance"][:, :-1]),
        ("covariance", -arrays["covariance"]),
        ("noise_std", np.array([np.nan])),
        ("factor", np.ones(3)),
    ):
        np.savez(path / "laplace.npz", **arrays | {name: value})
        with pytest.raises(ValueError, match=f"{name}.*Copy the folder again"):
            kb.models.LastLayerLaplace.from_preset(path)
    (path / "laplace.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match="npz"):
        kb.models.LastLayerLaplace.from_preset(path)
    with pytest.raises(ValueError, match="Task.from_preset"):
        kb.models.LastLayerLaplace.from_preset(path / "task")


def test_a_posterior_of_other_weights_is_refused(tmp_path):
    graphs = networks(8)
    task = trained(graphs)
    laplace = kb.models.LastLayerLaplace(task).fit(graphs)
    laplace.predict_spread(graphs)
    task.fit(graphs, epochs=1, verbose=0)
    calls = laplace.predict, laplace.calibrate
    for call in (*calls, lambda _: laplace.save_to_preset(tmp_path / "never")):
        with pytest.raises(ValueError, match=r"Call fit\(graphs\) again"):
            call(graphs)
    laplace.fit(graphs).predict(graphs)


def test_wrong_use_is_refused():
    graphs = networks(4)
    laplace = kb.models.LastLayerLaplace(regressor())
    for call in (laplace.predict, laplace.calibrate):
        with pytest.raises(ValueError, match=r"Call fit\(graphs\) first"):
            call(graphs)
    with pytest.raises(ValueError, match="Call fit"):
        laplace.save_to_preset("never")
    backbone = kb.models.GCNBackbone({"kind": 3}, 8)
    with pytest.raises(ValueError, match="Expected `task`"):
        kb.models.LastLayerLaplace(kb.models.GraphClassifier(backbone, 2))
    with pytest.raises(ValueError, match="noise"):
        kb.models.LastLayerLaplace(regressor(), "node")
    unlabelled = [
        kb.Graph(g.num_nodes, g.senders, g.receivers, node=g.node) for g in graphs
    ]
    with pytest.raises(ValueError, match="labels"):
        laplace.fit(unlabelled)
    with pytest.raises(ValueError, match="at least one graph"):
        laplace.fit([])
