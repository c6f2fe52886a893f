"""Turns the docstrings of the library into Markdown that renders well.

Doctests stand unindented under "Example:", as in Keras, where Markdown would take
them for quotations. Shapes, features and the fields of a batch are lines that Markdown
would join. Classes without a constructor, such as named tuples, get the signature that
Python gives them.
"""

import inspect
import re

import griffe

_EXAMPLE = re.compile(r"^Examples?:\n", re.MULTILINE)
_DOCTEST = re.compile(r"^>>>.*(?:\n(?=\S).*|\n {1,8}(?=\S).*)*", re.MULTILINE)
_INDENTED = r"((?: {4}.*(?:\n|\Z)|\n(?= {4}))+)"
_TITLES = "Input shape|Output shape|Reference|Features"
_BLOCK = re.compile(rf"^({_TITLES}):\n{_INDENTED}", re.MULTILINE)
_NEXT_TERM = re.compile(r"^( {4}.*)\n(?=`)", re.MULTILINE)
_TERM = re.compile(r"(?<=\n\n)(?!- )(\S[^\n]*[^\n.:])\n((?: {4}\S.*(?:\n|\Z))+)")
_ITEM = re.compile(r"^([^\s:][^\n:]{0,60}): ", re.MULTILINE)


def _item(match: re.Match) -> str:
    name = match[1] if "`" in match[1] else f"`{match[1]}`"
    return f"- {name}: "


def _block(match: re.Match) -> str:
    """A title, and one item for each named line of an indented block."""
    body = inspect.cleandoc(match[2])
    if match[1] != "Reference":
        body = _ITEM.sub(_item, body)
    return f"**{match[1]}**\n\n{body}\n\n"


def _term(match: re.Match) -> str:
    """A term, and one item for each line below it that begins a sentence."""
    items = re.split(r"(?<=\.)\n(?=[`A-Z])", inspect.cleandoc(match[2]))
    lines = "\n".join(f"- {item}" for item in items)
    return f"{match[1]}\n\n{lines}\n\n"


def to_markdown(text: str) -> str:
    """The docstring with fenced examples and lists.

    Args:
        text: A docstring without its indentation.
    """
    text = _BLOCK.sub(_block, text)
    text = _NEXT_TERM.sub(r"\1\n\n", text)
    text = _TERM.sub(_term, text)
    text = _EXAMPLE.sub("**Example**\n\n", text)
    return _DOCTEST.sub(lambda match: f"```pycon\n{match[0]}\n```", text)


def constructor(cls: griffe.Class) -> griffe.Function:
    """Return the constructor that Python gives a class without one.

    Args:
        cls: A class; the fields of a named tuple are arguments of its constructor.
    """
    kind = griffe.ParameterKind
    parameters = [griffe.Parameter("self", kind=kind.positional_or_keyword)]
    if "NamedTuple" in map(str, cls.bases):
        parameters += [
            griffe.Parameter(
                name,
                kind=kind.positional_or_keyword,
                annotation=member.annotation,
                default=member.value,
            )
            for name, member in cls.members.items()
            if member.is_attribute and member.annotation is not None
        ]
    elif any("keras" in str(base) for cls in (cls, *cls.mro()) for base in cls.bases):
        parameters += [griffe.Parameter("kwargs", kind=kind.var_keyword)]
    elif any(str(base).endswith("Error") for base in cls.bases):
        parameters += [griffe.Parameter("args", kind=kind.var_positional)]
    return griffe.Function("__init__", parameters=griffe.Parameters(*parameters))


class Docstrings(griffe.Extension):
    """Rewrites each docstring once, before it is parsed."""

    def on_class(self, *, cls: griffe.Class, **kwargs) -> None:
        """Called for every class, when the package has been collected.

        Args:
            cls: What has been collected.
            **kwargs: Not used.
        """
        if "__init__" not in cls.all_members:
            cls.set_member("__init__", constructor(cls))

    def on_object(self, *, obj: griffe.Object, **kwargs) -> None:
        """Called for every module, class, function and attribute.

        Args:
            obj: What has been collected.
            **kwargs: Not used.
        """
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value)
