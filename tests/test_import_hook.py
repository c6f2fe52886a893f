"""Classes are in Keras' registry once both are imported, in any order."""

import os
import subprocess
import sys

import pytest

import keras_bandgnn as kb

pytestmark = pytest.mark.every_backend

LOAD = """
import sys
{imports}
meta = list(sys.meta_path)
task = keras.saving.load_model(sys.argv[1])
print(type(task).__name__, any("Keras" in type(each).__name__ for each in meta))
"""
ORDERS = (
    "import keras, keras_bandgnn",
    "import keras_bandgnn, keras",
    "import keras_bandgnn.data, keras",
    "import keras_bandgnn.models, keras",
    "import keras_bandgnn; from keras import layers; import keras",
)


@pytest.mark.parametrize("imports", ORDERS)
def test_files_are_loaded_whatever_is_imported_first(imports, tmp_path):
    path = tmp_path / "task.keras"
    kb.models.GraphRegressor(kb.models.GCNBackbone({"kind": 3}, 4)).save(path)
    done = subprocess.run(
        [sys.executable, "-c", LOAD.format(imports=imports), str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.split() == ["GraphRegressor", "False"], done.stderr


def test_the_library_itself_imports_no_more_than_it_needs():
    script = (
        "import sys, keras_bandgnn.layers; print('keras_bandgnn.models' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.strip() == "False", done.stderr
