"""Graphs of functions: rewrites, edges, and what encoding makes of them."""

import keyword
import random

import numpy as np
import pytest

from keras_bandgnn.programs import (
    encode_function,
    function_graph,
    plant_bug,
    program_graphs,
    variable_usages,
)
from keras_bandgnn.programs.encode_functions import num_function_edge_types
from keras_bandgnn.programs.program_graph import FUNCTION_RELATIONS

SOURCE = '''\
def total(prices, rate, *, places=2):
    """Sum of prices with tax."""
    result = 0
    for price in prices:
        if price > rate:
            result += price * rate
        helper(price, rate)
    return round(result, places)
'''


def names(graph):
    """(place, name that stands there, other name) of each rewrite."""
    places = graph.info["places"]
    return {
        (*places[usage], graph.labels[graph.usages[usage]], graph.labels[variable])
        for usage, variable in graph.rewrites.tolist()
    }


@pytest.mark.parametrize(
    "source",
    [
        SOURCE + "\n\n" + SOURCE.replace("total", "other"),
        SOURCE + "\n\nasync def other(a, b):\n    return a - b\n",
        "if a:\n    def total(a, b):\n        return a\nelse:\n    def other(): pass\n",
        "    def total(self, a):\n        return a\n    def other(self): pass\n",
        "class C:\n    def total(self, a):\n        return a\n    def other(s): pass\n",
    ],
)
def test_one_function_at_a_time(source):
    with pytest.raises(ValueError, match="Received: 2: total, other. Call function_g"):
        function_graph(source, (), {"helper": ["x"], "C.round": ["self"]}, "C.total")
    # Those of a function and of its module are not meant.
    inner = (
        "def total(a, b):\n    def other(c):\n        return c - a\n    return other\n"
    )
    graph = function_graph(inner, (), {"other": ["x"], "third": []})
    assert graph.info["function"] == "total"


@pytest.mark.parametrize("module", [(), ("LIMIT", "rate")])
@pytest.mark.parametrize("indent", ["", "    ", "\t"])
def test_rewrites_are_the_usages(module, indent):
    source = "".join(indent + line + "\n" for line in SOURCE.splitlines())
    graph = function_graph(source, module, {"helper": ["one", "two"]}, "C.total")
    expected = {
        (usage.line, usage.column, usage.name, other)
        for usage in variable_usages(source, module)
        for other in usage.candidates
    }
    assert names(graph) == expected and expected
    assert graph.info["function"] == "C.total"
    for usage, variable in zip(graph.usages, graph.used, strict=True):
        assert graph.labels[usage] == graph.labels[variable]
    assert graph.kinds[0] == "FunctionDef"


def test_edges_are_those_of_variable_misuse_graphs():
    graph = function_graph(SOURCE)
    text = [label for label, kind in zip(graph.labels, graph.kinds, strict=True)]
    # The same relations between tokens as around a slot, where no slot hides them.
    found = {
        (relation, text[source], text[target])
        for relation, rows in graph.edges.items()
        for source, target in rows.tolist()
    }
    for other in program_graphs(SOURCE, steps=100):
        hidden = {other.slot, *other.candidates}
        for relation, rows in other.edges.items():
            if relation in ("NextToken", "LastUse", "LastWrite", "LastLexicalUse"):
                continue
            for source, target in np.asarray(rows).tolist():
                if not hidden & {source, target}:
                    edge = (relation, other.labels[source], other.labels[target])
                    assert edge in found
    occurrences = graph.edges["Occurrence"]
    assert all(text[variable] == text[token] for variable, token in occurrences)
    variables = graph.kinds.count("Variable")
    assert variables == len(set(occurrences[:, 0].tolist())) == 5


def test_arguments_have_edges_to_the_parameters_of_the_module():
    def formal(**options):
        graph = function_graph(SOURCE, **options)
        return {
            (graph.labels[a], graph.labels[b]) for a, b in graph.edges["FormalArgName"]
        }

    assert formal() == set()
    pairs = {("price", "amount"), ("rate", "tax")}
    assert formal(signatures={"helper": ["amount", "tax"]}) == pairs
    method = "    def f(self, a, b):\n        return self.g(b, a)\n"
    graph = function_graph(method, (), {"C.g": ["self", "x", "y"]}, "C.f")
    assert {graph.labels[b] for _, b in graph.edges["FormalArgName"]} == {"x", "y"}
    # A method of another class is not the one that is called.
    graph = function_graph(method, (), {"D.g": ["self", "x", "y"]}, "C.f")
    assert not len(graph.edges["FormalArgName"])


