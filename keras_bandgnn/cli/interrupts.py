"""Ctrl-C that no library swallows and that stops a backend between two steps.

An exception that is raised while a backend runs a callback of its own may be printed
and lost, and one that leaves a backend's call half done can crash it. So the signal
is remembered, and long jobs ask `check` now and then; under `deferred` nothing is
raised before they ask.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

_seen = threading.Event()
_deferred = threading.Event()


def _remember(number, frame) -> None:
    again = _seen.is_set()
    _seen.set()
    if again or not _deferred.is_set():
        raise KeyboardInterrupt
    print("\nstopping after this step; Ctrl-C again stops at once", file=sys.stderr)


def listen():
    """Begins to remember Ctrl-C; returns what `restore` takes."""
    _seen.clear()
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGINT, _remember)


def restore(handler) -> None:
    """Puts back what handled Ctrl-C before `listen`."""
    if handler is not None:
        signal.signal(signal.SIGINT, handler)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Within it the first Ctrl-C waits for the next `check`."""
    _deferred.set()
    try:
        yield
    finally:
        _deferred.clear()


def check() -> None:
    """Raises KeyboardInterrupt if Ctrl-C came since `listen`."""
    if _seen.is_set():
        raise KeyboardInterrupt
