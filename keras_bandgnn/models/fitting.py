"""How a task trains on a `GraphLoader`: reproducibly, resumably, on every backend."""

from collections.abc import Callable

import keras

from keras_bandgnn import ops as kernels
from keras_bandgnn.preprocessing.graph_loader import GraphLoader
from keras_bandgnn.preprocessing.loader_exports import to_tf_data
from keras_bandgnn.preprocessing.sequence_loader import SequenceLoader
from keras_bandgnn.training.save_progress import SaveProgress


def first_draw(epoch: int) -> int:
    """Where the seed generators of Keras count on from in an epoch.

    Epochs are 2**20 draws apart. The counter has 31 bits on torch, so after 2,048
    epochs the places are those of before, 1,024 draws further on.
    """
    turn, place = divmod(epoch, 1 << 11)
    return (place << 20) + ((turn << 10) & ((1 << 19) - 1))


class FollowEpoch(keras.callbacks.Callback):
    """Makes order and dropout of an epoch depend on its number alone.

    Training that resumes at some epoch then goes on as if it had not stopped. (Keras'
    checkpoints hold neither.)
    """

    def __init__(self, loader: GraphLoader, seed: int):
        super().__init__()
        self.loader = loader
        self.seed = seed

    def on_epoch_begin(self, epoch, logs=None):
        """Goes to the order and the seeds of the epoch."""
        self._epoch = epoch
        self.loader.epoch = epoch if self.loader.shuffle else 0
        if self.loader.skipped:
            # Restored in the middle of the epoch, seeds and all.
            return
        for variable in self.model.variables:
            if variable.path.endswith("seed_generator_state"):
                seed = keras.ops.convert_to_numpy(variable)[0]
                variable.assign([seed, first_draw(epoch)])

    def on_train_batch_begin(self, batch, logs=None):
        """Goes to the seed of the batch, on torch."""
        # Dropout draws from torch's global generator, which has no place in a file.
        if keras.backend.backend() == "torch":
            place = (self._epoch << 20) + batch + self.loader.skipped
            # Hosts that train together draw masks of their own.
            kernels.seed_global(self.seed + place + (self.loader.host << 48))


def on_this_backend(data, task):
    """A loader as `fit` and `evaluate` of this backend take it."""
    if isinstance(data, SequenceLoader):
        data.check(task)
    if isinstance(data, GraphLoader | SequenceLoader) and task.distribution.several:
        task.distribution.check(data)
        return task.distribution.data(task, data)
    if isinstance(data, SequenceLoader) and keras.backend.backend() == "tensorflow":
        return data.to_tf_data()
    if (
        isinstance(data, GraphLoader)
        and keras.backend.backend() == "tensorflow"
        and not (data.batcher.fixed_shapes and len(data.budgets) == 1)
    ):
        # Keras takes the signature from two batches; other sizes may follow.
        return to_tf_data(data)
    return data


def fit_loader(model: keras.Model, fit: Callable, loader: GraphLoader, **kwargs):
    """Trains, from where a `SaveProgress` among the callbacks says.

    Args:
        model: The model.
        fit: Keras' own `fit` of the model.
        loader: The training graphs.
        **kwargs: Arguments of `fit`, callbacks among them.

    Returns:
        Keras' `History`.
    """
    try:
        return _fit(model, fit, loader, kwargs)
    finally:
        # Training that ends early leaves the loader within an epoch.
        loader.stop_threads()


def _fit(model: keras.Model, fit: Callable, loader: GraphLoader, kwargs: dict):
    saving = [c for c in kwargs["callbacks"] if isinstance(c, SaveProgress)]
    try:
        history = _fit_on(model, fit, loader, saving, **kwargs)
        for callback in saving:
            callback.clear()
    finally:
        for callback in saving:
            callback.release()
    return history


def _fit_on(model: keras.Model, fit: Callable, loader: GraphLoader, saving, **kwargs):
    place = None
    for callback in saving:
        callback.follow(loader)
        place = place or callback.restore(model, loader)
    epoch, batches = place or (kwargs.get("initial_epoch", 0), 0)
    before = None
    if batches:
        for callback in saving:
            callback.follow(loader, batches)
        # Keras has no epoch that begins in the middle: what is left of it is a `fit`
        # of its own.
        rest = {**kwargs, "initial_epoch": epoch, "epochs": epoch + 1}
        try:
            before = fit(on_this_backend(loader, model), None, **rest)
        finally:
            loader.whole_epochs()
        epoch += 1
    history = before
    if before is None or not model.stop_training:
        kwargs["initial_epoch"] = epoch
        history = fit(on_this_backend(loader, model), None, **kwargs)
        if before is not None:
            history.epoch = before.epoch + history.epoch
            for name, values in before.history.items():
                history.history[name] = values + history.history.get(name, [])
    return history
