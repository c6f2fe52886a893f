"""Structures are read as what the file says, or refused by name, in every format."""

import bz2
import gzip
import re
import sqlite3
import struct

import numpy as np
import pytest
from test_structures import outcar, vasprun

from keras_bandgnn.data import from_ase, read_structures
from keras_bandgnn.data.converters import structure_checks
from keras_bandgnn.data.converters.structure_formats import READERS
from keras_bandgnn.data.datasets import aflow, qm9
from keras_bandgnn.preprocessing import AtomsEncoder, RadiusGraph

pytest.importorskip("ase.build")
import ase.db  # noqa: E402
import ase.io  # noqa: E402
from ase.calculators.calculator import all_properties  # noqa: E402
from ase.calculators.singlepoint import SinglePointCalculator  # noqa: E402


def salt(count=2, symbols="NaCl"):
    """Cells that differ in the place of one atom; a CIF sorts no atoms."""
    places = [[[0, 0, 0.5], [2, 2.12 + 0.25 * k, 0]] for k in range(count)]
    return [ase.Atoms(symbols, place, cell=[4, 4, 5], pbc=True) for place in places]


def written(name, **options):
    def content(folder, frames):
        ase.io.write(folder / name, frames, **options)
        return (folder / name).read_bytes()

    return content


def one_by_one(name, **options):
    """Files of one frame each, one after the other."""

    def content(folder, frames):
        parts = [written(name, **options)(folder, [frame]) for frame in frames]
        return b"".join(parts)

    return content


def dump(folder, frames):
    text = ""
    for step, atoms in enumerate(frames):
        text += f"ITEM: TIMESTEP\n{step}\nITEM: NUMBER OF ATOMS\n{len(atoms)}\n"
        text += "ITEM: BOX BOUNDS pp pp pp\n0 4\n0 4\n0 5\nITEM: ATOMS id type x y z\n"
        for k, (x, y, z) in enumerate(atoms.positions, start=1):
            text += f"{k} {k} {x} {y} {z}\n"
    return text.encode()


def binary_dump(folder, frames):
    data = b""
    for step, atoms in enumerate(frames):
        data += struct.pack("=qqi6i6dii", step, len(atoms), 0, *[0] * 6,
                            *[0, 4, 0, 4, 0, 5], 11, 1)  # fmt: skip
        rows = [(k, k, *p, *[0] * 6) for k, p in enumerate(atoms.positions, start=1)]
        data += struct.pack("=i", 11 * len(rows)) + np.array(rows, float).tobytes()
    return data


def data_file(folder, frames):
    """A data file of LAMMPS, with types alone."""
    text = "types\n\n2 atoms\n2 atom types\n0 4 xlo xhi\n0 4 ylo yhi\n0 5 zlo zhi\n"
    rows = enumerate(frames[0].positions, start=1)
    text += "\nAtoms # atomic\n\n"
    return (text + "".join(f"{k} {k} {x} {y} {z}\n" for k, (x, y, z) in rows)).encode()


def g96(folder, frames):
    text = ""
    for atoms in frames:
        rows = zip(atoms.symbols, atoms.positions / 10, strict=True)
        text += "TITLE\nsalt\nEND\nPOSITION\n"
        for k, (symbol, (x, y, z)) in enumerate(rows, start=1):
            text += (
                f"{1:5d} {'SAL':<5s} {symbol:<5s} {k:6d}{x:15.9f}{y:15.9f}{z:15.9f}\n"
            )
        text += (
            "END\nBOX\n" + "".join(f"{v:15.9f}" for v in (0.4, 0.4, 0.5)) + "\nEND\n"
        )
    return text.encode()


def vasp(text):
    """As VASP writes it, for which ASE has no writer."""
    return lambda folder, frames: text().encode()


