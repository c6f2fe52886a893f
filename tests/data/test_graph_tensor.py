"""Graphs of TF-GNN, in each of their forms."""

from types import SimpleNamespace

import numpy as np
import pytest
from converter_graphs import assert_same, make_sets

from keras_bandgnn.data import (
    from_graph_tensor,
    from_sets,
    graph_tensor_tables,
    to_graph_tensor,
)
from keras_bandgnn.preprocessing import NodeSetEncoder

SCHEMA = """
context { features { key: "year" value { dtype: DT_INT64 } } }
node_sets { key: "author" value {
  features { key: "x" value { dtype: DT_FLOAT shape { dim { size: 2 } } } } } }
node_sets { key: "paper" value {
  features { key: "word" value { dtype: DT_INT64 } }
  features { key: "y" value { dtype: DT_INT64 } } } }
node_sets { key: "_readout" }
edge_sets { key: "writes" value { source: "author" target: "paper"
  features { key: "share" value { dtype: DT_FLOAT } } } }
edge_sets { key: "cites" value { source: "paper" target: "paper" } }
edge_sets { key: "_readout/seed" value { source: "paper" target: "_readout" } }
"""
EXAMPLE = {
    "context/year": [1999],
    "nodes/author.#size": [2],
    "nodes/author.x": [0.5, 1, 2, 3],
    "nodes/author.#id": [b"a", b"b"],
    "nodes/paper.#size": [3],
    "nodes/paper.word": [4, 0, 7],
    "nodes/paper.y": [0, 1, 1],
    "nodes/_readout.#size": [1],
    "edges/writes.#size": [3],
    "edges/writes.#source": [0, 1, 1],
    "edges/writes.#target": [2, 0, 1],
    "edges/writes.share": [0.5, 1, 0.25],
    "edges/_readout/seed.#source": [0],
}
LABEL = ("node", "paper", "y")


def expected(**options):
    return from_sets(
        {
            "author": {"x": [[0.5, 1], [2, 3]]},
            "paper": {"word": [4, 0, 7]},
        },
        {
            ("author", "writes", "paper"): {
                "edge_index": [[0, 1, 1], [2, 0, 1]],
                "share": [0.5, 1, 0.25],
            },
            ("paper", "cites", "paper"): np.zeros((2, 0), int),
        },
        label={"paper": [0, 1, 1]},
        context={"year": 1999},
        **options,
    )


def pieces():
    """The same as a dict of pieces."""
    return {
        "context": {"features": {"year": [1999]}},
        "node_sets": {
            "author": {"sizes": [2], "features": {"x": [[0.5, 1], [2, 3]]}},
            "paper": {
                "sizes": [3],
                "features": {"word": [4, 0, 7], "y": [0, 1, 1], "#id": [b"a"] * 3},
            },
        },
        "edge_sets": {
            "writes": {
                "sizes": [3],
                "adjacency": {
                    "source": ("author", [0, 1, 1]),
                    "target": ("paper", [2, 0, 1]),
                },
                "features": {"share": [0.5, 1, 0.25]},
            },
            "cites": {
                "sizes": [0],
                "adjacency": {"source": ("paper", []), "target": ("paper", [])},
            },
        },
    }


def object_of(parts):
    """The same as an object with the attributes of a `GraphTensor`."""

    def piece(values):
        out = SimpleNamespace(
            sizes=values["sizes"], features=values.get("features", {})
        )
        if "adjacency" in values:
            (source, senders), (target, receivers) = values["adjacency"].values()
            out.adjacency = SimpleNamespace(
                source=senders,
                target=receivers,
                source_name=source,
                target_name=target,
            )
        return out

    return SimpleNamespace(
        context=SimpleNamespace(features=parts["context"]["features"]),
        node_sets={k: piece(v) for k, v in parts["node_sets"].items()},
        edge_sets={k: piece(v) for k, v in parts["edge_sets"].items()},
    )


@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_pieces_and_objects(schema):
    for tensor in (pieces(), object_of(pieces())):
        assert_same(from_graph_tensor(tensor, schema, label=LABEL), expected())
    back = from_graph_tensor(pieces(), label=LABEL, reverse=True)
    assert_same(back, expected(reverse=True))


