"""Functions of GREAT's data set: text, places, labels, and what is refused."""

import gzip
import json

import pytest

from keras_bandgnn.programs import function_graph, read_great

TOKENS = ["#NEWLINE#", "def scale(", "values", ",", "low", ",", "*rest", ")", ":"]
TOKENS += ["#NEWLINE#", "#INDENT#", r"'(a [text]\n'", "#NEWLINE#", "if", "low", ":"]
TOKENS += ["#NEWLINE#", "#INDENT#", "total", "=", "sum(", "#NEWLINE#", "#INDENT#"]
TOKENS += ["rest", "#UNINDENT#", ")", "#NEWLINE#", "#UNINDENT#", "return", "low"]
TEXT = r"""
def scale( values , low , *rest ) :
 '(a [text]\n'
 if low :
  total = sum( rest )
 return low
""".lstrip()
BUG, RIGHT = len(TOKENS) - 1, TOKENS.index("values")


def sample(**changes):
    value = {
        "has_bug": True,
        "source_tokens": TOKENS,
        "error_location": BUG,
        "repair_targets": [RIGHT, "values"],
        "repair_candidates": [2, "values"],
        "provenances": [{"datasetProvenance": {"filepath": "a.py", "license": "mit"}}],
    }
    return {k: v for k, v in {**value, **changes}.items() if v is not None}


def write(folder, *samples, name="great.jsonl"):
    text = "".join(f"{json.dumps(each)}\n" for each in samples)
    data = text.encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    return folder / name


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_text_place_and_repair(tmp_path, name):
    (found,) = read_great(write(tmp_path, sample(), name=name))
    assert found.source == TEXT
    assert (found.has_bug, found.place, found.used) == (True, (5, 8), "low")
    assert found.repairs == ("values",)
    where = f"{tmp_path / name}, line 1"
    assert found.info == {"path": "a.py", "licence": "mit", "where": where}


def test_a_correct_function(tmp_path):
    path = write(tmp_path, sample(has_bug=False, error_location=0, provenances=None))
    (found,) = read_great([path])
    assert (found.place, found.used, found.repairs) == (None, None, ())
    assert list(found.info) == ["where"]
    graph = found.graph()
    assert graph.correct == -1
    assert graph.labels == function_graph(TEXT).labels


def test_graphs_with_labels(tmp_path):
    (found,) = read_great(write(tmp_path, sample()))
    graph = found.graph()
    usage, variable = graph.rewrites[graph.correct]
    assert graph.labels[variable] == "values"
    assert graph.info["places"][usage] == [5, 8]
    assert graph.info["path"] == "a.py" and graph.info["lines"] == 5
    assert found.graph(max_nodes=5) is None


def test_names_within_tokens(tmp_path):
    changes = {"repair_targets": [6, 1]}
    (found,) = read_great(write(tmp_path, sample(**changes)))
    assert found.repairs == ("rest", "scale")
    assert found.graph().correct >= 0


def test_a_repair_that_may_not_stand_there(tmp_path):
    for repairs in ([], [TOKENS.index("sum(") - 2]):
        changes = {"error_location": 14, "repair_targets": repairs}
        (found,) = read_great(write(tmp_path, sample(**changes)))
        # The variable is assigned later, or no repair is known.
        assert found.has_bug and found.graph().correct is None


def test_strings_that_look_like_code(tmp_path):
    for text in ("'''(\n'''", 'rb"(("', "u']'"):
        tokens = [text if token.startswith("'") else token for token in TOKENS]
        (found,) = read_great(write(tmp_path, sample(source_tokens=tokens)))
        line, column = found.place
        assert found.source.split("\n")[line - 1][column:] == "low"
        assert line == 5 + text.count("\n")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source_tokens": None}, "source_tokens missing or of another type"),
        ({"has_bug": 1}, "has_bug missing or of another type"),
        ({"source_tokens": ["def", 1]}, "`source_tokens` to be texts"),
        ({"source_tokens": ["async", "("]}, "Python 3. Received: SyntaxError"),
        ({"source_tokens": ["a\0b"]}, "Python 3. Received: "),
        ({"source_tokens": ["(" * 10_000]}, "Python 3. Received: "),
        ({"error_location": 10**20}, r"`error_location` .* in \[0, 30\)"),
        ({"error_location": 0}, "`error_location` .* Received: 0"),
        ({"repair_targets": [-1]}, "`repair_targets` .* Received: -1"),
        ({"repair_targets": [True]}, "`repair_targets` .* Received: True"),
        ({"repair_targets": [14]}, "'low' for both"),
    ],
)
def test_what_is_refused(tmp_path, changes, message):
    path = write(tmp_path, sample(), sample(**changes), sample())
    with pytest.raises(ValueError, match=f"great.jsonl, line 2: .*{message}"):
        list(read_great(path))
    report = []
    assert len(list(read_great(path, on_error="skip", report=report))) == 2
    assert len(report) == 1 and "line 2" in report[0]
    with pytest.warns(UserWarning, match="Skipped: .*line 2"):
        assert len(list(read_great(path, on_error="skip"))) == 2


def test_files_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_great(tmp_path / "none")
    (tmp_path / "a.jsonl").write_text("{\n")
    with pytest.raises(ValueError, match="a.jsonl, line 1: Expected valid JSON"):
        list(read_great(tmp_path))
    with pytest.raises(ValueError, match="on_error"):
        read_great(tmp_path, on_error="ignore")
