"""Gradients of tasks are slopes of their losses, on every backend."""

import keras
import numpy as np
import pytest
from task_samples import TASKS, check_complete, data_of, task_of

pytestmark = pytest.mark.every_backend


def test_every_task_has_a_sample():
    check_complete()


@pytest.mark.parametrize("name", TASKS)
def test_gradients_are_slopes_of_the_loss(name):
    """The loss falls along the gradient as fast as the gradient is long."""
    task = task_of(name)
    task.compile(keras.optimizers.SGD(1.0))
    batch = task.loader(data_of(name, 4))[0]
    variables = task.trainable_variables
    rng = np.random.default_rng(0)
    # Away from the kinks of activations at zero biases.
    for variable in variables:
        variable.assign_add(rng.normal(0, 0.1, variable.shape))
    weights = [keras.ops.convert_to_numpy(v) for v in variables]
    task.train_on_batch(*batch)
    steps = [
        old - keras.ops.convert_to_numpy(variable)
        for old, variable in zip(weights, variables, strict=True)
    ]
    length = np.sqrt(sum(np.square(step, dtype="float64").sum() for step in steps))

    def loss(distance):
        for variable, old, step in zip(variables, weights, steps, strict=True):
            variable.assign(old + distance / length * step)
        return float(task.test_on_batch(*batch, return_dict=True)["loss"])

    width = 5e-4
    slope = (loss(width) - loss(-width)) / (2 * width)
    assert length > 1e-3
    assert slope == pytest.approx(length, rel=0.02)
