"""Runs a core of the tests with several versions of Python and of what is below.

python tests/matrix.py --list
python tests/matrix.py [--only WORD ...] [--long] [--again] [--folder FOLDER]
python tests/matrix.py --turn [NUMBER]

An environment is a fresh one of `venv`: newest releases, the floors of pyproject.toml,
or Keras' nightly release. Its results go to docs/matrix.json, and as a table to
docs/support.md; what is there already is not run again, but with `--again`. The
packages lie in `--folder` while its tests run. `--long` runs more than the core.
`--turn` runs the core in the environment whose turn it is, today's by default, on one
backend, and records nothing.
"""

import argparse
import dataclasses
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "matrix.json"
PAGE = ROOT / "docs" / "support.md"
MARKS = "<!-- matrix: begin -->", "<!-- matrix: end -->"
BACKENDS = ("torch", "jax", "tensorflow")
# What the tests below need besides the backends: extras, and more.
EXTRAS = ("metis", "chem", "crystals")
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "networkx", "pandas")
# Shown in the table, and what they are called there.
VERSIONS = {
    "keras": "Keras",
    "numpy": "NumPy",
    "jax": "JAX",
    "tensorflow_cpu": "TensorFlow",
    "torch": "torch",
}
# Of graphs, private APIs and each kind of task.
CORE = (
    "tests/test_compat.py",
    "tests/test_graph.py",
    "tests/models/test_builds.py",
    "tests/models/test_keras_numbers.py",
)
# Also of each backbone, layer and plan, of files, loaders, and several devices.
LONG = (
    *CORE,
    "tests/test_saved_0_2_0.py",
    "tests/data/test_store.py",
    "tests/distribution/test_data_parallel.py",
    "tests/distribution/test_jax_devices.py",
    "tests/distribution/test_torch_data_parallel.py",
    "tests/layers/test_layers.py",
    "tests/models/test_fits.py",
    "tests/models/test_recorded_steps.py",
    "tests/primitives/test_plans.py",
)


@dataclasses.dataclass(frozen=True)
class Environment:
    """Versions to test with.

    Args:
        name: A name for the table.
        python: The version of Python, such as "3.13".
        versions: "newest", "floors" or "nightly", of Keras.
        backends: The backends to install and test.
    """

    name: str
    python: str
    versions: str = "newest"
    backends: tuple[str, ...] = BACKENDS


# The floors of JAX and TensorFlow want different releases of ml_dtypes.
ENVIRONMENTS = (
    Environment("newest-3.11", "3.11"),
    Environment("newest-3.12", "3.12"),
    Environment("newest-3.13", "3.13"),
    Environment("newest-3.14", "3.14"),
    Environment("nightly-3.13", "3.13", "nightly"),
    *(Environment(f"floors-{b}", "3.11", "floors", (b,)) for b in BACKENDS),
)


def interpreter(version: str) -> str | None:
    """Return the path of a Python of this version, or None."""
    versions = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    names = [f"python{version}", *map(str, reversed(versions))]
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    for name in filter(None, map(shutil.which, names)):
        # Those of pyenv on the path may be switched off.
        done = subprocess.run([name, "-c", code], capture_output=True, text=True)
        if done.stdout.strip() == version:
            return name
    return None


