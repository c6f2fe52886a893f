"""`StepTimer`: how long a training step takes, measured on a copy of a model."""

import random
import time
from collections.abc import Sequence

import keras
import numpy as np

from keras_bandgnn.checks import instance, refuse

_MOST_STEPS = 200
_SOME_STEPS = 6
# Steps longer than this are not repeated more than needed.
_LONG_S = 0.3


def _usual(values: Sequence[float]) -> float:
    """Return the lower quartile: other work on the machine only ever adds time."""
    return float(np.quantile(values, 0.25))


class _Repeated(keras.utils.PyDataset):
    """Ready-made batches, over and over."""

    def __init__(self, batches: Sequence[tuple], steps: int):
        super().__init__(workers=1)
        self.batches = batches
        self.steps = steps

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> tuple:
        return self.batches[index % len(self.batches)]


def _copy(model: keras.Model) -> keras.Model:
    try:
        copy = type(model).from_config(model.get_config())
        copy.compile_from_config(model.get_compile_config())
    except Exception as error:
        raise ValueError(
            "Expected a model that Keras can make again from its configuration, so "
            f"that yours stays as it is. Received: {type(model).__name__}, of which "
            f"{type(error).__name__}: {error} Give it get_config() and register its "
            "classes, losses and metrics with keras.saving."
        ) from error
    return copy


class StepTimer:
    """Times training steps on a copy of a model, as `fit` carries them out.

    The model given is not touched: neither its weights, nor its optimiser, nor the
    generators that Python and NumPy draw seeds from.

    Args:
        model: A compiled Keras model over the batch contract.

    Raises:
        ValueError: If the model is not compiled or cannot be copied.

    Example:
    >>> layer = keras.layers.Dense(1)
    >>> model = keras.Sequential([keras.Input((2,)), layer])
    >>> model.compile("sgd", "mse")
    >>> timer = StepTimer(model)
    >>> timer.add("small", (np.zeros((4, 2)), np.zeros((4, 1))))
    >>> timer.visit("small") > 0
    True
    """

    def __init__(self, model: keras.Model):
        instance("model", model, keras.Model, "a keras.Model, such as a GraphRegressor")
        if not model.compiled:
            refuse("model", "a compiled model", model, "Call model.compile() first.")
        states = random.getstate(), np.random.get_state()
        try:
            self.model = _copy(model)
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
        self.first_s: dict = {}
        self.visits: dict = {}
        self._batches: dict = {}
        self._step_s: dict = {}
        self._epoch_s: list[float] = []

    def programs(self, shapes: int) -> int:
        """Return the programs that the backend compiles for a number of shapes.

        JAX compiles one per shape. TensorFlow traces one for all shapes (a task's
        loader leaves sizes open) unless XLA compiles it. torch compiles none, or with
        `jit_compile=True` one for the first shape and one for all others.
        """
        if self.model.run_eagerly:
            return 0
        backend, compiled = keras.backend.backend(), self.model.jit_compile
        if backend == "tensorflow":
            return shapes if compiled else min(shapes, 1)
        if backend == "torch":
            return min(shapes, 2) if compiled else 0
        return shapes if compiled else 0

    def fit(self, data) -> float:
        """Return the seconds of one epoch of `fit` over `data`.

        At both ends of an epoch Keras has waited for the device.
        """
        clock = []
        callback = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda *_: clock.append(time.perf_counter()),
            on_epoch_end=lambda *_: clock.append(time.perf_counter()),
        )
        options = {"epochs": 1, "verbose": 0, "shuffle": False}
        self.model.fit(data, callbacks=[callback], **options)
        return clock[1] - clock[0]

    def fit_ms(self, data) -> float:
        """Return milliseconds per step of an epoch over `data`, less its fixed cost.

        Args:
            data: A `keras.utils.PyDataset`, all of whose shapes are compiled already.
        """
        seconds = self.fit(data)
        # An epoch of few steps must not fall below the minimum cost of a step.
        return 1e3 * max(seconds - self.epoch_s, 0.1 * seconds) / len(data)

    def add(self, key, batch: tuple) -> None:
        """Add a batch and run its first step, which may compile.

        Args:
            key: What the batch is called, hashable.
            batch: (x, y, sample_weight) or less.
        """
        self._batches[key] = batch
        self.visits[key] = []
        self.first_s[key] = self.fit(_Repeated([batch], 1))
        one = self.fit(_Repeated([batch], 1))
        if self._epoch_s and one > _LONG_S:
            self._step_s[key] = max(one - self.epoch_s, 0.1 * one)
            return
        more = self.fit(_Repeated([batch], _SOME_STEPS))
        self._step_s[key] = max(more - one, 0.1 * more) / (_SOME_STEPS - 1)
        self._epoch_s.append(max(0.0, one - self._step_s[key]))

    @property
    def epoch_s(self) -> float:
        """Seconds that an epoch costs in addition to its steps."""
        return _usual(self._epoch_s) if self._epoch_s else 0.0

    @property
    def rough_s(self) -> float:
        """Seconds per step, roughly, as known before any visit."""
        return float(np.mean(list(self._step_s.values())))

    def visit(self, key, seconds: float = 0.2) -> float:
        """Run some steps of a batch; return milliseconds per step.

        Args:
            key: A batch that was added.
            seconds: About how long to run.
        """
        # So long that the epoch around the steps hardly counts.
        seconds = max(seconds, 2 * self.epoch_s)
        steps = int(np.clip(seconds / self._step_s[key], 1, _MOST_STEPS))
        self.visits[key].append(self.fit_ms(_Repeated([self._batches[key]], steps)))
        return self.visits[key][-1]

    def ms(self, key) -> float:
        """Return milliseconds per step of a batch: the lower quartile of the visits."""
        return _usual(self.visits[key])

    def compile_s(self) -> float:
        """Return seconds per compilation: the median of first less steady steps.

        The very first step is left out if there are others: it also loads libraries.
        """
        extra = [
            self.first_s[key] - self.epoch_s - self.ms(key) / 1e3
            for key in self._batches
            if self.visits[key]
        ]
        return float(max(0.0, np.median(extra[1:] or extra)))
