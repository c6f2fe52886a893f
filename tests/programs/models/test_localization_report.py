"""Scores of a localiser, counted by hand."""

import numpy as np
import pytest

from keras_bandgnn.programs import function_graph
from keras_bandgnn.training import localization_report

# Rewrites: a -> b, c; b -> a, c; c -> a, b.
GRAPH = function_graph("def f(a, b, c):\n    return a - b * c\n")


def shares(rewrite, probability):
    found = np.full(7, (1 - probability) / 6)
    found[1 + rewrite] = probability
    return found


def test_counts():
    functions = [GRAPH.repaired_by(c) for c in (0, 0, 2, 4, -1, -1, -1)]
    found = [
        shares(0, 0.9),  # repaired
        shares(1, 0.8),  # located
        shares(5, 0.7),  # elsewhere
        None,
        shares(-1, 0.95),  # no change
        shares(3, 0.85),  # a false alarm
        shares(3, 0.6),
    ]
    report = localization_report(functions, found, lines=10, rates=(0.25, 0.5, 0.75))
    assert (report["bugs"], report["correct"]) == (4, 3)
    assert report["joint"] == 0.25 and report["located"] == 0.5
    assert report["false_alarms"] == pytest.approx(2 / 3)
    first, second, never = report["at"].values()
    assert first == {"threshold": 0.9, "false_alarms": 0.0, "per_1000_lines": 0.0}
    assert second["threshold"] == 0.8
    assert second["per_1000_lines"] == pytest.approx(100)
    assert np.isnan(never["threshold"]) and np.isnan(never["per_1000_lines"])


def test_repairs_of_known_places():
    functions = [GRAPH.repaired_by(0), GRAPH.repaired_by(2)]
    found = [np.array([0.5, 0.1, 0.05, 0.2, 0.1, 0.04, 0.01])] * 2
    assert localization_report(functions, found)["repaired"] == 1.0
    found = [np.array([0.5, 0.05, 0.1, 0.1, 0.2, 0.04, 0.01])] * 2
    assert localization_report(functions, found)["repaired"] == 0.0


def test_errors():
    with pytest.raises(ValueError, match="correct=None"):
        localization_report([GRAPH], [shares(0, 0.5)])
    with pytest.raises(ValueError, match="of each function"):
        localization_report([GRAPH.repaired_by(0)], [])
