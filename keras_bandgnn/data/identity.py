"""Identity across a split: when two pairs, graphs or molecules are the same.

What is the same to a model must not be on both sides of a split. Everything that
splits, or checks a split, compares by the functions of this file.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_bandgnn.batch import STATE_ROW
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import on_host
from keras_bandgnn.optional import optional_import

_INT64 = 2**63
_FIRST_ROUNDS = 4


# === Pairs of nodes ===


def pair_keys(pairs, num_nodes: int, unordered: bool = False) -> np.ndarray:
    """Return one number per triple of sender, receiver and type.

    Args:
        pairs: `NodePairs`.
        num_nodes: Nodes of the graph.
        unordered: Whether a pair and its reverse have the same number.

    Returns:
        int64 [Q].
    """
    if (int(pairs.types.max(initial=0)) + 1) * num_nodes**2 >= _INT64:
        raise ValueError(
            "Expected a graph whose number of types times the square of its number of "
            f"nodes is below 2**63. Received: {num_nodes} nodes, type "
            f"{pairs.types.max()}. Number the types from 0."
        )
    first, second = pairs.senders.astype(np.int64), pairs.receivers.astype(np.int64)
    if unordered:
        first, second = np.minimum(first, second), np.maximum(first, second)
    return (pairs.types * np.int64(num_nodes) + first) * num_nodes + second


def link_keys(senders, receivers, num_nodes: int) -> np.ndarray:
    """Return one number per link: two nodes, in either direction and of any type.

    Args:
        senders: int [Q].
        receivers: int [Q].
        num_nodes: Nodes of the graph.

    Returns:
        int64 [Q].

    Example:
    >>> link_keys([0, 1, 1], [1, 0, 2], 3).tolist()
    [1, 1, 5]
    """
    first, second = np.asarray(senders, np.int64), np.asarray(receivers, np.int64)
    low, high = np.minimum(first, second), np.maximum(first, second)
    return low * num_nodes + high


def link_numbers(pairs, num_nodes: int) -> np.ndarray:
    """Number the links of pairs in the order of their first pair, int64 [Q]."""
    keys = link_keys(pairs.senders, pairs.receivers, num_nodes)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.reshape(-1)]


def both_ways(pairs):
    """Return `NodePairs` followed by their reverses, where both are one fact."""
    return type(pairs).concatenate([pairs, pairs.reversed()])


def leaks(pairs, edges, num_nodes: int, undirected: bool) -> np.ndarray:
    """Return which pairs are among the edges of a graph, bool [Q].

    Args:
        pairs: `NodePairs` to predict.
        edges: `NodePairs` that a model sees.
        num_nodes: Nodes of the graph.
        undirected: Whether to compare links; otherwise sender, receiver and type.
    """
    if undirected:
        keys = [link_keys(p.senders, p.receivers, num_nodes) for p in (pairs, edges)]
    else:
        keys = [pair_keys(p, num_nodes) for p in (pairs, edges)]
    return np.isin(*keys)


def joined_later(pairs, edges, num_nodes: int, undirected: bool) -> np.ndarray:
    """Return which pairs are edges at or after their own time, bool [Q].

    Args:
        pairs: `NodePairs` with times.
        edges: `NodePairs` with times, that a model sees.
        num_nodes: Nodes of the graph.
        undirected: Whether to compare links; otherwise sender, receiver and type.
    """
    out = np.zeros(len(pairs), bool)
    if not len(edges):
        return out
    if undirected:
        keys = [link_keys(p.senders, p.receivers, num_nodes) for p in (pairs, edges)]
    else:
        keys = [pair_keys(p, num_nodes) for p in (pairs, edges)]
    order = np.lexsort((edges.time, keys[1]))
    ordered = keys[1][order]
    # The last edge of each key.
    last = np.searchsorted(ordered, keys[0], side="right") - 1
    same = (last >= 0) & (ordered[last] == keys[0])
    out[same] = edges.time[order][last[same]] >= pairs.time[same]
    return out


def refuse_later(name: str, pairs, edges, num_nodes: int, undirected: bool) -> None:
    """Raise a ValueError if edges are not earlier than the first of the pairs.

    Args:
        name: The argument, for errors.
        pairs: `NodePairs` with times.
        edges: `NodePairs` with times: the messages, which serve one time, the earliest.
        num_nodes: Nodes of the graph.
        undirected: Whether links are compared.
    """
    if not len(pairs):
        return
    first = int(pairs.time.min())
    late = edges.time >= first
    if late.any():
        joined = int(joined_later(pairs, edges, num_nodes, undirected).sum())
        raise ValueError(
            f"Expected messages earlier than all of `{name}`, the first of which is of "
            f"time {first}. Received: {int(late.sum())} of {len(edges)} edges at or "
            f"after it, and {joined} of {len(pairs)} pairs that an edge joins at or "
            "after their own time. Pass edges_before(graph, time), draw neighbours by "
            "time with NeighborSampler(..., time='recent'), or evaluate the windows of "
            "walk_time(graph, pairs)."
        )


def without_types(pairs):
    """Return `NodePairs` of one type."""
    return type(pairs)(pairs.senders, pairs.receivers, time=pairs.time)


def mirrored(pairs, edges, num_nodes: int) -> np.ndarray:
    """Return which pairs are no edges while their reverse is one, bool [Q].

    Args:
        pairs: `NodePairs`.
        edges: `NodePairs` of a graph, whose types count.
        num_nodes: Nodes of the graph.
    """
    back = leaks(pairs.reversed(), edges, num_nodes, undirected=False)
    return back & ~leaks(pairs, edges, num_nodes, undirected=False)


def added_reverses(edges, transformed, num_nodes: int) -> np.ndarray:
    """Return which edges of a transformed graph are reverses of its edges, bool [E].

    They have the type of the edge, or another one that edges in their own direction
    have, too. Reverses with a type of their own are told apart by it.

    Args:
        edges: `NodePairs` of the graph.
        transformed: `NodePairs` of the graph as a model sees it.
        num_nodes: Nodes of the graph.
    """
    plain, ends = without_types(transformed), without_types(edges)
    # Of edges both ways no message tells which of them it is.
    forward = mirrored(plain.reversed(), ends, num_nodes)
    usual = np.unique(transformed.types[forward])
    reverse = mirrored(plain, ends, num_nodes) & np.isin(transformed.types, usual)
    return reverse | mirrored(transformed, edges, num_nodes)


def refuse_leaks(
    expected: str, pairs, leaked: np.ndarray, undirected: bool, advice: str
) -> None:
    """Raise a ValueError that counts the pairs that leak, if there are any.

    Args:
        expected: The requirement.
        pairs: `NodePairs`.
        leaked: bool [Q].
        undirected: Whether links were compared.
        advice: Last sentences of the error.
    """
    rows = np.flatnonzero(leaked)
    if len(rows):
        k = rows[0]
        item = "node" if pairs.edge_set is None else "row"
        links = " (or its reverse, or an edge of another type)" if undirected else ""
        raise ValueError(
            f"Expected {expected}. Received: {len(rows)} of {len(pairs)} pairs that "
            f"are, the first from {item} {pairs.senders[k]} to {pairs.receivers[k]} of "
            f"type {pairs.types[k]}{links}. {advice}"
        )


# === Rows of nodes and edges ===


def check_masks(masks: Mapping[str, np.ndarray], level: str) -> None:
    """Raise a ValueError if a node or an edge is in several parts of a split.

    Args:
        masks: The mask of each part by name, [N] or [N, S].
        level: "node" or "edge", for the error.
    """
    seen: dict[str, np.ndarray] = {}
    for name, mask in masks.items():
        mask = np.asarray(mask, bool).reshape(len(mask), -1)
        for other, rows in seen.items():
            shared = (mask & rows).any(axis=1)
            if shared.any():
                raise ValueError(
                    f"Expected each {level} in one part of a split. Received: "
                    f"{int(shared.sum())} of {len(shared)} {level}s in {other!r} and "
                    f"in {name!r}, the first {level} {int(np.argmax(shared))}. Clear "
                    "one of the masks there."
                )
        seen[name] = mask


def shared_links(graphs: FlatGraphs, train: np.ndarray, valid: np.ndarray) -> int:
    """Return how many edges of a part join two nodes as edges of another part do.

    Args:
        graphs: The graphs.
        train: Mask of the edges of the other part, [E].
        valid: Mask of the edges of the part, [E].
    """
    offset = graphs.node_ptr[:-1].repeat(graphs.num_edges)
    ends = graphs.senders + offset, graphs.receivers + offset
    links = link_keys(*ends, int(graphs.node_ptr[-1]))
    train, valid = (np.asarray(mask, bool) for mask in (train, valid))
    return int(np.isin(links[valid], links[train]).sum())


# === Graphs ===


def graph_keys(
    graphs: FlatGraphs,
    read: Mapping[str, Collection[str]] | None = None,
    ignored: Collection[str] = (),
    types: bool = True,
) -> np.ndarray:
    """Return numbers that graphs share exactly if a model cannot tell them apart.

    Equal graphs have the same number in whatever order their nodes are: colours of
    nodes are refined by those of their neighbours, as by Weisfeiler and Leman 1968,
    which no network of messages surpasses. Labels, weights of samples, times and `info`
    do not count. Numbers of several calls are not comparable.

    Args:
        graphs: n graphs.
        read: Names of the features that the model reads from "node", "edge" and
            "graph"; None for all features.
        ignored: Names of features that do not count.
        types: Whether types of edges count.

    Returns:
        uint64 [n].

    Example:
    >>> from keras_bandgnn import Graph
    >>> paths = [Graph(3, [0, 1], [1, 2]), Graph(3, [2, 0], [0, 1]), Graph(3, [], [])]
    >>> keys = graph_keys(FlatGraphs.from_graphs(paths)).tolist()
    >>> keys[0] == keys[1], keys[0] == keys[2]
    (True, False)
    """
    ignored = {*ignored}
    tables = graphs.sets and (read is None or STATE_ROW in read.get("node", ()))
    # The row of a node says less than what it holds.
    ignored |= {"set_row"} if graphs.sets else set()

    def features(level: str, columns: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        names = columns if read is None else read.get(level, columns)
        names = {*names} & {*columns} - ignored
        return [columns[k] for k in sorted(names) if not on_host(level, k)]

    def keys_of(part: FlatGraphs, rounds: int | None) -> np.ndarray:
        kinds = [part.edge_type] if types else []
        return _refined(
            part,
            [
                _marks(part),
                *features("node", part.node),
                *([_rows_of_sets(part), part.node["set"]] if tables else []),
            ],
            [*kinds, *features("edge", part.edge)],
            features("graph", part.context),
            rounds,
        )

    # Nearly all graphs differ soon; the others are refined to the end.
    keys = keys_of(graphs, _FIRST_ROUNDS)
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    alike = np.flatnonzero(counts[inverse.reshape(-1)] > 1)
    if len(alike):
        keys[alike] = keys_of(graphs.take(alike), None)
    return keys


def _rows_of_sets(graphs: FlatGraphs) -> np.ndarray:
    """Return a hash of each node's features in its set, int32 [sum of num_nodes, 2]."""
    out = np.zeros(int(graphs.node_ptr[-1]), np.uint64)
    first = np.arange(len(graphs)).repeat(graphs.num_nodes)
    for number, (name, table) in enumerate(graphs.sets.items()):
        ptr = graphs.set_ptr[name]
        hashes = _hashes(int(ptr[-1]), [table[key] for key in sorted(table)])
        here = graphs.node["set"] == number
        out[here] = hashes[ptr[first[here]] + graphs.node["set_row"][here]]
    return out.view(np.int32).reshape(-1, 2)


