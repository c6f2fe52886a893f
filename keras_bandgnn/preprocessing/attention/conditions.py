"""`attention_conditions`: may attention along edges replace full attention?"""

import dataclasses

import numpy as np

from keras_bandgnn.arrays import checked_ids
from keras_bandgnn.checks import boolean, instance, positive_int, refuse
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.attention.adjacency import adjacency, among, keys_of
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


@dataclasses.dataclass(frozen=True)
class AttentionConditions:
    """Results for the conditions for sparse attention; print it to read them.

    Attributes:
        self_attention: C1, every node attends to itself.
        path: C2, a path leads through all nodes, each once.
        reach: C3, every node reaches every other within the layers.
        order: The path of C2 where one was found: int32 [N], the nodes one after
            another, or [N + 1] with the number N at the place of the global token.
    """

    self_attention: ConditionResult
    path: ConditionResult
    reach: ConditionResult
    order: np.ndarray | None = dataclasses.field(
        default=None, compare=False, repr=False
    )

    @property
    def sparse_suffices(self) -> bool:
        """Whether all three conditions are known to hold."""
        verdicts = (self.self_attention, self.path, self.reach)
        return all(verdict.answer == "yes" for verdict in verdicts)

    def __str__(self) -> str:
        suffices = "suffices" if self.sparse_suffices else "is not known to suffice"
        return (
            f"C1 self-attention  {self.self_attention}\n"
            f"C2 path            {self.path}\n"
            f"C3 reach           {self.reach}\n"
            f"Sparse attention {suffices}."
        )


def attention_conditions(
    graph: Graph,
    num_layers: int,
    self_loops: bool = True,
    path: np.ndarray | None = None,
    global_token: bool = False,
) -> AttentionConditions:
    """Check the conditions under which sparse attention may replace full attention.

    C1: every node attends to itself. C2: a path through all nodes exists; directions
    do not matter. C3: every node reaches every other within the layers, in the
    direction of the edges. No answer is a guess; what would take too long to find out
    is `"unknown"`:

    - C2 is decided for up to 20 nodes. For larger graphs it is yes by the given path,
      by a greedy one, or by the theorems of Dirac and Ore; no where there are several
      components, or more than two nodes with at most one neighbour.
    - C3 is decided up to 2,000 nodes, and up to 32,768 with few edges. For larger
      graphs the distances of a few nodes may tell.

    Args:
        graph: A graph. Where it has the edge feature `attend` (`AttentionEdges`), only
            edges with the value 1 count.
        num_layers: Number of layers L of the transformer.
        self_loops: Whether attention adds every node to those that it attends to.
        path: int [N], a known order of the nodes along a path; it is checked. For the
            edges of `AttentionEdges(path=True)` it is the `canonical_path` of the
            graph before.
        global_token: Whether a further node attends to all others, and all to it.

    Returns:
        An `AttentionConditions`.

    Raises:
        ValueError: If `path` does not hold every node once.

    Reference:
        Zhang et al. 2024 (TorchGT), Section III-B. Dirac 1952, Ore 1960.

    Example:
    >>> ring = Graph(4, [0, 1, 2, 3], [1, 2, 3, 0])
    >>> found = attention_conditions(ring, num_layers=3)
    >>> found.sparse_suffices, found.path.answer, found.order.tolist()
    (True, 'yes', [2, 1, 0, 3])
    >>> attention_conditions(ring, num_layers=2).reach.answer
    'no'
    """
    instance("graph", graph, Graph, "a Graph")
    num_layers = positive_int("num_layers", num_layers)
    boolean("self_loops", self_loops)
    boolean("global_token", global_token)
    size = graph.num_nodes
    if path is not None:
        path = checked_ids("path", path, size, "num_nodes")
        if not np.array_equal(np.sort(path), np.arange(size)):
            refuse("path", f"an order of the {size} nodes, each once", path)
    senders, receivers = graph.senders, graph.receivers
    if "attend" in graph.edge:
        attend = graph.edge["attend"] == 1
        senders, receivers = senders[attend], receivers[attend]
    linked = adjacency(size, senders, receivers, symmetric=True)
    c2, order = hamiltonian(linked, path, global_token)
    edges = adjacency(size, senders, receivers)
    return AttentionConditions(
        self_attention=_self_attention(size, senders, receivers, self_loops),
        path=c2,
        reach=reachable_within(edges, num_layers, global_token),
        order=order,
    )


