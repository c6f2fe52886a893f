"""Parallel workers of a search: processes on this machine, and their chief.

The chief is this process. It owns the oracle and serves it through keras-tuner's
service, on the loopback interface only.
"""

import collections
import contextlib
import io
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keras

import keras_bandgnn
from keras_bandgnn.data.files import FolderLock
from keras_bandgnn.tuning.failures import (
    MAX_CRASHES,
    CrashLog,
    crash_cause,
    memory_kills,
)

_HOST = "127.0.0.1"
_GRACE = 1.5
# Maximum restarts of a trial in one run for reasons unrelated to the trial.
_MAX_RESTARTS = 10
# Exit codes of workers that were asked to stop.
_INTERRUPT_CODES = (
    128 + signal.SIGINT,
    128 + signal.SIGTERM,
    -signal.SIGINT,
    -signal.SIGTERM,
)
_PARENT = "BANDGNN_TUNE_CHIEF"


def cores_of(number: int, count: int) -> list[int] | None:
    """Return the cores of worker `number` of `count`; None if they share all cores."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    return cores[number::count] if len(cores) >= count else None


def worker_environment(number: int, count: int, port: int) -> dict[str, str]:
    """Return the environment of a worker: its id, the chief's address, the backend."""
    cores = cores_of(number, count)
    root = str(Path(keras_bandgnn.__file__).resolve().parents[1])
    paths = [root, os.environ.get("PYTHONPATH", "")]
    return {
        "OMP_NUM_THREADS": str(len(cores) if cores else 1),
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "KERAS_BACKEND": keras.backend.backend(),
        _PARENT: str(os.getpid()),
        "KERASTUNER_TUNER_ID": f"tuner{number}",
        "KERASTUNER_ORACLE_IP": _HOST,
        "KERASTUNER_ORACLE_PORT": str(port),
        # Connect to the chief directly, even if a proxy is configured.
        "no_grpc_proxy": _HOST,
    }


def end_with_parent() -> None:
    """End this process when its parent has ended, even if the parent was killed."""
    # The parent may have ended already.
    parent = int(os.environ.get(_PARENT, os.getppid()))

    def watch():
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _name(code: int) -> str:
    """Return the name of the signal that ended a process."""
    return signal.Signals(-code if code < 0 else code - 128).name


def _quiet(servicer: type) -> type:
    """Return the service without keras-tuner's prints on conditional parameters."""

    def silent(name):
        def call(self, request, context):
            with contextlib.redirect_stdout(io.StringIO()):
                return getattr(servicer, name)(self, request, context)

        return call

    names = ("CreateTrial", "GetBestTrials", "GetSpace", "GetTrial", "UpdateTrial")
    return type("QuietServicer", (servicer,), {name: silent(name) for name in names})


class Workers:
    """Runs a search with several processes.

    A worker that dies is restarted with the same trial; see `CrashLog` for which deaths
    count against the trial. If this process is interrupted, so are its workers; if it
    is killed, they end on their own (see `end_with_parent`).

    Args:
        oracle: The oracle of the search.
        count: Number of workers.
        command: Command line of a worker, which runs `search` of a tuner on the same
            folder and calls `end_with_parent` first.
        logs: Folder for the workers' output.
        check: Called periodically; an exception from it ends the workers and `run`.
        say: Called with a line about each worker that died.

    Raises:
        RuntimeError: From `run`, if a worker exits with an error, if it is killed
            repeatedly, or if another process runs the search.
    """

    def __init__(
        self,
        oracle,
        count: int,
        command: Sequence[str],
        logs: Path,
        check: Callable[[], None] | None = None,
        say: Callable[[str], None] = print,
    ):
        self.oracle = oracle
        self.count = count
        self.command = list(command)
        self.logs = Path(logs)
        self.processes: list[subprocess.Popen] = []
        self._check, self._say = check, say
        self._memory_kills = memory_kills()
        self._restarts: collections.Counter = collections.Counter()

    def run(self) -> None:
        """Run the search to its end."""
        folder = Path(self.oracle._project_dir)
        with FolderLock(folder.resolve()):
            self._run()

    def _run(self) -> None:
        # Imported late, since they load gRPC.
        import grpc
        from keras_tuner.src import protos
        from keras_tuner.src.distribute.oracle_chief import OracleServicer

        server = grpc.server(ThreadPoolExecutor(max_workers=1))
        service = protos.get_service_grpc()
        service.add_OracleServicer_to_server(
            _quiet(OracleServicer)(self.oracle), server
        )
        port = server.add_insecure_port(f"{_HOST}:0")
        server.start()
        self.logs.mkdir(parents=True, exist_ok=True)
        try:
            self.processes = [self._start(k, port) for k in range(self.count)]
            # A list, since `any` of a generator would stop at the first running worker.
            while any([self._is_running(k, port) for k in range(self.count)]):
                if self._check is not None:
                    self._check()
                time.sleep(0.2)
        finally:
            self.end()
            server.stop(None)

    def _log(self, number: int) -> Path:
        return self.logs / f"worker{number}.log"

    def _start(self, number: int, port: int) -> subprocess.Popen:
        with open(self._log(number), "ab") as log:
            process = subprocess.Popen(
                self.command,
                env=worker_environment(number, self.count, port),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C in the terminal reaches only the chief.
                start_new_session=True,
            )
        cores = cores_of(number, self.count)
        if cores:
            os.sched_setaffinity(process.pid, cores)
        return process

    def _is_running(self, number: int, port: int) -> bool:
        code = self.processes[number].poll()
        if code is None:
            return True
        if code > 0 and code not in _INTERRUPT_CODES:
            last = self._log(number).read_text(errors="replace").strip().splitlines()
            raise RuntimeError(
                f"Expected worker {number} to exit with code 0. Received: code {code}: "
                f"{last[-1] if last else 'nothing was printed'}. See "
                f"{self._log(number)}."
            )
        if code == 0:
            return False
        self._record_exit(number, code)
        self.processes[number] = self._start(number, port)
        return True

    def _record_exit(self, number: int, code: int) -> None:
        """Count a worker's death against its trial if the trial may have caused it."""
        trial = self.oracle.ongoing_trials.get(f"tuner{number}")
        before, self._memory_kills = self._memory_kills, memory_kills()
        new = None if before is None else self._memory_kills - before
        cause = None if code in _INTERRUPT_CODES else crash_cause(-code, new)
        if trial is None:
            self._say(f"worker {number} ended ({_name(code)}) and is restarted")
        elif cause is not None:
            count = CrashLog(self.oracle._get_trial_dir(trial.trial_id)).add(cause)
            self._say(
                f"trial {trial.trial_id}: {cause}; crash {count} of {MAX_CRASHES}; it "
                "is restarted"
                if count < MAX_CRASHES
                else f"trial {trial.trial_id}: {cause}, {count} times; it has failed"
            )
        else:
            self._restarts[trial.trial_id] += 1
            if self._restarts[trial.trial_id] > _MAX_RESTARTS:
                raise RuntimeError(
                    f"Expected worker {number} to run undisturbed. Received: it was "
                    f"killed {_MAX_RESTARTS + 1} times in trial {trial.trial_id} "
                    f"({_name(code)}). Find out what kills it, and run the search "
                    "again."
                )
            self._say(
                f"trial {trial.trial_id}: its process was killed ({_name(code)}); "
                "not counted as a crash; it is restarted"
            )

    def end(self) -> None:
        """End running workers: interrupts them, then kills them."""
        running = [p for p in self.processes if p.poll() is None]
        for process in running:
            process.send_signal(signal.SIGINT)
        until = time.monotonic() + _GRACE
        for process in running:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
