"""Runs mutants in forked processes, so that one that dies is only counted."""

import contextlib
import dataclasses
import faulthandler
import json
import os
import pickle
import resource
import selectors
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.fuzz import outcomes
from tests.fuzz.mutators import Files
from tests.fuzz.readers import Reader

BATCH = 150
_SPACE = 3 * 2**30


@dataclass
class Report:
    """Outcomes of one reader.

    Attributes:
        counts: How many mutants had each outcome.
        examples: (seed, outcome, what was seen) of bad ones, one for each that looks
            different.
    """

    counts: Counter = field(default_factory=Counter)
    examples: dict[str, tuple[int, str, str]] = field(default_factory=dict)

    def add(self, seed: int, word: str, said: str) -> None:
        """Counts a mutant."""
        self.counts[word] += 1
        if word in outcomes.BAD:
            kind = f"{word} {said.partition(': ')[0] if word != 'wrong' else said}"
            self.examples.setdefault(kind, (seed, word, said))


@dataclass
class _Job:
    reader: Reader
    sample: Files
    seeds: list[int]
    mutants: Mapping[int, outcomes.Mutant] | None = None

    def mutant(self, seed: int) -> outcomes.Mutant:
        if self.mutants is not None:
            return self.mutants[seed]
        return outcomes.make(self.reader, self.sample, seed)


