import csv
import gzip

import numpy as np
import pytest

pytest.importorskip("rdkit")

from keras_bandgnn.data.converters.smiles import (  # noqa: E402
    from_rdkit,
    from_smiles,
)


def test_ethanol():
    graph = from_smiles("CCO", label=[0.5])
    assert graph.num_nodes == 3
    assert graph.senders.tolist() == [0, 1, 1, 2]
    assert graph.receivers.tolist() == [1, 0, 2, 1]
    assert graph.edge_type.tolist() == [1] * 4
    assert graph.node["atom"].tolist() == [
        [6, 4, 8, 3, 3, 0, 0, 0],
        [6, 4, 8, 2, 3, 0, 0, 0],
        [8, 2, 8, 1, 3, 0, 0, 0],
    ]
    assert graph.edge["bond"].tolist() == [[1, 0, 0]] * 4
    assert graph.label.tolist() == [0.5] and graph.info["smiles"] == "CCO"


def test_charges_rings_chirality_and_bond_types():
    zwitterion = from_smiles("C[C@H]([NH3+])C(=O)[O-]")
    assert zwitterion.node["atom"][:, 2].tolist() == [8, 8, 9, 8, 8, 7]
    assert zwitterion.node["atom"][1, 7] in (1, 2)
    mirrored = from_smiles("C[C@@H]([NH3+])C(=O)[O-]")
    assert mirrored.node["atom"][1, 7] == 3 - zwitterion.node["atom"][1, 7]
    assert zwitterion.edge_type.tolist() == [1, 1] * 3 + [2, 2, 1, 1]
    benzene = from_smiles("c1ccccc1")
    assert (benzene.edge["bond"] == [4, 1, 1]).all()
    assert (benzene.node["atom"][:, 4:7] == [2, 1, 1]).all()
    assert from_smiles("C#N").edge_type.tolist() == [3, 3]
    assert from_smiles("[NH3]->[Cu+2]").edge_type.tolist() == [0, 0]
    assert from_smiles("S(F)(F)(F)(F)(F)F").node["atom"][0, 4] == 5


CHIRAL = [
    "C[C@H](F)Cl",
    "N[C@@H](C)C(=O)O",
    "C[C@H]1CC[C@@H](C)CC1",
    "C[C@@H]1CC[C@@H](O)[C@H](F)C1",
    "C[S@](=O)CC",
    "F[C@]12CCCC[C@@]1(Cl)CCCC2",
    "C[C@@H](O)[C@H](N)C.[Na+]",
    "[2H][C@H](C)O",
]


def refined(graph, name="atom"):
    """Atoms with what surrounds them, in an order that no numbering changes."""
    colours = [tuple(row) for row in graph.node[name].tolist()]
    for _ in range(graph.num_nodes):
        seen = [[] for _ in colours]
        for sender, receiver, kind in zip(
            graph.senders, graph.receivers, graph.edge_type, strict=True
        ):
            seen[receiver].append((int(kind), colours[sender]))
        colours = [hash((c, *sorted(s))) for c, s in zip(colours, seen, strict=True)]
    return sorted(colours)


@pytest.mark.parametrize("smiles", CHIRAL)
@pytest.mark.parametrize("hydrogens", [False, True])
def test_spellings_of_a_molecule_have_the_same_features(smiles, hydrogens):
    from rdkit import Chem

    molecule = Chem.MolFromSmiles(smiles)
    mirror = smiles.replace("@@", "!").replace("@", "@@").replace("!", "@")
    mapped = Chem.Mol(molecule)
    for number, atom in enumerate(mapped.GetAtoms()):
        atom.SetAtomMapNum(molecule.GetNumAtoms() - number)
    spellings = [Chem.MolToSmiles(molecule, doRandom=True) for _ in range(15)]
    spellings += [smiles, Chem.MolToSmiles(mapped)]

    def features(text, **options):
        options = {"chirality": "canonical", **options}
        if not hydrogens:
            return refined(from_smiles(text, **options))
        return refined(from_rdkit(Chem.AddHs(Chem.MolFromSmiles(text)), **options))

    assert all(features(text) == features(smiles) for text in spellings)
    same = Chem.CanonSmiles(mirror) == Chem.CanonSmiles(smiles)
    if same or "1" not in smiles:
        assert (features(mirror) == features(smiles)) == same
    written = [features(text, chirality="written") for text in spellings]
    assert any(each != written[0] for each in written)


def test_written_tags_are_those_of_rdkit():
    from rdkit import Chem

    for smiles in CHIRAL:
        tags = [int(a.GetChiralTag()) for a in Chem.MolFromSmiles(smiles).GetAtoms()]
        graph = from_smiles(smiles)
        assert graph.node["atom"][:, 7].tolist() == tags
    with pytest.raises(ValueError, match="`chirality`.*R/S"):
        from_smiles("C", chirality="R/S")


def test_one_atom_has_no_bonds():
    graph = from_smiles("C")
    assert (graph.num_nodes, graph.num_edges) == (1, 0)
    assert graph.edge["bond"].shape == (0, 3) and graph.edge["bond"].dtype == np.int32


@pytest.mark.parametrize(
    "smiles, message",
    [
        ("C1CC", r"Received: 'C1CC' \(invalid SMILES syntax"),
        ("C(C)(C)(C)(C)C", r"'C\(C\).*Explicit valence for atom # 0 C, 5"),
        ("c1cccc1", "(?i)c1cccc1.*kekul"),
        ("", "at least one atom.*Received: ''"),
        (None, "to be a string.*None"),
    ],
)
def test_errors_name_the_smiles(smiles, message, capfd):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        from_smiles(smiles)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["esol", "bace"])
def test_equal_to_the_public_graphs(shared_data, name):
    folder = shared_data / "graph_molecules"
    if not folder.is_dir():
        pytest.skip("no graph_molecules among the shared data")
    with gzip.open(folder / f"{name}.csv.gz", "rt", newline="") as file:
        texts = [row["smiles"] for row in csv.DictReader(file)]
    with np.load(folder / f"{name}.npz") as arrays:
        z = dict(arrays)
    assert len(texts) == len(z["node_ptr"]) - 1
    for i, text in enumerate(texts):
        graph = from_smiles(text)
        edges = slice(z["edge_ptr"][i], z["edge_ptr"][i + 1])
        atoms = z["atom"][z["node_ptr"][i] : z["node_ptr"][i + 1]]
        np.testing.assert_array_equal(graph.node["atom"], atoms)
        ends = np.stack([graph.senders, graph.receivers])
        for way in (0, 1):
            bond = graph.edge["bond"][way::2]
            np.testing.assert_array_equal(bond, z["bond"][edges])
            there = ends[:, way::2] if way == 0 else ends[::-1, way::2]
            np.testing.assert_array_equal(there, z["edge_index"][:, edges])
        np.testing.assert_array_equal(graph.edge_type, graph.edge["bond"][:, 0])
