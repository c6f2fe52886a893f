"""Real fixes of wrong variables: what models and linters say before and after them."""

import ast
import collections
import gzip
import json
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from examples.benchmarks.bug_planted import FIRST, wilson
from examples.benchmarks.bug_texts import at, check_texts, module_text
from keras_bandgnn.cli import report
from keras_bandgnn.programs.functions import read_module
from keras_bandgnn.programs.linting.finding import FindingSource

# What ruff checks: its default rules, or those of pyflakes.
_RUFF = {"ruff, its default": [], "ruff, rules F": ["--select", "F"]}

Complaint = tuple[int, str]


@dataclass(frozen=True)
class Fix:
    """A file with a wrong variable, and the same without.

    Attributes:
        before: The file with the wrong variable.
        after: The file with the right one.
        line: Line of the variable.
        column: Its column, from 1.
        used: The wrong name.
        correct: The right name.
        lines: First line of the outermost function around it, and the line after it.
        alone: (text before, text after, line) of this function in a text without the
            bodies of others.
        seen: Whether a model may have seen the project in training, maybe as it was
            after the fix.
    """

    before: str
    after: str
    line: int
    column: int
    used: str
    correct: str
    lines: tuple[int, int]
    alone: tuple[str, str, int]
    seen: bool = False


def read_fixes(
    folder: Path, limit: int | None = None, trained: Iterable[str] = ()
) -> list[Fix]:
    """Read the fixes in `cases.jsonl.gz` and `files_before.jsonl.gz` of a folder.

    Without the second file the functions before the fixes stand for their files.

    Args:
        folder: The folder.
        limit: Number of fixes; all if omitted.
        trained: Names of packages that models were trained on.

    Raises:
        ValueError: If the files do not fit to each other.
    """
    cases, files = _rows(folder / "cases.jsonl.gz"), folder / "files_before.jsonl.gz"
    sources: dict[Any, str] = {}
    if files.exists():
        sources = {file["id"]: file["source"] for file in _rows(files)}
    else:
        for case in cases:
            sources[case["id"]], case["line"] = _function_alone(case)
    seen, fixes = {_normal(name) for name in trained}, []
    for case in _with_progress(cases[:limit]):
        before = sources.get(case["id"], "").replace("\r\n", "\n")
        lines = before.split("\n")
        row, column = case["line"] - 1, case["col"]
        text, end = lines[row] if row < len(lines) else "", column + len(case["used"])
        if text[column:end] != case["used"]:
            raise ValueError(
                f"Expected `{case['used']}` at line {row + 1} of the file of case "
                f"{case['id']} in {folder}. Received: {text!r}."
            )
        lines[row] = text[:column] + case["correct"] + text[end:]
        after = "\n".join(lines)
        names = case["repo"].rpartition("/")[2], case["path"].partition("/")[0]
        fixes.append(
            _fix(case, before, after, not seen.isdisjoint(map(_normal, names)))
        )
    return fixes


def _rows(path: Path) -> list[dict]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _function_alone(case: dict) -> tuple[str, int]:
    """Return a module of the function before a fix, and the line of the bug in it."""
    head = "class Owner:\n" if case["before"][:1].isspace() else ""
    line = case["line"] - case["function_start_line"] + 1
    return head + case["before"], line + bool(head)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.lower())


def _with_progress(cases: Sequence[dict]) -> Iterator[dict]:
    with report.progress("reading fixes") as advance:
        for done, case in enumerate(cases, 1):
            yield case
            advance(done, len(cases))


def _fix(case: dict, before: str, after: str, seen: bool) -> Fix:
    """Find the function of a fix and put it into a text of its own."""
    alone = []
    for text in (before, after):
        module = read_module("", text)
        for item in module["functions"]:
            first = item["line"]
            end = first + item["source"].count("\n") + 1
            if first <= case["line"] < end:
                break
        else:
            raise ValueError(
                f"Expected case {case['id']} in a function. Received: line "
                f"{case['line']}, which is in none."
            )
        pair = [(item["name"], item["source"])]
        text, starts = module_text(pair, module["signatures"])
        alone.append(text)
    line = case["line"] - first + starts[0]
    return Fix(
        before,
        after,
        case["line"],
        case["col"] + 1,
        case["used"],
        case["correct"],
        (first, end),
        (*alone, line),
        seen,
    )