class _Child:
    """A forked process that reads mutants and says what became of each."""

    def __init__(self, job: _Job, folder: str):
        self.job = job
        self.left = list(job.seeds)
        self.current: int | None = None
        self.since = time.monotonic()
        self.used = 0.0
        self.text = b""
        sys.stdout.flush()
        sys.stderr.flush()
        out, inn = os.pipe()
        self.pid = _fork()
        if not self.pid:
            os.close(out)
            tempfile.tempdir = folder
            _run(job, inn)
        os.close(inn)
        self.pipe = out

    def lines(self) -> Iterator[dict]:
        """What came; nothing is left once the process has ended."""
        data = os.read(self.pipe, 1 << 16)
        if not data:
            raise EOFError
        *lines, self.text = (self.text + data).split(b"\n")
        for line in lines:
            self.since = time.monotonic()
            self.used = _processor_time(self.pid)
            yield json.loads(line)

    def is_late(self) -> bool:
        """Whether a mutant takes too long; a busy machine alone is no reason."""
        limit = self.job.reader.seconds * (3 if self.current is None else 1)
        wall = time.monotonic() - self.since
        if wall < limit:
            return False
        return wall > 10 * limit or _processor_time(self.pid) - self.used > limit

    def end(self) -> int:
        """Ends the process, and returns its status."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.pipe)
        return os.waitpid(self.pid, 0)[1]


def _fork() -> int:
    with warnings.catch_warnings():
        # Of threads that other tests have started, which children do not use.
        warnings.simplefilter("ignore")
        return os.fork()


def _processor_time(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _run(job: _Job, pipe: int) -> None:
    """What a child does; it never returns."""
    code = 1
    try:
        faulthandler.disable()
        silent = os.open(os.devnull, os.O_WRONLY)
        if not os.environ.get("FUZZ_DEBUG"):
            os.dup2(silent, 1)
            os.dup2(silent, 2)
        _limit()
        expected, said = _expected(job)
        if said is not None:
            _say(pipe, {"broken": said})
            os._exit(0)
        before = _peak()
        for seed in job.seeds:
            _say(pipe, {"begin": seed})
            mutant = job.mutant(seed)
            start = _peak()
            word, said = outcomes.outcome(job.reader, job.sample, expected, mutant)
            if _peak() - max(start, before) > outcomes.MEMORY:
                word, said = "memory", f"{(_peak() - start) >> 10} MB more, {said}"
            _say(pipe, {"seed": seed, "word": word, "said": said})
            if word == "memory":
                break  # a peak hides later ones
        code = 0
    except BaseException as error:
        with contextlib.suppress(BaseException):
            _say(pipe, {"broken": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(code)


def _expected(job: _Job):
    """The plain form of the good sample, or what is wrong with it."""
    box = []

    def keep(value):
        box.append(job.reader.plain(value))
        return box[0]

    reader = dataclasses.replace(job.reader, plain=keep)
    mutant = outcomes.Mutant(-1, job.sample)
    word, said = outcomes.outcome(reader, job.sample, None, mutant)
    if word not in ("right", "valid"):
        return None, f"the good sample is {word}: {said}"
    return box[0], None


def _limit() -> None:
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _SPACE, used + _SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**30, 2**30))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _say(pipe: int, value: dict) -> None:
    os.write(pipe, json.dumps(value).encode() + b"\n")


def make_sample(reader: Reader) -> Files:
    """The sample of a reader, made in a process of its own.

    What makes it may start threads, which a later fork would not survive.
    """
    with tempfile.TemporaryFile() as file:
        sys.stdout.flush()
        pid = _fork()
        if not pid:
            code = 1
            try:
                pickle.dump(reader.files(), file)
                file.flush()
                code = 0
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(code)
        if os.waitpid(pid, 0)[1]:
            raise RuntimeError(f"The sample of {reader.name!r} could not be made.")
        file.seek(0)
        return pickle.load(file)


def run(
    work: Iterable[tuple[Reader, Files, Sequence[int] | Mapping]],
    processes: int,
    until: float = float("inf"),
) -> dict[str, Report]:
    """Reads the mutants of some seeds.

    Args:
        work: Readers with their samples, and seeds or mutants by seed.
        processes: How many at a time.
        until: Moment of `time.monotonic` after which no batch begins.

    Returns:
        Reports by reader.
    """
    jobs = [
        _Job(reader, sample, list(seeds)[i : i + BATCH], mutants)
        for reader, sample, seeds in work
        for mutants in [seeds if isinstance(seeds, Mapping) else None]
        for i in range(0, len(seeds), BATCH)
    ][::-1]
    reports: dict[str, Report] = {}
    children: dict[int, _Child] = {}
    selector = selectors.DefaultSelector()
    # Those that are killed leave their samples behind.
    folder = tempfile.TemporaryDirectory(prefix="fuzz-")
    try:
        while jobs or children:
            while jobs and len(children) < processes and time.monotonic() < until:
                child = _Child(jobs.pop(), folder.name)
                children[child.pipe] = child
                selector.register(child.pipe, selectors.EVENT_READ)
            if not children:
                break
            ready = {key.fd for key, _ in selector.select(0.2)}
            for pipe, child in list(children.items()):
                report = reports.setdefault(child.job.reader.name, Report())
                ended = False
                if pipe in ready:
                    try:
                        for line in child.lines():
                            _take(child, report, line)
                    except EOFError:
                        ended = True
                late = child.is_late()
                if ended or late:
                    selector.unregister(pipe)
                    del children[pipe]
                    _close(child, report, late and not ended, jobs)
    finally:
        for child in children.values():
            child.end()
        selector.close()
        folder.cleanup()
    return reports


def _take(child: _Child, report: Report, line: dict) -> None:
    if "broken" in line:
        raise RuntimeError(f"{child.job.reader.name}: {line['broken']}")
    if "begin" in line:
        child.current = line["begin"]
        return
    report.add(line["seed"], line["word"], line["said"])
    child.left.remove(line["seed"])
    child.current = None


def _close(child: _Child, report: Report, late: bool, jobs: list[_Job]) -> None:
    status = child.end()
    if not child.left:
        return
    seed = child.current
    if seed is None and not status:
        jobs.append(dataclasses.replace(child.job, seeds=child.left))
        return
    if seed is None:
        what = "it did not begin" if late else f"status {status}"
        raise RuntimeError(f"{child.job.reader.name}: {what}")
    word = "hang" if late else "crash"
    report.add(seed, word, f"{word} (status {status})")
    child.left.remove(seed)
    if child.left:
        jobs.append(dataclasses.replace(child.job, seeds=child.left))
