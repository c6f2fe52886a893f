"""Findings as text, JSON, SARIF and workflow commands of GitHub."""

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

from keras_bandgnn.programs.linting.baseline import fingerprints
from keras_bandgnn.programs.linting.finding import FileFindings, Finding
from keras_bandgnn.version import __version__

RULE = "wrong-variable"
_ABOUT = "Another variable of the function may be meant here."


@dataclasses.dataclass(frozen=True)
class Run:
    """The findings of a run.

    Attributes:
        results: Results with findings, sorted by file.
        errors: (file, reason) of what could not be checked.
        files: Number of files that were checked.
        model: The model.
        min_confidence: Least confidence of a finding.
        held_back: Number of less confident findings, from a tenth of it on.
        ranked: Whether text and JSON list the most confident findings first.
    """

    results: Sequence[FileFindings]
    errors: Sequence[tuple[str, str]]
    files: int
    model: str
    min_confidence: float
    held_back: int = 0
    ranked: bool = False

    @property
    def count(self) -> int:
        """Number of findings."""
        return sum(len(result.findings) for result in self.results)

    @property
    def summary(self) -> str:
        """The numbers of findings and files, in a line."""
        files = f"{self.files} file{'s' * (self.files != 1)}"
        if self.ranked:
            return f"{self.count} of the most suspicious places in {files}"
        line = f"{self.count} finding{'s' * (self.count != 1)} in {files}"
        if self.held_back:
            line += f", {self.held_back} less probable held back (see --rank)"
        return line

    @property
    def findings(self) -> list[tuple[FileFindings, Finding, str]]:
        """The findings with their files and fingerprints, in the order to show."""
        rows = [
            (result, finding, fingerprint)
            for result in self.results
            for finding, fingerprint in zip(
                result.findings, fingerprints(result), strict=True
            )
        ]
        if self.ranked:
            rows.sort(key=lambda row: -row[1].confidence)
        return rows


def most_confident(results: Sequence[FileFindings], count: int) -> list[FileFindings]:
    """Return the results with the most confident findings of all of them.

    Args:
        results: Results.
        count: Number of findings.
    """
    rows = [(result, finding) for result in results for finding in result.findings]
    rows.sort(key=lambda row: -row[1].confidence)
    ids = {id(finding) for _, finding in rows[:count]}
    shortened = []
    for result in results:
        findings = tuple(f for f in result.findings if id(f) in ids)
        if findings:
            shortened.append(dataclasses.replace(result, findings=findings))
    return shortened


def line_of(result: FileFindings, finding: Finding) -> str:
    """Return the source line of a finding."""
    code = result.code
    return code.lines[code.line_of(finding.cell, finding.line) - 1]


def text(run: Run) -> str:
    """Return a line for each finding, `file:line:column: rule: message`."""
    lines = [
        f"{_printable(finding.place)}: {RULE}: {finding.message}"
        for _, finding, _ in run.findings
    ]
    return "\n".join([*lines, run.summary, ""])


def _printable(name: str) -> str:
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in name
    )


def json_lines(run: Run) -> str:
    """Return one JSON object with the findings, errors and settings."""
    findings = [
        {
            **dataclasses.asdict(finding),
            "candidates": [
                {"name": name, "probability": share}
                for name, share in finding.candidates
            ],
            "code": line_of(result, finding),
            "fingerprint": fingerprint,
        }
        for result, finding, fingerprint in run.findings
    ]
    return _dump(
        {
            "version": 1,
            "model": run.model,
            "min_confidence": run.min_confidence,
            "files": run.files,
            "held_back": run.held_back,
            "findings": findings,
            "errors": [{"path": path, "reason": why} for path, why in run.errors],
        }
    )


def _dump(value: dict) -> str:
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def _uri(path: str) -> dict:
    """Return an artifactLocation; relative to the current folder, if in it."""
    absolute = os.path.abspath(path)
    if absolute.startswith(os.getcwd() + os.sep):
        relative = Path(os.path.relpath(absolute)).as_posix()
        return {"uri": quote(os.fsencode(relative)), "uriBaseId": "%SRCROOT%"}
    return {"uri": Path(absolute).as_uri()}