def _marks(graphs: FlatGraphs) -> np.ndarray:
    """Return which nodes are candidates and slots, int32 [sum of num_nodes]."""
    first = graphs.node_ptr[:-1]
    marks = np.zeros(int(graphs.node_ptr[-1]), np.int32)
    if graphs.candidates is not None:
        members = np.diff(graphs.candidate_ptr)
        marks[graphs.candidates + first.repeat(members)] = 1
    has_slot = graphs.slot >= 0
    marks[(graphs.slot + first)[has_slot]] += 2
    return marks


def _refined(
    graphs: FlatGraphs,
    node: list[np.ndarray],
    edge: list[np.ndarray],
    graph: list[np.ndarray],
    rounds: int | None,
) -> np.ndarray:
    """Return a hash of each graph by the colours of its nodes, uint64 [n].

    Args:
        graphs: n graphs.
        node: What tells nodes apart, [sum of num_nodes, ...] each.
        edge: What tells edges apart, [sum of num_edges, ...] each.
        graph: What tells graphs apart, [n, ...] each.
        rounds: Rounds of refinement; None for as many as change anything.
    """
    colour = _hashes(int(graphs.node_ptr[-1]), node)
    edges = _hashes(int(graphs.edge_ptr[-1]), edge)
    offset = graphs.node_ptr[:-1].repeat(graphs.num_edges)
    ends = graphs.senders + offset, graphs.receivers + offset
    sums = [_Sums(index, len(colour)) for index in ends[::-1]]
    classes, number = 0, 0
    while len(edges) and number != rounds:
        if rounds is None and number % _FIRST_ROUNDS == 0:
            before, classes = classes, len(np.unique(colour))
            if before == classes:
                break
        around = np.zeros_like(colour)
        for salt, (near, total) in enumerate(zip(ends, sums, strict=True)):
            around += total(_mixed(_mixed(colour[near] + edges) + np.uint64(salt)))
        colour = _mixed(colour + _mixed(around))
        number += 1
    whole = _hashes(len(graphs), [graphs.num_nodes, graphs.num_edges, *graph])
    rows = np.arange(len(graphs)).repeat(graphs.num_nodes)
    return _mixed(_Sums(rows, len(graphs))(_mixed(colour)) + whole)


