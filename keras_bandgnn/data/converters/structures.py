"""Atomic structures from files in the formats of ASE."""

import io
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_bandgnn.checks import boolean, one_of, sequence
from keras_bandgnn.data.converters.ase_atoms import OCCUPANCY, from_ase
from keras_bandgnn.data.converters.structure_checks import (
    BUNDLES,
    COMPRESSED,
    ENDINGS,
    bare_name,
    check_sizes,
    database_kind,
    format_of,
    is_structure_file,
    is_unreadable,
)
from keras_bandgnn.data.converters.structure_formats import (
    READERS,
    differs_from_text,
    elements_of,
    text_of,
)
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import check_same_spec
from keras_bandgnn.data.reading import reading, refuse_file
from keras_bandgnn.graph import Graph
from keras_bandgnn.optional import optional_import
from keras_bandgnn.progress import progress_bar

# ASE parses text such as "energy=-3" as an integer.
_REAL = ("energy", "free_energy", "force")
# What a row of a database may have in its data instead of a calculator.
_ROW_RESULTS = ("energy", "forces", "stress")
# ASE reads these only as nine numbers.
_SIX = re.compile(r"""\b(stress|virial)=(["'])([^"']*)\2""")
# A word of a comment, after the "=" before it and up to one that follows. Quotes and
# brackets that stay open end with the line, as ASE reads them, in linear time.
_WORD = re.compile(
    r"""(=\s*)?((?:\\.|"(?:\\.|[^"])*"?|'(?:\\.|[^'])*'?|\{(?:\\.|[^}])*\}?"""
    r"""|\[(?:\\.|[^]])*\]?|[^\s=])+)(?=(\s*=)?)"""
)
# Keys of extended XYZ that are no values of the frame.
_STRUCTURE_KEYS = ("Lattice", "Properties", "pbc", "virial", "virials")
_CONVERT = "Convert bundles with ase.io.write('a.traj', ase.io.read('a.bundle', ':'))."
_BACKUPS = ("~", ".bak", ".old", ".orig", ".swp", ".tmp")

_Path = str | os.PathLike


