"""`attention_conditions`: may attention along edges replace full attention?"""

import dataclasses

import numpy as np

from keras_bandgnn.arrays import checked_ids
from keras_bandgnn.checks import boolean, instance, positive_int
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.attention.adjacency import adjacency
from keras_bandgnn.preprocessing.attention.hamiltonian import (
    ConditionResult,
    hamiltonian,
)

# k-hop reachability.


# Up to this many nodes all pairs are checked, however many edges there are.
_EXACT_NODES = 2000
# Otherwise up to this many nodes and bytes read, if there are few edges.
_MAX_NODES = 32768
_MAX_BYTES = 8e9
# Bytes of the rows that are gathered together.
_BYTES = 1 << 25


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
    if size == 1:
        return ConditionResult("yes", "there is one node")
    if token and steps > 1:
        return ConditionResult("yes", "two steps lead through the global token")
    if matrix.nnz == size * (size - 1):
        return ConditionResult("yes", "every node is linked with every other")
    within = f"within {steps} step{'s' * (steps > 1)}"
    if steps == 1:
        missing = size * (size - 1) - matrix.nnz
        return ConditionResult("no", f"{missing} pairs of nodes have no edge")
    answer = _by_few_nodes(matrix, steps, within)
    if answer is not None:
        return answer
    work = matrix.nnz * size / 8 * steps
    if size > _EXACT_NODES and (size > _MAX_NODES or work > _MAX_BYTES):
        return ConditionResult(
            "unknown", "few nodes were tried, all pairs would take long"
        )
    short = _unreached(matrix, steps)
    if short:
        return ConditionResult(
            "no", f"{short} nodes are not reached by all others {within}"
        )
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
    """Count the nodes that some node does not reach, with a bit per pair of nodes."""
    size = matrix.shape[0]
    node = np.arange(size)
    bit = np.uint64(1) << (node % 64).astype(np.uint64)
    heard = np.zeros((size, -(-size // 64)), np.uint64)
    heard[node, node // 64] = bit
    everyone = np.zeros(heard.shape[1], np.uint64)
    np.bitwise_or.at(everyone, node // 64, bit)
    rows = np.flatnonzero(np.diff(matrix.indptr))
    start = matrix.indptr[rows]
    chunk = start // max(1, _BYTES // heard[0].nbytes)
    bounds = [*np.flatnonzero(np.diff(chunk, prepend=-1)), rows.size]
    for _ in range(steps):
        before = heard.copy()
        for first, last in zip(bounds[:-1], bounds[1:], strict=True):
            low = start[first]
            high = matrix.indptr[rows[last - 1] + 1]
            reached = np.bitwise_or.reduceat(
                before[matrix.indices[low:high]], start[first:last] - low, axis=0
            )
            heard[rows[first:last]] |= reached
        if np.array_equal(before, heard):
            break
    return int(np.count_nonzero((heard != everyone).any(axis=1)))


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
    path=None,
    global_token: bool = False,
) -> AttentionConditions:
    """Check the conditions under which sparse attention may replace full attention.

    C1: every node attends to itself. C2: a path through all nodes exists; directions
    do not matter. C3: every node reaches every other within the layers, in the
    direction of the edges. No answer is a guess; what would take too long to find out
    is `"unknown"`:

    - C2 is decided for up to 20 nodes. For larger graphs it is yes by the given path,
      by a greedy one, or by the theorems of Dirac and Ore; no where there are several
      components, where single nodes separate parts of the graph and more than two of
      them must hold an end, or where the graph without some hubs has too many pieces.
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
        distinct = np.count_nonzero(np.bincount(path, minlength=size))
        if path.size != size or distinct != size:
            raise ValueError(
                f"Expected `path` to hold each of the {size} nodes once. "
                f"Received: {path.size} ids, {distinct} distinct."
            )
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
