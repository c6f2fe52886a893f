"""Files of figures, and what compares two of them."""

import argparse
import json
import re

import pytest

from examples.benchmarks import figures
from examples.benchmarks.__main__ import main


def written(path, ratios, **changes):
    """Write a file of figures with rows of (name, ratio)."""
    content = {
        "format": figures.FORMAT,
        "subject": "messages",
        "backend": "torch",
        "command": "python -m examples.benchmarks messages zinc",
        "machine": {"processor": "A", "cores": 2},
        "versions": {"torch": "2.13.0"},
        "rows": [
            {"name": name, "ours": 1.0, "peer": ratio, "ratio": ratio, "unit": "ms"}
            for name, ratio in ratios
        ],
        "figures": {},
        **changes,
    }
    path.write_text(json.dumps(content))
    return str(path)


@pytest.fixture
def old(tmp_path):
    return written(tmp_path / "old.json", [("gcn", 2.0), ("gat", 1.0)])


def compare(capsys, *line):
    code = main(["compare", *line])
    out = capsys.readouterr()
    # Tables wrap.
    return code, " ".join((out.out + out.err).split())


def test_small_losses_are_tolerated(old, tmp_path, capsys):
    new = written(tmp_path / "new.json", [("gcn", 1.81), ("gat", 3.0)])
    code, out = compare(capsys, old, new)
    assert code == 0 and "no row lost more than 10 %" in out
    assert "-9.5 %" in out and "+200.0 %" in out and "LOST" not in out


def test_large_losses_are_errors(old, tmp_path, capsys):
    new = written(tmp_path / "new.json", [("gcn", 1.79), ("gat", 1.0)])
    code, out = compare(capsys, old, new)
    assert code == 1 and "1 of 2 rows lost more than 10 %: gcn" in out
    assert compare(capsys, old, new, "--tolerance", "0.2")[0] == 0
    assert compare(capsys, new, old, "--tolerance", "0")[0] == 0


def test_rows_of_one_file_are_named(old, tmp_path, capsys):
    new = written(tmp_path / "new.json", [("gcn", 2.0), ("pna", 1.0), ("gps", 1.0)])
    code, out = compare(capsys, old, new)
    assert code == 0
    assert "new.json: gat" in out and "old.json: pna, gps" in out


def test_rows_without_a_peer_are_not_compared(tmp_path, capsys):
    rows = [("gcn", 2.0), ("gat", None)]
    old, new = (written(tmp_path / name, rows) for name in ("a.json", "b.json"))
    code, out = compare(capsys, old, new)
    assert code == 0 and "gat - - - not compared" in out


def test_other_machines_and_versions_are_named(old, tmp_path, capsys):
    machine = {"processor": "B", "cores": 2}
    new = written(tmp_path / "new.json", [("gcn", 2.0)], machine=machine, versions={})
    _, out = compare(capsys, old, new)
    assert "machine, processor: A before, B now" in out
    assert "versions, torch: 2.13.0 before, None now" in out and "cores" not in out


@pytest.mark.parametrize(
    ("ratios", "changes", "message"),
    [
        ([("gcn", 1.0)], {"subject": "train"}, "one subject. Received: messages in"),
        ([("gcn", 1.0)], {"backend": "jax"}, "one backend. Received: torch in"),
        ([("pna", 1.0)], {}, "rows of the same names. Received: gcn, gat in"),
        ([("gcn", 1.0)], {"format": 0}, "figures of format 1 in .* Received: 0"),
        ([("gcn", 1.0)] * 2, {}, "a name of its own. Received: gcn"),
        ([], {"rows": [{"name": "gcn"}]}, "a list of rows with name, ours, peer"),
        ([("gcn", -1.0)], {}, "a list of rows with"),
    ],
)
def test_other_files_are_refused(ratios, changes, message, old, tmp_path, capsys):
    new = written(tmp_path / "new.json", ratios, **changes)
    code, out = compare(capsys, old, new)
    assert code == 1 and re.search(message, out)


@pytest.mark.parametrize("text", ["", "[1, 2]", "{}", "\udc80"])
def test_what_is_no_file_of_figures_is_refused(text, old, tmp_path, capsys):
    path = tmp_path / "new.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    code, out = compare(capsys, old, str(path))
    assert code == 1 and "error: Expected" in out and "new.json" in out
    assert compare(capsys, old, str(tmp_path / "none.json"))[0] == 1


def test_ratios_are_how_many_times_better_ours_is():
    assert figures.row("a", 2.0, 3.0, "ms")["ratio"] == 1.5
    assert figures.row("a", 3.0, 2.0, "graphs/s", rate=True)["ratio"] == 1.5
    for peer in (None, float("nan"), 0.0):
        assert figures.row("a", 2.0, peer, "ms")["ratio"] is None


def test_a_file_says_where_it_was_measured(tmp_path):
    path = tmp_path / "figures.json"
    line = "python -m examples.benchmarks train DATA"
    options = argparse.Namespace(json=path, subject="train", line=line)
    rows = [figures.row("auto", 2.0, float("nan"), "graphs/s", rate=True)]
    figures.write(options, rows, {"peak": float("inf")})
    found = figures.read(path)
    assert found["rows"][0]["peer"] is None and found["figures"] == {"peak": None}
    assert found["subject"] == "train" and found["command"] == line
    assert {"python", "keras", "keras_bandgnn", "numpy"} <= set(found["versions"])
    assert {"processor", "cores", "memory_gib", "accelerator"} <= set(found["machine"])
    assert found["date"][4] == "-" and found["backend"]
