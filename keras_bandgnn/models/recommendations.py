"""`Recommendations`: the best answers to the senders of pairs, from stored states."""

from typing import NamedTuple

import numpy as np
from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.data.link_ends import NodePairs
from keras_bandgnn.models.link_pairs import GraphPairs
from keras_bandgnn.models.link_scores import KnownAnswers
from keras_bandgnn.models.task_program import compiled
from keras_bandgnn.progress import progress_bar

# Maximum elements of a table of scores, or of its hidden layer.
_CHUNK = 1 << 20
# Minimum users of a table of scores: each reads the states of all answers.
_ROWS = 32
# Columns of a table of scores whose maximum is compared first.
_BLOCK = 64


class Recommendations(NamedTuple):
    """The k best answers for each user, the best one first.

    Attributes:
        items: int64 [U, k], rows of the target set, or nodes of a graph without edge
            set; -1 where a user has fewer answers. Of equal scores the lower row
            comes first.
        scores: float32 [U, k], logits; -inf where there is no item.
    """

    items: np.ndarray
    scores: np.ndarray


def recommendations(
    task,
    links: GraphPairs,
    states: np.ndarray,
    users: np.ndarray,
    k: int,
    excluded: NodePairs | None,
    relation: int,
    chunk: int | None,
    self_pairs: bool,
    progress: bool,
) -> Recommendations:
    """Return the k best answers for each user; see `PairTask.recommend`.

    Args:
        task: The task.
        links: Has the nodes that are compared.
        states: float32 [1, N, H].
        users: int [U], nodes.
        k: Answers for each.
        excluded: Pairs of nodes that are left out, or None.
        relation: Type of the pairs.
        chunk: Users whose scores are in memory at a time, or None.
        self_pairs: Whether a node is among its own answers.
        progress: Whether to show a progress bar, after two seconds.
    """
    nodes, rows = links.ends.answers()
    count, best = len(nodes), min(k, len(nodes))
    items = np.full((len(users), k), -1, np.int64)
    scores = np.full((len(users), k), -np.inf, np.float32)
    if not len(users) or not best:
        return Recommendations(items, scores)
    answers = np.zeros((1, -(-count // _BLOCK) * _BLOCK, states.shape[2]), np.float32)
    answers[0, :count] = states[0, nodes]
    if chunk is None:
        width = 1
        if task.head.score == "mlp":
            width = task.head.hidden or task.backbone.hidden_dim
        chunk = max(_CHUNK // (answers.shape[1] * width), _ROWS // width)
    chunk = max(1, min(chunk, len(users)))
    column = np.full(states.shape[1], -1, np.int64)
    column[nodes] = np.arange(count)
    left_out = _left_out(users, column, excluded, relation, self_pairs)
    starts = np.arange(0, len(users) + chunk, chunk)
    bounds = np.searchsorted(left_out[0], starts)
    room = int(np.diff(bounds).max())
    # Few sizes, so that other users have the same program.
    room = 1 << (room - 1).bit_length() if room else 0
    program = compiled(task, _best_columns, count, best)
    # On the device once.
    shared = {"answers": ops.convert_to_tensor(answers)}
    shared["type"] = np.full((1, chunk + 1), relation, np.int32)
    with progress_bar("Recommending", len(users), progress) as advance:
        for number, start in enumerate(starts[:-1]):
            part = slice(start, min(start + chunk, len(users)))
            size = part.stop - part.start
            # The last row is one of padding.
            asked = np.zeros((1, chunk + 1, states.shape[2]), np.float32)
            asked[0, :size] = states[0, users[part]]
            entries = np.full((room, 2), [chunk, 0], np.int32)
            some = slice(bounds[number], bounds[number + 1])
            entries[: some.stop - some.start, 0] = left_out[0][some] - start
            entries[: some.stop - some.start, 1] = left_out[1][some]
            inputs = {**shared, "asked": asked}
            if room:
                inputs["left_out"] = entries[None]
            out = program.predict_on_batch(inputs)
            scores[part, :best] = np.asarray(out["score"])[0, :size]
            items[part, :best] = rows[np.asarray(out["column"])[0, :size]]
            advance(size)
    items[np.isneginf(scores)] = -1
    return Recommendations(items, scores)


def _left_out(users, column, excluded, relation, self_pairs) -> np.ndarray:
    """Return the entries of the table of scores that are left out, sorted by user.

    Args:
        users: int [U], nodes.
        column: int [N], column of each node; -1 for none.
        excluded: See `recommendations`, also for the others.
        relation: Type of the pairs.
        self_pairs: Whether a node is among its own answers.

    Returns:
        int64 [2, n], index of the user and column.
    """
    parts = [np.empty((2, 0), np.int64)]
    if excluded is not None:
        questions = NodePairs(users, users, np.full(len(users), relation))
        row, answer = KnownAnswers(excluded).of(questions)
        parts.append(np.stack([row, column[answer]]))
    if not self_pairs:
        parts.append(np.stack([np.arange(len(users)), column[users]]))
    entries = np.concatenate(parts, axis=1)
    entries = entries[:, entries[1] >= 0]
    return entries[:, np.argsort(entries[0], kind="stable")]


def _best_columns(task, inputs, count: int, k: int) -> dict:
    """Return the k best columns of the table of scores, and their scores, [1, B, k]."""
    kinds = ops.convert_to_tensor(inputs["type"])
    asked = ops.convert_to_tensor(inputs["asked"])
    places = ops.broadcast_to(ops.arange(ops.shape(kinds)[1]), ops.shape(kinds))
    pair = {"sender": places, "receiver": places, "type": kinds}
    table = task.head.score_nodes(asked, {"pair": pair}, answers=inputs["answers"])[0]
    if "left_out" in inputs:
        entries = ops.convert_to_tensor(inputs["left_out"])[0]
        nothing = ops.full((ops.shape(entries)[0],), -np.inf, dtype=table.dtype)
        table = ops.scatter_update(table, entries, nothing)
    score, column = largest_columns(table, count, k)
    return {"score": score[None], "column": column[None]}


def largest_columns(table, count: int, k: int):
    """Return the k largest entries of rows and their columns, both [B, k].

    Of equal entries those of lower columns come first. Where there are many columns the
    largest entries of blocks choose k blocks, which have all of the k largest entries.

    Args:
        table: float [B, C], C a multiple of the size of a block.
        count: Columns that are compared, the first ones, of which the last block has at
            least one.
        k: At most `count`.
    """
    # Sizes of tensors may be unknown while TensorFlow traces.
    blocks = -(-count // _BLOCK)
    if blocks <= k:
        return graph_ops.top_k(table[:, :count], k)
    tiles = ops.reshape(table, (-1, blocks, _BLOCK))
    last = ops.max(table[:, (blocks - 1) * _BLOCK : count], axis=1, keepdims=True)
    largest = ops.concatenate([ops.max(tiles[:, :-1], axis=2), last], axis=1)
    _, block = graph_ops.top_k(largest, k)
    # In the order of columns.
    block = ops.sort(block, axis=1)
    column = ops.expand_dims(block, 2) * _BLOCK + ops.arange(_BLOCK, dtype="int32")
    column = ops.reshape(column, (-1, k * _BLOCK))
    entries = ops.reshape(graph_ops.batched_gather(tiles, block), (-1, k * _BLOCK))
    entries = ops.where(column < count, entries, -np.inf)
    entries, place = graph_ops.top_k(entries, k)
    return entries, ops.take_along_axis(column, place, axis=1)
