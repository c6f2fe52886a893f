"""The examples of docstrings as samples: what is called in them, and with what.

Tests over all public classes and functions take the arguments from here, so that a new
class needs no entry in a table: its example is the entry.
"""

import ast
import contextlib
import doctest
import functools
import importlib
import inspect
import tempfile
import textwrap
from collections.abc import Callable
from unittest import mock

import keras_bandgnn as kb

ROOMS = sorted(set(kb.__all__) - {"Graph", "__version__", "batch"})


@functools.cache
def public() -> dict[str, object]:
    """Every public class and function by room and name."""
    values = {"Graph": kb.Graph}
    for room in ROOMS:
        module = importlib.import_module(f"keras_bandgnn.{room}")
        names = [name for name in module.__all__ if callable(getattr(module, name))]
        values |= {f"{room}.{name}": getattr(module, name) for name in names}
    return values


class _Calls(ast.NodeTransformer):
    """Has every function pass `observed` before it is called."""

    def visit_Call(self, node):
        self.generic_visit(node)
        node.func = ast.Call(ast.Name("observed", ast.Load()), [node.func], [])
        return node


def compiled(source, filename, mode, flags=0, dont_inherit=True):
    """Compile source in which every function passes `observed` before it is called."""
    tree = source if isinstance(source, ast.AST) else ast.parse(source, mode=mode)
    tree = ast.fix_missing_locations(_Calls().visit(tree))
    return compile(tree, filename, mode, flags, dont_inherit)


def passes(observe: Callable) -> Callable:
    """Return `observed`, which reports calls of the functions that it is given.

    A call is not made where `observe` returns True.
    """

    def observed(function):
        # `super()` looks at the frame that calls it.
        if function is super or not callable(function):
            return function

        def call(*args, **kwargs):
            if not observe(function, args, kwargs):
                return function(*args, **kwargs)
            return None

        return call

    return observed


def run(test: doctest.DocTest, observe: Callable) -> doctest.TestResults:
    """Run the examples of a docstring.

    Args:
        test: The examples.
        observe: Is called before each call in them with the function and its
            arguments, as a tuple and a dict.
    """
    test.globs["observed"] = passes(observe)
    with mock.patch.object(doctest, "compile", compiled, create=True):
        return doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)


def observed(function: Callable, observe: Callable) -> Callable:
    """Return a function whose calls of others are observed, as in `run`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    scope = {**function.__globals__, "observed": passes(observe)}
    exec(compiled(tree, inspect.getsourcefile(function), "exec"), scope)
    return scope[function.__name__]


@functools.cache
def calls_of(cls: type) -> list[tuple[tuple, dict]]:
    """The arguments with which an example makes an instance, and first calls it."""
    calls = []

    def observe(function, args, kwargs):
        if function is cls if not calls else isinstance(function, cls):
            calls.append((args, kwargs))

    module = importlib.import_module(cls.__module__)
    (test,) = doctest.DocTestFinder(recurse=False).find(
        cls, cls.__name__, module, vars(module).copy()
    )
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        assert run(test, observe).failed == 0
    assert calls, f"show in the docstring of {cls.__name__} how to make one"
    return calls


def sample(cls: type, **options):
    """Return an instance made as in the example of its docstring."""
    args, kwargs = calls_of(cls)[0]
    return cls(*args, **{**kwargs, **options})
