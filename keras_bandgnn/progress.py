"""Progress bars for work that takes more than two seconds."""

import contextlib
import time
from collections.abc import Callable, Iterator

_QUIET_SECONDS = 2.0


@contextlib.contextmanager
def progress_bar(
    title: str, total: int | None, shown: bool
) -> Iterator[Callable[[float], None]]:
    """Show a progress bar on standard error; yield a function to advance it.

    Args:
        title: Title of the bar.
        total: Total amount of work; None if unknown.
        shown: Whether to show the bar.

    Example:
    >>> with progress_bar("Reading", 3, shown=True) as advance:
    ...     advance(1)
    """
    start, done, bar, task = time.monotonic(), 0, None, None

    def advance(more: float) -> None:
        nonlocal done, bar, task
        done += more
        if bar is None and shown and time.monotonic() - start > _QUIET_SECONDS:
            from rich.console import Console
            from rich.progress import Progress

            bar = Progress(console=Console(stderr=True), transient=True)
            bar.start()
            task = bar.add_task(title, total=total)
        if bar is not None:
            bar.update(task, completed=done)

    try:
        yield advance
    finally:
        if bar is not None:
            bar.stop()
