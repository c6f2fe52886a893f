"""AFLOW: crystal structures from its search interface."""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_bandgnn.checks import atomic_numbers, one_of
from keras_bandgnn.data.datasets.parts import ATOMIC_NUMBERS
from keras_bandgnn.data.datasets.tables import read_table
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.reading import read_json, refuse_file


def structures(
    num_nodes: np.ndarray,
    atomic_number: np.ndarray,
    position: np.ndarray,
    cell: np.ndarray,
    label: np.ndarray,
    node: Mapping[str, np.ndarray] | None = None,
    split: np.ndarray | None = None,
    info: Sequence[Mapping] | None = None,
) -> FlatGraphs:
    """Build graphs of periodic structures, without edges.

    Args:
        num_nodes: int [n].
        atomic_number: int [N].
        position: float [N, 3], Angstrom.
        cell: float [n, 3, 3], rows are lattice vectors in Angstrom.
        label: [n] or [n, T].
        node: Further node features.
        split: int [n], 0 to 2.
        info: Metadata of each structure.
    """
    atomic_numbers(atomic_number, "Download the file again.")
    context = {"cell": np.asarray(cell, np.float32)}
    context |= {} if split is None else {"split": split}
    none = np.zeros(0, np.int32)
    return FlatGraphs(
        num_nodes=num_nodes,
        num_edges=np.zeros(len(num_nodes), np.int32),
        senders=none,
        receivers=none,
        node={
            "atomic_number": atomic_number,
            "position": np.asarray(position, np.float32),
            **(node or {}),
        },
        context=context,
        label=label,
        info=info,
    )


_FORMULA = re.compile(r"([A-Z][a-z]?)(\d*)")
# What values of other types or forms raise when an entry is parsed.
_ENTRY_ERRORS = (KeyError, TypeError, ValueError, OverflowError, RecursionError)


def read(
    files: Mapping[str, Path],
    *,
    target: str | Sequence[str] = "enthalpy_formation_atom",
    on_error: str = "raise",
) -> FlatGraphs:
    """Read responses of AFLOW's search API, as JSON or as a CSV table.

    Each entry has `compound` (such as `"Ag1Cl1"`), `geometry` (lengths in Angstrom and
    angles in degrees), `positions_fractional` and properties. Duplicates with the same
    `auid` (or `aurl`) and entries without a target are skipped.

    Args:
        files: `{"json": path}` or `{"csv": path}`.
        target: A property such as `"enthalpy_formation_atom"` (eV/atom) or `"Egap"`
            (eV), or several.
        on_error: `"raise"`, or `"skip"` to skip entries whose composition does not
            match their positions, with one warning that counts them.

    Returns:
        Node features `atomic_number` int32 [N] and `position` float32 [N, 3] in
        Angstrom; context `cell` float32 [n, 3, 3] (rows are lattice vectors); `info`
        has `compound` and `auid` or `aurl`. No edges: which atoms are neighbours
        depends on the model.

    Raises:
        ValueError: If keys are missing or an entry is inconsistent.
    """
    one_of("on_error", on_error, ("raise", "skip"))
    form, path = next(iter(files.items()))
    entries = _json_entries(path) if form == "json" else read_table(path).to_pylist()
    names = [target] if isinstance(target, str) else list(target)
    crystals, problems = [], []
    for entry in _distinct(entries):
        if any(entry.get(name) in (None, "") for name in names):
            continue
        try:
            crystals.append(_crystal(entry, names))
        except _ENTRY_ERRORS as error:
            problems.append(_problem(entry, error))
    _report_problems(path, problems, on_error)
    if not crystals:
        raise ValueError(
            f"Expected entries with {', '.join(names)} in {path}. Received: none of "
            f"{len(entries)}. Choose another target."
        )
    numbers, positions, cells, values, info = zip(*crystals, strict=True)
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
        info=list(info),
    )


