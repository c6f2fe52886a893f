"""`GraphRegressor(zbl=True)`: the energy of `ZBLRepulsion` beside the learnt one."""

import json

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.layers import ZBLRepulsion
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphPreprocessor,
    RadiusGraph,
    TargetNormalizer,
)

CUTOFF = 4.0


def structures(seed=0, count=6, **context):
    rng, out = np.random.default_rng(seed), []
    for _ in range(count):
        atoms = int(rng.integers(3, 6))
        node = {
            "atomic_number": rng.choice([6, 8, 29], atoms),
            "position": rng.uniform(size=(atoms, 3)) * 2.2,
            "force": rng.normal(size=(atoms, 3)),
        }
        out.append(
            kb.Graph(atoms, [], [], node=node, context=context, label=rng.normal() - 9)
        )
    return out


def backbone(kind="painn", seed=0):
    keras.utils.set_random_seed(seed)
    elements = (6, 8, 29)
    if kind == "painn":
        return kb.models.PaiNNBackbone(elements, 8, 1, cutoff=CUTOFF, num_functions=6)
    return kb.models.SchNetBackbone(
        elements, 8, 1, num_gaussians=8, cutoff=CUTOFF, reduce="sum"
    )


def make(zbl=True, kind="painn", task=kb.models.ForceRegressor, **options):
    preprocessor = GraphPreprocessor([RadiusGraph(CUTOFF)], DynamicBatcher(3))
    options.setdefault("normalizer", TargetNormalizer("atom", "atomic_number"))
    return task(
        backbone(kind), preprocessor=preprocessor, readout="sum", zbl=zbl, **options
    )


def repulsion(graphs):
    edges = [RadiusGraph(CUTOFF)(graph) for graph in graphs]
    return ZBLRepulsion().energies_of(kb.data.FlatGraphs.from_graphs(edges))


@pytest.mark.parametrize("kind", ["painn", "schnet"])
def test_energies_are_those_of_the_task_without_it_and_the_repulsion(kind):
    graphs = structures()
    normalizer = {
        "mode": "atom",
        "element_key": "atomic_number",
        "references": {6: -3.0, 8: -2.0, 29: -1.0},
        "mean": [0.5],
        "std": [2.0],
    }
    with_it, without = (
        np.ravel(make(zbl, kind, normalizer=normalizer).predict(graphs))
        for zbl in (True, False)
    )
    assert repulsion(graphs).min() > 0.1
    np.testing.assert_allclose(with_it - without, repulsion(graphs), rtol=1e-4)


def test_the_normaliser_is_adapted_to_the_rest():
    graphs = structures(count=12)
    # Labels that are references and the repulsion: nothing is left to learn.
    own = {6: -30.0, 8: -20.0, 29: -10.0}
    labels = repulsion(graphs) + [
        sum(own[z] for z in graph.node["atomic_number"].tolist()) for graph in graphs
    ]
    graphs = [g.replace(label=e) for g, e in zip(graphs, labels, strict=True)]
    task = make()
    task.fit(graphs, epochs=1, verbose=0)
    fitted = task.normalizer.get_config()["references"]
    for element, energy in own.items():
        assert fitted[str(element)] == pytest.approx([energy], abs=1e-2)
    plain = make(False)
    plain.fit(graphs, epochs=1, verbose=0)
    assert abs(plain.normalizer.get_config()["references"]["6"][0] + 30) > 1


def test_forces_are_the_slope():
    graph = structures(count=1)[0]
    task = make(normalizer=None)
    forces = task.predict_forces([graph])[0]
    step = 5e-4
    for atom, axis in ((0, 0), (1, 2), (2, 1)):
        energies = []
        for shift in (step, -step):
            position = graph.node["position"].astype(float)
            position[atom, axis] += shift
            moved = graph.replace(node={**graph.node, "position": position})
            energies.append(float(task.predict([moved])[0][0]))
        slope = (energies[0] - energies[1]) / (2 * step)
        assert forces[atom, axis] == pytest.approx(-slope, rel=5e-3, abs=0.05)
    np.testing.assert_allclose(forces.sum(axis=0), 0, atol=1e-3)


def test_stresses_are_the_slope():
    pytest.importorskip("vesin")
    cell = np.diag([4.0, 4.1, 4.2])
    graph = structures(count=1, cell=cell, pbc=[1, 1, 1])[0]
    task = make(normalizer=None)
    stress = task.predict_stress([graph])[0]
    step = 2e-4
    for place, (row, column) in enumerate([(0, 0), (1, 1), (2, 2), (1, 2)]):
        energies = []
        for shift in (step, -step):
            strain = np.eye(3)
            strain[row, column] += shift / 2
            strain[column, row] += shift / 2
            moved = graph.replace(
                node={**graph.node, "position": graph.node["position"] @ strain},
                context={**graph.context, "cell": cell @ strain},
            )
            energies.append(float(task.predict([moved])[0][0]))
        slope = (energies[0] - energies[1]) / (2 * step) / np.linalg.det(cell)
        assert stress[place] == pytest.approx(slope, rel=1e-2, abs=1e-2)


