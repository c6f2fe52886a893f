"""`RayPool`: parallel jobs on a Ray cluster, with results in order."""

from __future__ import annotations

import collections
import contextlib
import importlib
import importlib.metadata
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from keras_bandgnn.optional import optional_import
from keras_bandgnn.workers import run_isolated

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Item

_PROBE = """
import logging, sys, ray
ray.init(address=sys.argv[1], logging_level=logging.ERROR, log_to_driver=False)
"""
# Jobs per worker whose results may wait for an earlier one.
_AHEAD = 4
_RETRIES = 3
_PASSED_ON = ("KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL")
_PACKAGES = ("numpy", "pyarrow", "scipy")


def import_ray() -> ModuleType:
    """Import Ray, which is optional."""
    instead = "use the engine 'process'"
    return optional_import("ray", "keras-bandgnn[ray]", instead=instead)


def connect(address: str, time_limit: float) -> None:
    """Join a cluster, "auto" or "host:port", that answers in `time_limit` seconds."""
    _check_address(address, time_limit)
    ray = import_ray()
    with _restored_handlers():
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)


@contextlib.contextmanager
def _restored_handlers() -> Iterator[None]:
    """Restore the signal handlers that Ray replaces."""
    main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
    handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _check_address(address: str, time_limit: float) -> None:
    """Raise a ConnectionError unless a cluster answers in time."""
    host, _, port = str(address).rpartition(":")
    if address != "auto" and (not host or not port.isdigit() or "/" in host):
        raise ValueError(
            "Expected the address of a Ray cluster: auto, or host:port such as "
            f"10.0.0.1:6379. Received: {address!r}. Correct the address."
        )
    try:
        if address != "auto":
            socket.create_connection((host, int(port)), time_limit).close()
        # Ray waits for minutes and may exit, so a separate process probes it.
        command = [sys.executable, "-c", _PROBE, address]
        subprocess.run(
            command, capture_output=True, check=True, text=True, timeout=time_limit
        )
        return
    except OSError as error:
        reason = str(error)
    except subprocess.TimeoutExpired:
        reason = f"no answer in {time_limit:g} s"
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().split("\n")
        reason = lines[-1] or f"exit code {error.returncode}"
    raise ConnectionError(
        f"Expected a Ray cluster at {address}. Received: {reason}. Start one with "
        "ray start --head, and run this command on one of its machines. If the cluster "
        "requires a token, use the address auto, or set RAY_AUTH_MODE=token."
    )


def _versions() -> dict[str, str]:
    """Return the versions on which the bytes of a result may depend."""
    from keras_bandgnn.version import __version__

    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {"keras-bandgnn": __version__, **versions}


def _call(module: str, name: str, versions: Mapping, environment: Mapping, job: tuple):
    """Call a function by name, in a worker."""
    os.environ.update(environment)
    if (here := _versions()) != versions:
        raise RuntimeError(
            f"Expected {dict(versions)} on every machine. Received: {here} on "
            f"{socket.gethostname()}. Install the same versions there."
        )
    # By name, so that the environment is set before the import.
    return getattr(importlib.import_module(module), name)(*job)


class RayPool:
    """Workers of Ray that run jobs in any order, with results in the order of jobs.

    A job whose process or machine dies is retried up to three times, and then on this
    machine. At most `workers` jobs run at a time, and the results of at most four times
    as many wait for an earlier one.

    Args:
        address: "auto" or "host:port" of a cluster that this machine is part of. An
            existing connection to Ray is reused.
        workers: Maximum number of parallel jobs; the cores of the cluster if omitted.
        time_limit: Seconds in which a cluster must answer.

    Raises:
        ImportError: If Ray is not installed.
        ConnectionError: If no cluster answers, when the block is entered.

    Example:
    >>> with RayPool(workers=2) as pool:  # doctest: +SKIP
    ...     print(list(pool.ordered_map(math.hypot, [(3, 4), (6, 8)])))
    [5.0, 10.0]
    """

    def __init__(
        self,
        address: str = "auto",
        workers: int | None = None,
        time_limit: float = 30.0,
    ):
        self._ray = import_ray()
        self._address, self._time_limit = address, time_limit
        self._num_workers = workers
        self._owned = False
        self.workers = workers or 1

    def __enter__(self) -> RayPool:
        if not self._ray.is_initialized():
            connect(self._address, self._time_limit)
            self._owned = True
        cores = int(self._ray.cluster_resources().get("CPU", 0))
        if not cores:
            self.__exit__()
            raise RuntimeError(
                "Expected a Ray cluster with at least one core. Received: none. Start "
                "it with ray start --head --num-cpus N."
            )
        self.workers = self._num_workers or cores
        return self

    def __exit__(self, *error: Any) -> None:
        if self._owned:
            self._ray.shutdown()
            self._owned = False

    def ordered_map(
        self, function: Callable, jobs: Iterable[tuple], died: Item | None = None
    ) -> Iterator[Item]:
        """Yield `function(*job)` for each job, in order.

        Args:
            function: A function that workers can import, and that may be called more
                than once per job.
            jobs: Arguments of each call; read a few ahead.
            died: Result of a job whose processes keep dying, on the cluster and then in
                a process of its own on this machine.
        """
        where = (function.__module__, function.__qualname__)
        environment = {k: os.environ[k] for k in _PASSED_ON if k in os.environ}
        remote = self._ray.remote(num_cpus=1, max_retries=_RETRIES)(_call)
        remote = remote.options(name=function.__qualname__)
        errors, jobs, versions = self._ray.exceptions, iter(jobs), _versions()
        limit, running = _AHEAD * self.workers, []
        tasks: collections.deque = collections.deque()
        try:
            while True:
                while len(running) < self.workers and len(tasks) < limit:
                    if (job := next(jobs, None)) is None:
                        break
                    running.append(remote.remote(*where, versions, environment, job))
                    tasks.append((running[-1], job))
                if not tasks:
                    return
                if running:
                    _, running = self._ray.wait(running)
                while tasks and tasks[0][0] not in running:
                    task, job = tasks.popleft()
                    try:
                        result = self._ray.get(task)
                    except errors.RayTaskError as error:
                        raise error.cause from error
                    except errors.RayError:
                        result = run_isolated(function, job, died)
                    yield result
        finally:
            for task in running:
                self._ray.cancel(task, force=True)
