"""`RayPool`: parallel jobs on a Ray cluster, with results in order."""

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from keras_bandgnn.optional import optional_import

_PROBE = """
import logging, sys, ray
ray.init(address=sys.argv[1], logging_level=logging.ERROR, log_to_driver=False)
"""


def import_ray() -> ModuleType:
    """Import Ray, which is optional.

    Raises:
        ImportError: If it is not installed.
    """
    instead = "use the engine 'process'"
    return optional_import("ray", "keras-bandgnn[ray]", instead=instead)


def connect(address: str, time_limit: float) -> None:
    """Join a cluster.

    Args:
        address: "auto" for the cluster that this machine is part of, or "host:port" of
            its head.
        time_limit: Seconds in which a cluster must answer.

    Raises:
        ConnectionError: If no cluster answers.
    """
    ray = import_ray()
    _check_address(address, time_limit)
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
    if address != "auto":
        host, _, port = str(address).rpartition(":")
        if not host or not port.isdigit() or "/" in host:
            raise ValueError(
                "Expected the address of a Ray cluster: auto, or host:port such as "
                f"10.0.0.1:6379. Received: {address!r}. Correct the address."
            )
        try:
            socket.create_connection((host, int(port)), time_limit).close()
        except OSError as error:
            raise _connection_error(address, str(error)) from error
    # Ray waits for minutes and may exit, so a separate process probes the address.
    command = [sys.executable, "-c", _PROBE, address]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=time_limit
        )
    except subprocess.TimeoutExpired as error:
        reason = f"no answer in {time_limit:g} s"
        raise _connection_error(address, reason) from error
    if process.returncode:
        lines = process.stderr.strip().splitlines() or [
            f"exit code {process.returncode}"
        ]
        raise _connection_error(address, lines[-1])


def _connection_error(address: str, reason: str) -> ConnectionError:
    return ConnectionError(
        f"Expected a Ray cluster at {address}. Received: {reason}. Start one with "
        "ray start --head, and run this command on one of its machines. If the cluster "
        "requires a token, use the address auto, or set RAY_AUTH_MODE=token."
    )


# Finished results per worker that may wait for an earlier one.
_AHEAD = 4
_RETRIES = 3
_PASSED_ON = ("KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL")
_PACKAGES = ("numpy", "pyarrow", "scipy")


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

    A job whose process or machine dies is retried up to three times. At most `workers`
    jobs run at a time, and at most four times as many results wait for an earlier one.

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

    def __enter__(self) -> "RayPool":
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
        self,
        function: Callable,
        jobs: Sequence[tuple],
        rescue: Callable | None = None,
        done: Callable[[int], None] | None = None,
    ) -> Iterator[Any]:
        """Yield `function(*job)` for each job, in order.

        Args:
            function: A function that workers can import, and that may be called more
                than once per job.
            jobs: Arguments of each call.
            rescue: Called instead of `function` for a job whose processes keep dying.
            done: Called with the index of each finished job, in any order.

        Raises:
            RuntimeError: If the processes of a job keep dying.
        """
        errors = self._ray.exceptions
        running: dict[Any, tuple[int, Callable]] = {}
        results: dict[int, Any] = {}
        position = following = 0
        submit = self._submitter(running, jobs)
        try:
            while position < len(jobs):
                limit = min(len(jobs), position + _AHEAD * self.workers)
                while following < limit and len(running) < self.workers:
                    submit(following, function)
                    following += 1
                finished, _ = self._ray.wait(list(running))
                for task in finished:
                    index, tried = running.pop(task)
                    try:
                        results[index] = self._ray.get(task)
                    except errors.RayTaskError as error:
                        raise error.cause from error
                    except errors.RayError as error:
                        if rescue is None or tried is rescue:
                            raise _job_error(error) from error
                        submit(index, rescue)
                        continue
                    if done is not None:
                        done(index)
                while position in results:
                    yield results.pop(position)
                    position += 1
        finally:
            for task in running:
                self._ray.cancel(task, force=True)

    def _submitter(self, running: dict, jobs: Sequence[tuple]) -> Callable:
        """Return a function that submits a job to Ray and records it in `running`."""
        versions = _versions()
        environment = {k: os.environ[k] for k in _PASSED_ON if k in os.environ}
        task = self._ray.remote(num_cpus=1, max_retries=_RETRIES)(_call)

        def submit(index: int, function: Callable) -> None:
            where = (function.__module__, function.__qualname__)
            remote = task.options(name=function.__qualname__)
            reference = remote.remote(*where, versions, environment, jobs[index])
            running[reference] = (index, function)

        return submit


def _job_error(error: Exception) -> RuntimeError:
    reason = str(error).strip().split("\n")[0]
    return RuntimeError(
        f"Expected the cluster to run its jobs. Received: {type(error).__name__}: "
        f"{reason} Run the same command again to resume."
    )
