"""`PairTask`: objectives, scores and ranks of a task over pairs of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import keras
import numpy as np
from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import (
    boolean,
    instance,
    one_of,
    optional,
    positive_int,
    refuse,
    seed_number,
)
from keras_bandgnn.data.link_ends import NodePairs
from keras_bandgnn.graph import Graph
from keras_bandgnn.layers.batch_layer import batch_part
from keras_bandgnn.layers.link_scorer import shared_ends
from keras_bandgnn.models.fitting import options_for_graphs, refuse_unknown
from keras_bandgnn.models.inputs import BATCHES, LOADER, read_inputs
from keras_bandgnn.models.link_pairs import (
    GraphPairs,
    check_sampler,
    one_graph,
    refuse_options,
)
from keras_bandgnn.models.task import Task
from keras_bandgnn.preprocessing.sampling.negative_sampler import NegativeSampler
from keras_bandgnn.preprocessing.sampling.sampler import Sampler
from keras_bandgnn.training.bpr_loss import BPRLoss
from keras_bandgnn.training.roc_auc import ROCAUC

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from keras_bandgnn.aliases import Batch, Data, Loss, Pairs, StepOptions, Tensor
    from keras_bandgnn.models.recommendations import Recommendations
    from keras_bandgnn.preprocessing.sampling.shared_negatives import SharedNegatives

OBJECTIVES = ("binary", "softmax", "bpr")
SIDES = ("receiver", "sender", "both")


class PairTask(Task):
    """A task whose `head` is a `LinkScorer`, and what it predicts for pairs.

    Subclasses set `head`, `edge_set`, `objective` and `labels`; see `LinkPredictor`.
    """

    objective: str = "binary"

    # === Objectives ===

    @property
    def compares(self) -> bool:
        """Whether an entry is a positive among its negatives, not a single pair."""
        return self.objective != "binary"

    def default_loss(self) -> Loss:
        """Return the loss of the objective: a cross-entropy, or `BPRLoss`."""
        if self.objective == "bpr":
            return BPRLoss()
        if self.objective == "softmax":
            return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return keras.losses.BinaryCrossentropy(from_logits=True)

    def default_metrics(self) -> list:
        """Return accuracy and, of the objective "binary", `roc_auc`.

        The accuracy of positives among their negatives is the share of those with the
        largest score.
        """
        if self.compares:
            return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
        return [keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0), ROCAUC()]

    def default_negatives(self) -> NegativeSampler:
        """Return the sampler of negatives of `fit` and `evaluate`."""
        return NegativeSampler(kind="source" if self.objective == "bpr" else "uniform")

    def check_negatives(
        self, negatives: NegativeSampler | SharedNegatives | None
    ) -> None:
        """Raise a ValueError for negatives that do not fit the objective or the head.

        Those of "bpr" share a node with their positive.
        """
        from keras_bandgnn.preprocessing.sampling.shared_negatives import (
            SharedNegatives,
        )

        if isinstance(negatives, SharedNegatives):
            if self.objective != "softmax":
                expected = f"a NegativeSampler with objective={self.objective!r}"
                advice = 'SharedNegatives are for objective="softmax".'
                refuse("negatives", expected, negatives, advice)
            if self.head.score == "mlp":
                expected = "a NegativeSampler with the head 'mlp'"
                advice = "Only scores that are products compare with all nodes."
                refuse("negatives", expected, negatives, advice)
            return
        uniform = negatives is not None and negatives.kind == "uniform"
        if self.objective == "bpr" and uniform:
            expected = "negatives of kind 'source' or 'typed' with objective='bpr'"
            advice = (
                "BPR compares two answers to one question: pass "
                'NegativeSampler(kind="source").'
            )
            refuse("negatives", expected, negatives, advice)

    def entries(
        self, x: Batch, y: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return labels, outputs and weights of entries; see `Labels.entries`.

        But with the objective "binary" an entry is a positive among its negatives; with
        `SharedNegatives` one for each end that is asked for.
        """
        pair = batch_part(x, "pair", "task.compute_loss(x, y, ...)")
        weight = ops.cast(pair["mask"], y_pred.dtype)
        if sample_weight is not None:
            weight = weight * ops.cast(sample_weight, y_pred.dtype)
        if not self.compares:
            return self.labels.entries(y, ops.expand_dims(y_pred, -1), weight)
        # The positive is the first of each row.
        if shared_ends(pair):
            rows = y_pred
            weight = ops.broadcast_to(ops.expand_dims(weight, 1), ops.shape(rows)[:3])
        else:
            rows = rows_of_positives(pair, y_pred)
            weight = rows_of_positives(pair, weight)[..., 0]
        first = ops.zeros(ops.shape(weight), "int32")
        return self.labels.entries(first, rows, weight)

    # === Predictions ===

    def predict(
        self,
        x: Data,
        pairs: Pairs | None = None,
        batch_size: int | None = None,
        by_layer: bool = False,
        sampler: Sampler | None = None,
        **kwargs: Unpack[StepOptions],
    ) -> np.ndarray:
        """Return the scores of pairs, logits.

        Args:
            x: The graph, whose edges carry messages; or data of Keras.
            pairs: The pairs; by default the edges of the graph.
            batch_size: Pairs scored at a time.
            by_layer: Whether the states of nodes are computed one layer at a time, for
                graphs that do not fit a step; see `NodeClassifier.predict_by_layer`.
            sampler: As for `fit`: each pair has the neighbours that it draws, by time
                those before the pair. None for the states of the whole graph, whose
                edges are to be earlier than pairs with times.
            **kwargs: Passed to `keras.Model.predict` if `x` is data of Keras; without
                effect for a graph.

        Returns:
            float32 [Q], in the order of the pairs.
        """
        from keras_bandgnn.models.link_scores import CHUNK, sampled_scores, scores

        inputs = read_inputs("x", x)
        if inputs.kind in (LOADER, BATCHES):
            options = {"pairs": pairs, "sampler": sampler}
            refuse_options("predict(x) of batches", "the batches", **options)
            if by_layer:
                refuse("x", "a graph with by_layer=True", x)
            if inputs.kind == LOADER:
                advice = "Write predict(loader.graph, loader.pairs)."
                refuse("x", "a graph, or batches, in predict", x, advice)
            return super().predict(inputs, batch_size, **kwargs)
        refuse_unknown(
            options_for_graphs((), (), kwargs),
            ("verbose", "callbacks"),
            "pairs, batch_size, by_layer and sampler",
        )
        size = CHUNK if batch_size is None else positive_int("batch_size", batch_size)
        links = self._links(one_graph(self, inputs))
        check_sampler(sampler, by_layer)
        if pairs is not None:
            links.check_times("pairs", links.read("pairs", pairs), sampler)
        pairs = links.read_or_all("pairs", pairs)
        if sampler is not None:
            return sampled_scores(self, links, pairs, sampler, batch_size)
        return scores(self, links.graph, pairs, by_layer, size)

    def rank(
        self,
        graph: Graph,
        pairs: Pairs,
        known: Pairs | None = None,
        sides: str = "receiver",
        chunk: int | None = None,
        verbose: int | str = "auto",
        by_layer: bool = False,
        undirected: bool | None = None,
        self_pairs: bool = True,
        negatives: NegativeSampler | None = None,
        sampler: Sampler | None = None,
        seed: int = 0,
    ) -> np.ndarray:
        """Return the rank of the true node of each pair among all nodes.

        1 is best. Nodes with the same score share the mean of their ranks, so that a
        model that scores all alike gets the rank of chance.

        Args:
            graph: The graph, whose edges carry messages.
            pairs: Pairs that are true.
            known: All pairs that are true, such as `split.known`: other true answers
                are left out of the ranking (filtered ranks). None for raw ranks.
            sides: Which node of a pair is asked for, given the other and the type:
                `"receiver"`, `"sender"` or `"both"`.
            chunk: Pairs whose scores are in memory at a time; by default as many as
                make 16 million numbers.
            verbose: 0 for no progress bar, which is shown after two seconds.
            by_layer: As for `predict`.
            undirected: As for `evaluate`. The reverse of a known pair is known, too.
            self_pairs: Whether a node is among its own answers. With False it is left
                out, unless it is the true one, as for graphs without self-loops:
                h . h, the score `"dot"` of a node with itself, tends to be its largest.
            negatives: None to rank among all nodes; a `NegativeSampler` for ranks among
                the pair and its negatives, drawn once, such as of 100 other receivers,
                `NegativeSampler(100, "source")`. Then `sides` and `self_pairs` have no
                effect, and `known` are pairs that are not drawn.
            sampler: As for `evaluate`, with `negatives`.
            seed: Seed of `negatives`.

        Returns:
            float64 [Q], or [2, Q] of receivers and senders with `"both"`.

        Raises:
            ValueError: For pairs of other nodes or types, or that messages give away.
        """
        from keras_bandgnn.models.link_scores import node_states, ranks, ranks_among

        one_of("sides", sides, SIDES)
        links = self._links(one_graph(self, read_inputs("graph", graph)), undirected)
        pairs = links.read("pairs", pairs)
        check_sampler(sampler, by_layer)
        seed_number("seed", seed)
        if negatives is not None:
            expected = "a NegativeSampler, or None"
            instance("negatives", negatives, NegativeSampler, expected)
            links.check_messages("pairs", pairs, sampler)
            options = negatives, known, sampler, by_layer, seed
            return ranks_among(self, links, pairs, *options)
        if sampler is not None:
            advice = "To rank among drawn pairs pass a NegativeSampler as `negatives`."
            refuse("sampler", "None for ranks among all nodes", sampler, advice)
        known = links.read_answers(known)
        optional(positive_int, "chunk", chunk)
        links.check_messages("pairs", pairs)
        boolean("self_pairs", self_pairs)
        states = node_states(self, links.graph, by_layer)
        ends = ("receiver", "sender") if sides == "both" else (sides,)
        shown = verbose not in (0, False)
        rows = ranks(self, links, states, pairs, known, ends, chunk, self_pairs, shown)
        return np.stack(rows) if sides == "both" else rows[0]

    def recommend(
        self,
        graph: Graph,
        users: ArrayLike | None = None,
        k: int = 10,
        exclude: Pairs | None = None,
        relation: int = 0,
        chunk: int | None = None,
        verbose: int | str = "auto",
        by_layer: bool = False,
        undirected: bool | None = None,
        self_pairs: bool = False,
    ) -> Recommendations:
        """Return the k receivers of largest score for each sender, the best one first.

        Scores are compared on the device, some senders at a time; there is never a
        table of all of them.

        Args:
            graph: The graph, whose edges carry messages.
            users: int [U], the senders: rows of the source set with `edge_set`, and
                otherwise nodes. None for all of them.
            k: Answers for each.
            exclude: Pairs that are no answers, such as `split.train_pairs`: what users
                have already. By default all are answers, also edges of the graph. An
                array [Q, 2] has pairs of `relation`.
            relation: Type of the pairs, in [0, num_relations).
            chunk: Senders whose scores are in memory at a time; by default as many as
                make a million numbers, and but for `"mlp"` at least 32.
            verbose: 0 for no progress bar, which is shown after two seconds.
            by_layer: As for `predict`.
            undirected: As for `evaluate`. The reverse of a pair in `exclude` is left
                out, too.
            self_pairs: Whether a node is among its own answers.

        Returns:
            `Recommendations`: `items`, int64 [U, k], rows of the target set with
            `edge_set`, and otherwise nodes; and `scores`, float32 [U, k], logits. Of
            equal scores the lower row comes first. Senders with fewer answers have the
            item -1 and the score -inf behind them.

        Raises:
            ValueError: For senders or pairs of other nodes, or arguments out of range.
        """
        from keras_bandgnn.models.link_scores import node_states
        from keras_bandgnn.models.recommendations import recommendations

        links = self._links(one_graph(self, read_inputs("graph", graph)), undirected)
        users = links.ends.nodes_of("users", users, "sender")
        positive_int("k", k)
        positive_int("relation", relation, 0, (self.head.num_relations or 1) - 1)
        optional(positive_int, "chunk", chunk)
        boolean("self_pairs", self_pairs)
        if not isinstance(exclude, NodePairs) and np.shape(exclude)[1:] == (2,):
            if self.head.num_relations is not None and self.edge_set is None:
                # Answers of the relation that is asked for.
                exclude = np.pad(exclude, [(0, 0), (0, 1)], constant_values=relation)
        excluded = links.read_answers(exclude, "exclude")
        return recommendations(
            self,
            links,
            node_states(self, links.graph, by_layer),
            users,
            k,
            excluded,
            relation,
            chunk,
            self_pairs,
            progress=verbose not in (0, False),
        )

    def _links(self, graph: Graph, undirected: bool | None = None) -> GraphPairs:
        """Return the `GraphPairs` of a graph, which converts and checks pairs."""
        relations = self.head.num_relations
        if optional(boolean, "undirected", undirected) is None:
            undirected = relations is None or self.edge_set is not None
        options = undirected, self.preprocessor, self.edge_set
        return GraphPairs(graph, relations, *options)


