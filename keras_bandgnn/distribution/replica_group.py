"""`ReplicaGroup`: the devices that train a task, on any backend."""

from __future__ import annotations

import contextlib
import contextvars
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import keras
import numpy as np

from keras_bandgnn.checks import refuse
from keras_bandgnn.preprocessing.loading.loader import Loader

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, FilePath, Graphs, Tensor
    from keras_bandgnn.models.graph_model import GraphModel
    from keras_bandgnn.primitives.plan import Plan

_WRITERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


def callbacks_of(group, callbacks: Sequence) -> list:
    """Remove callbacks that write files, except on the main process.

    All other callbacks run in every process and receive the same logs.

    Args:
        group: The `ReplicaGroup`.
        callbacks: The callbacks of `fit`.

    Raises:
        ValueError: For BackupAndRestore, which restores only the process that wrote the
            backup, and for ModelCheckpoint if one process cannot write on its own.
    """
    if group.processes == 1:
        return list(callbacks)
    refused = [keras.callbacks.BackupAndRestore]
    if group.saves_together:
        refused.append(keras.callbacks.ModelCheckpoint)
    for callback in callbacks:
        if isinstance(callback, tuple(refused)):
            raise ValueError(
                "Expected keras_bandgnn.training.SaveProgress with several processes. "
                f"Received: {type(callback).__name__}. Replace the callback."
            )
    return [c for c in callbacks if group.is_main or not isinstance(c, _WRITERS)]


_scope = contextvars.ContextVar("replica_group", default=None)
# Maximum number of axes of a graph's prediction.
_MAX_AXES = 4


def active_group() -> ReplicaGroup:
    """Return the group of the current scope, which new tasks use.

    A distribution of Keras that is in force is such a scope, too: a `DataParallel`,
    and on JAX a `ModelParallel`, whose `LayoutMap` shards the weights.

    Raises:
        ValueError: For a distribution of Keras that tasks cannot use.
    """
    distribution = keras.distribution.distribution()
    group = _scope.get() or distribution
    if group is None or isinstance(group, ReplicaGroup):
        return group or ReplicaGroup()
    if distribution.num_processes > 1 and distribution.auto_shard_dataset:
        refuse(
            "auto_shard_dataset",
            "False with several processes, as tasks shard their graphs over them",
            True,
            f"Write {type(distribution).__name__}(..., auto_shard_dataset=False), or "
            "use keras_bandgnn.distribution.data_parallel()",
        )
    backend = keras.backend.backend()
    module = importlib.import_module(
        f"keras_bandgnn.distribution.{backend}_data_parallel"
    )
    return module.group_of(distribution)


