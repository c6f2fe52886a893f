"""What the commands print."""

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

# The card of a model that a command has trained.


def make_facts(options: argparse.Namespace, facts: dict) -> dict:
    """A model's card for `save_to_preset`."""
    import keras

    if options.title:
        facts["title"] = options.title
    return {
        **facts,
        "seed": f"{options.seed}, backend {keras.backend.backend()}",
        "command": f"    {options.line}",
    }


# Work that is done within so many seconds shows no progress.
_PATIENCE = 2.0


def console() -> Console:
    """The console of standard output, of fixed width where that is no screen."""
    width = None if sys.stdout.isatty() else 120
    return Console(highlight=False, width=width)


def escaped(text: str, keep: str = "") -> str:
    """Text of others, such as names of files, on one line and without commands.

    Control characters of a terminal, line breaks and what is not Unicode become escape
    sequences of Python.

    Args:
        text: The text.
        keep: Characters that stay as they are.
    """
    return "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape").decode()
        for character in text
    )


def in_options(text: str) -> str:
    """An error of the library in the terms of the command line.

    Messages name an argument of Python with its option behind it, as in
    "overwrite=True (--overwrite)", and end with what can be done in Python alone, as in
    "In Python, call ...".
    """
    text = re.sub(r"\w+=\w+ \((--[\w-]+)\)", r"\1", text)
    return re.sub(r"\s+In Python, .*\Z", "", text, flags=re.DOTALL)


def say(text: str) -> None:
    """Prints a line, or several."""
    console().print(escaped(text, "\n"), markup=False, soft_wrap=True)


def remark(text: str) -> None:
    """Prints a line about the work, not of its result: to standard error."""
    print(escaped(text, "\n"), file=sys.stderr)


def left_out(
    reasons: Sequence[tuple[str, str]], say: Callable[[str], None] = say, most: int = 20
) -> None:
    """Prints what could not be used.

    Args:
        reasons: (file, reason) pairs; a reason begins with its kind, up to a colon.
        say: What prints a line.
        most: Reasons that are printed whole; the rest is counted by kind.
    """
    for name, reason in reasons[:most]:
        say(escaped(f"left out: {name}: {reason}"))
    if len(reasons) > most:
        kinds = collections.Counter(r.split(":")[0] for _, r in reasons[most:])
        counts = ", ".join(f"{n} {escaped(kind)}" for kind, n in kinds.most_common(10))
        say(f"left out: {len(reasons) - most} more: {counts}")


@contextlib.contextmanager
def progress(
    title: str, unit: str | None = None, every: float = 10.0
) -> Iterator[Callable]:
    """A progress bar on standard error, once the work takes over two seconds.

    Where that is no terminal, a line is printed every so often.

    Args:
        title: What is done.
        unit: What is counted, to show how many are done per second.
        every: Seconds between two lines where the output is no terminal.

    Yields:
        A function of (done, total), or of (done, total, count) if something else than
        `done` is counted.
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
    begun = said = time.monotonic()
    first: tuple[int, int] | None = None
    task = bar.add_task(title, total=None, rate="")

    def advance(done: int, total: int, count: int | None = None) -> None:
        nonlocal first, said
        interrupts.check()
        count = done if count is None else count
        # What an earlier run did is no work of this one.
        first = (done, count) if first is None else first
        now, rate = time.monotonic(), ""
        if unit and count > first[1]:
            rate = f"{(count - first[1]) / (now - begun):,.1f} {unit}/s"
        bar.update(task, completed=done, total=total, rate=rate)
        if shown.is_terminal:
            if not bar.live.is_started and now - begun > _PATIENCE:
                bar.start()
        elif now - said >= every:
            said = now
            left = ""
            if done > first[0]:
                seconds = (total - done) * (now - begun) / (done - first[0])
                left = f", {duration(seconds)} left"
            rate = f", {rate}" if rate else ""
            remark(f"{title}: {done} of {total}{rate}{left}")

    try:
        yield advance
    finally:
        bar.stop()


def duration(seconds: float) -> str:
    """A time in its usual unit."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence]) -> None:
    """Prints a table; numbers to the right."""
    shown = Table(title=title, title_justify="left", box=rich.box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        numbers = all(isinstance(row[index], int | float) for row in rows)
        justify = "right" if numbers else "left"
        shown.add_column(Text(column), justify=justify, overflow="fold")
    for row in rows:
        cells = (f"{c:,.3f}" if isinstance(c, float) else f"{c}" for c in row)
        # Text, as square brackets would be taken for markup.
        shown.add_row(*(Text(escaped(cell)) for cell in cells))
    console().print(shown)


def percent(share: float) -> str:
    """A share as a percentage with one decimal."""
    return f"{100 * share:.1f} %"
