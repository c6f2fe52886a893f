"""`NodeSetEncoder`: graphs of several node sets from tables, as graphs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from keras_bandgnn.arrays import TIME
from keras_bandgnn.checks import boolean, mapping, optional, refuse, strings
from keras_bandgnn.data.converters.attributes import (
    as_numpy,
    is_hetero_data,
    whole_times,
)
from keras_bandgnn.data.flat_columns import SETS
from keras_bandgnn.graph import EdgeSet, Graph
from keras_bandgnn.host_keras import keras
from keras_bandgnn.preprocessing.encoding.graph_encoder import GraphEncoder
from keras_bandgnn.preprocessing.encoding.raw_items import is_table
from keras_bandgnn.preprocessing.encoding.vocabulary import (
    attribute_inputs,
    checked_attributes,
    encode_attribute,
    is_missing,
    learn_attributes,
    several_categories,
)

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Item, LayerOptions

# Arguments of `from_sets` in an item.
_KEYS = {"nodes", "edges", "label", "node", "context", "info"}


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class NodeSetEncoder(GraphEncoder):
    """Converts graphs of several node sets, such as users and items.

    An item is a `HeteroData` of torch_geometric, or a dict of the arguments of
    `from_sets`, whose columns may also be strings, and whose tables may be data frames
    of pandas. `adapt` learns the columns of each node set: strings, bools and whole
    numbers of up to 1,000 values are categories, of which unknown and missing ones have
    id 0; columns of other numbers get mean 0 and standard deviation 1, which is 0 where
    they are missing; matrices stay as they are; masks such as `train_mask` are features
    of all nodes. Columns of edges with one name are one feature; columns `time` stay
    the times of nodes and edges. A node set that an
    item lacks has no nodes there, an edge set no edges. Backbones read them with
    `encoder.inputs()`, and the edge set of an edge with `encoder.edge_inputs()`.

    Args:
        nodes: Node set -> column -> what `adapt` learnt of it; None to learn it.
        edges: What `adapt` learnt of the columns of edges; None to learn it.
        edge_sets: The edge sets of items; None to learn them.
        edge_columns: The columns of each edge set; None to learn them.
        reverse: Whether graphs also have the edges of each set in the other direction,
            see `from_sets`.
        on_error: See `GraphEncoder`.

    Example:
    >>> data = {
    ...     "nodes": {"user": {"town": ["Bonn", "Ulm"]}, "item": {"price": [1.0, 3.0]}},
    ...     "edges": {("user", "buys", "item"): [[0, 1], [0, 0]]},
    ... }
    >>> encoder = NodeSetEncoder().adapt([data])
    >>> encoder.inputs()["sets"]["user"], encoder(data).sets["item"]["price"].tolist()
    ({'town': {'ids': 3}}, [-1.0, 1.0])
    """

    def __init__(
        self,
        nodes: Mapping[str, Mapping] | None = None,
        edges: Mapping[str, Mapping] | None = None,
        edge_sets: Sequence[Sequence[str]] | None = None,
        edge_columns: Sequence[Sequence[str]] | None = None,
        reverse: bool = False,
        on_error: str = "raise",
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(on_error, **kwargs)
        nodes = optional(mapping, "nodes", nodes)
        self.nodes = nodes and {
            name: checked_attributes(f"nodes[{name!r}]", table)
            for name, table in nodes.items()
        }
        self.edges = checked_attributes("edges", edges)
        self.edge_sets = optional(_checked_edge_sets, "edge_sets", edge_sets)
        self.edge_columns = optional(_checked_columns, "edge_columns", edge_columns)
        self.reverse = boolean("reverse", reverse)

    @classmethod
    def accepts(cls, item: Item) -> bool:
        """Return whether an item is a `HeteroData`, or a dict of nodes and edges."""
        if isinstance(item, Mapping):
            return {"nodes", "edges"} <= item.keys()
        return is_hetero_data(item)

    def _expected(self) -> str:
        return "a HeteroData of torch_geometric, or a dict with `nodes` and `edges`"

    @property
    def is_adapted(self) -> bool:
        """Whether the node sets, their columns and the edge sets are known."""
        learnt = (self.nodes, self.edges, self.edge_sets, self.edge_columns)
        return None not in learnt

    @property
    def num_edge_types(self) -> int:
        """P, the number of edge sets, with those in the other direction."""
        self.require_adapted()
        return max(1, len(self.edge_sets) * (1 + self.reverse))

    def edge_types(self) -> list[EdgeSet]:
        """Return (source set, relation, target set) of each type of edges."""
        self.require_adapted()
        names = [tuple(key) for key in self.edge_sets]
        if self.reverse:
            names += [(target, f"rev_{name}", source) for source, name, target in names]
        return sorted(names)

    def learn(self, items: Iterable[Item]) -> None:
        """Learn node sets, columns and edge sets; see `GraphEncoder.adapt`."""
        received = list(items)
        items = [_arguments(item) for item in received if self.accepts(item)]
        if not items:
            if received:
                refuse("items", f"graphs, each {self._expected()}", received)
            return
        if self.nodes is None:
            tables: dict[str, dict[str, list]] = {}
            for item in items:
                for name, columns in item["nodes"].items():
                    parts = tables.setdefault(name, {})
                    for key, values in columns.items():
                        parts.setdefault(key, []).append(values)
            self.nodes = {name: _learnt(name, tables[name]) for name in sorted(tables)}
        columns: dict[str, list] = {}
        names: dict[tuple, set] = {}
        for item in items:
            for key, part in item["edges"].items():
                names.setdefault(key, set()).update(part)
                for name, values in part.items():
                    if name != "edge_index":
                        columns.setdefault(name, []).append(values)
        if self.edge_sets is None:
            self.edge_sets = sorted(names)
        if self.edges is None:
            self.edges = _learnt("edges", columns)
        if self.edge_columns is None:
            self.edge_columns = [
                sorted(names.get(key, set()) & {*self.edges}) for key in self.edge_sets
            ]

    def categories(self) -> dict[str, list[str]]:
        """Return the columns of several categories, by node set."""
        sets = {f"{SETS}/{n}": several_categories(t) for n, t in self.nodes.items()}
        return {**sets, "edge": several_categories(self.edges)}

    def encode_item(self, item: Item) -> Graph:
        """Convert a graph; see `GraphEncoder`."""
        from keras_bandgnn.data.converters.node_sets import from_sets

        item = _arguments(item)
        _refuse_others("node sets", item["nodes"], self.nodes)
        _refuse_others("edge sets", item["edges"], self.edge_sets)
        for key in item["edges"]:
            ends = {name for name in (key[0], key[2]) if name not in item["nodes"]}
            if ends and np.size(item["edges"][key].get("edge_index")):
                raise ValueError(
                    f"Expected the node sets of the edges {key}. Received: "
                    f"{sorted(item['nodes'])}; {sorted(ends)} are missing."
                )
        nodes, masks = {}, dict(item.get("node") or {})
        for name, spec in self.nodes.items():
            columns = _encoded(name, spec, item["nodes"].get(name))
            count = len(next(iter(columns.values())))
            for key in [key for key in columns if "mask" in spec.get(key, ())]:
                masks[key] = {**masks.get(key, {}), name: columns.pop(key)}
            nodes[name] = columns or count
        edges = {
            key: self._edges(key, names, item["edges"].get(key))
            for key, names in zip(self.edge_sets, self.edge_columns, strict=True)
        }
        if times := _times(item["nodes"], nodes):
            masks[TIME] = times
        for key, times in _times(item["edges"], edges).items():
            edges[key][TIME] = times
        item = {**item, "nodes": nodes, "edges": edges, "node": masks}
        return from_sets(**item, reverse=self.reverse)

    def _edges(self, edge_set, names: Sequence[str], columns: Any) -> dict[str, Any]:
        """Return the ends and the features of an edge set."""
        if columns is None:
            columns = {
                "edge_index": np.zeros((2, 0), np.int32),
                **dict.fromkeys(names, []),
            }
        _require(f"edge set {edge_set}", names, columns)
        ends = as_numpy(columns.get("edge_index"))
        if np.ndim(ends) != 2:
            refuse(f"edges[{edge_set!r}]", "ends int [2, E] as `edge_index`", ends)
        features = {}
        for name, spec in self.edges.items():
            if name in names:
                features[name] = _column("edges", name, spec, columns[name])
                continue
            # Of edge sets that have no such column.
            shape = spec.get("number", spec.get("mask", ()))
            kind = np.float32 if "number" in spec else np.int32
            features[name] = np.zeros((ends.shape[1], *shape), kind)
        return {"edge_index": ends, **features}

    def content(self, item: Item) -> bytes:
        """Return names, kinds and bytes of all columns."""
        if not self.accepts(item):
            return repr(item).encode()
        parts: list[bytes] = []

        def add(path: tuple, value: Any) -> None:
            if isinstance(value, Mapping):
                for key in sorted(value, key=str):
                    add((*path, key), value[key])
                return
            array = np.asarray(value)
            text = repr(value) if array.dtype.kind == "O" else array.dtype.str
            parts.append(repr((path, array.shape, text)).encode())
            parts.append(b"" if array.dtype.kind == "O" else array.tobytes())

        add((), _arguments(item))
        return b"\0".join(parts)

    def inputs(self) -> dict[str, dict]:
        """Return the `inputs` of a backbone: those of each node set."""
        self.require_adapted()
        return {
            "sets": {
                name: attribute_inputs(spec) or {"kind": {"ids": 1}}
                for name, spec in self.nodes.items()
            }
        }

    def edge_inputs(self) -> dict[str, dict] | None:
        """Return the `edge_inputs` of a backbone: the edge set, and columns."""
        self.require_adapted()
        return {"type": {"ids": self.num_edge_types}, **attribute_inputs(self.edges)}

    def get_config(self) -> dict:
        """Return the arguments of the constructor, with the results of `adapt`."""
        config = {
            "nodes": self.nodes,
            "edges": self.edges,
            "edge_sets": self.edge_sets and [list(key) for key in self.edge_sets],
            "edge_columns": self.edge_columns,
            "reverse": self.reverse,
        }
        return {**super().get_config(), **config}


def _times(tables: Mapping[Any, Mapping], names: Iterable) -> dict[Any, Any]:
    """Return the column `time` of each set, empty of sets that an item lacks."""
    if not any(TIME in table for table in tables.values()):
        return {}
    columns = {name: tables.get(name, {TIME: []}) for name in names}
    return {
        k: whole_times(table[TIME]) for k, table in columns.items() if TIME in table
    }


def _checked_edge_sets(name: str, value: Any) -> list[tuple[str, str, str]]:
    expected = "a list of (source set, relation, target set)"
    if not isinstance(value, list | tuple):
        refuse(name, expected, value)
    for key in value:
        names = isinstance(key, list | tuple) and all(isinstance(k, str) for k in key)
        if not names or len(key) != 3:
            refuse(name, expected, value)
    return [tuple(key) for key in value]


def _checked_columns(name: str, value: Any) -> list[list[str]]:
    if not isinstance(value, list | tuple):
        refuse(name, "a list of the columns of each edge set", value)
    return [strings(f"{name}[{k}]", names) for k, names in enumerate(value)]


def _require(what: str, names: Iterable[str], columns: Mapping) -> None:
    """Raise a ValueError if columns are missing."""
    missing = sorted(set(names) - set(columns))
    if missing:
        raise ValueError(
            f"Expected the columns {sorted(names)} of {what}, as in training. "
            f"Received: {sorted(columns)}; {missing} are missing."
        )


def _arguments(item: Any) -> dict[str, Any]:
    """Return the arguments of `from_sets`, with dicts of columns."""
    from keras_bandgnn.data.converters.hetero_data import set_arguments

    item = set_arguments(item) if is_hetero_data(item) else dict(item)
    if "reverse" in item:
        refuse("item", "`reverse` as an argument of NodeSetEncoder", item["reverse"])
    if others := sorted(set(item) - _KEYS):
        refuse("item", f"a dict with the keys {sorted(_KEYS)}", others)
    nodes = {name: _columns(table) for name, table in item["nodes"].items()}
    edges = {
        key: dict(part) if isinstance(part, Mapping) else {"edge_index": as_numpy(part)}
        for key, part in item["edges"].items()
    }
    return {**item, "nodes": nodes, "edges": edges}


def _columns(table: Any) -> dict[str, Any]:
    if is_table(table):
        names = [str(name) for name in table.columns]
        if not names:
            return _columns(len(table))
        if len({*names}) < len(names):
            refuse("nodes", "a table in which each column has a name of its own", names)
        columns = (table[name].tolist() for name in table.columns)
        return dict(zip(names, columns, strict=True))
    if isinstance(table, int | np.integer):
        return {"kind": np.zeros(int(table), np.int32)}
    columns = {}
    for name, values in dict(table).items():
        # Series and arrays of pandas have values of their own for missing ones.
        of_pandas = type(values).__module__.partition(".")[0] == "pandas"
        columns[name] = values.tolist() if of_pandas else as_numpy(values)
        if np.ndim(columns[name]) == 0:
            refuse(f"column {name!r}", "a value for each row", values)
    return columns


def _learnt(name: str, columns: Mapping[str, list]) -> dict[str, dict]:
    """Return what is learnt of the columns of a set, from the parts of each."""
    out: dict[str, dict] = {}
    for key, parts in columns.items():
        if key == TIME:
            continue
        if "/" in key or "." in key:
            refuse(f"columns of {name!r}", "names without '/' and '.'", key)
        arrays = all(isinstance(part, np.ndarray) for part in parts)
        if arrays and parts[0].ndim == 2:
            out[key] = {"number": list(parts[0].shape[1:])}
            continue
        values = [v for p in parts for v in (p.tolist() if arrays else p)]
        out |= learn_attributes(name, {key: values}, {}, standardize=True)
        wide = key in out and len(out[key].get("number", ())) > 1
        if wide or (key not in out and values):
            expected = "a number, a vector, a string or a bool in each row"
            advice = "Leave the column out."
            refuse(f"column {key!r} of {name!r}", expected, values[:1], advice)
    return out


def _encoded(name: str, spec: Mapping[str, Mapping], table: Any) -> dict[str, Any]:
    """Return the features of a node set."""
    table = table if table is not None else dict.fromkeys(spec, [])
    _require(f"node set {name!r}", spec, table)
    columns = {key: _column(name, key, spec[key], table[key]) for key in spec}
    if columns:
        return columns
    # Only empty columns: the set has one embedding.
    count = max((len(values) for values in table.values()), default=0)
    return {"kind": np.zeros(count, np.int32)}


def _column(what: str, name: str, spec: Mapping, values: Any) -> np.ndarray:
    """Return a column as ids or numbers; missing numbers of a column are the mean."""
    if "number" in spec and spec["number"]:
        shape = (len(values), *spec["number"])
        if not len(values):
            return np.zeros(shape, np.float32)
        if np.shape(values) != shape or np.asarray(values).dtype.kind not in "biuf":
            expected = f"numbers of shape {list(shape)}, as in training"
            refuse(f"column {name!r} of {what!r}", expected, values)
        return np.asarray(values, np.float32)
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if "mean" in spec:
        mean = spec["mean"][0]
        values = [mean if is_missing(value) else value for value in values]
    return encode_attribute(what, name, spec, values)


def _refuse_others(what: str, received: Iterable, expected: Iterable) -> None:
    others = sorted(set(received) - set(expected))
    if others:
        raise ValueError(
            f"Expected {what} of the training data, {sorted(expected)}. Received: "
            f"{others}, too. Leave them out, or adapt the encoder anew."
        )
