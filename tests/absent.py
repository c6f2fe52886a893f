"""Processes that cannot import some packages."""

import os
import subprocess
import sys

BACKENDS = ("jax", "torch", "tensorflow")
ABSENT = """
import sys
from importlib.machinery import PathFinder

class Installed:
    find_distributions = PathFinder.find_distributions

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] not in {modules!r}:
            return PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Installed
"""


def run_without(modules, script, **environment):
    """Run a script in a process that cannot import some packages; return its output."""
    absent = ABSENT.format(modules=set(modules))
    variables = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}
    done = subprocess.run(
        [sys.executable, "-c", absent + script],
        env={**variables, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
