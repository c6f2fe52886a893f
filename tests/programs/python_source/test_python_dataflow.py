import sys

import pytest

from keras_bandgnn.programs.python_source.unit import SourceUnit

# Each case numbers the occurrences of `x` in the text, over all scopes: the expected
# last writes and last uses of each; occurrences that have none are left out.
CASES = {
    "branch": (
        """
def f(x):  # 0
    if x:  # 1
        x = 1  # 2
    elif g():
        h(x)  # 3
    return x  # 4
""",
        {1: [0], 2: [0], 3: [0], 4: [0, 2]},
        {2: [1], 3: [1], 4: [1, 3]},
    ),
    "while, else, continue, break": (
        """
def f(x):  # 0
    while x:  # 1
        if x > 1:  # 2
            continue
        if x > 2:  # 3
            break
        x = 0  # 4
    else:
        x = 5  # 5
    return x  # 6
""",
        {1: [0, 4], 2: [0, 4], 3: [0, 4], 4: [0, 4], 5: [0, 4], 6: [0, 4, 5]},
        {1: [2, 3], 2: [1], 3: [2], 4: [3], 5: [1], 6: [1, 3]},
    ),
    "self edge": (
        """
def f(x):  # 0
    while g():
        h(x)  # 1
""",
        {1: [0]},
        {1: [1]},
    ),
    "while true": (
        """
def f():
    while True:
        x = g()  # 0
        if x:  # 1
            break
    return x  # 2
""",
        {0: [0], 1: [0], 2: [0]},
        {0: [1], 1: [1], 2: [1]},
    ),
    "for, else": (
        """
def f(y):
    for x in y:  # 0
        g(x)  # 1
    else:
        h(x)  # 2
    return x  # 3
""",
        {0: [0], 1: [0], 2: [0], 3: [0]},
        {0: [1], 1: [1], 2: [1], 3: [2]},
    ),
    "async for and with": (
        """
async def f(y):
    async for x in y:  # 0
        async with x as x:  # 1 (read), 2 (write)
            await x  # 3
""",
        {0: [2], 1: [0], 2: [0], 3: [2]},
        {0: [3], 1: [3], 2: [1], 3: [1]},
    ),
    "return and raise": (
        """
def f(x):  # 0
    if x:  # 1
        x = 1  # 2
        raise E(x)  # 3
    if g():
        x = 2  # 4
        return x  # 5
    return x  # 6
""",
        {1: [0], 2: [0], 3: [2], 4: [0], 5: [4], 6: [0]},
        {2: [1], 3: [1], 4: [1], 5: [1], 6: [1]},
    ),
    "try, except, else, finally": (
        """
def f(x):  # 0
    try:
        x = g(x)  # 1 (write), 2 (read)
        h()
    except E:
        k(x)  # 3
        raise
    else:
        x = 3  # 4
    finally:
        m(x)  # 5
    return x  # 6
""",
        {1: [0], 2: [0], 3: [0, 1], 4: [1], 5: [0, 1, 4], 6: [0, 1, 4]},
        {1: [2], 3: [2], 4: [2], 5: [2, 3], 6: [5]},
    ),
    "return through finally": (
        """
def f(x):  # 0
    try:
        return g(x)  # 1
    finally:
        h(x)  # 2
    k(x)  # 3, never reached
""",
        {1: [0], 2: [0]},
        {2: [1]},
    ),
    "break through finally": (
        """
def f(x):  # 0
    for _ in y:
        try:
            x = 1  # 1
            break
        finally:
            g(x)  # 2
    return x  # 3
""",
        {1: [0], 2: [0, 1], 3: [0, 1]},
        {3: [2]},
    ),
    "except as": (
        """
def f():
    try:
        g()
    except A as x:  # 0
        h(x)  # 1
    except B as x:  # 2
        raise C from x  # 3
    return x  # 4, unbound here
""",
        {1: [0], 3: [2]},
        {4: [1]},
    ),
    "with": (
        """
def f(y):
    with g(y) as x, h(x) as (z, [*x]):  # 0, 1, 2
        return x  # 3
""",
        {1: [0], 2: [0], 3: [2]},
        {2: [1], 3: [1]},
    ),
    "match": (
        """
def f(v):
    x = 0  # 0
    match v:
        case [x, *_]:  # 1
            g(x)  # 2
        case {"k": 1, **x}:  # 3
            pass
        case A(y=x) if x:  # 4, 5
            pass
        case B() as x:  # 6
            pass
        case _:
            x = 7  # 7
    return x  # 8
""",
        {
            1: [0],
            2: [1],
            3: [0, 1],
            4: [0, 1, 3],
            5: [4],
            6: [0, 1, 3, 4],
            7: [0, 1, 3, 4, 6],
            8: [1, 3, 4, 6, 7],
        },
        {6: [5], 7: [5], 8: [2, 5]},
    ),
    "comprehension": (
        """
def f(x):  # 0
    y = [x for x in x if x]  # 1 (item), 2 (target), 3 (outer), 4 (condition)
    return x  # 5, the outer one
""",
        {1: [2], 2: [2], 3: [0], 4: [2], 5: [0]},
        {1: [4], 2: [1, 4], 4: [1, 4], 5: [3]},
    ),
    "nested comprehension": (
        """
def f(x):  # 0
    return {a: x for a in x for b in g(x)}  # 1, 2, 3
""",
        {1: [0], 2: [0], 3: [0]},
        {1: [1, 3], 3: [1, 2, 3]},
    ),
    "nested function and lambda": (
        """
def f(x):  # 0
    def g():
        return x  # 1
    x = 2  # 2
    h(lambda: x)  # 3
    return x  # 4
""",
        {1: [0, 2], 2: [0], 3: [0, 2], 4: [2]},
        {},
    ),
    "nonlocal": (
        """
def f():
    x = 0  # 0
    def g():
        nonlocal x
        x = 1  # 1
        return x  # 2
    g()
    return x  # 3
""",
        {0: [1], 1: [0], 2: [0, 1], 3: [0, 1]},
        {},
    ),
    "global": (
        """
x = 0  # 0
def f():
    global x
    x = 1  # 1
    return x  # 2
print(x)  # 3
""",
        {0: [1], 1: [0], 2: [0, 1], 3: [0, 1]},
        {},
    ),
    "class": (
        """
x = 0  # 0
class A:
    x = 1  # 1
    y = x  # 2
    def f(self):
        return x  # 3, the module's
print(x)  # 4
""",
        {2: [1], 3: [0], 4: [0]},
        {},
    ),
    "augmented": (
        """
def f(x):  # 0
    while g():
        x += 1  # 1
    x.y += x  # 2, 3
    return x  # 4
""",
        {1: [0, 1], 2: [0, 1], 3: [0, 1], 4: [0, 1]},
        {1: [1], 2: [1], 3: [2], 4: [3]},
    ),
    "walrus": (
        """
def f(y):
    z = [x for v in y if (x := v)]  # 0 (item), 1 (write)
    return x  # 2
""",
        {0: [1], 1: [1], 2: [1]},
        {0: [0], 1: [0], 2: [0]},
    ),
    "del": (
        """
def f(x):  # 0
    g(x)  # 1
    del x  # 2
    return x  # 3
""",
        {1: [0], 2: [0]},
        {2: [1], 3: [2]},
    ),
    "import": (
        """
import x.y  # 0
import a as x  # 1
from b import c as x  # 2
from d import x  # 3
x  # 4
""",
        {1: [0], 2: [1], 3: [2], 4: [3]},
        {},
    ),
    "decorator and default": (
        """
x = 0  # 0
@g(x)  # 1
def f(x=x):  # 2 (parameter), 3 (the module's)
    return x  # 4
""",
        {1: [0], 3: [0], 4: [2]},
        {3: [1]},
    ),
    "short cut": (
        """
def f(x):  # 0
    g(x) or h(x)  # 1, 2
    return x if a < x < g(x) else h(x)  # 3 (value), 4, 5, 6
""",
        {1: [0], 2: [0], 3: [0], 4: [0], 5: [0], 6: [0]},
        {2: [1], 3: [4, 5], 4: [1, 2], 5: [4], 6: [4, 5]},
    ),
    "assert": (
        """
def f(x):  # 0
    assert g(), x  # 1
    return x  # 2
""",
        {1: [0], 2: [0]},
        {},
    ),
    "mention": (
        """
def f():
    x: int  # 0
    x = 1  # 1
    return x  # 2
""",
        {2: [1]},
        {},
    ),
}


