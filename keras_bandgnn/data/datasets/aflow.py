"""AFLOW: crystal structures from its search interface, or from a database of ASE."""

import re
import sqlite3
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_bandgnn.checks import one_of
from keras_bandgnn.data.datasets.crystals import structures
from keras_bandgnn.data.datasets.elements import ATOMIC_NUMBERS
from keras_bandgnn.data.datasets.tables import read_table
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.reading import parse_json, read_json, refuse, size_of

_FORMULA = re.compile(r"([A-Z][a-z]?)(\d*)")


def read(
    files: Mapping[str, Path],
    *,
    split: str | None,
    progress: bool,
    target: str | Sequence[str] = "enthalpy_formation_atom",
    on_error: str = "raise",
) -> FlatGraphs:
    """Reads answers of AFLOW's search interface, as JSON or as a table of them.

    Each entry has `compound` (such as `"Ag1Cl1"`), `geometry` (lengths in Angstrom and
    angles in degrees), `positions_fractional` and properties. Of entries with the same
    `auid` (or `aurl`) the first is kept; those without a target are left out.

    Args:
        files: `{"json": path}` or `{"csv": path}`.
        split: Not used; there are no splits.
        progress: Not used.
        target: A property such as `"enthalpy_formation_atom"` (eV/atom) or `"Egap"`
            (eV), or several.
        on_error: `"raise"`, or `"skip"` to leave out entries whose composition does
            not fit their positions, with one warning that counts them.

    Returns:
        As `crystals.read_npz`; `info` has `compound` and `auid` or `aurl`.

    Raises:
        ValueError: If keys are missing or an entry is inconsistent.
    """
    one_of("on_error", on_error, ("raise", "skip"))
    path = next(iter(files.values()))
    if "json" in files:
        entries = read_json(path)
        if not isinstance(entries, list) or not all(
            isinstance(e, dict) for e in entries
        ):
            refuse(path, "to be a list of entries, objects of JSON", entries)
    else:
        entries = read_table(path).to_pylist()
    names = [target] if isinstance(target, str) else list(target)
    numbers, positions, cells, values, info, problems = [], [], [], [], [], []
    for entry in _distinct(entries):
        if any(entry.get(name) in (None, "") for name in names):
            continue
        try:
            place = _vectors(entry["positions_fractional"]).reshape(-1, 3)
            shape = _cell(_vectors(entry["geometry"]).reshape(6))
            atoms = _composition(entry["compound"], len(place))
            values.append([_number(entry[name]) for name in names])
        except (
            KeyError,
            TypeError,
            ValueError,
            OverflowError,
            RecursionError,
        ) as error:
            name = entry.get("auid") or entry.get("aurl")
            missing = "no " if isinstance(error, KeyError) else ""
            problems.append(f"{str(name)[:80]}: {missing}{str(error)[:200]}")
            continue
        numbers.append(atoms)
        positions.append(place)
        cells.append(shape)
        info.append({k: entry[k] for k in ("compound", "auid", "aurl") if k in entry})
    _report(path, problems, on_error)
    if not numbers:
        raise ValueError(
            f"Expected entries with {', '.join(names)} in {path}. Received: none of "
            f"{len(entries)}. Choose another target."
        )
    cell = np.array(cells)
    num_nodes = np.array([len(atoms) for atoms in numbers])
    at = np.repeat(np.arange(len(num_nodes)), num_nodes)
    label = np.array(values)
    return structures(
        num_nodes,
        np.concatenate(numbers),
        np.einsum("ni,nij->nj", np.concatenate(positions), cell[at]),
        cell,
        label[:, 0] if isinstance(target, str) else label,
        info=info,
    )


def _distinct(entries: Iterable[dict]) -> Iterator[dict]:
    seen = set()
    for entry in entries:
        name = entry.get("auid") or entry.get("aurl")
        if not isinstance(name, str) or name not in seen:
            seen.add(name if isinstance(name, str) else None)
            yield entry


def _report(path: Path, problems: list[str], on_error: str) -> None:
    if not problems:
        return
    if on_error == "raise":
        raise ValueError(
            f"Expected consistent entries in {path}. Received: {problems[0]} (and "
            f"{len(problems) - 1} more). Pass on_error='skip' to leave them out."
        )
    warnings.warn(
        f"Left out {len(problems)} entries of {path.name}: {'; '.join(problems[:3])}.",
        stacklevel=3,
    )


def _composition(compound: str, count: int) -> list[int]:
    """Atomic numbers of `"Ag1Cl2"`, each element as often as it says."""
    parts = _FORMULA.findall(compound)
    if "".join(symbol + count for symbol, count in parts) != compound or not parts:
        raise ValueError(f"the compound {compound!r}")
    counts = [(ATOMIC_NUMBERS.get(s), int(n or 1)) for s, n in parts]
    if unknown := [s for s, _ in parts if s not in ATOMIC_NUMBERS]:
        raise ValueError(f"the element {unknown[0]!r}")
    if sum(n for _, n in counts) != count:
        raise ValueError(f"{sum(n for _, n in counts)} atoms, {count} positions")
    return [number for number, n in counts for _ in range(n)]


