"""Findings on disk: by content and model, of bounded size, whatever is in the files."""

import dataclasses
import json
import os

import pytest

from keras_bandgnn.programs.linting.cache import _FIELDS, FindingCache, model_key
from keras_bandgnn.programs.linting.source_code import SourceCode
from keras_bandgnn.saving.preset_paths import home
from tests.programs.linting.samples import result

TEXT = "x = bad_a\ny = odd_b  # huge\n"


def files(folder):
    return sorted(p for p in folder.rglob("*") if p.is_file())


def test_entries_are_found_by_content_and_model(tmp_path):
    cache, found = FindingCache(tmp_path, "model"), result(TEXT)
    assert cache.get(found.code) is None
    cache.put(found)
    assert cache.get(found.code) == found
    other = cache.get(SourceCode("other.py", TEXT))
    assert other == result(TEXT, "other.py")
    assert cache.get(SourceCode("file.py", TEXT + "\n")) is None
    assert FindingCache(tmp_path, "another").get(found.code) is None
    cache.put(result("def f(:\n"))
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("confidence", float("nan")),
        ("confidence", float("inf")),
        ("confidence", 7.0),
        ("confidence", "0.9"),
        ("candidates", [["a", float("nan")]]),
        ("candidates", [["a", -1.0]]),
        ("candidates", [["a"]]),
        ("candidates", [["a", 10**400]]),
        ("line", 0),
        ("line", True),
        ("column", -5),
        ("end_column", -5),
        ("end_column", 99),
        ("used", None),
        ("function", ["f"]),
        ("cell", 3),
        ("cell", "wrong"),
    ],
)
def test_entries_with_wrong_values_count_as_missing(name, value, tmp_path):
    cache, entry = FindingCache(tmp_path, "model"), result(TEXT)
    cache.put(entry)
    (file,) = files(tmp_path)
    content = json.loads(file.read_bytes())
    content["findings"][0][_FIELDS.index(name)] = value
    file.write_text(json.dumps(content))
    assert cache.get(entry.code) is None


@pytest.mark.parametrize(
    "change",
    [b"", b"{", b"[]", b'{"findings": [[1]]}', None]
    + [b'{"findings": [], "skipped": [1]}', b'{"findings": [], "skipped": null}'],
)
def test_broken_entries_count_as_missing(change, tmp_path):
    cache, found = FindingCache(tmp_path, "model"), result(TEXT)
    cache.put(found)
    (file,) = files(tmp_path)
    if change is None:
        change = file.read_bytes().replace(b'"x = ', b"").replace(b'"bad_a"', b"7")
    file.write_bytes(change)
    assert cache.get(found.code) is None
    moved = dataclasses.replace(found.findings[0], line=99)
    cache.put(dataclasses.replace(found, findings=(moved,)))
    assert cache.get(found.code) is None
    cache.put(found)
    assert cache.get(found.code) == found


def test_the_least_recently_used_are_removed(tmp_path):
    cache = FindingCache(tmp_path, "model", max_bytes=1000)
    results = [result(f"x = bad_{k}\n") for k in range(20)]
    for age, each in enumerate(results):
        cache.put(each)
        known = {*files(tmp_path)}
        for file in known:
            if file.stat().st_mtime > 1e9:
                os.utime(file, (age, age))
    cache.trim()
    assert 0 < sum(file.stat().st_size for file in files(tmp_path)) <= 1000
    assert cache.get(results[-1].code) == results[-1]
    assert cache.get(results[0].code) is None


def test_other_files_in_the_folder_stay(tmp_path):
    others = [tmp_path / name for name in ("thesis.txt", "a/bc/notes.json", "a/b.json")]
    for other in others:
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_text("x" * 2000)
        os.utime(other, (1, 1))
    cache, found = FindingCache(tmp_path, "model", max_bytes=100), result(TEXT)
    cache.put(found)
    cache.trim()
    assert all(other.exists() for other in others)
    assert files(tmp_path) == sorted(others)


def test_a_folder_that_cannot_be_written_is_left_alone(tmp_path):
    (tmp_path / "file").write_text("")
    cache = FindingCache(tmp_path / "file" / "cache", "model")
    cache.put(result(TEXT))
    assert cache.get(result(TEXT).code) is None
    cache.trim()


def test_keys_of_models_differ(tmp_path):
    key = model_key(home() / "ggnn_varmisuse_python")
    assert key != model_key(home() / "ggnn_varmisuse") != model_key(tmp_path)
    assert key == model_key(home() / "ggnn_varmisuse_python")
