"""`BatchLayer`: base class of layers that are called with states and the batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn import keras_bases, primitives
from keras_bandgnn.batch import MESSAGE_WEIGHT, STATE_ROW, explained
from keras_bandgnn.checks import positive_int
from keras_bandgnn.ops.attention import EMPTY
from keras_bandgnn.ops.batched import batched_gather
from keras_bandgnn.ops.sequence import sequence_axis
from keras_bandgnn.primitives.plan import is_scheduled
from keras_bandgnn.primitives.segment import Segment

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, BatchShape, LayerOptions, Shape, Tensor
    from keras_bandgnn.data.flat import FlatGraphs

_MISSING = object()
# A batch has one of them; a prepared plan, which stands for a batch, has "parts".
_PARTS = {"node", "edge", "graph", "pair", "plan", "parts"}
# Arrays of a plan that weigh edges.
_WEIGHTS = ("weight", "back_weight")
SEGMENT = Segment().key()


def target_edges(edge: Mapping) -> Mapping:
    """Return the edges of a batch, with the types and mask that tasks over edges see.

    Those are the target edges of `AttentionEdges`, and otherwise all edges.

    Args:
        edge: `batch["edge"]`.
    """
    if "target" not in edge:
        return edge
    target = ops.convert_to_tensor(edge["target"])
    mask = ops.logical_and(ops.convert_to_tensor(edge["mask"]), target > 0)
    return {**edge, "type": ops.maximum(target - 1, 0), "mask": mask}


class BatchLayer(keras_bases.Layer):
    """A layer that is called as `layer(states, batch, ...)`.

    `batch` is the batch of a loader, or the result of the layer's `prepare(batch)`.
    """

    # Whether the first argument holds states of the batch's nodes.
    takes_states = True
    # What `call` reads of each part of a batch, None for the whole part; by default all
    # of the batch. Keras walks through all tensors of a call several times, which takes
    # as long as a small layer.
    reads: Mapping[str, tuple[str, ...] | None] | None = None
    # Whether the weights of a loader with `edge_weight` change its messages. None is
    # False for layers of the library; others may use them, and are accepted.
    uses_edge_weight: bool | None = None

    # Whether `call` takes edge states as a `LookedUp`; a class that overrides `call`
    # sets it anew.
    takes_lookups = False

    def __call__(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        """Call the layer; see `call`."""
        batch = args[1] if len(args) > 1 else kwargs.get("batch", _MISSING)
        if self.takes_states and batch is not _MISSING:
            check_call(args[0] if args else kwargs.get("states"), batch)
        if self.reads is not None and isinstance(batch, Mapping):
            read = self._read(batch)
            if len(args) > 1:
                args = (args[0], read, *args[2:])
            else:
                kwargs["batch"] = read
        return super().__call__(*args, **kwargs)

    def prepare(self, batch: Batch) -> Batch:
        """Precompute the part of a batch that several layers share.

        Args:
            batch: A batch.

        Returns:
            The argument `batch` of the calls.
        """
        return batch

    def check_weights(
        self, graphs: FlatGraphs, edge_weight: str, first: int = 0
    ) -> None:
        """Raise a ValueError if the layer cannot use weights of edges.

        Args:
            graphs: `FlatGraphs`.
            edge_weight: Edge feature with the weights.
            first: Number of the first graph, for errors.
        """

    def _read(self, batch):
        """Select the layer's parts of a batch; return a prepared one as it is."""
        if not any(isinstance(batch.get(part), Mapping) for part in self.reads):
            return batch
        read = {
            part: batch[part] if keys is None else _some(batch[part], keys)
            for part, keys in self.reads.items()
            if part in batch
        }
        for part in ("explained", "sampled", "hop"):
            if part in batch:
                read[part] = batch[part]
        if "hop" in batch:
            node = {"mask": batch["node"]["mask"]}
            read["node"] = {**node, **read.get("node", {})}
        return read


class StateLayer(BatchLayer):
    """A layer that is called as `layer(states, batch)`, with states of nodes.

    Subclasses override `build_weights`.
    """

    def build(self, states_shape: Shape, batch_shape: BatchShape | None = None) -> None:
        """Build the weights for states [G, N, H]; see `build_weights`."""
        self.build_weights(states_shape)
        self.built = True

    def build_weights(self, states_shape: Shape) -> None:
        """Build the weights; none by default.

        Args:
            states_shape: [G, N, H], of which H has a size.
        """

    def compute_output_shape(
        self, states_shape: Shape, batch_shape: BatchShape | None = None
    ) -> Shape | tuple[Shape, ...]:
        """[G, N, H], those of the states."""
        return tuple(states_shape)


