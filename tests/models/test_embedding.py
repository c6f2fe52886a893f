import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn import models
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphPreprocessor,
    RCMKCompile,
    ReachabilityFilter,
)
from keras_bandgnn.primitives import Plan, ReceptiveField

pytestmark = pytest.mark.every_backend("order_of_the_caller")

H, K = 8, 2


def graphs_of(count=4, seed=0, loops=True):
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        n = int(rng.integers(2, 9))
        ends = rng.integers(0, n, (2, 2 * n))
        if not loops:
            ends = ends[:, ends[0] != ends[1]]
        node = {"kind": rng.integers(0, 4, n)}
        kind = rng.integers(0, 3, ends.shape[1])
        graphs.append(kb.Graph(n, *ends, edge_type=kind, node=node))
    return graphs


def drawn(backbone):
    rng = np.random.default_rng(1)
    for weight in backbone.trainable_variables:
        weight.assign(
            0.4 * rng.normal(size=weight.shape) + (weight.path[-5:] == "gamma")
        )
    return backbone


def gat(**options):
    return drawn(models.GATBackbone({"kind": 4}, H, K, 2, num_edge_types=3, **options))


def task_of(backbone, preprocessor=None):
    return models.GraphClassifier(backbone, 2, preprocessor)


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(tensor))


def reordered(backbone, batch_size=3):
    layers = [RCMKCompile(8), *backbone.graph_layers()]
    return GraphPreprocessor(layers, DynamicBatcher(batch_size - 1))


def test_embeddings_are_the_states_in_the_order_of_the_caller():
    graphs = graphs_of()
    plain = task_of(gat())
    moved = task_of(plain.backbone, reordered(plain.backbone))
    rows = plain.embed(graphs)
    for own, other, graph in zip(rows, moved.embed(graphs), graphs, strict=True):
        (x,) = kb.preprocessing.GraphLoader([graph], num_edge_types=3)[0]
        states = numpy(plain.backbone(x))[0, : graph.num_nodes]
        np.testing.assert_allclose(own, states, atol=1e-5)
        np.testing.assert_allclose(other, states, atol=1e-5)
    for reduce in ("mean", "sum", "max"):
        found = moved.embed(graphs, level="graph", reduce=reduce)
        for vector, own in zip(found, rows, strict=True):
            np.testing.assert_allclose(vector, getattr(own, reduce)(axis=0), atol=1e-5)
    assert plain.embed([]) == []


@pytest.mark.parametrize(
    "name", ["gat", "gcn", "ggnn", "graphormer", "schnet", "painn"]
)
def test_states_of_layers(name):
    rng = np.random.default_rng(0)
    graphs = graphs_of(2, loops=False)
    if name in ("schnet", "painn"):
        graphs = [
            g.replace(
                node={"atomic_number": 1 + g.node["kind"]},
                edge={"displacement": rng.normal(size=(g.num_edges, 3))},
            )
            for g in graphs
        ]
    backbone = {
        "gat": lambda: models.GATBackbone({"kind": 4}, H, K, 2, num_edge_types=3),
        "gcn": lambda: models.GCNBackbone({"kind": 4}, H, 2, num_edge_types=3),
        "ggnn": lambda: models.GGNNBackbone({"kind": 4}, H, 2, num_edge_types=3),
        "graphormer": lambda: models.GraphormerBackbone({"kind": 4}, H, 2, num_heads=K),
        "schnet": lambda: models.SchNetBackbone(5, H, 2, num_gaussians=20),
        "painn": lambda: models.PaiNNBackbone(5, H, 2),
    }[name]()
    task = task_of(drawn(backbone))
    first, second, last, same = (task.embed(graphs, layer=n) for n in (0, 1, 2, -1))
    encode = backbone.encoder if hasattr(backbone, "encoder") else backbone.embedding
    for index, graph in enumerate(graphs):
        np.testing.assert_allclose(last[index], same[index], atol=1e-6)
        assert np.abs(second[index] - last[index]).max() > 1e-3
        if name in ("gat", "gcn", "ggnn"):
            given = {"kind": graph.node["kind"][None]}
        elif name != "graphormer":
            given = graph.node["atomic_number"][None]
        else:
            continue
        np.testing.assert_allclose(first[index], numpy(encode(given))[0], atol=1e-6)


