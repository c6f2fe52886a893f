"""Cora and its kin: the original pickles without running them, and plain arrays."""

import io
import json
import pickle
import pickletools
import struct

import numpy as np
import pytest
import scipy.sparse as sp

from keras_bandgnn.data.datasets.load import load
from keras_bandgnn.data.datasets.pickle_arrays import read_pickle
from keras_bandgnn.preprocessing import node_splits

# The files were written by Python 2: strings of bytes, and names of its modules.


def text(value):
    return b"U" + bytes([len(value)]) + value


def number(value):
    return b"J" + struct.pack("<i", value)


def array(values):
    values = np.asarray(values)
    code = values.dtype.str[1:].encode()
    content = values.tobytes()
    return b"".join(
        [
            b"cnumpy.core.multiarray\n_reconstruct\n",
            *[b"cnumpy\nndarray\n", b"K\x00\x85", text(b"b"), b"\x87R"],
            *[b"(K\x01(", *map(number, values.shape), b"t"],
            *[b"cnumpy\ndtype\n", text(code), b"K\x00K\x01\x87R"],
            *[b"(K\x03", text(b"<"), b"NNN", number(-1), number(-1), b"K\x00tb"],
            *[b"\x89T", struct.pack("<I", len(content)), content, b"tb"],
        ]
    )


def matrix(values):
    values = sp.csr_matrix(np.asarray(values, np.float32))
    return b"".join(
        [
            b"cscipy.sparse.csr\ncsr_matrix\n)\x81}(",
            *[text(b"_shape"), *map(number, values.shape), b"\x86"],
            *[text(b"indptr"), array(values.indptr)],
            *[text(b"indices"), array(values.indices)],
            *[text(b"data"), array(values.data), b"ub"],
        ]
    )


def lists(graph):
    parts = [b"ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R("]
    for node, ends in graph.items():
        parts += [number(node), b"](", *map(number, ends), b"e"]
    return b"".join([*parts, b"u"])


def write(path, body):
    path.write_bytes(b"\x80\x02" + body + b".")


@pytest.fixture
def planetoid(tmp_path):
    """Seven nodes: 2 train, 1 further known; test nodes 6, 3, 5; node 4 is missing."""
    known = np.eye(3, 4)
    test = np.arange(12).reshape(3, 4) / 8
    parts = {
        "x": matrix(known[:2]),
        "allx": matrix(known),
        "tx": matrix(test),
        "y": array(np.eye(2, dtype=np.int32)),
        "ally": array(np.array([[1, 0], [0, 1], [1, 0]], np.int32)),
        "ty": array(np.array([[0, 1], [1, 0], [0, 0]], np.int32)),
        "graph": lists({0: [1, 1, 0], 1: [0], 2: [6], 6: [2], 3: [5], 5: []}),
    }
    for name, body in parts.items():
        write(tmp_path / f"ind.cora.{name}", body)
    (tmp_path / "ind.cora.test.index").write_text("6\n3\n5\n")
    return tmp_path


