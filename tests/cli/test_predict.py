"""`bandgnn predict` over source code, and files that nobody would have expected."""

import contextlib
import json
import os
import re

import numpy as np
import pytest

from keras_bandgnn.cli.main import main

FUNCTION = """
def f{k}(alpha, beta):
    total = alpha + beta
    for item in range(total):
        total = total * item
    return total
"""
ODD = {
    "cookie.py": b"# coding: rot13\nx = 1\n",
    "unknown.py": b"# coding: no-such-encoding\nx = 1\n",
    "null.py": b"x = 1\x00\n",
    "latin.py": b"name = '\xff\xfe'\n",
    "broken.py": b"def f(:\n",
    "python2.py": b"print 'hello'\n",
    "deep.py": b"x = " + b"(" * 5000 + b")" * 5000 + b"\n",
    "deeper.py": b"x = " + b"-" * 50_000 + b"1\n",
    "attributes.py": b"x = a" + b".b" * 20_000 + b"\n",
    "huge.py": b"x = '" + b"y" * 1_200_000 + b"'\n",
}
# These hold nothing to look at, which is no failure.
FINE = {
    "empty.py": b"",
    "mark.py": b"\xef\xbb\xbf",
    "comment.py": b"# nothing\r\r\r",
    "long.py": b"x = '" + b"y" * 500_000 + b"'\n",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """An untrained model that picks variables, as a folder."""
    from keras_bandgnn import models, preprocessing

    layers = [
        preprocessing.ProgramEncoder(num_subtoken_buckets=64),
        preprocessing.ReachabilityFilter(2),
        preprocessing.RCMKCompile(128),
    ]
    backbone = models.GGNNBackbone(
        {"type": 512, "subtoken": 64}, hidden_dim=8, num_steps=2, num_edge_types=22
    )
    task = models.NodeSelector(
        backbone, preprocessing.GraphPreprocessor(layers), readout="slot"
    )
    folder = tmp_path_factory.mktemp("model") / "model"
    task.save_to_preset(folder)
    return folder


@pytest.fixture
def tree(tmp_path):
    """A folder with two good files among odd ones."""
    folder = tmp_path / "tree"
    (folder / "inner").mkdir(parents=True)
    for name, content in {**ODD, **FINE}.items():
        (folder / name).write_bytes(content)
    text = "".join(FUNCTION.format(k=k) for k in range(4))
    (folder / "good.py").write_text(text)
    (folder / "inner" / "good.py").write_text("# ä\n" + text)
    (folder / "dangling.py").symlink_to(folder / "nowhere.py")
    (folder / "loop.py").symlink_to(folder / "loop.py")
    (folder / "around").symlink_to(folder)
    (folder / "folder.py").mkdir()
    os.mkfifo(folder / "pipe.py")
    return folder


def _lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("command", ["compile", "evaluate", "predict"])
def test_odd_files_never_end_a_run(command, model, tree, tmp_path, capsys):
    given = {
        "compile": ["compile", str(tree), "--out", str(tmp_path / "out")],
        "evaluate": ["evaluate", str(model), str(tree)],
        "predict": ["predict", str(model), str(tree)],
    }[command]
    code = main([*given, "--processes", "1"])
    shown = capsys.readouterr()
    # What could not be read is an error of `predict`, as of grep.
    assert code == (2 if command == "predict" else 0), shown
    odd = [*ODD, "dangling.py", "loop.py", "pipe.py"]
    for name in odd:
        assert re.search(rf"left out: \S*\b{name}: \w+", shown.out), (name, shown)
    for name in (*FINE, "good.py"):
        assert f"{name}: " not in shown.out
    if command == "predict":
        assert f"left out: {len(odd)} of {len(odd) + len(FINE) + 2} files" in shown.out
        assert "48 usages in 6 files" in shown.out


def test_all_usages_are_looked_at_or_counted(model, tree, capsys):
    good = str(tree / "good.py")
    main(["predict", str(model), good])
    everything = capsys.readouterr().out
    assert "24 usages in 1 files" in everything and "left out" not in everything
    main(["predict", str(model), good, "--max-instances", "5"])
    limited = capsys.readouterr().out
    assert "5 usages in 1 files" in limited
    assert re.search(r"left out: \d+ usages beyond --max-instances 5", limited)


@pytest.mark.release
def test_json_lines_are_whole_and_count_from_one(model, tree, tmp_path, capsysbinary):
    source = "def f(ä, b):\n    return ä + ä + b\n"
    (tmp_path / "umlaut.py").write_text(source)
    paths = [str(tmp_path / "umlaut.py"), str(tree / "good.py"), str(tree / "inner")]
    code = main(["predict", str(model), *paths, "--top", "1", "--json", "-"])
    shown = capsysbinary.readouterr()
    found = _lines(shown.out.decode())
    assert code == 1 and len(found) > 1 and not os.path.exists("-")
    for item in found:
        with open(item["filename"], encoding="utf-8") as file:
            line = file.read().split("\n")[item["line"] - 1]
        used = item["used"]
        assert line[item["column"] - 1 :][: len(used)] == used
        assert item["share_used"] < item["share_suggested"]
    file = tmp_path / "found.jsonl"
    main(["predict", str(model), *paths, "--top", "1", "--json", str(file)])
    assert file.read_bytes() == shown.out
    assert b"1 files" not in capsysbinary.readouterr().err


@pytest.mark.release
def test_names_of_files_are_one_line_and_command_no_terminal(model, tmp_path, capsys):
    folder = tmp_path / "odd"
    folder.mkdir()
    names = ["line\nbreak", "escape\x1b[31m", "bell\a", "[bold]", "carriage\rreturn"]
    for name in names:
        (folder / f"{name}.py").write_text(FUNCTION.format(k=0))
        (folder / f"{name} broken.py").write_text("def f(:\n")
    code = main(["predict", str(model), str(folder), "--processes", "1", "--top", "99"])
    out = capsys.readouterr().out
    assert code == 2 and out.count("left out:") == len(names) + 1
    assert not set(out) & set("\x1b\a\r")
    found = "".join(out.split())  # long names are folded
    for name in names:
        shown = name.encode("unicode_escape").decode()
        assert f"{shown} broken.py" in out and f"{shown}.py" in found
    assert main(["compile", str(folder / "no\x1b\nwhere"), "--out", "o"]) == 1
    assert r"no\x1b" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["compile", "predict"])
