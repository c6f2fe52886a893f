from keras_bandgnn.programs.python_source.base import BaseGraphs
from keras_bandgnn.programs.python_source.unit import SourceUnit


def graph_of(source):
    return BaseGraphs(SourceUnit(source), "file").around(0, None)


def named(graph, pairs):
    """Edges by what stands at their ends: `name@line` or `Kind@line`."""
    names = {i: label for i, label in enumerate(graph.labels)}
    for token, node in enumerate(graph.region.token_ids):
        names[node] = f"{graph.labels[node]}@{graph.unit.tokens.starts[token][0]}"
    for node, number in graph.region.node_of.items():
        if hasattr(node, "lineno"):
            names[number] = f"{type(node).__name__}@{node.lineno}"
    return sorted((names[int(a)], names[int(b)]) for a, b in pairs)


def edges(source, relation):
    graph = graph_of(source)
    return named(graph, graph.edges[relation])


def guards(source):
    graph = graph_of(source)
    pairs = {name: rows[:, 1:] for name, rows in graph.guard_edges.items()}
    return named(graph, pairs["GuardedBy"]), named(graph, pairs["GuardedByNegation"])


def test_syntax_covers_every_token_once():
    source = """
@deco(1)
def f(a, /, b: int = 2, *c, d=(3), **e) -> str:
    x = {**e, 'k': [i for i in c if i]}
    with open(a) as g, (h): pass
    return f'{x!r:>{b}}' 'tail'
"""
    graph = graph_of(source)
    tokens = graph.region.token_ids
    parents = [child for _, child in graph.edges["Child"].tolist()]
    assert sorted(parents) == list(range(1, len(graph.region.labels)))
    assert graph.labels[0] == "Module"
    assert [graph.labels[i] for i in tokens][:5] == ["@", "deco", "(", "1", ")"]
    assert tokens == sorted(tokens)
    assert graph.edges["NextToken"].tolist() == [
        [a, b] for a, b in zip(tokens, tokens[1:], strict=False)
    ]
    kinds = dict(zip(graph.labels, graph.kinds, strict=True))
    assert (kinds["def"], kinds["deco"], kinds["1"]) == (
        "Keyword",
        "Identifier",
        "Number",
    )
    assert (kinds["@"], kinds["'tail'"], kinds["With"]) == (
        "Operator",
        "String",
        "With",
    )
    function = graph.region.node_of[graph.unit.tree.body[0]]
    direct = [graph.labels[b] for a, b in graph.edges["Child"] if a == function]
    assert direct[:4] == ["@", "Call", "def", "f"]


def test_guards_of_statements():
    true, false = guards(
        """
def f(a, b):
    if a > 1:
        g(a, b)
    elif b:
        g(a, b)
    else:
        while a:
            h(a)
        else:
            h(a)
"""
    )
    assert true == [("a@4", "Compare@3"), ("a@9", "Name@8"), ("b@6", "Name@5")]
    assert false == [
        ("a@11", "Compare@3"),
        ("a@11", "Name@8"),
        ("a@6", "Compare@3"),
        ("a@8", "Compare@3"),
        ("a@9", "Compare@3"),
    ]


def test_guards_of_the_rest_of_a_block():
    true, false = guards(
        """
def f(a, b):
    if not a:
        return None
    assert b
    for i in a:
        if i:
            pass
        else:
            raise E
        g(i, a, b)
"""
    )
    assert true == [("b@11", "Name@5"), ("i@11", "Name@7")]
    assert false == [("a@11", "UnaryOp@3"), ("a@6", "UnaryOp@3")]


def test_guards_in_expressions():
    true, false = guards(
        """
def f(a, b):
    x = a.y if a else b
    x = a and a.y
    x = b or b.y
    x = [c.y for c in a if c if c.z]
    return (lambda: a) if a else 0
"""
    )
    assert true == [
        ("a@3", "Name@3"),
        ("a@4", "Name@4"),
        ("c@6", "Attribute@6"),
        ("c@6", "Name@6"),
        ("c@6", "Name@6"),
    ]
    # Nothing is known inside of the lambda: it runs at another time.
    assert false == [("b@5", "Name@5")]


def test_guard_of_a_case():
    true, _ = guards(
        """
def f(a):
    match a:
        case [x] if x:
            g(x)
"""
    )
    assert true == [("x@5", "Name@4")]


def test_computed_from():
    source = """
def f(a, b):
    c = a + g(b)
    c, d = b, a
    e, *d = a
    c += d
    x.y = z[0] = a
    if (k := b): pass
    for i in a: pass
    with b as w: pass
    v: int = a
z = 1
def g(): pass
"""
    assert edges(source, "ComputedFrom") == [
        ("c@3", "a@3"),
        ("c@3", "b@3"),
        ("c@4", "b@4"),
        ("c@6", "d@6"),
        ("d@4", "a@4"),
        ("d@5", "a@5"),
        ("e@5", "a@5"),
        ("i@9", "a@9"),
        ("k@8", "b@8"),
        ("v@11", "a@11"),
        ("w@10", "b@10"),
        ("y@7", "a@7"),
        ("z@7", "a@7"),
    ]


def test_formal_arguments():
    source = """
def f(a, b, *c, key=None): pass
class A:
    def __init__(self, size): pass
    def m(self, left, right): self.m(x, 1 + 1)
    @staticmethod
    def s(one): pass
    def n(self): self.s(x); self.unknown(x); self.o(x)
    @wraps
    def o(self, two): pass
f(x, *y, 3, key=x)
A(x)
g(x, other=[1])
"""
    assert edges(source, "FormalArgName") == [
        ("BinOp@5", "right"),
        ("List@13", "other"),
        ("x@11", "a"),
        ("x@11", "key"),
        ("x@12", "size"),
        ("x@5", "left"),
        ("x@8", "one"),
    ]


def test_formal_arguments_need_one_definition():
    source = "def f(a): pass\ndef f(b): pass\nf(x)\nx = 1\n"
    assert edges(source, "FormalArgName") == []


def test_returns_to():
    source = """
def f(a):
    yield a
    def g():
        return 1 + 1
    return
h = lambda: h
"""
    assert edges(source, "ReturnsTo") == [
        ("BinOp@5", "FunctionDef@4"),
        ("Name@3", "FunctionDef@2"),
        ("Name@7", "Lambda@7"),
    ]


def test_last_lexical_use_is_the_previous_occurrence():
    source = "def f(x):\n    if x:\n        x = 1\n    return x\n"
    assert edges(source, "LastLexicalUse") == [
        ("x@2", "x@1"),
        ("x@3", "x@2"),
        ("x@4", "x@3"),
    ]
