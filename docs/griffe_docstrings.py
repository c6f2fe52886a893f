"""Turns the docstrings of the library into Markdown that renders well.

Doctests stand unindented under "Example:", as in Keras, where Markdown would take
them for quotations. Shapes and references are lists of lines that Markdown would join.
"""

import inspect
import re

import griffe

_EXAMPLE = re.compile(r"^Examples?:\n", re.MULTILINE)
_DOCTEST = re.compile(r"^>>>.*(?:\n(?=\S).*|\n {1,8}(?=\S).*)*", re.MULTILINE)
_BLOCK = re.compile(
    r"^(Input shape|Output shape|Reference):\n((?: {4}.*(?:\n|\Z)|\n(?= {4}))+)",
    re.MULTILINE,
)
_ITEM = re.compile(r"^(\S[^\n:]{0,40}): ", re.MULTILINE)


def _block(match: re.Match) -> str:
    """A title, and one item for each named line of an indented block."""
    body = inspect.cleandoc(match[2])
    if match[1].endswith("shape"):
        body = _ITEM.sub(r"- `\1`: ", body)
    return f"**{match[1]}**\n\n{body}\n\n"


def to_markdown(text: str) -> str:
    """The docstring with fenced examples and listed shapes.

    Args:
        text: A docstring without its indentation.
    """
    text = _BLOCK.sub(_block, text)
    text = _EXAMPLE.sub("**Example**\n\n", text)
    return _DOCTEST.sub(lambda match: f"```pycon\n{match[0]}\n```", text)


class Docstrings(griffe.Extension):
    """Rewrites each docstring once, before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs) -> None:
        """Called for every module, class, function and attribute.

        Args:
            obj: What has been collected.
            **kwargs: Not used.
        """
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value)
