import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.models.forces import component_errors
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    FullyConnectedGraph,
    GraphPreprocessor,
    KNearestGraph,
    RCMKCompile,
)

pytestmark = pytest.mark.every_backend("slope", "learns")

BACKBONES = {
    "schnet": lambda: kb.models.SchNetBackbone(
        (1, 6, 8), hidden_dim=16, num_gaussians=30, num_steps=2, reduce="sum"
    ),
    "mpeu": lambda: kb.models.MPEUBackbone(
        (1, 6, 8), hidden_dim=16, num_gaussians=30, num_steps=2
    ),
    "painn": lambda: kb.models.PaiNNBackbone((1, 6, 8), hidden_dim=16, num_steps=2),
}


def molecule(rng, size, **options):
    # On a grid with some noise: no two atoms meet.
    grid = np.stack(np.meshgrid(*[np.arange(3)] * 3), -1).reshape(-1, 3)
    position = 1.3 * rng.permutation(grid)[:size] + rng.normal(
        scale=0.1, size=(size, 3)
    )
    node = {"atomic_number": rng.choice([1, 6, 8], size), "position": position}
    return kb.Graph(size, [], [], node=node, **options)


def moved(graph, atom, axis, by):
    position = graph.node["position"].copy()
    position[atom, axis] += by
    return graph.replace(node={**graph.node, "position": position})


def task_of(name, layer, **options):
    keras.utils.set_random_seed(1)
    preprocessor = GraphPreprocessor([layer], DynamicBatcher(7))
    return kb.models.GraphRegressor(
        BACKBONES[name](), 1, preprocessor, readout="sum", normalizer=None, **options
    )


@pytest.mark.parametrize("name", BACKBONES)
def test_forces_are_the_negative_slope_of_the_energy(name):
    rng = np.random.default_rng(0)
    graphs = [molecule(rng, size) for size in (5, 3, 7)]
    task = task_of(name, FullyConnectedGraph())
    forces = task.predict_forces(graphs)
    assert [f.shape for f in forces] == [(5, 3), (3, 3), (7, 3)]
    step, picked = 0.02, [(0, 1, 0), (1, 2, 2), (2, 6, 1), (2, 0, 0)]
    ends = [
        [moved(graphs[g], atom, axis, sign * step) for g, atom, axis in picked]
        for sign in (1, -1)
    ]
    above, below = (np.ravel(task.predict(e)) for e in ends)
    slopes = [-(a - b) / (2 * step) for a, b in zip(above, below, strict=True)]
    found = [forces[g][atom, axis] for g, atom, axis in picked]
    largest = max(np.abs(f).max() for f in forces)
    np.testing.assert_allclose(found, slopes, atol=5e-3 * largest)
    # Nothing moves as a whole.
    for own in forces:
        np.testing.assert_allclose(own.sum(axis=0), 0, atol=1e-4 * largest)


def test_forces_are_in_the_order_of_the_caller():
    rng = np.random.default_rng(0)
    graphs = [molecule(rng, size) for size in (5, 3, 7)]
    task = task_of("painn", KNearestGraph(2))
    ensemble = kb.models.Ensemble([task, task_of("painn", KNearestGraph(2))])
    forces = task.predict_forces(graphs)
    # A layer that orders the nodes of batches in another way.
    layers = [KNearestGraph(2), RCMKCompile(4)]
    for member in ensemble.members:
        member.preprocessor = GraphPreprocessor(layers, DynamicBatcher(7))
    for own, mean, expected in zip(
        task.predict_forces(graphs),
        ensemble.predict_forces(graphs),
        forces,
        strict=True,
    ):
        np.testing.assert_allclose(own, expected, atol=1e-5)
        np.testing.assert_allclose(mean, expected, atol=1e-5)


