"""A few moments of `python -m tests.interruptions`; its table has many."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs forks")
@pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="files do not depend on the backend"
)
def test_what_is_ended_at_any_moment_resumes_to_the_same():
    jobs = ["compile, two processes", "train", "save"]
    command = [sys.executable, "-m", "tests.interruptions", "--jobs", *jobs]
    done = subprocess.run(
        [*command, "--moments", "3", "--seed", "0"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("resumed to the same") == 1
