"""Every format, with names and texts that would break a careless one."""

import dataclasses
import json
import re

import jsonschema
import pytest

from keras_bandgnn.programs.linting.formats import (
    FORMATS,
    Run,
    github,
    json_lines,
    sarif,
    text,
)
from keras_bandgnn.programs.linting.source_code import SourceCode
from tests.programs.linting.samples import Spelled, result
from tests.programs.linting.sarif import SCHEMA

NOTEBOOK = SourceCode("book.ipynb", "x = 1\ny = bad_b\n", ((1, 2), (2, 5)))


def run(*names) -> Run:
    results = [result("ä = bad_a\n\nx = 'é' + bad_größe\n", name) for name in names]
    (book,) = Spelled().check([NOTEBOOK])
    (found,) = book.findings
    found = dataclasses.replace(found, cell=5, line=1)
    results.append(dataclasses.replace(book, findings=(found,)))
    errors = [("broken.py", "SyntaxError: 100 %\nof: it, is")]
    return Run(results, errors, len(results), "model", 0.99)


ODD = ["a b,c:d%.py", "/elsewhere/é.py", "line\nbreak\x1b.py", "raw\udcff.py"]


@pytest.mark.parametrize("name", FORMATS)
def test_no_findings(name):
    printed = FORMATS[name](Run([], [], 3, "model", 0.99))
    assert {"text": "0 findings in 3 files\n", "github": ""}.get(
        name, printed
    ) == printed
    if name in ("json", "sarif"):
        json.loads(printed)


def test_text():
    first, second, book, summary = text(run("a.py")).splitlines()
    assert first == (
        "a.py:1:5: wrong-variable: `bad_a` is used in function, `a` may be meant "
        "(99.9 %)"
    )
    assert second.startswith("a.py:3:11: ")
    assert book.startswith("book.ipynb:cell 5:1:5: ")
    assert summary == "3 findings in 2 files"
    odd = text(run(*ODD))
    assert len(odd.splitlines()) == 2 * len(ODD) + 2
    assert "\x1b" not in odd and odd.encode()


def test_json():
    content = json.loads(json_lines(run("a.py", *ODD)))
    assert (content["version"], content["files"]) == (1, 6)
    first = content["findings"][0]
    assert re.fullmatch("[0-9a-f]{32}", first.pop("fingerprint"))
    assert first == {
        "path": "a.py",
        "line": 1,
        "column": 5,
        "end_column": 10,
        "cell": None,
        "used": "bad_a",
        "suggested": "a",
        "confidence": 0.999,
        "candidates": [
            {"name": "a", "probability": 0.999},
            {"name": "bad_a", "probability": pytest.approx(0.001)},
        ],
        "function": "function",
        "code": "ä = bad_a",
    }
    assert content["errors"][0]["path"] == "broken.py"
    assert [f["path"] for f in content["findings"][2:-1:2]] == ODD


def test_sarif(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = json.loads(sarif(run("a.py", "sub/ä.py", *ODD)))
    jsonschema.validate(log, SCHEMA)
    (entry,) = log["runs"]
    assert not entry["invocations"][0]["executionSuccessful"]
    physical = [r["locations"][0]["physicalLocation"] for r in entry["results"]]
    assert physical[0]["artifactLocation"] == {"uri": "a.py", "uriBaseId": "%SRCROOT%"}
    assert physical[2]["artifactLocation"]["uri"] == "sub/%C3%A4.py"
    assert physical[6]["artifactLocation"]["uri"].startswith("file:///elsewhere/")
    assert physical[1]["region"] == {
        "startLine": 3,
        "startColumn": 11,
        "endColumn": 20,
        "snippet": {"text": "bad_größe"},
    }
    assert physical[1]["contextRegion"] == {
        "startLine": 3,
        "snippet": {"text": "x = 'é' + bad_größe"},
    }
    # It is larger than the region.
    (whole,) = json.loads(sarif(Run([result("bad_a\n")], [], 1, "m", 0.9)))["runs"]
    (location,) = whole["results"][0]["locations"]
    assert "contextRegion" not in location["physicalLocation"]
    assert "region" not in physical[-1] and "fixes" not in entry["results"][-1]
    assert entry["results"][-1]["message"]["text"].startswith("Cell 5, line 1, ")
    marks = [r["partialFingerprints"]["bandgnn/v1"] for r in entry["results"]]
    assert len(set(marks)) == len(marks)


def test_the_schema_refuses_what_the_standard_does():
    log = json.loads(sarif(run("a.py")))
    for change in (
        lambda r: r["results"][0].pop("message"),
        lambda r: r["results"][0].update(line=1),
        lambda r: r["tool"]["driver"].pop("name"),
        lambda r: r["results"][0].update(level="bad"),
    ):
        copy = json.loads(json.dumps(log))
        change(copy["runs"][0])
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(copy, SCHEMA)


def test_github():
    lines = github(run("a.py", *ODD)).splitlines()
    assert lines[0] == (
        "::warning file=a.py,line=1,endLine=1,col=5,endColumn=9,title=wrong-variable"
        "::`bad_a` is used in function, `a` may be meant (99.9 %25)"
    )
    assert len(lines) == 2 * 5 + 2
    assert lines[2].startswith("::warning file=a b%2Cc%3Ad%25.py,line=1,")
    assert "line%0Abreak" in lines[6]
    assert "book.ipynb,title" in lines[-2] and "cell 5, line 1: " in lines[-2]
    assert lines[-1] == (
        "::error file=broken.py,title=not checked::SyntaxError: 100 %25%0Aof: it, is"
    )
