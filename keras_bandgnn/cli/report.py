"""What the commands print."""

import contextlib
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


def console() -> Console:
    """The console of standard output, of fixed width where that is no screen."""
    width = None if sys.stdout.isatty() else 120
    return Console(highlight=False, width=width)


def say(text: str) -> None:
    """Prints a line."""
    console().print(text, markup=False, soft_wrap=True)


@contextlib.contextmanager
def progress(
    title: str, unit: str | None = None, every: float = 10.0
) -> Iterator[Callable[[int, int], None]]:
    """A progress bar; yields a function that takes (done, total).

    Args:
        title: What is done.
        unit: What is counted, to show how many are done per second.
        every: Seconds between two lines where the output is no screen.
    """
    shown = console()
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
    first: int | None = None
    with bar:
        task = bar.add_task(title, total=None, rate="")

        def advance(done: int, total: int) -> None:
            nonlocal first, said
            # What an earlier run did is no work of this one.
            first = done if first is None else first
            now, rate = time.monotonic(), ""
            if unit and done > first:
                rate = f"{(done - first) / (now - begun):,.1f} {unit}/s"
            bar.update(task, completed=done, total=total, rate=rate)
            if not shown.is_terminal and now - said >= every:
                said = now
                say(f"{title}: {done} of {total} {rate}".rstrip())

        yield advance


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence]) -> None:
    """Prints a table; numbers to the right."""
    shown = Table(title=title, title_justify="left", box=rich.box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        numbers = all(isinstance(row[index], int | float) for row in rows)
        shown.add_column(column, justify="right" if numbers else "left")
    for row in rows:
        shown.add_row(*(f"{c:,.3f}" if isinstance(c, float) else f"{c}" for c in row))
    console().print(shown)


def percent(share: float) -> str:
    """A share as a percentage with one decimal."""
    return f"{100 * share:.1f} %"
