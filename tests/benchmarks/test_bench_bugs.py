import gzip
import json
import os
import re
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from examples.benchmarks.__main__ import main
from examples.benchmarks.bug_fixes import read_fixes
from examples.benchmarks.bug_leaks import small_task
from examples.benchmarks.bug_planted import (
    Alarms,
    Judgement,
    ranks,
    threshold_at,
    threshold_of,
    wilson,
)
from examples.benchmarks.bug_texts import module_text, modules, plant_bugs
from keras_bandgnn.cli import report
from keras_bandgnn.programs.corpus_files import write_lines
from keras_bandgnn.programs.functions import read_module

SPLITS = {"train": ("textwrap", "argparse"), "test": ("shlex", "bisect", "heapq")}
BEFORE = """
LIMIT = 3


class Box:
    def copy(self, width, height):
        area = width * width
        return Box(width, height), area


def other(first, second):
    return first - second
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A corpus of modules of this Python."""
    folder, packages = tmp_path_factory.mktemp("corpus"), []
    for split, names in SPLITS.items():
        (folder / split).mkdir()
        for name in names:
            path = Path(sysconfig.get_path("stdlib")) / f"{name}.py"
            module = read_module(path.name, path.read_text())
            head = {"package": name, "version": "1.0", "licence": "PSF"}
            write_lines(folder / split / f"{name}.jsonl.gz", [head, module])
            entry = {"name": name, "version": "1.0", "licence": "PSF", "split": split}
            entry |= {"kept": len(module["functions"]), "kept_lines": module["lines"]}
            packages.append({**entry, "file": f"{split}/{name}.jsonl.gz"})
    (folder / "corpus.json").write_text(json.dumps({"packages": packages}))
    return folder


@pytest.fixture
def fixes(tmp_path):
    """A fix in the form of the mined ones."""
    case = {
        "id": 3,
        "repo": "a/box-one",
        "path": "a.py",
        "line": 7,
        "col": 23,
        "used": "width",
        "correct": "height",
    }
    for name, value in (
        ("cases", case),
        ("files_before", {"id": 3, "path": "a.py", "source": BEFORE}),
    ):
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt") as stream:
            stream.write(json.dumps(value) + "\n")
    return tmp_path


@pytest.fixture
def great(tmp_path):
    """Two examples of GREAT, one with a bug."""
    tokens = ["#NEWLINE#", "def area(", "w", ",", "h", ")", ":", "#NEWLINE#"]
    tokens += ["#INDENT#", "return", "w", "*", "w", "#NEWLINE#", "#UNINDENT#"]
    wrong = {"source_tokens": tokens, "has_bug": True, "error_location": 12}
    clean = {"source_tokens": [*tokens[:12], "h", *tokens[13:]], "has_bug": False}
    lines = [
        {**wrong, "repair_targets": [4]},
        {**clean, "error_location": 0, "repair_targets": []},
    ]
    path = tmp_path / "great.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_all_parts_in_small(corpus, fixes, great, tmp_path, capsys, monkeypatch):
    progress = report.progress
    monkeypatch.setattr(report, "progress", lambda title: progress(title, every=0.0))
    task = small_task(8, 1)
    task.save_to_preset(tmp_path / "model")
    figures = tmp_path / "figures.json"
    line = ["bugs", "--model", str(tmp_path / "model"), "--corpus", str(corpus)]
    line += ["--fixes", str(fixes), "--great", str(great), "--json", str(figures)]
    line += ["--token-functions", "20", "--label-functions", "20"]
    assert main([*line, "--label-epochs", "1"]) == 0
    output = capsys.readouterr()
    found = json.loads(figures.read_text())
    (planted,) = found["planted"].values()
    assert planted["bugs"] > 5 and planted["packages"] == list(SPLITS["test"])
    assert set(planted["at_recall"]) == {"0.1", "0.2", "0.3", "0.4"}
    shares = [planted["first"]["file"][k]["share"] for k in ("1", "5", "10")]
    assert shares == sorted(shares)
    (real,) = found["fixes"].values()
    assert real["offered"] == real["fixes"] == 1
    assert real["at_alarms"]["5.0"]["before"]["count"] in (0, 1)
    assert found["great"]["bugs"] == found["great"]["correct"] == 1
    assert set(found["linters"]) >= {"ruff, rules F", "ruff, its default"}
    assert found["tokens"]["counts of tokens"]["functions"] > 5
    small = found["shuffled"]["labels shuffled"]
    deviation = np.sqrt(small["chance"] / small["functions"])
    assert abs(small["right"] - small["chance"]) < 4 * deviation
    assert set(found["seconds"]) == {
        *("planted", "fixes", "great", "tokens", "shuffled", "renamed")
    }
    assert found["versions"]["keras"] and "GREAT, 10 layers" in output.out
    assert re.search("with bugs: 3 of 3", output.err)
    columns = [row.count("|") for row in output.out.splitlines() if row[:1] == "|"]
    assert len(columns) > 20 and min(columns) > 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([], "Expected --model with --corpus, --fixes or --great"),
        (["--parts", "great"], "Expected --great and --model for the part great"),
        (["--parts", "tokens"], "Expected --corpus for the part tokens"),
        (["--model", "a.keras", "--great", "b"], "a.keras, which does not exist"),
    ],
)
def test_what_is_missing_is_said(line, message, capsys):
    assert main(["bugs", *line]) == 1
    assert message in capsys.readouterr().err


