"""Progress of long work: a bar on a terminal, otherwise lines now and then."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

# Seconds after which a line is due at the latest, where there is no terminal.
EVERY = 30.0
# Progress bars print after this share of them, so that the line of `heartbeat` is not
# due just before.
_EARLY = 5 / 6
_QUIET_SECONDS = 2.0

now = time.monotonic
_last_line = -float("inf")


def duration(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours.

    Example:
    >>> duration(42), duration(150), duration(600), duration(9000)
    ('42 s', '2.5 min', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60, 1 if seconds < 600 else None)
    return f"{minutes:g} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def rate_text(rate: float, unit: str = "") -> str:
    """Format how much is done in a second.

    Example:
    >>> rate_text(3514.2, "graphs"), rate_text(0.25)
    ('3,514 graphs/s', '0.25/s')
    """
    number = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
    return f"{number} {unit}/s" if unit else f"{number}/s"


def progress_text(
    title: str, done: float, total: float | None, seconds: float, before: float = 0
) -> str:
    """Return a line of progress.

    Args:
        title: What is done.
        done: Work done.
        total: All of it; None if unknown.
        seconds: Seconds that the work took.
        before: Work of `done` that was there before them.

    Example:
    >>> progress_text("Reading", 12_000, 48_000, 15.0)
    'Reading: 12,000 of 48,000 (25 %), 800/s, 45 s left'
    """
    text = f"{title}: {done:,.0f}"
    if total:
        text += f" of {total:,.0f} ({100 * done / total:.0f} %)"
    if done > before and seconds > 0:
        rate = (done - before) / seconds
        text += f", {rate_text(rate)}"
        if total:
            text += f", {duration((total - done) / rate)} left"
    return text


def print_line(text: str) -> None:
    """Print a line of progress to standard error."""
    global _last_line
    _last_line = now()
    print(text, file=sys.stderr, flush=True)


class RateLimiter:
    """Decides when a line is due: somewhat less than `EVERY` after any other."""

    def __init__(self):
        self._said = now()

    def is_due(self) -> bool:
        """Return whether a line is due, and count it as printed."""
        moment = now()
        if moment - max(self._said, _last_line) < _EARLY * EVERY:
            return False
        self._said = moment
        return True


@contextlib.contextmanager
def progress_bar(
    title: str, total: int | None, shown: bool
) -> Iterator[Callable[[float], None]]:
    """Show progress on standard error; yield a function to advance it.

    On a terminal a bar appears after two seconds, otherwise a line as soon as there is
    an advance 25 seconds after the last line.

    Args:
        title: Title of the work.
        total: Total amount of work; None if unknown.
        shown: Whether to show anything.

    Example:
    >>> with progress_bar("Reading", 3, shown=True) as advance:
    ...     advance(1)
    """
    start, done, bar, task = now(), 0, None, None
    limiter, terminal = RateLimiter(), sys.stderr.isatty()

    def advance(more: float) -> None:
        nonlocal done, bar, task
        done += more
        if shown and not terminal and limiter.is_due():
            print_line(progress_text(title, done, total, now() - start))
        if bar is None and shown and terminal and now() - start > _QUIET_SECONDS:
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


@contextlib.contextmanager
def heartbeat(title: str) -> Iterator[None]:
    """Print how long work has taken whenever `EVERY` seconds pass without a line.

    It is for work without measurable progress, such as one long compilation. On a
    terminal it prints nothing.

    Args:
        title: Title of the work.
    """
    if sys.stderr.isatty():
        yield
        return
    start, over = now(), threading.Event()

    def watch() -> None:
        silent_since = start
        while not over.wait(max(EVERY - (now() - silent_since), 0.01)):
            silent_since = max(silent_since, _last_line)
            if now() - silent_since >= EVERY:
                print_line(f"{title}: running for {duration(now() - start)}")
                silent_since = now()

    thread = threading.Thread(target=watch, daemon=True, name="heartbeat")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
