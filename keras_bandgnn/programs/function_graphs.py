"""`function_graph`: a function with all its usages and their possible rewrites."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from keras_bandgnn.checks import mapping, optional, positive_int, string, strings
from keras_bandgnn.programs.function_source import FoundUsage, FunctionSource
from keras_bandgnn.programs.program_graph import (
    OCCURRENCE,
    FunctionGraph,
)
from keras_bandgnn.programs.python_source.base import BaseGraph, BaseGraphs, edge_array
from keras_bandgnn.programs.python_source.scopes import Variable
from keras_bandgnn.programs.python_source.unit import TooLarge
from keras_bandgnn.programs.rewrite_traits import rewrite_traits


def function_graph(
    source: str,
    module_variables: Iterable[str] = (),
    signatures: Mapping[str, Iterable[str]] | None = None,
    name: str | None = None,
    *,
    max_nodes: int | None = None,
    max_rewrites: int | None = None,
) -> FunctionGraph | None:
    r"""Return the graph of one function; None if it has nothing to choose.

    Usages and the variables that may stand there are those of `variable_usages`. Data
    flow, guards and syntax are those of `program_graphs`, for the function as it is.

    Args:
        source: Source of one function, indented or not. It is parsed, never run.
        module_variables: Names that are variables of its module.
        signatures: Qualified name -> names of parameters, of functions and methods of
            its module; arguments of calls then have edges to parameters.
        name: Qualified name of the function, such as `Cache.get`.
        max_nodes: Functions with more nodes are left out: None is returned, as for
            those that are nested too deeply for Python's recursion limit.
        max_rewrites: Functions with more rewrites are left out, too.

    Raises:
        SyntaxError: If the source does not parse.
        ValueError: If it has several functions.

    Example:
    >>> graph = function_graph("def area(width, height):\n    return width * height")
    >>> [graph.labels[variable] for _, variable in graph.rewrites]
    ['height', 'width']
    """
    string("source", source)
    name = optional(string, "name", name) or ""
    names = strings("module_variables", module_variables)
    signatures = optional(mapping, "signatures", signatures)
    optional(positive_int, "max_nodes", max_nodes)
    optional(positive_int, "max_rewrites", max_rewrites)
    try:
        read = FunctionSource(source, names, signatures, name)
    except (TooLarge, RecursionError):
        return None
    functions = list(read.functions())
    if len(functions) > 1:
        raise ValueError(
            f"Expected the source of one function. Received: {len(functions)}: "
            f"{', '.join(functions[:10])}. Call function_graph for each of them."
        )
    return graph_of(read, name, max_nodes, max_rewrites)


def graph_of(
    read: FunctionSource,
    name: str = "",
    max_nodes: int | None = None,
    max_rewrites: int | None = None,
    traits: bool = True,
) -> FunctionGraph | None:
    """Return the graph of a parsed function; see `function_graph`.

    Traits of rewrites, which some models do not read, take a fifth of the time.
    """
    try:
        usages = read.usages
        if not usages:
            return None
        if max_rewrites and sum(len(usage.others) for usage in usages) > max_rewrites:
            return None
        base = _base(read, usages)
    except TooLarge:
        return None
    usages = [usage for usage in usages if base and usage.token in base.region]
    graph = _with_rewrites(read, base, usages, name) if usages else None
    if graph is not None and traits:
        graph = dataclasses.replace(graph, traits=rewrite_traits(read, usages))
    small = graph is not None and len(graph.labels) <= (max_nodes or np.inf)
    return graph if small else None


def _base(read: FunctionSource, usages: list[FoundUsage]) -> BaseGraph | None:
    """Return the graph of the function that the last usage is in."""
    token = usages[-1].token
    for variable, frame in read.unit.occurrences[token]:
        function = read.unit.outermost_function(frame)
        if variable is usages[-1].variable and function is not None:
            return BaseGraphs(read.unit, "function").around(token, function)
    return None


def _with_rewrites(
    read: FunctionSource, base: BaseGraph, usages: list[FoundUsage], name: str
) -> FunctionGraph:
    region, count = base.region, len(base.labels)
    variables = dict.fromkeys(_variables(usages))
    number = {variable: count + i for i, variable in enumerate(variables)}
    edges = dict(base.edges)
    for relation, rows in base.guard_edges.items():
        edges[relation] = np.unique(rows[:, 1:], axis=0)
    edges[OCCURRENCE] = edge_array(
        [
            (number[variable], region.id_of(token))
            for variable in variables
            for token in variable.tokens
            if token in region
        ]
    )
    rewrites = [
        (position, number[other])
        for position, usage in enumerate(usages)
        for other in usage.others
    ]
    return FunctionGraph(
        labels=(*base.labels, *(variable.name for variable in variables)),
        kinds=(*base.kinds, *map(_kind, variables)),
        edges={
            relation: rows.reshape(-1, 2).astype(np.int32)
            for relation, rows in edges.items()
        },
        usages=np.array([region.id_of(usage.token) for usage in usages], np.int32),
        used=np.array([number[usage.variable] for usage in usages], np.int32),
        rewrites=np.array(rewrites, np.int32).reshape(-1, 2),
        info={
            "function": name or region.function.name,
            "places": [list(read.place(usage.token)) for usage in usages],
            "unread": [
                number[variable] for variable in variables if variable in read.unread
            ],
        },
    )


def _variables(usages: Iterable[FoundUsage]) -> Iterator[Variable]:
    for usage in usages:
        yield usage.variable
        yield from usage.others


def _kind(variable: Variable) -> str:
    return "ModuleVariable" if variable.scope.kind == "module" else "Variable"
