"""What presets of molecules take: SMILES, or an error and a card that say what."""

import csv
import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.models import Task, list_presets
from keras_bandgnn.models.atomistic_backbone import AtomisticBackbone
from keras_bandgnn.saving import preset_paths

HOME = Path(kb.__file__).parents[1] / "presets"
DATA = Path(os.environ.get("KB_DATA", "none"))
ATOMS = ("painn", "schnet", "mpeu")
MOLECULES = [
    name
    for name in list_presets()
    if name.startswith(ATOMS) or "zinc" in name or name.startswith("gine")
]


def preset(name):
    trained = (HOME / name / preset_paths.WEIGHTS).is_file()
    return Task.from_preset(name, load_weights=trained)


def test_presets_of_molecules_are_those_with_an_encoder_of_them():
    """No preset that reads atoms is left out of `MOLECULES`."""
    encoders = {}
    for name in list_presets():
        config = json.loads((HOME / name / preset_paths.PREPROCESSOR).read_text())
        layers = config["config"]["layers"]
        encoders[name] = layers[0]["class_name"] if layers else None
    kinds = ("SmilesEncoder", "AtomsEncoder")
    assert {n for n, kind in encoders.items() if kind in kinds} == set(MOLECULES)


@pytest.mark.parametrize("name", MOLECULES)
def test_presets_take_smiles_or_say_what_they_take(name):
    chem = pytest.importorskip("rdkit.Chem")
    task = preset(name)
    card = (HOME / name / "README.md").read_text()
    card = card.partition("## Input")[2].partition("\n## ")[0]
    if not isinstance(task.backbone, AtomisticBackbone):
        (value,) = task.predict(["CCO"])
        assert np.isfinite(value).all()
        np.testing.assert_allclose(task.predict([chem.MolFromSmiles("CCO")]), [value])
        assert "SMILES" in card and 'predict(["CCO"])' in card
        return
    words = ("coordinates", "EmbedMolecule", "ase.Atoms", "read_structures")
    for items in (["CCO"], [chem.MolFromSmiles("CCO")]):
        with pytest.raises(ValueError, match="an Atoms of ASE") as error:
            task.predict(items)
        assert all(word in str(error.value) for word in words)
    assert all(word in card for word in words)


@pytest.mark.parametrize("name", [n for n in MOLECULES if n.startswith(ATOMS)])
def test_cards_make_coordinates(name, capsys):
    """The lines of the card run, and give a number."""
    pytest.importorskip("rdkit")
    pytest.importorskip("ase")
    card = (HOME / name / "README.md").read_text().partition("## Input")[2]
    code = card.partition("```python\n")[2].partition("```")[0]
    if "aflow" in name:  # of crystals
        return
    exec(code, {"model": preset(name)})
    assert "array" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name, file, score",
    [
        ("gine_zinc", "graph_zinc_official/zinc_12k_official.csv.gz", 0.142),
        ("graphormer_slim_zinc", "graph_zinc/zinc_12k_like.csv.gz", 0.292),
    ],
)
def test_scores_from_smiles_are_those_of_the_cards(name, file, score):
    pytest.importorskip("rdkit")
    if not (DATA / file).is_file():
        pytest.skip("KB_DATA has no ZINC")
    with gzip.open(DATA / file, "rt") as stream:
        rows = [row for row in csv.DictReader(stream) if row["split"] == "test"]
    label = np.array([[float(row["y_normalised"])] for row in rows])
    predictions = preset(name).predict([row["smiles"] for row in rows])
    assert abs(np.abs(np.stack(predictions) - label).mean() - score) < 6e-4


@pytest.mark.parametrize("features", ["ids", "columns", "zinc"])
def test_features_of_molecules(features):
    pytest.importorskip("rdkit")
    encoder = kb.preprocessing.SmilesEncoder(features=features)
    again = type(encoder).from_config(encoder.get_config())
    graph = again("C[N+](=O)[O-]")
    assert graph.info["smiles"] == "C[N+](=O)[O-]"
    assert set(graph.node) == set(encoder.inputs())
    assert set(graph.edge) == set(encoder.edge_inputs())
    assert graph.edge_type.max() < encoder.num_edge_types
    if features == "zinc":
        assert graph.node["atom"].tolist() == [0, 12, 1, 7]
    with pytest.raises(ValueError, match="`features`"):
        kb.preprocessing.SmilesEncoder(features="benchmark")


def test_units_of_qm9_agree():
    """The official energy in kcal/mol, times the factor of the cards, is in eV."""
    from keras_bandgnn.data.datasets import qm9

    assert qm9.UNITS["u0_atom"] == "kcal/mol"
    for name in ("painn_qm9_u0", "schnet_qm9_u0"):
        card = (HOME / name / "README.md").read_text()
        assert "in eV" in card and "kcal/mol: times 0.0433641" in card


def test_atoms_that_zinc_does_not_have_are_named(caplog):
    pytest.importorskip("rdkit")
    encoder = kb.preprocessing.SmilesEncoder(features="zinc")
    encoder(["CCO", "c1ccccc1"])
    assert not caplog.records
    encoder(["CCO", "C[Hg]C", "C[Se]C"])
    (record,) = caplog.records
    assert "2 of 3 molecules (first: item 1)" in record.getMessage()
