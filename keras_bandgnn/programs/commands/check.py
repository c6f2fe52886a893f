"""Lists variables that may be wrong in Python files, folders and notebooks.

Findings whose probability is below a bound are held back; --rank lists the most
suspicious places instead, for a review. In a git repository, ignored files, submodules
and nested repositories are left out. A comment `# bandgnn: ignore` silences its
statement, or the function or class at whose head it stands; `# bandgnn: ignore-file`
the file. Defaults of the options come from the table [tool.bandgnn] of the nearest
pyproject.toml.

Exit code: 0 without findings, 1 with findings (see --fail-on), 2 for a wrong command
line, or if a file could not be checked.
"""

import argparse
import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report

NEVER = "never"
# Seconds from which the time that a check took is worth a line.
_LONG = 10.0


def fail_on(text: str) -> int | str:
    """Parse an integer of at least 1, or "never", for argparse."""
    return NEVER if text == NEVER else shared.positive(text)


def add_model(parser: argparse.ArgumentParser, usual: str) -> None:
    """Add the options of the model, and of how sure it must be.

    Args:
        parser: The parser of a command.
        usual: The probability if --min-confidence is omitted, for its help.
    """
    parser.add_argument(
        "--model", help="folder or name of a preset; ggnn_bug_fixes_python if omitted"
    )
    parser.add_argument(
        "--min-confidence",
        type=shared.probability,
        metavar="P",
        help=f"least probability of the suggested variable; if omitted, {usual}",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="files, folders and notebooks"
    )
    add_model(parser, "the bound of the model, for about one finding in 5,000 lines")
    parser.add_argument(
        "--fail-on",
        type=fail_on,
        metavar="N",
        help="number of findings from which the exit code is 1, or never; if omitted, "
        "1, and never with --rank",
    )
    parser.add_argument(
        "--rank",
        type=shared.positive,
        metavar="N",
        help="list the N most suspicious places, the most probable ones first, of any "
        "probability unless --min-confidence is given",
    )
    _add_scope(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--format",
        choices=("text", "json", "sarif", "github"),
        default="text",
        help="form of the findings",
    )
    group.add_argument(
        "--output",
        type=shared.written_file,
        metavar="FILE",
        help="file for the findings; standard output if omitted",
    )
    group = parser.add_argument_group("speed")
    group.add_argument(
        "--cache-dir",
        type=shared.path,
        metavar="FOLDER",
        help="folder that remembers checked files; the user's cache if omitted",
    )
    group.add_argument("--no-cache", action="store_true", help="check every file again")
    group.add_argument(
        "--processes",
        type=shared.positive,
        metavar="N",
        help="processes that read files; if omitted, one per core, or one less for "
        "models that judge one usage at a time",
    )
    parser.set_defaults(failed=2)


