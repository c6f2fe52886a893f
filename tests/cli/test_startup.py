"""What a command imports and prints, in a process of its own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest

ROOT = Path(__file__).resolve().parents[2]
FUNCTION = "def f(left, right):\n    total = left * right\n    return total + left\n"
SCRIPT = """
import json, sys
sys.argv[0] = "bandgnn"  # which imports what it uses
from keras_bandgnn.cli.main import _COMMANDS, main

def run(line):
    try:
        return main(line)
    except SystemExit as end:
        return end.code or 0

codes = {"--help": run(["--help"])}
modules = {"--help": [m for m in sys.modules if m.startswith("keras_bandgnn.cli.")]}
codes |= {f"{name} --help": run([name, "--help"]) for name in _COMMANDS}
modules["helps"] = [m for m in sys.modules if m.split(".")[0] == "keras"]
for line in json.loads(sys.argv[1]):
    codes[line[0]] = run(line)
    modules[line[0]] = [m for m in sys.modules if m.split(".")[0] == "tensorflow"]
sys.stdout.flush()
print(json.dumps([codes, modules]))
"""


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="it is the backend")
def test_commands_import_no_other_backend_and_say_nothing_else(tmp_path):
    source = tmp_path / "src"
    source.mkdir()
    for name in "abcdef":
        (source / f"{name}.py").write_text(FUNCTION)
    data, model = str(tmp_path / "data"), str(tmp_path / "model")
    lines = [
        ["compile", str(source), "--out", data, "--steps", "2", "--processes", "1"],
        ["train", data, "--out", model, "--hidden", "8", "--epochs", "1"],
        ["evaluate", model, f"{data}/test"],
        ["predict", model, str(source / "a.py"), "--processes", "1"],
    ]
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(lines)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    # Progress of long work is ours; on a slow machine there is some.
    said = [line for line in done.stderr.splitlines() if line]
    progress = re.compile(r"epoch 1/1, step|[a-z]+: running for ")
    assert not [line for line in said if not progress.match(line)], said
    codes, modules = json.loads(done.stdout.splitlines()[-1])
    assert {name: code for name, code in codes.items() if code} in ({}, {"predict": 1})
    allowed = {"main", "backend", "interrupts", "options"}
    assert {m.rsplit(".", 1)[1] for m in modules.pop("--help")} <= allowed
    assert not any(modules.values()), modules
