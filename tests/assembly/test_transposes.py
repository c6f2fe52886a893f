"""Transposes of sums over edges, which the host lays out for one whole graph."""

import pickle

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn import ops as graph_ops
from keras_bandgnn import primitives
from keras_bandgnn.preprocessing import GraphLoader
from keras_bandgnn.primitives import Banded, Grouped, Plan

pytestmark = pytest.mark.every_backend

PLANS = {
    "segment": Plan(),
    "banded": Plan(Banded(8)),
    "transform": Plan(rest=Grouped(16)),
    "aggregate": Plan(rest=Grouped(16, "aggregate")),
}


def graph_of(number=0, nodes=40, edges=150):
    rng = np.random.default_rng(number)
    return kb.Graph(
        nodes,
        *rng.integers(0, nodes, (2, edges)),
        edge_type=rng.integers(0, 3, edges),
        node={"x": rng.normal(size=(nodes, 4))},
        edge={"w": rng.random(edges)},
        label=rng.integers(0, 2, nodes),
        label_level="node",
    )


def slopes(x):
    """The sums under a plan, and their gradients of states and kernel."""
    arrays = keras.tree.map_structure(keras.ops.convert_to_tensor, x)
    count = x["node"]["mask"].shape[1]
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(3, 4, 5)).astype("float32")
    way = keras.ops.convert_to_tensor(rng.normal(size=(1, count, 5)).astype("float32"))
    plan = primitives.prepare(arrays["plan"], count, 3, "float32", use_bias=False)

    def total(values):
        return keras.ops.sum(primitives.propagate(plan, *values) * way)

    states = np.pad(graph_of().node["x"], [(0, count - 40), (0, 0)])[None]
    values = [keras.ops.convert_to_tensor(v) for v in (states, kernel)]
    out, rows = graph_ops.value_and_gradient(total, values)
    return [
        keras.ops.convert_to_numpy(keras.ops.stop_gradient(v)) for v in (out, *rows)
    ]


@pytest.mark.parametrize("edge_weight", [None, "w"])
@pytest.mark.parametrize("name", PLANS)
def test_gradients_are_those_of_steps_that_sort(name, edge_weight):
    loader = GraphLoader(
        [graph_of()], plan=PLANS[name], num_edge_types=3, edge_weight=edge_weight
    )
    plain = loader.build(0, 0)[0]
    loader.assembler.transpose = True
    laid_out = loader.build(0, 0)[0]
    assert not any("back_pointer" in arrays for arrays in plain["plan"].values())
    assert any("back_pointer" in arrays for arrays in laid_out["plan"].values())
    for one, other in zip(slopes(plain), slopes(laid_out), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    again = pickle.loads(pickle.dumps(loader.assembler))
    assert again.transpose


def test_the_batch_of_one_graph_to_train_on_has_them():
    task = kb.models.NodeClassifier(
        kb.models.RGCNBackbone({"x": {"features": 4}}, 8, num_edge_types=3), 2
    )
    graphs = [graph_of(number) for number in range(4)]

    def has_transposes(graphs, **options):
        x = task.loader(graphs, **options)[0][0]
        return any("back_pointer" in arrays for arrays in x["plan"].values())

    # Products of TensorFlow have gradients without transposes.
    assert has_transposes(graphs[:1]) == graph_ops.USES_TRANSPOSE
    assert not has_transposes(graphs)
    assert not has_transposes(graphs[:1], training=False)
    history = task.fit(graphs[:1], epochs=2, verbose=0).history["loss"]
    assert np.isfinite(history).all()
