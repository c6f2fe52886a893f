"""Wrong variables found by a model: planted ones, real ones, and GREAT's.

Parts:

planted: bugs planted in the packages of a corpus that no model was trained on.
fixes: files before and after real fixes, with ruff and pyflakes for comparison.
great: GREAT's published examples, beside scores in print.
tokens: whether token counts alone tell functions with a planted bug from others.
shuffled: whether a model learns anything from shuffled labels; it should not.
renamed: whether renaming a variable everywhere causes alarms.

Findings are those of `bandgnn check`. Prints Markdown tables and, with --json, writes
all figures with versions.
"""

import argparse
import datetime
import importlib.metadata
import json
import math
import platform
import time
from pathlib import Path
from typing import Any

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report

# A model that judges one usage at a time, for comparison.
PRESENT = "ggnn_varmisuse_python"
PARTS = ("planted", "fixes", "great", "tokens", "shuffled", "renamed")
# Projects of real fixes that ggnn_varmisuse_python was trained on, from its card.
TRAINED = ("jax", "networkx", "scipy", "sympy", "torch_geometric")
_JUDGED = ("planted", "fixes", "renamed")
_OF_CORPUS = ("planted", "tokens", "shuffled", "renamed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--model", help="preset, or .keras file of examples")
    parser.add_argument(
        "--present",
        action="store_true",
        help=f"also {PRESENT}, which takes about 10 s a 1,000 lines",
    )
    parser.add_argument("--corpus", type=shared.path, help="folder of examples.corpora")
    parser.add_argument("--fixes", type=shared.path, help="folder of real fixes")
    parser.add_argument("--great", type=shared.path, help="file or folder of GREAT")
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=PARTS,
        help="all that the other options have data for, if omitted",
    )
    parser.add_argument(
        "--packages", nargs="+", help="held-out packages; all if omitted"
    )
    parser.add_argument(
        "--limit",
        type=shared.positive,
        help="number of functions, of random modules; all if omitted",
    )
    parser.add_argument(
        "--max-fixes", type=shared.positive, help="number of fixes; all if omitted"
    )
    parser.add_argument(
        "--whole-files",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="check the whole files of the fixes, not only the functions",
    )
    parser.add_argument(
        "--token-functions",
        type=shared.positive,
        default=3000,
        help="functions to learn token counts from",
    )
    parser.add_argument(
        "--label-functions",
        type=shared.positive,
        default=400,
        help="functions to learn shuffled labels from",
    )
    parser.add_argument("--label-epochs", type=shared.positive, default=8)
    parser.add_argument("--processes", type=shared.positive, default=1)
    parser.add_argument("--seed", type=shared.natural, default=0)
    parser.add_argument("--json", type=shared.written_file, help="file for the figures")


def markdown(title: str, columns: list[str], rows: list[list]) -> None:
    """Print a table."""
    lines = [f"\n### {title}\n", f"| {' | '.join(columns)} |"]
    lines.append("| --- |" + " ---: |" * (len(columns) - 1))
    lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
    report.say("\n".join(lines))


def percent(entry: dict) -> str:
    """Format a share with its interval in per cent."""
    low, high = (100 * bound for bound in entry["interval"])
    return f"{100 * entry['share']:.1f} ({low:.1f} to {high:.1f})"


def number(value: float, interval: list[float] | None = None, digits: int = 2) -> str:
    """Format a number with its interval; a hyphen for none."""
    if not math.isfinite(value):
        return "-"
    text = f"{value:.{digits}f}"
    if interval is not None and all(map(math.isfinite, interval)):
        text += f" ({interval[0]:.{digits}f} to {interval[1]:.{digits}f})"
    return text


def load_task(path: str) -> Any:
    """Return a task of a preset or of a `.keras` file.

    Raises:
        ValueError: If there is none.
    """
    import keras

    from keras_bandgnn.models.task import Task

    if not path.endswith(".keras"):
        return Task.from_preset(path)
    if not Path(path).is_file():
        raise ValueError(
            f"Expected --model to be a preset or a .keras file. Received: {path}, "
            "which does not exist."
        )
    return keras.saving.load_model(path)


