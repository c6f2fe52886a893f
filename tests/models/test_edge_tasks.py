import keras
import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.data import FlatGraphs, open_store, write_store
from keras_bandgnn.models import (
    EdgeClassifier,
    EdgeRegressor,
    GCNBackbone,
    GGNNBackbone,
    GTBackbone,
    Task,
)
from keras_bandgnn.preprocessing import (
    AttentionEdges,
    DynamicBatcher,
    GraphPreprocessor,
    RadiusGraph,
    RCMKCompile,
    ReachabilityFilter,
    StaticBatcher,
)
from keras_bandgnn.primitives import Banded, Plan, ReceptiveField, Segment
from keras_bandgnn.serving import GraphPacker

# Losses and metrics of every task are tested on every backend in test_keras_numbers.py.


def graph_of(seed=0, nodes=12, edges=30, label=True, **changes):
    """A graph with parallel edges, loops and edges in no order."""
    rng = np.random.default_rng(seed)
    senders, receivers = rng.integers(0, nodes, (2, edges))
    state = rng.normal(size=(nodes, 3))
    length = rng.normal(size=edges)
    split = rng.choice(3, edges)
    fields = {
        "node": {"h": state},
        "edge": {
            "length": length,
            "train_mask": split == 0,
            "test_mask": split == 1,
        },
        "label": (state[senders, 0] > state[receivers, 1]).astype(int) + (length > 1.0),
        "label_level": "edge",
    }
    if not label:
        fields |= {"label": None, "label_level": "graph"}
    return Graph(nodes, senders, receivers, **{**fields, **changes})


def backbone_of(kind=GCNBackbone, **options):
    keras.utils.set_random_seed(0)
    return kind({"h": {"features": 3}}, hidden_dim=8, **options)


def task_of(layers=(), plan="auto", batcher=None, cls=EdgeClassifier, **options):
    preprocessor = GraphPreprocessor(layers, batcher or DynamicBatcher(1), plan)
    options = {"edge_inputs": {"length": {"features": 1}}, **options}
    outputs = 3 if cls is EdgeClassifier else 1
    return cls(backbone_of(), outputs, preprocessor, **options)


def log_softmax(z):
    z = z - z.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def scores(task, graph, rows=slice(None)):
    """Cross-entropy and accuracy of some edges, in NumPy."""
    logits, label = np.float64(task.predict(graph)[0])[rows], graph.label[rows]
    losses = -log_softmax(logits)[np.arange(len(label)), label]
    accuracy = (logits.argmax(axis=1) == label).mean()
    return {"loss": losses.mean(), "accuracy": accuracy}


def test_outputs_are_those_of_the_head_for_the_callers_edges():
    graph = graph_of()
    task = task_of([RCMKCompile(4)], Plan(Banded(4)))
    rows = task.predict(graph)[0]
    states = task.embed(graph)[0]
    head = {w.path.split("head/")[-1]: np.array(w) for w in task.head.weights}
    kernels = {name: value for name, value in head.items()}

    def of(name):
        return next(v for path, v in kernels.items() if path.endswith(name))

    hidden = states[graph.senders] @ of("sender/kernel")
    hidden = hidden + states[graph.receivers] @ of("receiver/kernel")
    hidden = hidden + of("receiver/bias") + of("encode_length/bias")
    hidden = hidden + graph.edge["length"][:, None] @ of("encode_length/kernel")
    hidden = hidden / (1 + np.exp(-hidden))
    expected = hidden @ of("output/kernel") + of("output/bias")
    np.testing.assert_allclose(rows, expected, atol=1e-5)


