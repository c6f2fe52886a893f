import os
import subprocess
import sys

import keras
import pytest

from keras_bandgnn.training import enable_compilation_cache

pytestmark = pytest.mark.every_backend

BACKEND = keras.backend.backend()
CODE = """
import sys
import jax
import numpy as np
import keras_bandgnn as kb
from keras_bandgnn.training import enable_compilation_cache

found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event))
jax.numpy.ones(3) + 1  # Something is compiled before.
print(enable_compilation_cache(sys.argv[1], least_seconds=0.0))
task = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 2}, 4, 1), 2)
task.predict(kb.Graph(2, [0], [1], node={"kind": [0, 1]}))
print(sum(event.endswith("/cache_hits") for event in found))
"""


@pytest.mark.skipif(BACKEND != "jax", reason="JAX has this cache")
@pytest.mark.release(elsewhere=True)
def test_the_next_process_finds_the_programs(tmp_path):
    hits = []
    for _ in range(2):
        command = [sys.executable, "-c", CODE, str(tmp_path / "programs")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        hits.append(int(done.stdout.split()[-1]))
    assert hits[0] < hits[1]
    assert any((tmp_path / "programs").iterdir())


@pytest.mark.skipif(BACKEND != "torch", reason="of torch")
def test_torch_is_told_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")
    folder = enable_compilation_cache(tmp_path / "programs")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder)
    assert folder.is_dir()


def test_what_cannot_be_is_said(tmp_path):
    if BACKEND == "tensorflow":
        with pytest.raises(ValueError, match="Expected JAX or torch"):
            enable_compilation_cache(tmp_path)
    else:
        with pytest.raises(ValueError, match="`least_seconds` to be at least 0"):
            enable_compilation_cache(tmp_path, least_seconds=-1)
