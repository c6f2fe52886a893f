"""Data parallelism on TensorFlow: `tf.distribute`."""

import contextlib
import functools
import json
import os

import keras
import numpy as np
import tensorflow as tf

from keras_bandgnn import compat
from keras_bandgnn.distribution.replica_group import ReplicaGroup
from keras_bandgnn.preprocessing.loading.exports import signature
from keras_bandgnn.preprocessing.loading.loader import Loader


def make_data_parallel(devices, supergraphs, timeout):
    """See `data_parallel`."""
    if timeout is not None:
        raise ValueError(
            "Expected no `timeout` on TensorFlow, which has its own. Received: "
            f"timeout={timeout:g}. Leave it out."
        )
    return TensorFlowReplicas(devices, supergraphs)


def group_of(distribution):
    """Raise an error: Keras has no distributions on TensorFlow."""
    raise NotImplementedError(
        "Expected no distribution of Keras on TensorFlow, where Keras implements none. "
        f"Received: {type(distribution).__name__}. Use data_parallel()."
    )


@functools.cache
def _shared(kind, *arguments):
    # Collectives of two strategies over the same devices would interfere.
    return kind(*arguments)


def _strategy(devices):
    """Return the strategy for some devices; for one device its name."""
    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    if len(config.get("cluster", {}).get("worker", ())) > 1:
        if devices is not None:
            raise ValueError(
                "Expected devices=None if TF_CONFIG names several workers, which use "
                f"all their devices. Received: devices={devices!r}. Leave it out."
            )
        return _shared(tf.distribute.MultiWorkerMirroredStrategy)
    available = [device.name for device in tf.config.list_logical_devices()]
    if devices is None:
        names = [name for name in available if ":GPU:" in name]
        names = names or [name for name in available if ":CPU:" in name]
    else:
        names = [devices] if isinstance(devices, str) else list(devices)
        names = ["/device:" + name.upper().removeprefix("/DEVICE:") for name in names]
        missing = [name for name in names if name not in available]
        if missing or not names:
            raise ValueError(
                f"Expected `devices` among {available}. Received: devices={devices!r}. "
                "To create several CPU devices, call "
                "tf.config.set_logical_device_configuration."
            )
    if len(names) == 1:
        return names[0]
    return _shared(tf.distribute.MirroredStrategy, tuple(names))


