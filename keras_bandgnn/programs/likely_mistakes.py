"""`mistake_weights`: how likely developers are to write each wrong variable."""

import numpy as np

from keras_bandgnn.programs.function_source import FunctionSource
from keras_bandgnn.programs.planted_bugs import Rewrite
from keras_bandgnn.programs.rewrite_traits import rewrite_traits

WEIGHTS: dict[str, tuple[float, ...]] = {
    "common_words": (0.00, 0.43, 1.30, 2.34, 2.74),
    "common_text": (0.00, 0.67, 1.88, 2.62, 0.43),
    "short_names": (0.00, 0.24, 1.38),
    "plural": (0.00, 0.13),
    "before": (0.00, 0.49, 0.44, 0.10, -0.35, -1.83),
    "after": (0.00, 0.62, 0.72, 0.45, 0.38, 0.74),
    "in_statement": (0.00, -0.79),
    "in_line_before": (0.00, 0.46),
    "in_line_after": (0.00, -0.20),
    "assigned_here": (0.00, 0.79),
    "kind": (0.00, -0.07, -0.74, -1.49),
    "other_kind": (0.00, -0.19, -0.20, -0.40),
    "reads": (0.00, 0.96, 0.87),
    "other_reads": (0.00, -0.77, -0.32, 0.08),
    "other_underscore": (0.00, -1.60),
    "role": (
        0.00,
        1.12,
        0.58,
        0.66,
        1.34,
        1.13,
        0.47,
        1.05,
        0.94,
        1.08,
        0.93,
        0.86,
        1.12,
        -0.33,
    ),
}
"""Trait -> the weight of each of its values, fitted to 1,000 fixes of 169 projects.

A conditional logit: of all rewrites of a function as it is after the fix, the share of
the one that was there before is the softmax of the sum of its weights.
"""


def mistake_weights(read: FunctionSource) -> dict[Rewrite, float]:
    r"""Return how likely each wrong variable is to be written in a function.

    Developers confuse variables with similar names, more often as arguments of calls
    than before dots, where the other one has occurred a little before, and hardly ever
    before it is bound or in place of `self`.

    Args:
        read: The function, as it is right.

    Returns:
        The weight of each (line, column, other name), for `plant`; the largest is 1.

    Example:
    >>> read = FunctionSource("def f(low, lower, data):\n    return g(low, data)")
    >>> weights = mistake_weights(read)
    >>> max(weights, key=weights.get)
    (2, 13, 'lower')
    """
    traits = rewrite_traits(read)
    if not len(traits):
        return {}
    scores = np.zeros(len(traits))
    for column, weights in zip(traits.T, WEIGHTS.values(), strict=True):
        scores += np.array(weights)[column]
    weights = np.exp(scores - scores.max())
    rewrites = [
        (*read.place(usage.token), other.name)
        for usage in read.usages
        for other in usage.others
    ]
    return dict(zip(rewrites, weights.tolist(), strict=True))