class _Sums:
    """Sums of 64-bit numbers by an index, with overflow.

    Args:
        index: int [m].
        count: Number of sums.
    """

    def __init__(self, index: np.ndarray, count: int):
        self._order = np.argsort(index, kind="stable")
        index = index[self._order]
        self._starts = np.flatnonzero(np.diff(index, prepend=-1))
        self._rows, self._count = index[self._starts], count

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return uint64 [count]; 0 where nothing is added."""
        out = np.zeros(self._count, np.uint64)
        if len(self._starts):
            out[self._rows] = np.add.reduceat(values[self._order], self._starts)
        return out


def _mixed(values: np.ndarray) -> np.ndarray:
    """Scatter numbers over 64 bits, as the generator SplitMix64 does."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _hashes(count: int, columns: Iterable[np.ndarray]) -> np.ndarray:
    """Return a hash of each row of several arrays of 32-bit numbers, uint64 [count]."""
    out = np.zeros(count, np.uint64)
    for values in columns:
        if values.dtype.kind == "f":
            # -0.0 is 0.0.
            values = values.astype(np.float32) + np.float32(0)
        else:
            values = values.astype(np.int32)
        width = values.size // count if count else 0
        for column in values.reshape(count, width).T:
            bits = np.ascontiguousarray(column).view(np.uint32)
            out = _mixed(out ^ _mixed(bits.astype(np.uint64)))
    return out


