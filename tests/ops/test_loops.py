"""Loops over pieces of long arrays."""

import itertools
import types

import keras
import numpy as np
from keras import ops

import keras_bandgnn as kb
from keras_bandgnn import compat
from keras_bandgnn.models.task_program import compiled
from keras_bandgnn.ops.dropout import dropout
from keras_bandgnn.ops.loops import repeated


def test_no_mask_repeats_over_calls_and_pieces():
    # As layers draw them: a seed per call, and numbers of pieces.
    generator = keras.random.SeedGenerator(3)
    ones, masks = ops.ones((64,)), []
    for _ in range(6):
        seed = generator.next()
        for number in range(6):
            out = dropout(ones, 0.5, seed, ops.convert_to_tensor(number))
            masks.append(np.asarray(ops.convert_to_numpy(out)) > 0)
    for one, other in itertools.combinations(masks, 2):
        # Independent masks agree in half of their places, give or take 4.
        assert 10 < (one == other).sum() < 54


def test_a_piece_has_the_same_mask_whenever_it_is_computed():
    if keras.backend.backend() == "torch":
        return  # Its masks follow from a state that checkpoints restore.
    seed = keras.random.SeedGenerator(3).next()
    one, other = (dropout(ops.ones((64,)), 0.5, seed, 2) for _ in range(2))
    np.testing.assert_array_equal(*map(ops.convert_to_numpy, (one, other)))


def _as_library_code(function):
    """Return a function with globals of the library, whose code alone is recorded."""
    names = {**globals(), "__name__": "keras_bandgnn"}
    return types.FunctionType(
        function.__code__, names, function.__name__, closure=function.__closure__
    )


def test_repeated_reads_weights_and_constants_of_each_call():
    """Also where a step is recorded, which it is from the second call on."""
    task = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 2}, 3), 3)
    dense, rng = task.head.output_dense, np.random.default_rng(0)

    def body(step, state, constants):
        factor = ops.cast(step, "float32")
        moved = state["x"] * dense.kernel * constants["scale"]
        moved = moved + constants["ids"][0] * factor
        return {"x": ops.tanh(moved), "count": state["count"] + 1.0}

    def step(task, data):
        return body(data["step"], data["state"], data["constants"])

    body, step = map(_as_library_code, (body, step))
    program = compiled(task, step)

    def run(scale, ids):
        state = {"x": ops.ones((2, 3)), "count": ops.zeros(())}
        constants = {"scale": ops.array(scale), "ids": ops.array(ids)}
        out = repeated(body, 40, state, constants, lambda: program)
        assert float(out["count"]) == 40
        return ops.convert_to_numpy(out["x"])

    for _ in range(4):
        kernel = rng.normal(size=dense.kernel.shape).astype("float32")
        dense.kernel.assign(kernel)
        scale = rng.normal(size=3).astype("float32")
        ids = rng.normal(size=(2,)).astype("float32") / 40
        x = np.ones((2, 3), "float32")
        for step in range(40):
            x = np.tanh(x * kernel * scale + ids[0] * step)
        np.testing.assert_allclose(run(scale, ids), x, atol=1e-5)
    if keras.backend.backend() == "torch":
        records = compat.model_cache(program)["records"]["predict", "auto"]
        (shape,) = records.shapes.values()
        assert shape.record is not None and not records.changes
