import os

import numpy as np
import pytest

from keras_bandgnn.programs.python_source import (
    program_graphs,
    python_files,
    read_tree,
    split_of,
)

GOOD = "def f(a, b):\n    return a + b\n"


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "package" / "tests").mkdir(parents=True)
    (tmp_path / "package" / "a.py").write_text(GOOD)
    (tmp_path / "package" / "tests" / "b.py").write_text(GOOD)
    (tmp_path / "z.py").write_text(GOOD * 5)
    (tmp_path / "notes.txt").write_text("no Python")
    return tmp_path


def write_odd_files(folder):
    (folder / "bom.py").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    (folder / "cookie.py").write_bytes(
        b"# -*- coding: latin-1 -*-\ndef f(\xe9, b):\r\n    return \xe9 + b\r\n"
    )
    (folder / "deep.py").write_text("x = " + "(" * 5000 + ")" * 5000)
    (folder / "empty.py").write_text("")
    (folder / "huge.py").write_text("#" * 2000)
    (folder / "null.py").write_bytes(b"x = 1\x00\n")
    (folder / "python2.py").write_text("print 'x'\n")
    (folder / "sum.py").write_text("x = " + "+".join(["x"] * 3000))
    (folder / "tabs.py").write_text("if 1:\n\tx\n        y\n")
    (folder / "unknown.py").write_text("# coding: klingon\n" + GOOD)
    (folder / "wrong.py").write_bytes(b"x = '\xe9'\n")
    (folder / "warns.py").write_text("def f(a, b): return a is 1, '\\d', b\n")


def test_listing(tree):
    def listed(*args):
        return [os.path.relpath(path, tree) for path in python_files(*args)]

    inside = os.path.join("package", "tests", "b.py")
    assert listed(tree) == [os.path.join("package", "a.py"), inside, "z.py"]
    assert listed([tree / "z.py", tree], ["tests"])[0] != "z.py"
    assert inside not in listed(tree, ["tests"])
    assert inside not in listed(tree, ["package/*/b.py"])
    assert listed([tree / "notes.txt"]) == ["notes.txt"]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        python_files(tree / "nowhere")


def test_links_in_circles_do_not_hang(tree):
    (tree / "package" / "up").symlink_to(tree, target_is_directory=True)
    (tree / "self.py").symlink_to(tree / "self.py")
    skipped = []
    found = read_tree(
        tree, processes=1, on_skip=lambda path, reason: skipped.append(reason)
    )
    assert len(list(found)) == 3
    assert len(skipped) == 1 and skipped[0].startswith("OSError")


def test_pipes_are_left_out(tree):
    os.mkfifo(tree / "pipe.py")
    skipped = []
    list(read_tree(tree, processes=1, on_skip=lambda *args: skipped.append(args)))
    assert skipped == [(str(tree / "pipe.py"), "ValueError: not a regular file")]


def test_odd_files_are_reported_and_never_fatal(tmp_path):
    write_odd_files(tmp_path)
    skipped = {}
    found = dict(
        read_tree(
            tmp_path,
            processes=1,
            max_bytes=20_000,
            on_skip=lambda path, reason: skipped.update({path: reason}),
        )
    )
    counts = {os.path.basename(path): len(graphs) for path, graphs in found.items()}
    assert counts == {
        "bom.py": 2,
        "cookie.py": 2,
        "empty.py": 0,
        "huge.py": 0,
        "warns.py": 2,
    }
    reasons = {os.path.basename(path): why for path, why in skipped.items()}
    assert reasons.keys() == {
        "deep.py",
        "null.py",
        "python2.py",
        "sum.py",
        "tabs.py",
        "unknown.py",
        "wrong.py",
    }
    assert "RecursionError" in reasons["sum.py"]
    assert "klingon" in reasons["unknown.py"]
    labels = {graph.info["variable"] for graph in found[str(tmp_path / "cookie.py")]}
    assert labels == {"é", "b"}


def test_large_files_are_left_out(tmp_path):
    (tmp_path / "huge.py").write_text("#" * 2000)
    skipped = []
    found = read_tree(
        tmp_path,
        processes=1,
        max_bytes=1999,
        on_skip=lambda path, reason: skipped.append(reason),
    )
    assert list(found) == []
    assert skipped == ["ValueError: 2000 bytes, more than 1999"]


def test_number_of_processes_does_not_matter(tree):
    write_odd_files(tree)
    results = []
    for processes in (1, 2):
        reports, steps = [], []
        found = list(
            read_tree(
                tree,
                processes=processes,
                max_instances=3,
                on_skip=lambda *args, reports=reports: reports.append(args),
                progress=lambda *args, steps=steps: steps.append(args),
            )
        )
        assert steps == [(i, 15) for i in range(1, 16)]
        results.append((found, reports))
    (one, one_reports), (two, two_reports) = results
    assert one_reports == two_reports
    assert [path for path, _ in one] == [path for path, _ in two]
    for (_, graphs), (_, others) in zip(one, two, strict=True):
        assert [graph.info for graph in graphs] == [graph.info for graph in others]
        for graph, other in zip(graphs, others, strict=True):
            assert graph.labels == other.labels
            assert graph.edges.keys() == other.edges.keys()
            for name, pairs in graph.edges.items():
                np.testing.assert_array_equal(pairs, other.edges[name])


def test_instances_depend_on_the_path_inside_the_folder(tree):
    (_, graphs), *_ = read_tree(tree / "package", processes=1, exclude=["tests"])
    assert {graph.info["filename"] for graph in graphs} == {"a.py"}
    again = program_graphs(GOOD, "a.py", max_instances=20)
    assert [g.labels for g in graphs] == [g.labels for g in again]


@pytest.mark.release
def test_the_caller_may_stop_early(tree):
    found = read_tree(tree, processes=2)
    next(found)
    found.close()


def test_bad_arguments_are_refused_at_once(tree):
    with pytest.raises(ValueError, match="max_candidates"):
        read_tree(tree, max_candidates=1)
    with pytest.raises(ValueError, match="processes"):
        read_tree(tree, processes=0)


def test_source_that_does_not_parse():
    with pytest.raises(SyntaxError):
        program_graphs("def f(:\n")
    with pytest.raises(SyntaxError):
        program_graphs(b"x = '\xff'")


def test_split_by_file_and_package():
    names = [f"root/p{i}/m{j}.py" for i in range(40) for j in range(25)]
    by_file = [split_of(name, "root") for name in names]
    shares = [by_file.count(x) / len(names) for x in ("train", "valid", "test")]
    np.testing.assert_allclose(shares, (0.8, 0.1, 0.1), atol=0.04)
    assert by_file == [split_of(name.removeprefix("root/")) for name in names]
    assert by_file != [split_of(name, "root", seed=1) for name in names]
    by_package = [split_of(name, "root", by="package") for name in names]
    for i in range(40):
        assert len(set(by_package[25 * i : 25 * i + 25])) == 1
    assert len(set(by_package)) == 3
    module = split_of("root/p3.py", "root", by="package")
    assert module == by_package[75]


def test_split_is_fixed():
    found = [split_of(f"m{i}.py") for i in range(12)]
    assert found == [split_of(f"m{i}.py") for i in range(12)]
    assert split_of("a.py", fractions=(0, 0, 1)) == "test"
    with pytest.raises(ValueError, match="fractions"):
        split_of("a.py", fractions=(0.5, 0.1, 0.1))
    with pytest.raises(ValueError, match="`by`"):
        split_of("a.py", by="instance")
