"""Weights that leave nothing to train on or to measure are refused."""

import numpy as np
import pytest
from task_samples import TASKS, check_complete, data_of, task_of

REFUSED = "sample_weight.*above 0"
# `fit` of others has no weights.
WEIGHTED = [name for name in TASKS if name != "LinkPredictor"]


def zeros_for(graphs):
    if graphs[0].label_level == "graph":
        return np.zeros(len(graphs))
    rows = [np.shape(graph.label)[0] for graph in graphs]
    return [np.zeros(count) for count in rows]


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_of_0_alone_are_refused(name):
    check_complete()
    task, graphs = task_of(name), list(data_of(name, 6))
    zeros = zeros_for(graphs)
    with pytest.raises(ValueError, match=REFUSED):
        task.fit(graphs, sample_weight=zeros, epochs=1, verbose=0)
    with pytest.raises(ValueError, match=REFUSED):
        task.evaluate(graphs, sample_weight=zeros, verbose=0)
    labels = [graph.label for graph in graphs]
    # Force tasks read forces of the graphs, too.
    valid = (graphs, labels, zeros)
    with pytest.raises(ValueError, match=REFUSED):
        task.fit(graphs, validation_data=valid, epochs=1, verbose=0)


def test_weights_of_labels_that_are_not_known_do_not_count():
    task, graphs = task_of("NodeClassifier"), data_of("NodeClassifier", 4)
    weights = [np.float64(np.asarray(graph.label) < 0) for graph in graphs]
    assert sum(each.sum() for each in weights)
    with pytest.raises(ValueError, match=REFUSED):
        task.fit(graphs, sample_weight=weights, epochs=1, verbose=0)
    weights[0][np.asarray(graphs[0].label) >= 0] = 1.0
    task.fit(graphs, sample_weight=weights, epochs=1, verbose=0)
