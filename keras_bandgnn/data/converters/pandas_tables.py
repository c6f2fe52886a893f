"""Conversion from and to pandas tables of edges, nodes and graphs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from keras_bandgnn.arrays import (
    INT32_MAX,
    TIME,
    checked_feature,
    checked_features,
    checked_ids,
)
from keras_bandgnn.checks import having
from keras_bandgnn.data.converters.attributes import (
    label_level_of,
    refuse_names,
    refuse_sets,
    whole_times,
)
from keras_bandgnn.data.files import json_text
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import pointers
from keras_bandgnn.graph import Graph
from keras_bandgnn.optional import optional_import

if TYPE_CHECKING:
    import pandas

# The columns `x[0]`, `x[1]` are a vector `x`.
_ENTRY = re.compile(r"(.+)\[(\d+(?:,\d+)*)\]")
# A table of one graph has no column `graph`.
_RESERVED = {
    "node": ("graph", "node", "label"),
    "edge": ("graph", "source", "target", "edge_type", "label"),
    "context": ("graph", "label"),
}
_LABEL = re.compile(r"label(\[\d+(,\d+)*\])?")
# Larger integers are not distinct as float64.
_EXACT = 2**53


def features_of(what: str, table: Any, without: set[str]) -> dict[str, np.ndarray]:
    """Return the columns of a table as arrays by name.

    Args:
        what: Name of the table in errors.
        table: A data frame.
        without: Columns to skip.

    Raises:
        ValueError: If a column is not numeric or has missing values, or the column of a
            vector's entry is missing.
    """
    features, entries = {}, {}
    for column in table.columns:
        if column in without:
            continue
        array = _numbers(what, column, table[column])
        match = _ENTRY.fullmatch(str(column))
        if match is None:
            features[str(column)] = array
        else:
            index = tuple(int(i) for i in match[2].split(","))
            entries.setdefault(match[1], {})[index] = array
    for name, arrays in entries.items():
        shape = tuple(np.array(list(arrays)).max(axis=0) + 1)
        lacking = [index for index in np.ndindex(shape) if index not in arrays]
        if lacking:
            raise ValueError(
                f"Expected the columns of {name!r} in the table {what} to form an "
                f"array of shape {shape}. Received: no column "
                f"{entry(name, lacking[0])!r}. Add it."
            )
        stacked = np.stack([arrays[index] for index in np.ndindex(shape)], axis=1)
        features[name] = stacked.reshape(len(table), *shape)
    return features


def _numbers(what: str, column: Any, values: Any) -> np.ndarray:
    number = getattr(values.dtype, "kind", "O") in "iuf"
    if number and _LABEL.fullmatch(str(column)) and values.isna().any():
        # A label that is not known; nullable columns become floats.
        values = values.astype(float)
    elif values.isna().any():
        row = int(np.flatnonzero(values.isna())[0])
        raise ValueError(
            f"Expected a value in every row of the column {column!r} of {what}. "
            f"Received: none in row {row}. Fill them in with .fillna, or drop the "
            "column."
        )
    # Nullable columns without missing values have a NumPy dtype.
    if column == TIME and getattr(values.dtype, "kind", "O") == "M":
        if getattr(values.dtype, "tz", None) is not None:
            values = values.dt.tz_convert(None)
        return whole_times(values.to_numpy())
    dtype = getattr(values.dtype, "numpy_dtype", values.dtype)
    if column == TIME and dtype.kind not in "biuf":
        raise ValueError(
            f"Expected times in the column {column!r} of {what}. Received: dtype "
            f"{values.dtype}, such as {values.iloc[0]!r:.60}. Convert it by "
            "pandas.to_datetime, or to integers."
        )
    if dtype.kind not in "biuf":
        raise ValueError(
            f"Expected the column {column!r} of {what} to be numeric. Received: dtype "
            f"{values.dtype}, such as {values.iloc[0]!r:.60}. Map it to ids that are "
            "the same in every table, such as pandas.Categorical(column, categories)"
            ".codes + 1 with the categories of the training data (0: others), or drop "
            "the column. NetworkXEncoder learns categories and saves them."
        )
    return values.to_numpy(dtype)


def columns_of(features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return one column per entry of each feature.

    Example:
    >>> list(columns_of({"id": np.zeros(4), "x": np.zeros((4, 2))}))
    ['id', 'x[0]', 'x[1]']
    """
    columns = {}
    for name, array in features.items():
        if array.ndim == 1:
            columns[name] = array
            continue
        for index in np.ndindex(array.shape[1:]):
            columns[entry(name, index)] = array[:, *index]
    return columns


