import os
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
from keras import ops

from keras_bandgnn.training.recompile_guard import (
    Compilation,
    RecompilationError,
    RecompileGuard,
)

pytestmark = pytest.mark.every_backend

BACKEND = keras.backend.backend()
compiled_steps = pytest.mark.skipif(
    BACKEND == "torch", reason="torch compiles only when asked to, which takes long"
)
SIZES = [4, 6, 4, 8, 6, 8]


class Batches(keras.utils.PyDataset):
    """Nested batches; batch i has sizes[i] nodes and edges."""

    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        size = self.sizes[index]
        x = {
            "node": {"feature": np.ones((1, size, 3), "float32")},
            "edge": {"sender": np.zeros((1, size), "int32")},
        }
        return x, np.ones((1, size, 1), "float32"), np.ones((1, size), "float32")


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        index = x["edge"]["sender"][..., None]
        return self.dense(ops.take_along_axis(x["node"]["feature"], index, axis=1))


def make_model(jit_compile=True, **options):
    if BACKEND == "torch" and "run_eagerly" not in options:
        jit_compile = "auto"
    model = Model()
    model.compile("sgd", "mse", jit_compile=jit_compile, **options)
    return model


def fit(model, sizes, *callbacks, **options):
    return model.fit(
        Batches(sizes),
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
        **options,
    )


def assert_unwrapped(model):
    for kind in ("train", "test", "predict"):
        step = getattr(model, f"{kind}_function")
        assert "RecompileGuard" not in getattr(step, "__qualname__", "")


@compiled_steps
@pytest.mark.parametrize("jit_compile", ["auto", True])
def test_constant_shapes_compile_once(jit_compile):
    model = make_model(jit_compile)
    guard = RecompileGuard()
    fit(model, [4, 4, 4], guard, epochs=2, validation_data=Batches([4, 4]))
    assert (guard.count, guard.test_count, guard.predict_count) == (1, 1, 0)
    assert [(c.kind, c.epoch, c.step) for c in guard.compilations] == [
        ("train", 0, 0),
        ("test", 0, 0),
    ]
    assert_unwrapped(model)


@compiled_steps
@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_every_new_shape_is_a_compilation(steps_per_execution):
    model = make_model(steps_per_execution=steps_per_execution)
    guard = RecompileGuard(action="count")
    history = fit(model, SIZES, guard, epochs=3, validation_data=Batches([4, 6, 4]))
    assert (guard.count, guard.test_count) == (3, 2)
    train = [c for c in guard.compilations if c.kind == "train"]
    first = [0, 1, 3] if steps_per_execution == 1 else [0, 0, 2]
    assert [(c.epoch, c.step) for c in train] == [(0, step) for step in first]
    assert [c.shapes["edge/sender"] for c in train] == [(1, 4), (1, 6), (1, 8)]
    assert train[0].changed == ()
    assert train[1].changed == (
        "edge/sender: (1, 4) -> (1, 6)",
        "node/feature: (1, 4, 3) -> (1, 6, 3)",
        "y: (1, 4, 1) -> (1, 6, 1)",
        "sample_weight: (1, 4) -> (1, 6)",
    )
    # The guard changes nothing about the training itself.
    assert history.epoch == [0, 1, 2] and model.optimizer.iterations == 18


@pytest.mark.skipif(BACKEND != "tensorflow", reason="XLA is optional there")
def test_a_trace_for_open_shapes_is_one_compilation():
    guard = RecompileGuard()
    fit(make_model(False), SIZES, guard)
    assert guard.count == 1
    assert guard.compilations[0].shapes["edge/sender"][1] is None


@pytest.mark.skipif(BACKEND != "jax", reason="the cache of JAX' jitted functions")
@pytest.mark.release(elsewhere=True)
def test_count_is_the_size_of_the_cache(monkeypatch):
    import jax
    from keras.src.backend.jax import trainer

    # All functions of a process share one cache, which is full after many tests.
    jax.clear_caches()
    jitted, jit = [], trainer.jit

    def keeping(*args, **kwargs):
        jitted.append(jit(*args, **kwargs))
        return jitted[-1]

    monkeypatch.setattr(trainer, "jit", keeping)
    guard = RecompileGuard(action="count")
    fit(make_model(), SIZES, guard, epochs=2, validation_data=Batches([4, 6]))
    sizes = [function._cache_size() for function in jitted]
    assert [guard.count, guard.test_count] == sizes == [3, 2]


@pytest.mark.skipif(BACKEND != "jax", reason="data that JAX makes")
def test_programs_of_the_data_are_not_counted():
    class Computed(Batches):
        def __getitem__(self, index):
            # A new shape, and so a new program, for every batch.
            ops.sum(ops.ones(20 + 3 * index) * index)
            return super().__getitem__(index)

    guard = RecompileGuard()
    make_model().fit(
        Computed([4] * 4), verbose=0, shuffle=False, epochs=2, callbacks=[guard]
    )
    assert guard.count == 1


