"""Control flow through the patterns of `match` statements."""

import ast

from keras_bandgnn.data.python_source.expressions import ExpressionFlow
from keras_bandgnn.data.python_source.frame import WRITE


def matches_all(pattern: ast.pattern) -> bool:
    """Whether a pattern matches everything."""
    return isinstance(pattern, ast.MatchAs) and (
        pattern.pattern is None or matches_all(pattern.pattern)
    )


class PatternFlow(ExpressionFlow):
    """Appends the points of patterns to a frame."""

    def pattern(self, node: ast.pattern) -> None:
        """Appends what is read and captured if `node` matches."""
        if isinstance(node, ast.MatchOr):
            start, ends = self.live, []
            for item in node.patterns:
                self.live = start
                self.pattern(item)
                ends.append(self.live)
            self.join(*ends)
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.pattern):
                self.pattern(child)
            else:
                self.visit(child)
        if isinstance(node, ast.MatchMapping):
            if node.rest is not None:
                self.use(WRITE, node.rest, self._last_called(node, node.rest))
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name is not None:
            self.use(WRITE, node.name, self.tokens.last(node))

    def _last_called(self, node: ast.AST, name: str) -> int | None:
        """The last token of `node` that is called `name`."""
        last = self.tokens.last(node)
        while last is not None and last >= 0 and self.tokens.labels[last] != name:
            last -= 1
        return last
