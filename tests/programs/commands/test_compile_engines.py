import re
import sys

import pytest

from keras_bandgnn.cli import report
from keras_bandgnn.cli.main import main

FUNCTION = "def f(left, right):\n    return left * right + left\n"


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    for name in "abcdefghijkl":
        (tmp_path / "src" / f"{name}.py").write_text(FUNCTION)
    return tmp_path


def compile_(*more):
    return main(["compile", "src", "--out", "out", "--workers", "1", *more])


def test_a_split_that_stands_in_the_way_stops_all(source, capsys):
    assert compile_() == 0
    for split in ("train", "test"):
        (source / "out" / split).rename(source / split)
    capsys.readouterr()
    # Only the validation split is there, made with another seed.
    assert compile_("--seed", "3") == 1
    assert "--overwrite" in capsys.readouterr().err
    assert [p.name for p in (source / "out").iterdir()] == ["valid"]


def test_an_unfinished_split_of_another_job_stops_all(source, capsys):
    assert compile_() == 0
    unfinished = source / "out" / "test.partial"
    (source / "out" / "test").rename(unfinished)
    for split in ("train", "valid"):
        (source / "out" / split).rename(source / split)
    # A store that lacks its name only: as a kill at the very end leaves it.
    assert compile_("--seed", "3") == 1
    assert "--restart" in capsys.readouterr().err
    assert [p.name for p in (source / "out").iterdir()] == ["test.partial"]
    assert compile_("--seed", "3", "--restart") == 0
    assert not unfinished.exists()


def test_ray_that_is_missing(source, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert compile_("--engine", "ray") == 1
    assert 'pip install "keras-bandgnn[ray]"' in capsys.readouterr().err
    assert [p.name for p in source.iterdir()] == ["src"]


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--ray-address", "auto"], 2, "--engine ray"),
        (["--engine", "ray", "--ray-address", "head"], 1, "host:port"),
        (["--engine", "ray", "--ray-address", "127.0.0.1:1"], 1, "ray start --head"),
    ],
)
def test_addresses_are_checked_before_work(source, more, code, message, capsys):
    if "--engine" in more:
        pytest.importorskip("ray")
    assert compile_(*more) == code
    assert message in capsys.readouterr().err
    assert [p.name for p in source.iterdir()] == ["src"]


def test_an_unforeseen_error_names_the_file(source, capsys, monkeypatch):
    def fail(program, **options):
        raise KeyError("token")

    monkeypatch.setattr("keras_bandgnn.programs.program_files.encode_program", fail)
    assert compile_() == 1
    error = capsys.readouterr().err
    assert ".py. Received: KeyError: 'token'" in error and "--exclude" in error


def test_progress_is_told_line_by_line_where_there_is_no_screen(capsys):
    with report.progress("compile", "files", every=0.0) as progress:
        progress(3, 5)
        progress(4, 5)
    shown = capsys.readouterr()
    lines = shown.err.splitlines()
    assert not shown.out and lines[0] == "compile: 3 of 5 (60 %)"
    assert re.fullmatch(
        r"compile: 4 of 5 \(80 %\), [\d,.]+ files/s, \d+ s left", lines[1]
    )