def sarif(run: Run) -> str:
    """Return a log in SARIF 2.1.0, with fixes and fingerprints."""
    results = [
        _sarif_result(result, finding, fingerprint)
        for result, finding, fingerprint in run.findings
    ]
    rule = {
        "id": RULE,
        "name": "WrongVariable",
        "shortDescription": {"text": _ABOUT},
        "fullDescription": {
            "text": "A model of source code ranks this place among those where another "
            "variable may be meant."
        },
        "help": {
            "text": "Check whether the suggested variable was meant. If not, end the "
            "line with the comment: # bandgnn: ignore"
        },
        "defaultConfiguration": {"level": "note"},
        "properties": {"precision": "low", "tags": ["correctness"]},
    }
    invocation = {
        "executionSuccessful": not run.errors,
        "toolExecutionNotifications": [
            {
                "level": "error",
                "message": {"text": reason},
                "locations": [{"physicalLocation": {"artifactLocation": _uri(path)}}],
            }
            for path, reason in run.errors
        ],
    }
    return _dump(
        {
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [
                {
                    "tool": {
                        "driver": {
                            "name": "bandgnn",
                            "version": __version__,
                            "rules": [rule],
                        }
                    },
                    "columnKind": "unicodeCodePoints",
                    "invocations": [invocation],
                    "properties": {
                        "model": run.model,
                        "minConfidence": run.min_confidence,
                    },
                    "results": results,
                }
            ],
        }
    )


def _sarif_result(result: FileFindings, finding: Finding, fingerprint: str) -> dict:
    artifact = _uri(finding.path)
    physical = {"artifactLocation": artifact}
    message = f"{finding.message}."
    entry = {
        "ruleId": RULE,
        "ruleIndex": 0,
        "level": "note",
        "rank": round(100 * finding.confidence, 4),
        "partialFingerprints": {"bandgnn/v1": fingerprint},
        "properties": {
            "confidence": finding.confidence,
            "candidates": [
                {"name": name, "probability": p} for name, p in finding.candidates
            ],
        },
    }
    if finding.cell is None:
        region = {
            "startLine": finding.line,
            "startColumn": finding.column,
            "endColumn": finding.end_column,
        }
        line = line_of(result, finding)
        name = line[finding.column - 1 : finding.end_column - 1]
        physical["region"] = {**region, "snippet": {"text": name}}
        if line != name:
            # The standard wants more than the region, here the line.
            context = {"startLine": finding.line, "snippet": {"text": line}}
            physical["contextRegion"] = context
        replacement = {
            "deletedRegion": region,
            "insertedContent": {"text": finding.suggested},
        }
        change = {"artifactLocation": artifact, "replacements": [replacement]}
        about = {"text": f"Replace {finding.used} by {finding.suggested}."}
        entry["fixes"] = [{"description": about, "artifactChanges": [change]}]
    else:
        # Lines of a cell are not lines of the file.
        message = (
            f"Cell {finding.cell}, line {finding.line}, column {finding.column}: "
            f"{message}"
        )
    logical = {"fullyQualifiedName": finding.function, "kind": "function"}
    location = {"physicalLocation": physical}
    if finding.function != "<module>":
        location["logicalLocations"] = [logical]
    return {**entry, "message": {"text": message}, "locations": [location]}


def github(run: Run) -> str:
    """Return workflow commands, which GitHub shows at the lines of a pull request."""
    lines = []
    for _, finding, _ in run.findings:
        message, place = finding.message, {"file": _slashes(finding.path)}
        if finding.cell is None:
            place["line"] = place["endLine"] = str(finding.line)
            place["col"] = str(finding.column)
            # The last column, not the one after it.
            place["endColumn"] = str(finding.end_column - 1)
        else:
            message = f"cell {finding.cell}, line {finding.line}: {message}"
        place["title"] = RULE
        lines.append(_command("warning", place, message))
    for path, reason in run.errors:
        place = {"file": _slashes(path), "title": "not checked"}
        lines.append(_command("error", place, reason))
    return "".join(f"{line}\n" for line in lines)


def _slashes(path: str) -> str:
    return Path(path).as_posix()


def _command(kind: str, place: dict[str, str], message: str) -> str:
    def data(value: str) -> str:
        value = value.replace("%", "%25")
        return value.replace("\r", "%0D").replace("\n", "%0A")

    def value_of(value: str) -> str:
        return data(value).replace(":", "%3A").replace(",", "%2C")

    values = ",".join(f"{key}={value_of(value)}" for key, value in place.items())
    return f"::{kind} {values}::{data(message)}"


FORMATS: dict[str, Callable[[Run], str]] = {
    "text": text,
    "json": json_lines,
    "sarif": sarif,
    "github": github,
}
"""Name of a format -> its function."""
