"""Layout of one supergraph on several devices: which rows and edges each has."""

import logging

import keras
import numpy as np

from keras_bandgnn import compat
from keras_bandgnn.primitives.base import primitive_of

# Batches laid out for devices that have some successive nodes of a supergraph each.


_LOG = logging.getLogger("keras_bandgnn")
# Room above what the first batch needs.
_SLACK = 1.1


class SequenceLayout:
    """Lays batches out for P devices per supergraph.

    Nodes are padded to N = P n, so that device p has the nodes from p n on. The edges
    of a plan are sorted by the device of their receiver, each device with equal room
    and receivers counted from its own first node. `Primitive.sequence` says where the
    senders are:

    - `"halo"`, as of `Banded(S)`: they are counted from there too, so that they lie in
      [-S, n + S): the block of the device before and that of the next one are the halo.
    - `"exchange"`, as of `Segment`: they are rows of what arrives. `send`, int32
      [G, P P R], says which rows each device sends to each other one, R at most.

    What else a batch holds stays as it is; every device of a supergraph has it all.

    Args:
        parts: P.
        node_outputs: Whether labels and weights belong to nodes.
    """

    def __init__(self, parts: int, node_outputs: bool):
        self.parts, self.node_outputs = parts, node_outputs
        # Room per device by name; it grows where a batch needs more.
        self.rooms: dict[str, int] = {}

    def nodes(self, x) -> int:
        """N of the batches that are laid out."""
        step = self.parts
        for key in x["plan"]:
            primitive = primitive_of(key)
            if primitive.sequence == "halo":
                step = self.parts * primitive.block_size
        return -(-x["node"]["mask"].shape[1] // step) * step

    def __call__(self, batch: tuple) -> tuple:
        """The batch, (x,), (x, y) or (x, y, weight), laid out."""
        x, *rest = batch
        before, count = x["node"]["mask"].shape[1], self.nodes(x)
        if self.node_outputs:
            rest = [_padded(array, count) for array in rest]
        node = {name: _padded(values, count) for name, values in x["node"].items()}
        # Nodes of padding stay behind those of the last graph.
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
        return ({**x, "node": node, "edge": edge, "plan": plan}, *rest)

    def _edges(self, key: str, arrays: dict, before: int, rows: int) -> dict:
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
        device = np.where(real, arrays["receiver"] // rows, self.parts)
        group = np.broadcast_to(np.arange(groups)[:, None], device.shape)
        owner = (group * self.parts + device)[real]
        order = np.argsort(owner, kind="stable")
        owner = owner[order]
        rank = np.arange(owner.size) - np.searchsorted(owner, owner)
        room = self._room(key, rank)
        place = owner * room + rank

        def spread(values, fill):
            out = np.full(groups * self.parts * room, fill, values.dtype)
            out[place] = values
            return out.reshape(groups, -1)

        names = [n for n in ("type", "weight", "mask") if n in arrays]
        packed = {name: spread(arrays[name][real][order], 0) for name in names}
        receiver, sender = (arrays[n][real][order] for n in ("receiver", "sender"))
        first = (owner % self.parts * rows).astype(np.int32)
        if layout == "halo":
            packed["receiver"] = spread(receiver - first, 0)
            packed["sender"] = spread(sender - first, 0)
            return packed
        # One row serves all edges that read it on a device.
        source, row = sender // rows, sender % rows
        wanted, index = np.unique(
            (owner * self.parts + source) * np.int64(rows) + row, return_inverse=True
        )
        pair = wanted // rows
        rank = np.arange(pair.size) - np.searchsorted(pair, pair)
        many = self._room(f"{key}.send", rank)
        packed["receiver"] = spread(receiver - first, rows)
        column = source * many + rank[index]
        packed["sender"] = spread(column.astype(np.int32), 0)
        send = np.zeros((groups, self.parts, self.parts, many), np.int32)
        owner, source = np.divmod(pair, self.parts)
        send[*np.divmod(owner, self.parts), source, rank] = wanted % rows
        # Device s reads its own part: what it sends to each device.
        packed["send"] = np.swapaxes(send, 1, 2).reshape(groups, -1)
        return packed

    def _room(self, name: str, rank: np.ndarray) -> int:
        """Room per device, or per pair of devices."""
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
    """Whether devices that share a supergraph split a part of `x["plan"]`."""
    return primitive_of(key).sequence != "whole"


class LaidOut(keras.utils.PyDataset):
    """The batches of a loader, laid out.

    Args:
        loader: A `GraphLoader`.
        layout: A `SequenceLayout`.
    """

    def __init__(self, loader, layout: SequenceLayout):
        super().__init__()
        self.loader, self.layout = loader, layout

    def __len__(self) -> int:
        return len(self.loader)

    def __getitem__(self, index: int) -> tuple:
        return self.layout(self.loader[index])

    def on_epoch_end(self) -> None:
        """Moves the loader on."""
        self.loader.on_epoch_end()


# Layers of Keras that work on each row by itself.
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
    """Raises a ValueError that names the layers that may not share a sequence.

    Args:
        task: The task.
    """
    layers = [layer for layer in compat.sublayers(task) if not _may_split(layer)]
    if not layers:
        return
    # A backbone that says no is reason enough: its layers are not news.
    models = [layer for layer in layers if isinstance(layer, keras.Model)]
    names = [f"{type(layer).__name__} ({layer.name!r})" for layer in models or layers]
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    raise ValueError(
        "Expected layers that may run with the nodes of a graph on several devices, "
        "which their classes say with `splits_sequences = True`, for sequence "
        f"parallelism. Received: {shown} in {type(task).__name__} over "
        f"{type(task.backbone).__name__}. Use data_parallel()."
    )


def _may_split(layer) -> bool:
    """Whether a layer, apart from those within it, may share a sequence."""
    if getattr(layer, "activity_regularizer", None) is not None:
        # Each device would add a loss of its own.
        return False
    kind = type(layer)
    if kind in _OF_ROWS:
        return getattr(layer, "axis", -1) in (-1, [-1])
    return "splits_sequences" in vars(kind) and bool(layer.splits_sequences)
