"""Usages of variables and planted bugs."""

import ast

import pytest

from keras_bandgnn.programs import plant_bug, variable_usages

FUNCTION = '''
@decorated(limit)
def clip(value: low, low, high=limit) -> high:
    """value"""
    total: low = value
    if value < low:
        return low + LIMIT
    other = total * 2
    return other
    value = low
'''.strip()


def names(source, module=()):
    return {(u.line, u.name): u.candidates for u in variable_usages(source, module)}


def test_usages_are_reads_of_variables_that_are_reached():
    found = names(FUNCTION, ["LIMIT"])
    assert set(found) == {
        *((4, "value"), (5, "value"), (5, "low"), (6, "low"), (6, "LIMIT")),
        *((7, "total"), (8, "other")),
    }
    assert found[6, "LIMIT"] == ("high", "low", "total", "value")
    # `total` is `value` there, and `other` is not bound before.
    assert found[5, "value"] == ("LIMIT", "high", "low")
    assert found[8, "other"] == ("LIMIT", "high", "low", "total", "value")


def test_module_variables_are_usages_only_if_they_are_named():
    assert (6, "LIMIT") not in names(FUNCTION)
    assert "LIMIT" not in names(FUNCTION)[6, "low"]


def test_an_indented_function_has_the_same_usages():
    indented = "\n".join("    " + line for line in FUNCTION.split("\n"))
    moved = [(u.line, u.column - 4, u.name) for u in variable_usages(indented)]
    assert moved == [(u.line, u.column, u.name) for u in variable_usages(FUNCTION)]


@pytest.mark.parametrize(
    ("body", "equal"),
    [
        ("b = a\nreturn b", True),
        ("b = a\na = f()\nreturn b", False),
        ("b = a\nb = f()\nreturn b", False),
        ("b = a\nif c:\n  b = f()\nreturn b", False),
        ("b = a\nfor c in f():\n  g(b)\nreturn b", True),
        ("b = a = f()\nreturn b", True),
        ("a = None\nb = None\nreturn b", True),
        ("a = 1\nb = 2\nreturn b", False),
        ("a = f()\nb = f()\nreturn b", False),
        ("a, b = c, c\nreturn b", True),
        ("c, b = a, 3\nreturn b", False),
        ("(b := a)\nreturn b", True),
        ("b: int = a\nreturn b", True),
        ("b += a\nreturn b", False),
    ],
)
def test_names_that_are_equal_are_no_candidates(body, equal):
    lines = "\n".join("  " + line for line in body.split("\n"))
    source = f"def test(a, b, c, d):\n{lines}"
    last = [u for u in variable_usages(source) if u.line == source.count("\n") + 1]
    assert [u.name for u in last] == ["b"]
    assert ("a" not in last[0].candidates) == equal


@pytest.mark.parametrize(
    "body",
    [
        "  if False:\n    return a",
        "  if TYPE_CHECKING:\n    g(a)",
        "  if typing.TYPE_CHECKING:\n    g(a)",
        "  while 0:\n    g(a)",
        "  a",
        "  x: a = 1",
        "  def inner(x: a) -> b: pass",
        "  return\n  g(a)",
        "  raise E\n  g(a)",
        "  del a",
    ],
)
def test_what_is_no_usage(body):
    assert variable_usages(f"def f(a, b):\n{body}") == []


def test_nested_functions_comprehensions_and_lambdas():
    source = (
        "def f(items, key):\n"
        "  def inner(x):\n"
        "    return x + key\n"
        "  return [inner(i) for i in items if key], lambda y: y"
    )
    found = names(source)
    assert "x" in found[3, "key"] and "items" in found[3, "key"]
    assert found[4, "i"] == ("items", "key")
    assert found[4, "items"] == ("key",)
    assert found[4, "y"] == ("items", "key")


def test_a_planted_bug_is_one_other_name():
    for epoch in range(30):
        made = plant_bug(FUNCTION, ["LIMIT"], epoch=epoch, correct_share=0.0)
        usage = made.usages[made.bug]
        assert usage.name != made.repair and made.repair in usage.candidates
        lines = made.source.split("\n")
        line, end = lines[usage.line - 1], usage.column + len(usage.name)
        assert line[usage.column : end] == usage.name
        lines[usage.line - 1] = line[: usage.column] + made.repair + line[end:]
        assert "\n".join(lines) == FUNCTION
        ast.parse(made.source)
        # A reader of the changed source sees the same usages.
        assert made.usages == tuple(variable_usages(made.source, ["LIMIT"]))


def test_the_draw_depends_on_seed_epoch_and_key():
    def made(**options):
        return plant_bug(FUNCTION, ["LIMIT"], correct_share=0.0, **options).source

    assert made(seed=1, epoch=2) == made(seed=1, epoch=2)
    for name, values in [("seed", range(20)), ("epoch", range(20)), ("key", "abcdefg")]:
        assert len({made(**{name: value}) for value in values}) > 3


def test_a_share_stays_correct():
    made = [plant_bug(FUNCTION, epoch=e, correct_share=0.75) for e in range(400)]
    whole = [bug for bug in made if bug.bug is None]
    assert 0.68 < len(whole) / 400 < 0.82
    assert all(bug.source == FUNCTION and bug.repair is None for bug in whole)
    assert plant_bug(FUNCTION, correct_share=1.0).bug is None
    assert plant_bug("def f(a):\n    return a", correct_share=0.0).bug is None


def test_usages_and_candidates_of_text_that_is_not_ascii():
    made = plant_bug('def f(ä, b):\n    g("ü", ä); return b', correct_share=0.0)
    assert {u.column for u in made.usages} == {11, 22}


def test_names_that_python_normalises_are_replaced_as_a_whole():
    source = "def f(ﬁx, b):\n    return ﬁx+b"
    made = {plant_bug(source, seed=k, correct_share=0.0).source for k in range(9)}
    assert made == {source.replace("ﬁx+", "b+"), source.replace("+b", "+fix")}


def test_source_that_does_not_parse():
    with pytest.raises(SyntaxError):
        variable_usages("def f(:")
