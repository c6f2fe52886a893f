"""`fit(x, y)` on raw data: SMILES, ASE, networkx, pandas, torch_geometric, arrays."""

import copy
import inspect
import logging

import keras
import numpy as np
import pytest

from keras_bandgnn import Graph, preprocessing
from keras_bandgnn.data import FlatGraphs, from_smiles
from keras_bandgnn.models import (
    EdgeRegressor,
    ForceRegressor,
    GCNBackbone,
    GINEBackbone,
    GraphClassifier,
    GraphRegressor,
    NodeClassifier,
    SchNetBackbone,
    Task,
    inputs,
)
from keras_bandgnn.preprocessing import (
    AtomsEncoder,
    DynamicBatcher,
    GraphEncoder,
    GraphPreprocessor,
    LargestComponent,
    NetworkXEncoder,
    NodeSetEncoder,
    PyGEncoder,
    SmilesEncoder,
    TableEncoder,
)
from keras_bandgnn.preprocessing.encoding import graph_encoder
from keras_bandgnn.preprocessing.encoding.graph_encoder import accepting, is_raw

SMILES = ["CCO", "c1ccccc1", "CC(=O)O", "C#N", "CCN", "OCC", "CCCl", "C[N+](C)(C)C"] * 3


SAMPLED = ["smiles", "networkx", "ase", "pyg", "pandas", "sets"]
"""What `samples` yields."""


def networks(count=12):
    nx = pytest.importorskip("networkx")
    rng = np.random.default_rng(0)
    out = []
    for k in range(count):
        graph = nx.random_labeled_tree(4 + k % 3, seed=k)
        graph = nx.relabel_nodes(graph, {n: f"n{n}" for n in graph})
        for node in graph:
            graph.nodes[node]["element"] = str(rng.choice(["C", "N", "O"]))
            graph.nodes[node]["charge"] = float(rng.normal())
        for edge in graph.edges:
            graph.edges[edge]["bond"] = str(rng.choice(["single", "double"]))
        out.append(graph)
    return out


def atoms(count=8):
    pytest.importorskip("ase")
    from ase.build import molecule

    names = ["H2O", "CH4", "NH3", "C2H6"]
    out = [molecule(names[k % 4]) for k in range(count)]
    for k, each in enumerate(out):
        each.rattle(0.05, seed=k)
    return out


def data_of_pyg(count=10):
    torch = pytest.importorskip("torch")
    package = pytest.importorskip("torch_geometric.data")
    out = []
    for k in range(count):
        nodes = 3 + k % 3
        ends = torch.tensor([[n for n in range(nodes - 1)], list(range(1, nodes))])
        x = torch.arange(2.0 * nodes).reshape(nodes, 2) / (k + 1)
        out.append(package.Data(x=x, edge_index=ends, y=torch.tensor([k % 2])))
    return out


def gcn(encoder, types=None):
    types = encoder.num_edge_types if types is None else types
    inputs = encoder.inputs()
    return GCNBackbone(inputs, hidden_dim=6, num_layers=2, num_edge_types=types)


def markets(count=12):
    """Graphs of two node sets, whose users like one item more than others."""
    rng = np.random.default_rng(0)
    out = []
    for k in range(count):
        users, items = 3 + k % 2, 2
        out.append(
            {
                "nodes": {
                    "user": {
                        "town": [str(t) for t in rng.choice(["Ulm", "Bonn"], users)],
                        "age": rng.normal(40, 9, users).tolist(),
                    },
                    "item": {"price": rng.random(items)},
                },
                "edges": {
                    ("user", "buys", "item"): rng.integers(
                        0, [[users], [items]], (2, 5)
                    )
                },
            }
        )
    return out


def turned_market(item):
    """The same with the rows of each table in the other order."""
    sizes = {"user": len(item["nodes"]["user"]["age"]), "item": 2}
    tables = {
        name: {key: list(values)[::-1] for key, values in table.items()}
        for name, table in item["nodes"].items()
    }
    (key,) = item["edges"]
    last = [[sizes[key[0]] - 1], [sizes[key[2]] - 1]]
    return {"nodes": tables, "edges": {key: last - item["edges"][key]}}


def samples():
    """Encoder -> items, and a task over it."""
    keras.utils.set_random_seed(1)
    smiles = SmilesEncoder()
    yield (
        "smiles",
        SMILES,
        GraphRegressor(gcn(smiles), 1, GraphPreprocessor([smiles], DynamicBatcher(7))),
    )
    nets = networks()
    network = NetworkXEncoder(edge_type="bond").adapt(nets)
    yield (
        "networkx",
        nets,
        GraphRegressor(gcn(network), 1, GraphPreprocessor([network])),
    )
    structures = atoms()
    backbone = SchNetBackbone((1, 6, 7, 8), hidden_dim=8, num_gaussians=20)
    yield "ase", structures, GraphRegressor(backbone, 1)
    pyg = data_of_pyg()
    yield "pyg", pyg, GraphRegressor(gcn(PyGEncoder().adapt(pyg), 1), 1)
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"smiles": SMILES, "mass": np.arange(24.0)})
    yield "pandas", table, GraphRegressor(gcn(smiles), 1)
    sets = NodeSetEncoder().adapt(markets())
    yield "sets", markets(), GraphRegressor(gcn(sets), 1, GraphPreprocessor([sets]))


@pytest.mark.parametrize("kind", SAMPLED)
def test_raw_data_is_fitted_saved_and_predicted_alike(kind, tmp_path, monkeypatch):
    _, items, task = next(sample for sample in samples() if sample[0] == kind)
    y = np.linspace(-1, 1, len(items))
    history = task.fit(items, y, epochs=2, verbose=0, validation_split=0.25)
    assert "val_loss" in history.history
    before = task.predict(items)
    assert len(before) == len(items) and before[0].shape == (1,)
    task.save_to_preset(tmp_path / "preset")
    loaded = Task.from_preset(tmp_path / "preset")
    assert type(loaded.preprocessor.encoder) is type(task.preprocessor.encoder)
    np.testing.assert_allclose(loaded.predict(items), before, rtol=1e-5, atol=1e-6)
    # One item is converted as it was among the others.
    one = items.iloc[3:4] if kind == "pandas" else [items[3]]
    np.testing.assert_allclose(loaded.predict(one)[0], before[3], rtol=1e-4, atol=1e-5)
    # So are more items than are graphs at the same time.
    monkeypatch.setattr(inputs, "_ITEMS_AT_ONCE", 7)
    np.testing.assert_allclose(loaded.predict(items), before, rtol=1e-4, atol=1e-5)
    # Labels inside the graphs are the same as labels beside them.
    encoder = task.preprocessor.encoder
    graphs = [g.replace(label=v) for g, v in zip(encoder(items), y, strict=True)]
    inside = task.evaluate(graphs, verbose=0)
    np.testing.assert_allclose(task.evaluate(items, y, verbose=0), inside, rtol=1e-5)


