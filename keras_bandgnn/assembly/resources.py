"""What each graph needs of a supergraph."""

from collections.abc import Sequence

import numpy as np

from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.primitives.plan import Plan

# Edges measured at a time.
_CHUNK = 4_000_000
_MOST_JOINED = 1 << 30


def merge_parts(parts: Sequence[FlatGraphs]) -> Sequence[FlatGraphs]:
    """Return one part instead of many, if it is small enough for memory.

    Batches of one part are assembled with far fewer calls than those of many.
    """
    size = sum(array.nbytes for part in parts for array in part.columns().values())
    if len(parts) < 2 or size > _MOST_JOINED:
        return parts
    return [FlatGraphs.concatenate(parts)]


def resource_sizes(
    parts: Sequence[FlatGraphs], plan: Plan, num_types: int
) -> dict[str, np.ndarray]:
    """Measure graphs in the resources of batches and of a plan.

    Args:
        parts: The graphs.
        plan: Which primitive carries which edges.
        num_types: P.

    Returns:
        Resource ("node", "edge", "candidate", those of the plan) -> int64 [n].
    """
    pieces = [piece for part in parts for piece in part.pieces(_CHUNK)]
    tables = [_measure(piece, plan, num_types) for piece in pieces]
    return {
        name: np.concatenate([np.asarray(t[name], np.int64) for t in tables])
        for name in tables[0]
    }


def _measure(part: FlatGraphs, plan: Plan, num_types: int) -> dict:
    table = {"node": part.num_nodes, "edge": part.num_edges}
    if part.candidates is not None:
        table["candidate"] = np.diff(part.candidate_ptr)
    return {**table, **plan.measure(part, num_types)}
