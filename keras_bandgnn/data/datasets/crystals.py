"""Periodic crystal structures: Carbon-24, Perov-5, mlearn."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from keras_bandgnn.data.datasets.parts import pick_targets
from keras_bandgnn.data.flat import FlatGraphs

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
    with np.load(files["npz"], allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    num_nodes, cell = np.diff(arrays["node_ptr"]), arrays["lattice"]
    of_graphs = {
        name: array
        for name, array in arrays.items()
        if array.shape == (len(num_nodes),) and not name.endswith("split")
    }
    target = target or next(name for name in _TARGETS if name in of_graphs)
    node = {}
    if "forces_ev_per_ang" in arrays:
        node["force"] = arrays["forces_ev_per_ang"]
    at = np.repeat(np.arange(len(num_nodes)), num_nodes)
    return structures(
        num_nodes,
        arrays["z"],
        np.einsum("ni,nij->nj", arrays["frac"], cell[at]),
        cell,
        pick_targets(of_graphs, target),
        node,
        arrays["split"],
    )
