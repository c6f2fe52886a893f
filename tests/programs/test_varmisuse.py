import copy
import dataclasses
import gzip
import itertools
import json

import numpy as np
import pytest

from keras_bandgnn.programs import (
    RELATIONS,
    ProgramGraph,
    load_varmisuse,
    read_varmisuse,
    write_varmisuse,
)
from keras_bandgnn.programs import varmisuse as stream
from keras_bandgnn.programs.varmisuse import varmisuse_split_files

SAMPLE = {
    "filename": "src\\A.cs",
    "slotTokenIdx": 7,
    "ContextGraph": {
        "Edges": {
            "Child": [[3, 0], [3, 4], [3, 5]],
            "NextToken": [[4, 0], [0, 5], [5, 6], [6, 7], [7, 8]],
            "LastUse": [[1, 4], [4, 4]],
            "GuardedBy": [],
        },
        "NodeLabels": {
            "0": "<SLOT>",
            "1": "fooBar",
            "2": "bär",
            "3": "ArgumentList",
            "4": "fooBar",
            "5": ";",
            "6": "return",
            "7": "12.5f",
            "8": '@"text"',
        },
        "NodeTypes": {"4": "string", "1": "string"},
    },
    "SlotDummyNode": 0,
    "SymbolCandidates": [
        {"SymbolDummyNode": 1, "SymbolName": "fooBar", "IsCorrect": True},
        {"SymbolDummyNode": 2, "SymbolName": "bär", "IsCorrect": False},
    ],
}


def save(path, samples):
    text = "\n".join(json.dumps(sample) for sample in samples) + "\n"
    if path.name.removesuffix(".gz").endswith(".json"):
        text = json.dumps(samples, indent=1, ensure_ascii=False)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def changed(path, value):
    """`SAMPLE` with one entry replaced, or removed if `value` is `...`."""
    sample = copy.deepcopy(SAMPLE)
    *parents, last = path
    entry = sample
    for key in parents:
        entry = entry[key]
    if value is ...:
        del entry[last]
    else:
        entry[last] = value
    return sample


def assert_same(a, b):
    for name in ("labels", "kinds", "slot", "candidates", "correct"):
        assert getattr(a, name) == getattr(b, name)
    assert dict(a.node_types) == dict(b.node_types)
    assert dict(a.info) == dict(b.info)
    for name in RELATIONS[:-1]:
        empty = np.zeros((0, 2), np.int32)
        x, y = (np.asarray(p.edges.get(name, empty)) for p in (a, b))
        np.testing.assert_array_equal(x, y)


FORMS = ["a.json", "a.jsonl", "a.json.gz", "a.jsonl.gz"]


@pytest.mark.parametrize("name", FORMS)
def test_read(tmp_path, name):
    other = changed(["slotTokenIdx"], 8)
    programs = list(read_varmisuse(save(tmp_path / name, [SAMPLE, other, SAMPLE])))
    assert [p.info["slotTokenIdx"] for p in programs] == [7, 8, 7]
    program = programs[0]
    assert program.labels[:3] == ("<SLOT>", "fooBar", "bär")
    kinds = "Slot Candidate Candidate ArgumentList Identifier Operator Keyword Number"
    assert program.kinds == (*kinds.split(), "String")
    assert set(program.edges) == set(RELATIONS[:-1])
    assert program.edges["LastUse"].tolist() == [[1, 4], [4, 4]]
    assert (
        program.edges["GuardedBy"].shape == program.edges["Child"][:0].shape == (0, 2)
    )
    assert program.edges["ReturnsTo"].dtype == np.int32
    assert (program.slot, program.candidates, program.correct) == (0, (1, 2), 0)
    assert dict(program.node_types) == {4: "string", 1: "string"}
    assert dict(program.info) == {
        "filename": "src\\A.cs",
        "slotTokenIdx": 7,
        "variable": "fooBar",
    }


def test_key_order_missing_types_and_edge_values(tmp_path):
    labels = dict(reversed(SAMPLE["ContextGraph"]["NodeLabels"].items()))
    shuffled = changed(["ContextGraph", "NodeLabels"], labels)
    del shuffled["ContextGraph"]["NodeTypes"], shuffled["filename"]
    shuffled["ContextGraph"]["EdgeValues"] = {"LastUse": [[-1], [0]]}
    save(tmp_path / "a.jsonl", [shuffled])
    (program,) = read_varmisuse(tmp_path / "a.jsonl")
    assert program.labels[3] == "ArgumentList" and not program.node_types
    assert "filename" not in program.info


