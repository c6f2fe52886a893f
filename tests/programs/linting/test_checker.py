"""A preset's task is known without loading it; the loader judges all others."""

import json

import pytest

from keras_bandgnn.programs.linting import checker
from keras_bandgnn.programs.linting.source_code import SourceCode
from keras_bandgnn.programs.linting.usage_findings import UsageFindings
from keras_bandgnn.saving.preset_paths import TASK, home
from tests.programs.linting.samples import Spelled


@pytest.mark.parametrize(
    ("name", "confidence"),
    [("NodeSelector", UsageFindings.default_confidence), ("BugLocalizer", 0.7)],
)
def test_the_default_of_a_task_is_known_without_loading_it(name, confidence, tmp_path):
    entry = {
        "registered_name": f"keras_bandgnn>{name}",
        "config": {"min_confidence": 0.7},
    }
    (tmp_path / TASK).write_text(json.dumps(entry), "utf-8")
    assert checker._confidence_in(tmp_path) == confidence


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"7", b"\xff", b"{}", b"[" * 100_000),
        *(b'{"registered_name": 7}', b'{"registered_name": ["NodeSelector"]}'),
        b'{"registered_name": "other>NodeSelector"}',
        b'{"registered_name": "keras_bandgnn>BugLocalizer", "config": {}}',
    ],
)
def test_a_task_that_is_not_known_has_no_default_yet(content, tmp_path):
    (tmp_path / TASK).write_bytes(content)
    assert checker._confidence_in(tmp_path) is None


def test_a_folder_without_a_task_has_no_default(tmp_path):
    assert checker._confidence_in(tmp_path) is None


def test_the_least_confidence_of_a_built_in_preset_is_known_without_loading_it():
    found = checker.Checker(home() / checker.DEFAULT_MODEL)
    entry = json.loads((home() / checker.DEFAULT_MODEL / TASK).read_text())
    assert found.min_confidence == entry["config"]["min_confidence"]
    assert found._source is None


def test_a_run_that_was_interrupted_continues(tmp_path, monkeypatch):
    source = Spelled()
    monkeypatch.setattr(checker.Checker, "source", source)
    model = home() / checker.DEFAULT_MODEL
    codes = [SourceCode(f"{k}.py", f"x = bad_{k}\n") for k in range(6)]
    first = checker.Checker(model, cache=tmp_path)
    results = first.check(iter(codes))
    found = [next(results) for _ in range(4)]
    results.close()
    assert source.checked == ["0.py", "1.py", "2.py", "3.py"] and first.lines == 8
    second = checker.Checker(model, cache=tmp_path)
    taken = []
    again = second.check(taken.append(code) or code for code in codes)
    # What is known is shown before more is read.
    assert next(again) == found[0] and len(taken) == 1
    assert [next(again), next(again), next(again)] == found[1:]
    assert [result.code.path for result in again] == ["4.py", "5.py"]
    assert source.checked[4:] == ["4.py", "5.py"] and second.lines == 4
