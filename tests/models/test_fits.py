"""Many calls of `fit` leave nothing behind."""

import gc
import os
import threading
import time

import keras
import numpy as np
import pytest
from registered import molecules, plain_graphs

import keras_bandgnn as kb

pytestmark = pytest.mark.every_backend

FITS = 12


def all_loader_threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if "graph-loader" in t.name}


@pytest.fixture(autouse=True)
def earlier_threads():
    """Threads of loaders that other tests keep within an epoch."""
    global _earlier
    _earlier = all_loader_threads()


def loader_threads() -> int:
    return len(all_loader_threads() - _earlier)


def ended() -> bool:
    """Whether the loaders' threads end within a moment."""
    end = time.monotonic() + 5
    while loader_threads() and time.monotonic() < end:
        time.sleep(0.02)
    return not loader_threads()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def make():
    backbone = kb.models.GCNBackbone({"h": {"features": 3}}, 8, 1, num_edge_types=2)
    task = kb.models.NodeClassifier(backbone, 3)
    task.preprocessor = kb.preprocessing.GraphPreprocessor(
        [], kb.preprocessing.DynamicBatcher(1), kb.primitives.Plan()
    )
    return task


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="counts in /proc")
@pytest.mark.release(elsewhere=True)
def test_fits_leave_no_threads_and_no_files():
    task, graphs = make(), plain_graphs()
    options = {"epochs": 2, "verbose": 0, "validation_data": graphs}
    task.fit(graphs, **options)
    assert ended()
    gc.collect()
    threads = len(os.listdir("/proc/self/task"))
    files = open_files()
    for _ in range(FITS):
        task.fit(graphs, **options)
    assert ended()
    assert open_files() <= files
    # Pools of the backend may have grown to their size.
    assert len(os.listdir("/proc/self/task")) < threads + FITS


def test_a_loader_that_was_left_within_an_epoch_ends_with_fit():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    task, graphs = make(), plain_graphs(60)
    with pytest.raises(KeyboardInterrupt):
        task.fit(graphs, epochs=1, verbose=0, callbacks=[Stop()])
    assert ended()


def test_threads_end_with_the_epoch_and_begin_anew():
    graphs = plain_graphs(60)
    batcher = kb.preprocessing.DynamicBatcher(1)
    loader = kb.preprocessing.GraphLoader(graphs, batcher, threads=2, prefetch=20)
    alone = kb.preprocessing.GraphLoader(graphs, batcher, prefetch=0)
    for _ in range(2):
        loader[0]
        assert loader_threads()
        for index in range(len(loader)):
            found, expected = loader[index], alone[index]
            assert (found[0]["node"]["h"] == expected[0]["node"]["h"]).all()
        assert ended()
        loader.on_epoch_end()
        alone.on_epoch_end()
    loader[0]
    loader.stop_threads()
    assert ended()


# With SGD: Adam follows the signs of gradients that are zero but for rounding.


def of_nodes(**options):
    task = make()
    task.compile(keras.optimizers.SGD(0.01))
    return task.fit(plain_graphs(30), **options, validation_data=plain_graphs(5))


def of_molecules(**options):
    task = kb.models.GraphRegressor(kb.models.SchNetBackbone(9, 8, 1, num_gaussians=30))
    graphs = [
        each.replace(label=float(number), label_level="graph")
        for number, each in enumerate(molecules(20))
    ]
    task.compile(keras.optimizers.SGD(0.01))
    return task.fit(graphs[:16], **options, validation_data=graphs[16:])


def of_samples(**options):
    sampler = kb.preprocessing.NeighborSampler([2, 2], batch_size=16)
    task = kb.models.NodeClassifier(
        kb.models.SAGEBackbone({"h": {"features": 3}}, 8, 2, num_edge_types=2), 3
    )
    task.compile(keras.optimizers.SGD(0.01))
    graphs = plain_graphs(1, 60)
    return task.fit(graphs, sampler=sampler, validation_data=graphs, **options)


