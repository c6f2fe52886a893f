"""Control flow through statements."""

import ast

from keras_bandgnn.programs.python_source.expressions import ExpressionFlow
from keras_bandgnn.programs.python_source.frame import MENTION, READ, WRITE, Frame
from keras_bandgnn.programs.python_source.nodes import child_nodes
from keras_bandgnn.programs.python_source.scopes import (
    FUNCTIONS,
    Scope,
    arguments_of,
    outer_parts,
)
from keras_bandgnn.programs.python_source.tokens import Tokens

# Control flow through the patterns of `match` statements.


def matches_all(pattern: ast.pattern) -> bool:
    """Return whether a pattern is irrefutable."""
    return isinstance(pattern, ast.MatchAs) and (
        pattern.pattern is None or matches_all(pattern.pattern)
    )


class PatternFlow(ExpressionFlow):
    """Appends the points of patterns to a frame."""

    def pattern(self, node: ast.pattern) -> None:
        """Append the reads and captures of a matching pattern."""
        if isinstance(node, ast.MatchOr):
            start, ends = self.live, []
            for item in node.patterns:
                self.live = start
                self.pattern(item)
                ends.append(self.live)
            self.join(*ends)
            return
        for child in child_nodes(node):
            if isinstance(child, ast.pattern):
                self.pattern(child)
            else:
                self.visit(child)
        if isinstance(node, ast.MatchMapping):
            if node.rest is not None:
                self.use(WRITE, node.rest, self._last_called(node, node.rest))
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name is not None:
            self.use(WRITE, node.name, self.tokens.last(node))

    def _last_called(self, node: ast.AST, name: str) -> int | None:
        """Return the last token of `node` with the text `name`."""
        last = self.tokens.last(node)
        while last is not None and last >= 0 and self.tokens.labels[last] != name:
            last -= 1
        return last


_TRY = (ast.Try, ast.TryStar)


class _Loop:
    """The current loop: the target of `continue` and the sources of `break`."""

    def __init__(self, head: int) -> None:
        self.head = head
        self.breaks: list[int] = []


class _Finally:
    """The current try statement, whose `finally` block every jump passes through."""

    def __init__(self) -> None:
        self.entries: list[int] = []
        self.pending: set[str] = set()