class TensorFlowReplicas(ReplicaGroup):
    """The devices of a `tf.distribute` strategy.

    Args:
        devices: Names of devices; None for all GPUs or, without any, all CPU devices.
        supergraphs: Supergraphs per step over all devices; None for one per device.
    """

    sums_losses = True

    def __init__(self, devices, supergraphs: int | None):
        strategy = _strategy(devices)
        self.strategy = None if isinstance(strategy, str) else strategy
        self._device = strategy
        size, host, num_hosts = 1, 0, 1
        if self.strategy is not None:
            size = self.strategy.num_replicas_in_sync
            resolver = self.strategy.cluster_resolver
            if resolver is not None and resolver.cluster_spec().as_dict():
                host = resolver.task_id
                num_hosts = resolver.cluster_spec().num_tasks("worker")
        super().__init__(size, supergraphs, host, num_hosts)
        self.saves_together = num_hosts > 1

    @contextlib.contextmanager
    def scope(self):
        """Context in which new tasks use these devices."""
        inner = self.strategy.scope() if self.strategy else tf.device(self._device)
        with super().scope(), inner:
            yield

    @property
    def _local(self) -> int:
        """Number of devices of this process."""
        return self.size // self.num_hosts

    def _part(self, batch, index: int):
        """Return the supergraphs of one device of this process."""

        def cut(array):
            count = array.shape[0] // self._local
            return array[index * count : (index + 1) * count]

        return keras.tree.map_structure(cut, batch)

    def data(self, task, loader: Loader):
        """Return a data set that gives every device separate supergraphs."""
        if self.size == 1:
            return loader

        def spec(tree):
            if isinstance(tree, dict):
                return {name: spec(value) for name, value in tree.items()}
            shape, dtype = tree
            return tf.TensorSpec((shape[0] // self._local, *shape[1:]), dtype)

        def parts():
            for index in range(len(loader)):
                batch = loader[index]
                for place in range(self._local):
                    yield self._part(batch, place)

        def dataset(context):
            del context
            batches = tf.data.Dataset.from_generator(
                parts, output_signature=tuple(spec(tree) for tree in signature(loader))
            )
            return batches.prefetch(2 * self._local)

        # Keras would build the metrics from the average of a distributed batch, which
        # ids and masks do not have.
        batch = self._part(loader.build(0, loader.epoch), 0)
        with self.strategy.scope():
            compat.build_step(task, batch)
        data = self.strategy.distribute_datasets_from_function(dataset)
        # Number of steps; TensorFlow counts the elements for all devices, so Keras
        # would request too many.
        compat.set_length(data, len(loader))
        return data

    def share(self, mean, weight):
        """See `ReplicaGroup`."""
        context = tf.distribute.get_replica_context()
        if self.size == 1 or context is None:
            return mean
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, weight)
        # Keras divides by the number of devices.
        return mean * (self.size * tf.math.divide_no_nan(weight, total))

    def total(self, loss):
        """See `ReplicaGroup`."""
        return loss * self.size

    def train_step(self, task, data):
        """Run a training step as Keras does, except for gradient clipping."""
        if self.size == 1:
            return None
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = task(x, training=True)
            loss = task.compute_loss(x, y, y_pred, weight, training=True)
            compat.loss_tracker(task).update_state(loss)
            scaled = task.optimizer.scale_loss(loss)
        variables = task.trainable_weights
        gradients = tape.gradient(scaled, variables)
        # Keras clips the gradients of each device before summing them.
        places = [i for i, g in enumerate(gradients) if g is not None]
        context = tf.distribute.get_replica_context()
        summed = context.all_reduce(
            tf.distribute.ReduceOp.SUM, [gradients[i] for i in places]
        )
        for i, gradient in zip(places, summed, strict=True):
            gradients[i] = gradient
        optimizer = getattr(task.optimizer, "inner_optimizer", task.optimizer)
        compat.gradients_are_summed(optimizer)
        task.optimizer.apply(gradients, variables)
        return self._logs(task.compute_metrics(x, y, y_pred, weight))

    def test_step(self, task, data):
        """Run an evaluation step."""
        if self.size == 1:
            return None
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        y_pred = task(x, training=False)
        loss = task.compute_loss(x, y, y_pred, weight, training=False)
        compat.loss_tracker(task).update_state(loss)
        return self._logs(task.compute_metrics(x, y, y_pred, weight))

    def _logs(self, logs):
        if self.num_hosts == 1:
            return logs
        # Keras averages over axis 0.
        return {name: tf.reshape(value, (1,)) for name, value in logs.items()}

    def predict_on_batch(self, task, x):
        """Return the output of a task for a batch of this host."""
        if self.size == 1:
            return super().predict_on_batch(task, x)
        if "_predict_replicas" not in task.__dict__:

            @tf.function(reduce_retracing=True)
            def function(x):
                return self.strategy.run(task.predict_step, args=((x,),))

            task.__dict__["_predict_replicas"] = function
        parts = [
            keras.tree.map_structure(tf.convert_to_tensor, self._part(x, i))
            for i in range(self._local)
        ]
        first = self.host * self._local
        values = self.strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group - first]
        )
        outputs = self.strategy.experimental_local_results(
            task.__dict__["_predict_replicas"](values)
        )
        return np.concatenate([value.numpy() for value in outputs])

    def sum_hosts(self, array: np.ndarray) -> np.ndarray:
        """Return the sum of an array over the processes."""
        if self.num_hosts == 1:
            return array
        zeros = np.zeros_like(array)

        def value(context):
            first = context.replica_id_in_sync_group == self.host * self._local
            return tf.constant(array if first else zeros)

        values = self.strategy.experimental_distribute_values_from_function(value)
        return self.strategy.reduce("SUM", values, axis=None).numpy()
