"""Kills and signals at random moments of what writes files.

python -m tests.interruptions --moments 200 --seed 0

Every job runs once undisturbed. Then it is ended at random moments by SIGKILL, SIGINT
and SIGTERM, started again, and must end with the same result and leave nothing behind.
Two processes get one folder, and disks are full. Processes are forked from this one,
which has imported the backend, so that a moment costs little.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
SOURCE = """
def f{k}(left, right, count):
    total = left * {k}
    for index in range(count):
        total = total + right - index
        right = left + total
    return total
"""


# === Processes ===


class Child:
    """A function in a forked process, in a session of its own."""

    def __init__(self, function, log: Path, file_size: int | None = None):
        sys.stdout.flush()
        self.log = log
        self.begun = time.monotonic()
        # What Python does after a fork prints and loses exceptions.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS[1:])
        self.pid = os.fork()
        if self.pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS[1:])
            return
        code = 99
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS[1:])
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            import keras

            keras.backend.clear_session()  # the same names of layers in every child
            if file_size is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
            function()
            code = 0
        except SystemExit as error:
            code = int(error.code or 0)
        except KeyboardInterrupt:  # before a command listens
            code = 128 + signal.SIGINT
        except BaseException as error:
            # A log is a file of limited size, too.
            depth = None if file_size is None else 0
            traceback.print_exception(error, limit=depth, chain=file_size is None)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def wait(self, seconds: float = 300.0) -> int:
        """Its exit code, negative for a signal."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError(f"still running after {seconds} s\n{self.said()}")

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def rests(self) -> list[int]:
        """Processes of its session that still run."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.pid and fields[0] not in "ZX":
                    found.append(int(entry.name))
        return found

    def rests_end(self, seconds: float = 3.0) -> bool:
        until = time.monotonic() + seconds
        while self.rests():
            if time.monotonic() > until:
                for pid in self.rests():
                    os.kill(pid, signal.SIGKILL)
                return False
            time.sleep(0.05)
        return True


# === Jobs ===


def digest(path: Path) -> str:
    """A checksum of a file; of weights, whose file also has counted names, of these."""
    if path.suffix != ".h5":
        return hashlib.sha256(path.read_bytes()).hexdigest()
    import h5py

    found = hashlib.sha256()

    def add(name, item):
        if isinstance(item, h5py.Dataset):
            found.update(name.encode() + item[()].tobytes())

    try:
        with h5py.File(path) as file:
            file.visititems(add)
    except OSError:  # what a kill has cut, under its hidden name
        found.update(path.read_bytes())
    return found.hexdigest()


def digests(folder: Path) -> dict[str, str]:
    """A checksum of every file below a folder, hidden ones among them."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): digest(path) for path in paths}


class Command:
    """A command of `bandgnn` that writes to the folder `out` of a place."""

    # What depends on the time, not on the work.
    varies = r"^\b$"

    def __init__(self, name: str, line: list[str]):
        self.name, self.line = name, line

    def prepare(self, place: Path) -> None:
        """What is there before the job begins."""

    def run(self, place: Path) -> None:
        from keras_bandgnn.cli.main import command

        sys.argv = ["bandgnn", *self.line, "--out", str(place / "out")]
        command()

    def is_whole(self, place: Path) -> bool:
        """Whether what is there after a kill is old or new, not a mixture."""
        return True

    def result(self, place: Path):
        found = digests(place)
        return {k: v for k, v in found.items() if not re.search(self.varies, k)}


class Train(Command):
    # The card and the versions; the weights are what counts.
    varies = r"README\.md$"


class Tune(Command):
    def result(self, place: Path):
        rows = {}
        for path in sorted((place / "out").rglob("trial.json")):
            state = json.loads(path.read_text())
            values = state["hyperparameters"]["values"]
            rows[state["trial_id"]] = [state["status"], state["score"], values]
        hidden = [p.name for p in place.rglob(".*")]
        oracle = json.loads((place / "out" / "search" / "oracle.json").read_text())
        return {"rows": rows, "hidden": hidden, "order": oracle["end_order"]}


class Save:
    """Overwrites a preset."""

    name = "save"

    def __init__(self):
        self.seen = []

    def task(self, seed: int):
        import keras

        import keras_bandgnn as kb

        keras.backend.clear_session()  # the same names of layers every time
        keras.utils.set_random_seed(seed)
        backbone = kb.models.GCNBackbone({"kind": 4}, 16)
        return kb.models.GraphClassifier(backbone, 2)

    def write(self, place: Path, seed: int) -> None:
        self.task(seed).save_to_preset(place / "out")

    def prepare(self, place: Path) -> None:
        self.write(place, 0)

    def run(self, place: Path) -> None:
        from keras_bandgnn.cli import interrupts

        with interrupts.handle_signals(whole_process=True):
            for seed in (1, 2, 1, 2):
                self.write(place, seed)
                interrupts.check()

    def result(self, place: Path):
        return digests(place)

    def is_whole(self, place: Path) -> bool:
        if not self.seen:
            with tempfile.TemporaryDirectory() as folder:
                for seed in (0, 1, 2):
                    self.write(Path(folder), seed)
                    self.seen.append(digests(Path(folder)))
        found = digests(place)
        rests = [name for name in found if name.startswith(".")]
        return {k: v for k, v in found.items() if k not in rests} in self.seen


