"""`TimeLimit`: training for a fixed time."""

from collections.abc import Callable

from keras_bandgnn.checks import positive_number
from keras_bandgnn.training.training_clock import TrainingClock


class TimeLimit(TrainingClock):
    """Ends training after so many seconds of it; the step under way is finished.

    The last epoch may then be a part of one; it is validated as any other. What counts
    as training is said in `TrainingClock`.

    Args:
        limit: Seconds.
        seconds: See `TrainingClock`.

    Example:
    >>> TimeLimit(60.0).limit
    60.0
    """

    def __init__(self, limit: float, seconds: Callable[[], float] | None = None):
        super().__init__(seconds)
        self.limit = positive_number("limit", limit)

    # This fetches the results of every step. Otherwise the host would run ahead of the
    # device, and the time that it measures would be too short.
    def on_train_batch_end(self, batch, logs=None):
        """Ends training when the time is up."""
        if self.seconds >= self.limit:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        """Ends training when the time is up."""
        super().on_epoch_end(epoch, logs)
        if self.seconds >= self.limit:
            self.model.stop_training = True
