"""Compare two runs of a benchmark: ratios to the peer, row by row.

OLD and NEW are files that `--json` of one subject has written. A ratio is how many
times better this library is than the other, measured in the same process: it depends on
the load of the machine much less than the times themselves. The exit code is 1 if the
ratio of any row has fallen by more than the tolerance.
"""

import argparse

from examples.benchmarks import figures
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("old", type=shared.path, metavar="OLD.json")
    parser.add_argument("new", type=shared.path, metavar="NEW.json")
    parser.add_argument(
        "--tolerance",
        type=shared.fraction,
        default=0.1,
        help="share of a ratio that may be lost",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    old, new = (figures.read(path) for path in (options.old, options.new))
    for field in ("subject", "backend"):
        if old.get(field) != new.get(field):
            raise ValueError(
                f"Expected two files of one {field}. Received: {old.get(field)} in "
                f"{options.old}, {new.get(field)} in {options.new}."
            )
    before, after = (
        {each["name"]: each for each in file["rows"]} for file in (old, new)
    )
    names = [name for name in before if name in after]
    if not names:
        raise ValueError(
            "Expected the files to have rows of the same names. Received: "
            f"{', '.join(before) or 'none'} in {options.old}, "
            f"{', '.join(after) or 'none'} in {options.new}."
        )
    _say_differences(old, new)
    for path, present, absent in (
        (options.new, before, after),
        (options.old, after, before),
    ):
        missing = [name for name in present if name not in absent]
        if missing:
            report.say(f"missing in {path}: {', '.join(missing)}")
    rows, lost = [], []
    for name in names:
        ratios = before[name]["ratio"], after[name]["ratio"]
        if None in ratios:
            shown = ["-" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
            rows.append([name, *shown, "-", "not compared"])
            continue
        change = ratios[1] / ratios[0] - 1
        is_lost = change < -options.tolerance
        if is_lost:
            lost.append(name)
        verdict = "LOST" if is_lost else ""
        shown = [f"{ratio:.2f}" for ratio in ratios]
        rows.append([name, *shown, f"{100 * change:+.1f} %", verdict])
    head = ["", "old ratio", "new ratio", "change", ""]
    report.table(f"{old['subject']}, {old['backend']}", head, rows)
    if lost:
        report.say(
            f"{len(lost)} of {len(rows)} rows lost more than "
            f"{100 * options.tolerance:g} %: {', '.join(lost)}"
        )
        return 1
    report.say(f"no row lost more than {100 * options.tolerance:g} %")
    return 0


def _say_differences(old: dict, new: dict) -> None:
    """Print in what the circumstances of the runs differ."""
    for part in ("machine", "versions"):
        pairs = old.get(part) or {}, new.get(part) or {}
        for name in dict.fromkeys([*pairs[0], *pairs[1]]):
            values = [pair.get(name) for pair in pairs]
            if values[0] != values[1]:
                report.say(f"{part}, {name}: {values[0]} before, {values[1]} now")
    if old.get("command") != new.get("command"):
        report.say(f"command before: {old.get('command')}")
        report.say(f"command now: {new.get('command')}")