class Export(Save):
    """Overwrites an exported model."""

    name = "export"

    def write(self, place: Path, seed: int) -> None:
        import keras

        import keras_bandgnn as kb

        graphs = [kb.Graph(3, [0, 1], [1, 2], node={"kind": [1, 2, 3]})] * 4
        backend = keras.backend.backend()
        kind = "torch" if backend == "torch" else "tf_saved_model"
        self.task(seed).export(place / "out", kind, graphs, verify=False)

    def run(self, place: Path) -> None:
        from keras_bandgnn.cli import interrupts

        with interrupts.handle_signals(whole_process=True):
            self.write(place, 1)

    def is_whole(self, place: Path) -> bool:
        return {"packing.json", "model.pt2"} <= {
            path.name for path in (place / "out").iterdir()
        } or (place / "out" / "saved_model").is_dir()

    def result(self, place: Path):
        import numpy as np

        import keras_bandgnn as kb

        # Archives hold times: what counts is that the model runs.
        graphs = [kb.Graph(3, [0, 1], [1, 2], node={"kind": [1, 2, 3]})] * 4
        found = kb.serving.ExportedModel(place / "out").predict(graphs)
        numbers = np.round(np.stack(found).astype(float), 5).tolist()
        names = sorted(str(p.relative_to(place)) for p in place.rglob("*"))
        return {"names": names, "numbers": numbers}


def jobs(folder: Path) -> list:
    """The jobs, with their inputs in a folder."""
    source = folder / "source"
    source.mkdir()
    for k in range(70):
        (source / f"m{k:02}.py").write_text(SOURCE.format(k=k))
    compiled = [str(source), "--steps", "2", "--max-instances", "1"]
    line = ["compile", *compiled]
    data = folder / "data"
    child = Child(lambda: Command("", line).run(folder), folder / "log")
    assert child.wait() == 0, child.said()
    (folder / "out").rename(data)
    small = ["--hidden", "4", "--seed", "3"]
    train = ["train", str(data), *small, "--epochs", "3", "--batch-nodes", "512"]
    tune = ["tune", str(data), *small, "--epochs", "1", "--trials", "3"]
    return [
        Command("compile", [*line, "--processes", "1"]),
        Command("compile, two processes", [*line, "--processes", "2"]),
        Train("train", train),
        Tune("tune", [*tune, "--layers", "2", "--batch-size", "20"]),
        Save(),
        Export(),
    ]


class Place:
    """A folder for one run of a job."""

    def __init__(self, root: Path):
        self.path = Path(tempfile.mkdtemp(dir=root))
        self.work = self.path / "work"
        self.work.mkdir()
        self.logs = 0

    def start(self, job, **options) -> Child:
        self.logs += 1
        log = self.path / f"log{self.logs}"
        return Child(lambda: job.run(self.work), log, **options)

    def result(self, job):
        """The result, computed in a process of its own."""
        answer = self.path / "answer"

        def write():
            answer.write_text(json.dumps(job.result(self.work)))

        child = Child(write, self.path / "answer.log")
        assert child.wait() == 0, child.said()
        return json.loads(answer.read_text())

    def remove(self) -> None:
        shutil.rmtree(self.path)


# === Trials ===


def ended_well(code: int, number: int) -> bool:
    """Whether a code says that a signal ended a process."""
    return code == -number or (number != signal.SIGKILL and code == 128 + number)


def interrupt(job, root: Path, moment: float, number: int, wanted) -> dict:
    """Ends a job at a moment, starts it again; returns what was seen."""
    code = 0
    while code == 0:  # it was done before
        place = Place(root)
        job.prepare(place.work)
        child = place.start(job)
        time.sleep(moment)
        sent = time.monotonic()
        os.kill(child.pid, number)
        code = child.wait(30.0)
        seconds = time.monotonic() - sent
        moment *= 0.6
    assert ended_well(code, number), f"{job.name}: {code}\n{child.said()}"
    assert child.rests_end(), f"{job.name}: processes are left after {number}"
    assert job.is_whole(place.work), f"{job.name}: not whole, {place.path}"
    again = place.start(job)
    resumed = again.wait() == 0
    # What was done does not train over its model.
    done = isinstance(job, Train) and "an existing model" in again.said()
    assert resumed or done, f"{job.name}: not resumed\n{again.said()}"
    found = place.result(job)
    assert found == wanted, f"{job.name}: {place.path}: {found} instead of {wanted}"
    place.remove()
    return {"signal": number, "code": code, "seconds": seconds}


