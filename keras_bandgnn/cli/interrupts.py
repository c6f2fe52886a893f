"""Ends a command within seconds of Ctrl-C or SIGTERM, even inside native code.

An exception raised from a signal handler may be swallowed by the library that happens
to be running, and can crash a backend in the middle of a call. So the handler only
records the signal. Long jobs call `check` between two steps, where it is safe to stop.
If that takes more than `GRACE` seconds, or the signal arrives again, a thread ends the
process. No data is lost: files are written atomically, and unfinished temporary files
are removed.
"""

import contextlib
import io
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

GRACE = 1.0
_NUMBERS = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR = b"\x1b[?25h"
_signal: int | None = None
_message = "\ninterrupted"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM arrived.

    Attributes:
        code: The exit code of the process.
    """

    def __init__(self, number: int = signal.SIGINT):
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


def set_message(text: str) -> None:
    """Set the message printed on an interruption."""
    global _message
    _message = f"\n{text}"


def message() -> str:
    """Return the message to print after an interruption, starting a new line."""
    return _message


def _remember(number: int, frame) -> None:
    global _signal
    _signal = number


def check() -> None:
    """Raise `Interrupted` if a signal arrived since `handle_signals` was entered."""
    if _signal is not None:
        raise Interrupted(_signal)


def run(command: Callable[..., int], *arguments) -> int:
    """Call a command in this process, and return its exit code or that of a signal."""
    try:
        with handle_signals(whole_process=False):
            return command(*arguments)
    except KeyboardInterrupt as error:
        print(message(), file=sys.stderr)
        return getattr(error, "code", 128 + signal.SIGINT)


@contextlib.contextmanager
def handle_signals(whole_process: bool) -> Iterator[None]:
    """Record signals in its context, for `check`.

    Args:
        whole_process: Whether a signal ends the process, even if `check` is not called
            in time. If not, as in a notebook, `Interrupted` is raised immediately.
    """
    global _signal
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _signal, pipe = None, None
    handler = _remember if whole_process else _raise
    previous = {number: signal.signal(number, handler) for number in _NUMBERS}
    if whole_process:
        # Python cleans up the semaphores of pools, and would warn that it had to.
        warned = os.environ.get("PYTHONWARNINGS")
        quiet = "ignore:resource_tracker:UserWarning"
        os.environ["PYTHONWARNINGS"] = f"{warned},{quiet}" if warned else quiet
        # The interpreter writes to it on a signal, even while the main thread is busy
        # in native code and cannot run a handler.
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
            # None is a handler that was not installed from Python.
            signal.signal(number, old or signal.SIG_DFL)


def _raise(number: int, frame) -> None:
    _remember(number, frame)
    raise Interrupted(number)


def _watch(pipe: socket.socket) -> None:
    """End the process after a signal if the main thread does not."""
    first, until = None, None
    while until is None or time.monotonic() < until:
        pipe.settimeout(None if until is None else max(1e-3, until - time.monotonic()))
        try:
            numbers = pipe.recv(64)
        except TimeoutError:
            break
        if not numbers:  # `handle_signals` is over
            return
        numbers = [n for n in numbers if n in _NUMBERS]
        if numbers and first is not None:
            break
        if numbers:
            first, until = numbers[0], time.monotonic() + GRACE
    end_process(128 + first)


def end_process(code: int) -> None:
    """End this process immediately, even while threads are inside native code.

    A regular interpreter exit frees objects that backend threads still use, which can
    crash.
    """
    # The main thread may hold the locks of the streams, or wait for their reader.
    for step in (_flush, _silence, _clean):
        thread = threading.Thread(target=step, daemon=True)
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


def _silence() -> None:
    """Discard the output of threads that fail as the process ends, as in a pool."""
    sys.stderr = io.StringIO()


def _clean() -> None:
    # A module that was never imported has nothing to clean up.
    if files := sys.modules.get("keras_bandgnn.data.files"):
        with contextlib.suppress(Exception):
            files.discard_unfinished()
    # Their parent's end would not end them at once.
    if "multiprocessing" in sys.modules:
        with contextlib.suppress(Exception):
            for process in sys.modules["multiprocessing"].active_children():
                process.kill()
