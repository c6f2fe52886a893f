"""Runs the tests on every backend, two processes at a time.

python tests/run.py [--full] [backend ...] [-- pytest options]

The first backend runs all tests but for its share of pages, examples, commands,
searches and benchmarks, which run on one backend each. The others run what touches a
backend: layers, ops and primitives on each, the rest shared out between them. Shares
change in turns, with every commit. `--full` runs all that on each backend.
"""

import functools
import itertools
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

# torch starts quickest and compiles nothing: it runs all tests.
BACKENDS = ("torch", "jax", "tensorflow")
# Tests of the host's work call nothing of the backend; tests/conftest.py checks it.
HOST_ONLY = (
    "tests/assembly/test_block_assembler.py",
    "tests/cli/test_bad_command_lines.py",
    "tests/cli/test_compile_engines.py",
    "tests/explain/test_drawing.py",
    "tests/explain/test_edge_places.py",
    "tests/plotting",
    "tests/preprocessing/attention",
    "tests/preprocessing/batching",
    "tests/preprocessing/geometry",
    "tests/preprocessing/ordering",
    "tests/preprocessing/test_program_store.py",
    "tests/preprocessing/test_structural_encoding.py",
    "tests/preprocessing/test_transforms.py",
    "tests/test_rooms.py",
)
# Graphs and readers of files do not depend on the backend, though some make tensors.
READERS = (
    "tests/data",
    "tests/fuzz",
    "tests/programs",
    "tests/security",
    "tests/test_graph.py",
    "tests/test_copies_and_caches.py",
    "tests/test_module_state.py",
)
# What differs between backends is here; tests/conftest.py shares out the rest.
EVERYWHERE = (
    "tests/distribution",
    "tests/layers",
    "tests/ops",
    "tests/primitives",
    "tests/tpu",
)
# Whole programs, mostly processes of their own, around what the other tests hold to
# account: each runs on one backend.
PROGRAMS = (
    "tests/benchmarks",
    "tests/cli",
    "tests/test_extras.py",
    "tests/tuning",
)
# The tests of a backend in parts, each a process.
REST = "the rest"
PARTS = {
    REST: ("tests",),
    "models": ("tests/models",),
    "layers": ("tests/layers", "tests/ops", "tests/primitives", "tests/distribution"),
}
# Minutes of each process, two at a time on two cores. What takes longest begins first,
# so that both cores are busy to the end.
MINUTES = {
    (REST, "torch"): 11.3,
    (REST, "tensorflow"): 10.5,
    (REST, "jax"): 9.1,
    ("models", "tensorflow"): 7.6,
    ("models", "jax"): 7.0,
    ("layers", "jax"): 6.9,
    ("models", "torch"): 3.8,
    ("layers", "tensorflow"): 1.8,
    ("layers", "torch"): 0.8,
}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NO_TESTS = 5  # exit code of pytest
# Tests compile many small programs and run each a few times.
XLA_FLAGS = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
)
# A compiled program for each backend that uses XLA.
COMPILED = {
    "jax": "import jax; jax.jit(lambda x: x + 1)(1.0)",
    "tensorflow": (
        "import tensorflow as tf; tf.function(lambda x: x + 1, jit_compile=True)(1.0)"
    ),
}


def commits() -> int:
    """The number of commits so far, 0 outside a repository."""
    command = ["git", "rev-list", "--count", "HEAD"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return 0
    return int(done.stdout) if done.returncode == 0 else 0


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


def run(
    backend: str, part: str, backends: list[str], options: list[str], full: bool
) -> tuple[int, list[str]]:
    """Runs pytest and prints its lines with the backend's name.

    Returns:
        Its exit code, and what it said of failures.
    """
    paths = list(PARTS[part])
    if part == REST:
        others = [path for name in PARTS if name != REST for path in PARTS[name]]
        paths += [f"--ignore={path}" for path in others]
    if backend != backends[0]:
        paths += [f"--ignore={path}" for path in HOST_ONLY + READERS]
    environment = {
        # Two processes share the cores.
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "KERAS_BACKEND": backend,
        "KB_TEST_BACKENDS": "" if full else " ".join(backends),
        "KB_TEST_TURN": os.environ.get("KB_TEST_TURN", str(commits())),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        # Threads that wait must not spin: the cores are shared.
        "OMP_WAIT_POLICY": "PASSIVE",
        "XLA_FLAGS": f"{xla_flags(backend)} {os.environ.get('XLA_FLAGS', '')}".strip(),
        # The processes that tests start do not compile the library's source again.
        "PYTHONDONTWRITEBYTECODE": "",
    }
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *paths, "-q", *options],
        cwd=ROOT,
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
    print(f"=== {backend}, {part}: exit {code} in {seconds:.0f} s", flush=True)
    return code, failures


def main() -> int:
    """Prints the failures once more, last; returns the first exit code of one."""
    arguments, options = sys.argv[1:], []
    if "--" in arguments:
        place = arguments.index("--")
        arguments, options = arguments[:place], arguments[place + 1 :]
    full = "--full" in arguments
    backends = [name for name in arguments if name != "--full"] or list(BACKENDS)
    processes = itertools.product(PARTS, backends)
    longest_first = sorted(processes, key=MINUTES.__getitem__, reverse=True)
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        runs = [
            pool.submit(run, backend, part, backends, options, full)
            for part, backend in longest_first
        ]
    codes, failures = zip(*(run.result() for run in runs), strict=True)
    print(*(line for lines in failures for line in lines), sep="", end="")
    # One part may have no test that the options choose.
    if NO_TESTS in codes and len(set(codes)) > 1:
        codes = [code for code in codes if code != NO_TESTS]
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
