"""What a primitive is: one way to carry out a sum over typed edges."""

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Edges:
    """Edges of one supergraph or of many graphs laid end to end (E edges, N nodes).

    Args:
        sender: int32 [E].
        receiver: int32 [E].
        type: int32 [E].
        num_nodes: N.
        num_types: P.
        room: Sender, receiver and type with padding behind the edges, int32 [capacity]
            each: sender and type 0, receiver N.
    """

    sender: np.ndarray
    receiver: np.ndarray
    type: np.ndarray
    num_nodes: int
    num_types: int
    room: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return self.sender.shape[0]

    def keep(self, mask: np.ndarray) -> "Edges":
        """Returns the edges selected by a boolean mask."""
        return dataclasses.replace(
            self,
            sender=self.sender[mask],
            receiver=self.receiver[mask],
            type=self.type[mask],
            room=None,
        )

    def padded(self, length: int, what: str) -> dict[str, np.ndarray]:
        """Sender, receiver and type, padded to the capacity of a resource."""
        if self.room is not None and len(self.room[0]) == length:
            sender, receiver, kind = self.room
            return {"sender": sender, "receiver": receiver, "type": kind}
        return {
            "sender": pad(self.sender, length, 0, what),
            "receiver": pad(self.receiver, length, self.num_nodes, what),
            "type": pad(self.type, length, 0, what),
        }


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

        out[n] = sum over edges (j -> n, type p) of (x[j] @ kernel[p] + bias[p]).

    A subclass says which edges it covers (`cover`, `always_covers`), how large its
    arrays get (`sizes`), lays the arrays out on the host (`pack`) and carries the sum
    out on the device (`prepare`, then `typed_sum` or `messages`).
    """

    # Whether it can carry any edge; such a primitive can be the rest of a plan.
    covers_all = False

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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Primitive) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key()!r})"
