"""Runs a language server: findings in an editor, while the code is written.

It speaks the Language Server Protocol on standard input and output. Open, changed and
saved files are checked, saved or not; a quick fix replaces the variable. The defaults
of the options come from the table [tool.bandgnn] of the nearest pyproject.toml.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from keras_bandgnn.cli import options as shared
from keras_bandgnn.optional import optional_import
from keras_bandgnn.programs.commands.check import add_model
from keras_bandgnn.version import __version__

if TYPE_CHECKING:
    from keras_bandgnn.programs.linting.checker import Checker
    from keras_bandgnn.programs.linting.finding import Finding
    from keras_bandgnn.programs.linting.source_code import SourceCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_model(parser, "as for check")
    parser.add_argument(
        "--delay",
        type=shared.above_zero,
        default=0.5,
        metavar="SECONDS",
        help="time without a change before a file is checked",
    )


def make_server(options: argparse.Namespace):
    """Return the language server, a `pygls` server.

    Raises:
        ImportError: If pygls is not installed.
    """
    package, purpose = "keras-bandgnn[lsp]", "the language server"
    pygls = optional_import("pygls.lsp.server", package, purpose)
    types = optional_import("lsprotocol.types", package, purpose)

    # pygls applies changes of ranges wrongly after line ends of Python that are none of
    # the protocol, such as form feeds.
    server = pygls.LanguageServer(
        "bandgnn",
        __version__,
        text_document_sync_kind=types.TextDocumentSyncKind.Full,
    )
    session = _Session(server, types, options)

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    async def opened(params) -> None:
        session.schedule(params.text_document.uri, 0)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    async def saved(params) -> None:
        session.schedule(params.text_document.uri, 0)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    async def changed(params) -> None:
        session.schedule(params.text_document.uri, options.delay)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    async def closed(params) -> None:
        session.close(params.text_document.uri)

    kinds = types.CodeActionOptions([types.CodeActionKind.QuickFix])

    @server.feature(types.TEXT_DOCUMENT_CODE_ACTION, kinds)
    async def actions(params) -> list:
        return session.quick_fixes(params.text_document.uri, params.context.diagnostics)

    return server


class _Session:
    """The checks of a server: those that wait, and the models that they share."""

    def __init__(self, server, types, options: argparse.Namespace):
        self._server = server
        self._types = types
        self._options = options
        # The model runs in one thread; the server answers meanwhile.
        self._worker = ThreadPoolExecutor(1)
        self._checkers: dict[tuple, Checker] = {}
        self._waiting: dict[str, asyncio.Task] = {}
        # Errors that are shown, by file.
        self._errors: dict[str, str] = {}

    def schedule(self, uri: str, delay: float) -> None:
        """Check a file after a delay, instead of a check that waits."""
        if uri in self._waiting:
            self._waiting[uri].cancel()
        self._waiting[uri] = asyncio.ensure_future(self._check(uri, delay))

    def close(self, uri: str) -> None:
        """Cancel the check of a file, and remove its diagnostics."""
        if uri in self._waiting:
            self._waiting.pop(uri).cancel()
        self._server.text_document_publish_diagnostics(
            self._types.PublishDiagnosticsParams(uri, [])
        )

    async def _check(self, uri: str, delay: float) -> None:
        from keras_bandgnn.programs.linting.source_code import SourceCode
        from keras_bandgnn.programs.python_source.tokens import decode

        await asyncio.sleep(delay)
        document = self._server.workspace.get_text_document(uri)
        if not document.path or urlsplit(uri).path.endswith(".ipynb"):
            return
        version = document.version
        # Not the lines of `document`, which also end at form feeds and such.
        code = SourceCode(document.path, decode(document.source))
        loop = asyncio.get_running_loop()
        try:
            findings = await loop.run_in_executor(self._worker, self._findings, code)
        except Exception as error:
            # A wrong setting must not end the session, nor be shown at every change.
            self._show_error(uri, f"bandgnn: {error}")
            return
        solved = self._errors.get(uri)
        for other in [key for key, text in self._errors.items() if text == solved]:
            del self._errors[other]
        diagnostics = [self._diagnostic(code, finding) for finding in findings]
        self._server.text_document_publish_diagnostics(
            self._types.PublishDiagnosticsParams(uri, diagnostics, version)
        )

    def _findings(self, code: SourceCode) -> list:
        """Return the findings in a file; it runs in the worker."""
        from keras_bandgnn.programs.linting.checker import DEFAULT_MODEL, Checker
        from keras_bandgnn.programs.linting.project_files import Exclude
        from keras_bandgnn.programs.linting.settings import find_settings

        settings = find_settings([code.path])
        if settings.file is not None:
            if Exclude(settings.exclude, settings.file.parent).matches(code.path):
                return []
        least = self._options.min_confidence
        key = (
            self._options.model or settings.model or DEFAULT_MODEL,
            settings.min_confidence if least is None else least,
        )
        if key not in self._checkers:
            self._checkers[key] = Checker(*key, processes=1)
        (result,) = self._checkers[key].check([code])
        return list(result.findings)

    def _show_error(self, uri: str, text: str) -> None:
        """Show the error of a file, unless it is shown for another one."""
        if text not in self._errors.values():
            kind = self._types.MessageType.Error
            self._server.window_show_message(self._types.ShowMessageParams(kind, text))
        self._errors[uri] = text

    def _diagnostic(self, code: SourceCode, finding: Finding):
        types, codec = self._types, self._server.workspace.position_codec
        line = finding.line - 1
        start, end = (
            codec.position_to_client_units(code.lines, types.Position(line, column - 1))
            for column in (finding.column, finding.end_column)
        )
        return types.Diagnostic(
            types.Range(start, end),
            finding.message,
            severity=types.DiagnosticSeverity.Information,
            code="wrong-variable",
            source="bandgnn",
            data={"used": finding.used, "suggested": finding.suggested},
        )

    def quick_fixes(self, uri: str, diagnostics: list) -> list:
        """Return the actions that replace the variables of diagnostics."""
        from keras_bandgnn.programs.python_source.tokens import decode

        types = self._types
        document = self._server.workspace.get_text_document(uri)
        lines = decode(document.source).split("\n")
        fixes = []
        for diagnostic in diagnostics:
            names = replacement(diagnostic.data)
            if diagnostic.source != "bandgnn" or names is None:
                continue
            used, suggested = names
            # The diagnostic may be of an earlier version of the text.
            if text_of(lines, diagnostic.range) != used:
                continue
            edit = types.TextEdit(diagnostic.range, suggested)
            fixes.append(
                types.CodeAction(
                    f"Replace {used} by {suggested}",
                    kind=types.CodeActionKind.QuickFix,
                    diagnostics=[diagnostic],
                    edit=types.WorkspaceEdit({uri: [edit]}),
                )
            )
        return fixes


def text_of(lines: list[str], place) -> str | None:
    """Return the text at a range of one line, in units of UTF-16, or None."""
    if place.start.line != place.end.line or place.start.line >= len(lines):
        return None
    units = lines[place.start.line].encode("utf-16-le")
    within = units[2 * place.start.character : 2 * place.end.character]
    return within.decode("utf-16-le", "replace")


def replacement(data: object) -> tuple[str, str] | None:
    """Return the variables of a diagnostic's data, None for foreign data."""
    fields = data if isinstance(data, dict) else getattr(data, "__dict__", {})
    names = (fields.get("used"), fields.get("suggested"))
    valid = all(isinstance(name, str) and name.isidentifier() for name in names)
    return names if valid else None


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        OptionError: If standard input or output takes text only.
    """
    if not all(hasattr(stream, "buffer") for stream in (sys.stdin, sys.stdout)):
        raise shared.OptionError(
            "Expected standard input and output of bytes, as an editor provides. "
            "Received: a stream of text. Start the command from an editor"
        )
    server = make_server(options)
    # What libraries print must not get between the messages.
    output, sys.stdout = sys.stdout.buffer, sys.stderr
    server.start_io(sys.stdin.buffer, output)
