"""`GGNNBackbone`: the gated graph neural network of the low-bandwidth paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import boolean, fraction, positive_int
from keras_bandgnn.layers.banded_message_passing import BandedMessagePassing
from keras_bandgnn.layers.batch_layer import is_symbolic
from keras_bandgnn.layers.edge_messages import EdgeMessages
from keras_bandgnn.layers.gru_update import GRUUpdate
from keras_bandgnn.layers.node_encoder import NodeEncoder, edge_encoder
from keras_bandgnn.models.backbone import Backbone, check_inputs, names_read
from keras_bandgnn.ops import remat as rematerialise
from keras_bandgnn.primitives import Banded, ReceptiveField
from keras_bandgnn.primitives.active_blocks import has_blocks, prepare_steps
from keras_bandgnn.primitives.base import part_of
from keras_bandgnn.primitives.csr import row_index
from keras_bandgnn.primitives.plan import is_scheduled, scheduled_steps

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, BatchShape, Config, ModuleOptions, Tensor
    from keras_bandgnn.data.flat import FlatGraphs

# Steps of a GGNN that update only the active blocks of nodes.


def update_blocks(
    states, plan, num_steps: int, message_passing, update, training: bool = False
):
    """Return node states after T steps under a `ReceptiveField` with order="blocks".

    Args:
        states: [G, N, H].
        plan: `batch["plan"]`.
        num_steps: T.
        message_passing: A `BandedMessagePassing`.
        update: A `GRUUpdate`.
        training: Whether to drop out.

    Returns:
        [G, N, H]; correct in the rows of nodes that the task reads.
    """
    steps = scheduled_steps(plan, num_steps)
    prepared = prepare_steps(
        plan, steps, message_passing.num_edge_types, message_passing.compute_dtype
    )
    order, place = plan["blocks"]["order"], plan["blocks"]["place"]
    groups, num_nodes, width = ops.shape(states)
    num_blocks = ops.shape(order)[1]
    banded, _ = part_of(plan, Banded)
    size = banded.block_size

    def moved(x, ids):
        x = ops.reshape(x, (groups, num_blocks, size, width))
        x = graph_ops.batched_gather(x, ids)
        return ops.reshape(x, (groups, num_blocks * size, width))

    states = ops.pad(states, ((0, 0), (0, num_blocks * size - num_nodes), (0, 0)))
    states = moved(states, order)
    for step, step_plan in zip(steps, prepared, strict=True):
        rows = ops.shape(step["block"])[1] * size
        sums = message_passing.prepare_plan(step_plan, rows)
        messages = message_passing(states, sums, training=training)
        new = update(messages, states[:, :rows], training=training)
        states = ops.concatenate([new, states[:, rows:]], axis=1)
    return moved(states, place)[:, :num_nodes]


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class GGNNBackbone(Backbone):
    """T steps of typed messages and a GRU, one set of weights for all steps.

        h(0) = encode(features)
        m(t)[n] = sum over edges (j -> n, type p) of (h(t)[j] W_p + b_p)
        h(t+1) = GRU(m(t), h(t)),  t = 0 .. T-1

    With `edge_inputs` a message is h(t)[j] W_p + b_p + U e_jn, where U e is the sum of
    the embedded edge features. It does not depend on the step, so its sum over the
    edges into a node is computed once for all steps, beside the plan.

    How the sum is carried out is the plan's matter, and the plan is in the batch; the
    weights fit every plan and every block size.

    Args:
        inputs: Node features to embed, as for `NodeEncoder`.
        hidden_dim: H.
        num_steps: T.
        num_edge_types: P.
        dropout: Share of the new state's entries that the GRU cell drops.
        message_dropout: Share of the sent states' entries that are dropped.
        remat: Whether to compute each step again for the gradient, instead of keeping
            its intermediate values: memory of one step instead of T, for 1.4 times
            the operations. Large supergraphs on accelerators need it.
        edge_inputs: Edge features to embed, as for `NodeEncoder`; `"type"` is the type
            of the edge. They have the loader's `edge_weight` as messages do, and count
            also where the plan drops the edge. None for messages without edge
            features.

    Input shape:
        A batch (see `keras_bandgnn.batch`); it reads `"node"` and `"plan"`, and
        `"edge"` with edge features, which the plan may then not have a schedule for.

    Output shape:
        float [G, N, H]; under a plan with a schedule only the rows of the nodes that
        are read.

    Reference:
        Li et al. 2016; Balog et al. 2019, Eq. 1: H = 128, T = 8, P = 22.

    Example:
    >>> import keras_bandgnn as kb
    >>> backbone = kb.models.GGNNBackbone(
    ...     {"type": 512}, hidden_dim=16, num_steps=2, num_edge_types=1
    ... )
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"type": [1, 2, 3]})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> backbone(batch).shape[-1]
    16
    """

    splits_sequences = True
    is_local = True
    sums_messages = True
    weighs_edges = True

    def __init__(
        self,
        inputs: Mapping,
        hidden_dim: int = 128,
        num_steps: int = 8,
        *,
        num_edge_types: int = 22,
        dropout: float = 0.0,
        message_dropout: float = 0.0,
        remat: bool = False,
        edge_inputs: Mapping | None = None,
        **kwargs: Unpack[ModuleOptions],
    ):
        super().__init__(**kwargs)
        # === Config ===
        self.hidden_dim = positive_int("hidden_dim", hidden_dim)
        self.num_steps = positive_int("num_steps", num_steps)
        self.num_edge_types = positive_int("num_edge_types", num_edge_types)
        self.dropout = fraction("dropout", dropout)
        self.message_dropout = fraction("message_dropout", message_dropout)
        self.remat = boolean("remat", remat)
        # === Layers ===
        policy = self.dtype_policy
        self.encoder = NodeEncoder(
            self.hidden_dim, inputs, dtype=policy, name="node_encoder"
        )
        self.message_passing = BandedMessagePassing(
            self.hidden_dim,
            self.num_edge_types,
            dropout=self.message_dropout,
            dtype=policy,
            name="message_passing",
        )
        self.update = GRUUpdate(
            self.hidden_dim, dropout=self.dropout, dtype=policy, name="update"
        )
        self.edge_encoder = edge_encoder(self.hidden_dim, edge_inputs, dtype=policy)
        if self.edge_encoder is not None:
            # Devices that share a supergraph renumber the edges.
            self.splits_sequences = False
        self.build()

    def build(self, input_shape: BatchShape | None = None) -> None:
        """Build every weight from the configuration."""
        states = (None, None, self.hidden_dim)
        self.encoder.build()
        self.message_passing.build(states)
        self.update.build(states, states)
        if self.edge_encoder is not None:
            self.edge_encoder.build()
        self.built = True

    def receptive_field(self, training: bool) -> ReceptiveField | None:
        """Return the schedule of a task that reads few nodes; None with edge features.

        Batches of a schedule lack edges. Nodes with equal states share a row, and with
        it the entries that dropout sets to 0.
        """
        if self.edge_encoder is not None:
            return None
        return ReceptiveField(self.num_steps)

    def features_read(self) -> dict[str, tuple[str, ...]] | None:
        """Return the inputs of the encoders."""
        return names_read(self.encoder, self.edge_encoder)

    def check(self, graphs: FlatGraphs) -> None:
        """Raise a ValueError if the features of a `FlatGraphs` do not fit."""
        check_inputs(graphs, self.encoder, self.edge_encoder)

    def call(self, batch: Batch, training: bool = False) -> Tensor:
        """Return the node states after T steps.

        Under a plan with a schedule these are the states of the nodes that are read.
        """
        states = self.encoder(batch)
        if self.edge_encoder is not None and is_scheduled(batch["plan"]):
            raise ValueError(
                "Expected a plan without a schedule for `edge_inputs`. Received: a "
                "plan with a ReceptiveField. Leave it out of the Plan."
            )
        if has_blocks(batch["plan"]):
            layers = (self.message_passing, self.update)
            return update_blocks(
                states, batch["plan"], self.num_steps, *layers, training
            )
        if is_scheduled(batch["plan"]):
            return self._scheduled(states, batch["plan"], training)
        sums = self._edge_sums(batch, states)
        step = self._step(batch["plan"], keras.ops.shape(states)[1], training)
        layers = (self.message_passing, self.update)
        if sums is None or not self.remat:
            return rematerialise.repeat(
                lambda states: step(states, sums),
                states,
                self.num_steps,
                layers,
                self.remat,
            )

        def joint_step(both):
            # Gradients reach the argument of a checkpointed step, but not captured
            # tensors.
            states, sums = ops.split(both, 2, axis=-1)
            return ops.concatenate([step(states, sums), sums], axis=-1)

        both = ops.concatenate([states, sums], axis=-1)
        both = rematerialise.repeat(joint_step, both, self.num_steps, layers)
        return ops.split(both, 2, axis=-1)[0]

    def _edge_sums(self, batch, states):
        """Return the sums of embedded edge features at receivers [G, N, H], or None."""
        if self.edge_encoder is None:
            return None
        edges = EdgeMessages.of(batch, states, weighted=True)
        return edges.total(self.edge_encoder(batch["edge"]))

    def _step(self, plan, num_nodes: int, training: bool):
        """Run one step, for a plan without a schedule."""
        if is_symbolic(plan):
            plan = {"plan": plan}
        else:
            plan = self.message_passing.prepare_plan(plan, num_nodes)

        def step(states, sums=None):
            messages = self.message_passing(states, plan, training=training)
            if sums is not None:
                messages = messages + sums
            return self.update(messages, states, training=training)

        return step

    def hidden_states(self, batch: Batch, training: bool = False) -> Iterator[Tensor]:
        """Yield the embedded features and the states after each step.

        For plans without a schedule, under which all nodes are computed.
        """
        states = self.encoder(batch)
        yield states
        sums = self._edge_sums(batch, states)
        step = self._step(batch["plan"], keras.ops.shape(states)[1], training)
        for _ in range(self.num_steps):
            states = step(states, sums)
            yield states

    def _scheduled(self, states, plan, training):
        for arrays in scheduled_steps(plan, self.num_steps):
            rows = row_index(arrays["state"], keras.ops.shape(states)[1])
            num_nodes = keras.ops.shape(rows.index)[1]
            sums = {k: v for k, v in arrays.items() if k != "state"}
            sums = self.message_passing.prepare_plan(sums, num_nodes)

            def step(states, rows=rows, sums=sums):
                messages = self.message_passing(states, sums, training=training)
                old = graph_ops.gather_rows(rows, states)
                return self.update(messages, old, training=training)

            if self.remat:
                layers = (self.message_passing, self.update)
                states = rematerialise.checkpoint(step, states, layers)
            else:
                states = step(states)
        return states

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        # Written only if there are any.
        edges = {}
        if self.edge_encoder is not None:
            edges = {"edge_inputs": self.edge_encoder.inputs}
        return {
            **super().get_config(),
            **edges,
            "inputs": self.encoder.inputs,
            "hidden_dim": self.hidden_dim,
            "num_steps": self.num_steps,
            "num_edge_types": self.num_edge_types,
            "dropout": self.dropout,
            "message_dropout": self.message_dropout,
            "remat": self.remat,
        }
