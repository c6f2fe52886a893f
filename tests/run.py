"""Runs the tests on every backend, two processes at a time.

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
HOST_ONLY = (
    "tests/data",
    "tests/programs",
    "tests/cli/test_bad_command_lines.py",
    "tests/fuzz",
    "tests/security",
    "tests/test_graph.py",
    "tests/test_module_state.py",
    "tests/test_plan_protocol.py",
    "tests/preprocessing/batching/test_budgets.py",
    "tests/test_copies_and_caches.py",
)
# Each half of the tests is a process, so that two are busy to the end.
COMPUTING = ("tests/layers", "tests/models", "tests/ops", "tests/primitives")
NO_TESTS = 5  # exit code of pytest
# Tests compile many small programs and run each a few times.
XLA_FLAGS = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)


def run(backend: str, half: str, options: list[str]) -> tuple[int, list[str]]:
    """Runs pytest and prints its lines with the backend's name.

    Returns:
        Its exit code, and what it said of failures.
    """
    paths = ["tests", *(f"--ignore={path}" for path in COMPUTING)]
    paths = list(COMPUTING) if half == "computing" else paths
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
        [sys.executable, "-m", "pytest", *paths, "-q", *options],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    failures, inside = [], False
    for line in process.stdout:
        line = f"{backend}: {line}"
        print(line, end="", flush=True)
        inside |= " FAILURES =" in line or " ERRORS =" in line
        if inside and "SKIPPED" not in line:
            failures.append(line)
    code = process.wait()
    seconds = time.monotonic() - start
    print(f"=== {backend}, {half}: exit {code} in {seconds:.0f} s", flush=True)
    return code, failures


def main() -> int:
    """Prints the failures once more, last; returns the first exit code of one."""
    arguments, options = sys.argv[1:], []
    if "--" in arguments:
        place = arguments.index("--")
        arguments, options = arguments[:place], arguments[place + 1 :]
    backends = arguments or BACKENDS
    skip = [f"--ignore={path}" for path in HOST_ONLY]
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        runs = [
            pool.submit(run, backend, half, [*(skip if index else []), *options])
            for index, backend in enumerate(backends)
            for half in ("other", "computing")
        ]
    codes, failures = zip(*(run.result() for run in runs), strict=True)
    print(*(line for lines in failures for line in lines), sep="", end="")
    # One half may have no test that the options choose.
    if NO_TESTS in codes and len(set(codes)) > 1:
        codes = [code for code in codes if code != NO_TESTS]
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
