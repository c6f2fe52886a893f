"""Many calls of `fit` leave nothing behind."""

import gc
import os
import threading
import time

import keras
import pytest
from registered import plain_graphs

import keras_bandgnn as kb

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
    backbone = kb.models.GCNBackbone({"h": {"features": 3}}, 8, 1, 2)
    task = kb.models.NodeClassifier(backbone, 3)
    task.preprocessor = kb.preprocessing.GraphPreprocessor(
        [], kb.preprocessing.DynamicBatcher(2), kb.primitives.Plan()
    )
    return task


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="counts in /proc")
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


@pytest.mark.skipif(
    keras.backend.backend() == "tensorflow", reason="its data sets read ahead on"
)
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
    batcher = kb.preprocessing.DynamicBatcher(2)
    loader = kb.data.GraphLoader(graphs, batcher, threads=2, prefetch=20)
    alone = kb.data.GraphLoader(graphs, batcher, prefetch=0)
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