TYPES = {"elements": ["Na", "Cl"]}
POSCAR = written("POSCAR", format="vasp")
SAMPLES = {
    # name of the file, its content of some frames, options, number of frames
    ".cif": ("a.cif", written("w.cif"), {}, 2),
    ".db": ("a.db", written("w.db"), {}, 2),
    ".extxyz": ("a.extxyz", written("w.extxyz"), {}, 2),
    ".lammpstrj": ("a.lammpstrj", dump, TYPES, 2),
    ".mol": ("a.mol", written("w.mol"), {}, 1),
    ".json": ("a.json", written("w.json"), {}, 2),
    ".pdb": ("a.pdb", written("w.pdb"), {}, 2),
    ".poscar": ("a.poscar", POSCAR, {"format": "vasp"}, 1),
    ".sdf": ("a.sdf", one_by_one("w.sdf"), {}, 2),
    ".traj": ("a.traj", written("w.traj"), {}, 2),
    ".vasp": ("a.vasp", POSCAR, {}, 1),
    ".xyz": ("a.xyz", written("w.xyz", format="xyz"), {}, 2),
    "poscar": ("POSCAR", POSCAR, {}, 1),
    "contcar": ("CONTCAR", POSCAR, {}, 1),
    "outcar": ("OUTCAR", vasp(outcar), {}, None),
    "vasprun": ("vasprun.xml", vasp(vasprun), {}, None),
    "xdatcar": ("XDATCAR", written("XDATCAR", format="vasp-xdatcar"), {}, 2),
    "cif": ("a", written("w.cif"), {"format": "cif"}, 2),
    "gromacs": ("a.gro", written("w.gro"), {}, 1),
    "gromos": ("a.g96", g96, {}, 1),
    "lammps-data": ("a", data_file, {"format": "lammps-data", **TYPES}, 1),
    "lammps-dump-binary": (
        "a.bin",
        binary_dump,
        {"format": "lammps-dump-binary", **TYPES},
        2,
    ),
    "lammps-dump-text": ("a.lammpstrj", dump, TYPES, 2),
    "mol": ("a.mol", written("w.mol"), {}, 1),
    "proteindatabank": ("a", written("w.pdb"), {"format": "proteindatabank"}, 2),
    "sdf": ("a", one_by_one("w.sdf"), {"format": "sdf"}, 2),
}
"""A file of each ending and beginning that folders are searched for, and of each format
with a reader of its own."""


def test_every_format_has_a_sample():
    names = {*structure_checks.ENDINGS, *structure_checks.BEGINNINGS, ".json", *READERS}
    assert names == set(SAMPLES), "Add a sample of the format to SAMPLES."


@pytest.mark.parametrize("key", SAMPLES)
@pytest.mark.parametrize("packed", [None, ".gz", ".bz2"])
def test_every_frame_is_read_with_its_elements(key, packed, tmp_path):
    name, content, options, frames = SAMPLES[key]
    (tmp_path / "other").mkdir()
    data = content(tmp_path / "other", salt(frames or 2))
    if packed:
        if key in (".db", ".json", ".traj", "lammps-dump-binary"):
            pytest.skip("not compressed")
        name += packed
        data = {".gz": gzip.compress, ".bz2": bz2.compress}[packed](data)
    (tmp_path / name).write_bytes(data)
    graphs = read_structures(tmp_path / name, **options)
    assert len(graphs) == (frames or 2)
    assert [graph.info["frame"] for graph in graphs] == list(range(len(graphs)))
    for graph, atoms in zip(graphs, salt(frames or 0), strict=bool(frames)):
        assert graph.node["atomic_number"].tolist() == [11, 17]
        np.testing.assert_allclose(graph.node["position"], atoms.positions, atol=1e-3)
    if not frames:  # the steps of `vasprun` and `outcar`
        assert graphs.node["atomic_number"].tolist() == [11, 17] * 2


@pytest.mark.parametrize("key", SAMPLES)
def test_several_frames_are_read_or_refused(key, tmp_path):
    """No frame is left out in silence."""
    name, content, options, frames = SAMPLES[key]
    (tmp_path / "other").mkdir()
    if key in ("gromacs", "gromos"):
        data = (
            one_by_one("w.gro")(tmp_path / "other", salt())
            if key == "gromacs"
            else (content(tmp_path / "other", salt()))
        )
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=f"{name} to have one frame.* several"):
            read_structures(tmp_path / name, **options)
    elif frames == 2:
        (tmp_path / name).write_bytes(content(tmp_path / "other", salt(5)))
        assert len(read_structures(tmp_path / name, **options)) == 5


@pytest.mark.parametrize("key", SAMPLES)
def test_atoms_without_an_element_are_refused(key, tmp_path):
    name, content, options, _ = SAMPLES[key]
    (tmp_path / "other").mkdir()
    data = content(tmp_path / "other", salt(1))
    if key in (".db", ".json", ".traj"):
        data = content(tmp_path / "other", salt(1, ["Na", "X"]))
    elif "elements" in options:
        options = {**options, "elements": ["Na", "X"]}
    else:
        assert b"Cl" in data or b"CL" in data
        data = data.replace(b"Cl", b"X ").replace(b"CL", b" X")
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match="Expected"):
        read_structures(tmp_path / name, **options)


