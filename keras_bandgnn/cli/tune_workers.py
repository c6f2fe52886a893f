"""Processes of a search on this machine, in keras-tuner's distributed mode."""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import keras_bandgnn
from keras_bandgnn.cli import interrupts, report

_HOST = "127.0.0.1"
_GRACE = 1.5


def run_workers(options: argparse.Namespace, tuner) -> None:
    """Run a chief and `--workers` workers until the search is complete."""
    import keras

    from keras_bandgnn.data.files import write_json

    folder = Path(options.out)
    arguments = {k: v for k, v in vars(options).items() if k != "run"}
    # The tuner has discarded the earlier search already. Paths are stored as strings.
    arguments = json.loads(json.dumps(arguments | {"overwrite": False}, default=str))
    write_json(folder / "worker.json", arguments)
    (folder / "workers").mkdir(exist_ok=True)
    with socket.socket() as server:
        server.bind((_HOST, 0))
        port = server.getsockname()[1]
    root = str(Path(keras_bandgnn.__file__).resolve().parents[1])
    environment = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // options.workers)),
        **os.environ,
        "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
        "KERAS_BACKEND": keras.backend.backend(),
        "KERASTUNER_ORACLE_IP": _HOST,
        "KERASTUNER_ORACLE_PORT": str(port),
        # Connect to the chief directly, even if a proxy is configured.
        "no_grpc_proxy": _HOST,
    }
    tuner.oracle.save()  # is read again, even if no process writes it
    names = ["chief", *(f"worker{k}" for k in range(options.workers))]
    processes = {}
    try:
        for name in names:
            processes[name] = _start(folder, name, environment)
        # A worker that begins late waits in vain for a chief that is done.
        while processes["chief"].poll() is None and any(
            processes[name].poll() is None for name in names[1:]
        ):
            interrupts.check()
            time.sleep(0.2)
        codes = {name: process.poll() for name, process in processes.items()}
    finally:
        _end(processes.values())
    tuner.oracle.reload()
    failures = [_failure(folder, name, code) for name, code in codes.items() if code]
    unfinished = [t for t in tuner.oracle.trials.values() if t.status == "RUNNING"]
    if 0 not in codes.values() or unfinished:
        raise RuntimeError(
            "Expected the processes of the search to exit with code 0. Received: "
            f"{'; '.join(failures)}. Run the same command again to resume."
        )
    for text in failures:
        report.remark(text)


def _failure(folder: Path, name: str, code: int) -> str:
    log = folder / "workers" / f"{name}.log"
    lines = log.read_text(errors="replace").strip().splitlines()
    last = lines[-1] if lines else "nothing was printed"
    return f"{name} exited with code {code}: {last} (see {log})"


def _start(folder: Path, name: str, environment: Mapping) -> subprocess.Popen:
    code = (
        f"from keras_bandgnn.cli.tune import run_process; run_process({str(folder)!r})"
    )
    with open(folder / "workers" / f"{name}.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", code],
            env={**environment, "KERASTUNER_TUNER_ID": name},
            stdin=subprocess.DEVNULL,
            # The chief prints the trials as they finish.
            stdout=None if name == "chief" else log,
            stderr=log,
            # Ctrl-C in the terminal reaches only the command itself.
            start_new_session=True,
        )


def _end(processes: Iterable[subprocess.Popen]) -> None:
    """Interrupt running processes, then kill them."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    until = time.monotonic() + _GRACE
    for process in running:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
