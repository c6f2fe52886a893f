"""Scopes and variables: name resolution."""

import ast
import operator

from keras_bandgnn.programs.python_source.nodes import child_nodes

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Variable:
    """One binding of a name in one scope.

    Args:
        name: The name.
        scope: Its scope.

    Attributes:
        tokens: The distinct tokens where it occurs, ascending.
        writes: Tokens that write it, by frame (module, function or lambda).
    """

    __slots__ = ("name", "scope", "tokens", "writes")

    def __init__(self, name: str, scope: "Scope") -> None:
        self.name = name
        self.scope = scope
        self.tokens: list[int] = []
        self.writes: dict[object, list[int]] = {}

    @property
    def is_plain(self) -> bool:
        """Return whether no import, function or class binds it."""
        return all(binder is None for binder in self.scope.bound[self.name])

    @property
    def definition(self) -> ast.AST | None:
        """Return the function or class that it always refers to, or None."""
        binders = self.scope.bound[self.name]
        one = binders[0] if len(binders) == 1 else None
        return one if isinstance(one, (*FUNCTIONS, ast.ClassDef)) else None


class Scope:
    """Names bound by a module, class, function, lambda or comprehension.

    Args:
        kind: `"module"`, `"class"`, `"function"` or `"comprehension"`.
        node: Syntax node that opens it.
        parent: Enclosing scope; None for the module.

    Attributes:
        bound: By name, what binds it: a node for imports, functions and classes,
            None for everything else.
    """

    def __init__(self, kind: str, node: ast.AST, parent: "Scope | None") -> None:
        self.kind = kind
        self.node = node
        self.parent = parent
        self.module: Scope = parent.module if parent else self
        self.bound: dict[str, list[ast.AST | None]] = {}
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()
        self._variables: dict[str, Variable] = {}
        self._visible: dict[bool, tuple[Variable, ...]] = {}

    def bind(self, name: str, binder: ast.AST | None = None) -> None:
        """Records that this scope binds `name`."""
        self.bound.setdefault(name, []).append(binder)

    @property
    def holder(self) -> "Scope":
        """The scope where a walrus binds: the nearest one except comprehensions."""
        scope = self
        while scope.kind == "comprehension":
            scope = scope.parent
        return scope

    def _variable(self, name: str) -> Variable:
        if name not in self._variables:
            self._variables[name] = Variable(name, self)
        return self._variables[name]

    def _chain(self) -> list["Scope"]:
        """Return the scopes for name lookup, innermost first."""
        chain, scope = [], self
        while scope is not None:
            if scope is self or scope.kind != "class":
                chain.append(scope)
            scope = scope.parent
        return chain

    def resolve(self, name: str) -> Variable | None:
        """Return the variable that `name` refers to, None if the file has none."""
        for scope in self._chain():
            if name in scope.globals:
                module = self.module
                return module._variable(name) if name in module.bound else None
            if name in scope.bound and name not in scope.nonlocals:
                return scope._variable(name)
        return None

    def visible(self, with_module: bool) -> tuple[Variable, ...]:
        """Return the visible plain variables, by name.

        Args:
            with_module: Whether to include module variables.
        """
        if with_module not in self._visible:
            variables: dict[str, Variable | None] = {}
            for scope in self._chain():
                for name in scope.globals:
                    variables.setdefault(name, None)
                if scope.kind == "module" and not with_module:
                    break
                for name in scope.bound:
                    if name not in scope.nonlocals and name not in variables:
                        variables[name] = scope._variable(name)
            visible = [item for item in variables.values() if item and item.is_plain]
            visible.sort(key=operator.attrgetter("name"))
            self._visible[with_module] = tuple(visible)
        return self._visible[with_module]


def arguments_of(args: ast.arguments) -> list[ast.arg]:
    """Return all formal parameters."""
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    return every + [arg for arg in (args.vararg, args.kwarg) if arg is not None]


def outer_parts(node: ast.AST) -> list[ast.AST]:
    """Return the parts of a function, lambda or class evaluated outside of it."""
    if isinstance(node, ast.ClassDef):
        return [*node.decorator_list, *node.bases, *node.keywords]
    args = node.args
    parts = [*getattr(node, "decorator_list", [])]
    parts += [*args.defaults, *(item for item in args.kw_defaults if item)]
    parts += [arg.annotation for arg in arguments_of(args) if arg.annotation]
    returns = getattr(node, "returns", None)
    return parts + ([returns] if returns else [])


