"""QM9 in its three forms: small files in the true layout, and the real ones."""

import gzip
import io
import json
import tarfile

import numpy as np
import pytest

from keras_bandgnn.data.datasets.load import load
from keras_bandgnn.data.datasets.parts import all_pairs
from keras_bandgnn.data.datasets.qm9 import _SCALES
from tests.array_files import load_qm9

# Two molecules as they are published, methane and ammonia (gdb 1 and 2).
METHANE = (
    "5\n"
    "gdb 1\t157.7118\t157.70997\t157.70699\t0.\t13.21\t-0.3877\t0.1171\t0.5048\t"
    "35.3641\t0.044749\t-40.47893\t-40.476062\t-40.475117\t-40.498597\t6.469\t\n"
    "C\t-0.0126981359\t 1.0858041578\t 0.0080009958\t-0.535689\n"
    "H\t 0.002150416\t-0.0060313176\t 0.0019761204\t 0.133921\n"
    "H\t 1.0117308433\t 1.4637511618\t 0.0002765748\t 0.133922\n"
    "H\t-0.540815069\t 1.4475266138\t-0.8766437152\t 0.133923\n"
    "H\t-0.5238136345\t 1.4379326443\t 9.0639742*^-1\t 0.133923\n"
    "1341.307\t1341.3284\t1341.365\n"
    "C\tC\t\n"
    "InChI=1S/CH4/h1H4\tInChI=1S/CH4/h1H4\n"
)
AMMONIA = (
    "4\n"
    "gdb 2\t293.60975\t293.54111\t191.39397\t1.6256\t9.46\t-0.257\t0.0829\t0.3399\t"
    "26.1563\t0.034358\t-56.525887\t-56.523026\t-56.522082\t-56.544961\t6.316\t\n"
    "N\t-0.0404260543\t 1.0241077531\t 0.0625637998\t-0.707143\n"
    "H\t 0.0172574639\t 0.0125452063\t-2.737716*^-2\t 0.235712\n"
    "H\t 0.9157893661\t 1.3587451948\t-0.0287577581\t 0.235712\n"
    "H\t-0.5202777357\t 1.3435321258\t-0.7755426124\t 0.235712\n"
    "1103.8733\t1684.1158\n"
    "N\tN\t\n"
    "InChI=1S/H3N/h1H3\tInChI=1S/H3N/h1H3\n"
)


def uncharacterized(folder, *numbers):
    head = ["=" * 20, "3054 molecules", *["text"] * 7]
    rows = [f"   {n}   CC   CC   InChI=1S/a   InChI=1S/b" for n in numbers]
    text = "\n".join([*head, *rows, "=" * 20]) + "\n"
    (folder / "uncharacterized.txt").write_text(text)


@pytest.fixture
def xyz(tmp_path):
    with tarfile.open(tmp_path / "dsgdb9nsd.xyz.tar.bz2", "w:bz2") as archive:
        for number, text in ((2, AMMONIA), (1, METHANE)):
            member = tarfile.TarInfo(f"dsgdb9nsd_{number:06}.xyz")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    uncharacterized(tmp_path, 7)
    return tmp_path


def test_xyz(xyz):
    graphs = load("qm9", path=xyz)
    assert [info["gdb"] for info in graphs.info] == [1, 2]
    assert graphs.num_nodes.tolist() == [5, 4]
    assert graphs.num_edges.tolist() == [20, 12]
    methane, ammonia = graphs
    assert methane.node["atomic_number"].tolist() == [6, 1, 1, 1, 1]
    assert ammonia.node["atomic_number"].tolist() == [7, 1, 1, 1]
    assert methane.node["position"][4, 2] == np.float32(0.90639742)
    assert ammonia.node["position"][1, 2] == np.float32(-0.02737716)
    assert methane.node["charge"][0] == np.float32(-0.535689)
    # The published energy of atomisation of methane, kcal/mol.
    np.testing.assert_allclose(methane.label, -395.999595, rtol=1e-6)
    assert load("qm9", path=xyz, target=["u0", "gap"]).label.shape == (2, 2)
    assert load("qm9", path=xyz, target="g298").label[0] == np.float32(-40.498597)


def test_xyz_leaves_out_the_molecules_in_doubt(xyz):
    uncharacterized(xyz, 1)
    assert [info["gdb"] for info in load("qm9", path=xyz).info] == [2]
    assert len(load("qm9", path=xyz, keep_uncharacterized=True)) == 2
    (xyz / "uncharacterized.txt").write_text("\n".join(["text"] * 12))
    with pytest.raises(ValueError, match="to be the published list"):
        load("qm9", path=xyz)
    (xyz / "uncharacterized.txt").unlink()
    with pytest.raises(FileNotFoundError, match="keep_uncharacterized=True"):
        load("qm9", path=xyz)


