import numpy as np
import pytest

from keras_bandgnn.programs.python_source import program_graphs

SOURCE = """
import os
LIMIT = 3
def helper(size): return size
class Kept: pass
def outer(first, second):
    def inner(third):
        hidden = helper(third)
        return first + os.sep + LIMIT + hidden
    late = inner(second)
    if first:
        maybe = 1
    return Kept(late)
"""


def at(graphs, line, variable):
    (graph,) = [
        graph
        for graph in graphs
        if (graph.info["line"], graph.info["variable"]) == (line, variable)
    ]
    return graph


def names(graph):
    return sorted(graph.labels[i] for i in graph.candidates)


def test_candidates_are_bound_local_variables():
    graphs = program_graphs(SOURCE)
    found = {(g.info["line"], g.info["variable"]): names(g) for g in graphs}
    inner = ["first", "late", "maybe", "second", "third"]
    assert found == {
        (8, "third"): inner,
        (9, "first"): sorted([*inner, "hidden"]),
        (9, "hidden"): sorted([*inner, "hidden"]),
        (10, "second"): ["first", "second"],
        (11, "first"): ["first", "late", "second"],
        (13, "late"): ["first", "late", "maybe", "second"],
    }
    assert at(graphs, 9, "first").info["function"] == "outer.inner"


def test_module_code_sees_its_variables():
    graphs = program_graphs("import a\nx = 1\ny = x\nz = y + a.b\ndef f(): return y\n")
    assert [(g.info["variable"], names(g)) for g in graphs] == [("y", ["x", "y"])]
    assert graphs[0].info["function"] == "<module>"
    assert "FunctionDef" in graphs[0].kinds


def test_class_code_and_comprehensions():
    source = "a = b = 1\nclass A:\n    c = a\n    d = [e for e in (b, c) if a]\n"
    graphs = program_graphs(source)
    found = [(g.info["variable"], names(g)) for g in graphs]
    assert found == [
        ("a", ["a", "b"]),
        ("e", ["a", "b", "e"]),
        ("b", ["a", "b", "c"]),
        ("c", ["a", "b", "c"]),
        ("a", ["a", "b", "e"]),
    ]


@pytest.mark.parametrize(
    "source",
    [
        "",
        "def f(a): return a",
        "def f(a, b):\n    del b\n    return a",
        "def f(a):\n    global b\n    b = 1\n    return a",
        "def f(a, b):\n    return 1\n    return a",
        "def f(a):\n    import b\n    def c(): pass\n    return a",
    ],
)
def test_fewer_than_two_candidates_make_no_instance(source):
    assert program_graphs(source) == []


def test_slot_and_candidates_come_first():
    for graph in program_graphs(SOURCE):
        count = len(graph.candidates)
        assert graph.slot == 0 and graph.candidates == tuple(range(1, count + 1))
        assert graph.labels[0] == "<SLOT>" and graph.kinds[0] == "Slot"
        assert set(graph.kinds[1 : count + 1]) == {"Candidate"}
        right = graph.labels[graph.candidates[graph.correct]]
        assert right == graph.info["variable"]
        for name, pairs in graph.edges.items():
            assert pairs.dtype == np.int32 and pairs.shape[1] == 2 and len(pairs)
            assert pairs.min() >= 0 and pairs.max() < len(graph.labels)
            assert len(np.unique(pairs, axis=0)) == len(pairs)
            allowed = {"LastUse", "LastWrite", "LastLexicalUse"}
            if name not in {*allowed, "GuardedBy", "GuardedByNegation"}:
                assert not np.isin(pairs, graph.candidates).any()
            if name in allowed:
                assert not (pairs == 0).any()


def test_hand_checked_instance():
    source = "def f(a, b):\n    if a:\n        g(b)\n    return b\n"
    graph = at(program_graphs(source), 3, "b")
    node = {name: graph.labels.index(name) for name in ("a", "b", "If")}
    tokens = {
        name: [
            i
            for i, label in enumerate(graph.labels)
            if label == name and graph.kinds[i] == "Identifier"
        ]
        for name in ("a", "b")
    }
    (a_1, a_2), (b_1, b_4) = tokens["a"], tokens["b"]
    test = graph.labels.index("Name")
    a, b = node["a"], node["b"]

    def edges(relation):
        return {tuple(pair) for pair in graph.edges.get(relation, np.empty((0, 2)))}

    assert edges("LastUse") == {(a, a_2), (b_4, b)}
    assert edges("LastWrite") == {(a, a_1), (b, b_1), (a_2, a_1), (b_4, b_1)}
    assert edges("LastLexicalUse") == {
        (a, a_2),
        (a_2, a_1),
        (b, b_1),
        (b_4, b),
        (b_4, b_1),
    }
    assert edges("GuardedBy") == {(0, test), (a, test)}


