"""State that belongs to a whole process, and why it may."""

import ast
from pathlib import Path

import keras_bandgnn

ROOT = Path(keras_bandgnn.__file__).parent
CHANGES = {
    "add",
    "append",
    "clear",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "set",
    "setdefault",
    "update",
}
# Module and name -> why all threads may share it.
ALLOWED = {
    ("config.py", "_active"): "settings of the process",
    ("config.py", "_cache_folder"): "of the process, like an environment variable",
    ("default_backend.py", "_host_only"): "of a worker, before it imports anything",
    ("cli/interrupts.py", "_signal"): "signals belong to the process",
    ("cli/interrupts.py", "_message"): "of the command that this process runs",
    (
        "data/files.py",
        "_unfinished",
    ): "hidden names of the process; a set changes at once",
    ("data/files.py", "_locks"): "locks of the process; a set changes at once",
    ("ops/remat.py", "_tracing"): "a thread-local",
    ("progress.py", "_last_line"): "when this process last printed progress",
    ("data/reading.py", "_STACK"): "a ContextVar: per thread",
    ("distribution/replica_group.py", "_scope"): "a ContextVar: per thread",
    ("ops/backend/jax.py", "_devices"): "thread-local",
    ("ops/backend/jax.py", "_step"): "thread-local",
    ("ops/backend/torch_graphs.py", "_last"): "changed under the lock of captures",
    ("ops/backend/torch_graphs.py", "_streams"): "changed under the lock of captures",
    ("ops/backend/torch_programs.py", "_reading"): "thread-local",
    ("ops/backend/torch_steps.py", "_recording"): "thread-local",
    ("ops/backend/tensorflow.py", "_compiled"): "steps of models, each its own",
    ("ops/context.py", "_tracing"): "thread-local",
    ("assembly/padded_rows.py", "_table"): "a cache, replaced whole",
    ("ops/sequence.py", "_active"): "a ContextVar: per thread",
}


def targets(node) -> set[str]:
    """Names that a statement of a module assigns."""
    assigned = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {
        name.id
        for target in assigned
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }


def root_of(node) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def changed(tree) -> set[str]:
    """Names of a module that its functions assign or change in place."""
    own = set()
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            own |= targets(node)
    found = set()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        local = {a.arg for a in ast.walk(function) if isinstance(a, ast.arg)}
        shared = {
            name
            for node in ast.walk(function)
            if isinstance(node, ast.Global)
            for name in node.names
        }
        found |= shared
        for node in ast.walk(function):
            places = []
            if isinstance(node, ast.Assign):
                places = node.targets
            elif isinstance(node, ast.AugAssign):
                places = [node.target]
            elif isinstance(node, ast.Delete):
                places = node.targets
            local |= {p.id for p in places if isinstance(p, ast.Name)} - shared
        for node in ast.walk(function):
            places = []
            if isinstance(node, ast.Assign | ast.Delete):
                places = node.targets
            elif isinstance(node, ast.AugAssign):
                places = [node.target]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                places = [node.func.value] if node.func.attr in CHANGES else []
                if isinstance(places and places[0], ast.Name):
                    found |= {places[0].id} & own - local
            places = [p for p in places if not isinstance(p, ast.Name)]
            found |= {root_of(place) for place in places} & own - local
    return found


def test_what_functions_change_of_a_module_is_known():
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in ROOT.rglob("*.py")
        for name in changed(ast.parse(path.read_text()))
    }
    assert not found - set(ALLOWED), (
        "keep state in an object, a ContextVar or a thread-local; or say in ALLOWED "
        "why all threads may share it"
    )


def test_changes_are_found():
    source = """
one, two, three, four, five = [], {}, 0, set(), Path()

def change(five):
    global three
    one.append(1)
    two["a"]["b"] = 1
    three = 2
    four = []
    four.append(3)
    five.x = 1
"""
    assert changed(ast.parse(source)) == {"one", "two", "three"}
