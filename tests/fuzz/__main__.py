"""Reads mutated files with every reader; exit code 1 if one is not refused clearly.

python -m tests.fuzz --minutes 5
python -m tests.fuzz --reader "qm9*" --mutants 2000 --seed 7
python -m tests.fuzz --replay "tu:read edges+indicator" 12345
"""

import argparse
import fnmatch
import importlib.util
import os
import sys
import time
from collections import Counter
from pathlib import Path

# Torch starts quickest, and its processes can be forked.
if "KERAS_BACKEND" not in os.environ and importlib.util.find_spec("torch"):
    os.environ["KERAS_BACKEND"] = "torch"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_NUM_THREADS", "1")
if Path("/dev/shm").is_dir():
    os.environ.setdefault("TMPDIR", "/dev/shm")

ROUND = 300


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, help="how long; else one round")
    parser.add_argument("--reader", action="append", help="a name or pattern")
    parser.add_argument("--seed", type=int, default=0, help="of the first mutant")
    parser.add_argument("--mutants", type=int, help="of each reader in a round")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--list", action="store_true", help="the readers")
    parser.add_argument("--replay", nargs=2, metavar=("READER", "SEED"))
    parser.add_argument("--regressions", action="store_true", help="only those")
    parser.add_argument("--save", type=Path, help="folder for the bad mutants")
    parser.add_argument("--show", type=int, default=5, help="bad ones per reader")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Runs; returns 1 if there was any bad outcome."""
    options = _options(arguments)
    from tests.fuzz import outcomes, regressions, workers
    from tests.fuzz.readers import all_readers

    readers = all_readers()
    if options.replay:
        return _replay(readers[options.replay[0]], int(options.replay[1]))
    if options.reader:
        readers = {
            name: reader
            for name, reader in readers.items()
            if any(fnmatch.fnmatch(name, pattern) for pattern in options.reader)
        }
    left_out = {}
    for name, reader in list(readers.items()):
        missing = [m for m in reader.modules if importlib.util.find_spec(m) is None]
        if missing:
            left_out[name] = missing
            del readers[name]
    if options.list:
        print("\n".join(readers))
        return 0
    kept = regressions.load_all() if options.regressions else None
    if kept is not None:
        readers = {name: readers[name] for name in kept if name in readers}
    if not any("tensorflow" in reader.modules for reader in readers.values()):
        # Keras would import it in every process, to tell whether values are its own.
        sys.modules.setdefault("tensorflow", None)
    start = time.monotonic()
    until = start + 60 * (options.minutes or 1e9)
    samples = {name: workers.make_sample(reader) for name, reader in readers.items()}
    reports: dict[str, workers.Report] = {}
    seed, size = options.seed, options.mutants or ROUND
    while True:
        work = []
        for name, reader in readers.items():
            seeds = range(seed, seed + max(1, int(size * reader.weight)))
            mutants = seeds if kept is None else kept[name]
            work.append((reader, samples[name], mutants))
        for name, report in workers.run(work, options.processes, until).items():
            total = reports.setdefault(name, workers.Report())
            total.counts += report.counts
            for kind, example in report.examples.items():
                total.examples.setdefault(kind, example)
        seed += size
        if options.minutes is None or time.monotonic() >= until:
            break
    _print(reports, options.show, time.monotonic() - start)
    for name, missing in left_out.items():
        print(f"left out: {name} (needs {', '.join(missing)})")
    if options.save:
        for name, report in reports.items():
            for example, word, said in report.examples.values():
                mutant = outcomes.make(readers[name], samples[name], example)
                regressions.save(options.save, name, mutant, f"{word}: {said}")
    bad = sum(
        report.counts[word] for report in reports.values() for word in outcomes.BAD
    )
    return 1 if bad else 0


def _print(reports: dict, show: int, seconds: float) -> None:
    from tests.fuzz.outcomes import BAD, OUTCOMES

    width = max(map(len, reports), default=8)
    print(f"{'reader':<{width}} " + " ".join(f"{word:>9}" for word in OUTCOMES))
    total: Counter = Counter()
    for name, report in reports.items():
        total += report.counts
        row = " ".join(f"{report.counts[word] or '-':>9}" for word in OUTCOMES)
        print(f"{name:<{width}} {row}")
    row = " ".join(f"{total[word] or '-':>9}" for word in OUTCOMES)
    print(f"{'all':<{width}} {row}")
    count = sum(total.values())
    print(f"{count} mutants of {len(reports)} readers in {seconds:.0f} s")
    for name, report in reports.items():
        shown = sorted(report.examples.values(), key=lambda e: BAD.index(e[1]))[::-1]
        for seed, word, said in shown[:show]:
            print(f"\n{name} --seed {seed}: {word}\n  {said}")


def _replay(reader, seed: int) -> int:
    """Reads one mutant in this process, with its traceback."""
    import tempfile

    from tests.fuzz import outcomes, workers
    from tests.fuzz.readers import write

    sample = workers.make_sample(reader)
    mutant = outcomes.make(reader, sample, seed)
    for name in sorted({*sample, *mutant.files}):
        old, new = sample.get(name), mutant.files.get(name)
        if old != new:
            print(f"{name}:\n  was {old!r:.1500}\n  is  {new!r:.1500}")
    with tempfile.TemporaryDirectory() as folder:
        write(mutant.files, Path(folder))
        found = reader.read(Path(folder))
        print(found, reader.check(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
