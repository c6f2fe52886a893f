"""Sequence parallelism on torch: processes that share the nodes of a supergraph."""

import contextlib

import keras
import numpy as np
import torch
import torch.distributed as dist

from keras_bandgnn.distribution.sequence_group import SequenceGroup
from keras_bandgnn.distribution.sequence_layout import LaidOutBatches
from keras_bandgnn.distribution.torch_data_parallel import TorchReplicas
from keras_bandgnn.ops.backend.torch_mesh import SequenceAxis
from keras_bandgnn.ops.sequence import along


def make_sequence_parallel(sequence, batch, devices, supergraphs):
    """See `sequence_parallel`."""
    return TorchSequences(sequence, batch, devices, supergraphs)


class TorchSequences(SequenceGroup, TorchReplicas):
    """Processes of which `sequence` consecutive ones share each supergraph.

    To a loader they are one host. Each process has its nodes, their labels and the
    edges into them, and the rest of a batch; values of graphs are computed by all
    processes of a supergraph.

    Args:
        sequence: P, number of processes that share a supergraph.
        batch: Number of such groups; None for all processes.
        devices: Name of the device of this process; None for the one of `LOCAL_RANK`.
        supergraphs: Supergraphs per step; None for one per group.
    """

    def __init__(self, sequence: int, batch: int | None, devices, supergraphs):
        TorchReplicas.__init__(self, devices, None, 600.0)
        self._world, self._rank = self.size, self.host
        groups = self._world // sequence
        if groups * sequence != self._world or batch not in (None, groups):
            raise ValueError(
                f"Expected sequence * batch = {self._world}, the number of processes. "
                f"Received: sequence={sequence}, batch={batch}. Start one process per "
                "device: torchrun --nproc-per-node 2 script.py."
            )
        host, self._index = divmod(self._rank, sequence)
        SequenceGroup.__init__(self, groups, supergraphs, host, groups)
        self.sequence = sequence
        self._group = None
        for first in range(0, self._world if self._world > 1 else 0, sequence):
            # All processes make all groups.
            group = dist.new_group([*range(first, first + sequence)])
            if first == host * sequence:
                self._group = group

    @property
    def several(self) -> bool:
        """Whether there is more than one device."""
        return self._world > 1

    @property
    def processes(self) -> int:
        """Number of processes."""
        return getattr(self, "_world", self.size)

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints."""
        return self._rank == 0

    def sum_hosts(self, array: np.ndarray) -> np.ndarray:
        """Return the sum over the hosts, of whose processes the first one counts."""
        return super().sum_hosts(array if self._index == 0 else np.zeros_like(array))

    def data(self, task, loader):
        """Return this process's part of the batches of a loader."""
        self.check_task(task)
        if self.sequence == 1:
            return loader
        self.first_batch(task, loader)
        return LaidOutBatches(loader, self.layout(task), self._index)

    @contextlib.contextmanager
    def _shared(self, task, data):
        """Context of a step, which exchanges rows; yields its data."""
        x, *targets = data
        if self.sequence == 1 or "sequence" not in x:
            yield data
            return
        x = dict(x)
        axis = SequenceAxis(self._group, self.sequence, self._index, x.pop("sequence"))
        self.copies = 1 if task.output_level == "node" else self.sequence
        try:
            with self._together(), along(axis):
                yield (x, *targets)
        finally:
            self.copies = 1

    def train_step(self, task, data):
        """Run a training step, in which the processes of a supergraph work together."""
        with self._shared(task, data) as part:
            return super().train_step(task, part)

    def test_step(self, task, data):
        """Run an evaluation step."""
        with self._shared(task, data) as part:
            return super().test_step(task, part)

    def predict_on_batch(self, task, x):
        """Return the output of a task for a batch of this host."""
        if self.sequence == 1:
            return super().predict_on_batch(task, x)
        self.check_task(task)
        count = x["node"]["mask"].shape[1]
        layout = self.layout(task)
        data = layout.part(layout((x,)), self._index)
        data = keras.tree.map_structure(torch.as_tensor, data)
        with self._shared(task, data) as (part,), torch.no_grad():
            out = task(part, training=False).contiguous()
        if task.output_level != "node":
            return keras.ops.convert_to_numpy(out)
        parts = [torch.empty_like(out) for _ in range(self.sequence)]
        with self._together():
            dist.all_gather(parts, out, group=self._group)
        return keras.ops.convert_to_numpy(torch.cat(parts, dim=1)[:, :count])