def _crystal(entry: Mapping, names: Sequence[str]) -> tuple:
    """Return atomic numbers, positions, cell, targets and metadata of an entry.

    Raises:
        KeyError: If it lacks a key; see `_ENTRY_ERRORS` for others.
    """
    place = _parse_vectors(entry["positions_fractional"]).reshape(-1, 3)
    cell = _cell(_parse_vectors(entry["geometry"]).reshape(6))
    atoms = _composition(entry["compound"], len(place))
    targets = [_finite_number(entry[name]) for name in names]
    info = {k: entry[k] for k in ("compound", "auid", "aurl") if k in entry}
    return atoms, place, cell, targets, info


def _problem(entry: Mapping, error: Exception) -> str:
    """Return which entry cannot be read, and why."""
    name = entry.get("auid") or entry.get("aurl")
    missing = "no " if isinstance(error, KeyError) else ""
    return f"{str(name)[:80]}: {missing}{str(error)[:200]}"


def _json_entries(path: Path) -> list[dict]:
    entries = read_json(path)
    if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        refuse_file(path, "to be a list of entries, objects of JSON", entries)
    return entries


def _distinct(entries: Iterable[dict]) -> Iterator[dict]:
    names = set()
    for entry in entries:
        name = entry.get("auid") or entry.get("aurl")
        if not isinstance(name, str) or name not in names:
            names.add(name if isinstance(name, str) else None)
            yield entry


def _report_problems(path: Path, problems: list[str], on_error: str) -> None:
    if not problems:
        return
    if on_error == "raise":
        raise ValueError(
            f"Expected consistent entries in {path}. Received: {problems[0]} (and "
            f"{len(problems) - 1} more). Pass on_error='skip' to skip them."
        )
    warnings.warn(
        f"Skipped {len(problems)} entries of {path.name}: {'; '.join(problems[:3])}.",
        stacklevel=3,
    )


def _composition(compound: str, count: int) -> list[int]:
    """Return the atomic numbers of a compound such as `"Ag1Cl2"`, one per atom."""
    parts = _FORMULA.findall(compound)
    if "".join(symbol + count for symbol, count in parts) != compound or not parts:
        raise ValueError(f"the compound {compound!r}")
    counts = [(ATOMIC_NUMBERS.get(s), int(n or 1)) for s, n in parts]
    if unknown := [s for s, _ in parts if s not in ATOMIC_NUMBERS]:
        raise ValueError(f"the element {unknown[0]!r}")
    if sum(n for _, n in counts) != count:
        raise ValueError(f"{sum(n for _, n in counts)} atoms, {count} positions")
    return [number for number, n in counts for _ in range(n)]


def _finite_number(value: Any) -> float:
    number = float(value)
    if not np.isfinite(number):
        raise ValueError(f"a target of {value!r}")
    return number


def _parse_vectors(value: Any) -> np.ndarray:
    """Parse numbers from nested lists, their text, or `"0,0,0;0.5,0.5,0.5"`."""
    if isinstance(value, str):
        value = [float(word) for word in re.split(r"[\s,;\[\]()]+", value) if word]
    array = np.asarray(value, np.float64)
    if not np.isfinite(array).all():
        raise ValueError("a coordinate that is not finite")
    return array


def _cell(shape: np.ndarray) -> np.ndarray:
    """Return lattice vectors [3, 3] from a, b, c, alpha, beta, gamma; a is along x."""
    length, angle = shape[:3], np.deg2rad(shape[3:])
    (cos_alpha, cos_beta, cos_gamma), sin_gamma = np.cos(angle), np.sin(angle[2])
    if length.min() <= 0 or angle.min() <= 0 or angle.max() >= np.pi:
        raise ValueError(f"the geometry {shape.tolist()}")
    along = (cos_alpha - cos_beta * cos_gamma) / sin_gamma
    square = 1 - cos_beta**2 - along**2
    if square <= 0:
        raise ValueError(f"the impossible angles {shape[3:].tolist()}")
    vectors = [[1, 0, 0], [cos_gamma, sin_gamma, 0], [cos_beta, along, np.sqrt(square)]]
    return np.array(vectors) * length[:, None]
