"""How a command ends on Ctrl-C and SIGTERM: within seconds, whatever it is doing.

An exception that a signal raises anywhere may be printed and lost by the library that
is running just then, and one that leaves a backend's call half done can crash it. So a
signal is only remembered. Long jobs ask `check` between two steps, where they can be
left in good order; if that takes more than `GRACE` seconds, or the signal comes again,
a thread ends the process. That loses nothing: files are written as a whole, and what
is hidden of those that were begun is removed.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator

GRACE = 1.0
_NUMBERS = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR = b"\x1b[?25h"
_seen: int | None = None
_message = "\ninterrupted"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM came.

    Attributes:
        code: The exit code of the process.
    """

    def __init__(self, number: int = signal.SIGINT):
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


def set_message(text: str) -> None:
    """Sets what is said of an interruption from now on."""
    global _message
    _message = f"\n{text}"


def message() -> str:
    """What to say after an interruption, on a line of its own."""
    return _message


def _remember(number: int, frame) -> None:
    global _seen
    _seen = number


def check() -> None:
    """Raises `Interrupted` if Ctrl-C or SIGTERM came since `listen`."""
    if _seen is not None:
        raise Interrupted(_seen)


@contextlib.contextmanager
def listen(whole_process: bool) -> Iterator[None]:
    """Within it signals are remembered for `check`.

    Args:
        whole_process: Whether the process ends, also where nobody asks in time. If
            not, as in a notebook, `KeyboardInterrupt` is raised as Python does.
    """
    global _seen
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _seen, pipe = None, None
    handler = _remember if whole_process else _raise
    previous = {number: signal.signal(number, handler) for number in _NUMBERS}
    if whole_process:
        # Written to by the interpreter when a signal comes, also while the main thread
        # computes and cannot run a handler.
        pipe, end = socket.socketpair()
        end.setblocking(False)
        before = signal.set_wakeup_fd(end.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=_watch, args=(pipe,), daemon=True).start()
    try:
        yield
    except KeyboardInterrupt as error:
        if not whole_process:
            raise
        end_process(getattr(error, "code", 128 + signal.SIGINT))
    finally:
        if pipe is not None:
            signal.set_wakeup_fd(before)
            end.close()
        for number, old in previous.items():
            # None is a handler that is no Python function.
            signal.signal(number, old or signal.SIG_DFL)


def _raise(number: int, frame) -> None:
    _remember(number, frame)
    raise Interrupted(number)


def _watch(pipe: socket.socket) -> None:
    """Ends the process if the main thread does not, once a signal has come."""
    first, until = None, None
    while until is None or time.monotonic() < until:
        pipe.settimeout(None if until is None else max(1e-3, until - time.monotonic()))
        try:
            numbers = pipe.recv(64)
        except TimeoutError:
            break
        if not numbers:  # `listen` is over
            return
        numbers = [n for n in numbers if n in _NUMBERS]
        if numbers and first is not None:
            break
        if numbers:
            first, until = numbers[0], time.monotonic() + GRACE
    end_process(128 + first)


def end_process(code: int) -> None:
    """Ends this process at once, whatever its threads are doing.

    To free what threads of a backend still use, as leaving Python would, can crash.
    """
    # The main thread may hold the locks of these, or wait for who reads them.
    for what in (_flush, _clean):
        thread = threading.Thread(target=what, daemon=True)
        thread.start()
        thread.join(0.2)
    with contextlib.suppress(OSError):
        os.write(2, f"{_message}\n".encode())
        if os.isatty(1):  # a progress bar hides it
            os.write(1, _SHOW_CURSOR)
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _clean() -> None:
    # What has not been imported has left nothing.
    if files := sys.modules.get("keras_bandgnn.data.files"):
        with contextlib.suppress(Exception):
            files.discard_unfinished()
    if "multiprocessing.util" in sys.modules:
        import multiprocessing.util

        # Python warns of semaphores of pools that are not given back. Priority 0 and
        # above is what waits for no other process. One that is just starting would
        # miss them, and say so.
        with contextlib.suppress(Exception):
            for process in multiprocessing.active_children():
                process.kill()
            multiprocessing.util._run_finalizers(0)
