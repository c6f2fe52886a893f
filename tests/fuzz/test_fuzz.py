"""A short run of the mutants, and what the harness itself must do."""

import ast
import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keras_bandgnn.serving.runtimes import ARTEFACTS
from tests.fuzz import (
    outcomes,
    readers_of_data,
    readers_of_models,
    regressions,
    workers,
)
from tests.fuzz.readers import Reader, all_readers

ROOT = Path(__file__).resolve().parents[2]


def test_every_reader_has_a_sample():
    """A form of a data set, or an ending, that is new needs a sample."""
    forms = set(readers_of_data.forms())
    assert forms <= set(readers_of_data.SAMPLES), (
        "Add samples to SAMPLES in tests/fuzz/readers_of_data.py: "
        f"{sorted(forms - set(readers_of_data.SAMPLES))}"
    )
    endings = set(readers_of_data.ENDINGS)
    assert endings <= set(readers_of_data.STRUCTURES), (
        "Add files to STRUCTURES in tests/fuzz/readers_of_data.py: "
        f"{sorted(endings - set(readers_of_data.STRUCTURES))}"
    )
    formats = set(ARTEFACTS)
    assert formats <= set(readers_of_models.EXPORTED), (
        "Add what writes a sample to EXPORTED in tests/fuzz/readers_of_models.py: "
        f"{sorted(formats - set(readers_of_models.EXPORTED))}"
    )
    assert len(all_readers()) > len(forms | endings | formats)


_CALLS = {
    *("loads", "load", "File", "ZipFile", "open", "connect", "memory_map", "genops"),
    *("read_text", "read_bytes", "load_weights", "DictReader", "read_csv"),
    *("read_json", "open_npz"),
}
# Module -> the reader that covers what it reads, or why none has to.
_COVERED = {
    "cli/data_sets": "all readers of data",
    "cli/scale": "the calibration that the user names",
    "cli/train": "settings, and weights as of progress",
    "cli/tune": "settings",
    "data/converters/networkx_graphs": "text that it wrote a line before",
    "data/converters/structure_formats": "structures *",
    "config": "files of the operating system",
    "data/converters/structures": "structures *",
    "data/datasets/aflow": "aflow:*",
    "data/datasets/archives": "archive *",
    "data/datasets/download": "the tag and the checksum beside a download",
    "data/datasets/malnet": "malnet:*",
    "data/datasets/molecules": "molecules:*",
    "data/datasets/node_graphs": "node_graphs:*",
    "data/datasets/ogb": "ogb:*",
    "data/datasets/pickle_arrays": "pickle_arrays",
    "data/datasets/qm9": "qm9*",
    "data/datasets/tables": "all readers of tables",
    "data/datasets/tu": "tu:*",
    "data/datasets/zinc": "zinc:*",
    "data/files": "writes only",
    "data/flat_columns": "store",
    "data/reading": "all readers of data",
    "data/store": "store, unfinished store",
    "data/weights_files": "preset *, progress",
    "default_backend": "the settings of Keras",
    "distribution/": "weights as of progress, and the environment",
    "saving/": "preset *",
    "models/last_layer_laplace": "last layer",
    "models/presets": "preset *",
    "planning/cost": "calibration, and files of the operating system",
    "plotting/history": "log of training",
    "preprocessing/ordering/cluster_compile": "files of the operating system",
    "programs/corpus_files": "corpus",
    "programs/models/program_store": "store",
    "programs/linting/baseline": "tests/programs/linting/test_baseline.py",
    "programs/linting/cache": "tests/programs/linting/test_cache.py",
    "programs/linting/checker": "tests/programs/linting/test_checker.py",
    "programs/linting/project_files": "names that git prints",
    "programs/linting/settings": "tests/programs/linting/test_settings.py",
    "programs/linting/source_code": "tests/programs/linting/test_source_code.py",
    "programs/program_files": "python sources, as text",
    "programs/python_source/listing": "python sources, as text",
    "programs/ray_pool": "no file",
    "programs/varmisuse": "varmisuse *",
    "serving/": "exported *, packing.json",
    "tpu/hlo": "text of a compiler",
    "training/save_progress": "progress",
    "tuning/": "search *",
}


def test_every_module_that_reads_files_is_covered():
    """What begins to read files needs a reader here, or a reason."""
    package = ROOT / "keras_bandgnn"
    missing = []
    for path in package.rglob("*.py"):
        calls = {
            getattr(node.func, "attr", getattr(node.func, "id", ""))
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Call)
        }
        name = path.relative_to(package).as_posix()
        if calls & _CALLS and not name.startswith(tuple(_COVERED)):
            missing.append(name)
    assert not missing, (
        f"Add readers of {missing} to tests/fuzz/readers_of_data.py or "
        "readers_of_models.py, and say so in _COVERED."
    )


def test_mutants_of_a_seed_are_equal():
    reader = all_readers()["molecules:read_npz npz"]
    sample = reader.files()
    for seed in range(60):
        first, again = (outcomes.make(reader, sample, seed) for _ in range(2))
        assert first.files == again.files


@dataclasses.dataclass(frozen=True)
class _Odd:
    """A reader that does something bad with every changed sample."""

    what: str

    def read(self, folder):
        data = (folder / "a.txt").read_bytes()
        if data == b"1":
            return 1
        if self.what == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.what == "hang":
            while True:
                pass
        if self.what == "memory":
            return len(b"1" * (1 << 30))
        if self.what == "low-level":
            return {}["x"]
        if self.what == "vague":
            raise ValueError("no")
        if self.what == "no file":
            raise ValueError("Expected 1. Received: 2.")
        if self.what == "clear":
            raise ValueError("Expected 1 in a.txt. Received: 2.")
        return 2


@pytest.mark.parametrize("what", [w for w in outcomes.OUTCOMES if w != "right"])
def test_each_outcome_is_seen(what):
    reader = Reader(
        what,
        lambda: {"a.txt": b"1"},
        _Odd(what).read,
        check=lambda value: "two" if value == 2 and what == "wrong" else None,
        seconds=0.5 if what == "hang" else 10,
    )
    report = workers.run([(reader, reader.files(), range(3, 6))], 1)[what]
    assert report.counts[what] >= 2 and sum(report.counts.values()) == 3


def _run(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    if importlib.util.find_spec("torch"):
        environment["KERAS_BACKEND"] = "torch"
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )


# Exported models start TensorFlow: `python -m tests.fuzz --reader "exported*"`.
SLOW = ("exported ",)


def test_a_short_run():
    """Other seeds each time would find more, and fail where nothing was changed."""
    names = [name for name in all_readers() if not name.startswith(SLOW)]
    done = _run("--mutants", "30", *(x for name in names for x in ("--reader", name)))
    assert done.returncode == 0, done.stdout + done.stderr


def test_mutants_that_were_read_badly_once():
    if not regressions.load_all():
        pytest.skip("none is kept")
    done = _run("--regressions")
    assert done.returncode == 0, done.stdout + done.stderr