def of_links(**options):
    task = kb.models.LinkPredictor(
        kb.models.SAGEBackbone({"h": {"features": 3}}, 8, 2, num_edge_types=2)
    )
    task.compile(keras.optimizers.SGD(0.01))
    split = kb.data.split_links(plain_graphs(1, 60)[0])
    options["validation_pairs"] = split.valid_pairs
    return task.fit(split.train, split.train_pairs, batch_size=16, **options)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="it takes arrays itself")
@pytest.mark.parametrize("fit", [of_nodes, of_molecules, of_samples, of_links])
def test_batches_reach_a_step_as_they_do_through_keras(fit, monkeypatch):
    histories = []
    for direct in (True, False):
        used = []

        def serve(model, direct=direct, used=used):
            used.append(direct)
            return direct

        monkeypatch.setattr(kb.compat.DirectBatches, "serve", staticmethod(serve))
        keras.utils.set_random_seed(3)
        histories.append(fit(epochs=3, verbose=0).history)
        assert used
    one, other = histories
    assert one.keys() == other.keys()
    for name, values in one.items():
        np.testing.assert_allclose(values, other[name], rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("eagerly", [True, False])
@pytest.mark.release(elsewhere=True)
def test_steps_of_others_get_tensors(eagerly):
    kinds = set()

    class Mine(kb.models.NodeClassifier):
        def train_step(self, *args):
            kinds.update(map(keras.ops.is_tensor, keras.tree.flatten(args[-1])))
            return super().train_step(*args)

    backbone = kb.models.GCNBackbone({"h": {"features": 3}}, 8, 1, num_edge_types=2)
    task = Mine(backbone, 3)
    task.compile("adam", run_eagerly=eagerly)
    history = task.fit(plain_graphs(), epochs=2, verbose=0, validation_data=None)
    assert kinds == {True} or keras.backend.backend() == "jax"
    assert len(history.history["loss"]) == 2


def test_validation_and_evaluation_of_a_loader_agree():
    task = make()
    loader = task.loader(plain_graphs(30), shuffle=True)
    others = task.loader(plain_graphs(7, seed=1))
    logs = task.fit(loader, epochs=3, verbose=0, validation_data=others).history
    assert loader.epoch == 3 and others.epoch == 0
    found = task.evaluate(others, verbose=0, return_dict=True)
    for name, value in found.items():
        np.testing.assert_allclose(value, logs[f"val_{name}"][-1], rtol=1e-5)


def test_nothing_is_built_after_the_last_epoch(monkeypatch):
    task = make()
    loader = task.loader(plain_graphs(60), shuffle=True)
    built, build = [], loader.assembler.build

    def counting(supergraphs, replicas):
        built.extend(supergraphs)
        return build(supergraphs, replicas)

    task.fit(loader, epochs=1, verbose=0)
    monkeypatch.setattr(loader.assembler, "build", counting)
    task.fit(loader, epochs=3, verbose=0)
    time.sleep(0.2)
    # Keras looks at one or two batches before.
    assert 3 * len(loader) <= len(built) <= 3 * len(loader) + 2 * 8


@pytest.mark.parametrize("eagerly", [True, False])
@pytest.mark.parametrize("name", ["validation_steps", "validation_batch_size"])
def test_options_of_validation_that_graphs_cannot_have(name, eagerly):
    task, graphs = make(), plain_graphs()
    task.compile("adam", run_eagerly=eagerly)
    with pytest.raises(ValueError, match=f"Expected graphs without {name}"):
        task.fit(graphs, validation_data=graphs, verbose=0, **{name: 1})
    assert int(task.optimizer.iterations) == 0


def test_another_evaluate_gets_the_loader():
    seen = []

    class Mine(kb.models.NodeClassifier):
        def evaluate(self, x=None, *args, **kwargs):
            seen.append((len(x), x.num_edge_types, len(x[0])))
            return super().evaluate(x, *args, **kwargs)

    task = Mine(
        kb.models.GCNBackbone({"h": {"features": 3}}, 8, 1, num_edge_types=2), 3
    )
    graphs = plain_graphs()
    history = task.fit(graphs, epochs=2, verbose=0, validation_data=graphs).history
    assert seen == [(1, 2, 3)] * 2 and len(history["val_loss"]) == 2