def test_nothing_to_look_at_is_one_line(command, model, tree, tmp_path, capsys):
    empty = str(tree / "empty.py")
    given = {
        "compile": ["compile", empty, "--out", str(tmp_path / "out")],
        "predict": ["predict", str(model), empty],
    }[command]
    assert main([*given, "--processes", "1"]) > 0
    shown = capsys.readouterr()
    assert not shown.out and len(shown.err.strip().splitlines()) == 1, shown


@pytest.mark.parametrize(
    ("names", "options", "code"),
    [
        (["good.py"], [], 1),
        (["good.py"], ["--threshold", "1"], 0),
        (["empty.py"], [], 2),
        (["broken.py", "good.py"], [], 2),
        (["nowhere.py"], [], 2),
    ],
)
def test_exit_codes_are_those_of_linters(names, options, code, model, tree):
    paths = [str(tree / name) for name in names]
    assert main(["predict", str(model), *paths, *options]) == code


def test_a_report_that_cannot_be_written_is_a_wrong_command_line(model, tree):
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(model), str(tree / "good.py"), "--json", "no/such/file"])
    assert stop.value.code == 2


def test_a_compile_that_finds_nothing_fails(tmp_path, capsys):
    (tmp_path / "a.py").write_text("x = 1\n")
    out = tmp_path / "out"
    assert main(["compile", str(tmp_path / "a.py"), "--out", str(out)]) == 1
    assert "at least one variable usage" in capsys.readouterr().err
    assert not out.exists()


def test_a_long_file_in_parts_gives_what_it_gives_whole(tmp_path, monkeypatch):
    from keras_bandgnn.programs import usage_pieces

    file = tmp_path / "long.py"
    file.write_text("".join(FUNCTION.format(k=k) for k in range(30)))
    found = {}
    for size in (200, 1 << 20):
        monkeypatch.setattr(usage_pieces, "_JOB_BYTES", size)
        reading = {"steps": 2}
        jobs = usage_pieces.usage_jobs("python", str(file), "long.py", reading, {})
        pieces = [p for job in jobs for p in usage_pieces.read_usages(*job).pieces]
        found[size] = [graph for piece in pieces for graph in piece]
        assert (len(jobs) > 1) == (size == 200)
    for one, other in zip(*found.values(), strict=True):
        assert one.info == other.info
        np.testing.assert_array_equal(one.senders, other.senders)
        np.testing.assert_array_equal(one.candidates, other.candidates)


def test_a_function_too_long_for_a_job_is_read_in_several(
    model, tmp_path, monkeypatch, capsys
):
    from keras_bandgnn.cli import report
    from keras_bandgnn.programs import usage_pieces

    file = tmp_path / "long.py"
    file.write_text(f"def f(a, b):\n    return [{'a, b, ' * 40}]\n")
    job, *others = usage_pieces.usage_jobs(
        "python", str(file), "long.py", {"steps": 2}, {}
    )
    assert not others
    (whole,) = [usage_pieces.read_usages(*job)]
    assert whole.following is None
    monkeypatch.setattr(usage_pieces, "_JOB_NODES", 1000)
    found = [usage_pieces.read_usages(*job)]
    while found[-1].following is not None:
        found.append(usage_pieces.read_usages(*job, found[-1].following))
    assert len(found) > 4
    one, other = (
        [graph for part in parts for piece in part.pieces for graph in piece]
        for parts in ([whole], found)
    )
    assert len(one) == 80
    for a, b in zip(one, other, strict=True):
        assert a.info == b.info
        np.testing.assert_array_equal(a.senders, b.senders)
    # And progress is shown meanwhile, not once per file.
    said = []
    monkeypatch.setattr(
        report,
        "progress",
        lambda *_: contextlib.nullcontext(lambda *numbers: said.append(numbers)),
    )
    assert main(["predict", str(model), str(file)]) == 1
    assert "80 usages in 1 files" in capsys.readouterr().out
    assert said.count((0, 1, 0)) >= len(found) - 1 and said[-1][:2] == (1, 1)


def test_numbers_are_predicted_for_data_sets(tree, capsys):
    file = str(next(tree.rglob("*.py")))
    assert main(["predict", "schnet_qm9_u0", file]) == 2
    advice = f"run: bandgnn predict schnet_qm9_u0 NAME --path {file}"
    assert advice in capsys.readouterr().err


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_model_of_another_command(command, tree, capsys):
    assert main([command, "ggnn_bugs_python", str(tree)]) > 0
    error = capsys.readouterr().err
    assert "bandgnn check PATH --model ggnn_bugs_python" in error
