"""Layout of a supergraph on several devices: the rows and edges of each device."""

import logging

import keras
import numpy as np

from keras_bandgnn import compat
from keras_bandgnn.primitives.base import primitive_of

_LOG = logging.getLogger("keras_bandgnn")
# Margin above the size that the first batch needs.
_SLACK = 1.1


class SequenceLayout:
    """Lays out batches for P devices per supergraph.

    Nodes are padded to N = P n, and device p has the nodes from p n on. The edges of a
    plan are sorted by the device of their receiver and padded to the same number per
    device; receivers are relative to the first node of the device.
    `Primitive.sequence` determines the meaning of senders:

    - `"halo"`, as of `Banded(S)`: they are relative to the device as well, in
      [-S, n + S). The adjacent blocks of the previous and next device are the halo.
    - `"exchange"`, as of `Segment`: they are rows of the received states. `send`, int32
      [G, P P R], lists the rows that each device sends to each other one, at most R.

    The rest of a batch is unchanged and replicated on all devices of a supergraph.

    Args:
        parts: P.
        node_outputs: Whether labels and weights belong to nodes.
    """

    def __init__(self, parts: int, node_outputs: bool):
        self.parts, self.node_outputs = parts, node_outputs
        # Capacity per device by name; it grows if a batch needs more.
        self.rooms: dict[str, int] = {}

    def nodes(self, x) -> int:
        """Return N of the laid-out batches."""
        step = self.parts
        for key in x["plan"]:
            primitive = primitive_of(key)
            if primitive.sequence == "halo":
                step = self.parts * primitive.block_size
        return -(-x["node"]["mask"].shape[1] // step) * step

    def __call__(self, batch: tuple) -> tuple:
        """Lay out a batch, (x,), (x, y) or (x, y, weight)."""
        x, *targets = batch
        before, count = x["node"]["mask"].shape[1], self.nodes(x)
        if self.node_outputs:
            targets = [_padded(array, count) for array in targets]
        node = {name: _padded(values, count) for name, values in x["node"].items()}
        # Padding nodes stay behind those of the last graph.
        last = x["node"]["graph_id"][:, -1:]
        node["graph_id"][:, before:] = last
        edge = dict(x["edge"])
        edge["receiver"] = np.where(
            edge["receiver"] == before, np.int32(count), edge["receiver"]
        )
        plan = {
            key: self._edges(key, arrays, before, count // self.parts)
            for key, arrays in x["plan"].items()
        }
        return ({**x, "node": node, "edge": edge, "plan": plan}, *targets)

    def part(self, batch: tuple, index: int) -> tuple:
        """Return the part of one device of a laid-out batch.

        Args:
            batch: (x,), (x, y) or (x, y, weight).
            index: Index of the device.

        Returns:
            The batch; `x["sequence"]` has `mask` and `graph_id` of all nodes.
        """
        x, *targets = batch

        def cut(array):
            count = array.shape[1] // self.parts
            return array[:, index * count : (index + 1) * count]

        def cut_all(arrays):
            return {name: cut(array) for name, array in arrays.items()}

        if self.node_outputs:
            targets = [cut(array) for array in targets]
        plan = {
            key: cut_all(arrays) if splits_part(key) else arrays
            for key, arrays in x["plan"].items()
        }
        sequence = {name: x["node"][name] for name in ("mask", "graph_id")}
        x = {**x, "node": cut_all(x["node"]), "plan": plan, "sequence": sequence}
        return (x, *targets)

    def _edges(
        self, key: str, arrays: dict, before: int, nodes_per_device: int
    ) -> dict:
        layout = primitive_of(key).sequence
        if layout == "whole":
            return arrays
        if layout not in ("halo", "exchange"):
            raise ValueError(
                "Expected a plan of Banded(S) and Segment() for sequence parallelism. "
                f"Received: {key!r}. Set plan=Plan(Banded(S)), or rest='drop'."
            )
        groups = len(arrays["receiver"])
        real = arrays["mask"] if "mask" in arrays else arrays["receiver"] < before
        device = np.where(real, arrays["receiver"] // nodes_per_device, self.parts)
        group = np.broadcast_to(np.arange(groups)[:, None], device.shape)
        owner = (group * self.parts + device)[real]
        order = np.argsort(owner, kind="stable")
        owner = owner[order]
        rank = np.arange(owner.size) - np.searchsorted(owner, owner)
        capacity = self._room(key, rank)
        target = owner * capacity + rank

        def spread(values, fill):
            out = np.full(groups * self.parts * capacity, fill, values.dtype)
            out[target] = values
            return out.reshape(groups, -1)

        names = [n for n in ("type", "weight", "mask") if n in arrays]
        layout_arrays = {name: spread(arrays[name][real][order], 0) for name in names}
        receiver, sender = (arrays[n][real][order] for n in ("receiver", "sender"))
        first = (owner % self.parts * nodes_per_device).astype(np.int32)
        if layout == "halo":
            layout_arrays["receiver"] = spread(receiver - first, 0)
            layout_arrays["sender"] = spread(sender - first, 0)
            return layout_arrays
        # A row is sent once for all edges that read it on a device.
        source, row = sender // nodes_per_device, sender % nodes_per_device
        requests, index = np.unique(
            (owner * self.parts + source) * np.int64(nodes_per_device) + row,
            return_inverse=True,
        )
        pair = requests // nodes_per_device
        rank = np.arange(pair.size) - np.searchsorted(pair, pair)
        rows_per_pair = self._room(f"{key}.send", rank)
        layout_arrays["receiver"] = spread(receiver - first, nodes_per_device)
        column = source * rows_per_pair + rank[index]
        layout_arrays["sender"] = spread(column.astype(np.int32), 0)
        send = np.zeros((groups, self.parts, self.parts, rows_per_pair), np.int32)
        owner, source = np.divmod(pair, self.parts)
        send[*np.divmod(owner, self.parts), source, rank] = requests % nodes_per_device
        # Device s reads its part: the rows that it sends to each device.
        layout_arrays["send"] = np.swapaxes(send, 1, 2).reshape(groups, -1)
        return layout_arrays

    def _room(self, name: str, rank: np.ndarray) -> int:
        """Return the capacity per device, or per pair of devices."""
        needed = int(rank.max(initial=0)) + 1
        room = self.rooms.get(name, 0)
        if needed > room:
            slack = 1.0 if room else _SLACK
            self.rooms[name] = -(-int(slack * needed) // 64) * 64
            unit = "rows per pair of devices" if "." in name else "edges per device"
            _LOG.info("room for %s: %d %s", name, self.rooms[name], unit)
        return self.rooms[name]


def _padded(array: np.ndarray, count: int) -> np.ndarray:
    width = [(0, 0), (0, count - array.shape[1])] + [(0, 0)] * (array.ndim - 2)
    return np.pad(array, width)


def splits_part(key: str) -> bool:
    """Return whether a part of `x["plan"]` is split over a sequence's devices."""
    return primitive_of(key).sequence != "whole"


class LaidOutBatches(keras.utils.PyDataset):
    """The laid-out batches of a loader.

    Args:
        loader: A `GraphLoader`.
        layout: A `SequenceLayout`.
        index: Index of the device whose part of a batch to return; None for all.
    """

    def __init__(self, loader, layout: SequenceLayout, index: int | None = None):
        super().__init__()
        self.loader, self.layout, self.index = loader, layout, index

    def __len__(self) -> int:
        return len(self.loader)

    def __getitem__(self, index: int) -> tuple:
        batch = self.layout(self.loader[index])
        return batch if self.index is None else self.layout.part(batch, self.index)

    def on_epoch_end(self) -> None:
        """Advance the loader to the next epoch."""
        self.loader.on_epoch_end()


# Layers of Keras that process each row separately.
_OF_ROWS = (
    keras.layers.Activation,
    keras.layers.Dense,
    keras.layers.Dropout,
    keras.layers.ELU,
    keras.layers.Embedding,
    keras.layers.Identity,
    keras.layers.InputLayer,
    keras.layers.LayerNormalization,
    keras.layers.LeakyReLU,
    keras.layers.RMSNormalization,
    keras.layers.ReLU,
    keras.Sequential,
)


def check_layers(task) -> None:
    """Raise a ValueError that names the layers without sequence parallelism.

    Args:
        task: The task.
    """
    layers = [layer for layer in compat.sublayers(task) if not _may_split(layer)]
    if not layers:
        return
    # If the backbone does not support it, naming its layers adds nothing.
    models = [layer for layer in layers if isinstance(layer, keras.Model)]
    names = [f"{type(layer).__name__} ({layer.name!r})" for layer in models or layers]
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    raise ValueError(
        "Expected layers that support sequence parallelism, whose classes declare "
        f"`splits_sequences = True`. Received: {shown} in {type(task).__name__} over "
        f"{type(task.backbone).__name__}. Use data_parallel()."
    )


def _may_split(layer) -> bool:
    """Return whether a layer, without sublayers, supports sequence parallelism."""
    if getattr(layer, "activity_regularizer", None) is not None:
        # Each device would add a separate loss.
        return False
    kind = type(layer)
    if kind in _OF_ROWS:
        return getattr(layer, "axis", -1) in (-1, [-1])
    return "splits_sequences" in vars(kind) and bool(layer.splits_sequences)