def test_fixes_are_read_and_must_fit(fixes):
    (fix,) = read_fixes(fixes)
    before, after, line = fix.alone
    assert before.split("\n")[line - 1] == "        area = width * width"
    assert after.split("\n")[line - 1] == "        area = width * height"
    # Others have no bodies.
    assert "def other(first, second): ..." in before and "- second" not in before
    assert fix.lines == (6, 9) and fix.column == 24 and not fix.seen
    assert read_fixes(fixes, None, ["Box_One"])[0].seen
    with gzip.open(fixes / "files_before.jsonl.gz", "wt") as stream:
        stream.write(json.dumps({"id": 3, "source": "\n" * 9}) + "\n")
    with pytest.raises(ValueError, match="`width` at line 7 .* case 3"):
        read_fixes(fixes)


def test_functions_stand_for_files_that_are_lacking(fixes):
    (whole,) = read_fixes(fixes)
    with gzip.open(fixes / "cases.jsonl.gz", "rt") as stream:
        case = json.loads(stream.read())
    first, end = whole.lines
    lines = whole.before.split("\n")[first - 1 : end - 1]
    case |= {"before": "\n".join(lines), "function_start_line": first}
    with gzip.open(fixes / "cases.jsonl.gz", "wt") as stream:
        stream.write(json.dumps(case) + "\n")
    os.unlink(fixes / "files_before.jsonl.gz")
    (fix,) = read_fixes(fixes)
    assert (fix.used, fix.correct, fix.column) == (whole.used, whole.correct, 24)
    before, after, line = fix.alone
    assert before.split("\n")[line - 1] == "        area = width * width"
    assert after.split("\n")[line - 1] == "        area = width * height"


def test_modules_have_bugs_where_they_say(corpus):
    for module in modules(corpus, None, None, 0):
        plant_bugs(module, 0)
        old, new = module.text.split("\n"), module.planted.split("\n")
        changed = [i for i, row in enumerate(old, 1) if row != new[i - 1]]
        assert changed == sorted(bug.line for bug in module.bugs if bug)
        for bug in filter(None, module.bugs):
            begin, end = bug.column - 1, bug.column - 1 + len(bug.used)
            row = new[bug.line - 1]
            assert row[begin:end] == bug.used != bug.repair
            assert row[:begin] + bug.repair + row[end:] == old[bug.line - 1]
    assert len(list(modules(corpus, None, 1, 0))) == 1


def test_texts_of_methods_at_any_depth():
    functions = [("A.B.f", "   def f(self): pass"), ("g", "  def g(): pass")]
    text, starts = module_text(functions, {"A.h": ["self", "x", "*rest"], "A.B.f": []})
    assert [text.split("\n")[start - 1] for start in starts] == [
        source for _, source in functions
    ]
    names = [item["name"] for item in read_module("", text)["functions"]]
    assert sorted(names) == ["A.B.f", "A.h", "g"]


def test_ranks_count_the_findings_of_others_as_they_are():
    # Functions 0 and 1 are of one file, 2 of another; function 0 has a bug.
    clean = Alarms(np.array([0.9, 0.5, 0.7]), np.array([0, 1, 2]))
    changed = Alarms(np.array([0.95, 0.4, 0.99]), np.array([0, 0, 1]))
    score = np.array([0.4, np.nan, -1.0])
    judgement = Judgement(clean, changed, score, score)
    assert ranks(judgement, np.array([0, 1, 2]))[0] == 2
    assert ranks(judgement, np.array([0, 0, 1]))[0] == 3
    package = ranks(judgement, np.zeros(3, int))
    assert package[0] == 4 and np.isnan(package[1]) and package[2] == np.inf
    lines = np.array([500, 400, 100])
    assert np.isclose(threshold_at(judgement, lines, 1.0), 0.7)
    assert (clean.confidence >= threshold_at(judgement, lines, 1.0)).sum() == 1
    assert threshold_at(judgement, lines, 3.0) == 0.0


def test_thresholds_and_intervals():
    scores = np.array([0.9, -1.0, 0.2, 0.8, -1.0])
    assert threshold_of(scores, 0.2, np.ones(5)) == 0.9
    assert threshold_of(scores, 0.4, np.ones(5)) == 0.8
    assert np.isnan(threshold_of(scores, 0.8, np.ones(5)))
    assert threshold_of(scores, 0.4, np.array([2, 1, 1, 1, 0])) == 0.9
    for bound in wilson(10, 100):
        assert np.isclose((0.1 - bound) ** 2, 1.96**2 * bound * (1 - bound) / 100)
    assert np.isnan(wilson(0, 0)[0])
