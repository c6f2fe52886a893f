"""Reproducible and resumable training on a loader, and the options of `fit`."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from keras_bandgnn import compat
from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import boolean, one_of, positive_int, refuse
from keras_bandgnn.distribution.replica_group import callbacks_of
from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.preprocessing.loading.loader import Loader

_BATCHES = (
    "Batches are those of the preprocessor, and all of them. Set the batcher's size "
    "or budget: GraphPreprocessor([], StaticBatcher(32)), DynamicBatcher(32)."
)
_MASKS = (
    "Masks choose nodes of NodeClassifier and NodeRegressor, and edges of "
    "EdgeClassifier and EdgeRegressor. Of graphs pass those to train on, such as "
    "graphs[:n]."
)
# True and False are 1 and 0.
VERBOSE = ("auto", 0, 1, 2)
_REFUSED = {
    "batch_size": _BATCHES,
    "steps_per_epoch": _BATCHES,
    "steps": "Pass fewer graphs: graphs[:n].",
    "validation_batch_size": _BATCHES,
    "validation_steps": "Pass fewer graphs: validation_data=graphs[:n].",
    "mask": _MASKS,
    "validation_mask": _MASKS,
}


def options_for_graphs(
    args: Sequence,
    names: Sequence[str],
    options: Mapping[str, Any],
    refused: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return options of Keras' methods by name; refuse those that graphs cannot have.

    Args:
        args: Options by position.
        names: Their names.
        options: Options by name.
        refused: Further refused options, and the advice for each.

    Raises:
        TypeError: For more positions than names.
        ValueError: For options without a meaning for graphs, and invalid ones.
    """
    if len(args) > len(names):
        raise TypeError(
            f"Expected at most {len(names)} options by position with graphs: "
            f"{', '.join(names)}. Received: {len(args)}. Pass the others by name."
        )
    options = {**options, **dict(zip(names, args, strict=False))}
    for name, advice in {**_REFUSED, **(refused or {})}.items():
        value = options.pop(name, None)
        # Keras' default is 0.0.
        is_default = name == "validation_split" and value == 0
        if value is not None and not is_default:
            raise ValueError(
                f"Expected graphs without {name}. Received: {name}={value!r}. {advice}"
            )
    if options.get("epochs") is not None:
        positive_int("epochs", options["epochs"], 0)
    if options.get("initial_epoch") is not None:
        positive_int("initial_epoch", options["initial_epoch"], 0)
    if options.get("shuffle") is not None:
        boolean("shuffle", options["shuffle"])
    if "verbose" in options:
        one_of("verbose", options["verbose"], VERBOSE)
    check_callbacks(options.get("callbacks"))
    return options


def refuse_unknown(options: dict, names: Sequence[str], of_graphs: str) -> None:
    """Raise a TypeError for options of a graph that Keras does not have."""
    passed = {name for name, value in options.items() if value is not None}
    if unknown := passed - set(names):
        raise TypeError(
            f"Expected options of Keras. Received: {sorted(unknown)}. Options of a "
            f"graph are {of_graphs}."
        )


def check_callbacks(callbacks: Any) -> None:
    """Raise a ValueError unless these are callbacks of Keras, or None."""
    kinds = (keras.callbacks.Callback, keras.callbacks.CallbackList)
    listed = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    for callback in listed:
        if not isinstance(callback, kinds) and callbacks is not None:
            refuse("callbacks", "a list of Keras callbacks", callbacks)


def first_draw(epoch: int) -> int:
    """Return the initial counter of Keras' seed generators in an epoch.

    Epochs are 2**20 draws apart. The counter has 31 bits on torch, so it wraps after
    2,048 epochs, with an offset of 1,024 draws.
    """
    turn, place = divmod(epoch, 1 << 11)
    return (place << 20) + ((turn << 10) & ((1 << 19) - 1))


class ReproducibleEpochs(keras.callbacks.Callback):
    """Derives the order and the dropout of each epoch from its number.

    Training that resumes at an epoch then gives the same result as without an
    interruption. (Keras' checkpoints store neither state.)
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
            # In the middle of an epoch the seeds are restored, too.
            return
        for variable in self.model.variables:
            if variable.path.endswith("seed_generator_state"):
                seed = keras.ops.convert_to_numpy(variable)[0]
                variable.assign([seed, first_draw(epoch)])

    def on_train_batch_begin(self, batch, logs=None):
        """Set the seed of the batch, on torch."""
        # Dropout draws from torch's global generator, which checkpoints do not store.
        # Between steps the generator has the caller's state.
        if backend.random_states is not None:
            self._states = backend.random_states()
            place = (self._epoch << 20) + batch + self.loader.resumed_batches
            # Hosts that train together need different masks.
            graph_ops.seed_global(self.seed + place + (self.loader.host << 48))

    def on_train_batch_end(self, batch, logs=None):
        """Restore the caller's random states of torch."""
        self.restore()

    def restore(self) -> None:
        """Restore the caller's random states of torch, also after a failed step."""
        if self._states is not None:
            backend.set_random_states(self._states)
            self._states = None


class CompletedEpoch(keras.callbacks.Callback):
    """Lets callbacks see the number of all epochs while the rest of one is trained.

    Args:
        epochs: Their number.
    """

    def __init__(self, epochs: int):
        super().__init__()
        self.epochs = epochs

    def set_params(self, params):
        """Set the number that later callbacks get, such as the progress bar."""
        params["epochs"] = self.epochs
        super().set_params(params)


