"""`Replicated`: a model that may train on several devices."""

import os

import keras

from keras_bandgnn.data.files import atomic_path, held_write
from keras_bandgnn.distribution.replica_group import active_group


def _is_local(path, suffix: str | tuple[str, ...]) -> bool:
    """Whether Keras would write one file with this suffix, here."""
    if not isinstance(path, str | os.PathLike):
        return False
    return os.fspath(path).endswith(suffix) and "://" not in os.fspath(path)


class Replicated(keras.Model):
    """A model whose steps are those of the devices in whose scope it was made.

    `distribution` is the `ReplicaGroup`; one device without a scope.
    """

    # Host-side, replaceable at any time: Keras must not track these as sublayers.
    host_side = ("distribution",)
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
        """A step of training, over all devices."""
        logs = self.distribution.train_step(self, *args)
        return super().train_step(*args) if logs is None else logs

    def test_step(self, *args):
        """A step of evaluation, over all devices."""
        logs = self.distribution.test_step(self, *args)
        return super().test_step(*args) if logs is None else logs

    def save(self, filepath, *args, **kwargs):
        """See `keras.Model.save`; the file is whole or absent at any moment."""
        if _is_local(filepath, (".h5", ".hdf5")):
            raise ValueError(
                "Expected a file that ends with .keras: Keras' older form holds no "
                f"model with a backbone. Received: {os.fspath(filepath)!r}. Write "
                "save('model.keras'), or save_weights('model.weights.h5')."
            )
        with self.distribution.alone():
            if args or kwargs or not _is_local(filepath, ".keras"):
                return super().save(filepath, *args, **kwargs)
            with atomic_path(filepath) as hidden:
                return super().save(hidden)

    def save_weights(self, filepath, *args, **kwargs):
        """See `keras.Model.save_weights`; the file is whole or absent."""
        with self.distribution.alone():
            if args or not kwargs.get("overwrite", True) or len(kwargs) > 1:
                return super().save_weights(filepath, *args, **kwargs)
            if "max_shard_size" in kwargs or not _is_local(filepath, ".weights.h5"):
                return super().save_weights(filepath, *args, **kwargs)
            with held_write(filepath) as held:
                return super().save_weights(held)

    def stateless_call(self, *args, **kwargs):
        """See `keras.Model.stateless_call`; over all devices on JAX."""
        call = self.distribution.stateless_call(self, super().stateless_call)
        return call(*args, **kwargs)

    def _symbolic_build(self, iterator=None, data_batch=None):
        # A batch that is laid out for several devices tells one nothing.
        plain = self.distribution.plain_batch(self)
        data_batch = data_batch if plain is None else plain
        super()._symbolic_build(iterator, data_batch)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # On TensorFlow Keras averages a distributed batch here, which ids and masks do
        # not bear. `distribution.data` has made the metrics.
        if self.distribution.size == 1 or not self.distribution.builds_metrics:
            super()._maybe_symbolic_build(iterator, data_batch)
