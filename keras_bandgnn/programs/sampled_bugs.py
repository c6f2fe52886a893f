"""`bug_samples`: functions as they are and with planted bugs, as graphs with labels."""

import dataclasses
import hashlib
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from keras_bandgnn.checks import (
    fraction,
    function,
    one_of,
    optional,
    positive_int,
    refuse,
    seed_number,
)
from keras_bandgnn.programs.corpus_files import CorpusFunction
from keras_bandgnn.programs.function_graphs import graph_of
from keras_bandgnn.programs.function_source import FunctionSource
from keras_bandgnn.programs.likely_mistakes import mistake_weights
from keras_bandgnn.programs.planted_bugs import Rewrite, plant
from keras_bandgnn.programs.program_graph import FunctionGraph
from keras_bandgnn.programs.python_source.unit import TooLarge
from keras_bandgnn.programs.unread_names import with_unread_name

_FUNCTIONS = "functions, as read_corpus yields them"
# Functions that are judged together.
_JUDGED = 512

Judge = Callable[[list[FunctionGraph]], Sequence[np.ndarray | None]]


def bug_samples(
    functions: Iterable[CorpusFunction],
    *,
    seed: int = 0,
    epoch: int = 0,
    max_nodes: int | None = 1500,
    max_rewrites: int | None = 600,
    judge: Judge | None = None,
    hard_share: float = 0.5,
    mistakes: str = "uniform",
    unread_share: float = 0.0,
) -> Iterator[FunctionGraph]:
    """Yield each function as it is, and then with one wrong variable.

    The usage and the wrong variable are drawn uniformly among local variables, or as
    developers confuse them; the draws depend on the seed, the epoch and the function
    alone. Functions that have nothing to choose, do not parse or are too large are left
    out.

    With a `judge` a share of the bugs is hard: a rewrite is drawn in proportion to the
    square root of the probability that the judge gives to it in the function as it is,
    so that mostly variables that seem to fit are planted.

    Args:
        functions: Functions, such as those of `read_corpus`.
        seed: Seed.
        epoch: Another number draws other bugs.
        max_nodes: Functions with more nodes are left out; None for no limit.
        max_rewrites: Functions with more rewrites are left out; None for no limit.
        judge: Returns the probability of no change and of each rewrite, [1 + R], of
            each of a list of functions, or None: the `rewrite_probabilities` of a
            trained `BugLocalizer`.
        hard_share: Share of hard bugs.
        mistakes: "uniform", or "likely": other bugs than hard ones are drawn by
            `mistake_weights`, whose weights were fitted to real fixes.
        unread_share: Share of functions that get one more name, which nothing reads
            (`with_unread_name`), in both forms alike.

    Yields:
        Graphs with `correct`, for a `BugLocalizer`. Their info names `package`, `path`,
        `line` and `lines`, the number of lines.

    Reference:
        Allamanis et al., "Self-Supervised Bug Detection and Repair", NeurIPS 2021: a
        selector of bugs learns from the detector; here it is the detector.

    Example:
    >>> from keras_bandgnn.programs import read_corpus
    >>> graphs = bug_samples(read_corpus("corpus", "train"))  # doctest: +SKIP
    """
    if isinstance(functions, str) or not isinstance(functions, Iterable):
        refuse("functions", _FUNCTIONS, functions)
    seed_number("seed", seed)
    seed_number("epoch", epoch)
    optional(positive_int, "max_nodes", max_nodes)
    optional(positive_int, "max_rewrites", max_rewrites)
    optional(function, "judge", judge)
    if hard_share is True or hard_share != 1:
        fraction("hard_share", hard_share)
    one_of("mistakes", mistakes, ("uniform", "likely"))
    fraction("unread_share", unread_share)
    if unread_share:
        functions = _with_unread_names(functions, f"{seed}:{epoch}", unread_share)
    graphs = _graphs(functions, f"{seed}:{epoch}", max_nodes, max_rewrites)
    if mistakes == "likely":
        graphs = (
            (read, graph, rng, mistake_weights(read)) for read, graph, rng, _ in graphs
        )
    if judge is not None:
        graphs = _judged(graphs, judge, hard_share)
    return _samples(graphs, max_nodes, max_rewrites)


def _with_unread_names(functions, drawn: str, share: float):
    """Yield functions, a share of them with one more name."""
    for item in functions:
        if isinstance(item, CorpusFunction):
            rng = _random(item, f"{drawn}:unread")
            if rng.random() < share:
                source = with_unread_name(item.source, rng)
                item = dataclasses.replace(item, source=source)
        yield item


def _random(item: CorpusFunction, drawn: str) -> random.Random:
    """Return the random generator of a function."""
    package, path = item.package.get("package", ""), item.module["path"]
    key = f"{drawn}:{package}:{path}:{item.name}:{item.line}"
    return random.Random(hashlib.sha256(key.encode()).digest())


def _graphs(functions, drawn: str, max_nodes, max_rewrites):
    """Yield functions, their graphs, random generators, and no weights of rewrites."""
    for item in functions:
        if not isinstance(item, CorpusFunction):
            refuse("functions", _FUNCTIONS, item)
        package, path = item.package.get("package", ""), item.module["path"]
        try:
            read = FunctionSource(item.source, (), item.module["signatures"], item.name)
            graph = graph_of(read, item.name, max_nodes, max_rewrites)
        except (SyntaxError, TooLarge, RecursionError):
            continue
        if graph is None:
            continue
        where = {"package": package, "path": path, "line": item.line}
        graph.info.update(where, lines=item.source.count("\n") + 1)
        yield read, graph, _random(item, drawn), None


def _judged(graphs, judge: Judge, hard_share: float):
    """Yield the same, with weights by the judge for a share of the functions."""
    while group := list(itertools.islice(graphs, _JUDGED)):
        shares_of_graphs = judge([graph for _, graph, _, _ in group])
        for item, shares in zip(group, shares_of_graphs, strict=True):
            read, graph, rng, weights = item
            hard = rng.random() < hard_share and shares is not None
            yield read, graph, rng, _weights(graph, shares) if hard else weights


def _weights(graph: FunctionGraph, shares: np.ndarray) -> dict[Rewrite, float]:
    rows = zip(graph.rewrites.tolist(), np.sqrt(shares[1:]).tolist(), strict=True)
    places = graph.info["places"]
    return {(*places[u], graph.labels[node]): weight for (u, node), weight in rows}


def _samples(graphs, max_nodes, max_rewrites):
    for read, graph, rng, weights in graphs:
        yield graph.repaired_by(-1)
        planted = plant(read, rng, weights)
        if planted is None:
            continue
        changed, usage, repair = planted
        name = graph.info["function"]
        try:
            wrong = graph_of(changed, name, max_nodes, max_rewrites)
        except (SyntaxError, TooLarge, RecursionError):
            continue
        if wrong is None:
            continue
        line, column = changed.place(changed.usages[usage].token)
        position = wrong.rewrite_to(line, column, repair)
        if position is not None:
            wrong.info.update(graph.info | wrong.info)
            yield wrong.repaired_by(position)
