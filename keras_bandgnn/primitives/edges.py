"""`Edges`: the edges that a plan distributes over primitives, on the host."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from keras_bandgnn.data.flat import FlatGraphs


@dataclasses.dataclass(frozen=True)
class Edges:
    """Edges of a supergraph or of many concatenated graphs (E edges, N nodes).

    Args:
        sender: int32 [E].
        receiver: int32 [E].
        type: int32 [E].
        num_nodes: N, number of receiving nodes.
        num_types: P.
        weight: float32 [E], factor of each message; 1 if omitted.
        num_senders: M, number of sending nodes, if they differ from the receiving ones.
        padded_ends: int32 [capacity] each, sender, receiver and type padded to a
            capacity: sender and type with 0, receiver with N.
        transpose: Whether to also lay out the transposed sums, for the gradient of
            large supergraphs; otherwise the device sorts once per batch.
    """

    sender: np.ndarray
    receiver: np.ndarray
    type: np.ndarray
    num_nodes: int
    num_types: int
    weight: np.ndarray | None = None
    num_senders: int | None = None
    padded_ends: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    transpose: bool = False

    def __len__(self) -> int:
        return self.sender.shape[0]

    def keep(self, mask: np.ndarray) -> Edges:
        """Return the edges selected by a boolean mask."""
        return dataclasses.replace(
            self,
            sender=self.sender[mask],
            receiver=self.receiver[mask],
            type=self.type[mask],
            weight=None if self.weight is None else self.weight[mask],
            padded_ends=None,
        )

    @classmethod
    def of_graphs(cls, graphs: FlatGraphs, num_types: int) -> tuple[Edges, np.ndarray]:
        """Return the concatenated edges of the graphs of a `FlatGraphs`.

        Args:
            graphs: The graphs; their nodes are numbered consecutively.
            num_types: P.

        Returns:
            The edges, and int64 [E], the graph of each.
        """
        offset = np.repeat(graphs.node_ptr[:-1], graphs.num_edges).astype(np.int32)
        edges = cls(
            sender=graphs.senders + offset,
            receiver=graphs.receivers + offset,
            type=graphs.edge_type,
            num_nodes=int(graphs.node_ptr[-1]),
            num_types=num_types,
        )
        return edges, np.repeat(np.arange(len(graphs)), graphs.num_edges)

    def padded(
        self, length: int, what: str, mask: bool = False
    ) -> dict[str, np.ndarray]:
        """Return sender, receiver, type and weight, padded to a capacity.

        Args:
            length: The capacity.
            what: Name of the resource, for errors.
            mask: Whether to add a mask of the real edges; padding then has the
                receiver 0 instead of N.
        """
        fill = 0 if mask else self.num_nodes
        if (
            self.padded_ends is not None
            and len(self.padded_ends[0]) == length
            and not mask
        ):
            sender, receiver, kind = self.padded_ends
            arrays = {"sender": sender, "receiver": receiver, "type": kind}
        else:
            arrays = {
                "sender": pad(self.sender, length, 0, what),
                "receiver": pad(self.receiver, length, fill, what),
                "type": pad(self.type, length, 0, what),
            }
        if mask:
            arrays["mask"] = pad(np.ones(len(self), bool), length, 0, what)
        if self.weight is not None:
            arrays["weight"] = pad(self.weight, length, 0, what)
        return arrays

    def sorted_by(self, key: np.ndarray) -> Edges:
        """Return the edges stably sorted by a key."""
        if (key[1:] < key[:-1]).any():
            return self.keep(np.argsort(key, kind="stable"))
        return self

    @property
    def senders(self) -> int:
        """Number of sending nodes."""
        return self.num_nodes if self.num_senders is None else self.num_senders


def pad(values: np.ndarray, length: int, fill: int, what: str) -> np.ndarray:
    """Pad a 1-D array to the static length of its capacity."""
    if values.shape[0] > length:
        raise ValueError(
            f"Expected at most {length} entries for '{what}'. "
            f"Received: {values.shape[0]}. Raise the budget of '{what}'."
        )
    out = np.full(length, fill, values.dtype)
    out[: values.shape[0]] = values
    return out