class ReplicaGroup:
    """Base class of devices that train a task on separate supergraphs.

    Subclasses implement a backend. A host is a process with some of the devices.

    Args:
        size: R, number of devices over all hosts.
        supergraphs: Supergraphs per step over all devices; R if None.
        host: Index of this host.
        num_hosts: Number of hosts.
    """

    # Whether reading weights requires all hosts.
    saves_together = False
    # Whether losses and gradients of devices are summed, not averaged.
    sums_losses = False

    def __init__(
        self,
        size: int = 1,
        supergraphs: int | None = None,
        host: int = 0,
        num_hosts: int = 1,
    ):
        self.size = size
        self.host = host
        self.num_hosts = num_hosts
        self.supergraphs = size if supergraphs is None else supergraphs
        if self.supergraphs % size:
            raise ValueError(
                f"Expected `supergraphs` to be a multiple of {size}, the number of "
                f"devices. Received: supergraphs={supergraphs}. Choose another number."
            )

    # Whether `data` creates the metrics of a task instead of Keras.
    builds_metrics = True

    @property
    def several(self) -> bool:
        """Whether there is more than one device."""
        return self.size > 1

    @property
    def processes(self) -> int:
        """Number of processes, of which several may be one host."""
        return self.num_hosts

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.host == 0

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Context in which new tasks of this thread use these devices."""
        token = _scope.set(self)
        try:
            yield
        finally:
            _scope.reset(token)

    def loader_options(self) -> dict[str, int]:
        """Return this host's share of the data, as arguments of a `GraphLoader`."""
        return {
            "replicas": self.supergraphs // self.num_hosts,
            "host": self.host,
            "num_hosts": self.num_hosts,
        }

    def check(self, data: object) -> None:
        """Raise a ValueError if a loader does not shard its graphs over the hosts.

        Args:
            data: The data of `fit`, `evaluate` or `predict`.
        """
        if self.size == 1:
            return
        if not isinstance(data, Loader):
            raise ValueError(
                f"Expected graphs or a GraphLoader for {self.size} devices. Received: "
                f"{type(data).__name__}. Pass graphs."
            )
        expected = self.loader_options()
        received = {name: getattr(data, name) for name in expected}
        same = all(received[name] == expected[name] for name in ("host", "num_hosts"))
        if not same or received["replicas"] * self.num_hosts % self.size:
            raise ValueError(
                f"Expected a loader with {expected} for {self.size} devices. Received: "
                f"{received}. Pass the graphs, call task.loader(graphs, shuffle=True), "
                "or pass these arguments to GraphLoader."
            )

    def check_task(self, task: GraphModel) -> None:
        """Raise a ValueError for a task that these devices cannot share."""

    # Methods that differ between backends.

    # Whether plans may have a `ReceptiveField`.
    takes_schedules = True

    def auto_plan(self, task: GraphModel, graphs: Graphs | None = None) -> Plan | None:
        """Return the plan of a task's loaders; None for the cheapest one.

        Args:
            task: The task.
            graphs: The graphs of the loader, possibly compiled.
        """
        del graphs
        return task.backbone.auto_plan()

    def data(self, task: GraphModel, loader: Loader) -> object:
        """Return a loader in the form for `fit` and `evaluate`."""
        del task
        return loader

    def train_step(
        self, task: GraphModel, *args: Batch | tuple
    ) -> dict[str, Tensor] | None:
        """Run a training step; None to use the step of Keras."""

    def test_step(
        self, task: GraphModel, *args: Batch | tuple
    ) -> dict[str, Tensor] | None:
        """Run an evaluation step; None to use the step of Keras."""

    def plain_batch(self, task: GraphModel) -> Batch | None:
        """Return a batch in the layout of one device, to build the task."""

    def stateless_call(self, task: GraphModel, call: Callable) -> Callable:
        """Return the stateless call of a task over all devices (JAX).

        Args:
            task: The task.
            call: Its call on one device.
        """
        del task
        return call

    def share(self, mean: Tensor, weight: Tensor) -> Tensor:
        """Rescale a mean so that its average over devices is the mean of all entries.

        Args:
            mean: The mean over the entries of this device.
            weight: The sum of their weights.
        """
        del weight
        return mean

    def total(self, loss: Tensor) -> Tensor:
        """Rescale a sum so that its average over devices is the sum over devices."""
        return loss

    def predict_on_batch(self, task: GraphModel, x: Batch) -> np.ndarray:
        """Return the output of a task for a batch of this host, as an array."""
        return keras.ops.convert_to_numpy(task.predict_on_batch(x))

    def sum_hosts(self, array: np.ndarray) -> np.ndarray:
        """Return the sum of an array over the hosts, on all hosts."""
        return array

    # Methods derived from these.

    def local_only(self) -> AbstractContextManager:
        """Return a context for work of this process only."""
        return contextlib.nullcontext()

    def load_weights(self, task: GraphModel, path: FilePath) -> None:
        """Load weights and optimizer state on all hosts from a file of the main host.

        Args:
            task: The task.
            path: Path of the file, which only the main host needs.
        """
        if self.is_main or self.saves_together:
            task.load_weights(path)
        self.same_weights(task, optimizer=True)

    def broadcast(self, text: str) -> str:
        """Return a text of the main host, on all hosts."""
        return self.broadcast_bytes(text.encode()).decode()

    def broadcast_bytes(self, content: bytes) -> bytes:
        """Return bytes of the main host, on all hosts."""
        if self.processes == 1:
            return content
        data = np.frombuffer(content, np.uint8) if self.is_main else np.zeros(0)
        length = int(self.sum_hosts(np.array([data.size], np.int64))[0])
        padded = data if self.is_main else np.zeros(length)
        # A dtype that every backend can sum.
        return bytes(self.sum_hosts(padded.astype(np.int32)).astype(np.uint8))

    def same_weights(self, task: GraphModel, optimizer: bool = False) -> None:
        """Copy the weights of the main host to all hosts.

        Args:
            task: The task.
            optimizer: Whether to copy the state of the optimizer, too.
        """
        if self.processes == 1:
            return
        metrics = {id(variable) for variable in task.metrics_variables}
        variables = [v for v in task.variables if id(v) not in metrics]
        if optimizer:
            variables += task.optimizer.variables
        for dtype in sorted({v.dtype for v in variables}):
            group = [v for v in variables if v.dtype == dtype]
            arrays = [keras.ops.convert_to_numpy(v).reshape(-1) for v in group]
            # A dtype that every backend can sum.
            kind = "int64" if "int" in dtype else "float32"
            kind = "float64" if dtype == "float64" else kind
            flat = np.concatenate(arrays).astype(kind)
            flat = self.sum_hosts(flat if self.is_main else np.zeros_like(flat))
            places = np.cumsum([array.size for array in arrays])[:-1]
            for variable, part in zip(group, np.split(flat, places), strict=True):
                variable.assign(part.reshape(variable.shape))

    def check_same(self, loader: Loader) -> None:
        """Raise a ValueError if the hosts have different graphs."""
        mine = loader.fingerprint()
        if self.broadcast(mine) != mine:
            raise ValueError(
                "Expected the same graphs in the same order, the same batcher, plan "
                "and seed in all processes. Received: a difference from the first "
                "process. Load or create the graphs with a fixed seed."
            )

    def gather(self, rows: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
        """Merge the predictions of the hosts.

        Args:
            rows: One array per graph, None for graphs of another host.
        """
        if self.processes == 1:
            return list(rows)
        shapes = np.zeros((len(rows), 1 + _MAX_AXES), np.int64)
        for shape, array in zip(shapes, rows, strict=True):
            if array is not None:
                shape[0] = 1 + array.ndim
                shape[1 : 1 + array.ndim] = array.shape
        mine = shapes[:, 0] > 0
        shapes = self.sum_hosts(shapes)
        shapes = [s[1 : s[0]].tolist() if s[0] else None for s in shapes]
        sizes = [0 if shape is None else int(np.prod(shape)) for shape in shapes]
        ends = np.cumsum(sizes)
        values = np.zeros(sum(sizes), np.float32)
        for index in np.flatnonzero(mine):
            values[ends[index] - sizes[index] : ends[index]] = rows[index].reshape(-1)
        parts = np.split(self.sum_hosts(values), ends[:-1])
        return [
            None if shape is None else part.reshape(shape)
            for shape, part in zip(shapes, parts, strict=True)
        ]
