"""`FunctionSource`: a function parsed with the names that it sees of its module."""

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from keras_bandgnn.checks import string, strings
from keras_bandgnn.programs.python_source.frame import Frame
from keras_bandgnn.programs.python_source.nodes import walk
from keras_bandgnn.programs.python_source.reach import Reach
from keras_bandgnn.programs.python_source.scopes import Variable, arguments_of
from keras_bandgnn.programs.python_source.tokens import name_end
from keras_bandgnn.programs.python_source.unit import SourceUnit, TooLarge

_CALLS = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.Lambda)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_CONDITIONS = (ast.If, ast.While)
_TYPED = (ast.AnnAssign, ast.NamedExpr)


@dataclass(frozen=True)
class VariableUsage:
    """A place in a function that reads a variable.

    Attributes:
        line: Line in the source of the function, from 1.
        column: Column, from 0, in characters.
        name: The name that stands there.
        candidates: Other names that may stand there and would change the meaning,
            sorted.
    """

    line: int
    column: int
    name: str
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class FoundUsage:
    """A usage in the analysed source.

    Attributes:
        token: Its token.
        variable: The variable that it reads.
        others: Other variables that may stand there and would change the meaning.
    """

    token: int
    variable: Variable
    others: tuple[Variable, ...]


class Signatures(dict):
    """Names of parameters by qualified name of a function, in the order of the module.

    All functions of a module share one, so that each looks up only the names in it.
    """

    @functools.cached_property
    def positions(self) -> dict[str, int]:
        """Qualified name -> position in the order of the module."""
        return {name: position for position, name in enumerate(self)}


class FunctionSource:
    """A function parsed with the names that it sees of its module.

    Module variables stand before the function as assignments, and functions and methods
    that its text names as empty definitions, so that names in it resolve.

    Args:
        source: Source of one function, indented or not.
        module_variables: Names that are variables of its module.
        signatures: Qualified name -> names of parameters, of functions of the module.
        name: Qualified name of the function, which tells the class of a method.

    Attributes:
        source: The source of the function.
        unit: The analysis of the function behind its head.
        offset: Lines of the head.
        too_large: Whether `usages` lacks those of a scope with too many points.

    Raises:
        SyntaxError: If the source does not parse.
    """

    def __init__(
        self,
        source: str,
        module_variables: Iterable[str] = (),
        signatures: Mapping[str, Iterable[str]] | None = None,
        name: str = "",
    ):
        self.source = source
        if not isinstance(signatures, Signatures):
            signatures = Signatures(signatures or {})
        self._context = (module_variables, signatures, name)
        variables = set(module_variables)
        head = " = ".join([*sorted(variables), "None"]) + "\n"
        head += _definitions(source, variables, signatures, name)
        self.offset = head.count("\n")
        self.unit = SourceUnit(head + source)
        self.too_large = False

    def place(self, token: int) -> tuple[int, int]:
        """Return line (from 1) and column (from 0) of a token in the function."""
        line, column = self.unit.tokens.starts[token]
        return line - self.offset, column

    def functions(self) -> Iterator[str]:
        """Yield the names of the functions in the source, not of those in them."""
        nodes = list(reversed(self.unit.tree.body))
        while nodes:
            node = nodes.pop()
            if not isinstance(node, _FUNCTIONS):
                nodes += reversed(list(ast.iter_child_nodes(node)))
            elif node.lineno > self.offset:
                yield node.name

    def changed(self, usage: FoundUsage, name: str) -> "FunctionSource":
        """Return the function with another name in the place of a usage."""
        line, column = self.place(usage.token)
        lines = self.source.split("\n")
        text = lines[line - 1]
        lines[line - 1] = text[:column] + name + text[name_end(text, column) :]
        return FunctionSource("\n".join(lines), *self._context)

    @functools.cached_property
    def _nodes(self) -> list[ast.AST]:
        return list(walk(self.unit.tree))

    @functools.cached_property
    def usages(self) -> list[FoundUsage]:
        """The usages of variables, in the order of the source."""
        unit = self.unit
        excluded = _excluded(self._nodes, unit)
        bound = _values(self._nodes, unit)
        values = {token: _Value(node) for token, node in bound.items()}
        usages = []
        for frame in unit.frames:
            if frame.in_function:
                usages += self._in_frame(frame, excluded, values)
        return sorted(usages, key=lambda usage: usage.token)

    @functools.cached_property
    def unread(self) -> set[Variable]:
        """The candidates that nothing reads, where a linter says so or the name does.

        They are variables of plain assignments and of `except`, which pyflakes and ruff
        report (F841), and names that begin with an underscore. Code that calls `locals`
        may read them.
        """
        candidates = {other for usage in self.usages for other in usage.others}
        names = (node for node in self._nodes if isinstance(node, ast.Name))
        if any(name.id == "locals" for name in names):
            return set()
        assigned = _assigned(self._nodes, self.unit)
        unread = set()
        for variable in candidates:
            writes = {t for tokens in variable.writes.values() for t in tokens}
            if writes.issuperset(variable.tokens) and (
                variable.name.startswith("_") or assigned.issuperset(variable.tokens)
            ):
                unread.add(variable)
        return unread

    def listed(self) -> list[VariableUsage]:
        """Return the usages with places and names."""
        return [
            VariableUsage(
                *self.place(usage.token),
                usage.variable.name,
                tuple(other.name for other in usage.others),
            )
            for usage in self.usages
        ]

    def _in_frame(
        self, frame: Frame, excluded: set[tuple[int, int]], values: dict
    ) -> Iterator[FoundUsage]:
        try:
            reach = self.unit.reach(frame)
        except TooLarge:
            self.too_large = True
            return
        for token, scope, name in frame.slots:
            variable = scope.resolve(name)
            if variable is None or not variable.is_plain:
                continue
            if self.unit.tokens.starts[token] in excluded:
                continue
            point = frame.points[frame.at[token, variable]]
            if not reach.is_bound(point, variable):
                continue
            equals = _Equality(frame, reach, point, values, variable)
            others = tuple(
                other
                for other in scope.visible(with_module=True)
                if other is not variable
                and reach.is_bound(point, other)
                and not equals(other)
            )
            if others:
                yield FoundUsage(token, variable, others)


