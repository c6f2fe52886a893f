"""`data_parallel`: data-parallel training on several devices."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras

from keras_bandgnn.checks import optional, positive_int, positive_number, strings

if TYPE_CHECKING:
    from keras_bandgnn.distribution.replica_group import ReplicaGroup


def data_parallel(
    devices: Sequence[str] | int | None = None,
    supergraphs: int | None = None,
    timeout: float | None = None,
) -> ReplicaGroup:
    """Return a distribution in which each device trains on separate supergraphs.

    Create, compile and train a task inside its scope. The same script runs on one
    device or many. A step on R devices computes the same as one device on the same R
    supergraphs: losses and metrics are means over the graphs of all devices.

    On torch, start one process per device, `torchrun --nproc-per-node 2 script.py`. On
    TensorFlow, one process uses all devices of a machine, and `TF_CONFIG` names the
    machines. On JAX, call `keras.distribution.initialize` to use the devices of all
    processes. See the page "Distribution".

    Args:
        devices: Names of the devices of this process, such as `["cpu"]` on torch and
            `["GPU:0", "GPU:1"]` on TensorFlow. All devices by default; on torch the one
            given by `LOCAL_RANK`.
        supergraphs: Supergraphs per step over all devices; one per device by default.
            If it is set, epochs and saved progress do not depend on the number of
            devices.
        timeout: Seconds after which a process stops waiting for the others, on torch
            only; 600 by default.

    Returns:
        An object with `scope()`, `size`, the number of devices, and `is_main`, whether
        this process writes files and prints. On JAX a `keras.distribution` object.

    Raises:
        ValueError: For unknown devices, or if `supergraphs` is not a multiple of their
            number.

    Example:
    >>> import keras_bandgnn as kb
    >>> with kb.distribution.data_parallel().scope():
    ...     backbone = kb.models.GCNBackbone({"kind": 2}, hidden_dim=8)
    """
    if not isinstance(devices, str):
        optional(strings, "devices", devices)
    supergraphs = optional(positive_int, "supergraphs", supergraphs)
    timeout = optional(positive_number, "timeout", timeout)
    backend = keras.backend.backend()
    module = importlib.import_module(
        f"keras_bandgnn.distribution.{backend}_data_parallel"
    )
    return module.make_data_parallel(devices, supergraphs, timeout)
