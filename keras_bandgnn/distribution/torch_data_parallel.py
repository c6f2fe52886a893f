"""Data parallelism on torch: one process per device."""

import atexit
import contextlib
import datetime
import os
import sys

import keras
import numpy as np
import torch
import torch.distributed as dist

from keras_bandgnn import compat
from keras_bandgnn.checks import refuse
from keras_bandgnn.distribution.replica_group import ReplicaGroup


def make_data_parallel(devices, supergraphs, timeout):
    """See `data_parallel`."""
    return TorchReplicas(devices, supergraphs, 600.0 if timeout is None else timeout)


def group_of(distribution):
    """Return the processes of a distribution of Keras.

    Args:
        distribution: A `keras.distribution.DataParallel` over all processes.
    """
    if not isinstance(distribution, keras.distribution.DataParallel):
        raise NotImplementedError(
            "Expected keras.distribution.DataParallel on torch. Received: "
            f"{type(distribution).__name__}. The DTensors of torch lack the gathers "
            "and segment sums of graphs. Set KERAS_BACKEND=jax for a LayoutMap, or use "
            "DataParallel."
        )
    group = make_data_parallel(None, None, None)
    if distribution.num_model_replicas != group.size:
        raise ValueError(
            f"Expected a device of each of the {group.size} processes in "
            "keras.distribution.DataParallel on torch. Received: "
            f"{distribution.num_model_replicas} devices. Leave out `devices`, and "
            "start one process per device: torchrun --nproc-per-node 2 script.py."
        )
    return group


def _end() -> None:
    # After a failure the other processes cannot take part.
    if dist.is_initialized() and not hasattr(sys, "last_value"):
        dist.destroy_process_group()


def _device(devices, local: int) -> str:
    """Return the device of this process."""
    if devices is not None:
        names = [devices] if isinstance(devices, str) else list(devices)
        if len(names) != 1:
            raise ValueError(
                "Expected one device per process on torch, such as ['cpu']. Received: "
                f"devices={devices!r}. Start more processes: torchrun "
                "--nproc-per-node 2 script.py."
            )
        name = str(names[0]).lower().replace("gpu", "cuda")
        try:
            torch.device(name)
        except RuntimeError as error:
            refuse("devices", "a device of torch, such as ['cpu']", devices, str(error))
        return name
    if not torch.cuda.is_available():
        return "cpu"
    if local >= torch.cuda.device_count():
        raise ValueError(
            f"Expected at most {torch.cuda.device_count()} processes on this machine, "
            f"one per GPU. Received: LOCAL_RANK={local}. Lower --nproc-per-node, or "
            "pass devices=['cpu']."
        )
    return f"cuda:{local}"


# Keras has distributions on torch from version 3.16 on.
_IS_KERAS = compat.has_distributions()
_BASES = (keras.distribution.DataParallel,) if _IS_KERAS else ()


