"""What a primitive is: one way to carry out a sum over typed edges."""

import dataclasses
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bandgnn import ops as graph_ops


@dataclasses.dataclass(frozen=True)
class Edges:
    """Edges of one supergraph or of many graphs laid end to end (E edges, N nodes).

    Args:
        sender: int32 [E].
        receiver: int32 [E].
        type: int32 [E].
        num_nodes: N, nodes that receive.
        num_types: P.
        weight: float32 [E], factor of each message; 1 if omitted.
        num_senders: M, nodes that send, where they are others than those that receive.
        room: Sender, receiver and type with padding behind the edges, int32 [capacity]
            each: sender and type 0, receiver N.
        transpose: Whether to lay out the transposed sums too, as the gradient of large
            supergraphs needs them; without it the device sorts once per batch.
    """

    sender: np.ndarray
    receiver: np.ndarray
    type: np.ndarray
    num_nodes: int
    num_types: int
    weight: np.ndarray | None = None
    num_senders: int | None = None
    room: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    transpose: bool = False

    def __len__(self) -> int:
        return self.sender.shape[0]

    def keep(self, mask: np.ndarray) -> "Edges":
        """Returns the edges selected by a boolean mask."""
        return dataclasses.replace(
            self,
            sender=self.sender[mask],
            receiver=self.receiver[mask],
            type=self.type[mask],
            weight=None if self.weight is None else self.weight[mask],
            room=None,
        )

    def padded(self, length: int, what: str) -> dict[str, np.ndarray]:
        """Sender, receiver, type and weight, padded to the capacity of a resource."""
        if self.room is not None and len(self.room[0]) == length:
            sender, receiver, kind = self.room
            arrays = {"sender": sender, "receiver": receiver, "type": kind}
        else:
            arrays = {
                "sender": pad(self.sender, length, 0, what),
                "receiver": pad(self.receiver, length, self.num_nodes, what),
                "type": pad(self.type, length, 0, what),
            }
        if self.weight is not None:
            arrays["weight"] = pad(self.weight, length, 0, what)
        return arrays

    def sorted_by(self, key: np.ndarray) -> "Edges":
        """Returns the edges in ascending order of a key, ties as they were."""
        if (key[1:] < key[:-1]).any():
            return self.keep(np.argsort(key, kind="stable"))
        return self

    @property
    def senders(self) -> int:
        """Number of nodes that send."""
        return self.num_nodes if self.num_senders is None else self.num_senders


def pad(values: np.ndarray, length: int, fill: int, what: str) -> np.ndarray:
    """Pads a 1-D array to the static length of its capacity."""
    if values.shape[0] > length:
        raise ValueError(
            f"Expected at most {length} entries for '{what}'. "
            f"Received: {values.shape[0]}. Raise the budget of '{what}'."
        )
    out = np.full(length, fill, values.dtype)
    out[: values.shape[0]] = values
    return out


