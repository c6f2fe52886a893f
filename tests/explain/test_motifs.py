"""Planted motifs are found by every method."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from keras_bandgnn import explain

EXAMPLE = Path(__file__).parents[2] / "examples" / "explanations.py"
GRADIENTS = (explain.saliency, explain.integrated_gradients, explain.gnn_explainer)


@pytest.mark.parametrize(
    ("data", "network", "count", "epochs", "methods"),
    [
        ("houses", "GGNN", 300, 30, GRADIENTS),
        pytest.param(
            *("houses", "GAT", 300, 30, (explain.saliency, explain.attention)),
            marks=pytest.mark.release,
        ),
        pytest.param(
            *("molecules", "GGNN", 600, 12, GRADIENTS), marks=pytest.mark.release
        ),
        ("molecules", "GAT", 200, 8, (explain.attention,)),
    ],
)
@pytest.mark.release
def test_motifs_are_found(data, network, count, epochs, methods):
    example = runpy.run_path(str(EXAMPLE))
    if data == "molecules":
        pytest.importorskip("rdkit")
    rng = np.random.default_rng(0)
    graphs = example["known"](rng, network, data, count)
    asked, edges = example["asked"](rng, data, 8)
    task = example["classifier"](network, data, graphs)
    # The same weights on every backend.
    drawn = np.random.default_rng(0 if network == "GAT" else 1)
    weights = []
    for old in task.get_weights():
        if old.ndim > 1:
            scale = (2 / (old.shape[-1] + old.shape[-2])) ** 0.5
            old = scale * drawn.normal(size=old.shape)
        weights.append(old)
    task.set_weights(weights)
    task.fit(graphs, epochs=epochs, verbose=0)
    for method in methods:
        found = method(task, asked, target=1)
        auc = explain.ground_truth_auc(found, edges).mean()
        print(f"{data} {network} {method.__name__}: {auc:.3f}")
        assert auc >= 0.95, (method.__name__, auc)
        if method is explain.integrated_gradients:
            for one in found:
                change = abs(one.output - one.baseline)
                assert abs(one.residual) <= 1e-3 * max(change, 1)