@pytest.mark.skipif(BACKEND != "tensorflow", reason="files that XLA writes")
def test_count_is_the_number_of_programs_that_xla_makes(tmp_path):
    code = f"""
import sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_recompile_guard import *
guard = RecompileGuard(action="count")
model = make_model()
fit(model, SIZES, guard, epochs=2, validation_data=Batches([4, 6]))
counts = [guard.count, guard.test_count]
fit(model, [4, 10], guard)
print(*counts, guard.count)
"""
    flags = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "XLA_FLAGS": flags,
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        },
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["3", "2", "1"], done.stderr
    assert len(list(tmp_path.glob("*before_optimizations.txt"))) == 3 + 2 + 1


@pytest.mark.release
@pytest.mark.skipif(BACKEND != "torch", reason="torch.compile")
def test_count_is_the_number_of_steps_in_which_torch_compiles(monkeypatch):
    import torch

    steps, real = [], torch.compile

    class Where(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.step = batch

    where = Where()

    def compiler(graph, inputs):
        steps.append(where.step)
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", lambda f: real(f, backend=compiler))
    model = Model()
    model.compile("sgd", "mse", jit_compile=True)
    guard = RecompileGuard(budget=2)
    with pytest.raises(RecompilationError, match="Received: 3") as error:
        fit(model, [4, 4, 6], guard, where)
    # The second step has gradients to clear.
    assert [c.step for c in guard.compilations] == sorted(set(steps)) == [0, 1, 2]
    assert guard.compilations[1].changed == ()
    assert "edge/sender: (1, 4) -> (1, 6)" in str(error.value)
    assert_unwrapped(model)


@compiled_steps
def test_raises_past_the_budget_before_the_next_step():
    model = make_model()
    guard = RecompileGuard(budget=2)
    fit(model, [4, 6, 4, 6], guard)
    guard = RecompileGuard(budget=1)
    with pytest.raises(RecompilationError) as error:
        fit(model, [4, 8, 8, 10, 12], guard, epochs=2)
    assert str(error.value) == (
        "Expected at most 1 compilation of the training step. "
        "Received: 2, the last at epoch 0, step 3.\n"
        "Changes since the previous compilation:\n"
        "  edge/sender: (1, 8) -> (1, 10)\n"
        "  node/feature: (1, 8, 3) -> (1, 10, 3)\n"
        "  y: (1, 8, 1) -> (1, 10, 1)\n"
        "  sample_weight: (1, 8) -> (1, 10)\n"
        "Pad batches to fixed sizes with DynamicBatcher or "
        "StaticBatcher(padding='constant'), or allow more with "
        "RecompileGuard(budget=2)."
    )
    assert_unwrapped(model)
    # Four steps before and four now; the weights are there.
    assert model.optimizer.iterations == 8
    assert np.isfinite(ops.convert_to_numpy(model.dense.kernel)).all()
    fit(model, [12], RecompileGuard())


@compiled_steps
def test_raises_after_the_last_step_too():
    for options in ({}, {"validation_data": Batches([4])}):
        guard = RecompileGuard()
        with pytest.raises(RecompilationError, match="epoch 0, step 1"):
            fit(make_model(), [4, 6], guard, **options)
        assert guard.test_count == 0


@compiled_steps
def test_evaluation_has_its_own_budget():
    model = make_model()
    guard = RecompileGuard(test_budget=2)
    fit(model, [4, 4], guard, validation_data=Batches([4, 6]))
    assert (guard.count, guard.test_count) == (1, 2)
    guard = RecompileGuard(budget=5, test_budget=0)
    message = r"0 compilations of the evaluation step(.|\n)*test_budget=1"
    with pytest.raises(RecompilationError, match=message):
        model.evaluate(Batches([8]), callbacks=[guard], verbose=0)
    assert_unwrapped(model)
    assert np.isfinite(ops.convert_to_numpy(model.dense.kernel)).all()
    model.evaluate(Batches([8]), callbacks=[guard], verbose=0)
    assert guard.test_count == 1


@compiled_steps
def test_warns_at_each_compilation_past_the_budget():
    guard = RecompileGuard(action="warn")
    with pytest.warns(UserWarning, match="Expected at most 1 compilation") as found:
        fit(make_model(), SIZES, guard)
    assert len(found) == guard.count - 1 == 2
    assert "edge/sender: (1, 6) -> (1, 8)" in str(found[1].message)


@compiled_steps
def test_second_fit_counts_anew():
    model = make_model()
    guard = RecompileGuard(budget=2)
    fit(model, [4, 6, 4], guard)
    assert guard.count == 2
    fit(model, [4, 6, 4], guard)
    assert guard.count == 0 and guard.compilations == []
    fit(model, [4, 6, 12], guard)
    assert [c.shapes["y"] for c in guard.compilations] == [(1, 12, 1)]


@compiled_steps
def test_prediction_is_counted_without_limit():
    model = make_model()
    guard = RecompileGuard(budget=0)
    for size in (4, 6, 4):
        model.predict(Batches([size, size]), callbacks=[guard], verbose=0)
    assert guard.predict_count == 2
    assert_unwrapped(model)


@compiled_steps
def test_arrays_of_a_plain_model_with_a_smaller_last_batch():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=True)
    guard = RecompileGuard(budget=2, verbose=False)
    model.fit(
        *(np.ones((10, 3)), np.ones((10, 1))),
        batch_size=4,
        shuffle=False,
        verbose=0,
        callbacks=[guard],
    )
    assert guard.compilations[1].changed == (
        "x: (4, 3) -> (2, 3)",
        "y: (4, 1) -> (2, 1)",
    )