def test_loop_makes_a_candidate_its_own_last_use():
    source = "def f(a, b):\n    while g():\n        h(a)\n        b()\n"
    graph = at(program_graphs(source), 3, "a")
    loops = {i for i, j in graph.edges["LastUse"] if i == j}
    first, second = (
        next(i for i in graph.candidates if graph.labels[i] == name) for name in "ab"
    )
    # `b` is used again before control comes back to the slot.
    assert first in loops and second not in loops


def test_callee_and_receiver_do_not_tell_parameters():
    source = """
class A:
    def run(self, size):
        self.run(size)
        helper(size)
def helper(width, height): return height(width)
"""
    graphs = program_graphs(source)
    receiver, argument = at(graphs, 4, "self"), at(graphs, 4, "size")

    def formal(graph):
        ends = graph.edges["FormalArgName"].tolist()
        return sorted((graph.labels[a], graph.labels[b]) for a, b in ends)

    # Without its receiver nobody knows which `run` is called.
    assert formal(receiver) == [("size", "width")]
    assert formal(argument) == [("<SLOT>", "size"), ("size", "width")]


def test_steps_and_max_nodes_cut_the_context():
    source = "def f(a, b):\n" + "    g(a, b)\n" * 60
    whole = program_graphs(source, steps=1000)[50]
    near = program_graphs(source, steps=3)[50]
    few = program_graphs(source, max_nodes=20)[50]
    none = program_graphs(source, steps=0)[50]
    assert len(none.labels) == 3 < len(near.labels) < len(whole.labels)
    assert len(few.labels) == 20
    assert set(near.labels) <= set(whole.labels)


def test_max_candidates_keeps_the_right_one():
    parameters = ", ".join(f"v{i}" for i in range(30))
    source = f"def f({parameters}):\n    return [{parameters}]\n"
    graphs = program_graphs(source, max_candidates=4)
    assert len(graphs) == 30
    assert {len(graph.candidates) for graph in graphs} == {4}
    assert {graph.correct for graph in graphs} == {0, 1, 2, 3}
    kept = [tuple(names(graph)) for graph in graphs]
    assert len(set(kept)) > 20


def test_seed_and_filename_fix_the_choice():
    source = "def f(a, b, c):\n" + "    g(a, b, c)\n" * 30
    one = program_graphs(source, "x.py", max_instances=9)
    assert len(one) == 9
    places = [(g.info["line"], g.info["column"]) for g in one]
    assert places == sorted(places)

    def choice(*args, **kwargs):
        graphs = program_graphs(source, *args, max_instances=9, **kwargs)
        return [(g.info["line"], g.info["column"], g.labels[1:4]) for g in graphs]

    assert choice("x.py") == [
        (*p, g.labels[1:4]) for p, g in zip(places, one, strict=True)
    ]
    assert choice("y.py") != choice("x.py") != choice("x.py", seed=1)


def test_trivial_guesses():
    source = "def f(a, b, c):\n    g(a, a, a)\n    g(b)\n    return c\n"
    graph = at(program_graphs(source), 4, "c")
    guess = {
        name: graph.labels[graph.candidates[graph.info[name]]]
        for name in ("nearest", "frequent")
    }
    assert guess == {"nearest": "b", "frequent": "a"}


def test_file_context_holds_the_whole_file():
    near = program_graphs(SOURCE, steps=1000)[-1]
    whole = program_graphs(SOURCE, steps=1000, context="file")[-1]
    assert "Module" in whole.kinds and "Module" not in near.kinds
    assert whole.labels.count("helper") == 2 and near.labels.count("helper") == 1


def test_window_of_module_code_is_bounded():
    source = "a = b = 1\n" + "a = b + 1\n" * 2000
    graphs = program_graphs(source, steps=10**6, max_instances=3)
    assert max(len(graph.labels) for graph in graphs) < 2000


def test_too_large_functions_are_reported():
    big = "def big(a, b):\n" + "    g(a, b)\n" * 6000
    small = "def small(a, b): return a\n"
    reasons = []
    graphs = program_graphs(big + small, max_instances=2, on_skip=reasons.append)
    assert {graph.info["function"] for graph in graphs} == {"small"}
    assert len(reasons) == 1 and reasons[0].startswith("big has")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_candidates": 1}, "`max_candidates` to be at least 2"),
        ({"steps": -1}, "`steps` to be at least 0"),
        ({"max_nodes": 10}, "`max_nodes` to be at least 11"),
        ({"context": "class"}, "`context` to be one of"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        program_graphs("", **arguments)