def read_structures(
    path: _Path | Sequence[_Path],
    label: str | None = None,
    format: str | None = None,
    progress: bool = True,
    stress: bool | str = False,
    forces: str | None = None,
    unlabelled: bool = False,
    elements: Sequence[str] | None = None,
    occupancy: str = "raise",
) -> FlatGraphs:
    r"""Read structures from xyz, extxyz, cif, VASP and other formats of ASE.

    Every frame of every file becomes a graph without edges, as from `from_ase`:
    `node["atomic_number"]`, `node["position"]`, `context["cell"]`, `context["pbc"]`
    and, if the file has them, `context["energy"]` (eV) and `node["force"]` (eV per
    Angstrom). `RadiusGraph`, `KNearestGraph` or `FullyConnectedGraph` adds edges.
    `info` has the other values of the frame, and `file` and `frame`, the name of the
    file and the number of the frame: of extended XYZ, `.traj` and XDATCAR, the step of
    `vasprun.xml` and OUTCAR, the row of a database of ASE (`.db`, `.json`), whose keys
    and data are values of the frame.

    A folder is searched recursively, in the order of paths, for files whose names end
    in one of `ENDINGS` or begin with POSCAR, CONTCAR, OUTCAR, vasprun or XDATCAR;
    hidden files, backups and archives are ignored, with a warning that names them.
    Data files of LAMMPS are known by their content, if you name them. Files may be
    compressed (`.gz`, `.bz2`, `.xz`), except databases. Nothing is unpickled, and no
    file is changed.

    Of an SDF all molecules are read; their titles and properties are `name` and others
    of `info`. Of the alternative locations in a residue of a PDB the one with the
    highest occupancy is read, the first one if equal. Units of LAMMPS are "metal".

    Energies of VASP are those for sigma -> 0; its forces and stresses are derivatives
    of the free energy, `label="free_energy"`. Stresses are converted from kbar, and
    their sign to that of ASE. Steps of a `vasprun.xml` that ends early are read, with a
    warning.

    Needs `pip install "keras-bandgnn[chem]"`.

    Args:
        path: A file, a folder, or a list of files and folders.
        label: The value to use as label: `"energy"`, `"free_energy"`, `"force"` (a
            node-level label) or a key of `atoms.info`, an integer if it is one in every
            frame.
        format: ASE's name of the format, if it is not evident from the files.
        progress: Whether to show a progress bar after two seconds.
        stress: Whether to add `context["stress"]`, float32 [6] in eV per cubic
            Angstrom, NaN for frames without one; or the key that holds stresses or
            virials; see `from_ase`.
        forces: Column with the forces, such as `"REF_forces"`, if it is not "forces".
        unlabelled: Whether to leave out energies, forces and other results, so that
            frames with and without them go together, for `predict`.
        elements: Symbols of the elements of LAMMPS' types from 1 on, such as
            `["Al", "Ni"]`. Required where a file has neither elements nor masses, and
            refused where it has others.
        occupancy: What to do with sites of a CIF that several elements share or that
            may be empty: `"raise"`, or `"highest"` for the element with the largest
            share; see `from_ase`.

    Raises:
        FileNotFoundError: If a file is missing, or a folder has no files to read.
        ValueError: If a file cannot be read, is empty, lacks the label, has other
            features than the first one, or atoms whose elements are not known; the
            message names the file and the frame.
        ImportError: If ASE is not installed.

    Example:
    >>> from pathlib import Path
    >>> _ = Path("water.xyz").write_text("3\n\nO 0 0 0\nH 0 0 1\nH 0 1 0\n")
    >>> read_structures("water.xyz")[0].node["atomic_number"]  # doctest: +SKIP
    array([8, 1, 1], dtype=int32)
    """
    boolean("unlabelled", unlabelled)
    if unlabelled and (label is not None or stress is not False or forces is not None):
        raise ValueError(
            "Expected `unlabelled` without label, stress and forces. Received: "
            f"label={label!r}, stress={stress!r}, forces={forces!r}. Leave one out."
        )
    one_of("occupancy", occupancy, OCCUPANCY)
    reading_options = {
        "elements": elements_of(elements),
        "occupancy": occupancy,
        "values": {label, stress},
    }
    graph_options = {"label": label, "stress": stress, "forces": forces}
    files = _files(path)
    listed = {Path(path)} if isinstance(path, _Path) else set(map(Path, path))
    graphs: list[Graph] = []
    total = sum(file.stat().st_size for file in files)
    with progress_bar("Reading structures", total, progress) as advance:
        for file in files:
            try:
                graphs += _graphs(file, format, reading_options, graph_options, advance)
            except ValueError as error:
                if file in listed or len(files) == 1:
                    raise
                raise ValueError(
                    f"{error} To leave it out, pass a list of the other files."
                ) from error
    if unlabelled:
        graphs = [_without_results(graph) for graph in graphs]
    if isinstance(stress, str):
        _check_stresses(graphs, stress)
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


def _check_stresses(graphs: Sequence[Graph], key: str) -> None:
    if any(np.isfinite(graph.context["stress"]).any() for graph in graphs):
        return
    first = graphs[0].info
    keys = sorted(set(first) - {"file", "frame"})
    raise ValueError(
        f"Expected at least one frame with the stress {key!r} and a cell. Received: "
        f"none in {len(graphs)}; other values of the first frame are {keys}. Name one "
        "of them, or read no stresses."
    )


def _without_results(graph: Graph) -> Graph:
    node = {name: graph.node[name] for name in ("atomic_number", "position")}
    context = {name: graph.context[name] for name in ("cell", "pbc")}
    return graph.replace(node=node, context=context)


def _name(graph: Graph) -> str:
    return f"{graph.info['file']}, frame {graph.info['frame']}"


