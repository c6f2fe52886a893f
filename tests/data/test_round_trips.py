"""Every converter with its inverse: what comes back is what the page says.

`docs/converters.md` has a table of round trips. "yes" is compared here, "no" must be
absent: what a form cannot hold never comes back as something else.
"""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from converter_graphs import assert_same, make_sets

import keras_bandgnn as kb
from keras_bandgnn import Graph
from keras_bandgnn.data import FlatGraphs

PAGE = Path(__file__).parents[2] / "docs" / "converters.md"
PAIRS = sorted(
    name[3:]
    for name in kb.data.__all__
    if name.startswith("to_")
    and f"from_{name[3:]}" in kb.data.__all__
    # Dictionaries of node sets; see WITH_SETS.
    and name not in ("to_sets", "to_graph_tensor")
)
TRIPS = {
    "ase": lambda to, back, graph: back(to(graph)),
    "jraph": lambda to, back, graph: back(to(graph))[0],
    "networkx": lambda to, back, graph: back(to(graph)),
    "pandas": lambda to, back, graph: back(*to(graph)),
    # The levels of features may be ambiguous, those of labels are not.
    "pyg": lambda to, back, graph: back(to(graph), levels=levels(graph)),
    "scipy": lambda to, back, graph: back(to(graph, by_type=True), weights=True),
}
"""How to call a converter and its inverse."""
MANY = {
    "jraph": lambda to, back, graphs: back(to(graphs)),
    "pandas": lambda to, back, graphs: back(*to(graphs), graph="graph"),
}
"""The same for those that convert many graphs at once."""
COLUMNS = {"torch_geometric": "pyg", "SciPy": "scipy", "ASE": "ase"}
PACKAGES = {"pyg": "torch_geometric", "jraph": "numpy"}


def levels(graph) -> dict[str, str]:
    kinds = ("node", "edge", "context")
    return {name: kind for kind in kinds for name in getattr(graph, kind)}


def table() -> dict[str, dict[str, str]]:
    """The cells of the page's table of round trips, by converter and row."""
    text = PAGE.read_text()
    text = text[text.index("| preserved in a round trip") :].split("\n\n")[0]
    lines = [re.split(r"\s*\|\s*", line.strip("| ")) for line in text.splitlines()]
    names = [COLUMNS.get(name, name) for name in lines[0][1:]]
    assert sorted(names) == PAIRS, "the table on the page lacks a converter"
    return {
        name: {line[0]: line[k] for line in lines[2:]}
        for k, name in enumerate(names, start=1)
    }


def trip(name, graph):
    pytest.importorskip(PACKAGES.get(name, name))
    assert name in TRIPS, f"Add how to call from_{name}(to_{name}(graph)) to TRIPS."
    to, back = (getattr(kb.data, f"{way}_{name}") for way in ("to", "from"))
    return TRIPS[name](to, back, graph)


RNG = np.random.default_rng(0)
ENDS = {
    # nodes, edges, of which some are as many; loops and repeated edges
    "usual": (5, [0, 1, 1, 4, 3, 2, 0], [1, 0, 0, 4, 2, 3, 2]),
    "as many edges as nodes": (3, [2, 0, 1], [1, 2, 0]),
    "one node": (1, [0, 0], [0, 0]),
    "one edge": (2, [0], [1]),
    "one of each": (1, [0], [0]),
}


def parts(ends="usual", **extra):
    nodes, senders, receivers = ENDS[ends]
    count = len(senders)
    atoms = {
        "atomic_number": RNG.integers(1, 9, nodes),
        "position": RNG.normal(size=(nodes, 3)).astype(np.float32),
    }
    fields = {"node": atoms, "edge": {"weight": RNG.random(count)}}
    return Graph(nodes, senders, receivers, **{**fields, **extra})


