"""`sequence_parallel`: one supergraph on several devices."""

import keras

from keras_bandgnn.checks import optional, positive_int, strings

# Layers of Keras that work on each row by itself.
_OF_ROWS = (
    keras.layers.Activation,
    keras.layers.Dense,
    keras.layers.Dropout,
    keras.layers.ELU,
    keras.layers.Embedding,
    keras.layers.Identity,
    keras.layers.InputLayer,
    keras.layers.LayerNormalization,
    keras.layers.LeakyReLU,
    keras.layers.RMSNormalization,
    keras.layers.ReLU,
    keras.Sequential,
)


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


def check_layers(task) -> None:
    """Raises a ValueError that names the layers that may not share a sequence.

    Args:
        task: The task.
    """
    layers = [layer for layer in task._flatten_layers() if not _may_split(layer)]
    if not layers:
        return
    # A backbone that says no is reason enough: its layers are not news.
    models = [layer for layer in layers if isinstance(layer, keras.Model)]
    names = [f"{type(layer).__name__} ({layer.name!r})" for layer in models or layers]
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    raise ValueError(
        "Expected layers that may run with the nodes of a graph on several devices, "
        "which their classes say with `splits_sequences = True`, for sequence "
        f"parallelism. Received: {shown} in {type(task).__name__} over "
        f"{type(task.backbone).__name__}. Use data_parallel()."
    )


def _may_split(layer) -> bool:
    """Whether a layer, apart from those within it, may share a sequence."""
    if getattr(layer, "activity_regularizer", None) is not None:
        # Each device would add a loss of its own.
        return False
    kind = type(layer)
    if kind in _OF_ROWS:
        return getattr(layer, "axis", -1) in (-1, [-1])
    return "splits_sequences" in vars(kind) and bool(layer.splits_sequences)
