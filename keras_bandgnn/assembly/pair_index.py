"""`PairIndex`: the (sender, type) pairs of many graphs, computed once.

`Grouped.pack` computes the pairs of a supergraph from its edges. Where `Grouped`
processes all edges, they are the pairs of its graphs: each batch only has to sort
them by type, for which counts of pairs suffice.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from keras_bandgnn.primitives.grouped import Grouped

# Edges sorted at a time.
_CHUNK = 4_000_000


class PairIndex:
    """Pairs of each graph, sorted by type and sender.

    Args:
        graphs: `FlatGraphs`.
        num_types: P.
    """

    def __init__(self, graphs, num_types: int):
        self.counts = np.zeros((len(graphs), num_types), np.int32)
        kinds, ranks, senders, edge_pairs = [], [], [], []
        widest = int(graphs.num_nodes.max(initial=1))
        for low, high in graphs.ranges(_CHUNK):
            edges = slice(graphs.edge_ptr[low], graphs.edge_ptr[high])
            number = np.repeat(np.arange(high - low), graphs.num_edges[low:high])
            group = number * num_types + graphs.edge_type[edges]
            key = group * widest + graphs.senders[edges]
            pairs, pair_of_edge = np.unique(key, return_inverse=True)
            group, sender = np.divmod(pairs, widest)
            counts = np.bincount(group, minlength=(high - low) * num_types)
            first = np.cumsum(counts) - counts
            self.counts[low:high] = counts.reshape(-1, num_types)
            kinds.append((group % num_types).astype(np.int32))
            ranks.append((np.arange(len(pairs)) - first[group]).astype(np.int32))
            senders.append(sender.astype(np.int32))
            local_pair = pair_of_edge - first[number * num_types]
            edge_pairs.append(local_pair.astype(np.int32))
        empty = [np.zeros(0, np.int32)]
        self.kind = np.concatenate(kinds or empty)
        self.rank = np.concatenate(ranks or empty)
        self.sender = np.concatenate(senders or empty)
        self.edge_pair = np.concatenate(edge_pairs or empty)
        self.ptr = np.concatenate([[0], np.cumsum(self.counts.sum(axis=1))])


class PackedPairs:
    """The (sender, type) pairs of several supergraphs, sorted into groups of a type.

    Attributes:
        place: int32 [pairs], row of each pair within its supergraph.
    """

    def __init__(self, grouped: Grouped, place, sender, kind, starts, budgets):
        self.place = place
        self._size = grouped.group_size
        self._key = grouped.key()
        self._sender = sender
        self._kind = kind
        self._starts = starts
        self._budgets = budgets

    def cut(self, edge: Mapping, row: np.ndarray, first: int, replicas: int) -> dict:
        """Return the arrays of the `replicas` supergraphs of a batch."""
        low, high = self._starts[first], self._starts[first + replicas]
        receiver = edge["receiver"]
        length = self._budgets[first][self._key]
        if row.shape[1] != length:
            row = _fit(row, length, 0)
            receiver = _fit(receiver, length, self._budgets[first]["node"])
        return {
            "node": self._sender[low * self._size : high * self._size].reshape(
                replicas, -1, self._size
            ),
            "type": self._kind[low:high].reshape(replicas, -1),
            "row": row,
            "receiver": receiver,
        }


def _fit(values: np.ndarray, length: int, fill: int) -> np.ndarray:
    """Return rows truncated or padded to a length, [replicas, length]."""
    out = np.full((len(values), length), fill, values.dtype)
    count = min(length, values.shape[1])
    out[:, :count] = values[:, :count]
    return out


def pack_pairs(
    grouped: Grouped,
    counts: np.ndarray,
    lengths: np.ndarray,
    pair_counts: np.ndarray,
    kind: np.ndarray,
    rank: np.ndarray,
    sender: np.ndarray,
    budgets: Sequence[Mapping[str, int]],
) -> PackedPairs:
    """Sort the pairs of each supergraph by type, into groups of one type each.

    Args:
        grouped: The primitive.
        counts: int32 [m, P], pairs of each graph and type.
        lengths: int [S], graphs of each supergraph.
        pair_counts: int [m], pairs of each graph.
        kind: int32 [R], type of each pair.
        rank: int32 [R], place among the pairs of its graph and type.
        sender: int32 [R], node within the supergraph.
        budgets: Capacities of each supergraph.

    Returns:
        The packed pairs; unused groups have sender 0 and the last type.
    """
    size, num_types = grouped.group_size, counts.shape[1]
    row_key = f"{grouped.key()}.row"
    groups = [-(-budget[row_key] // size) + num_types for budget in budgets]
    starts = np.cumsum([0, *groups])
    before = np.zeros((len(counts) + 1, num_types), np.int64)
    np.cumsum(counts, axis=0, out=before[1:])
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    total = before[bounds[1:]] - before[bounds[:-1]]
    needed = -(-total // size)
    full = np.flatnonzero(needed.sum(axis=1) > groups)
    if full.size:
        raise ValueError(
            f"Expected at most {groups[full[0]]} groups of {size} rows for "
            f"'{row_key}'. Received: {needed[full[0]].sum()}. Raise the budget of "
            f"'{row_key}'."
        )
    first_row = (needed.cumsum(axis=1) - needed) * size - before[bounds[:-1]]
    base = before[:-1] + first_row.repeat(lengths, axis=0)
    owner = np.arange(len(counts)).repeat(pair_counts) * num_types + kind
    place = base.ravel().take(owner) + rank
    flat_sender = np.zeros(starts[-1] * size, np.int32)
    shift = (starts[:-1] * size).repeat(lengths).repeat(pair_counts)
    flat_sender[place + shift] = sender
    return PackedPairs(
        grouped,
        place.astype(np.int32),
        flat_sender,
        _types_of_groups(needed, starts),
        starts.tolist(),
        budgets,
    )


def _types_of_groups(needed: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the type of each group, int32, from the groups [S, P] of each type."""
    num_types = needed.shape[1]
    # Padding has the last type: types stay sorted.
    kind = np.full(starts[-1], num_types - 1, np.int32)
    types = np.arange(num_types, dtype=np.int32)
    for start, counts in zip(starts.tolist(), needed, strict=False):
        values = types.repeat(counts)
        kind[start : start + len(values)] = values
    return kind
