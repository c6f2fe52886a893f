"""Backbones and tasks in functional models of Keras, beside other branches."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from registered import for_backbone
from task_samples import BACKBONES, TASKS, data_of, task_of

import keras_bandgnn as kb
from keras_bandgnn.batch import unbatch

pytestmark = pytest.mark.every_backend(
    "two_branches", "NodeSelector", "PaiNN", "GPS", "GINE", "of_a_layer"
)

BACKENDS = ("torch", "jax", "tensorflow")
SAMPLES = [(name, None) for name in TASKS]
SAMPLES += [("GraphClassifier", backbone) for backbone in BACKBONES]


@pytest.mark.parametrize("name, backbone", SAMPLES, ids=str)
@pytest.mark.release(elsewhere=True)
def test_tasks_take_the_inputs_of_a_loader(name, backbone):
    task, data = task_of(name, backbone), data_of(name, 8)
    if backbone is not None:
        data = for_backbone(task.backbone, data)
    loader = task.loader(data)
    inputs = loader.inputs()
    model = keras.Model(inputs, task(inputs))
    x, *_ = loader[0]
    outputs = (model.predict_on_batch(x), task.predict_on_batch(x))
    for one, other in zip(*map(keras.tree.flatten, outputs), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


# They compute with arrays between layers, or take schedules.
UNTRACED = ("Graphormer", "SchNet", "GTBackbone, with target", "Selector", "Force")


@pytest.mark.parametrize("name, backbone", SAMPLES, ids=str)
def test_functional_models_have_the_same_layers_and_outputs(name, backbone):
    task, data = task_of(name, backbone), data_of(name, 8)
    if backbone is not None:
        data = for_backbone(task.backbone, data)
    x, *_ = task.loader(data)[0]
    if any(word in f"{name} {backbone}" for word in UNTRACED):
        with pytest.raises(ValueError, match="Expected a model that computes by"):
            task.functional(x)
        return
    model = task.functional(x)
    assert {id(weight) for weight in model.weights} <= {id(w) for w in task.weights}
    outputs = (model.predict_on_batch(x), task.predict_on_batch(x))
    for one, other in zip(*map(keras.tree.flatten, outputs), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    lines = []
    model.summary(print_fn=lambda text, **_: lines.append(text))
    for layer in (*task.backbone.layers, *task.head_layers):
        if any(layer is node for node in model.layers):
            assert layer.name[:12] in "\n".join(lines)


@pytest.mark.parametrize("any_size", [False, True])
def test_functional_models_give_the_states_of_a_layer(any_size):
    loader = loader_of(8)
    backbone = kb.models.GINEBackbone({"kind": 3}, 8, num_layers=2, dropout=0.5)
    x, *_ = loader[0]
    model = backbone.functional(loader.inputs() if any_size else x)
    inner = keras.Model(model.input, model.get_layer("norm_0").output)
    assert inner.predict_on_batch(x).shape == (*x["node"]["mask"].shape, 8)
    np.testing.assert_allclose(
        model.predict_on_batch(x), backbone.predict_on_batch(x), atol=1e-5
    )


def test_functional_models_need_a_batch():
    backbone = kb.models.GINEBackbone({"kind": 3}, 8)
    for batch in (None, graphs_of(2), {"kind": np.zeros((1, 3))}):
        with pytest.raises(ValueError, match="Expected `batch`"):
            backbone.functional(batch)


def graphs_of(count, seed=0):
    """Graphs whose label is that of their size, numbers and picture."""
    rng = np.random.default_rng(seed)
    graphs = []
    for size in rng.integers(3, 9, count):
        numbers = rng.normal(size=2).astype("float32")
        picture = np.full((6, 6, 1), numbers.sum(), "float32")
        graphs.append(
            kb.Graph(
                int(size),
                *rng.integers(0, size, (2, 2 * size)),
                node={"kind": rng.integers(0, 3, size)},
                context={"numbers": numbers, "picture": picture},
                label=float(size + numbers.sum()),
            )
        )
    return graphs


def loader_of(count, seed=0):
    plan = kb.plans.Plan(kb.plans.Segment())
    batcher = kb.preprocessing.DynamicBatcher(8)
    return kb.preprocessing.GraphLoader(graphs_of(count, seed), batcher, plan)


def two_branches(loader, second):
    inputs = loader.inputs()
    backbone = kb.models.GINEBackbone({"kind": 3}, 8, num_layers=2)
    states = kb.layers.GraphReadout(8, "mean")(backbone(inputs), inputs)
    values = inputs["graph"][second]
    if second == "numbers":
        values = keras.layers.Dense(8, activation="relu")(values)
    else:
        network = keras.Sequential([keras.layers.Conv2D(4, 3), keras.layers.Flatten()])
        values = keras.layers.TimeDistributed(network)(values)
    joined = keras.layers.Concatenate()([states, values])
    model = keras.Model(inputs, keras.layers.Dense(1)(joined))
    model.compile(
        keras.optimizers.Adam(1e-2),
        loss=keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
        weighted_metrics=["mae"],
    )
    return model


def predictions(model, loader):
    rows = {}
    for x, *_ in loader:
        rows |= dict(unbatch(model.predict_on_batch(x), x, "graph"))
    return np.stack([rows[number] for number in range(len(rows))])


@pytest.mark.parametrize("second", ["numbers", "picture"])
def test_two_branches_learn_and_take_batches_of_other_sizes(second):
    loader, other = loader_of(60), loader_of(11, seed=1)
    assert loader.budgets != other.budgets
    model = two_branches(loader, second)
    losses = model.fit(loader, epochs=6, shuffle=False, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]
    labels = np.array([[graph.label] for graph in graphs_of(11, seed=1)])
    scores = model.evaluate(other, verbose=0, return_dict=True)
    found = predictions(model, other)
    assert scores["mae"] == pytest.approx(np.abs(found - labels).mean(), rel=1e-4)


LOAD = """
import sys
import keras, numpy as np
sys.path[:0] = sys.argv[2:]
from test_functional_models import loader_of, predictions
model = keras.models.load_model(sys.argv[1] + "/model.keras", compile=False)
np.save(sys.argv[1] + "/outputs.npy", predictions(model, loader_of(11, seed=1)))
"""


@pytest.mark.release(elsewhere=True)
def test_two_branches_load_on_another_backend(tmp_path):
    here = keras.backend.backend()
    there = BACKENDS[(BACKENDS.index(here) + 1) % len(BACKENDS)]
    if importlib.util.find_spec(there) is None:
        pytest.skip(f"{there} is not installed")
    loader = loader_of(60)
    model = two_branches(loader, "picture")
    model.fit(loader, epochs=1, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    tests = Path(__file__).parent
    subprocess.run(
        [sys.executable, "-c", LOAD, tmp_path, tests, tests.parent],
        env={**os.environ, "KERAS_BACKEND": there},
        check=True,
        timeout=300,
    )
    found, expected = np.load(tmp_path / "outputs.npy"), loader_of(11, seed=1)
    np.testing.assert_allclose(found, predictions(model, expected), atol=1e-5)


def test_another_plan_is_not_taken_silently():
    """Its arrays have other names."""
    model = two_branches(loader_of(8), "numbers")
    plan = kb.plans.Plan(kb.plans.Grouped())
    x, *_ = kb.preprocessing.GraphLoader(graphs_of(8), plan=plan)[0]
    with pytest.raises(UserWarning, match="structure of `inputs` doesn't match"):
        model.predict_on_batch(x)