class ScopeBuilder:
    """Finds the scopes of a module.

    Args:
        tree: Parsed module.

    Attributes:
        scope_of: Scope by the node that opens it.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.scope_of: dict[ast.AST, Scope] = {}
        module = self._open("module", tree, None)
        self._all(tree.body, module)
        for scope in list(self.scope_of.values()):
            self._merge(scope)

    def _merge(self, scope: Scope) -> None:
        """Propagate bindings of `scope` through global and nonlocal declarations."""
        for name, binders in list(scope.bound.items()):
            if name in scope.globals and scope.kind != "module":
                scope.module.bound.setdefault(name, []).extend(binders)
            elif name in scope.nonlocals:
                variable = scope.resolve(name)
                if variable is not None:
                    variable.scope.bound[name].extend(binders)

    def _open(self, kind: str, node: ast.AST, parent: Scope | None) -> Scope:
        scope = self.scope_of[node] = Scope(kind, node, parent)
        for item in getattr(node, "type_params", []):
            scope.bind(item.name, item)
        return scope

    def _all(self, nodes: list, scope: Scope) -> None:
        for node in nodes:
            self._visit(node, scope)

    def _visit(self, node: ast.AST, scope: Scope) -> None:
        method = _VISITORS.get(type(node))
        if method is not None:
            method(self, node, scope)
            return
        for child in child_nodes(node):
            self._visit(child, scope)

    def _name(self, node: ast.Name, scope: Scope) -> None:
        if not isinstance(node.ctx, ast.Load):
            scope.bind(node.id)

    def _leaf(self, node: ast.AST, scope: Scope) -> None:
        pass

    def _function(self, node: ast.AST, scope: Scope) -> None:
        if not isinstance(node, ast.Lambda):
            scope.bind(node.name, node)
        self._all(outer_parts(node), scope)
        inner = self._open("function", node, scope)
        for arg in arguments_of(node.args):
            inner.bind(arg.arg)
        self._all(node.body if isinstance(node.body, list) else [node.body], inner)

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        scope.bind(node.name, node)
        self._all(outer_parts(node), scope)
        self._all(node.body, self._open("class", node, scope))

    def _comprehension(self, node: ast.AST, scope: Scope) -> None:
        inner = self._open("comprehension", node, scope)
        for i, part in enumerate(node.generators):
            self._visit(part.iter, inner if i else scope)
            self._all([part.target, *part.ifs], inner)
        names = ("key", "value") if isinstance(node, ast.DictComp) else ("elt",)
        self._all([getattr(node, name) for name in names], inner)

    def _walrus(self, node: ast.NamedExpr, scope: Scope) -> None:
        self._visit(node.value, scope)
        scope.holder.bind(node.target.id)

    def _import(self, node: ast.AST, scope: Scope) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.split(".")[0]
            if name != "*":
                scope.bind(name, node)

    def _named(self, node: ast.AST, scope: Scope) -> None:
        name = node.rest if isinstance(node, ast.MatchMapping) else node.name
        if name is not None:
            scope.bind(name)
        for child in child_nodes(node):
            self._visit(child, scope)

    def _global(self, node: ast.Global, scope: Scope) -> None:
        scope.globals.update(node.names)

    def _nonlocal(self, node: ast.Nonlocal, scope: Scope) -> None:
        scope.nonlocals.update(node.names)

    def _type_alias(self, node: ast.AST, scope: Scope) -> None:
        scope.bind(node.name.id, node)


_VISITORS = {
    ast.Name: ScopeBuilder._name,
    ast.Constant: ScopeBuilder._leaf,
    ast.FunctionDef: ScopeBuilder._function,
    ast.AsyncFunctionDef: ScopeBuilder._function,
    ast.Lambda: ScopeBuilder._function,
    ast.ClassDef: ScopeBuilder._class,
    **dict.fromkeys(COMPREHENSIONS, ScopeBuilder._comprehension),
    ast.NamedExpr: ScopeBuilder._walrus,
    ast.Import: ScopeBuilder._import,
    ast.ImportFrom: ScopeBuilder._import,
    ast.ExceptHandler: ScopeBuilder._named,
    ast.MatchAs: ScopeBuilder._named,
    ast.MatchStar: ScopeBuilder._named,
    ast.MatchMapping: ScopeBuilder._named,
    ast.Global: ScopeBuilder._global,
    ast.Nonlocal: ScopeBuilder._nonlocal,
}
if hasattr(ast, "TypeAlias"):
    _VISITORS[ast.TypeAlias] = ScopeBuilder._type_alias