def test_features_of_an_example(tmp_path):
    path = tmp_path / "graph_schema.pbtxt"
    path.write_text(SCHEMA)
    assert_same(from_graph_tensor(EXAMPLE, path, label=LABEL), expected())
    shaped = {**EXAMPLE, "nodes/author.x": np.array([[0.5, 1], [2, 3]])}
    assert_same(from_graph_tensor(shaped, SCHEMA, label=LABEL), expected())
    # Sets that are missing are empty.
    some = {k: v for k, v in EXAMPLE.items() if not k.startswith("edges/writes")}
    some = {k: v for k, v in some.items() if not k.startswith("nodes/author")}
    graph = from_graph_tensor(some, SCHEMA)
    assert graph.sets["author"]["x"].shape == (0, 2) and graph.num_edges == 0
    assert graph.sets["author"]["x"].dtype == np.float32


def test_examples_and_tensors_of_tensorflow():
    tf = pytest.importorskip("tensorflow")
    example = tf.train.Example()
    for name, values in EXAMPLE.items():
        feature = example.features.feature[name]
        kind = {int: "int64_list", float: "float_list", bytes: "bytes_list"}
        getattr(feature, kind[type(values[0])]).value.extend(values)
    assert_same(from_graph_tensor(example, SCHEMA, label=LABEL), expected())
    kinds = {name: tf.int64 for name in EXAMPLE if not name.endswith("#id")}
    for name in ("nodes/author.x", "edges/writes.share"):
        kinds[name] = tf.float32
    text = example.SerializeToString()
    for form in (
        lambda kind: tf.io.VarLenFeature(kind),
        lambda kind: tf.io.RaggedFeature(kind),
    ):
        features = {name: form(kind) for name, kind in kinds.items()}
        parsed = tf.io.parse_single_example(text, features)
        assert_same(from_graph_tensor(parsed, SCHEMA, label=LABEL), expected())
    parts = pieces()
    parts["node_sets"]["paper"]["features"]["word"] = tf.ragged.constant([[1], [], [2]])
    with pytest.raises(ValueError, match="'word' of node set 'paper'.*Pool its values"):
        from_graph_tensor(parts)


def test_an_encoder_learns_strings(tmp_path):
    (tables,) = graph_tensor_tables(EXAMPLE, SCHEMA, label=LABEL)
    assert_same(from_sets(**tables), expected())
    text = 'features { key: "town" value { dtype: DT_STRING } }'
    schema = SCHEMA.replace('key: "author" value {', 'key: "author" value {' + text)
    example = {**EXAMPLE, "nodes/author.town": [b"Bonn", "Zürich".encode()]}
    (tables,) = graph_tensor_tables(example, schema, label=LABEL)
    assert tables["nodes"]["author"]["town"] == ["Bonn", "Zürich"]
    encoder = NodeSetEncoder().adapt([tables])
    assert encoder(tables).sets["author"]["town"].tolist() == [1, 2]
    # No author there.
    some = {k: v for k, v in example.items() if not k.startswith("nodes/author")}
    some = {k: v for k, v in some.items() if not k.startswith("edges/writes")}
    (tables,) = graph_tensor_tables(some, schema, label=LABEL)
    assert encoder(tables).sets["author"]["town"].shape == (0,)
    long = change(("node_sets", "author", "features", "x"), ["a", "b", "c"])()
    with pytest.raises(ValueError, match=r"of shape \[2\]"):
        graph_tensor_tables(long)


def test_components_are_graphs():
    two = pieces()
    for name, sizes in (("author", [0, 2]), ("paper", [1, 2])):
        two["node_sets"][name]["sizes"] = sizes
    two["edge_sets"]["writes"] |= {"sizes": [0, 2], "features": {"share": [3, 4]}}
    ends = {"source": ("author", [0, 1]), "target": ("paper", [2, 1])}
    two["edge_sets"]["writes"]["adjacency"] = ends
    two["edge_sets"]["cites"] = {
        "sizes": [1, 0],
        "adjacency": {"source": ("paper", [0]), "target": ("paper", [0])},
    }
    two["context"]["features"]["year"] = [1999, 2001]
    first, second = from_graph_tensor(two, label=("context", "year"))
    assert (first.num_nodes, first.num_edges, first.label) == (1, 1, 1999)
    assert (second.num_nodes, second.label) == (4, 2001)
    assert second.sets["paper"]["word"].tolist() == [0, 7]
    assert second.senders.tolist() == [0, 1] and second.receivers.tolist() == [3, 2]
    assert second.edge["share"].tolist() == [3, 4]
    two["edge_sets"]["writes"]["sizes"] = [1, 1]
    with pytest.raises(ValueError, match="component 0 of edge set 'writes'"):
        from_graph_tensor(two)


