"""`MinCutPooling` and `DiffPooling`, which share their base class."""

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.layers import DiffPooling, MinCutPooling
from keras_bandgnn.testing import run_layer_test
from tests.compiled import compiled
from tests.layers.pooling_cases import (
    WIDTH,
    batch_of,
    graphs_of,
    numpy,
    peer_pooling,
    rows_by_graph,
)
from tests.oracles import clusters as oracle

UNITS, CLUSTERS = 5, 3
KINDS = {
    "MinCut": (MinCutPooling, oracle.cut_factors, oracle.cut_loss),
    "Diff": (DiffPooling, oracle.mean_factors, oracle.link_loss),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def layer_of(kind, seed=2, **options):
    layer = KINDS[kind][0](UNITS, CLUSTERS, **options)
    layer.build((None, None, WIDTH))
    rng = np.random.default_rng(seed)
    layer.set_weights([0.5 * rng.normal(size=w.shape) for w in layer.weights])
    return layer


def simple_graphs(sizes=(3, 1, 7, 10), seed=1):
    """Graphs without repeated edges, of which torch_geometric's have the same A."""
    rng = np.random.default_rng(seed)
    out = []
    for n in sizes:
        ends = np.argwhere(np.triu(rng.random((n, n)) < 0.5, 1)).T
        senders, receivers = np.concatenate([ends, ends[::-1]], axis=1)
        rows = rng.normal(size=(n, WIDTH)).astype("float32")
        out.append(kb.Graph(n, senders, receivers, node={"h": rows}, label=n % 2))
    return out


def shares(layer, graph, rows):
    """S of the oracle."""
    weights = [numpy(w).astype("float64") for w in layer.assignment.weights]
    if isinstance(layer, MinCutPooling):
        return oracle.assignment(rows, *weights)
    return oracle.convolved_assignment(graph, rows, *weights)


def expected_of(kind, layer, graph, rows):
    """Output and loss of the oracle for a graph."""
    _, factors, loss = KINDS[kind]
    share = shares(layer, graph, rows)
    adjacency = share.T @ oracle.adjacency(graph) @ share
    layers = [
        [numpy(w).astype("float64") for w in (m.kernel, c.kernel, c.bias)]
        for m, c in zip(layer.message_dense, layer.cluster_dense, strict=True)
    ]
    out = oracle.readout(share.T @ rows, factors(adjacency), layers)
    return out, loss(graph, share)


def results(layer, x, states=None):
    """The output and the loss of a layer for a batch."""

    @compiled
    def run(values, states, x):
        return layer.stateless_call(values, [], states, x, return_losses=True)

    values = [weight.value for weight in layer.weights]
    states = x["node"]["h"] if states is None else states
    out, _, (loss,) = run(values, states, x)
    return numpy(out), numpy(loss)


@kinds
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_equals_the_oracle(kind, replicas, num_layers):
    graphs = simple_graphs()
    x = batch_of(graphs, replicas)
    layer = layer_of(kind, num_layers=num_layers)
    out, loss = results(layer, x)
    losses = []
    for rows in kb.batch.graph_rows(x):
        states = x["node"]["h"][rows.group, rows.nodes]
        expected, part = expected_of(kind, layer, graphs[rows.id], states)
        np.testing.assert_allclose(out[rows.group, rows.slot], expected, atol=1e-5)
        losses.append(part)
    assert not out[~x["graph"]["mask"]].any()
    np.testing.assert_allclose(loss, np.mean(losses), atol=1e-5)


@kinds
def test_messages_between_clusters_follow_the_edges(kind):
    graphs = graphs_of((5, 9))
    x = batch_of(graphs)
    layer = layer_of(kind)
    out, _ = results(layer, x)
    for graph, rows in rows_by_graph(x, x["node"]["h"]):
        expected, _ = expected_of(kind, layer, graphs[graph], rows)
        np.testing.assert_allclose(out[0, graph], expected, atol=1e-5)


@kinds
def test_equals_that_of_torch_geometric(kind):
    torch, peer = peer_pooling()
    graphs = simple_graphs((6, 9))
    x = batch_of(graphs)
    layer = layer_of(kind)
    out = numpy(layer(x["node"]["h"], x))
    (loss,) = layer.losses
    pool = {"MinCut": peer.dense_mincut_pool, "Diff": peer.dense_diff_pool}[kind]
    aggregation = {"MinCut": "add", "Diff": "mean"}[kind]
    conv = peer.DenseGraphConv(WIDTH, UNITS, aggregation).double()
    losses = []
    for number, graph in enumerate(graphs):
        rows = graph.node["h"].astype("float64")
        logits = np.log(shares(layer, graph, rows))
        arrays = (rows, oracle.adjacency(graph), logits)
        with torch.no_grad():
            conv.lin_rel.weight.copy_(
                torch.from_numpy(layer.message_dense[0].get_weights()[0].T.copy())
            )
            kernel, bias = layer.cluster_dense[0].get_weights()
            conv.lin_root.weight.copy_(torch.from_numpy(kernel.T.copy()))
            conv.lin_rel.bias.copy_(torch.from_numpy(bias))
            states, adjacency, *parts = pool(*map(torch.from_numpy, arrays))
            expected = conv(states, adjacency).relu().mean(dim=1)[0].numpy()
        np.testing.assert_allclose(out[0, number], expected, atol=1e-5)
        losses.append(float(sum(parts)))
    np.testing.assert_allclose(numpy(loss), np.mean(losses), atol=1e-5)


@kinds
def test_padding_and_packing_change_nothing(kind):
    graphs = simple_graphs()
    x = batch_of(graphs)
    states = x["node"]["h"]
    layer = layer_of(kind)
    expected, loss = results(layer, x)
    other = np.where(x["node"]["mask"][..., None], states, np.nan).astype("float32")
    result, same = results(layer, x, other)
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_allclose(same, loss, atol=1e-6)
    wide = batch_of(graphs, nodes=45, slots=9, edges=120)
    result, same = results(layer, wide)
    np.testing.assert_allclose(result[0, :4], expected[0, :4], atol=1e-6)
    np.testing.assert_allclose(same, loss, atol=1e-6)
    for place, graph in enumerate(graphs):
        alone = batch_of([graph], nodes=11, slots=2, edges=60)
        result, _ = results(layer, alone)
        np.testing.assert_allclose(result[0, 0], expected[0, place], atol=1e-6)


@kinds
def test_weights_of_edges_count(kind):
    graph = graphs_of((6,))[0]
    twice = kb.Graph(
        6, *np.repeat([graph.senders, graph.receivers], 2, axis=1), node=graph.node
    )
    weight = np.full(graph.num_edges, 2.0, "float32")
    once = kb.Graph(
        6, graph.senders, graph.receivers, node=graph.node, edge={"w": weight}
    )
    layer = layer_of(kind)
    preprocessor = kb.preprocessing.GraphPreprocessor([], edge_weight="w")
    result, _ = results(layer, preprocessor.loader([once], shuffle=False)[0][0])
    expected, _ = results(layer, batch_of([twice]))
    np.testing.assert_allclose(result[0, 0], expected[0, 0], atol=1e-5)


@kinds
def test_configuration_shapes_and_reduced_precision(kind):
    x = batch_of(simple_graphs())
    layer = KINDS[kind][0](UNITS, CLUSTERS, 2, "tanh", 0.5)
    assert run_layer_test(layer, x["node"]["h"], x).shape == (1, 7, UNITS)


@kinds
@pytest.mark.release(elsewhere=True)
def test_a_task_trains_with_its_loss(kind, tmp_path):
    graphs = simple_graphs((3, 1, 7, 10) * 4)
    losses = []
    for weight in (0.0, 10.0):
        keras.utils.set_random_seed(0)
        readout = KINDS[kind][0](8, 4, loss_weight=weight)
        backbone = kb.models.GCNBackbone({"h": {"features": WIDTH}}, 8)
        task = kb.models.GraphClassifier(backbone, 2, readout=readout)
        guard = kb.training.RecompileGuard(budget=1)
        fit = task.fit(graphs, epochs=2, verbose=0, shuffle=False, callbacks=[guard])
        losses.append(fit.history["loss"][0])
    assert np.isfinite(losses).all()
    assert abs(losses[1] - losses[0]) > 0.1
    task.save_to_preset(tmp_path / "preset")
    other = kb.models.GraphClassifier.from_preset(tmp_path / "preset")
    for one, row in zip(task.predict(graphs), other.predict(graphs), strict=True):
        np.testing.assert_allclose(row, one, atol=1e-6)


@kinds
@pytest.mark.release(elsewhere=True)
def test_after_pooling_it_reads_the_nodes_and_edges_that_stay(kind):
    graphs = simple_graphs((8, 12))
    pooling = kb.layers.TopKPooling(0.5)
    backbone = kb.models.GCNBackbone(
        {"h": {"features": WIDTH}}, WIDTH, num_layers=2, pooling=pooling
    )
    task = kb.models.GraphClassifier(backbone, 2, readout=layer_of(kind))
    x = batch_of(graphs)
    states, pooled = backbone.readout_inputs(x)
    mask, out = numpy(pooled["node"]["mask"]), numpy(task.head.readout(states, pooled))
    for graph, rows, stays in rows_by_graph(x, numpy(states), mask):
        keep = np.flatnonzero(stays)
        edges = oracle.adjacency(graphs[graph])[np.ix_(keep, keep)]
        part = kb.Graph(len(keep), *np.argwhere(edges.T).T)
        expected, _ = expected_of(kind, task.head.readout, part, rows[keep])
        np.testing.assert_allclose(out[0, graph], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_clusters": 0}, "`num_clusters` to be at least 1"),
        ({"num_layers": 0}, "`num_layers` to be at least 1"),
        ({"loss_weight": -1}, "`loss_weight` to be at least 0"),
    ],
)
@kinds
def test_bad_arguments(kind, options, message):
    with pytest.raises(ValueError, match=message):
        KINDS[kind][0](UNITS, **{"num_clusters": CLUSTERS, **options})


@kinds
def test_backbones_refuse_it_between_layers(kind):
    with pytest.raises(ValueError, match="readout=MinCutPooling"):
        kb.models.GCNBackbone({"h": 2}, 8, pooling=KINDS[kind][0](8, 4))
