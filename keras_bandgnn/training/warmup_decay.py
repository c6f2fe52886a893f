"""`WarmupDecay`: a learning rate that rises, then falls along a polynomial."""

import keras
from keras import ops

from keras_bandgnn.checks import non_negative_number, positive_int, positive_number


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Learning rate of graph transformers.

    It rises in a straight line from 0 to `peak` in `warmup_steps`, then falls:

        rate(step) = end + (peak - end) (1 - (step - warmup_steps) / decay_steps)^power

    and stays at `end` afterwards.

    Args:
        peak: The largest rate.
        warmup_steps: Steps until it is reached, from 0 on.
        decay_steps: Steps from there to the end rate.
        end: The last rate.
        power: Of the polynomial; 1 is a straight line.

    Raises:
        ValueError: For numbers out of range.

    Reference:
        Ying et al. 2021 (Graphormer): peak 2e-4, end 1e-9.

    Example:
    >>> rate = WarmupDecay(1.0, warmup_steps=10, decay_steps=10, end=0.0)
    >>> float(rate(5)), float(rate(15)), float(rate(99))
    (0.5, 0.5, 0.0)
    """

    def __init__(
        self,
        peak: float = 2e-4,
        warmup_steps: int = 1000,
        decay_steps: int = 100_000,
        end: float = 1e-9,
        power: float = 1.0,
        name: str = "warmup_decay",
    ):
        super().__init__()
        self.peak = positive_number("peak", peak)
        self.warmup_steps = positive_int("warmup_steps", warmup_steps, 0)
        self.decay_steps = positive_int("decay_steps", decay_steps)
        self.end = non_negative_number("end", end)
        if end > peak:
            raise ValueError(
                f"Expected `end` in [0, peak={peak}]. Received: end={end!r}."
            )
        self.power = positive_number("power", power)
        self.name = name

    def __call__(self, step):
        """Returns the rate at a step."""
        step = ops.cast(step, "float32")
        rising = self.peak * step / max(self.warmup_steps, 1)
        left = 1.0 - (step - self.warmup_steps) / self.decay_steps
        left = ops.clip(left, 0.0, 1.0)
        falling = self.end + (self.peak - self.end) * left**self.power
        return ops.where(step < self.warmup_steps, rising, falling)

    def get_config(self) -> dict:
        """Returns the arguments of the constructor."""
        names = ("peak", "warmup_steps", "decay_steps", "end", "power", "name")
        return {name: getattr(self, name) for name in names}
