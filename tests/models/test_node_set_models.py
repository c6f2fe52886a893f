"""Models over graphs with node sets: states by set, and every backbone and task."""

import inspect

import keras
import numpy as np
import pytest
from registered import BACKBONES, SMALL, registered

import keras_bandgnn as kb
from keras_bandgnn.data import from_sets, to_sets
from keras_bandgnn.layers import NodeEncoder
from keras_bandgnn.models.atomistic_backbone import AtomisticBackbone
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphLoader,
    GraphPreprocessor,
    NeighborSampler,
    NodeSetEncoder,
    RCMKCompile,
)
from keras_bandgnn.primitives import ReceptiveField

pytestmark = pytest.mark.every_backend

SETS = {
    "author": {"age": {"features": 2}},
    "paper": {"x": {"features": 3}, "word": 9},
    "venue": {"kind": 1},
}

# In the order of edge types.
EDGE_SETS = [
    ("author", "writes", "paper"),
    ("paper", "in", "venue"),
    ("paper", "rev_writes", "author"),
    ("venue", "rev_in", "paper"),
]


def made(seed=0, size=6):
    rng = np.random.default_rng(seed)
    authors, papers = size + seed % 3, 2 * size
    return from_sets(
        {
            "paper": {
                "x": rng.normal(size=(papers, 3)),
                "word": rng.integers(0, 9, papers),
            },
            "author": {"age": rng.normal(size=(authors, 2))},
            "venue": 2,
        },
        {
            ("author", "writes", "paper"): rng.integers(
                0, [[authors], [papers]], (2, 3 * size)
            ),
            ("paper", "in", "venue"): np.stack(
                [np.arange(papers), rng.integers(0, 2, papers)]
            ),
        },
        label={"author": rng.integers(0, 3, authors)},
        reverse=True,
    )


def small(cls, **options):
    names = {*inspect.signature(cls).parameters}
    if issubclass(cls, kb.models.MessagePassingBackbone):
        names.add("num_edge_types")
    names.discard("edge_inputs")
    arguments = {key: value for key, value in SMALL.items() if key in names}
    if "num_edge_types" in arguments:
        arguments["num_edge_types"] = 4
    if "edge_sets" in names:
        arguments["edge_sets"] = EDGE_SETS
    keras.utils.set_random_seed(3)
    return cls(**{**arguments, "inputs": {"sets": SETS}, **options})


def task(backbone=kb.models.GINEBackbone, preprocessor=None, **options):
    return kb.models.NodeClassifier(
        small(backbone, **options), 3, preprocessor, node_set="author"
    )


def numpy(x):
    return keras.ops.convert_to_numpy(x)


@pytest.mark.parametrize("replicas", [1, 2])
def test_states_are_the_rows_of_each_set(replicas):
    graphs = [made(seed) for seed in range(4)]
    loader = GraphLoader(graphs, DynamicBatcher(2), replicas=replicas)
    keras.utils.set_random_seed(0)
    encoder = NodeEncoder(5, {"sets": SETS, "set": 3})
    encoder.build()
    parts = encoder.set_encoders()
    kernel = {
        name: numpy(getattr(parts[s], f"encode_{name}").kernel)
        for s, name in (("author", "age"), ("paper", "x"))
    }
    words, venue = (
        numpy(getattr(parts[s], f"encode_{name}").embeddings)
        for s, name in (("paper", "word"), ("venue", "kind"))
    )
    kinds = numpy(encoder.encode_set.embeddings)
    for batch in loader:
        x = batch[0]
        states = numpy(encoder(x))
        for rows in kb.batch.graph_rows(x):
            graph = graphs[rows.id]
            tables = [
                graph.sets["author"]["age"] @ kernel["age"],
                graph.sets["paper"]["x"] @ kernel["x"]
                + words[graph.sets["paper"]["word"]],
                venue[graph.sets["venue"]["kind"]],
            ]
            found = states[rows.group, rows.nodes]
            expected = np.concatenate(tables) + kinds[graph.node["set"]]
            np.testing.assert_allclose(found, expected, atol=1e-5)


