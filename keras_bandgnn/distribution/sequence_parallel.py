"""`sequence_parallel`: supergraphs sharded over several devices."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras

from keras_bandgnn.checks import optional, positive_int, strings

if TYPE_CHECKING:
    from keras_bandgnn.distribution.replica_group import ReplicaGroup


def sequence_parallel(
    sequence: int,
    batch: int | None = None,
    devices: Sequence[str] | int | None = None,
    supergraphs: int | None = None,
) -> ReplicaGroup:
    """Return a distribution in which devices share each supergraph's nodes.

    Each device holds the states of N / sequence consecutive nodes. Per step, banded
    message passing sends one block of states to each neighbouring device, and the
    senders of edges outside the band by lists computed on the host. Attention switches
    from sharding nodes to sharding heads and back by two all-to-alls. Groups of devices
    train on separate supergraphs, as with `data_parallel`. Losses, metrics and
    gradients equal those of one device.

    Every layer of a model must declare its support with `splits_sequences = True` in
    the body of its class; subclasses do not inherit the declaration, since they may
    compute something else. A layer is supported if it processes each node separately,
    or exchanges data with `keras_bandgnn.ops.sequence` (`over_devices` sums over the
    devices). Row-wise layers of Keras, such as `Dense`, need no declaration. A task
    with any other layer raises an error before it starts.

    On JAX one process has all devices of a group. On torch each device has a process,
    which `torchrun` starts; consecutive ones share a supergraph.

    Place clusters of nodes next to each other (`RCMKCompile`, `ClusterCompile`), so
    that few edges cross devices.

    Args:
        sequence: P, number of devices that share a supergraph; divides the number of
            heads.
        batch: Number of groups of devices; all devices are used by default.
        devices: Names of devices, such as `["gpu:0", "gpu:1"]`; all by default. Those
            of a group belong to one process. On torch that of this process.
        supergraphs: Supergraphs per step; one per group by default.

    Returns:
        An object with `scope()`, as from `data_parallel`.

    Raises:
        ValueError: If the sizes do not match the devices.
        NotImplementedError: On TensorFlow.

    Reference:
        Zhang et al. 2024 (TorchGT), section III-C.

    Example:
    >>> import keras_bandgnn as kb
    >>> if keras.backend.backend() != "tensorflow":
    ...     distribution = kb.distribution.sequence_parallel(sequence=1)
    """
    sequence = positive_int("sequence", sequence)
    batch = optional(positive_int, "batch", batch)
    if not isinstance(devices, str):
        optional(strings, "devices", devices)
    supergraphs = optional(positive_int, "supergraphs", supergraphs)
    backend = keras.backend.backend()
    modules = {"jax": "jax_data_parallel", "torch": "torch_sequence_parallel"}
    if backend not in modules:
        raise NotImplementedError(
            "Expected the backend 'jax' or 'torch' for sequence parallelism. Received: "
            f"{backend!r}. Set KERAS_BACKEND=jax, or use data_parallel(), which runs "
            "on every backend."
        )
    module = importlib.import_module(f"keras_bandgnn.distribution.{modules[backend]}")
    return module.make_sequence_parallel(sequence, batch, devices, supergraphs)