class Primitive:
    """One instruction of the graph virtual machine.

    All primitives compute, over the edges that they cover,

        out[n] = sum over edges (j -> n, type p) of w * (x[j] @ kernel[p] + bias[p]).

    A subclass says which edges it covers (`cover`, `always_covers`), how large its
    arrays get (`sizes`), lays the arrays out on the host (`pack`), does what is the
    same in every step (`prepare`) and carries the sum out on the device: either
    `typed_sum`, the sums of the states per receiver and type, which several primitives
    add up before they are multiplied with the kernel once; or, where `transforms` is
    true, `apply`. `cost` estimates the time.
    """

    # Whether it can carry any edge; such a primitive can be the rest of a plan.
    covers_all = False
    # Whether it multiplies with the kernel itself.
    transforms = False
    # Whether it can take the maximum of messages, and messages between two sets of
    # nodes.
    takes_maximum = False
    bipartite = False
    # Whether it covers other edges where the graph lies elsewhere in a supergraph; and
    # whether what it covers depends on the other edges that it is given.
    depends_on_place = False
    depends_on_edges = False

    def key(self) -> str:
        """Name of the primitive's arrays in `x["plan"]`, such as `"banded:128"`."""
        raise NotImplementedError

    @classmethod
    def from_key(cls, key: str) -> "Primitive":
        """Builds the primitive that `key` names."""
        primitive = cls()
        if primitive.key() != key:
            raise ValueError(f"Expected {primitive.key()!r}. Received: {key!r}.")
        return primitive

    def cover(self, edges: Edges) -> np.ndarray:
        """Which of the edges it takes, bool [E]."""
        return np.ones(len(edges), bool)

    def always_covers(self, edges: Edges) -> np.ndarray:
        """Which edges it takes wherever the graph lies in a supergraph, bool [E]."""
        return self.cover(edges)

    def sizes(self, edges: Edges, graph_of_edge, num_graphs: int) -> dict[str, Any]:
        """Resources that each graph needs at most, name -> int64 [num_graphs]."""
        return {self.key(): np.bincount(graph_of_edge, minlength=num_graphs)}

    def pack(self, edges: Edges, budget: dict[str, int]) -> dict[str, np.ndarray]:
        """Lays the edges out as arrays of static shape."""
        raise NotImplementedError

    def prepare(self, arrays: dict, num_nodes: int, num_types: int, dtype: str) -> dict:
        """Device work that is done once per batch, before the propagation steps."""
        del num_nodes, num_types, dtype
        return arrays

    def typed_sum(self, prepared: dict, x, num_types: int):
        """Sums of the senders' states per receiver and type.

        Args:
            prepared: What `prepare` returned.
            x: [G, M, H].
            num_types: P.

        Returns:
            [G, N, P * H].
        """
        raise NotImplementedError

    def degree(self, prepared: dict, num_nodes: int, num_types: int):
        """Sum of the weights of each receiver's edges per type, float32 [G, N, P]."""
        values = prepared.get("weight", prepared["mask"])
        return per_receiver(prepared, values, num_nodes, num_types)

    def count(self, prepared: dict, num_nodes: int, num_types: int):
        """Number of each receiver's edges, float32 [G, N]."""
        counts = per_receiver(prepared, prepared["mask"], num_nodes, num_types)
        return ops.sum(counts, axis=-1)

    def apply(self, prepared: dict, x, kernel):
        """Incoming messages, without biases, of every node over the covered edges.

        Args:
            prepared: What `prepare` returned.
            x: [G, M, H].
            kernel: [P, H, U].

        Returns:
            [G, N, U].
        """
        raise NotImplementedError

    def cost(self, load: "Load", hardware) -> float:
        """Seconds of one step, forward and backward, on a machine.

        Args:
            load: What a supergraph needs and how wide its rows are.
            hardware: The machine's constants, a `Hardware`.
        """
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Primitive) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key()!r})"


def supergraph_ids(ids):
    """Number of the supergraph of each id, int32 of the shape of `ids` [G, E]."""
    groups = ops.reshape(ops.arange(ops.shape(ids)[0], dtype="int32"), (-1, 1))
    return ops.broadcast_to(groups, ops.shape(ids))


def per_receiver(arrays: dict, values, num_nodes: int, num_types: int):
    """Sum of a value per receiver and type, float32 [G, N, P].

    Masks are counted as whole numbers: ones in float32 stop adding up at 2^24.
    """
    receiver = arrays["receiver"]
    indices = (supergraph_ids(receiver), receiver, arrays["type"])
    whole = keras.backend.standardize_dtype(values.dtype) in ("bool", "int32")
    total = graph_ops.scatter_add(
        tuple(ops.reshape(index, (-1,)) for index in indices),
        ops.reshape(ops.cast(values, "int32" if whole else "float32"), (-1,)),
        (ops.shape(receiver)[0], num_nodes, num_types),
    )
    return ops.cast(total, "float32")


@dataclasses.dataclass(frozen=True)
class Load:
    """What a step asks of a primitive.

    Args:
        sizes: Resource -> capacity of a supergraph; "node" is N.
        num_types: P.
        width: H, channels that are sent.
        units: U, channels of a message.
    """

    sizes: dict[str, float]
    num_types: int
    width: int
    units: int
