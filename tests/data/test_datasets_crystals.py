"""Crystals: mlearn, answers of AFLOW's search interface, databases of ASE."""

import json

import numpy as np
import pytest

from keras_bandgnn.data.datasets.load import load
from tests.fuzz import readers_of_data
from tests.fuzz.readers import write

# The layout of an answer: lists, as of the search interface; silver chloride, and a
# hexagonal cell.
ENTRIES = [
    {
        "compound": "Ag1Cl1",
        "auid": "aflow:1",
        "aurl": "aflowlib.duke.edu:AFLOWDATA/ICSD_WEB/FCC/Ag1Cl1_ICSD_1",
        "enthalpy_formation_atom": -0.6,
        "Egap": 0.9,
        "geometry": [4, 4, 4, 60, 60, 60],
        "positions_fractional": [[0, 0, 0], [0.5, 0.5, 0.5]],
    },
    {
        "compound": "Mg2",
        "auid": "aflow:2",
        "enthalpy_formation_atom": 0.0,
        "Egap": None,
        "geometry": [3.2, 3.2, 5.2, 90, 90, 120],
        "positions_fractional": [
            [0.3333333, 0.6666667, 0.25],
            [0.6666667, 0.3333333, 0.75],
        ],
    },
]


def aflow(folder, entries):
    (folder / "aflow.json").write_text(json.dumps(entries))
    return folder


def test_aflow(tmp_path):
    graphs = load("aflow", path=aflow(tmp_path, [*ENTRIES, ENTRIES[0]]))
    assert graphs.num_nodes.tolist() == [2, 2] and graphs.num_edges.tolist() == [0, 0]
    assert graphs.node["atomic_number"].tolist() == [47, 17, 12, 12]
    np.testing.assert_allclose(graphs.label, [-0.6, 0])
    cell = graphs.context["cell"]
    np.testing.assert_allclose(np.linalg.norm(cell, axis=2), [[4] * 3, [3.2, 3.2, 5.2]])
    volumes = [4**3 / 2**0.5, 3.2**2 * 5.2 * 0.75**0.5]
    np.testing.assert_allclose(np.linalg.det(cell), volumes, rtol=1e-5)
    np.testing.assert_allclose(cell[1, 1], [-1.6, 3.2 * 0.75**0.5, 0], atol=1e-6)
    np.testing.assert_allclose(
        graphs.node["position"][1], cell[0].sum(axis=0) / 2, rtol=1e-6
    )
    assert graphs.info[0]["auid"] == "aflow:1"
    assert load("aflow", path=tmp_path, target=["Egap"]).label.tolist() == [
        [np.float32(0.9)]
    ]


def test_aflow_table_with_text(tmp_path):
    (tmp_path / "aflow.csv").write_text(
        ",auid,compound,enthalpy_formation_atom,geometry,positions_fractional\n"
        '0,aflow:1,Ag1Cl1,-0.6,"[4, 4, 4, 60, 60, 60]","[[0, 0, 0], [0.5, 0.5, 0.5]]"\n'
        '1,aflow:2,Mg2,0,"3.2,3.2,5.2,90,90,120",'
        '"0.3333333,0.6666667,0.25;0.6666667,0.3333333,0.75"\n'
    )
    table = load("aflow", path=tmp_path).columns()
    expected = load("aflow", path=aflow(tmp_path, ENTRIES)).columns()
    for name, values in expected.items():
        np.testing.assert_array_equal(table[name], values)


def test_aflow_bad_entries(tmp_path):
    bad = {**ENTRIES[0], "auid": "aflow:3", "compound": "Ag2Cl1"}
    aflow(tmp_path, [*ENTRIES, bad])
    with pytest.raises(ValueError, match="aflow:3: 3 atoms, 2 positions"):
        load("aflow", path=tmp_path)
    with pytest.warns(UserWarning, match="Skipped 1 entries"):
        assert len(load("aflow", path=tmp_path, on_error="skip")) == 2
    aflow(tmp_path, [{**ENTRIES[0], "compound": "Ag1?"}])
    with pytest.raises(ValueError, match=r"the compound 'Ag1\?'"):
        load("aflow", path=tmp_path)
    with pytest.raises(ValueError, match="Choose another target"):
        load("aflow", path=tmp_path, target="density")
    (tmp_path / "aflow.json").write_text("{")
    with pytest.raises(ValueError, match="to be JSON"):
        load("aflow", path=tmp_path)


def test_mlearn(tmp_path):
    write(readers_of_data.mlearn(), tmp_path)
    graphs = load("mlearn", path=tmp_path)
    assert graphs.num_nodes.tolist() == [2] * 12 and not graphs.num_edges.any()
    assert graphs.context["split"].tolist() == [0] * 6 + [2] * 6
    assert graphs.node["atomic_number"][::2].tolist() == 2 * [29, 32, 3, 42, 28, 14]
    assert graphs.node["position"][1].tolist() == [2, 2, 0.25]
    assert graphs.node["force"][:2].tolist() == [[0.5, 0, 0], [-0.5, 0, 1]]
    assert graphs.context["cell"][0].tolist() == [[4, 0, 0], [0, 4, 0], [0, 0.5, 5]]
    assert graphs.label.tolist() == [-3.5] * 12
    assert graphs.info[0] == {"group": "Vacancy"}
    test = load("mlearn", "test", tmp_path, target=["energy_per_atom"])
    assert test.label.tolist() == [[-1.75]] * 6
    with pytest.raises(ValueError, match="only train, test"):
        load("mlearn", "valid", tmp_path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda e: e["outputs"].pop("forces"), "entry 0: no 'forces'"),
        (lambda e: e["outputs"].update(energy=float("nan")), "not finite"),
        (lambda e: e["structure"]["sites"].pop(), r"shape \(2, 3\).*\(1, 3\)"),
        (lambda e: e["structure"].update(sites=[]), "entry 0"),
        (
            lambda e: e["structure"]["sites"][0].update(species=[{"element": "Xx"}]),
            "the element 'Xx'",
        ),
    ],
)
def test_mlearn_bad_entries(tmp_path, change, reason):
    files = readers_of_data.mlearn()
    (entry,) = json.loads(files["Li/test.json"])
    change(entry)
    write({**files, "Li/test.json": json.dumps([entry]).encode()}, tmp_path)
    with pytest.raises(ValueError, match=f"Li/test.json.*{reason}"):
        load("mlearn", path=tmp_path)


def test_names_without_official_files_are_told():
    for name in ("carbon24", "perov5"):
        with pytest.raises(ValueError, match="read_structures"):
            load(name)
