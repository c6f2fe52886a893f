"""`localization_calibration`: what makes a `BugLocalizer` expect rare bugs."""

from collections.abc import Sequence

import numpy as np

from keras_bandgnn.checks import fraction, refuse
from keras_bandgnn.programs.models.localization_report import checked_functions
from keras_bandgnn.programs.program_graph import FunctionGraph

_LOG_TEMPERATURE = np.log(20)


def localization_calibration(
    functions: Sequence[FunctionGraph],
    probabilities: Sequence[np.ndarray],
    bug_rate: float = 1 / 2000,
) -> tuple[float, float]:
    """Fit the `calibration` of a `BugLocalizer` to functions outside of its training.

    A temperature T and a number b, which `BugLocalizer.calibrated` applies, maximise
    the log-likelihood of the right rewrites, or of no change. Functions with a bug
    weigh as much as if they were the share `bug_rate` of all.

    Args:
        functions: Functions with `correct`, some with a bug and some without.
        probabilities: [1 + R] for each, from `BugLocalizer.rewrite_probabilities` of a
            model without calibration; None for those that were not judged, which do
            not count.
        bug_rate: Share of functions with a bug, above 0 and below 1.

    Returns:
        (T, b), with T from 0.05 to 20.

    Raises:
        ValueError: Unless there are both functions with a bug and without, and
            probabilities of each that add up to 1.

    Reference:
        Guo et al. 2017, https://arxiv.org/abs/1706.04599, with the prior of Saerens et
        al., Neural Computation 2002, as second parameter.

    Example:
    >>> import numpy as np
    >>> from keras_bandgnn.programs import function_graph
    >>> graph = function_graph("def f(a, b): return a - b")
    >>> pair = [graph.repaired_by(-1), graph.repaired_by(0)]
    >>> shares = [[0.8, 0.1, 0.1], [0.3, 0.6, 0.1]]
    >>> temperature, bias = localization_calibration(pair, shares, bug_rate=0.01)
    >>> temperature > 0, bool(np.isfinite(bias))
    (True, True)
    """
    from scipy.optimize import minimize

    rate = fraction("bug_rate", bug_rate)
    if rate in (0, 1):
        refuse("bug_rate", "above 0 and below 1", bug_rate)
    functions = checked_functions(functions, probabilities)
    judged = [
        (function.correct, _distribution(function, shares))
        for function, shares in zip(functions, probabilities, strict=True)
        if shares is not None
    ]
    bug = np.array([correct is not None and correct >= 0 for correct, _ in judged])
    if any(correct is None for correct, _ in judged) or bug.all() or not bug.any():
        raise ValueError(
            "Expected functions with a bug, `correct` of at least 0, and without one, "
            f"`correct` -1. Received: {len(judged)} with probabilities, of them "
            f"{int(bug.sum())} with a bug."
        )
    counts = np.array([len(shares) for _, shares in judged])
    first = np.cumsum(counts) - counts
    right = first + [correct + 1 for correct, _ in judged]
    scores = np.log(np.maximum(np.concatenate([s for _, s in judged]), 1e-30))
    weight = np.where(bug, rate / bug.sum(), (1 - rate) / (~bug).sum())

    def loss(parameters: np.ndarray) -> float:
        shifted = scores / np.exp(parameters[0])
        shifted[first] += parameters[1]
        shifted -= np.repeat(np.maximum.reduceat(shifted, first), counts)
        total = np.add.reduceat(np.exp(shifted), first)
        return -weight @ (shifted[right] - np.log(total)) / rate

    start = [0.0, np.log((1 - rate) / rate)]
    # Few functions may be told apart by any temperature, however large or small.
    bounds = [(-_LOG_TEMPERATURE, _LOG_TEMPERATURE), (None, None)]
    log_temperature, bias = minimize(loss, start, method="Nelder-Mead", bounds=bounds).x
    return float(np.exp(log_temperature)), float(bias)


def _distribution(function: FunctionGraph, shares) -> np.ndarray:
    """Return probabilities as float64, or raise unless they are of the function."""
    shares = np.asarray(shares, np.float64)
    size = 1 + len(function.rewrites)
    is_share = shares.shape == (size,) and (shares >= 0).all()
    if not is_share or not np.isclose(shares.sum(), 1, atol=1e-3):
        raise ValueError(
            f"Expected probabilities [{size}], of no change and of each rewrite, which "
            f"add up to 1. Received: shape {shares.shape}, sum {shares.sum():.4g}. "
            "Pass those of BugLocalizer.rewrite_probabilities."
        )
    return shares
