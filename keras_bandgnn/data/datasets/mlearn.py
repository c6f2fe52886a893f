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
BLOBS = {
    "Cu/test.json": "2c470dfcb7c0a3b138866faccf5ecc70a95f7bc8",
    "Cu/training.json": "9804a3c4335bc6cb796d67b3e90a8f203844ab40",
    "Ge/test.json": "84700a3c289daac6c8715597fcc16b65f46e5027",
    "Ge/training.json": "0671672f739c6084214f475d8bfaf5de5874c00c",
    "Li/test.json": "9f8b2d748f9ed450b37451645603a7801487f8fd",
    "Li/training.json": "553f8cb3a2edc45247d3230170b09d930e0f587c",
    "Mo/test.json": "4e61d7a6d7ce9c1b277f6b78f6e54ee7e15b0aa6",
    "Mo/training.json": "d3c1f2b5caf0fce53ba256f5e98791bf6dd033df",
    "Ni/test.json": "f91c374c230c145d4892bcad8538c16c27a2ce45",
    "Ni/training.json": "70f0abe1a2cc06ada3fcd7e5bc68e2139b942228",
    "Si/test.json": "6f5d4fbabf5d87b6b0c6cfd18451ab03d4bd3f84",
    "Si/training.json": "83f119b2528893eb3c87c65549d09f5d31ef4dbd",
}
"""Git blob id of each published file."""


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
