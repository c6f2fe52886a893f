import importlib.util
import json
import os

import pytest

from keras_bandgnn.default_backend import replace_missing_backend

pytestmark = pytest.mark.every_backend


@pytest.mark.parametrize(
    ("variable", "configured", "installed", "expected"),
    [
        ("torch", "jax", ("jax",), "torch"),
        (None, "torch", ("jax", "torch"), None),
        (None, None, ("jax", "tensorflow"), None),
        (None, "tensorflow", ("jax", "torch"), "jax"),
        (None, None, ("torch",), "torch"),
        (None, None, (), None),
    ],
)
def test_only_a_missing_backend_is_replaced(
    variable, configured, installed, expected, tmp_path, monkeypatch
):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setenv("KERAS_BACKEND", variable or "")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: name in installed or None
    )
    if configured:
        (tmp_path / "keras.json").write_text(json.dumps({"backend": configured}))
    replace_missing_backend()
    assert (os.environ["KERAS_BACKEND"] or None) == expected
