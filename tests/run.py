"""Runs the tests on every backend, two backends at a time.

python tests/run.py [backend ...] [-- pytest options]

The first backend runs all tests, the others what touches a backend.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

BACKENDS = ("jax", "tensorflow", "torch")
# Reading, encoding and storing graphs touch no backend.
HOST_ONLY = ("tests/data", "tests/test_graph.py")
# Tests compile many small programs and run each a few times.
XLA_FLAGS = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)


def run(backend: str, options: list[str]) -> int:
    """Runs pytest, prints its lines with the backend's name; returns its exit code."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        # Threads that wait must not spin: the cores are shared.
        "OMP_WAIT_POLICY": "PASSIVE",
        "XLA_FLAGS": f"{XLA_FLAGS} {os.environ.get('XLA_FLAGS', '')}".strip(),
    }
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "tests", "-q", *options],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    for line in process.stdout:
        print(f"{backend}: {line}", end="", flush=True)
    code = process.wait()
    seconds = time.monotonic() - start
    print(f"=== {backend}: exit {code} in {seconds:.0f} s", flush=True)
    return code


def main() -> int:
    """Returns the first exit code that is not 0."""
    arguments, options = sys.argv[1:], []
    if "--" in arguments:
        place = arguments.index("--")
        arguments, options = arguments[:place], arguments[place + 1 :]
    backends = arguments or BACKENDS
    skip = [f"--ignore={path}" for path in HOST_ONLY]
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        runs = [
            pool.submit(run, backend, [*(skip if index else []), *options])
            for index, backend in enumerate(backends)
        ]
    return next((code for r in runs if (code := r.result())), 0)


if __name__ == "__main__":
    sys.exit(main())
