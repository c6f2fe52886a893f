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
        ValueError: For BackupAndRestore, which restores only where it has written.
    """
    if group.num_hosts == 1:
        return list(callbacks)
    if any(isinstance(c, keras.callbacks.BackupAndRestore) for c in callbacks):
        raise ValueError(
            "Expected keras_bandgnn.training.SaveProgress where several processes "
            "train together. Received: BackupAndRestore."
        )
    return [c for c in callbacks if group.is_main or not isinstance(c, _WRITERS)]
