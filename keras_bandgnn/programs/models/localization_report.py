"""`localization_report`: how many wrong variables a `BugLocalizer` finds."""

from collections.abc import Iterable, Sequence

import numpy as np

from keras_bandgnn.checks import fraction, instance, optional, positive_int, sequence
from keras_bandgnn.programs.program_graph import FunctionGraph


def localization_report(
    functions: Sequence[FunctionGraph],
    probabilities: Sequence[np.ndarray],
    lines: int | None = None,
    rates: Iterable[float] = (0.1, 0.2, 0.3, 0.4),
) -> dict:
    """Score the probabilities of rewrites of functions whose bug is known.

    A function with a bug counts as located if its most probable edge is a rewrite of
    the wrong usage, and as repaired if it is the right one. A correct function is a
    false alarm if its most probable edge is a rewrite. With a threshold on the
    probability of the best rewrite, a smaller share of the bugs is found at fewer false
    alarms.

    Args:
        functions: Functions with `correct`.
        probabilities: [1 + R] for each, from `BugLocalizer.rewrite_probabilities`; None
            for those that were not judged, which find and report nothing.
        lines: Lines of the functions that have no bug.
        rates: Shares of the bugs for which false alarms are counted.

    Returns:
        `bugs` and `correct`, the numbers of functions; `joint`, the share of bugs that
        are repaired; `located`; `repaired`, the share of right rewrites where the wrong
        usage is known; `false_alarms`, a share of the correct functions; and `at`, for
        each rate the threshold that finds this share of the bugs at the right place,
        the share of alarms among correct functions, and, with `lines`, the number per
        1,000 lines. NaN where there are no such functions, or where the share is not
        reached.

    Raises:
        ValueError: If a function does not say whether it has a bug.

    Example:
    >>> from keras_bandgnn.programs import function_graph
    >>> graph = function_graph("def f(a, b): return a - b")
    >>> pair = [graph.repaired_by(-1), graph.repaired_by(0)]
    >>> report = localization_report(pair, [[0.9, 0.1, 0.0], [0.2, 0.7, 0.1]])
    >>> report["joint"], report["false_alarms"]
    (1.0, 0.0)
    """
    optional(positive_int, "lines", lines)
    rates = [fraction("rates", rate) for rate in sequence("rates", rates)]
    functions = checked_functions(functions, probabilities)
    rows = [
        _judged(function, scores)
        for function, scores in zip(functions, probabilities, strict=True)
    ]
    bugs = np.array([row[1:] for row in rows if row[0]], np.float64).reshape(-1, 4)
    clean = np.array([row[1] for row in rows if not row[0]], np.float64)
    alarms = np.array([row[4] for row in rows if not row[0]], np.float64)
    score, located, repaired, alarm = bugs.T
    right = [
        _right(function, scores)
        for function, scores in zip(functions, probabilities, strict=True)
        if function.correct >= 0
    ]
    at = {}
    for rate in rates:
        hits = np.sort(score[located > 0])[::-1]
        needed = max(int(np.ceil(rate * len(bugs))), 1)
        threshold = hits[needed - 1] if needed <= len(hits) else np.nan
        share = (clean >= threshold).mean() if len(clean) else np.nan
        at[float(rate)] = {
            "threshold": float(threshold),
            "false_alarms": float(share) if threshold == threshold else np.nan,
        }
        if lines is not None:
            per_line = share * len(clean) / lines if threshold == threshold else np.nan
            at[float(rate)]["per_1000_lines"] = float(1000 * per_line)
    return {
        "bugs": len(bugs),
        "correct": len(clean),
        "joint": _mean(repaired * alarm),
        "located": _mean(located * alarm),
        "repaired": _mean(right),
        "false_alarms": _mean(alarms),
        "at": at,
    }


def checked_functions(functions: Sequence, probabilities: Sequence) -> list:
    """Return functions as a list, or raise unless each one has probabilities."""
    functions = sequence("functions", functions, "a list of FunctionGraph")
    for function in functions:
        instance("functions", function, FunctionGraph, "a list of FunctionGraph")
    if len(functions) != len(probabilities):
        raise ValueError(
            "Expected probabilities of each function. Received: "
            f"{len(functions)} functions, {len(probabilities)} arrays."
        )
    return functions


def _mean(values: Sequence) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def _bug(function: FunctionGraph) -> bool:
    if function.correct is None:
        raise ValueError(
            "Expected functions whose `correct` is the rewrite that is needed, or -1. "
            "Received: correct=None. Leave out functions whose bug is not known."
        )
    return function.correct >= 0


def _judged(function: FunctionGraph, scores) -> tuple[bool, float, bool, bool, bool]:
    """Return bug or not, probability of the best rewrite, and what it is right in.

    The last entry is whether a rewrite is the most probable edge.
    """
    bug = _bug(function)
    if scores is None or len(scores) < 2:
        return bug, 0.0, False, False, False
    best = int(np.argmax(scores[1:]))
    usage = function.rewrites[:, 0]
    located = bug and usage[best] == usage[function.correct]
    return (
        bug,
        float(scores[1 + best]),
        located,
        best == function.correct,
        scores[1 + best] > scores[0],
    )


def _right(function: FunctionGraph, scores) -> bool:
    """Return whether the right rewrite is the best one of the wrong usage."""
    if scores is None:
        return False
    usage = function.rewrites[:, 0]
    rows = np.flatnonzero(usage == usage[function.correct])
    return bool(rows[np.argmax(np.asarray(scores)[1 + rows])] == function.correct)
