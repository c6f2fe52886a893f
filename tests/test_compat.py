"""Private parts of other packages: in `compat` alone, and still there."""

import ast
import re
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_bandgnn
from keras_bandgnn import compat

pytestmark = pytest.mark.every_backend

PACKAGE = Path(keras_bandgnn.__file__).parent
NAMES = {
    *("_aggregate_additional_loss", "_all_reduce_sum_gradients", "_cardinality"),
    *("_compile_loss", "_compile_metrics", "_flatten_layers", "_loss_tracker"),
    *("_maybe_symbolic_build", "_symbolic_build", "_estimate_step_duration"),
    *("_format_time", "_initialize_ddp"),
}
MODULES = re.compile(r"keras\.src|torch\._|tensorflow\.python|jax\._src")


def test_private_names_are_used_in_one_place():
    found = []
    for path in PACKAGE.rglob("*.py"):
        if path.name == "compat.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node, "attr", getattr(node, "module", None)) or ""
            if name in NAMES or MODULES.match(name):
                found.append(f"{path.relative_to(PACKAGE)}:{node.lineno} {name}")
    assert not found, "use keras_bandgnn.compat"


def test_models_have_what_is_used():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    assert compat.has_compiled_metrics(model)
    assert compat.loss_tracker(model).name == "loss"
    x, y = np.ones((2, 3), "float32"), np.ones((2, 1), "float32")
    compat.build_step(model, (x, y))
    assert model.optimizer.built
    assert float(compat.added_loss(model, keras.ops.ones(()))) == 1.0
    assert model in compat.sublayers(model) and model.layers[0] in compat.sublayers(
        model
    )
    compat.forget_compiled(model)
    assert not compat.has_compiled_metrics(model) and model.loss is None
    assert not compat.in_stateless_scope()


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="needs JAX")
def test_steps_on_jax_set_the_state_that_is_not_tracked():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.predict_on_batch(np.ones((2, 3), "float32"))
    assert all(hasattr(model, name) for name in compat.STEP_STATE)


def test_bars_have_what_is_replaced():
    for name in ("_estimate_step_duration", "_format_time"):
        assert callable(getattr(keras.utils.Progbar, name))
    assert keras.utils.Progbar(3)._start > 0


def test_the_batch_to_build_from_is_chosen():
    class Chosen(compat.BuildHooks):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def batch_to_build(self, batch):
            seen.append(batch)
            return batch

    seen, model = [], Chosen()
    model.compile("sgd", "mse")
    x, y = np.ones((2, 3), "float32"), np.ones((2, 1), "float32")
    compat.build_step(model, (x, y))
    assert len(seen) == 1 and model.dense.built


def test_steps_sum_over_no_processes_by_themselves(monkeypatch):
    class Local(compat.BuildHooks, compat.LocalSteps):
        def call(self, x):
            return x

    def sums(self):
        raise AssertionError("metrics are summed over processes")

    trainer = keras.Model.__mro__[1]
    monkeypatch.setattr(trainer, "get_metrics_result", sums, raising=False)
    model = Local()
    model.compile(loss="mse")
    assert float(model.get_metrics_result()["loss"]) == 0
    assert model._initialize_ddp() is None
    backends = {"jax": True, "tensorflow": False}
    assert compat.has_distributions() is backends.get(
        keras.backend.backend(), hasattr(trainer, "_initialize_ddp")
    )


def test_keras_is_told_to_look_for_tensorflow_again():
    from keras.src.utils import module_utils

    before = module_utils.tensorflow._available
    module_utils.tensorflow._available = False
    try:
        compat.forget_missing_tensorflow()
        assert module_utils.tensorflow._available is None
    finally:
        module_utils.tensorflow._available = before


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="needs torch")
def test_parts_of_torch():
    import torch

    x = torch.tensor([-1.0, 0.0, 2.0])
    expected = torch.nn.functional.softplus(x)
    compat.softplus_in_place(x)
    assert torch.equal(x, expected)
    assert compat.torch_compilations()["unique_graphs"] >= 0


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="needs TensorFlow")
def test_parts_of_tensorflow():
    import tensorflow as tf

    seen = []

    def look(x):
        graph = tf.compat.v1.get_default_graph()
        seen.append(compat.in_xla_context(graph))
        return x + 1

    tf.function(look)(tf.ones(()))
    tf.function(look, jit_compile=True)(tf.ones(()))
    assert seen == [False, True]
    optimizer = keras.optimizers.SGD()
    assert hasattr(optimizer, "_all_reduce_sum_gradients")
    data = tf.distribute.get_strategy().experimental_distribute_dataset(
        tf.data.Dataset.range(3)
    )
    compat.set_length(data, 2)


def test_torch_has_the_hooks_that_end_records():
    torch = pytest.importorskip("torch")
    assert set(compat.HOOKS) <= set(vars(torch.nn.Module()))
    assert all(hasattr(torch.ones(1), name) for name in compat.TENSOR_HOOKS)
    assert len(compat.global_hooks()) >= 4
    assert not compat.modes_of_others()
