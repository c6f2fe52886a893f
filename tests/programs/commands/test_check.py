"""`bandgnn check`: exit codes, options, settings and files of every kind."""

import contextlib
import json
import os
import re
import subprocess
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from keras_bandgnn.cli import report
from keras_bandgnn.cli.main import main
from keras_bandgnn.programs.commands import check as command
from keras_bandgnn.programs.linting import checker, project_files
from tests.programs.linting.samples import Spelled


@pytest.fixture
def source(monkeypatch):
    """Replaces the model by one that goes by the spelling."""
    source = Spelled()
    monkeypatch.setattr(checker.Checker, "source", source)
    monkeypatch.setattr(checker, "_confidence_in", lambda _: source.default_confidence)
    return source


@pytest.fixture
def tree(tmp_path, monkeypatch):
    folder = tmp_path / "tree"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.py").write_text("x = bad_a\ny = odd_b\n")
    (folder / "sub" / "b.py").write_text("x = 1\nz = bad_c\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("KERAS_BANDGNN_DATA", str(tmp_path / "cache"))
    return folder


def check(capfd, *arguments):
    code = main(["check", *arguments])
    shown = capfd.readouterr()
    return code, shown.out, shown.err


def places(out):
    return [line.split(": ")[0] for line in out.splitlines()[:-1]]


def test_findings_and_exit_codes(source, tree, capfd):
    code, out, err = check(capfd, ".")
    assert (code, places(out), err) == (1, ["a.py:1:5", "sub/b.py:2:5"], "")
    held_back = "1 less probable held back (see --rank)"
    assert out.endswith(f"\n2 findings in 2 files, {held_back}\n")
    code, out, _ = check(capfd, "a.py", "--min-confidence", "0.5")
    assert places(out) == ["a.py:1:5", "a.py:2:5"]
    for number, expected in (("2", 1), ("3", 0), ("never", 0)):
        assert check(capfd, ".", "--fail-on", number)[0] == expected
    assert check(capfd, ".", "--exclude", "sub", "a.*")[:2] == (
        0,
        "0 findings in 0 files\n",
    )


def test_a_bound_that_hides_everything(source, tree, capfd, monkeypatch):
    monkeypatch.setattr(checker, "_confidence_in", lambda _: 0.002)
    _, _, err = check(capfd, ".", "--min-confidence", "1")
    assert re.search("is 1. Probabilities of .* are small", " ".join(err.split()))
    assert "its default is 0.002" in " ".join(err.split())
    for arguments in ((), ("--min-confidence", "0.02"), ("--rank", "1")):
        assert "min-confidence" not in check(capfd, ".", *arguments)[2]


def test_the_most_suspicious_places_are_ranked(source, tree, capfd):
    (tree / "c.py").write_text("x = odd_c\ny = odd_d  # bandgnn: ignore\n")
    code, out, _ = check(capfd, ".", "--rank", "3")
    assert (code, places(out)) == (0, ["a.py:1:5", "sub/b.py:2:5", "a.py:2:5"])
    assert out.endswith("\n3 of the most suspicious places in 3 files\n")
    # The best ones first, wherever they are, and with the bounds that are asked for.
    assert places(check(capfd, "c.py", "sub", "--rank", "1")[1]) == ["sub/b.py:2:5"]
    sure = check(capfd, ".", "--rank", "9", "--min-confidence", "0.9")[1]
    assert places(sure) == ["a.py:1:5", "sub/b.py:2:5"]
    assert check(capfd, ".", "--rank", "3", "--fail-on", "2")[0] == 1
    found = json.loads(check(capfd, ".", "--rank", "9", "--format", "json")[1])
    shares = [finding["confidence"] for finding in found["findings"]]
    assert shares == [0.999, 0.999, 0.8, 0.8] and found["held_back"] == 0
    check(capfd, "sub", "--baseline", "known.json", "--write-baseline")
    ranked = check(capfd, ".", "--baseline", "known.json", "--rank", "2")[1]
    assert places(ranked) == ["a.py:1:5", "a.py:2:5"]


def test_what_cannot_be_checked_is_an_error(source, tree, capfd):
    (tree / "broken.py").write_text("def f(:\n")
    (tree / "latin.py").write_bytes(b"x = '\xff'\n")
    (tree / "huge.py").write_text("# huge\n")
    (tree / "book.ipynb").write_text("{}")
    code, out, err = check(capfd, ".")
    assert code == 2 and len(places(out)) == 2
    for name in ("broken.py: SyntaxError", "latin.py: Syntax", "huge.py: too large"):
        assert f"left out: {name}" in err
    assert "left out: book.ipynb: ValueError: Expected a Jupyter notebook" in err
    os.unlink(tree / "broken.py"), os.unlink(tree / "latin.py")
    os.unlink(tree / "book.ipynb")
    assert check(capfd, ".", "--fail-on", "never")[0] == 0
    code, out, err = check(capfd, "nowhere")
    assert (code, out) == (2, "") and "nowhere" in err
    code, out, err = check(capfd, ".", "--model", "nowhere")
    assert (code, out) == (2, "") and "nowhere" in err


def test_an_unexpected_error_is_no_finding(source, tree, capfd, monkeypatch):
    def fails(*arguments):
        raise KeyError("unexpected")

    monkeypatch.setattr(checker.Checker, "check", fails)
    code, out, err = check(capfd, ".")
    assert (code, out) == (2, "") and "KeyError: 'unexpected'" in err


@pytest.mark.parametrize("name", ["text", "json", "sarif", "github"])
def test_formats_and_files(name, source, tree, tmp_path, capfd):
    file = tmp_path / "out"
    code, printed, _ = check(capfd, ".", "--format", name)
    assert code == 1 and "bad_a" in printed
    code, out, err = check(capfd, ".", "--format", name, "--output", str(file))
    assert (code, out) == (1, "") and "2 findings in 2 files" in err
    assert file.read_text() == printed
    if name in ("json", "sarif"):
        json.loads(printed)


def test_comments_silence_findings(source, tree, capfd):
    (tree / "a.py").write_text("x = bad_a  # bandgnn: ignore\ny = bad_b\n")
    (tree / "sub" / "b.py").write_text("# bandgnn: ignore-file\nx = bad_a\n")
    assert places(check(capfd, ".")[1]) == ["a.py:2:5"]


def test_many_parts_left_out_are_counted_by_reason(source, tree, capfd):
    cells = [{"cell_type": "code", "source": "%%bash\nls"}] * 30
    (tree / "book.ipynb").write_text(json.dumps({"cells": cells}))
    code, out, err = check(capfd, "book.ipynb")
    assert "left out: book.ipynb: cell 20: not Python\n" in err
    assert "left out: 10 more: 10 not Python\n" in err


def test_notebooks(source, tree, capfd):
    cells = [
        {"cell_type": "markdown", "source": "text"},
        {"cell_type": "code", "source": "%pip install x\nx = 1"},
        {"cell_type": "code", "source": "x = 2\ny = bad_y"},
        {"cell_type": "code", "source": "y = bad_y  # bandgnn: ignore"},
    ]
    (tree / "book.ipynb").write_text(json.dumps({"cells": cells}))
    code, out, _ = check(capfd, "book.ipynb", "--format", "json")
    (found,) = json.loads(out)["findings"]
    assert (found["cell"], found["line"], found["code"]) == (3, 2, "y = bad_y")


def test_baseline(source, tree, capfd):
    code, out, err = check(capfd, ".", "--baseline", "known.json", "--write-baseline")
    assert (code, out) == (0, "") and "2 known findings" in err
    (tree / "a.py").write_text("\n\nx = bad_a\ny = bad_new\n")
    for folder in (tree, tree / "sub"):
        os.chdir(folder)
        arguments = (str(tree), "--baseline", str(tree / "known.json"))
        code, out, _ = check(capfd, *arguments)
        assert code == 1 and len(places(out)) == 1 and "a.py:4:5" in out
    os.chdir(tree)
    code, _, err = check(capfd, ".", "--baseline", "nowhere.json")
    assert code == 2 and "nowhere.json: No such file or directory. Write it with" in err


def test_baselines_that_cannot_be_written(source, tree, capfd):
    (tree / "known.json").mkdir()
    for more, message in (
        ([], "Expected --baseline FILE"),
        (["--baseline", "k.json", "--diff", "HEAD"], "without --diff"),
        (["--baseline", "k.json", "--output", "k.txt"], "Received: --output"),
        (["--baseline", "k.json", "--format", "json"], "Received: --format"),
        (["--baseline", "nodir/k.json"], "in a folder that exists"),
        (["--baseline", "known.json"], "must be a file"),
    ):
        code, out, err = check(capfd, ".", "--write-baseline", *more)
        assert (code, out) == (2, "") and message in err
    (tree / "pyproject.toml").write_text('[tool.bandgnn]\nbaseline = "nodir/k.json"\n')
    code, out, err = check(capfd, ".", "--write-baseline")
    assert (code, out) == (2, "") and "in a folder that exists" in err
    assert not source.checked


def test_settings_of_the_project(source, tree, capfd):
    text = '[tool.bandgnn]\nmin-confidence = 0.5\nexclude = ["sub"]\nfail-on = 3\n'
    (tree / "pyproject.toml").write_text(text + 'baseline = "sub/known.json"\n')
    check(capfd, "a.py", "--min-confidence", "0.99", "--write-baseline")
    os.chdir(tree / "sub")
    code, out, _ = check(capfd, "..")
    assert (code, places(out)) == (0, ["../a.py:2:5"])
    assert check(capfd, "..", "--fail-on", "1", "--min-confidence", "0.8")[0] == 1
    (tree / "pyproject.toml").write_text("[tool.bandgnn]\nexcludes = 1\n")
    code, _, err = check(capfd, "..")
    assert code == 2 and "excludes" in err and "exclude, fail-on" in err


def test_excluded_files(source, tree, capfd):
    text = '[tool.bandgnn]\nexclude = ["sub/b.py", "*_pb2.py"]\n'
    (tree / "pyproject.toml").write_text(text)
    (tree / "sub" / "c_pb2.py").write_text("x = bad_a\n")
    for paths in (["."], ["a.py", "sub"]):
        assert places(check(capfd, *paths)[1]) == ["a.py:1:5"]
    # Named files are checked, unless all are named, as by a hook.
    named = ["a.py", "sub/b.py", "sub/c_pb2.py"]
    assert len(places(check(capfd, *named)[1])) == 3
    assert places(check(capfd, *named, "--force-exclude")[1]) == ["a.py:1:5"]
    arguments = ["--force-exclude", *named, "--exclude", "a.py"]
    assert check(capfd, *arguments)[:2] == (0, "0 findings in 0 files\n")
    os.chdir(tree / "sub")
    assert check(capfd, ".")[:2] == (0, "0 findings in 0 files\n")
    assert places(check(capfd, "..")[1]) == ["../a.py:1:5"]
    assert check(capfd, "..", "--exclude", "../a.py")[:2] == (
        0,
        "0 findings in 0 files\n",
    )


def test_folders_that_cannot_be_read(source, tree, capfd, monkeypatch):
    part = project_files._Part(["a.py"], [("sub", "Permission denied")])
    monkeypatch.setattr(project_files, "_in_folder", lambda folder: part)
    code, out, err = check(capfd, ".", "--format", "json", "--fail-on", "never")
    content = json.loads(out)
    assert code == 2 and len(content["findings"]) == 1
    assert content["errors"] == [{"path": "sub", "reason": "Permission denied"}]
    assert "left out: sub: Permission denied\n" in err
    # They are none of the files that progress counts.
    counts = []
    monkeypatch.setattr(
        report,
        "progress",
        lambda *_: contextlib.nullcontext(lambda *numbers: counts.append(numbers[:2])),
    )
    check(capfd, ".", "--no-cache")
    assert counts == [(0, 1), (1, 1)]


def git(*arguments):
    line = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    subprocess.run(line, check=True, capture_output=True)


def test_a_repository_that_git_refuses(source, tree, capfd, monkeypatch):
    git("init", "-q")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    code, out, err = check(capfd, ".")
    assert code == 1 and len(places(out)) == 2
    assert "files that git ignores are checked, too" in err and "ownership" in err


def test_changed_lines(source, tree, capfd):
    code, _, err = check(capfd, ".", "--diff", "HEAD")
    assert code == 2 and "to be in a git repository" in err
    git("init", "-q"), git("add", "."), git("commit", "-qm", "first")
    assert check(capfd, ".", "--diff", "HEAD")[:2] == (0, "0 findings in 0 files\n")
    (tree / "a.py").write_text("x = bad_a\ny = bad_b\n")
    (tree / "new.py").write_text("x = bad_a\n")
    git("mv", "sub/b.py", "sub/c.py")
    source.checked.clear()
    code, out, _ = check(capfd, ".", "--diff", "HEAD", "--no-cache")
    assert (code, places(out)) == (1, ["a.py:2:5", "new.py:1:5"])
    os.chdir(tree / "sub")
    assert places(check(capfd, "../a.py", "--diff", "HEAD")[1]) == ["../a.py:2:5"]
    for path in (".", "c.py", str(tree)):
        assert check(capfd, path, "--diff", "nothing")[0] == 2


def test_changed_lines_of_several_repositories(source, tree, capfd):
    git("init", "-q", "sub"), git("init", "-q"), git("add", "a.py")
    git("-C", "sub", "add", "."), git("-C", "sub", "commit", "-qm", "first")
    git("commit", "-qm", "first")
    (tree / "sub" / "b.py").write_text("x = bad_a\nz = bad_c\n")
    (tree / "a.py").write_text("x = bad_a\ny = bad_b\n")
    found = places(check(capfd, ".", "sub", "--diff", "HEAD")[1])
    assert found == ["a.py:2:5", "sub/b.py:1:5"]
    # Nested repositories are checked if they are named.
    assert places(check(capfd, ".", "--diff", "HEAD")[1]) == ["a.py:2:5"]


def test_cache(source, tree, tmp_path, capfd):
    first = check(capfd, ".")
    assert len(source.checked) == 2
    assert check(capfd, ".") == first and len(source.checked) == 2
    assert (tmp_path / "cache" / "check").is_dir()
    (tree / "a.py").write_text("x = bad_other\n")
    assert "bad_other" in check(capfd, ".")[1]
    assert source.checked[2:] == ["a.py"]
    check(capfd, ".", "--no-cache")
    assert len(source.checked) == 5
    check(capfd, ".", "--cache-dir", str(tmp_path / "other"))
    assert len(source.checked) == 7 and (tmp_path / "other").is_dir()
    # What cannot be checked is not remembered.
    (tree / "a.py").write_text("def f(:\n")
    assert [check(capfd, ".")[0] for _ in range(2)] == [2, 2]


WRONG = """
def copy(source, target):
    with open(source) as reader, open(target, "w") as writer:
        for line in reader:
            writer.write(source)
"""


def test_the_model_of_the_library(tree, capfd):
    (tree / "a.py").write_text(WRONG)
    (tree / "sub" / "b.py").write_text("def f(:\n")
    (tree / "c.py").write_text("\n" + WRONG + "# Ä\n")
    code, out, err = check(capfd, ".", "--format", "json")
    findings = json.loads(out)["findings"]
    assert code == 2 and "sub/b.py: SyntaxError" in err
    assert [(f["path"], f["line"], f["column"]) for f in findings] == [
        ("a.py", 5, 26),
        ("c.py", 6, 26),
    ]
    for found in findings:
        assert (found["used"], found["suggested"]) == ("source", "line")
        assert (found["function"], found["end_column"]) == ("copy", 32)
        names = [candidate["name"] for candidate in found["candidates"]]
        assert names[:2] == ["source", "line"]
        total = sum(c["probability"] for c in found["candidates"])
        assert total == pytest.approx(1, abs=1e-6)
    # What a slow run says of its progress differs.
    assert check(capfd, ".", "--format", "json")[:2] == (code, out)
    page = (Path(__file__).parents[3] / "docs" / "check.md").read_text()
    source = re.search(r"\n((?:    .*\n)+)\nit prints", page)[1]
    (tree / "src").mkdir()
    (tree / "src" / "copy.py").write_text(textwrap.dedent(source))
    (line,) = check(capfd, "src", "--no-cache")[1].splitlines()[:1]
    assert line in page


def test_the_rate_does_not_count_loading(monkeypatch, capsys):
    times = SimpleNamespace(
        lines=30_000, seconds={"loading": 50.0, "reading": 7.0, "model": 9.0}
    )
    assert command._times(times, 60.0) == (
        "checked 30,000 lines in 60 s, 3,000 a second once loaded: loading 50 s, "
        "reading 7 s, model 9 s"
    )
    clock = iter([0.0, 1.0, 50.0, 60.0, 70.0])
    monkeypatch.setattr(report.time, "monotonic", lambda: next(clock))
    with report.progress("check", "lines", every=0.0) as advance:
        advance(0, 20, 0)
        # Those that the cache knows.
        advance(10, 20, 1000)
        # The model was loaded 10 seconds before.
        advance(12, 20, 1500, 50.0)
        advance(14, 20, 2000, 50.0)
    assert capsys.readouterr().err.splitlines() == [
        "check: 0 of 20 (0 %)",
        "check: 10 of 20 (50 %), 20.0 lines/s, 50 s left",
        "check: 12 of 20 (60 %), 50.0 lines/s, 40 s left",
        "check: 14 of 20 (70 %), 50.0 lines/s, 30 s left",
    ]


def test_hook_of_pre_commit(source, tree, capfd):
    file = Path(__file__).parents[3] / ".pre-commit-hooks.yaml"
    (hook,) = yaml.safe_load(file.read_text())
    assert hook["id"] == "bandgnn-check"
    program, *arguments = hook["entry"].split()
    # It is called with the names of files.
    code, out, _ = check(capfd, *arguments[1:], "a.py", "sub/b.py")
    assert (program, arguments[0], code) == ("bandgnn", "check", 0)
    # Without this, pre-commit shows nothing of a hook that passes.
    assert len(places(out)) == 2 and hook["verbose"]
    blocking = [*arguments[1:], "--fail-on", "1", "a.py"]
    assert check(capfd, *blocking)[0] == 1
    (tree / "pyproject.toml").write_text('[tool.bandgnn]\nexclude = ["sub"]\n')
    code, out, _ = check(capfd, *arguments[1:], "a.py", "sub/b.py")
    assert places(out) == ["a.py:1:5"]


def test_other_models_are_refused(tree, capfd):
    code, _, err = check(capfd, ".", "--model", "schnet_qm9_u0")
    assert code == 2 and "Expected a model that finds wrong variables" in err


def test_names_that_are_too_long(source, tree, capfd):
    name = "n" * 300
    for arguments in (["--output", name], ["--format", "html"]):
        with pytest.raises(SystemExit, match="2"):
            check(capfd, ".", *arguments)
        err = capfd.readouterr().err
        assert "at most 255 bytes" in err or "sarif" in err
    for arguments in (
        [name],
        [f"{name}/a.py"],
        [".", "--model", name],
        [".", "--baseline", name],
        [".", "--baseline", name, "--write-baseline"],
    ):
        code, out, err = check(capfd, *arguments)
        assert (code, out) == (2, "")
        assert "Expected" in err or "at most 255 bytes" in err
