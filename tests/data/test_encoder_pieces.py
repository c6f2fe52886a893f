"""Encoders that convert many items at once give what they give one by one."""

import itertools
import subprocess
import sys

import numpy as np
import pytest

from keras_bandgnn import Graph, workers
from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.data.converters.smiles import parse_smiles
from keras_bandgnn.preprocessing import GraphPreprocessor, SmilesEncoder, TableEncoder
from keras_bandgnn.preprocessing.encoding import (
    graph_encoder,
    smiles_encoder,
    table_encoder,
)

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


def rows():
    solvents = itertools.cycle(["water", "oil", None])
    return [
        {"smiles": smiles, "solvent": solvent, "kelvin": 300.0 + k}
        for k, (smiles, solvent) in enumerate(zip(SMILES, solvents, strict=False))
    ]


@pytest.mark.parametrize("items", [1, 4, 512])
def test_rows_are_those_of_single_calls(items, monkeypatch):
    monkeypatch.setattr(table_encoder, "_PIECE_ROWS", items)
    encoder = TableEncoder("smiles", SmilesEncoder(), ["solvent", "kelvin"])
    encoder.adapt(rows())
    expected = FlatGraphs.from_graphs([encoder(row) for row in rows()])
    found = encoder.encode(rows()).graphs
    assert {*found.columns()} == {*expected.columns()}
    for name, column in expected.columns().items():
        assert found.columns()[name].dtype == column.dtype
        np.testing.assert_array_equal(found.columns()[name], column, err_msg=name)
    assert [dict(info) for info in found.info] == [dict(g.info) for g in expected]


@pytest.mark.parametrize("items", [1, 4, 512])
def test_rows_with_errors_are_counted_over_pieces(items, monkeypatch):
    monkeypatch.setattr(table_encoder, "_PIECE_ROWS", items)
    encoder = TableEncoder("smiles", SmilesEncoder(), ["kelvin"]).adapt(rows())
    data = rows()
    data[2]["smiles"], data[5]["kelvin"] = "C1CC", None
    del data[8]["kelvin"]
    with pytest.raises(ValueError, match="Received: item 2: .*invalid SMILES"):
        encoder.encode(data)
    encoder.on_error = "skip"
    encoded = encoder.encode(data)
    assert [*encoded.errors] == [2, 5, 8]
    assert encoded.positions.tolist() == [0, 1, 3, 4, 6, 7, 9, 10]
    same = encoder.encode([row for k, row in enumerate(data) if k not in (2, 5, 8)])
    assert encoded.graphs.node["kelvin"].tolist() == same.graphs.node["kelvin"].tolist()


def test_long_lists_of_strings_are_converted_by_all_cores(monkeypatch):
    monkeypatch.setattr(graph_encoder, "_JOB_ITEMS", 3)
    monkeypatch.setattr(graph_encoder, "_MANY_ITEMS", 4)
    monkeypatch.setattr(graph_encoder.os, "cpu_count", lambda: 5)
    started = []

    def ordered_map(function, jobs, processes, died, **options):
        started.append(processes)
        return (function(*job) for job in jobs)

    monkeypatch.setattr(workers, "ordered_map", ordered_map)
    encoder, table = SmilesEncoder(), TableEncoder("smiles", SmilesEncoder(), [])
    table.adapt(rows())
    for converts, items in (
        (encoder, SMILES),
        (encoder, [*SMILES[:6], np.nan]),
        (table, rows()),
    ):
        converts.on_error = "skip"
        converts.encode(items)
    assert started == [4, 3, 4]
    # Too few; molecules, whose properties a process would not see; graphs; set to 1.
    molecules = [*map(parse_smiles, SMILES)]
    graphs = [encoder(smiles) for smiles in SMILES]
    for items in (SMILES[:3], molecules, graphs):
        encoder.encode(items)
    encoder.processes = 1
    encoder.encode(SMILES)
    assert len(started) == 3


def test_scripts_need_no_guard_and_may_hold_the_function(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from keras_bandgnn.preprocessing import SmilesEncoder\n"
        "from keras_bandgnn.preprocessing.encoding import graph_encoder\n"
        "graph_encoder._JOB_ITEMS = 2\n"
        "print('begins')\n"
        "class Padded(SmilesEncoder):\n"
        "    def encode_item(self, item):\n"
        "        return super().encode_item(item.strip())\n"
        "encoder = Padded()\n"
        "encoder.processes = 2\n"
        "print(len(encoder.encode([' CC', 'CO ', 'CN', ' CCC ']).graphs))\n"
    )
    line = [sys.executable, str(script)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["begins", "4"]
