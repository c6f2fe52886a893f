"""The molecules of the guard, and how it takes times."""

import pytest

from examples.benchmarks import guard

Chem = pytest.importorskip("rdkit.Chem")


def test_molecules_are_those_of_their_seed():
    smiles = guard.made_smiles(300)
    sizes = [Chem.MolFromSmiles(text).GetNumAtoms() for text in smiles]
    assert min(sizes) >= 6 and max(sizes) <= 50
    assert guard.made_smiles(20) == smiles[:20] != guard.made_smiles(20, seed=1)
    assert len(set(smiles)) > 250


def test_stores_have_what_the_subjects_read(tmp_path):
    guard.write_stores(tmp_path, 20)
    assert {path.name for path in tmp_path.iterdir()} == {"bonds", "atoms"}


def test_times_alternate():
    calls = []
    pair = guard.alternated(3, lambda: calls.append("ours"), lambda: 2.0)
    assert calls == ["ours"] * 3 and pair[0] < 1 and pair[1] == 2.0
