"""`LinkScorer`: a score for each pair of nodes from their states."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import boolean, one_of, optional, positive_int, refuse
from keras_bandgnn.layers.batch_layer import StateLayer, batch_part
from keras_bandgnn.layers.dense import FlatDense
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import (
        Activation,
        Batch,
        BatchShape,
        LayerOptions,
        Shape,
        Tensor,
    )

SCORES = ("dot", "bilinear", "mlp", "distmult", "complex")
ENDS = ("receiver", "sender")
# Logit of an answer that is left out.
_NOTHING = -1e9
_TINY = 1e-20
# Scores that do not change when the two nodes are exchanged.
_SYMMETRIC = ("dot", "distmult")
_TYPED = ("distmult", "complex")


@serializable
class LinkScorer(StateLayer):
    """The score of each pair (s, r) of nodes with relation t, a logit.

        dot       h_s . h_r
        bilinear  h_s^T W_t h_r
        mlp       w_2 . activation(W_s h_s + W_r h_r + v_t + b_1) + b_2
        distmult  sum over k of h_sk w_tk h_rk
        complex   Re(sum over k of h_sk w_tk conj(h_rk))

    The first half of a complex state are the real parts. Without `num_relations` W and
    v are one for all pairs.

    Args:
        score: The kind of score, one of the names above.
        num_relations: R, relations that pairs may have; `"distmult"` and `"complex"`
            need it, and `"dot"` has none.
        hidden: Width of the hidden layer of `"mlp"`; by default that of the states.
        activation: Activation of that layer.
        symmetric: Whether `"bilinear"` and `"mlp"` score a pair like its reverse, as
            links of undirected graphs should: the mean of both. `"dot"` and
            `"distmult"` always do.

    Input shape:
        states: float [G, N, H]; H is even for `"complex"`.
        batch: A batch (see `keras_bandgnn.batch`); it reads `batch["pair"]`.

    Output shape:
        float [G, Q]. Scores of padding pairs have no meaning.

    Raises:
        ValueError: For arguments that do not fit, or an odd width of complex states.

    Reference:
        DistMult: Yang et al. 2015, https://arxiv.org/abs/1412.6575. ComplEx: Trouillon
        et al. 2016, https://arxiv.org/abs/1606.06357. The bilinear score with relations
        is that of RESCAL, Nickel et al. 2011.

    Example:
    >>> import numpy as np
    >>> states = np.array([[[1.0, 2.0], [3.0, 4.0]]], "float32")
    >>> pair = {name: np.array([[k]]) for name, k in (("sender", 0), ("receiver", 1))}
    >>> float(LinkScorer("dot")(states, {"pair": pair})[0, 0])
    11.0
    """

    reads = {"pair": None, "node": ("mask",)}
    # Pairs name nodes of the whole supergraph.
    splits_sequences = False

    def __init__(
        self,
        score: str = "dot",
        num_relations: int | None = None,
        hidden: int | None = None,
        activation: Activation = "relu",
        symmetric: bool = False,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        # === Config ===
        self.score = one_of("score", score, SCORES)
        self.num_relations = optional(positive_int, "num_relations", num_relations)
        self.hidden = optional(positive_int, "hidden", hidden)
        self.activation = keras.activations.get(activation)
        self.symmetric = boolean("symmetric", symmetric)
        if self.score in _TYPED and self.num_relations is None:
            refuse("num_relations", f"a number of relations for {score!r}", None)
        if self.score == "dot" and self.num_relations is not None:
            advice = "Relations need 'distmult', 'complex', 'bilinear' or 'mlp'."
            refuse("num_relations", "None for 'dot'", num_relations, advice)
        if self.score == "complex" and self.symmetric:
            refuse("symmetric", "False for 'complex'", symmetric, "Use 'distmult'.")

    @property
    def is_symmetric(self) -> bool:
        """Whether a pair and its reverse have the same score."""
        return self.symmetric or self.score in _SYMMETRIC

    def build_weights(self, states_shape: Shape) -> None:
        """Build the weights of the score."""
        width, count = states_shape[-1], self.num_relations or 1
        if self.score == "complex" and width % 2:
            raise ValueError(
                "Expected states of even width for 'complex', whose first half are the "
                f"real parts. Received: width {width}. Set hidden_dim={width + 1}."
            )
        shapes = {
            "bilinear": (count, width, width),
            "distmult": (count, width),
            "complex": (count, width),
        }
        if self.score in shapes:
            # With weights around 1 the score would begin as h_s . h_r, which is
            # largest for the node itself. Those of `keras.layers.Embedding`.
            limit = 0.05
            if self.score == "bilinear":
                # Glorot's of one W; Keras would divide by the number of relations.
                limit = math.sqrt(3.0 / width)
            self.relations = self.add_weight(
                name="relations",
                shape=shapes[self.score],
                initializer=keras.initializers.RandomUniform(-limit, limit),
            )
        if self.score == "mlp":
            hidden = self.hidden or width
            options = {"dtype": self.dtype_policy}
            self.sender_dense = FlatDense(
                hidden, use_bias=False, name="sender", **options
            )
            self.receiver_dense = FlatDense(hidden, name="receiver", **options)
            self.output_dense = FlatDense(1, name="output", **options)
            for layer in (self.sender_dense, self.receiver_dense):
                layer.build((None, None, width))
            self.output_dense.build((None, None, hidden))
            if self.num_relations:
                self.relations = self.add_weight(
                    name="relations", shape=(count, hidden), initializer="zeros"
                )

    def call(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the scores of pairs."""
        pair = batch_part(batch, "pair")
        if self.score == "mlp":
            return self._network_scores(states, pair)
        query = self.query(states, pair)
        received = graph_ops.batched_gather(states, pair["receiver"])
        return ops.sum(query * received, axis=-1)

    def score_nodes(
        self,
        states: Tensor,
        batch: Batch,
        end: str = "receiver",
        nodes: Tensor | None = None,
        answers: Tensor | None = None,
    ) -> Tensor:
        """Return the scores of pairs in which each node takes one of the two places.

        Args:
            states: float [G, N, H].
            batch: See `call`.
            end: `"receiver"` or `"sender"`, the end of pairs that nodes take.
            nodes: int [G, C], the nodes; None for all N.
            answers: float [G, C, H], states that take that place instead of those of
                nodes; None for these.

        Returns:
            float [G, Q, C].
        """
        one_of("end", end, ENDS)
        pair = batch_part(batch, "pair")
        states = ops.convert_to_tensor(states)
        pair = {name: ops.convert_to_tensor(values) for name, values in pair.items()}
        answers = states if answers is None else ops.convert_to_tensor(answers)
        if nodes is not None:
            answers = graph_ops.batched_gather(states, ops.convert_to_tensor(nodes))
        if self.score == "mlp":
            return self._network_table(states, answers, pair, end)
        query = self.query(states, pair, end)
        return ops.matmul(query, ops.swapaxes(answers, 1, 2))

    def compare(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the scores of pairs, and with shared nodes in the place of an end.

        Args:
            states: float [G, N, H].
            batch: A batch of pairs with `SharedNegatives`, see `keras_bandgnn.batch`.

        Returns:
            float [G, S, Q, 1 + C], of the S ends that have shared nodes, receivers
            first: the score of the pair, then those of the pairs with each of the
            nodes; -1e9 for the pair itself, and where there is no node.

        Raises:
            ValueError: For a batch without shared nodes, or the score `"mlp"`.
        """
        pair = batch_part(batch, "pair")
        if self.score == "mlp":
            refuse("score", "a score that is a product of states", self.score)
        ends = shared_ends(pair)
        if not ends:
            expected = "pairs with nodes of SharedNegatives"
            refuse("batch['pair']", expected, sorted(pair))
        states = ops.convert_to_tensor(states)
        pair = {name: ops.convert_to_tensor(values) for name, values in pair.items()}
        tables = []
        for end in ends:
            nodes, true = pair[f"shared_{end}"], pair[end]
            query = self.query(states, pair, end)
            answers = graph_ops.batched_gather(states, ops.maximum(nodes, 0))
            table = ops.matmul(query, ops.swapaxes(answers, 1, 2))
            nodes = ops.expand_dims(nodes, 1)
            omitted = ops.logical_or(nodes < 0, nodes == ops.expand_dims(true, 2))
            table = ops.where(omitted, ops.cast(_NOTHING, table.dtype), table)
            score = ops.sum(query * graph_ops.batched_gather(states, true), axis=-1)
            tables.append(ops.concatenate([ops.expand_dims(score, 2), table], axis=2))
        return ops.stack(tables, axis=1)

    def query(self, states: Tensor, pair: Batch, end: str = "receiver") -> Tensor:
        """Return vectors [G, Q, H] whose products with states of nodes are the scores.

        Args:
            states: float [G, N, H].
            pair: `batch["pair"]`.
            end: The end whose states they are multiplied with.
        """
        other = "sender" if end == "receiver" else "receiver"
        rows = graph_ops.batched_gather(states, pair[other])
        if self.score == "dot":
            return rows
        weight = self._relation_rows(pair)
        if self.score == "distmult":
            return rows * weight
        if self.score == "complex":
            real, imaginary = ops.split(rows, 2, axis=-1)
            a, b = ops.split(weight, 2, axis=-1)
            # h_s w; of senders the conjugate of w conj(h_r).
            b = b if end == "receiver" else -b
            parts = real * a - imaginary * b, real * b + imaginary * a
            return ops.concatenate(parts, axis=-1)
        forward, backward = "gqh,gqhk->gqk", "gqk,gqhk->gqh"
        equation = forward if end == "receiver" else backward
        if not self.num_relations:
            equation, weight = equation.replace("gqhk", "hk"), weight[0]
        product = ops.einsum(equation, rows, weight)
        if not self.symmetric:
            return product
        swapped = backward if end == "receiver" else forward
        if not self.num_relations:
            swapped = swapped.replace("gqhk", "hk")
        return 0.5 * (product + ops.einsum(swapped, rows, weight))

    def nuclear_norm(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the cubed moduli of the factors of pairs, summed over k.

        |h_sk|^3 + |w_tk|^3 + |h_rk|^3, the terms of the nuclear 3-norm (N3) of Lacroix
        et al. 2018, https://arxiv.org/abs/1806.07297.

        Args:
            states: float [G, N, H].
            batch: See `call`.

        Returns:
            float [G, Q].

        Raises:
            ValueError: Unless the score is `"distmult"` or `"complex"`.
        """
        one_of("score", self.score, _TYPED)
        pair = batch_part(batch, "pair")
        pair = {name: ops.convert_to_tensor(values) for name, values in pair.items()}
        states, norm = ops.convert_to_tensor(states), 0.0
        ends = (graph_ops.batched_gather(states, pair[end]) for end in ENDS)
        for rows in (*ends, self._relation_rows(pair)):
            square = ops.square(rows)
            if self.score == "complex":
                square = sum(ops.split(square, 2, axis=-1))
            # The root has no gradient at 0.
            norm = norm + ops.sum(square * ops.sqrt(square + _TINY), axis=-1)
        return norm

    def _relation_rows(self, pair):
        """Return the weights of the relation of each pair; those of all if one."""
        weight = ops.cast(ops.convert_to_tensor(self.relations), self.compute_dtype)
        if not self.num_relations:
            return weight
        return ops.take(weight, ops.cast(pair["type"], "int32"), axis=0)

    def _maps(self, states, pair):
        """Return the terms of the hidden layer: of senders, receivers and relations."""
        relation = self._relation_rows(pair) if self.num_relations else 0.0
        return self.sender_dense(states), self.receiver_dense(states), relation

    def _network_scores(self, states, pair):
        sent, received, relation = self._maps(states, pair)

        def scores(sender, receiver):
            rows = graph_ops.batched_gather(sent, sender)
            rows = rows + graph_ops.batched_gather(received, receiver) + relation
            return self.output_dense(self.activation(rows))[..., 0]

        ends = pair["sender"], pair["receiver"]
        if not self.symmetric:
            return scores(*ends)
        return 0.5 * (scores(*ends) + scores(*ends[::-1]))

    def _network_table(self, states, answers, pair, end):
        asked = self._maps(states, pair)[:2]
        *maps, relation = self._maps(answers, pair)
        if self.num_relations:
            relation = ops.expand_dims(relation, 2)

        def scores(of_pairs, of_nodes, ids):
            rows = ops.expand_dims(graph_ops.batched_gather(of_pairs, ids), 2)
            rows = rows + ops.expand_dims(of_nodes, 1) + relation
            return self.output_dense(self.activation(rows))[..., 0]

        first = 0 if end == "receiver" else 1
        ids = pair["sender" if end == "receiver" else "receiver"]
        table = scores(asked[first], maps[1 - first], ids)
        if not self.symmetric:
            return table
        return 0.5 * (table + scores(asked[1 - first], maps[first], ids))

    def compute_output_shape(
        self, states_shape: Shape, batch_shape: BatchShape | None = None
    ) -> Shape:
        """[G, Q]."""
        if batch_shape is None:  # As in `summary`, which knows what `build` was given.
            return (states_shape[0], None)
        return tuple(batch_part(batch_shape, "pair")["sender"])


def shared_ends(pair: Batch) -> list[str]:
    """Return the ends of pairs at which `SharedNegatives` has nodes.

    Args:
        pair: `batch["pair"]`, of arrays or shapes.
    """
    return [end for end in ENDS if f"shared_{end}" in pair]
