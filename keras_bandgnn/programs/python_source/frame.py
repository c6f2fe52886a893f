"""`Frame`: the control flow of a function body or of module-level code."""

import ast

from keras_bandgnn.programs.python_source.scopes import Scope, Variable

JOIN, READ, WRITE, DELETE, UNBIND, MENTION = range(6)
"""Operations at a point: none, read, write, delete, implicit unbinding (end of
`except ... as`), and declaration of a name."""


class Frame:
    """Points in evaluation order with their predecessors.

    The code of classes and comprehensions belongs to the enclosing frame. A token that
    reads and writes (`x += 1`) has two points but is one occurrence.

    Args:
        node: Module, function or lambda.
        scope: Its scope.
        name: Qualified name, for messages.

    Attributes:
        ops: Operation at each point.
        occurrence: Occurrence at each point, -1 for none.
        variable: Variable at each point, None for joins.
        predecessors: Possible predecessors of each point; 0 is the entry.
        tokens: Token of each occurrence.
        variables: Variable of each occurrence.
        points: First point of each occurrence.
        at: Occurrence by (token, variable).
        slots: (token, scope, name) of each usage that is a separate token.
    """

    def __init__(self, node: ast.AST, scope: Scope, name: str) -> None:
        self.node = node
        self.scope = scope
        self.name = name
        self.ops: list[int] = [JOIN]
        self.occurrence: list[int] = [-1]
        self.variable: list[Variable | None] = [None]
        self.predecessors: list[list[int]] = [[]]
        self.tokens: list[int] = []
        self.variables: list[Variable] = []
        self.points: list[int] = []
        self.slots: list[tuple[int, Scope, str]] = []
        self.at: dict[tuple[int, Variable], int] = {}

    @property
    def in_function(self) -> bool:
        """Return whether this is the body of a function or lambda."""
        return not isinstance(self.node, ast.Module)

    def add(
        self,
        op: int,
        predecessors: list[int],
        variable: Variable | None = None,
        token: int | None = None,
    ) -> int:
        """Append a point and return its number."""
        point = len(self.ops)
        occurrence = -1
        if token is not None:
            occurrence = self.at.setdefault((token, variable), len(self.tokens))
            if occurrence == len(self.tokens):
                self.tokens.append(token)
                self.variables.append(variable)
                self.points.append(point)
                variable.tokens.append(token)
            if op == WRITE:
                variable.writes.setdefault(self, []).append(token)
        self.ops.append(op)
        self.occurrence.append(occurrence)
        self.variable.append(variable)
        self.predecessors.append(predecessors)
        return point