def test_one_node_set_gives_what_the_plain_graph_gives():
    rng = np.random.default_rng(0)
    x, ends = rng.normal(size=(9, 3)), rng.integers(0, 9, (2, 20))
    plain = kb.Graph(9, *ends, node={"x": x})
    sets = from_sets({"all": {"x": x}}, {("all", "to", "all"): ends})
    found = []
    for graph, inputs in (
        (plain, {"x": {"features": 3}}),
        (sets, {"sets": {"all": {"x": {"features": 3}}}}),
    ):
        keras.utils.set_random_seed(1)
        backbone = kb.models.GINEBackbone(inputs, 8, num_layers=2)
        found.append(kb.models.NodeClassifier(backbone, 2).predict([graph])[0])
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_every_backbone_reads_node_sets(name):
    cls = registered(kb.models.Backbone)[name]
    graphs = [made(seed) for seed in range(4)]
    if issubclass(cls, AtomisticBackbone):
        backbone, _ = BACKBONES[name]()
        with pytest.raises(ValueError, match="which it does not read"):
            kb.models.NodeClassifier(backbone, 3).predict(graphs)
        return
    model = task(cls)
    together = model.predict(graphs)
    sizes = [len(g.sets["author"]["age"]) for g in graphs]
    assert [rows.shape for rows in together] == [(n, 3) for n in sizes]
    assert np.ptp(np.concatenate(together)) > 0
    changed = to_sets(graphs[1])
    changed["nodes"]["paper"]["x"] = changed["nodes"]["paper"]["x"] + 1.0
    for k, graph in enumerate(graphs):
        alone = model.predict([graph])[0]
        np.testing.assert_allclose(alone, together[k], atol=1e-5)
    order = np.random.default_rng(0).permutation(graphs[1].num_nodes)
    reordered = model.predict([graphs[1].subgraph(order)])[0]
    np.testing.assert_allclose(reordered, together[1], atol=1e-5)
    if cls is not kb.models.EmbeddingBackbone:
        other = model.predict([from_sets(**changed)])[0]
        assert np.abs(other - together[1]).max() > 1e-6


def test_orders_plans_and_presets_change_nothing(tmp_path):
    graphs = [made(seed) for seed in range(3)]
    model = task(kb.models.RGCNBackbone)
    expected = np.concatenate(model.predict(graphs))
    for plan in (
        kb.plans.Plan(kb.plans.Banded(16)),
        kb.plans.Plan(rest=kb.plans.Grouped()),
        kb.plans.Plan(kb.plans.BlockSparse(8)),
    ):
        model.preprocessor = GraphPreprocessor([RCMKCompile()], plan=plan)
        found = np.concatenate(model.predict(graphs))
        np.testing.assert_allclose(found, expected, atol=1e-5)
    model.save_to_preset(tmp_path / "preset")
    loaded = kb.models.Task.from_preset(tmp_path / "preset")
    assert loaded.node_set == "author"
    found = np.concatenate(loaded.predict(graphs))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    plan = kb.plans.Plan(schedule=ReceptiveField(1))
    with pytest.raises(ValueError, match="without a schedule"):
        GraphLoader(graphs, DynamicBatcher(2), plan)


def test_samples_give_what_the_whole_graph_gives():
    graph = made(0, 60)
    model = task(kb.models.SAGEBackbone, num_layers=2)
    whole = model.evaluate(graph, verbose=0)
    sampler = NeighborSampler([-1, -1], 16)
    sampled = model.evaluate(graph, sampler=sampler, verbose=0)
    np.testing.assert_allclose(sampled, whole, atol=1e-5)
    rows = model.predict_by_layer(graph, block_size=32)[0]
    np.testing.assert_allclose(rows, model.predict(graph)[0], atol=1e-5)
    history = model.fit(graph, sampler=NeighborSampler([3, 2], 16), epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


@pytest.mark.release(elsewhere=True)
def test_labels_of_one_set_are_rows_of_its_table():
    graph = made(2)
    labels = graph.label[graph.node["set"] == 0]
    bare = graph.replace(label=None, label_level="graph")
    results = []
    for arguments in ((graph,), (bare, labels), ([bare], [labels])):
        model = task()
        model.fit(*arguments, epochs=2, verbose=0)
        results.append(model.predict(graph)[0])
        assert model.evaluate(*arguments, verbose=0)[0] > 0
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], atol=1e-5)
    # Dropped nodes keep their row.
    some = graph.subgraph(np.arange(1, graph.num_nodes))
    predicted = task().predict([some])[0]
    assert np.isnan(predicted[0]).all() and np.isfinite(predicted[1:]).all()
    with pytest.raises(ValueError, match="row for each of 8 'author' nodes"):
        task().fit(bare, labels[:-1], verbose=0)
    with pytest.raises(ValueError, match="labels of other nodes"):
        task().fit(graph.replace(label=np.zeros(graph.num_nodes, int)), verbose=0)
    with pytest.raises(ValueError, match="no node sets"):
        task().predict([kb.Graph(2, [0], [1], node={"x": [1, 2]})])
    regressor = kb.models.NodeRegressor(
        small(kb.models.GINEBackbone), 1, node_set="paper"
    )
    regressor.fit(bare, np.linspace(0, 1, 12), epochs=1, verbose=0)
    assert regressor.predict(bare)[0].shape == (12, 1)


