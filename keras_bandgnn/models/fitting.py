"""Reproducible and resumable training of a task on a `GraphLoader`."""

import os
from collections.abc import Callable

import keras

from keras_bandgnn import compat
from keras_bandgnn import ops as graph_ops
from keras_bandgnn.data.files import atomic_path, buffered_write
from keras_bandgnn.distribution.replica_group import active_group
from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.preprocessing.loading.loader import Loader


def _is_local(path, suffix: str | tuple[str, ...]) -> bool:
    """Return whether Keras would write one file with this suffix, here."""
    if not isinstance(path, str | os.PathLike):
        return False
    return os.fspath(path).endswith(suffix) and "://" not in os.fspath(path)


def _on_device(arguments: tuple) -> tuple:
    """Return the arguments of a step as it reads them."""
    return arguments if backend.step_data is None else backend.step_data(arguments)


class Replicated(compat.BuildHooks):
    """A model whose steps run on the devices of the scope that it was created in.

    `distribution` is the `ReplicaGroup`; one device without a scope.
    """

    # Host-side, replaceable at any time: Keras must not track these as sublayers.
    host_side = ("distribution", "record_steps")
    # Which steps torch records; see `GraphModel.compile`.
    record_steps: bool | str = "auto"
    # Whether several devices may share a supergraph. Each class says so for itself; see
    # `distribution.sequence_parallel`.
    splits_sequences = False

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.distribution = active_group()

    def __setattr__(self, name, value):
        if name in self.host_side:
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    def train_step(self, *args):
        """Run a training step on all devices."""
        args = _on_device(args)
        logs = self._recorded("train", args)
        if logs is None:
            logs = self.distribution.train_step(self, *args)
        return super().train_step(*args) if logs is None else logs

    def test_step(self, *args):
        """Run an evaluation step on all devices."""
        args = _on_device(args)
        logs = self._recorded("test", args)
        if logs is None:
            logs = self.distribution.test_step(self, *args)
        return super().test_step(*args) if logs is None else logs

    def predict_step(self, *args):
        """Return the outputs for a batch."""
        args = _on_device(args)
        outputs = self._recorded("predict", args)
        return super().predict_step(*args) if outputs is None else outputs

    def _recorded(self, kind: str, args: tuple):
        """Return what a recorded step of torch returns; None to take another."""
        if backend.recorded is None:
            return None
        return backend.recorded(self, kind, args[-1])

    def save(self, filepath, *args, **kwargs):
        """Save the model atomically; see `keras.Model.save`."""
        if _is_local(filepath, (".h5", ".hdf5")):
            raise ValueError(
                "Expected a file that ends with .keras: Keras' older form holds no "
                f"model with a backbone. Received: {os.fspath(filepath)!r}. Write "
                "save('model.keras'), or save_weights('model.weights.h5')."
            )
        with self.distribution.local_only(), compat.without_tensorflow_checks():
            if args or kwargs or not _is_local(filepath, ".keras"):
                return super().save(filepath, *args, **kwargs)
            with atomic_path(filepath) as hidden:
                return super().save(hidden)

    def save_weights(self, filepath, *args, **kwargs):
        """Save the weights atomically; see `keras.Model.save_weights`."""
        with self.distribution.local_only():
            if args or not kwargs.get("overwrite", True) or len(kwargs) > 1:
                return super().save_weights(filepath, *args, **kwargs)
            if "max_shard_size" in kwargs or not _is_local(filepath, ".weights.h5"):
                return super().save_weights(filepath, *args, **kwargs)
            with buffered_write(filepath) as held:
                return super().save_weights(held)

    def stateless_call(self, *args, **kwargs):
        """Call the model on all devices of JAX; see `keras.Model.stateless_call`."""
        call = self.distribution.stateless_call(self, super().stateless_call)
        return call(*args, **kwargs)

    def batch_to_build(self, batch):
        """Return one device's part of a batch, which determines shapes."""
        plain = self.distribution.plain_batch(self)
        return batch if plain is None else plain

    def builds_from_batches(self) -> bool:
        """Return whether Keras builds from batches; not if metrics are built already.

        On TensorFlow Keras would average a distributed batch, which is invalid for ids
        and masks.
        """
        return self.distribution.size == 1 or not self.distribution.builds_metrics


def first_draw(epoch: int) -> int:
    """Return the first counter of Keras' seed generators in an epoch.

    Epochs are 2**20 draws apart. The counter has 31 bits on torch, so it wraps after
    2,048 epochs, with an offset of 1,024 draws.
    """
    turn, place = divmod(epoch, 1 << 11)
    return (place << 20) + ((turn << 10) & ((1 << 19) - 1))


class SeedFromEpoch(keras.callbacks.Callback):
    """Seeds the order and the dropout of each epoch by its number.

    Training that resumes at an epoch then continues as if it had not stopped. (Keras'
    checkpoints store neither.)
    """

    def __init__(self, loader: Loader, seed: int):
        super().__init__()
        self.loader = loader
        self.seed = seed
        self._states: list | None = None

    def on_epoch_begin(self, epoch, logs=None):
        """Set the order and the seeds of the epoch."""
        self._epoch = epoch
        self.loader.epoch = epoch if self.loader.shuffle else 0
        if self.loader.resumed_batches:
            # Restored in the middle of the epoch, seeds and all.
            return
        for variable in self.model.variables:
            if variable.path.endswith("seed_generator_state"):
                seed = keras.ops.convert_to_numpy(variable)[0]
                variable.assign([seed, first_draw(epoch)])

    def on_train_batch_begin(self, batch, logs=None):
        """Set the seed of the batch, on torch."""
        # Dropout draws from torch's global generator, which checkpoints do not store.
        # Between steps that generator is the caller's.
        if backend.random_states is not None:
            self._states = backend.random_states()
            place = (self._epoch << 20) + batch + self.loader.resumed_batches
            # Hosts that train together need different masks.
            graph_ops.seed_global(self.seed + place + (self.loader.host << 48))

    def on_train_batch_end(self, batch, logs=None):
        """Restore the random states of torch from before the batch."""
        self.restore()

    def restore(self) -> None:
        """Restore the random states of torch, also after a step that failed."""
        if self._states is not None:
            backend.set_random_states(self._states)
            self._states = None


