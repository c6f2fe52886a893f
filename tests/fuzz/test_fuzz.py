"""Every reader refuses damaged files clearly, quickly and in little memory.

Readers and samples come from the registries; the mutants are the same in every run.
"""

import importlib.util
import resource
import time
import warnings
from pathlib import Path

import pytest

from tests.fuzz import readers_of_data
from tests.fuzz.mutators import mutants
from tests.fuzz.readers import all_readers, write

READERS = all_readers()
SECONDS, KILOBYTES = 2, 500_000


def test_every_reader_has_a_sample():
    """A form of a data set, or an ending, that is new needs a sample."""
    forms = set(readers_of_data.forms())
    assert forms <= set(readers_of_data.SAMPLES), (
        "Add samples to SAMPLES in tests/fuzz/readers_of_data.py: "
        f"{sorted(forms - set(readers_of_data.SAMPLES))}"
    )
    endings = set(readers_of_data.ENDINGS)
    assert endings <= set(readers_of_data.STRUCTURES), (
        "Add files to STRUCTURES in tests/fuzz/readers_of_data.py: "
        f"{sorted(endings - set(readers_of_data.STRUCTURES))}"
    )


def problem(reader, sample, files, root: Path) -> str | None:
    """Return what is wrong with how a reader treats files, or None.

    A result must be valid. An error must name the file and say what was expected and
    received, or be one of the operating system. Nothing may be written next to the
    folder.
    """
    folder = root / "sample"
    folder.mkdir(parents=True)
    write(files, folder)
    try:
        result = reader.read(folder)
    except (ValueError, OSError) as error:
        text = str(error)
        names = {Path(name).name for name in (*sample, *files, *reader.names)}
        named = str(folder) in text or any(name in text for name in names if name)
        clear = "Expected" in text and "Received" in text
        if named and (clear or getattr(error, "filename", None)):
            return None
        return f"{type(error).__name__}: {text[:300]}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if [path.name for path in root.iterdir()] != ["sample"]:
        return "wrote next to its folder"
    return reader.check(result)


@pytest.mark.parametrize("name", READERS)
def test_damaged_files(name, tmp_path):
    reader = READERS[name]
    if any(importlib.util.find_spec(module) is None for module in reader.modules):
        pytest.skip(f"needs {reader.modules}")
    sample = reader.files()
    assert problem(reader, sample, sample, tmp_path / "good") is None
    bad = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    changes = list(mutants(sample))
    step = 1 if reader.mutants is None else max(1, len(changes) // reader.mutants)
    for number, (change, files) in enumerate(changes[::step]):
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            files = files if reader.repair is None else reader.repair(files)
            wrong = problem(reader, sample, files, tmp_path / str(number))
        seconds = time.process_time() - start
        if wrong or seconds > SECONDS:
            bad.append(f"{change}: {wrong}, {seconds:.1f} s")
    assert not bad, "\n".join(bad)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < KILOBYTES, f"{grown:,} kB more"
