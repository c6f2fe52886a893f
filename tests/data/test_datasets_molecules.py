"""MoleculeNet and ZINC, from SMILES."""

import csv
import gzip

import numpy as np
import pytest

from keras_bandgnn.data.datasets.load import load
from tests.array_files import load_molecules


def test_official_tables(tmp_path):
    pytest.importorskip("rdkit")
    (tmp_path / "delaney-processed.csv").write_text(
        "Compound ID,ESOL predicted log solubility in mols per litre,Minimum Degree,"
        "measured log solubility in mols per litre,smiles\n"
        '"one, quoted",-0.9,1,-0.77,CCO\ntwo,-3,1,-3.3,c1ccccc1\n'
    )
    graphs = load("esol", path=tmp_path)
    assert graphs.num_nodes.tolist() == [3, 6]
    np.testing.assert_allclose(graphs.label, [-0.77, -3.3], rtol=1e-6)
    assert graphs.info[1]["smiles"] == "c1ccccc1"
    degree = load(
        "esol", path=tmp_path, target="measured log solubility in mols per litre"
    )
    assert degree.label.shape == (2,)
    (tmp_path / "bace.csv").write_text("mol,CID,Class,pIC50\nCC,BACE_1,1,9\n")
    assert load("bace", path=tmp_path).label.tolist() == [1]
    assert load("bace", path=tmp_path, target="pIC50").label.tolist() == [9]
    (tmp_path / "tox21.csv").write_text("NR-AR,SR-p53,mol_id,smiles\n0,,TOX,CC\n")
    np.testing.assert_array_equal(load("tox21", path=tmp_path).label, [[0, np.nan]])


def test_bad_tables(tmp_path):
    pytest.importorskip("rdkit")
    path = tmp_path / "zinc_small.csv"
    path.write_text("smiles,y,split\nCC,1,train\nC(,2,val\nCCC,3,test\n")
    with pytest.warns(UserWarning, match=r"Skipped 1 of 3 molecules .* row 2 \(C\(\)"):
        graphs = load("zinc", path=tmp_path)
    assert graphs.label.tolist() == [1, 3]
    assert graphs.context["split"].tolist() == [0, 2]
    with pytest.raises(ValueError, match="zinc_small.csv, row 2"):
        load("zinc", path=tmp_path, on_error="raise")
    path.write_text("smiles,y,split\nCC,1,dev\n")
    with pytest.raises(ValueError, match="'split' of .* to hold train.*'dev'"):
        load("zinc", path=tmp_path)
    path.write_text("name,y\nCC,1\n")
    with pytest.raises(ValueError, match="to have a column of SMILES"):
        load("zinc", path=tmp_path)
    path.write_text("smiles,y\nCC,1,2\n")
    with pytest.raises(ValueError, match="to be a table in CSV form"):
        load("zinc", path=tmp_path)
    path.write_text('y,smiles\n1,CC\n2,"CC\n' + "3,CCC\n" * 9)
    with pytest.raises(ValueError, match="SMILES of one line.*row 2.*Close the quote"):
        load("zinc", path=tmp_path)


@pytest.mark.parametrize("value", ["2", "-1", "0.5", "1_0", "yes"])
def test_binary_targets_are_0_or_1(value, tmp_path):
    pytest.importorskip("rdkit")
    path = tmp_path / "BBBP.csv"
    path.write_text(f"num,name,p_np,smiles\n1,a,1,CC\n2,b,{value},CCC\n")
    with pytest.raises(ValueError, match=r"BBBP.csv.*'p_np'.*row 2"):
        load("bbbp", path=tmp_path)
    path.write_text("num,name,p_np,smiles\n1,a,true,CC\n2,b,false,CCC\n")
    assert load("bbbp", path=tmp_path).label.tolist() == [1, 0]


def test_smiles_and_arrays_agree(shared_data):
    pytest.importorskip("rdkit")
    folder = shared_data / "graph_molecules"
    ready = load_molecules(folder / "freesolv.npz")
    made = load("freesolv", path=folder / "freesolv.csv.gz")
    assert made.num_nodes.tolist() == ready.num_nodes.tolist()
    assert made.num_edges.tolist() == ready.num_edges.tolist()
    assert (made.node["atom"] == ready.node["atom"]).all()
    assert (np.sort(made.edge_type) == np.sort(ready.edge_type)).all()
    np.testing.assert_allclose(made.label, ready.label, rtol=1e-6)


