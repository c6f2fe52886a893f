import keras
import numpy as np
import pytest
from test_embedding import H, K, drawn, graphs_of, numpy, reordered, task_of

import keras_bandgnn as kb
from keras_bandgnn import models
from keras_bandgnn.preprocessing import (
    AttentionPlan,
    DynamicBatcher,
    GraphPreprocessor,
    RCMKCompile,
    StaticBatcher,
)
from tests.oracles import convolutions


def dense(found, count, size):
    """Weights [size, size, K], receivers first; equal pairs add up."""
    out = np.zeros((size, size, found.weights.shape[1]))
    np.add.at(out, (found.receivers, found.senders), found.weights)
    assert (np.diff(found.receivers) >= 0).all() and count <= size
    return out


def softmax(logits, seen):
    logits = np.where(seen[..., None], logits, -np.inf)
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def attention_of(graph, layer, rows):
    """What a layer attends to [n, K, H / K], and the weights [n, n, K]."""
    n = graph.num_nodes
    if layer.use_kernel:
        rows = rows @ layer.transform.get_weights()[0]
    rows = rows.reshape(n, K, -1)
    sent = (rows * numpy(layer.sender_kernel)).sum(-1)
    wanted = (rows * numpy(layer.receiver_kernel)).sum(-1)
    logits = wanted[:, None] + sent[None]
    logits = np.where(logits < 0, 0.2 * logits, logits)
    # Equal edges count each, a node itself once.
    times = np.zeros((n, n))
    np.add.at(times, (graph.receivers, graph.senders), 1.0)
    np.fill_diagonal(times, 1)
    shares = np.exp(logits) * times[..., None]
    return rows, shares / shares.sum(axis=1, keepdims=True)


def test_gat_weights_equal_the_equations():
    graphs = graphs_of()
    backbone = drawn(models.GATBackbone({"kind": 4}, H, K, 2, num_edge_types=3))
    moved = task_of(backbone, reordered(backbone)).attention_weights(graphs)
    for graph, layers in zip(graphs, moved, strict=True):
        n = graph.num_nodes
        states = numpy(backbone.encoder({"kind": graph.node["kind"][None]}))[0]
        assert len(layers) == 2
        for number, (layer, found) in enumerate(
            zip(backbone.convolutions, layers, strict=True)
        ):
            rows = np.where(states > 0, states, np.expm1(states)) if number else states
            rows, shares = attention_of(graph, layer, rows)
            np.testing.assert_allclose(dense(found, n, n), shares, atol=1e-5)
            real = graph.senders != graph.receivers
            assert len(found.senders) == real.sum() + n
            out = np.einsum("rsk,skd->rkd", shares, rows).reshape(n, H)
            states = out + numpy(layer.bias)


@pytest.mark.parametrize("activation_first", [True, False])
def test_gat_weights_with_options_are_those_of_its_messages(
    activation_first, monkeypatch
):
    graphs = graphs_of()
    options = {"norm": "layer", "residual": True, "virtual_node": True}
    options["activation_first"] = activation_first
    backbone = drawn(
        models.GATBackbone({"kind": 4}, H, K, 3, num_edge_types=3, **options)
    )
    read, attend = [], convolutions.graph_attention

    def spy(graph, states, weights):
        read.append(states)
        return attend(graph, states, weights)

    monkeypatch.setattr(convolutions, "graph_attention", spy)
    found = task_of(backbone).attention_weights(graphs)
    for graph, layers in zip(graphs, found, strict=True):
        read.clear()
        convolutions.backbone(graph, backbone)
        for layer, rows, weights in zip(backbone.messages, read, layers, strict=True):
            shares = attention_of(graph, layer, rows)[1]
            size = graph.num_nodes
            np.testing.assert_allclose(dense(weights, size, size), shares, atol=1e-5)


