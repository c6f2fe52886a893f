"""Shared helpers of the readers: reverse edges, all pairs, splits and targets."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_bandgnn.checks import refuse, strings
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import check_within, pointers
from keras_bandgnn.data.reading import Limits, refuse_file

# Symbols of the chemical elements.


_SYMBOLS = (
    "H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn "
    "Ga Ge As Se Br Kr Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La "
    "Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po "
    "At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr Rf Db Sg Bh Hs Mt Ds Rg "
    "Cn Nh Fl Mc Lv Ts Og"
).split()

ATOMIC_NUMBERS = {symbol: number for number, symbol in enumerate(_SYMBOLS, start=1)}
"""Atomic number of each element by its symbol."""


SPLITS = ("train", "valid", "test")


def both_ways(
    senders: np.ndarray, receivers: np.ndarray, *features: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Insert after each edge its reverse, with the same features.

    Args:
        senders: int [E].
        receivers: int [E].
        *features: [E, ...].

    Returns:
        Senders and receivers [2 E], and the features [2 E, ...].

    Example:
    >>> both_ways(np.array([0, 1]), np.array([1, 2]))[0].tolist()
    [0, 1, 1, 2]
    """
    ends = np.stack([senders, receivers], axis=1)
    repeated = [np.repeat(feature, 2, axis=0) for feature in features]
    return ends.ravel(), ends[:, ::-1].ravel(), *repeated


