"""Formats of structures that ASE reads as something else, without an error.

Files of several molecules, types of atoms for elements, sites that several elements
share, alternative locations. `READERS` has a function for each such format, by ASE's
name of it; other formats are read by ASE alone.
"""

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_bandgnn.checks import optional, strings
from keras_bandgnn.data.converters.ase_atoms import ordered_atoms
from keras_bandgnn.data.reading import open_unpacked, refuse_file
from keras_bandgnn.optional import optional_import

_EXTRA = "keras-bandgnn[chem]"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# A number of Fortran in double precision, such as -1.5D+00, up to its D. Fortran writes
# a point, which names such as "1d4" lack.
_DOUBLE = re.compile(
    rb"""(?<![^\s="'\[({,])([-+]?(?:\d+\.\d*|\.\d+))[dD]"""
    rb"""(?=[-+]?\d{1,3}(?![^\s"'\])},;]))"""
)
# ASE reads the numbers of these as those of Python.
_PYTHON_NUMBERS = ("extxyz", "vasp", "vasp-xdatcar", "xyz")
_ELEMENTS = (
    "Pass elements=, one symbol for each type from 1 on, such as elements=['Al', 'Ni']."
)

Options = Mapping[str, Any]
"""`elements` and `occupancy` of `read_structures`, `values` for keys to read."""


def elements_of(value: Any) -> list[int] | None:
    """Return the atomic numbers of symbols, or None for None.

    Raises:
        ValueError: If a symbol is not one of an element.
    """
    if value is None:
        return None
    numbers = _atomic_numbers()
    symbols = optional(strings, "elements", value)
    unknown = [symbol for symbol in symbols if not numbers.get(symbol)]
    if unknown or not symbols:
        raise ValueError(
            "Expected `elements` to be symbols of elements, one for each type of atoms "
            f"from 1 on, such as ['Al', 'Ni']. Received: elements={value!r:.80}."
        )
    return [numbers[symbol] for symbol in symbols]


def _atomic_numbers() -> dict[str, int]:
    return optional_import("ase.data", _EXTRA).atomic_numbers


def text_of(path: Path) -> str:
    """Return a text without a byte order mark, with E for the D of Fortran's numbers.

    Bytes that are not UTF-8 stay text.
    """
    with open_unpacked(path) as stream:
        data = stream.read().removeprefix(BYTE_ORDER_MARK)
    return _python_numbers(data).decode("utf-8", "surrogateescape")


def _python_numbers(data: bytes) -> bytes:
    return _DOUBLE.sub(rb"\1E", data)


def differs_from_text(path: Path, format: str) -> bool:
    """Return whether `text_of` changes a file in a way that ASE needs."""
    with open_unpacked(path) as stream:
        if stream.read(len(BYTE_ORDER_MARK)) == BYTE_ORDER_MARK:
            return True
        lines = stream if format in _PYTHON_NUMBERS else ()
        return any(
            (b"D" in line or b"d" in line) and _DOUBLE.search(line) for line in lines
        )


def _parse(text: str, format: str) -> Iterator[Any]:
    """Yield the frames of a text that ASE reads."""
    frames = optional_import("ase.io", _EXTRA).iread
    yield from frames(io.StringIO(text), ":", format)


# === SDF and MOL ===


def _molecules(path: Path, format: str, options: Options) -> Iterator[Any]:
    """Yield all molecules of an SDF, V2000 or V3000; title and properties in `info`."""
    with open_unpacked(path) as stream:
        lines: list[str] = []
        for number, line in enumerate(stream):
            line = line.removeprefix(BYTE_ORDER_MARK) if number == 0 else line
            text = _python_numbers(line).decode("utf-8", "replace").rstrip("\r\n")
            if text.startswith("$$$$"):
                yield _molecule(lines)
                lines = []
            else:
                lines.append(text)
        if any(line.strip() for line in lines):
            yield _molecule(lines)


