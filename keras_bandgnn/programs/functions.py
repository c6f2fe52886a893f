"""Functions of a module, with the names that they see of it."""

import ast
from collections.abc import Iterator

from keras_bandgnn.programs.python_source.scopes import (
    FUNCTIONS,
    Scope,
    ScopeBuilder,
    arguments_of,
)
from keras_bandgnn.programs.python_source.tokens import decode, parse


def read_module(path: str, source: str | bytes) -> dict:
    """Return the functions of a module, and the names that they may refer to.

    Args:
        path: Path of the module in its package.
        source: Its source; it is parsed, never run.

    Returns:
        A dictionary for JSON with `path`, `lines`, `imports` (bound name -> what it
        stands for), `variables` (names that module code assigns), `classes` (name ->
        `bases` and `attributes`), `signatures` (name -> names of parameters) and
        `functions`, each with `name`, `line` and `source`. Functions are the outermost
        ones and methods; names are qualified.

    Raises:
        SyntaxError: If it does not parse.
    """
    text = decode(source)
    tree = parse(text)
    scopes = ScopeBuilder(tree).scope_of
    signatures, functions = _functions(tree, text)
    return {
        "path": path,
        "lines": text.count("\n") + (not text.endswith("\n") and bool(text)),
        "imports": _imports(tree),
        "variables": _variables(scopes[tree]),
        "classes": {
            name: {
                "bases": [ast.unparse(base)[:200] for base in node.bases],
                "attributes": _attributes(node),
            }
            for name, node in _definitions(tree.body, "")
            if isinstance(node, ast.ClassDef)
        },
        "signatures": signatures,
        "functions": functions,
    }


def read_functions(source: str | bytes) -> tuple[dict[str, list[str]], list[dict]]:
    """Return `signatures` and `functions` of `read_module`, without the rest.

    Args:
        source: Source of a module; it is parsed, never run.

    Raises:
        SyntaxError: If it does not parse.
    """
    text = decode(source)
    return _functions(parse(text), text)


def _functions(tree: ast.Module, text: str) -> tuple[dict[str, list[str]], list[dict]]:
    signatures, functions = {}, []
    lines = text.split("\n")
    for name, node in _definitions(tree.body, ""):
        if isinstance(node, ast.ClassDef):
            continue
        signatures[name] = _signature(node)
        first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
        source = "\n".join(lines[first - 1 : node.end_lineno])
        functions.append({"name": name, "line": first, "source": source})
    return signatures, functions


def _variables(scope: Scope) -> list[str]:
    return sorted(
        name for name in scope.bound if all(b is None for b in scope.bound[name])
    )


def _imports(tree: ast.Module) -> dict[str, str]:
    names = {}
    for node in _statements(tree.body):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                names[bound] = alias.name if alias.asname else bound
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                end = "" if module.endswith(".") else "."
                names[alias.asname or alias.name] = f"{module}{end}{alias.name}"
    return names


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements and those in their blocks, not in functions and classes."""
    for node in body:
        yield node
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(node, field, []))
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            yield from _statements(part.body)


def _definitions(
    body: list[ast.stmt], prefix: str
) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield classes, methods and outermost functions with their qualified names."""
    for node in _statements(body):
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name, node
            yield from _definitions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, FUNCTIONS):
            yield prefix + node.name, node


def _attributes(node: ast.ClassDef) -> list[str]:
    """Return the names that a class and its methods assign, and its methods."""
    names = set()
    for item in _statements(node.body):
        if isinstance(item, (*FUNCTIONS, ast.ClassDef)):
            names.add(item.name)
            if isinstance(item, FUNCTIONS):
                names |= _assigned_on_self(item)
        targets = getattr(item, "targets", None) or [getattr(item, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return sorted(names)


def _assigned_on_self(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    first = (*node.args.posonlyargs, *node.args.args)[:1]
    return {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute)
        and isinstance(part.ctx, ast.Store)
        and isinstance(part.value, ast.Name)
        and first
        and part.value.id == first[0].arg
    }


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return the names of parameters; `*` and `**` mark those that collect."""
    stars = {id(node.args.vararg): "*", id(node.args.kwarg): "**"}
    return [stars.get(id(arg), "") + arg.arg for arg in arguments_of(node.args)]
