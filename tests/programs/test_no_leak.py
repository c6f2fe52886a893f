"""Nothing but its meaning tells of a planted bug."""

import ast
import dataclasses
import random
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from examples.benchmarks.bug_leaks import renamed, separation, shuffled, token_counts
from examples.benchmarks.bug_texts import function_source, generator
from keras_bandgnn.programs import bug_samples, function_graph
from keras_bandgnn.programs.corpus_files import CorpusFunction
from keras_bandgnn.programs.functions import read_module
from keras_bandgnn.programs.planted_bugs import plant

LIMITS = {"max_nodes": 300, "max_rewrites": 60}


@pytest.fixture(scope="module")
def functions():
    """Functions of modules of this Python, in random order."""
    found = []
    for name in ("argparse", "configparser", "shutil", "textwrap", "tarfile"):
        path = Path(sysconfig.get_path("stdlib")) / f"{name}.py"
        module = read_module(path.name, path.read_text())
        found += [
            CorpusFunction(
                item["name"], item["line"], item["source"], module, {"package": name}
            )
            for item in module["functions"]
        ]
    random.Random(0).shuffle(found)
    return found


@pytest.fixture(scope="module")
def pairs(functions):
    """Graphs of functions, each as it is and with a bug."""
    graphs = list(bug_samples(functions, **LIMITS))
    places = [i for i, graph in enumerate(graphs) if graph.correct >= 0]
    return [graphs[j] for i in places for j in (i - 1, i)]


def test_a_planted_bug_is_read_like_any_other_source(functions):
    count = 0
    for function in functions[:60]:
        read = function_source(function)
        planted = plant(read, generator(function, seed=0))
        graphs = list(bug_samples([function]))
        if planted is None or len(graphs) < 2:
            continue
        signatures = function.module["signatures"]
        plain = function_graph(planted[0].source, (), signatures, function.name)
        wrong = graphs[1]
        assert wrong.labels == plain.labels and wrong.kinds == plain.kinds
        assert wrong.info["places"] == plain.info["places"]
        for relation, rows in plain.edges.items():
            np.testing.assert_array_equal(wrong.edges[relation], rows)
        for name in ("usages", "used", "rewrites"):
            np.testing.assert_array_equal(getattr(wrong, name), getattr(plain, name))
        count += 1
    assert count > 20


def test_counts_of_tokens_do_not_tell_of_a_bug(pairs):
    half = len(pairs) // 4 * 2
    found = separation(pairs[:half], pairs[half:], token_counts)
    assert found["functions"] > 100
    assert 0.45 < found["auc"] < 0.56
    # A sign that is there would be found.
    marked = [
        dataclasses.replace(graph, labels=("planted", *graph.labels[1:]))
        if graph.correct >= 0
        else graph
        for graph in pairs
    ]
    assert separation(marked[:half], marked[half:], token_counts)["auc"] > 0.95


def test_any_rewrite_may_be_right(pairs):
    bugs = [graph for graph in pairs if graph.correct >= 0]
    place = np.array([(g.correct + 0.5) / len(g.rewrites) for g in bugs])
    # Uniform: the mean has a deviation of 1 in sqrt(12 n).
    assert abs(place.mean() - 0.5) < 4 / np.sqrt(12 * len(bugs))
    chance = np.mean([1 / (1 + len(graph.rewrites)) for graph in pairs])
    labels = [graph.correct for graph in shuffled(pairs, seed=0)]
    same = np.mean([a == g.correct for a, g in zip(labels, pairs, strict=True)])
    assert abs(same - chance) < 4 * np.sqrt(chance / len(pairs))


def variables(graph):
    """Tokens of each variable, by its node."""
    found = {}
    for variable, token in graph.edges["Occurrence"].tolist():
        found.setdefault(variable, []).append(token)
    return {variable: tuple(sorted(tokens)) for variable, tokens in found.items()}


def test_a_renamed_variable_changes_names_only(functions):
    count = 0
    for function in functions[:80]:
        source = renamed(function, 0, ["fresh", "other"])
        if source is None:
            continue
        ast.parse("if 1:\n" + source if source[0] == " " else source)
        signatures = function.module["signatures"]
        old, new = (
            function_graph(text, (), signatures, function.name)
            for text in (function.source, source)
        )
        assert old.kinds == new.kinds and old.info["function"] == new.info["function"]
        np.testing.assert_array_equal(old.usages, new.usages)
        mine, theirs = variables(old), variables(new)
        for relation in set(old.edges) - {"Occurrence"}:
            np.testing.assert_array_equal(old.edges[relation], new.edges[relation])
        assert [mine[v] for v in old.used] == [theirs[v] for v in new.used]
        pairs = [
            {(usage, tokens[v]) for usage, v in graph.rewrites.tolist()}
            for graph, tokens in ((old, mine), (new, theirs))
        ]
        assert pairs[0] == pairs[1]
        changed = {
            (a, b) for a, b in zip(old.labels, new.labels, strict=True) if a != b
        }
        assert any(b in ("fresh", "other") for _, b in changed)
        count += 1
    assert count > 20
