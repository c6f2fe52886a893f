"""Output of the commands: lines, tables, progress bars and model cards."""

import argparse
import collections
import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import rich.box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from keras_bandgnn.cli import interrupts
from keras_bandgnn.progress import duration, print_line


def make_card(options: argparse.Namespace, entries: dict) -> dict:
    """Return the model card for `save_to_preset`."""
    import keras

    if options.title:
        entries["title"] = options.title
    return {
        **entries,
        "seed": f"{options.seed}, backend {keras.backend.backend()}",
        "command": f"    {options.line}",
    }


# Seconds before a progress bar appears.
_PATIENCE = 2.0
# Seconds over which a rate is measured.
_RECENT = 60.0


def console() -> Console:
    """Return a console on standard output, of fixed width if it is no terminal."""
    width = None if sys.stdout.isatty() else 120
    return Console(highlight=False, width=width)


def escaped(text: str, keep: str = "") -> str:
    """Escape untrusted text, such as names of files, for the terminal.

    Control characters, line breaks and invalid Unicode become Python escape sequences.

    Args:
        text: The text.
        keep: Characters to keep unchanged.
    """
    return "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape").decode()
        for character in text
    )


def in_options(text: str) -> str:
    """Rewrite an error message of the library in terms of the command line.

    Messages name the option after the Python argument, as in
    "overwrite=True (--overwrite)", and end with advice that applies to Python only, as
    in "In Python, call ...".
    """
    text = re.sub(r"\w+=\w+ \((--[\w-]+)\)", r"\1", text)
    return re.sub(r"\s+In Python, .*\Z", "", text, flags=re.DOTALL)


def say(text: str) -> None:
    """Print one or more lines."""
    console().print(escaped(text, "\n"), markup=False, soft_wrap=True)


def remark(text: str) -> None:
    """Print a line to standard error: progress and errors, not results."""
    print(escaped(text, "\n"), file=sys.stderr)


def write_output(data: bytes) -> None:
    """Write UTF-8 text to standard output, also where that is a stream of text."""
    sys.stdout.flush()
    stream = getattr(sys.stdout, "buffer", None)
    if stream is None:
        sys.stdout.write(data.decode())
    else:
        stream.write(data)
        stream.flush()


def left_out(
    reasons: Sequence[tuple[str, str]],
    say: Callable[[str], None] = say,
    limit: int = 20,
) -> None:
    """Print the skipped items.

    Args:
        reasons: (file, reason) pairs; a reason begins with its kind, up to a colon.
        say: Function that prints a line.
        limit: Number of reasons printed in full; the others are counted by kind.
    """
    for name, reason in reasons[:limit]:
        say(escaped(f"left out: {name}: {reason}"))
    if len(reasons) > limit:
        kinds = collections.Counter(r.split(":")[0] for _, r in reasons[limit:])
        counts = ", ".join(f"{n} {escaped(kind)}" for kind, n in kinds.most_common(10))
        say(f"left out: {len(reasons) - limit} more: {counts}")


@contextlib.contextmanager
def progress(
    title: str, unit: str | None = None, every: float = 10.0
) -> Iterator[Callable]:
    """Show a progress bar on standard error after two seconds.

    Prints a line at regular intervals instead if standard error is no terminal.

    Args:
        title: Name of the work.
        unit: Unit of the rate per second, over the last minute; no rate if omitted.
        every: Seconds between two lines if the output is no terminal.

    Yields:
        A function of (done, total), or of (done, total, count) if the rate counts
        something other than `done`, or of (done, total, count, since) if only work
        after a time of `time.monotonic` counts towards the rate.
    """
    shown = Console(stderr=True, highlight=False)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=shown,
    )
    start = printed = time.monotonic()
    # (time, done, count); those of the last minute, and one before.
    samples: collections.deque[tuple[float, int, int]] = collections.deque()
    task = bar.add_task(title, total=None, rate="")
    before, rated_since = (0, 0), None

    def advance(
        done: int, total: int, count: int | None = None, since: float | None = None
    ) -> None:
        nonlocal before, printed, rated_since
        interrupts.check()
        count = done if count is None else count
        now, rate = time.monotonic(), ""
        if since != rated_since:
            samples.clear()
            samples.append((since, *before))
        before, rated_since = (done, count), since
        if not samples:
            # Work done by an earlier run does not count towards the rate.
            samples.append((start, done, count))
        elif now - samples[-1][0] >= 1:
            samples.append((now, done, count))
        while len(samples) > 1 and samples[1][0] <= now - _RECENT:
            samples.popleft()
        began, done_before, count_before = samples[0]
        if unit and count > count_before:
            rate = f"{(count - count_before) / (now - began):,.1f} {unit}/s"
        bar.update(task, completed=done, total=total, rate=rate)
        if shown.is_terminal:
            if not bar.live.is_started and now - start > _PATIENCE:
                bar.start()
        elif now - printed >= every:
            printed = now
            remaining = ""
            if done > done_before:
                seconds = (total - done) * (now - began) / (done - done_before)
                remaining = f", {duration(seconds)} left"
            rate = f", {rate}" if rate else ""
            share = f" ({100 * done / total:.0f} %)" if total else ""
            print_line(f"{title}: {done:,} of {total:,}{share}{rate}{remaining}")

    try:
        yield advance
    finally:
        # Without a terminal it would print an empty line.
        if bar.live.is_started:
            bar.stop()


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence]) -> None:
    """Print a table with right-aligned numbers."""
    shown = Table(title=title, title_justify="left", box=rich.box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        numbers = all(isinstance(row[index], int | float) for row in rows)
        justify = "right" if numbers else "left"
        shown.add_column(Text(column), justify=justify, overflow="fold")
    for row in rows:
        cells = (f"{c:,.3f}" if isinstance(c, float) else f"{c}" for c in row)
        # Text, since strings with square brackets would be parsed as markup.
        shown.add_row(*(Text(escaped(cell)) for cell in cells))
    console().print(shown)


def percent(share: float) -> str:
    """Format a share as a percentage with one decimal."""
    return f"{100 * share:.1f} %"
