"""Variable usages of programs for the commands `evaluate` and `predict`."""

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from keras_bandgnn.cli import report
from keras_bandgnn.cli.training_callbacks import progress_lines

# Scores of held-out usages, for `evaluate`.


def check_sources(task, paths: Sequence[Path]) -> None:
    """Reject folders of several stores, and models that cannot encode source code."""
    for path in paths:
        if os.path.isfile(path / "test" / "store.json"):
            raise ValueError(
                f"Expected a store or program files. Received: {path}, which holds "
                f"several stores. Name one, such as {path / 'test'}."
            )
    if task.preprocessor is None or not task.preprocessor.graph_layers:
        raise ValueError(
            "Expected a model whose preprocessor encodes programs. Received: one "
            "without. Pass a store."
        )


def reading_options(task, options: argparse.Namespace) -> dict:
    """Return the options of `program_graphs` for a task and a command line."""
    return {
        "max_instances": options.max_instances,
        "seed": options.seed,
        "steps": task.backbone.num_steps,
    }


def load_graphs(task, data: Path, options: argparse.Namespace):
    """Return the graphs at a path, compiled for a task."""
    from keras_bandgnn.data import FlatGraphs, open_store
    from keras_bandgnn.programs.models.program_store import compiled_files
    from keras_bandgnn.programs.program_files import find_programs

    if os.path.isfile(data / "store.json"):
        return open_store(data)
    check_sources(task, [data])
    kind, splits = find_programs(data, options.exclude, "none")
    files = [file for split_files in splits.values() for file in split_files]
    encoder, *layers = task.preprocessor.graph_layers
    reading = reading_options(task, options)
    graphs, left_out = [], []
    outcomes = compiled_files(kind, files, encoder, layers, reading, options.processes)
    with report.progress("read") as progress:
        for count, (name, file_graphs, reasons) in enumerate(outcomes, start=1):
            graphs += file_graphs
            left_out += [(name, reason) for reason in reasons]
            progress(count, len(files))
    report.left_out(left_out)
    if not graphs:
        raise ValueError(
            f"Expected at least one variable usage with two candidates in {data}. "
            f"Received: none in {len(files)} files. Choose other files."
        )
    compiled = FlatGraphs.from_graphs(graphs)
    compiled.metadata = {"layers": task.preprocessor.layers_config()}
    return compiled


def score(task, graphs) -> tuple[dict, list]:
    """Predict and print accuracies; return them and the logits."""
    import numpy as np

    from keras_bandgnn.programs.models.selection_report import (
        GUESS_NAMES,
        accuracy_interval,
        trivial_scores,
    )

    logits = task.predict(graphs, callbacks=progress_lines())
    if not all(np.isfinite(row).all() for row in logits):
        raise ValueError(
            "Expected finite logits. Received: NaN or infinity; the model diverged in "
            "training. Train it again with a smaller learning rate."
        )
    graphs = [graphs[i] for i in range(len(graphs))]
    scores = trivial_scores(graphs)
    scores["model"] = np.array(
        [
            float(np.argmax(row) == int(graph.label))
            for row, graph in zip(logits, graphs, strict=True)
        ]
    )
    names = {**GUESS_NAMES, "model": "model"}
    rows = []
    for name, correct in scores.items():
        low, high = accuracy_interval(correct)
        rows.append(
            [
                names[name],
                report.percent(correct.mean()),
                f"{report.percent(low)} to {report.percent(high)}",
            ]
        )
    columns = ["", "accuracy", "95 % interval"]
    report.table(f"held-out usages: {len(graphs)}", columns, rows)
    return {name: float(correct.mean()) for name, correct in scores.items()}, logits


# Suspicious usages, as a stream, for `predict`.


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
        """Print the skipped files, with reasons."""
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
    from keras_bandgnn.programs.usage_pieces import usage_jobs, usage_outcomes

    encoder = task.preprocessor.graph_layers[0]
    reading = reading_options(task, options)
    jobs: list[tuple] = []
    filenames: set[str] = set()
    for path in options.paths:
        kind, splits = find_programs(path, options.exclude, "none")
        for file, name in itertools.chain.from_iterable(splits.values()):
            if file not in filenames:
                jobs += usage_jobs(kind, file, name, reading, encoder.options)
            filenames.add(file)
    coverage.files = len(filenames)
    # One core is reserved for the model.
    processes = options.processes or max(1, (os.cpu_count() or 1) - 1)
    outcomes = usage_outcomes(jobs, processes, here=len(jobs) == 1)
    failed = False
    with contextlib.closing(outcomes):
        for (_, path, *_, (part, parts)), outcome in outcomes:
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
    from keras_bandgnn.programs.models.joint_selection import JointSelection

    coverage, best = Coverage(), _Best(options.top)
    layers = task.preprocessor.graph_layers if task.preprocessor is not None else []
    first = options.paths[0]
    store = os.path.isfile(first / "store.json")
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
            write = report.write_output
        elif options.json is not None:
            write = stack.enter_context(atomic_write(options.json)).write
        places: set[tuple] = set()
        for piece, logits in JointSelection(task, layers).predict(pieces):
            report_progress(*position)
            for item in _suspicions(piece, logits, places):
                coverage.usages += 1
                if item is None or item.share_suggested < options.threshold:
                    continue
                best.add(item)
                if write is not None:
                    line = json.dumps(dataclasses.asdict(item), allow_nan=False)
                    write((line + "\n").encode())
    _print_outcome(options, coverage, best, "store" if store else "files")
    if coverage.failed or not coverage.usages:
        return 2
    return 1 if best.count else 0


def _print_outcome(
    options: argparse.Namespace, coverage: Coverage, best: "_Best", unit: str
) -> None:
    """Print the usages, unless they went to standard output, and their counts."""
    if options.json == Path("-"):
        say = report.remark
    else:
        say = report.say
        if best.count:
            print_usages(best.ranked(), coverage.usages)
    coverage.say(options.max_instances, say)
    if coverage.usages:
        say(
            f"{coverage.usages} usages in {coverage.read} {unit}: "
            f"{best.count} suspicious"
        )
    else:
        report.remark("nothing to check: no variable usage with two candidates")


class _Best:
    """The `limit` most suspicious usages, and the count of all suspicious ones."""

    def __init__(self, limit: int):
        self.count = 0
        self._limit = limit
        self._items: list = []

    def add(self, item) -> None:
        self.count += 1
        self._items.append(item)
        if len(self._items) > 2 * self._limit:
            self._items = self.ranked()

    def ranked(self) -> list:
        return sorted(self._items, key=lambda item: item.ratio)[: self._limit]


def _suspicions(piece, logits, seen: set) -> Iterator:
    """Yield the `Suspicion` of each usage, or None; each place only once."""
    import numpy as np

    from keras_bandgnn.programs.models.selection_report import suspicion

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


def print_suspicious_usages(graphs, logits, count: int) -> list:
    """Print and return the most suspicious usages."""
    from keras_bandgnn.programs.models.selection_report import suspicious

    graphs = [graphs[i] for i in range(len(graphs))]
    suspicions = suspicious(graphs, logits, count)
    print_usages(suspicions, len(graphs))
    return suspicions
