"""Numbers in files of models with which they would predict infinity or NaN."""

import json

import h5py
import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.models import Ensemble, LastLayerLaplace, Task
from keras_bandgnn.preprocessing import TargetNormalizer

ABSURD = {
    "large": 1e308,
    "low": -1e308,
    "nan": float("nan"),
    "infinite": float("inf"),
    "whole": 10**400,
    "float32": 3e38,
}


def graphs():
    return [
        kb.Graph(n, [0], [n - 1], node={"kind": [1] * n}, label=float(n))
        for n in (1, 2, 3)
    ]


def regressor():
    task = kb.models.GraphRegressor(kb.models.GCNBackbone({"kind": 4}, 4))
    task.adapt(task.loader(graphs()))
    return task


def save_task(path):
    regressor().save_to_preset(path)


def save_ensemble(path):
    Ensemble([regressor(), regressor()]).save_to_preset(path)


def save_laplace(path):
    LastLayerLaplace(regressor()).fit(graphs()).save_to_preset(path)


KINDS = {
    "task": (save_task, Task.from_preset),
    "ensemble": (save_ensemble, Ensemble.from_preset),
    "laplace": (save_laplace, LastLayerLaplace.from_preset),
}


def numbers(value, place=()):
    """Yield the place of every number in a tree of JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if isinstance(item, dict | list):
            yield from numbers(item, (*place, key))
        elif isinstance(item, int | float) and not isinstance(item, bool):
            yield (*place, key)


@pytest.mark.parametrize("absurd", ABSURD)
@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_every_file(kind, absurd, tmp_path):
    """Each one in turn is refused with the name of its file."""
    save, load = KINDS[kind]
    save(tmp_path / "p")
    load(tmp_path / "p")
    count = 0
    for file in sorted((tmp_path / "p").rglob("*.json")):
        good = file.read_text()
        for *path, key in numbers(json.loads(good)):
            if "version" in key if isinstance(key, str) else False:
                continue
            tree = json.loads(good)
            place = tree
            for step in path:
                place = place[step]
            place[key] = ABSURD[absurd]
            file.write_text(json.dumps(tree))
            with pytest.raises(ValueError, match="Expected .*Received") as error:
                load(tmp_path / "p")
            assert file.name in str(error.value)
            count += 1
        file.write_text(good)
    assert count > 3


@pytest.mark.parametrize("absurd", ["nan", "infinite", "float32"])
@pytest.mark.parametrize("name", ["model.weights.h5", "task.weights.h5"])
def test_weights(name, absurd, tmp_path):
    save_task(tmp_path / "p")
    file = tmp_path / "p" / name
    arrays = []
    with h5py.File(file, "r+") as weights:
        weights.visititems(
            lambda _, item: arrays.append(item) if hasattr(item, "shape") else None
        )
        array = next(a for a in arrays if a.size and a.dtype.kind == "f")
        array[...] = ABSURD[absurd]
    metadata = tmp_path / "p" / "metadata.json"
    entry = json.loads(metadata.read_text())
    del entry["sha256"]
    metadata.write_text(json.dumps(entry))
    with pytest.raises(ValueError, match=f"{name} to have finite weights"):
        Task.from_preset(tmp_path / "p")


def fit(task):
    task.fit(graphs(), epochs=1, verbose=0)


def predict(task):
    task.predict(graphs(), verbose=0)


def evaluate(task):
    task.evaluate(graphs(), verbose=0)


@pytest.mark.parametrize("absurd", ["nan", "infinite", "float32"])
@pytest.mark.parametrize("method", [fit, predict, evaluate])
@pytest.mark.parametrize("ending", [".keras", ".weights.h5"])
def test_weights_that_keras_loads(ending, method, absurd, tmp_path):
    """The first step refuses them: Keras loads layers after their model."""
    task = regressor()
    variable = task.backbone.trainable_variables[0]
    good = variable.numpy()
    variable.assign(np.full_like(good, ABSURD[absurd]))
    if ending == ".keras":
        task.save(tmp_path / "m.keras")
        loaded = keras.models.load_model(tmp_path / "m.keras")
    else:
        task.save_weights(tmp_path / "m.weights.h5")
        loaded = regressor()
        loaded.load_weights(tmp_path / "m.weights.h5")
    for _ in range(2):
        with pytest.raises(ValueError, match="finite weights.*: .* in .*/") as error:
            method(loaded)
    assert loaded.backbone.trainable_variables[0].path in str(error.value)
    loaded.backbone.trainable_variables[0].assign(good)
    method(loaded)


@pytest.mark.parametrize("absurd", ["large", "nan", "infinite", "float32"])
@pytest.mark.parametrize("name", ["covariance", "noise_std", "factor"])
def test_arrays_of_a_posterior(name, absurd, tmp_path):
    save_laplace(tmp_path / "p")
    (file,) = (tmp_path / "p").glob("*.npz")
    with np.load(file) as stored:
        arrays = dict(stored)
    arrays[name] = np.full_like(arrays[name], ABSURD[absurd])
    np.savez(file, **arrays)
    with pytest.raises(ValueError, match=f"{file.name} .*{name}"):
        LastLayerLaplace.from_preset(tmp_path / "p")


@pytest.mark.parametrize("value", [1e308, -1e308, 1e39])
def test_constants_of_labels_fit_into_float32(value):
    with pytest.raises(ValueError, match="Expected finite"):
        TargetNormalizer(mean=[value], std=[1.0])
    with pytest.raises(ValueError, match="Expected"):
        TargetNormalizer(mean=[0.0], std=[value])
    with pytest.raises(ValueError, match="Expected finite"):
        TargetNormalizer(element_key="atomic_number", references={1: value})