def labels(level, rows, form):
    shape = () if level == "graph" else (rows,)
    if form == "integers":
        return RNG.integers(0, 5, shape)
    if form == "classes, -1 for missing":
        return np.where(RNG.random(shape) < 0.5, -1, 3)
    if form == "floats":
        return RNG.normal(size=shape)
    several = RNG.normal(size=(*shape, 3))
    if form == "targets, NaN for missing":
        several[..., 1] = np.nan
    if form == "one target each":
        several = several[..., :1]
    if form == "NaN for missing" and level != "graph":
        several = np.where(np.arange(rows) % 2, np.nan, 1.5)
    return several


FORMS = ("integers", "classes, -1 for missing", "floats", "targets", "one target each")
FORMS = (*FORMS, "targets, NaN for missing", "NaN for missing")


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("level", ["graph", "node", "edge"])
def test_labels_keep_their_level(name, level):
    cell = table()[name][f"label of {level if level == 'graph' else level + 's'}"]
    for ends, form in itertools.product(ENDS, FORMS):
        rows = {"graph": 1, "node": ENDS[ends][0], "edge": len(ENDS[ends][1])}[level]
        label = labels(level, rows, form)
        graph = parts(ends, label=label, label_level=level)
        back = trip(name, graph)
        if cell == "yes":
            assert back.label is not None, (ends, form)
            assert back.label_level == level, (ends, form)
            assert back.label.dtype == graph.label.dtype
            values = back.label, graph.label
            if level == "edge":  # which may come in another order
                orders = (np.argsort(g.edge["weight"]) for g in (back, graph))
                values = [v[o] for v, o in zip(values, orders, strict=True)]
            np.testing.assert_array_equal(*values)
        else:
            assert cell == "no" and back.label is None, (ends, form)
        for kind in ("node", "edge", "context"):
            added = {"context": {"cell", "pbc"}} if name == "ase" else {}
            allowed = set(getattr(graph, kind)) | added.get(kind, set())
            assert set(getattr(back, kind)) <= allowed, (ends, form, kind)


@pytest.mark.parametrize("name", sorted(MANY))
@pytest.mark.parametrize("level", ["graph", "node", "edge"])
def test_labels_of_many_graphs_keep_their_level(name, level):
    pytest.importorskip(PACKAGES.get(name, name))
    for form in FORMS:
        graphs = []
        for ends in ("usual", "as many edges as nodes", "one node"):
            rows = {"graph": 1, "node": ENDS[ends][0], "edge": len(ENDS[ends][1])}
            label = labels(level, rows[level], form)
            graphs.append(parts(ends, label=label, label_level=level))
        flat = FlatGraphs.from_graphs(graphs)
        to, from_ = (getattr(kb.data, f"{way}_{name}") for way in ("to", "from"))
        back = MANY[name](to, from_, graphs)
        assert back.label_level == level and back.label.dtype == flat.label.dtype
        np.testing.assert_array_equal(back.label, flat.label)
        assert set(back.edge) == {"weight"}


@pytest.mark.parametrize("name", PAIRS)
def test_everything_else(name):
    cells = table()[name]
    rng = np.random.default_rng(1)
    samples = {
        "node features": {
            "node": {
                "atomic_number": [1, 6, 8, 1, 1],
                "position": rng.normal(size=(5, 3)),
                "train_mask": [1, 0, 0, 1, 0],
            }
        },
        "edge features": {
            "edge": {
                "weight": rng.random(7),
                "edge_vec": rng.random((7, 2)),
                "edge_mask": rng.integers(0, 2, 7),
            }
        },
        "edge types": {"edge_type": [0, 2, 1, 0, 1, 1, 2]},
        "context features": {"context": {"charge": 2, "u": rng.normal(size=(2, 4))}},
        "candidates and slot": {"candidates": [4, 2], "label": 1, "slot": 3},
        "`info`": {"info": {"smiles": "CC", "line": 3, "ids": [1, 2]}},
    }
    for row, fields in samples.items():
        graph = parts(**fields)
        back = trip(name, graph)
        if cells[row] == "yes" and cells["node features"] == "yes":
            assert_same(back, graph)
        if cells[row] == "yes":
            assert dict(back.info) == fields.get("info", {})
        elif cells[row] == "no":
            back = back.replace(label=None)  # a position without candidates
            for field in fields:
                value = getattr(back, field)
                value = value.any() if field == "edge_type" else value
                assert not value, (row, field)


