"""Data and sequence parallelism on JAX: one program over a mesh of devices."""

import contextlib

import jax
import keras
import numpy as np

from keras_bandgnn.distribution.jax_group import JaxGroup
from keras_bandgnn.distribution.replica_group import ReplicaGroup
from keras_bandgnn.distribution.sequence_group import SequenceGroup
from keras_bandgnn.distribution.sequence_layout import LaidOutBatches, splits_part
from keras_bandgnn.ops.backend.jax_mesh import BATCH, SEQUENCE


def make_data_parallel(devices, supergraphs, timeout):
    """See `data_parallel`."""
    if timeout is not None:
        raise ValueError(
            "Expected no `timeout` on JAX, which has its own. Received: "
            f"timeout={timeout:g}. Leave it out."
        )
    return JaxReplicas(devices, supergraphs)


def make_sequence_parallel(sequence, batch, devices, supergraphs):
    """See `sequence_parallel`."""
    return JaxReplicas(devices, supergraphs, sequence, batch)


def group_of(distribution) -> JaxGroup:
    """Return the devices of a distribution of Keras.

    Args:
        distribution: A `keras.distribution.DataParallel` or `ModelParallel`.
    """
    mesh = distribution.device_mesh.backend_mesh
    name = distribution.batch_dim_name
    if name != BATCH or mesh.axis_names[0] != BATCH:
        raise ValueError(
            f"Expected {BATCH!r} as the first axis of the mesh, over which graphs are "
            f"sharded. Received: batch_dim_name={name!r}, axis_names="
            f"{mesh.axis_names}. Rename or reorder the axes of the DeviceMesh."
        )
    grid = mesh.devices.reshape(len(mesh.devices), -1)
    check_hosts(grid, f"axis_names={mesh.axis_names}")
    return JaxGroup(distribution, grid)


def _mesh(devices, sequence: int, batch: int | None):
    """Return the mesh [batch, sequence]; a sequence needs devices of one process."""
    if devices is None:
        available = jax.devices()
        if batch is not None:
            available = available[: batch * sequence]
    else:
        names = [devices] if isinstance(devices, str) else list(devices)
        device_by_name = {f"{d.platform}:{d.id}": d for d in jax.devices()}
        missing = [name for name in names if str(name).lower() not in device_by_name]
        if missing or not names:
            raise ValueError(
                f"Expected `devices` among {sorted(device_by_name)}. Received: "
                f"devices={devices!r}. Choose from these."
            )
        available = [device_by_name[str(name).lower()] for name in names]
    batch = len(available) // sequence if batch is None else batch
    if not batch or batch * sequence != len(available):
        raise ValueError(
            f"Expected sequence * batch = {len(available)}, the number of devices. "
            f"Received: sequence={sequence}, batch={batch}. To simulate several "
            "devices on a CPU, set XLA_FLAGS=--xla_force_host_platform_device_count=8."
        )
    mesh = np.array(available).reshape(batch, sequence)
    check_hosts(mesh, f"sequence={sequence}")
    return mesh


def check_hosts(mesh: np.ndarray, arguments: str) -> None:
    """Raise a ValueError if devices that share a supergraph have several processes.

    Args:
        mesh: Devices [batch, others].
        arguments: What the mesh was made of, for the message.
    """
    hosts = np.vectorize(lambda device: device.process_index)(mesh)
    if (hosts != hosts[:, :1]).any():
        raise ValueError(
            "Expected the devices that share a supergraph in one process. Received: "
            f"{arguments}, {jax.local_device_count()} devices per process. Choose a "
            "divisor of the devices per process."
        )


class JaxReplicas(SequenceGroup, JaxGroup, keras.distribution.DataParallel):
    """The devices of a mesh, which run one SPMD program.

    Args:
        devices: Names such as `"gpu:0"`; None for those of all processes.
        supergraphs: Supergraphs per step over all devices; None for one per device.
        sequence: Number of devices that share a supergraph.
        batch: Number of such groups; None to use all devices.
    """

    builds_metrics = False

    def __init__(
        self,
        devices=None,
        supergraphs: int | None = None,
        sequence: int = 1,
        batch: int | None = None,
    ):
        grid = _mesh(devices, sequence, batch)
        names = [f"{d.platform}:{d.id}" for d in grid.ravel()]
        mesh = keras.distribution.DeviceMesh(grid.shape, (BATCH, SEQUENCE), names)
        # As DataParallel does for meshes with one axis.
        base = super(keras.distribution.DataParallel, self)
        base.__init__(mesh, BATCH, auto_shard_dataset=False)
        JaxGroup.__init__(self, self, grid, supergraphs)
        self.sequence = sequence
        self._nodes = None

    @contextlib.contextmanager
    def scope(self):
        """Return the context in which new tasks use these devices."""
        with ReplicaGroup.scope(self), keras.distribution.DataParallel.scope(self):
            yield self

    # Called by Keras.

    @property
    def num_model_replicas(self) -> int:
        """Number of devices, or of groups that share a sequence."""
        return self.size

    def get_data_layout(self, data_shape):
        """Shard axis 0 over supergraphs, and axis 1 over nodes if it has nodes."""
        axes = [None] * len(data_shape)
        if axes:
            axes[0] = BATCH
        if self.sequence > 1 and len(axes) > 1 and data_shape[1] == self._nodes:
            axes[1] = SEQUENCE
        return keras.distribution.TensorLayout(axes, self.device_mesh)

    def get_variable_layout(self, variable):
        """Replicate weights on all devices."""
        axes = [None] * len(variable.shape)
        return keras.distribution.TensorLayout(axes, self.device_mesh)

    def get_tensor_layout(self, path):
        """Leave the layout of intermediate tensors to the compiler."""
        del path

    def distribute_dataset(self, dataset):
        """Return the data set; loaders shard their graphs over processes."""
        return dataset

    # Called by tasks.

    def data(self, task, loader):
        """Return a loader in the form for `fit` and `evaluate`."""
        self.check_task(task)
        if self.sequence == 1:
            return loader
        layout = self.layout(task)
        self._nodes = layout.nodes(self.first_batch(task, loader)[0])
        return LaidOutBatches(loader, layout)

    def stateless_call(self, task, call):
        """Return a task's call in which each device processes its part."""
        node_outputs = task.output_level == "node"
        return self.split(call, node_outputs, splits_part)

    def local_batch(self, task, x):
        """See `JaxGroup`; the nodes of the batch are laid out over the devices."""
        self.check_task(task)
        if self.sequence > 1:
            (x,) = self.layout(task)((x,))
            self._nodes = x["node"]["mask"].shape[1]
        return x