def test_rows_are_in_the_callers_order(tmp_path):
    graphs = [graph_of(seed, 6 + seed, 10 * seed) for seed in range(4)]
    task = task_of()
    expected = task.predict(graphs)
    assert [rows.shape for rows in expected] == [(10 * n, 3) for n in range(4)]
    # Neither plan, order of nodes and edges nor the batch change a prediction.
    layers, batcher = [RCMKCompile(4)], StaticBatcher(4, "power_of_two")
    task.preprocessor = GraphPreprocessor(layers, batcher, Plan(Banded(4), Segment()))
    for rows, other in zip(task.predict(graphs), expected, strict=True):
        np.testing.assert_allclose(rows, other, atol=1e-5)
    np.testing.assert_allclose(task.predict(graphs[2])[0], expected[2], atol=1e-5)
    rng = np.random.default_rng(0)
    for graph, other in zip(graphs, expected, strict=True):
        nodes, edges = (rng.permutation(n) for n in (graph.num_nodes, graph.num_edges))
        place = np.argsort(nodes)
        mixed = Graph(
            graph.num_nodes,
            place[graph.senders][edges],
            place[graph.receivers][edges],
            node={name: v[nodes] for name, v in graph.node.items()},
            edge={name: v[edges] for name, v in graph.edge.items()},
        )
        np.testing.assert_allclose(task.predict(mixed)[0], other[edges], atol=1e-5)
        part = graph.subgraph(nodes)
        np.testing.assert_allclose(task.predict(part)[0], other, atol=1e-5)
    # What has its edges sorted keeps them so.
    flat = FlatGraphs.from_graphs(graphs)
    orders = [np.argsort(g.receivers, kind="stable") for g in graphs]
    compiled = task.preprocessor.transform(graphs)
    assert not (compiled.origin == np.arange(compiled.node_ptr[-1])).all()
    write_store(tmp_path / "store", compiled, metadata=compiled.metadata)
    with open_store(tmp_path / "store") as store:
        np.testing.assert_array_equal(np.sort(store[3].label), np.sort(graphs[3].label))
        for given in (flat, compiled, task.loader(graphs, shuffle=True), store):
            rows = task.predict(given)
            for one, other, order in zip(rows, expected, orders, strict=True):
                np.testing.assert_allclose(one, other[order], atol=1e-5)


def test_edges_that_are_left_out_are_nan():
    graph = graph_of(label=False, slot=0, candidates=[0])
    task = task_of([ReachabilityFilter(1)])
    rows = task.predict(graph)[0]
    assert rows.shape == (30, 3)
    dropped = np.isnan(rows).all(axis=1)
    assert 0 < dropped.sum() < 30
    labels = task.predict_labels(graph)[0]
    assert ((labels == -1) == dropped).all()


def test_masks_say_what_counts():
    graph = graph_of(edges=60)
    task = task_of([RCMKCompile(4)])
    task.compile(keras.optimizers.Adam(0.05))
    for mask in ("train_mask", "test_mask"):
        out = task.evaluate(graph, mask=mask, verbose=0, return_dict=True)
        expected = scores(task, graph, graph.edge[mask].astype(bool))
        assert out == pytest.approx(expected, rel=1e-4)
    options = {"epochs": 20, "verbose": 0}
    history = task.fit(graph, mask="train_mask", validation_mask="test_mask", **options)
    train = graph.edge["train_mask"].astype(bool)
    assert scores(task, graph, train)["accuracy"] > 0.8
    assert set(history.history) == {"loss", "accuracy", "val_loss", "val_accuracy"}


def test_masks_share_no_edges_and_warn_of_shared_links(caplog):
    graph = graph_of(edges=60)
    task = task_of([RCMKCompile(4)])
    train = graph.edge["train_mask"]
    one = np.flatnonzero(train)[0]
    both = np.array(graph.edge["test_mask"])
    both[one] = 1
    wrong = graph.replace(edge={**graph.edge, "test_mask": both})
    masks = {"mask": "train_mask", "validation_mask": "test_mask", "verbose": 0}
    with pytest.raises(ValueError, match="1 of 60 edges in 'train_mask' and in 'test"):
        task.fit(wrong, **masks)
    ends = np.sort(np.stack([graph.senders, graph.receivers]), axis=0).T.tolist()
    seen = [pair for pair, mask in zip(ends, train, strict=True) if mask]
    tests = [p for p, m in zip(ends, graph.edge["test_mask"], strict=True) if m]
    count = sum(pair in seen for pair in tests)
    assert count
    task.fit(graph, epochs=1, **masks)
    assert (
        f"{count} of {len(tests)} edges of validation_mask='test_mask'" in caplog.text
    )
    # All edges of two nodes are on one side.
    link = np.unique(ends, axis=0, return_inverse=True)[1].reshape(-1)
    side = link % 2
    apart = {**graph.edge, "train_mask": side, "test_mask": 1 - side}
    caplog.clear()
    task.fit(graph.replace(edge=apart), epochs=1, **masks)
    assert "validation_mask" not in caplog.text


