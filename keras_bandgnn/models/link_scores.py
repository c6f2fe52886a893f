"""Scores, metrics and ranks of pairs, from the states of all nodes of a graph."""

from collections.abc import Callable

import numpy as np

from keras_bandgnn.checks import boolean, seed_number
from keras_bandgnn.data.link_ends import NodePairs
from keras_bandgnn.graph import Graph
from keras_bandgnn.models.inputs import GRAPHS, Inputs
from keras_bandgnn.models.link_pairs import (
    GraphPairs,
    check_one_device,
    draws_by_time,
    make_link_loader,
)
from keras_bandgnn.models.task_program import compiled, task_output
from keras_bandgnn.preprocessing.sampling.negative_sampler import NegativeSampler
from keras_bandgnn.preprocessing.sampling.sampler import Sampler
from keras_bandgnn.progress import progress_bar

# Maximum elements of a table of scores, or of its hidden layer.
_CHUNK = 1 << 24


# Number of pairs that are scored at a time.
CHUNK = 1 << 16


def node_states(task, graph: Graph, by_layer: bool = False) -> np.ndarray:
    """Return the states of all nodes, float32 [1, N, H], in the caller's order.

    Args:
        task: The `LinkPredictor`.
        graph: The graph.
        by_layer: See `LinkPredictor.predict`.
    """
    from keras_bandgnn.models.layerwise import states_by_layer

    boolean("by_layer", by_layer)
    check_one_device(task)
    task.complete([graph])
    if by_layer:
        (states,) = states_by_layer(task, [graph])
    else:
        (states,) = task.embed(Inputs(GRAPHS, [graph], graph))
    if np.isnan(states).any():
        raise ValueError(
            "Expected states of all nodes. Received: NaN, of a model that diverged "
            "or of nodes that the preprocessor drops. Lower the learning rate, or "
            "apply layers that drop nodes before splitting the edges."
        )
    return np.asarray(states, np.float32)[None]


def score_pairs(
    task,
    states: np.ndarray,
    pairs: NodePairs,
    size: int,
    end: str | None = None,
    nodes: np.ndarray | None = None,
) -> np.ndarray:
    """Return the scores [q] of pairs, or [q, C] with each of C nodes at one end.

    Args:
        task: The `LinkPredictor`.
        states: float32 [1, N, H].
        pairs: At most `size` pairs.
        size: Number to pad pairs to, so that steps have one shape.
        end: The end of pairs to replace by nodes; None to score the pairs.
        nodes: int [C], these nodes; None for all.
    """
    missing = (0, size - len(pairs))
    columns = {"sender": pairs.senders, "receiver": pairs.receivers}
    columns["type"] = pairs.types
    pair = {name: np.pad(ids, missing)[None] for name, ids in columns.items()}
    inputs = {"states": states, "pair": pair}
    if nodes is not None:
        inputs["nodes"] = nodes[None].astype(np.int32)
    program = compiled(task, _pair_scores, end)
    out = program.predict_on_batch(inputs)
    return np.asarray(out)[0, : len(pairs)]


def _pair_scores(task, inputs, end: str | None):
    """Return scores [1, Q] or [1, Q, C] of pairs from stored states."""
    states, parts = inputs["states"], {"pair": inputs["pair"]}
    if end is None:
        return task.head(states, parts)
    return task.head.score_nodes(states, parts, end, inputs.get("nodes"))


def scores(
    task, graph: Graph, pairs: NodePairs, by_layer: bool, size: int = CHUNK
) -> np.ndarray:
    """Return the scores of pairs, float32 [Q]; see `LinkPredictor.predict`.

    Args:
        task: The `LinkPredictor`.
        graph: The graph.
        pairs: The pairs.
        by_layer: Whether states are computed one layer at a time.
        size: Pairs scored at a time.
    """
    if not len(pairs):
        return np.zeros(0, np.float32)
    states = node_states(task, graph, by_layer)
    size = min(size, len(pairs))
    parts = [
        score_pairs(task, states, pairs.take(slice(start, start + size)), size)
        for start in range(0, len(pairs), size)
    ]
    return np.concatenate(parts)


def sampled_scores(
    task, links: GraphPairs, pairs: NodePairs, sampler: Sampler, size: int | None = None
) -> np.ndarray:
    """Return the scores of pairs from the neighbours that a sampler draws, float32 [Q].

    Args:
        task: The `LinkPredictor`.
        links: Has the graph.
        pairs: The pairs, which a sampler by time shows what was before each of them.
        sampler: The `NeighborSampler`.
        size: Pairs scored at a time; None for as many as the sampler says.
    """
    if not len(pairs):
        return np.zeros(0, np.float32)
    task.complete([links.graph])
    loader = make_link_loader(
        task, links, pairs, batch_size=size, sampler=sampler, draws=False
    )
    task.check(loader)
    program, parts = compiled(task, task_output), []
    for step in range(len(loader)):
        x = loader[step][0]
        out = np.asarray(program.predict_on_batch(x))[0]
        parts.append(out[x["pair"]["mask"][0]])
    return np.concatenate(parts)