def two_at_once(job, root: Path, wanted) -> list[int]:
    """Starts a job twice in one folder: each ends well or is told clearly."""
    place = Place(root)
    job.prepare(place.work)
    both = [place.start(job), place.start(job)]
    codes = [child.wait() for child in both]
    for child, code in zip(both, codes, strict=True):
        clear = "one job at a time" in child.said() or "is there" in child.said()
        assert code == 0 or (code == 1 and clear), child.said()
    assert 0 in codes, "\n".join(child.said() for child in both)
    found = place.result(job)
    assert found == wanted, f"{job.name}: a mixture: {found} instead of {wanted}"
    place.remove()
    return codes


def disk_full(job, root: Path, size: int, wanted) -> str:
    """Runs a job where files may not be larger; returns its last line."""
    place = Place(root)
    job.prepare(place.work)
    child = place.start(job, file_size=size)
    code = child.wait()
    said = child.said()
    if code != 0:
        named = re.search(r"Expected to write (\S+)\. Received", said)
        assert named, f"{job.name}: no file is named\n{said}"
        assert str(place.work) in named.group(1), said
        assert job.is_whole(place.work), f"{job.name}: not whole, {place.path}"
    again = place.start(job)
    assert again.wait() == 0 or code == 0, again.said()
    assert place.result(job) == wanted, f"{job.name}: {place.path}"
    place.remove()
    return said.strip().splitlines()[-1] if code else "large enough"


def small_disk(job, root: Path, size: str, wanted) -> str:
    """As `disk_full`, on a file system of its own, for root on Linux."""
    place = Place(root)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place.work)]
    subprocess.run(mount, check=True)
    try:
        child = place.start(job)
        code = child.wait()
        said = child.said()
        if code:
            assert "Expected to write" in said, f"{job.name}\n{said}"
            assert "No space left" in said, f"{job.name}\n{said}"
            subprocess.run(
                ["mount", "-o", "remount,size=64m", str(place.work)], check=True
            )
            again = place.start(job)
            assert again.wait() == 0, again.said()
        assert place.result(job) == wanted, f"{job.name}: {place.path}"
    finally:
        subprocess.run(["umount", str(place.work)], check=True)
    return said.strip().splitlines()[-1] if code else "large enough"


def preload() -> None:
    """Imports what jobs import, once."""
    import keras

    import keras_bandgnn.cli.main as main
    import keras_bandgnn.tuning.extra  # noqa: F401
    from keras_bandgnn import models, preprocessing, serving, training  # noqa: F401
    from keras_bandgnn.models import presets  # noqa: F401
    from keras_bandgnn.serving import exporting  # noqa: F401

    main._parser()
    if keras.backend.backend() == "torch":
        import torch
        import torch.export  # noqa: F401

        torch.set_num_threads(1)


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=6, help="in all jobs together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", nargs="+", help="names of jobs; all if omitted")
    parser.add_argument("--disks", action="store_true", help="also mount small disks")
    options = parser.parse_args(arguments)
    os.environ.setdefault("KERAS_BACKEND", "torch")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    preload()
    draw = random.Random(options.seed)
    root = Path(tempfile.mkdtemp(prefix="interruptions-"))
    try:
        every = jobs(root)
        if options.jobs:
            every = [job for job in every if job.name in options.jobs]
        wanted, length = {}, {}
        for job in every:
            place = Place(root)
            job.prepare(place.work)
            child = place.start(job)
            assert child.wait() == 0, child.said()
            length[job] = time.monotonic() - child.begun
            wanted[job] = place.result(job)
            place.remove()
        rows = {job: [] for job in every}
        for index in range(options.moments):
            job = every[index % len(every)]
            number = SIGNALS[(index // len(every)) % len(SIGNALS)]
            moment = draw.uniform(0.0, length[job])
            rows[job].append(interrupt(job, root, moment, number, wanted[job]))
            if (index + 1) % 20 == 0:
                used = sum(os.times()[:4])
                print(f"{index + 1} moments, {used:.0f} s of CPU", flush=True)
        print(f"{'job':24}{'moments':>8}{'KILL INT TERM':>15}", end="")
        print(f"{'median s':>10}{'max s':>7}  resumed to the same")
        for job, seen in rows.items():
            if not seen:
                continue
            counts = [sum(row["signal"] == s for row in seen) for s in SIGNALS]
            seconds = [r["seconds"] for r in seen if r["signal"] != signal.SIGKILL]
            print(
                f"{job.name:24}{len(seen):8}{' '.join(map(str, counts)):>15}"
                f"{statistics.median(seconds or [0]):10.2f}{max(seconds or [0]):7.2f}"
                f"  {len(seen)} of {len(seen)}"
            )
        for job in every:
            print(f"{job.name}, two at once: {two_at_once(job, root, wanted[job])}")
            line = disk_full(job, root, draw.randrange(100, 20_000), wanted[job])
            print(f"{job.name}, small files: {line.replace(str(root), '...')}")
            if options.disks and not isinstance(job, Save):
                size = f"{draw.randrange(8, 120)}k"
                line = small_disk(job, root, size, wanted[job])
                print(f"{job.name}, disk of {size}: {line.replace(str(root), '...')}")
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
