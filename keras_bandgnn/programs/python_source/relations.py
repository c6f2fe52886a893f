"""ComputedFrom, FormalArgName and ReturnsTo edges of a region."""

import ast
import dataclasses

from keras_bandgnn.programs.python_source.scopes import (
    COMPREHENSIONS,
    FUNCTIONS,
    Variable,
)
from keras_bandgnn.programs.python_source.syntax import Region, Spans
from keras_bandgnn.programs.python_source.unit import SourceUnit

# Conditions that are known to be true or false at a token.


_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


@dataclasses.dataclass(frozen=True)
class Guard:
    """A condition and the tokens that it guards.

    Attributes:
        condition: Syntax node of the condition.
        holds: Whether it is known to be true; otherwise it is known to be false.
        first: First guarded token.
        last: Last guarded token.
        owner: Node of the guard's frame. Functions defined among the guarded tokens run
            at another time, so the guard does not apply to them.
    """

    condition: ast.AST
    holds: bool
    first: int
    last: int
    owner: ast.AST

    @property
    def relation(self) -> str:
        """The name of the relation."""
        return "GuardedBy" if self.holds else "GuardedByNegation"


class GuardFinder:
    """Finds the guards of a region.

    Args:
        region: Region to search.
        spans: Token range of each syntax node.

    Attributes:
        guards: The guards, in source order.
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
    """Return whether control never continues after a block."""
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
        spans: Token range of each syntax node.
        region: The region.
    """

    def __init__(self, unit: SourceUnit, spans: Spans, region: Region) -> None:
        self._unit = unit
        self._spans = spans
        self._region = region
        self.guards = GuardFinder(region, spans).guards

    def mentions(self, guard: Guard, absent: int | None = None) -> set:
        """Return the variables in the condition, ignoring the token `absent`."""
        first, last = self._spans.of(guard.condition)
        return {
            variable
            for token in range(first, last + 1)
            if token != absent
            for variable, _ in self._unit.occurrences.get(token, ())
        }

    def has_in_condition(self, guard: Guard, token: int) -> bool:
        """Return whether `token` belongs to the condition of `guard`."""
        first, last = self._spans.of(guard.condition)
        return first <= token <= last

    def around(self, token: int, owner: ast.AST) -> list[Guard]:
        """Return the guards of a token in the frame of `owner`."""
        return [
            guard
            for guard in self.guards
            if guard.first <= token <= guard.last and guard.owner is owner
        ]

    def edges(self, guard: Guard, absent: int | None = None) -> list[tuple[int, int]]:
        """Return edges from the guarded tokens whose variable the condition mentions.

        Args:
            guard: The guard.
            absent: Token to ignore, among the guarded and the mentioned ones.
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


_VALUES = (ast.Return, ast.Yield, ast.YieldFrom)


@dataclasses.dataclass(frozen=True)
class FormalArgument:
    """An argument of a call and its formal parameter.

    Attributes:
        argument: Node id of the argument: of its token if it is a name.
        name: Name of the parameter.
        receiver: Token of the variable through which the callee was resolved, if any.
    """

    argument: int
    name: str
    receiver: int | None = None


class SyntaxRelations:
    """Edges determined by the syntax and by name resolution.

    Args:
        unit: The file.
        spans: Token range of each syntax node.
        region: The region.

    Attributes:
        computed_from: Edges (assigned token, token on the right-hand side).
        returns_to: Edges (returned expression, function).
        formal_arguments: Arguments with known parameters.
    """

    def __init__(self, unit: SourceUnit, spans: Spans, region: Region) -> None:
        self._unit = unit
        self._spans = spans
        self._region = region
        self.computed_from: list[tuple[int, int]] = []
        self.returns_to: list[tuple[int, int]] = []
        self.formal_arguments: list[FormalArgument] = []
        for node, owner in region.owner_of.items():
            if isinstance(node, ast.Call):
                self._call(node)
            elif isinstance(node, _VALUES) and node.value is not None:
                self._returned(node.value, owner)
            elif isinstance(node, ast.Lambda):
                self._returned(node.body, node)
            else:
                self._assignment(node)

    def _assignment(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._computed(target, node.value)
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
            self._computed(node.target, node.value)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            self._computed(node.target, node.iter)
        elif isinstance(node, ast.withitem):
            self._computed(node.optional_vars, node.context_expr)

    def _computed(self, target: ast.AST | None, value: ast.AST | None) -> None:
        if target is None or value is None:
            return
        if isinstance(target, (ast.Tuple, ast.List)):
            items = getattr(value, "elts", None)
            paired = (
                isinstance(value, (ast.Tuple, ast.List))
                and len(items) == len(target.elts)
                and not any(isinstance(x, ast.Starred) for x in items + target.elts)
            )
            for i, item in enumerate(target.elts):
                self._computed(item, items[i] if paired else value)
            return
        token = self._assigned(target)
        span = self._spans.of(value)
        if token is None or token not in self._region or span is None:
            return
        source = self._region.id_of(token)
        for other in range(span[0], span[1] + 1):
            if other in self._region and self._is_variable(other):
                self.computed_from.append((source, self._region.id_of(other)))

    def _assigned(self, target: ast.AST) -> int | None:
        """Return the token that represents the assigned target."""
        if isinstance(target, ast.Name):
            return self._unit.tokens.first(target)
        if isinstance(target, ast.Attribute):
            return self._unit.tokens.last(target)
        if isinstance(target, (ast.Subscript, ast.Starred)):
            return self._assigned(target.value)
        return None

    def _is_variable(self, token: int) -> bool:
        occurrences = self._unit.occurrences.get(token, ())
        return any(variable.is_plain for variable, _ in occurrences)

    def _returned(self, value: ast.AST, owner: ast.AST) -> None:
        node_of = self._region.node_of
        if value in node_of and owner in node_of and not isinstance(owner, ast.Module):
            self.returns_to.append((node_of[value], node_of[owner]))

    def _call(self, node: ast.Call) -> None:
        names, receiver = self._parameters(node.func)
        for value, name in zip(node.args, names, strict=False):
            if isinstance(value, ast.Starred):
                break
            self._formal(value, name, receiver)
        for item in node.keywords:
            if item.arg is not None:
                self._formal(item.value, item.arg, None)

    def _formal(self, value: ast.AST, name: str, receiver: int | None) -> None:
        number = self._region.node_of.get(value)
        if isinstance(value, ast.Name):
            token = self._unit.tokens.first(value)
            if token is not None and token in self._region:
                number = self._region.id_of(token)
        if number is not None:
            self.formal_arguments.append(FormalArgument(number, name, receiver))

    def _parameters(self, callee: ast.AST) -> tuple[list[str], int | None]:
        """Return the positional parameters, and the receiver they depend on."""
        if isinstance(callee, ast.Name):
            variable = self._variable(callee)
            return _parameter_names(variable and variable.definition), None
        if isinstance(callee, ast.Attribute) and isinstance(callee.value, ast.Name):
            variable = self._variable(callee.value)
            if variable is not None and _is_receiver(variable):
                method = _sole(variable.scope.parent.bound.get(callee.attr, ()))
                if isinstance(method, FUNCTIONS):
                    receiver = self._unit.tokens.first(callee.value)
                    return _method_parameters(method), receiver
        return [], None

    def _variable(self, node: ast.Name) -> Variable | None:
        token = self._unit.tokens.first(node)
        for variable, _ in self._unit.occurrences.get(token, ()):
            if variable.name == node.id:
                return variable
        return None


def _sole(binders: list) -> ast.AST | None:
    return binders[0] if len(binders) == 1 else None


def _is_receiver(variable: Variable) -> bool:
    """Return whether a variable is the first parameter of a method."""
    scope = variable.scope
    if not isinstance(scope.node, FUNCTIONS) or scope.parent.kind != "class":
        return False
    args = [*scope.node.args.posonlyargs, *scope.node.args.args]
    return bool(args) and args[0].arg == variable.name


def _positional(node: ast.AST) -> list[str]:
    return [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]


def _method_parameters(node: ast.AST) -> list[str]:
    """Return the parameters without the receiver; none with unknown decorators."""
    names = [getattr(item, "id", None) for item in node.decorator_list]
    if names == ["staticmethod"]:
        return _positional(node)
    return _positional(node)[1:] if names in ([], ["classmethod"]) else []


def _parameter_names(definition: ast.AST | None) -> list[str]:
    if isinstance(definition, FUNCTIONS):
        return _positional(definition)
    if isinstance(definition, ast.ClassDef):
        makers = [
            node
            for node in definition.body
            if isinstance(node, FUNCTIONS) and node.name == "__init__"
        ]
        return _method_parameters(makers[0]) if len(makers) == 1 else []
    return []