def _files(path: _Path | Sequence[_Path]) -> list[Path]:
    if not isinstance(path, str | os.PathLike):
        paths = sequence("path", path, "a file, a folder or several")
        files = [file for entry in paths for file in _files(entry)]
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
    if path.name.lower().endswith(BUNDLES):
        raise ValueError(
            f"Expected {path} to be a folder with files of structures. Received: a "
            f"BundleTrajectory of ASE. {_CONVERT}"
        )
    files, ignored, unreadable = [], [], []
    everything = sorted(path.rglob("*"))
    for file in everything:
        if is_unreadable(file):
            unreadable.append(file)
        elif is_structure_file(file):
            hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
            backup = bare_name(file).endswith(_BACKUPS)
            (ignored if hidden or backup else files).append(file)
    if ignored:
        warnings.warn(
            f"Hidden files and backups in {path} are ignored: "
            f"{_names(path, ignored)}. Pass a list of files to read them.",
            stacklevel=3,
        )
    if unreadable:
        warnings.warn(
            f"Archives and bundles in {path} are ignored: {_names(path, unreadable)}. "
            f"Unpack archives. {_CONVERT}",
            stacklevel=3,
        )
    if not files:
        others = _names(path, [file for file in everything if file.is_file()])
        raise FileNotFoundError(
            f"Expected files in {path} that end in {', '.join(ENDINGS)} or begin with "
            f"POSCAR and similar. Received: none{', but ' if others else ''}{others}. "
            "Pass a list of the files."
        )
    return files


def _names(folder: Path, files: Sequence[Path]) -> str:
    names = ", ".join(str(file.relative_to(folder)) for file in files[:5])
    return names + (f" and {len(files) - 5} more" if len(files) > 5 else "")


def _graphs(
    file: Path,
    format: str | None,
    reading_options: Mapping[str, Any],
    graph_options: Mapping[str, Any],
    advance: Callable[[float], None],
) -> Iterator[Graph]:
    """Yield the graphs of a file.

    Args:
        file: The file.
        format: ASE's name of its format, if it is not evident.
        reading_options: Those of `READERS`.
        graph_options: Other arguments of `from_ase`.
        advance: Called with the number of bytes that were read.
    """
    count = check_sizes(file, format, graph_options["label"])
    format = format or format_of(file)
    size, frame = file.stat().st_size, -1
    for frame, atoms in enumerate(_frames(file, format, reading_options)):
        try:
            with reading(file):
                graph = from_ase(
                    atoms, occupancy=reading_options["occupancy"], **graph_options
                )
        except ValueError as error:
            text = str(error).removeprefix(f"{file}: ")
            raise ValueError(f"{file}, frame {frame}: {text}") from error
        context = dict(graph.context)
        if "energy" in context:
            context["energy"] = context["energy"].astype(np.float32)
        info = {**graph.info, "file": file.name, "frame": frame}
        advance(size / count if count else 0)
        yield graph.replace(context=context, info=info)
    if frame < 0:
        refuse_file(
            file,
            "to have at least one structure",
            "none",
            "Leave the file out, or pass format=, such as 'lammps-data' or 'extxyz'.",
        )
    advance(0 if count else size)


def _with_nine(file: Path) -> io.StringIO:
    """Return the text of a file with stresses of six numbers as nine."""

    def nine(match: re.Match) -> str:
        six = match[3].split()
        if len(six) != 6:
            return match[0]
        xx, yy, zz, yz, xz, xy = six
        return f'{match[1]}="{xx} {xy} {xz} {xy} {yy} {yz} {xz} {yz} {zz}"'

    return io.StringIO(_SIX.sub(nine, text_of(file)))


