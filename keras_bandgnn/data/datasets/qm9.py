"""QM9 as bond graphs (tf-gnn-samples), and the code that its formats share."""

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_bandgnn.checks import atomic_numbers, one_of
from keras_bandgnn.data.datasets.parts import SPLITS, all_pairs, both_ways, pick_targets
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.reading import read_bytes
from keras_bandgnn.progress import progress_bar

# Names and units of QM9's targets, the same for all formats.


UNITS = {
    "mu": "D",
    "alpha": "a0^3",
    "homo": "Ha",
    "lumo": "Ha",
    "gap": "Ha",
    "r2": "a0^2",
    "zpve": "Ha",
    "u0": "Ha",
    "u298": "Ha",
    "h298": "Ha",
    "g298": "Ha",
    "cv": "cal/mol/K",
    "u0_atom": "kcal/mol",
    "u298_atom": "kcal/mol",
    "h298_atom": "kcal/mol",
    "g298_atom": "kcal/mol",
}
"""Unit of each target. `*_atom` are atomisation energies (negative), the other energies
are total energies."""

_KCAL_PER_HARTREE = 627.5094740631
# Energies of the free atoms at the level of theory of the data, as published with it.
_FREE_ATOMS = {
    "u0": {1: -0.500273, 6: -37.846772, 7: -54.583861, 8: -75.064579, 9: -99.71873},
    "u298": {1: -0.498857, 6: -37.845355, 7: -54.582445, 8: -75.063163, 9: -99.717314},
    "h298": {1: -0.497912, 6: -37.844411, 7: -54.581501, 8: -75.062219, 9: -99.71637},
    "g298": {1: -0.510927, 6: -37.861317, 7: -54.598897, 8: -75.079532, 9: -99.733544},
}


def with_atomisation(
    totals: Mapping[str, np.ndarray], atomic_number: np.ndarray, node_ptr: np.ndarray
) -> dict[str, np.ndarray]:
    """Add the atomisation energies to targets with total energies.

    Args:
        totals: Targets [n] by name, with `u0`, `u298`, `h298`, `g298` in Ha.
        atomic_number: int [N].
        node_ptr: int [n + 1], the atoms of molecule i are `[ptr[i], ptr[i + 1])`.

    Returns:
        The targets, with `u0_atom` and so on in kcal/mol.
    """
    atomic_numbers(atomic_number, "Download the file again.")
    out = dict(totals)
    for name, atoms in _FREE_ATOMS.items():
        energy = np.zeros(int(atomic_number.max(initial=0)) + 1)
        for number, value in atoms.items():
            if number < len(energy):
                energy[number] = value
        free = np.add.reduceat(energy[atomic_number], node_ptr[:-1])
        out[f"{name}_atom"] = (totals[name] - free) * _KCAL_PER_HARTREE
    return out


# value = slope * stored + offset, of the z-scores in the tf-gnn-samples files.
_SCALES = {
    "mu": (1.5034491, 2.6729935),
    "alpha": (8.1729473, 75.280871),
    "homo": (0.021966663, -0.24021017),
    "lumo": (0.046849222, 0.011836091),
    "gap": (0.047191525, 0.25204612),
    "r2": (280.4726, 1189.4092),
    "zpve": (0.033135679, 0.14909115),
    "u0_atom": (238.05798, -1755.2853),
    "u298_atom": (240.16606, -1765.9964),
    "h298_atom": (241.87458, -1776.0917),
    "g298_atom": (219.02496, -1633.5396),
    "cv": (4.0674923, 31.620469),
}
_STORED = (*_SCALES, "omega1")

_NO_OBJECT = re.compile(rb"(?:^|[\r\n])[ \t]*[^{\s]")


def molecules(
    num_nodes: np.ndarray,
    bonds: Mapping[str, np.ndarray],
    edges: str,
    node: Mapping[str, np.ndarray],
    label: np.ndarray,
    ids: np.ndarray,
    split: np.ndarray | None = None,
) -> FlatGraphs:
    """Build the graphs of QM9 for all formats.

    Args:
        num_nodes: int [n].
        bonds: `num_edges` [n], `senders`, `receivers`, `edge_type`, each bond once.
        edges: `"bonds"`, or `"full"` for all pairs of atoms.
        node: Node features [N, ...].
        label: [n] or [n, T].
        ids: int [n], numbers of the molecules in GDB-9, from 1.
        split: int [n], 0 to 2.
    """
    one_of("edges", edges, ("bonds", "full"))
    atomic_numbers(node["atomic_number"], "Download the file again.")
    if len(np.unique(ids)) < len(ids):
        raise ValueError(
            "Expected distinct numbers of molecules. Received: one number twice. Get "
            "the file again."
        )
    ends = (bonds["senders"], bonds["receivers"], bonds["edge_type"])
    senders, receivers, kind = both_ways(*(e.astype(np.int64) for e in ends))
    both = {
        "num_edges": 2 * bonds["num_edges"],
        "senders": senders,
        "receivers": receivers,
        "edge_type": kind,
    }
    return FlatGraphs(
        num_nodes=num_nodes,
        **(both if edges == "bonds" else all_pairs(num_nodes, **both)),
        node=node,
        context={} if split is None else {"split": split},
        label=label,
        info=[{"gdb": int(i)} for i in ids],
    )