def entry(name: str, index: tuple[int, ...]) -> str:
    """Return the column name of an entry of a feature."""
    return f"{name}[{','.join(map(str, index))}]"


def shown(names: Any, mask: np.ndarray) -> str:
    """Return the first name that a mask selects, for errors."""
    return repr(names[mask][:1].tolist()[0])


def column(what: str, table: Any, column: str) -> Any:
    """Return a column of the table `what`; raise an error if it is missing."""
    if column not in table:
        raise ValueError(
            f"Expected a column {column!r} in the table {what}. Received: "
            f"{list(table.columns)}. Rename a column, or pass its name."
        )
    return table[column]


def joined(pd: Any, columns: list) -> Any:
    """Return columns of names one after the other, without rounding integers.

    pandas makes float64 of int64 next to uint64 or floats.
    """
    is_integer, is_float = pd.api.types.is_integer_dtype, pd.api.types.is_float_dtype
    for values in columns:
        large = values[values.abs() >= _EXACT] if is_float(values.dtype) else values[:0]
        if len(large):
            raise ValueError(
                "Expected names of nodes and graphs that are exact. Received: the "
                f"column {values.name!r} of {values.dtype} with {large.iloc[0]!r}, "
                f"above 2**53, where floats round integers. Read it as integers."
            )
    whole = pd.concat(columns, ignore_index=True)
    if not is_float(whole.dtype):
        return whole
    integers = [values for values in columns if is_integer(values.dtype)]
    if not any(((v > _EXACT) | (v < -_EXACT)).any() for v in integers):
        return whole
    return pd.concat([v.astype(object) for v in columns], ignore_index=True)


def ends_of(pd: Any, edges: Any, source: str, target: str) -> Any:
    """Return the names of all senders, followed by those of all receivers."""
    columns = [column("edges", edges, name) for name in (source, target)]
    ends = joined(pd, columns)
    if ends.isna().any():
        row = int(np.flatnonzero(ends.isna())[0]) % len(edges)
        raise ValueError(
            "Expected every edge to name its two nodes. Received: a missing value in "
            f"row {row}. Drop these rows with .dropna."
        )
    return ends


def graph_names(pd: Any, edges: Any, nodes: Any, graphs: Any, graph: Any) -> Any:
    """Return the names of the graphs in order as an index; [0] for a single graph."""
    if graph is None:
        if graphs is not None and len(graphs) != 1:
            raise ValueError(
                "Expected one row in the table graphs without graph=. Received: "
                f"{len(graphs)}. Pass the column with the graph's name as graph=."
            )
        return pd.Index([0])
    if graphs is not None:
        names = pd.Index(graphs[graph]) if graph in graphs else graphs.index
        if not names.is_unique:
            raise ValueError(
                "Expected every graph once in the table graphs. Received: "
                f"{shown(names, names.duplicated())} twice. Drop duplicates."
            )
        return names
    what, table = ("edges", edges) if nodes is None else ("nodes", nodes)
    return pd.Index(column(what, table, graph).unique())


def by_graph(
    pd: Any, what: str, table: Any, graph: Any, names: Any
) -> tuple[Any, np.ndarray]:
    """Sort the rows of a table by graph; also return the graph of each row."""
    if graph is None:
        return table, np.zeros(len(table), np.int64)
    rows = column(what, table, graph)
    codes = pd.factorize(joined(pd, [names.to_series(), rows]))[0]
    numbers = pd.Index(codes[: len(names)]).get_indexer(codes[len(names) :])
    if (numbers < 0).any():
        raise ValueError(
            f"Expected the graphs of the table {what} in the table that lists the "
            f"graphs. Received: {shown(table[graph], numbers < 0)}. Add it to that "
            "table."
        )
    order = np.argsort(numbers, kind="stable")
    return table.iloc[order], numbers[order]


