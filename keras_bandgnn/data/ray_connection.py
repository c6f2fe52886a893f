"""A Ray of one's own, or that of a cluster, found within a time limit."""

import contextlib
import importlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from types import ModuleType

from keras_bandgnn.optional import optional_import

# A Ray that is started here holds no large objects.
_STORE_BYTES = 128 * 2**20
_PROBE = """
import logging, sys, ray
ray.init(address=sys.argv[1], logging_level=logging.ERROR, log_to_driver=False)
"""


def import_ray() -> ModuleType:
    """Imports Ray, which is optional.

    Raises:
        ImportError: If it is not installed.
    """
    # Nothing is reported to Ray's makers unless the user asks for it.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Workers leave accelerators alone; without this Ray warns that it will change.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    instead = "use the engine 'process'"
    return optional_import("ray", "keras-bandgnn[ray]", instead=instead)


def connect(address: str | None, workers: int | None, time_limit: float) -> None:
    """Starts a Ray on this machine, or joins a cluster.

    Args:
        address: None to start one, which listens on the loopback interface alone,
            "auto" for the cluster that this machine is part of, or "host:port" of its
            head.
        workers: Cores of a Ray that is started here.
        time_limit: Seconds in which a cluster must answer.

    Raises:
        ConnectionError: If no cluster answers.
    """
    ray = import_ray()
    with _own_handlers():
        _connect(ray, address, workers, time_limit)


@contextlib.contextmanager
def _own_handlers() -> Iterator[None]:
    """Puts back the handlers of signals that Ray replaces by its own."""
    main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
    handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Makes a Ray that starts within it listen on the loopback interface alone.

    Whoever reaches a Ray can run code there.
    """
    # Ray takes no address for this: it replaces 127.0.0.1 by one that others reach,
    # unless it believes itself on a system without clusters.
    constants = importlib.import_module("ray._private.ray_constants")
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def _connect(ray: ModuleType, address: str | None, workers, time_limit: float) -> None:
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        with warnings.catch_warnings(), _on_loopback():
            # JAX warns of forks. Those of Ray run another program at once.
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called")
            ray.init(
                address="local",
                num_cpus=workers or os.cpu_count() or 1,
                include_dashboard=False,
                object_store_memory=_STORE_BYTES,
                **quiet,
            )
        return
    _check_address(address, time_limit)
    ray.init(address=address, **quiet)


def _check_address(address: str, time_limit: float) -> None:
    """Raises a ConnectionError unless a cluster answers in time."""
    if address != "auto":
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or "/" in host:
            raise ValueError(
                "Expected the address of a Ray cluster: auto, or host:port such as "
                f"10.0.0.1:6379. Received: {address!r}."
            )
        try:
            socket.create_connection((host, int(port)), time_limit).close()
        except OSError as error:
            raise _no_answer(address, str(error)) from error
    # Ray itself waits for minutes and may end its process, so another one asks first.
    command = [sys.executable, "-c", _PROBE, address]
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, timeout=time_limit
        )
    except subprocess.TimeoutExpired as error:
        reason = f"no answer in {time_limit:g} s"
        raise _no_answer(address, reason) from error
    if asked.returncode:
        lines = asked.stderr.strip().splitlines() or [f"exit code {asked.returncode}"]
        raise _no_answer(address, lines[-1])


def _no_answer(address: str, reason: str) -> ConnectionError:
    return ConnectionError(
        f"Expected a Ray cluster at {address}. Received: {reason}. Start one with "
        "ray start --head, and run this command on one of its machines. If the cluster "
        "wants a token, use the address auto, or set RAY_AUTH_MODE=token."
    )
