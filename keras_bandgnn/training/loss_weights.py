"""`LossWeightScheduler`: weights of energies, forces and stresses by epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from keras_bandgnn import keras_bases
from keras_bandgnn.checks import function

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Logs


class LossWeightScheduler(keras_bases.Callback):
    """Sets the weights in the loss of a `ForceRegressor` before each epoch.

    Forces have many components per structure and teach the shape of the energy; a
    larger weight of energies in the last epochs then lowers their error. Nothing is
    compiled again. Training that resumes has the weights of its epoch.

    The loss changes with its weights: monitor `val_force_mae` or `val_mae` instead of
    `val_loss`.

    Args:
        schedule: From the number of an epoch, from 0, to a dict with any of "energy",
            "force" and "stress"; the others are as they were.

    Raises:
        ValueError: From `fit`, for another task or other names.

    Example:
    >>> import keras_bandgnn as kb
    >>> late = kb.training.LossWeightScheduler(
    ...     lambda epoch: {"force": 100.0, "energy": 1.0 if epoch < 80 else 100.0}
    ... )
    >>> late.schedule(90)["energy"]
    100.0
    """

    def __init__(self, schedule: Callable[[int], Mapping[str, float]]):
        super().__init__()
        self.schedule = function("schedule", schedule)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Reject tasks without such weights."""
        if not hasattr(self.model, "set_loss_weights"):
            raise ValueError(
                "Expected LossWeightScheduler in `fit` of a ForceRegressor. Received: "
                f"{type(self.model).__name__}. Pass loss_weights to compile."
            )

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Set the weights of the epoch."""
        weights = self.schedule(epoch)
        names = ("energy", "force", "stress")
        if not isinstance(weights, Mapping) or set(weights) - set(names):
            raise ValueError(
                f"Expected schedule({epoch}) to return a dict with keys of {names}. "
                f"Received: {weights!r}."
            )
        self.model.set_loss_weights(**weights)