def _add_scope(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which files, lines and findings count."""
    group = parser.add_argument_group("what is checked")
    group.add_argument(
        "--exclude",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help="files and folders to skip, in addition to those of pyproject.toml; write "
        "it after the paths: check src --exclude A B",
    )
    group.add_argument(
        "--force-exclude",
        action="store_true",
        help="skip them also if they are named as PATH",
    )
    group.add_argument(
        "--diff",
        metavar="REF",
        help="report only lines changed since this branch, tag or commit of git",
    )
    group.add_argument(
        "--baseline",
        type=shared.path,
        metavar="FILE",
        help="file of known findings, which are not reported",
    )
    group.add_argument(
        "--write-baseline",
        action="store_true",
        help="write all findings to the file of --baseline, and report none",
    )


def _with_settings(options: argparse.Namespace) -> None:
    """Fill in options of the command line from pyproject.toml."""
    from keras_bandgnn.programs.linting.cache import default_folder
    from keras_bandgnn.programs.linting.project_files import Exclude
    from keras_bandgnn.programs.linting.settings import find_settings

    settings = find_settings(options.paths)
    options.model = options.model or settings.model or "ggnn_bug_fixes_python"
    options.exclude = [Exclude(options.exclude)]
    if settings.file is not None:
        options.exclude.append(Exclude(settings.exclude, settings.file.parent))
    options.baseline = options.baseline or settings.baseline
    if options.min_confidence is None:
        options.min_confidence = 0.0 if options.rank else settings.min_confidence
    if options.fail_on is None:
        never = settings.never_fail or options.rank
        options.fail_on = NEVER if never else settings.fail_on or 1
    options.cache_dir = options.cache_dir or settings.cache_dir or default_folder()
    if options.no_cache:
        options.cache_dir = None
    if options.write_baseline:
        _check_baseline(options)


def _check_baseline(options: argparse.Namespace) -> None:
    """Refuse options that exclude --write-baseline, before files are checked."""
    if options.baseline is None:
        raise shared.OptionError(
            "Expected --baseline FILE with --write-baseline. Received: no file"
        )
    if options.diff is not None:
        raise shared.OptionError(
            "Expected --write-baseline without --diff, since a baseline has the "
            "findings of whole files. Received: both"
        )
    unused = ["output", "rank"] + ["format"] * (options.format != "text")
    shared.reject_unused_options(
        options,
        dict.fromkeys(unused, "findings"),
        "--write-baseline",
        "It reports none; run the check again without it",
    )
    try:
        shared.written_file(str(options.baseline))
    except argparse.ArgumentTypeError as error:
        raise shared.OptionError(f"argument --baseline: {error}") from None


def _check(options: argparse.Namespace):
    """Check the files; return a `formats.Run` and the checker's results."""
    from keras_bandgnn.programs.linting.baseline import Baseline
    from keras_bandgnn.programs.linting.checker import Checker
    from keras_bandgnn.programs.linting.formats import Run, most_confident
    from keras_bandgnn.programs.linting.project_files import changed_lines, list_files

    baseline = None
    if options.baseline is not None and not options.write_baseline:
        baseline = Baseline(options.baseline).read()
    project = list_files(options.paths, options.exclude, options.force_exclude)
    files, changed = project.files, None
    for remark in project.remarks:
        report.remark(remark)
    if options.diff is not None:
        changed = changed_lines([f for f, _ in files] or options.paths, options.diff)
        # Whether a file has changed that cannot be read is not known.
        files = [
            (file, name)
            for file, name in files
            if os.path.realpath(file) in changed or not os.access(file, os.R_OK)
        ]
    errors: list[tuple[str, str]] = []
    results, skipped, held_back = [], [], 0
    began = time.monotonic()
    checker = Checker(
        options.model, options.min_confidence, options.cache_dir, options.processes
    )
    codes = _codes(files, errors)
    with contextlib.ExitStack() as stack:
        advance = stack.enter_context(report.progress("check", "lines"))
        outcomes = stack.enter_context(contextlib.closing(checker.check(codes)))
        done = lines = 0
        advance(0, len(files), 0)
        for result in outcomes:
            if result.error is not None:
                errors.append((result.code.path, result.error))
            else:
                done += 1
            lines += len(result.code.lines)
            # The rate is that of the model, not of the cache before it.
            advance(done + len(errors), len(files), lines, checker.loaded)
            skipped += [_part(result.code.path, why) for why in result.skipped]
            result = _relevant(result, changed, baseline)
            almost = checker.min_confidence / 10
            held_back += sum(item.confidence >= almost for item in result.held_back)
            if result.findings:
                results.append(dataclasses.replace(result, held_back=()))
            if options.rank is not None:
                results = most_confident(results, options.rank)
    order = {name: position for position, (_, name) in enumerate(files)}
    results.sort(key=lambda result: order[result.code.path])
    errors.sort(key=lambda error: order[error[0]])
    errors = [*project.errors, *errors]
    report.left_out([*errors, *skipped], report.remark)
    elapsed = time.monotonic() - began
    if checker.lines and checker.seconds and elapsed > _LONG:
        report.remark(_times(checker, elapsed))
    least, ranked = checker.min_confidence, options.rank is not None
    if not results and least > 10 * checker.default_confidence:
        report.remark(
            f"min-confidence is {least:g}. Probabilities of {options.model} are small: "
            f"its default is {checker.default_confidence:g}"
        )
    return Run(results, errors, done, options.model, least, held_back, ranked)


def _codes(files: list[tuple[str, str]], errors: list[tuple[str, str]]) -> Iterator:
    """Yield the code of files; those that cannot be read are appended to `errors`."""
    from keras_bandgnn.programs.linting.source_code import read_code

    for file, name in files:
        try:
            yield read_code(file, name)
        except (OSError, SyntaxError, ValueError) as error:
            text = " ".join(str(error).split())
            errors.append((name, f"{type(error).__name__}: {text}"))


def _part(path: str, why: str) -> tuple[str, str]:
    """Return the part of a file that was left out, and the reason.

    Many reasons are counted by their beginning, which should not be a name.
    """
    part, _, reason = why.partition(": ")
    return (f"{path}: {part}", reason) if reason else (path, why)


def _times(checker, elapsed: float) -> str:
    """Return how fast files were checked that the cache did not know.

    The rate is that without loading the model, so that it holds for more files.
    """
    parts = ", ".join(f"{name} {t:,.0f} s" for name, t in checker.seconds.items())
    checking = max(elapsed - checker.seconds["loading"], 1e-3)
    return (
        f"checked {checker.lines:,} lines in {elapsed:,.0f} s, "
        f"{checker.lines / checking:,.0f} a second once loaded: {parts}"
    )


def _relevant(result, changed: dict[str, set[int] | None] | None, baseline):
    """Return the findings in changed lines that a baseline does not list.

    Lines of a notebook's file say nothing of its cells, which count as changed.
    """
    lines = None
    if changed is not None and not result.code.cells:
        lines = changed.get(os.path.realpath(result.code.path))
    if lines is not None:
        findings, held_back = (
            tuple(finding for finding in group if finding.line in lines)
            for group in (result.findings, result.held_back)
        )
        result = dataclasses.replace(result, findings=findings, held_back=held_back)
    if baseline is not None:
        held_back = dataclasses.replace(result, findings=result.held_back)
        result = dataclasses.replace(
            result,
            findings=baseline.unknown(result),
            held_back=baseline.unknown(held_back),
        )
    return result


def _write(file: Path | None, text: str) -> None:
    from keras_bandgnn.data.files import atomic_write

    data = text.encode("utf-8", "backslashreplace")
    if file in (None, Path("-")):
        report.write_output(data)
        return
    with atomic_write(file) as stream:
        stream.write(data)


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from keras_bandgnn.programs.linting.baseline import Baseline
    from keras_bandgnn.programs.linting.formats import FORMATS

    _with_settings(options)
    outcome = _check(options)
    if options.write_baseline:
        count = Baseline(options.baseline).write(outcome.results)
        report.remark(f"{options.baseline}: {count} known findings")
        return 2 if outcome.errors else 0
    _write(options.output, FORMATS[options.format](outcome))
    if options.format != "text" or options.output is not None:
        report.remark(outcome.summary)
    if outcome.errors:
        return 2
    return int(options.fail_on != NEVER and outcome.count >= options.fail_on)
