"""`rewrite_traits`: what the two variables of a rewrite have in common."""

import ast
import bisect
import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_bandgnn.programs.function_source import FoundUsage, FunctionSource
from keras_bandgnn.programs.python_source.scopes import Variable, arguments_of
from keras_bandgnn.programs.python_source.unit import SourceUnit

ROLES = (
    *("other", "attribute", "base", "index", "argument", "keyword", "operand"),
    *("compare", "test", "return", "iter", "value", "element", "callee"),
)
"""Where a usage stands: before a dot, before or in brackets, as an argument, ..."""

TRAITS = {
    # The names.
    "common_words": 5,
    "common_text": 5,
    "short_names": 3,
    "plural": 2,
    # Where the other variable occurs, seen from the usage.
    "before": 6,
    "after": 6,
    "in_statement": 2,
    "in_line_before": 2,
    "in_line_after": 2,
    "assigned_here": 2,
    # What both are, and how often they are read.
    "kind": 4,
    "other_kind": 4,
    "reads": 3,
    "other_reads": 4,
    "other_underscore": 2,
    # The usage.
    "role": len(ROLES),
}
"""Trait -> its number of values, from 0."""

GROUPS = (4, 6, 5, 1)
"""Numbers of traits that one column of ids combines."""

COLUMNS = tuple(
    int(np.prod(sizes))
    for sizes in np.split(list(TRAITS.values()), np.cumsum(GROUPS)[:-1])
)
"""Number of ids of each column of `trait_columns`."""

_SHARES = (0.0, 0.34, 0.67, 0.999)
_TOKENS = (3, 10, 30, 100)
_SHORT = 2
_LOCAL, _PARAMETER, _OUTER, _OWNER = range(4)
_PARENTS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (ast.Attribute, "attribute"),
    (ast.keyword, "keyword"),
    ((ast.BinOp, ast.UnaryOp, ast.AugAssign), "operand"),
    (ast.Compare, "compare"),
    ((ast.If, ast.While, ast.BoolOp, ast.IfExp, ast.Assert), "test"),
    ((ast.Return, ast.Yield), "return"),
    ((ast.For, ast.comprehension), "iter"),
    ((ast.Assign, ast.AnnAssign), "value"),
    ((ast.Tuple, ast.List, ast.Dict, ast.Set), "element"),
    (ast.Slice, "index"),
)
_FIELDS = {
    (ast.Subscript, "value"): "base",
    (ast.Subscript, "slice"): "index",
    (ast.Call, "func"): "callee",
    (ast.Call, "args"): "argument",
}


class _Statement(NamedTuple):
    """The lines of a statement, without those of a block, and the names it assigns."""

    first: int = 0
    last: int = 0
    targets: frozenset[str] = frozenset()


_Place = tuple[int, _Statement]
"""Where a name stands: its role and its statement."""


def rewrite_traits(
    read: FunctionSource, usages: Sequence[FoundUsage] | None = None
) -> np.ndarray:
    """Return the traits of each usage with each other variable that may stand there.

    They say how alike the names are, how near the other variable occurs before and
    after the usage, whether both are parameters, local, or `self`, and how often they
    are read: what tells a slip from an intention.

    Args:
        read: The function.
        usages: Some of its usages; all if omitted.

    Returns:
        uint8 [R, 16], values of `TRAITS`, for the pairs in the order of the usages.
    """
    usages = read.usages if usages is None else usages
    if not usages:
        return np.zeros((0, len(TRAITS)), np.uint8)
    variables = {
        variable: number
        for number, variable in enumerate(
            dict.fromkeys(v for u in usages for v in (u.variable, *u.others))
        )
    }
    rows = np.repeat(np.arange(len(usages)), [len(u.others) for u in usages])
    other = np.array([variables[v] for u in usages for v in u.others], np.int64)
    right = np.array([variables[u.variable] for u in usages], np.int64)[rows]
    places = _places(read.unit)
    nowhere = (ROLES.index("other"), _Statement())
    standing = [places.get(read.unit.tokens.starts[u.token], nowhere) for u in usages]
    kinds, reads = np.array(
        [_use(variable, read.offset, read.unit) for variable in variables], np.int64
    ).T
    underscore = np.array([variable.name.startswith("_") for variable in variables])
    traits = np.concatenate(
        [
            _similarities([variable.name for variable in variables], right, other),
            _nearness(read.unit, list(variables), usages, [p[1] for p in standing])[
                other, rows
            ],
            np.stack(
                [
                    kinds[right],
                    kinds[other],
                    np.searchsorted((2, 4), reads[right], "right"),
                    np.searchsorted((1, 2, 4), reads[other], "right"),
                    underscore[other],
                    np.array([role for role, _ in standing])[rows],
                ],
                1,
            ),
        ],
        1,
    )
    return traits.astype(np.uint8)


def trait_columns(traits: np.ndarray) -> np.ndarray:
    """Return int32 [R, 4], ids of combinations of traits; see `COLUMNS`."""
    columns, first = [], 0
    sizes = list(TRAITS.values())
    for count in GROUPS:
        group = slice(first, first + count)
        columns.append(np.ravel_multi_index(traits[:, group].T, sizes[group]))
        first += count
    return np.stack(columns, 1).astype(np.int32)


