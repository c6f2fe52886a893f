"""Lists usages where the model prefers another variable, or predicts numbers.

A node selection model reads files and folders of Python source or program graphs, or
one store. It checks every usage, a few files at a time, so memory use does not grow
with the input. Unreadable files are skipped and listed at the end. A regression model
reads one store, or a data set by its name with --path and --split; one over atoms, or
an ensemble of such, files and folders of structures, too.

Exit code: 0 if no usage was reported (or numbers were predicted), 1 if some were, 2
for a wrong command line, an unreadable file, or nothing to check.
"""

import argparse
import contextlib
import dataclasses
import heapq
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from keras_bandgnn.cli import data_sets, report, structures
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli.evaluate import check_kind, check_sources, reading_options
from keras_bandgnn.cli.training_callbacks import progress_lines

# Regression models.


def predict_numbers(task, graphs) -> list[dict]:
    """Return a dict with `index`, `prediction` and `label` for each graph.

    A label is a number or a list, as in the graphs; None where it is missing.
    """
    import numpy as np

    from keras_bandgnn.data.sources import parts_of

    predictions = task.predict(graphs, callbacks=progress_lines())
    if not all(np.isfinite(row).all() for row in predictions if row is not None):
        raise ValueError(
            "Expected finite predictions. Received: NaN or infinity; the model "
            "diverged in training. Train it again with a smaller learning rate."
        )
    labels = [label for part in parts_of(graphs) for label in _labels(part)]
    return [
        {
            "index": index,
            "prediction": None if row is None else row.tolist(),
            "label": label,
        }
        for index, (row, label) in enumerate(zip(predictions, labels, strict=True))
    ]


def _labels(part) -> Iterator:
    import numpy as np

    if part.label is None or part.label_level != "graph":
        yield from [None] * len(part)
        return
    for label in part.label:
        # NaN marks a missing label; JSON has no NaN.
        yield np.where(np.isnan(label), None, label.astype(object)).tolist()


def print_predictions(lines: list[dict], targets: int, count: int) -> None:
    """Print the first predictions, and the labels if there are any."""
    names = [""] if targets == 1 else [f" {k}" for k in range(targets)]
    shown = lines[:count]
    labelled = any(line["label"] is not None for line in shown)
    columns = ["graph", *(f"prediction{name}" for name in names)]
    columns += [f"label{name}" for name in names] if labelled else []
    rows = []
    for line in shown:
        values = line["prediction"] or [None] * targets
        if labelled:
            label = line["label"]
            values = [*values, *(label if isinstance(label, list) else [label])]
        rows.append([line["index"], *map(_shown, values)])
    report.table(f"first {len(shown)} of {len(lines)} graphs", columns, rows)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


# Node selection models: usages as a stream.


@dataclasses.dataclass
class Coverage:
    """Counts of scored and skipped usages and files.

    Args:
        files: Files to read.
        read: Files that were read.
        usages: Usages that were scored.
        unsampled: Usages skipped because of --max-instances.
        too_large: Usages in functions that are too large.
        failed: (file, reason) of each file that could not be read.
        reasons: (file, reason) of everything else that was skipped.
    """

    files: int = 0
    read: int = 0
    usages: int = 0
    unsampled: int = 0
    too_large: int = 0
    failed: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    reasons: dict[tuple[str, str], None] = dataclasses.field(default_factory=dict)

    def say(self, limit: int | None, say: Callable[[str], None]) -> None:
        """Print what was skipped, with reasons."""
        if self.unsampled:
            say(
                f"left out: {self.unsampled} usages beyond --max-instances {limit} per "
                "file"
            )
        if self.too_large:
            say(f"left out: {self.too_large} usages in functions that are too large")
        if self.failed:
            say(f"left out: {len(self.failed)} of {self.files} files")
        report.left_out([*self.failed, *self.reasons], say)


