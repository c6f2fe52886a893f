"""Tokens of a source text, and their mapping from syntax nodes."""

import ast
import io
import keyword
import re
import sys
import token as token_types
import tokenize
import warnings

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
"""Maximum number of characters of a label; longer tokens are truncated."""


def decode(source: str | bytes) -> str:
    """Decode by byte order mark and PEP 263 cookie, and normalise line ends.

    Raises:
        SyntaxError: For an unknown or contradictory encoding, or undecodable bytes.
    """
    if isinstance(source, bytes):
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        try:
            source = source.decode(encoding)
        except (LookupError, UnicodeError) as error:
            # LookupError for codecs of something else than text, such as rot13.
            raise SyntaxError(f"cannot decode as {encoding}: {error}") from error
    source = source.removeprefix("\ufeff")
    return source.replace("\r\n", "\n").replace("\r", "\n")


UNPARSABLE = (MemoryError, RecursionError, SyntaxError, ValueError)
"""Errors of `parse`."""

# Syntax by the first version of Python that has it, in the line of an error.
_NEWER = tuple(
    (version, re.compile(pattern))
    for version, pattern in (
        ((3, 15), r"\s*lazy\s+(import|from)\b"),
        # Python 2 has the name of a variable, such as e, after the comma.
        ((3, 14), r"\s*except\*?\s+[\w.]+(\s*,\s*[\w.]*[A-Z]\w*)+\s*:"),
        ((3, 14), r"(?i).*(?<![\w\"'])(t|tr|rt)[\"']"),
        ((3, 13), r"\s*((async\s+)?def|class|type)\s+\w+\[[^\]()]*="),
        ((3, 12), r"\s*((async\s+)?def|class)\s+\w+\["),
        ((3, 12), r"\s*type\s+\w+\s*(\[.*\]\s*)?="),
        # The quotes of an f-string again in its braces.
        (
            (3, 12),
            r"(?i).*(?<![\w\"'])(f|fr|rf)([\"'])[^\"']*\{[^{}\"']*\2[^{}]*\}",
        ),
    )
)
# The same by parts of the messages of errors.
_NEWER_MESSAGES = {
    "f-string expression part": (3, 12),
    "f-string: expressions nested": (3, 12),
    "unpacking cannot be used in": (3, 15),
}


class NewerSyntax(SyntaxError):
    """Error of source that is written for a newer Python than the one that runs."""


def parse(text: str) -> ast.Module:
    """Parse source without running it and without warnings.

    Raises:
        NewerSyntax: If it looks like source for a newer Python.
        SyntaxError: If it does not parse otherwise.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        here, version = sys.version_info[:2], _version_of(error, text)
        if version is None or version <= here:
            raise
        raise NewerSyntax(
            f"needs Python {version[0]}.{version[1]} or later, and was read with "
            f"Python {here[0]}.{here[1]}"
        ) from error


def _version_of(error: SyntaxError, text: str) -> tuple[int, int] | None:
    """Return the first version of Python that may parse a text, None if none does."""
    versions = [v for part, v in _NEWER_MESSAGES.items() if part in str(error.msg)]
    lines, last = text.split("\n"), error.lineno or 0
    # An error of an f-string may be reported in the line after it.
    for line in lines[max(0, last - 2) : last]:
        versions += [version for version, pattern in _NEWER if pattern.match(line)]
    return max(versions, default=None)


def name_end(line: str, column: int) -> int:
    """Return the column after a name, from 0.

    A name may be longer or shorter in the source than the variable: Python normalises
    ligatures and such.
    """
    end = column
    while end < len(line) and f"_{line[end]}".isidentifier():
        end += 1
    return end


class Tokens:
    """Tokens in source order, without comments, line ends and indentation.

    Args:
        text: Decoded source.

    Attributes:
        labels: Source text of each token, truncated to `MAX_LABEL` characters.
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
            # Parts of f-strings (3.12 and later) are also strings.
            kind = _KINDS.get(item.type, "String")
        self.labels.append(item.string[:MAX_LABEL])
        self.kinds.append(kind)
        self.starts.append(item.start)
        self._first[item.start] = index
        self._last[item.end] = index

    def __len__(self) -> int:
        return len(self.labels)

    def _column(self, line: int, column: int) -> int:
        """Convert a column of `ast`, in UTF-8 bytes, to characters."""
        text = self._lines[line - 1]
        if text.isascii():
            return column
        return len(text.encode()[:column].decode(errors="ignore"))

    def start(self, node: ast.AST) -> tuple[int, int]:
        """Return (line, column) of a syntax node, in characters."""
        return node.lineno, self._column(node.lineno, node.col_offset)

    def first(self, node: ast.AST) -> int | None:
        """Return the first token of a node; None if it begins within a token."""
        return self._first.get(self.start(node))

    def last(self, node: ast.AST) -> int | None:
        """Return the last token of a node; None if it ends within a token."""
        line = node.end_lineno
        return self._last.get((line, self._column(line, node.end_col_offset)))