def test_a_planted_bug_is_a_rewrite_of_what_was_read():
    for epoch in range(20):
        made = plant_bug(SOURCE, epoch=epoch, correct_share=0.0)
        graph = function_graph(made.source)
        usage = made.usages[made.bug]
        position = graph.rewrite_to(usage.line, usage.column, made.repair)
        row, variable = graph.rewrites[position]
        assert graph.labels[variable] == made.repair
        assert graph.labels[graph.usages[row]] == usage.name != made.repair
        assert graph.repaired_by(position).correct == position
    assert graph.rewrite_to(1, 0, "nothing") is None


@pytest.mark.parametrize(
    "source",
    ["def f():\n    return 1\n", "def f(a):\n    return a\n", "def f(a, b): pass\n"],
)
def test_nothing_to_choose(source):
    assert function_graph(source) is None


def test_too_large_functions_are_left_out():
    graph = function_graph(SOURCE)
    assert function_graph(SOURCE, max_nodes=len(graph.labels) - 1) is None
    assert function_graph(SOURCE, max_rewrites=len(graph.rewrites) - 1) is None
    deep = "+".join(["a"] * 3000)
    assert function_graph(f"def f(a):\n    return {deep}") is None
    same = function_graph(
        SOURCE, max_nodes=len(graph.labels), max_rewrites=len(graph.rewrites)
    )
    assert same.labels == graph.labels
    with pytest.raises(SyntaxError):
        function_graph("def f(:")


@pytest.mark.parametrize("subtoken_nodes", [True, False])
def test_encoding(subtoken_nodes):
    function = function_graph(SOURCE)
    graph = encode_function(function, subtoken_nodes=subtoken_nodes)
    types = num_function_edge_types(subtoken_nodes)
    count, relations = len(function.rewrites), (types - 2) // 2
    rewrites = graph.edge_type == types - 1
    assert rewrites[-count:].all() and rewrites.sum() == count
    (keep,) = np.flatnonzero(graph.edge_type == types - 2)
    assert keep == graph.num_edges - count - 1
    assert (graph.senders[keep], graph.receivers[keep]) == (0, 0)
    assert (graph.senders[rewrites] == function.rewrites[:, 1]).all()
    usages = function.usages[function.rewrites[:, 0]]
    assert (graph.receivers[rewrites] == usages).all()
    for number, relation in enumerate(FUNCTION_RELATIONS):
        for type_, columns in ((number, (0, 1)), (number + relations, (1, 0))):
            chosen = graph.edge_type == type_
            ends = np.stack([graph.senders[chosen], graph.receivers[chosen]], axis=1)
            assert (ends == function.edges[relation][:, columns]).all()
    assert (graph.num_nodes > len(function.labels)) == subtoken_nodes
    assert graph.label is None
    for correct in (-1, 0, count - 1):
        label = encode_function(
            function.repaired_by(correct), subtoken_nodes=subtoken_nodes
        ).label
        assert np.flatnonzero(label).tolist() == [keep + 1 + correct]
    with pytest.raises(ValueError, match="position of the rewrite"):
        encode_function(function.repaired_by(count))


def test_equal_names_have_equal_features():
    function = function_graph(SOURCE)
    graph = encode_function(function)
    for usage, variable in zip(function.usages, function.used, strict=True):
        rows = graph.node["subtoken"]
        assert (rows[usage] == rows[variable]).all()
        assert rows[usage].any()


def test_any_function_of_the_standard_library():
    import ast
    import textwrap
    from pathlib import Path

    read = 0
    folder = Path(random.__file__).parent
    for name in ("argparse", "shlex", "heapq", "textwrap", "csv"):
        text = (folder / f"{name}.py").read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                source = "\n".join(text.split("\n")[node.lineno - 1 : node.end_lineno])
                graph = function_graph(source)
                again = function_graph(textwrap.dedent(source))
                assert (graph is None) == (again is None)
                if graph is None:
                    continue
                read += 1
                encoded = encode_function(graph)
                assert encoded.num_edges == len(encoded.edge_type)
                for row, variable in graph.rewrites:
                    word = graph.labels[graph.usages[row]]
                    assert word.isidentifier() and not keyword.iskeyword(word)
                    assert graph.labels[variable] != word
    assert read > 150