def test_atoms_repel_each_other_where_nothing_was_learnt():
    task = make()
    task.fit(structures(), epochs=1, verbose=0)
    energies, forces = [], []
    for distance in (0.1, 0.2, 0.4, 0.8):
        pair = kb.Graph(
            2,
            [],
            [],
            node={
                "atomic_number": [29, 29],
                "position": [[0, 0, 0], [distance, 0, 0]],
            },
        )
        energies.append(float(task.predict([pair])[0][0]))
        forces.append(task.predict_forces([pair])[0][1, 0])
    assert (np.diff(energies) < 0).all() and energies[0] > 1e4
    assert (np.diff(forces) < 0).all() and forces[-1] > 1


def test_training_goes_down():
    graphs = structures(count=8)
    task = make()
    task.compile(keras.optimizers.Adam(1e-2))
    losses = task.fit(graphs, epochs=8, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


@pytest.mark.parametrize("task", [kb.models.GraphRegressor, kb.models.ForceRegressor])
def test_saved_and_loaded(tmp_path, task):
    graphs = structures()
    model = make(task=task)
    model.fit(graphs, epochs=1, verbose=0)
    want = model.predict(graphs)
    model.save_to_preset(tmp_path / "preset")
    again = task.from_preset(tmp_path / "preset")
    assert again.zbl and again.head_config()["zbl"] is True
    np.testing.assert_allclose(again.predict(graphs), want, rtol=1e-6)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict(graphs), want, rtol=1e-6)
    # Files of tasks without it do not mention it, like those of before.
    plain = make(False, task=task)
    plain.fit(graphs, epochs=1, verbose=0)
    assert "zbl" not in plain.get_config()
    plain.save_to_preset(tmp_path / "plain")
    entry = json.loads((tmp_path / "plain" / "task.json").read_text())
    assert "zbl" not in json.dumps(entry)
    loaded = task.from_preset(tmp_path / "plain")
    assert not loaded.zbl and loaded.normalizer.is_adapted
    # The normaliser of a task with other energies is not kept.
    changed = task.from_preset(tmp_path / "plain", zbl=True)
    assert changed.zbl and not changed.normalizer.is_adapted
    changed = task.from_preset(tmp_path / "preset", zbl=False)
    assert not changed.zbl and not changed.normalizer.is_adapted
    assert task.from_preset(tmp_path / "preset", zbl=True).normalizer.is_adapted


def test_calculator():
    ase = pytest.importorskip("ase")
    graphs = structures()
    task = make()
    task.fit(graphs, epochs=1, verbose=0)
    calculator = task.as_calculator()
    for graph in graphs[:2]:
        atoms = ase.Atoms(graph.node["atomic_number"], graph.node["position"])
        atoms.calc = calculator
        energy = float(task.predict([graph])[0][0])
        assert atoms.get_potential_energy() == pytest.approx(energy, rel=1e-5)
        assert atoms.get_potential_energies().sum() == pytest.approx(energy, rel=1e-5)
        np.testing.assert_allclose(
            atoms.get_forces(), task.predict_forces([graph])[0], rtol=1e-3, atol=1e-3
        )
    atoms = ase.Atoms("Pu2", [[0, 0, 0], [3, 0, 0]], calculator=calculator)
    with pytest.raises(ValueError, match="Expected atomic numbers among"):
        atoms.get_potential_energy()


def test_wrong_tasks_and_graphs():
    with pytest.raises(ValueError, match="`zbl` with one target.*num_targets=2"):
        make(task=kb.models.GraphRegressor, num_targets=2)
    with pytest.raises(ValueError, match="backbone of atoms.*GCNBackbone"):
        kb.models.GraphRegressor(kb.models.GCNBackbone({"kind": 2}, 8), zbl=True)
    with pytest.raises(ValueError, match="`zbl` to be True or False.*'yes'"):
        make("yes")
    small = make()
    small.preprocessor = GraphPreprocessor([RadiusGraph(2.5)])
    with pytest.raises(ValueError, match="cutoff of at least 2.64.*cutoff=2.5"):
        small.fit(structures(count=12), epochs=1, verbose=0)
    heavy = kb.Graph(
        2, [], [], node={"atomic_number": [99, 0], "position": np.eye(3)[:2]}, label=1.0
    )
    task = kb.models.GraphRegressor(
        kb.models.PaiNNBackbone(119, 8, 1, cutoff=CUTOFF), readout="sum", zbl=True
    )
    with pytest.raises(ValueError, match=r"elements from 1 to 96.*\[0, 99\]"):
        task.fit([heavy], epochs=1, verbose=0)
