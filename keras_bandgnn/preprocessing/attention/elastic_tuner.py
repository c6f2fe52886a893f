"""`ElasticTuner`: tunes the threshold of reformation by the rate of loss descent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from keras_bandgnn import keras_bases
from keras_bandgnn.checks import (
    function,
    non_negative_number,
    positive_int,
    refuse,
    sequence,
)
from keras_bandgnn.preprocessing.attention.reformation import LADDER

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Logs

# Of the running loss.
_MOMENTUM = 0.9


class ElasticTuner(keras_bases.Callback):
    """Tunes, during training, which clusters are laid out as dense tiles.

    Experimental: it may change in any release. A high threshold of `reform` makes
    epochs faster and attention coarser. After each epoch t the tuner compares the rate
    of loss descent with that of some epochs ago:

    - running loss F_t = 0.9 F_(t-1) + 0.1 loss_t, F_0 = loss_0;
    - rate LDR_t = (F_(t-1) - F_t) / seconds of the epoch. (As printed in the paper the
      sign is the opposite, so that a falling loss would have a negative rate.)
    - if LDR_t >= LDR_(t-delta), it selects the next higher threshold, otherwise the
      next lower one, within the ends of the ladder. A loss that is not finite counts as
      slower and does not update F.

    The first epoch of a `fit` and the first at each threshold include compilation, so
    they have no rate: the threshold stays after such an epoch, and delta epochs later,
    when its rate would be the reference. So every threshold is measured for at least
    one epoch, and the first decision follows epoch delta + 1. The number of thresholds,
    and so of programs of a jitted step, is at most the length of the ladder. Validation
    time does not count.

    `logs["threshold"]`, and so the history, has the threshold of each epoch. A second
    `fit` continues from the first. In distributed training, where each process has a
    different clock, one process must decide for all.

    Args:
        set_threshold: Called as `set_threshold(multiple)` at the beginning of a `fit`
            and at every change. It must set the model's tiles to
            `reform(..., threshold=multiple)`.
        delta: Epochs between the two rates to compare.
        ladder: Thresholds, ascending, in multiples of the density of the graph.
        start: Initial threshold, one of the ladder.

    Attributes:
        threshold: The current threshold.
        decisions: A dictionary per epoch: epoch, loss, running_loss, seconds, rate,
            before, after, reason.

    Raises:
        ValueError: For a ladder that is not ascending or does not contain `start`.

    Reference:
        Zhang et al. 2024 (TorchGT), Section III-D.

    Example:
    >>> tuner = ElasticTuner(lambda multiple: None, delta=5, start=5.0)
    >>> tuner.threshold, tuner.decisions
    (5.0, [])
    """

    def __init__(
        self,
        set_threshold: Callable[[float], object],
        delta: int = 10,
        ladder: Sequence[float] | None = LADDER,
        start: float = 1.0,
    ):
        super().__init__()
        self._set = function("set_threshold", set_threshold)
        self.delta = positive_int("delta", delta)
        ladder = sequence("ladder", ladder, "a list of numbers")
        self.ladder = tuple(non_negative_number("ladder", value) for value in ladder)
        start = non_negative_number("start", start)
        if self.ladder != tuple(sorted(set(self.ladder))) or start not in self.ladder:
            refuse("ladder", f"ascending and to contain start={start}", self.ladder)
        self.decisions: list[dict] = []
        self._index = self.ladder.index(start)
        self._clock = time.monotonic
        self._compiled: set[int] = set()
        self._begin = self._test_begin = 0.0

    @property
    def threshold(self) -> float:
        """The current threshold, in multiples of the density of the graph."""
        return self.ladder[self._index]

    def on_train_begin(self, logs: Logs = None) -> None:
        """Set the current threshold."""
        self._compiled = set()
        self._set(self.threshold)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Start the clock."""
        self._begin = self._clock()

    def on_test_begin(self, logs: Logs = None) -> None:
        """Record the beginning of validation."""
        self._test_begin = self._clock()

    def on_test_end(self, logs: Logs = None) -> None:
        """Exclude validation from the time of the epoch."""
        self._begin += self._clock() - self._test_begin

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Decide on the threshold of the next epoch."""
        before, loss = self.threshold, float(logs["loss"])
        row = {"epoch": int(epoch), "loss": loss}
        row["seconds"] = self._clock() - self._begin
        row["running_loss"], row["rate"] = self._descent(loss, row["seconds"])
        step, reason = self._decision(loss, row["rate"])
        self._index = min(max(self._index + step, 0), len(self.ladder) - 1)
        if step and self.threshold == before:
            reason += ", end of the ladder"
        logs["threshold"] = before
        row |= {"before": before, "after": self.threshold, "reason": reason}
        self.decisions.append(row)
        if self.threshold != before:
            self._set(self.threshold)

    def _descent(self, loss: float, seconds: float) -> tuple:
        """Return the running loss and its rate of descent, each None if undefined."""
        last = self.decisions[-1]["running_loss"] if self.decisions else None
        compiling = self._index not in self._compiled
        self._compiled.add(self._index)
        if not math.isfinite(loss):
            return last, None
        if last is None:
            return loss, None
        running = _MOMENTUM * last + (1 - _MOMENTUM) * loss
        # The resolution of the clock may exceed the time of an epoch.
        return running, None if compiling else (last - running) / max(seconds, 1e-9)

    def _decision(self, loss: float, rate: float | None) -> tuple[int, str]:
        """Return the step on the ladder, and the reason."""
        if not math.isfinite(loss):
            return -1, "the loss is not finite"
        if len(self.decisions) < self.delta:
            return 0, "too early"
        earlier = self.decisions[-self.delta]["rate"]
        if rate is None:
            return 0, "no rate, this epoch compiled"
        if earlier is None:
            return 0, f"no rate {self.delta} epochs ago"
        return (1, "as fast or faster") if rate >= earlier else (-1, "slower")

    def get_state(self) -> dict:
        """Return the state to resume from: the threshold and the decisions so far."""
        return {"threshold": self.threshold, "decisions": list(self.decisions)}

    def set_state(self, state: dict) -> None:
        """Restore the state of `get_state()`, from which the next `fit` continues."""
        self._index = self.ladder.index(state["threshold"])
        self.decisions = list(state["decisions"])
