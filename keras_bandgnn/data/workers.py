"""Work in several processes, with results in order."""

import collections
import concurrent.futures
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

_AHEAD = 4


def _start_worker() -> None:
    # The parent alone answers to Ctrl-C; it then stops the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _pool(processes: int) -> concurrent.futures.ProcessPoolExecutor:
    return concurrent.futures.ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
    )


def alone(function: Callable, job: Sequence, died: Any) -> Any:
    """Does a job in a process of its own; returns `died` if that dies."""
    with _pool(1) as pool:
        try:
            return pool.submit(function, *job).result()
        except BrokenProcessPool:
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
