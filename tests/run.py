"""Runs the tests, one backend after the other, on all cores.

python tests/run.py [--full] [backend ...] [-- pytest options]

The first backend runs all tests but those marked `release`. Of these the others run
those marked `every_backend` and the folders that tests/conftest.py names. `--full` runs
all tests on each.
"""

import functools
import os
import subprocess
import sys
import threading
import time

# torch starts quickest and compiles nothing: it runs all tests.
BACKENDS = ("torch", "jax", "tensorflow")
NO_TESTS = 5  # exit code of pytest
# Tests compile many small programs and run each a few times.
XLA_FLAGS = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
    # Two processes share the cores: parts of a program gain nothing from threads.
    "--xla_cpu_parallel_codegen_split_count=1",
)
# A compiled program for each backend that uses XLA.
COMPILED = {
    "jax": "import jax; jax.jit(lambda x: x + 1)(1.0)",
    "tensorflow": (
        "import tensorflow as tf; tf.function(lambda x: x + 1, jit_compile=True)(1.0)"
    ),
}


@functools.cache
def xla_flags(backend: str) -> str:
    """Return the flags that the installed XLA accepts: it aborts on unknown ones."""
    if backend not in COMPILED:
        return ""

    def accepts(*flags: str) -> bool:
        environment = os.environ | {"XLA_FLAGS": " ".join(flags)}
        command = [sys.executable, "-c", COMPILED[backend]]
        return (
            subprocess.run(command, env=environment, capture_output=True).returncode
            == 0
        )

    if accepts(*XLA_FLAGS):
        return " ".join(XLA_FLAGS)
    return " ".join(flag for flag in XLA_FLAGS if accepts(flag))


def run(backend: str, scope: str, options: list[str]) -> tuple[int, list[str]]:
    """Run pytest and print its lines with the backend's name.

    Args:
        backend: The backend.
        scope: The tests to run; see tests/conftest.py.
        options: Further options of pytest.

    Returns:
        The exit code, and the lines about failures.
    """
    environment = {
        # Two processes share the cores.
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "KERAS_BACKEND": backend,
        "KB_TEST_SCOPE": scope,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        # Threads that wait must not spin: the cores are shared.
        "OMP_WAIT_POLICY": "PASSIVE",
        # Nobody reads where an operation was called.
        "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",
        "XLA_FLAGS": f"{xla_flags(backend)} {os.environ.get('XLA_FLAGS', '')}".strip(),
        # The processes that tests start do not compile the library's source again.
        "PYTHONDONTWRITEBYTECODE": "",
    }
    start = time.monotonic()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "--dist", "loadfile"]
    process = subprocess.Popen(
        [*command, *options],
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
    print(f"=== {backend}: exit {code} in {seconds:.0f} s", flush=True)
    return code, failures


def main() -> int:
    """Print the failures once more, last; return the first exit code of one."""
    arguments, options = sys.argv[1:], []
    if "--" in arguments:
        place = arguments.index("--")
        arguments, options = arguments[:place], arguments[place + 1 :]
    full = "--full" in arguments
    backends = [name for name in arguments if name != "--full"] or list(BACKENDS)
    for backend in backends[1:]:
        # While the first backend tests; the results are cached.
        threading.Thread(target=xla_flags, args=(backend,), daemon=True).start()
    codes, failures = [], []
    for backend in backends:
        scope = "release" if full else "backends" if codes else "landing"
        code, lines = run(backend, scope, options)
        codes.append(code)
        failures += lines
    print(*failures, sep="", end="")
    # The options may choose no test of a backend.
    if NO_TESTS in codes and len(set(codes)) > 1:
        codes = [code for code in codes if code != NO_TESTS]
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
