"""`NodeSetDense`: a dense map of its own for each node set."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

from keras import ops

from keras_bandgnn.arrays import check_set_name
from keras_bandgnn.batch import STATE_ROW
from keras_bandgnn.checks import boolean, refuse, strings
from keras_bandgnn.layers.batch_layer import batch_part
from keras_bandgnn.layers.dense import FlatDense
from keras_bandgnn.layers.graph_convolution import Convolution
from keras_bandgnn.ops.batched import batched_gather
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, LayerOptions, Shape, Tensor


def checked_node_sets(names: Iterable[str]) -> list[str]:
    """Return the names of node sets in their order, or raise a ValueError."""
    names = strings("node_sets", names)
    for name in names:
        check_set_name(name)
    if not names or len({*names}) < len(names):
        refuse("node_sets", "names of one or more node sets, each once", names)
    return sorted(names)


def node_set_ids(batch, node_sets: list[str], num_nodes: int):
    """Return the set of each node, int32 [G, N]: its number in the order of names.

    Args:
        batch: A batch of graphs with node sets.
        node_sets: Names of the sets, in order.
        num_nodes: N, of the first nodes.
    """
    row = ops.convert_to_tensor(batch["node"][STATE_ROW])[:, :num_nodes]
    number, first = ops.zeros_like(row), 0
    for name in node_sets[:-1]:
        first = first + ops.shape(batch["set"][name]["node"])[1]
        number = number + ops.cast(row >= first, row.dtype)
    return number


def set_rows(batch, node_sets: list[str], num_nodes):
    """Return the nodes of each set, and the row of each node among those of all sets.

    A hop has the first nodes of a sampled batch, whose tables have the order of nodes:
    their rows are the first ones of each table.

    Args:
        batch: A batch of graphs with node sets, or a hop of one.
        node_sets: Names of the sets, in order.
        num_nodes: N, of the first nodes.

    Returns:
        int32 [G, M] of each set, and int32 [G, N].
    """
    row = ops.convert_to_tensor(batch["node"][STATE_ROW])[:, :num_nodes]
    kind = node_set_ids(batch, node_sets, num_nodes)
    nodes, skipped = [], 0
    for number, name in enumerate(node_sets):
        ids = ops.convert_to_tensor(batch["set"][name]["node"])
        if "hop" in batch:
            row = row - ops.where(kind == number, skipped, 0)
            size, ids = ops.shape(ids)[1], ids[:, :num_nodes]
            skipped = skipped + size - ops.shape(ids)[1]
            # The other rows are of nodes that the hop does not have.
            ids = ops.minimum(ids, num_nodes - 1)
        nodes.append(ids)
    return nodes, row


@serializable
class NodeSetDense(Convolution):
    """A dense map per node set, of the states of the nodes in it.

        out[n] = h[n] W[s] + b[s],  s the set of n

    The states of each set are gathered, so that each map is one product of matrices,
    and their results are gathered back.

    Args:
        units: Width U of the new states.
        node_sets: Names of the node sets of the graphs.
        kernel_initializer: Initial values of each W[s] [H, U].
        use_bias: Whether to add b[s].

    Input shape:
        states: float [G, N, H].
        batch: A batch of graphs with node sets (see `keras_bandgnn.batch`), or a hop of
            one; it reads `batch["node"]["state_row"]` and `batch["set"][s]["node"]`.

    Output shape:
        float [G, N, U].

    Raises:
        ValueError: For arguments out of range, or a batch without these node sets.

    Example:
    >>> import keras
    >>> import keras_bandgnn as kb
    >>> graph = kb.data.from_sets(
    ...     {"user": 2, "item": 3}, {("user", "buys", "item"): [[0, 1], [0, 2]]}
    ... )
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> states = keras.ops.ones((*batch["node"]["mask"].shape, 4))
    >>> NodeSetDense(8, ["user", "item"])(states, batch).shape[-1]
    8
    """

    splits_sequences = False
    reads = {"node": ("mask", STATE_ROW), "set": None}

    def __init__(
        self,
        units: int,
        node_sets: Iterable[str],
        kernel_initializer: str = "glorot_uniform",
        use_bias: bool = True,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(units, **kwargs)
        # === Config ===
        self.node_sets = checked_node_sets(node_sets)
        self.kernel_initializer = kernel_initializer
        self.use_bias = boolean("use_bias", use_bias)
        # === Layers ===
        for number, name in enumerate(self.node_sets):
            layer = FlatDense(
                self.units,
                use_bias=self.use_bias,
                kernel_initializer=kernel_initializer,
                dtype=self.dtype_policy,
                # Names of parameters of torch have no dots, unlike those of sets.
                name=f"set_{number}",
            )
            # One attribute each: the names of the weights in a file.
            setattr(self, f"dense_{name}", layer)

    def build_weights(self, states_shape: Shape) -> None:
        """Build W [H, U] and b [U] of each set."""
        for name in self.node_sets:
            getattr(self, f"dense_{name}").build(states_shape)

    def check_sets(self, batch: Batch) -> None:
        """Raise a ValueError for a batch of graphs with other node sets, or none."""
        node, sets = batch_part(batch, "node"), batch.get("set", {})
        if sorted(sets) != self.node_sets or STATE_ROW not in node:
            raise ValueError(
                f"Expected a batch of graphs with the node sets {self.node_sets}. "
                f"Received: {sorted(sets)}. Build the graphs with "
                "keras_bandgnn.data.from_sets, each with all sets, and call the layer "
                "as layer(states, batch, ...), with a batch of their loader."
            )

    def prepare(self, batch: Batch) -> Batch:
        """Check the sets of a batch, and leave out their features.

        Args:
            batch: A batch.

        Returns:
            The argument `batch` of the calls.
        """
        self.check_sets(batch)
        sets = {name: {"node": table["node"]} for name, table in batch["set"].items()}
        return {**batch, "set": sets}

    def call(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the new states."""
        self.check_sets(batch)
        num_nodes = ops.shape(states)[1]
        nodes, row = set_rows(batch, self.node_sets, num_nodes)
        sizes = [ops.shape(ids)[1] for ids in nodes]
        rows = batched_gather(states, ops.concatenate(nodes, axis=1))
        mapped, first = [], 0
        for name, size in zip(self.node_sets, sizes, strict=True):
            dense = getattr(self, f"dense_{name}")
            mapped.append(dense(rows[:, first : first + size]))
            first = first + size
        return batched_gather(ops.concatenate(mapped, axis=1), row)
