"""`SourceUnit`: the analysis of one file, computed once."""

import ast
from bisect import bisect_left, bisect_right

from keras_bandgnn.programs.python_source.flow import StatementFlow
from keras_bandgnn.programs.python_source.frame import Frame
from keras_bandgnn.programs.python_source.reach import Reach
from keras_bandgnn.programs.python_source.scopes import (
    FUNCTIONS,
    Scope,
    ScopeBuilder,
    Variable,
)
from keras_bandgnn.programs.python_source.tokens import Tokens, decode, parse

MAX_TOKENS = 300_000
MAX_POINTS = 10_000


class TooLarge(Exception):
    """A part of a file exceeds the bound on work."""


class SourceUnit:
    """Tokens, syntax, scopes and control flow of one file.

    Args:
        source: Source text, or bytes to decode by PEP 263.

    Attributes:
        tokens: Its tokens.
        tree: Its syntax tree.
        frames: Control flow of the module and of every function, outer ones first.
        occurrences: By token, the (variable, frame) pairs that occur there.

    Raises:
        SyntaxError: If it does not parse.
        TooLarge: If it has more than `MAX_TOKENS` tokens.
    """

    def __init__(self, source: str | bytes) -> None:
        text = decode(source)
        self.tree = parse(text)
        self.tokens = Tokens(text)
        if len(self.tokens) > MAX_TOKENS:
            raise TooLarge(f"{len(self.tokens)} tokens, more than {MAX_TOKENS}")
        self._scope_of = ScopeBuilder(self.tree).scope_of
        self.frames: list[Frame] = []
        self._parent: dict[Frame, Frame | None] = {}
        self._fill(self.tree, "<module>", [], None)
        self.occurrences: dict[int, list[tuple[Variable, Frame]]] = {}
        for frame in self.frames:
            for token, variable in zip(frame.tokens, frame.variables, strict=True):
                self.occurrences.setdefault(token, []).append((variable, frame))
        for variable in {v for frame in self.frames for v in frame.variables}:
            variable.tokens = sorted(set(variable.tokens))
        self._reach: dict[Frame, Reach] = {}

    def _fill(
        self, node: ast.AST, name: str, strings: list[int], parent: Frame | None
    ) -> None:
        frame = Frame(node, self._scope_of[node], name)
        self._parent[frame] = parent
        self.frames.append(frame)
        flow = StatementFlow(self.tokens, self._scope_of, frame)
        flow.strings = strings
        flow.run()
        for inner, scope, strings in flow.inner:
            inner_name = getattr(inner, "name", "<lambda>")
            self._fill(inner, ".".join([*_path(scope), inner_name]), strings, frame)

    def outermost_function(self, frame: Frame) -> ast.AST | None:
        """Return the outermost `def` around a frame, ignoring lambdas."""
        outermost = None
        while frame is not None:
            if isinstance(frame.node, FUNCTIONS):
                outermost = frame.node
            frame = self._parent[frame]
        return outermost

    def extent(self, frame: Frame) -> tuple[int, int]:
        """Return the first and last token of a frame's function, or of the module."""
        if not frame.in_function:
            return 0, len(self.tokens) - 1
        first, last = self.tokens.first(frame.node), self.tokens.last(frame.node)
        return (first or 0), (len(self.tokens) - 1 if last is None else last)

    def frames_in(self, first: int, last: int) -> list[Frame]:
        """Return the frames with occurrences from token `first` to `last`."""
        frames = {
            frame: None
            for token in range(first, last + 1)
            for _, frame in self.occurrences.get(token, ())
        }
        return list(frames)

    def reach(self, frame: Frame) -> Reach:
        """Return the reaching uses and write of a frame, computed on first use.

        Raises:
            TooLarge: If the frame has more than `MAX_POINTS` points.
        """
        if len(frame.ops) > MAX_POINTS:
            raise TooLarge(
                f"{frame.name} has {len(frame.ops)} points of control flow, more "
                f"than {MAX_POINTS}"
            )
        if frame not in self._reach:
            self._reach[frame] = Reach(frame)
        return self._reach[frame]


def _path(scope: Scope) -> list[str]:
    """Return the names of enclosing functions and classes, outermost first."""
    names = []
    while scope.parent is not None:
        if scope.kind != "comprehension":
            names.append(getattr(scope.node, "name", "<lambda>"))
        scope = scope.parent
    return names[::-1]


def neighbours(tokens: list[int], token: int) -> tuple[int | None, int | None]:
    """Return the elements of a sorted list just before and just after `token`."""
    low, right = bisect_left(tokens, token), bisect_right(tokens, token)
    before = tokens[low - 1] if low else None
    return before, tokens[right] if right < len(tokens) else None
