"""`bandgnn predict` with a model that picks variables: usages as a stream."""

import argparse
import contextlib
import dataclasses
import heapq
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from keras_bandgnn.cli import report


@dataclasses.dataclass
class Coverage:
    """What was looked at, and what was not.

    Args:
        files: Files to read.
        read: Files that were read.
        usages: Usages that were scored.
        unsampled: Usages that were not looked at, as --max-instances says.
        too_large: Usages in functions that are too large.
        failed: (file, reason) of each file that could not be used.
        reasons: (file, reason) of what else was left out.
    """

    files: int = 0
    read: int = 0
    usages: int = 0
    unsampled: int = 0
    too_large: int = 0
    failed: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    reasons: dict[tuple[str, str], None] = dataclasses.field(default_factory=dict)

    def say(self, limit: int | None, say: Callable[[str], None]) -> None:
        """Prints what was left out, with reasons."""
        if self.unsampled:
            say(
                f"left out: {self.unsampled} usages beyond --max-instances {limit} of "
                "their file"
            )
        if self.too_large:
            say(f"left out: {self.too_large} usages in functions that are too large")
        if self.failed:
            say(f"left out: {len(self.failed)} of {self.files} files")
        report.left_out([*self.failed, *self.reasons], say)


def source_pieces(
    task, options: argparse.Namespace, coverage: Coverage, advance: Callable
) -> Iterator:
    """Yields the graphs of the files that the command line names, file by file."""
    from keras_bandgnn.data.program_files import find_programs
    from keras_bandgnn.data.usage_pieces import UsagePieces, read_usages, usage_jobs
    from keras_bandgnn.data.workers import ordered_map

    encoder = task.preprocessor.graph_layers[0]
    reading = {
        "max_instances": options.max_instances,
        "seed": options.seed,
        "steps": task.backbone.num_steps,
    }
    jobs: list[tuple] = []
    known: set[str] = set()
    for path in options.paths:
        kind, splits = find_programs(path, options.exclude, "none")
        files = [file for found in splits.values() for file in found]
        files = [file for file in files if file[0] not in known]
        known.update(path for path, _ in files)
        jobs += usage_jobs(kind, files, reading, encoder.options)
    coverage.files = len(known)
    died = UsagePieces(None, ["its process died"])
    # One core is kept for the model.
    processes = options.processes or max(1, (os.cpu_count() or 1) - 1)
    outcomes = ordered_map(read_usages, jobs, processes, died, here=len(jobs) == 1)
    failed = False

    def whole(job: tuple, found: UsagePieces) -> Iterator[UsagePieces]:
        yield found
        while found.following is not None:
            # A function that is too long for one job, worked off as the model reads.
            found = read_usages(*job, found.following)
            yield found

    with contextlib.closing(outcomes):
        found_of = (
            (job, found)
            for job, first in zip(jobs, outcomes, strict=True)
            for found in whole(job, first)
        )
        for (_, path, *_, (part, parts)), found in found_of:
            if found.pieces is None and not failed:
                failed = True
                coverage.failed += [(path, reason) for reason in found.reasons]
            elif found.pieces is not None:
                # The parts of a file may meet the same function.
                coverage.reasons |= {(path, reason): None for reason in found.reasons}
            coverage.unsampled += found.unsampled
            coverage.too_large += found.too_large
            if part == parts - 1 and found.following is None:
                coverage.read += not failed
                failed = False
            advance(coverage.read + len(coverage.failed), coverage.files)
            yield from found.pieces or ()


def store_pieces(task, path: Path, coverage: Coverage, advance: Callable) -> Iterator:
    """Yields the graphs of a store."""
    import numpy as np

    from keras_bandgnn.data import open_store
    from keras_bandgnn.data.sources import parts_of

    store = open_store(path)
    if task.preprocessor is not None and getattr(store, "metadata", {}).get("layers"):
        task.preprocessor.compile(store)
    coverage.files, done = 1, 0
    for part in parts_of(store):
        for low in range(0, len(part), 64):
            piece = part.take(np.arange(low, min(low + 64, len(part))))
            yield piece
            done += len(piece)
            advance(done, len(store))
    coverage.read = 1


def predict_usages(task, options: argparse.Namespace) -> int:
    """Scores the usages and reports those that look wrong.

    Returns:
        Exit code: 0 if nothing was found, 1 if something was, 2 if there was nothing
        to look at or a file could not be used.
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

        def moved(done: int, total: int) -> None:
            nonlocal position
            position = done, total
            advance(done, total, coverage.usages)

        if store:
            pieces = store_pieces(task, first, coverage, moved)
            layers = []
        else:
            check_sources(task, options.paths)
            pieces = source_pieces(task, options, coverage, moved)
            layers = layers[1:]
        pieces = stack.enter_context(contextlib.closing(pieces))
        write = None
        if options.json == Path("-"):
            write = sys.stdout.buffer.write
        elif options.json is not None:
            write = stack.enter_context(atomic_write(options.json)).write
        for piece, logits in JointSelection(task, layers).predict(pieces):
            moved(*position)
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
            show(best.ranked(), coverage.usages)
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


def check_sources(task, paths: list[Path]) -> None:
    """Refuses folders of stores, and models that cannot encode source code."""
    for path in paths:
        if (path / "test" / "store.json").is_file():
            raise ValueError(
                f"Expected a store or program files. Received: {path}, which holds "
                f"several stores. Name one, such as {path / 'test'}."
            )
    if task.preprocessor is None or not task.preprocessor.graph_layers:
        raise ValueError(
            "Expected a model whose preprocessor encodes programs. Received: one "
            "without. Give it a store."
        )


class _Best:
    """The most suspicious usages so far, and the number of all."""

    def __init__(self, count: int):
        self.count = 0
        self.seen: set = set()
        self._most = count
        self._heap: list[tuple[float, int, object]] = []

    def add(self, item) -> None:
        self.count += 1
        entry = (-item.ratio, -self.count, item)
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)

    def ranked(self) -> list:
        return [item for *_, item in sorted(self._heap, reverse=True)]


def _suspicions(piece, logits, seen: set) -> Iterator:
    """For each usage what is suspicious about it, or None; each place once."""
    import numpy as np

    from keras_bandgnn.training.selection_report import suspicion

    if piece.label is None:
        raise ValueError(
            "Expected graphs with labels, the variables in use. Received: graphs with "
            "label=None."
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


def show(found: list, count: int) -> None:
    """Prints the most suspicious usages."""
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
        for s in found
    ]
    columns = ["file", "line", "column", "used", "probability"]
    columns += ["suggested", "probability"]
    report.table(f"most suspicious of {count} usages", columns, rows)
