import argparse
import json

import numpy as np
import pytest

from examples.benchmarks import pooling
from examples.benchmarks.__main__ import main

CLASSES = 3


@pytest.fixture
def folder(tmp_path):
    """A set of rings, in which the kind of the nodes is the class."""
    folder = tmp_path / "RINGS"
    folder.mkdir()
    sizes = np.random.default_rng(0).integers(3, 7, 30)
    starts = np.cumsum(sizes) - sizes + 1
    edges, graph, kinds = [], [], []
    for number, (n, start) in enumerate(zip(sizes, starts, strict=True)):
        for i in range(n):
            ends = start + i, start + (i + 1) % n
            edges += [ends, ends[::-1]]
        graph += [number + 1] * n
        kinds += [number % CLASSES] * n
    columns = {
        "A": [f"{a}, {b}" for a, b in edges],
        "graph_indicator": graph,
        "node_labels": kinds,
        "graph_labels": np.arange(30) % CLASSES,
    }
    for name, values in columns.items():
        text = "".join(f"{value}\n" for value in values)
        (folder / f"RINGS_{name}.txt").write_text(text)
    return tmp_path


def test_folds_have_equal_shares_of_the_classes():
    labels = np.arange(60) % CLASSES
    folds = pooling.folds_of(labels, 10, seed=0)
    for fold in range(10):
        assert np.bincount(labels[folds == fold]).tolist() == [2, 2, 2]
    assert (pooling.folds_of(labels, 10, seed=1) != folds).any()


def test_models_run_on_all_folds(folder, tmp_path, capsys):
    file = tmp_path / "figures.json"
    line = "pooling --sets RINGS --models none sag diff --folds 2 --epochs 1"
    arguments = [*line.split(), "--hidden", "8", "--clusters", "2", "--batch", "8"]
    assert main([*arguments, "--json", str(file), str(folder)]) == 0
    assert "largest class" in capsys.readouterr().out
    runs = json.loads(file.read_text())["figures"]
    assert [run["pooling"] for run in runs] == ["none", "sag", "diff"]
    for run in runs:
        assert len(run["scores"]) == 2
        assert all(0 <= score <= 1 for score in run["scores"])


@pytest.mark.parametrize("model", pooling.MODELS)
def test_models_differ_in_pooling_alone(model):
    parser = argparse.ArgumentParser()
    pooling.add_arguments(parser)
    task = pooling.task_of(model, 3, CLASSES, parser.parse_args(["folder"]))
    assert task.backbone.pools == (model in ("topk", "sag"))
    readout = getattr(task.head, "readout", None)
    assert (readout is not None) == (model in ("mincut", "diff"))
    assert (task.backbone.num_layers, task.backbone.hidden_dim) == (3, 64)
