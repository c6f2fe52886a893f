"""`data_parallel`: one model, trained on the supergraphs of several devices."""

import importlib

import keras

from keras_bandgnn.checks import optional, positive_int, positive_number, strings


def data_parallel(
    devices=None, supergraphs: int | None = None, timeout: float | None = None
):
    """Returns a distribution: every device trains on its own supergraphs.

    Make, compile and train a task within its scope. The script is the same on one
    device or many, and a step on R devices is that of one device on the same R
    supergraphs: losses and metrics are means over the graphs of all devices.

    On torch start one process per device, `torchrun --nproc-per-node 2 script.py`; on
    TensorFlow one process has all devices of a machine, and `TF_CONFIG` names the
    machines; on JAX those of all processes after `keras.distribution.initialize`. See
    the page "Distribution".

    Args:
        devices: Names of the devices of this process, such as `["cpu"]` on torch and
            `["GPU:0", "GPU:1"]` on TensorFlow. By default all of them; on torch the
            one that `LOCAL_RANK` says.
        supergraphs: Supergraphs of a step over all devices; by default one for each.
            With a number of your own the epochs, and saved progress, do not depend on
            the number of devices.
        timeout: On torch the seconds after which a process stops waiting for another
            one; 600 by default.

    Returns:
        An object with `scope()`, `size`, the number of devices, and `is_main`, whether
        this process writes files and prints. On JAX a `keras.distribution` object.

    Raises:
        ValueError: For devices that are not there, or supergraphs that do not divide.

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
    return module.make(devices, supergraphs, timeout)
