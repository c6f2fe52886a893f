"""A preset's task is known without loading it; the loader judges all others."""

import pytest

from keras_bandgnn.linting import checker
from keras_bandgnn.linting.function_findings import FunctionFindings
from keras_bandgnn.linting.usage_findings import UsageFindings
from keras_bandgnn.saving.preset_paths import TASK, home


@pytest.mark.parametrize(
    ("name", "source"),
    [("NodeSelector", UsageFindings), ("BugLocalizer", FunctionFindings)],
)
def test_the_source_of_a_task_is_known_without_loading_it(name, source, tmp_path):
    text = f'{{"registered_name": "keras_bandgnn>{name}"}}'
    (tmp_path / TASK).write_text(text, "utf-8")
    assert checker._source_in(tmp_path) is source


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"7", b"\xff", b"{}", b"[" * 100_000),
        *(b'{"registered_name": 7}', b'{"registered_name": ["NodeSelector"]}'),
        b'{"registered_name": "other>NodeSelector"}',
    ],
)
def test_a_task_that_is_not_known_has_no_source_yet(content, tmp_path):
    (tmp_path / TASK).write_bytes(content)
    assert checker._source_in(tmp_path) is None


def test_a_folder_without_a_task_has_no_source(tmp_path):
    assert checker._source_in(tmp_path) is None


def test_the_least_confidence_of_a_built_in_preset_is_known_without_loading_it():
    found = checker.Checker(home() / checker.DEFAULT_MODEL)
    assert found.min_confidence == UsageFindings.default_confidence
    assert found._source is None
