"""`examples.corpora`: packages in, functions without duplicates and in splits out."""

import gzip
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from examples.corpora import build, distributions
from examples.corpora.__main__ import main
from examples.corpora.distributions import Requirement, requirements
from keras_bandgnn.programs import read_corpus

METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}\n"
MIT = "License-Expression: MIT\n"


def function(name: str, word: str) -> str:
    """A function with identifiers of its own."""
    return (
        f"def {name}({word}_left, {word}_right, {word}_limit=3):\n"
        f"    {word}_sum = {word}_left + {word}_right * {len(word)}\n"
        f"    for {word}_i in range({word}_limit):\n"
        f"        {word}_sum -= {word}_i\n"
        f"    return {word}_sum\n"
    )


def wheel(folder: Path, name: str, files: dict, version="1.0", more=MIT) -> Path:
    """A wheel with Python files."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for file, text in files.items():
            packed.writestr(file, text)
        text = METADATA.format(name=name, version=version, more=more)
        packed.writestr(f"{info}/METADATA", text)
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        packed.writestr(f"{info}/RECORD", "")
    return path


def sdist(folder: Path, name: str, files: dict, links=(), version="1.0") -> Path:
    """A source distribution with Python files."""
    path = folder / f"{name}-{version}.tar.gz"
    text = METADATA.format(name=name, version=version, more=MIT)
    with tarfile.open(path, "w:gz") as packed:
        for file, content in {"PKG-INFO": text, **files}.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{file}")
            entry.size = len(content.encode())
            packed.addfile(entry, io.BytesIO(content.encode()))
        for file, target in links:
            entry = tarfile.TarInfo(f"{name}-{version}/{file}")
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            packed.addfile(entry)
    return path


def corpus(out: Path, *archives: Path, valid=(), test=(), **options) -> dict:
    items = requirements([str(path) for path in archives], valid, test)
    return build.build_corpus(out, items, processes=1, **options)


def names(out: Path, split: str) -> list[str]:
    found = read_corpus(out, split)
    return [f"{f.package['package']}.{f.name}" for f in found]


def digests(out: Path) -> dict:
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(out.rglob("*"))
        if path.is_file() and "work" not in path.relative_to(out).parts
    }


def about(summary: dict, name: str) -> dict:
    (found,) = [p for p in summary["packages"] if p["name"] == name]
    return found


# === What is read ===


def test_a_function_has_its_lines_and_its_module(tmp_path):
    code = (
        "import os.path as p, sys\nfrom . import util\nfrom .b import c as d\n"
        "LIMIT = 3\ntry:\n    import json\nexcept ImportError:\n    json = None\n"
        "class Box(dict):\n    size: int = 0\n"
        "    @property\n    def area(self, *rest, unit=1, **more):\n"
        "        self.last = unit\n        def inner(): return 1\n"
        "        return LIMIT\n"
    )
    path = wheel(tmp_path, "box", {"box/__init__.py": code, "box/a.txt": "x"})
    summary = corpus(tmp_path / "out", path, test=["box"])
    (found,) = read_corpus(tmp_path / "out", "test")
    assert (found.name, found.line) == ("Box.area", 11)
    assert found.source == "\n".join(code.split("\n")[10:15])
    assert found.module["imports"] == {
        **{"p": "os.path", "sys": "sys", "util": ".util", "d": ".b.c"},
        "json": "json",
    }
    assert found.module["variables"] == ["LIMIT"]
    assert found.module["classes"] == {
        "Box": {"bases": ["dict"], "attributes": ["area", "last", "size"]}
    }
    signature = {"Box.area": ["self", "unit", "*rest", "**more"]}
    assert found.module["signatures"] == signature
    assert found.package["signatures"] == {"box/__init__.py": signature}
    counts = about(summary, "box")["counts"]
    assert (counts["files"], counts["lines"], counts["functions"]) == (1, 15, 1)


def test_source_distributions_are_read_and_not_run(tmp_path):
    harm = f"open({str(tmp_path / 'harm')!r}, 'w')\n"
    files = {"setup.py": harm, "src/s/__init__.py": harm + function("f", "word")}
    path = sdist(tmp_path, "s", files)
    corpus(tmp_path / "out", path, test=["s"])
    (found,) = read_corpus(tmp_path / "out", "test")
    assert found.module["path"] == "s/__init__.py"
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("file", "text", "group"),
    [
        ("a/tests/x.py", "", "tests"),
        ("a/test_x.py", "", "tests"),
        ("a/_vendor/x/y.py", "", "vendored"),
        ("a/x_pb2.py", "", "generated"),
        ("a/x.py", "# This file is generated by a tool.\n", "generated"),
        ("a/x.py", '"""Automatically generated."""\n', "generated"),
        ("a/x.py", "D = [" + "1, " * 5000 + "]\n", "generated"),
        ("a/attest.py", "", None),
        ("a/generated.py", '"""Reads files.\n\nDo not edit."""\n', None),
    ],
)
def test_groups_are_left_out_unless_asked_for(tmp_path, file, text, group):
    files = {"a/__init__.py": function("f", "one"), file: text + function("g", "two")}
    path = wheel(tmp_path, "a", files)
    summary = corpus(tmp_path / "out", path, test=["a"])
    expected = ["a.f"] if group else ["a.f", "a.g"]
    assert names(tmp_path / "out", "test") == expected
    if group:
        assert about(summary, "a")["counts"][group] == 1
        corpus(tmp_path / "out", path, test=["a"], groups=[group])
        assert names(tmp_path / "out", "test") == ["a.f", "a.g"]


def test_installed_packages(tmp_path):
    items = [Requirement("rich", None, "train"), Requirement("no-such-package")]
    out = tmp_path / "out"
    summary = build.build_corpus(out, items, installed=True, processes=1)
    assert summary["left_out"] == [
        {"name": "no-such-package", "reason": "not installed"}
    ]
    assert about(summary, "rich")["family"] == "MIT"
    assert "rich.Table.add_row" in names(out, "train")


# === Broken and hostile archives ===


def zip_of(path: Path, entries: dict) -> Path:
    with zipfile.ZipFile(path, "w") as packed:
        for name, text in entries.items():
            packed.writestr(name, text)
    return path


def hostile(folder: Path, kind: str) -> Path:
    name, code = "bad-1.0-py3-none-any.whl", function("f", "evil")
    info = {
        "bad-1.0.dist-info/METADATA": METADATA.format(name="bad", version=1, more=MIT)
    }
    if kind == "outside":
        return zip_of(folder / name, {"../../evil.py": code, **info})
    if kind == "absolute":
        return zip_of(folder / name, {"/tmp/evil.py": code, **info})
    if kind == "link":
        return sdist(folder, "bad", {"bad/x.py": code}, [("bad/y.py", "/etc/passwd")])
    if kind == "no metadata":
        return zip_of(folder / name, {"bad/x.py": code})
    if kind == "bomb":
        path = folder / name
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("bad/x.py", b"#" * (80 << 20))
        return path
    path = wheel(folder, "bad", {"bad/x.py": code})
    data = path.read_bytes()
    path.write_bytes(data[:-30] if kind == "cut" else b"PK" + data[: len(data) // 2])
    return path


@pytest.mark.parametrize(
    "kind", ["outside", "absolute", "link", "no metadata", "bomb", "cut", "half"]
)
def test_hostile_archives_are_left_out(tmp_path, kind):
    folder = tmp_path / "in"
    folder.mkdir()
    good = wheel(folder, "good", {"good.py": function("f", "good")})
    summary = corpus(tmp_path / "out", good, hostile(folder, kind), test=["good"])
    (entry,) = summary["left_out"]
    assert entry["name"] == "bad" and entry["reason"].startswith("unreadable: ")
    assert names(tmp_path / "out", "test") == ["good.f"]
    assert {p.name for p in tmp_path.iterdir()} == {"in", "out"}


def test_broken_files_are_counted(tmp_path):
    files = {
        "a/good.py": function("f", "good"),
        **{"a/two.py": "print 'x'\n", "a/null.py": "\0", "a/deep.py": "(" * 400},
        **{"a/code.py": b"# coding: nothing\n", "a/bytes.py": b"\xff\xfe"},
        "a/large.py": "#" * (distributions.MAX_BYTES + 1),
    }
    summary = corpus(tmp_path / "out", wheel(tmp_path, "a", files), test=["a"])
    assert about(summary, "a")["counts"]["unreadable"] == 6


# === Licences ===


def test_only_permissive_licences_unless_asked(tmp_path):
    paths = [
        wheel(tmp_path, name, {f"{name}.py": function("f", name)}, more=more)
        for name, more in [
            ("mit", MIT),
            ("gpl", "License: GPLv3\n"),
            (
                "mpl",
                "Classifier: License :: Mozilla Public License 2.0\n",
            ),
            ("none", ""),
        ]
    ]
    summary = corpus(tmp_path / "out", *paths)
    assert [p["name"] for p in summary["packages"]] == ["mit"]
    families = {x["name"]: x["family"] for x in summary["left_out"]}
    assert families == {"gpl": "GPL", "mpl": "MPL", "none": "unknown"}
    assert "Left out: licence" in (tmp_path / "out" / "README.md").read_text()
    summary = corpus(tmp_path / "out", *paths, any_licence=True)
    assert summary["licences"] == {"GPL": 1, "MIT": 1, "MPL": 1, "unknown": 1}


# === Duplicates and splits ===


def test_duplicates_are_kept_once(tmp_path):
    near = function("f", "same").replace("_limit=3", "_limit=4")
    paths = [
        wheel(tmp_path, "a", {"a.py": function("f", "same") + function("g", "one")}),
        wheel(tmp_path, "b", {"b.py": function("f", "same") + function("g", "two")}),
        wheel(tmp_path, "c", {"c.py": near + function("g", "three")}),
    ]
    out = tmp_path / "out"
    summary = corpus(out, *paths, valid=["b"], test=["c"])
    assert names(out, "train") == ["a.f", "a.g"]
    assert names(out, "valid") == ["b.g"] and names(out, "test") == ["c.g"]
    b, c = about(summary, "b"), about(summary, "c")
    assert (b["exact_duplicates"], b["near_duplicates"]) == (1, 0)
    assert (c["exact_duplicates"], c["near_duplicates"]) == (0, 1)
    assert c["duplicates_of_other_splits"] == 1
    # Of a cluster that spans validation and test nothing is kept.
    corpus(out, *paths, valid=["a", "b"], test=["c"])
    assert names(out, "valid") == ["a.g", "b.g"] and names(out, "test") == ["c.g"]


def test_no_package_is_in_two_splits(tmp_path):
    paths = [
        wheel(tmp_path, f"p{i}", {f"p{i}.py": function("f", f"w{i}" * 3)})
        for i in range(30)
    ]
    summary = corpus(tmp_path / "out", *paths)
    splits = {p["name"]: p["split"] for p in summary["packages"]}
    assert set(splits.values()) == {"train", "valid", "test"}
    packages = [
        {f.package["package"] for f in read_corpus(tmp_path / "out", split)}
        for split in ("train", "valid", "test")
    ]
    assert sum(map(len, packages)) == len(set.union(*packages)) == 30
    again = corpus(tmp_path / "other", *paths[::-1])
    assert splits == {p["name"]: p["split"] for p in again["packages"]}
    assert digests(tmp_path / "out") == digests(tmp_path / "other")


# === Names ===


def test_lists_of_packages(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("# names\nFlask_Login\nclick==8.1 valid # why\n\ntrio test\n")
    assert requirements([str(path), "rich"]) == [
        Requirement("click", "8.1", "valid"),
        Requirement("flask-login"),
        Requirement("rich"),
        Requirement("trio", None, "test"),
    ]
    found = requirements([str(path)], valid=["flask.login"])
    assert [item.split for item in found] == ["valid", "valid", "test"]


@pytest.mark.parametrize(
    "line",
    ["--index-url=x", "a b c", "a nosplit", "http://x/y.whl", "a @ b", "a>=1", "a;b"],
)
def test_lines_that_are_no_packages(tmp_path, line):
    path = tmp_path / "list.txt"
    path.write_text(f"good\n{line}\n")
    with pytest.raises(ValueError, match="line 2. Received: "):
        requirements([str(path)])


def test_contradictions():
    with pytest.raises(ValueError, match="once. Received: a==1 and a==2"):
        requirements(["a==1", "a==2"])
    with pytest.raises(ValueError, match="in one split"):
        requirements(["a"], valid=["a"], test=["A"])
    with pytest.raises(ValueError, match="also .'b'."):
        requirements(["a"], valid=["b"])
    with pytest.raises(FileNotFoundError, match="no/such.whl|no such file"):
        requirements(["no/such-1.0.whl"])


def test_lists_of_the_library():
    folder = Path(build.__file__).parent
    train = distributions.read_list(folder / "packages.txt")
    held_out = distributions.read_list(folder / "held_out.txt")
    assert len({item.name for item in train}) == len(train) >= 300
    assert {item.split for item in train} == {"train"}
    assert len(held_out) >= 15
    assert {item.split for item in held_out} == {"valid", "test"}
    assert not {x.name for x in train} & {x.name for x in held_out}
    measured = {"attrs", "flask", "httpx", "paramiko", "werkzeug"}
    assert measured <= {x.name for x in held_out if x.split == "test"}


# === Downloads ===


def index(folder: Path, *archives: Path) -> str:
    """A package index in a folder; returns its address."""
    for path in archives:
        page = folder / "simple" / path.name.split("-")[0]
        page.mkdir(parents=True)
        link = f'<a href="{path.as_uri()}">{path.name}</a>'
        page.joinpath("index.html").write_text(f"<!DOCTYPE html><body>{link}</body>")
    return (folder / "simple").as_uri()


def test_downloads_are_wheels_and_are_not_repeated(tmp_path, monkeypatch, capfd):
    # Only the index of this test is asked.
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in [name for name in os.environ if name.startswith("PIP_FIND")]:
        monkeypatch.delenv(name)
    harm = f"open({str(tmp_path / 'harm')!r}, 'w')\n"
    url = index(
        tmp_path,
        wheel(tmp_path, "good", {"good.py": function("f", "good")}),
        sdist(tmp_path, "source", {"setup.py": harm, "s.py": function("f", "s")}),
    )
    out = tmp_path / "out"
    line = [str(out), "--packages", "good", "source", "nothing"]
    line += ["--test", "good", "--index-url", url, "--processes", "1"]
    assert main(line) == 0
    said = capfd.readouterr().out
    assert "left out: nothing: no download" in said
    assert "left out: source: no download" in said
    assert not (tmp_path / "harm").exists()
    assert names(out, "test") == ["good.f"]
    before = digests(out)

    def refuse(*arguments, **options):
        raise AssertionError("downloaded again")

    monkeypatch.setattr(distributions.subprocess, "run", refuse)
    monkeypatch.setattr(build, "read_distribution", refuse)
    line[line.index("source") : line.index("--test")] = []
    assert main(line) == 0
    (package,) = json.loads((out / "corpus.json").read_text())["packages"]
    assert package["source"] == "good-1.0-py3-none-any.whl"
    assert digests(out)["test/good.jsonl.gz"] == before["test/good.jsonl.gz"]


# === Resume ===

SLOW = """
import sys, time
from pathlib import Path
from examples.corpora import build
from examples.corpora.distributions import requirements