def _number(value: Any) -> float:
    number = float(value)
    if not np.isfinite(number):
        raise ValueError(f"a target of {value!r}")
    return number


def _vectors(value: Any) -> np.ndarray:
    """Numbers given as nested lists, as their text, or as `"0,0,0;0.5,0.5,0.5"`."""
    if isinstance(value, str):
        value = [float(word) for word in re.split(r"[\s,;\[\]()]+", value) if word]
    array = np.asarray(value, np.float64)
    if not np.isfinite(array).all():
        raise ValueError("a coordinate that is not finite")
    return array


def _cell(shape: np.ndarray) -> np.ndarray:
    """Lattice vectors [3, 3] of a, b, c, alpha, beta, gamma; a lies on x."""
    length, angle = shape[:3], np.deg2rad(shape[3:])
    (cos_alpha, cos_beta, cos_gamma), sin_gamma = np.cos(angle), np.sin(angle[2])
    if length.min() <= 0 or angle.min() <= 0 or angle.max() >= np.pi:
        raise ValueError(f"the geometry {shape.tolist()}")
    along = (cos_alpha - cos_beta * cos_gamma) / sin_gamma
    rest = 1 - cos_beta**2 - along**2
    if rest <= 0:
        raise ValueError(f"angles of no cell, {shape[3:].tolist()}")
    vectors = [[1, 0, 0], [cos_gamma, sin_gamma, 0], [cos_beta, along, np.sqrt(rest)]]
    return np.array(vectors) * length[:, None]


def read_ase_db(
    files: Mapping[str, Path],
    *,
    split: str | None,
    progress: bool,
    target: str | Sequence[str] = "enthalpy_formation_atom",
) -> FlatGraphs:
    """Reads a database of ASE (SQLite), without ASE; its `data` column is not read.

    Args:
        files: `{"db": path}`.
        split: Not used; there are no splits.
        progress: Not used.
        target: A key of the rows, or several; rows without it are left out.

    Returns:
        As `crystals.read_npz`; `info` has the row's `auid` where there is one.

    Raises:
        ValueError: If the file is no such database, or no row has the target.
    """
    path = files["db"]
    names = [target] if isinstance(target, str) else list(target)
    rows = _database_rows(path)
    kept = [row for row in rows if all(name in row[3] for name in names)]
    if not kept:
        keys = sorted({key for row in rows for key in row[3]})
        raise ValueError(
            f"Expected rows with {', '.join(names)} in {path}. Received: rows with "
            f"{', '.join(keys)}. Choose another target."
        )
    numbers, positions, cells, facts = zip(*kept, strict=True)
    label = np.array([[_number(row[name]) for name in names] for row in facts])
    return structures(
        np.array([len(blob) // 4 for blob in numbers]),
        np.frombuffer(b"".join(numbers), "<i4"),
        np.frombuffer(b"".join(positions), "<f8").reshape(-1, 3),
        np.frombuffer(b"".join(cells), "<f8").reshape(-1, 3, 3),
        label[:, 0] if isinstance(target, str) else label,
        info=[{"auid": row["auid"]} if "auid" in row else {} for row in facts],
    )


def _database_rows(path: Path) -> list[tuple[bytes, bytes, bytes, dict]]:
    """Numbers, positions, cell and key-value pairs of each row, of lengths that fit."""
    query = "SELECT numbers, positions, cell, key_value_pairs FROM systems ORDER BY id"
    kind = "SELECT type FROM sqlite_master WHERE name = 'systems'"
    size, rows = size_of(path), []
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(size, 2**31 - 1))
        connection.execute("PRAGMA trusted_schema = OFF")
        if connection.execute(kind).fetchall() != [("table",)]:
            raise ValueError("no table 'systems'")  # a view could compute for ever
        for number, row in enumerate(connection.execute(query), start=1):
            atoms, places, cell, text = row
            facts = parse_json(text) if isinstance(text, str) else None
            if not isinstance(facts, dict):
                raise ValueError(f"row {number} without key_value_pairs, an object")
            blobs = (atoms, places, cell)
            if not all(isinstance(blob, bytes) for blob in blobs) or (
                [len(blob) for blob in blobs] != [len(atoms), 6 * len(atoms), 72]
                or not atoms
                or len(atoms) % 4
            ):
                raise ValueError(
                    f"row {number}, whose numbers, positions and cell do not fit"
                )
            rows.append((atoms, places, cell, facts))
    except (sqlite3.Error, ValueError) as error:
        refuse(path, "to be a database of ASE", str(error), cause=error)
    finally:
        connection.close()
    return rows