def _molecule(lines: Sequence[str]) -> Any:
    counts = lines[3] if len(lines) > 3 else ""
    if "V3000" in counts:
        rows = _v3000(lines)
    else:
        try:
            count = int(counts[:3])
        except ValueError:
            raise ValueError(
                "Expected the fourth line of a molecule to begin with its number of "
                f"atoms. Received: {counts!r:.80}. Check that the file is an SDF."
            ) from None
        rows = [line for line in lines[4 : 4 + count] if not line.startswith("M  ")]
        _check_count(count, len(rows))
        rows = [_v2000(line) for line in rows]
    numbers = {**_atomic_numbers(), "D": 1, "T": 1}
    for at, (symbol, *_) in enumerate(rows):
        if symbol not in numbers:
            raise ValueError(
                f"Expected the symbol of an element for atom {at}. Received: "
                f"{symbol!r}. Replace the atom, or leave out the molecule."
            )
    atoms = optional_import("ase", _EXTRA).Atoms
    info = _properties(lines)
    title = lines[0].strip()
    return atoms(
        numbers=[numbers[symbol] for symbol, *_ in rows],
        positions=np.array([place for _, *place in rows], float).reshape(-1, 3),
        info={"name": title, **info} if title else info,
    )


def _v2000(line: str) -> tuple[str, float, float, float]:
    fields = [line[k : k + 10] for k in (0, 10, 20)]
    try:  # columns may touch
        return line[31:34].strip(), *map(float, fields)
    except ValueError:
        x, y, z, symbol = line.split()[:4]
        return symbol, float(x), float(y), float(z)


def _v3000(lines: Sequence[str]) -> list[tuple[str, float, float, float]]:
    rows, inside, begun, count = [], False, "", 0
    for line in lines:
        if not line.startswith("M  V30"):
            continue
        text = begun + line[7:]
        begun = text[:-1] if text.endswith("-") else ""
        words = text.split()
        if begun or not words:
            continue
        if words[0] == "COUNTS":
            count = int(words[1])
        inside = words == ["BEGIN", "ATOM"] or (inside and words != ["END", "ATOM"])
        if inside and words[0] != "BEGIN":
            _, symbol, *place = words[:5]
            rows.append((symbol, *map(float, place)))
    _check_count(count, len(rows))
    return rows


def _check_count(declared: int, atoms: int) -> None:
    if declared != atoms:
        raise ValueError(
            f"Expected the {declared} atoms that the molecule declares. Received: "
            f"{atoms}. Get the file again."
        )


def _properties(lines: Sequence[str]) -> dict[str, Any]:
    """Return the data items of a molecule, numbers as such."""
    properties, name = {}, None
    for line in lines:
        if line.startswith(">") and (match := re.search("<(.*)>", line)):
            name = match[1]
            properties[name] = []
        elif not line.strip():
            name = None
        elif name is not None:
            properties[name].append(line)
    return {name: _value("\n".join(rows)) for name, rows in properties.items()}


def _value(text: str) -> int | float | str:
    if re.fullmatch(r"[-+]?(0|[1-9]\d*)", text):  # zeros lead in names
        return int(text)
    if re.fullmatch(r"[-+]?\d*\.?\d+([eE][-+]?\d+)?|[-+]?\d+\.", text):
        return text if text.lstrip("+-").startswith("00") else float(text)
    return text


# === LAMMPS ===


def _lammps(path: Path, format: str, options: Options) -> Iterator[Any]:
    """Yield the frames of a dump or data file; types need `elements`.

    ASE takes type 1 for hydrogen, 2 for helium, and so on.
    """
    elements = options["elements"]
    named = False
    if format != "lammps-dump-binary":
        check = _check_dump if format == "lammps-dump-text" else _check_data
        named = check(path)
    if elements is None and not named:
        refuse_file(
            path,
            "to name the elements",
            "types of atoms, which are only numbers",
            _ELEMENTS,
        )
    single = optional_import("ase.calculators.singlepoint", _EXTRA)
    read = optional_import("ase.io", _EXTRA).iread
    for atoms in read(path, ":", format, do_not_split_by_at_sign=True):
        forces = None if atoms.calc is None else atoms.calc.results.get("forces")
        types = atoms.arrays.get("type")
        if elements is not None and types is not None:
            low, high = int(types.min(initial=1)), int(types.max(initial=1))
            if low < 1 or high > len(elements):
                raise ValueError(
                    f"Expected `elements` to have a symbol for each type, from {low} "
                    f"to {high}. Received: {len(elements)}. Name those of all types."
                )
            numbers = np.asarray(elements)[types - 1]
            if named:
                _check_elements(path, types, numbers, atoms)
            atoms.set_atomic_numbers(numbers)
        elif named and not atoms.numbers.all():
            refuse_file(
                path, "to name the elements", "some that are unknown", _ELEMENTS
            )
        # ASE adds an energy of 0 that the file does not have.
        atoms.calc = None
        if forces is not None:
            atoms.calc = single.SinglePointCalculator(atoms, forces=forces)
        yield atoms


