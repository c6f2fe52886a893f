"""`LinearDecay`: a learning rate that falls in a straight line, then stays."""

import keras
from keras import ops

from keras_bandgnn.checks import non_negative_number, positive_int, positive_number


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class LinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Learning rate from `initial_learning_rate` to `end_factor` times it.

    rate(step) = initial * (1 - (1 - end_factor) * min(step / decay_steps, 1))

    Args:
        initial_learning_rate: Rate at step 0.
        decay_steps: Steps until the end rate is reached.
        end_factor: End rate as a share of the initial one, in [0, 1].

    Reference:
        Balog et al. 2019, Appendix E.

    Example:
    >>> float(LinearDecay(1.0, decay_steps=10, end_factor=0.5)(5))
    0.75
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: int = 100_000,
        end_factor: float = 0.1,
        name: str = "linear_decay",
    ):
        super().__init__()
        self.end_factor = non_negative_number("end_factor", end_factor)
        if self.end_factor > 1:
            raise ValueError(
                f"Expected `end_factor` in [0, 1]. Received: end_factor={end_factor!r}."
            )
        self.initial_learning_rate = positive_number(
            "initial_learning_rate", initial_learning_rate
        )
        self.decay_steps = positive_int("decay_steps", decay_steps)
        self.name = name

    def __call__(self, step):
        """Returns the rate at a step."""
        share = ops.minimum(ops.cast(step, "float32") / self.decay_steps, 1.0)
        return self.initial_learning_rate * (1.0 - (1.0 - self.end_factor) * share)

    def get_config(self) -> dict:
        """Returns the arguments of the constructor."""
        return {
            "initial_learning_rate": self.initial_learning_rate,
            "decay_steps": self.decay_steps,
            "end_factor": self.end_factor,
            "name": self.name,
        }
