"""Control flow through expressions, in the order Python evaluates them."""

import ast
import sys

from keras_bandgnn.programs.python_source.frame import (
    DELETE,
    JOIN,
    READ,
    UNBIND,
    WRITE,
    Frame,
)
from keras_bandgnn.programs.python_source.nodes import child_nodes
from keras_bandgnn.programs.python_source.scopes import COMPREHENSIONS, Scope, Variable
from keras_bandgnn.programs.python_source.tokens import Tokens

OPAQUE_F_STRINGS = sys.version_info < (3, 12)
"""Before Python 3.12 an f-string is one token and the names in it have none."""


class ExpressionFlow:
    """Appends the points of expressions to a frame.

    Args:
        tokens: Tokens of the file.
        scope_of: Scope by the node that opens it.
        frame: Frame to fill.

    Attributes:
        live: Points that may come right before the next one.
        raised: Collects points that may raise an exception, or None.
        strings: Tokens of the current f-string, if they hide its names.
        inner: Nested functions and lambdas, with their enclosing scope and `strings`.
    """

    def __init__(
        self, tokens: Tokens, scope_of: dict[ast.AST, Scope], frame: Frame
    ) -> None:
        self.tokens = tokens
        self.scope_of = scope_of
        self.frame = frame
        self.scope = frame.scope
        self.live: list[int] = [0]
        self.raised: list[int] | None = None
        self.strings: list[int] = []
        self.inner: list[tuple[ast.AST, Scope, list[int]]] = []

    def point(
        self, op: int, variable: Variable | None = None, token: int | None = None
    ) -> int:
        """Append a point after the live ones."""
        number = self.frame.add(op, self.live, variable, token)
        self.live = [number]
        if self.raised is not None:
            self.raised.append(number)
        return number

    def join(self, *lives: list[int]) -> None:
        """Make all of `lives` predecessors of the next point."""
        self.live = sorted({point for live in lives for point in live})
        if len(self.live) > 4:
            self.point(JOIN)

    def head(self) -> int:
        """Append a join point as the target of back edges."""
        self.live = list(self.live)
        return self.point(JOIN)

    def link(self, head: int) -> None:
        """Add back edges from the live points to `head`."""
        self.frame.predecessors[head].extend(self.live)

    def token_of(self, node: ast.AST) -> int | None:
        """Return the token that contains a name."""
        if not self.strings:
            return self.tokens.first(node)
        start = self.tokens.start(node)
        before = [t for t in self.strings if self.tokens.starts[t] <= start]
        return (before or self.strings[:1])[-1]

    def use(
        self, op: int, name: str, token: int | None, scope: Scope | None = None
    ) -> None:
        """Append the operation `op` on the variable `name` at `token`."""
        variable = (scope or self.scope).resolve(name)
        if variable is not None and token is not None:
            self.point(op, variable, token)

    def visit(self, node: ast.AST | None) -> None:
        """Append the points of an expression, or of any node by its fields."""
        if node is None:
            return
        method = _EXPRESSIONS.get(type(node))
        if method is not None:
            method(self, node)
            return
        for child in child_nodes(node):
            self.visit(child)

    def store(self, node: ast.AST) -> None:
        """Append the points of an assignment to `node`."""
        if isinstance(node, ast.Name):
            self.use(WRITE, node.id, self.token_of(node))
        elif isinstance(node, (ast.Tuple, ast.List)):
            for item in node.elts:
                self.store(item)
        elif isinstance(node, ast.Starred):
            self.store(node.value)
        else:
            self.visit(node)

    def unbind(self, name: str) -> None:
        """Append the implicit unbinding of a variable, which has no token."""
        self.point(UNBIND, self.scope.resolve(name))

    def _name(self, node: ast.Name) -> None:
        token = self.token_of(node)
        if isinstance(node.ctx, ast.Del):
            self.use(DELETE, node.id, token)
            return
        self.use(READ, node.id, token)
        if token is not None and not self.strings:
            self.frame.slots.append((token, self.scope, node.id))

    def _f_string(self, node: ast.JoinedStr) -> None:
        first, last = self.tokens.first(node), self.tokens.last(node)
        outer = self.strings
        if OPAQUE_F_STRINGS and not outer and None not in (first, last):
            labels = self.tokens.labels
            self.strings = [t for t in range(first, last + 1) if _formats(labels[t])]
        for child in node.values:
            self.visit(child)
        self.strings = outer

    def _walrus(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        token = self.token_of(node.target)
        self.use(WRITE, node.target.id, token, self.scope.holder)

    def _either(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        test = self.live
        self.visit(node.body)
        body, self.live = self.live, test
        self.visit(node.orelse)
        self.join(body, self.live)

    def _boolean(self, node: ast.BoolOp) -> None:
        self._some(node.values)

    def _compare(self, node: ast.Compare) -> None:
        self.visit(node.left)
        self._some(node.comparators)

    def _some(self, values: list[ast.expr]) -> None:
        """Visit values of which the evaluation may stop after any."""
        ends = []
        for value in values:
            self.visit(value)
            ends.append(self.live)
        self.join(*ends)

    def _dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            self.visit(key)
            self.visit(value)

    def _lambda(self, node: ast.Lambda) -> None:
        for item in (*node.args.defaults, *node.args.kw_defaults):
            self.visit(item)
        self.inner.append((node, self.scope, self.strings))

    def _comprehension(self, node: ast.AST) -> None:
        outer = self.scope
        heads = []
        for part in node.generators:
            self.visit(part.iter)
            self.scope = self.scope_of[node]
            heads.append(self.head())
            self.store(part.target)
            for test in part.ifs:
                self.visit(test)
                self.link(heads[-1])
        names = ("key", "value") if isinstance(node, ast.DictComp) else ("elt",)
        for name in names:
            self.visit(getattr(node, name))
        for head in reversed(heads):
            self.link(head)
            self.live = [head]
        self.scope = outer

    def _nothing(self, node: ast.AST) -> None:
        pass


def _formats(label: str) -> bool:
    """Return whether a string token is an f-string."""
    return "f" in label.lower().replace('"', "'").partition("'")[0]


_EXPRESSIONS = {
    ast.Name: ExpressionFlow._name,
    ast.JoinedStr: ExpressionFlow._f_string,
    ast.NamedExpr: ExpressionFlow._walrus,
    ast.IfExp: ExpressionFlow._either,
    ast.BoolOp: ExpressionFlow._boolean,
    ast.Compare: ExpressionFlow._compare,
    ast.Dict: ExpressionFlow._dict,
    ast.Lambda: ExpressionFlow._lambda,
    **dict.fromkeys(COMPREHENSIONS, ExpressionFlow._comprehension),
    ast.Constant: ExpressionFlow._nothing,
    ast.Load: ExpressionFlow._nothing,
    ast.Store: ExpressionFlow._nothing,
    ast.Del: ExpressionFlow._nothing,
}
