"""TU Dortmund, Open Graph Benchmark and MalNet-Tiny: small sets in their layouts."""

import gzip
import tarfile
import zipfile

import numpy as np
import pytest

from keras_bandgnn.data.datasets.load import load
from keras_bandgnn.data.datasets.tables import read_matrix

# Three graphs: a pair, a path of three with types 1-2-1, one node. Nodes of the
# first and the second graph are listed alternately.
TU = {
    "A": "1, 3\n3, 1\n2, 4\n4, 2\n4, 5\n5, 4\n",
    "graph_indicator": "1\n2\n1\n2\n2\n3\n",
    "graph_labels": "1\n-1\n1\n",
    "node_labels": "4\n3\n4\n5\n3\n3\n",
    "edge_labels": "1\n1\n2\n2\n1\n1\n",
    "node_attributes": "0.5, 1\n1, 2\n2, 3\n3, 4\n4, 5\n5, 6\n",
    "edge_attributes": "1\n1\n2.5\n2.5\n3\n3\n",
    "graph_attributes": "0.1\n0.2\n0.3\n",
}


def tu(folder, **changes):
    for name, text in {**TU, **changes}.items():
        if text is not None:
            (folder / f"SET_{name}.txt").write_text(text)
    return folder


def test_tu(tmp_path):
    graphs = load("tu:SET", path=tu(tmp_path))
    assert graphs.num_nodes.tolist() == [2, 3, 1]
    assert graphs.num_edges.tolist() == [2, 4, 0]
    assert graphs.label.tolist() == [1, 0, 1]
    path = graphs[1]
    assert path.node["type"].tolist() == [0, 2, 0]
    assert path.node["feature"].tolist() == [[1, 2], [3, 4], [4, 5]]
    edges = zip(path.senders, path.receivers, path.edge_type, strict=True)
    assert sorted(edges) == [(0, 1, 1), (1, 0, 1), (1, 2, 0), (2, 1, 0)]
    assert sorted(path.edge["feature"][:, 0].tolist()) == [2.5, 2.5, 3, 3]
    numbers = load("tu:SET", path=tmp_path, target="attributes")
    np.testing.assert_allclose(numbers.label, [0.1, 0.2, 0.3], rtol=1e-6)


def test_tu_with_the_two_files_that_must_be_there(tmp_path):
    names = set(TU) - {"A", "graph_indicator"}
    graphs = load("tu:SET", path=tu(tmp_path, **dict.fromkeys(names)))
    assert len(graphs) == 3 and graphs.label is None and not graphs.node
    assert graphs.edge_type.tolist() == [0] * 6


def test_tu_with_several_labels(tmp_path):
    tu(tmp_path, node_labels="1, 5\n" * 6, edge_labels="0, 2\n" * 6, graph_labels=None)
    graphs = load("tu:SET", path=tmp_path)
    assert graphs.node["type"].tolist() == [[0, 0]] * 6
    assert graphs.edge["label"].tolist() == [[0, 0]] * 6
    assert graphs.label.dtype == np.float32


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"A": "1, 2\n"}, "both ends of an edge in one graph.*line 1"),
        ({"A": "1, 7\n"}, "nodes from 1 to 6"),
        ({"A": "1, two\n"}, "SET_A.txt to hold only numbers.*two"),
        ({"node_labels": "1\n"}, "6 lines in SET_node_labels.txt. Received: 1"),
        ({"edge_labels": "1\n1\n"}, "6 lines in SET_edge_labels.txt. Received: 2"),
        ({"A": "1, 3\n1, 3, 4\n"}, "SET_A.txt to be a table of numbers"),
    ],
)
def test_tu_bad_input(tmp_path, changes, reason):
    with pytest.raises(ValueError, match=reason):
        load("tu:SET", path=tu(tmp_path, **changes))


def test_tu_bad_target(tmp_path):
    tu(tmp_path, graph_attributes=None)
    with pytest.raises(ValueError, match="to be one of 'labels'"):
        load("tu:SET", path=tmp_path, target="attributes")
    with pytest.raises(ValueError, match="these files have no splits"):
        load("tu:SET", "train", tmp_path)


def test_read_matrix_takes_empty_fields_and_blanks():
    values = read_matrix(b"1,\n, 2.5\n", "numbers")
    np.testing.assert_array_equal(values, [[1, np.nan], [np.nan, 2.5]])
    assert read_matrix(b"\n", "numbers").shape == (0, 0)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_read_matrix_takes_one_line(end, tmp_path):
    (tmp_path / "one.txt").write_bytes(b"1, 2" + end)
    for source in (b"1, 2" + end, tmp_path / "one.txt"):
        assert read_matrix(source, "numbers").tolist() == [[1, 2]]


def ogb(folder, files):
    for name, text in files.items():
        path = folder / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt") as file:
            file.write(text)
    return folder


MOLECULES = {
    "raw/edge": "0,1\n0,1\n1,2\n",
    "raw/num-node-list": "2\n3\n1\n",
    "raw/num-edge-list": "1\n2\n0\n",
    "raw/node-feat": "6,0\n7,1\n6,0\n8,0\n6,0\n9,0\n",
    "raw/edge-feat": "0,0\n1,0\n2,1\n",
    "raw/graph-label": "0,1\n,1\n1,\n",
    "split/scaffold/train": "2\n0\n",
    "split/scaffold/valid": "1\n",
    "split/scaffold/test": "",
}


