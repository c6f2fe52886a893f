"""From the edges of a batch to those that the caller gave."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from keras_bandgnn.graph import Graph

_ENDS = ("sender", "receiver", "type", "mask")


class EdgePlaces(NamedTuple):
    """Which edges of the caller each edge of the model stands for.

    Preprocessing sorts edges, joins equal ones and adds others. An edge of the model
    without an edge of the caller stands for the caller's edge in the other direction,
    and for none if that is missing, too.

    Attributes:
        senders: int32 [E], of the caller's edges; of the model's, in the caller's
            nodes, if the caller's graph has no edges.
        receivers: int32 [E].
        model: int [P], edges of the model.
        caller: int [P], edges of the caller, one for each of `model`.
        share: float [P], share of the model's edge that falls on the caller's.
        num_model: Number of edges of the model.
    """

    senders: np.ndarray
    receivers: np.ndarray
    model: np.ndarray
    caller: np.ndarray
    share: np.ndarray
    num_model: int

    def to_caller(self, scores: np.ndarray) -> np.ndarray:
        """Map scores of the model's edges to the caller's edges."""
        out = np.zeros(len(self.senders), np.float32)
        np.add.at(out, self.caller, scores[self.model] * self.share)
        return out

    def to_model(self, mask: np.ndarray) -> np.ndarray:
        """Return the mask of the model's edges; those of no caller's edge are kept."""
        out = np.ones(self.num_model, np.float32)
        out[self.model] = 0.0
        np.maximum.at(out, self.model, mask[self.caller])
        return out


def edge_places(
    graph: Graph, senders: np.ndarray, receivers: np.ndarray, edge: Mapping
) -> EdgePlaces:
    """Match the edges of the model with those of the caller's graph.

    Args:
        graph: The caller's graph.
        senders: int [e], senders of the model's edges, in the caller's nodes.
        receivers: int [e].
        edge: The model's edge features by name, [e, ...], and `type`.
    """
    count = len(senders)
    if not graph.num_edges:
        every = np.arange(count)
        ends = senders.astype(np.int32), receivers.astype(np.int32)
        return EdgePlaces(*ends, every, every, np.ones(count), count)
    size = graph.num_nodes
    graph_keys = graph.senders.astype(np.int64) * size + graph.receivers
    there = senders.astype(np.int64) * size + receivers
    back = receivers.astype(np.int64) * size + senders
    forward, turned = np.isin(there, graph_keys), np.isin(back, graph_keys)
    model = np.flatnonzero(forward | turned)
    keys, pair = np.unique(graph_keys, return_inverse=True)
    model_pair = np.searchsorted(keys, np.where(forward, there, back)[model])
    # Parallel edges are told apart by type and features, which sorting leaves alone.
    names = [
        name
        for name in sorted(set(graph.edge) & set(edge) - set(_ENDS))
        if graph.edge[name].shape[1:] == edge[name].shape[1:]
    ]
    ties = [graph.edge_type, *_columns(graph.edge, names, graph.num_edges)]
    model_ties = [edge["type"], *_columns(edge, names, count)]
    times = np.bincount(pair, minlength=len(keys))
    model_times = np.bincount(model_pair, minlength=len(keys))
    order = np.lexsort((*ties[::-1], pair))
    starts = np.cumsum(times) - times
    rank = _ranks(model_pair, [tie[model] for tie in model_ties], model_times)
    single = (times == model_times)[model_pair]
    # Edges that were joined, or that stand for both directions, are shared out.
    several = np.flatnonzero(~single)
    repeats = times[model_pair[several]]
    several, shares = several.repeat(repeats), (1.0 / repeats).repeat(repeats)
    within = np.arange(len(several)) - (np.cumsum(repeats) - repeats).repeat(repeats)
    caller = [
        order[(starts[model_pair] + rank)[single]],
        order[starts[model_pair[several]] + within],
    ]
    return EdgePlaces(
        graph.senders,
        graph.receivers,
        np.concatenate([model[single], model[several]]),
        np.concatenate(caller),
        np.concatenate([np.ones(int(single.sum())), shares]),
        count,
    )


def opposite_edges(edge: Mapping) -> np.ndarray:
    """Return the edge of equal type in the other direction, itself where there is none.

    The first of parallel edges belongs to the first in the other direction, and so on.

    Args:
        edge: `batch["edge"]`.

    Returns:
        int32 [G, E].
    """
    groups, count = edge["sender"].shape
    ends = [edge[name].astype(np.int64) for name in ("sender", "receiver")]
    size = max(int(ids.max(initial=0)) for ids in ends) + 1
    group = np.arange(groups)[:, None]
    kind = edge["type"].astype(np.int64)
    kinds = int(kind.max(initial=0)) + 1

    def keys(first, second):
        return (((group * size + first) * size + second) * kinds + kind).reshape(-1)

    edge_keys, back = keys(*ends), keys(*ends[::-1])
    order = np.argsort(edge_keys, kind="stable")
    ordered = edge_keys[order]
    rank = np.empty(len(edge_keys), np.int64)
    rank[order] = np.arange(len(edge_keys)) - np.searchsorted(ordered, ordered)
    place = np.searchsorted(ordered, back) + rank
    inside = np.minimum(place, max(len(edge_keys) - 1, 0))
    has_reverse = (place < len(edge_keys)) & (ordered[inside] == back)
    pair = np.where(has_reverse, order[inside], np.arange(len(edge_keys)))
    return (pair.reshape(groups, count) - group * count).astype(np.int32)


def _columns(features: Mapping, names: list[str], count: int) -> list[np.ndarray]:
    """Return the columns of features, as keys to sort by."""
    return [column for name in names for column in features[name].reshape(count, -1).T]


def _ranks(group: np.ndarray, ties: list[np.ndarray], sizes: np.ndarray) -> np.ndarray:
    """Return the position of each entry among those of its group, by `ties`."""
    order = np.lexsort((*ties[::-1], group))
    ranks = np.empty(len(group), np.int64)
    ranks[order] = np.arange(len(group)) - (np.cumsum(sizes) - sizes)[group[order]]
    return ranks
