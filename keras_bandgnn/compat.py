"""Access to private APIs of Keras, TensorFlow and torch.

No other module uses private APIs. All of these exist in Keras 3.15 and 3.16,
TensorFlow 2.21 and torch 2.13, and where versions differ the code asks for the
feature; tests/test_compat.py fails if one is removed.
"""

from __future__ import annotations

import contextlib
import operator
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import keras
from keras.src.backend import in_stateless_scope as in_stateless_scope
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

from keras_bandgnn import keras_bases

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, Tensor

# Attribute of a model that holds the metric "loss".
LOSS_TRACKER = "_loss_tracker"
# Attributes that Keras sets in each step on JAX: the arrays of all variables, which
# are no sublayers.
STEP_STATE = ("_jax_state", "_jax_state_synced")


def sublayers(model: keras.Model) -> list:
    """Return the model and all its sublayers (`Layer._flatten_layers`)."""
    return list(model._flatten_layers())


def tracker_type(value) -> type:
    """Return the class of Keras that tracks the variables and layers of an object."""
    return type(value._tracker)


def set_built(model: keras.Model) -> None:
    """Mark layers without weights as built that were never called.

    Keras on JAX would run a model eagerly first to build them, and rejects them in
    `quantize`.
    """
    for layer in sublayers(model):
        if not layer.built and type(layer).build is keras.layers.Layer.build:
            layer.built = True


def add_seed_generator(layer, seed: int | None) -> None:
    """Set `layer.seed_generator` after the layer was built."""
    layer._tracker.unlock()
    try:
        layer.seed_generator = keras.random.SeedGenerator(seed)
    finally:
        layer._tracker.lock()


# === Compiled steps ===


class _Cache:
    """A dict that Keras does not track, save or load as a container of layers."""

    def __init__(self):
        self.values: dict = {}


def model_cache(model: keras.Model) -> dict:
    """Return the cache of a model: other models and compiled calls derived from it."""
    return model.__dict__.setdefault("_model_cache", _Cache()).values


def forget_programs(model: keras.Model) -> None:
    """Discard the compiled steps and derived objects of a model.

    Call it when the model computes something else than before.
    """
    for name in ("train_function", "test_function", "predict_function"):
        if hasattr(model, name):
            setattr(model, name, None)
    model.__dict__.pop("_model_cache", None)


def forget_steps(model: keras.Model) -> None:
    """Discard the objects derived from the arguments of `compile`."""
    for name in ("records", "loops", "built"):
        model_cache(model).pop(name, None)


# === State of `Model.compile` ===


def forget_compiled(model: keras.Model) -> None:
    """Reset the losses and metrics of an earlier `compile`, which Keras keeps."""
    model.loss = model._compile_loss = model._compile_metrics = None


def has_compiled_metrics(model: keras.Model) -> bool:
    """Return whether the model was compiled with metrics."""
    return model._compile_metrics is not None


def loss_tracker(model: keras.Model):
    """Return the metric "loss", which the steps of all backends update."""
    return model._loss_tracker


def copy_direction(metric, wrapper) -> None:
    """Let callbacks know of a wrapped metric whether more is better."""
    if hasattr(metric, "_direction"):
        wrapper._direction = metric._direction


def added_loss(model: keras.Model, value):
    """Return an additional loss as Keras aggregates it, scaled for the devices."""
    return model._aggregate_additional_loss(value)


def whole_loss(model: keras.Model, x, y, outputs, weight, training: bool = True):
    """Return the loss of a step, added to the metric "loss"."""
    loss = model._compute_loss(
        x=x, y=y, y_pred=outputs, sample_weight=weight, training=training
    )
    rows = next(leaf for leaf in keras.tree.flatten(x) if leaf is not None)
    model._loss_tracker.update_state(loss, sample_weight=rows.shape[0])
    return loss


# === Building before the first step ===


def build_step(model: keras.Model, batch) -> None:
    """Build the variables of metrics and optimizer from the shapes of a batch."""
    model._symbolic_build(data_batch=batch)