@pytest.fixture
def zinc_text(tmp_path):
    (tmp_path / "train.txt").write_text("CCO\nc1ccccc1\nCCN\n")
    (tmp_path / "valid.txt").write_text("CC(=O)O\nCCC\n")
    (tmp_path / "test.txt").write_text("C1CCCCCCC1\n")
    (tmp_path / "train.index").write_text("2,0\r\n")
    (tmp_path / "val.index").write_text("1\r\n")
    (tmp_path / "test.index").write_text("0\r\n")
    return tmp_path


def test_official_zinc(zinc_text):
    pytest.importorskip("rdkit")
    graphs = load("zinc", path=zinc_text)
    names = [info["smiles"] for info in graphs.info]
    assert names == ["CCN", "CCO", "CCC", "C1CCCCCCC1"]
    assert graphs.context["split"].tolist() == [0, 0, 1, 2]
    assert graphs.label.shape == (4,) and graphs.label.dtype == np.float32
    both = load("zinc", "test", zinc_text, target=["y", "penalized_logp"])
    assert both.num_nodes.tolist() == [8] and both.label.shape == (1, 2)
    # A ring of eight atoms costs two.
    ring = pytest.importorskip("rdkit.Chem").MolFromSmiles("C1CCCCCCC1")
    scorer = pytest.importorskip("rdkit.Contrib.SA_Score.sascorer")
    logp = pytest.importorskip("rdkit.Chem.Crippen").MolLogP(ring)
    expected = logp - scorer.calculateScore(ring) - 2
    np.testing.assert_allclose(both.label[0, 1], expected, rtol=1e-6)


def test_official_zinc_as_in_the_benchmark(zinc_text):
    pytest.importorskip("rdkit")
    (zinc_text / "train.txt").write_text("C[NH2+][C@H](C#N)C\nc1cc[nH]c1\nCC[NH-]\n")
    graphs = list(load("zinc", "train", zinc_text, features="benchmark"))
    # C, N H2 +, C H1, ...; the last line has a kind that is not in the benchmark.
    assert graphs[0].node["atom"].tolist() == [0, 0, 28]
    assert graphs[1].node["atom"].tolist() == [0, 11, 4, 0, 2, 0]
    ends = graphs[1].senders * graphs[1].receivers
    assert graphs[1].edge["bond"].tolist() == np.where(ends == 12, 3, 1).tolist()
    plain = list(load("zinc", "train", zinc_text))
    assert (graphs[1].senders == plain[1].senders).all()
    with pytest.raises(ValueError, match="features.*benchmark"):
        load("zinc", path=zinc_text, features="pyg")


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("val.index", "2\n3\n", "val.index to have numbers of lines of valid.txt.*3"),
        ("val.index", "1,x\n", "val.index to have numbers.*Received: x"),
        ("test.index", "\n", "test.index to have numbers of lines.*Received: none"),
        ("test.txt", "C1CC\n", "test.txt to have a molecule in line 1"),
    ],
)
def test_official_zinc_bad_input(zinc_text, name, text, reason):
    pytest.importorskip("rdkit")
    (zinc_text / name).write_text(text)
    with pytest.raises(ValueError, match=reason):
        load("zinc", path=zinc_text)


def test_targets_of_official_zinc(shared_data, zinc_text):
    """Computed targets are those of the stored graphs."""
    pytest.importorskip("rdkit")
    table = shared_data / "graph_zinc_official" / "zinc_12k_official.csv.gz"
    with gzip.open(table, "rt") as file:
        smiles = [row["smiles"] for row in csv.DictReader(file)]
    # Among these are some whose cycle basis has a longer ring than RDKit's rings.
    rows = np.r_[0:40, 10_000:10_040]
    (zinc_text / "train.txt").write_text("\n".join(smiles))
    (zinc_text / "train.index").write_text(",".join(map(str, rows)))
    graphs = load("zinc", "train", zinc_text)
    official = load_molecules(shared_data / "graph_zinc_official")
    stored = official.take(rows)
    np.testing.assert_allclose(graphs.label, stored.label, atol=1e-5)
    for name in ("num_nodes", "senders", "receivers", "node/atom", "edge/bond"):
        np.testing.assert_array_equal(graphs.columns()[name], stored.columns()[name])
    counts = np.bincount(official.context["split"])
    assert counts.tolist() == [10_000, 1_000, 1_000]
