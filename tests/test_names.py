"""Names say what a value is, in the words of the field."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import keras_bandgnn

PACKAGE = Path(keras_bandgnn.__file__).parent
# They fit any value, and say of none what it is.
WORDS = frozenset(
    "chosen each found given kept known left made most own rest wanted".split()
)
_LINK_ARGUMENT = "argument of the public link functions"
# File, scope and name -> why it stays.
ALLOWED = {
    "data/link_splits.py: LinkSplit.known": "public attribute",
    "explain/explanation.py: Explanation.rest": "public attribute",
    "layers/target_normalizer.py: TargetNormalizer.build.self.known": (
        "attribute of the weight that files call so"
    ),
    "models/link_predictor.py: LinkPredictor.evaluate.known": _LINK_ARGUMENT,
    "models/link_predictor.py: LinkPredictor.fit.known": _LINK_ARGUMENT,
    "models/pair_task.py: PairTask.rank.known": _LINK_ARGUMENT,
    "preprocessing/attention/attention_plan.py: AttentionPlan.__init__.rest": (
        "public argument, and key of its configuration"
    ),
    "preprocessing/batching/batcher.py: Batcher.__init__.self.given": (
        "public attribute, which batchers of users read"
    ),
    "preprocessing/loading/link_loader.py: LinkLoader.known": _LINK_ARGUMENT,
    "preprocessing/sampling/negative_sampler.py: NegativeSampler.prepare.known": (
        _LINK_ARGUMENT
    ),
    "preprocessing/sampling/negative_sampler.py: NegativeSampler.sample.known": (
        _LINK_ARGUMENT
    ),
    "primitives/plan.py: Plan.__init__.rest": (
        "public argument, and key of its configuration"
    ),
    "primitives/plan.py: Plan._assign.self.rest": "public attribute",
    "primitives/plan.py: propagate.own": "argument of a public function",
}


def bound(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield line, scope and name of each binding; `self.name` of an attribute."""
    stack = [(tree, "")]
    while stack:
        node, scope = stack.pop()
        name = None
        match node:
            case ast.Name(ctx=ast.Store()):
                name = node.id
            case ast.Attribute(ctx=ast.Store()):
                name = ast.unparse(node)
            case ast.arg():
                name = node.arg
            case ast.alias():
                name = node.asname or node.name.partition(".")[0]
            case ast.MatchMapping():
                name = node.rest
            case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar():
                name = node.name
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                name = node.name
        if name is not None:
            yield node.lineno, scope, name
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope = f"{scope}.{node.name}".lstrip(".")
        stack += [(child, scope) for child in ast.iter_child_nodes(node)]


def offenders(source: str, file: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, key in `ALLOWED` and word of names that are none."""
    for line, scope, name in bound(ast.parse(source)):
        word = name.rpartition(".")[2].strip("_").lower()
        if word in WORDS:
            key = f"{scope}.{name}" if scope else name
            yield line, f"{file}: {key}", word


def checked_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_names_say_what_values_are():
    wrong, keys = [], set()
    for file in checked_files():
        path = file.relative_to(PACKAGE).as_posix()
        for line, key, word in offenders(file.read_text("utf-8"), path):
            keys.add(key)
            if key not in ALLOWED:
                wrong.append(f"keras_bandgnn/{path}:{line}: {word} ({key!r})")
    assert not wrong, (
        "Expected names that say what a value is, such as `edges`, `error`, `mask` or "
        "`neighbours`. Received:\n" + "\n".join(wrong) + "\nRename them; if users or "
        "files rely on a name, add it with the reason to ALLOWED in "
        "tests/test_names.py."
    )
    assert not set(ALLOWED) - keys, "Remove what no file binds from ALLOWED."


@pytest.mark.parametrize(
    "source, key",
    [
        ("found = 1", "found"),
        ("_known: int = 1", "_known"),
        ("_MOST = 1", "_MOST"),
        ("a, *rest = b", "rest"),
        ("for each in a: pass", "each"),
        ("[each for each in a]", "each"),
        ("if own := a: pass", "own"),
        ("with a as left: pass", "left"),
        ("def f(a, *, given=None): pass", "f.given"),
        ("g = lambda *rest: 1", "rest"),
        ("def kept(): pass", "kept"),
        ("class C:\n    def f(self): self._made = 1", "C.f.self._made"),
        ("import a as chosen", "chosen"),
        ("from a import most", "most"),
        ("try: pass\nexcept E as wanted: pass", "wanted"),
        ("match a:\n    case {**rest}: pass", "rest"),
        ("match a:\n    case [*rest] as known: pass", "known"),
    ],
)
def test_every_way_to_bind_a_name_is_seen(source, key):
    assert f"a.py: {key}" in [key for _, key, _ in offenders(source, "a.py")]


def test_uses_of_names_are_not_bindings():
    source = "f(rest=1, a=b.known)\nc['own'] = 'each'\nprint(left)"
    assert not [*offenders(source, "a.py")]