class Readout(StateLayer):
    """A layer that computes rows of width U of the graphs of a batch.

    Args:
        units: U.
    """

    # The part of a batch that the result has rows of, and one of its arrays.
    rows = ("graph", "n_node")

    def __init__(self, units: int, **kwargs: Unpack[LayerOptions]):
        super().__init__(**kwargs)
        self.units = positive_int("units", units)

    def compute_output_shape(
        self, states_shape: Shape, batch_shape: BatchShape | None = None
    ) -> Shape:
        """[G, B, U]."""
        if batch_shape is None:  # As in `summary`, which knows what `build` was given.
            return (states_shape[0], None, self.units)
        part, name = self.rows
        return (*batch_shape[part][name], self.units)


def takes_lookups(layer) -> bool:
    """Return whether the `call` of a layer takes edge states as a `LookedUp`."""
    owner = next(kind for kind in type(layer).__mro__ if "call" in vars(kind))
    return vars(owner).get("takes_lookups", False)


def _some(part, keys):
    return {key: part[key] for key in keys if key in part}


def receiver_rows(states, batch):
    """Return the states of nodes that receive messages, the first of all [G, M, ...].

    All nodes do, but in a hop of a sampled batch; see `hop_batch`.

    Args:
        states: float [G, M, ...].
        batch: A batch, or the result of `prepare`.
    """
    if "hop" not in batch:
        return states
    return states[:, : ops.shape(batch["node"]["mask"])[1]]


def hop_batch(batch, number: int):
    """Return the batch of one hop of a sampled batch, for trimmed layers.

    Args:
        batch: A sampled batch with `"hops"`; see `keras_bandgnn.batch`.
        number: Of the layer.

    Returns:
        A batch of N receivers, which are the first of M >= N senders. `"sampled"`,
        `"set"` and `state_row` still have rows of all nodes.
    """
    hop = batch["hops"][str(number)]
    num_nodes, num_edges = (
        ops.shape(hop[name])[1] for name in ("node_mask", "edge_mask")
    )
    mask = ops.convert_to_tensor(hop["edge_mask"])
    edge = {
        name: ops.convert_to_tensor(values)[:, :num_edges]
        for name, values in batch["edge"].items()
    }
    # Behind the edges of this hop there may be some of the next one.
    edge["sender"] = ops.where(mask, edge["sender"], 0)
    edge["receiver"] = ops.where(mask, edge["receiver"], num_nodes)
    sampled = dict(batch["sampled"])
    if "weight" in sampled:
        weight = ops.convert_to_tensor(sampled["weight"])[:, :num_edges]
        sampled["weight"] = ops.where(mask, weight, 0.0)
    graph_id = ops.convert_to_tensor(batch["node"]["graph_id"])[:, :num_nodes]
    part = {
        "node": {"mask": hop["node_mask"], "graph_id": graph_id},
        "edge": {**edge, "mask": mask},
        "graph": batch["graph"],
        "sampled": sampled,
        "plan": hop["plan"],
        "hop": {},
    }
    if STATE_ROW in batch["node"]:
        part["node"][STATE_ROW] = batch["node"][STATE_ROW]
        # Layers read states instead of features.
        part["set"] = {
            name: {"node": table["node"]} for name, table in batch["set"].items()
        }
    return part


def segment_plan(batch: Batch, num_edge_types: int = 1) -> dict:
    """Return a plan for the edges of a batch, made on the device.

    Args:
        batch: A batch; of its edges it reads ends, weights and, if there are several
            types, types.
        num_edge_types: P; with 1 all edges get the type 0.

    Returns:
        What may stand for `batch["plan"]`.
    """
    edge = batch_part(batch, "edge")
    names = ("sender", "receiver", "type")
    arrays = {name: ops.convert_to_tensor(edge[name]) for name in names}
    weight = explained(batch, "edge")
    if MESSAGE_WEIGHT in edge:
        factor = ops.convert_to_tensor(edge[MESSAGE_WEIGHT])
        weight = factor if weight is None else weight * factor
    if weight is not None:
        arrays["weight"] = weight
    if num_edge_types == 1:
        return {SEGMENT: {**arrays, "type": ops.zeros_like(arrays["type"])}}
    # Edges are sorted by receiver, but not by type.
    row = arrays["receiver"] * num_edge_types + arrays["type"]
    order = ops.cast(ops.argsort(row, axis=1), "int32")
    return {SEGMENT: {k: batched_gather(v, order) for k, v in arrays.items()}}


def is_symbolic(batch: Batch | Tensor) -> bool:
    """Return whether a batch, or a part of one, has results of `keras.Input`.

    Layers called on it prepare a plan for themselves, in each call of the model.
    """
    while isinstance(batch, Mapping):
        batch = next(iter(batch.values()), None)
    return isinstance(batch, keras.KerasTensor)