def _definitions(
    source: str,
    variables: set[str],
    signatures: Signatures,
    name: str,
) -> str:
    """Return lines that define the names in a function, up to its first line."""
    indent = source[: len(source) - len(source.lstrip(" \t"))]
    owner, _, short_name = name.rpartition(".")
    words = set(re.findall(r"\w+", source)) - variables - {short_name}
    qualified_names = {*words, *(f"{owner}.{word}" for word in words)}
    qualified_names &= signatures.keys()
    module, methods = "", ""
    for qualified in sorted(qualified_names, key=signatures.positions.__getitem__):
        holder, _, function = qualified.rpartition(".")
        names = [item for item in signatures[qualified] if not item.startswith("*")]
        line = f"def {function}({', '.join(names)}): pass\n"
        if not holder:
            module += line
        elif indent:
            methods += indent + line
    if not indent:
        return module + "\n"
    if not methods:
        return module + "if 1:\n"
    return f"{module}class {owner.rpartition('.')[2]}:\n{methods}"


def variable_usages(
    source: str, module_variables: Iterable[str] = ()
) -> list[VariableUsage]:
    r"""Return the usages of variables in a function, in the order of the source.

    Usages are reads of parameters, of variables of the function and of the functions
    around it, and of variables of its module. Not among them are annotations, names in
    f-strings before Python 3.12, code that cannot be reached, names that stand alone as
    a statement, and places where no other variable may stand. A candidate is bound on
    some path to the usage, and is not provably equal to the variable that is read, as
    after `a = b`.

    Args:
        source: Source of one function, indented or not. It is parsed, never run.
        module_variables: Names that are variables of its module.

    Raises:
        SyntaxError: If the source does not parse.

    Example:
    >>> variable_usages("def area(width, height):\n    return width * height")[0]
    VariableUsage(line=2, column=11, name='width', candidates=('height',))
    """
    string("source", source)
    names = strings("module_variables", module_variables)
    return FunctionSource(source, names).listed()


