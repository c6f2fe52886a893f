"""What the design claims for dense hardware, on one GPU or TPU within ten minutes.

Parts, in this order: `device` (rates of products, the overhead of an operation, copies
from the host), `numerics` (agreement with NumPy and the CPU), `calibration` (constants
of the cost model, which later parts use), `plans` (all plans that apply, for graphs of
3 to 64 edges per node, compared with each other and, on torch, with torch_geometric),
`training` (steps of GGNN under several plans, of PaiNN and of SchNet), `collectives`
(where there are two devices), `attention` (along edges, in tiles and between all nodes,
as graphs grow until memory ends) and `tiles` (by the share that edges fill).

The time is shared out between the parts; what a part does not need is for those after
it. What does not fit is listed with the reason, and an error stops nothing else. Times
are medians of alternated rounds; every step waits for the device. The files
accelerator.json and accelerator.md in the folder are written anew after every part.
"""

import argparse
import time
from pathlib import Path

from examples.benchmarks import figures
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report

# Shares of the time.
_SHARES = {
    "device": 3,
    "numerics": 11,
    "calibration": 5,
    "plans": 38,
    "training": 16,
    "collectives": 6,
    "attention": 16,
    "tiles": 5,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--out", type=shared.path, metavar="FOLDER", help="folder for the two files"
    )
    parser.add_argument("--minutes", type=shared.above_zero, default=10.0)
    parser.add_argument(
        "--parts", nargs="+", choices=tuple(_SHARES), default=list(_SHARES)
    )
    parser.add_argument("--rounds", type=shared.positive, default=7)
    parser.add_argument(
        "--small", action="store_true", help="tiny sizes: whether all of it runs"
    )
    parser.add_argument(
        "--processes",
        type=shared.positive,
        help="processes of torch for collectives; one per device if omitted",
    )
    parser.add_argument("--child", type=shared.path, help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from examples.benchmarks import accelerator_device as device
    from examples.benchmarks import accelerator_models as models
    from examples.benchmarks import accelerator_plans as plans
    from examples.benchmarks.accelerator_part import SMALL, Part, Setting, Sizes

    sizes = SMALL if options.small else Sizes()
    setting = Setting(sizes, 1 if options.small else options.rounds)
    if options.child:
        models.run_child(options.child, setting)
        return
    measures = {
        "device": plans.measure_device,
        "numerics": models.measure_numerics,
        "calibration": plans.calibrate,
        "plans": plans.measure_plans,
        "training": models.measure_training,
        "collectives": lambda part, setting: models.measure_collectives(
            part, setting, options.processes
        ),
        "attention": plans.measure_attention,
        "tiles": plans.measure_tiles,
    }
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * options.minutes
    remaining = {name: _SHARES[name] for name in _SHARES if name in options.parts}
    parts: list[Part] = []
    content = describe(options, parts)
    report.say(heading(content))
    if device.kind() == "cpu" and not options.small:
        report.remark("no accelerator: steps of these sizes take long; see --small")
    while remaining:
        left = max(end - time.monotonic(), 0.0)
        name = next(iter(remaining))
        seconds = left * remaining[name] / sum(remaining.values())
        del remaining[name]
        report.remark(f"{name}: at most {seconds:.0f} s of {left:.0f} s")
        part = Part(name, seconds)
        parts.append(part)
        if seconds > 0:
            with part.attempt(name):
                measures[name](part, setting)
        else:
            part.skip(name, "no time")
        part.taken = time.monotonic() - part.start
        show(part)
        if options.out:
            content = describe(options, parts)
            figures.write_json(options.out / "accelerator.json", content)
            write_text(options.out / "accelerator.md", markdown(content))
    failed = sum(len(part.failed) for part in parts)
    skipped = sum(len(part.skipped) for part in parts)
    report.say(f"{len(parts)} parts, {skipped} left out, {failed} failed")


def describe(options: argparse.Namespace, parts: list) -> dict:
    """Return what the JSON file holds."""
    from examples.benchmarks import accelerator_device as device

    measured = {
        part.name: {
            "seconds": part.taken,
            "peak_gib": max(_peaks(part.rows), default=None),
            "rows": part.rows,
            "skipped": [{"what": what, "reason": why} for what, why in part.skipped],
            "failed": [{"what": what, "error": text} for what, text in part.failed],
        }
        for part in parts
    }
    content = figures.record(
        options, [row for part in parts for row in part.ratios], measured
    )
    content["machine"]["accelerator_memory_gib"] = device.memory()
    content["machine"]["accelerators"] = device.count()
    return content


def _peaks(rows: list[dict]) -> list[float]:
    """Return the peaks of the device's memory in rows of a part."""
    return [
        value
        for row in rows
        for name, value in row.items()
        if name.startswith("gib") and value is not None
    ]


def tables_of(rows: list[dict]) -> dict[str, list[dict]]:
    """Return rows by table, without its name; the columns of a table are the same."""
    found: dict[str, list[dict]] = {}
    for row in rows:
        values = {name: value for name, value in row.items() if name != "table"}
        found.setdefault(row["table"], []).append(values)
    return found


def text_of(value) -> str:
    """Return a value as in a table."""
    if value is None:
        return ""
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if value != 0 and not 1e-3 <= abs(value) < 1e4:
        return f"{value:.2g}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"


def _column(name: str) -> str:
    return name.replace("_", " ").replace("gib", "GiB")


def show(part) -> None:
    """Print the tables of a part."""
    for title, rows in tables_of(part.rows).items():
        columns = [_column(name) for name in rows[0]]
        values = [[text_of(value) for value in row.values()] for row in rows]
        report.table(title, columns, values)
    report.left_out(part.skipped)


def heading(content: dict) -> str:
    """Return in a line what runs where."""
    machine, versions = content["machine"], content["versions"]
    backend = content["backend"]
    accelerator = machine["accelerator"] or "no accelerator"
    return (
        f"{backend} {versions.get(backend, '')}, {accelerator}, "
        f"{machine['processor']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB; {content['date']}"
    )


def markdown(content: dict) -> str:
    """Return the page of the results."""
    lines = ["# Accelerator", "", heading(content), "", f"    {content['command']}", ""]
    names = ", ".join(f"{name} {each}" for name, each in content["versions"].items())
    lines += [f"Versions: {names}.", ""]
    for name, part in content["figures"].items():
        lines += [f"## {name.capitalize()}", "", f"{part['seconds']:.0f} s.", ""]
        if part["peak_gib"]:
            peak = f"{part['peak_gib']:.2f}"
            lines += [f"Peak of the device's memory: {peak} GiB.", ""]
        for title, rows in tables_of(part["rows"]).items():
            columns = [_column(each) for each in rows[0]]
            lines += [f"**{title}**", "", _line(columns), _line(["---"] * len(columns))]
            lines += [_line(map(text_of, row.values())) for row in rows]
            lines.append("")
        for title, field in (("Left out", "reason"), ("Failed", "error")):
            entries = part["skipped" if field == "reason" else "failed"]
            if entries:
                lines += [f"{title}:", ""]
                lines += [f"- {each['what']}: {each[field]}" for each in entries]
                lines.append("")
    return "\n".join(lines)


def _line(cells) -> str:
    return "| " + " | ".join(each.replace("|", "\\|") for each in cells) + " |"


def write_text(path: Path, text: str) -> None:
    """Write a file that appears when it is complete."""
    from keras_bandgnn.data.files import atomic_write

    with atomic_write(path) as stream:
        stream.write(text.encode())
