"""Molecular dynamics: the calculator agrees with `predict` and with derivatives."""

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.models.task_program import TaskProgram
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    FullyConnectedGraph,
    GraphPreprocessor,
    KNearestGraph,
    RadiusGraph,
    TargetNormalizer,
)

pytestmark = pytest.mark.every_backend(
    "are_those_of_predict", "strain_derivative", "keeps_momentum"
)

ase = pytest.importorskip("ase")
pytest.importorskip("vesin")

BACKBONES = {
    "schnet": lambda: kb.models.SchNetBackbone(
        (1, 6, 8), hidden_dim=8, num_gaussians=8, num_steps=1, cutoff=3.5
    ),
    "sum": lambda: kb.models.SchNetBackbone(
        (1, 6, 8), 8, num_gaussians=8, num_steps=1, cutoff=3.5, reduce="sum"
    ),
    "painn": lambda: kb.models.PaiNNBackbone(
        (1, 6, 8), hidden_dim=8, num_steps=2, cutoff=3.5, num_functions=8
    ),
}

LARGER = {"schnet": 2.5, "sum": 1.3}


def task_of(name="painn", layer=None, **options):
    keras.utils.set_random_seed(3)
    layers = [RadiusGraph(3.5) if layer is None else layer]
    preprocessor = GraphPreprocessor(layers, DynamicBatcher(7))
    options = {"normalizer": None, **options}
    task = kb.models.ForceRegressor(BACKBONES[name](), 1, preprocessor, **options)
    # Fresh weights give hardly any forces, hardly above the rounding of energies.
    for weight in task.backbone.trainable_variables:
        weight.assign(LARGER.get(name, 1) * weight)
    return task


def crystal(pbc=True, seed=0, disorder=0.1):
    rng = np.random.default_rng(seed)
    cell = np.diag([4.0, 4.4, 4.8]) + rng.normal(scale=2 * disorder, size=(3, 3))
    grid = np.stack(np.meshgrid(*[[0.1, 0.6]] * 3), -1).reshape(-1, 3)
    atoms = ase.Atoms("CHOCHOCO", scaled_positions=grid, cell=cell, pbc=pbc)
    atoms.positions += rng.normal(scale=disorder, size=(8, 3))
    return atoms


@pytest.mark.parametrize(
    ("name", "pbc"),
    [("painn", True), ("painn", (True, False, True)), ("schnet", True), ("sum", False)],
)
def test_energies_and_forces_are_those_of_predict(name, pbc):
    normalizer = TargetNormalizer("atom", mean=[-3.0], std=[0.5])
    task, atoms = task_of(name, normalizer=normalizer), crystal(pbc)
    graph = kb.data.from_ase(atoms)
    atoms.calc = task.as_calculator()
    energy = float(task.predict([graph])[0][0])
    assert atoms.get_potential_energy() == pytest.approx(energy, rel=1e-6)
    assert atoms.get_potential_energy(force_consistent=True) == pytest.approx(energy)
    forces = task.predict_forces([graph])[0]
    np.testing.assert_allclose(atoms.get_forces(), forces, atol=1e-5)
    assert np.abs(forces).max() > 1e-2
    assert atoms.calc.stats.evaluations == 1


LAYERS = {
    "radius": lambda: RadiusGraph(3.5),
    "few": lambda: RadiusGraph(3.5, max_neighbours=6),
    "nearest": lambda: KNearestGraph(5),
    "full": FullyConnectedGraph,
}


