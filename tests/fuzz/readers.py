"""Every reader: a small good sample of its files, how it is read, what must hold.

Names come from the registries of the library. A new form of a data set, ending of
structures or format of exported models without a sample here fails
`test_every_reader_has_a_sample`, which says where to add one.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz import invariants
from tests.fuzz.mutators import Files


@dataclass(frozen=True)
class Reader:
    """A reader and a sample of what it reads.

    Attributes:
        name: Its name in tables.
        files: Makes a good sample.
        read: Reads the sample in a folder.
        check: What is wrong with a result, or None.
        plain: A form of a result that can be compared.
        repair: Puts checksums right after a change, so that what is behind them is
            reached; None where there are none.
        weight: Share of the mutants, compared with other readers.
        modules: Packages without which it is left out.
        seconds: How long a mutant may take.
        names: Names of files within those of the sample.
    """

    name: str
    files: Callable[[], Files]
    read: Callable[[Path], Any]
    check: Callable[[Any], str | None] = invariants.flat_graphs
    plain: Callable[[Any], Any] = invariants.plain
    repair: Callable[[Files, random.Random], Files] | None = None
    weight: float = 1.0
    modules: tuple[str, ...] = ()
    seconds: float = 10.0
    names: tuple[str, ...] = ()


def all_readers() -> dict[str, Reader]:
    """All readers by name."""
    from tests.fuzz import readers_of_data, readers_of_models

    found = [*readers_of_data.readers(), *readers_of_models.readers()]
    names = [reader.name for reader in found]
    if len(set(names)) < len(names):
        raise ValueError(f"Expected different names. Received: {names}.")
    return {reader.name: reader for reader in found}


def write(files: Files, folder: Path) -> None:
    """Writes a sample into a folder; names that cannot be written are left out."""
    from tests.fuzz.mutators import Link

    for name, content in files.items():
        path = folder / name
        if ".." in Path(name).parts:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Link):
                path.symlink_to(content.target)
            else:
                path.write_bytes(content)
        except (OSError, ValueError):
            continue


def contents(folder: Path) -> Files:
    """The files in a folder by relative name."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
