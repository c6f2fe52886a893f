"""Known findings are recognised after lines have moved."""

import json

import pytest

from keras_bandgnn.programs.linting.baseline import Baseline, fingerprints
from tests.programs.linting.samples import result

TEXT = "x = bad_a\ny = bad_b\ny = bad_b\n"
ENTRY = {name: "x" for name in ("path", "function", "used", "suggested", "code")}
ENTRY["count"] = 1


def test_moved_lines_are_known_and_new_ones_are_not(tmp_path):
    file, path = tmp_path / "known.json", str(tmp_path / "file.py")
    assert Baseline(file).write([result(TEXT, path)]) == 3
    moved = "\n\n    " + TEXT.replace("y = bad_b\n", "y =  bad_b\n", 1)
    assert Baseline(file).read().unknown(result(moved, path)) == ()
    more = result(TEXT + "y = bad_b\nz = bad_a\n", path)
    new = Baseline(file).read().unknown(more)
    assert [finding.line for finding in new] == [4, 5]
    other = result(TEXT, str(tmp_path / "other.py"))
    assert len(Baseline(file).read().unknown(other)) == 3


def test_fingerprints_are_distinct_and_stay(tmp_path):
    first = fingerprints(result(TEXT))
    assert len(set(first)) == 3
    assert fingerprints(result("# moved\n" + TEXT)) == first
    assert not set(fingerprints(result(TEXT, "other.py"))) & set(first)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"version": 2, "findings": []}', '{"version": 1}', "[" * 9999]
    + [json.dumps({"version": 1, "findings": [entry]}) for entry in (1, {}, [])]
    + [
        json.dumps({"version": 1, "findings": [{**ENTRY, **change}]})
        for change in (
            {"count": -1},
            {"count": True},
            {"count": "2"},
            {"count": 1.5},
            {"count": float("nan")},
            {"count": float("inf")},
            {"path": None},
            {"code": 7},
        )
    ],
)
def test_what_is_no_baseline(content, tmp_path):
    (tmp_path / "known.json").write_text(content)
    with pytest.raises(ValueError, match="Expected a baseline of version 1 in "):
        Baseline(tmp_path / "known.json").read()


@pytest.mark.parametrize("name", ["known.json", "n" * 300, ""])
def test_no_baseline(name, tmp_path):
    with pytest.raises(OSError, match="Expected a file .* Write it with --write-base"):
        Baseline(tmp_path / name).read()
