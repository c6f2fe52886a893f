import gzip

import numpy as np
import pytest

from keras_bandgnn.data import (
    FlatGraphs,
    open_store,
    read_structures,
    to_ase,
    write_store,
)

pytest.importorskip("ase")
import ase.build  # noqa: E402
import ase.io  # noqa: E402
from ase.calculators.singlepoint import SinglePointCalculator  # noqa: E402

EXTXYZ = """2
Lattice="4.0 0 0 0 4.0 0 0 0 4.5" Properties=species:S:1:pos:R:3:forces:R:3 \
energy=-3 gap=1 pbc="T T F"
Na 0.0 0.0 0.5 0.1 0.2 0.3
Cl 2.0 2.0 0.0 -0.1 -0.2 -0.3
1
Lattice="3.0 0 0 0 3.0 0 0 0 3.0" Properties=species:S:1:pos:R:3:forces:R:3 \
energy=-1.25 gap=2 pbc="T T T"
Cu 0.0 0.0 0.0 0.0 0.0 0.0
"""
WATER = "3\n\nO 0 0 0.12\nH 0 0.76 -0.48\nH 0 -0.76 -0.48\n"
POSCAR = """NaCl
1.0
4.0 0.0 0.0
0.5 3.0 0.0
0.0 0.0 5.0
Na Cl
1 1
Direct
0.0 0.0 0.0
0.5 0.5 0.5
"""
CIF = """data_CsCl
_cell_length_a 4.12
_cell_length_b 4.12
_cell_length_c 4.12
_cell_angle_alpha 90
_cell_angle_beta 90
_cell_angle_gamma 90
_symmetry_space_group_name_H-M 'P 1'
loop_
_atom_site_label
_atom_site_type_symbol
_atom_site_fract_x
_atom_site_fract_y
_atom_site_fract_z
Cs1 Cs 0 0 0
Cl1 Cl 0.5 0.5 0.5
"""


def write(folder, **texts):
    for name, text in texts.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_frames_of_an_extended_xyz_file(tmp_path):
    write(tmp_path, two_extxyz=EXTXYZ)
    graphs = read_structures(tmp_path / "two.extxyz", progress=False)
    assert isinstance(graphs, FlatGraphs) and graphs.num_nodes.tolist() == [2, 1]
    first, second = graphs
    assert first.node["atomic_number"].tolist() == [11, 17] and not first.num_edges
    assert first.node["position"][0].tolist() == [0, 0, 0.5]
    np.testing.assert_array_equal(first.context["cell"], np.diag([4, 4, 4.5]))
    assert first.context["pbc"].tolist() == [1, 1, 0]
    assert first.node["force"][1].tolist() == pytest.approx([-0.1, -0.2, -0.3])
    assert (first.context["energy"], second.context["energy"]) == (-3, -1.25)
    assert first.info == {"gap": 1, "file": "two.extxyz", "frame": 0}
    assert second.info["frame"] == 1 and first.label is None


def test_labels(tmp_path):
    write(tmp_path, two_extxyz=EXTXYZ)
    energy = read_structures(tmp_path / "two.extxyz", label="energy")
    assert energy.label.tolist() == [-3, -1.25] and "energy" not in energy.context
    forces = read_structures(str(tmp_path / "two.extxyz"), "force")
    assert forces.label_level == "node" and forces.label.shape == (3, 3)
    gap = read_structures(tmp_path / "two.extxyz", label="gap")
    assert gap.label.tolist() == [1, 2] and gap.label.dtype == np.int32
    write(tmp_path, two_extxyz=EXTXYZ.replace("gap=2", "gap=2.5"))
    gap = read_structures(tmp_path / "two.extxyz", label="gap")
    assert gap.label.tolist() == [1, 2.5]


def test_whole_energies_are_numbers_like_others(tmp_path):
    write(tmp_path, two_extxyz=EXTXYZ.replace("-1.25", "-1"))
    graphs = read_structures(tmp_path / "two.extxyz")
    assert graphs.context["energy"].dtype == np.float32
    labels = read_structures(tmp_path / "two.extxyz", label="energy").label
    assert labels.dtype == np.float32


