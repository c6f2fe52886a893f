import numpy as np
import pytest

from keras_bandgnn import Graph

ase = pytest.importorskip("ase")
build = pytest.importorskip("ase.build")
from ase.calculators.emt import EMT  # noqa: E402
from ase.calculators.singlepoint import SinglePointCalculator  # noqa: E402

from keras_bandgnn.data.converters.ase_atoms import from_ase, to_ase  # noqa: E402


def test_molecule_without_edges():
    atoms = build.molecule("H2O")
    atoms.info = {"name": "water", "calc": object(), "gap": 7.5}
    graph = from_ase(atoms, label="gap")
    assert graph.node["atomic_number"].tolist() == [8, 1, 1] and graph.num_edges == 0
    assert graph.context["pbc"].tolist() == [0, 0, 0]
    assert not graph.context["cell"].any() and graph.label == 7.5
    assert graph.info == {"name": "water"}
    back = to_ase(graph)
    assert back.get_chemical_formula() == "H2O" and back.calc is None
    np.testing.assert_allclose(back.positions, atoms.positions, atol=1e-6)


def test_edges_against_all_images():
    atoms = build.bulk("NaCl", "rocksalt", a=5.64)
    atoms.rattle(0.1, seed=1)
    cutoff = 6.5  # larger than the cell: a node neighbours its own images
    graph = from_ase(atoms, cutoff)
    position, cell = atoms.positions, np.asarray(atoms.cell)
    expected = set()
    for shift in np.ndindex(9, 9, 9):
        shift = np.array(shift) - 4
        for i in range(2):
            for j in range(2):
                away = np.linalg.norm(position[j] + shift @ cell - position[i])
                if 1e-9 < away < cutoff:
                    expected.add((j, i, *shift.tolist()))
    found = zip(
        graph.senders.tolist(),
        graph.receivers.tolist(),
        *graph.edge["shift"].T.tolist(),
        strict=True,
    )
    found = list(found)
    assert len(found) == len(set(found)) and set(found) == expected
    assert (graph.senders == graph.receivers).any()
    assert graph.edge["shift"].dtype == np.int32


def test_energy_and_forces_that_are_ready():
    atoms = build.bulk("Cu", cubic=True)
    atoms.rattle(0.05, seed=0)
    atoms.calc = EMT()
    assert "energy" not in from_ase(atoms).context  # nothing is computed
    energy, forces = atoms.get_potential_energy(), atoms.get_forces()
    graph = from_ase(atoms)
    assert graph.context["energy"] == np.float32(energy)
    np.testing.assert_allclose(graph.node["force"], forces, rtol=1e-5, atol=1e-6)
    back = to_ase(graph)
    assert back.get_potential_energy() == pytest.approx(energy, rel=1e-6)
    np.testing.assert_allclose(back.get_forces(), forces, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(back.cell, atoms.cell, rtol=1e-6)
    assert back.pbc.all()
    as_label = from_ase(atoms, label="energy")
    assert as_label.label == np.float32(energy) and "energy" not in as_label.context
    by_node = from_ase(atoms, label="force")
    assert by_node.label_level == "node" and by_node.label.shape == (4, 3)
    assert "force" not in by_node.node
    atoms.rattle(0.05, seed=1)  # the results no longer belong to the positions
    assert "energy" not in from_ase(atoms).context


def test_energy_alone():
    atoms = ase.Atoms("He")
    atoms.calc = SinglePointCalculator(atoms, energy=-1.5)
    graph = from_ase(atoms)
    assert graph.context["energy"] == -1.5 and "force" not in graph.node
    assert to_ase(graph).get_potential_energy() == -1.5


def pulled() -> ase.Atoms:
    atoms = ase.Atoms("He")
    atoms.calc = SinglePointCalculator(atoms, energy=-1.5, forces=np.ones((1, 3)))
    return atoms


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: from_ase(ase.Atoms("He"), cutoff=0), "`cutoff`.*cutoff=0"),
        (lambda: from_ase(ase.Atoms("He"), label="energy"), "`label`.*'energy'"),
        (
            lambda: from_ase(pulled(), label="forces"),
            r"\['energy', 'force'\].*'forces'",
        ),
        (lambda: from_ase(ase.Atoms()), "num_nodes=0"),
        (lambda: to_ase(Graph(1, [], [], node={"z": [1]})), r"\['z'\].*Rename"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        call()