def test_planetoid(planetoid):
    (graph,) = load("cora", path=planetoid)
    assert graph.num_nodes == 7 and graph.label_level == "node"
    edges = sorted(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    assert edges == [(0, 1), (1, 0), (2, 6), (3, 5), (5, 3), (6, 2)]
    assert graph.label.tolist() == [0, 1, 0, 0, -1, -1, 1]
    feature = graph.node["feature"]
    assert feature[6].tolist() == [0, 0.125, 0.25, 0.375]
    assert feature[3].tolist() == [0.5, 0.625, 0.75, 0.875]
    assert feature[4].tolist() == [0] * 4 and feature[1].tolist() == [0, 1, 0, 0]
    assert graph.node["train_mask"].tolist() == [1, 1, 0, 0, 0, 0, 0]
    assert graph.node["test_mask"].tolist() == [0, 0, 0, 1, 0, 1, 1]
    assert graph.node["valid_mask"].dtype == np.int32


def test_the_test_writer_writes_pickles():
    """The small files are pickles, as another reader of the format sees them."""
    for body in (array(np.arange(3)), matrix(np.eye(2)), lists({1: [2, 3]})):
        pickletools.dis(b"\x80\x02" + body + b".", out=io.StringIO())


def test_nothing_in_a_pickle_is_run(tmp_path):
    target = tmp_path / "made"

    class Evil:
        def __reduce__(self):
            return (open, (str(target), "w"))

    path = tmp_path / "evil"
    path.write_bytes(pickle.dumps(Evil(), protocol=2))
    with pytest.raises(ValueError, match=r"the global '(io|_io).open'"):
        read_pickle(path)
    assert not target.exists()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"cos\nsystem\n", "the global 'os.system'"),
        (b"c__builtin__\neval\n", "the global '__builtin__.eval'"),
        (b"(S'ls'\nios\nsystem\n", "the instruction (STRING|INST)"),
        (b"\x82\x01", "the instruction EXT1"),
        (b"U\x01aQ", "the instruction BINPERSID"),
        (b"cnumpy\nndarray\n)R", "an unexpected numpy ndarray"),
        (b"K\x01)R", "a int in place of a _Global"),
        (b"t", "complete pickle"),
        (b"\x86", "complete pickle"),
        (b"K\x01e", "complete pickle"),
        (b"](K\x01K\x01u", "complete pickle"),
        (b"h\x07", "complete pickle"),
        (array(np.arange(3)).replace(text(b"i8"), text(b"O8")), "type <O8"),
        (array(np.arange(3))[:-8], "complete pickle"),
    ],
)
def test_other_pickles_are_refused(tmp_path, body, reason):
    write(tmp_path / "bad", body)
    with pytest.raises(ValueError, match=reason):
        read_pickle(tmp_path / "bad")


def test_an_inconsistent_matrix_is_refused(tmp_path):
    body = matrix(np.eye(3)).replace(
        array(np.array([0, 1, 2], np.int32)), array(np.array([0, 1, 9], np.int32))
    )
    write(tmp_path / "bad", body)
    with pytest.raises(ValueError, match="complete pickle"):
        read_pickle(tmp_path / "bad")


def gnn_benchmark(path):
    adjacency = sp.csr_matrix(np.array([[1, 2, 0], [0, 0, 0], [0, 1, 0]], np.float32))
    feature = sp.csr_matrix(np.array([[0, 3], [1, 0], [0, 0]], np.float32))
    np.savez(
        path,
        adj_data=adjacency.data,
        adj_indices=adjacency.indices,
        adj_indptr=adjacency.indptr,
        adj_shape=adjacency.shape,
        attr_data=feature.data,
        attr_indices=feature.indices,
        attr_indptr=feature.indptr,
        attr_shape=feature.shape,
        labels=[0, 1, 1],
        node_names=np.array(["a", "b", None], object),
    )


def test_gnn_benchmark_npz(tmp_path):
    gnn_benchmark(tmp_path / "ms_academic_cs.npz")
    (graph,) = load("coauthor_cs", path=tmp_path)
    edges = list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    assert edges == [(1, 0), (0, 1), (2, 1), (1, 2)]
    assert graph.node["feature"].tolist() == [[0, 3], [1, 0], [0, 0]]
    assert graph.label.tolist() == [0, 1, 1]
    with pytest.raises(ValueError, match="its splits are of nodes"):
        load("coauthor_cs", "train", tmp_path)


def test_other_npz(tmp_path):
    np.savez(tmp_path / "ms_academic_cs.npz", x=[1])
    with pytest.raises(ValueError, match="a member 'labels'.*Received: members x"):
        load("coauthor_cs", path=tmp_path)


def heterophilous(path, **changes):
    arrays = {
        "node_features": np.arange(8, dtype=np.float32).reshape(4, 2),
        "node_labels": np.array([0, 1, 1, 0]),
        "edges": np.array([[0, 1], [1, 2], [2, 1]]),
        "train_masks": np.eye(2, 4, dtype=bool),
        "val_masks": np.eye(2, 4, 1, dtype=bool),
        "test_masks": np.eye(2, 4, 2, dtype=bool),
    }
    np.savez(path, **{**arrays, **changes})


