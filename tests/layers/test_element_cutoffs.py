"""Cutoffs by element: which edges there are, and that messages end at them."""

import keras
import numpy as np
import pytest

import keras_bandgnn as kb

CUTOFFS = {1: 2.0, 8: 3.0}
BACKBONES = {
    "PaiNNBackbone": lambda **options: kb.models.PaiNNBackbone(
        (1, 6, 8), 8, 2, cutoff=4.0, **options
    ),
    "SchNetBackbone": lambda **options: kb.models.SchNetBackbone(
        (1, 6, 8), 8, 2, num_gaussians=10, cutoff=4.0, reduce="sum", **options
    ),
}


def cloud(count=12, seed=0, side=4.0, **context):
    rng = np.random.default_rng(seed)
    return kb.Graph(
        count,
        [],
        [],
        node={
            "atomic_number": rng.choice([1, 6, 8], count),
            "position": rng.uniform(0, side, (count, 3)).astype(np.float32),
        },
        context=context,
    )


def regressor(name, **options):
    keras.utils.set_random_seed(0)
    layer = kb.preprocessing.RadiusGraph(4.0)
    return kb.models.GraphRegressor(
        BACKBONES[name](**options),
        readout="sum",
        preprocessor=kb.preprocessing.GraphPreprocessor([layer]),
        normalizer=None,
    )


def pair(numbers, distance):
    position = [[0, 0, 0], [0, 0, distance]]
    return kb.Graph(2, [], [], node={"atomic_number": numbers, "position": position})


def test_edges_are_those_within_the_mean_of_two_cutoffs():
    graph = cloud(40)
    few = kb.preprocessing.RadiusGraph(4.0, element_cutoffs=CUTOFFS)(graph)
    every = kb.preprocessing.RadiusGraph(4.0)(graph)
    radius = np.array([CUTOFFS.get(int(z), 4.0) for z in graph.node["atomic_number"]])
    limit = (radius[every.senders] + radius[every.receivers]) / 2
    kept = every.edge["distance"] <= limit
    assert 0 < kept.sum() < len(kept)
    np.testing.assert_array_equal(few.senders, every.senders[kept])
    np.testing.assert_array_equal(few.receivers, every.receivers[kept])
    np.testing.assert_array_equal(
        few.edge["displacement"], every.edge["displacement"][kept]
    )
    nearest = kb.preprocessing.RadiusGraph(4.0, 3, CUTOFFS)(graph)
    assert np.bincount(nearest.receivers).max() <= 3


@pytest.mark.parametrize("name", BACKBONES)
def test_messages_end_at_the_mean_of_two_cutoffs(name):
    task = regressor(name, element_cutoffs=CUTOFFS)
    apart = {
        numbers: float(task.predict([pair(numbers, 3.99)])[0][0])
        for numbers in ((1, 1), (1, 8), (8, 8), (6, 6), (1, 6))
    }
    limits = {(1, 1): 2.0, (1, 8): 2.5, (8, 8): 3.0, (6, 6): 4.0, (1, 6): 3.0}
    for numbers, limit in limits.items():
        before, after = (
            float(task.predict([pair(numbers, limit + step)])[0][0])
            for step in (-0.3, 0.01)
        )
        if limit < 3.9:
            assert after == pytest.approx(apart[numbers], abs=1e-6)
        assert abs(before - apart[numbers]) > 1e-5
        # It gets there without a jump.
        near = float(task.predict([pair(numbers, limit - 0.01)])[0][0])
        assert abs(near - apart[numbers]) < 1e-4


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.release(elsewhere=True)
def test_fewer_edges_change_no_prediction(name):
    graphs = [cloud(seed=seed) for seed in range(4)]
    task = regressor(name, element_cutoffs=CUTOFFS)
    expected, forces = task.predict(graphs), task.predict_forces(graphs)
    layer = kb.preprocessing.RadiusGraph(4.0, element_cutoffs=CUTOFFS)
    task.preprocessor = kb.preprocessing.GraphPreprocessor([layer])
    np.testing.assert_allclose(task.predict(graphs), expected, 1e-5, 1e-5)
    for one, other in zip(task.predict_forces(graphs), forces, strict=True):
        np.testing.assert_allclose(one, other, 1e-4, 1e-5)
        np.testing.assert_allclose(one.sum(axis=0), 0, atol=1e-4)
    # Without a preprocessor, the backbone brings the layer.
    (layer,) = task.backbone.default_layers(graphs)
    assert layer.element_cutoffs == CUTOFFS


