"""Whether a path visits all nodes, as far as reasonable time tells."""

import dataclasses

import numpy as np

from keras_bandgnn.preprocessing.attention.adjacency import among, keys_of
from keras_bandgnn.preprocessing.attention.path_cover import path_order


@dataclasses.dataclass(frozen=True)
class ConditionResult:
    """Result of a check: yes, no or unknown, and the reason.

    Attributes:
        answer: `"yes"`, `"no"`, or `"unknown"` where finding out would take too long.
        reason: Why, in a sentence.
    """

    answer: str
    reason: str

    def __str__(self) -> str:
        return f"{self.answer}: {self.reason}"


# Lower bound on the endpoints of paths, from the blocks of a graph.


def min_path_endpoints(linked) -> int:
    """Return a lower bound on the endpoints of paths that cover a connected graph.

    Blocks are the largest parts that no single node cuts. One that hangs on the rest
    by a single node cannot be left again, so it holds an end. A node alone is a path
    with two ends.

    Args:
        linked: Symmetric CSR array [N, N] without loops, connected.

    Returns:
        The number of leaf blocks of the block-cut tree, at least 2.

    Reference:
        Tarjan and Vishkin 1985: blocks from any spanning tree. It is taken breadth
        first here, so each step below works on one level of it.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    size = linked.shape[0]
    if size <= 2:
        return 2
    order, parent = breadth_first_order(linked, int(np.diff(linked.indptr).argmax()))
    place = np.empty(size, np.int64)
    place[order] = np.arange(size)
    # From here on nodes have their breadth-first numbers; 0 is the root.
    row = place[np.repeat(np.arange(size), np.diff(linked.indptr))]
    column = place[linked.indices]
    parent = np.concatenate([[0], place[parent[order[1:]]]])
    levels = _levels(parent)
    below = np.ones(size, np.int64)
    for first, last in reversed(levels):
        np.add.at(below, parent[first:last], below[first:last])
    # Numbers by which the nodes below one follow it without a gap.
    total = np.cumsum(below) - below
    eldest = np.searchsorted(parent[1:], np.arange(size)) + 1
    number = np.zeros(size, np.int64)
    number[1:] = 1 + total[1:] - total[eldest[parent[1:]]]
    for first, last in levels:
        number[first:last] += number[parent[first:last]]
    end = number + below
    # Smallest and largest number that the nodes below one are linked to.
    tree = (parent[row] == column) & (row > 0) | (parent[column] == row) & (column > 0)
    one, two = row[~tree], column[~tree]
    low, high = number.copy(), number.copy()
    np.minimum.at(low, one, number[two])
    np.maximum.at(high, one, number[two])
    for first, last in reversed(levels):
        np.minimum.at(low, parent[first:last], low[first:last])
        np.maximum.at(high, parent[first:last], high[first:last])
    # A node stands for its link to its parent; joined links are of one block.
    aside = end[one] <= number[two]
    above = parent[1:]
    outside = (low[1:] < number[above]) | (high[1:] >= end[above])
    outside &= above > 0
    joined = np.concatenate(
        [[one[aside], two[aside]], [np.arange(1, size)[outside], above[outside]]],
        axis=1,
    )
    joined = joined[:, (joined > 0).all(axis=0)] - 1
    entries = (np.ones(joined.shape[1]), (joined[0], joined[1]))
    matrix = csr_array(entries, shape=(size - 1, size - 1))
    count, block = connected_components(matrix, directed=False)
    # A block holds the node of each of its links and the parents of these.
    member = np.concatenate([np.arange(1, size), above])
    keys = np.sort(np.concatenate([block, block]).astype(np.int64) * size + member)
    block, member = np.divmod(keys[np.diff(keys, prepend=-1) > 0], size)
    cuts = np.bincount(member, minlength=size)[member] > 1
    return max(2, np.count_nonzero(np.bincount(block, cuts, count) == 1))


def _levels(parent: np.ndarray) -> list[tuple[int, int]]:
    """Return first and last node of each breadth-first level, without the root."""
    levels, first, last = [], 0, 1
    while last < parent.size:
        first, last = last, int(np.searchsorted(parent[1:], last - 1, "right")) + 1
        levels.append((first, last))
    return levels


# A path through all nodes of a small graph, by dynamic programming over sets.


def search(links: np.ndarray, token: bool) -> np.ndarray | None:
    """Find a path through all nodes, or show that there is none.

    Keeps for each of the 2^N sets of nodes the ends of the paths through the set.

    Args:
        links: bool [N, N], symmetric; N up to about 20.
        token: Whether a further node N, linked with all, is on the path, too.

    Returns:
        int32 [N], with a token [N + 1], or None.
    """
    size = len(links)
    bits = 1 << np.arange(size)
    neighbours = links @ bits
    whole = (1 << size) - 1
    count = np.zeros(1, np.int8)
    for _ in range(size):
        count = np.concatenate([count, count + 1])
    sets = np.argsort(count, kind="stable")
    bounds = np.searchsorted(count[sets], np.arange(size + 2))
    ends = np.zeros(whole + 1, np.int32)
    ends[bits] = bits
    for number in range(2, size + 1):
        level = sets[bounds[number] : bounds[number + 1]]
        for node in range(size):
            holding = level[level & bits[node] != 0]
            before = ends[holding ^ bits[node]]
            ends[holding[before & neighbours[node] != 0]] |= bits[node]
    if not token:
        return _trace(whole, ends, neighbours) if ends[whole] else None
    # The token joins a path through a set with one through all other nodes.
    covered = ends != 0
    covered[0] = True
    halves = np.flatnonzero(covered & covered[::-1])
    if not halves.size:
        return None
    one = _trace(int(halves[0]), ends, neighbours)
    two = _trace(whole ^ int(halves[0]), ends, neighbours)
    return np.concatenate([one, [size], two]).astype(np.int32)


def _trace(nodes: int, ends: np.ndarray, neighbours: np.ndarray) -> np.ndarray:
    path, allowed = [], -1
    while nodes:
        last = int(ends[nodes]) & allowed
        last = (last & -last).bit_length() - 1
        path.append(last)
        nodes, allowed = nodes ^ (1 << last), int(neighbours[last])
    return np.array(path, np.int32)


# Up to this many nodes every path can be tried.
_EXACT_NODES = 20
# So many numbers of hubs are left out, and as many where the degrees drop.
_TRIES = 24


def hamiltonian(linked, path: np.ndarray | None, token: bool):
    """Look for a path through all nodes, or for a proof that there is none.

    A token that is linked with all nodes can join two paths. So with it the question
    is whether two paths cover the nodes.

    Args:
        linked: Symmetric CSR array bool [N, N] without loops.
        path: int [N], an order of the nodes to try first, or None.
        token: Whether there is a token.

    Returns:
        A `ConditionResult`, and the path where one was found: int32 [N], or [N + 1]
        with the number N at the place of the token.
    """
    size = linked.shape[0]
    row = np.repeat(np.arange(size), np.diff(linked.indptr))
    gap = ""
    for order, name in (
        (path, "the given path"),
        (path_order(linked.indices, row, size), "a path found by greedy search"),
    ):
        if order is None:
            continue
        gaps = _gaps(linked, order)
        if gaps.size <= token:
            if token:
                place = gaps[0] + 1 if gaps.size else size
                order = np.insert(order, place, size)
            result = ConditionResult("yes", f"{name} uses edges only")
            return result, order.astype(np.int32)
        if name == "the given path":
            gap = f"; {gaps.size} links of the given path are no edges"
    obstacle = _obstacle(linked, token)
    if obstacle:
        return ConditionResult("no", obstacle), None
    if size <= _EXACT_NODES:
        order = search(linked.toarray(), token)
        if order is None:
            return ConditionResult("no", "a search among all paths finds none"), None
        reason = "a path was found by a search among all paths"
        return ConditionResult("yes", reason), order
    degree = np.diff(linked.indptr)
    needed = size - 1 - token
    if 2 * degree.min() >= needed:
        reason = f"every node has at least {degree.min()} neighbours (Dirac)"
        return ConditionResult("yes", reason), None
    if _ore(linked, degree, row, needed):
        reason = f"nodes without a link have {needed} neighbours together (Ore)"
        return ConditionResult("yes", reason), None
    reason = "neither a path nor a reason against one was found" + gap
    return ConditionResult("unknown", reason), None


def _gaps(linked, order: np.ndarray) -> np.ndarray:
    """Return the positions k where nodes k and k + 1 of an order have no link."""
    order = order.astype(np.int64)
    links = order[:-1] * linked.shape[0] + order[1:]
    return np.flatnonzero(~among(keys_of(linked), links))


def _obstacle(linked, token: bool) -> str:
    """Return why one path (two with a token) cannot cover all nodes, or ""."""
    from scipy.sparse.csgraph import connected_components

    size, paths = linked.shape[0], 1 + token
    covered = "two paths cannot cover them" if token else "no path joins them"
    count, component = connected_components(linked, directed=False)
    if count > paths:
        return f"the graph has {count} components; {covered}"
    degree = np.diff(linked.indptr)
    single = np.count_nonzero(degree <= 1)
    if single > 2 * paths and size > 1:
        return f"{single} nodes with at most one neighbour must be ends of paths"
    ends = 0
    for part in range(count):
        nodes = np.flatnonzero(component == part)
        ends += min_path_endpoints(linked if count == 1 else linked[nodes][:, nodes])
    if ends > 2 * paths:
        return f"parts behind cut nodes need {ends} ends of paths"
    # Without k nodes p paths are at most k + p pieces. Hubs are the nodes to try.
    order = np.argsort(-degree, kind="stable")
    drops = np.flatnonzero(np.diff(degree[order])) + 1
    numbers = np.geomspace(1, -(-size // 2), _TRIES).astype(int)
    for taken in np.union1d(numbers, drops[:: -(-drops.size // _TRIES) or 1]):
        rest = np.sort(order[taken:])
        pieces, _ = connected_components(linked[rest][:, rest], directed=False)
        if pieces > taken + paths:
            return f"without {taken} nodes the graph falls into {pieces} pieces"
    return ""


def _ore(linked, degree: np.ndarray, row: np.ndarray, needed: int) -> bool:
    """Return whether every pair without a link has `needed` neighbours in total.

    Counts the pairs that have fewer, and those of them that are links.
    """
    ascending = np.sort(degree)
    fewer = np.searchsorted(ascending, needed - ascending, side="left")
    itself = np.count_nonzero(2 * degree < needed)
    linked_fewer = np.count_nonzero(degree[row] + degree[linked.indices] < needed)
    return int(fewer.sum()) - itself == linked_fewer
