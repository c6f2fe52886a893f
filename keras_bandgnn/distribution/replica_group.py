"""`ReplicaGroup`: the devices that train a task together, on any backend."""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence

import keras
import numpy as np

from keras_bandgnn.preprocessing.loading.graph_loader import GraphLoader

# Which callbacks a process has when several train together.


_WRITERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


def callbacks_of(group, callbacks: Sequence) -> list:
    """The callbacks without those that write files which the main process writes.

    All others run in every process and see the same logs.

    Args:
        group: The `ReplicaGroup`.
        callbacks: What `fit` was given.

    Raises:
        ValueError: For BackupAndRestore, which restores only where it has written, and
            for ModelCheckpoint where one process cannot write alone.
    """
    if group.num_hosts == 1:
        return list(callbacks)
    refused = [keras.callbacks.BackupAndRestore]
    if group.saves_together:
        refused.append(keras.callbacks.ModelCheckpoint)
    for callback in callbacks:
        if isinstance(callback, tuple(refused)):
            raise ValueError(
                "Expected keras_bandgnn.training.SaveProgress where several processes "
                f"train together. Received: {type(callback).__name__}."
            )
    return [c for c in callbacks if group.is_main or not isinstance(c, _WRITERS)]


_scope = contextvars.ContextVar("replica_group", default=None)
# Axes that the predictions for a graph may have.
_MAX_AXES = 4


def active_group() -> "ReplicaGroup":
    """The group whose scope is entered, which new tasks belong to."""
    # Also what keras.distribution.set_distribution has set.
    found = _scope.get() or keras.distribution.distribution()
    return found if isinstance(found, ReplicaGroup) else ReplicaGroup()


