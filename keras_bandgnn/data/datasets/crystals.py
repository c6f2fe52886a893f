"""Periodic crystal structures: Carbon-24, Perov-5, mlearn."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from keras_bandgnn.data.datasets.parts import (
    check_elements,
    pick_targets,
    read_split,
)
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.reading import open_npz

_TARGETS = ("heat_all_ev_per_atom", "energy_per_atom_ev", "energy_ev")


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
    """Builds graphs of periodic structures, without edges.

    Args:
        num_nodes: int [n].
        atomic_number: int [N].
        position: float [N, 3], Angstrom.
        cell: float [n, 3, 3], rows are lattice vectors in Angstrom.
        label: [n] or [n, T].
        node: Further node features.
        split: int [n], 0 to 2.
        info: Facts of each structure.
    """
    check_elements(atomic_number)
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


def read_npz(
    files: Mapping[str, Path],
    *,
    split: str | None,
    progress: bool,
    target: str | Sequence[str] | None = None,
) -> FlatGraphs:
    """Reads structures from arrays: `z`, `frac`, `lattice`, `node_ptr` and targets.

    Args:
        files: `{"npz": path}`.
        split: Not used; the split is in the file.
        progress: Not used.
        target: A column, several, or by default the energy of the set: per atom for
            Carbon-24 and Perov-5, of the cell for mlearn, in eV.

    Returns:
        Node features `atomic_number` int32 [N], `position` float32 [N, 3] in Angstrom
        and, where known, `force` float32 [N, 3] in eV/Angstrom; context `cell`
        float32 [n, 3, 3] (rows are lattice vectors) and `split`. No edges: which atoms
        are neighbours depends on the model.
    """
    with open_npz(files["npz"]) as arrays:
        z = arrays.take("z", "integers", (None,))
        num_nodes = arrays.counts("node_ptr", len(z), "z")
        frac = arrays.take("frac", "numbers", (len(z), 3))
        cell = arrays.take("lattice", "numbers", (len(num_nodes), 3, 3))
        split = read_split(arrays, "split", len(num_nodes))
        node = {}
        if (name := "forces_ev_per_ang") in arrays:
            node["force"] = arrays.take(name, "numbers", (len(z), 3))
        rest = {"z", "node_ptr", "frac", "lattice", "forces_ev_per_ang"}
        others = {k: arrays.load(k) for k in arrays.names if k not in rest}
    of_graphs = {
        name: array
        for name, array in others.items()
        if array.shape == (len(num_nodes),) and not name.endswith("split")
    }
    target = target or next((name for name in _TARGETS if name in of_graphs), None)
    at = np.repeat(np.arange(len(num_nodes)), num_nodes)
    with np.errstate(over="ignore", invalid="ignore"):
        position = np.einsum("ni,nij->nj", frac, cell[at])
    return structures(
        num_nodes, z, position, cell, pick_targets(of_graphs, target), node, split
    )