def read_bond_graphs(
    files: Mapping[str, Path],
    *,
    split: str | None,
    progress: bool,
    target: str | Sequence[str] | None = "u0_atom",
    edges: str = "bonds",
    normalised: bool = False,
) -> FlatGraphs:
    """Read `train.jsonl.gz`, `valid.jsonl.gz`, `test.jsonl.gz` of tf-gnn-samples.

    Args:
        files: `{"part": path}`, one of the files; the others are in the same folder.
        split: Reads only this file; all existing ones if None.
        progress: Whether to show a progress bar.
        target: A name, names, or None for all; see `qm9.UNITS`. `"omega1"`
            requires `normalised`.
        edges: `"bonds"` (type 1 single, 2 double, 3 triple, 4 aromatic), or `"full"`:
            all pairs, type 0 for pairs without a bond.
        normalised: Whether to keep the z-scores of the files instead of undoing the
            scaling.

    Returns:
        Node features `atomic_number` int32 [N] and `feature` float32 [N, 15] (one-hot
        element, atomic number, charge, flags of the atom); context `split`.
    """
    folder = files["part"].parent
    splits = [split] if split else list(SPLITS)
    available = [s for s in splits if (folder / f"{s}.jsonl.gz").exists()]
    if not available:
        raise FileNotFoundError(
            f"Expected {folder / f'{split}.jsonl.gz'}. Received: no such file. "
            "Get it from github.com/microsoft/tf-gnn-samples (data/qm9), or choose "
            "another split."
        )
    parts = []
    with progress_bar("Reading QM9", len(available), progress) as advance:
        for name in available:
            parts.append(_jsonl(folder / f"{name}.jsonl.gz"))
            advance(1)
    joined = {k: np.concatenate([part[k] for part in parts]) for k in parts[0]}
    table = dict(zip(_STORED, joined["targets"].T, strict=True))
    if not normalised:
        table = {k: a * table[k] + b for k, (a, b) in _SCALES.items()}
    number = np.repeat(
        [SPLITS.index(s) for s in available], [len(p["ids"]) for p in parts]
    )
    feature = joined["node"]
    return molecules(
        joined["num_nodes"],
        {k: joined[k] for k in ("num_edges", "senders", "receivers", "edge_type")},
        edges,
        {"atomic_number": feature[:, 5].astype(np.int32), "feature": feature},
        pick_targets(table, target),
        joined["ids"],
        number,
    )


def _jsonl(path: Path) -> dict[str, np.ndarray]:
    """Read the columns of a file with Arrow's parser; flatten nested lists."""
    import pyarrow as pa
    import pyarrow.json

    schema = pa.schema(
        {
            "targets": pa.list_(pa.list_(pa.float64())),
            "graph": pa.list_(pa.list_(pa.int64())),
            "id": pa.string(),
            "node_features": pa.list_(pa.list_(pa.float64())),
        }
    )
    options = pyarrow.json.ParseOptions(
        explicit_schema=schema, unexpected_field_behavior="ignore"
    )
    try:
        data = read_bytes(path)
        # A null line crashes Arrow.
        if (odd := _NO_OBJECT.search(data)) is not None:
            line = data.count(b"\n", 0, odd.start()) + 1
            raise ValueError(f"line {line}, which is no object")
        table = pyarrow.json.read_json(io.BytesIO(data), parse_options=options)
        columns = {k: table[k].combine_chunks() for k in schema.names}
        targets, target_count = _rows(columns["targets"], "targets", 1)
        if (target_count != len(_STORED)).any():
            raise ValueError(f"a molecule without {len(_STORED)} targets")
        bonds, bond_count = _rows(columns["graph"], "graph", 3)
        node, atom_count = _rows(columns["node_features"], "node_features", 15)
        if columns["id"].null_count:
            raise ValueError("a molecule without id")
        return {
            "num_nodes": atom_count,
            "num_edges": bond_count,
            "senders": bonds[:, 0],
            "edge_type": bonds[:, 1],
            "receivers": bonds[:, 2],
            "node": node,
            "targets": targets.reshape(-1, len(_STORED)),
            "ids": np.array(
                [int(i.partition(":")[2]) for i in columns["id"].to_pylist()], np.int64
            ),
        }
    except (ValueError, AttributeError, TypeError, OverflowError) as error:
        if str(path) in str(error):
            raise
        raise ValueError(
            f"Expected {path} to hold a molecule per line, with graph, node_features "
            f"[n][15], targets [13][1] and id. Received: {error}. Get it again."
        ) from error


def _rows(column: Any, name: str, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows [sum of counts, width] of a column of lists, and the counts."""
    rows = column.flatten()
    values = rows.flatten()
    if column.null_count or rows.null_count or values.null_count:
        raise ValueError(f"a molecule without {name}, or a null in it")
    if (rows.value_lengths().to_numpy() != width).any():
        raise ValueError(f"{name} with a row of other than {width} numbers")
    return values.to_numpy().reshape(-1, width), column.value_lengths().to_numpy()