def _self_attention(size: int, senders, receivers, self_loops: bool) -> ConditionResult:
    if self_loops:
        return ConditionResult("yes", "self-loops are added")
    looped = np.bincount(senders[senders == receivers], minlength=size) > 0
    if looped.all():
        return ConditionResult("yes", "every node has a self-loop")
    missing = np.count_nonzero(~looped)
    return ConditionResult("no", f"{missing} nodes have no self-loop")


# === C2: a path through all nodes ===

# Up to this many nodes every path can be tried.
_SEARCHED_NODES = 20


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
    if size <= _SEARCHED_NODES:
        order = search(linked.toarray(), token)
        if order is None:
            return ConditionResult("no", "a search among all paths finds none"), None
        reason = "a path was found by a search among all paths"
        return ConditionResult("yes", reason), order
    degree, needed = np.diff(linked.indptr), size - 1 - token
    if _ore(linked, degree, row, needed):
        reason = f"nodes without a link have {needed} neighbours together (Dirac, Ore)"
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
    count, _ = connected_components(linked, directed=False)
    if count > paths:
        return f"the graph has {count} components; {covered}"
    single = np.count_nonzero(np.diff(linked.indptr) <= 1)
    if single > 2 * paths and size > 1:
        return f"{single} nodes with at most one neighbour must be ends of paths"
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


# === C3: every node within reach ===

# Up to this many nodes all pairs are checked, however many edges there are.
_EXACT_NODES = 2000
# Otherwise up to this many nodes and bytes read, if there are few edges.
_MAX_NODES = 32768
_MAX_BYTES = 8e9


def reachable_within(matrix, steps: int, token: bool) -> ConditionResult:
    """Return whether every node reaches every other within `steps` edges.

    Args:
        matrix: CSR array bool [N, N] without loops, row = receiver.
        steps: Number of layers.
        token: Whether a further node is linked with all, both ways.

    Returns:
        A `ConditionResult`; unknown only for large graphs.
    """
    size = matrix.shape[0]
    if size == 1 or matrix.nnz == size * (size - 1):
        return ConditionResult("yes", "every node is linked with every other")
    if token and steps > 1:
        return ConditionResult("yes", "two steps lead through the global token")
    within = f"within {steps} step{'s' * (steps > 1)}"
    if steps == 1:
        missing = size * (size - 1) - matrix.nnz
        return ConditionResult("no", f"{missing} pairs of nodes have no edge")
    answer = _by_few_nodes(matrix, steps, within)
    if answer is not None:
        return answer
    work = matrix.nnz * size / 8 * steps
    if size > _EXACT_NODES and (size > _MAX_NODES or work > _MAX_BYTES):
        reason = "few nodes were tried, all pairs would take long"
        return ConditionResult("unknown", reason)
    short = _unreached(matrix, steps)
    if short:
        reason = f"{short} nodes are not reached by all others {within}"
        return ConditionResult("no", reason)
    return ConditionResult("yes", f"every node reaches every other {within}")


def _by_few_nodes(matrix, steps: int, within: str) -> ConditionResult | None:
    """Bound the answer by the distances of a hub and of nodes with few neighbours."""
    from scipy.sparse.csgraph import dijkstra

    forward = matrix.T.tocsr()
    received, sent = np.diff(matrix.indptr), np.diff(forward.indptr)
    hub = int(np.argmax(received + sent))
    for node in (int(np.argmin(received)), int(np.argmin(sent)), hub):
        far = []
        for graph, verb in ((forward, "reaches"), (matrix, "is reached by")):
            distance = dijkstra(graph, indices=node, unweighted=True, limit=steps)
            if np.isinf(distance).any():
                count = np.count_nonzero(np.isinf(distance))
                reason = f"node {node} {verb} all others {within}, except {count}"
                return ConditionResult("no", reason)
            far.append(int(distance.max()))
        if sum(far) <= steps:
            reason = (
                f"node {node} is reached by all within {far[1]} and reaches all within "
                f"{far[0]} steps"
            )
            return ConditionResult("yes", reason)
    return None


def _unreached(matrix, steps: int) -> int:
    """Count the nodes that some node does not reach, with a bit per sender."""
    size = matrix.shape[0]
    rows = np.flatnonzero(np.diff(matrix.indptr))
    start = matrix.indptr[rows]
    short = np.zeros(size, bool)
    for first in range(0, size, 64):
        senders = np.arange(first, min(first + 64, size))
        heard = np.zeros(size, np.uint64)
        heard[senders] = np.uint64(1) << (senders - first).astype(np.uint64)
        everyone = np.bitwise_or.reduce(heard)
        for _ in range(steps):
            reached = np.bitwise_or.reduceat(heard[matrix.indices], start)
            heard[rows] |= reached
        short |= heard != everyone
    return int(np.count_nonzero(short))
