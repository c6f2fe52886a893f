"""Syntax nodes: those of `ast`, but for operators and contexts."""

import ast
import sysconfig
from pathlib import Path

import pytest

from keras_bandgnn.programs.functions import read_functions, read_module
from keras_bandgnn.programs.python_source.nodes import child_nodes, walk

LIBRARY = Path(sysconfig.get_path("stdlib"))
LEFT_OUT = (ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop)


def kept(nodes):
    return [node for node in nodes if not isinstance(node, LEFT_OUT)]


@pytest.mark.parametrize("name", ["ast", "dataclasses", "inspect", "typing"])
def test_the_same_nodes_as_those_of_ast(name):
    text = (LIBRARY / f"{name}.py").read_text("utf-8")
    text += "match x:\n    case [1, *rest] | {'a': 1, **rest}:\n        del x.y[1:2]\n"
    tree = ast.parse(text)
    nodes = kept(ast.walk(tree))
    assert len(nodes) > 1000
    for node in nodes:
        assert child_nodes(node) == kept(ast.iter_child_nodes(node))
    assert set(walk(tree)) == set(nodes)


def test_functions_are_those_of_the_module():
    text = (LIBRARY / "dataclasses.py").read_text("utf-8")
    module = read_module("dataclasses.py", text)
    assert read_functions(text) == (module["signatures"], module["functions"])