def drawn_negatives(
    links: GraphPairs, pairs: NodePairs, sampler: NegativeSampler, known_pairs, seed
) -> NodePairs:
    """Return the negatives of pairs, K for each, one pair after the other.

    Args:
        links: Has the graph.
        pairs: Pairs that are true.
        sampler: Draws them.
        known_pairs: Other pairs that are true, or None.
        seed: Seed of the draws.
    """
    draw = sampler.prepare(
        pairs,
        links.graph.num_nodes,
        links.true(pairs, known_pairs),
        sampler.types_of(links.graph),
        links.undirected,
        links.ends.nodes,
    )
    key = seed_number("seed", seed), 0, 0
    return draw(slice(None), np.random.default_rng(key))


def ranks_among(
    task,
    links: GraphPairs,
    pairs: NodePairs,
    negatives: NegativeSampler,
    known_pairs,
    sampler: Sampler | None,
    by_layer: bool,
    seed: int,
) -> np.ndarray:
    """Return the rank of each pair among itself and drawn negatives, float64 [Q].

    Args:
        task: The `LinkPredictor`.
        links: Has the graph.
        pairs: Pairs that are true.
        negatives: Draws the others.
        known_pairs: Other pairs that are true, or None.
        sampler: Of neighbours; None for the whole graph.
        by_layer: Whether states are computed one layer at a time.
        seed: Seed of the negatives.
    """
    others = drawn_negatives(links, pairs, negatives, known_pairs, seed)
    count, width = len(pairs), negatives.per_positive
    both = NodePairs.concatenate([pairs, others])
    # Each pair is followed by its negatives, with which it shares nodes.
    rows = np.arange(len(others)).reshape(count, width) + count
    order = np.column_stack([np.arange(count), rows]).reshape(-1)
    if sampler is None:
        table = scores(task, links.graph, both.take(order), by_layer)
    else:
        table = sampled_scores(task, links, both.take(order), sampler)
    table = table.reshape(count, 1 + width)
    true, table = table[:, :1], table[:, 1:].copy()
    # Draws that may be true pairs may be the pair itself.
    same = (others.senders == pairs.senders.repeat(width)) & (
        others.receivers == pairs.receivers.repeat(width)
    )
    table[same.reshape(table.shape)] = -np.inf
    above, ties = (table > true).sum(axis=1), (table == true).sum(axis=1)
    return 1 + above + 0.5 * ties


def measures(
    task,
    links: GraphPairs,
    pairs,
    negatives,
    known_pairs,
    seed: int,
    by_layer: bool,
    sampler: Sampler | None = None,
) -> dict[str, float]:
    """Return the loss and metrics of pairs; see `LinkPredictor.evaluate`.

    Args:
        task: The `LinkPredictor`.
        links: Has the graph.
        pairs: Pairs that are true; None for the edges.
        negatives: See `LinkPredictor.evaluate`, also for the others.
        known_pairs: Other pairs that are true, or None.
        seed: Seed of the negatives.
        by_layer: Whether states are computed one layer at a time.
        sampler: Of neighbours; None for the whole graph.
    """
    from keras_bandgnn.training.link_metrics import average_precision, link_auc

    graph, by_default = links.graph, pairs is None
    pairs = links.read_or_edges(pairs, sampler)
    if by_default and not draws_by_time(sampler):
        # Those of the training, which messages may have.
        pairs = pairs.without_time()
    _refuse_empty("pairs", pairs)
    links.check_messages("pairs", pairs, sampler)
    if negatives is None or isinstance(negatives, NegativeSampler):
        negatives = task.default_negatives() if negatives is None else negatives
        task.check_negatives(negatives)
        negatives = drawn_negatives(links, pairs, negatives, known_pairs, seed)
    else:
        negatives = links.read("negatives", negatives)
    if not draws_by_time(sampler):
        # States of the whole graph serve one time.
        pairs, negatives = pairs.without_time(), negatives.without_time()
    _refuse_empty("negatives", negatives)
    both = NodePairs.concatenate([pairs, negatives])
    if sampler is None:
        rows = scores(task, graph, both, by_layer)
    else:
        rows = sampled_scores(task, links, both, sampler)
    positive, negative = np.split(rows, [len(pairs)])
    return {
        "loss": mean_loss(task, positive, negative),
        "auc": link_auc(positive, negative),
        "average_precision": average_precision(positive, negative),
    }


