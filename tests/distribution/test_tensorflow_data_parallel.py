"""Two devices on TensorFlow train as one does on the supergraphs of both."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest
from trained import assert_same, train

import keras_bandgnn as kb

if keras.backend.backend() != "tensorflow":
    pytest.skip("needs TensorFlow", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]


def on_two_devices(wanted):
    """What `train` has returned in a process with two CPU devices."""
    script = str(Path(__file__).with_name("trained.py"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, script, json.dumps(wanted)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def alone(**options):
    with contextlib.redirect_stdout(io.StringIO()):
        return train(**options)


def test_two_devices_train_as_one(tmp_path):
    saved = {"task": "selector", "folder": str(tmp_path)}
    wanted = [
        {"task": "schnet"},
        {**saved, "stop": (0, 2), "stopped_host": 0},
        saved,
        {"task": "selector", "supergraphs": 3},
        {"task": "selector", "devices": ["GPU:7"]},
        {"task": "sampled"},
    ]
    results, errors = on_two_devices(wanted)
    reference = alone(task="schnet", supergraphs=2)
    steps = zip(reference["counts"][::2], reference["counts"][1::2], strict=True)
    assert any(a != b for a, b in steps)
    assert_same(results[0], reference)
    assert "ran out of data" not in errors

    assert "Stopped" in results[1]
    reference = alone(task="selector", supergraphs=2)
    assert_same({**results[2], "history": {}}, {**reference, "history": {}})

    assert "Expected `supergraphs` to be a multiple of 2" in results[3]
    assert "Expected `devices` among" in results[4]

    assert_same(results[5], alone(task="sampled", supergraphs=2))


def test_arguments():
    with pytest.raises(ValueError, match="Expected no `timeout` on TensorFlow"):
        kb.distribution.data_parallel(timeout=5)