@pytest.mark.parametrize("name", PAIRS)
def test_features_with_the_names_of_labels_are_refused_or_features(name):
    """A feature called `label` is never read as the label."""
    for kind, rows in (("node", 5), ("edge", 7), ("context", 1)):
        for key in ("label", "y", "edge_type", "label_level", "edge_label"):
            value = np.arange(rows) if kind != "context" else 1
            graph = parts(**{kind: {**getattr(parts(), kind), key: value}})
            try:
                back = trip(name, graph)
            except ValueError as error:
                assert repr(key) in str(error), error
                continue
            assert back.label is None, (kind, key)
            assert not back.edge_type.any(), (kind, key)


def test_several_labels_are_refused():
    nx = pytest.importorskip("networkx")
    pd = pytest.importorskip("pandas")
    to_jraph, from_jraph = kb.data.to_jraph, kb.data.from_jraph
    graphs = to_jraph(parts(label=1))
    nodes = {**graphs.nodes, "label": np.arange(5)}
    with pytest.raises(ValueError, match="Received: both of graph and of node"):
        from_jraph(graphs._replace(nodes=nodes))
    net = nx.path_graph(3)
    nx.set_edge_attributes(net, 1, "label")
    net.graph["label"] = 2
    with pytest.raises(ValueError, match="Received: both of graph and of edge"):
        kb.data.from_networkx(net)
    edges = pd.DataFrame({"source": [0], "target": [1], "label": [1]})
    nodes = pd.DataFrame({"node": [0, 1], "label": [1, 0]})
    with pytest.raises(ValueError, match="Received: both of node and of edge"):
        kb.data.from_pandas(edges, nodes)


def test_undirected_labels_of_edges_go_both_ways():
    nx = pytest.importorskip("networkx")
    net = nx.Graph([(0, 1, {"label": 4}), (1, 2, {"label": 5}), (2, 2, {"label": 6})])
    graph = kb.data.from_networkx(net)
    assert graph.label_level == "edge" and graph.label.tolist() == [4, 5, 6, 4, 5]
    encoder = kb.preprocessing.NetworkXEncoder().adapt([net])
    encoded = encoder(net)
    assert encoded.label_level == "edge" and encoded.label.tolist() == [4, 5, 6, 4, 5]
    assert not encoded.edge
    nx.set_edge_attributes(net, "a caption", "label")
    assert encoder(net).label is None


def test_missing_labels_in_nullable_columns():
    pd = pytest.importorskip("pandas")
    edges = pd.DataFrame({"source": [0, 1], "target": [1, 0]})
    edges["label"] = pd.array([3, None], "Int64")
    graph = kb.data.from_pandas(edges)
    np.testing.assert_array_equal(graph.label, [3, np.nan])
    assert graph.label_level == "edge"
    edges["weight"] = pd.array([3, None], "Int64")
    with pytest.raises(ValueError, match="every row of the column 'weight'"):
        kb.data.from_pandas(edges)


