"""`localization_calibration`: it finds the temperature and the rate of bugs again."""

import numpy as np
import pytest

from keras_bandgnn.programs import function_graph
from keras_bandgnn.training import localization_calibration

GRAPH = function_graph("def f(a, b):\n    return a - b\n")


def softmax(scores):
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


@pytest.mark.parametrize(("temperature", "bias"), [(1.0, 0.0), (2.0, 3.0), (0.5, -1.0)])
def test_it_finds_the_temperature_and_the_bias_of_drawn_labels(temperature, bias):
    rng = np.random.default_rng(0)
    size = len(GRAPH.rewrites)
    scores = 2 * rng.normal(size=(20_000, 1 + size))
    shares = softmax(scores)
    true = softmax(np.log(shares) / temperature + [bias, *[0] * size])
    right = (true.cumsum(-1) > rng.random((len(true), 1))).argmax(-1) - 1
    functions = [GRAPH.repaired_by(int(k)) for k in right]
    rate = float((right >= 0).mean())
    found = localization_calibration(functions, list(shares), rate)
    np.testing.assert_allclose(found, (temperature, bias), atol=0.1)


def test_where_bugs_are_rarer_no_change_has_the_odds_more():
    rng = np.random.default_rng(1)
    shares = list(softmax(rng.normal(size=(2000, 1 + len(GRAPH.rewrites)))))
    functions = [GRAPH.repaired_by(k % 2 - 1) for k in range(2000)]
    biases = [localization_calibration(functions, shares, r)[1] for r in (0.5, 0.001)]
    assert biases[1] - biases[0] == pytest.approx(np.log(999), abs=0.5)


def test_functions_that_were_not_judged_do_not_count():
    functions = [GRAPH.repaired_by(k) for k in (-1, 0, 0)]
    shares = [[0.8, 0.1, 0.1], [0.3, 0.6, 0.1]]
    expected = localization_calibration(functions[:2], shares, 0.1)
    assert localization_calibration(functions, [*shares, None], 0.1) == expected


def test_temperatures_of_few_functions_are_bounded():
    pair = [GRAPH.repaired_by(-1), GRAPH.repaired_by(0)]
    shares = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    for probabilities in (shares, shares[::-1]):
        temperature, bias = localization_calibration(pair, probabilities)
        assert 0.05 <= temperature * (1 + 1e-9) and temperature <= 20 * (1 + 1e-9)
        assert np.isfinite(bias)


@pytest.mark.parametrize(
    "shares",
    [[0.5, 0.5], [[0.5, 0.5, 0.0]], [np.nan] * 3, [-1.0, -1.0, -1.0], [1.0] * 3],
)
def test_probabilities_are_those_of_the_function(shares):
    pair = [GRAPH.repaired_by(-1), GRAPH.repaired_by(0)]
    with pytest.raises(ValueError, match="add up to 1"):
        localization_calibration(pair, [[0.8, 0.1, 0.1], shares])


def test_errors():
    both = [GRAPH.repaired_by(-1), GRAPH.repaired_by(0)]
    with pytest.raises(ValueError, match="of each function"):
        localization_calibration(both, [])
    for rate in (0.0, 1.0, -1, "a"):
        with pytest.raises(ValueError, match="`bug_rate`"):
            localization_calibration(both, [[0.5, 0.5, 0.0]] * 2, rate)
    for functions in (both[:1], both[1:], [GRAPH, both[1]]):
        with pytest.raises(ValueError, match="with a bug"):
            localization_calibration(functions, [[0.5, 0.5, 0.0]] * len(functions))