@pytest.mark.parametrize("layer", LAYERS)
def test_atoms_that_move_within_the_skin_need_no_search(layer):
    # This SchNet divides by the in-degree: pairs beyond the cutoff would change it.
    atoms = crystal(pbc=layer != "full")
    task = task_of("schnet", LAYERS[layer]())
    rng = np.random.default_rng(1)
    atoms.calc = task.as_calculator(skin=0.8)
    atoms.get_potential_energy()
    for _ in range(3):
        atoms.positions += rng.uniform(-0.06, 0.06, (8, 3))
        other = atoms.copy()
        other.calc = task.as_calculator(skin=0.0)
        assert atoms.get_potential_energy() == other.get_potential_energy()
        np.testing.assert_allclose(
            atoms.get_forces(), other.get_forces(), rtol=0, atol=1e-6
        )
    searches = 1 if "earest" not in layer and layer != "full" else 4
    assert atoms.calc.stats.neighbour_rebuilds == searches
    # Farther, across the cell, and into another cell.
    atoms.positions[2] += [0.5, 0.2, 0.0]
    atoms.positions[5] += 2 * atoms.cell[0]
    other = atoms.copy()
    other.calc = task.as_calculator()
    np.testing.assert_allclose(atoms.get_forces(), other.get_forces(), atol=1e-5)
    assert atoms.calc.stats.neighbour_rebuilds == searches + 1


# A mean of messages jumps as atoms cross the cutoff, and has no derivative there.
@pytest.mark.parametrize("name", ["sum", "painn"])
@pytest.mark.parametrize("pbc", [True, (True, True, False)], ids=str)
def test_stress_is_the_strain_derivative_of_the_energy(name, pbc):
    # No atoms are about to cross the cutoff, where the second derivative jumps.
    task, atoms = task_of(name), crystal(pbc, disorder=0.03)
    atoms.calc = task.as_calculator()
    stress = atoms.get_stress(voigt=False)
    assert np.abs(stress).max() > 1e-4
    np.testing.assert_allclose(stress, stress.T)
    rng, strains = np.random.default_rng(2), 0.01 * cosines(64)
    for direction in rng.uniform(-1, 1, (5, 3, 3)):
        direction = (direction + direction.T) / 2
        energies = []
        for strain in strains:
            moved = atoms.copy()
            moved.calc = atoms.calc
            deformation = np.eye(3) + strain * direction
            moved.set_cell(atoms.cell @ deformation, scale_atoms=True)
            energies.append(moved.get_potential_energy())
        # A polynomial through many energies, whose last float32 digits cancel out.
        slope = np.polynomial.Polynomial.fit(strains, energies, 4).deriv()(0)
        want = atoms.get_volume() * np.sum(stress * direction)
        scale = atoms.get_volume() * np.linalg.norm(stress)
        assert slope == pytest.approx(want, rel=0, abs=1e-4 * scale)


def test_energies_of_atoms_add_up():
    normalizer = TargetNormalizer(
        "atom",
        element_key="atomic_number",
        references={1: -1.0, 6: -5.0, 8: -9.0},
        mean=[-3.0],
        std=[0.5],
    )
    task, atoms = task_of(normalizer=normalizer), crystal()
    atoms.calc = task.as_calculator()
    energies = atoms.get_potential_energies()
    assert energies.shape == (8,)
    assert energies.sum() == pytest.approx(atoms.get_potential_energy(), rel=1e-5)
    # They are those of places: an atom that is far away has its own.
    cluster = crystal(pbc=False)
    alone = cluster + ase.Atoms("H", [[50.0, 0, 0]])
    cluster.calc = alone.calc = atoms.calc
    own = alone.get_potential_energies()
    np.testing.assert_allclose(own[:8], cluster.get_potential_energies(), atol=1e-5)
    bare = ase.Atoms("H", calculator=atoms.calc)
    assert own[8] == pytest.approx(bare.get_potential_energy(), rel=1e-5)
    # A mean has none.
    task = task_of(readout="mean")
    with pytest.raises(NotImplementedError):
        task.as_calculator().get_potential_energies(crystal())


def cosines(count):
    """Chebyshev's points between -1 and 1."""
    return np.cos((np.arange(count) + 0.5) * np.pi / count)


def test_stress_has_the_units_sign_and_order_of_ase():
    task, atoms = task_of(), crystal()
    atoms.calc = task.as_calculator()
    voigt, full = atoms.get_stress(), atoms.get_stress(voigt=False)
    order = [(0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1)]
    np.testing.assert_array_equal(voigt, [full[i] for i in order])
    numerical = pytest.importorskip("ase.calculators.fd")
    want = numerical.calculate_numerical_stress(atoms, eps=3e-3)
    np.testing.assert_allclose(voigt, want, atol=2e-3 * np.abs(voigt).max())


