"""Graphs from and to tables of edges, nodes and graphs in pandas."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from keras_bandgnn.arrays import (
    INT32_MAX,
    checked_feature,
    checked_features,
    checked_ids,
)
from keras_bandgnn.checks import having
from keras_bandgnn.data.converters.pandas_columns import columns_of, features_of
from keras_bandgnn.data.converters.pandas_names import (
    by_graph,
    ends_of,
    graph_names,
    is_json,
    names_as_info,
    occurring,
    rows_of,
    shown,
)
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import pointers
from keras_bandgnn.graph import Graph
from keras_bandgnn.optional import optional_import


class Tables(NamedTuple):
    """Data frames, in the order in which `from_pandas` takes them.

    Attributes:
        edges: One row per edge.
        nodes: One row per node.
        graphs: One row per graph.
    """

    edges: Any
    nodes: Any
    graphs: Any


def from_pandas(
    edges: Any,
    nodes: Any = None,
    graphs: Any = None,
    source: str = "source",
    target: str = "target",
    node: str = "node",
    graph: str | None = None,
) -> Graph | FlatGraphs:
    """Makes one graph, or many at once, of tables.

    A row of `edges` is an edge from the node in column `source` to the one in column
    `target`. Every other column is a feature of its name and must be numeric; columns
    `x[0]`, `x[1]`, ... together are the feature `x`. A column `edge_type` of `edges`
    holds the types, a column `label` of `nodes` or `graphs` the label.

    Nodes are numbered in the order of the rows of `nodes`, or, without that table, of
    their sorted names; isolated nodes need the table. If the names are not 0 to N - 1,
    `info["nodes"]` lists them, as far as JSON can hold them.

    With `graph`, rows with the same value in that column are one graph, without a loop
    over the graphs. Graphs come in the order of the table `graphs`, otherwise of their
    first row, and have their name as `info["graph"]`.

    Args:
        edges: Data frame of the edges.
        nodes: Data frame of the nodes.
        graphs: Data frame of the graphs: labels and context features. Without `graph`
            it has one row.
        source: Column of `edges` with the senders' names.
        target: Column of `edges` with the receivers' names.
        node: Column of `nodes` with their names; without such a column, its index.
        graph: Column of all tables with the graph's name; in `graphs`, without such a
            column, its index.

    Returns:
        A `Graph`; with `graph`, a `FlatGraphs`.

    Raises:
        ValueError: If a column is missing or not numeric, a name repeats, or an edge
            names a node that is not there.

    Example:
    >>> import pandas as pd  # doctest: +SKIP
    >>> ends = {"source": ["a", "b"], "target": ["b", "c"]}
    >>> from_pandas(pd.DataFrame(ends)).info["nodes"]  # doctest: +SKIP
    ['a', 'b', 'c']
    """
    having("edges", edges, "columns", "a DataFrame")
    pd = optional_import("pandas", "pandas")
    names = graph_names(pd, edges, nodes, graphs, graph)
    edges, edge_graph = by_graph("edges", edges, graph, names)
    ends = ends_of(pd, edges, source, target)
    end_graph = np.tile(edge_graph, 2)
    if nodes is None:
        ids, node_graph = occurring(pd, ends, end_graph)
    else:
        nodes, node_graph = by_graph("nodes", nodes, graph, names)
        ids = nodes[node] if node in nodes else nodes.index.to_series()
    num_nodes = np.bincount(node_graph, minlength=len(names))
    if not num_nodes.all():
        lacking = f" in graph {shown(names, num_nodes == 0)}" if graph else ""
        raise ValueError(
            f"Expected every graph to have a node. Received: none{lacking}. Leave "
            "empty graphs out."
        )
    first = pointers(num_nodes)[:-1]
    row = rows_of(pd, ids, node_graph, ends, end_graph)
    senders, receivers = (row - first[end_graph]).reshape(2, -1)
    info = names_as_info(ids, np.arange(len(ids)) - first[node_graph], num_nodes)
    if graph is not None and is_json(names.tolist()):
        info = [{"graph": n, **i} for n, i in zip(names.tolist(), info, strict=True)]

    edge = features_of("edges", edges, {source, target, graph})
    node = {} if nodes is None else features_of("nodes", nodes, {node, graph})
    context = {} if graphs is None else features_of("graphs", graphs, {graph})
    if "label" in node and "label" in context:
        raise ValueError(
            "Expected a column `label` of the nodes or of the graphs. Received: both. "
            "Drop one of them."
        )
    level = "node" if "label" in node else "graph"
    label = (node if level == "node" else context).pop("label", None)
    edge_type = edge.pop("edge_type", None)
    if graph is None:
        return Graph(
            len(ids),
            senders,
            receivers,
            edge_type,
            node,
            edge,
            {name: array[0] for name, array in context.items()},
            label=label[0] if level == "graph" and label is not None else label,
            label_level=level,
            info=info[0],
        )
    if edge_type is not None:
        edge_type = checked_ids("edge_type", edge_type, INT32_MAX, "2**31 - 1")
    return FlatGraphs(
        num_nodes,
        np.bincount(edge_graph, minlength=len(names)),
        senders,
        receivers,
        edge_type,
        checked_features("node", node, len(ids), "rows"),
        checked_features("edge", edge, len(edges), "rows"),
        checked_features("context", context, len(names), "rows"),
        label=None if label is None else checked_feature("label", label),
        label_level=level,
        info=info,
    )


def to_pandas(graphs: Graph | Iterable[Graph]) -> Tables:
    """Makes tables of one or many graphs, as `from_pandas` reads them.

    Nodes go by their number. Features of more than one number become columns `x[0]`,
    `x[1]`, ... Many graphs get a column `graph` with their number in every table:
    `from_pandas(*tables, graph="graph")` leads back. Candidates, slots and `info` have
    no column and are left out.

    Needs `pip install pandas`.

    Args:
        graphs: A graph, `FlatGraphs` or graphs that have the same features.

    Returns:
        `edges` with `source`, `target`, `edge_type` and features, `nodes` with `node`
        and features, `graphs` with context features; the label in one of the latter.

    Raises:
        ValueError: If graphs disagree in their features.
        ImportError: If pandas is not installed.

    Example:
    >>> edges, nodes, graphs = to_pandas(Graph(2, [0], [1]))  # doctest: +SKIP
    >>> edges.values.tolist()  # doctest: +SKIP
    [[0, 1, 0]]
    """
    pd = optional_import("pandas", "pandas")
    single = isinstance(graphs, Graph)
    flat = graphs if isinstance(graphs, FlatGraphs) else None
    if flat is None:
        flat = FlatGraphs.from_graphs([graphs] if single else graphs)
    number = np.arange(len(flat))
    first = np.repeat(flat.node_ptr[:-1], flat.num_nodes)
    edges = {"source": flat.senders, "target": flat.receivers}
    edges |= {"edge_type": flat.edge_type, **columns_of(flat.edge)}
    nodes = {"node": np.arange(len(first)) - first, **columns_of(flat.node)}
    rows = columns_of(flat.context)
    if flat.label is not None:
        (nodes if flat.label_level == "node" else rows).update(
            columns_of({"label": flat.label})
        )
    tables = (
        (edges, np.repeat(number, flat.num_edges)),
        (nodes, np.repeat(number, flat.num_nodes)),
        (rows, number),
    )
    return Tables(
        *(
            pd.DataFrame(columns if single else {"graph": graph, **columns})
            if columns or not single
            else pd.DataFrame(index=range(1))
            for columns, graph in tables
        )
    )