@pytest.mark.parametrize("name", BACKBONES)
def test_all_the_same_cutoff_is_that_cutoff(name):
    graphs = [cloud(seed=seed) for seed in range(2)]
    task, plain = regressor(name, element_cutoffs={1: 4.0}), regressor(name)
    np.testing.assert_allclose(task.predict(graphs), plain.predict(graphs), 1e-6, 1e-6)


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.release(elsewhere=True)
def test_saved_and_loaded(name, tmp_path):
    task = regressor(name, element_cutoffs=CUTOFFS)
    layer = kb.preprocessing.RadiusGraph(4.0, element_cutoffs=CUTOFFS)
    task.preprocessor = kb.preprocessing.GraphPreprocessor([layer])
    task.save_to_preset(tmp_path / "preset")
    loaded = kb.models.Task.from_preset(tmp_path / "preset")
    assert loaded.backbone.cutoff.element_cutoffs == CUTOFFS
    assert loaded.preprocessor.graph_layers[0].element_cutoffs == CUTOFFS
    graphs = [cloud()]
    np.testing.assert_allclose(loaded.predict(graphs), task.predict(graphs), 1e-6)
    assert "element_cutoffs" not in regressor(name).backbone.get_config()


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.release(elsewhere=True)
def test_a_calculator_finds_the_same_edges(name):
    ase = pytest.importorskip("ase")
    pytest.importorskip("vesin")
    task = regressor(name, element_cutoffs=CUTOFFS)
    graph = cloud(cell=6.0 * np.eye(3), side=6.0)
    atoms = ase.Atoms(
        graph.node["atomic_number"], graph.node["position"], cell=[6] * 3, pbc=True
    )
    layer = kb.preprocessing.RadiusGraph(4.0, element_cutoffs=CUTOFFS)
    task.preprocessor = kb.preprocessing.GraphPreprocessor([layer])
    atoms.calc = task.as_calculator()
    for _ in range(3):
        atoms.rattle(0.05)
        graph = kb.data.from_ase(atoms)
        (force,) = task.predict_forces([graph])
        np.testing.assert_allclose(atoms.get_forces(), force, 1e-4, 1e-5)
    assert atoms.calc.stats.neighbour_rebuilds < 3


def test_wrong_cutoffs_are_refused():
    for wrong in ({1: 5.0}, {1: -1.0}, {1: "x"}, {200: 1.0}, [2.0], {"H": 1.0}):
        with pytest.raises(ValueError, match="element_cutoffs"):
            kb.preprocessing.RadiusGraph(4.0, element_cutoffs=wrong)
        with pytest.raises(ValueError, match="element_cutoffs"):
            kb.models.PaiNNBackbone((1, 8), 8, 1, cutoff=4.0, element_cutoffs=wrong)
    with pytest.raises(ValueError, match="with `cutoff`"):
        kb.models.SchNetBackbone((1, 8), 8, element_cutoffs=CUTOFFS)
    bare = kb.Graph(2, [], [], node={"position": np.zeros((2, 3))})
    with pytest.raises(ValueError, match="atomic_number"):
        kb.preprocessing.RadiusGraph(4.0, element_cutoffs=CUTOFFS)(bare)


def test_short_cutoffs_are_refused_with_repulsion():
    layer = kb.preprocessing.RadiusGraph(4.0, element_cutoffs={1: 0.5})
    task = kb.models.GraphRegressor(
        BACKBONES["PaiNNBackbone"](),
        preprocessor=kb.preprocessing.GraphPreprocessor([layer]),
        zbl=True,
    )
    with pytest.raises(ValueError, match="at least 0.62 .* element 1.*cutoff=0.5"):
        task.predict([pair((1, 1), 0.7)])