def _frames(
    file: Path, format: str | None, options: Mapping[str, Any]
) -> Iterator[Any]:
    frame = 0
    kind = database_kind(file, format)
    source = _steps(file, format, options) if kind is None else _rows(file, kind)
    try:
        for atoms in source:
            yield atoms
            frame += 1
    except Exception as error:  # each reader raises different errors
        text = str(error)
        if type(error) is ValueError and text.startswith("Expected"):
            place = "" if str(file) in text else f"{file}, frame {frame}: "
            raise ValueError(f"{place}{text}") from error
        received = f"{type(error).__name__}: {error}"
        if isinstance(error, KeyError) and text in ("'D'", "'T'"):
            message = (
                f"Expected {file}, frame {frame}, to name elements. Received: the "
                f"element {text}. Write H for isotopes of hydrogen."
            )
        elif frame:
            message = (
                f"Expected {file}, frame {frame}, to be a structure that ASE can read. "
                f"Received: {received}. Correct the frame, or remove it."
            )
        else:
            message = (
                f"Expected {file} to be a file of structures that ASE can read. "
                f"Received: {received}. Check the file, or pass format=, such as "
                "'extxyz', 'lammps-data' or 'vasp'."
            )
        raise ValueError(message) from error


def _steps(file: Path, format: str | None, options: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the frames of a text, or of a binary file of ASE."""
    read_frames = optional_import("ase.io", "keras-bandgnn[chem]").iread
    file_type = optional_import("ase.io.formats", "keras-bandgnn[chem]").filetype
    # ASE would parse some relative names as URLs, and split others at an @.
    path, frame = file.absolute(), 0
    format = format or file_type(str(path))
    if format in READERS:
        yield from READERS[format](path, format, options)
        return
    extra = _comment_parser(options["values"]) if format == "extxyz" else {}
    try:
        source = path
        # ASE asks the stream of an OUTCAR for its name, which that of bz2 lacks.
        if differs_from_text(path, format) or (
            format == "vasp-out" and path.suffix in COMPRESSED
        ):
            source = io.StringIO(text_of(path))
            source.name = str(path)
        for atoms in read_frames(
            source, ":", format, do_not_split_by_at_sign=True, **extra
        ):
            yield atoms
            frame += 1
    except ValueError as error:
        if "3x3 matrix" not in str(error):
            raise
        yield from read_frames(_with_nine(file), f"{frame}:", "extxyz", **extra)


def _comment_parser(values: Iterable[Any]) -> dict[str, Callable[[str], dict]]:
    """Return ASE's option to parse comments, in which words alone are no results.

    ASE reads "lowest energy conformer" as an energy that is true, which is 1.0.
    """
    extra = "keras-bandgnn[chem]"
    parse = optional_import("ase.io.extxyz", extra).key_val_str_to_dict
    results = optional_import("ase.calculators.calculator", extra).all_properties
    names = {*results, *_STRUCTURE_KEYS, *values}

    def keep(match: re.Match) -> str:
        paired = match[1] or match[3]
        return match[0] if paired or match[2].strip("\"'") not in names else ""

    def parse_values(comment: str) -> dict[str, Any]:
        text = _WORD.sub(keep, comment).strip()
        return parse(text) if text else {}

    return {"properties_parser": parse_values}


def _rows(file: Path, kind: str) -> Iterator[Any]:
    """Yield the rows of a database of ASE, with their keys and data in `info`.

    Arrays with a row per atom are in `atoms.arrays`.
    """
    extra = "keras-bandgnn[chem]"
    connect = optional_import("ase.db", extra).connect
    single = optional_import("ase.calculators.singlepoint", extra).SinglePointCalculator
    for row in connect(file.absolute(), kind, serial=True).select():
        atoms = row.toatoms()
        values = {
            name: value.item() if getattr(value, "size", 0) == 1 else value
            for name, value in (row.data | row.key_value_pairs).items()
        }
        atoms.info.update(values)
        for name, value in values.items():
            per_atom = np.ndim(value) and len(value) == len(atoms)
            if per_atom and name not in atoms.arrays:
                atoms.set_array(name, np.asarray(value))
        results = {n: row.data[n] for n in _ROW_RESULTS if n in row.data}
        if atoms.calc is None and results:
            atoms.calc = single(atoms, **results)
        yield atoms