@pytest.mark.parametrize("attention", ["sparse", "full", "periodic", "augment"])
def test_transformer_weights_give_the_output_of_each_layer(attention):
    graphs = graphs_of(3, seed=4)
    backbone = drawn(
        models.GraphormerBackbone(
            {"kind": 4},
            H,
            2,
            num_heads=K,
            attention=attention,
            max_distance=2,
            num_edge_types=4,
        )
    )
    task = task_of(backbone)
    found = task.attention_weights(graphs)
    token = int(backbone.global_token)
    # The weights of a layer times its values are what it adds: follow them to the end.
    vectors = task.embed(graphs, layer=0)
    ends = task.embed(graphs)
    for graph, layers, states, end in zip(graphs, found, vectors, ends, strict=True):
        size = graph.num_nodes + token
        if token:
            states = np.concatenate([states, numpy(backbone.token)[None]])
        for number, (block, one) in enumerate(
            zip(backbone.blocks, layers, strict=True)
        ):
            shares = dense(one, graph.num_nodes, size)
            np.testing.assert_allclose(shares.sum(axis=1), 1.0, atol=1e-5)
            if backbone.pattern_of(number) == "full":
                assert len(one.senders) == graph.num_nodes**2
            rows = keras.ops.convert_to_tensor(states[None])
            values = numpy(block.attention.value_dense(block.attention_norm(rows)))[0]
            values = values.reshape(size, K, -1)
            out = np.einsum("rsk,skd->rkd", shares, values).reshape(1, size, H)
            rows = rows + block.attention.output_dense(out.astype("float32"))
            inner = block.inner_dense(block.ffn_norm(rows))
            states = numpy(rows + block.outer_dense(inner))[0]
        last = numpy(backbone.last_norm(states[None, : graph.num_nodes]))[0]
        np.testing.assert_allclose(last, end, atol=1e-4)


def test_gt_weights_equal_the_equations():
    graphs = graphs_of(2, seed=5)
    backbone = drawn(models.GTBackbone({"kind": 4}, H, 1, num_heads=K, laplacian=0))
    preprocessor = GraphPreprocessor(
        [RCMKCompile(8), *backbone.graph_layers()], DynamicBatcher(3), AttentionPlan()
    )
    found = task_of(backbone, preprocessor).attention_weights(graphs)
    block = backbone.blocks[0]
    for graph, (one,) in zip(graphs, found, strict=True):
        n = graph.num_nodes
        states = backbone.encoder({"kind": graph.node["kind"][None]})
        rows = block.attention_norm(states)
        q, k = (
            numpy(layer(rows))[0].reshape(n, K, -1)
            for layer in (block.attention.query_dense, block.attention.key_dense)
        )
        logits = np.einsum("rkd,skd->rsk", q, k) * (H // K) ** -0.5
        seen = np.eye(n, dtype=bool)
        seen[graph.receivers, graph.senders] = True
        seen[graph.senders, graph.receivers] = True
        np.testing.assert_allclose(dense(one, n, n), softmax(logits, seen), atol=1e-5)


def test_tiles_do_not_change_the_weights():
    graphs = graphs_of(2, seed=6)
    backbone = drawn(models.GTBackbone({"kind": 4}, H, 1, num_heads=K, laplacian=0))
    plain = task_of(backbone).attention_weights(graphs)
    preprocessor = GraphPreprocessor(
        backbone.graph_layers(),
        StaticBatcher(1, padding="64"),
        AttentionPlan(block_size=4, least_fill=0.05),
    )
    tiled = task_of(backbone, preprocessor).attention_weights(graphs)
    for (one,), (other,) in zip(plain, tiled, strict=True):
        np.testing.assert_array_equal(one.senders, other.senders)
        np.testing.assert_allclose(one.weights, other.weights, atol=1e-5)


def test_no_graphs_and_no_edges():
    backbone = drawn(models.GATBackbone({"kind": 4}, H, K, 1))
    task = task_of(backbone)
    assert task.attention_weights([]) == []
    alone = kb.Graph(2, [], [], node={"kind": [0, 1]})
    ((found,),) = task.attention_weights(alone)
    assert found.senders.tolist() == found.receivers.tolist() == [0, 1]
    assert (found.weights == 1).all()
