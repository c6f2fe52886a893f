"""Encoders that convert many items at once give what they give one by one."""

import itertools

import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.preprocessing import GraphPreprocessor, SmilesEncoder
from keras_bandgnn.preprocessing.encoding import graph_encoder, smiles_encoder

pytest.importorskip("rdkit")
# Chiral atoms, charges, isotopes, dative and unknown bonds, a single atom, metals.
SMILES = [
    "CCO",
    "C[C@H](N)C(=O)[O-]",
    "[NH3][Pt](Cl)(Cl)[NH3]",
    "C~C",
    "[2H]C",
    "c1ccccc1C#N",
    "[Na+].[Cl-]",
    "F/C=C/F",
    "C",
    "CC |$a;b$|",
    "S(=O)(=O)(O)O",
]


@pytest.mark.parametrize("items", [1, 4, 512])
@pytest.mark.parametrize("hydrogens", [False, True])
@pytest.mark.parametrize("features", smiles_encoder.FEATURES)
def test_molecules_are_those_of_single_calls(features, hydrogens, items, monkeypatch):
    monkeypatch.setattr(smiles_encoder, "_PIECE_ITEMS", items)
    encoder = SmilesEncoder(hydrogens, features=features)
    graphs = [encoder(smiles) for smiles in SMILES]
    found, expected = encoder.encode(SMILES).graphs, FlatGraphs.from_graphs(graphs)
    assert [*found.columns()] == [*expected.columns()]
    for name, column in expected.columns().items():
        assert found.columns()[name].dtype == column.dtype
        np.testing.assert_array_equal(found.columns()[name], column, err_msg=name)
    assert [dict(info) for info in found.info] == [dict(g.info) for g in graphs]


@pytest.mark.parametrize("items", [1, 2, 512])
def test_items_are_counted_over_pieces(items, monkeypatch):
    monkeypatch.setattr(smiles_encoder, "_PIECE_ITEMS", items)
    data = ["CC", "C1CC", "CO", None, "", "CN"]
    encoded = SmilesEncoder(on_error="skip").encode(data)
    assert encoded.positions.tolist() == [0, 2, 5]
    assert [*encoded.errors] == [1, 3, 4]
    with pytest.raises(ValueError, match="Received: item 1: .*invalid SMILES"):
        SmilesEncoder().encode(data)


class Marked(SmilesEncoder):
    def encode_item(self, item):
        graph = super().encode_item(item)
        return graph.replace(context={"length": [len(item)]})


class Written(SmilesEncoder):
    def call(self, item):
        return super().call(item.strip("<>"))


def test_subclasses_convert_items_in_their_own_way():
    assert Marked().encode(SMILES).graphs.context["length"].tolist() == [
        [len(smiles)] for smiles in SMILES
    ]
    assert len(Written().encode(["<CC>", "<CO>"]).graphs) == 2


def test_processes_give_the_same_without_keras(monkeypatch):
    monkeypatch.setattr(graph_encoder, "_JOB_ITEMS", 6)
    encoder = SmilesEncoder()
    expected = encoder.encode(SMILES).graphs
    encoder.processes = 2
    found = encoder.encode(SMILES)
    assert found.positions.tolist() == [*range(len(SMILES))]
    for name, column in expected.columns().items():
        np.testing.assert_array_equal(found.graphs.columns()[name], column)
    # An encoder alone leaves the arrays of the graphs as they are.
    graphs = GraphPreprocessor([encoder]).transform(expected)
    assert np.shares_memory(graphs.senders, expected.senders)
    assert graphs.metadata and not hasattr(expected, "metadata")


@pytest.mark.parametrize("items", [1, 512])
def test_graphs_that_disagree_are_named_by_their_item(items, monkeypatch):
    monkeypatch.setattr(graph_encoder, "CHUNK_GRAPHS", items)
    graphs = [Graph(2, [0], [1], node={"x": np.ones((2, k))}) for k in (3, 3, 4)]
    data = [*itertools.chain(["C1CC"], graphs)]
    with pytest.raises(ValueError, match=r"`node\['x'\]`.*in item 3, as in item 1"):
        SmilesEncoder(on_error="skip").encode(data)
    assert SmilesEncoder(on_error="skip").encode(["C1CC"] * 3).graphs is None