def edge_samples():
    """Kind of raw data -> an encoder, items, and what `edge_inputs` returns."""
    yield "smiles", SmilesEncoder(), SMILES, {"bond_ids": {"ids": 10}}
    nets = networks()
    for net in nets:
        for end in net.edges.values():
            end["vector"] = [1.0, 0.5]
    bond = {"bond": {"ids": 3}, "vector": {"features": 2}}
    yield "networkx", NetworkXEncoder(), nets, bond
    types = {"vector": {"features": 2}, "type": {"ids": 3}}
    yield "networkx, types", NetworkXEncoder(edge_type="bond"), nets, types
    bare = [net.__class__(net.edges) for net in networks(4)]
    yield "networkx, bare", NetworkXEncoder(), bare, None
    yield "ase", AtomsEncoder(), atoms(), None
    rng = np.random.default_rng(0)
    arrays = [
        {
            "edge_index": [[0, 1, 2], [1, 2, 0]],
            "x": rng.integers(0, [3, 2], (4, 2)),
            "edge_attr": rng.normal(size=(3, 2)).astype("float32"),
            "edge_kind": np.array([[0, 1], [1, 0], [2, 0]]),
            "edge_type": [0, 1, 0],
            "num_nodes": 4,
        }
        for _ in range(8)
    ]
    own = {"edge_attr": {"features": 2}, "edge_kind": {"columns": [3, 2]}}
    yield "arrays", PyGEncoder(), arrays, {**own, "type": {"ids": 2}}
    yield "pyg", PyGEncoder(), data_of_pyg(), None
    fields = {"num_nodes": 2, "senders": [0], "receivers": [1], "node": {"k": [0, 1]}}
    fields["edge"] = {"length": np.array([0.5], "float32")}
    length = {"length": {"features": 1}}
    yield "fields", PyGEncoder(), [fields] * 4, length
    rows = [{"cell": item, "t": float(k)} for k, item in enumerate(arrays)]
    table = TableEncoder("cell", PyGEncoder(), context=["t"])
    yield "table", table, rows, {**own, "type": {"ids": 2}}


KINDS_OF_EDGES = ["smiles", "networkx", "networkx, types", "networkx, bare", "ase"]
KINDS_OF_EDGES += ["arrays", "pyg", "fields", "table"]


@pytest.mark.parametrize("kind", KINDS_OF_EDGES)
def test_edge_features_of_raw_data_reach_the_messages(kind):
    _, encoder, items, expected = next(s for s in edge_samples() if s[0] == kind)
    encoder.adapt(items)
    assert encoder.edge_inputs() == expected
    again = type(encoder).from_config(encoder.get_config())
    assert again.edge_inputs() == expected
    inputs = encoder.inputs()
    backbone = GINEBackbone(inputs, 4, 1, edge_inputs=encoder.edge_inputs())
    task = GraphRegressor(backbone, 1, GraphPreprocessor([encoder]))
    task.check(task.loader(items))
    if kind in ("networkx, types", "table"):
        task.fit(items, np.arange(1.0 * len(items)), epochs=1, verbose=0)
        assert np.isfinite(task.predict(items)).all()
    assert (backbone.edge_encoder is None) == (expected is None)


def test_columns_of_ids_of_smiles_and_of_torch_geometric():
    pytest.importorskip("rdkit")
    atoms, bonds = [120, 12, 17, 10, 6, 2, 2, 10], [5, 2, 2]
    backbone = GINEBackbone({"atom": atoms}, 4, 1, edge_inputs={"bond": bonds})
    graphs = FlatGraphs.from_graphs([from_smiles(smiles) for smiles in SMILES])
    backbone.check(graphs)
    items = [
        {"edge_index": np.stack([g.senders, g.receivers]), "x": g.node["atom"]}
        | {"edge_attr": g.edge["bond"], "num_nodes": g.num_nodes}
        for g in graphs
    ]
    encoder = PyGEncoder().adapt(items)
    inputs = {**encoder.inputs(), **encoder.edge_inputs()}
    for name, most in (("x", atoms), ("edge_attr", bonds)):
        assert len(inputs[name]["columns"]) == len(most)
        assert all(np.array(inputs[name]["columns"]) <= most)


def test_column_names_of_a_table_are_labels():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"smiles": SMILES, "a": np.arange(24.0), "b": 1.0})
    task = GraphRegressor(gcn(SmilesEncoder()), 2)
    task.fit(table, ["a", "b"], epochs=1, verbose=0)
    assert task.evaluate(table, table[["a", "b"]].to_numpy(), verbose=0) is not None
    with pytest.raises(ValueError, match="Expected columns of the table"):
        task.fit(table, ["a", "c"], epochs=1, verbose=0)


def test_bad_items_are_named_or_skipped(caplog, monkeypatch):
    items = ["CCO", "C1CC", None, "CC"]
    encoder = SmilesEncoder()
    assert is_raw([None, float("nan"), "CC"])
    with pytest.raises(ValueError, match=r"item 1: .*C1CC.*on_error='skip'"):
        encoder.encode(items)
    skipping = SmilesEncoder(on_error="skip")
    with caplog.at_level(logging.WARNING):
        encoded = skipping.encode(items)
    assert encoded.positions.tolist() == [0, 3] and set(encoded.errors) == {1, 2}
    assert "left out 2 of 4 items" in caplog.text
    task = GraphRegressor(gcn(encoder), 1, GraphPreprocessor([skipping]))
    task.fit(items, [1.0, 2.0, 3.0, 4.0], epochs=1, verbose=0)
    out = task.predict(items)
    assert out[1] is None and out[2] is None and out[3].shape == (1,)
    # Also where others are converted before.
    monkeypatch.setattr(inputs, "_ITEMS_AT_ONCE", 2)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        again = task.predict(items)
    assert again[2] is None and "item 1:" in caplog.text and "item 2:" in caplog.text
    np.testing.assert_allclose(again[3], out[3], rtol=1e-4, atol=1e-5)
    labels = [g.label.item() for g in task.labelled("x", items, [1, 2, 3, 4.0])[0]]
    assert labels == [1.0, 4.0]
    task.preprocessor.add_encoder(encoder)
    with pytest.raises(ValueError, match="item 2:"):
        task.predict([*items[::3], "C1CC"])