class ReplicaGroup:
    """Devices that train a task together, each on its own supergraphs.

    Subclasses know the backend. A host is a process; it has some of the devices.

    Args:
        size: R, devices over all hosts.
        supergraphs: Supergraphs of a step over all devices; R if None.
        host: Number of this host.
        num_hosts: Number of hosts.
    """

    # Whether reading weights takes all hosts.
    saves_together = False
    # Whether losses and gradients of devices are added up, not averaged.
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
                f"devices. Received: supergraphs={supergraphs}."
            )

    # Whether `data` makes the metrics of a task, which Keras then leaves alone.
    builds_metrics = True

    @property
    def several(self) -> bool:
        """Whether there is more than one device."""
        return self.size > 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.host == 0

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Tasks that this thread makes within belong to these devices."""
        token = _scope.set(self)
        try:
            yield
        finally:
            _scope.reset(token)

    def loader_options(self) -> dict[str, int]:
        """The share of this host, as arguments of a `GraphLoader`."""
        return {
            "replicas": self.supergraphs // self.num_hosts,
            "host": self.host,
            "num_hosts": self.num_hosts,
        }

    def check(self, data) -> None:
        """Raises a ValueError if a loader does not share its graphs among the hosts.

        Args:
            data: What `fit`, `evaluate` or `predict` got.
        """
        if self.size == 1:
            return
        if not isinstance(data, GraphLoader):
            raise ValueError(
                f"Expected graphs or a GraphLoader for {self.size} devices. Received: "
                f"{type(data).__name__}."
            )
        wanted = self.loader_options()
        given = {name: getattr(data, name) for name in wanted}
        same = all(given[name] == wanted[name] for name in ("host", "num_hosts"))
        if not same or given["replicas"] * self.num_hosts % self.size:
            raise ValueError(
                f"Expected a loader with {wanted} for {self.size} devices. Received: "
                f"{given}. Pass the graphs themselves, take task.loader(graphs, "
                "shuffle=True), or give these arguments to GraphLoader."
            )

    def check_task(self, task) -> None:
        """Raises a ValueError for a task that these devices cannot share."""

    # What differs between backends.

    # Whether plans may have a `ReceptiveField`.
    takes_schedules = True

    def auto_plan(self, task, graphs=None):
        """The plan of loaders that a task makes; None for the cheapest one.

        Args:
            task: The task.
            graphs: What the loader is made of, perhaps compiled before.
        """
        del graphs
        return task.backbone.auto_plan()

    def data(self, task, loader: GraphLoader):
        """A loader as `fit` and `evaluate` take it."""
        del task
        return loader

    def train_step(self, task, *args):
        """A step of training; None if Keras' own will do."""

    def test_step(self, task, *args):
        """A step of evaluation; None if Keras' own will do."""

    def plain_batch(self, task):
        """A batch of a task for one device, where others are laid out for several."""

    def stateless_call(self, task, call):
        """The stateless call of a task over all devices (JAX).

        Args:
            task: The task.
            call: Its call on one device.
        """
        del task
        return call

    def share(self, mean, weight):
        """A mean, so that the average over all devices is the mean over all entries.

        Args:
            mean: The mean over the entries of this device.
            weight: The sum of their weights.
        """
        del weight
        return mean

    def total(self, loss):
        """A sum, so that the average over all devices is the sum over all devices."""
        return loss

    def predict_on_batch(self, task, x):
        """The output of a task for a batch of this host, as an array."""
        return keras.ops.convert_to_numpy(task.predict_on_batch(x))

    def sum_hosts(self, array: np.ndarray) -> np.ndarray:
        """The sum of an array over the hosts, on each of them."""
        return array

    # What follows from these.

    def alone(self):
        """A context for what this process does without the others."""
        return contextlib.nullcontext()

    def load_weights(self, task, path) -> None:
        """Gives all hosts the weights, and the optimizer, of a file of the main one.

        Args:
            task: The task.
            path: Of the file; others than the main host need not have it.
        """
        if self.is_main or self.saves_together:
            task.load_weights(path)
        self.same_weights(task, optimizer=True)

    def broadcast(self, text: str) -> str:
        """A text of the main host, on all hosts."""
        return self.broadcast_bytes(text.encode()).decode()

    def broadcast_bytes(self, given: bytes) -> bytes:
        """Bytes of the main host, on all hosts."""
        if self.num_hosts == 1:
            return given
        data = np.frombuffer(given, np.uint8) if self.is_main else np.zeros(0)
        length = int(self.sum_hosts(np.array([data.size], np.int64))[0])
        padded = data if self.is_main else np.zeros(length)
        # Numbers that every backend can add.
        return bytes(self.sum_hosts(padded.astype(np.int32)).astype(np.uint8))

    def same_weights(self, task, optimizer: bool = False) -> None:
        """Gives all hosts the weights of the main one.

        Args:
            task: The task.
            optimizer: Whether also the state of the optimizer.
        """
        if self.num_hosts == 1:
            return
        metrics = {id(variable) for variable in task.metrics_variables}
        variables = [v for v in task.variables if id(v) not in metrics]
        if optimizer:
            variables += task.optimizer.variables
        for dtype in sorted({v.dtype for v in variables}):
            chosen = [v for v in variables if v.dtype == dtype]
            arrays = [keras.ops.convert_to_numpy(v).reshape(-1) for v in chosen]
            # Numbers that every backend can add.
            kind = "int64" if "int" in dtype else "float32"
            kind = "float64" if dtype == "float64" else kind
            flat = np.concatenate(arrays).astype(kind)
            flat = self.sum_hosts(flat if self.is_main else np.zeros_like(flat))
            places = np.cumsum([array.size for array in arrays])[:-1]
            for variable, part in zip(chosen, np.split(flat, places), strict=True):
                variable.assign(part.reshape(variable.shape))

    def check_same(self, loader: GraphLoader) -> None:
        """Raises a ValueError if the hosts have different graphs."""
        mine = loader.fingerprint()
        if self.broadcast(mine) != mine:
            raise ValueError(
                "Expected the same graphs in the same order, the same batcher, plan "
                "and seed in all processes. Received: others than in the first one. "
                "Read or make the graphs with a fixed seed."
            )

    def gather(self, rows: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
        """Puts together what the hosts have predicted.

        Args:
            rows: One array per graph, None where another host has it.
        """
        if self.num_hosts == 1:
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