@pytest.mark.parametrize("number", [-5, 0, 119, 500])
def test_numbers_that_are_no_elements_are_refused(number, tmp_path):
    atoms = salt(1)[0]
    atoms.set_atomic_numbers([11, number])
    message = f"atomic numbers from 1 to 118. Received: {number}.* for atom 1"
    ase.io.write(tmp_path / "a.traj", atoms)
    for ending in ("db", "json"):  # ASE does not write all of them there
        ase.io.write(tmp_path / f"a.{ending}", salt(1))
    text = (tmp_path / "a.json").read_text()
    text = re.sub(r"\[11,\s*17\]", f"[11, {number}]", text)
    assert f"[11, {number}]" in text
    (tmp_path / "a.json").write_text(text)
    with sqlite3.connect(tmp_path / "a.db") as database:
        blob = np.array([11, number], np.int32).tobytes()
        database.execute("UPDATE systems SET numbers = ?", (blob,))
    database.close()
    for ending in ("db", "json", "traj"):
        with pytest.raises(ValueError, match=f"a.{ending}, frame 0: .*{message}"):
            read_structures(tmp_path / f"a.{ending}")
    numbers, none = np.array([11, number]), np.zeros(0, np.int32)
    ends = {"num_edges": none, "senders": none, "receivers": none, "edge_type": none}
    for call in (
        lambda: from_ase(atoms),
        lambda: AtomsEncoder()(atoms),
        lambda: aflow.structures(
            [2], numbers, np.zeros((2, 3)), np.zeros((1, 3, 3)), np.zeros(1)
        ),
        lambda: qm9.with_atomisation({}, numbers, np.array([0, 2])),
        lambda: qm9.molecules(
            [2], ends, "bonds", {"atomic_number": numbers}, none, none, none
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()


# SDF


def record(symbol, title="", items=""):
    counts = "  1  0  0  0  0  0  0  0  0  0999 V2000"
    atom = f"    1.0000   -2.5000    0.2500 {symbol:3s} 0  0"
    return f"{title}\n  x\n\n{counts}\n{atom}\nM  END\n{items}$$$$\n"


V3000 = """water
  x

  0  0  0     0  0            999 V3000
M  V30 BEGIN CTAB
M  V30 COUNTS 3 2 0 0 0
M  V30 BEGIN ATOM
M  V30 1 O 0 0 0.12 0
M  V30 2 H 0 0.76 -
M  V30 -0.48 0
M  V30 3 D 0 -0.76 -0.48 0 MASS=2
M  V30 END ATOM
M  V30 BEGIN BOND
M  V30 1 1 1 2
M  V30 2 1 1 3
M  V30 END BOND
M  V30 END CTAB
M  END
"""


def test_all_molecules_of_an_sdf(tmp_path):
    text = "".join(
        record("NOC"[k % 3], f"m{k}", f">  <gap>  (1)\n{k / 4}\n\n> <id>\n00{k}\n\n")
        for k in range(1025)
    )
    (tmp_path / "many.sdf").write_text(text)
    graphs = read_structures(tmp_path / "many.sdf", label="gap")
    assert len(graphs) == 1025
    assert graphs.label.tolist() == [k / 4 for k in range(1025)]
    assert graphs.node["atomic_number"][:4].tolist() == [7, 8, 6, 7]
    assert graphs[1024].node["position"].tolist() == [[1, -2.5, 0.25]]
    info = {"name": "m7", "id": "007", "file": "many.sdf", "frame": 7}
    assert graphs[7].info == info
    # Windows' ends of lines, no last separator, V3000 among V2000.
    text = (record("N") + V3000 + "$$$$\n" + record("C")).replace("\n", "\r\n")
    (tmp_path / "a.sdf").write_bytes(text.removesuffix("$$$$\r\n").encode())
    graphs = read_structures(tmp_path / "a.sdf")
    assert graphs.node["atomic_number"].tolist() == [7, 8, 1, 1, 6]
    np.testing.assert_allclose(graphs[1].node["position"][1], [0, 0.76, -0.48])
    (tmp_path / "a.mol").write_text(V3000)
    assert read_structures(tmp_path / "a.mol")[0].info["name"] == "water"


def test_columns_of_an_sdf_may_touch(tmp_path):
    text = record("N").replace("    1.0000   -2.5000", " 1234.0000-1234.5000")
    (tmp_path / "a.sdf").write_text(text)
    place = read_structures(tmp_path / "a.sdf")[0].node["position"]
    assert place.tolist() == [[1234, -1234.5, 0.25]]


@pytest.mark.parametrize(
    "text, message",
    [
        (record("N") + record("R#"), "frame 1: .*element for atom 0.*'R#'"),
        (record("N").replace("  1  0", "  3  0"), "the 3 atoms that"),
        (V3000.replace("COUNTS 3", "COUNTS 4"), "the 4 atoms that"),
        ("nonsense\n", "fourth line"),
        (record("N", items="> <gap>\n1,5\n\n"), "'gap' to be one number.*'1,5'"),
    ],
)
def test_errors_of_sdf(text, message, tmp_path):
    (tmp_path / "a.sdf").write_text(text)
    with pytest.raises(ValueError, match=f"(?s)a.sdf.*{message}"):
        read_structures(tmp_path / "a.sdf", label="gap" if "gap" in text else None)


# LAMMPS


def test_types_of_lammps_need_elements(tmp_path):
    file = tmp_path / "run.lammpstrj"
    file.write_bytes(dump(None, salt()))
    with pytest.raises(ValueError, match=r"run.lammpstrj to name .*elements=\['Al'"):
        read_structures(file)
    graphs = read_structures(file, elements=["Al", "Ni"])
    assert graphs.node["atomic_number"].tolist() == [13, 28] * 2
    for elements in (["Al"], ["Al", "Xq"], [], "AlNi", ["Al", "X"]):
        with pytest.raises(ValueError, match="elements"):
            read_structures(file, elements=elements)
    data = tmp_path / "a.data"
    data.write_bytes(data_file(None, salt()))
    with pytest.raises(ValueError, match="a.data to name the elements"):
        read_structures(data, format="lammps-data")
    masses = "\nMasses\n\n1 26.98\n2 58.69\n\nAtoms"
    data.write_bytes(data.read_bytes().replace(b"\nAtoms", masses.encode()))
    graphs = read_structures(data, format="lammps-data")
    assert graphs.node["atomic_number"].tolist() == [13, 28]
    for elements in (["Al", "Ni"], ["Al", "Ni", "Cu"]):
        graphs = read_structures(data, format="lammps-data", elements=elements)
        assert graphs.node["atomic_number"].tolist() == [13, 28]
    with pytest.raises(ValueError, match="a.data to have Na as type 1.*Received: Al"):
        read_structures(data, format="lammps-data", elements=["Na", "Ni"])
    assert read_structures(data).node["atomic_number"].tolist() == [13, 28]
    units = data.read_text().replace("26.98", "0.1").replace("58.69", "1.0")
    data.write_text(units)  # of Lennard-Jones
    with pytest.raises(ValueError, match="a.data to name the elements.*elements="):
        read_structures(data, format="lammps-data")
    graphs = read_structures(data, format="lammps-data", elements=["Na", "Cl"])
    assert graphs.node["atomic_number"].tolist() == [11, 17]


@pytest.mark.parametrize("column", ["element", "mass"])
def test_elements_of_a_dump_agree(column, tmp_path):
    first, second = {"element": ("Cu", "Zn"), "mass": (63.546, 65.38)}[column]
    text = dump(None, salt(1)).decode().replace("id type x", f"id type {column} x")
    text = text.replace("\n1 1 ", f"\n1 1 {first} ").replace(
        "\n2 2 ", f"\n2 2 {second} "
    )
    file = tmp_path / "a.lammpstrj"
    file.write_text(text)
    for elements in (None, ["Cu", "Zn"]):
        graph = read_structures(file, elements=elements)[0]
        assert graph.node["atomic_number"].tolist() == [29, 30]
    with pytest.raises(ValueError, match="to have Cu as type 2.*Received: Zn"):
        read_structures(file, elements=["Cu", "Cu"])


def test_folders_have_files_of_every_ending(tmp_path):
    (tmp_path / "a").mkdir()
    files = {key: value for key, value in SAMPLES.items() if key.startswith(".")}
    del files[".json"]  # seldom of structures
    count = 0
    for key, (_, content, _, frames) in files.items():
        (tmp_path / "a" / f"a{key}").write_bytes(content(tmp_path, salt(frames)))
        count += frames
    graphs = read_structures(tmp_path / "a", unlabelled=True, **TYPES)
    assert len(graphs) == count
    assert {graph.info["file"] for graph in graphs} == {f"a{key}" for key in files}
    assert graphs.node["atomic_number"].tolist() == [11, 17] * count


def test_hidden_files_and_backups_are_ignored(tmp_path):
    names = ["POSCAR~", "._a.xyz", "OUTCAR.old", "CONTCAR.bak", "vasprun.xml.swp"]
    for folder in (tmp_path, tmp_path / ".checkpoints"):
        folder.mkdir(exist_ok=True)
        ase.io.write(folder / "a.xyz", salt(1), format="xyz")
    for name in names:
        (tmp_path / name).write_text("junk\0")
        with pytest.warns(UserWarning, match=f"ignored: .*{re.escape(name)}"):
            assert len(read_structures(tmp_path)) == 1
        (tmp_path / name).unlink()


@pytest.mark.parametrize("cell", [None, [4, 4, 0], [[4, 0, 0], [4, 0, 0], [0, 0, 4]]])
def test_periodic_atoms_without_a_cell_have_no_edges(cell):
    atoms = ase.Atoms("OH", [[0, 0, 0], [0, 0, 1]], cell=cell, pbc=True)
    with pytest.raises(ValueError, match="independent lattice vectors"):
        from_ase(atoms, cutoff=2.0)
    with pytest.raises(ValueError, match="independent lattice vectors"):
        RadiusGraph(2.0)(from_ase(atoms))
    atoms = ase.Atoms("OH", [[0, 0, 0], [0, 0, 1]], cell=[4, 4, 0], pbc=[1, 1, 0])
    assert from_ase(atoms, cutoff=2.0).num_edges == 2


def test_files_of_lammps_that_are_cut_off(tmp_path):
    options = {"progress": False, "elements": ["Na", "Cl"]}
    file = tmp_path / "a.lammpstrj"
    for data in (
        dump(None, salt()).replace(b"ATOMS\n2\n", b"ATOMS\n99999999999\n"),
        dump(None, salt())[:-30],
    ):
        file.write_bytes(data)
        with pytest.raises(ValueError, match="a.lammpstrj to have the .* declares"):
            read_structures(file, **options)
    data = data_file(None, salt()).replace(b"2 atoms\n", b"99999999999 atoms\n")
    (tmp_path / "a.data").write_bytes(data)
    with pytest.raises(ValueError, match="a.data to have the 99,999,999,999 atoms"):
        read_structures(tmp_path / "a.data", format="lammps-data", **options)


def test_elements_and_forces_of_a_dump(tmp_path):
    text = dump(None, salt(1)).decode()
    text = text.replace("id type x", "id element x")
    text = text.replace("\n1 1 ", "\n1 Cu ").replace("\n2 2 ", "\n2 O ")
    (tmp_path / "a.lammpstrj").write_text(text)
    graph = read_structures(tmp_path / "a.lammpstrj")[0]
    assert graph.node["atomic_number"].tolist() == [29, 8]
    text = dump(None, salt(1)).decode().replace("x y z", "x y z fx fy fz")
    text = text.replace("0.0 0.0 0.5", "0.0 0.0 0.5 1 2 3")
    text = text.replace("2.0 2.12 0.0", "2.0 2.12 0.0 4 5 6")
    (tmp_path / "a.lammpstrj").write_text(text)
    graph = read_structures(tmp_path / "a.lammpstrj", elements=["Na", "Cl"])[0]
    assert graph.node["force"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert "energy" not in graph.context  # ASE has 0


# CIF


def cif(rows, columns="label type_symbol fract_x fract_y fract_z occupancy", cell=True):
    lengths = "".join(f"_cell_length_{axis} 4.0(2)\n" for axis in "abc")
    angles = "".join(f"_cell_angle_{a} 90\n" for a in ("alpha", "beta", "gamma"))
    names = "".join(f"_atom_site_{name}\n" for name in columns.split())
    group = "_space_group_name_H-M_alt 'P 1'\n"
    return f"data_a\n{lengths}{angles}{group}loop_\n{names}" + "\n".join(rows) + "\n"


@pytest.mark.parametrize(
    "rows, sites, elements",
    [
        # the elements, with the highest shares
        (["Na1 Na 0 0 0 0.6", "K1 K 0 0 0 0.4"], "Na1 .0.6 Na, 0.4 K", [11]),
        (["Na1 Na 0 0 0 0.4", "K1 K 0 0 0 0.6"], "Na1 .0.4 Na, 0.6 K", [19]),
        (["Na1 Na 0 0 0 0.4", "K1 K 1 0 0 0.6"], "Na1 .0.4 Na, 0.6 K", [19]),
        (["M1 '0.65Mn + 0.35Fe' 0 0 0 1"], "M1 .0.65 Mn, 0.35 Fe", [25]),
        (["M1 Mn0.35Fe0.65 0 0 0 1"], "M1 .0.35 Mn, 0.65 Fe", [26]),
        (["M1 0.5Fe3+/0.5Co2+ 0 0 0 1"], "M1 .0.5 Fe, 0.5 Co", [26]),
        # isotopes
        (["D1 D 0 0 0 0.6", "H1 H 0 0 0 0.3"], "D1 .0.9 H.", [1]),
        (["D1 D 0 0 0 0.9", "Cl1 Cl .5 .5 .5 1"], "D1 .0.9 H.", [1, 17]),
        (["D1 D 0 0 0 1", "Cl1 Cl .5 .5 .5 .9"], "Cl1 .0.9 Cl.", [1, 17]),
        # vacancies
        (["Na1 Na 0 0 0 1", "Cl1 Cl .5 .5 .5 0.5"], "Cl1 .0.5 Cl.", [11, 17]),
        (["Na1 Na 0 0 0 1", "Cl1 Cl .5 .5 .5 0.3(2)"], "Cl1 .0.3 Cl.", [11]),
        (["M1 '0.65Mn + 0.35Fe' 0 0 0 0.9"], "M1 .0.585 Mn, 0.315 Fe", [25]),
    ],
)
def test_shared_sites_of_a_cif(rows, sites, elements, tmp_path):
    (tmp_path / "a.cif").write_text(cif(rows))
    with pytest.raises(ValueError, match=f"a.cif, frame 0: .*{sites}.*occupancy='hi"):
        read_structures(tmp_path / "a.cif")
    graph = read_structures(tmp_path / "a.cif", occupancy="highest")[0]
    assert graph.node["atomic_number"].tolist() == elements
    if "H1" in rows[-1]:  # ASE reads the share of H alone
        return
    if "+" not in rows[0] and "Mn" not in rows[0] and " 1 0 0" not in rows[1]:
        atoms = ase.io.read(tmp_path / "a.cif")
        with pytest.raises(ValueError, match="one element, always.*occupancy='highest"):
            from_ase(atoms)
        again = from_ase(atoms, occupancy="highest")
        assert again.node["atomic_number"].tolist() == elements


@pytest.mark.parametrize(
    "rows, columns, elements",
    [
        (["Na1 Na 0 0 0 1", "Cl1 Cl .5 .5 .5 1.0"], None, [11, 17]),
        (["Na1 Na 0 0 0 .", "Cl1 Cl .5 .5 .5 ?"], None, [11, 17]),
        # one element in two states
        (["Fe1 Fe2+ 0 0 0 0.5", "Fe2 Fe3+ 0 0 0 0.5"], None, [26]),
        (["D1 D 0 0 0 0.6", "H1 H 0 0 0 0.4"], None, [1]),
        (["Na1 NA1+ 0 0 0 1", "Cl1 CL1- .5 .5 .5 1"], None, [11, 17]),
        (["D1 0 0 0", "Cl1 .5 .5 .5"], "label fract_x fract_y fract_z", [1, 17]),
        (["OW1 0 0 0", "H1A .5 .5 .5"], "label fract_x fract_y fract_z", [8, 1]),
    ],
)
def test_ordered_sites_of_a_cif(rows, columns, elements, tmp_path):
    text = cif(rows) if columns is None else cif(rows, columns)
    (tmp_path / "a.cif").write_text(text)
    graph = read_structures(tmp_path / "a.cif")[0]
    assert graph.node["atomic_number"].tolist() == elements
    np.testing.assert_array_equal(graph.context["cell"], np.eye(3) * 4)


@pytest.mark.parametrize(
    "rows, message",
    [
        (["O1 O ? ? ? 1"], r"coordinates of the site O1. Received: '\?'"),
        (["W1 Wat 0 0 0 1"], "element of the site W1. Received: 'Wat'"),
        (["O1 ? 0 0 0 1"], r"element of the site O1. Received: '\?'"),
        (["M1 Mn,Fe 0 0 0 1"], "one element in the site M1.*'Mn,Fe'"),
        (["O1 O 0 0 0 -0.5"], "occupancy of the site O1 from 0 to 1"),
    ],
)
def test_sites_that_are_not_known(rows, message, tmp_path):
    rows = ["Na1 Na .25 0 0 1", *rows]
    (tmp_path / "a.cif").write_text(cif(rows))
    for occupancy in ("raise", "highest"):
        with pytest.raises(ValueError, match=f"a.cif, frame 0: .*{message}"):
            read_structures(tmp_path / "a.cif", occupancy=occupancy)
    (tmp_path / "a.cif").write_text(cif(["CL1 0 0 0"], "label fract_x fract_y fract_z"))
    with pytest.raises(ValueError, match="site CL1 to tell .* Cl or C"):
        read_structures(tmp_path / "a.cif")
    with pytest.raises(ValueError, match="`occupancy`.*'half'"):
        read_structures(tmp_path / "a.cif", occupancy="half")


def shared(shares, kinds=(0, 1)):
    """Salt whose sites have shares of elements, as ASE's reader of CIF says it."""
    atoms = salt(1)[0]
    atoms.info["occupancy"] = shares
    if kinds:
        atoms.set_array("spacegroup_kinds", np.array(kinds))
    results = {"energy": -1.0, "free_energy": -2.0, "stress": np.arange(6.0)}
    atoms.calc = SinglePointCalculator(atoms, forces=np.arange(6.0).reshape(2, 3))
    atoms.calc.results |= results
    return atoms


@pytest.mark.parametrize("key", [str, int, np.int64])
@pytest.mark.parametrize(
    "first, elements",
    [
        ({"Na": 0.6, "K": 0.4}, [11, 17]),
        ({"D": 0.4, "K": 0.6}, [19, 17]),
        ({"D": 0.3, "K": 0.4, "H": 0.3}, [1, 17]),
        ({"D": 0.9}, [1, 17]),
        ({"T": 0.3}, [17]),
    ],
)
def test_shared_sites_of_atoms(key, first, elements, tmp_path):
    """However the keys are written, for all that reads `Atoms`, with results."""
    atoms = shared({key(0): first, key(1): {"Cl": 1.0}})
    ase.io.write(tmp_path / "a.traj", shared({0: first, 1: {"Cl": 1.0}}))
    options = {"stress": True}
    readers = (
        lambda **k: from_ase(atoms, **options, **k),
        lambda **k: read_structures(tmp_path / "a.traj", **options, **k)[0],
        lambda **k: AtomsEncoder(forces=True, **options, **k)(atoms),
    )
    for read in readers:
        with pytest.raises(ValueError, match="one element, always"):
            read()
        graph = read(occupancy="highest")
        assert graph.node["atomic_number"].tolist() == elements
        assert graph.node["force"].tolist() == [[0, 1, 2], [3, 4, 5]][-len(elements) :]
        np.testing.assert_allclose(graph.context["stress"], np.arange(6))
    for label, value in {"energy": -1, "free_energy": -2}.items():
        graph = from_ase(atoms, label=label, occupancy="highest")
        assert graph.label == value
        assert label == "energy" or graph.context["energy"] == -1
    encoder = AtomsEncoder(occupancy="highest")
    again = AtomsEncoder.from_config(encoder.get_config())
    assert again(atoms).node["atomic_number"].tolist() == elements
    assert "occupancy" not in AtomsEncoder().get_config()
    other = shared({key(0): {"Rb": 0.9}, key(1): {"Cl": 1.0}})
    assert encoder.content(atoms) != encoder.content(other)


def test_shared_sites_of_more_atoms():
    atoms = shared({"0": {"Na": 0.6, "K": 0.4}, "1": {}, "2": {"Cl": 1}}, kinds=None)
    with pytest.raises(ValueError, match="'spacegroup_kinds'"):
        from_ase(atoms, occupancy="highest")


# PDB


def atom(name, x, location=" ", share=1.0, residue=1, element="", chain="A"):
    return (
        f"ATOM      1 {name:4s}{location}ALA {chain}{residue:4d}    "
        f"{x:8.3f}{0:8.3f}{0:8.3f}{share:6.2f}{0:6.2f}          {element:>2s}\n"
    )


CELL = "CRYST1   10.000   10.000   10.000  90.00  90.00  90.00 P 1\n"


def test_alternative_locations(tmp_path):
    text = CELL + "".join(
        [
            atom(" N  ", 0),
            atom(" CA ", 1, "A", 0.3),
            atom(" CA ", 2, "B", 0.7),
            atom(" CB ", 3, "A", 0.3),
            atom(" CB ", 4, "B", 0.7),
            atom(" CA ", 5, "A", 0.5, residue=2),
            atom(" CA ", 6, "B", 0.5, residue=2),
            atom(" CA ", 7, "B", 0.4, residue=1, chain="B"),
        ]
    )
    (tmp_path / "a.pdb").write_text(text + "END\n")
    graph = read_structures(tmp_path / "a.pdb")[0]
    assert graph.node["position"][:, 0].tolist() == [0, 2, 4, 5, 7]
    assert graph.node["atomic_number"].tolist() == [7, 6, 6, 6, 6]  # no calcium
    assert graph.context["cell"].diagonal().tolist() == [10, 10, 10]


def test_deuterium_in_a_pdb(tmp_path):
    rows = atom(" D  ", 0, element="D"), atom(" D1 ", 1), atom(" O  ", 2, element="O")
    (tmp_path / "a.pdb").write_text(CELL + "".join(rows) + "END\n")
    graph = read_structures(tmp_path / "a.pdb")[0]
    assert graph.node["atomic_number"].tolist() == [1, 1, 8]


def test_models_and_elements_of_a_pdb(tmp_path):
    atoms = [atom("CA  ", 0), atom("HG11", 1), atom("1HB ", 2), atom("FE  ", 3)]
    model = "".join(atoms) + atom("X1  ", 4, element="ZN")
    text = f"{CELL}MODEL        1\n{model}ENDMDL\nMODEL        2\n{model}ENDMDL\nEND\n"
    (tmp_path / "a.pdb").write_text(text)
    graphs = read_structures(tmp_path / "a.pdb")
    assert len(graphs) == 2
    for graph in graphs:
        assert graph.node["atomic_number"].tolist() == [20, 1, 1, 26, 30]
        assert graph.context["cell"].diagonal().tolist() == [10, 10, 10]
    cube = text.replace("10.000", " 1.000")
    (tmp_path / "a.pdb").write_text(cube)
    graph = read_structures(tmp_path / "a.pdb")[0]
    assert not graph.context["cell"].any() and not graph.context["pbc"].any()


# Numbers and marks in extended XYZ


HEAD = 'Lattice="4 0 0 0 4 0 0 0 4" Properties=species:S:1:pos:R:3:forces:R:3'
BODY = "O 0 0 0 0 0 -1\nH 0 0 1 0 0 1\n"


@pytest.mark.parametrize(
    "entry, label, message",
    [
        ("energy=-3,5", None, "'energy' of frame 0. Received: -3,5"),
        ("energy=-3,5", "energy", "'energy' of frame 0. Received: -3,5"),
        ("gap=3,5", "gap", "'gap' of frame 0. Received: 3,5"),
        ('gap="-3,5"', "gap", "'gap' of frame 0. Received: -3,5"),
        ("gap = '3,5'", "gap", "'gap' of frame 0. Received: 3,5"),
        ("energy=T", None, "'energy' to be one number. Received: True"),
        ("energy=T", "energy", "'energy' to be one number. Received: True"),
        ("energy", "energy", r"one of \['force'\]. Received: label='energy'"),
        ("gap opens", "gap", "Received: label='gap'"),
        ('energy="-3 5"', None, r"'energy' to be one number. Received: \[-3, 5\]"),
        ("gap=1.5D", "gap", "'gap' to be one number. Received: '1.5D'"),
        ("free_energy=-3.5", "energy", r"\['force', 'free_energy'\].*'free_energy'"),
        ("energy=-3,5", "free_energy", "'energy' of frame 0. Received: -3,5"),
    ],
)
def test_numbers_that_are_none(entry, label, message, tmp_path):
    (tmp_path / "a.extxyz").write_text(f"2\n{HEAD} {entry}\n{BODY}")
    with pytest.raises(ValueError, match=f"a.extxyz.*{message}"):
        read_structures(tmp_path / "a.extxyz", label=label)


@pytest.mark.parametrize("ending", ["xyz", "extxyz"])
@pytest.mark.parametrize("value", [*all_properties, "virial", "virials", "Properties"])
def test_words_in_comments_are_no_results(value, ending, tmp_path):
    comments = f"of the {value}", f"{value} -3", f"{value}", f'"{value}" note="{value}"'
    text = "".join(f"2\n{line}\nO 0 0 0\nH 0 0 1\n" for line in comments)
    (tmp_path / f"a.{ending}").write_text(text)
    graphs = read_structures(tmp_path / f"a.{ending}", stress=True)
    assert len(graphs) == 4
    for graph in graphs:
        assert set(graph.context) == {"cell", "pbc", "stress"}
        assert set(graph.node) == {"atomic_number", "position"}
        assert np.isnan(graph.context["stress"]).all()
        assert value not in graph.info
    assert graphs[0].info["the"] is True and graphs[3].info["note"] == value
    with pytest.raises(ValueError, match="Received: label='the'"):
        read_structures(tmp_path / f"a.{ending}", label="the")


def test_values_of_comments_may_have_spaces_around(tmp_path):
    comment = "energy = -3 gap= 2 note='the energy' metal=T"
    (tmp_path / "a.xyz").write_text(f"2\n{comment}\nO 0 0 0\nH 0 0 1\n")
    graph = read_structures(tmp_path / "a.xyz", label="gap")[0]
    assert graph.context["energy"] == -3 and graph.label == 2
    assert graph.info["note"] == "the energy"
    assert read_structures(tmp_path / "a.xyz", label="metal").label.tolist() == [1]


def test_labels_of_several_numbers(tmp_path):
    (tmp_path / "a.extxyz").write_text(f'2\n{HEAD} gap="3 5" bin=1,2\n{BODY}')
    graphs = read_structures(tmp_path / "a.extxyz", label="gap")
    assert graphs.label.tolist() == [[3, 5]]
    assert list(graphs[0].info["bin"]) == [1, 2]


def test_energies_of_calculators_are_one_number():
    atoms = ase.build.molecule("H2O")
    for energy in (np.array([-3.0, 5.0]), True, np.True_):
        atoms.calc = SinglePointCalculator(atoms, energy=energy)
        for call in (from_ase, AtomsEncoder(label="energy")):
            with pytest.raises(ValueError, match="'energy' to be one number"):
                call(atoms)


def test_isotopes_of_hydrogen_are_named(tmp_path):
    body = BODY.replace("H", "D")
    (tmp_path / "a.extxyz").write_text(f"2\n{HEAD} energy=-3\n{body}")
    with pytest.raises(ValueError, match="a.extxyz.*the element 'D'. Write H"):
        read_structures(tmp_path / "a.extxyz")


@pytest.mark.parametrize("key", SAMPLES)
def test_byte_order_marks(key, tmp_path):
    name, content, options, frames = SAMPLES[key]
    if key in (".db", ".json", ".traj", "lammps-dump-binary", "vasprun", "outcar"):
        pytest.skip("no text that editors write")
    (tmp_path / "other").mkdir()
    data = b"\xef\xbb\xbf" + content(tmp_path / "other", salt(frames))
    (tmp_path / name).write_bytes(data)
    graphs = read_structures(tmp_path / name, **options)
    assert graphs.node["atomic_number"].tolist() == [11, 17] * frames
