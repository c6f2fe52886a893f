"""Ensembles: means and spreads equal NumPy over separate members."""

import json

import keras
import numpy as np
import pytest
from test_calculator import crystal, task_of

import keras_bandgnn as kb
from keras_bandgnn.models.task_program import TaskProgram

pytestmark = pytest.mark.every_backend("energies_forces")

COUNT = 3


def perturbed(task, seed):
    """A task whose weights are those of another seed."""
    rng = np.random.default_rng(seed)
    for weight in task.trainable_variables:
        value = keras.ops.convert_to_numpy(weight)
        weight.assign(value * rng.normal(1, 0.2, weight.shape))
    return task


def potentials(count=COUNT, **options):
    return [perturbed(task_of(**options), seed) for seed in range(count)]


def crystals(count=5):
    return [kb.data.from_ase(crystal(seed=seed)) for seed in range(count)]


def networks():
    rng, out = np.random.default_rng(0), []
    for count in (3, 5, 4, 6):
        edges = rng.integers(0, count, (2, 2 * count))
        out.append(
            kb.Graph(
                count,
                *edges,
                node={"kind": rng.integers(0, 3, count)},
                candidates=[0, 2],
            )
        )
    return out


def gcn(**options):
    return kb.models.GCNBackbone({"kind": 3}, 8, **options)


def layers():
    # The nodes of the graphs are in another order than those of the batches.
    return kb.preprocessing.GraphPreprocessor([kb.preprocessing.RCMKCompile(4)])


TASKS = {
    "GraphRegressor": lambda: kb.models.GraphRegressor(gcn(), 2),
    "NodeRegressor": lambda: kb.models.NodeRegressor(gcn(), 2, layers()),
    "EdgeRegressor": lambda: kb.models.EdgeRegressor(gcn()),
    "GraphClassifier": lambda: kb.models.GraphClassifier(gcn(), 3),
    "ordered classes": lambda: kb.models.GraphClassifier(gcn(), 3, ordinal=True),
    "several targets": lambda: kb.models.GraphClassifier(gcn(), 3, multi_label=True),
    "NodeClassifier": lambda: kb.models.NodeClassifier(gcn(), 3, layers()),
    "EdgeClassifier": lambda: kb.models.EdgeClassifier(gcn(), 3),
    "NodeSelector": lambda: kb.models.NodeSelector(
        kb.models.GGNNBackbone({"kind": 3}, 8, num_steps=2)
    ),
}


def assert_moments(found, members, tolerance=1e-5):
    """Compare mean and std of graphs with those of the arrays of each member."""
    mean, std = found
    assert len(mean) == len(std) == len(members[0])
    for graph, (one, other) in enumerate(zip(mean, std, strict=True)):
        values = np.stack([each[graph] for each in members])
        np.testing.assert_allclose(one, values.mean(0), tolerance, tolerance)
        np.testing.assert_allclose(other, values.std(0), tolerance, tolerance)
        assert one.dtype == other.dtype == np.float32


@pytest.mark.parametrize("name", TASKS)
def test_mean_and_spread_are_those_of_separate_predictions(name):
    members = []
    for seed in range(COUNT):
        keras.utils.set_random_seed(seed)
        members.append(perturbed(TASKS[name](), seed))
    ensemble, graphs = kb.models.Ensemble(members), networks()
    probabilities = hasattr(members[0], "predict_proba")
    each = [
        (task.predict_proba if probabilities else task.predict)(graphs)
        for task in members
    ]
    found = ensemble.predict_spread(graphs)
    assert_moments(found, each)
    assert max(rows.max() for rows in found[1]) > 1e-3
    for one, other in zip(ensemble.predict(graphs), found[0], strict=True):
        np.testing.assert_array_equal(one, other)
    assert ensemble.predict([]) == []


@pytest.mark.release(elsewhere=True)
def test_energies_forces_and_stresses_of_potentials():
    members, graphs = potentials(), crystals()
    ensemble = kb.models.Ensemble(members)
    for name in ("predict", "predict_forces", "predict_stress"):
        each = [getattr(task, name)(graphs) for task in members]
        found = getattr(ensemble, f"{name}_spread")(graphs)
        assert_moments(found, each)
        for one, other in zip(getattr(ensemble, name)(graphs), found[0], strict=True):
            np.testing.assert_array_equal(one, other)
    assert np.stack(ensemble.predict_forces_spread(graphs)[1]).max() > 1e-3