def occurring(pd: Any, ends: Any, end_graph: np.ndarray) -> tuple[Any, np.ndarray]:
    """Return the nodes that edges name: names, sorted in each graph, and graphs."""
    codes, uniques = pd.factorize(ends, sort=True)
    keys = np.unique(end_graph * max(len(uniques), 1) + codes)
    graph, code = np.divmod(keys, max(len(uniques), 1))
    return pd.Series(uniques.take(code)), graph


def rows_of(
    pd: Any, ids: Any, id_graph: np.ndarray, ends: Any, end_graph: np.ndarray
) -> np.ndarray:
    """Return the row in the node table of each end of an edge."""
    codes, uniques = pd.factorize(joined(pd, [ids, ends]))
    # One integer per pair of graph and name.
    keys = np.concatenate([id_graph, end_graph]) * max(len(uniques), 1) + codes
    index = pd.Index(keys[: len(ids)])
    if not index.is_unique:
        raise ValueError(
            "Expected every node of a graph once in the table nodes. Received: "
            f"{shown(ids, index.duplicated())} twice. Drop duplicates, or pass graph= "
            "if there are several graphs."
        )
    row = index.get_indexer(keys[len(ids) :])
    if (row < 0).any():
        raise ValueError(
            "Expected edges between nodes of the table nodes. Received: "
            f"{shown(ends, row < 0)}, which that graph lacks. Add it, or drop the edge."
        )
    return row


def names_as_info(ids: Any, local: np.ndarray, num_nodes: np.ndarray) -> list[dict]:
    """Return the names of each graph's nodes, if they differ from their numbers."""
    names = ids.tolist()
    if not is_json(names):
        return [{}] * len(num_nodes)
    ptr = pointers(num_nodes)
    changes = pointers(ids.to_numpy() != local)[ptr]
    return [
        {"nodes": names[a:b]} if differ else {}
        for a, b, differ in zip(ptr[:-1], ptr[1:], np.diff(changes), strict=True)
    ]


def is_json(names: list) -> bool:
    """Return whether names, which can be arbitrary objects, are valid JSON."""
    try:
        json_text("names", names)
    except ValueError:
        return False
    return True


class Tables(NamedTuple):
    """Data frames in the argument order of `from_pandas`.

    Attributes:
        edges: One row per edge.
        nodes: One row per node.
        graphs: One row per graph.
    """

    edges: Any
    nodes: Any
    graphs: Any


@overload
def from_pandas(
    edges: pandas.DataFrame | Mapping,
    nodes: pandas.DataFrame | Mapping | None = None,
    graphs: None = None,
    source: str = "source",
    target: str = "target",
    node: str = "node",
    graph: None = None,
) -> Graph: ...


@overload
def from_pandas(
    edges: pandas.DataFrame | Mapping,
    nodes: pandas.DataFrame | Mapping | None = None,
    graphs: pandas.DataFrame | Mapping | None = None,
    source: str = "source",
    target: str = "target",
    node: str = "node",
    graph: str | None = None,
) -> FlatGraphs: ...