def test_labels_and_weights_beside_the_graphs():
    graphs = [graph_of(seed, 6, 9 + seed) for seed in range(3)]
    bare = [g.replace(label=None, label_level="graph") for g in graphs]
    rng = np.random.default_rng(0)
    weights = [rng.uniform(0, 2, graph.num_edges) for graph in graphs]
    task = task_of([RCMKCompile(4)])
    task.compile(keras.optimizers.SGD(0.0))
    logits = np.float64(np.concatenate(task.predict(bare)))
    label = np.concatenate([graph.label for graph in graphs])
    losses = -log_softmax(logits)[np.arange(len(label)), label]
    labels = [graph.label for graph in graphs]
    for weight, options in (
        (np.concatenate(weights), {"sample_weight": weights}),
        (np.array([1.0, 5.0, 2.0])[label], {"class_weight": {1: 5.0, 2: 2.0}}),
    ):
        history = task.fit(bare, labels, epochs=1, verbose=0, **options).history
        # As for Keras, weights multiply the terms, not their number.
        expected = (losses * weight).mean()
        assert history["loss"][0] == pytest.approx(expected, rel=1e-4)


def test_labels_outside_the_mask_teach_nothing():
    graph = graph_of(edges=40)
    hidden = np.where(graph.edge["train_mask"], graph.label, -1)
    tasks = task_of(), task_of()
    tasks[0].fit(graph, mask="train_mask", epochs=2, verbose=0)
    tasks[1].fit(graph.replace(label=hidden), epochs=2, verbose=0)
    for one, other in zip(*(t.get_weights() for t in tasks), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("cls", [EdgeClassifier, EdgeRegressor])
def test_symmetric_outputs(cls):
    one = graph_of(label=False)
    edge = {"length": np.tile(one.edge["length"], 2)}
    ends = np.stack([one.senders, one.receivers])
    both = one.replace(
        senders=np.append(*ends),
        receivers=np.append(*ends[::-1]),
        edge_type=None,
        edge=edge,
    )
    for symmetric in (True, False):
        rows = task_of([RCMKCompile(4)], cls=cls, symmetric=symmetric).predict(both)[0]
        assert np.allclose(rows[:30], rows[30:], atol=1e-5) == symmetric


def test_several_yes_or_no_targets():
    graphs = []
    for seed in range(3):
        graph = graph_of(seed)
        label = np.eye(3)[graph.label]
        label[seed::4, 1] = np.nan
        graphs.append(graph.replace(label=label))
    task = task_of(multi_label=True, class_names=["a", "b", "c"])
    task.compile(keras.optimizers.SGD(0.0), metrics={"b": ["accuracy"]})
    out = task.evaluate(graphs, verbose=0, return_dict=True)
    z = np.concatenate([np.float64(rows) for rows in task.predict(graphs)])
    y = np.concatenate([graph.label for graph in graphs])
    known = ~np.isnan(y)
    losses = (np.logaddexp(0, z) - np.where(known, y, 0) * z)[known]
    right = ((z > 0) == (y > 0))[:, 1][known[:, 1]]
    assert out == pytest.approx(
        {"loss": losses.mean(), "b_accuracy": right.mean()}, rel=1e-4
    )
    masked = task.evaluate(graphs, mask="train_mask", verbose=0, return_dict=True)
    keep = np.concatenate([graph.edge["train_mask"] for graph in graphs]).astype(bool)
    right = ((z > 0) == (y > 0))[keep, 1][known[keep, 1]]
    assert masked["b_accuracy"] == pytest.approx(right.mean(), rel=1e-5)


def test_preset_and_file_round_trip(tmp_path):
    graph = graph_of()
    task = task_of([RCMKCompile(4)], class_names=["a", "b", "c"], symmetric=True)
    task.fit(graph, epochs=1, verbose=0)
    expected = task.predict(graph)[0]
    task.save_to_preset(tmp_path / "preset")
    task.save(tmp_path / "task.keras")
    for again in (
        Task.from_preset(tmp_path / "preset"),
        keras.saving.load_model(tmp_path / "task.keras"),
    ):
        assert again.get_config()["edge_inputs"] == {"length": {"features": 1}}
        assert again.head.symmetric and again.class_names == ("a", "b", "c")
        np.testing.assert_allclose(again.predict(graph)[0], expected, atol=1e-5)


def test_packed_for_an_exported_model():
    graphs = [graph_of(seed) for seed in range(3)]
    inputs = {"length": {"features": 1}}
    backbone = backbone_of(GGNNBackbone, num_steps=1, num_edge_types=1)
    preprocessor = GraphPreprocessor([RCMKCompile(4)], DynamicBatcher(1))
    task = EdgeClassifier(backbone, 3, preprocessor, edge_inputs=inputs)
    packer = GraphPacker.of_task(task, graphs)
    # What neither backbone nor head read is no input.
    names = packer.signature.names
    assert "edge_length" in names and "edge_train_mask" not in names
    packed = packer.pack(graphs)
    batches = [packer.signature.nested(arrays) for arrays in packed]
    outputs = packed.unpack([task.predict_on_batch(x) for x in batches])
    for rows, other in zip(outputs, task.predict(graphs), strict=True):
        np.testing.assert_allclose(rows, other, atol=1e-5)


def test_what_does_not_fit_is_refused_before_training():
    good, task = graph_of(), task_of()
    for graph, options, message in (
        (good.replace(label=None), {}, "to have labels"),
        (good.replace(label=1, label_level="graph"), {}, "labels of edges.*of graphs"),
        (good.replace(label=good.label + 1), {}, r"classes in \[0, 3\).*Received: 3"),
        (good.replace(label=0 * good.label - 1), {}, "at least one edge with a label"),
        (good.replace(edge={}), {}, "edge features.*'length' is missing"),
        (good, {"mask": "mask"}, "an edge feature 'mask' as the mask.*train_mask"),
        (good, {"mask": "length"}, "0 or 1 for each edge"),
    ):
        for call in (task.fit, task.evaluate):
            with pytest.raises(ValueError, match=message):
                call(graph, verbose=0, **options)
    position = np.random.default_rng(0).normal(size=(12, 3))
    placed = good.replace(node={**good.node, "position": position})
    task = task_of([RadiusGraph(1.0)], edge_inputs=None)
    with pytest.raises(ValueError, match="RadiusGraph replaces the edges"):
        task.fit(placed, verbose=0)
    unlabelled = placed.replace(label=None, label_level="graph")
    with pytest.raises(ValueError, match="a preprocessor that keeps the edges"):
        task.predict(unlabelled)
    transformer = backbone_of(GTBackbone, num_layers=1, num_heads=2)
    with pytest.raises(ValueError, match="AttentionEdges replaces.*`target_type` of"):
        EdgeClassifier(transformer, 3).fit(good, verbose=0)
    with pytest.raises(ValueError, match="set `target_type` of graph transformers"):
        EdgeClassifier(transformer, 3).predict(good.replace(label=None))
    options = {"num_layers": 1, "num_heads": 2, "laplacian": 0}
    transformer = backbone_of(GTBackbone, target_type=0, **options)
    pairs = GraphPreprocessor([AttentionEdges()], DynamicBatcher(1))
    with pytest.raises(ValueError, match="the edge feature 'target'"):
        EdgeClassifier(transformer, 3, pairs).predict(good.replace(label=None))


def transformer_task(cls=EdgeClassifier, target_type=0, **options):
    backbone = backbone_of(
        GTBackbone,
        num_layers=2,
        num_heads=2,
        laplacian=0,
        num_edge_types=4,
        attention="periodic",
        target_type=target_type,
    )
    inputs = {"length": {"features": 1}, "type": 3}
    outputs = 3 if cls is EdgeClassifier else 1
    layers = [RCMKCompile(4), *backbone.graph_layers()]
    preprocessor = GraphPreprocessor(layers, DynamicBatcher(1))
    return cls(backbone, outputs, preprocessor, edge_inputs=inputs, **options)


def typed_graph(seed, **options):
    kinds = np.random.default_rng(seed).integers(0, 3, 30)
    return graph_of(seed, edge_type=kinds, **options)


def test_a_graph_transformer_predicts_for_the_callers_edges():
    task = transformer_task()
    graphs = [typed_graph(seed) for seed in range(3)]
    expected = task.predict(graphs)
    assert [rows.shape for rows in expected] == [(30, 3)] * 3
    assert np.isfinite(expected).all()
    rng = np.random.default_rng(0)
    for graph, rows in zip(graphs, expected, strict=True):
        states, edges = task.embed(graph)[0], rng.permutation(30)
        ends = graph.receivers, graph.senders
        batch = {
            "edge": {
                "sender": graph.senders[None],
                "receiver": graph.receivers[None],
                "type": graph.edge_type[None],
                "length": graph.edge["length"][None],
            }
        }
        head = keras.ops.convert_to_numpy(task.head(states[None], batch))[0]
        np.testing.assert_allclose(rows, head, atol=1e-5)
        mixed = Graph(
            graph.num_nodes,
            *(each[edges] for each in ends[::-1]),
            edge_type=graph.edge_type[edges],
            node=dict(graph.node),
            edge={name: v[edges] for name, v in graph.edge.items()},
        )
        np.testing.assert_allclose(task.predict(mixed)[0], rows[edges], atol=1e-5)
    compiled = task.preprocessor.transform(graphs)
    orders = [np.argsort(g.receivers, kind="stable") for g in graphs]
    for given in (FlatGraphs.from_graphs(graphs), compiled):
        for rows, other, order in zip(
            task.predict(given), expected, orders, strict=True
        ):
            np.testing.assert_allclose(rows, other[order], atol=1e-5)
    # Edges of earlier types are no targets.
    task = transformer_task(target_type=1)
    for graph, rows in zip(graphs, task.predict(graphs), strict=True):
        assert (np.isnan(rows).all(axis=1) == (graph.edge_type < 1)).all()
    found = task.predict(task.preprocessor.transform(graphs))
    assert [len(rows) for rows in found] == [(g.edge_type >= 1).sum() for g in graphs]


@pytest.mark.parametrize("cls", [EdgeClassifier, EdgeRegressor])
def test_a_graph_transformer_learns_labels_of_edges(cls, tmp_path):
    graphs = [typed_graph(seed) for seed in range(4)]
    task = transformer_task(cls)
    task.compile(keras.optimizers.Adam(0.02))
    before = task.evaluate(graphs, verbose=0, return_dict=True)
    if cls is EdgeClassifier:
        rows = np.concatenate(task.predict(graphs)).astype(np.float64)
        label = np.concatenate([g.label for g in graphs])
        losses = -log_softmax(rows)[np.arange(len(label)), label]
        assert before["loss"] == pytest.approx(losses.mean(), rel=1e-4)
    task.fit(graphs, epochs=20, mask="train_mask", verbose=0)
    masked = task.evaluate(graphs, mask="train_mask", verbose=0, return_dict=True)
    assert masked["loss"] < 0.8 * before["loss"]
    task.save_to_preset(tmp_path / "preset")
    again = Task.from_preset(tmp_path / "preset")
    assert again.backbone.target_type == 0
    for one, other in zip(again.predict(graphs), task.predict(graphs), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    packer = GraphPacker.of_task(task, graphs)
    packed = packer.pack(graphs)
    batches = [packer.signature.nested(arrays) for arrays in packed]
    outputs = packed.unpack([task.predict_on_batch(x) for x in batches])
    for rows, other in zip(outputs, task.predict(graphs), strict=True):
        np.testing.assert_allclose(rows, other, atol=1e-5)


def test_schedules_are_refused():
    plan = Plan(rest=Segment(), schedule=ReceptiveField(2))
    preprocessor = GraphPreprocessor([], DynamicBatcher(1), plan)
    graph = graph_of(candidates=None, slot=0)
    backbone = backbone_of(GGNNBackbone, num_steps=2, num_edge_types=1)
    task = EdgeClassifier(backbone, 3, preprocessor)
    with pytest.raises(ValueError, match="without a schedule for labels of edges"):
        task.fit(graph, verbose=0)
    with pytest.raises(ValueError, match="Expected a plan without a schedule"):
        task.predict(graph_of(label=False, slot=0, candidates=[1]))
