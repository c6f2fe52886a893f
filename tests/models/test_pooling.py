"""Message-passing backbones with pooling between their layers."""

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.layers import SAGPooling, Set2SetReadout, TopKPooling
from keras_bandgnn.plans import Banded, Dense, Plan
from keras_bandgnn.testing import gradients_of
from tests.layers.pooling_cases import (
    WIDTH,
    batch_of,
    graphs_of,
    numpy,
    peer_inputs,
    peer_pooling,
)
from tests.oracles.pooling import projections

pytestmark = pytest.mark.every_backend("plan", "torch_geometric", "compiles_once")
EDGES = {"edge_inputs": {"e": {"features": WIDTH}}}
BACKBONES = {
    "GAT": (kb.models.GATBackbone, {"num_heads": 2}),
    "GATv2": (kb.models.GATv2Backbone, {"num_heads": 2, **EDGES}),
    "GCN": (kb.models.GCNBackbone, {}),
    "GINE": (kb.models.GINEBackbone, {"jumping_knowledge": "concat", **EDGES}),
    "GatedGCN": (kb.models.GatedGCNBackbone, EDGES),
    "PNA": (kb.models.PNABackbone, {"delta": 1.2, "norm": "graph"}),
    "RGCN": (kb.models.RGCNBackbone, {"num_edge_types": 3}),
    "SAGE": (kb.models.SAGEBackbone, {"reduce": "max", "virtual_node": True}),
}


def backbone_of(name="GCN", pooling=None, num_layers=3, **options):
    make, defaults = BACKBONES[name]
    options = {"num_layers": num_layers, **defaults, **options}
    return make({"h": {"features": WIDTH}}, 8, pooling=pooling, **options)


def task_of(*args, **options):
    keras.utils.set_random_seed(0)
    return kb.models.GraphClassifier(backbone_of(*args, **options), 2)


def stays(task, graphs):
    """How many nodes of each graph have a state at the output."""
    return [int(rows.any(axis=1).sum()) for rows in task.embed(graphs)]


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize("pooling", [TopKPooling(0.6), SAGPooling(0.6)])
def test_padding_and_packing_change_nothing(name, pooling):
    num_types = BACKBONES[name][1].get("num_edge_types", 1)
    graphs = graphs_of((3, 1, 7, 12), num_types)
    task = task_of(name, pooling)
    expected = task(batch_of(graphs))
    assert stays(task, graphs) == [2, 1, 3, 5]
    other = task(batch_of(graphs, nodes=57, slots=9, edges=131))
    np.testing.assert_allclose(numpy(other)[0, :4], numpy(expected)[0, :4], atol=1e-5)
    for place, graph in enumerate(graphs):
        alone = task(batch_of([graph], nodes=12, slots=2, edges=36))
        np.testing.assert_allclose(
            numpy(alone)[0, 0], numpy(expected)[0, place], atol=1e-5
        )


@pytest.mark.parametrize("plan", [Plan(Banded(4)), Plan(Dense(16))])
def test_the_plan_changes_nothing(plan):
    graphs = graphs_of()
    task = task_of(pooling=SAGPooling(0.6))
    expected, result = (numpy(task(batch_of(graphs, plan=p))) for p in (None, plan))
    np.testing.assert_allclose(result, expected, atol=1e-5)


def test_a_list_pools_where_it_says_so():
    graphs = graphs_of((10, 4))
    task = task_of(pooling=[None, TopKPooling(0.5)])
    assert stays(task, graphs) == [5, 2]
    first = task.embed(graphs, layer=2)
    assert [int(rows.any(axis=1).sum()) for rows in first] == [10, 4]
    names = [layer and layer.name for layer in task.backbone.poolings]
    assert names == [None, "pooling_1"]


def test_a_model_equals_that_of_torch_geometric():
    torch, peer = peer_pooling()
    graphs = graphs_of((9, 14, 5))
    backbone = kb.models.GCNBackbone(
        {"h": {"features": WIDTH}},
        8,
        num_layers=2,
        pooling=TopKPooling(0.5),
        activation_first=False,
        activation="relu",
        first_kernel=True,
    )
    rng = np.random.default_rng(0)
    backbone.set_weights([rng.normal(size=w.shape) for w in backbone.get_weights()])
    readout = kb.layers.GraphReadout(4, "mean")
    readout.build((None, None, 8))
    weights = [torch.from_numpy(w.astype("float64")) for w in backbone.get_weights()]
    paths = [w.path.split("/", 1)[1] for w in backbone.weights]
    weights = dict(zip(paths, weights, strict=True))
    convolutions = [peer.GCNConv(8, 8).double() for _ in range(2)]
    pool = peer.TopKPooling(8, 0.5).double()
    with torch.no_grad():
        for number, conv in enumerate(convolutions):
            conv.lin.weight.copy_(weights[f"convolution_{number}/kernel"].T)
            conv.bias.copy_(weights[f"convolution_{number}/bias"])
        pool.select.weight.copy_(weights["pooling_0/direction"][None])
        rows, edges, ids = peer_inputs(torch, graphs)
        names = [f"node_encoder/encode_h/{name}" for name in ("kernel", "bias")]
        rows = rows @ weights[names[0]] + weights[names[1]]
        rows = convolutions[0](rows, edges).relu()
        rows, edges, _, ids, _, _ = pool(rows, edges, batch=ids)
        rows = convolutions[1](rows, edges).relu()
        expected = peer.global_mean_pool(rows, ids).numpy()
    x = batch_of(graphs)
    states, pooled = backbone.readout_inputs(x)
    sums = kb.ops.batched_segment_sum(
        states, pooled["node"]["graph_id"], x["graph"]["mask"].shape[1]
    )
    counts = numpy(pooled["graph"]["n_node"])[0, :3, None]
    assert counts[:, 0].tolist() == [5, 7, 3]
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(numpy(sums)[0, :3] / counts, expected, atol=1e-5 * scale)