def requirements(environment: Environment) -> list[str]:
    """Return what to install, by the lower bounds of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = list(project["dependencies"])
    for backend in environment.backends:
        names += [line for line in extras[backend] if "== 'Darwin'" not in line]
    if environment.versions == "floors":
        names = [name.replace(">=", "==") for name in names]
    further = [line for extra in EXTRAS for line in extras[extra]]
    return names + [line for line in further if not line.startswith("keras-bandgnn")]


def create(environment: Environment, folder: Path) -> str:
    """Make the environment in a folder; return its Python."""
    shutil.rmtree(folder, ignore_errors=True)
    python = interpreter(environment.python)
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")

    def pip(command: str, *options: str) -> None:
        # uv does the same, quicker.
        uv = shutil.which("uv")
        program = [uv, "pip"] if uv else [python, "-m", "pip"]
        program += [command, "--quiet", *(["--python", python] if uv else ["-q"])]
        subprocess.run([*program, *options], check=True, stdin=subprocess.DEVNULL)

    pip("install", *requirements(environment), *TOOLS)
    if environment.versions == "nightly":
        pip("uninstall", *([] if shutil.which("uv") else ["--yes"]), "keras")
        pip("install", "--no-deps", "--pre", "keras-nightly")
    return python


def installed(python: str) -> dict[str, str]:
    """Return the versions in an environment."""
    code = (
        "import importlib.metadata as m, json, platform\n"
        "print(json.dumps({'python': platform.python_version()} | {"
        "d.name.lower().replace('-', '_'): d.version for d in m.distributions()}))"
    )
    out = subprocess.run([python, "-c", code], capture_output=True, check=True)
    versions = json.loads(out.stdout)
    if "keras_nightly" in versions:
        versions["keras"] = versions["keras_nightly"]
    return {n: versions[n] for n in ("python", *VERSIONS) if n in versions}


def outcome(lines: list[str]) -> dict:
    """Return the counts in pytest's last line, and the tests that failed.

    Args:
        lines: What pytest has printed.
    """
    failures = [line.split()[1] for line in lines if re.match(r"(FAILED|ERROR) ", line)]
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for line in lines:
        if re.search(r"\d+ \w+.* in [\d.]+s", line):
            words = {word: int(number) for number, word in re.findall(_COUNT, line)}
            counts = {name: words.get(name, 0) for name in counts}
            counts["failed"] += words.get("error", 0) + words.get("errors", 0)
    return {**counts, "failures": sorted(set(failures))}


_COUNT = r"(\d+) (passed|failed|skipped|errors?)\b"


def tested(python: str, backend: str, scope: str, files: tuple[str, ...]) -> dict:
    """Run tests on a backend; return their outcome.

    Args:
        python: The Python of an environment.
        backend: The backend.
        scope: See tests/conftest.py.
        files: The files of the tests.
    """
    # As tests/run.py does for a backend.
    code = "import json, sys; sys.path.insert(0, 'tests'); import run; "
    code += "run.run(*json.loads(sys.argv[1]))"
    arguments = [backend, scope, [*files, "-p", "no:cacheprovider"]]
    start = time.monotonic()
    process = subprocess.Popen(
        [python, "-c", code, json.dumps(arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line.removeprefix(f"{backend}: "))
    process.wait()
    result = outcome(lines)
    if not result["passed"] and not result["failures"]:
        # Nothing was collected, as where the backend cannot be imported.
        result |= {"failed": 1, "failures": ["no test ran"]}
    return {**result, "minutes": round((time.monotonic() - start) / 60, 1)}


def table(record: dict) -> str:
    """Return the record as a table of Markdown."""
    titles = ["environment", "Python", *VERSIONS.values()]
    titles += ["backend", "tests", "passed", "failed", "skipped", "minutes", "date"]
    lines = ["| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]
    for name in [e.name for e in ENVIRONMENTS if e.name in record]:
        entry = record[name]
        versions = [entry["versions"].get(key, "") for key in ("python", *VERSIONS)]
        for backend, result in entry["tests"].items():
            counts = [str(result[key]) for key in ("passed", "failed", "skipped")]
            cells = [name, *versions, backend, entry["set"], *counts]
            cells += [f"{result['minutes']:.1f}", entry["date"]]
            lines.append("| " + " | ".join(cells) + " |")
    failed = [
        f"- {name}, {backend}: `{failure}`"
        for name, entry in record.items()
        for backend, result in entry["tests"].items()
        for failure in result["failures"]
    ]
    if failed:
        lines += ["", "Failed:", "", *failed]
    return "\n".join(lines)


def write(record: dict) -> None:
    """Write the record, and its table to the page."""
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
    before, _, behind = PAGE.read_text().partition(MARKS[0])
    _, _, behind = behind.partition(MARKS[1])
    marked = f"{MARKS[0]}\n\n{table(record)}\n\n{MARKS[1]}"
    PAGE.write_text(f"{before}{marked}{behind}")


def run(environment: Environment, folder: Path, long: bool, done: dict, save) -> dict:
    """Make an environment, test in it, remove it.

    Args:
        environment: The environment.
        folder: Where it lies meanwhile.
        long: Whether to run more tests than the core.
        done: Outcomes by backend, of backends that are not tested again.
        save: Function of the entry for the record, called after each backend.

    Returns:
        The entry for the record.
    """
    print(f"=== {environment.name}: installing", flush=True)
    start = time.monotonic()
    place = folder / environment.name
    try:
        python = create(environment, place)
        minutes = (time.monotonic() - start) / 60
        print(f"=== {environment.name}: installed in {minutes:.1f} min", flush=True)
        entry = {
            "date": datetime.date.today().isoformat(),
            "versions": installed(python),
            "install_minutes": round(minutes, 1),
            "set": "long" if long else "core",
            "tests": dict(done),
        }
        for backend in environment.backends:
            if backend not in done:
                all_tests = not long or backend == environment.backends[0]
                scope = "landing" if all_tests else "backends"
                files = LONG if long else CORE
                entry["tests"][backend] = tested(python, backend, scope, files)
                save(entry)
        return entry
    finally:
        shutil.rmtree(place, ignore_errors=True)


def done_before(record: dict, environment: Environment, long: bool) -> dict:
    """Return the outcomes in the record, of the same tests or more, by backend."""
    entry = record.get(environment.name, {"set": None, "tests": {}})
    enough = ("long",) if long else ("core", "long")
    return entry["tests"] if entry["set"] in enough else {}


def turn(number: int) -> Environment:
    """Return the environment whose turn it is, with one of its backends."""
    here = [e for e in ENVIRONMENTS if interpreter(e.python)]
    turns = [
        (e, backend) for backend in BACKENDS for e in here if backend in e.backends
    ]
    environment, backend = turns[number % len(turns)]
    return dataclasses.replace(environment, backends=(backend,))


def main() -> int:
    """Run what was asked for; return 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="+", help="words in names of environments")
    parser.add_argument(
        "--list", action="store_true", help="environments, and the backends to test"
    )
    parser.add_argument("--again", action="store_true", help="also those in the record")
    parser.add_argument("--long", action="store_true", help="more than the core")
    parser.add_argument("--folder", type=Path, help="where the environments lie")
    parser.add_argument("--turn", nargs="?", type=int, const=-1, help="one in turn")
    options = parser.parse_args()
    record = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    chosen = [
        e
        for e in ENVIRONMENTS
        if not options.only or any(word in e.name for word in options.only)
    ]
    if options.turn is not None:
        today = datetime.date.today().toordinal()
        chosen = [turn(today if options.turn < 0 else options.turn)]
    if options.list:
        for environment in chosen:
            done = done_before(record, environment, options.long)
            state = ", ".join(set(environment.backends) - set(done)) or "recorded"
            if not interpreter(environment.python):
                state = f"no Python {environment.python}"
            print(f"{environment.name}: {state}")
        return 0
    records, failed = options.turn is None, False
    long = options.long and records
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for environment in chosen:
            if not interpreter(environment.python):
                print(f"=== {environment.name}: no Python {environment.python}")
                continue
            earlier = records and not options.again
            done = done_before(record, environment, long) if earlier else {}
            if set(done) >= set(environment.backends):
                print(f"=== {environment.name}: recorded, skipped")
                continue

            def save(entry, name=environment.name):
                print(f"=== {name}: {json.dumps(entry)}", flush=True)
                if records:
                    record[name] = entry
                    write(record)

            entry = run(environment, Path(folder), long, done, save)
            failed |= any(result["failed"] for result in entry["tests"].values())
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