def test_forces_of_a_crystal_do_not_depend_on_its_cell():
    rng = np.random.default_rng(2)
    cell = np.diag([3.0, 3.3, 3.6]) + rng.normal(scale=0.1, size=(3, 3))
    crystal = kb.Graph(
        2,
        [],
        [],
        node={"atomic_number": [6, 8], "position": [[0.1, 0.2, 0.3], [1.6, 1.5, 1.9]]},
        context={"cell": cell},
    )
    other = crystal.replace(
        context={"cell": np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1]]) @ cell}
    )
    task = task_of("painn", KNearestGraph(14))
    one, two = task.predict_forces([crystal, other])
    np.testing.assert_allclose(one, two, atol=1e-4 * np.abs(one).max())
    energies = np.ravel(task.predict([crystal, other]))
    assert energies[0] == pytest.approx(energies[1], rel=1e-5)


def springs(rng, count):
    """Diatomic molecules with a known energy and known forces."""
    graphs = []
    for _ in range(count):
        axis = rng.normal(size=3)
        axis /= np.linalg.norm(axis)
        length = rng.uniform(0.8, 1.6)
        pull = 4.0 * (length - 1.2) * axis
        node = {
            "atomic_number": [1, 8],
            "position": [[0, 0, 0], length * axis],
            "force": [pull, -pull],
        }
        graphs.append(kb.Graph(2, [], [], node=node, label=2.0 * (length - 1.2) ** 2))
    return graphs


def test_training_on_forces_learns_them():
    rng = np.random.default_rng(0)
    graphs = springs(rng, 40)
    preprocessor = GraphPreprocessor([FullyConnectedGraph()], DynamicBatcher(20))
    keras.utils.set_random_seed(0)
    backbone = kb.models.SchNetBackbone(
        (1, 8), hidden_dim=16, num_gaussians=40, num_steps=1
    )
    task = kb.models.ForceRegressor(backbone, preprocessor=preprocessor)
    task.compile(keras.optimizers.Adam(5e-3))
    history = task.fit(graphs, validation_data=graphs[:8], epochs=25, verbose=0).history
    assert history["force_mae"][-1] < 0.4 * history["force_mae"][0]
    assert history["val_force_mae"][-1] < 0.4 * history["force_mae"][0]
    want = np.stack([g.node["force"] for g in graphs])
    found = np.stack(task.predict_forces(graphs))
    mae = np.abs(found - want).mean()
    assert mae == pytest.approx(
        task.evaluate(graphs, verbose=0, return_dict=True)["force_mae"], rel=0.05
    )
    copy = kb.models.ForceRegressor.from_config(task.get_config())
    assert (copy.force_key, copy.force_weight) == ("force", 10.0)


def test_unknown_forces_count_nowhere():
    predicted = keras.ops.ones((1, 3, 3))
    target = np.full((1, 3, 3), np.nan)
    target[0, 0] = 3.0
    mask = np.array([[True, True, False]])
    errors = component_errors(predicted, target, mask)
    assert float(errors.loss) == float(errors.squares) == pytest.approx(4)
    assert float(errors.absolute) == pytest.approx(2) and float(errors.count) == 3


def test_errors():
    rng = np.random.default_rng(0)
    plain = kb.models.GraphRegressor(BACKBONES["schnet"]())
    pair = kb.Graph(
        2, [0], [1], node={"atomic_number": [1, 8]}, edge={"distance": [1.0]}, label=0.0
    )
    with pytest.raises(ValueError, match="'displacement' for forces.*RadiusGraph"):
        plain.predict_forces([pair])
    two = kb.models.GraphRegressor(BACKBONES["schnet"](), num_targets=2)
    with pytest.raises(ValueError, match="one target"):
        two.predict_forces([pair])
    with pytest.raises(ValueError, match="force_weight"):
        kb.models.ForceRegressor(BACKBONES["schnet"](), force_weight=0)
    task = kb.models.ForceRegressor(
        BACKBONES["schnet"](), 1, GraphPreprocessor([FullyConnectedGraph()])
    )
    with pytest.raises(ValueError, match="'force' with 3 numbers.*force_key"):
        task.fit([molecule(rng, 4, label=1.0)] * 3)