def test_layers_that_are_not_there_and_wrong_arguments():
    graphs = graphs_of(1)
    task = task_of(gat())
    with pytest.raises(ValueError, match=r"`layer` in \[-3, 2\].*Received: layer=3"):
        task.embed(graphs, layer=3)
    with pytest.raises(ValueError, match="`level` to be one of"):
        task.embed(graphs, level="edge")
    with pytest.raises(ValueError, match="global_token=True for reduce='token'"):
        task.embed(graphs, level="graph", reduce="token")
    with pytest.raises(ValueError, match="backbone with attention.*GCNBackbone"):
        task_of(models.GCNBackbone({"kind": 4}, H, num_edge_types=3)).attention_weights(
            graphs
        )


def test_a_task_that_reads_few_nodes_embeds_all_but_those_left_out():
    graphs = [
        g.replace(candidates=[0, 1], label=1, slot=0) for g in graphs_of(3, seed=2)
    ]
    preprocessor = GraphPreprocessor(
        [ReachabilityFilter(1)], plan=Plan(schedule=ReceptiveField(1))
    )
    backbone = models.GGNNBackbone({"kind": 4}, H, 1, num_edge_types=3)
    rows = models.NodeSelector(backbone, preprocessor).embed(graphs)
    left_out = 0
    for own, graph in zip(rows, graphs, strict=True):
        (x,) = kb.preprocessing.GraphLoader(
            [graph.replace(candidates=None, label=None)]
        )[0]
        seen = np.isfinite(own).all(axis=1)
        left_out += (~seen).sum()
        states = numpy(backbone(x))[0, : graph.num_nodes]
        np.testing.assert_allclose(own[:2], states[:2], atol=1e-5)
        assert seen[:2].all()
    assert left_out


def test_tokens_of_graphs():
    graphs = graphs_of(3)
    backbone = drawn(
        models.GraphormerBackbone({"kind": 4}, H, 1, num_heads=K, global_token=True)
    )
    task = task_of(backbone)
    rows = task.embed(graphs, level="graph", reduce="token")
    for own, graph in zip(rows, graphs, strict=True):
        loader = GraphPreprocessor(backbone.graph_layers()).loader(
            [graph], plan=backbone.auto_plan(), num_edge_types=1
        )
        tokens = backbone(loader[0][0], return_tokens=True)[1]
        np.testing.assert_allclose(own, numpy(tokens)[0, 0], atol=1e-5)
    with pytest.raises(ValueError, match="layer=-1 for reduce='token'"):
        task.embed(graphs, level="graph", reduce="token", layer=0)


def test_embeddings_follow_training():
    graphs = [g.replace(label=i % 2) for i, g in enumerate(graphs_of())]
    task = task_of(gat())
    before = task.embed(graphs)[0]
    task.compile(keras.optimizers.SGD(0.5))
    task.fit(graphs, epochs=1, verbose=0)
    after = task.embed(graphs)[0]
    assert np.abs(after - before).max() > 1e-4
    (x, *_) = task.loader(graphs, training=False)[0]
    np.testing.assert_allclose(task.head.get_weights()[0].shape[0], after.shape[1])
    states = numpy(task.backbone(x))
    assert np.abs(states - after[0]).sum(-1).min() < 1e-4


class PlainBackbone(models.Backbone):
    """A backbone that defines no more than it has to."""

    hidden_dim = 4
    num_edge_types = 1

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(4)
        self.build()

    def build(self, input_shape=None):
        self.dense.build((None, None, 2))
        self.built = True

    def call(self, batch, training=False):
        return self.dense(batch["node"]["h"])


def test_a_plain_backbone_embeds_with_its_output_alone():
    graphs = [kb.Graph(3, [0, 1], [1, 2], node={"h": np.ones((3, 2))}, label=1.0)] * 4
    task = models.GraphRegressor(PlainBackbone())
    assert [rows.shape for rows in task.embed(graphs)] == [(3, 4)] * 4
    with pytest.raises(ValueError, match="Define `depth`"):
        task.embed(graphs, layer=0)
    with pytest.raises(ValueError, match="to be a GraphPreprocessor or None"):
        task.preprocessor = 3


@pytest.mark.parametrize("name", ["hidden_dim", "num_edge_types"])
def test_backbones_say_their_width_and_types(name, monkeypatch):
    monkeypatch.setattr(PlainBackbone, name, None)
    with pytest.raises(ValueError, match=f"Expected the backbone to set `{name}`"):
        models.GraphRegressor(PlainBackbone())
