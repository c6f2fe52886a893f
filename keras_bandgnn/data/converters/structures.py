"""Atomic structures from files in the formats of ASE."""

import io
import itertools
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_bandgnn.checks import sequence
from keras_bandgnn.data.converters.ase_atoms import from_ase
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import check_same_spec
from keras_bandgnn.data.reading import open_unpacked, reading, refuse_file
from keras_bandgnn.graph import Graph
from keras_bandgnn.optional import optional_import
from keras_bandgnn.progress import progress_bar

ENDINGS = (".cif", ".extxyz", ".pdb", ".poscar", ".sdf", ".traj", ".vasp", ".xyz")
"""Suffixes of the files to read in a folder, in lower case."""

_BEGINNINGS = ("poscar", "contcar", "outcar", "vasprun", "xdatcar")
# ASE parses text such as "energy=-3" as an integer.
_REAL = ("energy", "force")
_TEXT = tuple(ending for ending in ENDINGS if ending != ".traj")
_FORMATS = ("xyz", "extxyz", "vasp", "cif")
_LINE_BYTES = 1 << 20
_VASP = (".poscar", ".vasp")
_PROPERTIES = re.compile(rb"""Properties\s*=\s*["']?([^\s"']+)""", re.IGNORECASE)
# ASE reads these only as nine numbers.
_SIX = re.compile(r"""\b(stress|virial)=(["'])([^"']*)\2""")
_COMPRESSED = (".gz", ".bz2", ".xz")

_Path = str | os.PathLike


def read_structures(
    path: _Path | Sequence[_Path],
    label: str | None = None,
    format: str | None = None,
    progress: bool = True,
    stress: bool | str = False,
    forces: str | None = None,
) -> FlatGraphs:
    r"""Read structures from xyz, extxyz, cif, POSCAR and other formats of ASE.

    Every frame of every file becomes a graph without edges, as from `from_ase`:
    `node["atomic_number"]`, `node["position"]`, `context["cell"]`, `context["pbc"]`
    and, if the file has them, `context["energy"]` (eV) and `node["force"]` (eV per
    Angstrom). `RadiusGraph`, `KNearestGraph` or `FullyConnectedGraph` adds edges.
    `info` has the other values of the frame, and `file` and `frame`, the name of the
    file and the number of the frame.

    A folder is searched recursively, in the order of paths, for files whose names end
    in one of `ENDINGS` or begin with POSCAR, CONTCAR, OUTCAR, vasprun or XDATCAR. Files
    may be compressed (`.gz`, `.bz2`, `.xz`).

    Needs `pip install "keras-bandgnn[chem]"`.

    Args:
        path: A file, a folder, or a list of files and folders.
        label: The value to use as label: `"energy"`, `"force"` (a node-level label) or
            a key of `atoms.info`, an integer if it is one in every frame.
        format: ASE's name of the format, if it is not evident from the files.
        progress: Whether to show a progress bar after two seconds.
        stress: Whether to add `context["stress"]`, float32 [6] in eV per cubic
            Angstrom, NaN for frames without one; or the key that holds stresses or
            virials; see `from_ase`.
        forces: Column with the forces, such as `"REF_forces"`, if it is not "forces".

    Raises:
        FileNotFoundError: If a file is missing, or a folder has no files to read.
        ValueError: If a file cannot be read, lacks the label, or has other features
            than the first one; the message names the file and the frame.
        ImportError: If ASE is not installed.

    Example:
    >>> from pathlib import Path
    >>> _ = Path("water.xyz").write_text("3\n\nO 0 0 0\nH 0 0 1\nH 0 1 0\n")
    >>> read_structures("water.xyz")[0].node["atomic_number"]  # doctest: +SKIP
    array([8, 1, 1], dtype=int32)
    """
    files = _files(path)
    graphs: list[Graph] = []
    with progress_bar("Reading structures", len(files), progress) as advance:
        for file in files:
            graphs += _graphs(file, label, format, stress, forces)
            advance(1)
    kinds = {graph.label.dtype.kind for graph in graphs if graph.label is not None}
    if label in _REAL or len(kinds) > 1:
        graphs = [g.replace(label=g.label.astype(np.float32)) for g in graphs]
    try:
        return FlatGraphs.from_graphs(graphs)
    except ValueError:  # names the number of a graph, not the file
        first = FlatGraphs.from_graphs(graphs[:1]).spec()
        for graph in graphs:
            spec = FlatGraphs.from_graphs([graph]).spec()
            check_same_spec(_name(graph), spec, _name(graphs[0]), first)
        raise


def _name(graph: Graph) -> str:
    return f"{graph.info['file']}, frame {graph.info['frame']}"


def _files(path: _Path | Sequence[_Path]) -> list[Path]:
    if not isinstance(path, str | os.PathLike):
        paths = sequence("path", path, "a file, a folder or several")
        files = [file for each in paths for file in _files(each)]
        if not files:
            raise FileNotFoundError(
                "Expected at least one file. Received: none. Pass a path."
            )
        return files
    path = Path(path)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(
            f"Expected a file or a folder of structures. Received: {path}, which does "
            "not exist. Check the path."
        )
    files = sorted(file for file in path.rglob("*") if _is_structure(file))
    if not files:
        raise FileNotFoundError(
            f"Expected files in {path} that end in {', '.join(ENDINGS)} or begin with "
            "POSCAR and similar. Received: none. Pass a list of the files."
        )
    return files


