"""Runs the tests on every backend: all of them on the first, then what differs.

python tests/run.py [backend ...] [-- pytest options]
"""

import os
import subprocess
import sys
import time

BACKENDS = ("jax", "tensorflow", "torch")
# Reading, encoding and storing graphs touch no backend.
HOST_ONLY = ("tests/data", "tests/test_graph.py")


def main() -> int:
    """Returns the first exit code that is not 0."""
    arguments = sys.argv[1:]
    extra = []
    if "--" in arguments:
        place = arguments.index("--")
        arguments, extra = arguments[:place], arguments[place + 1 :]
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    worst = 0
    for index, backend in enumerate(arguments or BACKENDS):
        skip = [f"--ignore={path}" for path in HOST_ONLY] if index else []
        environment = {
            **os.environ,
            "KERAS_BACKEND": backend,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            # Threads that wait must not spin: the cores are shared.
            "OMP_WAIT_POLICY": "PASSIVE",
        }
        print(f"=== {backend}", flush=True)
        start = time.monotonic()
        command = [sys.executable, "-m", "pytest", "tests", "-q", *skip, *extra]
        code = subprocess.run(command, cwd=root, env=environment).returncode
        print(f"=== {backend}: exit {code} in {time.monotonic() - start:.0f} s")
        worst = worst or code
    return worst


if __name__ == "__main__":
    sys.exit(main())