def test_a_run_is_one_program_and_keeps_momentum(monkeypatch):
    from ase import units
    from ase.md.verlet import VelocityVerlet

    calls = []
    call = TaskProgram.call
    monkeypatch.setattr(
        TaskProgram, "call", lambda *args, **kw: calls.append(1) or call(*args, **kw)
    )
    # A gentle potential: random weights have no repulsion.
    normalizer = TargetNormalizer("atom", mean=[0.0], std=[0.05])
    task, atoms = task_of(normalizer=normalizer), crystal()
    atoms.calc = task.as_calculator(skin=0.5)
    speed = np.sqrt(150 * units.kB / atoms.get_masses())[:, None]
    atoms.set_velocities(speed * np.random.default_rng(4).normal(size=(8, 3)))
    atoms.set_momenta(atoms.get_momenta() - atoms.get_momenta().mean(axis=0))
    first = atoms.get_total_energy()
    traces = len(calls)
    VelocityVerlet(atoms, timestep=0.5 * units.fs).run(200)
    stats, others = atoms.calc.stats, task.as_calculator()
    others.get_potential_energy(atoms)
    assert others.stats.compilations == 0
    assert stats.evaluations == 201 and stats.compilations == 1
    assert 1 <= stats.neighbour_rebuilds < 40
    if keras.backend.backend() != "torch":
        assert len(calls) == traces == 1
    np.testing.assert_allclose(atoms.get_momenta().sum(axis=0), 0, atol=1e-9)
    assert abs(atoms.get_total_energy() - first) / len(atoms) < 1e-4


def test_more_edges_and_atoms_make_programs_once():
    task, atoms = task_of(), crystal()
    calc = atoms.calc = task.as_calculator()
    atoms.get_forces()
    room = calc.stats.edge_capacity
    dense = atoms.copy()
    dense.calc = calc
    dense.set_cell(0.8 * atoms.cell, scale_atoms=True)
    energy = dense.get_potential_energy()
    assert calc.stats.compilations == 2 and calc.stats.edge_capacity > room
    fresh = dense.copy()
    fresh.calc = task.as_calculator()
    assert energy == pytest.approx(fresh.get_potential_energy(), rel=1e-5)
    # Fewer atoms, and other elements, fit.
    pair = ase.Atoms("HO", [[0, 0, 0], [0, 0, 1.1]])
    pair.calc = calc
    want = float(task.predict([kb.data.from_ase(pair)])[0][0])
    assert pair.get_potential_energy() == pytest.approx(want, rel=1e-5)
    pair.numbers[:] = 6, 1
    want = float(task.predict([kb.data.from_ase(pair)])[0][0])
    assert pair.get_potential_energy() == pytest.approx(want, rel=1e-5)
    assert calc.stats.compilations == 2
    alone = ase.Atoms("H", calculator=calc)
    np.testing.assert_array_equal(alone.get_forces(), np.zeros((1, 3)))


def assigned(task, graphs):
    for weight in task.trainable_variables:
        weight.assign(1.1 * weight)


def trained(task, graphs):
    task.compile(keras.optimizers.SGD(0.01))
    task.fit(graphs, epochs=1, verbose=0)


def replaced(task, graphs):
    task.set_weights([0.9 * values for values in task.get_weights()])


@pytest.mark.parametrize("change", [assigned, trained, replaced])
@pytest.mark.parametrize("ensemble", [False, True])
def test_weights_that_change_are_seen(change, ensemble):
    tasks, atoms = [task_of() for _ in range(2 if ensemble else 1)], crystal()
    potential = kb.models.Ensemble(tasks) if ensemble else tasks[0]
    atoms.calc = potential.as_calculator()
    before = atoms.get_potential_energy()
    evaluations = atoms.calc.stats.evaluations
    assert atoms.get_potential_energy() == before and atoms.get_forces().any()
    assert atoms.calc.stats.evaluations == evaluations
    graph = kb.data.from_ase(atoms)
    labels = {"label": before + 1.0, "node": {**graph.node, "force": atoms.positions}}
    change(tasks[-1], [graph.replace(**labels)])
    energies = [float(task.predict([graph])[0][0]) for task in tasks]
    after = atoms.get_potential_energy()
    assert after == pytest.approx(np.mean(energies), rel=1e-5)
    assert abs(after - before) > 1e-4 * abs(before)