def test_xyz_bad_input(xyz):
    with pytest.raises(ValueError, match="xyz files have no bonds"):
        load("qm9", path=xyz, edges="bonds")
    with pytest.raises(ValueError, match="`target` to be among 'A', .*'u0_atom'"):
        load("qm9", path=xyz, target="energy")
    with pytest.raises(ValueError, match="these files have no splits"):
        load("qm9", path=xyz, split="train")
    with pytest.raises(
        ValueError,
        match="option that .* has.*target, edges.* Of 'qm9' only other files",
    ):
        load("qm9", path=xyz, normalised=True)


SDF = """gdb_1
  -OEChem-03231823243D

  5  4  0     0  0  0  0  0  0999 V2000
   -0.0127    1.0858    0.0080 C   0  0  0  0  0  0  0  0  0  0  0  0
    0.0022   -0.0060    0.0020 H   0  0  0  0  0  0  0  0  0  0  0  0
    1.0117    1.4638    0.0003 H   0  0  0  0  0  0  0  0  0  0  0  0
   -0.5408    1.4475   -0.8766 H   0  0  0  0  0  0  0  0  0  0  0  0
   -0.5238    1.4379    0.9064 H   0  0  0  0  0  0  0  0  0  0  0  0
  1  2  1  0  0  0  0
  1  3  1  0  0  0  0
  1  4  1  0  0  0  0
  1  5  1  0  0  0  0
M  END
$$$$
gdb_4
  -OEChem-03231823243D

  4  3  0     0  0  0  0  0  0999 V2000
    0.5995    0.0000    1.0000 C   0  0  0  0  0  0  0  0  0  0  0  0
   -0.5995    0.0000    1.0000 C   0  0  0  0  0  0  0  0  0  0  0  0
   -1.6616    0.0000    1.0000 H   0  0  0  0  0  0  0  0  0  0  0  0
    1.6616    0.0000    1.0000 H   0  0  0  0  0  0  0  0  0  0  0  0
  1  2  3  0  0  0  0
  1  4  1  0  0  0  0
  2  3  1  0  0  0  0
M  END
$$$$
"""
CSV = """mol_id,A,B,C,mu,alpha,homo,lumo,gap,r2,zpve,u0,u298,h298,g298,cv,u0_atom
gdb_1,157.7118,157.70997,157.70699,0,13.21,-0.3877,0.1171,0.5048,35.3641,0.044749,\
-40.47893,-40.476062,-40.475117,-40.498597,6.469,-395.999594594
gdb_4,0,35.6100361,35.6100361,0,16.28,-0.2845,0.0506,0.3351,59.5248,0.026841,\
-77.308427,-77.305527,-77.304583,-77.327429,8.574,-385.501996533
"""


@pytest.fixture
def sdf(tmp_path):
    (tmp_path / "gdb9.sdf").write_text(SDF)
    (tmp_path / "gdb9.sdf.csv").write_text(CSV)
    uncharacterized(tmp_path, 9)
    return tmp_path


def test_sdf(sdf):
    graphs = load("qm9", path=sdf)
    assert [info["gdb"] for info in graphs.info] == [1, 4]
    acetylene = graphs[1]
    assert acetylene.node["atomic_number"].tolist() == [6, 6, 1, 1]
    assert acetylene.node["position"][2].tolist() == [np.float32(-1.6616), 0, 1]
    edges = zip(
        acetylene.senders, acetylene.receivers, acetylene.edge_type, strict=True
    )
    assert sorted(edges) == [
        *[(0, 1, 3), (0, 3, 1), (1, 0, 3), (1, 2, 1), (2, 1, 1), (3, 0, 1)]
    ]
    # As published in the table that comes with the SDF.
    np.testing.assert_allclose(graphs.label, [-395.999594594, -385.501996533], 1e-6)


def test_sdf_with_all_pairs(sdf):
    graph = load("qm9", path=sdf, edges="full")[1]
    assert graph.num_edges == 12 and (graph.edge_type > 0).sum() == 6
    bonds = {(0, 1): 3, (0, 3): 1, (1, 2): 1}
    for i, j, kind in zip(graph.senders, graph.receivers, graph.edge_type, strict=True):
        assert i != j and kind == bonds.get((min(i, j), max(i, j)), 0)
    with pytest.raises(ValueError, match="`edges` to be one of 'bonds', 'full'"):
        load("qm9", path=sdf, edges="all")


