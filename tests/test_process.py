"""The process before and after the import, training and each command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import keras_bandgnn as kb

ROOT = Path(__file__).resolve().parents[1]
# The command, which chooses the backend, imports Keras where it needs it.
AS_COMMAND = "import sys; sys.argv[0] = 'bandgnn'\n"
LOADED = "print({'keras', 'scipy', 'pyarrow', 'rich'} & set(sys.modules))"

LIBRARY = """
import random, sys
from tests.process_state import compared, np, state
import keras
random.seed(0)  # Keras' own function imports TensorFlow.
np.random.seed(0)
before, python = state(), random.getstate()
import keras_bandgnn as kb
for name in [*kb.__all__, *kb.EXPERIMENTAL]:
    getattr(kb, name)
compared("import", before)
assert random.getstate() == python

from keras_bandgnn import Graph
rng = np.random.default_rng(0)
graphs = [
    Graph(n, *rng.integers(0, n, (2, 2 * n)), node={"kind": rng.integers(0, 3, n)})
    for n in rng.integers(3, 9, 24)
]
labels = rng.integers(0, 2, 24)
batches = kb.preprocessing.GraphPreprocessor([], kb.preprocessing.StaticBatcher(4))
task = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 3}, 8), 2, batches)
task.compile(keras.optimizers.Adam(0.01), record_steps="auto")
# What Keras' own fit sets once, on data of the same kind.
other = keras.Sequential([keras.layers.Dense(1)])
other.compile("adam", "mse")
other.fit(np.ones((8, 2)), np.ones(8), verbose=0)
other.predict(np.ones((8, 2)), verbose=0)
before = state()
actions = {
    # More steps than there are before torch records them.
    "fit": lambda: task.fit(graphs, labels, epochs=14, verbose=0),
    "evaluate": lambda: task.evaluate(graphs, labels, verbose=0),
    "predict": lambda: task.predict(graphs),
    "loader": lambda: task.loader(graphs)[0],
    "explain": lambda: kb.explain.integrated_gradients(task, graphs[:2]),
    "save": lambda: task.save_to_preset(sys.argv[1]),
    "load": lambda: kb.models.Task.from_preset(sys.argv[1]).predict(graphs),
}
for name, action in actions.items():
    action()
    compared(name, before)
kb.config.tune_process()
kb.config.restore_process()
compared("restored settings", before)
"""

COMMANDS = """
import contextlib, io, os, sys
from tests.process_state import compared, np, state
import keras
from keras_bandgnn.cli.main import main, _COMMANDS

folder = sys.argv[1]
os.chdir(folder)
os.mkdir("src")
for name in "abcdef":
    with open(f"src/{name}.py", "w") as file:
        file.write("def f(a, b):\\n    total = a * b\\n    return total + a\\n")
omitted = ("demo", "lsp")  # One runs others of these, the other is a server.
lines = {
    "compile": "src --out data --steps 2 --processes 1",
    "train": "data --out model --hidden 8 --epochs 1",
    "evaluate": "model data/test",
    "predict": "model src/a.py --processes 1",
    "check": "src --model model --cache-dir cache",
    "inspect": "data/train",
    "batching": "data/train --batch-size 2 --steps 20 --hidden 4 --layers 1",
    "calibrate": "--show",
    "tune": "data --out tuned --trials 1 --epochs 1",
    "tpu-check": "model",
    "scale": "--topology none",
}
other = keras.Sequential([keras.layers.Dense(1)])
other.compile("adam", "mse")
other.fit(np.ones((8, 2)), np.ones(8), verbose=0)
other.predict(np.ones((8, 2)), verbose=0)
import keras_tuner  # Its import of six adds a finder.
before = state()
for name in _COMMANDS:
    if name in omitted:
        continue
    out, code = io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code = main([name, *lines[name].split()])
        except SystemExit as end:
            code = end.code
    # Findings, and what needs a TPU's compiler.
    allowed = (0, 1) if name in ("predict", "check", "tpu-check", "scale") else (0,)
    assert code in allowed, out.getvalue()
    # Training seeds all generators, as its option says.
    compared(name, before, drawn=("numpy random state", "torch random state"))
"""


def printed(script: str) -> str:
    command = [sys.executable, "-c", script]
    return subprocess.check_output(command, text=True).strip()


def run(script: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.every_backend
def test_the_library_leaves_the_process_as_it_was(tmp_path):
    run(LIBRARY, tmp_path / "preset")


def test_each_command_leaves_the_process_as_it_was(tmp_path):
    run(COMMANDS, tmp_path)


def test_the_command_and_workers_import_what_they_use(tmp_path):
    assert printed(f"{AS_COMMAND}import keras_bandgnn\n{LOADED}") == "set()"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "keras_bandgnn", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "| keras_bandgnn" in done.stderr and "| keras\n" not in done.stderr
    script = tmp_path / "worker.py"
    script.write_text(
        "import multiprocessing, sys\n"
        "import keras_bandgnn\n"
        "def loaded(queue):\n"
        "    queue.put('keras' in sys.modules)\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    queue = context.Queue()\n"
        "    context.Process(target=loaded, args=(queue,)).start()\n"
        "    print(queue.get())\n"
    )
    assert subprocess.check_output([sys.executable, script], text=True) == "False\n"


@pytest.mark.every_backend
@pytest.mark.parametrize(
    "imports",
    [
        "import keras, keras_bandgnn",
        pytest.param("import keras_bandgnn.data, keras", marks=pytest.mark.release),
        f"{AS_COMMAND}import keras_bandgnn as kb, keras; kb.models",
    ],
)
@pytest.mark.release(elsewhere=True)
def test_files_are_read_after_the_import(imports, tmp_path):
    path = str(tmp_path / "task.keras")
    kb.models.GraphRegressor(kb.models.GCNBackbone({"kind": 3}, 4)).save(path)
    code = f"{imports}\nprint(type(keras.saving.load_model({path!r})).__name__)"
    assert printed(code) == "GraphRegressor"