def rows_of_positives(pair, values):
    """Return values [G, Q] of pairs as rows of positives and their negatives.

    Args:
        pair: `batch["pair"]`, in which the positive is the first of each row.
        values: [G, Q].

    Returns:
        [G, P, 1 + K].
    """
    groups, count = ops.shape(pair["positive"])
    return ops.reshape(values, (groups, count, ops.shape(values)[1] // count))


def embedding_penalty(states, batch):
    """Return half the squared lengths of the embedded nodes of pairs, per positive.

    The two nodes of a positive count once, and of a negative those that differ from the
    positive.

    Args:
        states: float [G, N, H], the embedded features.
        batch: A batch with pairs.
    """
    pair = {k: ops.convert_to_tensor(values) for k, values in batch["pair"].items()}
    mask, total = rows_of_positives(pair, pair["mask"]), 0.0
    for end in ("sender", "receiver"):
        ids = rows_of_positives(pair, pair[end])
        counts = ops.concatenate(
            [
                mask[..., :1],
                ops.logical_and(mask[..., 1:], ids[..., 1:] != ids[..., :1]),
            ],
            axis=-1,
        )
        rows = ops.cast(graph_ops.batched_gather(states, pair[end]), "float32")
        lengths = rows_of_positives(pair, ops.sum(ops.square(rows), axis=-1))
        total = total + ops.sum(ops.where(counts, lengths, 0.0))
    positives = ops.sum(ops.cast(mask[..., 0], "float32"))
    return 0.5 * total / ops.maximum(positives, 1.0)


def mean_of_positives(values, batch):
    """Return the mean of values [G, Q] of pairs over the real positives.

    Args:
        values: float [G, Q].
        batch: A batch with pairs.
    """
    pair = batch["pair"]
    mask = ops.cast(rows_of_positives(pair, pair["mask"])[..., 0], values.dtype)
    values = rows_of_positives(pair, values)[..., 0]
    return ops.sum(mask * values) / ops.maximum(ops.sum(mask), 1.0)