def _bare(file: Path) -> str:
    """Return the name of a file in lower case, without its compression suffix."""
    name = file.name.lower()
    for ending in _COMPRESSED:
        name = name.removesuffix(ending)
    return name


def _is_structure(file: Path) -> bool:
    name = _bare(file)
    return file.is_file() and (name.endswith(ENDINGS) or name.startswith(_BEGINNINGS))


def _graphs(
    file: Path,
    label: str | None,
    format: str | None,
    stress: bool | str,
    forces: str | None,
) -> Iterator[Graph]:
    for frame, atoms in enumerate(_frames(file, format)):
        try:
            with reading(file):
                graph = from_ase(atoms, label=label, stress=stress, forces=forces)
        except ValueError as error:
            text = str(error).removeprefix(f"{file}: ")
            raise ValueError(f"{file}, frame {frame}: {text}") from error
        context = dict(graph.context)
        if "energy" in context:
            context["energy"] = context["energy"].astype(np.float32)
        info = {**graph.info, "file": file.name, "frame": frame}
        yield graph.replace(context=context, info=info)


def _check_sizes(file: Path, format: str | None) -> None:
    """Raise a ValueError if a file exceeds the limits or lacks atoms that it declares.

    ASE has no limits, and allocates as many atoms as a file declares.
    """
    name = _bare(file)
    text = name.endswith(_TEXT) or name.startswith(_BEGINNINGS) or format in _FORMATS
    with open_unpacked(file) as stream:
        lines = _lines(file, stream) if text else iter(())
        if format in ("xyz", "extxyz") or name.endswith((".xyz", ".extxyz")):
            _check_xyz(file, lines)
        elif format == "vasp" or name.endswith(_VASP) or name.startswith(_BEGINNINGS):
            head = list(itertools.islice(lines, 7))
            count = len(head) + sum(1 for _ in lines)
            for line in head[5:]:
                if line.split() and all(word.isdigit() for word in line.split()):
                    _check_count(file, sum(map(_count, line.split())), count)
        for _ in lines:
            pass
        while file.suffix in _COMPRESSED and stream.read(1 << 20):
            pass


def _lines(file: Path, stream: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a text; ASE takes hours for a line of many megabytes."""
    for number, line in enumerate(stream, start=1):
        if len(line) > _LINE_BYTES or b"\0" in line:
            received = f"line {number} of {len(line):,} bytes, {line[:40]!r}"
            refuse_file(
                file, f"to be text in lines of at most {_LINE_BYTES:,} bytes", received
            )
        yield line


def _check_xyz(file: Path, lines: Iterator[bytes]) -> None:
    for line in lines:
        if line.lstrip().startswith(b"VEC"):  # after the atoms of older files
            continue
        atoms, comment = _count(line), next(lines, b"")
        if not atoms:  # the end, or nothing that ASE reads
            break
        first = next(lines, b"")
        for columns in _PROPERTIES.findall(comment):
            columns_needed = sum(map(_count, columns.split(b":")[2::3]))
            if columns_needed > len(first):
                refuse_file(
                    file,
                    f"to have {columns_needed:,} columns as declared",
                    f"{first[:80]!r}",
                )
        count = bool(first) + sum(1 for _ in itertools.islice(lines, atoms - 1))
        _check_count(file, atoms, count)


def _check_count(file: Path, atoms: int, lines: int) -> None:
    if atoms > lines:
        refuse_file(
            file, f"to have the {atoms:,} atoms that it declares", f"{lines:,} lines"
        )


def _count(word: bytes) -> int:
    """Parse a number; return 0 for other words, which are left to ASE."""
    try:
        return max(min(int(word), sys.maxsize), 0)
    except ValueError:
        return 0


def _with_nine(file: Path) -> io.StringIO:
    """Return the text of a file with stresses of six numbers as nine."""

    def nine(match: re.Match) -> str:
        six = match[3].split()
        if len(six) != 6:
            return match[0]
        xx, yy, zz, yz, xz, xy = six
        return f'{match[1]}="{xx} {xy} {xz} {xy} {yy} {yz} {xz} {yz} {zz}"'

    with open_unpacked(file) as stream:
        return io.StringIO(_SIX.sub(nine, stream.read().decode()))


def _frames(file: Path, format: str | None) -> list[Any]:
    read_frames = optional_import("ase.io", "keras-bandgnn[chem]").read
    _check_sizes(file, format)
    try:
        # ASE would parse some relative names as URLs, and split others at an @.
        try:
            return read_frames(
                file.absolute(), ":", format, do_not_split_by_at_sign=True
            )
        except ValueError as error:
            if "3x3 matrix" not in str(error):
                raise
            return read_frames(_with_nine(file), ":", "extxyz")
    except Exception as error:  # each reader raises different errors
        kind = type(error).__name__
        raise ValueError(
            f"Expected {file} to be a file of structures that ASE can read. "
            f"Received: {kind}: {error}. Check the file, or pass format=, such as "
            "'extxyz', 'cif' or 'vasp'."
        ) from error
