"""AFLOW: crystal structures from its search interface, or from a database of ASE."""

import json
import re
import sqlite3
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_bandgnn.checks import one_of
from keras_bandgnn.data.datasets.crystals import structures
from keras_bandgnn.data.datasets.elements import ATOMIC_NUMBERS
from keras_bandgnn.data.datasets.tables import read_table
from keras_bandgnn.data.flat import FlatGraphs

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
        try:
            entries = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(
                f"Expected {path} to be JSON. Received: {error}. Get it again."
            ) from error
    else:
        entries = read_table(path).to_pylist()
    names = [target] if isinstance(target, str) else list(target)
    numbers, positions, cells, values, info, problems = [], [], [], [], [], []
    for entry in _distinct(entries):
        if any(entry.get(name) in (None, "") for name in names):
            continue
        try:
            atoms = _composition(entry["compound"])
            place = _vectors(entry["positions_fractional"]).reshape(-1, 3)
            shape = _vectors(entry["geometry"]).reshape(6)
            if len(place) != len(atoms):
                raise ValueError(f"{len(atoms)} atoms, {len(place)} positions")
            values.append([float(entry[name]) for name in names])
        except (KeyError, TypeError, ValueError) as error:
            name = entry.get("auid") or entry.get("aurl")
            problems.append(f"{name}: {error}")
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
    cell = _cells(np.array(cells))
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


def _distinct(entries: Any) -> Iterable[dict]:
    seen = set()
    for entry in entries:
        name = entry.get("auid") or entry.get("aurl")
        if name is None or name not in seen:
            seen.add(name)
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


def _composition(compound: str) -> list[int]:
    """Atomic numbers of `"Ag1Cl2"`, each element as often as it says."""
    parts = _FORMULA.findall(compound)
    if "".join(symbol + count for symbol, count in parts) != compound or not parts:
        raise ValueError(f"the compound {compound!r}")
    return [ATOMIC_NUMBERS[s] for s, count in parts for _ in range(int(count or 1))]


def _vectors(value: Any) -> np.ndarray:
    """Numbers given as nested lists, as their text, or as `"0,0,0;0.5,0.5,0.5"`."""
    if isinstance(value, str):
        value = [float(word) for word in re.split(r"[\s,;\[\]()]+", value) if word]
    return np.asarray(value, np.float64)


def _cells(shape: np.ndarray) -> np.ndarray:
    """Lattice vectors [n, 3, 3] of a, b, c, alpha, beta, gamma [n, 6]; a lies on x."""
    length, angle = shape[:, :3], np.deg2rad(shape[:, 3:])
    cos_alpha, cos_beta, cos_gamma = np.cos(angle).T
    sin_gamma = np.sin(angle[:, 2])
    cell = np.zeros((len(shape), 3, 3))
    cell[:, 0, 0] = 1
    cell[:, 1, 0], cell[:, 1, 1] = cos_gamma, sin_gamma
    cell[:, 2, 0] = cos_beta
    cell[:, 2, 1] = (cos_alpha - cos_beta * cos_gamma) / sin_gamma
    rest = 1 - cell[:, 2, 0] ** 2 - cell[:, 2, 1] ** 2
    cell[:, 2, 2] = np.sqrt(np.maximum(rest, 0))
    return cell * length[:, :, None]


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
    query = "SELECT numbers, positions, cell, key_value_pairs FROM systems ORDER BY id"
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        rows = [(n, p, c, json.loads(k)) for n, p, c, k in connection.execute(query)]
    except (sqlite3.Error, ValueError) as error:
        raise ValueError(
            f"Expected {path} to be a database of ASE. Received: {error}."
        ) from error
    finally:
        connection.close()
    kept = [row for row in rows if all(name in row[3] for name in names)]
    if not kept:
        keys = sorted({key for row in rows for key in row[3]})
        raise ValueError(
            f"Expected rows with {', '.join(names)} in {path}. Received: rows with "
            f"{', '.join(keys)}. Choose another target."
        )
    numbers, positions, cells, facts = zip(*kept, strict=True)
    label = np.array([[row[name] for name in names] for row in facts], np.float64)
    return structures(
        np.array([len(blob) // 4 for blob in numbers]),
        np.frombuffer(b"".join(numbers), "<i4"),
        np.frombuffer(b"".join(positions), "<f8").reshape(-1, 3),
        np.frombuffer(b"".join(cells), "<f8").reshape(-1, 3, 3),
        label[:, 0] if isinstance(target, str) else label,
        info=[{"auid": row["auid"]} if "auid" in row else {} for row in facts],
    )
