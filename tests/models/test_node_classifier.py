import keras
import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.data import FlatGraphs, open_store, write_store
from keras_bandgnn.models import (
    GATBackbone,
    GCNBackbone,
    GGNNBackbone,
    NodeClassifier,
    Task,
)
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphPreprocessor,
    RCMKCompile,
)
from keras_bandgnn.primitives import Banded, Plan
from tests.oracles.convolutions import cross_entropy


def block_model(seed=0, count=90, classes=3, near=0.2, far=0.01):
    """A stochastic block model: nodes of a class are linked more often."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, classes, count)
    share = np.where(label[:, None] == label, near, far)
    ends = np.argwhere(np.triu(rng.uniform(size=(count, count)) < share, 1))
    ends = np.concatenate([ends, ends[:, ::-1]]).T
    split = rng.choice(3, count, p=[0.3, 0.2, 0.5])
    names = ("train_mask", "valid_mask", "test_mask")
    return Graph(
        count,
        *ends,
        node={
            "h": np.eye(classes)[label] + rng.normal(size=(count, classes)),
            **{name: split == number for number, name in enumerate(names)},
        },
        label=label,
        label_level="node",
    )


def backbone_of(kind=GCNBackbone, **options):
    keras.utils.set_random_seed(0)
    return kind({"h": {"features": 3}}, hidden_dim=8, **options)


def task_of(layers=(), plan="auto", batch_size=2, **options):
    preprocessor = GraphPreprocessor(layers, DynamicBatcher(batch_size - 1), plan)
    return NodeClassifier(backbone_of(**options), 3, preprocessor)


def scores(task, graph, mask):
    """Cross-entropy and accuracy of the nodes of a mask, in NumPy."""
    rows = graph.node[mask].astype(bool)
    logits, label = task.predict(graph)[0][rows], graph.label[rows]
    loss = cross_entropy(logits.astype("float64"), label) / rows.sum()
    return {"loss": loss, "accuracy": (logits.argmax(axis=1) == label).mean()}


def test_masks_say_what_counts():
    graph = block_model()
    task = task_of([RCMKCompile(16)], Plan(Banded(16)))
    task.compile(keras.optimizers.Adam(0.05))
    for mask in ("train_mask", "test_mask"):
        out = task.evaluate(graph, mask=mask, verbose=0, return_dict=True)
        assert out == pytest.approx(scores(task, graph, mask), rel=1e-4)
    history = task.fit(
        graph, mask="train_mask", validation_mask="valid_mask", epochs=30, verbose=0
    ).history
    expected = scores(task, graph, "valid_mask")
    assert history["val_accuracy"][-1] == pytest.approx(expected["accuracy"], rel=1e-5)
    assert history["val_loss"][-1] == pytest.approx(expected["loss"], rel=1e-3)
    assert scores(task, graph, "test_mask")["accuracy"] > 0.8
    whole = task.evaluate(graph, verbose=0, return_dict=True)["accuracy"]
    logits = task.predict(graph)[0]
    assert whole == pytest.approx((logits.argmax(axis=1) == graph.label).mean())


def test_one_graph_is_not_padded_to_a_batch_of_its_size():
    graph = block_model()
    task = NodeClassifier(backbone_of(), 3)
    x = task.loader(graph)[0][0]
    assert x["node"]["mask"].shape == (1, 128)
    assert len(task.predict([graph, block_model(1, 300)])[1]) == 300
    many = NodeClassifier(backbone_of(), 3)
    assert many.loader([graph] * 3)[0][0]["graph"]["mask"].sum() == 3


def test_labels_outside_the_mask_teach_nothing():
    graph = block_model()
    hidden = graph.replace(label=np.where(graph.node["train_mask"], graph.label, -1))
    tasks = task_of(), task_of()
    tasks[0].fit(graph, mask="train_mask", epochs=3, verbose=0)
    tasks[1].fit(hidden, epochs=3, verbose=0)
    for own, other in zip(*(t.get_weights() for t in tasks), strict=True):
        np.testing.assert_array_equal(own, other)


@pytest.mark.parametrize("kind", [GCNBackbone, GATBackbone, GGNNBackbone])
def test_rows_are_in_the_callers_order(kind, tmp_path):
    graphs = [block_model(seed, 10 + 7 * seed) for seed in range(4)]
    options = {"num_edge_types": 1} if kind is GGNNBackbone else {}
    task = task_of(kind=kind, **options)
    expected = task.predict(graphs)
    task.preprocessor = GraphPreprocessor([RCMKCompile(8)], DynamicBatcher(2))
    rng = np.random.default_rng(0)
    orders = [rng.permutation(g.num_nodes) for g in graphs]
    mixed = [g.subgraph(o) for g, o in zip(graphs, orders, strict=True)]
    compiled = task.preprocessor.transform(graphs)
    assert not (compiled.origin == np.arange(compiled.node_ptr[-1])).all()
    write_store(tmp_path / "store", compiled, metadata=compiled.metadata)
    with open_store(tmp_path / "store") as store:
        for given in (
            graphs,
            FlatGraphs.from_graphs(graphs),
            compiled,
            task.loader(graphs, shuffle=True),
            store,
        ):
            for own, other in zip(task.predict(given), expected, strict=True):
                np.testing.assert_allclose(own, other, atol=1e-5)
    for own, other, order in zip(task.predict(mixed), expected, orders, strict=True):
        np.testing.assert_allclose(own, other[order], atol=1e-5)
    assert task.predict([]) == []


def test_missing_labels_count_nowhere():
    graph = block_model()
    float_label = graph.label.astype("float32")
    float_label[::2] = np.nan
    known = ~np.isnan(float_label)
    flat = FlatGraphs.from_graphs([graph])
    columns = {**flat.columns(), "label/node": float_label}
    flat = FlatGraphs.from_columns(columns)
    task = task_of()
    out = task.evaluate(flat, verbose=0, return_dict=True)
    graph = graph.replace(node={**graph.node, "known": known})
    assert out == pytest.approx(scores(task, graph, "known"), rel=1e-4)
    history = task.fit(flat, epochs=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()


@pytest.mark.parametrize("kind", [GCNBackbone, GATBackbone])
def test_preset_round_trip(kind, tmp_path):
    graph = block_model()
    task = task_of([RCMKCompile(8)], Plan(Banded(8)), kind=kind, dropout=0.5)
    task.fit(graph, mask="train_mask", epochs=1, verbose=0)
    expected = task.predict(graph)[0]
    task.save_to_preset(tmp_path / "preset")
    again = Task.from_preset(tmp_path / "preset")
    assert again.head_config() == {"num_classes": 3}
    assert again.backbone.get_config() == task.backbone.get_config()
    np.testing.assert_allclose(again.predict(graph)[0], expected, atol=1e-5)
    task.save(tmp_path / "task.keras")
    again = keras.saving.load_model(tmp_path / "task.keras")
    np.testing.assert_allclose(again.predict(graph)[0], expected, atol=1e-5)


def test_plain_batches_without_weights_are_masked_as_well():
    task = task_of()
    x, y, weight = task.loader(block_model())[0]
    assert weight.sum() == 90 < weight.size
    expected = task.test_on_batch(x, y, weight, return_dict=True)
    task.reset_metrics()
    assert task.test_on_batch(x, y, return_dict=True) == pytest.approx(expected)


def test_bad_input_is_refused_before_training():
    good = block_model()
    task = task_of()
    split = np.stack([good.node["train_mask"]] * 2, axis=1)
    for graph, options, message in (
        (good.replace(label=None), {}, "to have labels"),
        (good.replace(label=1, label_level="graph"), {}, "labels of nodes.*of graphs"),
        (good.replace(label=good.label + 1), {}, r"classes in \[0, 3\).*Received: 3"),
        (good.replace(label=good.label - 2), {}, "Received: -2"),
        (good.replace(label=good.label + 0.5), {}, "Received: "),
        (good.replace(label=np.eye(3)[good.label]), {}, "one class per label"),
        (good.replace(label=0 * good.label - 1), {}, "at least one node with a label"),
        (good, {"mask": "mask"}, "a node feature 'mask' as the mask.*train_mask"),
        (good, {"mask": "h"}, "0 or 1 for each node"),
        (
            good.replace(node={**good.node, "split": split}),
            {"mask": "split"},
            "Choose one column",
        ),
        (
            good.replace(node={**good.node, "none": 0 * good.label}),
            {"mask": "none"},
            "at least one node with a label",
        ),
    ):
        for call in (task.fit, task.evaluate):
            with pytest.raises(ValueError, match=message):
                call(graph, verbose=0, **options)
    with pytest.raises(ValueError, match="Received: GraphLoader, mask='train_mask'"):
        task.fit(task.loader(good), mask="train_mask")
    with pytest.raises(ValueError, match="`num_classes` to be at least 2"):
        NodeClassifier(backbone_of(), 1)
