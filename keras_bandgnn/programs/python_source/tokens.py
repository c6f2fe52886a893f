"""Tokens of a source text and the way from syntax nodes to them."""

import ast
import io
import keyword
import token as token_types
import tokenize

_SKIPPED = {
    token_types.COMMENT,
    token_types.DEDENT,
    token_types.ENDMARKER,
    token_types.INDENT,
    token_types.NEWLINE,
    token_types.NL,
}
_KINDS = {
    token_types.NUMBER: "Number",
    token_types.OP: "Operator",
    token_types.STRING: "String",
}
MAX_LABEL = 200
"""Longer tokens (docstrings, data) are cut to this many characters in labels."""


def decode(source: str | bytes) -> str:
    """Decodes by byte order mark and PEP 263 cookie; all line ends become newlines.

    Raises:
        SyntaxError: For an unknown or contradictory encoding, or undecodable bytes.
    """
    if isinstance(source, bytes):
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        try:
            source = source.decode(encoding)
        except UnicodeDecodeError as error:
            raise SyntaxError(f"cannot decode as {encoding}: {error}") from error
    source = source.removeprefix("\ufeff")
    return source.replace("\r\n", "\n").replace("\r", "\n")


class Tokens:
    """Tokens in source order, without comments, line ends and indentation.

    Args:
        text: Decoded source.

    Attributes:
        labels: Source text of each token, cut to `MAX_LABEL` characters.
        kinds: `"Identifier"`, `"Keyword"`, `"Operator"`, `"Number"`, `"String"`.
        starts: (line from 1, column from 0) of each token, in characters.
    """

    def __init__(self, text: str) -> None:
        self.labels: list[str] = []
        self.kinds: list[str] = []
        self.starts: list[tuple[int, int]] = []
        self._first: dict[tuple[int, int], int] = {}
        self._last: dict[tuple[int, int], int] = {}
        self._lines = text.split("\n")
        try:
            for item in tokenize.generate_tokens(io.StringIO(text).readline):
                if item.type not in _SKIPPED and item.string:
                    self._append(item)
        except tokenize.TokenError as error:
            raise SyntaxError(f"cannot split into tokens: {error}") from error

    def _append(self, item: tokenize.TokenInfo) -> None:
        index = len(self.labels)
        if item.type == token_types.NAME:
            kind = "Keyword" if keyword.iskeyword(item.string) else "Identifier"
        else:
            # Pieces of f-strings (3.12 and later) are strings, too.
            kind = _KINDS.get(item.type, "String")
        self.labels.append(item.string[:MAX_LABEL])
        self.kinds.append(kind)
        self.starts.append(item.start)
        self._first[item.start] = index
        self._last[item.end] = index

    def __len__(self) -> int:
        return len(self.labels)

    def _column(self, line: int, column: int) -> int:
        """Turns a column in UTF-8 bytes, as `ast` counts, into characters."""
        text = self._lines[line - 1]
        if text.isascii():
            return column
        return len(text.encode()[:column].decode(errors="ignore"))

    def start(self, node: ast.AST) -> tuple[int, int]:
        """(line, column) of a syntax node, in characters."""
        return node.lineno, self._column(node.lineno, node.col_offset)

    def first(self, node: ast.AST) -> int | None:
        """First token of a syntax node; None if the node begins within a token."""
        return self._first.get(self.start(node))

    def last(self, node: ast.AST) -> int | None:
        """Last token of a syntax node; None if the node ends within a token."""
        line = node.end_lineno
        return self._last.get((line, self._column(line, node.end_col_offset)))
