"""Ctrl-C that no library swallows.

An exception that is raised while a backend runs a callback of its own may be printed
and lost. So the signal is remembered, and long jobs ask `check` now and then.
"""

import signal
import threading

_seen = threading.Event()


def _remember(number, frame) -> None:
    _seen.set()
    raise KeyboardInterrupt


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


def check() -> None:
    """Raises KeyboardInterrupt if Ctrl-C came since `listen`."""
    if _seen.is_set():
        raise KeyboardInterrupt