def source_of(task: Any, processes: int) -> Any:
    """Return what makes findings from a task's predictions, of any confidence."""
    from keras_bandgnn import models
    from keras_bandgnn.programs.linting.function_findings import FunctionFindings
    from keras_bandgnn.programs.linting.usage_findings import UsageFindings

    if isinstance(task, models.BugLocalizer):
        return FunctionFindings(task, processes, least=0.0)
    if isinstance(task, models.NodeSelector):
        return UsageFindings(task, processes)
    raise ValueError(
        "Expected a BugLocalizer, or a NodeSelector of programs. Received: a "
        f"{type(task).__name__}."
    )


def parts_of(options: argparse.Namespace) -> list[str]:
    """Return the parts to run.

    Raises:
        ValueError: If a part lacks its data.
    """
    models = bool(options.model or options.present)
    needed = {part: ["corpus"] for part in _OF_CORPUS}
    needed |= {"fixes": ["fixes"], "great": ["great"]}
    lacking = {
        part: [f"--{name}" for name in needed[part] if getattr(options, name) is None]
        for part in PARTS
    }
    for part in (*_JUDGED, "great"):
        if not models and part != "fixes":
            lacking[part].append("--model")
    if options.parts is None:
        parts = [part for part in PARTS if not lacking[part]]
        if not parts:
            raise ValueError(
                "Expected --model with --corpus, --fixes or --great. Received: too few "
                "of them for any part."
            )
        return parts
    for part in options.parts:
        if lacking[part]:
            raise ValueError(
                f"Expected {' and '.join(lacking[part])} for the part {part}. "
                "Received: none."
            )
    return [part for part in PARTS if part in options.parts]


def show_planted(planted: dict[str, dict]) -> None:
    """Print the tables of planted bugs."""
    any_of = next(iter(planted.values()))
    report.say(
        f"{any_of['bugs']:,} planted bugs; {any_of['functions']:,} functions of "
        f"{any_of['files']:,} files, {any_of['lines']:,} lines of functions of "
        f"{', '.join(any_of['packages'])}. Intervals are those of 95 %."
    )
    rates = [f"{100 * float(rate):.0f} %" for rate in any_of["at_recall"]]
    rows = [
        [name, *(number(e["per_1000_lines"], e["interval"]) for e in at.values())]
        for name, figures in planted.items()
        if (at := figures["at_recall"])
    ]
    title = "False alarms in 1,000 lines where this share of planted bugs is found"
    markdown(title, ["model", *rates], rows)
    alarms = [f"{float(count):g} alarms" for count in any_of["at_alarms"]]
    rows = [
        [name, *(percent(entry) for entry in figures["at_alarms"].values())]
        for name, figures in planted.items()
    ]
    markdown(
        "Planted bugs found, in %, at so many false alarms in 1,000 lines",
        ["model", *alarms],
        rows,
    )
    show_first("Planted bugs", planted)


def show_first(title: str, models: dict[str, dict], key: str = "first") -> None:
    """Print how many bugs are among the first findings."""
    groups = next(iter(models.values()))[key]
    cases = [(group, count) for group in groups for count in groups[group]]
    rows = [
        [
            name,
            *(
                percent(figures[key][group][count]) if group in figures[key] else "-"
                for group, count in cases
            ),
        ]
        for name, figures in models.items()
    ]
    columns = [f"{group}, {count}" for group, count in cases]
    title = f"{title}, in %, among the first findings of their"
    markdown(title, ["model", *columns], rows)