def check_fixes(
    source: FindingSource,
    fixes: Sequence[Fix],
    thresholds: dict[str, float],
    name: str,
    whole: bool,
) -> dict:
    """Return what a model finds before the fixes, and still reports after them.

    Args:
        source: The model.
        fixes: The fixes.
        thresholds: Label -> confidence from which a finding is reported.
        name: Name of the model.
        whole: Whether to check the whole files, too, for the places in them.
    """
    ranks: dict[str, list] = {"function": [], "file": []}
    places: dict[str, list] = {"function": [], "file": []}
    scores, kept, offered, counts = [], [], 0, []
    with report.progress(f"{name}, before fixes") as advance:
        texts = [fix.before if whole else fix.alone[0] for fix in fixes]
        for fix, result in zip(fixes, check_texts(source, texts, advance), strict=True):
            line = fix.line if whole else fix.alone[2]
            first, end = fix.lines
            inside = [
                finding
                for finding in result.findings
                if not whole or first <= finding.line < end
            ]
            finding = at(inside, line, fix.column)
            names = [other for other, _ in finding.candidates] if finding else []
            offered += fix.correct in names
            right = finding is not None and finding.suggested == fix.correct
            scores.append(finding.confidence if right else -1.0)
            counts.append(len(result.findings))
            for group, findings in (("function", inside), ("file", result.findings)):
                place = np.inf
                if finding is not None:
                    least = finding.confidence
                    place = sum(other.confidence >= least for other in findings)
                places[group].append(place)
                ranks[group].append(place if right else np.inf)
    with report.progress(f"{name}, after fixes") as advance:
        texts = [fix.alone[1] for fix in fixes]
        for fix, result in zip(fixes, check_texts(source, texts, advance), strict=True):
            finding = at(result.findings, fix.alone[2], fix.column)
            kept.append(finding.confidence if finding else -1.0)
    unseen = np.array([not fix.seen for fix in fixes])

    def share(mask, among=True) -> dict:
        count = int(np.sum(mask & among))
        total = int(np.sum(np.broadcast_to(among, len(fixes))))
        return {
            "count": count,
            "share": count / total if total else float("nan"),
            "interval": list(wilson(count, total)),
        }

    groups = ("function", "file") if whole else ("function",)
    figures = {
        "fixes": len(fixes),
        "unseen": int(unseen.sum()),
        "offered": offered,
        "first": {
            group: {str(k): share(np.array(ranks[group]) <= k) for k in FIRST}
            for group in groups
        },
        "first_unseen": {
            group: {str(k): share(np.array(ranks[group]) <= k, unseen) for k in FIRST}
            for group in groups
        },
        "first_any_repair": {
            group: {str(k): share(np.array(places[group]) <= k) for k in FIRST}
            for group in groups
        },
        "at_alarms": {
            label: {
                "threshold": threshold,
                "before": share(np.array(scores) >= max(threshold, 0)),
                "after": share(np.array(kept) >= max(threshold, 0)),
            }
            for label, threshold in thresholds.items()
        },
    }
    if whole:
        figures["findings_in_file"] = float(np.median(counts))
    return figures


def pyflakes_complaints(texts: Sequence[str]) -> list[list[Complaint]]:
    """Return (line, message) of pyflakes for each text.

    Raises:
        ImportError: If pyflakes is not installed.
    """
    from pyflakes import checker

    found = []
    for text in texts:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            messages = checker.Checker(ast.parse(text)).messages
        found.append([(m.lineno, f"{m.message}" % m.message_args) for m in messages])
    return found


def ruff_complaints(
    texts: Sequence[str], select: Sequence[str]
) -> list[list[Complaint]]:
    """Return (line, message) of ruff for each text.

    Raises:
        RuntimeError: If ruff fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(texts):
            (Path(folder) / f"a{number}.py").write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "ruff", "check", folder, "--isolated"]
        command += ["--no-cache", "--output-format", "json", "--exit-zero", *select]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ruff failed: {done.stderr.strip()[-500:]}")
    found: list[list[Complaint]] = [[] for _ in texts]
    for item in json.loads(done.stdout):
        number = int(Path(item["filename"]).stem[1:])
        line = item["location"]["row"]
        found[number].append((line, f"{item['code']} {item['message']}"))
    return found


def lint_fixes(fixes: Sequence[Fix]) -> dict[str, dict]:
    """Return what linters say of the files.

    A linter finds a bug if it says something of its line, or of its function, that it
    no longer says after the fix.
    """
    texts = [fix.before for fix in fixes] + [fix.after for fix in fixes]
    linters = {"pyflakes": lambda: pyflakes_complaints(texts)}
    for name, select in _RUFF.items():
        linters[name] = lambda select=select: ruff_complaints(texts, select)
    figures = {}
    for name, complaints in linters.items():
        try:
            found = complaints()
        except (ImportError, RuntimeError) as error:
            report.remark(f"{name} is left out: {error}")
            continue
        before, after = found[: len(fixes)], found[len(fixes) :]
        on_line = in_function = standing = 0
        for fix, old, new in zip(fixes, before, after, strict=True):
            gone = collections.Counter(old) - collections.Counter(new)
            on_line += any(line == fix.line for line, _ in gone)
            in_function += any(fix.lines[0] <= line < fix.lines[1] for line, _ in gone)
            standing += any(line == fix.line for line, _ in old)
        total, counts = len(fixes), [len(each) for each in before]
        figures[name] = {
            "fixes": total,
            "on_line_any": standing,
            "on_line": on_line,
            "on_line_interval": list(wilson(on_line, total)),
            "in_function": in_function,
            "findings": sum(counts),
            "findings_in_file": float(np.median(counts)),
            "lines": sum(fix.before.count("\n") + 1 for fix in fixes),
        }
    return figures