write_lines = build.write_lines

def slow(path, values):
    time.sleep(0.3)
    write_lines(path, values)

build.write_lines = slow
out, *archives = sys.argv[1:]
print("begin", flush=True)
build.build_corpus(Path(out), requirements(archives), processes=1)
"""


@pytest.mark.skipif(os.name == "nt", reason="no such signals there")
@pytest.mark.release
def test_a_killed_run_resumes(tmp_path):
    paths = [
        wheel(tmp_path, f"p{i}", {f"p{i}.py": function("f", f"w{i}" * 3)})
        for i in range(4)
    ]
    whole = corpus(tmp_path / "whole", *paths)
    out = tmp_path / "out"
    script = [sys.executable, "-c", SLOW, str(out), *map(str, paths)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for seconds in (0.5, 1.5):
        process = subprocess.Popen(script, stdout=subprocess.PIPE, env=environment)
        assert process.stdout.readline() == b"begin\n"
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        with pytest.raises(FileNotFoundError, match="it resumes"):
            list(read_corpus(out, "train"))
    pieces = list((out / "work" / "pieces").glob("p*.jsonl.gz"))
    before = {path: path.stat().st_mtime_ns for path in pieces}
    assert before
    assert corpus(out, *paths) == whole
    assert {path: path.stat().st_mtime_ns for path in pieces} == before
    assert digests(out) == digests(tmp_path / "whole")
    assert not [path for path in out.rglob(".*")]


@pytest.mark.release
def test_several_processes_write_the_same_bytes(tmp_path):
    paths = [
        wheel(tmp_path, f"p{i}", {f"p{i}.py": function("f", f"w{i}" * 3)})
        for i in range(3)
    ]
    corpus(tmp_path / "one", *paths)
    items = requirements([str(path) for path in paths])
    build.build_corpus(tmp_path / "two", items, processes=2)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


def test_an_earlier_corpus_is_replaced_whole(tmp_path):
    a = wheel(tmp_path, "a", {"a.py": function("f", "one")})
    b = wheel(tmp_path, "b", {"b.py": function("f", "two")})
    out = tmp_path / "out"
    corpus(out, a, b, test=["a", "b"])
    corpus(out, b, valid=["b"])
    assert [str(p.relative_to(out)) for p in out.glob("*/*.gz")] == ["valid/b.jsonl.gz"]
    assert names(out, "test") == []


def test_folders_with_other_content_are_refused(tmp_path):
    path = wheel(tmp_path, "a", {"a.py": function("f", "one")})
    with pytest.raises(ValueError, match="to be new, empty, or a corpus"):
        corpus(tmp_path, path)
    with pytest.raises(ValueError, match="none of 1 .a: no functions in Python"):
        corpus(tmp_path / "out", wheel(tmp_path, "a", {"a.py": "A = 1\n"}))


# === Reading ===


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]\n",
        '{"package": "a"}\n',
        '{"package": "a", "version": "1", "licence": "MIT"}\n{"path": 3}\n',
    ],
)
def test_damaged_files_are_named(tmp_path, text):
    out = tmp_path / "out"
    corpus(out, wheel(tmp_path, "a", {"a.py": function("f", "x")}), test=["a"])
    path = out / "test" / "a.jsonl.gz"
    path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(ValueError, match="Expected .*a.jsonl.gz"):
        list(read_corpus(out, "test"))


def test_a_summary_names_no_files_elsewhere(tmp_path):
    out = tmp_path / "out"
    summary = corpus(out, wheel(tmp_path, "a", {"a.py": function("f", "x")}))
    summary["packages"][0] |= {"file": "../x.jsonl.gz", "split": "test"}
    (out / "corpus.json").write_text(json.dumps(summary))
    with pytest.raises(ValueError, match="to name files in test/"):
        list(read_corpus(out, "test"))