def test_poscar_cif_and_xyz(tmp_path):
    write(tmp_path, POSCAR=POSCAR, salt_cif=CIF, water_xyz=WATER)
    graph = read_structures(tmp_path / "POSCAR")[0]
    assert graph.context["cell"][1].tolist() == [0.5, 3, 0]
    assert graph.node["position"][1].tolist() == [2.25, 1.5, 2.5]
    graph = read_structures(tmp_path / "salt.cif")[0]
    assert graph.node["atomic_number"].tolist() == [55, 17]
    np.testing.assert_allclose(graph.node["position"][1], 2.06, rtol=1e-6)
    graph = read_structures(tmp_path / "water.xyz")[0]
    assert not graph.context["cell"].any() and not graph.context["pbc"].any()
    assert graph.node["position"][2].tolist() == pytest.approx([0, -0.76, -0.48])


def test_what_ase_writes(tmp_path):
    frames = []
    for seed in range(3):
        atoms = ase.build.bulk("Cu", cubic=True)
        atoms.rattle(0.1, seed=seed)
        atoms.calc = SinglePointCalculator(atoms, energy=-1.5 * seed)
        frames.append(atoms)
    ase.io.write(tmp_path / "run.traj", frames)
    graphs = read_structures(tmp_path / "run.traj", label="energy")
    assert graphs.label.tolist() == [0, -1.5, -3]
    for graph, atoms in zip(graphs, frames, strict=True):
        np.testing.assert_allclose(graph.node["position"], atoms.positions, rtol=1e-6)


def test_folders_and_lists(tmp_path):
    write(tmp_path, b_xyz=WATER, a__POSCAR=POSCAR, README_md="3\n", a__notes_txt="?")
    with gzip.open(tmp_path / "c.xyz.gz", "wt") as file:
        file.write(WATER)
    graphs = read_structures(tmp_path)
    assert [graph.info["file"] for graph in graphs] == ["POSCAR", "b.xyz", "c.xyz.gz"]
    graphs = read_structures([tmp_path / "c.xyz.gz", tmp_path / "a", tmp_path])
    names = [graph.info["file"] for graph in graphs]
    assert names == ["c.xyz.gz", "POSCAR", "POSCAR", "b.xyz", "c.xyz.gz"]


def test_names_that_ase_would_read_otherwise(tmp_path, monkeypatch):
    (tmp_path / "run@1.xyz").write_text(WATER)
    (tmp_path / "postgres.xyz").write_text(WATER)
    (tmp_path / "data").write_text(EXTXYZ)
    monkeypatch.chdir(tmp_path)
    assert (
        len(read_structures("run@1.xyz")) == len(read_structures("postgres.xyz")) == 1
    )
    assert len(read_structures("data", format="extxyz")) == 2


@pytest.mark.parametrize(
    "path, options, message",
    [
        ("none.xyz", {}, "a file or a folder.*none.xyz"),
        ("empty", {}, "end in .cif.*none"),
        ([], {}, "at least one file"),
    ],
)
def test_missing_files(path, options, message, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=message):
        read_structures(path, **options)


def test_errors_name_file_and_frame(tmp_path):
    write(tmp_path, two_extxyz=EXTXYZ, water_xyz=WATER, bad_cif="nonsense")
    write(tmp_path, none_xyz="0\n\n", mixed_extxyz=EXTXYZ.replace(" gap=2", ""))
    both = [tmp_path / "two.extxyz", tmp_path / "water.xyz"]
    for path, options, message in (
        ("bad.cif", {}, "bad.cif to be a file of structures.*pass format="),
        ("two.extxyz", {"format": "no-such"}, "two.extxyz.*no-such"),
        ("mixed.extxyz", {"label": "gap"}, "mixed.extxyz, frame 1: .*'gap'"),
        ("none.xyz", {}, "none.xyz, frame 0: .*num_nodes=0"),
        (both, {}, "water.xyz, frame 0, as in two.extxyz, frame 0"),
    ):
        path = tmp_path / path if isinstance(path, str) else path
        with pytest.raises(ValueError, match=f"(?s){message}"):
            read_structures(path, **options)


STRESS = [0.01, 0.02, 0.03, 0.004, 0.005, 0.006]
"""xx, yy, zz, yz, xz, xy in eV per cubic Angstrom."""