def weighted_mean(task, graphs, values, weights, known):
    """The loss of Keras: sum of weighted terms over the number of entries."""
    return float((values * weights)[known].sum() / known.sum())


def test_sample_and_class_weights_against_numpy():
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    graphs = [Graph(n, [0], [n - 1], node={"k": [0] * n}) for n in (2, 3, 4, 2, 5, 3)]
    y = np.array([0, 1, 2, 1, -1, 0])
    task = GraphClassifier(GCNBackbone({"k": 1}, hidden_dim=4), 3)
    task.compile("sgd", weighted_metrics=["accuracy"])
    sample_weight = rng.uniform(0.5, 2, 6)
    logits = np.stack(task.predict(graphs))
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    values, known = -logs[np.arange(6), np.maximum(y, 0)], y >= 0
    found = task.evaluate(
        graphs, y, sample_weight=sample_weight, verbose=0, return_dict=True
    )
    np.testing.assert_allclose(
        found["loss"], weighted_mean(task, graphs, values, sample_weight, known), 1e-5
    )
    right = (logits.argmax(axis=1) == y)[known]
    np.testing.assert_allclose(
        found["accuracy"], np.average(right, weights=sample_weight[known]), 1e-5
    )
    class_weight = {0: 1.0, 1: 3.0, 2: 0.5}
    before = task.get_weights()
    task.compile(keras.optimizers.SGD(0.0), weighted_metrics=[])
    history = task.fit(
        graphs,
        y,
        sample_weight=sample_weight,
        class_weight=class_weight,
        epochs=1,
        verbose=0,
    )
    both = sample_weight * np.array([1.0, 3.0, 0.5])[np.maximum(y, 0)]
    expected = weighted_mean(task, graphs, values, both, known)
    np.testing.assert_allclose(history.history["loss"], [expected], 1e-5)
    for old, new in zip(before, task.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_weights_of_nodes_against_numpy():
    keras.utils.set_random_seed(0)
    graphs = [Graph(n, [0], [1], node={"k": [0] * n}) for n in (2, 3, 4)]
    y = [np.arange(n) % 2 for n in (2, 3, 4)]
    weights = [np.arange(1.0, n + 1) for n in (2, 3, 4)]
    task = NodeClassifier(GCNBackbone({"k": 1}, hidden_dim=4), 2)
    logits = np.concatenate(task.predict(graphs))
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    values = -logs[np.arange(9), np.concatenate(y)]
    loss = task.evaluate(graphs, y, sample_weight=weights, verbose=0)[0]
    np.testing.assert_allclose(loss, (values * np.concatenate(weights)).mean(), 1e-5)
    per_graph = np.array([1.0, 2.0, 4.0])
    loss = task.evaluate(graphs, y, sample_weight=per_graph, verbose=0)[0]
    np.testing.assert_allclose(
        loss, (values * per_graph.repeat([2, 3, 4])).mean(), 1e-5
    )


def test_weights_of_graphs_weigh_their_forces():
    keras.utils.set_random_seed(0)
    structures = atoms(4)
    encoder = AtomsEncoder()
    graphs = [encoder(each) for each in structures]
    graphs = [
        g.replace(node={**g.node, "force": np.full((g.num_nodes, 3), 0.1)})
        for g in graphs
    ]
    backbone = SchNetBackbone((1, 6, 7, 8), hidden_dim=4, num_gaussians=20, cutoff=5.0)
    task = ForceRegressor(backbone)
    y = np.arange(4.0)
    weights = np.array([1.0, 0.5, 2.0, 0.0])
    found = [
        task.evaluate(graphs, y, sample_weight=w, verbose=0, return_dict=True)["loss"]
        for w in (weights, 2 * weights, np.ones(4))
    ]
    np.testing.assert_allclose(found[1], 2 * found[0], 1e-5)
    each = [
        task.evaluate([g], [v], verbose=0, return_dict=True)["force_mae"]
        for g, v in zip(graphs, y, strict=True)
    ]
    assert np.isfinite(each).all() and found[2] != pytest.approx(found[0])


def test_one_graph_with_labels_and_masks_beside_it():
    graph = Graph(
        4, [0, 1, 2], [1, 2, 3], node={"k": [0, 0, 1, 1], "train": [1, 0, 0, 1]}
    )
    task = NodeClassifier(GCNBackbone({"k": 2}, hidden_dim=4), 2)
    task.fit(graph, [0, 0, 1, 1], mask="train", class_weight={1: 2.0}, verbose=0)
    assert len(task.evaluate(graph, [0, 0, 1, 1], mask="train", verbose=0)) == 2


def test_validation_split_keeps_the_same_molecule_on_one_side():
    # "OCC" and "CCO" are one molecule.
    items = ["CCO", "CC", "CCC", "CN", "CO", "OCC", "CCN", "CC"]
    task = GraphRegressor(gcn(SmilesEncoder()), 1)
    train, valid = task.labelled("x", items, np.arange(8.0), split=0.5, adapt=True)
    assert valid.label.ravel().tolist() == [1, 4, 6, 7]
    assert train.label.ravel().tolist() == [0, 2, 3, 5]
    flat = FlatGraphs.from_graphs(
        [Graph(n, [], [], node={"k": [0] * n}, label=float(n)) for n in (1, 2, 3, 2, 4)]
    )
    train, valid = task.labelled("x", flat, split=0.4)
    assert valid.label.tolist() == [3.0, 4.0] and len(train) == 3
    train, valid = task.labelled("x", flat, split=0.6)
    assert valid.label.tolist() == [2.0, 2.0, 4.0]


def disguises():
    """Encoder class -> an encoder, different items, and others that are the same."""
    mapped = "[CH3:4][CH2:2][OH:3]"
    same = {
        "CCO": ["OCC", "C(C)O", mapped, "[13CH3]CO", "[CH3][CH2][OH]"],
        "C/C=C/Cl": ["C/C=C\\Cl", "CC=CCl"],
        "C[C@H](N)O": ["N[C@@H](C)O", "[2CH3][C@H](N)O"],
    }
    chem = pytest.importorskip("rdkit.Chem")
    molecules = [chem.AddHs(chem.MolFromSmiles(text)) for text in same]
    smiles = {**same, "CCN": [], "C1CC1": [], "CC[O-]": []}
    for text, molecule in zip(same, molecules, strict=True):
        smiles[text] = [*smiles[text], molecule]
    yield SmilesEncoder, SmilesEncoder(), smiles

    def row(text, solvent):
        return {"smiles": text, "solvent": solvent, "note": f"{text} in {solvent}"}

    rows = {
        k: (row(text, "water"), [row(t, "ether") for t in (text, *others)])
        for k, (text, others) in enumerate(same.items())
    }
    table = TableEncoder("smiles", SmilesEncoder(), context=["solvent"])
    yield TableEncoder, table, rows.values()
    structures = atoms(4)
    turned = [each[::-1] for each in structures]
    for each in turned:
        each.info["name"] = "another"
    pairs = [(a, [b]) for a, b in zip(structures, turned, strict=True)]
    yield AtomsEncoder, AtomsEncoder(), pairs
    nx = pytest.importorskip("networkx")
    networks_ = networks(4)
    pairs = []
    for each in networks_:
        other = nx.Graph(name="another")
        other.add_nodes_from([*each.nodes(data=True)][::-1])
        other.add_edges_from([*each.edges(data=True)][::-1])
        other = nx.relabel_nodes(other, {n: f"other {n}" for n in other})
        pairs.append((each, [other]))
    yield NetworkXEncoder, NetworkXEncoder(), pairs
    pairs = []
    for each in data_of_pyg(4):
        other, last = each.clone(), each.num_nodes - 1
        other.x, other.edge_index = each.x.flip(0), last - each.edge_index
        pairs.append((each, [other]))
    yield PyGEncoder, PyGEncoder(), pairs
    pairs = [(each, [turned_market(each)]) for each in markets(4)]
    yield NodeSetEncoder, NodeSetEncoder(), pairs


def test_every_encoder_has_items_in_disguise():
    public = {
        getattr(preprocessing, name)
        for name in preprocessing.__all__
        if inspect.isclass(getattr(preprocessing, name))
    }
    encoders = {c for c in public if issubclass(c, GraphEncoder)} - {GraphEncoder}
    assert encoders == {cls for cls, *_ in disguises()}, "add items to disguises()"


@pytest.mark.parametrize("number", range(6))
def test_validation_split_keeps_what_the_model_cannot_tell_apart(number):
    cls, encoder, same = [*disguises()][number]
    same = [*(same.items() if isinstance(same, dict) else same)]
    items = [item for item, _ in same] + [o for _, others in same for o in others]
    kinds = [*range(len(same))]
    kinds += [k for k, (_, others) in enumerate(same) for _ in others]
    encoder.adapt(items)
    layers = [encoder]
    if cls is AtomsEncoder:
        backbone = SchNetBackbone((1, 6, 7, 8), hidden_dim=8, num_gaussians=20)
        layers += backbone.default_layers(encoder(items))
    else:
        backbone = gcn(encoder)
    task = GraphRegressor(backbone, 1, GraphPreprocessor(layers))
    y = np.arange(float(len(items)))
    parts = set()
    for share in np.arange(0.1, 0.95, 0.1):
        train, valid = task.labelled("x", items, y, split=share)
        sides = [{kinds[int(k)] for k in p.label.ravel()} for p in (train, valid)]
        assert not sides[0] & sides[1]
        parts.add(frozenset(sides[1]))
    # Different items are not held together: all but one can be on a side.
    assert {len(part) for part in parts} >= {1, len(same) - 1}


def test_validation_split_compares_what_layers_leave_and_backbones_read():
    def graph(k, salt=False, name=0):
        ends = np.arange(k), np.arange(1, k + 1)
        node = {"k": np.zeros(k + 1 + salt, int), "name": np.full(k + 1 + salt, name)}
        return Graph(k + 1 + salt, *ends, node=node, label=float(k))

    graphs = [graph(k) for k in range(1, 5)]
    graphs += [graph(k, salt=True, name=k) for k in range(1, 5)]
    backbone = GCNBackbone({"k": 1}, hidden_dim=4)
    for layers, shared in (([LargestComponent()], True), ([], False)):
        task = GraphRegressor(backbone, 1, GraphPreprocessor(layers))
        train, valid = task.labelled("x", graphs, split=0.25)
        sides = [set(part.label.tolist()) for part in (train, valid)]
        assert bool(sides[0] & sides[1]) != shared
    # A name that no layer reads.
    named = [graph(k, name=n) for n in range(3) for k in range(1, 5)]
    train, valid = task.labelled("x", named, split=0.25)
    assert not {*train.label.tolist()} & {*valid.label.tolist()}
    task.fit(named, validation_split=0.25, epochs=1, verbose=0)


def test_wrong_labels_and_weights_say_what_is_expected():
    graphs = [Graph(2, [0], [1], node={"k": [0, 0]})] * 4
    task = GraphClassifier(GCNBackbone({"k": 1}, hidden_dim=4), 2)
    y = [0, 1, 0, 1]
    cases = {
        "row for each of 4 graphs": {"y": [0, 1]},
        "Map the names of classes": {"y": ["a", "b", "a", "b"]},
        "one number >= 0 per graph": {
            "y": y,
            "sample_weight": [1, -1, 1, 1],
        },
        r"class 'a'": {"y": y, "class_weight": {"a": 1}},
        r"class 2": {"y": y, "class_weight": {2: 1}},
        "two distinct graphs": {"y": y, "validation_split": 0.2},
    }
    for message, options in cases.items():
        with pytest.raises(ValueError, match=message):
            task.fit(graphs, **options, verbose=0)
    regressor = GraphRegressor(GCNBackbone({"k": 1}, hidden_dim=4), 1)
    with pytest.raises(ValueError, match="labels of one class each"):
        regressor.fit(graphs, np.arange(4.0), class_weight={0: 1}, verbose=0)
    nodes = NodeClassifier(GCNBackbone({"k": 1}, hidden_dim=4), 2)
    with pytest.raises(ValueError, match="row for each of the 2 nodes of graph 1"):
        nodes.fit(graphs, [[0, 1], [0], [0, 1], [0, 1]], verbose=0)


def test_predict_needs_what_fit_learnt():
    nets = networks(4)
    task = GraphRegressor(GCNBackbone({"element": 4}, hidden_dim=4), 1)
    with pytest.raises(ValueError, match="with an adapted NetworkXEncoder"):
        task.predict(nets)
    task.fit(nets, np.arange(4.0), epochs=1, verbose=0)
    nets[0].nodes["n0"]["element"] = "Xe"
    assert np.isfinite(task.predict(nets[:1])[0]).all()
    assert task.preprocessor.encoder(nets[0]).node["element"][0] == 0


def test_conversion_in_processes_and_from_the_cache(tmp_path):
    items = [f"C{'C' * (k % 20)}O" for k in range(1100)]
    encoder = SmilesEncoder()
    plain = encoder.encode(items).graphs
    encoder.processes, encoder.cache = 2, str(tmp_path / "cache")
    for _ in range(2):
        graphs = encoder.encode(items).graphs
        for name, column in plain.columns().items():
            np.testing.assert_array_equal(graphs.columns()[name], column)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert "cache" not in encoder.get_config()


@pytest.mark.parametrize("kind", SAMPLED)
def test_adapted_encoders_convert_in_other_processes(kind, monkeypatch):
    monkeypatch.setattr(graph_encoder, "_JOB_ITEMS", 3)
    _, items, _ = next(sample for sample in samples() if sample[0] == kind)
    encoder = graph_encoder.encoder_for(graph_encoder.raw_items(items)[0])
    encoder.adapt(items)
    expected = encoder.encode(items).graphs.columns()
    encoder.processes = 2
    found = encoder.encode(items).graphs.columns()
    assert {*found} == {*expected}
    for name, column in expected.items():
        np.testing.assert_array_equal(found[name], column, err_msg=name)


def encoders():
    classes = keras.saving.get_custom_objects().values()
    return [
        cls
        for cls in classes
        if isinstance(cls, type)
        and issubclass(cls, GraphEncoder)
        and cls.__module__.startswith("keras_bandgnn.")
    ]


def test_every_encoder_has_a_sample():
    sampled = {SmilesEncoder, AtomsEncoder, NetworkXEncoder, PyGEncoder, TableEncoder}
    sampled.add(NodeSetEncoder)
    assert set(encoders()) == sampled, f"add samples to samples() in {__file__}"
    for cls in encoders():
        assert "on_error" in inspect.signature(cls).parameters


def test_spellings_of_a_chiral_molecule_have_one_prediction():
    chem = pytest.importorskip("rdkit.Chem")
    molecule = chem.MolFromSmiles("CC(=O)O[C@H]1C[C@@H](N)[C@@H](O)[C@H]1F")
    spellings = [chem.MolToSmiles(molecule, doRandom=True) for _ in range(12)]
    rows = [{"smiles": text} for text in spellings]
    samples = [(cls(), spellings) for cls in encoders() if cls.accepts("C")]
    samples.append((TableEncoder("smiles", SmilesEncoder()), rows))
    for encoder, items in samples:
        encoder.adapt(items)
        backbone = GINEBackbone(
            encoder.inputs(), 8, num_layers=2, edge_inputs=encoder.edge_inputs()
        )
        task = GraphRegressor(backbone, 1, GraphPreprocessor([encoder]))
        outputs = np.ravel(task.predict(items))
        np.testing.assert_allclose(outputs, outputs[0], atol=1e-6)


def test_files_of_0_2_0_have_the_chiral_tags_of_rdkit():
    chem = pytest.importorskip("rdkit.Chem")
    config = {"on_error": "raise", "hydrogens": False}
    old = SmilesEncoder.from_config(config)
    assert old.plain_config() == config
    smiles = "F[C@@H](C)Cl"
    tags = [int(a.GetChiralTag()) for a in chem.MolFromSmiles(smiles).GetAtoms()]
    last = old(smiles).node["atom_ids"][:, -1]
    assert (last - last.min()).tolist() == [tag - min(tags) for tag in tags]
    new = SmilesEncoder()
    assert SmilesEncoder.from_config(new.get_config()).chirality == new.chirality
    assert new.chirality == "canonical" and copy.deepcopy(old).chirality == "written"


def test_what_is_raw_and_what_is_not():
    graph = Graph(2, [0], [1], node={"k": [0, 0]})
    batch = GraphRegressor(GCNBackbone({"k": 1}, hidden_dim=4), 1).loader([graph])[0]
    for data in (
        [graph],
        graph,
        FlatGraphs.from_graphs([graph]),
        batch,
        batch[0],
        [],
        3,
    ):
        assert not is_raw(data), data
    for data in (["C"], "C", np.array(["C", "O"]), iter(()), ("C",)):
        assert is_raw(data) == (not hasattr(data, "__next__")), data
    fields = {"num_nodes": 1, "senders": [], "receivers": []}
    assert accepting(fields) is PyGEncoder and is_raw([fields])


def test_labels_and_weights_by_the_names_of_classes():
    graphs = [Graph(2, [0], [1], node={"k": [0, 0]})] * 3
    backbone = GCNBackbone({"k": 1}, hidden_dim=4)
    task = GraphClassifier(backbone, 2, class_names=["no", "yes"])
    flat, _ = task.labelled("x", graphs, ["no", "yes", None], class_weight={"yes": 3.0})
    assert flat.label.tolist() == [0, 1, -1]
    assert flat.context["sample_weight"].tolist() == [1.0, 3.0, 1.0]
    with pytest.raises(ValueError, match="among class_names"):
        task.fit(graphs, ["no", "maybe", "yes"], verbose=0)


def test_items_that_all_fail_and_data_that_is_empty():
    task = GraphRegressor(gcn(SmilesEncoder()), 1)
    task.preprocessor = GraphPreprocessor([SmilesEncoder(on_error="skip")])
    assert task.predict(["zz", "yy"]) == [None, None]
    with pytest.raises(ValueError, match="none of 2"):
        task.fit(["zz", "yy"], [1.0, 2.0], verbose=0)
    for empty in ([], FlatGraphs.from_graphs([])):
        with pytest.raises(ValueError, match="Expected at least one graph"):
            task.fit(empty, [], verbose=0)
    with pytest.raises(ValueError, match=r"or pass labels: fit\(x, y\)"):
        task.fit(["CC"], verbose=0)
    with pytest.raises(ValueError, match="In validation_data: .*row for each of 1"):
        task.fit(["CC"], [1.0], validation_data=(["CC"], [1.0, 2.0]), verbose=0)


def test_nodes_without_attributes_have_degrees():
    nx = pytest.importorskip("networkx")
    graphs = [nx.star_graph(3), nx.path_graph(2)]
    encoder = NetworkXEncoder().adapt(graphs)
    assert encoder.inputs() == {"degree": {"ids": 256}}
    assert encoder(graphs[0]).node["degree"].tolist() == [3, 1, 1, 1]
    graphs[0].nodes[0]["q"], graphs[0].nodes[1]["q"] = 1.5, "x"
    with pytest.raises(ValueError, match="all numbers or all categories"):
        NetworkXEncoder().adapt(graphs)


def test_columns_beside_the_molecules_are_read():
    pandas = pytest.importorskip("pandas")
    keras.utils.set_random_seed(0)
    y = np.arange(24) % 2 * 4.0
    solvents = np.where(y > 0, "water", "ethanol")
    table = pandas.DataFrame({"smiles": SMILES, "solvent": solvents, "t": y / 7})
    encoder = TableEncoder("smiles", context=["solvent", "t"]).adapt(table)
    inputs = encoder.inputs()
    assert inputs["solvent"] == {"ids": 3} and inputs["t"] == {"features": 1}
    encoded = [graph.node["t"][0] for graph in encoder(table)]
    np.testing.assert_allclose(encoded, (y - y.mean()) / y.std(), rtol=1e-6)
    task = GraphRegressor(gcn(encoder), 1, GraphPreprocessor([encoder]))
    task.compile(keras.optimizers.Adam(0.05))
    task.fit(table, y, epochs=30, verbose=0)
    out = np.array(task.predict(table))[:, 0]
    assert np.abs(out[y > 0].mean() - out[y == 0].mean()) > 2
    with pytest.raises(ValueError, match="Expected a column 'solvent'"):
        task.predict(table[["smiles", "t"]])
    with pytest.raises(ValueError, match="named in `context`"):
        TableEncoder("smiles", context=["nope"]).adapt(table)
    assert task.predict(table.iloc[:0]) == []


def test_numbers_of_columns_are_standardized():
    rows = [{"smiles": "CCO", "t": [t, 5.0]} for t in (280.0, 300.0, 320.0)]
    encoder = TableEncoder("smiles", context=["t"]).adapt(rows)
    std = np.std([280, 300, 320])
    expected = {"number": [2], "mean": [300.0, 5.0], "std": [std, 1.0]}
    assert encoder.context == {"t": expected}
    again = TableEncoder.from_config(encoder.plain_config())
    for one in (encoder, again):
        node = one({"smiles": "C", "t": [300.0 + std, 7.0]}).node["t"]
        np.testing.assert_allclose(node, [[1.0, 2.0]], rtol=1e-6)
    # Contexts of files without these constants are read as they are.
    raw = TableEncoder("smiles", SmilesEncoder(), context={"t": {"number": [2]}})
    assert raw(rows[0]).node["t"][0].tolist() == [280.0, 5.0]
    rows.append({"smiles": "C", "t": [np.inf, 0.0]})
    assert TableEncoder("smiles", context=["t"]).adapt(rows).context == {"t": expected}
    with pytest.raises(ValueError, match="item 3: .* to be finite"):
        encoder(rows)


def test_errors_about_inputs_say_how_to_pass_an_encoder():
    rows = [{"smiles": s, "solvent": "water"} for s in SMILES]
    encoder = TableEncoder("smiles", context=["solvent"]).adapt(rows)
    with pytest.raises(ValueError, match=r"GraphPreprocessor\(\[encoder\]\)"):
        GraphRegressor(gcn(encoder)).fit(rows, np.arange(24.0), verbose=0)
    # A preset that was trained on graphs of other features.
    task = GraphRegressor(GCNBackbone({"atom": 28}, 8, 1), 1, GraphPreprocessor([]))
    for call in (task.predict, lambda x: task.fit(x, np.arange(24.0), verbose=0)):
        with pytest.raises(ValueError, match=r"\['atom'\].* SmilesEncoder .*atom_ids"):
            call(SMILES)
    with pytest.raises(ValueError, match=r"Write GraphPreprocessor\("):
        GraphRegressor(gcn(encoder), 1, [encoder])
    with pytest.raises(ValueError, match=r"pass encoder.inputs\(\)"):
        GCNBackbone(encoder, 8, 1)
    with pytest.raises(ValueError, match="Pass ase.Atoms or .* no positions"):
        GraphRegressor(SchNetBackbone(10, 4, 1)).fit(SMILES, np.arange(24.0), verbose=0)


def test_types_of_edges_of_dicts_and_pairs_of_a_generator():
    fields = {"num_nodes": 2, "senders": [0], "receivers": [1], "edge_type": [3]}
    fields["node"] = {"k": [0, 4]}
    encoder = PyGEncoder().adapt([fields])
    assert encoder.num_edge_types == 4 and encoder.inputs() == {"k": {"ids": 5}}
    rebuilt = PyGEncoder.from_config(encoder.plain_config())
    assert rebuilt.num_edge_types == 4
    task = GraphRegressor(gcn(encoder), 1)
    with pytest.raises(ValueError, match="Pass labels of their own"):
        task.fit((pair for pair in [(fields, 1.0)]), verbose=0)
    task.fit([fields] * 2, (v for v in (1.0, 2.0)), epochs=1, verbose=0)


def test_labels_and_predictions_of_edges_are_in_the_order_of_the_items():
    rng = np.random.default_rng(0)
    items, y = [], []
    for n in (4, 3, 5, 4):
        senders = rng.permutation(n)
        kind = rng.integers(0, 3, n)
        receivers = (senders + 1) % n  # not sorted
        fields = {"num_nodes": n, "senders": senders, "receivers": receivers}
        items.append({**fields, "node": {"kind": kind}})
        y.append(10 * kind[senders] + kind[receivers])
    encoder = PyGEncoder().adapt(items)
    graphs = [
        encoder(item).replace(label=label, label_level="edge")
        for item, label in zip(items, y, strict=True)
    ]
    backbone = gcn(encoder)
    task = EdgeRegressor(backbone, 1, GraphPreprocessor([encoder]))
    task.fit(items, y, epochs=1, verbose=0)
    known = task.evaluate(graphs, return_dict=True, verbose=0)
    raw = task.evaluate(items, y, return_dict=True, verbose=0)
    assert raw == pytest.approx(known, rel=1e-5)
    for one, other in zip(task.predict(items), task.predict(graphs), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    weights = [(row == row[0]).astype(float) for row in y]
    history = task.fit(items, y, sample_weight=weights, epochs=1, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    np.testing.assert_allclose(
        task.errors(items, y)["mae"], task.errors(graphs)["mae"], rtol=1e-5
    )


def test_weights_alone_hold_no_encoder():
    items = [{"edge_index": [[0], [1]], "x": [[1.0], [2.0]], "num_nodes": 2}]
    task = GraphRegressor(GCNBackbone({"x": {"features": 1}}, 4), 1)
    with pytest.raises(ValueError, match=r"Preprocessor\(\[PyGEncoder\(\).adapt"):
        task.predict(items)


def test_generators_are_not_used_up():
    graphs = [Graph(2, [0], [1], node={"k": [0, 0]}) for _ in range(3)]
    loader = GraphPreprocessor().loader(graph for graph in graphs)
    assert loader.starts[-1] == 3
    encoder = SmilesEncoder()
    loader = GraphPreprocessor([encoder]).loader(s for s in ("C", "CC", "CO"))
    assert loader.starts[-1] == 3


def odd_items():
    """Kind -> encoder, good items, an item that fails, and one with unknown values.

    None for encoders that have no vocabulary.
    """
    smiles = SmilesEncoder(on_error="skip")
    yield "smiles", smiles, SMILES[:3], "zz", None
    nx = pytest.importorskip("networkx")
    nets = networks(3)
    encoder = NetworkXEncoder(on_error="skip", node=["element"], edge=[]).adapt(nets)
    unknown = networks(1)[0]
    nx.set_node_attributes(unknown, "Xe", "element")
    yield "networkx", encoder, nets, nx.Graph(), unknown
    structures = atoms(4)
    structures[3].positions[0, 0] = np.nan
    yield "ase", AtomsEncoder(on_error="skip"), structures[:3], structures[3], None
    pyg = data_of_pyg(4)
    pyg[3].edge_index = pyg[3].edge_index + 9
    yield "pyg", PyGEncoder(on_error="skip").adapt(pyg[:3]), pyg[:3], pyg[3], None
    fields = {"num_nodes": 2, "senders": [0], "receivers": [1], "node": {"k": [0, 1]}}
    wrong = {**fields, "senders": [5]}
    yield "dict", PyGEncoder(on_error="skip").adapt([fields]), [fields], wrong, None
    rows = [{"smiles": s, "solvent": v} for s, v in (("C", "a"), ("CC", "b"))]
    encoder = TableEncoder("smiles", smiles, ["solvent"], on_error="skip").adapt(rows)
    other = {"smiles": "C", "solvent": "c"}
    yield "table", encoder, rows, {"smiles": "zz", "solvent": "a"}, other
    good, bad, other = markets(3), *markets(2)
    encoder = NodeSetEncoder(on_error="skip").adapt(good)
    bad["edges"] = {("user", "sells", "item"): [[0], [0]]}
    other["nodes"]["user"]["town"] = ["Rome"] * len(other["nodes"]["user"]["age"])
    yield "sets", encoder, good, bad, other


KINDS = ["smiles", "networkx", "ase", "pyg", "dict", "table", "sets"]


@pytest.mark.parametrize("kind", KINDS)
def test_empty_bad_and_unknown_items_of_every_encoder(kind, caplog):
    _, encoder, good, bad, unknown = next(o for o in odd_items() if o[0] == kind)
    task = GraphRegressor(gcn(encoder), 1, GraphPreprocessor([encoder]))
    # === Empty ===
    for empty in ([], (), (item for item in [])):
        assert task.predict(empty) == []
    for method in (task.fit, task.evaluate):
        with pytest.raises(ValueError, match="Expected at least one graph"):
            method([], [], verbose=0)
    # === One bad, all bad ===
    out = task.predict([bad, good[0]])
    assert out[0] is None and np.isfinite(out[1]).all()
    assert task.predict([bad, bad]) == [None, None]
    with pytest.raises(ValueError, match="none of 2"):
        task.fit([bad, bad], [1.0, 2.0], verbose=0)
    encoder.on_error = "raise"
    with pytest.raises(ValueError, match="Received: item 1: .*on_error='skip'"):
        task.predict([good[0], bad])
    with pytest.raises(ValueError, match="In validation_data: .*item 1: "):
        task.fit(good[:1], [1.0], validation_data=([good[0], bad], [1, 2]), verbose=0)
    # === Unknown ===
    caplog.clear()
    task.predict(good)
    assert not caplog.records
    assert (unknown is None) == (not any(encoder.categories().values()))
    if unknown is not None:
        assert np.isfinite(task.predict([good[0], unknown])).all()
        assert "in 1 of 2 graphs (first: item 1)" in caplog.text


def test_every_encoder_has_odd_items():
    assert {type(odd[1]) for odd in odd_items()} == set(encoders())
    assert [odd[0] for odd in odd_items()] == KINDS


def test_ids_of_arrays_are_ids_of_the_backbone():
    fields = {"num_nodes": 2, "senders": [0], "receivers": [1], "node": {"k": [0, 1]}}
    encoder = PyGEncoder().adapt([fields])
    task = GraphRegressor(gcn(encoder), 1, GraphPreprocessor([encoder]))
    for k in (2, -1):
        with pytest.raises(ValueError, match=r"ids of node\['k'\] in \[0, 2\).*own"):
            task.predict([{**fields, "node": {"k": [0, k]}}])
    wider = PyGEncoder(node_inputs={"k": {"ids": 9}}).adapt([fields])
    task = GraphRegressor(gcn(wider), 1, GraphPreprocessor([wider]))
    task.predict([{**fields, "node": {"k": [0, 8]}}])
    other = GraphRegressor(GCNBackbone({"kind": 3}, 4), 1)
    with pytest.raises(ValueError, match="'kind' is missing"):
        # Bonds have types, which the backbone does not have either.
        other.fit(["C=C"], [1.0], verbose=0)
    bare = {"num_nodes": 3, "senders": [0, 1], "receivers": [2, 2]}
    encoder = PyGEncoder().adapt([bare])
    assert encoder.inputs() == {"degree": {"ids": 256}}
    assert encoder(bare).node["degree"].tolist() == [0, 0, 2]
    with pytest.raises(ValueError, match="Of graphs without any take the degrees"):
        GCNBackbone({}, 4)


def test_an_index_in_another_order_is_refused():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"smiles": SMILES, "y": np.arange(24.0), "w": 1.0})
    task = GraphRegressor(gcn(SmilesEncoder()), 1)
    mixed = table.sample(frac=1, random_state=0)
    for x in (table, table["smiles"]):
        with pytest.raises(ValueError, match=r"`y` in the order.*y.loc\[x.index\]"):
            task.fit(x, mixed["y"], verbose=0)
    with pytest.raises(ValueError, match="`sample_weight` in the order"):
        task.evaluate(table, "y", sample_weight=mixed["w"])
    task.fit(table, "y", epochs=1, verbose=0)
    expected = task.evaluate(table, "y", verbose=0)
    for y in (mixed["y"].loc[table.index], pandas.Series(range(24), range(1, 25))):
        np.testing.assert_allclose(task.evaluate(table, y, verbose=0), expected, 1e-5)
    # Dicts name their labels, too.
    rows = table.to_dict("records")
    np.testing.assert_allclose(task.evaluate(rows, "y", verbose=0), expected, 1e-5)
    with pytest.raises(ValueError, match="'z' in each item of `x`"):
        task.fit(rows, "z", verbose=0)
    with pytest.raises(ValueError, match=r"table.iloc\[\[0\]\]"):
        task.predict(table.iloc[0])
    with pytest.raises(ValueError, match=r"a row in a list: \[x\]"):
        task.predict({"smiles": "CC"})


def test_labels_that_mean_something_else_here():
    items, y = SMILES[:4], np.array([0, 1, 0, 1])
    task = GraphClassifier(gcn(SmilesEncoder()), 2)
    signs = 2 * y - 1
    graphs = [
        SmilesEncoder()(s).replace(label=v) for s, v in zip(items, signs, strict=True)
    ]
    signed = r"the classes 0 and 1.*\(label \+ 1\) // 2"
    for message, x, labels in (
        (signed, items, signs),
        (signed, items, np.float64(signs)),
        (signed, graphs, None),
        (r"np.argmax\(label, axis=-1\)", items, np.eye(2)[y]),
        ("whole numbers; a regressor", items, y + 0.5),
        ("Write NaN where a value is not known", items, np.where(y, np.inf, 0)),
        (r"astype\(float\)", items, [str(v) for v in y]),
    ):
        with pytest.raises(ValueError, match=message):
            task.fit(x, labels, verbose=0)
        if message != signed:
            with pytest.raises(ValueError, match=f"In validation_data: .*{message}"):
                task.fit(items, y, validation_data=(x, labels), verbose=0)
    nodes = NodeClassifier(gcn(SmilesEncoder()), 2)
    counts = [SmilesEncoder()(s).num_nodes for s in items]
    with pytest.raises(ValueError, match=signed):
        nodes.fit(items, [np.arange(n) % 2 * 2 - 1 for n in counts], verbose=0)
    # With a class 0 among them, -1 is unknown.
    task.fit(items, [0, 1, -1, 1], verbose=0)
    three = GraphClassifier(gcn(SmilesEncoder()), 3)
    three.fit(items, signs, verbose=0)


def test_results_of_calculators_and_layers_of_the_backbone():
    structures = atoms(4)
    calculators = pytest.importorskip("ase.calculators.singlepoint")
    for k, each in enumerate(structures):
        zeros = np.zeros((len(each), 3))
        each.calc = calculators.SinglePointCalculator(each, energy=k, forces=zeros)

    def task(**options):
        backbone = SchNetBackbone((1, 6, 7, 8), hidden_dim=4, num_gaussians=20)
        encoder = AtomsEncoder(**options)
        return ForceRegressor(backbone, 1, GraphPreprocessor([encoder]))

    advice = r"AtomsEncoder\(label='energy', forces=True\)"
    with pytest.raises(ValueError, match=advice):
        task().fit(structures, verbose=0)
    with pytest.raises(ValueError, match=advice):
        task().fit(structures, np.arange(4.0), verbose=0)
    trained = task(label="energy", forces=True)
    trained.fit(structures, epochs=1, verbose=0)
    names = [type(layer).__name__ for layer in trained.preprocessor.graph_layers]
    assert names == ["AtomsEncoder", "RadiusGraph"]


def test_a_batch_of_another_library_is_refused():
    package = pytest.importorskip("torch_geometric.data")
    batch = package.Batch.from_data_list(data_of_pyg(3))
    with pytest.raises(ValueError, match=r"Pass x.to_data_list\(\)"):
        GraphRegressor(GCNBackbone({"x": {"features": 2}}, 4), 1).predict(batch)


@pytest.mark.parametrize("cls", [SmilesEncoder, AtomsEncoder, NetworkXEncoder])
def test_columns_replace_no_feature_of_the_nodes(cls):
    cell = {
        SmilesEncoder: lambda: "CCO",
        AtomsEncoder: lambda: atoms(1)[0],
        NetworkXEncoder: lambda: networks(1)[0],
    }[cls]()
    if cls is SmilesEncoder:
        pytest.importorskip("rdkit")
    features = cls().adapt([cell])(cell).node
    for name in features:
        rows = [{"cell": cell, name: 1.5}]
        with pytest.raises(ValueError, match=f"columns .*{name}.*would replace"):
            TableEncoder("cell", cls(), context=[name], on_error="skip").adapt(rows)
        spec = {name: {"number": []}}
        known = TableEncoder("cell", cls().adapt([cell]), context=spec)
        with pytest.raises(ValueError, match=f"columns .*{name}.*would replace"):
            known(rows[0])


def test_columns_are_learnt_from_rows_that_are_not_skipped():
    pytest.importorskip("rdkit")
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(
        {
            "smiles": ["CCO", "bad(", "CC", "CN", None],
            "t": [1.5, -99999.0, 2.5, 50.0, 1e6],
            "n": pandas.array([1, 2, 2, 3, 4], dtype="Int64"),
            "u": pandas.array([0.5, 0.5, 1.5, None, 7.5], dtype="Float64"),
            "dry": pandas.array([True, False, None, True, False], dtype="boolean"),
        }
    )
    encoder = TableEncoder(
        "smiles", context=["t", "n", "u", "dry"], on_error="skip"
    ).adapt(table)
    assert encoder.context["t"]["mean"] in (2.0, [2.0])
    assert encoder.context["n"] == {"category": [1, 2]}
    encoded = encoder.encode(table)
    assert encoded.positions.tolist() == [0, 2]
    assert encoded.graphs.node["dry"].tolist() == [1, 1, 1, 0, 0]


def test_labels_of_nodes_in_another_order_are_refused():
    """Names in the index of a series say which node a label belongs to."""
    networkx = pytest.importorskip("networkx")
    pandas = pytest.importorskip("pandas")
    graph = networkx.path_graph(["a", "b", "c"])
    task = NodeClassifier(GCNBackbone({"degree": 4}, 4), 2)
    labels = pandas.Series([0, 1, 1], index=["a", "b", "c"])
    for x, y in ((graph, labels), ([graph], labels), ([graph, graph], [labels] * 2)):
        task.fit(x, y, epochs=1, verbose=0)
    other = labels.loc[["b", "a", "c"]]
    for x, y in ((graph, other), ([graph], other), ([graph, graph], [labels, other])):
        with pytest.raises(ValueError, match=r"order of the nodes.*y.loc\[list\(graph"):
            task.fit(x, y, epochs=1, verbose=0)
    task.fit(graph, other.to_numpy(), epochs=1, verbose=0)
