import importlib.util
import json
import sys

import pytest

from keras_bandgnn.cli import backend


@pytest.mark.parametrize(
    ("wanted", "variable", "configured", "installed", "expected"),
    [
        ("torch", "jax", "jax", ("jax", "torch"), "torch"),
        (None, "torch", "jax", ("jax", "torch"), "torch"),
        (None, None, "torch", ("jax", "torch"), "torch"),
        # Keras writes "tensorflow" into a new keras.json.
        (None, None, "tensorflow", ("jax",), "jax"),
        (None, None, None, ("torch",), "torch"),
    ],
)
def test_choice(
    wanted, variable, configured, installed, expected, tmp_path, monkeypatch
):
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setenv("KERAS_BACKEND", variable or "")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: name in installed or None
    )
    if configured:
        (tmp_path / "keras.json").write_text(json.dumps({"backend": configured}))
    backend.choose_backend(wanted)
    assert backend.os.environ["KERAS_BACKEND"] == expected


def test_nothing_installed(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setenv("KERAS_BACKEND", "")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'keras-bandgnn\[jax\]'"):
        backend.choose_backend(None)
    with pytest.raises(ImportError, match=r"keras-bandgnn\[torch\]"):
        backend.choose_backend("torch")
