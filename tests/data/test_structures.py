import gzip
import pickle
import shutil
import sqlite3

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
import ase.db  # noqa: E402
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


KBAR = 1 / 1602.1766208
"""A kbar in eV per cubic Angstrom; CODATA 2014, as ASE has it."""
VASP_CELL = np.diag([4.0, 4.0, 5.0])
VASP_STEPS = [
    {
        "positions": [[0.0, 0.0, 0.0], [0.5, 0.5, 0.5]],  # shares of the cell
        "forces": [[0.1, 0.2, 0.3], [-0.1, -0.2, -0.3]],
        "kbar": [[10.0, 1.0, 2.0], [1.0, 20.0, 3.0], [2.0, 3.0, 30.0]],
        "free": -6.5,
        "zero": -6.25,
    },
    {
        "positions": [[0.0, 0.0, 0.0], [0.5, 0.5, 0.45]],
        "forces": [[0.4, 0.0, -0.5], [-0.4, 0.0, 0.5]],
        "kbar": [[-8.0, 0.0, 0.0], [0.0, -9.0, 0.5], [0.0, 0.5, -7.0]],
        "free": -6.75,
        "zero": -6.5,
    },
]


def varray(name, rows):
    rows = "".join(f"<v>{' '.join(f'{x:.8f}' for x in row)}</v>\n" for row in rows)
    return f'<varray name="{name}" >\n{rows}</varray>\n'


def structure(positions, name=""):
    basis = varray("basis", VASP_CELL)
    crystal = f'<crystal>\n{basis}<i name="volume">80.0</i>\n</crystal>\n'
    return f"<structure{name}>\n{crystal}{varray('positions', positions)}</structure>\n"


def vasprun(steps=VASP_STEPS):
    """The parts of a `vasprun.xml` that describe ionic steps."""
    text = (
        '<?xml version="1.0" encoding="ISO-8859-1"?>\n<modeling>\n<generator>\n'
        '<i name="program" type="string">vasp </i>\n'
        '<i name="version" type="string">6.3.0  </i>\n</generator>\n'
        '<kpoints>\n<generation param="Gamma">\n'
        '<v type="int" name="divisions">1 1 1 </v>\n</generation>\n'
        + varray("kpointlist", [[0, 0, 0]])
        + '<varray name="weights" >\n<v>1.0</v>\n</varray>\n</kpoints>\n'
        '<parameters>\n<separator name="electronic" >\n'
        '<i name="PSTRESS">0.0</i>\n</separator>\n</parameters>\n'
        "<atominfo>\n<atoms>2</atoms>\n<types>2</types>\n"
        '<array name="atoms" >\n<dimension dim="1">ion</dimension>\n<set>\n'
        "<rc><c>Na</c><c>   1</c></rc>\n<rc><c>Cl</c><c>   2</c></rc>\n"
        "</set>\n</array>\n</atominfo>\n"
        + structure(steps[0]["positions"], ' name="initialpos" ')
    )
    for step in steps:
        energy = (
            f'<energy>\n<i name="e_fr_energy">{step["free"]:.8f}</i>\n'
            f'<i name="e_wo_entrp">{step["free"]:.8f}</i>\n'
            f'<i name="e_0_energy">{step["zero"]:.8f}</i>\n</energy>\n'
        )
        text += (
            f"<calculation>\n<scstep>\n{energy}</scstep>\n"
            + structure(step["positions"])
            + varray("forces", step["forces"])
            + varray("stress", step["kbar"])
            + f"{energy}</calculation>\n"
        )
    return text + "</modeling>\n"


