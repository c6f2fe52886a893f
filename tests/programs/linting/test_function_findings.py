"""Findings of a `BugLocalizer`: places, probabilities, and what is skipped."""

import operator
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.programs.encode_functions import encode_function
from keras_bandgnn.programs.linting import function_findings
from keras_bandgnn.programs.linting.checker import Checker
from keras_bandgnn.programs.linting.function_findings import FunctionFindings, read_file
from keras_bandgnn.programs.linting.source_code import SourceCode

ROOT = Path(__file__).resolve().parents[3]
TEXT = '''
class Box:
    @property
    def area(self, width, height):
        """Ärea."""
        return width * width


def scale(low, high):
    return [low * x for x in high]
'''


@pytest.fixture(scope="module")
def task():
    encoder = kb.preprocessing.FunctionEncoder(num_subtoken_buckets=64)
    backbone = kb.models.GGNNBackbone(
        encoder.inputs(), 8, num_steps=1, num_edge_types=encoder.num_edge_types
    )
    return kb.models.BugLocalizer(
        backbone, kb.preprocessing.GraphPreprocessor([encoder])
    )


def test_what_nothing_reads_by_convention_or_a_linter_reports_is_not_suggested(task):
    text = (
        "def f(rows, _hook, other):\n    unused = rows\n    for _, item in rows:\n"
        "        with other as handle:\n            other(item, rows)\n"
        "    try:\n        other(rows)\n    except (OSError, other.Error) as error:\n"
        "        other(rows, rows)\n"
        "    for number, spare in rows:\n        other(number)\n"
    )
    (result,) = FunctionFindings(task, least=0.0).check([SourceCode("a.py", text)])
    pairs = [pair for finding in result.findings for pair in finding.candidates]
    names = {name for name, share in pairs if share > 0}
    # A loop's name and a parameter may be read nowhere for no reason that is known.
    assert names == {"rows", "other", "item", "number", "spare"}
    reads_all = text.replace("other(number)", "other(number, locals())")
    (result,) = FunctionFindings(task, least=0.0).check([SourceCode("a.py", reads_all)])
    names = {name for f in result.findings for name, _ in f.candidates}
    assert {"unused", "handle", "_hook", "_", "error"} <= names


def test_the_instance_and_the_class_are_not_suggested(task):
    text = (
        "class Box:\n    def fill(self, other):\n        other.size = self\n"
        "        return other\n\n    @classmethod\n    def make(cls, other):\n"
        "        return other(cls)\n"
    )
    (result,) = FunctionFindings(task, least=0.0).check([SourceCode("a.py", text)])
    pairs = [pair for finding in result.findings for pair in finding.candidates]
    suggested = {f.suggested for f in result.findings if f.confidence > 0}
    assert suggested == {"other"}
    assert {f.used for f in result.findings} == {"self", "cls", "other"}
    assert {name for name, share in pairs if share > 0} == {"self", "cls", "other"}


def test_a_calibration_changes_confidence_but_not_what_is_found(task):
    rare = kb.models.BugLocalizer(
        task.backbone, task.preprocessor, calibration=(2.0, 8.0)
    )
    rare.head.set_weights(task.head.get_weights())
    code = SourceCode("a.py", TEXT)
    (before,) = FunctionFindings(task).check([code])
    (after,) = FunctionFindings(rare).check([code])
    place = operator.attrgetter("place", "suggested")
    assert list(map(place, before.findings)) == list(map(place, after.findings))
    assert before.findings
    for one, other in zip(before.findings, after.findings, strict=True):
        assert other.confidence < one.confidence / 10
        assert sum(share for _, share in other.candidates) == pytest.approx(1)


def test_every_usage_has_its_place_and_a_distribution(task):
    codes = [SourceCode("a.py", TEXT), SourceCode("b.py", "x = 1\n")]
    source = FunctionFindings(task, least=0.0)
    first, second, third = source.check([*codes, SourceCode("c.py", TEXT)])
    assert (second.findings, second.skipped, second.error) == ((), (), None)
    assert [(f.line, f.column) for f in first.findings][:2] == [(6, 16), (6, 24)]
    lines = TEXT.split("\n")
    for finding in first.findings:
        place = slice(finding.column - 1, finding.end_column - 1)
        assert lines[finding.line - 1][place] == finding.used
        names, shares = zip(*finding.candidates, strict=True)
        assert np.isclose(sum(shares), 1.0) and sorted(shares)[::-1] == list(shares)
        assert finding.used in names and finding.suggested != finding.used
        assert dict(finding.candidates)[finding.suggested] == finding.confidence
    assert {f.function for f in first.findings} == {"Box.area", "scale"}
    # Findings do not depend on the other files.
    (alone,) = source.check(codes[:1])
    for one, other in zip(first.findings, alone.findings, strict=True):
        assert (one.line, one.column) == (other.line, other.column)
        assert one.confidence == pytest.approx(other.confidence, abs=1e-5)
    assert len(third.findings) == len(first.findings)