def test_readouts_read_the_nodes_that_stay():
    graphs = graphs_of((10,))
    task = task_of(pooling=TopKPooling(0.5), num_layers=2)
    x = batch_of(graphs)
    states, pooled = task.backbone.readout_inputs(x)
    rows = numpy(states)[0][numpy(pooled["node"]["mask"])[0]]
    assert rows.shape == (5, 8)
    hidden, output = task.head.hidden_dense, task.head.output_dense
    values = [numpy(w) for w in (*hidden.weights, *output.weights)]
    rows = rows @ values[0] + values[1]
    expected = (rows / (1 + np.exp(-rows)) @ values[2] + values[3]).mean(axis=0)
    np.testing.assert_allclose(numpy(task(x))[0, 0], expected, atol=1e-5)


@pytest.mark.every_backend("GINE")
@pytest.mark.parametrize("name", ["GINE", "SAGE"])
def test_training_compiles_once_and_files_predict_the_same(name, tmp_path):
    graphs = graphs_of((3, 1, 7, 12) * 4)
    task = task_of(name, [SAGPooling(0.8), TopKPooling(0.5)])
    before = [numpy(w).copy() for w in task.trainable_weights]
    guard = kb.training.RecompileGuard(budget=1)
    history = task.fit(graphs, epochs=3, verbose=0, callbacks=[guard])
    assert np.isfinite(history.history["loss"]).all()
    for weight, old in zip(task.trainable_weights, before, strict=True):
        if "pooling" in weight.path and "bias" not in weight.path:
            assert np.abs(numpy(weight) - old).max() > 0
    expected = task.predict(graphs)
    task.save(tmp_path / "task.keras")
    task.save_to_preset(tmp_path / "preset")
    for other in (
        keras.models.load_model(tmp_path / "task.keras"),
        kb.models.GraphClassifier.from_preset(tmp_path / "preset"),
    ):
        for row, value in zip(other.predict(graphs), expected, strict=True):
            np.testing.assert_allclose(row, value, atol=1e-6)


def test_checkpointing_changes_no_gradient():
    graphs = graphs_of()
    gradients = []
    for remat in (False, True):
        task = task_of("GINE", TopKPooling(0.6), remat=remat, norm="layer")
        x = task.loader(graphs, shuffle=False)[0]
        gradients.append(gradients_of(task, x))
    for one, other in zip(*(g.values() for g in gradients), strict=True):
        np.testing.assert_allclose(other, one, atol=1e-5)


def test_explanations_score_edges():
    graphs = graphs_of()
    task = task_of("GCN", TopKPooling(0.6))
    for result in kb.explain.saliency(task, graphs[2:]):
        assert np.isfinite(result.edge).all() and result.edge.any()
    with pytest.raises(ValueError, match="without `pooling` for attention weights"):
        task_of("GAT", TopKPooling(0.6)).attention_weights(graphs)


def test_other_readouts_and_regression():
    graphs = [
        kb.Graph(g.num_nodes, g.senders, g.receivers, node=g.node, label=1.0)
        for g in graphs_of()
    ]
    task = kb.models.GraphRegressor(
        backbone_of(pooling=TopKPooling(0.6)), readout=Set2SetReadout(16)
    )
    assert np.isfinite(task.fit(graphs, epochs=1, verbose=0).history["loss"]).all()


def test_scores_of_top_k_follow_the_states():
    x = batch_of(graphs_of((6,)))
    backbone = backbone_of(pooling=TopKPooling(0.5), num_layers=2)
    _, first, _ = backbone.hidden_states(x)
    scores = projections(numpy(first)[0, :6], numpy(backbone.poolings[0].direction))
    _, pooled = backbone.readout_inputs(x)
    mask = numpy(pooled["node"]["mask"])[0, :6]
    assert scores[mask].min() >= scores[~mask].max()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: backbone_of(pooling="topk"), "`pooling` to be TopKPooling, SAGP"),
        (lambda: backbone_of(pooling=[TopKPooling()]), "a list of 2"),
        (lambda: backbone_of(pooling=TopKPooling(), num_layers=1), "single layer"),
        (
            lambda: kb.models.GPSBackbone({"h": 2}, 8, pooling=TopKPooling()),
            "None, which is all that GPSBackbone supports",
        ),
        (
            lambda: kb.models.NodeClassifier(backbone_of(pooling=TopKPooling()), 2),
            "without `pooling`.*GraphClassifier",
        ),
        (
            lambda: task_of(pooling=TopKPooling()).embed(graphs_of(), level="graph"),
            "level='node'",
        ),
    ],
)
def test_misuse_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
