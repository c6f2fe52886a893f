"""Real graphs in the array files of the shared data, for tests.

Ragged arrays have pointers: graph i has the nodes `[node_ptr[i], node_ptr[i + 1])`.
"""

from pathlib import Path

import numpy as np

from keras_bandgnn.data.datasets import aflow, parts, qm9
from keras_bandgnn.data.datasets.node_graphs import _one_graph
from keras_bandgnn.data.flat import FlatGraphs


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the only npz file of a folder, or a file."""
    if path.is_dir():
        (path,) = path.glob("*.npz")
    with np.load(path) as arrays:
        return dict(arrays)


def _of_split(path: Path, graphs: FlatGraphs, split: str | None) -> FlatGraphs:
    return graphs if split is None else parts.take_split(path.name, graphs, split)


def load_qm9(
    path: Path, split: str | None = None, target="u0_atom", edges: str = "bonds"
) -> FlatGraphs:
    """Return molecules of QM9 with positions."""
    arrays = _arrays(path)
    senders, receivers = arrays["edge_index"]
    bonds = {
        "num_edges": np.diff(arrays["edge_ptr"]),
        "senders": senders,
        "receivers": receivers,
        "edge_type": arrays["bond_type"],
    }
    table = dict(zip(arrays["target_names"], arrays["targets"].T, strict=True))
    table |= {k: arrays[k] for k in ("u0_hartree", "u0_atomization_ev")}
    graphs = qm9.molecules(
        np.diff(arrays["node_ptr"]),
        bonds,
        edges,
        {"atomic_number": arrays["z"], "position": arrays["pos"]},
        parts.pick_targets(table, target),
        arrays["gdb_id"],
        arrays["split"],
    )
    return _of_split(path, graphs, split)


def load_molecules(path: Path, split: str | None = None, target="y") -> FlatGraphs:
    """Return molecules of MoleculeNet or ZINC, with the features of `from_smiles`."""
    arrays = _arrays(path)
    ends = arrays["edge_index"].astype(np.int64)
    senders, receivers, bond = parts.both_ways(*ends, arrays["bond"])
    if "task" in arrays:
        label = arrays["y"][:, 0] if arrays["y"].shape[1] == 1 else arrays["y"]
    else:
        label = parts.pick_targets(arrays, target)
    name = "split_scaffold" if "split_scaffold" in arrays else "split"
    graphs = FlatGraphs(
        num_nodes=np.diff(arrays["node_ptr"]),
        num_edges=2 * np.diff(arrays["edge_ptr"]),
        senders=senders,
        receivers=receivers,
        edge_type=bond[:, 0],
        node={"atom": arrays["atom"]},
        edge={"bond": bond},
        context={"split": arrays[name]} if name in arrays else {},
        label=label,
    )
    return _of_split(path, graphs, split)


def load_node_graph(path: Path) -> FlatGraphs:
    """Return the one graph of a Planetoid, Amazon or Coauthor file."""
    import scipy.sparse as sp

    arrays = _arrays(path)
    label = arrays["y"]
    # Some files have the shape [F, N]; the rows are nodes in all of them.
    width = int(arrays["x_shape"].sum()) - len(label)
    data = arrays.get("x_data", np.ones(len(arrays["x_indices"])))
    rows = (data, arrays["x_indices"].astype(np.int64), arrays["x_indptr"])
    feature = sp.csr_matrix(rows, shape=(len(label), width))
    masks = {"train_mask": "train_mask", "val_mask": "valid_mask"}
    masks |= {"test_mask": "test_mask", "x_known_mask": "known_mask"}
    node = {ours: arrays[name] for name, ours in masks.items() if name in arrays}
    ends = arrays["edge_index"].astype(np.int64)
    return _one_graph(path, *ends, feature.astype("f4").toarray(), label, node)


def load_crystals(path: Path, split: str | None = None) -> FlatGraphs:
    """Return crystals of Carbon-24, Perov-5 or mlearn, with their energies in eV."""
    arrays = _arrays(path)
    num_nodes = np.diff(arrays["node_ptr"].astype(np.int64))
    at = np.repeat(np.arange(len(num_nodes)), num_nodes)
    targets = ("heat_all_ev_per_atom", "energy_per_atom_ev", "energy_ev")
    force = arrays.get("forces_ev_per_ang")
    graphs = aflow.structures(
        num_nodes,
        arrays["z"],
        np.einsum("ni,nij->nj", arrays["frac"], arrays["lattice"][at]),
        arrays["lattice"],
        next(arrays[name] for name in targets if name in arrays),
        {} if force is None else {"force": force},
        arrays["split"],
    )
    return _of_split(path, graphs, split)