def transformer():
    encoder = kb.preprocessing.FunctionEncoder(num_subtoken_buckets=64)
    types = encoder.num_edge_types
    backbone = kb.models.GTBackbone(
        encoder.inputs(),
        8,
        1,
        num_heads=2,
        laplacian=0,
        num_edge_types=types + 1,
        target_type=types - 2,
    )
    layers = [encoder, *backbone.graph_layers()]
    return kb.models.BugLocalizer(backbone, kb.preprocessing.GraphPreprocessor(layers))


@pytest.mark.parametrize("kind", ["GGNN", "GT"])
def test_probabilities_are_those_of_the_task(task, kind):
    task = transformer() if kind == "GT" else task
    text = "def scale(low, high):\n    return low - high\n"
    (found,) = FunctionFindings(task, least=0.0).check([SourceCode("a.py", text)])
    graph = kb.programs.function_graph(text, name="scale")
    (shares,) = task.rewrite_probabilities([graph], verbose=0)
    confidences = [finding.confidence for finding in found.findings]
    assert confidences == pytest.approx(shares[1:].tolist(), abs=1e-5)
    (found,) = FunctionFindings(task, least=1.0).check([found.code])
    assert found.findings == ()


def test_what_cannot_be_read(task, monkeypatch):
    codes = [SourceCode("a.py", "def f(:\n"), SourceCode("b.py", TEXT, (), ("cell",))]
    monkeypatch.setattr(function_findings, "_MAX_REWRITES", 3)
    broken, large = FunctionFindings(task).check(codes)
    assert broken.error.startswith("SyntaxError")
    assert large.error is None and large.skipped[0] == "cell"
    assert "Box.area: too large to check" in large.skipped


def test_names_that_python_normalises_end_where_they_do_in_the_source(task):
    text = "def f(ﬁx, other):\n    return ﬁx*other\n"
    (found,) = FunctionFindings(task, least=0.0).check([SourceCode("a.py", text)])
    used = [(f.used, f.column, f.end_column) for f in found.findings]
    assert used == [("fix", 12, 14), ("other", 15, 20)]


@pytest.mark.release
def test_functions_that_are_too_large_are_named(task):
    long = "def f(a, b):\n" + "    print(a, b)\n" * 6000
    inner = "def g(c, d):\n    def h(a, b):\n" + "        print(a, b)\n" * 6000
    text = long + inner + "    return c + d\n"
    (found,) = FunctionFindings(task).check([SourceCode("a.py", text)])
    assert found.error is None
    assert found.skipped == ("f: too large to check", "g: too large to check")
    assert {finding.function for finding in found.findings} <= {"g"}


@pytest.mark.release
def test_many_files_are_read_ahead_in_few_shapes(task, monkeypatch):
    """Results do not depend on processes and batches; one shape but for the rest."""
    long = "def f(low, high):\n" + "    low = low + high\n" * 150
    texts = [TEXT, long, "x = 1\n", "def f(:\n", TEXT.replace("scale", "shift")] * 4
    codes = [SourceCode(f"{k}.py", text) for k, text in enumerate(texts)]
    (alone,) = FunctionFindings(task).check(codes[:1])
    monkeypatch.setattr(function_findings, "_SMALL", 1000)
    monkeypatch.setattr(function_findings, "_NODES", 1024)
    monkeypatch.setattr(function_findings, "_FIRST_WINDOW", 2048)
    monkeypatch.setattr(function_findings, "_WINDOW", 2048)
    source = FunctionFindings(task, processes=2)
    shapes = set()
    predict_on_batch = type(task.distribution).predict_on_batch

    def predict(self, task, batch):
        shapes.add(batch["edge"]["mask"].shape)
        return predict_on_batch(self, task, batch)

    monkeypatch.setattr(type(task.distribution), "predict_on_batch", predict)
    results = list(source.check(iter(codes)))
    assert [result.code.path for result in results] == [code.path for code in codes]
    for result in results[::5]:
        confidences = [finding.confidence for finding in result.findings]
        expected = [finding.confidence for finding in alone.findings]
        assert confidences == pytest.approx(expected, abs=1e-5)
    assert all(result.error.startswith("SyntaxError") for result in results[3::5])
    assert len(shapes) <= 3
    assert set(source.seconds) == {"reading", "packing", "model"}
    assert min(source.seconds.values()) > 0


def test_first_results_come_early(task, monkeypatch):
    (graph,) = read_file("def f(a, b):\n    return a - b\n", None).graphs
    nodes = len(encode_function(graph, num_subtoken_buckets=64).node["type"])
    monkeypatch.setattr(function_findings, "_FIRST_WINDOW", 2 * nodes)
    monkeypatch.setattr(function_findings, "_WINDOW", 6 * nodes)
    codes = [
        SourceCode(f"{k}.py", "def f(a, b):\n    return a - b\n") for k in range(30)
    ]
    taken = []
    results = FunctionFindings(task, least=0.0).check(
        taken.append(code) or code for code in codes
    )
    # Short texts are read before the first of them is judged.
    judged = []
    judge = FunctionFindings._judge
    monkeypatch.setattr(
        FunctionFindings,
        "_judge",
        lambda self, files: judged.append(len(files)) or judge(self, files),
    )
    assert next(results).code is codes[0] and judged == [2]
    assert [result.code for result in results] == codes[1:]
    assert judged == [2, 4, 6, 6, 6, 6, 0] and len(taken) == 30


