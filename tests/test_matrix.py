"""The script that tests with several versions, and what the page shows of it."""

import json
from pathlib import Path

import matrix
import pytest


def test_the_page_shows_the_record():
    page = matrix.PAGE.read_text()
    record = json.loads(matrix.RECORD.read_text())
    begin, end = (page.index(mark) for mark in matrix.MARKS)
    shown = page[begin + len(matrix.MARKS[0]) : end].strip()
    assert shown == matrix.table(record), "run tests/matrix.py"
    assert set(record) <= {environment.name for environment in matrix.ENVIRONMENTS}


def test_files_of_the_core_exist():
    for name in matrix.CORE:
        assert (matrix.ROOT / name).exists(), name


def test_floors_are_those_of_the_project():
    environment = matrix.Environment("floors-torch", "3.11", "floors", ("torch",))
    lines = matrix.requirements(environment)
    assert "keras==3.15" in lines and "torch==2.5" in lines
    assert not any("jax" in line or "keras-bandgnn" in line for line in lines)
    newest = matrix.requirements(matrix.Environment("newest", "3.13"))
    assert "jax[cpu]>=0.6" in newest
    assert sum("tensorflow" in line for line in newest) == 1


def test_outcomes_are_read_from_the_lines_of_pytest():
    lines = [
        "....F.s [100%]\n",
        "FAILED tests/test_graph.py::test_a[1] - assert 0\n",
        "ERROR tests/test_b.py\n",
        "= 1 failed, 21 passed, 2 skipped, 1 deselected, 1 error in 87.9s (0:01:27) =",
    ]
    assert matrix.outcome(lines) == {
        "passed": 21,
        "failed": 2,
        "skipped": 2,
        "failures": ["tests/test_b.py", "tests/test_graph.py::test_a[1]"],
    }
    assert matrix.outcome(["no tests ran in 0.01s"])["passed"] == 0


def test_the_table_names_failures():
    counts = {"passed": 3, "failed": 1, "skipped": 0, "minutes": 0.25}
    entry = {
        "date": "2026-11-30",
        "versions": {"python": "3.13.0", "keras": "3.15.1"},
        "set": "core",
        "tests": {"jax": {**counts, "failures": ["tests/test_graph.py::test_a"]}},
    }
    text = matrix.table({"newest-3.13": entry})
    row = "| newest-3.13 | 3.13.0 | 3.15.1 |  |  |  |  | jax | core | 3 | 1 | 0 |"
    assert row in text
    assert text.endswith("- newest-3.13, jax: `tests/test_graph.py::test_a`")


def test_what_is_recorded_is_not_run_again(monkeypatch, tmp_path):
    environment = matrix.ENVIRONMENTS[0]
    entry = {"set": "core", "tests": {"torch": {}}}
    record = {environment.name: entry}
    assert matrix.done_before(record, environment, long=False) == {"torch": {}}
    assert matrix.done_before(record, environment, long=True) == {}
    assert matrix.done_before({}, environment, long=False) == {}

    outcome, saved = {"passed": 1, "failed": 0}, []
    monkeypatch.setattr(matrix, "create", lambda *arguments: "python")
    monkeypatch.setattr(matrix, "installed", lambda python: {})
    monkeypatch.setattr(matrix, "tested", lambda *arguments: outcome)
    matrix.run(
        environment,
        tmp_path,
        True,
        entry["tests"],
        lambda entry: saved.append(list(entry["tests"])),
    )
    assert saved == [["torch", "jax"], ["torch", "jax", "tensorflow"]]


def test_environments_take_turns(monkeypatch):
    monkeypatch.setattr(matrix, "interpreter", lambda version: version != "3.14")
    turns = [matrix.turn(number) for number in range(40)]
    assert all(len(environment.backends) == 1 for environment in turns)
    names = {environment.name for environment in turns}
    assert names == {e.name for e in matrix.ENVIRONMENTS if e.python != "3.14"}


def test_records_are_written_to_both_files(monkeypatch, tmp_path):
    page, record = tmp_path / "support.md", tmp_path / "matrix.json"
    page.write_text("before\n\n{}\nold\n{}\n\nbehind\n".format(*matrix.MARKS))
    monkeypatch.setattr(matrix, "PAGE", page)
    monkeypatch.setattr(matrix, "RECORD", record)
    matrix.write({})
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("behind\n")
    assert "old" not in text and "| environment |" in text
    assert json.loads(record.read_text()) == {}


@pytest.mark.parametrize("version", ["2.7", "9.9"])
def test_interpreters_that_are_absent(version, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/nonexistent"))
    monkeypatch.setattr(matrix.shutil, "which", lambda name: None)
    assert matrix.interpreter(version) is None
