"""Two processes on torch train as one does on the supergraphs of both."""

import contextlib
import io
import json
import multiprocessing
import shutil
import socket

import keras
import numpy as np
import pytest
from trained import assert_same, child, train

import keras_bandgnn as kb
from keras_bandgnn import compat

if keras.backend.backend() != "torch":
    pytest.skip("needs torch", allow_module_level=True)


def spawn(folder, name, wanted, world=2):
    """What each of several processes has returned (None if it died), and printed."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    # Imports take longer than all the rest.
    context.set_forkserver_preload(
        ["torch", "keras", "keras_bandgnn.models", "keras_bandgnn.training"]
    )
    out = folder / name
    processes = [
        context.Process(target=child, args=(rank, world, port, str(out), wanted))
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
        assert process.exitcode is not None, "a process hangs"
    results, logs = [], []
    for rank in range(world):
        file = folder / f"{name}.{rank}.json"
        results.append(json.loads(file.read_text()) if file.is_file() else None)
        logs.append((folder / f"{name}.{rank}.log").read_text())
    return results, logs


def alone(**options):
    with contextlib.redirect_stdout(io.StringIO()):
        return train(**options)


def test_two_processes_train_as_one(tmp_path):
    tasks = ("selector", "schnet", "forces", "norms", "sampled")
    wanted = [{"task": task} for task in tasks]
    wanted[0]["folder"] = str(tmp_path)
    wanted.append({"task": "selector", "differ": True})
    wanted.append({"task": "selector", "supergraphs": 3})
    results, logs = spawn(tmp_path, "both", wanted)
    for place, task in enumerate(tasks):
        reference = alone(task=task, supergraphs=2)
        # One graph weighs as much as any other, wherever it is.
        counts = reference["counts"]
        steps = zip(counts[::2], counts[1::2], strict=True)
        assert any(a != b for a, b in steps)
        for result in results:
            assert_same(result[place], reference)
    for result in results:
        assert "Expected `supergraphs` to be a multiple of 2" in result[-1]
    assert "Expected the same graphs in the same order" in results[1][-2]
    # Only the first process writes and prints.
    assert (tmp_path / "host0.weights.h5").is_file()
    assert not (tmp_path / "host1.weights.h5").exists()
    assert "Epoch 1/2" in logs[0] and "Epoch" not in logs[1]


def test_two_processes_share_the_nodes_of_a_graph(tmp_path):
    tasks = ("banded", "attention", "selector")
    wanted = [{"task": task, "sequence": 2} for task in tasks]
    wanted += [
        {"task": "banded", "sequence": 3},
        {"task": "schnet", "sequence": 2},
        {"task": "banded", "sequence": 2, "differ": True},
    ]
    results, logs = spawn(tmp_path, "shared", wanted)
    for place, task in enumerate(tasks):
        reference = alone(task=task)
        for result, log in zip(results, logs, strict=True):
            assert result is not None, log[-3000:]
            assert_same(result[place], reference)
    for result in results:
        assert "Expected sequence * batch = 2, the number of processes" in result[-3]
        assert "Expected layers that support sequence parallelism" in result[-2]
    assert "Expected the same graphs in the same order" in results[1][-1]
    assert "Epoch 1/2" in logs[0] and "Epoch" not in logs[1]


# Keras 3.15 has none on torch: the cases of tests/matrix.py with a newer one run these.
by_keras = pytest.mark.skipif(
    not compat.has_distributions(), reason="needs distributions of Keras on torch"
)


@by_keras
def test_two_processes_of_a_distribution_of_keras_train_as_one(tmp_path):
    tasks = ("selector", "schnet", "forces", "norms", "sampled")
    wanted = [{"task": task, "epochs": 5, "by_keras": True} for task in tasks]
    results, _ = spawn(tmp_path, "keras", wanted)
    for place, task in enumerate(tasks):
        reference = alone(task=task, epochs=5, supergraphs=2)
        steps = len(reference["counts"]) // 2 * len(reference["epochs"])
        assert steps >= 10
        for result in results:
            assert_same(result[place], reference)
            weights = zip(result[place]["weights"], reference["weights"], strict=True)
            for mine, theirs in weights:
                np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)


@by_keras
def test_a_group_is_a_distribution_of_keras():
    distribution = kb.distribution.data_parallel()
    assert isinstance(distribution, keras.distribution.DataParallel)
    assert not distribution.auto_shard_dataset
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(distribution)
    try:
        backbone = kb.models.GCNBackbone({"kind": 2}, 4)
        assert kb.models.NodeClassifier(backbone, 2).distribution is distribution
    finally:
        keras.distribution.set_distribution(before)


@by_keras
def test_layouts_of_weights_are_refused():
    mesh = keras.distribution.DeviceMesh((1, 1), ("batch", "model"), ["cpu:0"])
    layouts = keras.distribution.LayoutMap(mesh)
    distribution = keras.distribution.ModelParallel(layout_map=layouts)
    with pytest.raises(NotImplementedError, match="KERAS_BACKEND=jax"):
        with distribution.scope():
            kb.models.NodeClassifier(kb.models.GCNBackbone({"kind": 2}, 4), 2)


@pytest.mark.release
def test_a_killed_process_ends_the_other_and_training_resumes(tmp_path):
    reference = alone(task="selector", supergraphs=2)
    wanted = {"task": "selector", "folder": str(tmp_path)}
    stop = {"stop": (0, 2), "stopped_host": 1}
    results, logs = spawn(tmp_path, "killed", [{**wanted, **stop}])
    assert results[1] is None
    assert "Expected all 2 processes to take part" in results[0][0]
    saved = kb.training.SaveProgress(tmp_path / "progress").saved()
    assert saved["loader"]["epoch"] == 0 and saved["loader"]["batch"] == 3
    again = tmp_path / "again"
    shutil.copytree(tmp_path / "progress", again / "progress")

    results, logs = spawn(tmp_path, "resumed", [wanted])
    for (result,) in results:
        assert_same({**result, "history": {}}, {**reference, "history": {}})
    assert not (tmp_path / "progress").exists()

    # Another number of devices: only with as many supergraphs per step.
    with pytest.raises(ValueError, match="number of replicas"):
        alone(task="selector", folder=str(again))
    resumed = alone(task="selector", folder=str(again), supergraphs=2)
    assert_same({**resumed, "history": {}}, {**reference, "history": {}})
