"""Names and numbers of structure files: read as what they are, or refused by name."""

import re

import numpy as np
import pytest
from test_structure_formats import CELL, SAMPLES, TYPES, atom, cif, record, salt

from keras_bandgnn.data import read_structures
from keras_bandgnn.data.converters import structure_checks

pytest.importorskip("ase")
import ase.io  # noqa: E402

XYZ = "2\n\nNa 0 0 0.5\nCl 2 2.12 0\n"
# Files in which Fortran writes numbers, and the values after this.
NUMBERS = {
    "a.xyz": "2\n\nNa 0 0 0.50D+00\nCl 2.0d0 .212D+1 0\n",
    "a.extxyz": (
        '2\nLattice="4.0D0 0 0 0 4.D0 0 0 0 5.0D+00" '
        "Properties=species:S:1:pos:R:3:forces:R:3 energy=-3.0D+00 name=1d4\n"
        "Na 0 0 0.50D+00 1.0D-1 0 0\nCl 2.0d0 .212D+1 0 -1.0D-1 0 0\n"
    ),
    "POSCAR": (
        "salt\n1.0D0\n4.0D0 0 0\n0 4 0\n0 0 5.0D0\nNa Cl\n1 1\nCartesian\n"
        "0 0 0.5D0\n2.0D0 2.12D0 0.0\n"
    ),
    "a.sdf": "\n  x\n\n  2  0  0  0  0  0  0  0  0  0999 V2000\n"
    "  0.00D+00  0.00D+00  5.00D-01 Na  0  0\n"
    "  2.00D+00  2.12D+00  0.00D+00 Cl  0  0\nM  END\n> <gap>\n1.5D+00\n\n$$$$\n",
    "a.cif": cif(["Na1 Na 0 0 1.0D-1 1.0", "Cl1 Cl 5.0D-1 5.3D-1 0 1.0D0"]).replace(
        "_cell_length_c 4.0(2)", "_cell_length_c 5.0D0"
    ),
    "a.pdb": CELL
    + atom(" NA ", 0, element="NA").replace(" 0.000  1.00", "0.5D00  1.00")
    + atom(" CL ", 2, element="CL").replace("   0.000   0.000", "  2.12D0   0.000")
    + "END\n",
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_fortran(name, tmp_path):
    (tmp_path / name).write_text(NUMBERS[name])
    graph = read_structures(tmp_path / name)[0]
    assert graph.node["atomic_number"].tolist() == [11, 17]
    places = [[0, 0, 0.5], [2, 2.12, 0]]
    np.testing.assert_allclose(graph.node["position"], places, atol=1e-6)
    if name == "a.extxyz":
        assert graph.context["energy"] == -3 and graph.info["name"] == "1d4"
        np.testing.assert_allclose(graph.context["cell"].diagonal(), [4, 4, 5])
        np.testing.assert_allclose(graph.node["force"][:, 0], [0.1, -0.1])
        assert read_structures(tmp_path / name, label="energy").label.tolist() == [-3]
    if name == "a.sdf":
        assert graph.info["gap"] == 1.5


@pytest.mark.parametrize("value", ["?", ".", "x"])
@pytest.mark.parametrize("column", [2, 3, 4])
def test_coordinates_that_are_not_known_have_a_line(value, column, tmp_path):
    words = ["O1", "O", ".1", ".2", ".3", "1"]
    words[column] = value
    (tmp_path / "a.cif").write_text(cif(["Na1 Na 0 0 0 1", " ".join(words)]))
    line = (tmp_path / "a.cif").read_text().splitlines().index(" ".join(words)) + 1
    message = f"a.cif, frame 0: .*site O1. Received: {value!r} in line {line}"
    with pytest.raises(ValueError, match=re.escape(message).replace(r"\.\*", ".*")):
        read_structures(tmp_path / "a.cif")


def test_cells_that_are_not_known_have_a_line(tmp_path):
    text = cif(["Na1 Na 0 0 0 1"]).replace("_cell_length_b 4.0(2)", "_cell_length_b ?")
    (tmp_path / "a.cif").write_text(text)
    with pytest.raises(ValueError, match="a.cif.*_cell_length_b .*'.' in line 3"):
        read_structures(tmp_path / "a.cif")


TEXTS = {*structure_checks.ENDINGS, *structure_checks.BEGINNINGS} - {".db", ".traj"}


@pytest.mark.parametrize("key", sorted(TEXTS))
def test_bytes_of_zero_are_named(key, tmp_path):
    """Text with a NUL byte says so, not that its lines are too long."""
    name, content, options, frames = SAMPLES[key]
    (tmp_path / "other").mkdir()
    data = content(tmp_path / "other", salt(frames or 2))
    at = data.index(b"\n") + 1
    (tmp_path / name).write_bytes(data[:at] + b"\0" + data[at:])
    with pytest.raises(ValueError, match=re.escape(name)) as error:
        read_structures(tmp_path / name, **options)
    assert "a NUL byte in line 2" in str(error.value)


@pytest.mark.parametrize("text", ["\n" + XYZ, "\n\n" + XYZ, " \n" + XYZ])
def test_empty_lines_at_the_start(text, tmp_path):
    (tmp_path / "a.xyz").write_text(text)
    with pytest.raises(ValueError, match="a.xyz to have no empty.*, at the start"):
        read_structures(tmp_path / "a.xyz")


@pytest.mark.parametrize("ending", ["", "-001", ".1", "_relaxed", ".static", ".txt"])
@pytest.mark.parametrize("key", structure_checks.BEGINNINGS)
def test_names_of_vasp_may_go_on(key, ending, tmp_path):
    name, content, options, frames = SAMPLES[key]
    (tmp_path / "other").mkdir()
    (tmp_path / "runs").mkdir()
    data = content(tmp_path / "other", salt(frames or 2))
    for spelling in (name, name.lower()):
        file = tmp_path / "runs" / f"{spelling}{ending}"
        file.write_bytes(data)
        for path in (file, tmp_path / "runs"):
            graphs = read_structures(path, **options)
            assert graphs.node["atomic_number"][:2].tolist() == [11, 17]
        file.unlink()


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tar.lzma", "lzma", "zip", "npz"])
@pytest.mark.parametrize(
    "name", ["vaspruns", "vasprun.xml", "OUTCAR", "poscars", "a.xyz", "a.cif"]
)
def test_archives_in_folders_are_named(name, ending, tmp_path):
    (tmp_path / "good.xyz").write_text(XYZ)
    file = tmp_path / f"{name}.{ending}"
    file.write_bytes(b"\x5d\0\0\x80\0junk")
    with pytest.warns(
        UserWarning, match=f"Archives .* ignored: {re.escape(file.name)}"
    ):
        assert len(read_structures(tmp_path)) == 1
    with pytest.raises(ValueError, match=f"{re.escape(file.name)} to be .*Unpack it"):
        read_structures(file)


@pytest.mark.parametrize("ending", structure_checks.BUNDLES)
def test_bundles_of_ase_are_named(ending, tmp_path):
    (tmp_path / "good.xyz").write_text(XYZ)
    bundle = tmp_path / f"a{ending}"
    ase.io.write(bundle, salt(), format="bundletrajectory")
    with pytest.warns(
        UserWarning, match=f"bundles .* ignored: a{ending}.*ase.io.write"
    ):
        assert len(read_structures(tmp_path)) == 1
    with pytest.raises(ValueError, match=f"a{ending} .*BundleTrajectory.*ase.io.write"):
        read_structures(bundle)


def test_errors_in_a_folder_say_how_to_leave_the_file_out(tmp_path):
    (tmp_path / "good.xyz").write_text(XYZ)
    (tmp_path / "vasprun.xml-001").write_text("<modeling><calc")
    with pytest.raises(ValueError, match="vasprun.xml-001 .*list of the other files"):
        read_structures(tmp_path)
    with pytest.raises(ValueError, match="vasprun.xml-001") as error:
        read_structures([tmp_path / "good.xyz", tmp_path / "vasprun.xml-001"])
    assert "list of the other" not in str(error.value)


@pytest.mark.parametrize("name", ["a.data", "data.salt", "a.lmp", "salt", "a.lammps"])
def test_data_files_of_lammps_are_known_by_content(name, tmp_path):
    data = SAMPLES["lammps-data"][1](None, salt())
    (tmp_path / name).write_bytes(data)
    graphs = read_structures(tmp_path / name, **TYPES)
    assert graphs.node["atomic_number"].tolist() == [11, 17]
    with pytest.raises(ValueError, match=f"{name} to name the elements.*elements="):
        read_structures(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=f"Received: none, but {name}. Pass"):
        read_structures(tmp_path)


@pytest.mark.parametrize(
    "key,line,other",
    [
        (".vasp", 5, b"2147483648 Cl"),
        (".vasp", 6, b"2147483648 x"),
        ("lammps-dump-text", 3, b"2147483648 2 2"),
    ],
)
def test_counts_beside_other_words_are_counts(key, line, other, tmp_path):
    """ASE would read as many lines, or make as large an array."""
    name, content, options, frames = SAMPLES[key]
    lines = content(tmp_path, salt(frames or 2)).split(b"\n")
    lines[line] = other
    (tmp_path / name).write_bytes(b"\n".join(lines))
    with pytest.raises(ValueError, match=f"{name}.*2,147,483,648 atoms that it decl"):
        read_structures(tmp_path / name, **options)


def test_blocks_of_v3000_have_atoms_in_data_sets_and_files(tmp_path):
    """A block whose first line of counts says 0 atoms is read in full."""
    counts = "  0  0  0     0  0            999 V3000"
    rows = "M  V30 COUNTS 2 0 0 0 0\nM  V30 BEGIN ATOM\nM  V30 1 Na 0 0 .5 0\n"
    block = f"\n  x\n\n{counts}\nM  V30 BEGIN CTAB\n{rows}M  V30 2 Cl 2 2.12 0 0\n"
    block += "M  V30 END ATOM\nM  V30 END CTAB\nM  END\n"
    for name in ("a.mol", "a.sdf"):
        (tmp_path / name).write_text(block)
        graph = read_structures(tmp_path / name)[0]
        assert graph.node["atomic_number"].tolist() == [11, 17]
        (tmp_path / name).write_text(block.replace("COUNTS 2", "COUNTS 0"))
        with pytest.raises(ValueError, match=f"{name}.*the 0 atoms"):
            read_structures(tmp_path / name)
    (tmp_path / "a.sdf").write_text(record("N") + block)
    assert len(read_structures(tmp_path / "a.sdf")) == 2
