"""How often each batching algorithm compiles, counted in two ways."""

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphPreprocessor,
    StaticBatcher,
)
from keras_bandgnn.training import RecompilationError, RecompileGuard

pytestmark = pytest.mark.every_backend

COMPILES = keras.backend.backend() in ("jax", "tensorflow")
EPOCHS = 2


def complete_graphs(count):
    rng = np.random.default_rng(0)
    graphs = []
    for n in rng.normal(18, 4, count).clip(3, 29).astype(int):
        sender, receiver = np.nonzero(~np.eye(n, dtype=bool))
        graphs.append(
            kb.Graph(
                n,
                sender,
                receiver,
                node={"element": rng.integers(0, 5, n)},
                label=float(n),
            )
        )
    return graphs


def task(batcher):
    backbone = kb.models.GGNNBackbone(
        {"element": 5}, hidden_dim=4, num_steps=1, num_edge_types=1
    )
    model = kb.models.GraphRegressor(backbone, 1, GraphPreprocessor([], batcher))
    # Keras leaves XLA out on CPUs with TensorFlow, which then compiles no shapes.
    model.compile(jit_compile=True)
    return model


def power_above(value):
    padded = 1
    while padded < value:
        padded *= 2
    return padded


ROUND = {
    "64": lambda n, e: (-(-(n + 1) // 64) * 64, max(64, -(-e // 64) * 64)),
    "power_of_two": lambda n, e: (power_above(n + 1), power_above(e)),
    "one": lambda n, e: "one",
}


@pytest.mark.skipif(not COMPILES, reason="torch runs eagerly by default")
@pytest.mark.parametrize(
    ("batcher", "rounding"),
    [
        (DynamicBatcher(7), "one"),
        (DynamicBatcher(7, packing="best_fit"), "one"),
        (StaticBatcher(7), "one"),
        (StaticBatcher(7, "64"), "64"),
        (StaticBatcher(7, "power_of_two"), "power_of_two"),
    ],
)
def test_one_compilation_per_padded_shape(batcher, rounding):
    graphs = complete_graphs(34)
    model = task(batcher)
    guard = RecompileGuard(action="count")
    model.fit(graphs, epochs=EPOCHS, verbose=0, callbacks=[guard])
    loader = model.loader(graphs, shuffle=True)
    nodes = np.array([g.num_nodes for g in graphs])
    edges = np.array([g.num_edges for g in graphs])
    shapes = {
        ROUND[rounding](int(nodes[s.members].sum()), int(edges[s.members].sum()))
        for epoch in range(EPOCHS)
        for s in loader.composition(epoch)
    }
    assert guard.count == len(shapes)
    if rounding == "64":
        assert len(shapes) > 3


@pytest.mark.skipif(not COMPILES, reason="torch runs eagerly by default")
def test_the_guard_stops_a_fit_whose_shapes_vary():
    model = task(StaticBatcher(7, "64"))
    with pytest.raises(RecompilationError, match="edge/mask: "):
        model.fit(complete_graphs(34), verbose=0, callbacks=[RecompileGuard(budget=2)])
