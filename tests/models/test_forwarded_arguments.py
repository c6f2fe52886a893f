"""Methods that pass arguments on to Keras take all arguments of its methods."""

import inspect

import keras
import numpy as np
import pytest
from task_samples import TASKS, data_of, task_of

import keras_bandgnn as kb
from keras_bandgnn.models import Task, presets
from keras_bandgnn.serving.exporting import _WRITERS
from keras_bandgnn.serving.runtimes import ARTEFACTS

# Arguments that a method of ours has under another name, or for itself.
RENAMED = {
    ("export", "filepath"): "path",
    # Pairs of nodes are the rows of a graph.
    ("evaluate", "y"): "pairs",
}
# Called by Keras alone, with the arguments of its own class.
OF_STEPS = ("stateless_call", "train_step", "test_step", "predict_step")


def of_keras(cls, name):
    """The method of Keras that a class overrides, or None."""
    for base in cls.__mro__:
        if base.__module__.startswith("keras.") and name in vars(base):
            return vars(base)[name]
    return None


def overrides(cls):
    """Public methods of a class of ours that override one of Keras, by name."""
    methods = {}
    for name in dir(cls):
        method, original = getattr(cls, name), of_keras(cls, name)
        if name.startswith("_") or not inspect.isfunction(original):
            continue
        if method.__module__.startswith("keras_bandgnn.") and name not in OF_STEPS:
            methods[name] = original
    return methods


def public_classes():
    for room in (kb.layers, kb.models, kb.training):
        for name in room.__all__:
            cls = getattr(room, name)
            kinds = (keras.Model, keras.callbacks.Callback, keras.metrics.Metric)
            if isinstance(cls, type) and issubclass(cls, kinds):
                yield cls


def defaults(function):
    """Default values of a function by parameter."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def test_signatures_have_the_arguments_of_keras():
    compared = 0
    for cls in public_classes():
        for name, original in overrides(cls).items():
            ours = inspect.signature(getattr(cls, name)).parameters
            if any(p.kind is p.VAR_KEYWORD for p in ours.values()):
                continue
            for argument in inspect.signature(original).parameters.values():
                if argument.kind in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL):
                    continue
                renamed = RENAMED.get((name, argument.name), argument.name)
                assert renamed in ours, (cls.__name__, name, argument.name)
                compared += 1
    assert compared > 100


@pytest.mark.parametrize("name", TASKS)
def test_every_argument_of_keras_by_name(name, tmp_path):
    task, data = task_of(name), data_of(name, 4)
    methods = overrides(type(task))
    assert {"fit", "evaluate", "predict", "compile", "save", "quantize"} <= set(methods)
    task.compile(**defaults(methods["compile"]) | {"loss": "auto"})
    of_fit = {"epochs": 1, "verbose": 0}
    task.fit(**defaults(methods["fit"]) | {"x": data} | of_fit)
    for method in ("evaluate", "predict"):
        getattr(task, method)(**{**defaults(methods[method]), "x": data, "verbose": 0})
    path = tmp_path / "task.keras"
    task.save(path, **defaults(methods["save"]))
    keras.saving.load_model(path)
    path = tmp_path / "task.weights.h5"
    task.save_weights(path, **defaults(methods["save_weights"]))
    task.load_weights(path, **defaults(keras.Model.load_weights))
    # Keras' own error for what is no argument of its method.
    for argument in ("model", "loader", "saving"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument .{argument}"):
            task.fit(data, **{argument: 1}, verbose=0)
    task.quantize(**{**defaults(methods["quantize"]), "mode": "int8"})


@pytest.mark.parametrize("verbose", [None, False, True])
def test_every_argument_of_export(verbose, tmp_path):
    backend = keras.backend.backend()
    form = next(f for b, f in _WRITERS if b == backend and f not in ("onnx", "litert"))
    pytest.importorskip(ARTEFACTS[form][1])
    task, graphs = task_of("GraphRegressor"), data_of("GraphRegressor", 2)
    options = defaults(keras.Model.export)
    assert {"format", "verbose", "input_signature"} <= set(options)
    options |= {"format": form, "verbose": verbose}
    path = task.export(tmp_path / "out", graphs=graphs, **options)
    outputs = kb.serving.ExportedModel(path, trusted=True).predict(graphs)
    np.testing.assert_allclose(outputs, task.predict(graphs), atol=1e-4)
    options["input_signature"] = [keras.InputSpec(shape=(1,))]
    with pytest.raises(ValueError, match="Expected no input_signature"):
        task.export(tmp_path / "other", graphs=graphs, **options)


def test_options_of_presets_and_loaders_do_not_collide(tmp_path):
    task, graphs = task_of("GraphRegressor"), data_of("GraphRegressor", 2)
    task.preprocess(graphs)
    task.save_to_preset(tmp_path / "preset")
    for name in inspect.signature(presets.load_task).parameters:
        if name not in inspect.signature(Task.from_preset.__func__).parameters:
            with pytest.raises(ValueError, match="Expected arguments of"):
                Task.from_preset(tmp_path / "preset", **{name: 1})
    for name in inspect.signature(kb.preprocessing.GraphLoader).parameters:
        options = {} if name == "graphs" else {name: None}
        if name in ("batcher", "edge_weight"):
            with pytest.raises(ValueError, match=f"without {name}"):
                task.preprocessor.loader(graphs, **options)
        elif name == "plan":
            task.preprocessor.loader(graphs, **options)
