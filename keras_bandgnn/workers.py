"""Parallel jobs in worker processes, with results in order."""

import collections
import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

from keras_bandgnn.default_backend import WORKER, stay_on_host

if TYPE_CHECKING:
    from loky import ProcessPoolExecutor

_AHEAD = 4
# Objects after which a worker collects garbage.
_COLLECT = 50_000
# Exit codes of processes that were asked to stop.
_ASKED = tuple(-number for number in (signal.SIGTERM, signal.SIGINT))


def _end_with_parent() -> None:
    """End this process when its parent has ended, even if the parent was killed."""
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _start_worker(host_only: bool = False) -> None:
    if host_only:
        stay_on_host()
    # Only the parent handles Ctrl-C; it then stops the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    # Jobs make many small objects, which the collector would go through all the time.
    gc.freeze()
    gc.set_threshold(_COLLECT)


def _pool(processes: int, host_only: bool) -> "ProcessPoolExecutor":
    """Return new processes, which do not run the script of this one again."""
    from loky import ProcessPoolExecutor

    return ProcessPoolExecutor(
        processes,
        initializer=_start_worker,
        initargs=(host_only,),
        env={WORKER: "1"},
    )


def run_isolated(
    function: Callable, job: Sequence, died: Any, host_only: bool = False
) -> Any:
    """Run a job in a separate process; return `died` if the process dies.

    If the process was asked to stop, as by a scheduler, the job is not to blame and is
    run again.
    """
    before = set(multiprocessing.active_children())
    while True:
        with _pool(1, host_only) as pool:
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
    jobs: Iterable[Sequence],
    processes: int,
    died: Any,
    here: bool = True,
    ahead: int = _AHEAD,
    host_only: bool = False,
) -> Iterator[Any]:
    """Yield `function(*job)` for each job in order, running a few jobs ahead.

    Args:
        function: A function that other processes can import, or one of the script.
        jobs: Arguments of each call; read a few ahead.
        processes: Number of processes.
        died: Result of a job whose process dies.
        here: Whether a single process is replaced by the current one.
        ahead: Jobs that are submitted in advance, for each process.
        host_only: Whether the jobs need no Keras, which takes seconds to import.
    """
    if isinstance(jobs, Sized):
        processes = min(processes, len(jobs))
    if processes == 0 or processes == 1 and here:
        for job in jobs:
            yield function(*job)
        return
    following = iter(jobs)
    again: collections.deque[Sequence] = collections.deque()
    while True:
        pool = _pool(processes, host_only)
        pending: collections.deque[Sequence] = collections.deque()
        futures: collections.deque[Future] = collections.deque()
        try:
            while True:
                while len(pending) < ahead * processes:
                    job = again.popleft() if again else next(following, None)
                    if job is None:
                        break
                    pending.append(job)
                    futures.append(pool.submit(function, *job))
                if not pending:
                    return
                outcome = futures.popleft().result()
                pending.popleft()
                yield outcome
        except BrokenProcessPool:
            again.extendleft(reversed(pending))
            yield run_isolated(function, again.popleft(), died, host_only)
        finally:
            pool.shutdown(wait=False, kill_workers=True)
