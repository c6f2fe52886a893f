"""The benchmark of growth, on small graphs."""

import keras
import numpy as np
import pytest

from examples.benchmarks import growth
from examples.benchmarks.__main__ import main
from keras_bandgnn import models


def test_exponents():
    nodes = [10, 100, 1000]
    assert growth.exponent(nodes, [3.0, 30.0, 300.0]) == pytest.approx(1)
    assert growth.exponent(nodes, [1.0, 100.0, 10_000.0]) == pytest.approx(2)


def test_every_backbone_is_measured():
    measured = {type(growth.backbone_of(name, 8, 1)) for name in growth.MODELS}
    exported = {
        cls
        for cls in vars(models).values()
        if isinstance(cls, type) and issubclass(cls, models.Backbone)
    }
    abstract = {models.Backbone, models.MessagePassingBackbone}
    # Without messages nothing grows with the edges.
    assert exported - measured - abstract == {models.EmbeddingBackbone}


@pytest.mark.release
def test_run(capsys):
    sizes = ["--nodes", "40", "80", "160", "--rounds", "1", "--hidden", "8"]
    backend = ["--backend", keras.backend.backend()]
    assert main(["growth", *backend, "--models", "gcn", "painn", *sizes]) == 0
    out = capsys.readouterr().out
    assert "exponent" in out and "painn" in out
    assert main(["growth", *backend, "--nodes", "80", "40"]) == 1
    assert "rising order" in capsys.readouterr().err


def test_edges_are_eight_per_node():
    for atomistic in (False, True):
        graph = growth.graph_of(500, atomistic)
        assert 8 * 500 == pytest.approx(graph.num_edges, rel=0.3)
        assert np.max(graph.senders) < 500