def _similarities(names: list[str], right: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the traits of pairs of names, [R, 4]."""
    pairs, place = np.unique(right * len(names) + other, return_inverse=True)
    rows = [_similarity(names[k // len(names)], names[k % len(names)]) for k in pairs]
    return np.array(rows, np.int64).reshape(-1, 4)[place]


@functools.lru_cache(200_000)
def _similarity(one: str, other: str) -> tuple[int, int, int, int]:
    words = _share(_words(one), _words(other))
    text = _share(_bigrams(one), _bigrams(other))
    return (
        bisect.bisect_left(_SHARES, words),
        bisect.bisect_left(_SHARES, text),
        (len(one) <= _SHORT) + (len(other) <= _SHORT),
        one + "s" == other or other + "s" == one,
    )


def _share(one: frozenset[str], other: frozenset[str]) -> float:
    return 2 * len(one & other) / max(len(one) + len(other), 1)


@functools.lru_cache(50_000)
def _words(name: str) -> frozenset[str]:
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    return frozenset(word.lower() for word in words)


@functools.lru_cache(50_000)
def _bigrams(name: str) -> frozenset[str]:
    text = f"^{name.lower()}$"
    return frozenset(text[k : k + 2] for k in range(len(text) - 1))


def _nearness(
    unit: SourceUnit,
    variables: list[Variable],
    usages: Sequence[FoundUsage],
    statements: list[_Statement],
) -> np.ndarray:
    """Return where variables occur, seen from usages, [V, U, 6]."""
    tokens = np.array([usage.token for usage in usages])
    first, last = np.array([item[:2] for item in statements]).T
    starts = unit.tokens.starts
    near = np.zeros((len(variables), len(usages), 6), np.int64)
    far = len(_TOKENS) + 1
    for number, variable in enumerate(variables):
        its = np.array(variable.tokens)
        lines = np.array([starts[token][0] for token in variable.tokens])
        position = np.searchsorted(its, tokens)
        before = tokens - its[np.maximum(position - 1, 0)]
        near[number, :, 0] = np.searchsorted(_TOKENS, before)
        near[number, position == 0, 0] = far
        # Where the variable stands itself, which no pair asks for, is no matter.
        after = its[np.minimum(position, len(its) - 1)] - tokens
        near[number, :, 1] = np.searchsorted(_TOKENS, after)
        near[number, position == len(its), 1] = far
        edges = [
            np.searchsorted(lines, line)
            for line in (first - 1, first, last + 1, last + 2)
        ]
        near[number, :, 2] = edges[2] > edges[1]
        near[number, :, 3] = edges[1] > edges[0]
        near[number, :, 4] = edges[3] > edges[2]
    numbers = {variable.name: number for number, variable in enumerate(variables)}
    for column, statement in enumerate(statements):
        for name in statement.targets & numbers.keys():
            near[numbers[name], column, 5] = 1
    return near


def _use(variable: Variable, offset: int, unit: SourceUnit) -> tuple[int, int]:
    """Return the kind of a variable, and how many tokens read it."""
    writes = {token for tokens in variable.writes.values() for token in tokens}
    starts = unit.tokens.starts
    reads = sum(
        token not in writes and starts[token][0] > offset for token in variable.tokens
    )
    arguments = getattr(variable.scope.node, "args", None)
    kind = _LOCAL
    if variable.name in ("self", "cls"):
        kind = _OWNER
    elif variable.scope.kind == "module":
        kind = _OUTER
    elif arguments and variable.name in {arg.arg for arg in arguments_of(arguments)}:
        kind = _PARAMETER
    return kind, reads


def _places(unit: SourceUnit) -> dict[tuple[int, int], _Place]:
    """Return where names that are read stand, by their position in the text."""
    places = {}
    nodes: list[tuple] = [(unit.tree, unit.tree, "", _Statement())]
    while nodes:
        node, parent, field, statement = nodes.pop()
        if isinstance(node, ast.Name):
            place = (_role(type(parent), field), statement)
            places[unit.tokens.start(node)] = place
            continue
        if isinstance(node, ast.stmt):
            statement = _statement(node)
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                for part in value:
                    if isinstance(part, ast.AST):
                        nodes.append((part, node, name, statement))
            elif isinstance(value, ast.AST) and name != "ctx":
                nodes.append((value, node, name, statement))
    return places


def _statement(node: ast.stmt) -> _Statement:
    last = node.end_lineno or node.lineno
    body = getattr(node, "body", None)
    if body:
        last = max(node.lineno, body[0].lineno - 1)
    targets = node.targets if isinstance(node, ast.Assign) else ()
    names = frozenset(item.id for item in targets if isinstance(item, ast.Name))
    return _Statement(node.lineno, last, names)


@functools.cache
def _role(parent: type[ast.AST], field: str) -> int:
    if (parent, field) in _FIELDS:
        return ROLES.index(_FIELDS[parent, field])
    for classes, role in _PARENTS:
        if issubclass(parent, classes):
            return ROLES.index(role)
    return ROLES.index("other")
