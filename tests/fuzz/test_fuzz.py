"""A short run of the mutants, and what the harness itself must do."""

import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import outcomes, readers_of_data, regressions, workers
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
    assert len(all_readers()) > len(forms | endings)


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


# Readers whose mutants are all refused clearly, or read right.
MENDED = ["varmisuse*"]


def test_a_short_run():
    """Other seeds each time would find more, and fail where nothing was changed."""
    names = [part for name in MENDED for part in ("--reader", name)]
    done = _run("--mutants", "60", *names)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mutants_that_were_read_badly_once():
    if not regressions.load_all():
        pytest.skip("none is kept")
    done = _run("--regressions")
    assert done.returncode == 0, done.stdout + done.stderr
