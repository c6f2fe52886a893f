"""Functions with planted bugs as graphs with labels."""

import pytest

from keras_bandgnn.programs import bug_samples, function_graph
from keras_bandgnn.programs.corpus.corpus_files import CorpusFunction

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


def test_limits_and_errors():
    assert not list(bug_samples(functions(SOURCE), max_nodes=10))
    assert not list(bug_samples(functions(SOURCE), max_rewrites=1))
    with pytest.raises(ValueError, match="read_corpus"):
        list(bug_samples([SOURCE]))