class OtherEncoder(kb.preprocessing.FunctionEncoder):
    """An encoder that worker processes do not know."""


def test_an_encoder_of_another_class_is_applied(task, monkeypatch):
    calls = []
    monkeypatch.setattr(
        OtherEncoder,
        "call",
        lambda self, graph: (
            calls.append(graph) or kb.preprocessing.FunctionEncoder.call(self, graph)
        ),
    )
    encoder = OtherEncoder(num_subtoken_buckets=64)
    layers = [encoder, kb.preprocessing.RCMKCompile(16)]
    other = kb.models.BugLocalizer(
        task.backbone, kb.preprocessing.GraphPreprocessor(layers)
    )
    other.set_weights(task.get_weights())
    codes = [SourceCode("a.py", TEXT)]
    (expected,) = FunctionFindings(task, least=0.0).check(codes)
    (found,) = FunctionFindings(other, least=0.0).check(codes)
    assert len(calls) == 2
    assert len(found.findings) == len(expected.findings)
    for one, two in zip(found.findings, expected.findings, strict=True):
        assert dict(one.candidates) == pytest.approx(dict(two.candidates), abs=1e-5)


def test_a_model_that_diverged(task, monkeypatch):
    def predict_on_batch(task, batch):
        return np.full((*batch["edge"]["mask"].shape, 2), np.nan, np.float32)

    monkeypatch.setattr(
        type(task.distribution), "predict_on_batch", staticmethod(predict_on_batch)
    )
    text = "def f(a, b):\n    return a\n"
    with pytest.raises(ValueError, match="diverged"):
        list(FunctionFindings(task).check([SourceCode("a.py", text)]))


def test_a_task_without_preprocessor(task):
    with pytest.raises(ValueError, match="FunctionEncoder"):
        FunctionFindings(kb.models.BugLocalizer(task.backbone))


def test_presets_choose_the_source(task, tmp_path):
    task.save_to_preset(tmp_path / "model")
    checker = Checker(tmp_path / "model", 0.02, tmp_path / "cache")
    code = SourceCode("a.py", TEXT.replace("x for", "x  # bandgnn: ignore\n    for"))
    (found,) = checker.check([code])
    assert isinstance(checker.source, FunctionFindings)
    assert set(checker.seconds) == {"loading", "reading", "packing", "model"}
    assert 0 < checker.seconds["loading"] < 300 and checker.loaded is not None
    assert found.findings and found.error is None
    assert all(finding.confidence >= 0.02 for finding in found.findings)
    again = Checker(tmp_path / "model", 0.02, tmp_path / "cache")
    assert list(again.check([code])) == [found]
    assert again._source is None


def test_cached_findings_do_not_load_keras(task, tmp_path):
    task.save_to_preset(tmp_path / "model")
    (tmp_path / "a.py").write_text(TEXT)
    script = (
        "import sys\nsys.argv[0] = 'bandgnn'  # which imports what it uses\n"
        "from keras_bandgnn.cli.main import main\n"
        "main(sys.argv[1:])\nprint('keras' in sys.modules)\n"
    )
    line = ["check", "a.py", "--model", "model", "--cache-dir", "cache"]
    for loaded in ("True", "False"):
        done = subprocess.run(
            [sys.executable, "-c", script, *line],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.stdout.split()[-1] == loaded, done.stderr


NEWER = """
def first(left, right):
    return left + right


lazy import os
"""


@pytest.mark.skipif(sys.version_info >= (3, 15), reason="it is not newer")
def test_newer_source_is_skipped_with_one_reason(task):
    broken = SourceCode("b.py", "def f(:")
    newer, wrong = FunctionFindings(task).check([SourceCode("a.py", NEWER), broken])
    assert newer.error is None and not newer.findings
    (reason,) = newer.skipped
    assert reason.startswith("needs Python 3.15 or later")
    assert wrong.error.startswith("SyntaxError")


FUNCTION = "def f{}(left, right):\n    return left + right\n"
CLASS = """
class C{}:
    def get(self, key):
        return key

    def run(self, key):
        return self.get(key)
"""


@pytest.mark.parametrize("definition", [FUNCTION, CLASS])
def test_the_time_of_a_file_is_linear_in_its_functions(definition):
    def calls(count):
        text = "".join(definition.format(k) for k in range(count))
        total = 0

        def profile(frame, event, argument):
            nonlocal total
            total += event in ("call", "c_call")

        sys.setprofile(profile)
        try:
            file = read_file(text, None)
        finally:
            sys.setprofile(None)
        assert len(file.functions) == definition.count("def ") * count
        return total

    calls(10)  # fills caches
    assert calls(1000) < 10.5 * calls(100)