def test_directories_and_lists(tmp_path):
    for i, name in enumerate(["b.json.gz", "a.jsonl.gz", "c.json", "d.gz"]):
        save(tmp_path / name, [changed(["slotTokenIdx"], i)])
    (tmp_path / "notes.txt").write_text("not a graph")

    def tokens(path):
        return [p.info["slotTokenIdx"] for p in read_varmisuse(path)]

    assert tokens(tmp_path) == [1, 0, 2, 3]
    assert tokens([tmp_path / "c.json", str(tmp_path / "a.jsonl.gz")]) == [2, 1]
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_varmisuse(tmp_path / "none")


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_arrays_are_streamed_in_chunks(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(stream, "_CHUNK", chunk)
    file = save(tmp_path / "a.json", [SAMPLE] * 3)
    assert len(list(read_varmisuse(file))) == 3
    file.write_bytes(b"\xef\xbb\xbf [ ] \n")
    assert list(read_varmisuse(file)) == []


def test_the_start_of_a_file_is_read_before_its_end(tmp_path):
    file = save(tmp_path / "a.json.gz", [SAMPLE] * 2000)
    file.write_bytes(file.read_bytes()[:-20])
    assert len(list(itertools.islice(read_varmisuse(file), 10))) == 10


EDGES = ["ContextGraph", "Edges"]
LABELS = ["ContextGraph", "NodeLabels"]
FIRST = ["SymbolCandidates", 0]
BAD = [
    (["ContextGraph"], ..., "'ContextGraph': Expected an object. Received: no such"),
    (["ContextGraph"], [], r"'ContextGraph': Expected an object. Received: \[\]"),
    (EDGES, ..., "'ContextGraph.Edges'"),
    ([*EDGES, "Calls"], [], r"'ContextGraph.Edges.Calls': Expected one of .*'Child'"),
    ([*EDGES, "UsesSubtoken"], [], "Edges.UsesSubtoken"),
    ([*EDGES, "Child"], [[3, 9]], r"Edges.Child\[0\]'.*\[0, 9\).*Received: \[3, 9\]"),
    ([*EDGES, "Child"], [[0, 1], [-1, 2]], r"Edges.Child\[1\]'"),
    ([*EDGES, "Child"], [[0, 1], [2]], "pairs of integers"),
    ([*EDGES, "Child"], [[0, 1.5]], "pairs of integers"),
    ([*EDGES, "Child"], [["0", "1"]], "pairs of integers"),
    ([*EDGES, "Child"], [[0, 10**30]], "pairs of integers"),
    ([*EDGES, "Child"], [0, 1], "pairs of integers"),
    ([*EDGES, "Child"], {"0": 1}, "Edges.Child': Expected a list"),
    (LABELS, ..., "NodeLabels"),
    (LABELS, {}, "at least one node"),
    (
        [*LABELS, "4"],
        ...,
        r"'0' to '7' without gaps.*without \['4'\], but with \['8'\]",
    ),
    ([*LABELS, "x"], "y", "without gaps"),
    ([*LABELS, "4"], None, r"NodeLabels.4': Expected text. Received: None"),
    (["ContextGraph", "NodeTypes"], {"9": "int"}, r"NodeTypes.9': .*\[0, 9\)"),
    (["ContextGraph", "NodeTypes"], {"a": "int"}, "node ids as keys"),
    (["ContextGraph", "NodeTypes"], {"1": 3}, "NodeTypes.1': Expected text"),
    (["SlotDummyNode"], ..., "'SlotDummyNode': Expected an integer"),
    (["SlotDummyNode"], 9, r"'SlotDummyNode': Expected a node id in \[0, 9\)"),
    (["SlotDummyNode"], True, "'SlotDummyNode': Expected an integer. Received: True"),
    (["SlotDummyNode"], 1, "distinct nodes other than the slot 1"),
    (["SymbolCandidates"], ..., "'SymbolCandidates': Expected a list"),
    (["SymbolCandidates"], [], "exactly one candidate .*Received: 0 of 0"),
    ([*FIRST, "IsCorrect"], False, "exactly one candidate .*Received: 0 of 2"),
    (["SymbolCandidates", 1, "IsCorrect"], True, "Received: 2 of 2"),
    ([*FIRST, "IsCorrect"], ..., r"SymbolCandidates\[0\].IsCorrect.*true or false"),
    ([*FIRST, "SymbolDummyNode"], 2, "distinct nodes"),
    ([*FIRST, "SymbolDummyNode"], 9, r"\[0\].SymbolDummyNode'.*\[0, 9\)"),
    ([*FIRST, "SymbolName"], 5, r"\[0\].SymbolName': Expected text"),
    (FIRST, 5, r"SymbolCandidates\[0\]': Expected an object"),
]


@pytest.mark.parametrize("path, value, message", BAD)
def test_bad_samples(tmp_path, path, value, message):
    bad = changed(path, value)
    for name, place in (("a.jsonl.gz", "line 2"), ("a.json", "array position 1")):
        file = save(tmp_path / name, [SAMPLE, bad, SAMPLE])
        with pytest.raises(ValueError, match=f"{name}, {place}, key .*{message}"):
            list(read_varmisuse(file))
        report = []
        found = list(read_varmisuse(file, on_error="skip", report=report))
        assert len(found) == 2 and len(report) == 1 and place in report[0]


def test_skipped_samples_are_warned_of(tmp_path):
    file = save(tmp_path / "a.jsonl", [5, SAMPLE])
    with pytest.warns(UserWarning, match="Skipped: .*a.jsonl, line 1.*Received: 5"):
        assert len(list(read_varmisuse(file, on_error="skip"))) == 1
    with pytest.raises(ValueError, match="`on_error` to be one of 'raise', 'skip'"):
        read_varmisuse(file, on_error="ignore")


LINE = json.dumps(SAMPLE).encode()
SPACE = b" " * 5000


@pytest.mark.parametrize(
    "name, data, place, good",
    [
        ("a.json.gz", LINE, "line 1: Expected a complete gzip file", 0),
        ("a.json.gz", b"", "line 1: Expected a complete gzip file", 0),
        ("a.jsonl", LINE + b"\n{oops\n" + LINE, "line 2: Expected valid JSON", 2),
        ("a.jsonl", b"\n" + LINE[:-1], "line 2: Expected valid JSON", 0),
        ("a.jsonl", LINE + b'\n{"x": "\xff"}', "line 2: Expected valid JSON", 1),
        ("a.jsonl", b"[" * 100000, "array position 0: Expected valid JSON", 0),
        ("a.json", b"[" + LINE + b"," + LINE[:-9], "position 1: Expected valid", 1),
        (
            "a.json",
            b"[" + LINE + b"\n" + LINE + b"]",
            "position 0: .*'{' instead of",
            1,
        ),
        ("a.json", b"[" + LINE, "position 0: .*the end of the file instead", 1),
        ("a.json", b"[" + LINE + b"] x", "position 0: .*'x' after the end", 1),
        (
            "a.json",
            b"[" + LINE + SPACE + b',"\xff',
            "position 0: .*can't decode byte 0xff",
            1,
        ),
    ],
)
def test_bad_files(tmp_path, monkeypatch, name, data, place, good):
    monkeypatch.setattr(stream, "_CHUNK", 64)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=f"{name}, (array )?{place}"):
        list(read_varmisuse(tmp_path))
    report = []
    found = list(read_varmisuse(tmp_path, on_error="skip", report=report))
    assert len(found) == good and len(report) == 1