class BuildHooks(keras_bases.Model):
    """A model that chooses the batch from which Keras builds its variables."""

    def batch_to_build(self, batch: Batch) -> Batch:
        """Return the batch whose shapes determine the variables."""
        return batch

    def builds_from_batches(self) -> bool:
        """Return whether Keras builds from the data passed to it."""
        return True

    def _symbolic_build(self, iterator=None, data_batch=None):
        # Keras does so again at each `train_on_batch` and each evaluation, as the
        # losses of entries are never those that it builds.
        parts = (self.optimizer, self._compile_metrics, self._compile_loss)
        done = model_cache(self).get("built", ())
        same = len(done) == len(parts) and all(map(operator.is_, done, parts))
        if not same or not getattr(self.optimizer, "built", True):
            super()._symbolic_build(iterator, self.batch_to_build(data_batch))
            model_cache(self)["built"] = parts

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # Exists only in the TensorFlow trainer.
        if self.builds_from_batches():
            super()._maybe_symbolic_build(iterator, data_batch)


# === Several processes ===


def has_distributions() -> bool:
    """Return whether Keras implements `keras.distribution` for the backend."""
    # None where it does not: on torch before Keras 3.16.
    from keras.src.backend import distribution_lib

    return hasattr(distribution_lib, "distribute_tensor")


# That of the base class of the trainers of all backends.
_local_metrics = [
    vars(cls)["get_metrics_result"]
    for cls in keras.Model.__mro__
    if "get_metrics_result" in vars(cls)
][-1]


class LocalSteps(keras_bases.Model):
    """A model whose steps sum over processes where it says so, and nowhere else.

    On torch, Keras from 3.16 on trains every model of a process group under
    `DistributedDataParallel` and sums its metrics whenever it reads them.
    """

    def _initialize_ddp(self):
        """Leave the sums over processes to the steps."""

    def get_metrics_result(self) -> dict[str, Tensor]:
        """Return the metrics of the variables as they are."""
        return _local_metrics(self)


# === Data of fit ===


class DirectBatches(PyDatasetAdapter):
    """Batches of a `PyDataset` as `fit` and `evaluate` on TensorFlow and torch pass on.

    By itself Keras sends them through a `tf.data.Dataset` or torch's `DataLoader`,
    which takes longer than many a step. A task with an `evaluate` of its own, to which
    `fit` passes them, reads the data set's length, items and attributes here.

    Args:
        data: The `PyDataset`, which has one worker.
        convert: What a step takes, from a batch of arrays; None for the batch itself.
    """

    def __init__(self, data: keras.utils.PyDataset, convert: Callable | None):
        super().__init__(data)
        self._data = data
        self._convert = convert

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index):
        return self._data[index]

    def __getattr__(self, name):
        if name == "_data":
            raise AttributeError(name)
        return getattr(self._data, name)

    @staticmethod
    def serve(model: keras.Model) -> bool:
        """Return whether the steps of a model read batches of arrays."""
        return (
            not model.run_eagerly
            and model.steps_per_execution == 1
            and getattr(model, "_distribute_strategy", None) is None
        )

    def get_tf_dataset(self):
        """Return the batches of an epoch."""
        return self

    def get_torch_dataloader(self):
        """Return the batches of an epoch."""
        return self

    def __iter__(self) -> Iterator:
        batches = self._get_iterator()
        return map(self._convert, batches) if self._convert else batches


# === Progress bars ===


class RateProgbar(keras.utils.Progbar):
    """Keras' bar with units per second, where Keras shows seconds per unit."""

    _first_update: tuple[int, float] | None = None
    _counted = 0
    _seconds_per_unit = 0.0

    def _format_time(self, time_per_unit, unit_name):
        rate = 1 / time_per_unit if time_per_unit else 0.0
        return (
            f" {rate:,.0f} {unit_name}/s"
            if rate >= 10
            else f" {rate:.2g} {unit_name}/s"
        )

    def _estimate_step_duration(self, current, now):
        if self._first_update is None:
            # The first step compiles; later ones are measured from its end.
            self._first_update = current, now
            self._seconds_per_unit = (now - self._start) / max(current, 1)
        elif current > max(self._counted, self._first_update[0]):
            count, begin = self._first_update
            self._seconds_per_unit = (now - begin) / (current - count)
        # An update without progress, as after validation, takes no time.
        self._counted = current
        return self._seconds_per_unit


# === Backends ===


def portable_optimizers(config):
    """Return a serialised configuration in which optimizers have their public names.

    Keras on torch names subclasses of its own, which train on no other backend.
    """
    if isinstance(config, (list, tuple)):
        return type(config)(map(portable_optimizers, config))
    if not isinstance(config, dict):
        return config
    config = {name: portable_optimizers(value) for name, value in config.items()}
    module = config.get("module")
    if isinstance(module, str) and re.match(r"keras\.src\.backend\.\w+\.opt", module):
        config |= {"module": "keras.optimizers", "registered_name": None}
    return config