def test_tasks_without_a_preprocessor_take_the_cutoff_of_the_backbone():
    keras.utils.set_random_seed(0)
    task, atoms = kb.models.GraphRegressor(BACKBONES["painn"]()), crystal()
    atoms.calc = task.as_calculator()
    want = task.predict_forces([kb.data.from_ase(atoms)])[0]
    np.testing.assert_allclose(atoms.get_forces(), want, atol=1e-5)


def refused(atoms, message, task=None, error=ValueError):
    atoms.calc = (task or task_of()).as_calculator()
    with pytest.raises(error, match=message):
        atoms.get_forces()
    assert atoms.calc.stats.evaluations == 0


def test_structures_without_an_energy_are_refused():
    refused(ase.Atoms("HN", [[0, 0, 0], [0, 0, 1]]), r"elements=.*Received: \[7\]")
    refused(ase.Atoms(), "at least one atom")
    refused(ase.Atoms("HO", [[0, 0, 0], [0, np.nan, 1]]), "for atom 1")
    refused(ase.Atoms("HO", [[0, 0, 0], [0, 0, 1]], pbc=True), "independent cell vec")
    flat = ase.Atoms("H", cell=[[1, 0, 0], [2, 0, 0], [0, 0, 1]], pbc=True)
    refused(flat, "independent cell vectors")
    refused(ase.Atoms("H", cell=[1, 1, np.nan]), "finite cell")
    refused(ase.Atoms("HO", [[1, 0, 0], [1, 0, 1e-5]]), "atoms 0 and 1 at a distance")
    # Through the boundary of the cell.
    ends = ase.Atoms("HO", [[0, 0, 0], [0, 0, 4.0]], cell=[4, 4, 4], pbc=True)
    refused(ends, "Angstrom apart")
    refused(crystal(), "periodic", task_of(layer=FullyConnectedGraph()))


def test_a_refused_structure_can_be_corrected():
    atoms = ase.Atoms("HN", [[0, 0, 0], [0, 0, 1.0]])
    atoms.calc = task_of().as_calculator()
    for _ in range(2):
        with pytest.raises(ValueError, match="Received: \\[7\\]"):
            atoms.get_forces()
    atoms.numbers[1] = 8
    assert np.isfinite(atoms.get_forces()).all()


def test_a_run_that_fails_leaves_its_trajectory(tmp_path):
    from ase.io import read
    from ase.io.trajectory import Trajectory
    from ase.md.verlet import VelocityVerlet

    atoms = crystal()
    atoms.calc = task_of().as_calculator()
    dynamics = VelocityVerlet(atoms, 0.01)
    with Trajectory(tmp_path / "run.traj", "w", atoms) as trajectory:
        dynamics.attach(trajectory.write)
        dynamics.run(3)
        atoms.positions[2, 1] = np.nan
        with pytest.raises(ValueError, match=r"finite positions.*for atom 2"):
            dynamics.run(3)
    frames = read(tmp_path / "run.traj", ":")
    assert len(frames) == 4
    assert all(np.isfinite(frame.get_forces()).all() for frame in frames)


def test_cells_thinner_than_the_cutoff_have_all_images():
    thin = ase.Atoms("CO", [[0.1, 0.1, 0], [0.2, 0.7, 1.1]], cell=[1.3, 1.4, 2.2])
    thin.pbc = True
    wide = thin.repeat((4, 4, 3))
    for atoms in (thin, wide):
        atoms.calc = task_of("sum").as_calculator()
    energies = thin.get_potential_energy(), wide.get_potential_energy() / 48
    np.testing.assert_allclose(*energies, rtol=1e-5)
    forces = np.tile(thin.get_forces(), (48, 1))
    np.testing.assert_allclose(wide.get_forces(), forces, atol=1e-4)
    np.testing.assert_allclose(thin.get_stress(), wide.get_stress(), atol=1e-4)


