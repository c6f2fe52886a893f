"""`with_unread_name`: a function with one more name, which nothing reads."""

import ast
import random
import re
from collections.abc import Iterator

NAMES = (
    *("context", "request", "response", "options", "settings", "config", "name"),
    *("value", "values", "key", "index", "count", "size", "path", "data", "item"),
    *("result", "results", "message", "event", "level", "mode", "state", "kind"),
    *("parent", "other", "source", "target", "start", "stop", "offset", "length"),
    *("args", "kwargs", "params", "fields", "flags", "user", "session", "client"),
    *("node", "tree", "row", "column", "batch", "step", "timeout", "default"),
    *("prefix", "suffix", "text", "line", "token", "number", "i", "j", "n", "x"),
)
"""Names that are added."""

Edit = tuple[int, int, str]
"""Line from 1, column in bytes, and the text to put there, maybe a line of its own."""


def with_unread_name(source: str, rng: random.Random) -> str:
    r"""Return a function with one more name, which nothing reads.

    Correct code has such names for many reasons: an interface asks for a parameter, a
    loop has a counter or numbers its items. A model that sees them in correct functions
    as often as in wrong ones does not take them for mistakes.

    Args:
        source: Source of one function, indented or not.
        rng: Draws the name and where it is bound.

    Returns:
        The source with a parameter, a counter of a loop, or the number of its items; as
        it is if it has no place for one, or does not parse.

    Example:
    >>> with_unread_name("def f(a):\n    return a", random.Random(0))
    'def f(a, i):\n    return a'
    """
    try:
        node = ast.parse(f"if 1:\n{source}" if source[:1].isspace() else source).body[0]
    except (SyntaxError, ValueError, RecursionError):
        return source
    shift = isinstance(node, ast.If)
    function = node.body[0] if isinstance(node, ast.If) else node
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return source
    taken = set(re.findall(r"\w+", source))
    name = rng.choice([name for name in NAMES if name not in taken] or ["unread"])
    choices = [*_parameters(function, name)]
    for loop in ast.walk(function):
        if isinstance(loop, ast.For):
            choices += [*_counter(loop, name), *_numbered(loop, name)]
    if not choices:
        return source
    return _edited(source, rng.choice(choices), shift)


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str):
    """Yield the edits that add a parameter without a default."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    for argument in positional[: len(positional) - len(arguments.defaults)]:
        yield [(argument.end_lineno, argument.end_col_offset, f", {name}")]


def _counter(loop: ast.For, name: str) -> Iterator[list[Edit]]:
    """Yield the edits that count the rounds of a loop."""
    first = loop.body[0]
    if first.lineno > loop.lineno and not getattr(first, "decorator_list", None):
        yield [
            (first.lineno, first.col_offset, f"{name} += 1\n"),
            (loop.lineno, loop.col_offset, f"{name} = 0\n"),
        ]


def _numbered(loop: ast.For, name: str) -> Iterator[list[Edit]]:
    """Yield the edits that number the items of a loop."""
    target, items = loop.target, loop.iter
    if isinstance(target, ast.Name) and not isinstance(items, ast.Tuple):
        yield [
            (items.end_lineno, items.end_col_offset, ")"),
            (items.lineno, items.col_offset, "enumerate("),
            (target.lineno, target.col_offset, f"{name}, "),
        ]


def _edited(source: str, edits: list[Edit], shift: bool) -> str:
    """Return the source with edits, the last one of the text first."""
    lines = [line.encode() for line in source.split("\n")]
    for line, column, text in edits:
        before, after = (
            lines[line - 1 - shift][:column],
            lines[line - 1 - shift][column:],
        )
        indent = before if text.endswith("\n") else b""
        lines[line - 1 - shift] = before + text.encode() + indent + after
    return b"\n".join(lines).decode()
