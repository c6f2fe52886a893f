"""`PNABackbone`: principal neighbourhood aggregation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

import keras
import numpy as np

from keras_bandgnn.checks import optional, positive_int, positive_number, sequence
from keras_bandgnn.layers.pna_convolution import SCALERS, PNAConvolution
from keras_bandgnn.models.message_passing.message_passing_backbone import (
    MessagePassingBackbone,
)

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Config, Layer, MessageOptions
    from keras_bandgnn.data.flat import FlatGraphs


def mean_log_degree(parts) -> float:
    """Return the mean of log(degree + 1) over the nodes of parts of `FlatGraphs`."""
    total = count = 0
    for part in parts:
        starts = np.repeat(part.node_ptr[:-1], part.num_edges)
        degree = np.bincount(part.receivers + starts, minlength=part.node_ptr[-1])
        total += float(np.log(degree + 1.0).sum())
        count += len(degree)
    return max(total / max(count, 1), 1e-6)


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class PNABackbone(MessagePassingBackbone):
    """L layers of `PNAConvolution`, with or without edge features.

    `fit` sets `delta` from the graphs to train on, unless it is given.

    Args:
        inputs: Node features to embed, as for `NodeEncoder`.
        hidden_dim: H.
        num_layers: L, the distance in edges that a node sees.
        aggregators: Reductions, as for `PNAConvolution`.
        scalers: Scalers, as for `PNAConvolution`.
        num_towers: T, a divisor of H.
        delta: Mean of log(degree + 1) over the nodes of the training graphs; None for
            that of the graphs given to `fit`.
        **kwargs: Options of `MessagePassingBackbone`: `edge_inputs, num_edge_types,
            norm, activation, dropout, input_dropout, residual, feed_forward,
            jumping_knowledge, virtual_node, ego_separation, activation_first, remat,
            embeddings_initializer, pooling`.

    Input shape:
        A batch (see `keras_bandgnn.batch`); it reads `"node"`, `"graph"`, and `"edge"`.

    Output shape:
        float [G, N, H].

    Raises:
        ValueError: For arguments out of range.

    Reference:
        Corso et al. 2020, https://arxiv.org/abs/2004.05718: four layers, batch
        normalisation, residual.

    Example:
    >>> import keras_bandgnn as kb
    >>> backbone = PNABackbone({"h": {"features": 2}}, 8, edge_inputs={"bond": 4})
    >>> graph = kb.Graph(
    ...     3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3}, edge={"bond": [1, 3]}
    ... )
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> backbone(batch).shape[-1]
    8
    """

    splits_sequences = False

    def __init__(
        self,
        inputs: Mapping,
        hidden_dim: int = 64,
        num_layers: int = 4,
        *,
        aggregators: Sequence[str] = ("mean", "min", "max", "std"),
        scalers: Sequence[str] = SCALERS,
        num_towers: int = 1,
        delta: float | None = None,
        **kwargs: Unpack[MessageOptions],
    ):
        super().__init__(inputs, hidden_dim, num_layers, **kwargs)
        # === Config ===
        self.aggregators = sequence("aggregators", aggregators)
        self.scalers = sequence("scalers", scalers)
        self.num_towers = positive_int("num_towers", num_towers)
        self.delta = optional(positive_number, "delta", delta)
        self.make_layers()

    @property
    def sums_messages(self) -> bool:
        """Return whether an aggregator is a sum."""
        return "sum" in self.aggregators

    def message_layer(self, number: int) -> Layer | None:
        """Create the message passing of a layer."""
        return PNAConvolution(
            self.hidden_dim,
            self.delta or 1.0,
            self.aggregators,
            self.scalers,
            self.num_towers,
            dtype=self.dtype_policy,
            name=f"message_{number}",
        )

    def adapt(self, parts: Sequence[FlatGraphs]) -> bool:
        """Set `delta` from the training graphs, unless it is known.

        Args:
            parts: The graphs, each part a `FlatGraphs`.

        Returns:
            Whether the model's computation has changed.
        """
        if self.delta is not None:
            return False
        self.delta = mean_log_degree(parts)
        for layer in self.messages:
            layer.delta = self.delta
        return True

    @property
    def variant(self) -> float | None:
        """Degrees of the training graphs, a constant of compiled programs."""
        return self.delta

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "aggregators": self.aggregators,
            "scalers": self.scalers,
            "num_towers": self.num_towers,
            "delta": self.delta,
        }