def _excluded(nodes: list[ast.AST], unit: SourceUnit) -> set[tuple[int, int]]:
    """Return where names stand that are no usages."""
    parts: list[ast.AST] = []
    for node in nodes:
        if isinstance(node, ast.AnnAssign):
            parts.append(node.annotation)
        elif isinstance(node, _FUNCTIONS):
            parts += [arg.annotation for arg in arguments_of(node.args)]
            parts.append(node.returns)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Name):
            parts.append(node.value)
        elif isinstance(node, _CONDITIONS) and _never(node.test):
            parts += node.body
    return {
        unit.tokens.start(name)
        for part in parts
        if part is not None
        for name in walk(part)
        if isinstance(name, ast.Name)
    }


def _never(test: ast.expr) -> bool:
    """Return whether a condition never holds at run time."""
    if isinstance(test, ast.Constant):
        return not test.value
    name = getattr(test, "attr", getattr(test, "id", None))
    return name == "TYPE_CHECKING"


def _assigned(nodes: list[ast.AST], unit: SourceUnit) -> set[int]:
    """Return the tokens of names that an assignment, `with` or `except` binds alone."""
    targets: list[ast.AST | None] = []
    caught = set()
    for node in nodes:
        if isinstance(node, ast.ExceptHandler) and node.name and node.type:
            last = unit.tokens.last(node.type)
            if last is not None and unit.tokens.labels[last + 2] == node.name:
                caught.add(last + 2)
        elif isinstance(node, ast.Assign):
            targets += node.targets
        elif isinstance(node, _TYPED):
            targets.append(node.target)
        elif isinstance(node, ast.withitem):
            targets.append(node.optional_vars)
    tokens = {unit.tokens.first(item) for item in targets if isinstance(item, ast.Name)}
    return tokens - {None} | caught


def _values(nodes: list[ast.AST], unit: SourceUnit) -> dict[int, ast.expr]:
    """Return the values of names that are assigned, by the token of the name."""
    values = {}

    def bind(target: ast.expr, value: ast.expr) -> None:
        pair = isinstance(target, ast.Tuple | ast.List)
        if pair and isinstance(value, ast.Tuple | ast.List):
            parts = [*target.elts, *value.elts]
            if len(target.elts) == len(value.elts) and not any(
                isinstance(part, ast.Starred) for part in parts
            ):
                for element, its in zip(target.elts, value.elts, strict=True):
                    bind(element, its)
        elif isinstance(target, ast.Name):
            token = unit.tokens.first(target)
            if token is not None:
                values[token] = value

    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                bind(target, node.value)
        elif isinstance(node, _TYPED) and node.value:
            bind(node.target, node.value)
    return values


class _Value:
    """The value of an assignment."""

    def __init__(self, node: ast.expr) -> None:
        self.node = node

    @functools.cached_property
    def text(self) -> str | None:
        """Return the key that equal values share; None if something is called."""
        if any(isinstance(part, _CALLS) for part in walk(self.node)):
            return None
        return ast.dump(self.node)


class _Equality:
    """Tells whether other variables are provably equal to one at a point.

    It errs on the side of equal ones: values of equal text count if nothing is called.
    """

    def __init__(
        self,
        frame: Frame,
        reach: Reach,
        point: int,
        values: dict[int, _Value],
        variable: Variable,
    ) -> None:
        self._frame, self._reach, self._point = frame, reach, point
        self._values = values
        self._variable = variable
        self._write, self._value = self._written(variable)

    def __call__(self, other: Variable) -> bool:
        write, value = self._written(other)
        mine = self._value
        if mine is not None and value is not None:
            if mine.node is value.node:
                return True
            # Texts are long.
            if type(mine.node) is type(value.node) and mine.text is not None:
                if mine.text == value.text:
                    return True
        return self._copies(mine, self._write, self._variable, other) or self._copies(
            value, write, other, self._variable
        )

    def _written(self, variable: Variable) -> tuple[int | None, _Value | None]:
        """Return the only last write of a variable, and its value."""
        write = self._reach.only_write(self._point, variable)
        return write, self._values.get(write)

    def _copies(
        self,
        value: _Value | None,
        write: int | None,
        copy: Variable,
        original: Variable,
    ) -> bool:
        """Return whether `copy` was assigned from `original`, unchanged since then."""
        if value is None or not isinstance(value.node, ast.Name):
            return False
        if value.node.id != original.name:
            return False
        at = self._frame.at.get((write, copy))
        if at is None:
            return False
        then = self._reach.last_writes(self._frame.points[at], original)
        return then == self._reach.last_writes(self._point, original)
