"""`PyGEncoder`: data of torch_geometric, and dicts of arrays, as graphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from keras_bandgnn.arrays import TIME, id_input
from keras_bandgnn.checks import mapping, optional, positive_int, refuse
from keras_bandgnn.data.converters.attributes import (
    as_numpy,
    graph_of,
    is_hetero_data,
    is_mask,
    levels_of,
)
from keras_bandgnn.data.sources import SAMPLE, attributes_of, conversion, has_attributes
from keras_bandgnn.graph import Graph
from keras_bandgnn.host_keras import keras
from keras_bandgnn.preprocessing.encoding.graph_encoder import GraphEncoder
from keras_bandgnn.preprocessing.encoding.vocabulary import MOST_DEGREES, capped_degrees

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Item, LayerOptions

_FIELDS = {"num_nodes", "senders", "receivers"}


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class PyGEncoder(GraphEncoder):
    """Converts `torch_geometric.data.Data`, or dicts of arrays, to graphs.

    Dicts have the names of torch_geometric (`edge_index`, `x`, `y`, ...) or those of
    the arguments of `Graph` (`num_nodes`, `senders`, `receivers`, ...). For the former
    `adapt` learns whether an attribute belongs to nodes, edges or graphs, from the
    number of its rows, so that a single graph is converted as all others were.

    Integers are ids as they are, below the largest of the data that `adapt` saw plus
    one; larger ones need `node_inputs={"x": {"ids": 120}}`. Integers in several columns
    have a vocabulary per column: `{"x": {"columns": [119, 5, 12]}}`; those of nodes
    share one if zeros only follow the ids, as padding does. Nodes without features
    get their number of incoming edges, `node["degree"]`, at most 255. Masks of splits,
    `train_mask`, `val_mask`, `test_mask` and the like, of 0 and 1, are no inputs.

    Args:
        levels: `"node"`, `"edge"` or `"context"` by name; None for `adapt` to learn.
        node_inputs: What `inputs()` returns; None for `adapt` to learn.
        num_edge_types: P; None for `adapt` to learn.
        on_error: See `GraphEncoder`.
        edge_inputs: What `edge_inputs()` returns; None for `adapt` to learn.

    Example:
    >>> data = {
    ...     "edge_index": [[0, 1], [1, 0]],
    ...     "x": [[1.0], [2.0]],
    ...     "edge_attr": [[0.5, 1.0], [0.5, 1.0]],
    ...     "num_nodes": 2,
    ... }
    >>> encoder = PyGEncoder().adapt([data])
    >>> encoder(data).num_edges, encoder.inputs(), encoder.edge_inputs()
    (2, {'x': {'features': 1}}, {'edge_attr': {'features': 2}})
    """

    def __init__(
        self,
        levels: Mapping[str, str] | None = None,
        node_inputs: Mapping[str, Mapping] | None = None,
        num_edge_types: int | None = None,
        on_error: str = "raise",
        edge_inputs: Mapping[str, Mapping] | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(on_error, **kwargs)
        self.levels = _copied(optional(mapping, "levels", levels))
        self.node_inputs = _copied(optional(mapping, "node_inputs", node_inputs))
        self._edge_types = optional(positive_int, "num_edge_types", num_edge_types)
        self._edge_inputs = _copied(optional(mapping, "edge_inputs", edge_inputs))

    @classmethod
    def accepts(cls, item: Item) -> bool:
        """Return whether an item is a `Data`, or a dict of the arrays of a graph."""
        if isinstance(item, Mapping):
            return "edge_index" in item or item.keys() >= _FIELDS
        return hasattr(item, "edge_index") and not is_hetero_data(item)

    def _expected(self) -> str:
        return "a Data of torch_geometric, or a dict of the arrays of a graph"

    @property
    def is_adapted(self) -> bool:
        """Whether levels and inputs are known."""
        return self.levels is not None and self.node_inputs is not None

    @property
    def num_edge_types(self) -> int:
        """P: one more than the largest `edge_type` in the data."""
        self.require_adapted()
        return self._edge_types or 1

    def learn(self, items: Iterable[Item]) -> None:
        """Learn levels and inputs; see `GraphEncoder.adapt`."""
        samples = []
        received, items = items, [item for item in items if self.accepts(item)]
        if received and not items:
            refuse("items", f"graphs, each {self._expected()}", received)
        for item in items[:SAMPLE]:
            if has_attributes(item):
                samples.append(attributes_of(item))
        levels = {**levels_of(samples), **(self.levels or {})}
        self.levels = levels
        if self._edge_types is None:
            types = [np.asarray(as_numpy(_edge_type(item))) for item in items]
            self._edge_types = 1 + max(
                (int(t.max(initial=0)) for t in types), default=0
            )
        if self.node_inputs is None:
            self.node_inputs = _learnt_inputs(items, levels, "node")
        if self._edge_inputs is None:
            self._edge_inputs = _learnt_inputs(items, levels, "edge")

    def encode_item(self, item: Item) -> Graph:
        """Convert a graph; see `GraphEncoder`."""
        if not has_attributes(item):
            graph = conversion([item])(item)
        else:
            graph = graph_of(attributes_of(item), self.levels)
        if self.node_inputs or not all(is_mask(*part) for part in graph.node.items()):
            return graph
        degrees = np.bincount(graph.receivers, minlength=graph.num_nodes)
        return graph.replace(node={**graph.node, "degree": capped_degrees(degrees)})

    def content(self, item: Item) -> bytes:
        """Return names, shapes and bytes of all arrays."""
        if not self.accepts(item):
            return repr(item).encode()
        values = attributes_of(item) if has_attributes(item) else dict(item)
        parts = []
        for name in sorted(values):
            value = values[name]
            if isinstance(value, Mapping):
                value = [value[key] for key in sorted(value)]
                parts += [repr(sorted(values[name])).encode()]
                parts += [np.ascontiguousarray(as_numpy(v)).tobytes() for v in value]
                continue
            array = as_numpy(value)
            if isinstance(array, np.ndarray):
                parts += [repr((name, array.shape, array.dtype.str)).encode()]
                parts += [np.ascontiguousarray(array).tobytes()]
            else:
                parts += [repr((name, value)).encode()]
        return b"\0".join(parts)

    def inputs(self) -> dict[str, dict[str, int]]:
        """Return the `inputs` of a backbone."""
        self.require_adapted()
        if not self.node_inputs:
            return {"degree": {"ids": MOST_DEGREES}}
        return {name: dict(spec) for name, spec in self.node_inputs.items()}

    def edge_inputs(self) -> dict[str, dict] | None:
        """Return the `edge_inputs` of a backbone, or None without edge features."""
        self.require_adapted()
        inputs = {name: dict(spec) for name, spec in (self._edge_inputs or {}).items()}
        if self.num_edge_types > 1:
            inputs.setdefault("type", {"ids": self.num_edge_types})
        return inputs or None

    def get_config(self) -> dict:
        """Return the arguments of the constructor, with the results of `adapt`."""
        config = {
            "levels": self.levels,
            "node_inputs": self.node_inputs,
            "num_edge_types": self._edge_types,
        }
        if self._edge_inputs:
            config["edge_inputs"] = self._edge_inputs
        return {**super().get_config(), **config}


def _copied(value: Mapping | None) -> dict | None:
    return None if value is None else dict(value)


def _edge_type(item: Any) -> Any:
    """Return the types of the edges of an item, or none."""
    values = attributes_of(item) if has_attributes(item) else item
    types = values.get("edge_type")
    return [] if types is None else types


def _learnt_inputs(
    items: Iterable[Any], levels: Mapping[str, str], level: str
) -> dict[str, dict]:
    """Return the inputs of a `NodeEncoder` for the features of a level."""
    arrays: dict[str, list[np.ndarray]] = {}
    for item in items:
        for name, values in _features(item, levels, level):
            # An empty list has no type.
            if values.size or name not in arrays:
                arrays.setdefault(name, []).append(values)
    inputs = {}
    for name, parts in arrays.items():
        if name == TIME or all(is_mask(name, part) for part in parts):
            continue
        parts = [part for part in parts if part.size] or parts
        kinds, shape = {part.dtype.kind for part in parts}, parts[0].shape
        if kinds <= set("iub") and len(shape) <= 2:
            # Edges with a list of words are rare.
            inputs[name] = id_input(parts, bags=level == "node")
        elif kinds <= set("iubf") and len(shape) <= 2:
            inputs[name] = {"features": shape[1] if len(shape) == 2 else 1}
    return inputs


def _features(item: Any, levels: Mapping[str, str], level: str) -> Iterator[tuple]:
    """Yield name and array of each feature of a level of an item."""
    if has_attributes(item):
        for name, values in attributes_of(item).items():
            if levels.get(name) == level and name != "y":
                yield name, values
        return
    for name, values in (item.get(level) or {}).items():
        yield name, np.asarray(as_numpy(values))