def _check_elements(
    path: Path, types: np.ndarray, numbers: np.ndarray, atoms: Any
) -> None:
    """Refuse elements of types that are others than those the file tells.

    Masses that are of no element, as of isotopes or in other units, tell none.
    """
    wrong = (atoms.numbers != 0) & (atoms.numbers != numbers)
    if wrong.any():
        at = int(np.argmax(wrong))
        symbols = optional_import("ase.data", _EXTRA).chemical_symbols
        refuse_file(
            path,
            f"to have {symbols[numbers[at]]} as type {types[at]}, as `elements` says",
            f"{symbols[atoms.numbers[at]]} by its elements or masses",
            "Correct `elements` or the file, or leave `elements` out.",
        )


def _check_dump(path: Path) -> bool:
    """Return whether all frames have elements or masses; refuse one that is cut off.

    ASE would read as many lines as a frame declares.
    """
    named, item, declared, atoms = True, b"", 0, 0
    with open_unpacked(path) as stream:
        for line in stream:
            if line.startswith(b"ITEM:"):
                check_atoms(path, declared if item == b"ATOMS" else 0, atoms)
                item, atoms = line[5:].strip(), 0
                if item.startswith(b"ATOMS"):
                    named = named and bool({b"element", b"mass"} & set(item.split()))
                    item = b"ATOMS"
            elif item == b"NUMBER OF ATOMS":
                number = line.split()[:1]
                declared = int(number[0]) if number and number[0].isdigit() else 0
            elif line.strip():
                atoms += 1
    check_atoms(path, declared if item == b"ATOMS" else 0, atoms)
    return named


def _check_data(path: Path) -> bool:
    """Return whether a data file has masses, or elements as labels of its types."""
    section, labels, declared, lines, masses = "", [], 0, 0, False
    with open_unpacked(path) as stream:
        for line in stream:
            words = line.partition(b"#")[0].decode("utf-8", "replace").split()
            lines += bool(words)
            if words[1:] == ["atoms"] and words[0].isdigit():
                declared = int(words[0])
            if words and words[0][0].isalpha():
                section = " ".join(words)
                masses = masses or section == "Masses"
            elif section == "Atom Type Labels" and len(words) == 2:
                labels.append(words[1])
    check_atoms(path, declared, lines)
    numbers = _atomic_numbers()
    return masses or (bool(labels) and all(numbers.get(label) for label in labels))


def check_atoms(path: Path, declared: int, lines: int, where: str = "") -> None:
    """Raise a ValueError for a file, or a place in it, with too few lines of atoms."""
    if declared > lines:
        expected = f"to have the {declared:,} atoms that it declares{where}"
        refuse_file(path, expected, f"{lines:,} lines")


# === CIF ===


