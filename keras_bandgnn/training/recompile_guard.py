"""`RecompileGuard`: counts compilations and stops training past a budget."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras

from keras_bandgnn import keras_bases
from keras_bandgnn.checks import boolean, one_of, optional, positive_int
from keras_bandgnn.ops.backend import current as backend

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Logs


@dataclasses.dataclass(frozen=True)
class Compilation:
    """One compilation of a step, and the batch that caused it.

    Args:
        kind: "train", "test" or "predict".
        epoch: Epoch, from 0.
        step: Step of the epoch, from 0. With `steps_per_execution` above 1 the first
            of the steps that run together.
        shapes: Path of each array of the batch ("edge/sender", "y") -> its shape.
            Dimensions that TensorFlow does not know are None.
        dtypes: Path of each array -> its dtype.
        changed: Differences from the previous compilation, a line per array. Empty for
            the first one, and if no shape or dtype differs.
    """

    kind: str
    epoch: int
    step: int
    shapes: dict[str, tuple | None]
    dtypes: dict[str, str]
    changed: tuple[str, ...]

    @classmethod
    def of(
        cls, kind: str, epoch: int, step: int, batch: Any, earlier: Compilation | None
    ) -> Compilation:
        """Describe the compilation that a batch caused.

        Args:
            kind: "train", "test" or "predict".
            epoch: Epoch, from 0.
            step: Step of the epoch, from 0.
            batch: A batch of a data set: x, (x,), (x, y) or (x, y, sample_weight),
                each an array or nested. Arrays in a dict x are named by their path.
            earlier: The previous compilation of the same step.

        Example:
        >>> import numpy as np
        >>> batch = {"node": {"kind": np.zeros((1, 4), "int32")}}, np.zeros(2)
        >>> Compilation.of("train", 0, 0, batch, None).shapes
        {'node/kind': (1, 4), 'y': (2,)}
        """
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        shapes, dtypes = {}, {}
        parts = {"" if isinstance(x, dict) else "x": x, "y": y, "sample_weight": weight}
        for name, part in parts.items():
            for path, leaf in keras.tree.flatten_with_path(part):
                if hasattr(leaf, "shape"):
                    path = "/".join(str(key) for key in (name, *path) if key != "")
                    has_rank = getattr(leaf.shape, "rank", 0) is not None
                    shapes[path] = tuple(leaf.shape) if has_rank else None
                    dtypes[path] = keras.backend.standardize_dtype(leaf.dtype)
        changed = []
        if earlier:
            changed = _changes(earlier.shapes, shapes)
            changed = changed or _changes(earlier.dtypes, dtypes)
        return cls(kind, epoch, step, shapes, dtypes, tuple(changed))


def _changes(before: dict, after: dict) -> list[str]:
    return [
        f"{path}: {before.get(path, 'absent')} -> {after.get(path, 'absent')}"
        for path in dict.fromkeys([*before, *after])
        if before.get(path) != after.get(path)
    ]


STEPS = {"train": "training", "test": "evaluation", "predict": "prediction"}
MAX_LINES = 8


class RecompilationError(RuntimeError):
    """A step was compiled more often than its budget allows."""


class RecompileGuard(keras_bases.Callback):
    """Counts the compilations of a fit, reports their causes, and limits them.

    Shapes that vary from batch to batch silently trigger recompilations of seconds to
    minutes each. The guard reports them. A compilation is:

    - JAX: a program compiled by XLA for the jitted step.
    - TensorFlow: a trace of the step; under XLA (`jit_compile=True`) each new set of
      shapes.
    - torch: a step in which `torch.compile` builds graphs. With the default
      `jit_compile="auto"` nothing is compiled; with `jit_compile=True` the first two
      training steps are, as only the second one has gradients to clear.

    Eager steps (`run_eagerly=True`) do not compile. A step that compiles several
    programs counts once. Building the model does not count. Counts are reset by each
    `fit`, which reuses the programs compiled before.

    Args:
        budget: Maximum compilations of the training step in one `fit`, at least 0.
        action: Past a budget, "raise" an error, "warn" at each compilation, or just
            "count".
        test_budget: The same for the evaluation step, at least 0; None for `budget`.
            Prediction (`predict(callbacks=[guard])`) is counted without limit.
        verbose: Whether to print `summary()` at the end of training.

    Raises:
        RecompilationError: Past a budget, with `action="raise"`, before the next step.

    Example:
    >>> import keras, numpy as np
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse", run_eagerly=True)
    >>> guard = RecompileGuard(budget=1)
    >>> history = model.fit(np.zeros((4, 2)), np.zeros(4), verbose=0, callbacks=[guard])
    >>> guard.count
    0
    """

    def __init__(
        self,
        budget: int = 1,
        action: str = "raise",
        test_budget: int | None = None,
        verbose: bool = False,
    ):
        super().__init__()
        self.budget = positive_int("budget", budget, 0)
        self.action = one_of("action", action, ("raise", "warn", "count"))
        test_budget = optional(positive_int, "test_budget", test_budget, 0)
        self.test_budget = test_budget
        self.verbose = boolean("verbose", verbose)
        self.compilations: list[Compilation] = []
        self._epoch = self._step = 0
        self._watched: dict[str, tuple] = {}
        self._error: str | None = None

    @property
    def count(self) -> int:
        """Compilations of the training step."""
        return self._count("train")

    @property
    def test_count(self) -> int:
        """Compilations of the evaluation step."""
        return self._count("test")

    @property
    def predict_count(self) -> int:
        """Compilations of the prediction step."""
        return self._count("predict")

    def summary(self) -> str:
        """Return a table of the compilations and their causes."""
        lines = [
            f"compilations: {self.count} training, {self.test_count} evaluation, "
            f"{self.predict_count} prediction"
        ]
        if self.compilations:
            lines.append(f"{'step':<12}{'epoch':>5}{'step':>7}  cause")
        seen = set()
        for item in self.compilations:
            unchanged = "nothing in the batch" if item.kind in seen else "first batch"
            seen.add(item.kind)
            where = f"{STEPS[item.kind]:<12}{item.epoch:>5}{item.step:>7}  "
            for line in _shortened(item.changed or (unchanged,)):
                lines.append(where + line)
                where = " " * len(where)
        return "\n".join(lines)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Reset the counts."""
        self.compilations = []
        self._watched = {}
        self._error = None

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Note the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Watch the training step."""
        self._watch("train", batch)

    def on_test_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Watch the evaluation step."""
        self._watch("test", batch)

    def on_predict_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Watch the prediction step."""
        self._watch("predict", batch)

    # Not at the end of a batch: callbacks that wait for it make Keras fetch the
    # results of every step from the device.
    def on_test_begin(self, logs: Logs = None) -> None:
        """Raise if the last training step was compiled past the budget."""
        self._raise_if_over()

    def on_test_end(self, logs: Logs = None) -> None:
        """Raise if the last evaluation step was compiled past the budget."""
        self._raise_if_over()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Raise if the last training step was compiled past the budget."""
        self._raise_if_over()

    def on_train_end(self, logs: Logs = None) -> None:
        """Print the summary if `verbose`."""
        self._watched = {}
        self._epoch = 0
        if self.verbose:
            print(self.summary())

    def _count(self, kind: str) -> int:
        return sum(item.kind == kind for item in self.compilations)

    def _watch(self, kind: str, step: int) -> None:
        self._raise_if_over()
        self._step = step
        # `self.model` would copy JAX's state back into the variables at every step.
        model, name = self._model, f"{kind}_function"
        if model.run_eagerly:
            return
        function = getattr(model, name)
        original, watched = self._watched.get(kind, (None, None))
        if function is not original:
            watched = self._stand_in(model, kind, function)
            self._watched[kind] = (function, watched)
        _set(model, name, watched)

    def _stand_in(self, model, kind: str, function) -> Callable:
        """Return a replacement of the model's step that restores it when called.

        So nothing has to be undone when a step, the data or another callback raises.
        """
        name = f"{kind}_function"
        reports = [functools.partial(self._record, kind)]
        if hasattr(function, "reports"):
            # The replacement by another guard: watch the step itself, for both.
            function, reports = function.step, [*function.reports, *reports]
            _set(model, name, function)

        def report(batch):
            for listener in reports:
                listener(batch)

        watched = backend.watch_step(model, name, report)

        def once(*args):
            _set(model, name, function)
            return watched(*args)

        once.step, once.reports = function, reports
        return once

    def _record(self, kind: str, batch) -> None:
        earlier = [item for item in self.compilations if item.kind == kind]
        last = earlier[-1] if earlier else None
        item = Compilation.of(kind, self._epoch, self._step, batch, last)
        self.compilations.append(item)
        argument, budget = "budget", self.budget
        if kind == "test" and self.test_budget is not None:
            argument, budget = "test_budget", self.test_budget
        count = len(earlier) + 1
        if kind == "predict" or self.action == "count" or count <= budget:
            return
        message = _message(item, count, budget, argument)
        if self.action == "warn":
            warnings.warn(message, stacklevel=2)
        else:
            self._error = self._error or message

    def _raise_if_over(self) -> None:
        if self._error is None:
            return
        message, self._error = self._error, None
        # On JAX the variables are empty during an epoch; this restores them.
        _ = self.model
        raise RecompilationError(message)


def _set(model, name: str, step: Callable) -> None:
    # Bypass the attribute tracking of Keras and torch, which is slow.
    object.__setattr__(model, name, step)


def _message(item: Compilation, count: int, budget: int, argument: str) -> str:
    lines = [
        f"Expected at most {budget} compilation{'s' * (budget != 1)} of the "
        f"{STEPS[item.kind]} step. Received: {count}, the last at epoch {item.epoch}, "
        f"step {item.step}."
    ]
    more = f"RecompileGuard({argument}={count})."
    if item.changed:
        lines.append("Changes since the previous compilation:")
        lines += [f"  {line}" for line in _shortened(item.changed)]
        lines.append(
            "Pad batches to fixed sizes with DynamicBatcher or "
            f"StaticBatcher(padding='constant'), or allow more with {more}"
        )
    else:
        lines.append(
            "No array of the batch changed its shape or dtype, so padding cannot "
            f"help. If it happens once per fit, allow it with {more}"
        )
    return "\n".join(lines)


def _shortened(lines: tuple[str, ...]) -> list[str]:
    hidden = len(lines) - MAX_LINES
    return [*lines[:MAX_LINES], *([f"and {hidden} more"] if hidden > 0 else [])]