def test_nothing_is_compiled_in_eager_steps(capsys):
    model = make_model("auto", run_eagerly=True)
    guard = RecompileGuard(budget=0, verbose=True)
    fit(model, [4], guard, validation_data=Batches([4]))
    assert guard.count == guard.test_count == 0
    assert_unwrapped(model)
    expected = "compilations: 0 training, 0 evaluation, 0 prediction\n"
    assert capsys.readouterr().out == expected


@compiled_steps
def test_summary():
    guard = RecompileGuard(action="count")
    fit(make_model(), [4, 6, 6], guard)
    assert guard.summary() == (
        "compilations: 2 training, 0 evaluation, 0 prediction\n"
        "step        epoch   step  cause\n"
        "training        0      0  first batch\n"
        "training        0      1  edge/sender: (1, 4) -> (1, 6)\n"
        "                          node/feature: (1, 4, 3) -> (1, 6, 3)\n"
        "                          y: (1, 4, 1) -> (1, 6, 1)\n"
        "                          sample_weight: (1, 4) -> (1, 6)"
    )


@pytest.mark.parametrize("where", ["on_train_batch_begin", "on_epoch_end"])
def test_nothing_stays_behind_when_another_callback_raises(where):
    class Failing(keras.callbacks.Callback):
        pass

    def fail(self, *args, **kwargs):
        raise KeyError(where)

    setattr(Failing, where, fail)
    model = make_model()
    guard = RecompileGuard()
    for callbacks in ([Failing(), guard], [guard, Failing()]):
        with pytest.raises(KeyError):
            fit(model, [4, 6], *callbacks)
    # A stand-in that was not called gives way at the next step.
    fit(model, [4, 6, 8], other := RecompileGuard(action="count"))
    fit(model, [4, 6, 10])
    assert_unwrapped(model)
    if BACKEND == "torch":
        expected = (0, 0)
    else:
        expected = (1, 3) if where == "on_train_batch_begin" else (0, 1)
    assert (guard.count, other.count) == expected


def test_two_guards_agree():
    model = make_model()
    guards = [RecompileGuard(action="count") for _ in range(2)]
    fit(model, [4, 6, 4], *guards)
    assert guards[0].compilations == guards[1].compilations
    assert guards[0].count == (0 if BACKEND == "torch" else 2)
    assert_unwrapped(model)


def test_compilation_describes_any_batch():
    def describe(batch, earlier=None):
        return Compilation.of("train", 1, 2, batch, earlier)

    array = np.zeros((2, 3), "float32")
    assert describe(array).shapes == {"x": (2, 3)}
    pair = describe(((array, array[0]), {"a": array}))
    assert pair.shapes == {"x/0": (2, 3), "x/1": (3,), "y/a": (2, 3)}
    assert pair.dtypes["x/0"] == "float32"
    assert describe((array, None, array)).shapes.keys() == {"x", "sample_weight"}
    unknown = types.SimpleNamespace(
        shape=types.SimpleNamespace(rank=None), dtype="int8"
    )
    assert describe(unknown).shapes == {"x": None}

    first = describe({"a": array, "b": array})
    assert describe({"a": array, "b": array}, first).changed == ()
    assert describe({"a": array, "b": array.astype("int32")}, first).changed == (
        "b: float32 -> int32",
    )
    assert describe({"a": array, "c": array}, first).changed == (
        "b: (2, 3) -> absent",
        "c: absent -> (2, 3)",
    )


def test_many_changes_are_cut_short_and_none_is_said():
    guard = RecompileGuard(action="warn")
    batch = {f"f{i}": np.zeros((1, 4)) for i in range(12)}
    guard._record("train", batch)
    with pytest.warns(UserWarning, match="padding cannot help"):
        guard._record("train", batch)
    with pytest.warns(UserWarning, match=r"f5: .*\n  and 4 more\n"):
        guard._record("train", {f"f{i}": np.zeros((1, 5)) for i in range(12)})
    assert "nothing in the batch" in guard.summary()


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="`budget`"):
        RecompileGuard(budget=-1)
    with pytest.raises(ValueError, match="`test_budget`"):
        RecompileGuard(test_budget=1.5)
    with pytest.raises(ValueError, match="one of 'raise', 'warn', 'count'"):
        RecompileGuard(action="stop")
