import functools
import os
import random

import numpy as np
import pytest

from keras_bandgnn.programs.python_source.base import BaseGraphs
from keras_bandgnn.programs.python_source.instances import InstanceBuilder
from keras_bandgnn.programs.python_source.tokens import decode
from keras_bandgnn.programs.python_source.unit import SourceUnit

LIBRARY = os.path.dirname(os.__file__)
FILES = [
    "asyncio/locks.py",
    "asyncio/queues.py",
    "bisect.py",
    "calendar.py",
    "cmd.py",
    "codeop.py",
    "colorsys.py",
    "contextlib.py",
    "copy.py",
    "csv.py",
    "fnmatch.py",
    "getopt.py",
    "glob.py",
    "gzip.py",
    "heapq.py",
    "html/parser.py",
    "json/decoder.py",
    "json/encoder.py",
    "netrc.py",
    "queue.py",
    "quopri.py",
    "sched.py",
    "shlex.py",
    "string.py",
    "textwrap.py",
    "timeit.py",
    "tomllib/_parser.py",
    "wave.py",
]
HAND = """
def outer(first, second, items):
    def inner(third):
        return first + third + second
    total = [first for second in items if second if first]
    for item in items:
        if item and first:
            total += inner(item)
            continue
        elif not second:
            break
        while second:
            second = first[item] = item
    try:
        with open(first) as second:
            first.run(second, key=items)
    except OSError as error:
        raise error from first
    finally:
        del items
    match first:
        case [second, *third] if second:
            return third or second
    return (lambda last: last + first)(total) if (third := total) else third
class A:
    def method(self, other, third=None):
        self.method(other, third)
        return [self for other in self if other.method(self, other)]
left = right = 1
if left:
    right += left + [left for left in (left, right)][0]
"""


@functools.cache
def source_of(name):
    if name == "HAND":
        return HAND
    with open(os.path.join(LIBRARY, name), "rb") as file:
        return decode(file.read())


def maker_of(source, context="function", max_candidates=1000):
    return InstanceBuilder(SourceUnit(source), "file.py", 0, max_candidates, context)


def graph_at(maker, token):
    """The graph of the slot at a token, None if it has none."""
    for usage in maker.usages():
        if usage.token == token:
            return maker.make(usage)
    return None


def replaced(source, place, old, new):
    """The source with the name at (line, column) replaced."""
    lines = source.split("\n")
    line, column = place[0] - 1, place[1]
    text = lines[line]
    assert text[column : column + len(old)] == old
    lines[line] = text[:column] + new + text[column + len(old) :]
    return "\n".join(lines)


def sampled(source, count, seed):
    """Some slots of a source, as (slot graph, its place in the text)."""
    maker = maker_of(source)
    usages = maker.usages()
    random.Random(seed).shuffle(usages)
    found = []
    for usage in usages:
        graph = maker.make(usage)
        if graph is not None and len(found) < count:
            found.append((graph, maker._unit.tokens.starts[usage.token]))
    return found


def assert_same(one, other):
    assert one.labels == other.labels
    assert one.kinds == other.kinds
    assert one.candidates == other.candidates
    assert one.edges.keys() == other.edges.keys()
    for name in one.edges:
        np.testing.assert_array_equal(one.edges[name], other.edges[name], name)
    for guess in ("nearest", "frequent"):
        assert one.info[guess] == other.info[guess]


@pytest.mark.parametrize("name", ["HAND", *FILES])
def test_graph_does_not_depend_on_what_stands_in_the_slot(name):
    """Writing another candidate there changes nothing but `correct`.

    With a cap on the number of candidates this holds where both are among those
    kept anyway: otherwise the one that stands there takes the last one's place.
    """
    source = source_of(name)
    choose = random.Random(name)
    slots = sampled(source, 1000 if name == "HAND" else 3, name)
    assert slots
    for graph, place in slots:
        slot, expected = graph._slot, graph.cut(8, None)
        others = [v.name for v in slot.candidates if v is not slot.variable]
        count = len(others) if name == "HAND" else min(2, len(others))
        for other in choose.sample(others, count):
            edited = replaced(source, place, slot.variable.name, other)
            again = graph_at(maker_of(edited), slot.token).cut(8, None)
            assert again.info["variable"] == other
            assert again.labels[again.candidates[again.correct]] == other
            assert again.correct != expected.correct
            assert_same(expected, again)


@pytest.mark.parametrize("context", ["function", "file"])
def test_slots_everywhere_with_few_candidates(context):
    for graph, place in sampled(HAND, 1000, 0):
        slot = graph._slot
        one = graph_at(maker_of(HAND, context, 3), slot.token)
        kept = one._slot.candidates
        for other in kept:
            edited = replaced(HAND, place, slot.variable.name, other.name)
            again = graph_at(maker_of(edited, context, 3), slot.token)
            names = [[v.name for v in x._slot.candidates] for x in (one, again)]
            assert other.name in names[1]
            if set(names[0]) == set(names[1]):
                assert_same(one.cut(8, 60), again.cut(8, 60))


def rows(pairs):
    return {(int(a), int(b)) for a, b in pairs}


def plain_edges(source, token, function):
    """Edges of the source as it stands, by relation, around a token."""
    unit = SourceUnit(source)
    if function is not None:
        nodes = [f.node for f in unit.frames if f.in_function]
        function = next(n for n in nodes if n.lineno == function.lineno)
    base = BaseGraphs(unit, "function").around(token, function)
    edges = {name: rows(pairs) for name, pairs in base.edges.items()}
    for relation, found in base.guard_edges.items():
        edges[relation] = rows(found[:, 1:])
    return edges


FLOW = ["LastUse", "LastWrite", "LastLexicalUse", "GuardedBy", "GuardedByNegation"]


@pytest.mark.parametrize("name", ["HAND", *FILES[::3]])
def test_wiring_equals_that_of_a_rewritten_file(name):
    """The graph is that of a file without the name, each candidate that with it."""
    source = source_of(name)
    for graph, place in sampled(source, 1000 if name == "HAND" else 2, name):
        slot, base, node = graph._slot, graph._base, graph._node
        mine = {relation: rows(graph._edges[relation]) for relation in FLOW}
        old = slot.variable.name

        def plain(new, place=place, old=old, base=base, slot=slot):
            edited = replaced(source, place, old, new)
            return plain_edges(edited, slot.token, base.region.function)

        absent = plain("never_bound_name")
        for relation in FLOW:
            kept = {e for e in mine[relation] if max(e) < graph._first}
            expected = absent.get(relation, set())
            assert {e for e in kept if node not in e} == expected
            if relation.startswith("Last"):
                assert not any(node in e for e in kept)
        for position, variable in enumerate(slot.candidates[:4]):
            there = plain(variable.name)
            candidate = graph._first + position
            swap = {candidate: node}
            for relation in FLOW:
                wired = {
                    (swap.get(a, a), swap.get(b, b))
                    for a, b in mine[relation]
                    if candidate in (a, b)
                }
                expected = {e for e in there.get(relation, set()) if node in e}
                assert wired == expected, (relation, place, variable.name)