def test_truncated_gzip(tmp_path):
    file = save(tmp_path / "a.jsonl.gz", [SAMPLE] * 300)
    file.write_bytes(file.read_bytes()[:-30])
    report = []
    found = list(read_varmisuse(file, on_error="skip", report=report))
    assert found and len(report) == 1
    assert "Expected a complete gzip file. Received: an unreadable file" in report[0]


def test_expression_holes_are_told_apart(tmp_path, shared_data):
    with pytest.raises(
        ValueError, match="'SlotDummyNode': .*'HoleNode', the format of"
    ):
        next(read_varmisuse(shared_data / "varmisuse" / "exprs-graph.0.jsonl.gz"))


PYTHON = ProgramGraph(
    labels=("<SLOT>", "x", "self", "Call", "elif", "\ud800", "f"),
    kinds=("Slot", "Candidate", "Candidate", "Call", "Keyword", "String", "Name"),
    edges={"Child": np.array([[3, 0], [3, 6]], np.int32)},
    slot=0,
    candidates=(2, 1),
    correct=1,
    node_types={6: "int"},
    info={"filename": "a.py", "line": np.int64(3), "variable": "x"},
)


@pytest.mark.parametrize("name", FORMS)
def test_round_trip(tmp_path, name):
    (csharp,) = read_varmisuse(save(tmp_path / "in.jsonl", [SAMPLE]))
    programs = [csharp, PYTHON, csharp]
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        write_varmisuse(tmp_path / folder / name, iter(programs))
    file = tmp_path / "x" / name
    assert file.read_bytes() == (tmp_path / "y" / name).read_bytes()
    for a, b in zip(read_varmisuse(file), programs, strict=True):
        assert_same(a, b)
    write_varmisuse(file, [])
    assert list(read_varmisuse(file)) == []


