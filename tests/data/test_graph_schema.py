"""The text format of graph schemas."""

import pytest

from keras_bandgnn.data import read_graph_schema

TEXT = """
# Authors and their papers.
context { features { key: "year" value: { dtype: DT_INT64 } } }
node_sets {
  key: "author"
  value {
    description: 'Writes "papers"; ' "many of them."
    features {
      key: "embedding"
      value { dtype: DT_FLOAT shape { dim { size: 4 } dim: < size: 3 > } }
    }
    features: { key: "name", value { dtype: DT_STRING; } }
    metadata { filename: "authors.csv" cardinality: 1134649 }
    context: ["year"]
  }
}
node_sets { key: "paper" value {
  features { key: "title" value { dtype: DT_STRING shape { dim { size: -1 } } } }
} }
node_sets { key: "end" }
edge_sets { key: "writes" value { source: "author" target: "paper"
  features { key: "share" value { dtype: DT_FLOAT } } } }
info { graph_type: SUBGRAPH root_set: "paper" }
"""
SCHEMA = {
    "context": {"features": {"year": {"dtype": "DT_INT64", "shape": []}}},
    "node_sets": {
        "author": {
            "features": {
                "embedding": {"dtype": "DT_FLOAT", "shape": [4, 3]},
                "name": {"dtype": "DT_STRING", "shape": []},
            }
        },
        "paper": {"features": {"title": {"dtype": "DT_STRING", "shape": [-1]}}},
        "end": {"features": {}},
    },
    "edge_sets": {
        "writes": {
            "source": "author",
            "target": "paper",
            "features": {"share": {"dtype": "DT_FLOAT", "shape": []}},
        }
    },
}


def test_schemas_are_read_from_text_and_files(tmp_path):
    assert read_graph_schema(TEXT) == SCHEMA
    path = tmp_path / "graph_schema.pbtxt"
    path.write_text(TEXT)
    assert read_graph_schema(path) == SCHEMA == read_graph_schema(str(path))
    path.write_text("node_sets { key }")
    with pytest.raises(ValueError, match="graph_schema.pbtxt: .*line 1"):
        read_graph_schema(path)
    with pytest.raises(FileNotFoundError, match="Expected a file"):
        read_graph_schema(tmp_path / "other.pbtxt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "the name of a field in line 1"),
        ('\nnode_sets { key: "a"\n', "or '}' for line 2 in line 3.*end of the text"),
        ('node_sets { key: "a" >', "Received: '>'"),
        ("node_sets { key: }", "a value in line 1"),
        ("node_sets { key: [1, 2", "a value in line 1"),
        ("node_sets {\n\n key 3 }", "':' or '{' after 'key' in line 3"),
        ("node_sets { key: 'a }", 'in line 1.*Received: "\'"'),
        ("node_sets { key: '\\x' }", "a string in line 1"),
        ("node_sets { key: '\\d' }", "a string in line 1"),
        ("node_sets { key: '\\377' }", "a string in line 1"),
        ("node_sets { \\ }", "in line 1"),
        ("node_sets: 3 # {", "`node_sets` to be a message"),
        ("node_sets { key: 3 }", "`key of node_sets` to be a string"),
        ("node_set { }", r"Received: schema=\['node_set'\]"),
        ("edge_sets { }", "`key of edge_sets`"),
        ("info { }", "a schema with node sets"),
        (TEXT.replace('target: "paper"', ""), "'target'.*string"),
        (TEXT.replace('target: "paper"', 'target: "venue"'), "'target'.*one of"),
        (TEXT.replace("DT_INT64", "DT_INT63"), "'DT_FLOAT'"),
        (TEXT.replace("size: 4", "size: 4.5"), "list of integers"),
    ],
)
def test_what_is_no_schema_is_refused(text, message):
    with pytest.raises(ValueError, match=f"(?s)Expected.*{message}"):
        read_graph_schema(text)


def test_many_nested_messages_are_no_problem():
    deep = "a {" * 100_000 + "}" * 100_000
    assert read_graph_schema(TEXT + "info {" + deep + "}") == SCHEMA


def test_strings_are_unescaped():
    text = r"""node_sets { key: "a\303\251\x20" '\'\n' "é\\" }"""
    assert [*read_graph_schema(text)["node_sets"]] == ["aé '\né\\"]