class StatementFlow(PatternFlow):
    """Appends the points of statements to a frame.

    Every point of a `try` body may raise an exception. A `finally` block is represented
    once and joins all paths into it. `with` is assumed not to suppress exceptions.
    Unreachable code has points without predecessors.
    """

    def __init__(
        self, tokens: Tokens, scope_of: dict[ast.AST, Scope], frame: Frame
    ) -> None:
        super().__init__(tokens, scope_of, frame)
        self._jumps: list[_Loop | _Finally] = []

    def run(self) -> None:
        """Fill the frame."""
        node = self.frame.node
        if self.frame.in_function:
            for arg in sorted(arguments_of(node.args), key=self.tokens.start):
                self.use(WRITE, arg.arg, self.token_of(arg))
        if isinstance(node, ast.Lambda):
            self.visit(node.body)
        else:
            self.block(node.body)

    def block(self, nodes: list[ast.stmt]) -> None:
        """Append the points of statements in turn."""
        for node in nodes:
            method = _STATEMENTS.get(type(node))
            if method is not None:
                method(self, node)
            else:
                self.visit(node)

    def _jump(self, kind: str) -> None:
        for entry in reversed(self._jumps):
            if isinstance(entry, _Finally):
                entry.entries.extend(self.live)
                entry.pending.add(kind)
                break
            if kind == "break":
                entry.breaks.extend(self.live)
                break
            if kind == "continue":
                self.link(entry.head)
                break
        self.live = []

    def _break(self, node: ast.Break) -> None:
        self._jump("break")

    def _continue(self, node: ast.Continue) -> None:
        self._jump("continue")

    def _return(self, node: ast.Return) -> None:
        self.visit(node.value)
        self._jump("return")

    def _raise(self, node: ast.Raise) -> None:
        self.visit(node.exc)
        self.visit(node.cause)
        self.live = []

    def _assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self.store(target)

    def _annotated(self, node: ast.AnnAssign) -> None:
        self.visit(node.value)
        if node.value is None and isinstance(node.target, ast.Name):
            self.use(MENTION, node.target.id, self.token_of(node.target))
        else:
            self.store(node.target)
        self.visit(node.annotation)

    def _augmented(self, node: ast.AugAssign) -> None:
        target = node.target
        if isinstance(target, ast.Name):
            token = self.token_of(target)
            self.use(READ, target.id, token)
            self.visit(node.value)
            self.use(WRITE, target.id, token)
        else:
            self.visit(target)
            self.visit(node.value)

    def _delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self.visit(target)

    def _assert(self, node: ast.Assert) -> None:
        self.visit(node.test)
        test = self.live
        self.visit(node.msg)
        self.live = test

    def _if(self, node: ast.If) -> None:
        self.visit(node.test)
        test = self.live
        self.block(node.body)
        body, self.live = self.live, test
        self.block(node.orelse)
        self.join(body, self.live)

    def _loop(self, node: ast.stmt, head: int, exits: list[int]) -> None:
        loop = _Loop(head)
        self._jumps.append(loop)
        self.block(node.body)
        self.link(head)
        self._jumps.pop()
        self.live = exits
        self.block(node.orelse)
        self.join(self.live, loop.breaks)

    def _while(self, node: ast.While) -> None:
        head = self.head()
        self.visit(node.test)
        forever = isinstance(node.test, ast.Constant) and bool(node.test.value)
        self._loop(node, head, [] if forever else self.live)

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        head = self.head()
        self.store(node.target)
        self._loop(node, head, [head])

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            self.visit(item.context_expr)
            if item.optional_vars is not None:
                self.store(item.optional_vars)
        self.block(node.body)

    def _try(self, node: ast.Try) -> None:
        outer, final = self.raised, _Finally()
        leaving = list(self.live)
        if node.finalbody:
            self._jumps.append(final)
        else:
            leaving = outer
        caught = list(self.live)
        self.raised = caught if node.handlers else leaving
        self.block(node.body)
        self.raised = leaving
        self.block(node.orelse)
        ends = [self.live]
        if node.handlers:
            self.live = caught
            self.live = [self.head()]
        for handler in node.handlers:
            ends.append(self._handler(handler))
        self.join(*ends)
        self.raised = outer
        if node.finalbody:
            self._jumps.pop()
            self._finally(node.finalbody, leaving, final)

    def _handler(self, node: ast.ExceptHandler) -> list[int]:
        """Return where the handler ends; the next handler follows its type test."""
        self.visit(node.type)
        unmatched = self.live
        if node.name:
            self.use(WRITE, node.name, self._name_before(node.body[0], node.name))
        self.block(node.body)
        if node.name:
            self.unbind(node.name)
        end, self.live = self.live, unmatched
        return end

    def _finally(
        self, nodes: list[ast.stmt], leaving: list[int], final: _Finally
    ) -> None:
        normal = self.live
        self.join(normal, final.entries, leaving)
        self.block(nodes)
        end = self.live
        for kind in sorted(final.pending):
            self.live = end
            self._jump(kind)
        self.live = end if normal else []

    def _match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        ends = []
        for case in node.cases:
            failed = [self.live]
            self.pattern(case.pattern)
            failed.append(self.live)
            if case.guard is not None:
                self.visit(case.guard)
                failed.append(self.live)
            self.block(case.body)
            ends.append(self.live)
            self.live = []
            if case.guard is not None or not matches_all(case.pattern):
                self.join(*failed)
        self.join(self.live, *ends)

    def _name_before(self, node: ast.stmt, name: str) -> int | None:
        """Return the nearest token before a statement with the text `name`."""
        token = self.tokens.first(node)
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and node.decorator_list:
            token = self.tokens.first(node.decorator_list[0])
        token = None if token is None else token - 1
        while token is not None and token >= 0 and self.tokens.labels[token] != name:
            token -= 1
        return token

    def _definition(self, node: ast.AST) -> None:
        for part in outer_parts(node):
            self.visit(part)
        if isinstance(node, ast.ClassDef):
            self.scope = self.scope_of[node]
            self.block(node.body)
            self.scope = self.scope.parent
        else:
            self.inner.append((node, self.scope, self.strings))
        token = self.tokens.first(node)
        if token is not None:
            # The name follows `class`, `def` or `async def`.
            token += 2 if isinstance(node, ast.AsyncFunctionDef) else 1
        self.use(WRITE, node.name, token)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.split(".")[0]
            as_name = alias.asname is not None
            token = self.tokens.last(alias) if as_name else self.tokens.first(alias)
            self.use(WRITE, name, token)

    def _declaration(self, node: ast.Global | ast.Nonlocal) -> None:
        pass

    def _type_alias(self, node: ast.AST) -> None:
        # The value is evaluated lazily, in a separate scope.
        self.use(WRITE, node.name.id, self.token_of(node.name))


_STATEMENTS = {
    ast.Break: StatementFlow._break,
    ast.Continue: StatementFlow._continue,
    ast.Return: StatementFlow._return,
    ast.Raise: StatementFlow._raise,
    ast.Assign: StatementFlow._assign,
    ast.AnnAssign: StatementFlow._annotated,
    ast.AugAssign: StatementFlow._augmented,
    ast.Delete: StatementFlow._delete,
    ast.Assert: StatementFlow._assert,
    ast.If: StatementFlow._if,
    ast.While: StatementFlow._while,
    ast.For: StatementFlow._for,
    ast.AsyncFor: StatementFlow._for,
    ast.With: StatementFlow._with,
    ast.AsyncWith: StatementFlow._with,
    **dict.fromkeys(_TRY, StatementFlow._try),
    ast.Match: StatementFlow._match,
    ast.FunctionDef: StatementFlow._definition,
    ast.AsyncFunctionDef: StatementFlow._definition,
    ast.ClassDef: StatementFlow._definition,
    ast.Import: StatementFlow._import,
    ast.ImportFrom: StatementFlow._import,
    ast.Global: StatementFlow._declaration,
    ast.Nonlocal: StatementFlow._declaration,
}
if hasattr(ast, "TypeAlias"):
    _STATEMENTS[ast.TypeAlias] = StatementFlow._type_alias