def outcar(steps=VASP_STEPS):
    """The lines of an OUTCAR that describe ionic steps."""
    text = (
        " vasp.6.3.0\n POTCAR:    PAW_PBE Na_pv 19Sep2006\n"
        " POTCAR:    PAW_PBE Cl 06Sep2000\n"
        " POTCAR:    PAW_PBE Na_pv 19Sep2006\n POTCAR:    PAW_PBE Cl 06Sep2000\n"
        "   ISPIN  =      1    spin polarized calculation?\n"
        "   k-points           NKPTS =      1   k-points in BZ     NKDIM =      1   "
        "number of bands    NBANDS=      8\n"
        "   ions per type =               1   1\n"
        " k-points in reciprocal lattice and weights: Gamma\n"
        "   0.00000000  0.00000000  0.00000000       1.000\n"
    )
    for number, step in enumerate(steps, start=1):
        text += f"----- Iteration {number:6d}(   1)  -----\n"
        xx, yy, zz, xy, yz, zx = (
            np.array(step["kbar"])[row, column]
            for row, column in ((0, 0), (1, 1), (2, 2), (0, 1), (1, 2), (2, 0))
        )
        text += (
            f"  in kB {xx:12.5f}{yy:12.5f}{zz:12.5f}{xy:12.5f}{yz:12.5f}{zx:12.5f}\n"
        )
        text += (
            "      direct lattice vectors                 reciprocal lattice vectors\n"
        )
        for row in VASP_CELL:
            text += "".join(f"{x:17.9f}" for x in [*row, 0, 0, 0]) + "\n"
        text += (
            " POSITION                                       TOTAL-FORCE (eV/Angst)\n"
        )
        text += f" {'-' * 83}\n"
        positions = np.array(step["positions"]) @ VASP_CELL
        for row, force in zip(positions, step["forces"], strict=True):
            text += "".join(f"{x:13.5f}" for x in [*row, *force]) + "\n"
        text += (
            "  FREE ENERGIE OF THE ION-ELECTRON SYSTEM (eV)\n"
            "  ---------------------------------------------------\n"
            f"  free  energy   TOTEN  = {step['free']:18.8f} eV\n\n"
            f"  energy  without entropy= {step['free']:18.8f}  "
            f"energy(sigma->0) = {step['zero']:16.8f}\n"
        )
    return text


@pytest.mark.parametrize(
    ("name", "text"), [("vasprun.xml", vasprun), ("OUTCAR", outcar)]
)
def test_steps_of_vasp(tmp_path, name, text):
    (tmp_path / name).write_text(text())
    graphs = read_structures(tmp_path / name, stress=True)
    assert len(graphs) == 2
    for frame, (graph, step) in enumerate(zip(graphs, VASP_STEPS, strict=True)):
        assert graph.info["frame"] == frame and graph.info["file"] == name
        assert graph.node["atomic_number"].tolist() == [11, 17]
        np.testing.assert_allclose(graph.context["cell"], VASP_CELL)
        np.testing.assert_allclose(
            graph.node["position"], np.array(step["positions"]) @ VASP_CELL, rtol=1e-6
        )
        np.testing.assert_allclose(graph.node["force"], step["forces"], rtol=1e-6)
        np.testing.assert_allclose(graph.context["energy"], step["zero"], rtol=1e-6)
        # VASP's stress is positive under pressure, ASE's under tension.
        matrix = -KBAR * np.array(step["kbar"])
        voigt = matrix[[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]]
        np.testing.assert_allclose(graph.context["stress"], voigt, rtol=1e-5)
        atoms = ase.io.read(tmp_path / name, frame)
        np.testing.assert_allclose(graph.context["stress"], atoms.get_stress(), 1e-5)
    # Pressure in the first step, tension in the second.
    assert graphs.context["stress"][0, 0] < 0 < graphs.context["stress"][1, 0]
    free = read_structures(tmp_path / name, label="free_energy")
    np.testing.assert_allclose(free.label, [-6.5, -6.75])
    # A folder has both kinds of files, also compressed.
    with gzip.open(tmp_path / f"{name}.gz", "wt") as file:
        file.write(text())
    assert len(read_structures(tmp_path)) == 4


