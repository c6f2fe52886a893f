"""Optimisers by name: the paper's, and an adaptive one for smaller data."""

import keras

from keras_bandgnn.checks import one_of, positive_number
from keras_bandgnn.training.linear_decay import LinearDecay


def make_optimizer(
    name: str = "sgd", learning_rate: float | None = None, decay_steps: int = 100_000
) -> keras.optimizers.Optimizer:
    """Builds an optimiser with this library's defaults.

    `"sgd"` is that of Balog et al. 2019: Nesterov momentum 0.9, a rate that falls
    linearly from 0.3 to a tenth of it, gradients clipped to the *global* norm 0.1
    (values from the ranges of Appendix E). `"adam"` has rate 1e-3, the same decay and
    clipping to the global norm 1; it needs less tuning on small data.

    Args:
        name: "sgd" or "adam".
        learning_rate: First learning rate; the default depends on `name`.
        decay_steps: Steps until the rate has fallen to a tenth.
    """
    one_of("name", name, ("sgd", "adam"))
    first = {"sgd": 0.3, "adam": 1e-3}[name] if learning_rate is None else learning_rate
    first = positive_number("learning_rate", first)
    rate = LinearDecay(first, decay_steps, end_factor=0.1)
    if name == "adam":
        return keras.optimizers.Adam(rate, global_clipnorm=1.0)
    return keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, global_clipnorm=0.1)
