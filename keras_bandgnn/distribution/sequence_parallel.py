"""`sequence_parallel`: one supergraph on several devices."""

import keras

from keras_bandgnn.checks import optional, positive_int, strings


def sequence_parallel(
    sequence: int,
    batch: int | None = None,
    devices=None,
    supergraphs: int | None = None,
):
    """Returns a distribution: some devices share the nodes of each supergraph (JAX).

    Each device has the states of N / sequence successive nodes. Banded message passing
    sends one block of states to either neighbour per step, and the senders of edges
    outside the band by lists that the host makes. Attention changes between nodes and
    heads by one all-to-all before and one after it. Groups of devices train on
    supergraphs of their own, as with `data_parallel`. Losses, metrics and gradients are
    those of one device.

    Every layer of a model must say that it may run so: `splits_sequences = True` in
    the body of its class, which a subclass says anew, as it may compute otherwise. It
    may if it works on each node by itself or exchanges what it needs by
    `keras_bandgnn.ops.sequence` (`over_devices` adds up over the devices). Layers of
    Keras that work on rows, such as `Dense`, need no word. A task with any other layer
    is refused before it starts.

    Put clusters of nodes next to each other (`RCMKCompile`, `ClusterCompile`): then few
    edges lead to other devices.

    Args:
        sequence: P, devices that share a supergraph; divides the number of heads.
        batch: Groups of devices; by default all devices are used.
        devices: Names of devices, such as `["gpu:0", "gpu:1"]`; all by default. Those
            of a group belong to one process.
        supergraphs: Supergraphs of a step; one per group by default.

    Returns:
        An object with `scope()`, as of `data_parallel`.

    Raises:
        ValueError: For sizes that do not fit the devices.
        NotImplementedError: On another backend than JAX.

    Reference:
        Zhang et al. 2024 (TorchGT), section III-C.

    Example:
    >>> import keras_bandgnn as kb
    >>> if keras.backend.backend() == "jax":
    ...     distribution = kb.distribution.sequence_parallel(sequence=1)
    """
    sequence = positive_int("sequence", sequence)
    batch = optional(positive_int, "batch", batch)
    if not isinstance(devices, str):
        optional(strings, "devices", devices)
    supergraphs = optional(positive_int, "supergraphs", supergraphs)
    if keras.backend.backend() != "jax":
        raise NotImplementedError(
            "Expected the backend 'jax' for sequence parallelism. Received: "
            f"{keras.backend.backend()!r}. Set KERAS_BACKEND=jax, or use "
            "data_parallel(), which runs on every backend."
        )
    from keras_bandgnn.distribution.jax_data_parallel import make_sequence

    return make_sequence(sequence, batch, devices, supergraphs)
