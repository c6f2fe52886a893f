"""SignNet: eigenvectors whose signs do not matter."""

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn import Graph, models
from keras_bandgnn.layers import NodeEncoder, SignNet
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphLoader,
    GraphPreprocessor,
    StructuralEncoding,
    ToUndirected,
)
from keras_bandgnn.primitives import Plan
from keras_bandgnn.testing import run_layer_test

K = 3


def graph(count=11, seed=0, **options):
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, count, (2, 2 * count))
    return Graph(
        count, *ends, node={"laplacian": rng.normal(size=(count, K))}, **options
    )


def batch_of(*graphs, nodes=64):
    batcher = DynamicBatcher(budget={"node": nodes, "edge": 256})
    return GraphLoader(list(graphs), batcher, Plan(), shuffle=False)[0][0]


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(tensor))


def relu(x):
    return np.maximum(x, 0)


def oracle(layer, one):
    """The equation of the docstring, an eigenvector and a sign at a time."""
    matrix = np.zeros((one.num_nodes, one.num_nodes))
    np.add.at(matrix, (one.receivers, one.senders), 1)
    weights = {w.path.split("/", 1)[1]: numpy(w) for w in layer.weights}

    def dense(name, x):
        return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]

    def phi(x):
        for number in range(layer.num_layers):
            x = relu(dense(f"inner_{number}", x + matrix @ x))
            x = relu(dense(f"outer_{number}", x))
        return x

    vectors = one.node["laplacian"].astype(float).T
    rows = [phi(v[:, None]) + phi(-v[:, None]) for v in vectors]
    return dense("rho_outer", relu(dense("rho_inner", np.concatenate(rows, axis=1))))


def test_the_published_equation():
    one = graph()
    batch = batch_of(one)
    layer = SignNet(5, hidden=4)
    run_layer_test(layer, batch["node"]["laplacian"], batch)
    for weight in layer.weights:
        weight.assign(np.random.default_rng(1).normal(size=weight.shape) / 2)
    out = numpy(layer(batch["node"]["laplacian"], batch))[0, :11]
    np.testing.assert_allclose(out, oracle(layer, one), rtol=1e-4, atol=1e-5)


def test_signs_order_and_neighbours_in_the_batch_do_not_matter():
    one, other = graph(), graph(7, 1)
    layer = SignNet(5)
    batch = batch_of(one)
    vectors = batch["node"]["laplacian"]
    out = numpy(layer(vectors, batch))[0, :11]
    flipped = numpy(layer(vectors * np.float32([1, -1, -1]), batch))[0, :11]
    np.testing.assert_allclose(out, flipped, atol=1e-6)
    # Signs of single nodes are no signs of eigenvectors.
    some = vectors * np.where(np.arange(64) % 2, 1, -1)[:, None].astype("float32")
    assert np.abs(numpy(layer(some, batch))[0, :11] - out).max() > 1e-3
    both = batch_of(other, one, nodes=96)
    out_of_both = numpy(layer(both["node"]["laplacian"], both))[0, 7:18]
    np.testing.assert_allclose(out_of_both, out, atol=1e-5)
    order = np.random.default_rng(2).permutation(11)
    mixed = batch_of(one.subgraph(order))
    out_mixed = numpy(layer(mixed["node"]["laplacian"], mixed))[0, :11]
    np.testing.assert_allclose(out_mixed, out[order], atol=1e-5)


def test_wrong_shapes():
    with pytest.raises(ValueError, match=r"`states`.*\[G, N, k\].*\[1, 4\]"):
        SignNet(4).build((1, 4))
    encoder = NodeEncoder(4, {"laplacian": {"eigenvectors": 2}})
    with pytest.raises(ValueError, match="with 2 channels"):
        encoder.check(graph().node)
    encoder.level = "edge"
    with pytest.raises(ValueError, match="eigenvectors are features of nodes"):
        encoder.check(graph().node)


@pytest.mark.release(elsewhere=True)
def test_signs_of_a_graph_do_not_change_predictions(tmp_path):
    graphs = [
        ToUndirected()(graph(9, seed, label=seed % 2).replace(node={"x": np.ones(9)}))
        for seed in range(4)
    ]
    encode = StructuralEncoding(laplacian=K)
    backbone = models.GINEBackbone(
        {"x": {"features": 1}, "laplacian": {"eigenvectors": K}},
        hidden_dim=8,
        num_layers=2,
        norm="layer",
    )
    task = models.GraphClassifier(backbone, 2, preprocessor=GraphPreprocessor([encode]))
    task.fit(graphs, epochs=2, verbose=0)
    logits = task.predict(graphs, verbose=0)
    plain = models.GraphClassifier.from_config(task.get_config())
    plain.preprocessor = GraphPreprocessor()
    plain.predict(list(encode(graphs)), verbose=0)
    for target, source in zip(plain.weights, task.weights, strict=True):
        target.assign(numpy(source))
    flipped = [
        one.replace(
            node={**one.node, "laplacian": one.node["laplacian"] * [-1.0, 1.0, -1.0]}
        )
        for one in encode(graphs)
    ]
    np.testing.assert_allclose(plain.predict(flipped, verbose=0), logits, atol=1e-5)
    task.save_to_preset(tmp_path / "preset")
    again = models.Task.from_preset(tmp_path / "preset")
    np.testing.assert_allclose(again.predict(graphs, verbose=0), logits, atol=1e-6)
    (scores,) = kb.explain.saliency(task, graphs[:1])
    assert scores.node_features["laplacian"].shape == (9, K)
