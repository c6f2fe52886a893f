"""Every reader: a small good sample of its files, how it is read, what must hold.

Names come from the registries of the library. A new form of a data set or ending of
structures without a sample here fails `test_every_reader_has_a_sample`, which names the
table to extend.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz import invariants

Files = dict[str, bytes]


@dataclass(frozen=True)
class Reader:
    """A reader and a sample of what it reads.

    Attributes:
        name: Its name in reports.
        files: Makes a good sample.
        read: Reads the sample in a folder.
        check: Returns what is wrong with a result, or None.
        repair: Corrects checksums after a change, so that the content behind them is
            read; None where there are none.
        modules: Packages without which it is skipped.
        names: Names of files within those of the sample.
        mutants: Number of mutants to read, for readers that build models.
    """

    name: str
    files: Callable[[], Files]
    read: Callable[[Path], Any]
    check: Callable[[Any], str | None] = invariants.flat_graphs
    repair: Callable[[Files], Files] | None = None
    modules: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    mutants: int | None = None


def all_readers() -> dict[str, Reader]:
    """Return all readers by name."""
    from tests.fuzz import readers_of_data, readers_of_models

    readers = [*readers_of_data.readers(), *readers_of_models.readers()]
    return {reader.name: reader for reader in readers}


def write(files: Files, folder: Path) -> None:
    """Write a sample into a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def contents(folder: Path) -> Files:
    """Return the files in a folder by relative name."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