def source_pieces(
    task, options: argparse.Namespace, coverage: Coverage, advance: Callable
) -> Iterator:
    """Yield the graphs of the files that the command line names, file by file."""
    from keras_bandgnn.programs.program_files import find_programs
    from keras_bandgnn.programs.usage_pieces import UsagePieces, read_usages, usage_jobs
    from keras_bandgnn.programs.workers import ordered_map

    encoder = task.preprocessor.graph_layers[0]
    reading = reading_options(task, options)
    jobs: list[tuple] = []
    filenames: set[str] = set()
    for path in options.paths:
        kind, splits = find_programs(path, options.exclude, "none")
        files = [file for split_files in splits.values() for file in split_files]
        files = [file for file in files if file[0] not in filenames]
        filenames.update(path for path, _ in files)
        jobs += usage_jobs(kind, files, reading, encoder.options)
    coverage.files = len(filenames)
    died = UsagePieces(None, ["its process died"])
    # One core is reserved for the model.
    processes = options.processes or max(1, (os.cpu_count() or 1) - 1)
    outcomes = ordered_map(read_usages, jobs, processes, died, here=len(jobs) == 1)
    failed = False

    def all_pieces(job: tuple, outcome: UsagePieces) -> Iterator[UsagePieces]:
        yield outcome
        while outcome.following is not None:
            # A function too long for one job is read as the model consumes it.
            outcome = read_usages(*job, outcome.following)
            yield outcome

    with contextlib.closing(outcomes):
        job_outcomes = (
            (job, outcome)
            for job, first in zip(jobs, outcomes, strict=True)
            for outcome in all_pieces(job, first)
        )
        for (_, path, *_, (part, parts)), outcome in job_outcomes:
            if outcome.pieces is None and not failed:
                failed = True
                coverage.failed += [(path, reason) for reason in outcome.reasons]
            elif outcome.pieces is not None:
                # Several parts of a file may contain the same function.
                coverage.reasons |= {(path, reason): None for reason in outcome.reasons}
            coverage.unsampled += outcome.unsampled
            coverage.too_large += outcome.too_large
            if part == parts - 1 and outcome.following is None:
                coverage.read += not failed
                failed = False
            advance(coverage.read + len(coverage.failed), coverage.files)
            yield from outcome.pieces or ()


def store_pieces(task, path: Path, coverage: Coverage, advance: Callable) -> Iterator:
    """Yield the graphs of a store."""
    import numpy as np

    from keras_bandgnn.data import open_store
    from keras_bandgnn.data.sources import parts_of

    store = open_store(path)
    if task.preprocessor is not None and store.metadata.get("layers"):
        task.preprocessor.transform(store)
    coverage.files, count = 1, 0
    for part in parts_of(store):
        for start in range(0, len(part), 64):
            chunk = part.take(np.arange(start, min(start + 64, len(part))))
            yield chunk
            count += len(chunk)
            advance(count, len(store))
    coverage.read = 1


def predict_usages(task, options: argparse.Namespace) -> int:
    """Score the usages and report those that look wrong.

    Returns:
        Exit code: 0 if no usage is suspicious, 1 if some are, 2 if there was nothing
        to check or a file could not be read.
    """
    from keras_bandgnn.data.files import atomic_write
    from keras_bandgnn.models.joint_selection import JointSelection

    coverage, best = Coverage(), _Best(options.top)
    layers = task.preprocessor.graph_layers if task.preprocessor is not None else []
    first = options.paths[0]
    store = (first / "store.json").is_file()
    with contextlib.ExitStack() as stack:
        advance = stack.enter_context(report.progress("predict", "usages"))

        position = (0, 1)

        def report_progress(done: int, total: int) -> None:
            nonlocal position
            position = done, total
            advance(done, total, coverage.usages)

        if store:
            pieces = store_pieces(task, first, coverage, report_progress)
            layers = []
        else:
            check_sources(task, options.paths)
            pieces = source_pieces(task, options, coverage, report_progress)
            layers = layers[1:]
        pieces = stack.enter_context(contextlib.closing(pieces))
        write = None
        if options.json == Path("-"):
            write = sys.stdout.buffer.write
        elif options.json is not None:
            write = stack.enter_context(atomic_write(options.json)).write
        for piece, logits in JointSelection(task, layers).predict(pieces):
            report_progress(*position)
            for item in _suspicions(piece, logits, best.seen):
                coverage.usages += 1
                if item is None or item.share_suggested < options.threshold:
                    continue
                best.add(item)
                if write is not None:
                    line = json.dumps(dataclasses.asdict(item), allow_nan=False)
                    write((line + "\n").encode())
    if options.json == Path("-"):
        sys.stdout.buffer.flush()
        say = report.remark
    else:
        say = report.say
        if best.count:
            print_usages(best.ranked(), coverage.usages)
    coverage.say(options.max_instances, say)
    if coverage.usages:
        say(
            f"{coverage.usages} usages in {coverage.read} "
            f"{'store' if store else 'files'}: {best.count} suspicious"
        )
    else:
        report.remark("nothing to check: no variable usage with two candidates")
    if coverage.failed or not coverage.usages:
        return 2
    return 1 if best.count else 0


