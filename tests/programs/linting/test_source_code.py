"""Texts of files and notebooks, and comments that silence findings."""

import json

import pytest

from keras_bandgnn.programs.linting.source_code import SourceCode, read_code

CODE = """\
import os
def f(a,
      b):  # bandgnn: ignore
    return a
x = 1
y = x  # bandgnn: ignore
z = "# bandgnn: ignore"
@decorated
def g(a):
    def h(b):  # noqa  # bandgnn:ignore
        return a
    return a
"""

STATEMENTS = '''\
@decorated(
    1
)
@other
class A(
    B,
):
    # alone
    @method
    def f(self, x):
        # alone
        x = call(
            x
        )
        if (
            x
        ):
            y = 1; z = 2
        else:
            y = x
        return x

t = 1 + \\
  2
u = """
"""
'''
SILENCED = {
    **dict.fromkeys(range(1, 8), range(1, 22)),
    **dict.fromkeys((9, 10), range(9, 22)),
    **dict.fromkeys((12, 13, 14), range(12, 15)),
    **dict.fromkeys((15, 16, 17), range(15, 18)),
    **{line: [line] for line in (8, 11, 18, 19, 20, 21, 22)},
    24: [23, 24],
    26: [25, 26],
}


@pytest.mark.parametrize("line", SILENCED)
def test_a_comment_silences_its_statement(line):
    lines = STATEMENTS.split("\n")
    lines[line - 1] += "  # bandgnn: ignore"
    code = SourceCode("a.py", "\n".join(lines))
    assert sorted(code.ignored) == list(SILENCED[line])


def test_ignored_lines():
    assert SourceCode("a.py", CODE).ignored == {2, 3, 4, 6, 10, 11}
    assert SourceCode("a.py", "x = 1\n").ignored == frozenset()
    assert SourceCode("a.py", "x = 1  # bandgnn: ignored\n").ignored == frozenset()
    whole = SourceCode("a.py", "x = 1\n\n# bandgnn: ignore-file\n")
    assert whole.ignored >= {1, 2, 3}
    # A file that does not parse is an error, which nothing silences.
    assert SourceCode("a.py", "x = (  # bandgnn: ignore\n").ignored == frozenset()


def notebook(cells, **metadata) -> bytes:
    cells = [
        {"cell_type": kind, "source": source, "metadata": {}} for kind, source in cells
    ]
    return json.dumps({"cells": cells, "nbformat": 4, "metadata": metadata}).encode()


CELLS = [
    ("markdown", "# Title"),
    ("code", ["%matplotlib inline\n", "import os\n", "!ls\n", "os.path?"]),
    ("code", "%%time\nfor x in y:\n    %run x\nz = %env HOME\n"),
    ("code", "%%bash\nls"),
    ("code", "hello world"),
    ("code", 'text = """\n%s\n""" % (x,)'),
    ("code", ""),
]


def test_cells_of_a_notebook(tmp_path):
    file = tmp_path / "book.ipynb"
    file.write_bytes(notebook(CELLS, kernelspec={"language": "python"}))
    code = read_code(str(file), "book.ipynb")
    assert code.lines[:4] == ["pass", "import os", "pass", "pass"]
    assert code.lines[4:9] == ["", "for x in y:", "    pass", "z = None", ""]
    assert code.lines[9:] == ['text = """', "%s", '""" % (x,)', ""]
    assert code.skipped == ("cell 4: not Python", "cell 5: not Python")
    assert [code.place(line) for line in (1, 4, 5, 9, 10, 12, 13)] == [
        (2, 1), (2, 4), (3, 1), (3, 5), (6, 1), (6, 3), (7, 1),
    ]  # fmt: skip
    assert all(
        code.line_of(*code.place(line)) == line
        for line in range(1, len(code.lines) + 1)
    )


def test_commands_that_go_on_after_a_backslash(tmp_path):
    cell = (
        "!pip install \\\n  one \\\n  two\nif x:\n    %run a \\\n b\nx = 1 + \\\n 2\n"
    )
    file = tmp_path / "book.ipynb"
    file.write_bytes(notebook([("code", cell)]))
    code = read_code(str(file), "book.ipynb")
    assert code.lines[:6] == ["pass", "pass", "pass", "if x:", "    pass", "    pass"]
    assert code.lines[6:] == ["x = 1 + \\", " 2", ""] and not code.skipped


def test_old_and_other_notebooks(tmp_path):
    file = tmp_path / "book.ipynb"
    cell = {"cell_type": "code", "input": ["x = 1\r\n", "y = 2"]}
    file.write_text(json.dumps({"worksheets": [{"cells": [cell]}]}))
    assert read_code(str(file), "b").text == "x = 1\ny = 2"
    file.write_bytes(notebook([("code", "x <- 1")], language_info={"name": "R"}))
    other = read_code(str(file), "b")
    assert (other.text, other.skipped) == ("", ("a notebook of R, not of Python",))


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b'{"cells": [1]}', b"[" * 9999, b"\xff"]
)
def test_what_is_no_notebook(data, tmp_path):
    file = tmp_path / "book.ipynb"
    file.write_bytes(data)
    with pytest.raises(ValueError, match="Expected a Jupyter notebook"):
        read_code(str(file), "book.ipynb")


def test_files_that_cannot_be_read(tmp_path):
    for encoding in (b"no-such", b"rot13", b"hex", b"undefined"):
        (tmp_path / "a.py").write_bytes(b"# coding: " + encoding + b"\n")
        with pytest.raises(SyntaxError):
            read_code(str(tmp_path / "a.py"), "a.py")
    with pytest.raises(OSError):
        read_code(str(tmp_path / "b.py"), "b.py")
    (tmp_path / "c.py").write_bytes(b"#" * 1_000_001)
    with pytest.raises(ValueError, match="more than"):
        read_code(str(tmp_path / "c.py"), "c.py")
