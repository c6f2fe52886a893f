"""Every command ends on Ctrl-C and SIGTERM, whatever it is doing."""

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from keras_bandgnn.cli import interrupts, report
from keras_bandgnn.cli.main import _COMMANDS, main
from keras_bandgnn.plugins import PLUGINS

pytestmark = pytest.mark.skipif(os.name == "nt", reason="no such signals there")

# Forks a process per command and one per way of not listening, each of which parses its
# own command line, and ends them all by a signal.
SCRIPT = """
import gc, json, os, signal, sys, time
from keras_bandgnn.cli import interrupts, main, report

number, folder = int(sys.argv[1]), sys.argv[2]
main._parser()

def swallow(options):
    while True:
        try:
            time.sleep(0.01)
        except BaseException:
            pass

def callback(options):
    # As JAX does: what is raised in a callback of the collector is printed and lost.
    gc.callbacks.append(lambda phase, info: time.sleep(0.001))
    while True:
        gc.collect(0)

def steps(options):
    with report.progress("work") as advance:
        for step in range(10**6):
            time.sleep(0.01)
            advance(step, 10**6)

def full_pipe(options):
    # Nobody reads what it prints.
    read, write = os.pipe()
    os.dup2(write, 1)
    while True:
        print("x" * 10000, flush=True)

WAYS = {f.__name__: f for f in (swallow, callback, steps, full_pipe)}
LINES = json.loads(sys.argv[3])
running = {}
for command, line in LINES.items():
    # All commands end alike: one is tried in each way.
    for name, way in WAYS.items() if command == "train" else [("steps", steps)]:
        pid = os.fork()
        if pid:
            running[pid] = [command, name]
            continue
        signal.signal(signal.SIGINT, signal.default_int_handler)
        handle = os.open(f"{folder}/{command}-{name}", os.O_WRONLY | os.O_CREAT)
        os.dup2(handle, 1), os.dup2(handle, 2)
        import importlib
        from keras_bandgnn.plugins import PLUGINS
        home = "cli." + command.replace("-", "_")
        module = importlib.import_module("keras_bandgnn." + PLUGINS.get(home, home))
        def run(options, way=way, ready=f"{folder}/{command}-{name}.ready"):
            open(ready, "w").close()
            way(options)
        module.run = run
        sys.argv = ["bandgnn", command, *line]
        main.command()
        os._exit(99)
until = time.monotonic() + 60
count = lambda: sum(name.endswith(".ready") for name in os.listdir(folder))
while count() < len(running) and time.monotonic() < until:
    time.sleep(0.05)
time.sleep(0.2)
for pid in running:
    os.kill(pid, number)
sent, rows = time.monotonic(), []
while running and time.monotonic() < sent + 30:
    pid, status = os.waitpid(-1, os.WNOHANG)
    if pid:
        seconds = time.monotonic() - sent
        rows.append([*running.pop(pid), os.waitstatus_to_exitcode(status), seconds])
    else:
        time.sleep(0.01)
for pid in running:
    os.kill(pid, signal.SIGKILL)
print(json.dumps([rows, list(running.values())]))
"""
# What each command needs to be parsed.
LINES = {
    "demo": [],
    "compile": ["src", "--out", "data"],
    "train": ["data", "--out", "model"],
    "tune": ["data", "--out", "search"],
    "evaluate": ["model", "data"],
    "predict": ["model", "file.py"],
    "check": ["file.py"],
    "lsp": [],
    "inspect": ["data"],
    "batching": ["data"],
    "calibrate": [],
    "tpu-check": ["preset"],
    "scale": ["preset"],
}


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.release)],
)
def test_every_command_ends_within_two_seconds(tmp_path, number):
    assert set(LINES) == set(_COMMANDS), "add a new command's shortest line to LINES"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(int(number)), str(tmp_path)]
        + [json.dumps(LINES)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=120,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    rows, running = json.loads(done.stdout.splitlines()[-1])
    assert not running, f"still running: {running}"
    for command, way, code, seconds in rows:
        said = (tmp_path / f"{command}-{way}").read_text()
        assert code == 128 + number, f"{command}, {way}: {code}\n{said}"
        # The grace is one second; the rest is a busy machine's.
        assert seconds < interrupts.GRACE + 5.0, f"{command}, {way}: {seconds} s"
        resumes = _COMMANDS[command].resumes is not None
        assert ("run the same command again to resume" in said) == resumes
        assert ("interrupted; the same command starts over" in said) != resumes
    quick = sorted(seconds for _, way, _, seconds in rows if way == "steps")
    assert quick[len(quick) // 2] < interrupts.GRACE + 2.5


def test_a_call_in_python_answers_at_once(monkeypatch, capsys, tmp_path):
    """As a function a command raises, as Python does, and ends no process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        before = signal.getsignal(number)

        def work(options, number=number):
            os.kill(os.getpid(), number)
            time.sleep(30)

        monkeypatch.setattr("keras_bandgnn.programs.commands.inspect.run", work)
        begun = time.monotonic()
        assert main(["inspect", str(tmp_path)]) == 128 + number
        assert time.monotonic() - begun < 5
        assert "the same command starts over" in capsys.readouterr().err
        assert signal.getsignal(number) is before


@pytest.mark.parametrize(
    "name", [name for name, each in _COMMANDS.items() if each.resumes]
)
def test_what_begins_anew_is_to_be_left_out(name, monkeypatch, capsys, tmp_path):
    home = PLUGINS.get(f"cli.{name}", f"cli.{name}")
    module = importlib.import_module(f"keras_bandgnn.{home}")
    monkeypatch.setattr(module, "run", lambda _: os.kill(os.getpid(), signal.SIGINT))
    option = f"--{_COMMANDS[name].resumes}"
    assert main([name, *LINES[name], option]) == 130
    said = capsys.readouterr().err
    if option == "--no-cache":  # nothing is kept
        assert f"with {option} the same command starts over" in said
    else:
        assert f"run the same command again without {option} to resume" in said


# Works in a pool and on files, is deaf to signals, and so ended by the other thread.
WORK = """
import signal, sys, time
from keras_bandgnn.cli import interrupts, main
from keras_bandgnn.data import files
from keras_bandgnn import workers
import keras_bandgnn.cli.predict as module

def run(options):
    outcomes = workers.ordered_map(abs, [(k,) for k in range(9)], 2, None)
    with files.atomic_write("found.jsonl") as file:
        with files.atomic_folder("folder", ["a"], "a folder") as folder:
            file.write(b"{}")
            (folder / "a").write_text("a")
            print(next(outcomes), flush=True)
            while True:
                if HEARS:
                    interrupts.check()
                time.sleep(0.01)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    module.run = run
    sys.argv = ["bandgnn", "predict", "model", "file.py"]
    main.command()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("hears", [True, False])
@pytest.mark.release
def test_nothing_is_left_and_nothing_warned_of(number, hears, tmp_path):
    (tmp_path / "script.py").write_text(WORK.replace("HEARS", str(hears)))
    process = subprocess.Popen(
        [sys.executable, "script.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
    )
    assert process.stdout.readline() == "0\n", process.communicate(timeout=60)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number, said
    assert said.strip() == "interrupted; the same command starts over"
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


# Threads fail when what they use is cleaned up, and one of them prints it itself.
FAILING = """
import os, sys, threading, traceback
from keras_bandgnn.cli import interrupts
from keras_bandgnn.data import files

def fail():
    raise RuntimeError("the queue is closed")

def tell():
    try:
        fail()
    except RuntimeError:
        traceback.print_exc()

def discard():
    for target in (fail, tell):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()

files.discard_unfinished = discard
print("before", file=sys.stderr, end="")
interrupts.end_process(143)
"""


@pytest.mark.release
def test_threads_that_fail_at_the_end_are_silent(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FAILING],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (143, "before\ninterrupted\n")


def test_a_signal_is_remembered_until_someone_asks(monkeypatch):
    with interrupts.handle_signals(whole_process=False):
        interrupts.check()
    monkeypatch.setattr(interrupts, "_signal", signal.SIGTERM)
    with pytest.raises(interrupts.Interrupted, match="SIGTERM") as caught:
        interrupts.check()
    assert caught.value.code == 143
    # Whatever counts its steps asks.
    with pytest.raises(KeyboardInterrupt):
        with report.progress("work") as advance:
            advance(1, 2)


def test_other_threads_leave_signals_alone():
    def listen():
        with interrupts.handle_signals(whole_process=True):
            found.append(signal.getsignal(signal.SIGINT))

    found = []
    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]
