"""`JaxGroup`: the devices of a mesh of JAX, which run one program."""

import contextlib
import tempfile
from pathlib import Path

import jax
import keras
import numpy as np
from jax.experimental import multihost_utils

from keras_bandgnn import compat
from keras_bandgnn.distribution.replica_group import ReplicaGroup
from keras_bandgnn.ops.backend.jax_mesh import split_over_cores
from keras_bandgnn.preprocessing.loading.loader import Loader


class JaxGroup(ReplicaGroup):
    """The devices of a distribution of Keras, which run one SPMD program.

    Each row of the mesh trains on separate supergraphs. Weights have the layouts of the
    distribution: all on each device, or sharded by a `LayoutMap`.

    Args:
        distribution: A `keras.distribution` object whose mesh has the axis "batch".
        grid: Its devices, [batch, others].
        supergraphs: Supergraphs per step over all devices; None for one per row.
    """

    builds_metrics = False
    # The devices of an axis "sequence", which share the nodes of a supergraph.
    sequence = 1

    def __init__(self, distribution, grid: np.ndarray, supergraphs: int | None = None):
        hosts = len({device.process_index for device in grid.ravel()})
        host = jax.process_index() if hosts > 1 else 0
        ReplicaGroup.__init__(self, len(grid), supergraphs, host, hosts)
        self.layouts = distribution
        self.mesh = distribution.device_mesh.backend_mesh

    @property
    def several(self) -> bool:
        """Whether there is more than one device."""
        return self.mesh.size > 1

    def check(self, data) -> None:
        """See `ReplicaGroup`."""
        super().check(data)
        if self.several and not isinstance(data, Loader):
            raise ValueError(
                "Expected graphs or a GraphLoader for several devices. Received: "
                f"{type(data).__name__}. Pass graphs."
            )

    def split(self, call, node_outputs: bool = False, splits_part=lambda key: False):
        """Return a stateless call in which each device processes its part.

        Args:
            call: The call of a task on one device.
            node_outputs: Whether axis 1 of the values is the node axis.
            splits_part: See `ops.backend.jax_mesh.split_over_cores`.
        """
        if self.size * self.sequence == 1:
            return call
        return split_over_cores(call, self.mesh, node_outputs, splits_part)

    def stateless_call(self, task, call):
        """Return a task's call in which each device processes its supergraphs."""
        del task
        return self.split(call)

    def local_batch(self, task, x):
        """Return the batch of this host in the layout of its devices."""
        del task
        return x

    def predict_on_batch(self, task, x):
        """Return the output of a task for a batch of this host."""
        if not self.several:
            return super().predict_on_batch(task, x)
        count = x["node"]["mask"].shape[1]
        x = jax.tree.map(
            lambda a: jax.make_array_from_process_local_data(
                self.layouts.get_data_layout(a.shape).backend_layout, a
            ),
            self.local_batch(task, x),
        )
        derived = compat.model_cache(task)
        if "predict_split" not in derived:
            derived["predict_split"] = jax.jit(
                lambda *state: task.stateless_call(*state, training=False)[0]
            )
        state = ([v.value for v in vs] for vs in _variables(task))
        out = derived["predict_split"](*state, x)
        # The shards of this process, in the order of its supergraphs and nodes.
        shape = (self.supergraphs // self.num_hosts, *out.shape[1:])
        output = np.zeros(shape, out.dtype)
        first = min(s.index[0].start or 0 for s in out.addressable_shards)
        for shard in out.addressable_shards:
            rows, *columns = shard.index
            start = (rows.start or 0) - first
            data = np.asarray(shard.data)
            output[(slice(start, start + len(data)), *columns)] = data
        return output[:, :count] if task.output_level == "node" else output

    @contextlib.contextmanager
    def local_only(self):
        """Turn off the distribution, since saving creates variables on one process."""
        before = keras.distribution.distribution()
        keras.distribution.set_distribution(None)
        try:
            yield
        finally:
            keras.distribution.set_distribution(before)

    def same_weights(self, task, optimizer: bool = False) -> None:
        """No-op: JAX replicates the weights when they are created."""

    def load_weights(self, task, path) -> None:
        """See `ReplicaGroup`; all processes assign the weights together."""
        if self.num_hosts == 1:
            task.load_weights(path)
            return
        data = self.broadcast_bytes(path.read_bytes() if self.is_main else b"")
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / path.name
            copy.write_bytes(data)
            task.load_weights(copy)

    def sum_hosts(self, array: np.ndarray) -> np.ndarray:
        """Return the sum of an array over the processes."""
        if self.num_hosts == 1:
            return array
        arrays = multihost_utils.process_allgather(array)
        return np.asarray(arrays).sum(axis=0).astype(array.dtype)


def _variables(task):
    return task.trainable_variables, task.non_trainable_variables
