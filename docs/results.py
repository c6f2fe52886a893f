"""Draws the figures of `results.md` from the records of the studies.

python docs/results.py

Reads `benchmarks.json`, the scores in print and `studies/records/`; needs matplotlib. A
new record is drawn when this script runs again.
"""

import csv
import json
import re
import runpy
from pathlib import Path

from matplotlib.figure import Figure

FOLDER = Path(__file__).parent
BENCHMARKS = runpy.run_path(str(FOLDER / "benchmarks.py"))
LINES = {"torch": ("C0", "o"), "JAX": ("C1", "s")}


def rows(name: str) -> list[list[str]]:
    """Return the lines of a record below its head."""
    with open(FOLDER / "studies" / "records" / f"{name}.csv", newline="") as file:
        return list(csv.reader(file))[1:]


def speed(path: Path) -> None:
    """How many times faster training steps are than those of the peer."""
    models = [line[0].split(",")[0] for line in rows("models_steps")]
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    for column, backend, size in ((6, "torch", "batches"), (12, "JAX", "batches")):
        values = [float(line[column]) for line in rows("models_steps")]
        color, marker = LINES[backend]
        label = f"{backend}, {size} of molecules"
        axes.plot(values, models, marker, color=color, label=label)
    for column, backend in ((3, "torch"), (9, "JAX")):
        values = [float(line[column]) for line in rows("models_steps")]
        color, marker = LINES[backend]
        label = f"{backend}, a graph of 10,000 nodes"
        style = {"color": color, "fillstyle": "none"}
        axes.plot(values, models, marker, label=label, **style)
    finish(axes, "models, 2 CPU cores, tuned allocator")
    figure.savefig(path, dpi=110)


def finish(axes, title: str) -> None:
    """Label an axis of speed-ups, and mark that of the peer."""
    axes.axvline(1.0, color="0.4", linewidth=1, label="torch_geometric, SchNetPack")
    axes.set_xscale("log")
    ticks = [0.5, 1, 2, 4, 7]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set(
        xlabel="training steps of ours in the time of one of the peer", title=title
    )
    axes.invert_yaxis()
    axes.grid(axis="x", color="0.9")
    axes.figure.legend(fontsize="small", loc="outside lower center", ncols=2)


def messages(path: Path) -> None:
    """The same for layers of messages, some of which are slower here."""
    lines = rows("messages_speed")
    names = [line[0] for line in lines]
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    columns = ((1, "torch", True), (2, "JAX", True), (3, "torch", False))
    for column, backend, full in (*columns, (4, "JAX", False)):
        color, marker = LINES[backend]
        what = "128 molecules of ZINC" if full else "Amazon Photo as a whole"
        style = {"color": color, "fillstyle": "full" if full else "none"}
        values = [float(line[column]) for line in lines]
        axes.plot(values, names, marker, label=f"{backend}, {what}", **style)
    finish(axes, "message passing, 2 CPU cores")
    figure.savefig(path, dpi=110)


def number(value: str) -> float:
    """Return a score in print without its deviation."""
    return float(re.match(r"[\d.]+", value)[0])


def accuracy(path: Path) -> None:
    """The best score of the library on each set, and all of those in print."""
    source = FOLDER.parent / "examples" / "benchmarks" / "published.py"
    published = runpy.run_path(str(source))["PUBLISHED"]
    records = json.loads((FOLDER / "benchmarks.json").read_text())
    shares = {}
    for record in records:
        if record["metric"] in ("accuracy", "auc"):
            shares.setdefault(record["set"], []).append(record)
    figure = Figure(figsize=(6.4, 6.2), layout="constrained")
    axes = figure.subplots()
    for place, (name, ours) in enumerate(shares.items()):
        print_ = [number(value) for _, value, _ in published.get(name, ())]
        label = {"label": "in print"} if not place else {}
        axes.plot(print_, [place] * len(print_), "|", color="0.5", ms=12, **label)
        best = max(ours, key=lambda record: record["mean"])
        label = {"label": "best of keras-bandgnn, ± deviation"} if not place else {}
        mean, deviation = 100 * best["mean"], 100 * best["deviation"]
        axes.errorbar(mean, place, xerr=deviation, fmt="o", color="C0", **label)
    titles = [BENCHMARKS["TITLES"][name].removesuffix(" in %") for name in shares]
    names = [title.replace(", ", "\n", 1) for title in titles]
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="score on the test set, %")
    axes.grid(axis="x", color="0.9")
    figure.legend(fontsize="small", loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    speed(FOLDER / "figures" / "results_models.png")
    messages(FOLDER / "figures" / "results_messages.png")
    accuracy(FOLDER / "figures" / "results_scores.png")
