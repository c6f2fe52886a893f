"""Which files are structures, and checks of what ASE reads without limits."""

import contextlib
import itertools
import math
import re
import sqlite3
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from xml.parsers import expat

from keras_bandgnn.data.converters.structure_formats import BYTE_ORDER_MARK, check_atoms
from keras_bandgnn.data.reading import Limits, open_unpacked, refuse_file, size_of

ENDINGS = (
    *(".cif", ".db", ".extxyz", ".lammpstrj", ".mol", ".pdb", ".poscar", ".sdf"),
    *(".traj", ".vasp", ".xyz"),
)
"""Suffixes of the files to read in a folder, in lower case."""

BEGINNINGS = {
    "poscar": "vasp",
    "contcar": "vasp",
    "outcar": "vasp-out",
    "vasprun": "vasp-xml",
    "xdatcar": "vasp-xdatcar",
}
"""ASE's formats of files of VASP by the beginning of the name, in lower case."""

_BEGINNINGS = tuple(BEGINNINGS)
_BINARY = (".db", ".traj")
_TEXT = tuple(ending for ending in ENDINGS if ending not in _BINARY)
_DATABASES = ("db", "json")
_CUT_OFF = (
    expat.errors.codes[expat.errors.XML_ERROR_NO_ELEMENTS],
    expat.errors.codes[expat.errors.XML_ERROR_UNCLOSED_TOKEN],
)
_NDARRAY = re.compile(rb"""["']__ndarray__["']\s*:\s*\[\s*\[([0-9,\s]*)\]""")
_FORMATS = ("xyz", "extxyz", "vasp", "cif")
_LINE_BYTES = 1 << 20
_VASP = (".poscar", ".vasp")
_PROPERTIES = re.compile(rb"""Properties\s*=\s*["']?([^\s"']+)""", re.IGNORECASE)
# Two numbers for ASE, in quotes or not.
_COMMA = re.compile(rb"""(?:^|\s)([^\s="']+)\s*=\s*(["']?)([-+]?\d+,\d+)\2(?=\s|$)""")
COMPRESSED = (".gz", ".bz2", ".xz")
_PACKED = (
    *(".tar", ".tgz", ".tbz2", ".txz", ".zip", ".7z", ".rar", ".lzma", ".lz4", ".zst"),
    *(".z", ".npz", ".npy", ".h5", ".hdf5", ".pkl", ".pickle"),
)
BUNDLES = (".bundle", ".bundletrajectory")
"""Endings of the folders in which a BundleTrajectory of ASE has its frames."""
_HEAD_BYTES = 1 << 13
_LAMMPS = re.compile(rb"(?m)^\s*\d+\s+atoms\b(?s:.*)^.*\bxlo\s+xhi\b")


def bare_name(file: Path) -> str:
    """Return the name of a file in lower case, without its compression suffix."""
    name = file.name.lower()
    for ending in COMPRESSED:
        name = name.removesuffix(ending)
    return name


def is_structure_file(file: Path) -> bool:
    """Return whether a file's name is one of those to read in a folder."""
    return file.is_file() and not is_packed(file) and _is_structure(bare_name(file))


def _is_structure(name: str) -> bool:
    return name.endswith(ENDINGS) or name.startswith(_BEGINNINGS)


def is_packed(file: Path) -> bool:
    """Return whether a file is packed, or other data than text, by its name."""
    return bare_name(file).endswith(_PACKED)


def is_unreadable(file: Path) -> bool:
    """Return whether a name in a folder says structures, in a form that is not read."""
    name = bare_name(file)
    if name.endswith(BUNDLES):
        return True
    while name.endswith((*_PACKED, *COMPRESSED)):
        name = name.rpartition(".")[0]
    return is_packed(file) and _is_structure(name)


def format_of(file: Path) -> str | None:
    """Return ASE's name of a file's format where ASE does not tell it by the name.

    Files of VASP have numbers and words after their names; data files of LAMMPS have
    any name.
    """
    name = bare_name(file)
    if name.endswith((*ENDINGS, ".json")) or not size_of(file):
        return None
    for beginning, format in BEGINNINGS.items():
        if name.startswith(beginning):
            return format
    with open_unpacked(file) as stream:
        head = stream.read(_HEAD_BYTES)
    return "lammps-data" if _LAMMPS.search(head) else None


def check_sizes(file: Path, format: str | None, label: str | None) -> int | None:
    """Raise a ValueError if a file exceeds the limits or lacks atoms that it declares.

    ASE has no limits, and allocates as many atoms as a file declares.

    Returns:
        The number of frames, where it is found without reading them.
    """
    if size_of(file) == 0 and file.suffix not in COMPRESSED:
        refuse_file(file, "to be a file of structures", "an empty file")
    if format is None and is_packed(file):
        refuse_file(
            file,
            f"to be a file of structures, which may end in {', '.join(COMPRESSED)}",
            f"an archive or other data, {bare_name(file).rpartition('.')[2]}",
            "Unpack it first.",
        )
    if (kind := database_kind(file, format)) is not None:
        return _check_database(file, kind)
    name, frames = bare_name(file), None
    text = name.endswith(_TEXT) or name.startswith(_BEGINNINGS) or format in _FORMATS
    with open_unpacked(file) as stream:
        lines = _lines(file, stream) if text else iter(())
        if format in ("xyz", "extxyz") or name.endswith((".xyz", ".extxyz")):
            frames = _check_xyz(file, lines, label)
        elif format == "sdf" or name.endswith(".sdf"):
            frames, has_text = 0, False
            for line in lines:
                if line.startswith(b"$$$$"):
                    frames, has_text = frames + 1, False
                else:
                    has_text = has_text or bool(line.strip())
            frames += has_text
        elif format == "vasp-xml" or name.startswith("vasprun"):
            frames = _check_xml(file, lines)
        elif format == "vasp" or name.endswith(_VASP) or name.startswith(_BEGINNINGS):
            head = list(itertools.islice(lines, 7))
            count = len(head) + sum(1 for _ in lines)
            for line in head[5:]:
                # ASE also takes a line that only begins with numbers for counts.
                counts = itertools.takewhile(bytes.isdigit, line.split())
                check_atoms(file, sum(map(_count, counts)), count)
        for _ in lines:
            pass
        while file.suffix in COMPRESSED and stream.read(1 << 20):
            pass
    return frames


