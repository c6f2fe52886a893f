"""Keras builds a task once, not at each evaluation."""

import pytest
from task_samples import TASKS, data_of, task_of

from keras_bandgnn.compat import BuildHooks

pytestmark = pytest.mark.every_backend
# One of each kind of batches and steps: the others are built by the same code.
SHORT = {"NodeClassifier", "ForceRegressor", "LinkPredictor"}
NAMES = [
    name
    if name in SHORT
    else pytest.param(name, marks=pytest.mark.release(elsewhere=True))
    for name in TASKS
]


@pytest.mark.parametrize("name", NAMES)
def test_a_task_is_traced_once(name, monkeypatch):
    task, data = task_of(name), data_of(name, 4)
    task.fit(data, epochs=1, verbose=0)
    parent, traced = BuildHooks.__mro__[1]._symbolic_build, []

    def build(self, *args, **kwargs):
        traced.append(self)
        return parent(self, *args, **kwargs)

    monkeypatch.setattr(BuildHooks.__mro__[1], "_symbolic_build", build)
    # Pairs to validate on would be edges of the graph.
    options = {} if name == "LinkPredictor" else {"validation_data": data}
    task.fit(data, **options, epochs=2, verbose=0)
    task.evaluate(data, verbose=0)
    assert not traced
    # New metrics are built.
    task.compile(task.optimizer, loss=task.loss)
    scores = task.evaluate(data, verbose=0, return_dict=True)
    assert len(traced) <= 1 and scores
