"""Trains on the standard library of this Python and shows what the model finds.

Compiles the library's source (or --source), trains for a few minutes, prints the
accuracy on held-out modules compared with simple baselines, saves the model, and lists
the most suspicious usages in the held-out modules. Then one wrong variable is planted
in each of these modules, and they are checked as `bandgnn check` does. Needs no
download.
"""

import argparse
import random
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import recipes, report
from keras_bandgnn.cli import train as train_command
from keras_bandgnn.programs.commands import compile as compile_command
from keras_bandgnn.programs.commands.usages import print_suspicious_usages, score

# Modules with a planted bug.
PLANTED = 100
EXCLUDED = ["test", "tests", "idlelib", "lib2to3", "site-packages", "turtledemo"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--source",
        type=shared.path,
        help="source code; the standard library if omitted",
    )
    parser.add_argument(
        "--out",
        type=shared.path,
        default=Path("bandgnn-demo"),
        help="folder for the stores and the model",
    )
    parser.add_argument(
        "--top", type=shared.positive, default=10, help="usages to list"
    )
    shared.add_reading(parser)
    shared.add_compiling(parser)
    recipes.add_task_options(parser, "selection")
    parser.set_defaults(exclude=EXCLUDED, steps=6, hidden=64, epochs=2, minutes=6.0)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    options.input = options.source or Path(sysconfig.get_path("stdlib"))
    data, model = options.out / "data", options.out / "model"
    options.out, options.split = data, "file"
    options.overwrite = options.restart = True
    report.say(f"source: {options.input}")
    stores = compile_command.compile_splits(options)
    missing = {"train", "valid", "test"} - stores.keys()
    if missing or not all(map(len, stores.values())):
        raise ValueError(
            "Expected enough source files for train, valid and test. Received: "
            f"{ {k: len(v) for k, v in stores.items()} } graphs from {options.input}."
        )
    options.data, options.out = options.input, model
    task = train_command.train(options, stores)
    test = stores["test"]
    if options.shuffle_labels:
        test = train_command.with_random_labels(test, options.seed + 1)
    _, logits = score(task, test)
    if not options.shuffle_labels:
        print_suspicious_usages(test, logits, options.top)
        names = dict.fromkeys(graph.info["filename"] for graph in test)
        check_planted(options.data, names, options.seed, options.top)
    report.say(f"model saved to {model}; try: bandgnn predict {model} YOUR_FILE.py")


def stores_to_search(options: argparse.Namespace) -> dict:
    """Return the stores of `bandgnn tune demo`, compiling them once."""
    from keras_bandgnn.data import open_store

    folder = Path(options.out) / "data"
    # A resumed search uses the same graphs, even if their source has changed.
    started = (folder.parent / "settings.json").is_file() and not options.overwrite
    compiled = all((folder / s / "store.json").is_file() for s in ("train", "valid"))
    if not (started and compiled):
        parser = argparse.ArgumentParser()
        compile_command.add_arguments(parser)
        source = str(options.source or sysconfig.get_path("stdlib"))
        arguments = parser.parse_args(
            [source, "--out", str(folder), "--steps", "6", "--exclude", *EXCLUDED]
        )
        arguments.processes, arguments.restart = options.processes, options.overwrite
        try:
            compile_command.compile_splits(arguments)
        except FileExistsError:
            if not options.overwrite:
                raise
            arguments.overwrite = True
            compile_command.compile_splits(arguments)
    return {split: open_store(folder / split) for split in ("train", "valid")}


def check_planted(folder: Path, names: Iterable[str], seed: int, top: int) -> None:
    """Plant a wrong variable in each of some modules, and print what a check finds.

    Args:
        folder: Folder of the modules, or one module.
        names: Their paths in the folder.
        seed: Seed of the bugs.
        top: Findings to list.
    """
    from keras_bandgnn.programs.linting.checker import DEFAULT_MODEL, Checker
    from keras_bandgnn.programs.linting.source_code import SourceCode, read_code

    planted, codes = {}, []
    for name in names:
        path = folder if folder.is_file() else folder / name
        if len(codes) == PLANTED:
            break
        changed = with_planted_bug(read_code(str(path), name).text, f"{seed}:{name}")
        if changed is not None:
            text, *planted[name] = changed
            codes.append(SourceCode(name, text))
    if not codes:
        report.say("no function of the held-out modules has two variables to confuse")
        return
    checker = Checker(DEFAULT_MODEL)
    bounds = [factor * checker.min_confidence for factor in (0.5, 1, 2, 5)]
    findings = []
    with report.progress("check", "modules") as advance:
        for done, result in enumerate(checker.check(codes), 1):
            advance(done, len(codes))
            listed = (*result.findings, *result.held_back)
            findings += [f for f in listed if f.confidence >= bounds[0]]
    findings.sort(key=lambda finding: -finding.confidence)
    right = [
        planted[f.path] == [f.line, f.column, f.used, f.suggested] for f in findings
    ]
    lines = sum(len(code.lines) for code in codes)
    report.say(
        f"{len(codes)} of the held-out modules, each with one planted wrong variable, "
        f"{lines:,} lines, checked with {DEFAULT_MODEL}:"
    )
    for finding, hit in list(zip(findings, right, strict=True))[:top]:
        report.say(
            f"  {'planted' if hit else 'other  '} {finding.place}: {finding.message}"
        )
    rows = []
    for least in bounds:
        above = [
            ok for f, ok in zip(findings, right, strict=True) if f.confidence >= least
        ]
        hits = sum(above)
        precision = report.percent(hits / len(above)) if above else "-"
        rows.append(
            (
                report.percent(least),
                len(above),
                hits,
                precision,
                report.percent(hits / len(codes)),
            )
        )
    columns = ("probability", "findings", "planted", "precision", "recall")
    report.table("Planted bugs found", columns, rows)


def with_planted_bug(text: str, key: str) -> tuple | None:
    """Put a wrong variable into one function of a module.

    Args:
        text: Source of the module.
        key: Decides which.

    Returns:
        The text, line, column (from 1), and the names of the wrong and of the right
        variable; None if there is no such function.
    """
    from keras_bandgnn.programs import plant_bug
    from keras_bandgnn.programs.functions import read_module

    try:
        functions = read_module("", text)["functions"]
    except (SyntaxError, ValueError, RecursionError):
        return None
    order = random.Random(key).sample(functions, len(functions))
    for function in order:
        example = plant_bug(function["source"], key=key, correct_share=0.0)
        if example.bug is None:
            continue
        usage, lines = example.usages[example.bug], text.split("\n")
        first = function["line"] - 1
        changed = example.source.split("\n")
        lines[first : first + len(changed)] = changed
        place = (first + usage.line, usage.column + 1)
        return "\n".join(lines), *place, usage.name, example.repair
    return None
