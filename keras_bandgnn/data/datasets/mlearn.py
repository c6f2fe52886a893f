"""mlearn: supercells of six elements with energies and forces, from its JSON files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_bandgnn.data.datasets.aflow import structures
from keras_bandgnn.data.datasets.parts import ATOMIC_NUMBERS, SPLITS, pick_targets
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.reading import read_json, refuse_file
from keras_bandgnn.progress import progress_bar

ELEMENTS = ("Cu", "Ge", "Li", "Mo", "Ni", "Si")
_PARTS = {"training": SPLITS.index("train"), "test": SPLITS.index("test")}
FILES = {
    f"{element}_{part}": f"{element}/{part}.json"
    for element in ELEMENTS
    for part in _PARTS
}
"""The published files, by role."""


def read(
    files: Mapping[str, Path],
    *,
    progress: bool,
    target: str | Sequence[str] | None = "energy",
) -> FlatGraphs:
    """Read `<element>/training.json` and `<element>/test.json` of six elements.

    Args:
        files: Paths by role, such as `Cu_training`.
        progress: Whether to show a progress bar.
        target: `"energy"`, of the cell in eV, `"energy_per_atom"`, or both.

    Returns:
        As `keras_bandgnn.data.datasets.aflow.read`, with the node feature `force`
        float32 [N, 3] in eV/Angstrom and the context feature `split`; `info` has
        `group`, the kind of the simulation, such as `"Vacancy"`.

    Raises:
        ValueError: If a file is no list of structures with energies and forces.
    """
    entries, codes = [], []
    roles = [
        (f"{element}_{part}", code)
        for part, code in _PARTS.items()
        for element in ELEMENTS
    ]
    with progress_bar("Reading mlearn", len(roles), progress) as advance:
        for role, code in roles:
            part = _read_entries(files[role])
            entries += part
            codes += [code] * len(part)
            advance(1)
    columns = {key: [entry[key] for entry in entries] for key in entries[0]}
    num_nodes = np.array([len(numbers) for numbers in columns["numbers"]])
    energy = np.array(columns["energy"])
    table = {"energy": energy, "energy_per_atom": energy / num_nodes}
    return structures(
        num_nodes,
        np.concatenate(columns["numbers"]),
        np.concatenate(columns["position"]),
        np.stack(columns["cell"]),
        pick_targets(table, target),
        {"force": np.concatenate(columns["force"]).astype(np.float32)},
        np.array(codes),
        [{"group": group} for group in columns["group"]],
    )


def _read_entries(path: Path) -> list[dict[str, Any]]:
    entries = []
    for number, entry in enumerate(read_json(path, list)):
        try:
            entries.append(_entry(entry))
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            missing = "no " if isinstance(error, KeyError) else ""
            received = f"entry {number}: {missing}{str(error)[:200]}"
            expected = "to be a list of structures with outputs"
            refuse_file(path, expected, received, cause=error)
    return entries


def _entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    structure, outputs = entry["structure"], entry["outputs"]
    sites = structure["sites"]
    symbols = [site["species"][0]["element"] for site in sites]
    if unknown := [str(s) for s in symbols if s not in ATOMIC_NUMBERS]:
        raise ValueError(f"the element {unknown[0]!r}")
    return {
        "numbers": [ATOMIC_NUMBERS[symbol] for symbol in symbols],
        "position": _numbers([site["xyz"] for site in sites], (len(sites), 3)),
        "cell": _numbers(structure["lattice"]["matrix"], (3, 3)),
        "energy": float(_numbers(outputs["energy"], ())),
        "force": _numbers(outputs["forces"], (len(sites), 3)),
        "group": str(entry.get("group", "")),
    }


def _numbers(value: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(value, np.float64)
    if array.shape != shape or not array.size or not np.isfinite(array).all():
        raise ValueError(f"numbers of shape {array.shape}, not finite ones of {shape}")
    return array