def from_pandas(
    edges: pandas.DataFrame | Mapping,
    nodes: pandas.DataFrame | Mapping | None = None,
    graphs: pandas.DataFrame | Mapping | None = None,
    source: str = "source",
    target: str = "target",
    node: str = "node",
    graph: str | None = None,
) -> Graph | FlatGraphs:
    """Convert tables to one or many graphs.

    A row of `edges` is an edge from the node in column `source` to the one in column
    `target`. Every other column is a feature of its name and must be numeric; columns
    `x[0]`, `x[1]`, ... together are the feature `x`. A column `edge_type` of `edges`
    holds the types, a column `label` of `nodes`, `edges` or `graphs` the label, where a
    missing value is one that is not known. A column `time` of `nodes` or `edges` holds
    their times, integers; dates become milliseconds since 1970.

    Nodes are numbered in the order of the rows of `nodes`, or, without that table, of
    their sorted names; isolated nodes need the table. If the names are not 0 to N - 1
    and can be represented in JSON, `info["nodes"]` lists them.

    With `graph`, rows with the same value in that column form a graph; the conversion
    is vectorised over graphs. Graphs are in the order of the table `graphs`, otherwise
    of their first row, and `info["graph"]` is their name.

    Args:
        edges: Data frame of the edges.
        nodes: Data frame of the nodes.
        graphs: Data frame of the graphs: labels and context features. Without `graph`
            it has one row.
        source: Column of `edges` with the senders' names.
        target: Column of `edges` with the receivers' names.
        node: Column of `nodes` with their names; its index if there is no such column.
        graph: Column of all tables with the graph's name; the index of `graphs` if it
            has no such column.

    Returns:
        A `Graph`; with `graph`, a `FlatGraphs`.

    Raises:
        ValueError: If a column is missing or not numeric, a name repeats, an edge names
            an unknown node, or several tables have a label.

    Example:
    >>> import pandas as pd  # doctest: +SKIP
    >>> ends = {"source": ["a", "b"], "target": ["b", "c"]}
    >>> from_pandas(pd.DataFrame(ends)).info["nodes"]  # doctest: +SKIP
    ['a', 'b', 'c']
    """
    having("edges", edges, "columns", "a DataFrame")
    pd = optional_import("pandas", "pandas")
    names = graph_names(pd, edges, nodes, graphs, graph)
    edges, edge_graph = by_graph(pd, "edges", edges, graph, names)
    ends = ends_of(pd, edges, source, target)
    end_graph = np.tile(edge_graph, 2)
    if nodes is None:
        ids, node_graph = occurring(pd, ends, end_graph)
    else:
        nodes, node_graph = by_graph(pd, "nodes", nodes, graph, names)
        ids = nodes[node] if node in nodes else nodes.index.to_series()
    num_nodes = np.bincount(node_graph, minlength=len(names))
    if not num_nodes.all():
        lacking = f" in graph {shown(names, num_nodes == 0)}" if graph else ""
        raise ValueError(
            f"Expected every graph to have a node. Received: none{lacking}. Remove "
            "empty graphs."
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
    labels = {"graph": context, "node": node, "edge": edge}
    level = label_level_of("a column", {k: "label" in v for k, v in labels.items()})
    label = labels[level].pop("label", None)
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
        label=None if label is None else checked_feature("label", label, True),
        label_level=level,
        info=info,
    )


def to_pandas(graphs: Graph | Iterable[Graph]) -> Tables:
    """Convert one or many graphs to tables in the format of `from_pandas`.

    Nodes are named by their numbers. Vector features become columns `x[0]`, `x[1]`, ...
    For many graphs, every table has a column `graph` with their number;
    `from_pandas(*tables, graph="graph")` is the inverse. Candidates, slots and `info`
    are dropped.

    Needs `pip install pandas`.

    Args:
        graphs: A graph, `FlatGraphs` or graphs that have the same features.

    Returns:
        `edges` with `source`, `target`, `edge_type` and features, `nodes` with `node`
        and features, `graphs` with context features; the label in the one of its level.

    Raises:
        ValueError: If graphs disagree in their features, or a feature has the name of
            one of these columns, such as `label`.
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
    refuse_sets(flat, "pandas")
    number = np.arange(len(flat))
    first = np.repeat(flat.node_ptr[:-1], flat.num_nodes)
    for level, reserved in _RESERVED.items():
        names = [name.partition("[")[0] for name in getattr(flat, level)]
        refuse_names("pandas", level, names, reserved[single:])
    edges = {"source": flat.senders, "target": flat.receivers}
    edges |= {"edge_type": flat.edge_type, **columns_of(flat.edge)}
    nodes = {"node": np.arange(len(first)) - first, **columns_of(flat.node)}
    rows = columns_of(flat.context)
    if flat.label is not None:
        table = {"graph": rows, "node": nodes, "edge": edges}[flat.label_level]
        table.update(columns_of({"label": flat.label}))
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