def follow(callbacks, loader: Loader):
    """Tell callbacks that read a loader which one it is, and put those first that log.

    Args:
        callbacks: A callback, a list of them, or None. A `CallbackList` of Keras is
            returned as it is.
        loader: The loader of `fit`, `evaluate` or `predict`.
    """
    from keras_bandgnn.training.progress_callbacks import (
        GraphProgressBar,
        ProgressLines,
    )
    from keras_bandgnn.training.throughput_monitor import ThroughputMonitor

    if callbacks is None or isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    listed = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
    for callback in listed:
        if isinstance(callback, GraphProgressBar | ProgressLines | ThroughputMonitor):
            callback.follow(loader)
    # What it adds to the logs is read by the others.
    return sorted(listed, key=lambda c: not isinstance(c, ThroughputMonitor))


def shown_by(options: dict, callbacks) -> tuple:
    """Return `verbose` and the callbacks, with lines of progress without a terminal.

    There `"auto"` is 2, a line per epoch: Keras' bar would fill a file with all its
    states. Lines within the epoch come with it; see `ProgressLines`.

    Args:
        options: Options of `fit` or `evaluate`, `verbose` among them.
        callbacks: A callback, a list of them, a `CallbackList` or None.
    """
    from keras_bandgnn.training.progress_callbacks import ProgressLines, shows_bars

    verbose = options.get("verbose", "auto")
    if verbose == "auto" and not shows_bars():
        verbose = 2
    if verbose != 2 or isinstance(callbacks, keras.callbacks.CallbackList):
        return verbose, callbacks
    callbacks = [] if callbacks is None else callbacks
    listed = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
    if not any(isinstance(callback, ProgressLines) for callback in listed):
        listed.append(ProgressLines())
    return verbose, listed


def as_fit_data(data, task):
    """Return the data that `fit` and `evaluate` of this backend take, from a loader.

    Args:
        data: A loader, or what Keras takes.
        task: The model.
    """
    if not isinstance(data, Loader):
        return data
    if task.distribution.several:
        task.distribution.check(data)
        return task.distribution.data(task, data)
    if keras.backend.backend() == "tensorflow" and not data.has_one_shape:
        from keras_bandgnn.preprocessing.loading.exports import to_tf_data

        # Its signature leaves open which sizes vary, so a step is traced once.
        return to_tf_data(data)
    if keras.backend.backend() != "jax" and compat.DirectBatches.serve(task):
        return compat.DirectBatches(data, backend.batch_data)
    return data


def _has_dropout(model: keras.Model) -> bool:
    """Return whether states of a model's backbone are random in training."""
    backbone = getattr(model, "backbone", None)
    if backbone is None:
        return True
    # Rates, or layers.
    return any(value for name, value in vars(backbone).items() if "dropout" in name)


def fit_loader(model: keras.Model, fit: Callable, loader: Loader, **kwargs):
    """Train, from the progress saved by a `SaveProgress` among the callbacks.

    Args:
        model: The model.
        fit: Keras' own `fit` of the model.
        loader: The training graphs.
        **kwargs: Arguments of `fit`, callbacks among them.

    Returns:
        Keras' `History`.
    """
    if loader.plan.schedule is not None and _has_dropout(model):
        loader.keep_states_apart()
    loader.end_after(kwargs.get("epochs", 1) - 1)
    try:
        return _fit(model, fit, loader, kwargs)
    finally:
        for callback in kwargs["callbacks"]:
            if isinstance(callback, SeedFromEpoch):
                callback.restore()
        loader.end_after(None)
        # Training that ends early leaves the loader in the middle of an epoch.
        loader.stop_threads()


def _fit(model: keras.Model, fit: Callable, loader: Loader, kwargs: dict):
    from keras_bandgnn.training.save_progress import SaveProgress

    saving = [c for c in kwargs["callbacks"] if isinstance(c, SaveProgress)]
    try:
        history = _fit_on(model, fit, loader, saving, **kwargs)
        for callback in saving:
            callback.clear()
    finally:
        for callback in saving:
            callback.release()
    return history


def _fit_on(model: keras.Model, fit: Callable, loader: Loader, saving, **kwargs):
    place = None
    for callback in saving:
        callback.follow(loader)
        place = place or callback.restore(model, loader)
    epoch, batches = place or (kwargs.get("initial_epoch", 0), 0)
    before = None
    if batches:
        for callback in saving:
            callback.follow(loader, batches)
        # Keras cannot start in the middle of an epoch: a separate `fit` completes it.
        rest = {**kwargs, "initial_epoch": epoch, "epochs": epoch + 1}
        try:
            before = fit(as_fit_data(loader, model), None, **rest)
        finally:
            loader.clear_resume()
        epoch += 1
    history = before
    if before is None or not model.stop_training:
        kwargs["initial_epoch"] = epoch
        history = fit(as_fit_data(loader, model), None, **kwargs)
        if before is not None:
            history.epoch = before.epoch + history.epoch
            for name, values in before.history.items():
                history.history[name] = values + history.history.get(name, [])
    return history