def show_fixes(models: dict[str, dict], linters: dict[str, dict]) -> None:
    """Print the tables of real fixes."""
    if models:
        show_first("Real bugs, right place and repair", models)
        show_first("Real bugs, right place", models, "first_any_repair")
        unseen = next(iter(models.values()))["unseen"]
        title = f"Real bugs of {unseen} fixes in projects that no model was trained on"
        if unseen:
            show_first(title, models, "first_unseen")
        rows = [
            [name, label, number(e["threshold"], digits=4)]
            + [percent(e["before"]), percent(e["after"])]
            for name, figures in models.items()
            for label, e in figures["at_alarms"].items()
        ]
        columns = ["model", "false alarms in 1,000 lines", "threshold"]
        columns += ["found before, %", "place reported after, %"]
        if rows:
            markdown("Real bugs at thresholds of the planted ones", columns, rows)
        for name, figures in models.items():
            report.say(
                f"{name}: the right repair is among those offered in "
                f"{figures['offered']} of {figures['fixes']}"
                + (
                    f"; {figures['findings_in_file']:.0f} findings of any confidence "
                    "in the median file"
                    if "findings_in_file" in figures
                    else ""
                )
            )
    rows = [
        [
            name,
            f"{f['on_line']} of {f['fixes']}",
            f"{f['in_function']} of {f['fixes']}",
            f"{f['on_line_any']} of {f['fixes']}",
            f"{1000 * f['findings'] / f['lines']:.2f}",
        ]
        for name, f in linters.items()
    ]
    columns = ["linter", "gone from the line", "gone from the function"]
    columns += ["on the line before", "findings in 1,000 lines"]
    markdown("Linters: what they say before a real fix and not after it", columns, rows)


def show_great(figures: dict) -> None:
    """Print GREAT's scores beside those in print."""
    from examples.benchmarks.bug_great import PUBLISHED, SOURCE

    names = ("joint", "located", "repaired")
    rows = [
        [
            f"this model, {figures['examples']:,} examples",
            *(percent(figures[name]) for name in names),
            percent(figures["false_alarms"]),
        ]
    ]
    rows.append(
        [
            f"the same, {figures['offered_bugs']} of {figures['bugs']} bugs offered",
            *(f"{100 * figures['of_offered'][name]:.1f}" for name in names),
            "",
        ]
    )
    for name, (joint, located, repaired, clean) in PUBLISHED.items():
        rows.append([name, joint, located, repaired, f"{100 - clean:.2f}"])
    columns = ["model", "joint", "located", "repaired", "false alarms"]
    markdown(f"GREAT's examples, in %; those in print: {SOURCE}", columns, rows)


def show_leaks(figures: dict) -> None:
    """Print whether bugs give themselves away."""
    if "tokens" in figures:
        rows = [
            [
                name,
                number(f["auc"], f["interval"], 3),
                number(100 * f["higher"], [100 * x for x in f["higher_interval"]], 1),
                f"{f['functions']:,}",
            ]
            for name, f in figures["tokens"].items()
        ]
        columns = ["logistic regression", "ROC AUC", "bug scored higher, %"]
        markdown(
            "Functions with and without a planted bug told apart, chance 0.5 and 50",
            [*columns, "functions"],
            rows,
        )
    if "shuffled" in figures:
        rows = [
            [
                name,
                number(100 * f["right"], [100 * x for x in f["interval"]], 1),
                f"{100 * f['chance']:.1f}",
                number(100 * f["joint"], digits=1),
                f"{f['functions']:,}",
            ]
            for name, f in figures["shuffled"].items()
        ]
        columns = ["small model", "right, %", "by chance, %", "joint accuracy, %"]
        markdown("Learnt from shuffled labels", [*columns, "functions"], rows)
    rows = [
        [
            name,
            kind,
            label,
            number(e["as_it_is"]),
            number(e["renamed"]),
            number(e["renamed"] - e["as_it_is"], e["difference_interval"]),
        ]
        for name, kinds in figures.get("renamed", {}).items()
        for kind, f in kinds.items()
        for label, e in f["at"].items()
    ]
    if rows:
        columns = ["model", "renamed to", "alarms allowed", "as it is", "renamed"]
        title = "False alarms in 1,000 lines with one variable renamed everywhere"
        markdown(title, [*columns, "difference"], rows)


