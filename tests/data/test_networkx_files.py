"""Graphs as networkx reads them from files, and masks of splits, in every reader."""

import numpy as np
import pytest

from keras_bandgnn.data import from_networkx, from_pyg, to_networkx
from keras_bandgnn.data.converters.attributes import is_mask
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing import NetworkXEncoder, PyGEncoder

nx = pytest.importorskip("networkx")

MASKS = {"train_mask": [1, 1, 1, 0, 0, 0], "val_mask": [0, 0, 0, 1, 0, 0]}
MASKS["test_mask"] = [0, 0, 0, 0, 1, 1]
KINDS = [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph]
FORMATS = {
    "graphml": (nx.write_graphml, nx.read_graphml),
    "gexf": (nx.write_gexf, nx.read_gexf),
    "gml": (nx.write_gml, nx.read_gml),
}


def ring(kind, boolean):
    graph = kind()
    for k in range(6):
        masks = {name: mask[k] for name, mask in MASKS.items()}
        masks = {name: bool(v) if boolean else v for name, v in masks.items()}
        graph.add_node(f"n{k}", size=k + 0.5, **masks)
        graph.add_edge(f"n{k}", f"n{(k + 1) % 6}", weight=0.5 * k)
    return graph


@pytest.mark.parametrize("boolean", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMATS)
def test_files_of_networkx(form, kind, boolean, tmp_path):
    """What a file adds is no feature: the graph is read as it was written."""
    write, read = FORMATS[form]
    written = ring(kind, boolean)
    write(written, tmp_path / "a")
    graph = read(tmp_path / "a")
    encoder = NetworkXEncoder().adapt([graph])
    assert encoder.inputs() == {"size": {"features": 1}}
    assert encoder.edge_inputs() == {"weight": {"features": 1}}
    assert not encoder.attributes["graph"]
    again = NetworkXEncoder.from_config(encoder.get_config())
    for convert in (encoder, again, from_networkx):
        flat = convert(graph)
        assert set(flat.edge) == {"weight"} and not flat.context
        assert set(flat.node) == {"size", *MASKS} and flat.label is None
        for name, mask in MASKS.items():
            assert flat.node[name].tolist() == mask
            assert flat.node[name].dtype == np.int32


def test_defaults_of_graphml(tmp_path):
    (tmp_path / "a").write_text(
        """<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
        <key id="d0" for="node" attr.name="charge" attr.type="double">
        <default>2.5</default></key>
        <key id="d1" for="edge" attr.name="weight" attr.type="double">
        <default>1.5</default></key>
        <graph edgedefault="directed"><node id="a"><data key="d0">1.0</data></node>
        <node id="b"/><edge id="e0" source="a" target="b"/>
        <edge id="e1" source="b" target="a"><data key="d1">3.0</data></edge>
        </graph></graphml>"""
    )
    graph = nx.read_graphml(tmp_path / "a")
    for convert in (NetworkXEncoder().adapt([graph]), from_networkx):
        flat = convert(graph)
        assert flat.node["charge"].tolist() == [1, 2.5]
        assert flat.edge["weight"].tolist() == [1.5, 3]
        assert set(flat.edge) == {"weight"} and not flat.context


def test_features_that_are_named_like_those_of_files():
    """Selected attributes, numbers, and labels of classes are read."""
    graph = nx.DiGraph()
    for k in range(4):
        graph.add_node(k, label="ab"[k % 2])
        graph.add_edge(k, (k + 1) % 4, id=f"e{k % 2}")
    encoder = NetworkXEncoder(edge=["id"]).adapt([graph])
    assert encoder.edge_inputs() == {"id": {"ids": 3}}
    rows = [data["label"] for _, data in graph.nodes(data=True)]
    assert rows == ["a", "b", "a", "b"]
    ids = {"id": np.array([0, 1, 2, 3])}
    flat = Graph(4, [0, 1, 2, 3], [1, 2, 3, 0], edge=ids)
    assert from_networkx(to_networkx(flat)).edge["id"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("values", [[True, False], [1, 0], [[1, 0], [0, 1]]])
def test_masks_are_no_inputs(values):
    """Of networkx, torch_geometric and dicts; without other features the degree is."""
    masks = {"train_mask": values, "edge_test_mask": values}
    graph = nx.DiGraph()
    graph.add_node(0, train_mask=values[0])
    graph.add_node(1, train_mask=values[1])
    graph.add_edge(0, 1, edge_test_mask=values[0])
    graph.add_edge(1, 0, edge_test_mask=values[1])
    ends = [[0, 1, 2, 2], [1, 0, 1, 0]]
    wider = {name: [*rows, rows[0]] for name, rows in masks.items()}
    wider["edge_test_mask"].append(values[0])
    data = {"edge_index": ends[:2], "num_nodes": 2, **masks}
    data["edge_index"] = [row[:2] for row in ends]
    more = {"edge_index": ends, "num_nodes": 3, **wider}
    fields = {"num_nodes": 2, "senders": [0, 1], "receivers": [1, 0]}
    fields |= {"node": {"train_mask": values}, "edge": {"edge_test_mask": values}}
    for encoder, items in (
        (NetworkXEncoder(), [graph]),
        (PyGEncoder(), [data, more]),
        (PyGEncoder(), [fields]),
    ):
        encoder.adapt(items)
        assert list(encoder.inputs()) == ["degree"] and encoder.edge_inputs() is None
        flat = encoder(items[0])
        assert set(flat.node) == {"degree", "train_mask"}
        for array in (flat.node["train_mask"], flat.edge["edge_test_mask"]):
            np.testing.assert_array_equal(array, np.array(values, int))


def test_missing_and_wrong_values_of_masks():
    graph = nx.path_graph(3)
    graph.nodes[0]["train_mask"] = True
    for convert in (NetworkXEncoder().adapt([graph]), from_networkx):
        assert convert(graph).node["train_mask"].tolist() == [1, 0, 0]
    encoder = NetworkXEncoder().adapt([graph])
    graph.nodes[2]["train_mask"] = 2
    with pytest.raises(
        ValueError, match="'train_mask' to be a mask of 0 and 1.*node 2"
    ):
        encoder(graph)
    assert not is_mask("train_mask", [1, 2]) and not is_mask("hair_mask", [1, 0])
    assert not is_mask("train_mask", [[1], [0, 1]]) and not is_mask("test_mask", ["a"])


def test_masks_of_torch_geometric():
    torch = pytest.importorskip("torch")
    pyg = pytest.importorskip("torch_geometric.data")
    ends = torch.tensor([[0, 1], [1, 0]])
    mask = torch.tensor([True, False])
    data = pyg.Data(x=torch.ones(2, 3), edge_index=ends, train_mask=mask)
    levels = {"train_mask": "node"}
    assert PyGEncoder(levels).adapt([data]).inputs() == {"x": {"features": 3}}
    assert from_pyg(data, levels=levels).node["train_mask"].tolist() == [1, 0]


def test_large_numbers_are_named(caplog):
    graph = nx.path_graph(3)
    nx.set_node_attributes(graph, {0: 1.5, 1: 2e6, 2: -3.0}, "balance")
    nx.set_node_attributes(graph, {0: 1.5, 1: 2.0, 2: -3.0}, "age")
    NetworkXEncoder().adapt([graph])
    (record,) = caplog.records
    assert "'balance' has numbers up to 2e+06" in record.getMessage()