def change(path, value):
    def changed():
        parts = pieces()
        *parents, last = path
        place = parts
        for name in parents:
            place = place[name]
        place[last] = value
        return parts

    return changed


@pytest.mark.parametrize(
    ("tensor", "options", "message"),
    [
        (lambda: EXAMPLE, {}, "`schema` to be the schema"),
        (lambda: {"a": 1}, {}, "'nodes/author.#size'"),
        (pieces, {"label": "y"}, r'\("node", set, feature\)'),
        (pieces, {"label": ("node", "paper")}, r'\("node", set, feature\)'),
        (pieces, {"label": ("node", "paper", "z")}, r"There are \['word', 'y'\]"),
        (pieces, {"label": ("node", "venue", "z")}, r"There are \[\]"),
        (
            pieces,
            {"schema": SCHEMA + 'node_sets { key: "venue" }'},
            r"sets of the schema.*\['venue'\]",
        ),
        (change(("node_sets", "author", "sizes"), [[1], [1]]), {}, "merge_batch"),
        (change(("node_sets", "author", "sizes"), [1, 1]), {}, "as many sizes"),
        (change(("node_sets", "author", "sizes"), [-1]), {}, "at least 0"),
        (change(("node_sets", "author", "sizes"), []), {}, "at least 0"),
        (change(("node_sets", "author"), {}), {}, "a dict with `sizes`"),
        (change(("node_sets", "author", "sizes"), [3]), {}, r"of shape \[3, 2\]"),
        (
            change(("node_sets", "author", "features", "x"), [[1], [2, 3]]),
            {},
            "Pool its values",
        ),
        (
            change(("node_sets", "author", "features", "x"), [b"a", b"b"]),
            {},
            "graph_tensor_tables",
        ),
        (change(("edge_sets", "writes", "sizes"), [2]), {}, r"'share'.*shape \[2\]"),
        (change(("edge_sets", "cites", "sizes"), [2]), {}, "ids of 2 nodes"),
        (
            change(("edge_sets", "writes", "adjacency", "source"), ("a", [0])),
            {},
            r"in one of the node sets \['author', 'paper'\]",
        ),
        (
            change(("edge_sets", "writes", "adjacency", "source"), [0, 1, 1]),
            {},
            "a pair",
        ),
        (
            change(
                ("edge_sets", "writes", "adjacency", "source"), ("author", [0, 2, 1])
            ),
            {},
            "nodes of 'author'",
        ),
        (change(("edge_sets", "writes", "adjacency"), None), {}, "adjacency of edge"),
        (change(("node_sets",), {}), {}, r"one of the node sets \[\]"),
        (
            lambda: EXAMPLE,
            {"schema": SCHEMA.replace("size: 2", "size: -1")},
            "a fixed shape.*Pool its values",
        ),
        (
            lambda: EXAMPLE,
            {"schema": SCHEMA.replace("size: 2", "size: 3")},
            r"of shape \[2, 3\]",
        ),
        (lambda: EXAMPLE, {"schema": SCHEMA.replace('"y"', '"z"')}, "'z'.*None"),
    ],
)
def test_what_does_not_fit_is_refused(tensor, options, message):
    with pytest.raises(ValueError, match=f"(?s)Expected.*{message}"):
        from_graph_tensor(tensor(), **options)


def test_pieces_of_a_graph():
    graph = make_sets(2, node={"train_mask": {"shop": [1, 0]}}, reverse=True)
    tensor = to_graph_tensor(graph)
    assert {*tensor["edge_sets"]} == {
        *("buys", "rev_buys", "sold_by", "rev_sold_by", "knows", "rev_knows")
    }
    assert tensor["node_sets"]["shop"]["features"].keys() == {"train_mask"}
    assert_same(from_graph_tensor(tensor, label=("node", "user", "label")), graph)
    again = from_sets({"a": 1, "b": 1}, {("a", "to", "b"): [[0], [0]]}, reverse=True)
    both = {("a", "to", "b"): [[0], [0]], ("b", "to", "a"): [[0], [0]]}
    names = to_graph_tensor(from_sets({"a": 1, "b": 1}, both))["edge_sets"]
    assert [*names] == ["a_to_b", "b_to_a"]
    labels = again.replace(label=[0, 1], label_level="edge")
    with pytest.raises(ValueError, match="without labels of edges"):
        to_graph_tensor(labels)
    clash = from_sets({"a": {"label": [1]}}, label={"a": [0]})
    with pytest.raises(ValueError, match="one feature 'label'"):
        to_graph_tensor(clash)
