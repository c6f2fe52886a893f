"""Values that a parameter must refuse, told by its annotation and its documentation.

The type is that of the annotation, or of the value in an example where there is none.
The range is what the docstring says: numbers are positive unless it allows 0 ("0 for
none", "from 0", "at least 0") or negative ones; "share", "rate" and "probability" are
at most 1; and a string with a default or with several quoted values is one of them.
"""

import ast
import collections.abc
import contextlib
import functools
import inspect
import numbers
import os
import re
import sys
import types
import typing
from collections.abc import Iterator

import numpy as np
from docstrings import public

import keras_bandgnn as kb
from keras_bandgnn import aliases

NAN, INFINITY, HUGE = float("nan"), float("inf"), 2**70
RAGGED = [[1, 0], [1], [0, 1, 0, 1, 0, 0, 1, 1]]
# Of the types that are mistaken for others.
STRANGERS = [None, True, 3, 2.5, "x", b"x", [object()], {3: 1}]
# Positions and seeds.
FROM_ZERO = {"epoch", "host", "index", "seed", "step"}
LISTS = (collections.abc.Iterable, list, tuple, np.ndarray)


def options(annotation) -> list:
    """The alternatives of an annotation."""
    if isinstance(annotation, types.UnionType) or (
        typing.get_origin(annotation) is typing.Union
    ):
        return [o for each in typing.get_args(annotation) for o in options(each)]
    return [type(None) if annotation is None else annotation]


@functools.cache
def names_of_types(module: str) -> dict[str, object]:
    """What annotations of a module may name: its own names, and those for checkers.

    Of an alias, which may be a union of anything, only the name is known.
    """
    names = dict(vars(sys.modules[module]))
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for line in node.body:
                # Other libraries need not be installed.
                with contextlib.suppress(ImportError):
                    exec(ast.unparse(line), names)
    opaque = {*aliases.__annotations__, "ArrayLike"}
    names |= {name: typing.Any for name in opaque if name in names}
    return names | ({"FilePath": str | os.PathLike} if "FilePath" in opaque else {})


def resolved(function, annotation):
    """An annotation as types, for modules whose annotations are text."""
    if not isinstance(annotation, str):
        return annotation
    function = inspect.unwrap(getattr(function, "__func__", function))
    if inspect.isclass(function):
        function = function.__init__
    try:
        return eval(annotation, names_of_types(function.__module__))
    except (NameError, AttributeError):
        return typing.Any


def like(value) -> list:
    """Annotations of a value in an example; none if that is nothing plain."""
    if isinstance(value, kb.Graph):
        return [kb.Graph]
    if isinstance(value, list | tuple) and value and isinstance(value[0], kb.Graph):
        return [collections.abc.Iterable[kb.Graph]]
    if isinstance(value, np.ndarray) or is_numbers(value):
        return [np.ndarray]
    if type(value).__module__.startswith("keras_bandgnn"):
        return [type(value)]
    return []


def is_numbers(value) -> bool:
    """Whether a value is a list of numbers, or of such lists."""
    if isinstance(value, list | tuple) and value:
        return all(map(is_numbers, value))
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def takes(option, value) -> bool:
    """Whether a value is of the type of an alternative, as far as one can tell."""
    kind = typing.get_origin(option) or option
    if isinstance(kind, str | typing.ForwardRef):
        return False
    if kind in (typing.Any, inspect.Parameter.empty, object):
        return True
    if kind is float:
        return isinstance(value, numbers.Real) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is typing.Literal:
        return isinstance(value, str)
    if kind is os.PathLike:
        return isinstance(value, str)
    if kind is np.ndarray:
        return isinstance(value, numbers.Real)
    if kind is collections.abc.Callable:
        return callable(value)
    if not isinstance(kind, type):
        return True
    # A string is no list of objects, nor a dict a list of its keys.
    if issubclass(kind, collections.abc.Iterable) and isinstance(value, str):
        return kind is str or typing.get_args(option)[:1] == (str,)
    if issubclass(collections.abc.Mapping, kind) and isinstance(value, dict):
        return kind is collections.abc.Mapping
    return isinstance(value, kind)


