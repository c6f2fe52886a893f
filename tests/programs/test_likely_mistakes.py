"""Weights of wrong variables as developers write them."""

import collections
import random

import numpy as np
import pytest

from keras_bandgnn.programs.function_source import FunctionSource
from keras_bandgnn.programs.likely_mistakes import WEIGHTS, mistake_weights
from keras_bandgnn.programs.planted_bugs import plant
from keras_bandgnn.programs.rewrite_traits import TRAITS, rewrite_traits

SOURCE = """
def spread(self, rows, min_value, max_value, scale):
    self.log(rows, scale)
    self.log(scale)
    return clip(rows, min_value, max_value)
""".strip()


def test_each_value_of_each_trait_has_a_weight():
    sizes = {trait: len(weights) for trait, weights in WEIGHTS.items()}
    assert list(sizes.items()) == list(TRAITS.items())


def test_weights_are_a_softmax_of_sums():
    read = FunctionSource(SOURCE)
    weights = np.array(list(mistake_weights(read).values()))
    scores = [
        sum(WEIGHTS[t][v] for t, v in zip(TRAITS, row.tolist(), strict=True))
        for row in rewrite_traits(read)
    ]
    np.testing.assert_allclose(weights, np.exp(scores - np.max(scores)), rtol=1e-9)


def test_names_alike_are_confused_and_self_hardly_ever():
    weights = mistake_weights(FunctionSource(SOURCE))
    place = (4, SOURCE.split("\n")[3].index("min_value"))
    assert weights[*place, "max_value"] > 4 * weights[*place, "self"]
    owners = [w for (line, column, _), w in weights.items() if column == 4 and line < 4]
    assert 0 < max(owners) < 0.1


def test_bugs_are_planted_in_proportion():
    read = FunctionSource(SOURCE)
    weights = mistake_weights(read)
    rng, count = random.Random(0), 600
    drawn = collections.Counter()
    for _ in range(count):
        changed, position, _ = plant(read, rng, weights)
        usage = changed.usages[position]
        drawn[*changed.place(usage.token), usage.variable.name] += 1
    likely = max(weights, key=weights.get)
    share = weights[likely] / sum(weights.values())
    error = np.sqrt(share * (1 - share) / count)
    assert abs(drawn[likely] / count - share) < 4 * error < 0.1


@pytest.mark.parametrize(
    "source", ["def f():\n    return 1", "def f(a):\n    return a"]
)
def test_no_rewrites_no_weights(source):
    assert mistake_weights(FunctionSource(source)) == {}