def database_kind(file: Path, format: str | None) -> str | None:
    """Return the kind of a database of ASE, "db" or "json"; None for other files."""
    if format is not None:
        return format if format in _DATABASES else None
    kind = bare_name(file).rpartition(".")[2]
    return kind if kind in _DATABASES else None


def _check_database(file: Path, kind: str) -> int | None:
    """Raise a ValueError for a file that is no database; return the number of rows.

    ASE would add its tables to any other SQLite file.
    """
    if file.suffix in COMPRESSED:
        refuse_file(
            file, "to be a database, not compressed", file.suffix, "Unpack it first."
        )
    if kind == "json":
        data = file.read_bytes()
        for shape in _NDARRAY.findall(data):
            values = math.prod(map(_count, shape.split(b",")))
            Limits.current().check(f"an array of {file}", 8 * values, len(data))
        return None
    address = f"{file.absolute().as_uri()}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
            return connection.execute("SELECT COUNT(*) FROM systems").fetchone()[0]
    except (sqlite3.Error, UnicodeDecodeError) as error:
        refuse_file(file, "to be a database of ASE", str(error), cause=error)


def _check_xml(file: Path, lines: Iterator[bytes]) -> int:
    """Return the number of ionic steps of a `vasprun.xml`.

    ASE reads none of the steps after an error, and says nothing.
    """
    frames = 0

    def end(name: str) -> None:
        nonlocal frames
        frames += name == "calculation"

    def declare(name: str, *_: Any) -> None:
        refuse_file(file, "to declare no entities", name)

    parser = expat.ParserCreate()
    parser.EndElementHandler, parser.EntityDeclHandler = end, declare
    try:
        for line in lines:
            parser.Parse(line)
        parser.Parse(b"", True)
    except LookupError as error:
        refuse_file(file, "to declare an encoding that exists", str(error))
    except expat.ExpatError as error:
        if error.code not in _CUT_OFF or not frames:
            refuse_file(file, f"to be XML up to the end of frame {frames}", str(error))
        warnings.warn(
            f"{file} ends early, in frame {frames}. The {frames} complete frames are "
            "read.",
            stacklevel=2,
        )
    return frames


def _lines(file: Path, stream: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a text; ASE takes hours for a line of many megabytes."""
    for number, line in enumerate(stream, start=1):
        line = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
        if (at := line.find(b"\0")) >= 0:
            refuse_file(
                file,
                "to be text",
                f"a NUL byte in line {number}, {line[max(at - 20, 0) : at + 20]!r}",
                "Download or copy the file again, or rename it if it is none of "
                "structures.",
            )
        if len(line) > _LINE_BYTES:
            received = f"line {number} of {len(line):,} bytes, {line[:40]!r}"
            refuse_file(
                file, f"to be text in lines of at most {_LINE_BYTES:,} bytes", received
            )
        yield line


def _check_xyz(file: Path, lines: Iterator[bytes], label: str | None) -> int:
    """Return the number of frames."""
    scalars = {"energy", "free_energy", label}
    frames = number = 0
    for line in lines:
        number += 1
        if line.lstrip().startswith(b"VEC"):  # after the atoms of older files
            continue
        if not line.strip():
            number += 1
            for after in lines:
                if after.strip():
                    place = f"after frame {frames - 1}" if frames else "at the start"
                    refuse_file(
                        file,
                        "to have no empty lines before or between frames",
                        f"{after[:80]!r} in line {number}, {place}",
                        "Remove the empty lines: what follows is not read.",
                    )
                number += 1
            break
        atoms, comment = _count(line), next(lines, b"")
        if not (atoms or line.strip().isdigit()):
            if not frames:  # nothing that ASE reads
                break
            refuse_file(
                file,
                f"to have a number of atoms in line {number}, at the start of frame "
                f"{frames}",
                f"{line[:80]!r}",
                f"Check it, and that frame {frames - 1} has as many atoms as it says.",
            )
        number += 1
        for key, _, value in _COMMA.findall(comment):
            if (key := key.decode("utf-8", "replace")) in scalars:
                refuse_file(
                    file,
                    f"to have one number as {key!r} of frame {frames}",
                    value.decode(),
                    f'Write a point for decimals; for two numbers write {key}="1 2".',
                )
        first = next(lines, b"") if atoms else b""
        for columns in _PROPERTIES.findall(comment):
            columns_needed = sum(map(_count, columns.split(b":")[2::3]))
            if first and columns_needed > len(first):
                refuse_file(
                    file,
                    f"to have {columns_needed:,} columns as declared in frame {frames}",
                    f"{first[:80]!r}",
                )
        atom_lines = itertools.islice(lines, max(atoms - 1, 0))
        count = bool(first) + sum(1 for _ in atom_lines)
        check_atoms(file, atoms, count, f" in frame {frames}")
        number += count
        frames += 1
    return frames


def _count(word: bytes) -> int:
    """Parse a number; return 0 for other words, which are left to ASE."""
    try:
        return max(min(int(word), sys.maxsize), 0)
    except ValueError:
        return 0