class TorchReplicas(ReplicaGroup, *_BASES):
    """The processes started by `torchrun`, or only this one.

    A `keras.distribution.DataParallel` where Keras has it on torch.

    Args:
        devices: Name of the device of this process; None for the one of `LOCAL_RANK`.
        supergraphs: Supergraphs per step over all processes; None for one per process.
        timeout: Seconds after which a process stops waiting for the others.
    """

    # Number of processes that compute the same outputs.
    copies = 1

    def __init__(self, devices, supergraphs: int | None, timeout: float):
        rank = int(os.environ.get("RANK", 0))
        world = int(os.environ.get("WORLD_SIZE", 1))
        if dist.is_initialized():
            rank, world = dist.get_rank(), dist.get_world_size()
        super().__init__(world, supergraphs, rank, world)
        self.timeout = timeout
        self.device = _device(devices, int(os.environ.get("LOCAL_RANK", 0)))
        if self.device.startswith("cuda"):
            torch.cuda.set_device(self.device)
        if world > 1 and not dist.is_initialized():
            with self._together():
                dist.init_process_group(
                    "nccl" if self.device.startswith("cuda") else "gloo",
                    timeout=datetime.timedelta(seconds=timeout),
                )
            atexit.register(_end)
        if _IS_KERAS:
            # As `keras.distribution.list_devices` names them: one per process.
            kind = torch.device(self.device).type.replace("cuda", "gpu")
            names = [f"{kind}:{number}" for number in range(world)]
            keras.distribution.DataParallel.__init__(
                self, devices=names, auto_shard_dataset=False
            )

    @contextlib.contextmanager
    def scope(self):
        """Context in which new tasks use all processes."""
        with contextlib.ExitStack() as stack:
            for base in (ReplicaGroup, *_BASES):
                stack.enter_context(base.scope(self))
            stack.enter_context(keras.device(self.device.replace("cuda", "gpu")))
            yield self

    @contextlib.contextmanager
    def _together(self):
        try:
            yield
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            raise RuntimeError(
                f"Expected all {self.processes} processes to take part within "
                f"{self.timeout:g} s. Received: {reason}. Check whether another "
                "process has failed, or raise data_parallel(timeout=)."
            ) from error

    def _sum(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Sum over the processes, in one exchange per dtype."""
        out = list(tensors)
        for dtype in {tensor.dtype for tensor in tensors}:
            places = [i for i, t in enumerate(tensors) if t.dtype == dtype]
            flat = torch.cat([tensors[i].detach().reshape(-1) for i in places])
            with self._together():
                dist.all_reduce(flat)
            parts = flat.split([tensors[i].numel() for i in places])
            for i, part in zip(places, parts, strict=True):
                out[i] = part.reshape(tensors[i].shape)
        return out

    def sum_hosts(self, array: np.ndarray) -> np.ndarray:
        """Return the sum of an array over the processes."""
        if self.processes == 1:
            return array
        tensor = torch.tensor(array, device=self.device)
        return self._sum([tensor])[0].cpu().numpy()

    def share(self, mean, weight):
        """See `ReplicaGroup`."""
        if self.processes == 1:
            return mean
        (total,) = self._sum([weight])
        # 0 instead of NaN if all weights are 0.
        share = torch.where(total > 0, weight / torch.where(total > 0, total, 1), 0.0)
        return mean * (self.processes * share.detach())

    def total(self, loss):
        """See `ReplicaGroup`."""
        return loss * (self.processes / self.copies)

    def train_step(self, task, data):
        """Run a training step as Keras does, with sums over all processes."""
        if self.processes == 1:
            return None
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        before = _cleared(task.metrics_variables)
        y_pred = task(x, training=True)
        task.zero_grad()
        loss = task.compute_loss(x, y, y_pred, weight, training=True)
        compat.loss_tracker(task).update_state(loss.detach())
        task.optimizer.scale_loss(loss).backward()
        task.compute_metrics(x, y, y_pred, weight)
        variables = task.trainable_weights
        gradients = [v.value.grad for v in variables]
        # One collective for gradients and metrics.
        summed = iter(self._sum_metrics(task, before, gradients))
        count = self.processes
        gradients = [g if g is None else next(summed) / count for g in gradients]
        with torch.no_grad():
            task.optimizer.apply(gradients, variables)
        return task.get_metrics_result()

    def test_step(self, task, data):
        """Run an evaluation step."""
        if self.processes == 1:
            return None
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        before = _cleared(task.metrics_variables)
        y_pred = task(x, training=False)
        loss = task.compute_loss(x, y, y_pred, weight, training=False)
        compat.loss_tracker(task).update_state(loss)
        task.compute_metrics(x, y, y_pred, weight)
        self._sum_metrics(task, before, [])
        return task.get_metrics_result()

    def _sum_metrics(self, task, before: list, tensors: list) -> list:
        """Sum the metric updates of this step over all processes.

        Args:
            task: The task.
            before: States of the metrics before the step.
            tensors: Other tensors to sum, or None.

        Returns:
            The sums of `tensors`.
        """
        variables = task.metrics_variables
        tensors = [tensor for tensor in tensors if tensor is not None]
        summed = self._sum([*tensors, *(v.value for v in variables)])
        for variable, old, new in zip(
            variables, before, summed[len(tensors) :], strict=True
        ):
            variable.assign(old + new / self.copies if self.copies > 1 else old + new)
        return summed[: len(tensors)]


def _cleared(variables: list) -> list:
    """Reset states of metrics, which are sums, to 0; return their values."""
    before = [v.value.detach().clone() for v in variables]
    for variable in variables:
        variable.assign(torch.zeros_like(variable.value))
    return before