def check_call(states, batch) -> None:
    """Raise a ValueError for arguments that are not states and the batch they are of.

    Shapes are compared where they are static, so that compiled steps do nothing.

    Args:
        states: The first argument of a layer.
        batch: The second: a batch, or the result of `prepare`.
    """
    if isinstance(states, Mapping) or not isinstance(batch, Mapping):
        names = [
            "a dict" if isinstance(arg, Mapping) else f"a {type(arg).__name__}"
            for arg in (states, batch)
        ]
        raise ValueError(
            "Expected node states and a batch, which is a dict. Received: "
            f"{' and '.join(names)}. Call the layer as layer(states, batch, ...), with "
            "the first item of a GraphLoader's (batch, labels, weights)."
        )
    if not _PARTS & batch.keys():
        batch_part(batch, "node")
    shape = getattr(states, "shape", ())
    node = batch.get("node")
    if len(shape) < 3 or not isinstance(node, Mapping) or "mask" not in node:
        return
    # The states of a schedule's step are those of its receptive field, and a hop of a
    # sampled batch has more senders than receivers.
    if (
        "hop" in batch
        or "hops" in batch
        or is_scheduled(batch.get("plan") or {})
        or sequence_axis() is not None
    ):
        return
    for size, expected in zip(shape[:2], node["mask"].shape, strict=False):
        static = type(size) is int and type(expected) is int
        # An axis of length 1 broadcasts.
        if static and size not in (1, expected):
            raise ValueError(
                f"Expected `states` of shape [G, N, ...] with [G, N]="
                f"{list(node['mask'].shape)}, as the batch has. Received: shape "
                f"{tuple(shape)}. Compute the states from the same batch."
            )


def batch_part(batch, name: str, usage: str = "layer(states, batch, ...)"):
    """Return `batch[name]`.

    Args:
        batch: A batch.
        name: `"node"`, `"edge"`, `"pair"` or `"plan"`.
        usage: The call that the message of the error shows.

    Raises:
        ValueError: If the argument is no batch, or has no such part.
    """
    if isinstance(batch, Mapping) and isinstance(batch.get(name), Mapping):
        return batch[name]
    received = sorted(batch) if isinstance(batch, Mapping) else type(batch).__name__
    raise ValueError(
        f"Expected `batch` to be a batch with a part {name!r}. Received: {received}. "
        f"Call the layer as {usage}, with a batch of a GraphLoader."
    )


def edge_factor(batch):
    """Return how often each edge counts, float32 [G, E]; None for once.

    Explanations vary it, and samplers set it so that the edges of a batch stand for
    those of the whole graph.

    Args:
        batch: A batch, or a hop of one.
    """
    factor = explained(batch, "edge")
    return batch.get("sampled", {}).get("weight") if factor is None else factor


def whole_degree(batch, num_nodes: int):
    """Return the edges into each node of a sampled batch in the whole graph.

    Args:
        batch: A batch, or a hop of one.
        num_nodes: N, nodes that receive messages.

    Returns:
        float32 [G, N]; None for batches that are graphs of their own.
    """
    degree = batch.get("sampled", {}).get("degree")
    return None if degree is None else ops.convert_to_tensor(degree)[:, :num_nodes]


def prepare_plan(batch, num_nodes: int, num_types: int, dtype, use_bias, reduce):
    """Return `primitives.prepare` of the plan of a batch, or of a hop of one.

    In sampled batches the weights of the edges make sums unbiased: a mean is a sum
    over the degree in the whole graph, and a maximum has no weights.

    Args:
        batch: A batch, or a dict of its `"plan"` alone.
        num_nodes: N.
        num_types: P.
        dtype: Compute dtype.
        use_bias: Whether messages have a bias.
        reduce: `"sum"`, `"mean"` or `"max"`.
    """
    plan = batch_part(batch, "plan")
    weighted = "weight" in batch.get("sampled", {})
    if weighted and reduce == "max":
        plan = {
            key: {n: v for n, v in arrays.items() if n not in _WEIGHTS}
            for key, arrays in plan.items()
        }
    plan = primitives.prepare(plan, num_nodes, num_types, dtype, use_bias, reduce)
    if weighted and reduce == "mean":
        plan["count"] = whole_degree(batch, num_nodes)
    return plan


def log_factor(factor):
    """Return the logarithm of edge factors, which attention logits add, or None.

    An edge with the factor f counts f times in the softmax, one with 0 not at all.

    Args:
        factor: float32 [G, E], or None.

    Returns:
        float32 [G, E], or None.
    """
    if factor is None:
        return None
    some = factor > 0
    return ops.where(some, ops.log(ops.where(some, factor, 1.0)), EMPTY)


def check_width(name: str, shape, units: int) -> None:
    """Raise a ValueError if the last axis is not `units` long."""
    if shape[-1] != units:
        raise ValueError(
            f"Expected `{name}` with {units} channels, as units={units}. "
            f"Received: shape {tuple(shape)}."
        )