def test_one_program_runs_all_members(monkeypatch):
    calls, packed = [], []
    call, load = TaskProgram.call, TaskProgram.batches
    monkeypatch.setattr(
        TaskProgram, "call", lambda *args, **kw: calls.append(1) or call(*args, **kw)
    )
    monkeypatch.setattr(
        TaskProgram, "batches", lambda *args: packed.append(1) or load(*args)
    )
    ensemble = kb.models.Ensemble(potentials())
    for _ in range(3):
        ensemble.predict(crystals(4))
    assert len(packed) == 3
    if keras.backend.backend() != "torch":
        assert len(calls) == 1
    # Weights that change are seen.
    before = ensemble.predict(crystals(4))
    perturbed(ensemble.members[1], 7)
    each = [task.predict(crystals(4)) for task in ensemble.members]
    found = ensemble.predict_spread(crystals(4))
    assert_moments(found, each)
    assert not np.allclose(before, found[0])


def test_members_may_have_other_widths():
    keras.utils.set_random_seed(0)
    members = [
        kb.models.GraphRegressor(kb.models.GCNBackbone({"kind": 3}, width, depth))
        for width, depth in ((4, 1), (8, 2))
    ]
    graphs = networks()
    each = [task.predict(graphs) for task in members]
    assert_moments(kb.models.Ensemble(members).predict_spread(graphs), each)


def test_a_variant_that_changes_makes_another_program():
    members = [
        kb.models.GraphRegressor(kb.models.PNABackbone({"kind": 3}, 8, 1))
        for _ in range(2)
    ]
    ensemble, graphs = kb.models.Ensemble(members), networks()
    ensemble.predict(graphs)
    members[1].backbone.adapt([kb.data.FlatGraphs.from_graphs(graphs)])
    each = [task.predict(graphs) for task in members]
    assert_moments(ensemble.predict_spread(graphs), each)


def test_raw_data():
    pytest.importorskip("rdkit")
    smiles, y = ["CCO", "CC", "c1ccccc1", "CN"], [1.0, 2.0, 3.0, 2.5]
    encoder = kb.preprocessing.SmilesEncoder().adapt(smiles)
    members = []
    for seed in range(2):
        keras.utils.set_random_seed(seed)
        types = encoder.num_edge_types
        backbone = kb.models.GCNBackbone(encoder.inputs(), 8, num_edge_types=types)
        preprocessor = kb.preprocessing.GraphPreprocessor([encoder])
        members.append(kb.models.GraphRegressor(backbone, preprocessor=preprocessor))
        members[-1].fit(smiles, y, verbose=0)
    each = [task.predict(smiles) for task in members]
    assert_moments(kb.models.Ensemble(members).predict_spread(smiles), each)


# === Files ===


def test_saved_and_loaded(tmp_path):
    members, graphs = potentials(), crystals()
    ensemble = kb.models.Ensemble(members)
    ensemble.save_to_preset(tmp_path / "out", card={"score": "3 meV"})
    again = kb.models.Ensemble.from_preset(tmp_path / "out")
    assert len(again.members) == COUNT
    for one, other in zip(
        again.predict_forces_spread(graphs),
        ensemble.predict_forces_spread(graphs),
        strict=True,
    ):
        np.testing.assert_allclose(np.stack(one), np.stack(other), atol=1e-6)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "3 members" in card and "Ensemble.from_preset" in card and "3 meV" in card
    # A folder of a member is a preset; that of the ensemble is not.
    member = kb.models.ForceRegressor.from_preset(tmp_path / "out" / "member_1")
    np.testing.assert_allclose(
        np.stack(member.predict(graphs)), np.stack(members[1].predict(graphs)), 1e-6
    )
    with pytest.raises(ValueError, match="one model.*an ensemble.*member_0.*Ensemble"):
        kb.models.Task.from_preset(tmp_path / "out")
    with pytest.raises(ValueError, match="ensemble.json, as.*Task.from_preset"):
        kb.models.Ensemble.from_preset(tmp_path / "out" / "member_1")
    # It is replaced as a whole, and only by ensembles.
    kb.models.Ensemble(members[:2]).save_to_preset(tmp_path / "out", "float16")
    assert len(kb.models.Ensemble.from_preset(tmp_path / "out").members) == 2
    assert not (tmp_path / "out" / "member_2").exists()
    with pytest.raises(ValueError, match="to be new, an empty folder or a preset"):
        members[0].save_to_preset(tmp_path / "out")
    members[0].save_to_preset(tmp_path / "task")
    with pytest.raises(ValueError, match="to be new, an empty folder or an ensemble"):
        ensemble.save_to_preset(tmp_path / "task")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "task"]


