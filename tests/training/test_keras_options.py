"""What Keras' `compile` and `fit` offer works on graphs."""

import csv

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn import models
from keras_bandgnn.preprocessing import GraphPreprocessor, StaticBatcher

pytestmark = pytest.mark.every_backend

BACKEND = keras.backend.backend()


def graphs_of(count):
    rng = np.random.default_rng(0)
    out = []
    for _ in range(count):
        ends = rng.integers(0, 5, (2, 8))
        node = {"kind": rng.integers(0, 4, 5)}
        out.append(kb.Graph(5, *ends, node=node, label=rng.normal()))
    return out


def task_of(per_batch, dropout=0.0, **options):
    """A regressor without a normaliser, on batches of so many graphs."""
    keras.utils.set_random_seed(0)
    backbone = models.GCNBackbone({"kind": 4}, 8, dropout=dropout)
    preprocessor = GraphPreprocessor(batcher=StaticBatcher(per_batch))
    task = models.GraphRegressor(backbone, 1, preprocessor, normalizer=None)
    optimizer = options.pop("optimizer", None) or keras.optimizers.SGD(0.2)
    task.compile(optimizer, **options)
    return task


def weights_of(task):
    # By name: paths count the models that were made.
    return [np.array(w.numpy()) for w in task.trainable_variables]


def same(one, other, **tolerance):
    for a, b in zip(weights_of(one), weights_of(other), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


def test_accumulation_over_equal_batches_is_one_large_batch():
    graphs = graphs_of(12)
    small = task_of(
        3, optimizer=keras.optimizers.SGD(0.2, gradient_accumulation_steps=4)
    )
    large = task_of(12)
    for task in (small, large):
        task.fit(graphs, epochs=3, verbose=0)
    same(small, large, atol=1e-5)


def test_accumulation_over_unequal_batches_weighs_them_alike():
    graphs = graphs_of(4)
    small = task_of(
        3, optimizer=keras.optimizers.SGD(0.2, gradient_accumulation_steps=2)
    )
    start = weights_of(small)
    loader = small.loader(graphs, shuffle=True)
    batches = [sorted(s.members) for s in loader.composition(0)]
    assert sorted(map(len, batches)) == [1, 3]
    small.fit(graphs, epochs=1, verbose=0)
    # The mean of the means of both batches, not the mean over four graphs.
    changes = []
    for members in batches:
        task = task_of(3)
        task.fit([graphs[i] for i in members], epochs=1, verbose=0)
        changes.append([w - s for w, s in zip(weights_of(task), start, strict=True)])
    for own, old, one, two in zip(weights_of(small), start, *changes, strict=True):
        np.testing.assert_allclose(own - old, (one + two) / 2, atol=1e-5)


def test_steps_per_execution_changes_nothing():
    graphs = graphs_of(14)
    plain = task_of(2)
    if BACKEND == "torch" and keras.__version__ < "3.16":
        with pytest.raises(ValueError, match="steps_per_execution"):
            task_of(2, steps_per_execution=3).fit(graphs, epochs=1, verbose=0)
        return
    several = task_of(2, steps_per_execution=3)
    losses = [
        task.fit(graphs, epochs=2, validation_data=graphs, verbose=0).history
        for task in (plain, several)
    ]
    same(plain, several, atol=1e-6)
    for name, values in losses[0].items():
        np.testing.assert_allclose(values, losses[1][name], rtol=1e-5)
    np.testing.assert_allclose(
        several.predict(graphs), plain.predict(graphs), atol=1e-6
    )


def test_csv_logger_writes_a_line_per_epoch(tmp_path):
    graphs = graphs_of(6)
    log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    history = task_of(3).fit(
        graphs, validation_data=graphs, epochs=2, callbacks=[log], verbose=0
    )
    with open(tmp_path / "log.csv") as file:
        lines = list(csv.DictReader(file))
    assert [line["epoch"] for line in lines] == ["0", "1"]
    for name, values in history.history.items():
        np.testing.assert_allclose([float(line[name]) for line in lines], values)


def test_tensorboard_writes_events(tmp_path):
    # Keras writes events by TensorFlow on every backend.
    for name in ("tensorflow", "tensorboard"):
        pytest.importorskip(name)
    graphs = graphs_of(6)
    board = keras.callbacks.TensorBoard(tmp_path / "logs", histogram_freq=1)
    task_of(3).fit(
        graphs, validation_data=graphs, epochs=1, callbacks=[board], verbose=0
    )
    found = {p.parent.name for p in (tmp_path / "logs").rglob("*tfevents*")}
    assert found == {"train", "validation"}


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.release(elsewhere=True)
def test_the_same_seeds_give_the_same_weights(dropout):
    graphs = graphs_of(9)

    def trained(seed=0):
        task = task_of(3, dropout)
        task.fit(graphs, epochs=2, seed=seed, verbose=0)
        return task

    one, two, other = trained(), trained(), trained(seed=1)
    same(one, two, rtol=0, atol=0)
    assert any(
        (a != b).any() for a, b in zip(weights_of(one), weights_of(other), strict=True)
    )