def description(function, name: str, follow: bool = True) -> str:
    """The entry of a parameter in the section `Args:` of its docstring.

    What it says in the docstring of another public name, "see `GraphLoader`", follows.
    """
    text = inspect.getdoc(function) or ""
    section = re.search(r"^Args:\n(.*?)(?=\n\S|\Z)", text, re.M | re.S)
    pattern = rf"^    (?:\w+, )*{name}(?:, \w+)*:(.*?)(?=^    \S|\Z)"
    entry = section and re.search(pattern, section[1], re.M | re.S)
    text = " ".join(entry[1].split()) if entry else ""
    for other in re.findall(r"([Ss]ee|[Aa]s in) `(\w+)`", text) if follow else ():
        for value in (v for k, v in public().items() if k.endswith(f".{other[1]}")):
            text += f" {description(value, name, follow=False)}"
    return text


def integers(name: str, default, text: str) -> Iterator:
    """Integers out of range: those above int64, negative ones, and 0."""
    yield HUGE
    negative = isinstance(default, int) and default < 0
    if not negative and "negative" not in text:
        yield -1
    if not (negative or name in FROM_ZERO or allows_zero(default, text)):
        yield 0


def allows_zero(default, text: str) -> bool:
    """Whether a number may be 0."""
    zero = default == 0 and default is not False
    return zero or bool(re.search(r"\b(from|least) 0\b|\b(0 for|With 0)\b", text))


def floats(default, text: str) -> Iterator:
    """Numbers out of range."""
    yield NAN
    if "negative" not in text:
        yield -1.0
        if not allows_zero(default, text) and not is_share(text):
            yield 0.0
    if is_share(text):
        yield 1.5


def is_share(text: str) -> bool:
    """Whether a number is a share of something."""
    return bool(re.match(r"(Share of|Dropout rate|Probability)|.*\[0, 1[\])]", text))


def strings(default, text: str) -> Iterator[str]:
    """Strings that name nothing."""
    quoted = re.findall(r'"[\w-]+"', text)
    is_name = re.search(r"\b([Nn]ame of|[Ff]eature|key|Key|column)\b", text)
    if is_name:
        yield ""
    elif not re.match(r"(Name|Title)\b", text) and "such as" not in text:
        if (isinstance(default, str) and default) or len(quoted) > 1:
            yield from ("no such choice", "")


def items(option, value) -> Iterator:
    """Lists and mappings with something else in them."""
    kind, inner = typing.get_origin(option) or option, typing.get_args(option)
    if kind is collections.abc.Mapping and inner[:1] == (str,):
        yield {3: 1}
    elif kind is np.ndarray:
        yield from ("x", {})
        if np.ndim(value) == 1:
            yield RAGGED
    elif isinstance(kind, type) and issubclass(kind, LISTS) and inner:
        yield from ([wrong] for wrong in STRANGERS if not takes_any(inner[0], wrong))


def takes_any(annotation, value) -> bool:
    """Whether a value is of the type of an annotation."""
    return any(takes(option, value) for option in options(annotation))


def wrong_values(function, parameter: inspect.Parameter, value) -> Iterator:
    """Yield what a parameter must refuse.

    Args:
        function: What is called, whose docstring describes the parameter.
        parameter: The parameter.
        value: Its value in an example, `Parameter.empty` where that has none.
    """
    kinds = options(resolved(function, parameter.annotation))
    if {parameter.empty, typing.Any} & {*kinds}:
        kinds = like(value)
    if not kinds:
        yield 3
        return
    if parameter.default is None:
        kinds = [*kinds, type(None)]
    for stranger in STRANGERS:
        if not any(takes(kind, stranger) for kind in kinds):
            yield stranger
    default, text = parameter.default, description(function, parameter.name)
    names = {*kinds} - {type(None)}
    if int in names and float not in names:
        yield from integers(parameter.name, default, text)
    elif float in names:
        yield from floats(default, text)
    if names == {str}:
        yield from strings(default, text)
    for kind in kinds:
        yield from items(kind, value)