def test_sdf_bad_input(sdf):
    (sdf / "gdb9.sdf.csv").write_text(CSV.replace("gdb_4", "gdb_5"))
    with pytest.raises(ValueError, match="to list the molecules of gdb9.sdf"):
        load("qm9", path=sdf)
    (sdf / "gdb9.sdf").write_text(SDF.replace("V2000", "V3000", 1))
    with pytest.raises(ValueError, match="block 0 of .*V2000 mol block"):
        load("qm9", path=sdf)


def line(number, targets):
    return {
        "targets": [[value] for value in targets],
        "graph": [[0, 1, 1], [0, 2, 2]],
        "id": f"qm9:{number:06}",
        "node_features": [[0, 1, 0, 0, 0, 6, 0.5, *[0] * 8]] * 3,
    }


def test_bond_graphs(tmp_path):
    for split, numbers in (("valid", [3]), ("test", [8, 9])):
        with gzip.open(tmp_path / f"{split}.jsonl.gz", "wt") as file:
            for number in numbers:
                values = [number / 10, *[0] * 12]
                file.write(json.dumps(line(number, values)) + "\n")
    graphs = load("qm9", path=tmp_path, target="mu")
    assert graphs.context["split"].tolist() == [1, 2, 2]
    slope, offset = _SCALES["mu"]
    expected = [slope * z + offset for z in (0.3, 0.8, 0.9)]
    np.testing.assert_allclose(graphs.label, expected, rtol=1e-6)
    test = load("qm9", "test", tmp_path, target="mu", normalised=True)
    np.testing.assert_allclose(test.label, [0.8, 0.9], rtol=1e-6)
    assert "split" not in test.context and test.info[1] == {"gdb": 9}
    assert test.node["feature"].shape == (6, 15)
    assert test.edge_type[:4].tolist() == [1, 2, 1, 2]
    with pytest.raises(FileNotFoundError, match="train.jsonl.gz.*tf-gnn-samples"):
        load("qm9", "train", tmp_path)
    with pytest.raises(ValueError, match="`target` to be among 'mu'"):
        load("qm9", path=tmp_path, target="omega1")


def test_bond_graphs_bad_line(tmp_path):
    with gzip.open(tmp_path / "test.jsonl.gz", "wt") as file:
        file.write('{"targets": [[0]], "graph": "none"}\n')
    with pytest.raises(ValueError, match="to hold a molecule per line"):
        load("qm9", path=tmp_path)


def test_all_pairs_of_one_atom():
    none = np.zeros(0, int)
    pairs = all_pairs(np.array([1, 2]), np.array([0, 0]), none, none, none)
    assert pairs["num_edges"].tolist() == [0, 2]
    assert pairs["senders"].tolist() == [1, 0]


def test_all_pairs_of_real_molecules(shared_data):
    full = load_qm9(shared_data / "qm9_3d", "test", edges="full")
    assert (full.num_edges == full.num_nodes * (full.num_nodes - 1)).all()
    assert (full.edge_type > 0).sum() == 37_274 + 644
    lengths = np.linalg.norm(
        full[0].node["position"][full[0].senders]
        - full[0].node["position"][full[0].receivers],
        axis=1,
    )
    assert lengths[full[0].edge_type > 0].max() < 1.78


def test_real_bond_graphs(shared_data):
    graphs = load("qm9", "valid", shared_data / "qm9_graphs")
    assert len(graphs) == 10_000
    both = load("qm9", path=shared_data / "qm9_graphs")
    assert len(both) == 20_000 and both.node_ptr[-1] == 361_505
    assert round(float(both.num_nodes.mean()), 2) == 18.08
    assert round(float(both.num_edges.mean()) / 2, 2) == 18.70


def test_bond_graphs_agree_with_other_records(shared_data):
    arrays = load_qm9(shared_data / "qm9_3d", target="gap")
    lines = load("qm9", path=shared_data / "qm9_graphs", target="gap")
    place = {info["gdb"]: i for i, info in enumerate(lines.info)}
    for i in range(0, 8000, 997):
        other = lines[place[arrays.info[i]["gdb"]]]
        for name in ("senders", "receivers", "edge_type"):
            assert (getattr(arrays[i], name) == getattr(other, name)).all()
        assert (arrays[i].node["atomic_number"] == other.node["atomic_number"]).all()
        np.testing.assert_allclose(arrays[i].label, other.label, rtol=1e-6)
