"""Which callbacks a process has when several train together."""

from collections.abc import Sequence

import keras

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
