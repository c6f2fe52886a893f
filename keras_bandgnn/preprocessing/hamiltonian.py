"""Is there a path through all nodes? What can be said in reasonable time."""

import numpy as np

from keras_bandgnn.preprocessing.adjacency import among, keys_of
from keras_bandgnn.preprocessing.hamiltonian_search import search
from keras_bandgnn.preprocessing.leaf_blocks import path_ends
from keras_bandgnn.preprocessing.path_cover import path_order
from keras_bandgnn.preprocessing.verdict import Verdict

# Up to so many nodes every path can be tried.
_EXACT_NODES = 20
# So many numbers of hubs are left out, and as many where the degrees drop.
_TRIES = 24


def hamiltonian(linked, given: np.ndarray | None, token: bool):
    """Looks for a path through all nodes, or a reason why there is none.

    A token that is linked with all nodes can join two paths. So with it the question
    is whether two paths cover the nodes.

    Args:
        linked: Symmetric CSR array bool [N, N] without loops.
        given: int [N], an order of the nodes to try first, or None.
        token: Whether there is a token.

    Returns:
        A `Verdict`, and the path where one was found: int32 [N], or [N + 1] with the
        number N at the place of the token.
    """
    size = linked.shape[0]
    row = np.repeat(np.arange(size), np.diff(linked.indptr))
    gap = ""
    for order, name in (
        (given, "the given path"),
        (path_order(linked.indices, row, size), "a path found by greedy search"),
    ):
        if order is None:
            continue
        gaps = _gaps(linked, order)
        if gaps.size <= token:
            if token:
                place = gaps[0] + 1 if gaps.size else size
                order = np.insert(order, place, size)
            return Verdict("yes", f"{name} uses edges only"), order.astype(np.int32)
        if name == "the given path":
            gap = f"; {gaps.size} links of the given path are no edges"
    obstacle = _obstacle(linked, token)
    if obstacle:
        return Verdict("no", obstacle), None
    if size <= _EXACT_NODES:
        order = search(linked.toarray(), token)
        if order is None:
            return Verdict("no", "a search among all paths finds none"), None
        return Verdict("yes", "a path was found by a search among all paths"), order
    degree = np.diff(linked.indptr)
    needed = size - 1 - token
    if 2 * degree.min() >= needed:
        reason = f"every node has at least {degree.min()} neighbours (Dirac)"
        return Verdict("yes", reason), None
    if _ore(linked, degree, row, needed):
        reason = f"nodes without a link have {needed} neighbours together (Ore)"
        return Verdict("yes", reason), None
    reason = "neither a path nor a reason against one was found" + gap
    return Verdict("unknown", reason), None


def _gaps(linked, order: np.ndarray) -> np.ndarray:
    """Positions k at which the nodes k and k + 1 of an order have no link."""
    order = order.astype(np.int64)
    links = order[:-1] * linked.shape[0] + order[1:]
    return np.flatnonzero(~among(keys_of(linked), links))


def _obstacle(linked, token: bool) -> str:
    """Why one path (with a token: two) cannot cover all nodes, or nothing."""
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
        ends += path_ends(linked if count == 1 else linked[nodes][:, nodes])
    if ends > 2 * paths:
        return f"parts that hang on one node each need {ends} ends of paths"
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
    """Whether all pairs without a link have `needed` neighbours together.

    Counts the pairs that have fewer, and those of them that are links.
    """
    ascending = np.sort(degree)
    fewer = np.searchsorted(ascending, needed - ascending, side="left")
    itself = np.count_nonzero(2 * degree < needed)
    linked_fewer = np.count_nonzero(degree[row] + degree[linked.indices] < needed)
    return int(fewer.sum()) - itself == linked_fewer
