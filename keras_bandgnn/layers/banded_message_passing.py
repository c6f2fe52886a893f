"""`BandedMessagePassing`: the typed linear messages of a GGNN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import keras

from keras_bandgnn import primitives
from keras_bandgnn.checks import boolean, fraction, one_of, positive_int
from keras_bandgnn.layers.batch_layer import batch_part, prepare_plan, receiver_rows
from keras_bandgnn.layers.dropout import Dropout
from keras_bandgnn.layers.graph_convolution import Convolution
from keras_bandgnn.primitives.plan import is_prepared
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, LayerOptions, Shape, Tensor


@serializable
class BandedMessagePassing(Convolution):
    """Sum of linear messages over typed edges, computed by the batch's plan.

    Balog et al. 2019, Algorithm 1, lines 1 to 5:

        m[n] = sum over edges (j -> n, type p) of w (x[j] W[p] + b[p]),

    with w = 1 unless the loader has an `edge_weight`. The plan in the batch determines
    how: as three batched matmuls over diagonal blocks (`"banded:S"`), as a sparse
    product, or both, each edge once. Edges outside the band are therefore exact, too,
    unless the plan drops them. The weights do not depend on the plan.

    Args:
        units: Width U of a message.
        num_edge_types: P.
        use_bias: Whether each message gets the learnable bias of its edge type.
        dropout: Dropout rate of the states before they are sent.
        reduce: `"sum"`, as in the paper; `"mean"`, the sum over the number of incoming
            edges; or `"max"`, the maximum per unit (only plans of `Segment` or
            `Grouped`). Nodes without incoming edges get 0.

    Input shape:
        states: float [G, N, H] (supergraphs, nodes, channels).
        batch: A batch (see `keras_bandgnn.batch`), or the result of `prepare`.

    Output shape:
        float [G, N, U].

    Raises:
        ValueError: For arguments out of range, or states that are not [G, N, H].

    Reference:
        Balog et al. 2019, https://arxiv.org/abs/1906.11786, Eq. 1 and 3, Algorithm 1.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0], [2.0], [3.0]]})
    >>> batch, = kb.preprocessing.GraphLoader([graph], plan=kb.plans.Plan())[0]
    >>> layer = kb.layers.BandedMessagePassing(4)
    >>> layer(batch["node"]["h"], batch).shape[-1]
    4
    """

    splits_sequences = True
    uses_edge_weight = True

    def __init__(
        self,
        units: int,
        num_edge_types: int = 1,
        use_bias: bool = True,
        dropout: float = 0.0,
        reduce: str = "sum",
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(units, **kwargs)
        # === Config ===
        self.num_edge_types = positive_int("num_edge_types", num_edge_types)
        self.use_bias = boolean("use_bias", use_bias)
        self.dropout = fraction("dropout", dropout)
        self.reduce = one_of("reduce", reduce, ("sum", "mean", "max"))
        # === Layers ===
        self.dropout_layer = Dropout(self.dropout, dtype=self.dtype_policy)

    def build_weights(self, states_shape: Shape) -> None:
        """Build the kernel [P, H, U] and the bias [P, U]."""
        if len(states_shape) != 3 or states_shape[-1] is None:
            raise ValueError(
                "Expected `states` of shape [G, N, H]. "
                f"Received: shape {tuple(states_shape)}."
            )
        # Fans of one edge type: H inputs, U outputs.
        width = states_shape[-1]
        limit = (6.0 / (width + self.units)) ** 0.5
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.num_edge_types, width, self.units),
            initializer=keras.initializers.RandomUniform(-limit, limit),
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.num_edge_types, self.units),
                initializer="zeros",
            )

    def prepare(self, batch: Batch) -> Batch:
        """Prepare the plan on the device, once for several calls on one batch.

        Args:
            batch: A batch.

        Returns:
            The argument `batch` of the calls.
        """
        node = batch_part(batch, "node", "layer.prepare(batch)")
        return self._prepared(batch, keras.ops.shape(node["mask"])[1])

    def prepare_plan(self, plan: Batch, num_nodes: int) -> Batch:
        """Prepare a plan, such as that of a step of a schedule; see `prepare`.

        Args:
            plan: `batch["plan"]`, or a step of it.
            num_nodes: N, the receivers.
        """
        return self._prepared({"plan": plan}, num_nodes)

    def _prepared(self, batch, num_nodes: int):
        return prepare_plan(
            batch,
            num_nodes,
            self.num_edge_types,
            self.compute_dtype,
            self.use_bias,
            self.reduce,
        )

    def call(self, states: Tensor, batch: Batch, training: bool = False) -> Tensor:
        """Return the incoming messages of every node."""
        plan = batch
        if not is_prepared(batch):
            num_nodes = keras.ops.shape(receiver_rows(states, batch))[1]
            plan = self._prepared(batch, num_nodes)
        states = self.dropout_layer(states, training=training)
        kernel = keras.ops.convert_to_tensor(self.kernel)
        bias = None if self.bias is None else keras.ops.convert_to_tensor(self.bias)
        return primitives.propagate(plan, states, kernel, bias, self.reduce)