def stressed(entry, energy="energy=-3", lattice='Lattice="2 0 0 0 3 0 0 0 4" '):
    return (
        f"1\n{lattice}Properties=species:S:1:pos:R:3:REF_forces:R:3 {energy} {entry}\n"
        "Cu 0 0 0 0.1 0.2 0.3\n"
    )


def nine(values, sign=1.0):
    matrix = sign * np.asarray(values)[[0, 5, 4, 5, 1, 3, 4, 3, 2]]
    return " ".join(f"{value:.10g}" for value in matrix)


VIRIAL = [24 * value for value in STRESS]  # The volume is 24.


@pytest.mark.parametrize(
    ("entry", "stress"),
    [
        (f'stress="{nine(STRESS)}"', True),
        (f'stress="{" ".join(map(str, STRESS))}"', True),
        (f'stress="{nine(STRESS)}"', "stress"),
        (f'virial="{nine(VIRIAL, -1)}"', True),
        (f'virial="{" ".join(str(-value) for value in VIRIAL)}"', True),
        (f'virials="{nine(VIRIAL, -1)}"', True),
        (f'REF_virial="{nine(VIRIAL, -1)}"', "REF_virial"),
        (f'dft_stress="{" ".join(map(str, STRESS))}"', "dft_stress"),
    ],
)
def test_stresses_in_the_forms_of_extended_xyz(tmp_path, entry, stress):
    write(tmp_path, a_xyz=stressed(entry) + stressed(""))
    graphs = read_structures(
        tmp_path / "a.xyz", "energy", stress=stress, forces="REF_forces"
    )
    np.testing.assert_allclose(graphs[0].context["stress"], STRESS, rtol=1e-5)
    assert np.isnan(graphs[1].context["stress"]).all()
    np.testing.assert_allclose(graphs[1].node["force"], [[0.1, 0.2, 0.3]], rtol=1e-6)
    assert "stress" not in read_structures(tmp_path / "a.xyz")[0].context
    # Stores and lists keep what is not known.
    write_store(tmp_path / "store", graphs)
    again = open_store(tmp_path / "store")[1].context["stress"]
    assert again.shape == (6,) and np.isnan(again).all()


def test_stresses_of_calculators_return(tmp_path):
    atoms = ase.build.bulk("Cu", cubic=True)
    atoms.calc = SinglePointCalculator(atoms, energy=-1.0, stress=np.array(STRESS))
    water = ase.build.molecule("H2O")
    water.calc = SinglePointCalculator(water, energy=-2.0)
    ase.io.write(tmp_path / "a.extxyz", [atoms, water])
    crystal, molecule = read_structures(tmp_path / "a.extxyz", stress=True)
    np.testing.assert_allclose(crystal.context["stress"], STRESS, rtol=1e-6)
    assert np.isnan(molecule.context["stress"]).all()
    np.testing.assert_allclose(to_ase(crystal).get_stress(), STRESS, rtol=1e-6)
    assert list(to_ase(molecule).calc.results) == ["energy"]


def test_errors_of_stresses_and_forces_name_the_frame(tmp_path):
    write(tmp_path, a_xyz=stressed("") + stressed('dft_stress="1 2 3 4"'))
    with pytest.raises(ValueError, match="a.xyz, frame 1: .*6 numbers .*9 or"):
        read_structures(tmp_path / "a.xyz", stress="dft_stress")
    write(tmp_path, a_xyz=stressed('stress="1 2 3 4"'))
    with pytest.raises(ValueError, match="a.xyz to be a file.*stress"):
        read_structures(tmp_path / "a.xyz", stress=True)
    write(tmp_path, a_xyz=stressed(""))
    with pytest.raises(ValueError, match="frame 0: .*key of atoms.arrays.*'forces'"):
        read_structures(tmp_path / "a.xyz", forces="forces")
    write(tmp_path, a_xyz=stressed('my_virial="a b"'))
    with pytest.raises(ValueError, match="frame 0: .*'my_virial' to be a stress or"):
        read_structures(tmp_path / "a.xyz", stress="my_virial")
    flat = stressed(f'virial="{nine(VIRIAL)}"', lattice="")
    write(tmp_path, a_xyz=flat)
    graph = read_structures(tmp_path / "a.xyz", stress=True)[0]
    assert np.isnan(graph.context["stress"]).all()
