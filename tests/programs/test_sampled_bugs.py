"""Functions with planted bugs as graphs with labels."""

import numpy as np
import pytest

from keras_bandgnn.programs import bug_samples, function_graph
from keras_bandgnn.programs.corpus_files import CorpusFunction

SOURCE = "def scale(values, low, high):\n    return [v * low + high for v in values]\n"


def functions(*sources):
    module = {"path": "a.py", "signatures": {}, "variables": []}
    package = {"package": "made"}
    return [
        CorpusFunction(f"f{i}", 1 + i, source, module, package)
        for i, source in enumerate(sources)
    ]


def test_each_function_comes_as_it_is_and_with_one_bug():
    bad = ("def f(a): return a", "def f(:", "def g(): pass")
    graphs = list(bug_samples(functions(SOURCE, *bad, SOURCE)))
    assert [graph.correct >= 0 for graph in graphs] == [False, True] * 2
    clean = function_graph(SOURCE)
    for graph in graphs[::2]:
        assert graph.labels == clean.labels
    for graph in graphs[1::2]:
        changed = sum(a != b for a, b in zip(graph.labels, clean.labels, strict=False))
        assert changed >= 1
        assert graph.info["package"] == "made" and graph.info["path"] == "a.py"


def test_draws_depend_on_seed_epoch_and_function():
    def drawn(**options):
        found = bug_samples(functions(*[SOURCE] * 8), **options)
        return [(g.labels, g.correct) for g in found]

    assert drawn() == drawn()
    assert drawn() != drawn(epoch=1)
    assert drawn() != drawn(seed=1)
    # One function does not change the draws of others.
    one = list(bug_samples(functions(*[SOURCE] * 8)[3:4]))
    assert [(g.labels, g.correct) for g in one] == drawn()[6:8]


def test_likely_mistakes_are_those_with_similar_names():
    source = (
        "def read(self, path, first_row, last_row):\n"
        "    return self.rows(path)[first_row:last_row]\n"
    )
    rows = {"first_row", "last_row"}

    def confused(**options):
        graphs = list(bug_samples(functions(*[source] * 60), **options))[1::2]
        used = [g.labels[g.used[g.rewrites[g.correct, 0]]] for g in graphs]
        repairs = [g.labels[g.rewrites[g.correct, 1]] for g in graphs]
        pairs = zip(used, repairs, strict=True)
        return np.mean([{*pair} == rows for pair in pairs])

    assert confused(mistakes="likely") > 2 * confused(mistakes="uniform")
    with pytest.raises(ValueError, match="mistakes"):
        list(bug_samples(functions(source), mistakes="real"))


def test_some_functions_get_a_name_that_nothing_reads():
    graphs = list(bug_samples(functions(*[SOURCE] * 40), unread_share=0.5))
    sizes = [len(graph.labels) for graph in graphs[::2]]
    plain = len(function_graph(SOURCE).labels)
    assert 8 < sum(size > plain for size in sizes) < 32
    # With the bug and without it alike.
    for clean, wrong in zip(graphs[::2], graphs[1::2], strict=True):
        assert len(clean.labels) == len(wrong.labels)
    assert [g.labels for g in graphs] == [
        g.labels for g in bug_samples(functions(*[SOURCE] * 40), unread_share=0.5)
    ]


def test_limits_and_errors():
    assert not list(bug_samples(functions(SOURCE), max_nodes=10))
    assert not list(bug_samples(functions(SOURCE), max_rewrites=1))
    with pytest.raises(ValueError, match="read_corpus"):
        list(bug_samples([SOURCE]))


def test_hard_bugs_are_those_that_the_judge_finds_plausible():
    clean = function_graph(SOURCE)
    place, name = clean.info["places"][1], "v"
    chosen = clean.rewrite_to(*place, name)

    def judge(graphs):
        rows = []
        for graph in graphs:
            assert graph.labels == clean.labels and graph.correct is None
            row = np.zeros(1 + len(graph.rewrites))
            row[[0, 1 + chosen]] = 0.9, 0.1
            rows.append(row)
        return rows

    def drawn(**options):
        found = bug_samples(functions(*[SOURCE] * 40), **options)
        return [g.labels for g in found if g.correct >= 0]

    hard = drawn(judge=judge, hard_share=1)
    assert len(hard) == 40 and len(set(hard)) == 1
    assert hard[0].count(name) == clean.labels.count(name) + 1
    half = drawn(judge=judge)
    assert 10 <= half.count(hard[0]) < 40 and len(set(half)) > 3
    # Graphs that the judge leaves out have bugs that are drawn uniformly.
    left_out = drawn(judge=lambda graphs: [None] * len(graphs), hard_share=1)
    assert len(set(left_out)) > 3


def test_a_judge_and_a_share_that_do_not_fit():
    with pytest.raises(ValueError, match="judge"):
        bug_samples(functions(SOURCE), judge=1)
    with pytest.raises(ValueError, match="hard_share"):
        bug_samples(functions(SOURCE), hard_share=2)