def test_heterophilous(tmp_path):
    heterophilous(tmp_path / "roman_empire.npz")
    (graph,) = load("roman_empire", path=tmp_path)
    edges = list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    assert edges == [(1, 0), (0, 1), (2, 1), (1, 2)]
    assert graph.label.tolist() == [0, 1, 1, 0] and graph.label_level == "node"
    assert graph.node["feature"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert graph.node["train_mask"].tolist() == [[1, 0], [0, 1], [0, 0], [0, 0]]
    second = list(node_splits(graph))[1]
    assert second.node["valid_mask"].tolist() == [0, 0, 1, 0]
    assert second.node["test_mask"].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"edges": np.array([[0, 4]])}, "edges between nodes in .0, 4.*4 in edge 0"),
        ({"edges": np.array([[0], [1]])}, r"'edges' of integers of shape \[any, 2\]"),
        ({"val_masks": np.zeros((3, 4), bool)}, r"'val_masks'.*\[2, 4\]"),
        ({"test_masks": np.full((2, 4), 2)}, "'test_masks' of 0 and 1.*up to 2"),
        ({"node_features": np.zeros((3, 2))}, r"'node_features'.*\[4, any\]"),
        ({"node_labels": np.array([0, 1, 1, 9])}, r"'node_labels' of classes in"),
        ({"node_labels": np.array([None] * 4)}, "'node_labels' that is complete"),
    ],
)
def test_heterophilous_bad_input(tmp_path, changes, reason):
    heterophilous(tmp_path / "questions.npz", **changes)
    with pytest.raises(ValueError, match=reason):
        load("questions", path=tmp_path)


WIKI_CS = {
    "features": [[0.5, -1], [0.25, 2.0], [1, 0]],
    "labels": [0, 2, 1],
    "links": [[1, 1], [0, 2], []],
    "train_masks": [[True, False, False], [False, True, False]],
    "val_masks": [[False, True, False], [True, False, False]],
    "stopping_masks": [[False, False, True], [True, False, False]],
    "test_mask": [False, False, True],
}


def test_wiki_cs(tmp_path):
    (tmp_path / "data.json").write_text(json.dumps(WIKI_CS))
    (graph,) = load("wiki_cs", path=tmp_path)
    edges = list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    assert edges == [(1, 0), (0, 1), (2, 1), (1, 2)]
    assert graph.label.tolist() == [0, 2, 1]
    assert graph.node["feature"].tolist() == [[0.5, -1], [0.25, 2], [1, 0]]
    assert graph.node["valid_mask"].tolist() == [[0, 1], [1, 0], [0, 0]]
    assert graph.node["stopping_mask"].tolist() == [[0, 1], [0, 0], [1, 0]]
    assert graph.node["test_mask"].tolist() == [0, 0, 1]
    assert len(list(node_splits(graph))) == 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"features": [[1], [1, 2], [3]]}, "'features', a table"),
        ({"features": [["1"], ["2"], ["3"]]}, "'features', numbers along 2 axes"),
        ({"features": [[1.0], [2.0]]}, "features of 3 nodes"),
        ({"labels": [0, 1, 3]}, r"labels in \[0, 3\)"),
        ({"links": [[1], [3], []]}, "edges between nodes in .0, 3"),
        ({"links": [[1], [0]]}, "links, a list of 3 lists"),
        ({"val_masks": [[True, False]]}, "val_masks of 0 and 1 for each of 3 nodes"),
        ({"val_masks": [[True, False, False]]}, "as many masks of each kind"),
        ({"test_mask": None}, "'test_mask', numbers along 1 axes"),
    ],
)
def test_wiki_cs_bad_input(tmp_path, changes, reason):
    (tmp_path / "data.json").write_text(json.dumps({**WIKI_CS, **changes}))
    with pytest.raises(ValueError, match=reason):
        load("wiki_cs", path=tmp_path)