@pytest.mark.parametrize(
    "names",
    [
        None,
        "member_0",
        ["member_0"],
        ["member_0", "member_0"],
        ["member_0", "../task"],
        ["member_0", 1],
        {"member_0": 1, "member_1": 2},
    ],
)
def test_damaged_files_are_refused(names, tmp_path):
    folder = tmp_path / "out"
    kb.models.Ensemble(potentials(2)).save_to_preset(folder)
    (folder / "ensemble.json").write_text(json.dumps({"members": names}))
    with pytest.raises(ValueError, match="ensemble.json.*Received"):
        kb.models.Ensemble.from_preset(folder)


def test_a_member_that_is_missing_or_another_is_named(tmp_path):
    folder = tmp_path / "out"
    kb.models.Ensemble(potentials(2)).save_to_preset(folder)
    kb.models.GraphRegressor(gcn()).save_to_preset(folder / "member_1")
    with pytest.raises(ValueError, match="ensemble.json.*same class.*of member 1"):
        kb.models.Ensemble.from_preset(folder)
    (folder / "member_1" / "config.json").unlink()
    with pytest.raises(ValueError, match="Expected.*Received.*member_1"):
        kb.models.Ensemble.from_preset(folder)


def test_a_failure_leaves_the_old_ensemble(tmp_path, monkeypatch):
    ensemble = kb.models.Ensemble(potentials(2))
    ensemble.save_to_preset(tmp_path / "out")
    before = ensemble.predict(crystals())
    perturbed(ensemble.members[0], 9)

    def fail(*args, **kwargs):
        raise RuntimeError("interrupted")

    monkeypatch.setattr(ensemble.members[1], "save_to_preset", fail, raising=False)
    with pytest.raises(RuntimeError, match="interrupted"):
        ensemble.save_to_preset(tmp_path / "out")
    again = kb.models.Ensemble.from_preset(tmp_path / "out")
    np.testing.assert_allclose(
        np.stack(again.predict(crystals())), np.stack(before), rtol=1e-6
    )
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# === Errors ===


def refused(members, message):
    with pytest.raises(ValueError, match=message):
        kb.models.Ensemble(members)


def test_members_that_are_not_alike_are_refused():
    one, other = (kb.models.GraphRegressor(gcn()) for _ in range(2))
    refused([], "at least two tasks.*Received: 0")
    refused([one], "at least two tasks.*Received: 1")
    refused([one, one], "the same task twice")
    refused([one, other.backbone], "Expected `members` to be a list of tasks")
    classifier = kb.models.GraphClassifier(gcn(), 2)
    refused([one, classifier], "same class.*GraphClassifier.*of member 1")
    refused([one, other, kb.models.GraphRegressor(gcn(), 2)], "targets.*of member 2")
    named = kb.models.GraphClassifier(gcn(), 2, class_names=["a", "b"])
    refused([classifier, named], "targets.*class_names")
    refused([*potentials(1), task_of(layer=kb.preprocessing.RadiusGraph(3.0))], "3.0")
    lossy = kb.primitives.Plan(kb.primitives.Banded(4), rest="drop")
    plans = (
        kb.models.GraphRegressor(
            gcn(), preprocessor=kb.preprocessing.GraphPreprocessor([], plan=plan)
        )
        for plan in ("auto", lossy)
    )
    refused(plans, "same preprocessing.*plan")
    typed = kb.models.GraphRegressor(gcn(num_edge_types=2))
    refused([one, typed], "same num_edge_types")
    localizers = [
        kb.models.BugLocalizer(gcn(num_edge_types=2), first_type=0) for _ in range(2)
    ]
    refused(localizers, "regressors, classifiers or NodeSelectors")


def test_forces_need_energies():
    ensemble = kb.models.Ensemble([kb.models.GraphClassifier(gcn(), 2) for _ in "ab"])
    for call in (
        lambda: ensemble.predict_forces([]),
        lambda: ensemble.predict_stress([]),
        lambda: ensemble.as_calculator(),
    ):
        with pytest.raises(ValueError, match="predict energies.*GraphClassifier"):
            call()
    two = kb.models.Ensemble([kb.models.GraphRegressor(gcn(), 2) for _ in "ab"])
    with pytest.raises(ValueError, match="one target"):
        two.predict_forces([])