def gradients_are_summed(optimizer) -> None:
    """Tell a TensorFlow optimizer that gradients are summed over the devices."""
    optimizer._all_reduce_sum_gradients = list


def set_length(dataset, steps: int) -> None:
    """Set the number of steps of a distributed TensorFlow data set."""
    dataset._cardinality = steps


def in_xla_context(graph) -> bool:
    """Return whether XLA compiles a TensorFlow graph."""
    from tensorflow.python.ops import control_flow_util

    return control_flow_util.GraphOrParentsInXlaContext(graph)


@contextlib.contextmanager
def without_tensorflow_checks() -> Iterator[None]:
    """Keep Keras from importing TensorFlow in its context, to test types of objects.

    Writing a configuration and seeding do so wherever TensorFlow is installed, which
    takes seconds and fills the log. Where TensorFlow is imported, nothing changes.
    """
    utils = sys.modules.get("keras.src.utils.module_utils")
    lazy = getattr(utils, "tensorflow", None)
    if "tensorflow" in sys.modules or getattr(lazy, "_available", True) is not None:
        yield
        return
    lazy._available = False
    try:
        yield
    finally:
        lazy._available = None


def set_random_seed(seed: int) -> None:
    """Seed Python, NumPy, Keras and its backend, and import no other one."""
    with without_tensorflow_checks():
        keras.utils.set_random_seed(seed)


def forget_missing_tensorflow() -> None:
    """Clear Keras' cached result that TensorFlow is missing."""
    utils = sys.modules.get("keras.src.utils.module_utils")
    for name in ("tensorflow", "gfile"):
        lazy = getattr(utils, name, None)
        if getattr(lazy, "_available", None) is False:
            lazy._available = None


def torch_device() -> str:
    """Return the device on which Keras makes tensors of torch."""
    try:
        from keras.src.backend.torch.core import get_device
    except ImportError:  # Keras 3.16
        from keras.src.backend.torch.ops.core import get_device

    return str(get_device())


def torch_compilations() -> dict:
    """Return torch's counters; "unique_graphs" counts compiled programs."""
    # Importing the compiler takes a second, and eager training does not need it.
    from torch._dynamo.utils import counters

    return counters["stats"]


def held_values(variables: list) -> list:
    """Return the tensors of variables, without casts."""
    return [variable._value for variable in variables]


# Attributes of a module of torch that hold functions that run with it.
HOOKS = (
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks",
    "_forward_pre_hooks",
)


def global_hooks() -> dict:
    """Return the dicts of functions that run with every module of torch."""
    from torch.nn.modules import module

    return {
        name: value
        for name, value in vars(module).items()
        if name.startswith("_global_") and name.endswith("_hooks")
    }


# Attributes of a tensor of torch that hold functions that run with its gradient.
TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def modes_of_others() -> bool:
    """Return whether torch calls modes of others with each operation."""
    from torch.overrides import _get_current_function_mode_stack as functions
    from torch.utils._device import DeviceContext
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    modes = [*functions(), *_get_current_dispatch_mode_stack()]
    return any(not isinstance(mode, DeviceContext) for mode in modes)


def torch_dispatch_mode() -> type:
    """Return the base class of modes that see each operation of torch."""
    from torch.utils._python_dispatch import TorchDispatchMode

    return TorchDispatchMode


def one_fake_mode() -> contextlib.AbstractContextManager:
    """Return a context in which traces of torch share one mode of fake tensors.

    Otherwise `make_fx` makes one for each operation, which takes half of its time.
    """
    try:
        from torch._guards import TracingContext, tracing
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError:
        return contextlib.nullcontext()
    return tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True)))


def end_pool(device: int, pool) -> None:
    """Let memory no longer come from the pool of a CUDA graph."""
    from torch._C import _cuda_endAllocateToPool

    _cuda_endAllocateToPool(device, pool)


def writes(target) -> bool:
    """Return whether an operation that torch has recorded changes its inputs."""
    schema = getattr(target, "_schema", None)
    return schema is not None and schema.is_mutable


def may_be_view(target) -> bool:
    """Return whether an operation that torch has recorded may return a view.

    It may also be an input that the operation has changed.
    """
    schema = getattr(target, "_schema", None)
    if schema is None or any(part.alias_info for part in schema.returns):
        return True
    # It does not say that it returns a view.
    return schema.name == "aten::_unsafe_view"


def softplus_in_place(x) -> None:
    """Replace a torch tensor by its softplus in place."""
    from torch._C import _nn

    _nn.softplus(x, out=x)
