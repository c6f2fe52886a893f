"""What became of a mutant: one word, and what is to be seen of it."""

import random
import shutil
import tempfile
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import mutators
from tests.fuzz.mutators import BIG, Files
from tests.fuzz.readers import Reader, write

GOOD = ("right", "valid", "clear")
BAD = ("no file", "vague", "low-level", "wrong", "memory", "crash", "hang")
OUTCOMES = (*GOOD, *BAD)
# What a mutant may need beyond the sample, in kB.
MEMORY = 700_000


@dataclass(frozen=True)
class Mutant:
    """A changed sample.

    Attributes:
        seed: Of its changes.
        files: The changed sample.
        twin: If set, the same integer changed by one instead of 2**32: if the twin
            is not read as the sample, neither may the mutant be.
    """

    seed: int
    files: Files
    twin: Files | None = None


def make(reader: Reader, sample: Files, seed: int) -> Mutant:
    """The mutant of a seed; the same for the same reader, sample and seed."""
    rng = random.Random(f"{reader.name}:{seed}")
    if rng.random() < 0.1:
        mutant = _wrapped(sample, seed)
        if mutant is not None:
            return mutant
    files = mutators.mutate(sample, rng)
    if reader.repair is not None and rng.random() < 0.7:
        files = reader.repair(files, rng)
    return Mutant(seed, files)


def _wrapped(sample: Files, seed: int) -> Mutant | None:
    name = random.Random(seed).choice(sorted(sample))
    content = sample[name]
    if not isinstance(content, bytes):
        return None
    wide = mutators.add(name, content, random.Random(seed), BIG)
    near = mutators.add(name, content, random.Random(seed), 1)
    if wide is None or near is None:
        return None
    return Mutant(seed, {**sample, name: wide}, {**sample, name: near})


def outcome(reader: Reader, sample: Files, expected, mutant: Mutant) -> tuple[str, str]:
    """Reads a mutant; returns one of `OUTCOMES` and what was seen."""
    word, said = _outcome(reader, sample, expected, mutant.files)
    if word == "right" and mutant.twin is not None:
        if _outcome(reader, sample, expected, mutant.twin)[0] != "right":
            return "wrong", "an integer is read modulo 2**32"
    return word, said


def _outcome(reader: Reader, sample: Files, expected, files: Files) -> tuple[str, str]:
    root = Path(tempfile.mkdtemp(prefix="fuzz-"))
    folder = root / "sample"
    folder.mkdir()
    try:
        write(files, folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = reader.read(folder)
                wrong = reader.check(found)
                plain = None if wrong else reader.plain(found)
            except Exception as error:
                return _error(error, folder, {*sample, *files, *reader.names})
        if wrong:
            return "wrong", wrong
        beside = [path.name for path in root.iterdir()]
        if beside != ["sample"]:
            return "wrong", f"wrote {beside} beside its folder"
        return ("right" if plain == expected else "valid"), ""
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _error(error: Exception, folder: Path, names: set[str]) -> tuple[str, str]:
    text = str(error)
    where = traceback.extract_tb(error.__traceback__)
    ours = [f for f in where if "keras_bandgnn" in f.filename] or list(where)
    place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
    said = f"{type(error).__name__} at {place}: {text[:300]}"
    if not isinstance(error, ValueError | OSError):
        return "low-level", said
    if "Expected" not in text or "Received" not in text:
        return "vague", said
    known = {Path(name).name for name in names} - {""}
    if str(folder) in text or any(name in text for name in known):
        return "clear", said
    return "no file", said