def attach_loader(callbacks, loader: Loader):
    """Pass a loader to the callbacks that read it, and sort those that log first.

    Args:
        callbacks: A callback, a list of them, or None. A `CallbackList` of Keras is
            returned unchanged.
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
    # Other callbacks read the logs that it adds.
    return sorted(listed, key=lambda c: not isinstance(c, ThroughputMonitor))


def resolve_verbose(options: dict, callbacks) -> tuple:
    """Return `verbose` and the callbacks, with progress lines if there is no terminal.

    Without a terminal `"auto"` means 2, a line per epoch, because Keras' progress bar
    would fill a log file. `ProgressLines` adds lines within an epoch.

    Args:
        options: Options of `fit` or `evaluate`, including `verbose`.
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


def with_callbacks(
    task, loader: Loader, options: dict, seed: int | None = None
) -> dict:
    """Return options of `fit` or `evaluate` with all callbacks of a loader.

    Args:
        task: The model.
        loader: The graphs.
        options: The options, including `callbacks` and `verbose`.
        seed: Seed of the orders and, on torch, of dropout, for `fit`.
    """
    callbacks, first = options.get("callbacks"), []
    if seed is not None:
        callbacks = callbacks or []
        callbacks = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
        callbacks = callbacks_of(task.distribution, callbacks)
        first = [ReproducibleEpochs(loader, seed)]
    if task.distribution.is_main:
        verbose, callbacks = resolve_verbose(options, callbacks)
        options = {**options, "verbose": verbose}
    callbacks = attach_loader(callbacks, loader)
    return {**options, "callbacks": [*first, *callbacks] if first else callbacks}


def say_batches(loader: Loader, plan) -> None:
    """Print one line with the batches, their fill, and the plan with its reason.

    Args:
        loader: The training graphs.
        plan: Plan of the preprocessor that made the loader; None for other loaders.
    """
    if not keras.utils.is_interactive_logging_enabled():
        return
    line = f"Batches: {loader.summary()}"
    if loader.plan.keys:
        line += f"; plan: {loader.plan}"
        if plan == "auto":
            from keras_bandgnn.planning.plan_choice import reason_of_auto

            line += f", {reason_of_auto(loader.num_hosts)}"
    print(line)


def as_fit_data(data, task):
    """Convert a loader to the data that `fit` and `evaluate` of this backend take.

    Args:
        data: A loader, or data of Keras, which is returned unchanged.
        task: The model.
    """
    if not isinstance(data, Loader):
        return data
    if task.distribution.several:
        task.distribution.check(data)
        return task.distribution.data(task, data)
    if keras.backend.backend() == "tensorflow" and not data.has_one_shape:
        from keras_bandgnn.preprocessing.loading.exports import to_tf_data

        # Its signature leaves sizes that vary open, so a step is traced once.
        return to_tf_data(data)
    if keras.backend.backend() != "jax" and compat.DirectBatches.serve(task):
        return compat.DirectBatches(data, backend.batch_data)
    return data


def _has_dropout(model: keras.Model) -> bool:
    """Return whether the backbone's states are random in training."""
    backbone = getattr(model, "backbone", None)
    if backbone is None:
        return True
    # Attributes are rates or layers.
    return any(value for name, value in vars(backbone).items() if "dropout" in name)


def fit_resumable(model: keras.Model, fit: Callable, loader: Loader, /, **kwargs):
    """Train, resuming from the progress that a `SaveProgress` callback saved.

    Args:
        model: The model.
        fit: Keras' own `fit` of the model.
        loader: The training graphs.
        **kwargs: Arguments of `fit`, including `callbacks`.

    Returns:
        Keras' `History`.
    """
    from keras_bandgnn.training.save_progress import SaveProgress, end_script

    if loader.plan.schedule is not None and _has_dropout(model):
        loader.keep_states_apart()
    loader.end_after(kwargs.get("epochs", 1) - 1)
    saving = [c for c in kwargs["callbacks"] if isinstance(c, SaveProgress)]
    with contextlib.ExitStack() as cleanup:
        # Training that ends early leaves the loader in the middle of an epoch.
        cleanup.callback(loader.stop_threads)
        cleanup.callback(loader.end_after, None)
        for callback in kwargs["callbacks"]:
            if isinstance(callback, ReproducibleEpochs):
                cleanup.callback(callback.restore)
        for callback in saving:
            cleanup.callback(callback.release)
        try:
            history = _fit_from_progress(model, fit, loader, saving, **kwargs)
        except KeyboardInterrupt as error:
            end_script(saving, error)
            raise
        for callback in saving:
            callback.clear()
    return history


def _fit_from_progress(
    model: keras.Model, fit: Callable, loader: Loader, saving: Sequence, /, **kwargs
):
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
        epochs = kwargs.get("epochs", 1)
        callbacks = [CompletedEpoch(epochs), *kwargs["callbacks"]]
        options = {**kwargs, "initial_epoch": epoch, "epochs": epoch + 1}
        options["callbacks"] = callbacks
        if (
            kwargs.get("verbose", "auto")
            and keras.utils.is_interactive_logging_enabled()
        ):
            total = loader.batches_per_epoch
            print(f"Resuming epoch {epoch + 1}/{epochs} after batch {batches}/{total}")
        try:
            before = fit(as_fit_data(loader, model), None, **options)
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
