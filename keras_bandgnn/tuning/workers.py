"""Several workers of one search: processes of this machine, and their chief.

The chief is this process. It owns the oracle and answers over keras-tuner's service,
on the loopback interface alone.
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
    MOST_DEATHS,
    Deaths,
    cause_of_death,
    memory_kills,
)

_HOST = "127.0.0.1"
_GRACE = 1.5
# Restarts of a trial in one run that say nothing of the trial.
_MOST_RESTARTS = 10
# Exit codes of workers that were asked to end.
_ASKED = (128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM)
_PARENT = "BANDGNN_TUNE_CHIEF"


def cores_of(number: int, count: int) -> list[int] | None:
    """The cores that worker `number` of `count` gets; None where all share all."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    return cores[number::count] if len(cores) >= count else None


def worker_environment(number: int, count: int, port: int) -> dict[str, str]:
    """Environment of a worker: who it is, where the chief is, and its backend."""
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
        # A proxy for the web has no business here.
        "no_grpc_proxy": _HOST,
    }


def end_with_parent() -> None:
    """Ends this process when the one that started it is gone, even if killed."""
    # It may be gone already.
    parent = int(os.environ.get(_PARENT, os.getppid()))

    def watch():
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _name(code: int) -> str:
    """The name of the signal that ended a process."""
    return signal.Signals(-code if code < 0 else code - 128).name


def _quiet(servicer: type) -> type:
    """The service without what keras-tuner prints when it sends conditions."""

    def silent(name):
        def call(self, request, context):
            with contextlib.redirect_stdout(io.StringIO()):
                return getattr(servicer, name)(self, request, context)

        return call

    names = ("CreateTrial", "GetBestTrials", "GetSpace", "GetTrial", "UpdateTrial")
    return type("QuietServicer", (servicer,), {name: silent(name) for name in names})


class Workers:
    """Runs a search with several processes.

    A worker that dies is started again, and gets its trial again; what counts as the
    trial's fault says `Deaths`. When this process is interrupted, its workers are, too;
    if it is killed, they end by themselves (see `end_with_parent`).

    Args:
        oracle: The oracle of the search.
        count: Number of workers.
        command: Command line of a worker, which runs `search` of a tuner on the same
            folder and calls `end_with_parent` first.
        logs: Folder for what the workers print.
        check: Called again and again; what it raises ends the workers and `run`.
        say: Takes a line about each worker that died, and what follows from it.

    Raises:
        RuntimeError: From `run`, if a worker ends with an error, not by a signal, or
            if it is killed again and again, or if another process runs the search.
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
        """Runs the search to its end."""
        folder = Path(self.oracle._project_dir)
        with FolderLock(folder.resolve()):
            self._run()

    def _run(self) -> None:
        # At use: it brings gRPC.
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
            # All are looked after, also while the first goes on.
            while any([self._goes_on(k, port) for k in range(self.count)]):
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
                # Ctrl-C in the terminal is for the chief.
                start_new_session=True,
            )
        cores = cores_of(number, self.count)
        if cores:
            os.sched_setaffinity(process.pid, cores)
        return process

    def _goes_on(self, number: int, port: int) -> bool:
        code = self.processes[number].poll()
        if code is None:
            return True
        if code > 0 and code not in _ASKED:
            last = self._log(number).read_text(errors="replace").strip().splitlines()
            raise RuntimeError(
                f"Expected worker {number} to end well. Received: exit code {code}: "
                f"{last[-1] if last else 'nothing was printed'}. See "
                f"{self._log(number)}."
            )
        if code == 0:
            return False
        self._judge(number, code)
        self.processes[number] = self._start(number, port)
        return True

    def _judge(self, number: int, code: int) -> None:
        """Counts the death of a worker against its trial if there is evidence."""
        trial = self.oracle.ongoing_trials.get(f"tuner{number}")
        before, self._memory_kills = self._memory_kills, memory_kills()
        new = None if before is None else self._memory_kills - before
        cause = None if code in _ASKED else cause_of_death(-code, new)
        if trial is None:
            self._say(f"worker {number} ended ({_name(code)}) and is started again")
        elif cause is not None:
            count = Deaths(self.oracle._get_trial_dir(trial.trial_id)).add(cause)
            self._say(
                f"trial {trial.trial_id}: {cause}; this counts, {count} of "
                f"{MOST_DEATHS}; it runs again"
                if count < MOST_DEATHS
                else f"trial {trial.trial_id}: {cause}, {count} times; it has failed"
            )
        else:
            self._restarts[trial.trial_id] += 1
            if self._restarts[trial.trial_id] > _MOST_RESTARTS:
                raise RuntimeError(
                    f"Expected worker {number} to be left alone. Received: it was "
                    f"killed {_MOST_RESTARTS + 1} times in trial {trial.trial_id} "
                    f"({_name(code)}). See what ends it, and run the search again."
                )
            self._say(
                f"trial {trial.trial_id}: its process was killed ({_name(code)}); "
                "this does not count, it runs again"
            )

    def end(self) -> None:
        """Ends the workers that still run: asks, then kills."""
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