class _Best:
    """The `limit` most suspicious usages, and the count of all suspicious ones."""

    def __init__(self, limit: int):
        self.count = 0
        self.seen: set = set()
        self._limit = limit
        self._heap: list[tuple[float, int, object]] = []

    def add(self, item) -> None:
        self.count += 1
        entry = (-item.ratio, -self.count, item)
        if len(self._heap) < self._limit:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)

    def ranked(self) -> list:
        return [item for *_, item in sorted(self._heap, reverse=True)]


def _suspicions(piece, logits, seen: set) -> Iterator:
    """Yield the `Suspicion` of each usage, or None; each place only once."""
    import numpy as np

    from keras_bandgnn.training.selection_report import suspicion

    if piece.label is None:
        raise ValueError(
            "Expected graphs labelled with the variable in use. Received: label=None. "
            "Choose a store with labels."
        )
    for info, label, row in zip(piece.info, piece.label, logits, strict=True):
        if not np.isfinite(row).all():
            raise ValueError(
                "Expected finite logits. Received: NaN or infinity; the model diverged "
                "in training. Train it again with a smaller learning rate."
            )
        item = suspicion(info, int(label), row)
        if item is not None:
            place = (item.filename, item.line, item.column, item.used)
            if seen and next(iter(seen))[0] != item.filename:
                seen.clear()
            if place in seen:
                item = None
            seen.add(place)
        yield item


def print_usages(suspicions: list, count: int) -> None:
    """Print the most suspicious usages."""
    rows = [
        [
            s.filename,
            "?" if s.line is None else s.line,
            "?" if s.column is None else s.column,
            s.used,
            report.percent(s.share_used),
            s.suggested,
            report.percent(s.share_suggested),
        ]
        for s in suspicions
    ]
    columns = ["file", "line", "column", "used", "probability"]
    columns += ["suggested", "probability"]
    report.table(f"most suspicious of {count} usages", columns, rows)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("model", help="folder or name of a preset")
    parser.add_argument(
        "data",
        nargs="+",
        help="files and folders of source code or of atomic structures, a store, or "
        "the name of a data set",
    )
    data_sets.add_data_options(parser)
    parser.add_argument(
        "--top",
        type=shared.positive,
        default=10,
        help="number of usages or graphs to list",
    )
    parser.add_argument(
        "--threshold",
        type=shared.probability,
        default=0.0,
        metavar="P",
        help="minimum probability of the suggested variable",
    )
    parser.add_argument(
        "--json",
        type=shared.written_file,
        metavar="FILE",
        help="also write all results as JSON lines; - writes them to standard output "
        "instead of the table",
    )
    shared.add_reading(parser)
    shared.set_max_instances(parser, None, "usages sampled per file; all if omitted")
    parser.set_defaults(failed=2)
    shared.delay_defaults(parser, shared.READING)


def print_suspicious_usages(graphs, logits, count: int) -> list:
    """Print and return the most suspicious usages."""
    from keras_bandgnn.training.selection_report import suspicious

    graphs = [graphs[i] for i in range(len(graphs))]
    suspicions = suspicious(graphs, logits, count)
    print_usages(suspicions, len(graphs))
    return suspicions


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from keras_bandgnn.models import NodeSelector

    options.paths, options.data = [Path(p) for p in options.data], options.data[0]
    task = structures.load_model(options.model)
    if structures.reads_structures(task, options.paths):
        structures.check_options(options)
        return structures.predict(task, options)
    check_kind(task, options)
    selects_nodes = isinstance(task, NodeSelector)
    stores = [path for path in options.paths if (path / "store.json").is_file()]
    if len(options.paths) > 1 and (stores or not selects_nodes):
        raise ValueError(
            "Expected one store or data set, or any number of files and folders of "
            f"source code. Received: {', '.join(map(str, options.paths))}. Run the "
            "command once for each."
        )
    if selects_nodes:
        return predict_usages(task, options)
    graphs = data_sets.read_graphs(options)
    lines = predict_numbers(task, graphs)
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    if options.json == Path("-"):
        sys.stdout.write(text)
        return 0
    print_predictions(lines, task.num_targets, options.top)
    if options.json is not None:
        from keras_bandgnn.data.files import atomic_write

        with atomic_write(options.json) as file:
            file.write(text.encode())
    return 0
