"""Usages of variables in a function, and wrong variables planted there."""

import ast
import hashlib
import random
from collections.abc import Iterable
from dataclasses import dataclass

from keras_bandgnn.checks import fraction, optional, seed_number, string, strings
from keras_bandgnn.programs.python_source.frame import Frame
from keras_bandgnn.programs.python_source.reach import Reach
from keras_bandgnn.programs.python_source.scopes import Variable, arguments_of
from keras_bandgnn.programs.python_source.unit import SourceUnit, TooLarge

_CALLS = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.Lambda)


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
class PlantedBug:
    """A function, with a wrong variable or as it was.

    Attributes:
        source: The source.
        usages: All its usages, found in this source.
        bug: Position in `usages` of the wrong variable; None if there is none.
        repair: The name that belongs there; None if there is no bug.
    """

    source: str
    usages: tuple[VariableUsage, ...]
    bug: int | None
    repair: str | None


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
    names = sorted(set(strings("module_variables", module_variables)))
    # Module variables are bound before the function, which may be indented.
    head = " = ".join([*names, "None"]) + "\n"
    head += "if 1:\n" if source[:1].isspace() else "\n"
    unit = SourceUnit(head + source)
    excluded = _excluded(unit)
    values = _values(unit)
    usages = []
    for frame in unit.frames:
        if not frame.in_function:
            continue
        try:
            reach = unit.reach(frame)
        except TooLarge:
            continue
        for token, scope, name in frame.slots:
            place = unit.tokens.starts[token]
            variable = scope.resolve(name)
            if place in excluded or variable is None or not variable.is_plain:
                continue
            point = frame.points[frame.at[token, variable]]
            if not reach.is_bound(point, variable):
                continue
            same = _Equality(frame, reach, point, values)
            candidates = tuple(
                other.name
                for other in scope.visible(with_module=True)
                if other is not variable
                and reach.is_bound(point, other)
                and not same(variable, other)
            )
            if candidates:
                usages.append(VariableUsage(place[0] - 2, place[1], name, candidates))
    return sorted(usages, key=lambda usage: (usage.line, usage.column))


def plant_bug(
    source: str,
    module_variables: Iterable[str] = (),
    *,
    seed: int = 0,
    epoch: int = 0,
    key: str | None = None,
    correct_share: float = 0.5,
) -> PlantedBug:
    r"""Put a wrong variable into a function, or leave it as it is.

    The usage and the wrong variable are drawn uniformly. Usages and candidates are
    those of the changed source, so that they tell nothing of the change. The result
    depends only on the arguments.

    Args:
        source: Source of one function, indented or not.
        module_variables: Names that are variables of its module.
        seed: Seed.
        epoch: Another number draws another bug.
        key: Name of the function for the draw, as two functions may be equal; the
            source if omitted.
        correct_share: Share of functions that are left as they are. One in which no
            wrong variable can be planted is left, too.

    Raises:
        SyntaxError: If the source does not parse.

    Example:
    >>> made = plant_bug("def f(a, b):\n    return a - b", correct_share=0.0)
    >>> made.usages[made.bug].name in "ab", made.repair in "ab"
    (True, True)
    """
    usages = variable_usages(source, module_variables)
    names = sorted(set(module_variables))
    seed_number("seed", seed)
    seed_number("epoch", epoch)
    optional(string, "key", key)
    if correct_share is True or correct_share != 1:
        fraction("correct_share", correct_share)
    drawn = f"{seed}:{epoch}:{source if key is None else key}".encode(
        errors="surrogatepass"
    )
    rng = random.Random(hashlib.sha256(drawn).digest())
    unchanged = PlantedBug(source, tuple(usages), None, None)
    if rng.random() < correct_share:
        return unchanged
    rng.shuffle(usages)
    for usage in usages:
        wrong = rng.choice(usage.candidates)
        lines = source.split("\n")
        line, end = lines[usage.line - 1], usage.column + len(usage.name)
        lines[usage.line - 1] = line[: usage.column] + wrong + line[end:]
        changed = "\n".join(lines)
        found = variable_usages(changed, names)
        place = (usage.line, usage.column)
        for position, other in enumerate(found):
            # The change may make both names equal.
            if (other.line, other.column) == place and usage.name in other.candidates:
                return PlantedBug(changed, tuple(found), position, usage.name)
    return unchanged


def _excluded(unit: SourceUnit) -> set[tuple[int, int]]:
    """Return where names stand that are no usages."""
    nodes: list[ast.AST] = []
    for node in ast.walk(unit.tree):
        if isinstance(node, ast.AnnAssign):
            nodes.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes += [arg.annotation for arg in arguments_of(node.args)]
            nodes.append(node.returns)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Name):
            nodes.append(node.value)
        elif isinstance(node, ast.If | ast.While) and _never(node.test):
            nodes += node.body
    return {
        unit.tokens.start(name)
        for node in nodes
        if node is not None
        for name in ast.walk(node)
        if isinstance(name, ast.Name)
    }


def _never(test: ast.expr) -> bool:
    """Return whether a condition never holds at run time."""
    if isinstance(test, ast.Constant):
        return not test.value
    name = getattr(test, "attr", getattr(test, "id", None))
    return name == "TYPE_CHECKING"


def _values(unit: SourceUnit) -> dict[tuple[int, int], ast.expr]:
    """Return the values of names that are assigned, by the place of the name."""
    values = {}

    def bind(target: ast.expr, value: ast.expr) -> None:
        pair = isinstance(target, ast.Tuple | ast.List)
        if pair and isinstance(value, ast.Tuple | ast.List):
            parts = [*target.elts, *value.elts]
            if len(target.elts) == len(value.elts) and not any(
                isinstance(part, ast.Starred) for part in parts
            ):
                for each, its in zip(target.elts, value.elts, strict=True):
                    bind(each, its)
        elif isinstance(target, ast.Name):
            values[unit.tokens.start(target)] = value

    for node in ast.walk(unit.tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                bind(target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value:
            bind(node.target, node.value)
    starts = unit.tokens.starts
    places = {place: token for token, place in enumerate(starts)}
    return {places[place]: value for place, value in values.items() if place in places}


class _Equality:
    """Tells whether two variables are provably equal at a point.

    It errs on the side of equal ones: values of equal text count if nothing is called.
    """

    def __init__(self, frame: Frame, reach: Reach, point: int, values: dict) -> None:
        self._frame, self._reach, self._point = frame, reach, point
        self._values = values

    def __call__(self, one: Variable, other: Variable) -> bool:
        mine, theirs = self._value(one), self._value(other)
        if mine is not None and mine is theirs:
            return True
        if mine is not None and theirs is not None:
            called = any(isinstance(part, _CALLS) for part in ast.walk(mine))
            if not called and ast.dump(mine) == ast.dump(theirs):
                return True
        return self._copies(one, other) or self._copies(other, one)

    def _write(self, variable: Variable) -> int | None:
        writes = self._reach.last_writes(self._point, variable)
        return writes[0] if len(writes) == 1 else None

    def _value(self, variable: Variable) -> ast.expr | None:
        write = self._write(variable)
        return None if write is None else self._values.get(write)

    def _copies(self, copy: Variable, original: Variable) -> bool:
        """Return whether `copy` was assigned from `original`, unchanged since then."""
        value = self._value(copy)
        if not isinstance(value, ast.Name) or value.id != original.name:
            return False
        at = self._frame.at.get((self._write(copy), copy))
        if at is None:
            return False
        then = self._reach.last_writes(self._frame.points[at], original)
        return then == self._reach.last_writes(self._point, original)