def _crystals(path: Path, format: str, options: Options) -> Iterator[Any]:
    """Yield the structures of a CIF; refuse sites that are not known or shared."""
    cif = optional_import("ase.io.cif", _EXTRA)
    text = text_of(path)
    for block in cif.parse_cif(io.BytesIO(text.encode("utf-8", "surrogateescape"))):
        tags = dict(block)
        _check_cell(tags, text)
        places = [tags.get(f"_atom_site_fract_{axis}") for axis in "xyz"]
        cyclic = all(isinstance(place, list) for place in places)
        if not cyclic:
            places = [tags.get(f"_atom_site_cartn_{axis}") for axis in "xyz"]
        if not all(isinstance(place, list) for place in places):
            continue
        types = tags.get("_atom_site_type_symbol")
        labels = [str(v) for v in tags.get("_atom_site_label") or types or ()]
        sites = np.array(
            [
                _place(label, row, text)
                for label, *row in zip(labels, *places, strict=True)
            ]
        )
        shares = [_shares(label, types, k) for k, label in enumerate(labels)]
        filled = tags.get("_atom_site_occupancy") or [1.0] * len(labels)
        filled = [_filled(label, v) for label, v in zip(labels, filled, strict=True)]
        tags["_atom_site_type_symbol"] = [max(s, key=s.get) for s in shares]
        tags.pop("_atom_site_occupancy", None)
        shares = [
            {symbol: share * full for symbol, share in s.items()}
            for s, full in zip(shares, filled, strict=True)
        ]
        together = _coincident(sites, shares, cyclic)
        # With occupancies ASE reads each place once.
        if min(filled) < 1 or any(len(s) > 1 for s in together):
            tags["_atom_site_occupancy"] = filled
        atoms = cif.CIFBlock(block.name, tags).get_atoms()
        if "occupancy" in atoms.info:
            atoms.info["occupancy"] = {str(k): s for k, s in enumerate(together)}
        yield ordered_atoms(atoms, options["occupancy"], labels)


def _check_cell(tags: Mapping[str, Any], text: str) -> None:
    for name, value in tags.items():
        if name.startswith(("_cell_length_", "_cell_angle_")) and isinstance(
            value, str | list
        ):
            raise ValueError(
                f"Expected {name} to be one number. Received: {value!r:.40}"
                f"{_line_of(text, name, value)}. Correct it, or leave out the file."
            )


def _place(label: str, values: Sequence, text: str) -> list[float]:
    for value in values:
        if not isinstance(value, int | float):
            raise ValueError(
                f"Expected coordinates of the site {label}. Received: {value!r}"
                f"{_line_of(text, label, value)}. Remove the site, or add them."
            )
    return list(values)


def _line_of(text: str, *words: Any) -> str:
    """Return " in line n" for the first line that has some words, otherwise nothing."""
    for number, line in enumerate(text.splitlines(), start=1):
        if set(map(str, words)) <= set(line.split()):
            return f" in line {number}"
    return ""


def _filled(label: str, value: Any) -> float:
    if value in (".", "?"):  # the default of the dictionary of CIF
        return 1.0
    if not isinstance(value, int | float) or not 0 <= value <= 1.01:
        raise ValueError(
            f"Expected the occupancy of the site {label} from 0 to 1. Received: "
            f"{value!r}. Correct it."
        )
    return min(float(value), 1.0)


def _shares(label: str, types: Any, at: int) -> dict[str, float]:
    """Return the share of each element in a site, from its type or label."""
    text = label if types is None else str(types[at])
    numbers = {k: v for k, v in _atomic_numbers().items() if v} | {"D": 1}
    words = re.findall("[A-Za-z]+", text)
    symbols = []
    for word in words if types is not None else words[:1]:
        two, one = word[:2].capitalize(), word[:1]
        upper = len(word) > 1 and word[1].isupper()
        if types is None and upper and two in numbers and one in numbers:
            raise ValueError(
                f"Expected the label of the site {label} to tell its element. Received:"
                f" {two} or {one}. Add _atom_site_type_symbol to the file."
            )
        if len(word) <= 2 and word.capitalize() in numbers:
            symbols.append(word.capitalize())
        else:
            symbols += re.findall("[A-Z][a-z]?", word)
            symbols = symbols[:1] if types is None else symbols
    unknown = [symbol for symbol in symbols if symbol not in numbers]
    if unknown or not symbols:
        raise ValueError(
            f"Expected the element of the site {label}. Received: {text!r}. Write its "
            "symbol as _atom_site_type_symbol."
        )
    if len(set(symbols)) == 1:
        return {symbols[0]: 1.0}
    amount = r"(\d*\.?\d+)"
    parts = [re.search(rf"{amount}\s*{s}(?![a-z])", text) for s in symbols]
    parts = (
        parts
        if all(parts)
        else [re.search(rf"{s}(?![a-z])\s*{amount}", text) for s in symbols]
    )
    if not all(parts):
        raise ValueError(
            f"Expected one element in the site {label}, or the share of each. Received:"
            f" {text!r}. Write shares, as in '0.65Mn + 0.35Fe'."
        )
    return {s: float(part[1]) for s, part in zip(symbols, parts, strict=True)}


