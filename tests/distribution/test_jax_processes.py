"""Two processes on JAX train as one does on the supergraphs of both."""

import contextlib
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import keras
import pytest
from trained import assert_same, train

import keras_bandgnn as kb

if keras.backend.backend() != "jax":
    pytest.skip("needs JAX", allow_module_level=True)
SCRIPT = Path(__file__).with_name("trained.py")


def spawn(folder, wanted, world=2):
    """What each of several processes has returned (None if it died), and printed."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    processes = []
    files = [open(folder / f"{rank}.log", "w") for rank in range(world)]
    for rank in range(world):
        place = {"PROCESS": f"{port} {world} {rank}", "JAX_PLATFORMS": "cpu"}
        processes.append(
            subprocess.Popen(
                [sys.executable, str(SCRIPT), json.dumps(wanted)],
                env={**os.environ, **place},
                stdout=files[rank],
                stderr=subprocess.STDOUT,
            )
        )
    ends = time.monotonic() + 150
    while any(process.poll() is None for process in processes):
        # As launchers do: the others would wait for one that has died.
        died = any(process.poll() for process in processes)
        if died or time.monotonic() > ends:
            time.sleep(3)
            for process in processes:
                process.kill()
        time.sleep(0.1)
    for file in files:
        file.close()
    logs = [(folder / f"{rank}.log").read_text() for rank in range(world)]
    results = []
    for log in logs:
        lines = [line for line in log.splitlines() if line.startswith("[{")]
        results.append(json.loads(lines[-1]) if lines else None)
    return results, logs


def alone(**options):
    with contextlib.redirect_stdout(io.StringIO()):
        return train(devices=["cpu:0"], **options)


@pytest.mark.parametrize(
    "more",
    ["sampled", pytest.param("schnet", marks=pytest.mark.release(elsewhere=True))],
)
def test_two_processes_train_as_one(tmp_path, more):
    wanted = [{"task": "selector", "folder": str(tmp_path)}, {"task": more}]
    results, logs = spawn(tmp_path, wanted)
    for place, options in enumerate(wanted):
        reference = alone(task=options["task"], supergraphs=2)
        for result, log in zip(results, logs, strict=True):
            assert result is not None, log[-3000:]
            assert_same(result[place], reference)
    # Only the first process writes and prints.
    assert (tmp_path / "host0.weights.h5").is_file()
    assert not (tmp_path / "host1.weights.h5").exists()
    assert "Epoch 1/2" in logs[0] and "Epoch" not in logs[1]


@pytest.mark.release(elsewhere=True)
def test_training_resumes_after_a_process_was_killed(tmp_path):
    reference = alone(task="selector", supergraphs=2)
    wanted = {"task": "selector", "folder": str(tmp_path)}
    results, _ = spawn(tmp_path, [{**wanted, "stop": (0, 2), "stopped_host": 1}])
    assert results[1] is None
    saved = kb.training.SaveProgress(tmp_path / "progress").saved()
    # The main process was in the next step, or had not saved this one.
    assert saved["loader"]["epoch"] == 0 and saved["loader"]["batch"] in (2, 3)
    again = tmp_path / "again"
    shutil.copytree(tmp_path / "progress", again / "progress")
    results, logs = spawn(tmp_path, [wanted])
    for result, log in zip(results, logs, strict=True):
        assert result is not None, log[-3000:]
        assert_same({**result[0], "history": {}}, {**reference, "history": {}})
    # Another number of devices, with as many supergraphs per step.
    resumed = alone(task="selector", folder=str(again), supergraphs=2)
    assert_same({**resumed, "history": {}}, {**reference, "history": {}})