def test_vasp_runs_that_end_early(tmp_path):
    file = tmp_path / "vasprun.xml"
    text = vasprun(VASP_STEPS + VASP_STEPS)
    file.write_text(text[: text.rindex("<energy>")])
    with pytest.warns(UserWarning, match="vasprun.xml ends early, in frame 3. The 3"):
        assert len(read_structures(file)) == 3
    file.write_text(text[: text.index("<calculation>")])
    with pytest.raises(ValueError, match="vasprun.xml to be XML up to the end of fr"):
        read_structures(file)
    # ASE reads the first step of this one, and says nothing of the others.
    parts = text.split("<calculation>")
    file.write_text("<calculation>".join([*parts[:2], "<oops>" + parts[2], parts[3]]))
    with pytest.raises(ValueError, match="up to the end of frame 1.*mismatched tag: l"):
        read_structures(file)
    file.write_text(text.replace("-0.10000000", "-0.1000x"))
    with pytest.raises(ValueError, match="vasprun.xml.* could not convert string"):
        read_structures(file)
    first, rest = text.split("</calculation>", 1)
    file.write_text(f"{first}</calculation>{rest.replace('0.40000000', '****', 1)}")
    with pytest.raises(ValueError, match=r"vasprun.xml, frame 1, to be.*\*\*\*\*"):
        read_structures(file)
    bomb = '<!DOCTYPE m [<!ENTITY a "b"><!ENTITY c "&a;&a;">]><modeling>'
    file.write_text(text.replace("<modeling>", bomb))
    with pytest.raises(ValueError, match="vasprun.xml to declare no entities"):
        read_structures(file)


def copper(count=3):
    frames = []
    for seed in range(count):
        atoms = ase.build.bulk("Cu", cubic=True)
        atoms.rattle(0.1, seed=seed)
        forces = np.random.default_rng(seed).normal(size=(4, 3))
        atoms.calc = SinglePointCalculator(
            atoms, energy=-1.5 * seed - 1, forces=forces, stress=np.array(STRESS)
        )
        frames.append(atoms)
    return frames


def same(graphs, frames):
    assert len(graphs) == len(frames)
    for graph, atoms in zip(graphs, frames, strict=True):
        np.testing.assert_allclose(graph.node["position"], atoms.positions, rtol=1e-6)
        np.testing.assert_allclose(graph.context["cell"], atoms.cell.array, rtol=1e-6)
        np.testing.assert_allclose(graph.node["force"], atoms.get_forces(), rtol=1e-6)
        np.testing.assert_allclose(graph.context["stress"], STRESS, rtol=1e-6)
        assert graph.context["energy"] == np.float32(atoms.get_potential_energy())


@pytest.mark.parametrize("ending", ["extxyz", "traj", "db", "json"])
def test_trajectories_and_databases_without_pickle(tmp_path, ending, monkeypatch):
    frames = copper()
    ase.io.write(tmp_path / f"run.{ending}", frames)

    def refuse(*_, **__):
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    content = (tmp_path / f"run.{ending}").read_bytes()
    same(read_structures(tmp_path / f"run.{ending}", stress=True), frames)
    assert (tmp_path / f"run.{ending}").read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == [f"run.{ending}"]
    if ending != "json":  # which may hold anything
        same(read_structures(tmp_path, stress=True), frames)


@pytest.mark.parametrize("ending", ["db", "json"])
def test_keys_and_data_of_databases(tmp_path, ending):
    frames = copper(2)
    with ase.db.connect(tmp_path / f"run.{ending}") as database:
        for number, atoms in enumerate(frames):
            data = {"dft_forces": np.full((4, 3), number), "U0": np.array([-7.5])}
            database.write(atoms, {"gap": 1.5 + number, "name": "a"}, data)
    graphs = read_structures(
        tmp_path / f"run.{ending}", label="gap", forces="dft_forces"
    )
    assert graphs.label.tolist() == [1.5, 2.5]
    assert graphs[1].node["force"].tolist() == [[1, 1, 1]] * 4
    assert graphs[0].info["name"] == "a" and graphs[0].info["frame"] == 0
    assert read_structures(tmp_path / f"run.{ending}", label="U0").label[0] == -7.5
    with pytest.raises(ValueError, match=f"run.{ending}, frame 0: .*'no'"):
        read_structures(tmp_path / f"run.{ending}", label="no")


