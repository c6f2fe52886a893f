import argparse
import json

import keras
import numpy as np
import pytest

from examples.benchmarks import node_sets
from examples.benchmarks.__main__ import main
from keras_bandgnn.data import from_sets

AREAS = 3


def bibliography(seed=0, authors=60):
    """A graph as that of DBLP, in which an author's term tells the area."""
    rng = np.random.default_rng(seed)
    area = np.arange(authors) % AREAS
    ids = np.arange(authors)
    return from_sets(
        {
            "author": authors,
            "paper": authors,
            "conf": {"id": np.arange(2)},
            "term": {"id": np.arange(AREAS)},
        },
        {
            ("author", "writes", "paper"): [ids, ids],
            ("paper", "at", "conf"): [ids, rng.integers(0, 2, authors)],
            ("paper", "has", "term"): [ids, area],
        },
        label={"author": area},
        reverse=True,
    )


def options(*line):
    parser = argparse.ArgumentParser()
    node_sets.add_arguments(parser)
    return parser.parse_args(["folder", "--hidden", "8", *line])


@pytest.fixture
def graph(monkeypatch):
    monkeypatch.setattr(node_sets, "_PART", 20)
    return node_sets.with_split(bibliography())


def test_authors_are_in_one_part_of_the_split(graph):
    masks = [graph.node[f"{part}_mask"] for part in ("train", "valid", "test")]
    authors = graph.node["set"] == [*graph.sets].index("author")
    np.testing.assert_array_equal(sum(masks), authors)
    assert [mask.sum() for mask in masks] == [20, 20, 20]


@pytest.mark.parametrize("model", node_sets.MODELS)
def test_both_libraries_learn_the_areas(graph, model):
    pytest.importorskip("torch_geometric")
    for train in (node_sets.train_ours, node_sets.train_peer):
        keras.utils.set_random_seed(0)
        result = train(graph, model, options("--epochs", "20", "--rate", "0.03"))
        assert result["score"] == 1 and len(result["times"]) == 20


def test_accuracies_stand_beside_those_of_the_peer(
    graph, monkeypatch, capsys, tmp_path
):
    pytest.importorskip("torch_geometric")
    monkeypatch.setattr(
        "keras_bandgnn.data.load", lambda name, *, path: [bibliography()]
    )
    file = tmp_path / "figures.json"
    line = ["node_sets", str(tmp_path), "--models", "rgcn", "--seeds", "1"]
    line += ["--epochs", "2", "--json", str(file), "--allocator", "default"]
    assert main(line) == 0
    assert "rgcn, torch_geometric" in capsys.readouterr().out
    figures = json.loads(file.read_text())["figures"]["rgcn"]
    assert {*figures} == {"keras-bandgnn", "torch_geometric"}
