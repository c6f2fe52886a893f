"""Conversion from and to `torch_geometric.data.Data`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bandgnn.arrays import TIME
from keras_bandgnn.checks import having, instance, one_of, refuse
from keras_bandgnn.data.converters.attributes import (
    as_numpy,
    graph_of,
    is_hetero_data,
    levels_of,
    sized,
)
from keras_bandgnn.data.converters.hetero_data import from_hetero_data, to_hetero_data
from keras_bandgnn.graph import LABEL_LEVELS, Graph
from keras_bandgnn.optional import optional_import

if TYPE_CHECKING:
    import torch_geometric.data

_RESERVED = (
    *("edge_index", "edge_type", "num_nodes", "y", "batch", "ptr", "edge_label"),
    *("candidate_index", "slot_index", "label_level"),
)


def from_pyg(
    data: torch_geometric.data.Data | torch_geometric.data.HeteroData,
    label_level: str | None = None,
    levels: Mapping[str, str] | None = None,
) -> Graph:
    """Convert a `torch_geometric.data.Data` to a graph.

    `edge_index[0]` are the senders, `edge_index[1]` the receivers. `y` is the label, as
    is `edge_label` without an `edge_label_index`; `edge_type` holds the types; `x`,
    `pos` and `z` are node features. Any other tensor becomes a feature of the same
    name: a node or edge feature if its number of rows matches, otherwise a graph
    feature. With as many nodes as edges, it is an edge
    feature if its name contains "edge"; pass `levels=` to override this. A leading axis
    of 1 is dropped from graph features and `y`. int64 becomes int32, float64 becomes
    float32. Text and other values are stored in `info`.

    Args:
        data: One graph; batches are rejected. A `HeteroData` becomes a graph with node
            sets, see `from_sets`: `y` of a set is its label, masks such as `train_mask`
            are features of all nodes, and other tensors with a row for each node or
            edge of a set are its features. Of a `TemporalData` the events are the
            edges, `t` are their times, and other tensors are their features.
        label_level: `"graph"`, `"node"` or `"edge"`, the level of `y`. If omitted, it
            is the `label_level` that `to_pyg` writes, otherwise inferred from the
            number of rows. Required for other `y` of one row in a graph of one node,
            and of as many rows as nodes and edges.
        levels: `"node"`, `"edge"` or `"context"` by name, for tensors whose number of
            rows is misleading, such as a cell of three rows in a graph of three nodes.

    Raises:
        ValueError: If `data` is not a single graph, a level is ambiguous, a value does
            not fit into 32 bits, or `Graph` rejects a feature.

    Example:
    >>> import torch_geometric  # doctest: +SKIP
    >>> from_pyg(torch_geometric.datasets.KarateClub()[0])  # doctest: +SKIP
    Graph(num_nodes=34, num_edges=156, node={x: [34, 34], ...)
    """
    having("data", data, "to_dict", "a Data of torch_geometric")
    if is_hetero_data(data):
        if label_level is not None or levels is not None:
            level = label_level or levels
            refuse("label_level and levels", "omitted for a HeteroData", level)
        return from_hetero_data(data)
    if all(hasattr(data, name) for name in ("src", "dst", "t")):
        if label_level is not None or levels is not None:
            level = label_level or levels
            refuse("label_level and levels", "omitted for a TemporalData", level)
        return _graph_of_events(data)
    values = pyg_values(data)
    attribute_levels = {**levels_of([values]), **(levels or {})}
    if label_level is not None:
        values["label_level"] = one_of("label_level", label_level, LABEL_LEVELS)
    return graph_of(values, attribute_levels)


def _graph_of_events(data: Any) -> Graph:
    """Return the graph of a `TemporalData`, whose label is `y` of its events."""
    columns = {name: as_numpy(values) for name, values in data.to_dict().items()}
    senders, receivers = columns.pop("src"), columns.pop("dst")
    label = columns.pop("y", None)
    last = max(int(ids.max(initial=0)) for ids in (senders, receivers))
    return Graph(
        last + 1,
        senders,
        receivers,
        edge={TIME: columns.pop("t"), **columns},
        label=label,
        label_level="graph" if label is None else "edge",
    )


def pyg_values(data: Any) -> dict[str, Any]:
    """Return the attributes of a `Data` as arrays, with the number of nodes.

    Raises:
        ValueError: If it is not one homogeneous graph with an `edge_index`.
    """
    if hasattr(data, "to_homogeneous") and hasattr(data, "metadata"):
        raise ValueError(
            "Expected a torch_geometric Data. Received: HeteroData. "
            "Convert it with keras_bandgnn.data.from_pyg."
        )
    attributes = data.to_dict()
    if "ptr" in attributes:
        raise ValueError(
            f"Expected one graph. Received: a batch of {len(attributes['ptr']) - 1} "
            "graphs. Convert each item of batch.to_data_list()."
        )
    for name, value in attributes.items():
        sparse = hasattr(value, "layout") and "strided" not in str(value.layout)
        if sparse or hasattr(value, "sparse_sizes"):
            raise ValueError(
                f"Expected `{name}` to be a dense tensor. Received: a sparse one. "
                "Remove the transform ToSparseTensor, or call .to_dense()."
            )
    if attributes.get("edge_index") is not None:
        attributes["num_nodes"] = data.num_nodes
    return sized(attributes)


def to_pyg(graph: Graph) -> torch_geometric.data.Data | torch_geometric.data.HeteroData:
    """Convert a graph to a `torch_geometric.data.Data`, or `HeteroData`.

    Features keep their names, integers become int64. The label becomes `y`, and its
    level the text `label_level`. Labels of graphs and context features get a leading
    axis of 1, along which torch_geometric batches. A graph with node sets becomes a
    `HeteroData`. Candidates become `candidate_index` and the slot `slot_index`, which
    torch_geometric offsets in batches because of their names. Of `info`, only text is
    kept.

    Needs `pip install torch_geometric`.

    Args:
        graph: The graph.

    Raises:
        ValueError: If features of nodes, edges and the graph share a name.
        ImportError: If torch_geometric is not installed.

    Example:
    >>> to_pyg(Graph(2, [0], [1], node={"x": [[1.0], [2.0]]}))  # doctest: +SKIP
    Data(x=[2, 1], edge_index=[2, 1], num_nodes=2, edge_type=[1])
    """
    instance("graph", graph, Graph, "a Graph")
    if graph.sets:
        return to_hetero_data(graph)
    torch = optional_import("torch", "keras-bandgnn[torch]")
    package = optional_import("torch_geometric.data", "torch_geometric")

    def tensor(array: np.ndarray) -> Any:
        whole = array.dtype.kind == "i"
        return torch.tensor(array, dtype=torch.int64 if whole else torch.float32)

    values = {}
    context = {name: array[None] for name, array in graph.context.items()}
    for features in (graph.node, graph.edge, context):
        for name, array in features.items():
            if name in values or name in _RESERVED:
                raise ValueError(
                    "Expected every feature of a Data to have a unique name. "
                    f"Received: {name!r} twice, or a name reserved by Data: "
                    f"{_RESERVED}. Rename the feature."
                )
            values[name] = tensor(array)
    values["edge_index"] = tensor(np.stack([graph.senders, graph.receivers]))
    values["edge_type"] = tensor(graph.edge_type)
    if graph.candidates is not None:
        values["candidate_index"] = tensor(graph.candidates)
    if graph.slot is not None:
        values["slot_index"] = tensor(np.array([graph.slot]))
    if graph.label is not None:
        label = graph.label[None] if graph.label_level == "graph" else graph.label
        values |= {"y": tensor(label), "label_level": graph.label_level}
    for name, value in graph.info.items():
        if isinstance(value, str) and name not in {*values, *_RESERVED}:
            values[name] = value
    return package.Data(num_nodes=graph.num_nodes, **values)
