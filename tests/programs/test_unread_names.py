"""Names that are added to functions and that nothing reads."""

import ast
import inspect
import random
import symtable

import pytest

from keras_bandgnn.programs import function_graph, python_source, unread_names
from keras_bandgnn.programs.unread_names import with_unread_name

LOOP = """
def total(self, rows, *, start=0):
    for row in self.read(rows):
        start += row
    return start
""".strip("\n")


def draws(source, count=60):
    return {with_unread_name(source, random.Random(seed)) for seed in range(count)}


def test_parameters_counters_and_numbers():
    made = draws(LOOP)
    texts = "\n".join(made)
    assert "def total(self, " in texts and "in enumerate(self.read(rows)):" in texts
    assert " = 0\n    for row in self.read(rows):\n" in texts
    for source in made:
        (function,) = ast.parse(source).body
        table = symtable.symtable(source, "", "exec").get_children()[0]
        names = {s.get_name() for s in table.get_symbols()}
        (name,) = names - {"self", "rows", "start", "row", "enumerate"}
        reads = [
            node
            for node in ast.walk(function)
            if isinstance(node, ast.Name)
            and node.id == name
            and isinstance(node.ctx, ast.Load)
        ]
        assert not reads and name in unread_names.NAMES


def test_the_function_does_the_same():
    for source in draws("def f(items):\n    for x in items:\n        yield x * 2"):
        names = {}
        exec(source, names)
        parameters = inspect.signature(names["f"]).parameters
        assert list(names["f"]([1, 2], *[None] * (len(parameters) - 1))) == [2, 4]


def test_tabs_stay_tabs():
    for source in draws("def f(a, b):\n\tfor x in a:\n\t\tb(x)\n\treturn a"):
        ast.parse(source)


@pytest.mark.parametrize(
    "source",
    ["def f():\n    return 1", "def f(a=1):\n    return a", "def f(:", "class A: pass"],
)
def test_without_a_place_nothing_changes(source):
    assert draws(source, 5) == {source}


def test_every_function_of_a_package_parses_with_it():
    indented = 0
    for name in ("flow", "scopes", "tokens"):
        module = getattr(python_source, name, None) or __import__(
            f"{python_source.__name__}.{name}", fromlist=[name]
        )
        for _, item in inspect.getmembers(module, inspect.isclass):
            for _, method in inspect.getmembers(item, inspect.isfunction):
                if method.__module__ != module.__name__:
                    continue
                source = inspect.getsource(method)
                changed = with_unread_name(source, random.Random(1))
                assert changed != source or "self)" in source
                function_graph(changed)
                indented += 1
    assert indented > 20
