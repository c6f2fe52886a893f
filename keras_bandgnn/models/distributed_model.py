"""`DistributedModel`: a model whose steps run on several devices, and its files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Unpack

from keras_bandgnn import compat
from keras_bandgnn.data.files import atomic_path, buffered_write
from keras_bandgnn.distribution.replica_group import active_group
from keras_bandgnn.ops.backend import current as backend

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, FilePath, ModuleOptions, Tensor


def _is_local(path, suffix: str | tuple[str, ...]) -> bool:
    """Return whether Keras would write one local file with this suffix."""
    if not isinstance(path, str | os.PathLike):
        return False
    return os.fspath(path).endswith(suffix) and "://" not in os.fspath(path)


def _on_device(arguments: tuple) -> tuple:
    """Copy the arguments of a step to the device."""
    return arguments if backend.step_data is None else backend.step_data(arguments)


class DistributedModel(compat.BuildHooks, compat.LocalSteps):
    """A model whose steps run on the devices of the scope in which it was created.

    `distribution` is the `ReplicaGroup`, of one device without a scope. A distribution
    of Keras that was in force when the model was created counts as a scope.
    """

    # Host-side, replaceable at any time: Keras must not track these as sublayers.
    host_side = ("distribution", "record_steps", *compat.STEP_STATE)
    # Steps that torch records; see `EntryModel.compile`.
    record_steps: bool | str = "auto"
    # Whether several devices may share a supergraph. Each class declares it; see
    # `distribution.sequence_parallel`.
    splits_sequences = False

    def __init__(self, **kwargs: Unpack[ModuleOptions]):
        super().__init__(**kwargs)
        self.distribution = active_group()

    def __setattr__(self, name, value):
        if name in self.host_side:
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    def train_step(self, *args: Batch | tuple) -> dict[str, Tensor]:
        """Run a training step on all devices."""
        args = _on_device(args)
        logs = self._recorded("train", args)
        if logs is None:
            logs = self.distribution.train_step(self, *args)
        return super().train_step(*args) if logs is None else logs

    def test_step(self, *args: Batch | tuple) -> dict[str, Tensor]:
        """Run an evaluation step on all devices."""
        args = _on_device(args)
        logs = self._recorded("test", args)
        if logs is None:
            logs = self.distribution.test_step(self, *args)
        return super().test_step(*args) if logs is None else logs

    def predict_step(self, *args: Batch | tuple) -> Tensor:
        """Return the outputs for a batch."""
        args = _on_device(args)
        outputs = self._recorded("predict", args)
        return super().predict_step(*args) if outputs is None else outputs

    def _recorded(self, kind: str, args: tuple):
        """Return the results of a step that torch has recorded, or None."""
        if backend.recorded is None:
            return None
        return backend.recorded(self, kind, args[-1])

    def save(
        self, filepath: FilePath, *args: bool, **kwargs: Unpack[ModuleOptions]
    ) -> None:
        """Save the model atomically; see `keras.Model.save`."""
        if _is_local(filepath, (".h5", ".hdf5")):
            raise ValueError(
                "Expected a file that ends with .keras: Keras' older form holds no "
                f"model with a backbone. Received: {os.fspath(filepath)!r}. Write "
                "save('model.keras'), or save_weights('model.weights.h5')."
            )
        with self.distribution.local_only(), compat.without_tensorflow_checks():
            if args or kwargs or not _is_local(filepath, ".keras"):
                return super().save(filepath, *args, **kwargs)
            with atomic_path(filepath) as hidden:
                return super().save(hidden)

    def save_weights(
        self, filepath: FilePath, *args: bool, **kwargs: Unpack[ModuleOptions]
    ) -> None:
        """Save the weights atomically; see `keras.Model.save_weights`."""
        with self.distribution.local_only():
            if args or not kwargs.get("overwrite", True) or len(kwargs) > 1:
                return super().save_weights(filepath, *args, **kwargs)
            if "max_shard_size" in kwargs or not _is_local(filepath, ".weights.h5"):
                return super().save_weights(filepath, *args, **kwargs)
            with buffered_write(filepath) as buffer:
                return super().save_weights(buffer)

    def stateless_call(self, *args: Tensor, **kwargs: Unpack[ModuleOptions]) -> tuple:
        """Call the model on all devices of JAX; see `keras.Model.stateless_call`."""
        call = self.distribution.stateless_call(self, super().stateless_call)
        return call(*args, **kwargs)

    def batch_to_build(self, batch: Batch) -> Batch:
        """Return the part of a batch on one device, which determines shapes."""
        plain = self.distribution.plain_batch(self)
        return batch if plain is None else plain

    def builds_from_batches(self) -> bool:
        """Return whether Keras builds from batches; not if metrics are built already.

        On TensorFlow Keras would average a distributed batch, which is invalid for ids
        and masks.
        """
        return self.distribution.size == 1 or not self.distribution.builds_metrics
