"""`Replicated`: a model that may train on several devices."""

import keras

from keras_bandgnn.distribution.replica_group import active_group


class Replicated(keras.Model):
    """A model whose steps are those of the devices in whose scope it was made.

    `distribution` is the `ReplicaGroup`; one device without a scope.
    """

    # Host-side, replaceable at any time: Keras must not track these as sublayers.
    host_side = ("distribution",)
    # Whether several devices may share a supergraph.
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

    def save(self, *args, **kwargs):
        """See `keras.Model.save`."""
        with self.distribution.alone():
            return super().save(*args, **kwargs)

    def save_weights(self, *args, **kwargs):
        """See `keras.Model.save_weights`."""
        with self.distribution.alone():
            return super().save_weights(*args, **kwargs)

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
