"""Work in several processes, with results in order."""

import collections
import concurrent.futures
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

_AHEAD = 4
# Exit codes of processes that were asked to end.
_ASKED = tuple(-number for number in (signal.SIGTERM, signal.SIGINT))


def end_with_parent() -> None:
    """Ends this process when the one that started it is gone, even if killed.

    For processes of `multiprocessing`.
    """
    parent = multiprocessing.parent_process()

    def watch():
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _start_worker() -> None:
    # The parent alone answers to Ctrl-C; it then stops the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def _pool(processes: int) -> concurrent.futures.ProcessPoolExecutor:
    return concurrent.futures.ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
    )


def alone(function: Callable, job: Sequence, died: Any) -> Any:
    """Does a job in a process of its own; returns `died` if that dies.

    A process that was asked to end, as by a scheduler, says nothing about its job,
    which is done again.
    """
    before = set(multiprocessing.active_children())
    while True:
        with _pool(1) as pool:
            future = pool.submit(function, *job)
            (process,) = set(multiprocessing.active_children()) - before
            try:
                return future.result()
            except BrokenProcessPool:
                process.join()
                if process.exitcode not in _ASKED:
                    return died


def ordered_map(
    function: Callable,
    jobs: Sequence[Sequence],
    processes: int,
    died: Any,
    here: bool = True,
) -> Iterator[Any]:
    """Yields `function(*job)` for each job, in order, a few jobs ahead of the caller.

    Args:
        function: A function that spawned processes can import.
        jobs: Arguments of each call.
        processes: Number of processes.
        died: Result of a job whose process dies.
        here: Whether the work of one process is done in this one.
    """
    processes = min(processes, len(jobs))
    if processes == 0 or processes == 1 and here:
        for job in jobs:
            yield function(*job)
        return
    position = 0
    while position < len(jobs):
        pool = _pool(processes)
        pending: collections.deque = collections.deque()
        try:
            following = position
            while position < len(jobs):
                while following < len(jobs) and len(pending) < _AHEAD * processes:
                    pending.append(pool.submit(function, *jobs[following]))
                    following += 1
                outcome = pending.popleft().result()
                position += 1
                yield outcome
        except BrokenProcessPool:
            yield alone(function, jobs[position], died)
            position += 1
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
