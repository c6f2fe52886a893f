"""Source for a newer Python than the one that runs, and source that is not Python."""

import ast
import re
import sys
import warnings

import pytest

from keras_bandgnn.programs.python_source import tokens
from keras_bandgnn.programs.python_source.tokens import NewerSyntax, parse

NEWER = {
    "type Pair = tuple[int, int]\n": (3, 12),
    "type Pair[T] = tuple[T, T]\n": (3, 12),
    "def first[T](items: list[T]) -> T:\n    return items[0]\n": (3, 12),
    "async def first[*Ts](*items: *Ts):\n    return items\n": (3, 12),
    "class Box[T]:\n    pass\n": (3, 12),
    'x = {"a": 1}\ny = f"{x["a"]}"\n': (3, 12),
    'x = (\n    f"{y["a"]}"\n)\n': (3, 12),
    "x = f\"{'\\n'.join(y)}\"\n": (3, 12),
    "def first[T = int](items):\n    return items\n": (3, 13),
    'x = t"{y}"\n': (3, 14),
    "try:\n    pass\nexcept KeyError, os.Error:\n    pass\n": (3, 14),
    "lazy import json\n": (3, 15),
    "x = [*row for row in rows]\n": (3, 15),
}
WRONG = [
    "def f(:\n",
    "print 'x'\n",
    "print 't'\n",
    "print 'f' % {'a': 1}\n",
    "try:\n    pass\nexcept KeyError, e:\n    pass\n",
    'x = f"{"\n',
    "type = = 3\n",
    "x = don't\n",
    "class Box(:\n",
]


@pytest.mark.parametrize("text", NEWER)
def test_newer_source_names_both_versions(text):
    version, here = NEWER[text], sys.version_info[:2]
    if version <= here:
        assert isinstance(parse(text), ast.Module)
        return
    message = f"needs Python {version[0]}.{version[1]} or later, .*{here[0]}.{here[1]}"
    with pytest.raises(NewerSyntax, match=re.escape(message).replace(r"\.\*", ".*")):
        parse(text)


@pytest.mark.parametrize("text", WRONG)
def test_source_that_is_not_python_is_no_newer_source(text):
    with pytest.raises(SyntaxError) as caught:
        parse(text)
    assert not isinstance(caught.value, NewerSyntax)


def test_a_version_that_runs_is_not_newer(monkeypatch):
    monkeypatch.setattr(tokens.sys, "version_info", (3, 99, 0))
    for text in NEWER:
        try:
            parse(text)
        except SyntaxError as error:
            assert not isinstance(error, NewerSyntax)


def test_parsing_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parse("x = 'a\\d' is 3\n")