def test_graphs_that_do_not_fit_a_member_are_refused():
    elements = ((1, 6, 8), (1, 6))
    members = [
        kb.models.GraphRegressor(
            kb.models.PaiNNBackbone(each, 8, 1, cutoff=3.5),
            preprocessor=kb.preprocessing.GraphPreprocessor(
                [kb.preprocessing.RadiusGraph(3.5)]
            ),
        )
        for each in elements
    ]
    ensemble = kb.models.Ensemble(members)
    with pytest.raises(ValueError, match=r"elements=.*Received: \[8\]"):
        ensemble.predict(crystals(1))
    atoms = crystal()
    atoms.calc = ensemble.as_calculator()
    with pytest.raises(ValueError, match=r"elements=.*Received: \[8\]"):
        atoms.get_potential_energy()


# === Calculator ===


@pytest.mark.parametrize(
    ("name", "pbc"), [("painn", True), ("sum", (True, False, True)), ("painn", False)]
)
def test_calculator_agrees_with_those_of_the_members(name, pbc):
    members, atoms = potentials(name=name), crystal(pbc)
    atoms.calc = kb.models.Ensemble(members).as_calculator()
    results = []
    for task in members:
        other = atoms.copy()
        other.calc = task.as_calculator()
        other.get_forces()
        results.append(other.calc.results)
    energies = np.array([each["energy"] for each in results])
    forces = np.stack([each["forces"] for each in results])
    assert atoms.get_potential_energy() == pytest.approx(energies.mean(), abs=1e-5)
    np.testing.assert_allclose(atoms.get_forces(), forces.mean(0), atol=1e-5)
    found = atoms.calc.results
    assert found["energy_std"] == pytest.approx(energies.std(), abs=1e-5)
    assert found["energy_std"] > 1e-3
    np.testing.assert_allclose(found["forces_std"], forces.std(0), atol=1e-5)
    assert atoms.calc.get_property("energy_std", atoms) == found["energy_std"]
    assert atoms.get_properties(["energy"])["energy"] == found["energy"]
    if pbc is True:
        stress = np.mean([each["stress"] for each in results], axis=0)
        np.testing.assert_allclose(atoms.get_stress(), stress, atol=1e-6)
    own = atoms.get_potential_energies()
    assert own.sum() == pytest.approx(atoms.get_potential_energy(), abs=1e-4)


def test_a_run_of_the_calculator_is_one_program(tmp_path):
    import ase.io

    ensemble, atoms = kb.models.Ensemble(potentials()), crystal()
    atoms.calc = ensemble.as_calculator(skin=0.8)
    rng = np.random.default_rng(1)
    for _ in range(4):
        atoms.positions += rng.uniform(-0.02, 0.02, (8, 3))
        atoms.get_forces()
    stats = atoms.calc.stats
    assert (stats.evaluations, stats.neighbour_rebuilds, stats.compilations) == (
        4,
        1,
        1,
    )
    # Calculators of the ensemble share programs, those of its members have their own.
    other, single = ensemble.as_calculator(), ensemble.members[0].as_calculator()
    for calculator in (other, single):
        calculator.get_potential_energy(atoms)
    assert other.stats.compilations == 0 and single.stats.compilations == 1
    np.testing.assert_allclose(atoms.get_forces().sum(axis=0), 0, atol=1e-9)
    ase.io.write(tmp_path / "run.extxyz", atoms)
    assert ase.io.read(tmp_path / "run.extxyz").get_potential_energy() == pytest.approx(
        atoms.get_potential_energy()
    )


def test_calculators_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="Expected `skin` to be at least 0"):
        kb.models.Ensemble(potentials(2)).as_calculator(skin=-1.0)
    plain = kb.models.Ensemble([kb.models.GraphRegressor(gcn()) for _ in "ab"])
    with pytest.raises(ValueError, match="backbone over atoms.*GCNBackbone"):
        plain.as_calculator()
    cutoffs = kb.models.Ensemble(
        [
            kb.models.GraphRegressor(kb.models.PaiNNBackbone((1,), 8, 1, cutoff=each))
            for each in (3.0, 4.0)
        ]
    )
    with pytest.raises(ValueError, match="same neighbours.*4.0.*of member 1"):
        cutoffs.as_calculator()


def test_energies_of_atoms_need_sums():
    members = [task_of(), task_of(readout="mean")]
    calculator = kb.models.Ensemble(members).as_calculator()
    assert "energies" not in calculator.implemented_properties
    with pytest.raises(NotImplementedError):
        calculator.get_potential_energies(crystal())


def test_a_member_that_is_missing_is_named(tmp_path):
    import shutil

    kb.models.Ensemble(potentials(2)).save_to_preset(tmp_path / "e")
    shutil.rmtree(tmp_path / "e" / "member_1")
    with pytest.raises(ValueError, match="ensemble.json.*no folder .*member_1"):
        kb.models.Ensemble.from_preset(tmp_path / "e")
