"""`RGCNConvolution`: the layer of a relational GCN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn import primitives
from keras_bandgnn.checks import boolean, one_of, optional, positive_int
from keras_bandgnn.layers.batch_layer import batch_part, edge_factor, receiver_rows
from keras_bandgnn.layers.dense import FlatDense
from keras_bandgnn.layers.graph_convolution import Convolution
from keras_bandgnn.layers.typed_edges import type_count
from keras_bandgnn.primitives.plan import is_prepared, mean_by_type
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, LayerOptions, Shape, Tensor

REDUCTIONS = ("mean", "sum")


@serializable
class RGCNConvolution(Convolution):
    """A map of a node's state, and one of its neighbours' states per edge type.

    Schlichtkrull et al. 2018, Eq. 2, without the activation:

        out[n] = h[n] W_own + b
                 + sum over edges (j -> n, type p) of w h[j] W[p] / c[n, p]

    with c[n, p] the number of edges of type p into n for `"mean"`, and 1 for `"sum"`.
    The weight w is 1 unless the loader has an `edge_weight`; c counts edges whatever
    their weights. To share weights between types, W[p] is a combination of V_1 .. V_B,
    which all types share (`num_bases`, Eq. 3), or has blocks on its diagonal and is 0
    elsewhere (`num_blocks`, Eq. 4):

        W[p] = sum over b of a[p, b] V_b,    W[p] = diag(Q[p, 1], .., Q[p, B])

    The batch's plan computes the sum over edges, and c is counted from the plan on the
    device, once per batch: results depend neither on the plan, nor on padding, nor on
    the other graphs of a batch. Edges that a plan drops (`rest="drop"`) do not count in
    c. In batches of a sampler c counts the edges of the whole graph if messages have
    weights, and otherwise those of the batch.

    Args:
        units: Width U of the new states.
        num_edge_types: P, the number of edge types in batches.
        reduce: `"mean"` or `"sum"`, how the messages of one type are reduced. Types
            add up, and one without edges adds 0.
        num_bases: B, the matrices that all types share; None for a matrix per type.
        num_blocks: B, blocks on the diagonal of each type's matrix, a divisor of H and
            of U; None for full matrices. Products are those of full matrices: blocks
            save weights, but no time.
        use_bias: Whether to add b.

    Input shape:
        states: float [G, N, H].
        batch: A batch (see `keras_bandgnn.batch`), or the result of `prepare`.

    Output shape:
        float [G, N, U].

    Raises:
        ValueError: For arguments out of range, both `num_bases` and `num_blocks`, or a
            width that is no multiple of `num_blocks`.

    Reference:
        Schlichtkrull et al. 2018, https://arxiv.org/abs/1703.06103.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(
    ...     3, [0, 1, 0], [1, 2, 2], edge_type=[0, 1, 0], node={"h": [[1.0, 2.0]] * 3}
    ... )
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> RGCNConvolution(8, num_edge_types=2)(batch["node"]["h"], batch).shape[-1]
    8
    """

    splits_sequences = False
    uses_edge_weight = True
    reads = {"edge": ("receiver", "type"), "node": ("mask",), "plan": None}

    def __init__(
        self,
        units: int,
        num_edge_types: int = 1,
        reduce: str = "mean",
        num_bases: int | None = None,
        num_blocks: int | None = None,
        use_bias: bool = True,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(units, **kwargs)
        # === Config ===
        self.num_edge_types = positive_int("num_edge_types", num_edge_types)
        self.reduce = one_of("reduce", reduce, REDUCTIONS)
        self.num_bases = optional(positive_int, "num_bases", num_bases)
        self.num_blocks = optional(positive_int, "num_blocks", num_blocks)
        if self.num_bases is not None and self.num_blocks is not None:
            raise ValueError(
                "Expected `num_bases` or `num_blocks`, which are two ways to share "
                f"weights between types. Received: num_bases={num_bases}, "
                f"num_blocks={num_blocks}. Leave one of them out."
            )
        self._check_blocks("units", self.units)
        self.use_bias = boolean("use_bias", use_bias)
        # === Layers ===
        self.own_dense = FlatDense(
            self.units, use_bias=self.use_bias, dtype=self.dtype_policy, name="own"
        )

    def _check_blocks(self, name: str, width: int) -> None:
        if self.num_blocks is not None and width % self.num_blocks:
            raise ValueError(
                f"Expected `{name}` to be a multiple of `num_blocks`, as blocks of "
                f"equal size are on the diagonal. Received: {name}={width}, "
                f"num_blocks={self.num_blocks}. Choose a common divisor of the widths."
            )

    def build_weights(self, states_shape: Shape) -> None:
        """Build W_own [H, U], b [U], and the weights of the types.

        These are a kernel [P, H, U]; coefficients [P, B] and bases [B, H, U]; or blocks
        [P, B, H / B, U / B].
        """
        width = states_shape[-1]
        self._check_blocks("states.shape[-1]", width)
        self.own_dense.build(states_shape)
        self.kernel = self.coefficients = None
        types, shape = self.num_edge_types, (width, self.units)
        if self.num_bases is not None:
            self.coefficients = self.add_weight(
                name="coefficients",
                shape=(types, self.num_bases),
                initializer="glorot_uniform",
            )
            name, axes = "bases", (self.num_bases,)
        elif self.num_blocks is not None:
            shape = tuple(size // self.num_blocks for size in shape)
            name, axes = "blocks", (types, self.num_blocks)
        else:
            name, axes = "kernel", (types,)
        # Fans of one matrix.
        limit = (6.0 / sum(shape)) ** 0.5
        self.kernel = self.add_weight(
            name=name,
            shape=(*axes, *shape),
            initializer=keras.initializers.RandomUniform(-limit, limit),
        )

    def _type_kernel(self):
        """Return the matrices of all types [P, H, U]."""
        kernel = ops.convert_to_tensor(self.kernel)
        if self.num_bases is not None:
            bases, width, units = kernel.shape
            flat = ops.reshape(kernel, (bases, width * units))
            kernel = ops.matmul(ops.convert_to_tensor(self.coefficients), flat)
            return ops.reshape(kernel, (self.num_edge_types, width, units))
        if self.num_blocks is None:
            return kernel
        types, blocks, width, units = kernel.shape
        # Rows of block b times columns of block c are 0 unless b = c.
        diagonal = ops.reshape(
            ops.eye(blocks, dtype=kernel.dtype), (1, blocks, 1, blocks, 1)
        )
        kernel = ops.expand_dims(kernel, 3) * diagonal
        return ops.reshape(kernel, (types, blocks * width, blocks * units))

    def prepare(self, batch: Batch) -> Batch:
        """Precompute the part of a batch that layers of equal options share."""
        num_nodes = ops.shape(batch["node"]["mask"])[1]
        plan = batch_part(batch, "plan")
        if self.reduce == "mean":
            # Some primitives add types up before a sum per type exists, but all weigh
            # edges: 1 / c enters there, and takes an array [E] and no [E, H].
            count = None
            if edge_factor(batch) is not None:
                count = type_count(batch, num_nodes, self.num_edge_types)
            plan = mean_by_type(plan, num_nodes, self.num_edge_types, count)
        plan = primitives.prepare(
            plan, num_nodes, self.num_edge_types, self.compute_dtype, use_bias=False
        )
        return {**batch, "plan": plan}

    def call(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the new states."""
        if not is_prepared(batch["plan"]):
            batch = self.prepare(batch)
        total = primitives.propagate(batch["plan"], states, self._type_kernel())
        return total + self.own_dense(receiver_rows(states, batch))