def _coincident(
    sites: np.ndarray, shares: Sequence[dict[str, float]], cyclic: bool
) -> list[dict[str, float]]:
    """Return the shares of the elements at the place of each site, added."""
    together = []
    for site in sites:
        away = sites - site
        away = away - np.round(away) if cyclic else away
        total: dict[str, float] = {}
        for k in np.flatnonzero(np.abs(away).max(axis=1) < 1e-3):
            for symbol, share in shares[k].items():
                total[symbol] = total.get(symbol, 0.0) + share
        together.append(total)
    return together


# === PDB ===


def _proteins(path: Path, format: str, options: Options) -> Iterator[Any]:
    """Yield the models of a PDB, each residue in one of its alternative locations.

    That is the one with the highest mean occupancy, the first in the file if equal.
    """
    model: list[str] = []
    cell = ""
    for line in [*text_of(path).splitlines(), "END"]:
        if line.startswith("CRYST1"):
            # A unit cube says that there is no cell.
            dummy = [float(line[k : k + 9]) for k in (6, 15, 24)] == [1, 1, 1]
            cell = "" if dummy else line
        elif line.startswith("END"):
            atoms = [at for at in model if at.startswith(("ATOM", "HETATM"))]
            if atoms:
                other = [at for at in model if at.startswith("ORIGX")]
                lines = [cell, *other, *map(_with_element, _located(atoms)), "END", ""]
                yield from _parse("\n".join(lines), format)
            model = []
        else:
            model.append(line)


def _located(lines: Sequence[str]) -> list[str]:
    """Return the lines of atoms without alternative locations that are not read."""
    residues: dict[str, dict[str, list[float]]] = {}
    for line in lines:
        if line[16:17].strip():
            try:
                share = float(line[54:60])
            except ValueError:
                share = 1.0
            locations = residues.setdefault(line[21:27], {})
            locations.setdefault(line[16], []).append(share)
    best = {
        residue: max(locations, key=lambda name: np.mean(locations[name]))
        for residue, locations in residues.items()
    }
    return [
        line
        for line in lines
        if not line[16:17].strip() or line[16] == best[line[21:27]]
    ]


def _with_element(line: str) -> str:
    """Return a line with the element that its columns of the name say, if it has none.

    ASE would take the alpha carbon CA for calcium.
    """
    symbol = line[76:78].strip()
    if symbol.upper() in ("D", "T"):  # isotopes of hydrogen
        return f"{line[:76]} H{line[78:]}"
    if symbol:
        return line
    name = line[12:16]
    word, numbers = name.strip(), _atomic_numbers()
    if re.match("[A-Z][a-z]", word):
        symbol = word[:2]
    elif name[:1] in " 0123456789":
        symbol = word.lstrip("0123456789")[:1]
    elif len(word) == 4 and word[0] == "H":
        symbol = "H"
    else:
        symbol = word[:2] if word[:2].capitalize() in numbers else word[:1]
    symbol = "H" if symbol == "D" else symbol
    return f"{line[:76]:76}{symbol:>2}"


# === Formats of which ASE reads one frame ===


def _single(path: Path, format: str, options: Options) -> Iterator[Any]:
    """Yield the frame of a file; refuse one with several."""
    lines = text_of(path).splitlines()
    if format == "gromos":
        frames = sum(line.strip() in ("POSITION", "POSITIONRED") for line in lines)
    else:
        remaining = [line for line in lines[int(lines[1]) + 3 :] if line.strip()]
        frames = 2 if remaining else 1
    if frames > 1:
        refuse_file(
            path,
            "to have one frame, of which ASE reads no more",
            "several",
            "Write a file for each frame, or extended XYZ.",
        )
    yield from _parse("\n".join([*lines, ""]), format)


READERS: dict[str, Callable[[Path, str, Options], Iterator[Any]]] = {
    "cif": _crystals,
    "gromacs": _single,
    "gromos": _single,
    "lammps-data": _lammps,
    "lammps-dump-binary": _lammps,
    "lammps-dump-text": _lammps,
    "mol": _molecules,
    "proteindatabank": _proteins,
    "sdf": _molecules,
}
"""Readers of formats by ASE's names of these."""