def test_labels_of_data_of_torch_geometric():
    torch = pytest.importorskip("torch")
    data = pytest.importorskip("torch_geometric.data").Data
    ends = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]])
    x = torch.ones(3, 2)
    # As many rows as edges, as in TSP of torch_geometric.
    graph = kb.data.from_pyg(data(x=x, edge_index=ends, y=torch.tensor([1, 0, 0, 1])))
    assert graph.label_level == "edge" and graph.label.tolist() == [1, 0, 0, 1]
    # Of RandomLinkSplit and others: no feature of the edges.
    graph = kb.data.from_pyg(data(x=x, edge_index=ends, edge_label=torch.ones(4)))
    assert graph.label_level == "edge" and not graph.edge
    both = data(x=x, edge_index=ends, edge_label=torch.ones(4), y=torch.ones(1))
    with pytest.raises(ValueError, match="both of edge and of graph"):
        kb.data.from_pyg(both)
    with pytest.raises(ValueError, match="`y` to determine.*label_level="):
        kb.data.from_pyg(data(x=x, edge_index=ends[:, :3], y=torch.ones(3)))
    one = kb.data.from_pyg(data(x=x, edge_index=ends[:, :1], y=torch.ones(1)))
    assert one.label_level == "graph" and one.label.shape == ()


# === Graphs with node sets ===


def preset(graph, folder):
    """What an encoder of a preset makes of the tables of a graph."""
    item = kb.data.to_sets(graph)
    if graph.label is not None and graph.label_level == "graph":
        item["label"] = graph.label
    encoder = kb.preprocessing.NodeSetEncoder().adapt([item])
    task = kb.models.GraphRegressor(
        kb.models.GCNBackbone(encoder.inputs(), 4, num_layers=1),
        1,
        kb.preprocessing.GraphPreprocessor([encoder]),
    )
    task.save_to_preset(folder / "preset")
    loaded = kb.models.Task.from_preset(folder / "preset").preprocessor.encoder
    assert_same(loaded(item), encoder(item))
    # Its features are ids and standardized numbers; the others are as they were.
    return loaded(item).replace(sets=graph.sets, edge=graph.edge)


def store(graph, folder):
    kb.data.write_store(folder / "graphs", [graph])
    with kb.data.open_store(folder / "graphs") as graphs:
        return graphs[0]


def sets(graph, folder):
    label = {} if graph.label_level == "node" else {"label": graph.label}
    return kb.data.from_sets(**{**label, **kb.data.to_sets(graph)})


def networkx(graph, folder):
    net = kb.data.to_networkx(graph)
    return kb.data.from_networkx(net, node_set="kind", edge_set="relation")


def graph_tensor(graph, folder):
    level = ("context",) if graph.label_level == "graph" else ("node", "user")
    label = None if graph.label is None else (*level, "label")
    return kb.data.from_graph_tensor(kb.data.to_graph_tensor(graph), label=label)


WITH_SETS = {
    "graph_tensor": graph_tensor,
    "networkx": networkx,
    "preset": preset,
    "pyg": lambda graph, folder: kb.data.from_pyg(kb.data.to_pyg(graph)),
    "sets": sets,
    "store": store,
}
"""Form -> a graph with node sets, to this form and back."""


@pytest.mark.parametrize("name", WITH_SETS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"label": 1.5},
        {"label": None, "node": {"train_mask": {"user": None}}},
        {"reverse": True},
    ],
    ids=["label of nodes", "label of the graph", "mask", "reverse"],
)
def test_node_sets_come_back(name, options, tmp_path):
    pytest.importorskip(PACKAGES.get(name, "networkx"))
    for seed in range(3):
        graph = make_sets(seed)
        if "node" in options:
            mask = np.arange(len(graph.sets["user"]["age"])) % 2
            options = {**options, "node": {"train_mask": {"user": mask}}}
        graph = make_sets(seed, **options)
        back = WITH_SETS[name](graph, tmp_path / str(seed))
        assert_same(back, graph)


def test_every_form_that_holds_node_sets_is_above():
    graph, holding = make_sets(), set()
    for name in kb.data.__all__:
        if not name.startswith("to_"):
            continue
        try:
            getattr(kb.data, name)(graph)
        except ImportError:
            continue
        except ValueError as error:
            assert "without node sets" in str(error)
            continue
        holding.add(name[3:])
    assert holding <= WITH_SETS.keys()
