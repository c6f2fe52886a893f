"""Learning-rate schedules: `LinearDecay`, `WarmupDecay`, and `make_optimizer`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from keras_bandgnn import keras_bases
from keras_bandgnn.checks import (
    non_negative_number,
    one_of,
    positive_int,
    positive_number,
    refuse,
)
from keras_bandgnn.registration import constructor_arguments

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Tensor


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class LinearDecay(keras_bases.LearningRateSchedule):
    """Linear decay from `initial_learning_rate` to `end_factor` times it.

    rate(step) = initial * (1 - (1 - end_factor) * min(step / decay_steps, 1))

    Args:
        initial_learning_rate: Rate at step 0.
        decay_steps: Steps until the final rate.
        end_factor: Final rate as a fraction of the initial one, in [0, 1].
        name: Name of the schedule.

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
            refuse("end_factor", "in [0, 1]", end_factor)
        self.initial_learning_rate = positive_number(
            "initial_learning_rate", initial_learning_rate
        )
        self.decay_steps = positive_int("decay_steps", decay_steps)
        self.name = name

    def __call__(self, step: Tensor) -> Tensor:
        """Return the rate at a step."""
        share = ops.minimum(ops.cast(step, "float32") / self.decay_steps, 1.0)
        return self.initial_learning_rate * (1.0 - (1.0 - self.end_factor) * share)

    get_config = constructor_arguments


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class WarmupDecay(keras_bases.LearningRateSchedule):
    """Linear warmup and polynomial decay, the schedule of graph transformers.

    The rate increases linearly from 0 to `peak` over `warmup_steps`, then decays:

        rate(step) = end + (peak - end) (1 - (step - warmup_steps) / decay_steps)^power

    and is constant at `end` afterwards.

    Args:
        peak: Rate at the end of the warmup.
        warmup_steps: Steps of the warmup, at least 0.
        decay_steps: Steps of the decay.
        end: Final rate, at least 0.
        power: Power of the polynomial; 1 is linear.
        name: Name of the schedule.

    Raises:
        ValueError: For arguments out of range.

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
            refuse("end", f"in [0, peak={peak}]", end)
        self.power = positive_number("power", power)
        self.name = name

    def __call__(self, step: Tensor) -> Tensor:
        """Return the rate at a step."""
        step = ops.cast(step, "float32")
        rising = self.peak * step / max(self.warmup_steps, 1)
        fraction = 1.0 - (step - self.warmup_steps) / self.decay_steps
        fraction = ops.clip(fraction, 0.0, 1.0)
        falling = self.end + (self.peak - self.end) * fraction**self.power
        return ops.where(step < self.warmup_steps, rising, falling)

    get_config = constructor_arguments


def make_optimizer(
    name: str = "sgd", learning_rate: float | None = None, decay_steps: int = 100_000
) -> keras.optimizers.Optimizer:
    """Build an optimiser with this library's defaults.

    `"sgd"` is the optimiser of Balog et al. 2019: Nesterov momentum 0.9, linear decay
    from 0.3 to a tenth of it, gradients clipped to the *global* norm 0.1 (values from
    the ranges of Appendix E). `"adam"` has rate 1e-3, the same decay and clipping to
    the global norm 1; it needs less tuning on small data.

    Args:
        name: "sgd" or "adam".
        learning_rate: Initial learning rate; the default depends on `name`.
        decay_steps: Steps until the rate is a tenth of the initial one.
    """
    one_of("name", name, ("sgd", "adam"))
    first = {"sgd": 0.3, "adam": 1e-3}[name] if learning_rate is None else learning_rate
    first = positive_number("learning_rate", first)
    rate = LinearDecay(first, decay_steps, end_factor=0.1)
    if name == "adam":
        return keras.optimizers.Adam(rate, global_clipnorm=1.0)
    return keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, global_clipnorm=0.1)