def test_written_samples_have_the_true_format(tmp_path):
    (program,) = read_varmisuse(save(tmp_path / "in.jsonl", [SAMPLE]))
    write_varmisuse(tmp_path / "out.jsonl", [program])
    written = json.loads((tmp_path / "out.jsonl").read_text())
    expected = copy.deepcopy(SAMPLE)
    del expected["ContextGraph"]["Edges"]["GuardedBy"]
    assert written == expected


def test_correct_first(tmp_path):
    write_varmisuse(tmp_path / "a.json", [PYTHON], correct_first=True)
    (program,) = read_varmisuse(tmp_path / "a.json")
    assert program.candidates == (1, 2) and program.correct == 0


def test_failed_write_leaves_the_old_file(tmp_path):
    file = tmp_path / "a.jsonl.gz"
    write_varmisuse(file, [PYTHON])
    before = file.read_bytes()
    with pytest.raises(ValueError, match="program 1 to have a correct candidate"):
        write_varmisuse(file, [PYTHON, dataclasses.replace(PYTHON, correct=None)])
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]
    with pytest.raises(ValueError, match="ends in .json.*Received: a.zip"):
        write_varmisuse(tmp_path / "a.zip", [])


@pytest.mark.parametrize("projects", [[""], ["p1", "p2"]])
def test_splits(tmp_path, projects):
    for project in projects:
        folder = tmp_path / project / "graphs-train"
        folder.mkdir(parents=True)
        for name in ("chunk_0-1.jsonl.gz", "chunk_0-0.jsonl.gz"):
            save(folder / name, [SAMPLE, SAMPLE])
    files = varmisuse_split_files(tmp_path, "train")
    assert [f.name for f in files[:2]] == ["chunk_0-0.jsonl.gz", "chunk_0-1.jsonl.gz"]
    assert len(files) == 2 * len(projects)
    with pytest.raises(FileNotFoundError, match=r"graphs-valid.*\['graphs-train'\]"):
        varmisuse_split_files(tmp_path, "valid")
    graphs = list(load_varmisuse(tmp_path, "train", labels="none"))
    assert len(graphs) == 4 * len(projects)
    assert all(g.candidates[g.label] == 1 for g in graphs)
    again = list(load_varmisuse(tmp_path, "train", labels="none"))
    assert [int(g.label) for g in graphs] == [int(g.label) for g in again]


def test_real_graphs(tmp_path, shared_data):
    root = shared_data / "varmisuse" / "original_subset"
    files = varmisuse_split_files(root, "valid")
    programs = list(read_varmisuse(files[0]))
    assert len(programs) == 100
    for program in programs:
        assert program.correct == 0 and program.slot == 0
        assert program.labels[0] == "<SLOT>"
        assert program.labels[program.candidates[0]] == program.info["variable"]
    write_varmisuse(tmp_path / "a.json.gz", programs[:20])
    for a, b in zip(read_varmisuse(tmp_path / "a.json.gz"), programs[:20], strict=True):
        assert_same(a, b)
    labels = [int(g.label) for g in itertools.islice(load_varmisuse(root, "valid"), 50)]
    assert 0 < sum(label > 0 for label in labels) < 50