def versions(options: argparse.Namespace) -> dict:
    """Return versions and the command line."""
    import keras

    from keras_bandgnn.version import __version__

    found = {"keras-bandgnn": __version__, "python": platform.python_version()}
    for name in (
        "keras",
        "numpy",
        "scipy",
        keras.backend.backend(),
        "ruff",
        "pyflakes",
    ):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "command": options.line,
        "date": datetime.date.today().isoformat(),
        "backend": keras.backend.backend(),
        "versions": found,
    }


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from examples.benchmarks import bug_fixes, bug_great, bug_leaks, bug_planted
    from examples.benchmarks.bug_texts import modules, plant_bugs, versions_of
    from keras_bandgnn.data.files import atomic_write
    from keras_bandgnn.programs import corpus_packages

    parts, start = parts_of(options), time.perf_counter()
    paths = [options.model] if options.model else []
    paths += [PRESENT] if options.present else []
    tasks = {Path(path).name: load_task(path) for path in paths}
    figures: dict[str, Any] = versions(options)
    figures["models"] = {
        name: {"class": type(task).__name__, "parameters": int(task.count_params())}
        for name, task in tasks.items()
    }
    sources = {name: source_of(task, options.processes) for name, task in tasks.items()}
    thresholds: dict[str, dict[str, float]] = {name: {} for name in tasks}
    held_out, judgements, seconds = [], {}, {}

    def timed(part: str) -> None:
        nonlocal start
        seconds[part] = round(time.perf_counter() - start, 1)
        start = time.perf_counter()
        if options.json:
            figures["seconds"] = seconds
            with atomic_write(options.json) as stream:
                stream.write(json.dumps(figures, indent=1).encode())

    if "planted" in parts or "renamed" in parts:
        with report.progress("planting bugs") as advance:
            found = list(
                modules(options.corpus, options.packages, options.limit, options.seed)
            )
            for done, module in enumerate(found, 1):
                plant_bugs(module, options.seed)
                advance(done, len(found))
        held_out = found
        figures["packages"] = versions_of(options.corpus, {m.package for m in found})
        figures["planted"] = {}
        for name, source in sources.items():
            judgements[name] = bug_planted.judge(source, held_out, name)
            scores = bug_planted.summary(judgements[name], held_out, options.seed)
            figures["planted"][name] = scores
            thresholds[name] = {
                alarms: entry["threshold"]
                for alarms, entry in scores["at_alarms"].items()
            }
        show_planted(figures["planted"])
        timed("planted")
    if "fixes" in parts:
        trained = set(TRAINED)
        if options.corpus:
            trained |= {p["name"] for p in corpus_packages(options.corpus, "train")}
        fixes = bug_fixes.read_fixes(options.fixes, options.max_fixes, trained)
        figures["fixes"] = {
            name: bug_fixes.check_fixes(
                source, fixes, thresholds[name], name, options.whole_files
            )
            for name, source in sources.items()
        }
        figures["linters"] = bug_fixes.lint_fixes(fixes)
        show_fixes(figures["fixes"], figures["linters"])
        timed("fixes")
    if "great" in parts:
        for name, task in tasks.items():
            if not hasattr(task, "rewrite_probabilities"):
                report.remark(f"{name}: no BugLocalizer, so no score on GREAT")
                continue
            figures["great"] = bug_great.score_great(task, options.great)
            show_great(figures["great"])
        timed("great")
    if "tokens" in parts:
        figures["tokens"] = bug_leaks.token_leak(
            options.corpus, options.token_functions, options.seed
        )
        timed("tokens")
    if "shuffled" in parts:
        figures["shuffled"] = bug_leaks.label_leak(
            options.corpus, options.label_functions, options.label_epochs, options.seed
        )
        timed("shuffled")
    if "renamed" in parts:
        figures["renamed"] = {
            name: bug_leaks.rename_alarms(
                source, held_out, judgements[name], thresholds[name], name, options.seed
            )
            for name, source in sources.items()
        }
        timed("renamed")
    show_leaks(figures)
    each = ", ".join(f"{part} {value:.0f}" for part, value in seconds.items())
    report.say(f"\nSeconds: {each}")
