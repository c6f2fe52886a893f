"""Data and sequence parallelism on JAX: one program over a mesh of devices."""

import contextlib
import tempfile
from pathlib import Path

import jax
import keras
import numpy as np
from jax.experimental import multihost_utils

from keras_bandgnn import compat
from keras_bandgnn.distribution.replica_group import ReplicaGroup
from keras_bandgnn.distribution.sequence_layout import (
    LaidOutBatches,
    SequenceLayout,
    check_layers,
    splits_part,
)
from keras_bandgnn.ops.backend.jax_mesh import BATCH, SEQUENCE, split_over_cores
from keras_bandgnn.preprocessing.loading.loader import Loader
from keras_bandgnn.preprocessing.ordering.rcmk_compile import block_size_of
from keras_bandgnn.primitives.banded import Banded
from keras_bandgnn.primitives.plan import Plan


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
    hosts = np.vectorize(lambda device: device.process_index)(mesh)
    if (hosts != hosts[:, :1]).any():
        raise ValueError(
            "Expected the devices of a sequence in one process. Received: "
            f"sequence={sequence}, {jax.local_device_count()} devices per process. "
            "Choose a divisor of the devices per process."
        )
    return mesh


class JaxReplicas(ReplicaGroup, keras.distribution.DataParallel):
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
        hosts = len({device.process_index for device in grid.ravel()})
        host = jax.process_index() if hosts > 1 else 0
        ReplicaGroup.__init__(self, len(grid), supergraphs, host, hosts)
        self.sequence = sequence
        self.mesh = self.device_mesh.backend_mesh
        self._nodes = None
        self._layouts: dict = {}
        self._plain: dict = {}

    @property
    def several(self) -> bool:
        """Whether there is more than one device."""
        return self.size * self.sequence > 1

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

    def check(self, data) -> None:
        """See `ReplicaGroup`."""
        super().check(data)
        if self.several and not isinstance(data, Loader):
            raise ValueError(
                "Expected graphs or a GraphLoader for several devices. Received: "
                f"{type(data).__name__}. Pass graphs."
            )

    def check_task(self, task) -> None:
        """Raise a ValueError for a task that cannot share a sequence."""
        if self.sequence > 1:
            check_layers(task)

    @property
    def takes_schedules(self) -> bool:
        """Whether plans may have a schedule, which renumbers nodes in every step."""
        return self.sequence == 1

    def auto_plan(self, task, graphs=None):
        """Return banded message passing if devices share a sequence."""
        plan = task.backbone.auto_plan()
        if self.sequence == 1 or plan is not None:
            return plan
        layers = task.preprocessor.layers_config() if task.preprocessor else ()
        return Plan(Banded(block_size_of(graphs, layers)))

    def layout(self, task) -> SequenceLayout:
        """Return the batch layout of a task."""
        node_outputs = task.output_level == "node"
        return self._layouts.setdefault(
            node_outputs, SequenceLayout(self.sequence, node_outputs)
        )

    def data(self, task, loader):
        """Return a loader in the form for `fit` and `evaluate`."""
        self.check_task(task)
        if self.sequence == 1:
            return loader
        layout = self.layout(task)
        batch = loader.build(0, loader.epoch)
        self._nodes = layout.nodes(batch[0])
        self._plain[task.output_level] = keras.tree.map_structure(
            lambda a: keras.KerasTensor(a.shape, str(a.dtype)), batch
        )
        return LaidOutBatches(loader, layout)

    def plain_batch(self, task):
        """See `ReplicaGroup`."""
        return self._plain.get(task.output_level)

    def stateless_call(self, task, call):
        """Return a task's call in which each device processes its part."""
        if not self.several:
            return call
        node_outputs = task.output_level == "node"
        return split_over_cores(call, self.mesh, node_outputs, splits_part)

    def predict_on_batch(self, task, x):
        """Return the output of a task for a batch of this host."""
        if not self.several:
            return super().predict_on_batch(task, x)
        self.check_task(task)
        count = x["node"]["mask"].shape[1]
        if self.sequence > 1:
            layout = self.layout(task)
            (x,) = layout((x,))
            self._nodes = x["node"]["mask"].shape[1]
        x = jax.tree.map(
            lambda a: jax.make_array_from_process_local_data(
                self.get_data_layout(a.shape).backend_layout, a
            ),
            x,
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
