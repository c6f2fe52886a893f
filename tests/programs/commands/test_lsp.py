"""`bandgnn lsp`, driven by the client of pygls over standard input and output."""

import argparse
import asyncio
import io
import os
import sys

import pytest

from keras_bandgnn.cli.main import main
from keras_bandgnn.cli.options import OptionError
from keras_bandgnn.programs.commands import lsp

WRONG = """\
def copy(source, target):
    with open(source) as reader, open(target, "w") as writer:
        "\U0001f40d"; [writer.write(source) for line in reader]
"""


def test_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pygls.lsp.server", None)
    assert main(["lsp"]) == 1
    assert 'pip install "keras-bandgnn[lsp]"' in capsys.readouterr().err


def test_a_session(tmp_path):
    pytest.importorskip("pygls")
    asyncio.run(asyncio.wait_for(session(tmp_path), 240))


async def session(folder):
    from lsprotocol import types
    from pygls.lsp.client import LanguageClient

    client = LanguageClient("test", "1")
    published = asyncio.Queue()

    @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    def diagnostics(params):
        published.put_nowait(params)

    line = ["-m", "keras_bandgnn", "lsp", "--min-confidence", "0.01"]
    await client.start_io(sys.executable, *line, "--delay", "0.3", env=dict(os.environ))
    uri = (folder / "copy.py").as_uri()
    await client.initialize_async(
        types.InitializeParams(
            capabilities=types.ClientCapabilities(), root_uri=folder.as_uri()
        )
    )
    client.initialized(types.InitializedParams())
    # The text is in the editor only: there is no such file.
    item = types.TextDocumentItem(uri, "python", 1, WRONG)
    client.text_document_did_open(types.DidOpenTextDocumentParams(item))
    first = await published.get()
    found = [d for d in first.diagnostics if d.range.start.line == 2]
    (diagnostic,) = found
    # A snake counts as two, in units of UTF-16.
    assert diagnostic.range.start.character == 28
    assert diagnostic.range.end.character == 34
    assert diagnostic.code == "wrong-variable" and "`line`" in diagnostic.message
    actions = await client.text_document_code_action_async(
        types.CodeActionParams(
            types.TextDocumentIdentifier(uri),
            diagnostic.range,
            types.CodeActionContext([diagnostic]),
        )
    )
    (action,) = actions
    assert action.title == "Replace source by line"
    (edit,) = action.edit.changes[uri]
    assert (edit.new_text, edit.range) == ("line", diagnostic.range)
    # The text is another one at the place of an old diagnostic.
    moved = types.Range(
        types.Position(1, diagnostic.range.start.character),
        types.Position(1, diagnostic.range.end.character),
    )
    old = types.Diagnostic(
        moved, diagnostic.message, source="bandgnn", data=diagnostic.data
    )
    context = types.CodeActionContext([old])
    outdated = types.CodeActionParams(types.TextDocumentIdentifier(uri), moved, context)
    assert not await client.text_document_code_action_async(outdated)
    # Form feeds and separators of Unicode end no lines.
    text = "\x0c\nx = '\u2028\x85'\n" + WRONG
    other = (folder / "other.py").as_uri()
    item = types.TextDocumentItem(other, "python", 1, text)
    client.text_document_did_open(types.DidOpenTextDocumentParams(item))
    ranges = [d.range for d in (await published.get()).diagnostics]
    (found,) = [r for r in ranges if r.start.line == 4]
    assert (found.start.character, found.end.character) == (28, 34)
    # Several quick changes are checked once, when they are over.
    for version in (2, 3, 4):
        change = types.TextDocumentContentChangeWholeDocument(
            WRONG if version < 4 else "x = (\n"
        )
        client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(version, uri), [change]
            )
        )
    second = await published.get()
    assert (second.version, list(second.diagnostics)) == (4, [])
    client.text_document_did_close(
        types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(uri))
    )
    assert not (await published.get()).diagnostics and published.empty()
    await client.shutdown_async(None)
    client.exit(None)
    await client.stop()


def test_settings(tmp_path):
    pytest.importorskip("pygls")
    asyncio.run(asyncio.wait_for(settings_session(tmp_path), 240))


async def settings_session(folder):
    from lsprotocol import types
    from pygls.lsp.client import LanguageClient

    client = LanguageClient("test", "1")
    published, shown = asyncio.Queue(), asyncio.Queue()

    @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    def diagnostics(params):
        published.put_nowait(params)

    @client.feature(types.WINDOW_SHOW_MESSAGE)
    def message(params):
        shown.put_nowait(params.message)

    def opened(name):
        item = types.TextDocumentItem((folder / name).as_uri(), "python", 1, WRONG)
        client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def saved(name):
        item = types.TextDocumentIdentifier((folder / name).as_uri())
        client.text_document_did_save(types.DidSaveTextDocumentParams(item))

    def settings(text, name="pyproject.toml"):
        (folder / name).write_text(f"[tool.bandgnn]\n{text}\n")

    line = ["-m", "keras_bandgnn", "lsp", "--min-confidence", "0.01"]
    await client.start_io(sys.executable, *line, env=dict(os.environ))
    await client.initialize_async(
        types.InitializeParams(
            capabilities=types.ClientCapabilities(), root_uri=folder.as_uri()
        )
    )
    client.initialized(types.InitializedParams())
    (folder / "other").mkdir()
    settings("wrong = 1"), settings("strange = 1", "other/pyproject.toml")
    opened("a.py")
    assert "wrong" in await shown.get()
    # The same error again, of this file and of another one, is not shown again.
    saved("a.py"), opened("b.py"), opened("other/c.py")
    assert "strange" in await shown.get()
    # Excluded files have no findings.
    settings('exclude = ["gen/*.py", "a.py"]')
    opened("gen/c.py"), saved("a.py")
    assert not (await published.get()).diagnostics
    assert not (await published.get()).diagnostics
    assert shown.empty()
    # An error that was corrected is shown again.
    settings("wrong = 1"), saved("b.py")
    assert "wrong" in await shown.get()
    assert shown.empty() and published.empty()
    await client.shutdown_async(None)
    client.exit(None)
    await client.stop()


def test_options_have_defaults():
    parser = argparse.ArgumentParser()
    lsp.add_arguments(parser)
    assert parser.parse_args([]).delay == 0.5


@pytest.mark.parametrize(
    "data",
    [None, 3, "used", [], ["used"], {}, {"used": "a"}, {"used": "a", "suggested": None}]
    + [{"used": 1, "suggested": "b"}, {"used": "a", "suggested": "rm -rf"}, object()],
)
def test_data_of_others_is_no_fix(data):
    assert lsp.replacement(data) is None


@pytest.mark.parametrize("name", ["stdin", "stdout"])
def test_streams_of_text_are_refused(name, monkeypatch):
    monkeypatch.setattr(lsp.sys, name, io.StringIO())
    with pytest.raises(OptionError, match="Received: a stream of text"):
        lsp.run(argparse.Namespace(model=None, min_confidence=None, delay=0.5))


def test_data_of_fixes():
    data = {"used": "a", "suggested": "b"}
    for form in (data, argparse.Namespace(**data)):
        assert lsp.replacement(form) == ("a", "b")
