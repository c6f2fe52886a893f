"""A loader's batches as data sets of TensorFlow, torch and Grain, and as inputs."""

import os
import re
from typing import Any

import numpy as np

from keras_bandgnn.default_backend import backend_required
from keras_bandgnn.optional import optional_import
from keras_bandgnn.primitives.base import is_step_resource


class Batches:
    """The batches of several epochs by position, each built when it is asked for.

    Args:
        loader: The `Loader`.
        epochs: Number of epochs, from the loader's current one.
    """

    def __init__(self, loader, epochs: int):
        self.loader = loader
        self.first = loader.epoch
        self.resumed_batches = loader.resumed_batches
        self.length = epochs * loader.batches_per_epoch - loader.resumed_batches
        self._process = os.getpid()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple:
        if not 0 <= index < len(self):
            raise IndexError(
                f"Expected a batch in [0, {len(self)}). Received: {index}."
            )
        if self._process != os.getpid():
            # A forked process has no threads, and its locks may be held.
            self.loader.begin()
            self._process = os.getpid()
        epoch, batch = divmod(
            index + self.resumed_batches, self.loader.batches_per_epoch
        )
        return self.loader.build(batch, self.first + epoch)


def to_grain(loader, epochs: int):
    """See `Loader.to_grain`."""
    grain = optional_import("grain.python", "grain", "this data set")
    return grain.MapDataset.source(Batches(loader, epochs))


class TensorBatches(Batches):
    """The same as tensors of torch; a map-style data set."""

    def __getitem__(self, index: int) -> tuple:
        torch = optional_import("torch", "keras-bandgnn[torch]", "this data set")

        def tensors(tree: Any):
            if isinstance(tree, dict):
                return {name: tensors(value) for name, value in tree.items()}
            return torch.from_numpy(np.ascontiguousarray(tree))

        return tuple(tensors(tree) for tree in super().__getitem__(index))


def to_torch(loader, epochs: int):
    """See `Loader.to_torch`."""
    optional_import("torch", "keras-bandgnn[torch]", "this data set")
    return TensorBatches(loader, epochs)


def signature(loader, any_budget: bool = False) -> tuple:
    """Return the shapes and dtypes of batches, None where a size varies.

    Args:
        loader: The `Loader`.
        any_budget: Whether sizes that depend on the budget vary, although those of this
            loader may not.

    Returns:
        A batch with `(shape, dtype)` in place of each array.
    """
    first = loader.composition(loader.epoch)[0]
    members, budget = first.members, first.budget
    larger = loader.budgets[-1]
    if loader.composer.fixed_shapes and not any_budget:
        budget = loader.budgets[0]
        if loader.shares_states:
            larger = {
                k: 2 * v + 4096 if is_step_resource(k) else v for k, v in larger.items()
            }
    else:
        fixed = loader.composer.fixed_sizes
        # Far larger, so that sizes derived by a division differ, too.
        larger = {k: v if k in fixed else 2 * v + 4096 for k, v in budget.items()}
        if any_budget:
            # Features of graphs may be large, such as images.
            larger |= {name: 2 * budget[name] for name in fixed if name in budget}
    one, two = (
        loader.build_as([members[:0]] * loader.replicas, b) for b in (budget, larger)
    )

    def compare(a: Any, b: Any):
        if isinstance(a, dict):
            return {name: compare(a[name], b[name]) for name in a}
        if isinstance(a, tuple):
            return tuple(compare(x, y) for x, y in zip(a, b, strict=True))
        shape = tuple(
            m if m == n else None for m, n in zip(a.shape, b.shape, strict=True)
        )
        return shape, a.dtype

    return compare(one, two)


def to_tf_data(loader, new_orders: bool = False):
    """See `Loader.to_tf_data`.

    Args:
        loader: The `Loader`.
        new_orders: Whether each pass after the first goes to the next epoch.
    """
    tf = optional_import("tensorflow", "keras-bandgnn[tensorflow]", "this data set")

    def spec(tree: Any):
        if isinstance(tree, dict):
            return {name: spec(value) for name, value in tree.items()}
        return tf.TensorSpec(*tree)

    passes = []

    def batches():
        if new_orders and passes:
            loader.on_epoch_end()
        passes.append(None)
        try:
            for index in range(len(loader)):
                yield loader[index]
        finally:
            loader.stop_threads()

    data = tf.data.Dataset.from_generator(
        batches, output_signature=tuple(spec(tree) for tree in signature(loader))
    )
    data = data.apply(tf.data.experimental.assert_cardinality(len(loader)))
    return data.prefetch(tf.data.AUTOTUNE)


def make_inputs(specs: Any) -> dict:
    """Return results of `keras.Input`, named after their place in the batch.

    Args:
        specs: A batch with `(shape, dtype)` in place of each array.
    """
    with backend_required():
        import keras
    names: list[str] = []

    def make(tree: Any, path: str = ""):
        if isinstance(tree, dict):
            return {name: make(tree[name], f"{path}_{name}") for name in tree}
        shape, dtype = tree
        name = base = re.sub(r"[^A-Za-z0-9_]", "_", path.removeprefix("_"))
        while name in names:
            name = f"{base}_{len(names)}"
        names.append(name)
        return keras.Input(batch_shape=shape, dtype=str(dtype), name=name)

    return make(specs)


def inputs(loader) -> dict:
    """See `Loader.inputs`."""

    def any_groups(tree: Any):
        if isinstance(tree, dict):
            return {name: any_groups(value) for name, value in tree.items()}
        shape, dtype = tree
        return (None, *shape[1:]), dtype

    return make_inputs(any_groups(signature(loader, any_budget=True)[0]))