def merged_groups(*keys: Sequence[Hashable]) -> list[int]:
    """Return the group of each item; items that share a key in any list have one.

    Args:
        *keys: Lists of n keys.

    Example:
    >>> merged_groups("aabc", [1, 2, 2, 3])
    [0, 0, 0, 3]
    """
    group = list(range(len(keys[0])))

    def first(item: int) -> int:
        while group[item] != item:
            group[item] = item = group[group[item]]
        return item

    for column in keys:
        seen: dict[Hashable, int] = {}
        for item, key in enumerate(column):
            one, other = sorted((first(item), first(seen.setdefault(key, item))))
            group[other] = one
    return [first(item) for item in range(len(group))]


# === Molecules ===


def _plain(molecule: Any) -> Any:
    """Return a molecule without the properties that graphs of molecules lack."""
    chem = optional_import("rdkit.Chem", "keras-bandgnn[chem]")
    none = chem.BondStereo.STEREONONE
    if not any(
        atom.GetAtomMapNum() or atom.GetIsotope() or atom.GetAtomicNum() == 1
        for atom in molecule.GetAtoms()
    ) and all(bond.GetStereo() == none for bond in molecule.GetBonds()):
        return molecule
    plain = chem.RWMol(molecule)
    for atom in plain.GetAtoms():
        atom.SetAtomMapNum(0)
        atom.SetIsotope(0)
    for bond in plain.GetBonds():
        bond.SetStereo(none)
        bond.SetBondDir(chem.BondDir.NONE)
    # Centres that isotopes alone made are none.
    chem.AssignStereochemistry(plain, cleanIt=True, force=True)
    # Written and read, so that mapped atoms have the hydrogens of others.
    again = chem.MolFromSmiles(chem.MolToSmiles(plain))
    return plain if again is None else again


def molecule_key(molecule: Any) -> str:
    """Return one SMILES string for all spellings of a molecule of RDKit.

    Atom maps, isotopes, explicit hydrogens and E/Z do not count: graphs of molecules
    do not have them, or not always.
    """
    chem = optional_import("rdkit.Chem", "keras-bandgnn[chem]")
    return chem.MolToSmiles(_plain(molecule))


def scaffold_key(molecule: Any, chirality: bool = False) -> str:
    """Return the Bemis-Murcko scaffold of a molecule of RDKit, as a SMILES string.

    Args:
        molecule: The molecule, of which the same counts as for `molecule_key`.
        chirality: Whether scaffolds that are mirror images differ.
    """
    module = "rdkit.Chem.Scaffolds.MurckoScaffold"
    murcko = optional_import(module, "keras-bandgnn[chem]")
    plain = _plain(molecule)
    return murcko.MurckoScaffoldSmiles(mol=plain, includeChirality=chirality)
