"""`SourceCode`: the text of a Python file or notebook, and its ignored lines."""

import ast
import bisect
import dataclasses
import functools
import io
import json
import re
import tokenize
from collections.abc import Iterator

from keras_bandgnn.programs.program_files import MAX_BYTES
from keras_bandgnn.programs.python_source.listing import read_source
from keras_bandgnn.programs.python_source.tokens import (
    UNPARSABLE,
    NewerSyntax,
    decode,
    parse,
)

SUFFIXES = (".py", ".pyw", ".ipynb")
# Notebooks hold pictures.
_NOTEBOOK_BYTES = 64_000_000
_IGNORE = re.compile(r"#\s*bandgnn:\s*ignore(-file)?(?![\w-])")
_MAGIC_CELL = re.compile(r"\s*%%\s*(\w+)")
# Cell magics whose cell is Python.
_PYTHON_CELLS = ("capture", "prun", "time", "timeit")
_MAGIC = re.compile(r"(\s*)(?:[%!?]|(?:[\w.]+\?{1,2}\s*$))")
_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT)
_COMMAND = re.compile(r"\s*[%!]")
_MAGIC_VALUE = re.compile(r"(\s*[\w.,\s]+=\s*)[%!]")


@dataclasses.dataclass(frozen=True)
class SourceCode:
    r"""The text of a file.

    Attributes:
        path: The file, as it was named.
        text: Decoded text with "\n" as line end; of a notebook the code cells, joined.
        cells: (first line in `text`, number of the cell) of each code cell of a
            notebook, from 1; empty for other files.
        skipped: Reasons why cells were left out.
    """

    path: str
    text: str
    cells: tuple[tuple[int, int], ...] = ()
    skipped: tuple[str, ...] = ()

    @functools.cached_property
    def lines(self) -> list[str]:
        """The lines of the text."""
        return self.text.split("\n")

    @functools.cached_property
    def ignored(self) -> frozenset[int]:
        """Lines of the text whose findings are to be ignored."""
        return frozenset(_ignored_lines(self.text))

    def place(self, line: int) -> tuple[int | None, int]:
        """Return the cell of a line of the text, and its line in the cell."""
        if not self.cells:
            return None, line
        first, cell = self.cells[bisect.bisect(self.cells, (line, 1 << 62)) - 1]
        return cell, line - first + 1

    def line_of(self, cell: int | None, line: int) -> int:
        """Return the line of the text at a place; the inverse of `place`."""
        firsts = {number: first for first, number in self.cells}
        return line if cell is None else firsts[cell] + line - 1


def read_code(file: str, path: str) -> SourceCode:
    """Read a Python file or a notebook.

    Args:
        file: The file.
        path: Its name in findings.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is too large, not a regular file or not a notebook.
        SyntaxError: If it cannot be decoded.
    """
    if not file.endswith(".ipynb"):
        return SourceCode(path, decode(read_source(file, MAX_BYTES)))
    return _notebook(path, read_source(file, _NOTEBOOK_BYTES))


def _notebook(path: str, data: bytes) -> SourceCode:
    try:
        book = json.loads(data)
        sheets = book.get("worksheets") or [book]
        cells = [cell for sheet in sheets for cell in sheet["cells"]]
        about = book.get("metadata") or {}
        language = (about.get("kernelspec") or {}).get("language")
        language = language or (about.get("language_info") or {}).get("name")
        sources = [
            (number, _cell_text(cell))
            for number, cell in enumerate(cells, start=1)
            if cell["cell_type"] == "code"
        ]
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(
            "Expected a Jupyter notebook with cells. Received: "
            f"{type(error).__name__}: {error}. Open and save it again in Jupyter."
        ) from error
    if language not in (None, "python", "ipython"):
        return SourceCode(path, "", (), (f"a notebook of {language}, not of Python",))
    texts: list[str] = []
    starts, skipped, first = [], [], 1
    for number, text in sources:
        try:
            code = _python_cell(text)
        except UNPARSABLE as error:
            reason = error if isinstance(error, NewerSyntax) else "not Python"
            skipped.append(f"cell {number}: {reason}")
            continue
        texts.append(code)
        starts.append((first, number))
        first += code.count("\n") + 1
    joined = "\n".join(texts)
    if len(joined) > MAX_BYTES:
        raise ValueError(f"{len(joined)} characters of code, more than {MAX_BYTES}")
    return SourceCode(path, joined, tuple(starts), tuple(skipped))


def _cell_text(cell: dict) -> str:
    source = cell["source"] if "source" in cell else cell["input"]
    text = source if isinstance(source, str) else "".join(source)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _python_cell(text: str) -> str:
    """Return the cell with its magics left out; raise an error if it is not Python."""
    if _tree(text) is not None:
        return text
    lines = text.split("\n")
    if magic := _MAGIC_CELL.match(text):
        if magic[1] not in _PYTHON_CELLS:
            raise SyntaxError(f"a cell of {magic[1]}")
        lines[text[: magic.start(1)].count("\n")] = ""
    # Lines keep their numbers, and blocks their bodies. A command may go on after a
    # backslash.
    for number, line in enumerate(lines[1:], start=1):
        before = lines[number - 1]
        if before.endswith("\\") and _COMMAND.match(before):
            lines[number] = before[: len(before) - len(before.lstrip())] + "!" + line
    lines = [
        f"{magic[1]}pass" if (magic := _MAGIC.match(line)) else line for line in lines
    ]
    lines = [
        f"{magic[1]}None" if (magic := _MAGIC_VALUE.match(line)) else line
        for line in lines
    ]
    code = "\n".join(lines)
    parse(code)
    return code


def _tree(text: str) -> ast.AST | None:
    try:
        return parse(text)
    except UNPARSABLE:
        return None


def _ignored_lines(text: str) -> Iterator[int]:
    if not _IGNORE.search(text):
        return
    tree = _tree(text)
    if tree is None:
        return
    marked, statements, tokens = set(), {}, []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        match = token.type == tokenize.COMMENT and _IGNORE.search(token.string)
        if match and match[1]:
            yield from range(1, text.count("\n") + 2)
            return
        if match:
            marked.add(token.start[0])
        if token.type not in _NO_CODE:
            tokens.append(token)
        if token.type == tokenize.NEWLINE:
            # A statement, or the head of one that has others in it.
            lines = range(tokens[0].start[0], token.start[0] + 1)
            statements |= dict.fromkeys(lines, lines)
            tokens = []
    for line in marked:
        yield from statements.get(line, [line])
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            # A comment on any line of the decorators and the head counts.
            first = min(part.lineno for part in (node, *node.decorator_list))
            head = range(first, statements[node.lineno][-1] + 1)
            if not marked.isdisjoint(head):
                yield from range(first, node.end_lineno + 1)
