"""Conditions known to be true or false where a token stands."""

import ast
import dataclasses

from keras_bandgnn.data.python_source.scopes import COMPREHENSIONS
from keras_bandgnn.data.python_source.syntax import Region, Spans
from keras_bandgnn.data.python_source.unit import SourceUnit

_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


@dataclasses.dataclass(frozen=True)
class Guard:
    """A condition and the tokens that it guards.

    Attributes:
        condition: Syntax node of the condition.
        holds: Whether it is known to be true there, else it is known to be false.
        first: First guarded token.
        last: Last guarded token.
        owner: Node of the frame that the guard is in. Functions defined among the
            guarded tokens run at another time: the guard says nothing about them.
    """

    condition: ast.AST
    holds: bool
    first: int
    last: int
    owner: ast.AST

    @property
    def relation(self) -> str:
        """Name of its relation."""
        return "GuardedBy" if self.holds else "GuardedByNegation"


class GuardFinder:
    """Finds the guards of a region.

    Args:
        region: Region to search.
        spans: Where each syntax node lies.

    Attributes:
        guards: The guards, in source order of the nodes that make them.
    """

    def __init__(self, region: Region, spans: Spans) -> None:
        self.guards: list[Guard] = []
        self._region = region
        self._spans = spans
        for node, owner in region.owner_of.items():
            self._expression(node, owner)
            for field in ("body", "orelse", "finalbody"):
                nodes = getattr(node, field, None)
                if isinstance(nodes, list):
                    self._rest_of_block(nodes)

    def _add(self, nodes: list, condition: ast.AST, holds: bool) -> None:
        spans = [self._spans.of(node) for node in nodes]
        spans = [span for span in spans if span is not None]
        if not spans or condition not in self._region.node_of:
            return
        first = max(min(first for first, _ in spans), self._region.first)
        last = min(max(last for _, last in spans), self._region.last)
        if first <= last:
            owner = self._region.owner_of[condition]
            self.guards.append(Guard(condition, holds, first, last, owner))

    def _expression(self, node: ast.AST, owner: ast.AST) -> None:
        if isinstance(node, (ast.If, ast.While)):
            self._add(node.body, node.test, True)
            self._add(node.orelse, node.test, False)
        elif isinstance(node, ast.IfExp):
            self._add([node.body], node.test, True)
            self._add([node.orelse], node.test, False)
        elif isinstance(node, ast.BoolOp):
            for i, value in enumerate(node.values[:-1], start=1):
                self._add(node.values[i:], value, isinstance(node.op, ast.And))
        elif isinstance(node, ast.match_case) and node.guard is not None:
            self._add(node.body, node.guard, True)
        elif isinstance(node, COMPREHENSIONS):
            self._comprehension(node)

    def _comprehension(self, node: ast.AST) -> None:
        names = ("key", "value") if isinstance(node, ast.DictComp) else ("elt",)
        for name in names:
            for part in node.generators:
                for test in part.ifs:
                    self._add([getattr(node, name)], test, True)
        for i, part in enumerate(node.generators):
            for j, test in enumerate(part.ifs, start=1):
                self._add([*part.ifs[j:], *node.generators[i + 1 :]], test, True)

    def _rest_of_block(self, nodes: list[ast.stmt]) -> None:
        for i, node in enumerate(nodes[:-1], start=1):
            if isinstance(node, ast.Assert):
                self._add(nodes[i:], node.test, True)
            elif isinstance(node, ast.If):
                body, other = _ends(node.body), _ends(node.orelse)
                if body and not other:
                    self._add(nodes[i:], node.test, False)
                elif other and not body:
                    self._add(nodes[i:], node.test, True)


def _ends(nodes: list[ast.stmt]) -> bool:
    """Whether control surely does not come past a block."""
    if not nodes:
        return False
    last = nodes[-1]
    if isinstance(last, ast.If):
        return _ends(last.body) and _ends(last.orelse)
    if isinstance(last, (ast.With, ast.AsyncWith)):
        return _ends(last.body)
    return isinstance(last, _LEAVES)


class GuardEdges:
    """GuardedBy and GuardedByNegation edges of a region.

    Args:
        unit: The file.
        spans: Where each syntax node lies.
        region: The region.
    """

    def __init__(self, unit: SourceUnit, spans: Spans, region: Region) -> None:
        self._unit = unit
        self._spans = spans
        self._region = region
        self.guards = GuardFinder(region, spans).guards

    def mentions(self, guard: Guard, absent: int | None = None) -> set:
        """Variables in the condition, as if the token `absent` were not there."""
        first, last = self._spans.of(guard.condition)
        return {
            variable
            for token in range(first, last + 1)
            if token != absent
            for variable, _ in self._unit.occurrences.get(token, ())
        }

    def has_in_condition(self, guard: Guard, token: int) -> bool:
        """Whether `token` belongs to the condition of `guard`."""
        first, last = self._spans.of(guard.condition)
        return first <= token <= last

    def around(self, token: int, owner: ast.AST) -> list[Guard]:
        """Guards of a token in the frame of `owner`."""
        return [
            guard
            for guard in self.guards
            if guard.first <= token <= guard.last and guard.owner is owner
        ]

    def edges(self, guard: Guard, absent: int | None = None) -> list[tuple[int, int]]:
        """Edges from the guarded tokens whose variable the condition mentions.

        Args:
            guard: The guard.
            absent: Token to leave out, both as guarded and as mentioned.
        """
        mentioned = self.mentions(guard, absent)
        if not mentioned:
            return []
        condition = self._region.node_of[guard.condition]
        return [
            (self._region.id_of(token), condition)
            for token in range(guard.first, guard.last + 1)
            if token != absent
            and any(
                variable in mentioned and frame.node is guard.owner
                for variable, frame in self._unit.occurrences.get(token, ())
            )
        ]