def test_ogb_graphs(tmp_path):
    ogb(tmp_path / "hiv", {**MOLECULES, "split/scaffold/test": "1\n"})
    graphs = load("ogb:ogbg-molhiv", path=tmp_path)
    # The benchmark adds the reverse of each bond.
    assert graphs.num_edges.tolist() == [2, 4, 0]
    path = graphs[1]
    assert path.senders.tolist() == [1, 0, 2, 1]
    assert path.receivers.tolist() == [0, 1, 1, 2]
    assert path.edge["feature"].tolist() == [[1, 0], [1, 0], [2, 1], [2, 1]]
    assert graphs.node["feature"].dtype == np.int32
    np.testing.assert_array_equal(graphs.label, [[0, 1], [np.nan, 1], [1, np.nan]])
    assert graphs.context["split"].tolist() == [0, 2, 0]
    train = load("ogb:ogbg-molhiv", "train", tmp_path)
    assert train.num_nodes.tolist() == [2, 1]


def test_ogb_nodes(tmp_path):
    files = {
        "raw/edge": "0,1\n2,0\n",
        "raw/num-node-list": "3\n",
        "raw/num-edge-list": "2\n",
        "raw/node-feat": "0.5,1\n1,2\n3,4\n",
        "raw/node-label": "4\n0\n2\n",
        "raw/node_year": "2015\n2016\n2017\n",
        "split/time/train": "0\n",
        "split/time/valid": "2\n",
        "split/time/test": "1\n",
    }
    (graph,) = load("ogb:ogbn-arxiv", path=ogb(tmp_path / "arxiv", files))
    assert graph.senders.tolist() == [2, 0] and graph.receivers.tolist() == [0, 1]
    assert graph.label.tolist() == [4, 0, 2]
    assert graph.node["feature"].dtype == np.float32
    assert graph.node["year"].tolist() == [2015, 2016, 2017]
    assert graph.node["valid_mask"].tolist() == [0, 0, 1]
    both = load("ogb:ogbn-arxiv", path=tmp_path, inverse_edges=True)
    assert both.num_edges.tolist() == [4]


def test_ogb_bad_input(tmp_path):
    ogb(tmp_path, {**MOLECULES, "raw/node-feat": "1,2\n"})
    with pytest.raises(ValueError, match="6 rows of the node feature 'feature'"):
        load("ogb:ogbg-molhiv", path=tmp_path)
    ogb(tmp_path, {**MOLECULES, "split/random/train": "0\n"})
    with pytest.raises(ValueError, match=r"`scheme` to be one of .*'random'"):
        load("ogb:ogbg-molhiv", path=tmp_path)


HEAD = "# Directed graph\n# /home/graph\n# Nodes: 3 Edges: 2\n# \n# From To\n"


@pytest.fixture
def malnet(tmp_path):
    graphs = {
        "trojan/artemis/AA": f"{HEAD}0 1\n1 2\n",
        "benign/benign/BB": f"{HEAD}0\t3\n",
        "adware/airpush/CC": HEAD,
    }
    for name, text in graphs.items():
        path = tmp_path / "malnet-graphs-tiny" / f"{name}.edgelist"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    lists = tmp_path / "split_info_tiny" / "type"
    lists.mkdir(parents=True)
    for (name, graph), file in zip(
        graphs.items(), ("train.txt", "val.txt", "test.txt"), strict=True
    ):
        assert graph.startswith("#")
        (lists / file).write_text(f"{name}\n")
    return tmp_path


def check_malnet(graphs):
    assert graphs.num_nodes.tolist() == [3, 4, 1]
    assert graphs.num_edges.tolist() == [2, 1, 0]
    assert graphs.label.tolist() == [2, 1, 0]
    assert graphs.context["split"].tolist() == [0, 1, 2]
    assert graphs[1].senders.tolist() == [0] and graphs[1].receivers.tolist() == [3]
    assert graphs.info[0] == {"file": "trojan/artemis/AA", "type": "trojan"}


def test_malnet(malnet):
    check_malnet(load("malnet_tiny", path=malnet))
    valid = load("malnet_tiny", "valid", malnet)
    assert valid.num_nodes.tolist() == [4] and valid.label.tolist() == [1]


def test_malnet_from_its_archives(malnet, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    (cache / "malnet_tiny").mkdir()
    name = "malnet-graphs-tiny"
    with tarfile.open(cache / "malnet_tiny" / f"{name}.tar.gz", "w:gz") as archive:
        archive.add(malnet / name, name)
    name = "split_info_tiny"
    with zipfile.ZipFile(cache / "malnet_tiny" / f"{name}.zip", "w") as archive:
        for path in (malnet / name).rglob("*.txt"):
            archive.write(path, path.relative_to(malnet))
    check_malnet(load("malnet_tiny", cache=cache, download=False))


def test_malnet_bad_input(malnet):
    path = malnet / "malnet-graphs-tiny/benign/benign/BB.edgelist"
    path.write_text(f"{HEAD}0 x\n")
    with pytest.raises(ValueError, match="to hold only numbers"):
        load("malnet_tiny", path=malnet)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="which the split lists"):
        load("malnet_tiny", path=malnet)
