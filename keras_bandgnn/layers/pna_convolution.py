"""`PNAConvolution`: the layer of a PNA, principal neighbourhood aggregation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn.checks import boolean, divisor, one_of, positive_number, sequence
from keras_bandgnn.layers.dense import FlatDense, dense_kernel
from keras_bandgnn.layers.edge_messages import EdgeMessages
from keras_bandgnn.layers.graph_convolution import EdgeConvolution
from keras_bandgnn.ops.batched import flat_matmul
from keras_bandgnn.ops.lookup import map_states
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, LayerOptions, Shape, Tensor

AGGREGATORS = ("mean", "min", "max", "std", "sum")
SCALERS = ("identity", "amplification", "attenuation")


@serializable
class PNAConvolution(EdgeConvolution):
    """Several reductions of the messages, each scaled by the degree in several ways.

        m[j, n] = M [h[n], h[j], E e[j, n]]
        out[n] = W U [h[n], scaler(d[n]) * reduction over j of m[j, n]]

    over all pairs of a scaler and a reduction, where d[n] is the number of edges into n
    and M, U, W and E are linear maps with biases. Scalers are 1, log(d + 1) / delta
    and its inverse, with delta the mean of log(d + 1) in the training graphs. With T
    towers M and U are T maps of width H / T each if `divide_input`, else of width H.
    Edge types and `batch["plan"]` are ignored.

    Args:
        units: Width U of the new states.
        delta: Mean of log(degree + 1) over the nodes of the training graphs.
        aggregators: Reductions: `"mean"`, `"min"`, `"max"`, `"std"`, `"sum"`.
        scalers: `"identity"`, `"amplification"`, `"attenuation"`.
        num_towers: T, a divisor of the units.
        divide_input: Whether each tower reads its share of the channels.

    Input shape:
        states: float [G, N, H].
        batch: A batch (see `keras_bandgnn.batch`); it reads
            `batch["edge"]["sender"]` and `["receiver"]`, int32 [G, E].
        edge_states: float [G, E, D], a `LookedUp`, or None.

    Output shape:
        float [G, N, U].

    Raises:
        ValueError: For arguments out of range, or widths that towers do not divide.

    Reference:
        Corso et al. 2020, https://arxiv.org/abs/2004.05718, Eqs. 5 to 8.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> PNAConvolution(8)(batch["node"]["h"], batch).shape[-1]
    8
    """

    splits_sequences = False
    takes_lookups = True
    reads = {"edge": ("sender", "receiver")}

    def __init__(
        self,
        units: int,
        delta: float = 1.0,
        aggregators: Sequence[str] = ("mean", "min", "max", "std"),
        scalers: Sequence[str] = SCALERS,
        num_towers: int = 1,
        divide_input: bool = False,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(units, **kwargs)
        # === Config ===
        self.delta = positive_number("delta", delta)
        self.aggregators = [
            one_of("aggregators", aggregator, AGGREGATORS)
            for aggregator in sequence("aggregators", aggregators)
        ]
        self.scalers = [
            one_of("scalers", scaler, SCALERS)
            for scaler in sequence("scalers", scalers)
        ]
        self.num_towers = divisor("num_towers", num_towers, "units", self.units)
        self.divide_input = boolean("divide_input", divide_input)
        # === Layers ===
        self.output_dense = FlatDense(
            self.units, dtype=self.dtype_policy, name="output"
        )
        self.edge_dense = None

    def build_weights(
        self, states_shape: Shape, edge_states_shape: Shape | None = None
    ) -> None:
        """Build the maps of the towers, E and W."""
        width, towers = states_shape[-1], self.num_towers
        if self.divide_input:
            if width % towers:
                raise ValueError(
                    "Expected `states` with a multiple of `num_towers` channels. "
                    f"Received: shape {tuple(states_shape)}, num_towers={towers}."
                )
            width //= towers

        def kernel(name, fan_in, rows, columns):
            limit = (6.0 / (fan_in + columns)) ** 0.5
            return self.add_weight(
                name=name,
                shape=(towers, rows, columns),
                initializer=keras.initializers.RandomUniform(-limit, limit),
            )

        ends = 2 if edge_states_shape is None else 3
        names = ("receiver_kernel", "sender_kernel", "edge_kernel")
        self.receiver_kernel, self.sender_kernel, self.edge_kernel = (
            kernel(name, ends * width, width, width) if place < ends else None
            for place, name in enumerate(names)
        )
        self.message_bias = self.add_weight(
            name="message_bias", shape=(towers, width), initializer="zeros"
        )
        if edge_states_shape is not None:
            self.edge_dense = FlatDense(width, dtype=self.dtype_policy, name="edge")
            self.edge_dense.build(edge_states_shape)
        columns = self.units // towers
        rows = len(self.aggregators) * width
        fan_in = width + len(self.scalers) * rows
        self.own_kernel = kernel("own_kernel", fan_in, width, columns)
        self.scaler_kernels = [
            kernel(f"{name}_kernel", fan_in, rows, columns) for name in self.scalers
        ]
        self.tower_bias = self.add_weight(
            name="tower_bias", shape=(towers, columns), initializer="zeros"
        )
        self.output_dense.build((None, None, self.units))

    def _maps(self, rows, kernel):
        """Map rows [G, N, T or 1, F] of each tower by its kernel [T, F, U]."""
        kernel = ops.convert_to_tensor(kernel)
        if self.divide_input:
            return _by_tower(rows, kernel)
        # All towers read the same rows: one product.
        out = flat_matmul(rows[:, :, 0], _side_by_side(kernel))
        return ops.reshape(out, (*ops.shape(out)[:-1], self.num_towers, -1))

    def call(
        self,
        states: Tensor,
        batch: Batch,
        edge_states: Tensor | None = None,
        training: bool = False,
    ) -> Tensor:
        """Return the new states."""
        edges = EdgeMessages.of(batch, states)
        towers = self.num_towers
        parts = towers if self.divide_input else 1
        width = self.own_kernel.shape[1]
        rows = ops.reshape(states, (*ops.shape(states)[:2], parts, width))

        def flat(values):
            return ops.reshape(values, (*ops.shape(values)[:2], towers * width))

        # Linear: the maps of nodes are computed once per node, not per edge.
        received = flat(self._maps(rows, self.receiver_kernel))
        bias = ops.reshape(ops.convert_to_tensor(self.message_bias), (-1,))
        messages = edges.sent(flat(self._maps(rows, self.sender_kernel)))
        if edge_states is not None:
            # So are both maps of edges, as one.
            first = dense_kernel(self.edge_dense)
            first_bias = ops.convert_to_tensor(self.edge_dense.bias)
            kernel = _side_by_side(ops.convert_to_tensor(self.edge_kernel))
            kernel_of_both = ops.matmul(first, kernel)
            messages = messages + map_states(
                lambda rows: flat_matmul(rows, kernel_of_both), edge_states
            )
            bias = bias + ops.matmul(ops.expand_dims(first_bias, 0), kernel)
        messages = messages + edges.received(received + bias)
        reduced = ops.concatenate(
            [
                ops.reshape(reduction, (*ops.shape(reduction)[:2], towers, width))
                for reduction in self._reductions(edges, messages)
            ],
            axis=-1,
        )
        # That of the whole graph, however many edges a sampler has drawn.
        degree = ops.maximum(edges.degree(), 1.0)
        degree = ops.expand_dims(ops.log(degree + 1.0), -1)
        out = self._maps(rows[:, : edges.num_nodes], self.own_kernel)
        kernels = map(ops.convert_to_tensor, self.scaler_kernels)
        parts = _by_tower(reduced, ops.concatenate([*kernels], axis=-1))
        parts = ops.split(parts, len(self.scalers), axis=-1)
        for name, part in zip(self.scalers, parts, strict=True):
            if name == "amplification":
                part = part * ops.cast(degree / self.delta, part.dtype)
            elif name == "attenuation":
                part = part * ops.cast(self.delta / degree, part.dtype)
            out = out + part
        out = out + ops.convert_to_tensor(self.tower_bias)
        return self.output_dense(ops.reshape(out, (*ops.shape(out)[:2], self.units)))

    def _reductions(self, edges, messages):
        """Yield [G, N, T F] per aggregator."""
        wide = ops.cast(messages, "float32")
        count = center = None
        if {"mean", "std"} & {*self.aggregators}:
            count = edges.count()
            # The mean of the edges at hand, around which they deviate.
            center = edges.mean(wide, count)
        for name in self.aggregators:
            if name == "std":
                # As torch_geometric: 0 for less than 1e-5, also in the gradient. NaN
                # stays NaN.
                variance = edges.mean(ops.square(wide - edges.received(center)), count)
                small = variance <= 1e-5
                root = ops.sqrt(ops.where(small, 1.0, variance))
                out = ops.where(small, 0.0, root)
            elif name == "mean":
                out = center if edges.factor is None else edges.mean(wide)
            else:
                reduce = {"sum": edges.total, "max": edges.largest}
                out = reduce.get(name, edges.smallest)(messages)
            yield ops.cast(out, messages.dtype)


def _side_by_side(kernel):
    """Return the kernels [T, F, U] of all towers as one, [F, T U]."""
    width = kernel.shape[1]
    return ops.reshape(ops.transpose(kernel, (1, 0, 2)), (width, -1))


def _by_tower(rows, kernel):
    """Map rows [G, N, T, F] by the kernel [T, F, U] of their tower."""
    shape = ops.shape(rows)
    if shape[2] == 1:
        return ops.expand_dims(flat_matmul(rows[:, :, 0], kernel[0]), 2)
    rows = ops.reshape(rows, (-1, *shape[2:]))
    return ops.reshape(ops.einsum("ntf,tfu->ntu", rows, kernel), (*shape[:3], -1))
