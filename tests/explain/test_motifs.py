"""Planted motifs are found by every method."""

import runpy
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_bandgnn import explain, models

EXAMPLE = Path(__file__).parents[2] / "examples" / "explanations.py"


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLE))


def trained(example, backbone, make, count, epochs):
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    data = make(rng, count)
    task = example["train"](backbone(), data, epochs)
    return task, [each for each in make(rng, 16) if each[0].label]


def check(example, task, cases, methods):
    graphs, edges = (list(part) for part in zip(*cases, strict=True))
    nodes = [example["nodes_of"](*case) for case in cases]
    for method in methods:
        found = method(task, graphs, target=1)
        of_edges = explain.ground_truth_auc(found, edges).mean()
        of_nodes = explain.ground_truth_auc(found, nodes, "node").mean()
        assert of_edges >= 0.95, (method.__name__, of_edges)
        assert of_nodes >= 0.95, (method.__name__, of_nodes)
        if method is explain.integrated_gradients:
            for one in found:
                change = abs(one.output - one.baseline)
                assert abs(one.residual) <= 1e-3 * max(change, 1)
    return found


GRADIENTS = (explain.saliency, explain.integrated_gradients, explain.gnn_explainer)


def test_houses_in_random_graphs(example):
    def backbone():
        return models.GGNNBackbone({"kind": 6}, 32, num_steps=2, num_edge_types=1)

    task, cases = trained(example, backbone, example["houses"], 300, 15)
    check(example, task, cases, GRADIENTS)


def test_houses_by_attention(example):
    def backbone():
        return models.GATBackbone({"kind": 6}, 32, num_heads=2, num_layers=2)

    task, cases = trained(example, backbone, example["houses"], 300, 15)
    check(example, task, cases, (explain.attention,))


def test_benzene_rings_in_molecules(example):
    pytest.importorskip("rdkit")

    def backbone():
        return models.GGNNBackbone({"element": 18}, 32, num_steps=3, num_edge_types=5)

    task, cases = trained(example, backbone, example["molecules"], 300, 15)
    check(example, task, cases, GRADIENTS)
