"""Syntax nodes, tokens and Child edges of the part of a file around a slot."""

import ast
import dataclasses
import operator

from keras_bandgnn.programs.python_source.expressions import OPAQUE_F_STRINGS
from keras_bandgnn.programs.python_source.nodes import child_nodes
from keras_bandgnn.programs.python_source.scopes import FUNCTIONS
from keras_bandgnn.programs.python_source.tokens import Tokens

WINDOW_TOKENS = 500
"""Approximate number of tokens in a window of statements of module code."""

Span = tuple[int, int]
_SPAN = operator.itemgetter(0)


class Spans:
    """First and last token of every syntax node, with the children in order.

    Args:
        tokens: Tokens of the file.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._cache: dict[ast.AST, Span | None] = {}
        self._children: dict[ast.AST, list[ast.AST]] = {}

    def of(self, node: ast.AST) -> Span | None:
        """Return (first, last); None for nodes without a token."""
        try:
            return self._cache[node]
        except KeyError:
            span = self._cache[node] = self._measure(node)
            return span

    def children(self, node: ast.AST) -> list[ast.AST]:
        """Return the children that have tokens, in source order."""
        children = self._children.get(node)
        if children is None:
            children = child_nodes(node)
            if isinstance(node, ast.JoinedStr):
                # The text of `f"{x=}"` overlaps its value.
                skipped = (ast.AST,) if OPAQUE_F_STRINGS else (ast.Constant,)
                children = [c for c in children if not isinstance(c, skipped)]
            spans = [(self.of(child), child) for child in children]
            spans = [pair for pair in spans if pair[0] is not None]
            if len(spans) > 1:
                spans.sort(key=_SPAN)
            children = self._children[node] = [child for _, child in spans]
        return children

    def _measure(self, node: ast.AST) -> Span | None:
        if isinstance(node, ast.Module):
            return 0, len(self._tokens) - 1
        if hasattr(node, "lineno"):
            first, last = self._tokens.first(node), self._tokens.last(node)
            if first is not None and last is not None:
                decorators = getattr(node, "decorator_list", None)
                if decorators:
                    # The first decorator follows its `@`.
                    first = self.of(decorators[0])[0]
                    while self._tokens.labels[first] != "@":
                        first -= 1
                return first, last
        covered = [self.of(child) for child in self.children(node)]
        if not covered:
            return None
        return covered[0][0], max(last for _, last in covered)


@dataclasses.dataclass
class Region:
    """The part of a file that a graph represents.

    Attributes:
        first: First token.
        last: Last token.
        function: The function, if the region is one, otherwise None.
        labels: Label of each syntax node and token, in source order.
        kinds: Kind of each.
        child: Child edges.
        node_of: Node id by syntax node.
        owner_of: By syntax node, the function, lambda or module of its frame.
        token_ids: Node id of each token, from `first` on.
    """

    first: int
    last: int
    function: ast.AST | None = None
    labels: list[str] = dataclasses.field(default_factory=list)
    kinds: list[str] = dataclasses.field(default_factory=list)
    child: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    node_of: dict[ast.AST, int] = dataclasses.field(default_factory=dict)
    owner_of: dict[ast.AST, ast.AST] = dataclasses.field(default_factory=dict)
    token_ids: list[int] = dataclasses.field(default_factory=list)

    def __contains__(self, token: int) -> bool:
        return self.first <= token <= self.last

    def id_of(self, token: int) -> int:
        """Return the node id of a token."""
        return self.token_ids[token - self.first]

    def add(self, label: str, kind: str, parent: int | None) -> int:
        """Append a node."""
        self.labels.append(label)
        self.kinds.append(kind)
        if parent is not None:
            self.child.append((parent, len(self.labels) - 1))
        return len(self.labels) - 1


class RegionBuilder:
    """Builds the regions of one file.

    Args:
        tree: Syntax tree.
        tokens: Its tokens.
        spans: Token range of each node.
    """

    def __init__(self, tree: ast.Module, tokens: Tokens, spans: Spans) -> None:
        self._tree = tree
        self._tokens = tokens
        self._spans = spans

    def whole(self) -> Region:
        """Return the whole file."""
        region = Region(0, len(self._tokens) - 1)
        self._add(region, self._tree, None, self._tree)
        return region

    def function(self, node: ast.AST) -> Region:
        """Return a function with its decorators."""
        region = Region(*self._spans.of(node), function=node)
        self._add(region, node, None, self._tree)
        return region

    def window_at(self, token: int) -> tuple[ast.AST, int, int]:
        """Return the location of the window around a token of module code.

        Returns:
            The innermost module or class around the token and the range
            [start, stop) of its statements.
        """
        holder, at = self._tree, self._statement(self._tree.body, token)
        while isinstance(holder.body[at], ast.ClassDef):
            inner = self._statement(holder.body[at].body, token)
            if inner is None:
                break
            holder, at = holder.body[at], inner
        sizes = [self._size(node) for node in holder.body]
        start, stop, total = at, at + 1, sizes[at]
        before = after = True
        while before or after:
            before = before and start > 0 and total + sizes[start - 1] <= WINDOW_TOKENS
            if before:
                start -= 1
                total += sizes[start]
            after = after and stop < len(sizes) and total + sizes[stop] <= WINDOW_TOKENS
            if after:
                total += sizes[stop]
                stop += 1
        return holder, start, stop

    def window(self, holder: ast.AST, start: int, stop: int) -> Region:
        """Return a range of statements of a module or class, under its node."""
        nodes = holder.body[start:stop]
        region = Region(self._spans.of(nodes[0])[0], self._spans.of(nodes[-1])[1])
        parent = self._syntax(region, holder, None, self._tree)
        self._parts(region, nodes, parent, region.first, region.last, self._tree)
        return region

    def _size(self, node: ast.AST) -> int:
        span = self._spans.of(node)
        return span[1] - span[0] + 1

    def _statement(self, nodes: list[ast.stmt], token: int) -> int | None:
        for i, node in enumerate(nodes):
            first, last = self._spans.of(node)
            if first <= token <= last:
                return i
        return None

    def _syntax(
        self, region: Region, node: ast.AST, parent: int | None, owner: ast.AST
    ) -> int:
        name = type(node).__name__
        region.node_of[node] = region.add(name, name, parent)
        region.owner_of[node] = owner
        return region.node_of[node]

    def _add(
        self, region: Region, node: ast.AST, parent: int | None, owner: ast.AST
    ) -> None:
        number = self._syntax(region, node, parent, owner)
        first, last = self._spans.of(node)
        children = self._spans.children(node)
        if isinstance(node, (*FUNCTIONS, ast.Lambda)):
            body = node.body if isinstance(node.body, list) else [node.body]
            owners = {child: node for child in body}
            self._parts(region, children, number, first, last, owner, owners)
        else:
            self._parts(region, children, number, first, last, owner)

    def _parts(
        self,
        region: Region,
        children: list[ast.AST],
        parent: int,
        first: int,
        last: int,
        owner: ast.AST,
        owners: dict[ast.AST, ast.AST] | None = None,
    ) -> None:
        position = first
        for child in children:
            start, stop = self._spans.of(child)
            if start < position or stop > last:
                continue
            if start > position:
                self._leaves(region, position, start, parent)
            self._add(region, child, parent, (owners or {}).get(child, owner))
            position = stop + 1
        self._leaves(region, position, last + 1, parent)

    def _leaves(self, region: Region, start: int, stop: int, parent: int) -> None:
        ids = range(len(region.labels), len(region.labels) + stop - start)
        region.labels += self._tokens.labels[start:stop]
        region.kinds += self._tokens.kinds[start:stop]
        region.token_ids += ids
        region.child += [(parent, number) for number in ids]