def mean_loss(task, positive: np.ndarray, negative: np.ndarray) -> float:
    """Return the mean loss of the scores of positive and negative pairs.

    Args:
        task: The `LinkPredictor`.
        positive: float32 [Q].
        negative: float32 [K Q], K for each pair, but with the objective "binary".
    """
    if task.compares:
        if len(negative) % len(positive):
            raise ValueError(
                "Expected as many `negatives` for each pair with "
                f"objective={task.objective!r}. Received: {len(negative)} for "
                f"{len(positive)} pairs."
            )
        rows = negative.reshape(len(positive), -1)
        outputs = np.concatenate([positive[:, None], rows], axis=1)
        y = np.zeros((len(positive), 1), np.int32)
    else:
        outputs = np.concatenate([positive, negative])[:, None]
        y = np.repeat([1.0, 0.0], [len(positive), len(negative)])[:, None]
    weight = np.ones(len(y), np.float32)
    return float(task.loss(y.astype(np.float32), outputs, weight))


def _refuse_empty(name: str, pairs: NodePairs) -> None:
    """Raise a ValueError if there are no pairs: metrics would be undefined."""
    if not len(pairs):
        raise ValueError(
            f"Expected `{name}` to have at least one pair. Received: 0. Pass pairs, "
            "such as split_links(graph, test=0.2).test_pairs."
        )


def ranks(
    task,
    links: GraphPairs,
    states: np.ndarray,
    pairs: NodePairs,
    true_pairs: NodePairs | None,
    ends: tuple[str, ...],
    chunk: int | None,
    self_pairs: bool,
    progress: bool,
) -> list[np.ndarray]:
    """Return the ranks of the true nodes of pairs, float64 [Q] for each end.

    Args:
        task: The `LinkPredictor`.
        links: Has the nodes that are ranked.
        states: float32 [1, N, H].
        pairs: Pairs that are true.
        true_pairs: All true pairs, which are left out; or None.
        ends: The ends of pairs to rank.
        chunk: See `LinkPredictor.rank`.
        self_pairs: Whether a node is among its own answers.
        progress: Whether to show a progress bar, after two seconds.
    """
    if chunk is None:
        width = 1
        if task.head.score == "mlp":
            width = task.head.hidden or task.backbone.hidden_dim
        chunk = max(1, _CHUNK // (states.shape[1] * width))
    chunk = max(1, min(chunk, len(pairs)))
    with progress_bar("Ranking", len(ends) * len(pairs), progress) as advance:
        return [
            _ranks_of_end(
                task,
                states,
                pairs,
                true_pairs,
                end,
                chunk,
                self_pairs,
                advance,
                links.ends.nodes and links.ends.nodes[end],
            )
            for end in ends
        ]


def _ranks_of_end(
    task,
    states: np.ndarray,
    pairs: NodePairs,
    true_pairs: NodePairs | None,
    end: str,
    chunk: int,
    self_pairs: bool,
    advance: Callable,
    nodes: np.ndarray | None,
) -> np.ndarray:
    """Return the rank of one end of each pair, float64 [Q]."""
    asked = pairs if end == "receiver" else pairs.reversed()
    others = None
    if true_pairs is not None:
        others = KnownAnswers(
            true_pairs if end == "receiver" else true_pairs.reversed()
        )
    count = states.shape[1] if nodes is None else len(nodes)
    # Nodes that are not ranked have the last column, which is dropped.
    column = np.full(states.shape[1], count)
    column[slice(None) if nodes is None else nodes] = np.arange(count)
    out = np.empty(len(pairs))
    for start in range(0, len(pairs), chunk):
        part = slice(start, start + chunk)
        table = score_pairs(task, states, pairs.take(part), chunk, end, nodes)
        table = np.pad(table, [(0, 0), (0, 1)])
        rows = np.arange(len(table))
        true = table[rows, column[asked.receivers[part]]]
        if others is not None:
            row, answer = others.of(asked.take(part))
            table[row, column[answer]] = -np.inf
        if not self_pairs:
            table[rows, column[asked.senders[part]]] = -np.inf
        # The true node itself may be among the known nodes.
        table[rows, column[asked.receivers[part]]] = -np.inf
        table = table[:, :count]
        above = (table > true[:, None]).sum(axis=1)
        ties = (table == true[:, None]).sum(axis=1)
        out[part] = 1 + above + 0.5 * ties
        advance(len(rows))
    return out


class KnownAnswers:
    """The receivers of some pairs for each sender and type.

    Args:
        true_pairs: All of them.
    """

    def __init__(self, true_pairs: NodePairs):
        order = np.lexsort((true_pairs.senders, true_pairs.types))
        self._receivers = true_pairs.receivers[order]
        self._keys = _question(true_pairs)[order]

    def of(self, pairs: NodePairs) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and columns of the known receivers in a table of scores."""
        keys = _question(pairs)
        first = np.searchsorted(self._keys, keys, "left")
        counts = np.searchsorted(self._keys, keys, "right") - first
        rows = np.repeat(np.arange(len(pairs)), counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, self._receivers[first[rows] + within]


def _question(pairs: NodePairs) -> np.ndarray:
    """Return one number for the sender and the type of each pair."""
    return (pairs.types.astype(np.int64) << 32) + pairs.senders