def test_backbones_say_which_sets_they_take():
    with pytest.raises(ValueError, match="node sets \\['author', 'paper', 'venue'\\]"):
        task().predict([from_sets({"author": {"age": [[1.0, 2.0]]}}, {})])
    with pytest.raises(ValueError, match="with 2 channels"):
        parts = to_sets(made())
        parts["nodes"]["author"]["age"] = np.ones((6, 3))
        task().predict([from_sets(**parts)])


def rows(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "nodes": {
            "user": {
                "town": [["Bonn", "Ulm", None][k] for k in rng.integers(0, 3, 8)],
                "age": [None, *rng.normal(40, 9, 7).tolist()],
            },
            "item": {"price": rng.random(5), "x": rng.random((5, 2))},
            "shop": 2,
        },
        "edges": {
            ("user", "buys", "item"): {
                "edge_index": rng.integers(0, [[8], [5]], (2, 12)),
                "stars": rng.integers(1, 6, 12),
            },
            ("item", "at", "shop"): rng.integers(0, [[5], [2]], (2, 5)),
        },
    }


@pytest.mark.release(elsewhere=True)
def test_tables_are_encoded_by_set_and_kept_in_presets(tmp_path):
    data = [rows(seed) for seed in range(3)]
    encoder = NodeSetEncoder(reverse=True).adapt(data)
    assert encoder.num_edge_types == 4
    names = [list(key) for key in encoder.edge_types()]
    assert names == encoder(data[0]).info["edge_sets"]
    assert encoder.inputs() == {
        "sets": {
            "item": {"price": {"features": 1}, "x": {"features": 2}},
            "shop": {"kind": {"ids": 2}},
            "user": {"town": {"ids": 3}, "age": {"features": 1}},
        }
    }
    graph = encoder(data[0])
    ages = [a for d in data for a in d["nodes"]["user"]["age"] if a is not None]
    assert graph.sets["user"]["age"][0] == 0
    np.testing.assert_allclose(
        graph.sets["user"]["age"][1:],
        (np.array(data[0]["nodes"]["user"]["age"][1:]) - np.mean(ages)) / np.std(ages),
        rtol=1e-5,
    )
    np.testing.assert_allclose(graph.sets["item"]["x"], data[0]["nodes"]["item"]["x"])
    backbone = kb.models.GINEBackbone(
        encoder.inputs(), 8, num_layers=2, edge_inputs=encoder.edge_inputs()
    )
    model = kb.models.NodeClassifier(
        backbone, 2, GraphPreprocessor([encoder]), node_set="user"
    )
    labels = [np.arange(8) % 2] * 3
    model.fit(data, labels, epochs=1, verbose=0)
    before = model.predict(data)
    model.save_to_preset(tmp_path / "preset")
    loaded = kb.models.Task.from_preset(tmp_path / "preset")
    for one, other in zip(before, loaded.predict(data), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    pandas = pytest.importorskip("pandas")
    frame = {**data[0], "nodes": dict(data[0]["nodes"])}
    frame["nodes"]["user"] = pandas.DataFrame(frame["nodes"]["user"])
    np.testing.assert_allclose(loaded.predict([frame])[0], before[0], atol=1e-5)


@pytest.mark.release(elsewhere=True)
def test_edges_of_one_edge_set_have_labels():
    buys, data = ("user", "buys", "item"), rows()
    stars = np.arange(np.shape(data["edges"][buys]["edge_index"])[1]) % 3
    encoder = NodeSetEncoder(reverse=True).adapt([data])
    backbone = small(
        kb.models.RGCNBackbone,
        inputs=encoder.inputs(),
        num_edge_types=encoder.num_edge_types,
    )
    task = kb.models.EdgeClassifier(backbone, 3, GraphPreprocessor([encoder]))
    task.fit([{**data, "label": {buys: stars}}], epochs=1, verbose=0)
    logits = task.predict([data])[0]
    rated = encoder(data).edge_type == encoder.edge_types().index(buys)
    assert rated.sum() == len(stars) < len(logits)
    shifted = np.float64(logits[rated])
    shifted -= shifted.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[range(len(stars)), stars]
    scores = task.evaluate(
        [{**data, "label": {buys: stars}}], verbose=0, return_dict=True
    )
    assert abs(scores["loss"] - losses.mean()) < 1e-5


def test_the_encoder_refuses_what_it_did_not_learn():
    encoder = NodeSetEncoder().adapt([rows()])
    data = rows(1)
    data["nodes"]["user"].pop("age")
    with pytest.raises(ValueError, match="columns .* of node set 'user'"):
        encoder(data)
    data = rows(1)
    data["edges"]["user", "likes", "item"] = [[0], [0]]
    with pytest.raises(ValueError, match="edge sets of the training data"):
        encoder(data)
    data = rows(1)
    data["nodes"]["town"] = 3
    with pytest.raises(ValueError, match="node sets of the training data"):
        encoder(data)
    fewer = rows(1)
    del fewer["edges"]["item", "at", "shop"]
    assert encoder(fewer).info == encoder(rows(1)).info
    with pytest.raises(ValueError, match="`reverse` as an argument"):
        encoder({**rows(1), "reverse": True})
    assert NodeSetEncoder.accepts(rows()) and not NodeSetEncoder.accepts({"x": 1})


def test_columns_of_edges_and_masks_of_tables_are_those_of_the_training():
    data = rows()
    data["nodes"]["user"]["train_mask"] = [True, False] * 4
    encoder = NodeSetEncoder().adapt([data])
    graph = encoder(data)
    alone = rows()
    alone["nodes"] = {"user": {"train_mask": [True] * 8}, "item": 5}
    alone["edges"] = {("user", "buys", "item"): {"edge_index": [[0], [1]]}}
    alone["edges"]["user", "buys", "item"]["test_mask"] = [True]
    alone["edges"]["item", "by", "user"] = [[0, 1], [1, 1]]
    marked = NodeSetEncoder().adapt([alone])
    assert marked(alone).edge["test_mask"].tolist() == [0, 0, 1]
    fewer = {"nodes": {"item": 5}, "edges": {}}
    assert marked(fewer).num_nodes == 5 and marked(alone).num_nodes == 13
    assert "train_mask" not in encoder.inputs()["sets"]["user"]
    users = graph.node["set"] == 2
    assert graph.node["train_mask"][users].tolist() == [1, 0] * 4
    assert not graph.node["train_mask"][~users].any()
    lacking = rows()
    lacking["nodes"]["user"]["train_mask"] = [True] * 8
    ends = lacking["edges"]["user", "buys", "item"]
    lacking["edges"]["user", "buys", "item"] = {
        "edge_index": ends["edge_index"],
        "Stars": ends["stars"],
    }
    with pytest.raises(ValueError, match="columns \\['stars'\\] of edge set"):
        encoder(lacking)
    for columns, message in (
        ({"a/b": [1.0] * 8}, "without '/'"),
        ({"q": [None] * 8}, "column 'q' of 'user'"),
        ({"x": np.ones((8, 2, 2))}, "column 'x' of 'user'"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong = rows()
            wrong["nodes"]["user"] = columns
            NodeSetEncoder().adapt([wrong])
    wrong = rows()
    wrong["nodes"]["item"]["x"] = np.ones((5, 3))
    with pytest.raises(ValueError, match="column 'x' of 'item'.*as in training"):
        NodeSetEncoder().adapt([rows()])(wrong)


@pytest.mark.release(elsewhere=True)
def test_skipped_items_and_indices_of_tables_keep_labels_in_place():
    data, labels = [rows(seed) for seed in range(3)], np.arange(8) % 2
    bad = rows(3)
    bad["nodes"] = {"user": {"town": ["Ulm"]}, "item": {}, "shop": 1}
    encoder = NodeSetEncoder(on_error="skip").adapt(data)
    model = kb.models.NodeClassifier(
        kb.models.GINEBackbone(encoder.inputs(), 8, num_layers=1, num_edge_types=2),
        2,
        GraphPreprocessor([encoder]),
        node_set="user",
    )
    model.fit([*data[:1], bad, data[1]], [labels, [1], labels], epochs=1, verbose=0)
    with pytest.raises(ValueError, match="to have a row for each of the 8"):
        model.fit([data[0], bad], [labels[:3], [1]], verbose=0)
    assert model.predict(data[0])[0].shape == (8, 2)
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(data[0]["nodes"]["user"], index=list("abcdefgh"))
    framed = {**data[0], "nodes": {**data[0]["nodes"], "user": table}}
    y = pandas.Series(labels, index=list("abcdefgh"))
    model.fit([framed], [y], epochs=1, verbose=0)
    for given in ([y.iloc[::-1]], y.iloc[::-1]):
        with pytest.raises(ValueError, match="index in another order"):
            model.fit([framed], given, verbose=0)


def test_tasks_that_make_their_encoder_say_if_it_has_other_edge_sets():
    encoder = NodeSetEncoder(reverse=True).adapt([rows()])
    backbone = kb.models.RGCNBackbone(
        encoder.inputs(), 8, num_layers=1, num_edge_types=encoder.num_edge_types
    )
    model = kb.models.NodeClassifier(backbone, 2, node_set="user")
    with pytest.raises(ValueError, match="Expected 4 edge sets.*Received: 2"):
        model.fit([rows()], [np.arange(8) % 2], verbose=0)


def test_names_of_sets_may_have_dots():
    graph = from_sets({"a.b": {"x": np.ones((2, 3))}, "a_b": 2}, {})
    inputs = {"sets": {"a.b": {"x": {"features": 3}}, "a_b": {"kind": 1}}}
    backbone = kb.models.GINEBackbone(inputs, 8, num_layers=1)
    assert kb.models.NodeClassifier(backbone, 2).predict([graph])[0].shape == (4, 2)


def test_explanations_count_rows_of_the_node_set():
    model, graph = task(kb.models.SAGEBackbone), made()
    graph = graph.replace(label=None, label_level="graph")
    backbone = small(kb.models.SAGEBackbone)
    papers = kb.models.NodeClassifier(backbone, 3, node_set="paper")
    (found,) = kb.explain.saliency(papers, [graph], target=0, index=2)
    assert abs(found.output - papers.predict([graph])[0][2, 0]) < 1e-4
    (found,) = kb.explain.saliency(model, [graph], target=1, index=3)
    assert abs(found.output - model.predict([graph])[0][3, 1]) < 1e-4


def test_columns_of_pandas_and_strings_of_hetero_data_are_read_alike():
    pandas = pytest.importorskip("pandas")
    counts = pandas.array([1, 2, None, 2, 1, 1, 2, 1], dtype="Int64")
    frame = pandas.DataFrame({"c": counts})
    for table in (frame, {"c": counts}, {"c": frame["c"]}):
        item = {**rows(), "nodes": {**rows()["nodes"], "user": table}}
        encoder = NodeSetEncoder().adapt([item])
        assert encoder.inputs()["sets"]["user"] == {"c": {"ids": 3}}
    for table, message in (
        (pandas.DataFrame([[1, 2]] * 8, columns=["c", "c"]), "a name of its own"),
        ({"c": 1.5}, "a value for each row"),
    ):
        item = {**rows(), "nodes": {**rows()["nodes"], "user": table}}
        with pytest.raises(ValueError, match=message):
            NodeSetEncoder().adapt([item])
    empty = {"nodes": {"a": pandas.DataFrame(index=range(6))}, "edges": {}}
    assert NodeSetEncoder().adapt([empty])(empty).num_nodes == 6
    lacking = rows()
    del lacking["nodes"]["shop"]
    with pytest.raises(ValueError, match="\\['shop'\\] are missing"):
        NodeSetEncoder().adapt([rows()])(lacking)
    pyg = pytest.importorskip("torch_geometric.data")
    data = pyg.HeteroData()
    data["town"].name = ["Ulm", "Bonn", "Ulm"]
    encoder = NodeSetEncoder().adapt([data])
    assert encoder(data).sets["town"]["name"].tolist() == [2, 1, 2]