def chains(source):
    unit = SourceUnit(source)
    variables = {
        variable
        for frame in unit.frames
        for variable in frame.variables
        if variable.name == "x"
    }
    tokens = sorted({token for variable in variables for token in variable.tokens})
    number = {token: i for i, token in enumerate(tokens)}
    writes, uses = {}, {}
    for frame in unit.frames:
        reach = unit.reach(frame)
        for token, variable, point in zip(
            frame.tokens, frame.variables, frame.points, strict=True
        ):
            if variable in variables:
                for chain, found in (
                    (writes, reach.last_writes(point, variable)),
                    (uses, reach.last_uses(point, variable)),
                ):
                    if found:
                        chain[number[token]] = sorted(number[t] for t in found)
    return writes, uses


@pytest.mark.parametrize("name", CASES)
def test_last_writes_and_uses(name):
    source, writes, uses = CASES[name]
    found = chains(source)
    assert found[0] == writes
    assert found[1] == uses


def test_names_in_f_strings():
    source = "def f(x, y):\n    return f'{x!r:>{y}} {x}' + x\n"
    writes, uses = chains(source)
    if sys.version_info < (3, 12):
        # The string is one token that uses both names.
        assert writes == {1: [0], 2: [0]}
        assert uses == {2: [1]}
    else:
        assert writes == {1: [0], 2: [0], 3: [0]}
        assert uses == {2: [1], 3: [2]}


def test_next_occurrences_mirror_last_uses():
    for source, _, _ in CASES.values():
        unit = SourceUnit(source)
        for frame in unit.frames:
            reach = unit.reach(frame)
            items = list(zip(frame.tokens, frame.variables, frame.points, strict=True))
            reads = [item for item in items if frame.ops[item[2]] == 1]
            for token, variable, point in reads:
                ahead = {
                    other
                    for other, same, at in items
                    if same is variable and token in reach.last_uses(at, variable)
                }
                if reach.reachable(point) and source.count("+=") == 0:
                    assert set(reach.next_occurrences(point, variable)) == ahead


def test_columns_count_characters():
    unit = SourceUnit("é = 'ß' + str(1); x = é\n")
    tokens = {
        v.name: [unit.tokens.starts[t] for t in v.tokens]
        for v in unit.frames[0].variables
    }
    assert tokens == {"é": [(1, 0), (1, 22)], "x": [(1, 18)]}