def undirected(
    senders: np.ndarray, receivers: np.ndarray, num_nodes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Make the edges of a graph undirected, without self-loops and duplicates.

    Returns:
        Senders and receivers, sorted by receiver and then by sender.

    Example:
    >>> undirected(np.array([0, 1, 2]), np.array([1, 0, 2]), 3)
    (array([1, 0]), array([0, 1]))
    """
    keep = senders != receivers
    senders, receivers = senders[keep].astype(np.int64), receivers[keep]
    forth = receivers * np.int64(num_nodes) + senders
    back = senders * num_nodes + receivers
    key = np.unique(np.concatenate([forth, back]))
    return key % num_nodes, key // num_nodes


def all_pairs(
    num_nodes: np.ndarray,
    num_edges: np.ndarray,
    senders: np.ndarray,
    receivers: np.ndarray,
    edge_type: np.ndarray,
) -> dict[str, np.ndarray]:
    """Connect every node of a graph with every other node, in both directions.

    Args:
        num_nodes: int [n], nodes of each graph.
        num_edges: int [n], bonds of each graph, both ways.
        senders: int [sum of num_edges].
        receivers: int [sum of num_edges].
        edge_type: int [sum of num_edges], above 0.

    Returns:
        `num_edges`, `senders`, `receivers` (sorted), `edge_type` of all pairs; the
        type is 0 for pairs without a bond.

    Raises:
        ValueError: If a bond connects a node to itself or to another graph, or the
            pairs exceed the limits.

    Example:
    >>> one = np.array([1])
    >>> pairs = all_pairs(np.array([3]), one, one * 0, one, one * 2)
    >>> pairs["senders"].tolist(), pairs["edge_type"].tolist()
    ([1, 2, 0, 2, 0, 1], [0, 0, 2, 0, 0, 0])
    """
    num_nodes = num_nodes.astype(np.int64)
    columns = {"num_nodes": num_nodes, "num_edges": num_edges}
    columns |= {"senders": senders, "receivers": receivers}
    for name in ("senders", "receivers"):
        check_within(columns, name, "num_nodes")
    if (loops := np.flatnonzero(senders == receivers)).size:
        raise ValueError(
            "Expected bonds between two nodes. Received: senders and receivers "
            f"{senders[loops[0]]} in edge {loops[0]}. Use edges='bonds'."
        )
    pairs = num_nodes * (num_nodes - 1)
    size = int(pairs.sum(dtype=np.float64)) * 8
    Limits.current().check("all pairs of nodes", size, size)
    start = pointers(pairs)
    others = np.repeat(num_nodes - 1, pairs)
    within = np.arange(start[-1]) - np.repeat(start[:-1], pairs)
    receiver = within // np.maximum(others, 1)
    sender = within - receiver * others
    sender += sender >= receiver
    kind = np.zeros(len(sender), np.int32)
    graph = np.repeat(np.arange(len(num_nodes)), num_edges)
    before = np.asarray(senders, np.int64) - (senders > receivers)
    kind[start[graph] + receivers * (num_nodes[graph] - 1) + before] = edge_type
    return {
        "num_edges": pairs,
        "senders": sender,
        "receivers": receiver,
        "edge_type": kind,
    }


def target_names(target: Any) -> list[str]:
    """Return the names of one or several targets; raise an error if invalid."""
    names = [target] if isinstance(target, str) else target
    names = strings("target", names)
    if not names:
        refuse("target", "a name, several names, or None for all", target)
    return names


def pick_targets(
    table: Mapping[str, np.ndarray], target: str | Sequence[str] | None
) -> np.ndarray:
    """Return the target columns.

    Args:
        table: Columns [n] by name.
        target: A name, several names, or None for all columns.

    Returns:
        [n] for one name, [n, T] otherwise.

    Raises:
        ValueError: If there is no such column.

    Example:
    >>> table = {"mu": np.array([1.0, 2.0]), "gap": np.array([3.0, 4.0])}
    >>> pick_targets(table, ["gap", "mu"]).tolist()
    [[3.0, 1.0], [4.0, 2.0]]
    """
    names = list(table) if target is None else target_names(target)
    for name in names:
        if name not in table:
            refuse("target", f"among {', '.join(map(repr, table))}", name)
    if isinstance(target, str):
        return np.asarray(table[target])
    return np.stack([table[name] for name in names], axis=1)


def dense_rows(
    path: Path,
    name: str,
    data: np.ndarray,
    indices: np.ndarray,
    counts: np.ndarray,
    width: int,
) -> np.ndarray:
    """Convert sparse rows of a file to a dense matrix.

    Args:
        path: The file.
        name: Name of the matrix in errors.
        data: [nnz], the values.
        indices: int [nnz], their columns.
        counts: int [n], number of values per row.
        width: Number of columns.

    Returns:
        float32 [n, width]; duplicate entries are summed.

    Raises:
        ValueError: If lengths disagree, a column is out of range, or most columns are
            empty and the matrix is large.
    """
    import scipy.sparse as sp

    if not len(data) == len(indices) == counts.sum():
        received = f"{len(data)} values, {len(indices)} columns, {counts.sum()} rows"
        refuse_file(
            path, f"to have a column and a row for each value of {name}", received
        )
    used = int(indices.max()) + 1 if len(indices) else 0
    if width < used or (len(indices) and indices.min() < 0):
        received = f"columns from {indices.min()} to {used - 1}"
        refuse_file(path, f"to have columns of {name} in [0, {width})", received)
    what, limits = f"{name} of {path}", Limits.current()
    limits.check(what, 4 * len(counts) * (width - used), data.nbytes + indices.nbytes)
    limits.check(what, 4 * len(counts) * width, 4 * len(counts) * width)
    where = (indices.astype(np.int64), pointers(counts))
    matrix = sp.csr_matrix((data, *where), shape=(len(counts), width))
    return matrix.astype(np.float32).toarray()


def without_split(graphs: FlatGraphs) -> FlatGraphs:
    """Return the graphs without the context feature `split`."""
    columns = graphs.columns()
    del columns["context/split"]
    return FlatGraphs.from_columns(columns, graphs.info)


def take_split(name: str, graphs: FlatGraphs, split: str) -> FlatGraphs:
    """Return the graphs of a split.

    Args:
        name: Name of the data set in errors.
        graphs: All graphs, with the context feature `split`: 0, 1 or 2.
        split: `"train"`, `"valid"` or `"test"`.

    Raises:
        ValueError: If the data set has no splits of graphs, or not this one.
    """
    if graphs.label_level == "node":
        masks = [k for k in graphs.node if k.endswith("_mask")]
        raise ValueError(
            f"Expected split=None for {name!r}: it is one graph, and its splits are "
            f"of nodes. Received: split={split!r}. Load it whole and use the node "
            f"features {masks}."
        )
    if "split" not in graphs.context:
        raise ValueError(
            f"Expected split=None for {name!r}: these files have no splits. Received: "
            f"split={split!r}. Load all graphs and choose with graphs.take(indices)."
        )
    indices = np.flatnonzero(graphs.context["split"] == SPLITS.index(split))
    if not indices.size:
        have = np.unique(graphs.context["split"])
        raise ValueError(
            f"Expected graphs of the split {split!r} of {name!r}. Received: only "
            f"{', '.join(SPLITS[i] for i in have)}. Get the missing file."
        )
    return without_split(graphs.take(indices))