def test_databases_with_labels_in_their_data(tmp_path):
    """As SchNetPack writes them."""
    frames = copper(2)
    with ase.db.connect(tmp_path / "run.db") as database:
        for atoms in frames:
            results, atoms.calc = atoms.calc.results, None
            data = {
                "energy": np.array([results["energy"]]),
                "forces": results["forces"],
                "stress": results["stress"],
            }
            database.write(atoms, data=data)
            atoms.calc = SinglePointCalculator(atoms, **results)
    same(read_structures(tmp_path / "run.db", stress=True), frames)


def test_files_that_would_be_unpickled_are_refused(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (tmp_path / "bang").touch, ()

    pickled = pickle.dumps(Bomb())
    (tmp_path / "a.traj").write_bytes(b"PickleTrajectory" + pickled)
    (tmp_path / "b.db").write_bytes(pickled)
    ase.io.write(tmp_path / "good.traj", copper(1))
    ase.io.write(tmp_path / "good.db", copper(1))
    # An array of objects in place of one of numbers.
    content = (tmp_path / "good.traj").read_bytes()
    assert b'"float64"' in content
    (tmp_path / "c.traj").write_bytes(content.replace(b'"float64"', b'"object" '))
    shutil.copy(tmp_path / "good.db", tmp_path / "d.db")
    with sqlite3.connect(tmp_path / "d.db") as database:
        database.execute("UPDATE systems SET data = ?", (pickled,))
    database.close()
    for name in ("a.traj", "b.db", "c.traj", "d.db"):
        with pytest.raises(ValueError, match=f"Expected .*{name} to be a"):
            read_structures(tmp_path / name)
    assert not (tmp_path / "bang").exists()


def test_broken_frames_in_the_middle(tmp_path):
    frame = stressed("")
    for text, message in (
        (frame + frame.replace("0.2", "0.x2") + frame, "frame 1, to be a struc.*0.x2"),
        (frame + frame.replace("1\n", "2\n", 1) + frame, "frame 2.*that frame 1 has"),
        (frame + frame.replace("1\n", "x\n", 1), "line 4, at the start of frame 1"),
        (frame + frame + "\n" + frame, "no empty lines .*line 8, after frame 1"),
        (frame + frame[:60], "the 1 atoms that it declares in frame 1"),
        (frame + frame.replace("Cu", "Xq"), "frame 1, to be a structure.*Xq"),
        (frame + frame.replace(" 0 0 0 ", " 0 nan 0 "), "frame 1: .*position.*nan"),
    ):
        write(tmp_path, a_xyz=text)
        with pytest.raises(ValueError, match=f"(?s)a.xyz.*{message}"):
            read_structures(tmp_path / "a.xyz")
    write(tmp_path, a_xyz=frame + frame + "\n\n")
    assert len(read_structures(tmp_path / "a.xyz")) == 2
    ase.io.write(tmp_path / "run.db", copper())
    with sqlite3.connect(tmp_path / "run.db") as database:
        database.execute("UPDATE systems SET positions = x'00' WHERE id = 2")
    database.close()
    with pytest.raises(ValueError, match="run.db, frame 1, to be a structure"):
        read_structures(tmp_path / "run.db")


def test_empty_and_unknown_files(tmp_path):
    for name in ("a.xyz", "a.db", "a.json", "a.traj", "a.cif", "OUTCAR", "vasprun.xml"):
        (tmp_path / name).touch()
        with pytest.raises(ValueError, match=f"{name} to be.*an empty file"):
            read_structures(tmp_path / name)
        assert (tmp_path / name).stat().st_size == 0
    with ase.db.connect(tmp_path / "b.db") as database:
        database.count()
    with sqlite3.connect(tmp_path / "c.db") as other:
        other.execute("CREATE TABLE thumbs (a)")
    other.close()
    before = (tmp_path / "c.db").read_bytes()
    write(tmp_path, a_json='{"a": 1}', a_dat="# nothing\n")
    bomb = '{"1": {"numbers": {"__ndarray__": [[99999999999], "int64", [0]]}}}'
    write(tmp_path, b_json=bomb)
    for name, message in (
        ("b.db", "at least one structure. Received: none"),
        ("c.db", "a database of ASE.*no such table: systems"),
        ("a.json", "a file of structures"),
        ("b.json", "at most .* bytes"),
        ("a.dat", "a file of structures that ASE can read.*pass format="),
    ):
        with pytest.raises(ValueError, match=f"(?s){name}.* {message}"):
            read_structures(tmp_path / name)
    assert (tmp_path / "c.db").read_bytes() == before
    with gzip.open(tmp_path / "d.db.gz", "wb") as file:
        file.write(before)
    with pytest.raises(ValueError, match="d.db.gz to be a database, not compressed"):
        read_structures(tmp_path / "d.db.gz")


def test_neighbour_search_names_file_and_frame(tmp_path):
    from keras_bandgnn.preprocessing import RadiusGraph

    frame = stressed('pbc="T T T"')
    write(tmp_path, a_xyz=frame + frame.replace("0 0 0 4", "0 0 0 0") + frame)
    graphs = read_structures(tmp_path / "a.xyz")
    with pytest.raises(ValueError, match=r"graph 1 \(a.xyz, frame 1\). Set context"):
        RadiusGraph(3.0)(graphs)
    # Stores keep the names.
    write_store(tmp_path / "store", graphs)
    with pytest.raises(ValueError, match=r"graph 1 \(a.xyz, frame 1\). Set context"):
        list(RadiusGraph(3.0)(open_store(tmp_path / "store")))


def test_progress_counts_bytes(tmp_path, monkeypatch):
    import contextlib

    from keras_bandgnn.data.converters import structures

    amounts = []

    @contextlib.contextmanager
    def bar(title, total, shown):
        amounts.append((total, steps := []))
        yield steps.append

    monkeypatch.setattr(structures, "progress_bar", bar)
    ase.io.write(tmp_path / "a.db", copper(3))
    ase.io.write(tmp_path / "b.extxyz", copper(5))
    ase.io.write(tmp_path / "c.cif", copper(1))
    (tmp_path / "vasprun.xml").write_text(vasprun())
    for name in ("a.db", "b.extxyz", "c.cif", "vasprun.xml"):
        read_structures(tmp_path / name)
    for (total, steps), count in zip(amounts, (3, 5, 1, 2), strict=True):
        assert len(steps) == count + 1
        assert sum(steps) == pytest.approx(total)


def test_frames_with_and_without_results_go_together_unlabelled(tmp_path):
    atoms = ase.build.molecule("H2O")
    atoms.info["energy"] = -1.0
    other = ase.build.bulk("Cu")
    ase.io.write(tmp_path / "a.xyz", [atoms, other], format="extxyz")
    graphs = read_structures(tmp_path / "a.xyz", unlabelled=True)
    assert set(graphs.node) == {"atomic_number", "position"}
    assert set(graphs.context) == {"cell", "pbc"} and graphs.label is None
    with pytest.raises(ValueError, match="unlabelled"):
        read_structures(tmp_path / "a.xyz", "energy", unlabelled=True)


def test_positions_that_are_not_finite_are_named(tmp_path):
    text = EXTXYZ.replace("Na 0.0 0.0 0.5", "Na nan 0.0 0.5")
    (tmp_path / "a.extxyz").write_text(text)
    with pytest.raises(ValueError, match="frame 0: Expected finite positions"):
        read_structures(tmp_path / "a.extxyz", "energy")


def test_a_key_of_stresses_that_no_frame_has(tmp_path):
    (tmp_path / "a.extxyz").write_text(EXTXYZ)
    with pytest.raises(ValueError, match="with the stress 'foo' .* are .*gap"):
        read_structures(tmp_path / "a.extxyz", "energy", stress="foo")
