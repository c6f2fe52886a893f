"""`bug_samples`: functions as they are and with planted bugs, as graphs with labels."""

import hashlib
import random
from collections.abc import Iterable, Iterator

from keras_bandgnn.checks import optional, positive_int, refuse, seed_number
from keras_bandgnn.programs.corpus.corpus_files import CorpusFunction
from keras_bandgnn.programs.function_graphs import FunctionGraph, graph_of
from keras_bandgnn.programs.function_source import FunctionSource
from keras_bandgnn.programs.planted_bugs import plant
from keras_bandgnn.programs.python_source.unit import TooLarge

_FUNCTIONS = "functions, as read_corpus yields them"


def bug_samples(
    functions: Iterable[CorpusFunction],
    *,
    seed: int = 0,
    epoch: int = 0,
    max_nodes: int | None = 1500,
    max_rewrites: int | None = 600,
) -> Iterator[FunctionGraph]:
    """Yield each function as it is, and then with one wrong variable.

    The usage and the wrong variable are drawn uniformly among local variables; the
    draws depend on the seed, the epoch and the function alone. Functions that have
    nothing to choose, do not parse or are too large are left out.

    Args:
        functions: Functions, such as those of `read_corpus`.
        seed: Seed.
        epoch: Another number draws other bugs.
        max_nodes: Functions with more nodes are left out; None for no limit.
        max_rewrites: Functions with more rewrites are left out; None for no limit.

    Yields:
        Graphs with `correct`, for a `BugLocalizer`. Their info names `package`, `path`,
        `line` and `lines`, the number of lines.

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
    return _samples(functions, seed, epoch, max_nodes, max_rewrites)


def _samples(functions, seed, epoch, max_nodes, max_rewrites):
    for function in functions:
        if not isinstance(function, CorpusFunction):
            refuse("functions", _FUNCTIONS, function)
        package, path = function.package.get("package", ""), function.module["path"]
        signatures = function.module["signatures"]
        try:
            read = FunctionSource(function.source, (), signatures, function.name)
            graph = graph_of(read, function.name, max_nodes, max_rewrites)
            if graph is None:
                continue
            where = {"package": package, "path": path, "line": function.line}
            graph.info.update(where, lines=function.source.count("\n") + 1)
            yield graph.repaired_by(-1)
            key = f"{seed}:{epoch}:{package}:{path}:{function.name}:{function.line}"
            rng = random.Random(hashlib.sha256(key.encode()).digest())
            planted = plant(read, rng)
            if planted is None:
                continue
            changed, usage, repair = planted
            wrong = graph_of(changed, function.name, max_nodes, max_rewrites)
        except (SyntaxError, TooLarge, RecursionError):
            continue
        if wrong is None:
            continue
        line, column = changed.place(changed.usages[usage].token)
        position = wrong.rewrite_to(line, column, repair)
        if position is not None:
            wrong.info.update(graph.info | wrong.info)
            yield wrong.repaired_by(position)