def test_stress_needs_a_volume():
    from ase.calculators.calculator import PropertyNotImplementedError

    wire = ase.Atoms("CO", [[0, 0, 0], [1.2, 0, 0]], cell=[2.4, 0, 0], pbc=[1, 0, 0])
    wire.calc = task_of().as_calculator()
    assert np.isfinite(wire.get_forces()).all()
    with pytest.raises(PropertyNotImplementedError, match="cell with a volume"):
        wire.get_stress()


def test_tasks_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="Expected `skin` to be at least 0"):
        task_of().as_calculator(skin=-1.0)
    with pytest.raises(ValueError, match="`skin` to be finite"):
        task_of().as_calculator(skin=float("inf"))
    two = kb.models.GraphRegressor(BACKBONES["painn"](), num_targets=2)
    with pytest.raises(ValueError, match="one target"):
        two.as_calculator()
    plain = kb.models.GraphRegressor(kb.models.GCNBackbone({"kind": 2}, 8))
    with pytest.raises(ValueError, match="backbone over atoms.*GCNBackbone"):
        plain.as_calculator()
    task = task_of()
    task.preprocessor = GraphPreprocessor([])
    with pytest.raises(ValueError, match=r"finds neighbours.*layers \[\]"):
        task.as_calculator()


def test_error_without_ase_names_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "ase.calculators.calculator", None)
    with pytest.raises(ImportError, match=r'pip install "keras-bandgnn\[chem\]"'):
        task_of().as_calculator()


@pytest.mark.parametrize("ensemble", [False, True])
def test_energies_of_large_cells_are_those_of_their_parts(ensemble):
    references = {1: -1000.0, 6: -2000.0, 8: -3000.0}
    normalizer = TargetNormalizer("atom", "atomic_number", references, [0.0], [0.5])
    config = normalizer.get_config()
    members = [
        task_of(readout="sum", normalizer=TargetNormalizer.from_config(config))
        for _ in range(2 if ensemble else 1)
    ]
    potential = kb.models.Ensemble(members) if ensemble else members[0]
    small = crystal()
    large = small.repeat((4, 4, 3))
    small.calc, large.calc = potential.as_calculator(), potential.as_calculator()
    part, whole = small.get_potential_energy(), large.get_potential_energy()
    # Of a million eV, whose last digit in float32 is 0.06 eV.
    assert abs(whole) > 7e5
    assert whole == pytest.approx(48 * part, abs=48 * 1e-4)
    energies = large.get_potential_energies()
    assert energies.sum() == pytest.approx(whole, abs=1e-6)
    np.testing.assert_allclose(
        energies.reshape(48, 8), np.tile(small.get_potential_energies(), (48, 1))
    )
    # Small steps change it as the forces say.
    force = small.get_forces()[2, 0]
    values = []
    for step in (5e-4, -5e-4):
        moved = small.copy()
        moved.positions[2, 0] += step
        moved.calc = potential.as_calculator()
        values.append(moved.get_potential_energy())
    assert (values[1] - values[0]) / 1e-3 == pytest.approx(force, abs=5e-3)


def test_a_warning_where_edges_are_shorter_than_messages():
    for layer in (RadiusGraph(3.0), RadiusGraph(3.5, element_cutoffs={6: 2.0})):
        with pytest.warns(UserWarning, match="energies jump where edges end"):
            task_of(layer=layer).as_calculator()


def test_atoms_at_one_place_are_refused_in_training_and_prediction():
    atoms = crystal()
    atoms.positions[3] = atoms.positions[1]
    graph = kb.data.from_ase(atoms).replace(info={"file": "a.xyz", "frame": 7})
    task = task_of()
    for call in (task.predict, task.predict_forces):
        with pytest.raises(ValueError, match=r"\(a.xyz, frame 7\) atoms 1 and 3 at"):
            call([graph])


def test_one_way_edges_are_refused_with_repulsion():
    for layer in (KNearestGraph(2), RadiusGraph(3.5, max_neighbours=2)):
        with pytest.raises(ValueError, match="both ways for zbl=True"):
            task_of(layer=layer, zbl=True).predict([kb.data.from_ase(crystal())])
