"""Splits of molecules by their scaffolds."""

import csv
import gzip

import numpy as np
import pytest

pytest.importorskip("rdkit")

from keras_bandgnn.data import load, scaffold_split  # noqa: E402

# Four benzenes, three cyclohexanes, two chains, one pyridine.
SMILES = ["c1ccccc1", "CC1CCCCC1", "Cc1ccccc1", "CCO", "Oc1ccccc1", "C1CCCCC1"]
SMILES += ["CCN", "OC1CCCCC1", "c1ccncc1", "Nc1ccccc1"]


def groups_of(names):
    from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles

    groups = {}
    for place, name in enumerate(names):
        groups.setdefault(MurckoScaffoldSmiles(name), []).append(place)
    return list(groups.values())


def test_large_groups_come_first():
    train, valid, test = scaffold_split(SMILES, (0.5, 0.3, 0.2))
    # Benzenes fill train but for one, which the pyridine takes.
    assert train.tolist() == [0, 2, 4, 9, 8]
    assert valid.tolist() == [1, 5, 7] and test.tolist() == [3, 6]
    parts = scaffold_split(SMILES, (1, 0, 0))
    assert [len(part) for part in parts] == [10, 0, 0]
    assert [len(part) for part in scaffold_split([])] == [0, 0, 0]


def test_balanced_splits_keep_groups_together():
    rings = ("c1ccccc1", "C1CCCC1", "C1CCC1", "c1ccoc1")
    names = [f"C{'C' * k}{ring}" for ring in rings for k in range(5)]
    first = scaffold_split(names, (0.5, 0.25, 0.25), balanced=True)
    assert sorted(np.concatenate(first).tolist()) == list(range(20))
    for group in groups_of(names):
        assert sum(bool(set(group) & set(part.tolist())) for part in first) == 1
    again = scaffold_split(names, (0.5, 0.25, 0.25), balanced=True)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    seeds = [scaffold_split(names, (0.5, 0.25, 0.25), True, seed=s) for s in range(6)]
    assert len({tuple(sorted(test.tolist())) for _, _, test in seeds}) > 1


def mapped(name, seed):
    """The molecule with atom maps, isotopes and its bonds in another order."""
    from rdkit import Chem

    molecule = Chem.MolFromSmiles(name)
    rng = np.random.default_rng(seed)
    for atom, k in zip(
        molecule.GetAtoms(), rng.permutation(molecule.GetNumAtoms()), strict=True
    ):
        atom.SetAtomMapNum(int(k) + 1)
        if seed % 2:
            atom.SetIsotope(int(k) % 3)
    return Chem.MolToSmiles(molecule)


@pytest.mark.parametrize("chirality", [False, True])
def test_atom_maps_and_isotopes_do_not_count(chirality):
    plain = [
        *SMILES,
        "C/C=C/c1ccccc1",
        r"C/C=C\c1ccccc1",
        "O=C1CCC(=O)N1C",
        "c1cc[nH]c1C",
    ]
    written = [mapped(name, k) for k, name in enumerate(plain)]
    assert written != plain
    for shares in ((0.5, 0.3, 0.2), (0.8, 0.1, 0.1)):
        parts = [
            scaffold_split(n, shares, chirality=chirality) for n in (plain, written)
        ]
        for one, other in zip(*parts, strict=True):
            assert one.tolist() == other.tolist()


def test_mirror_images():
    names = ["C[C@H]1CCCO1", "C[C@@H]1CCCO1", "C1C[C@@H]2CC[C@H](C1)N2"]
    names += ["C1C[C@H]2CC[C@@H](C1)O2"]
    assert len(groups_of(names)) == 3
    same = scaffold_split(names, (0.5, 0.25, 0.25))
    assert same[0].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((["CC", "no"],), r"smiles\[1\].*Expected"),
        ((["CC", 3],), r"smiles\[1\].*string"),
        (("CC",), "`smiles` to be a list of SMILES"),
        ((["CC"], (0.8, 0.1)), "`fractions` to be three fractions that sum to 1"),
        ((["CC"], (0.8, 0.3, -0.1)), "`fractions` to be three"),
        ((["CC"], (0.8, "x", 0.1)), r"`fractions\[1\]` to be a number"),
        ((["CC"], (0.8, 0.1, 0.1), 3), "`balanced`"),
        ((["CC"], (0.8, 0.1, 0.1), False, 3), "`chirality`"),
        ((["CC"], (0.8, 0.1, 0.1), True, True, -1), "`seed`"),
    ],
)
def test_wrong_arguments(arguments, text):
    with pytest.raises(ValueError, match=text):
        scaffold_split(*arguments)


def test_tables_are_split_by_scaffold(tmp_path):
    rows = "\n".join(f"{name},{k}" for k, name in enumerate(SMILES))
    (tmp_path / "esol.csv").write_text(f"smiles,y\n{rows}\n")
    graphs = load("esol", path=tmp_path, split_by="scaffold")
    train, valid, _ = scaffold_split(SMILES)
    assert np.flatnonzero(graphs.context["split"] == 0).tolist() == sorted(train)
    assert len(load("esol", "valid", tmp_path, split_by="scaffold")) == len(valid) == 2


@pytest.mark.parametrize("name", ["esol", "freesolv"])
def test_real_tables(shared_data, name):
    with gzip.open(shared_data / "graph_molecules" / f"{name}.csv.gz", "rt") as file:
        smiles = [row["smiles"] for row in csv.DictReader(file)]
    parts = scaffold_split(smiles)
    sizes = [len(part) for part in parts]
    count = len(smiles)
    assert sizes == [int(0.8 * count), int(0.9 * count) - int(0.8 * count), sizes[2]]
    group = {place: number for number, g in enumerate(groups_of(smiles)) for place in g}
    kinds = [{group[place] for place in part.tolist()} for part in parts]
    assert (
        not kinds[0] & kinds[1] and not kinds[0] & kinds[2] and not kinds[1] & kinds[2]
    )
