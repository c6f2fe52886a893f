"""Conversion from and to `torch_geometric.data.HeteroData`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_bandgnn.checks import having, instance, refuse
from keras_bandgnn.data.converters.attributes import as_numpy, is_mask
from keras_bandgnn.data.converters.node_sets import from_sets, has_features, to_sets
from keras_bandgnn.graph import Graph
from keras_bandgnn.optional import optional_import


def set_arguments(data: Any) -> dict[str, Any]:
    """Return the arguments of `from_sets` for a `HeteroData`.

    `y` of a node set or edge set is its label, `y` of the whole the label of the graph,
    and masks such as `train_mask` belong to all nodes; other tensors with a row for
    each node or edge are features.

    Raises:
        ValueError: If a tensor has other rows, or several sets have `y`.
    """
    having("data", data, "metadata", "a HeteroData of torch_geometric")
    nodes: dict[str, Any] = {}
    edges: dict[tuple, dict] = {}
    masks: dict[str, dict] = {}
    labels: Any = {}
    for name in data.node_types:
        count = _num_nodes(name, data[name])
        values = _arrays(f"data[{name!r}]", data[name], count)
        for key in [key for key, rows in values.items() if is_mask(key, rows)]:
            masks.setdefault(key, {})[name] = values.pop(key).astype(np.int32)
        if "y" in values:
            labels[name] = values.pop("y")
        nodes[name] = values or count
    for key in data.edge_types:
        store = data[key]
        if store.get("edge_index") is None:
            refuse(f"data[{key!r}]", "an `edge_index`", sorted(store.keys()))
        count = store.edge_index.shape[1]
        ends = as_numpy(store.edge_index)
        values = _arrays(f"data[{key!r}]", store, count, ("edge_index",))
        if "y" in values:
            labels[tuple(key)] = values.pop("y")
        edges[tuple(key)] = {"edge_index": ends, **values}
    if len(labels) > 1:
        raise ValueError(
            f"Expected `y` in one set of the HeteroData. Received: {[*labels]}. "
            f"Delete the others: del data[{[*labels][-1]!r}].y."
        )
    context, info = {}, {}
    for key, value in data.to_dict().get("_global_store", {}).items():
        array = as_numpy(value)
        if isinstance(array, np.ndarray) and key == "y" and not labels:
            labels = array[0] if array.shape[:1] == (1,) else array
        elif isinstance(array, np.ndarray):
            context[key] = array[0] if array.shape[:1] == (1,) else array
        else:
            info[key] = value
    arguments = {"nodes": nodes, "edges": edges, "node": masks, "label": labels}
    arguments |= {"context": context, "info": info}
    empty = {k for k, v in arguments.items() if isinstance(v, dict) and not v}
    return {k: v for k, v in arguments.items() if k not in empty - {"nodes", "edges"}}


def _num_nodes(name: str, store: Any) -> int:
    """Return the number of nodes of a set, which lists of strings tell, too."""
    lengths = [len(v) for v in store.values() if _is_text(v)]
    count = lengths[0] if lengths else store.num_nodes
    if count is None:
        refuse(f"data[{name!r}]", "a tensor with a row for each node, or num_nodes", {})
    return int(count)


def _is_text(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


def _arrays(what: str, store: Any, count: int, excluded=("num_nodes",)) -> dict:
    """Return tensors and strings of a node or edge set, which have `count` rows."""
    out = {}
    for key, value in store.items():
        array = value if _is_text(value) else as_numpy(value)
        if key in excluded or not isinstance(array, np.ndarray | list):
            continue
        if np.shape(array)[:1] != (count,):
            raise ValueError(
                f"Expected {what}.{key} to have {count} rows. Received: shape "
                f"{np.shape(array)}. Remove it: del {what}.{key}."
            )
        out[key] = array
    return out


def from_hetero_data(data: Any) -> Graph:
    """Convert a `HeteroData` to a graph with node sets; see `set_arguments`."""
    return from_sets(**set_arguments(data))


def to_hetero_data(graph: Graph) -> Any:
    """Convert a graph with node sets to a `HeteroData`.

    Features keep their names, integers become int64. Labels of nodes or edges become
    `y` of their set, that of the graph `y` of the whole.

    Args:
        graph: A graph with node sets, such as those of `from_sets`.

    Raises:
        ValueError: If a feature is called `y` or `edge_index`.
        ImportError: If torch_geometric is not installed.
    """
    instance("graph", graph, Graph, "a Graph")
    torch = optional_import("torch", "keras-bandgnn[torch]")
    package = optional_import("torch_geometric.data", "torch_geometric")
    parts, data = to_sets(graph), package.HeteroData()

    def store(place: Any, features: Mapping, dtypes: Mapping) -> None:
        for name, array in features.items():
            if name in place or name in ("y", "edge_index", "num_nodes"):
                refuse(
                    "graph", "features of other names than those of a HeteroData", name
                )
            place[name] = torch.tensor(array, dtype=dtypes[array.dtype.kind])

    kinds = {"i": torch.int64, "f": torch.float32}
    for name, table in parts["nodes"].items():
        first = next(iter(table.values()))
        if not has_features(table):
            data[name].num_nodes = len(first)
            continue
        if "x" not in table:
            data[name].num_nodes = len(first)
        store(data[name], table, kinds)
    for key, features in parts.get("node", {}).items():
        for name, rows in features.items():
            mask = is_mask(key, rows)
            if mask and not rows.any():
                # As of sets that have no such mask.
                continue
            store(
                data[name],
                {key: rows},
                {**kinds, "i": torch.bool if mask else torch.int64},
            )
    for name, rows in parts.get("label", {}).items():
        data[name].y = torch.tensor(rows, dtype=kinds[rows.dtype.kind])
    for key, columns in parts["edges"].items():
        columns = dict(columns)
        data[key].edge_index = torch.tensor(
            columns.pop("edge_index"), dtype=torch.int64
        )
        store(data[key], columns, kinds)
    for key, value in graph.context.items():
        data[key] = torch.tensor(value[None], dtype=kinds[value.dtype.kind])
    if graph.label is not None and graph.label_level == "graph":
        data.y = torch.tensor(graph.label[None], dtype=kinds[graph.label.dtype.kind])
    for key, value in graph.info.items():
        if isinstance(value, str):
            data[key] = value
    return data
