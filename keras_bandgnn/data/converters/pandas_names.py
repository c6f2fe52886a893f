"""Names of nodes and graphs in tables of pandas, and the rows that they stand for."""

from typing import Any

import numpy as np

from keras_bandgnn.data.files import json_text
from keras_bandgnn.data.flat_columns import pointers


def shown(names: Any, mask: np.ndarray) -> str:
    """The first name that a mask selects, for an error."""
    return repr(names[mask][:1].tolist()[0])


def column(what: str, table: Any, column: str) -> Any:
    """A column of the table `what`, or an error with those that there are."""
    if column not in table:
        raise ValueError(
            f"Expected a column {column!r} in the table {what}. Received: "
            f"{list(table.columns)}. Rename a column, or pass the name that it has."
        )
    return table[column]


def ends_of(pd: Any, edges: Any, source: str, target: str) -> Any:
    """The names of all senders, then of all receivers."""
    columns = [column("edges", edges, name) for name in (source, target)]
    ends = pd.concat(columns, ignore_index=True)
    if ends.isna().any():
        row = int(np.flatnonzero(ends.isna())[0]) % len(edges)
        raise ValueError(
            "Expected every edge to name its two nodes. Received: a missing value in "
            f"row {row}. Drop such rows with .dropna."
        )
    return ends


def graph_names(pd: Any, edges: Any, nodes: Any, graphs: Any, graph: Any) -> Any:
    """The names of the graphs in their order, an index; [0] for a single graph."""
    if graph is None:
        if graphs is not None and len(graphs) != 1:
            raise ValueError(
                "Expected one row in the table graphs without graph=. Received: "
                f"{len(graphs)}. Name the column that tells the graphs apart."
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


def by_graph(what: str, table: Any, graph: Any, names: Any) -> tuple[Any, np.ndarray]:
    """The table with its rows sorted by graph, and the number of each row's graph."""
    if graph is None:
        return table, np.zeros(len(table), np.int64)
    numbers = names.get_indexer(column(what, table, graph))
    if (numbers < 0).any():
        raise ValueError(
            f"Expected the graphs of the table {what} among those of the table that "
            f"lists them. Received: {shown(table[graph], numbers < 0)}. Add it there."
        )
    order = np.argsort(numbers, kind="stable")
    return table.iloc[order], numbers[order]


def occurring(pd: Any, ends: Any, end_graph: np.ndarray) -> tuple[Any, np.ndarray]:
    """The nodes that edges name: names, sorted in each graph, and graphs."""
    codes, found = pd.factorize(ends, sort=True)
    keys = np.unique(end_graph * max(len(found), 1) + codes)
    graph, code = np.divmod(keys, max(len(found), 1))
    return pd.Series(found.take(code)), graph


def rows_of(
    pd: Any, ids: Any, id_graph: np.ndarray, ends: Any, end_graph: np.ndarray
) -> np.ndarray:
    """The row among the nodes of each end of an edge."""
    codes, found = pd.factorize(pd.concat([ids, ends], ignore_index=True))
    # One integer per pair of graph and name.
    keys = np.concatenate([id_graph, end_graph]) * max(len(found), 1) + codes
    index = pd.Index(keys[: len(ids)])
    if not index.is_unique:
        raise ValueError(
            "Expected every node of a graph once in the table nodes. Received: "
            f"{shown(ids, index.duplicated())} twice. Drop duplicates, or tell graphs "
            "apart with graph=."
        )
    row = index.get_indexer(keys[len(ids) :])
    if (row < 0).any():
        raise ValueError(
            "Expected edges between nodes of the table nodes. Received: "
            f"{shown(ends, row < 0)}, which that graph lacks. Add it, or drop the edge."
        )
    return row


def names_as_info(ids: Any, local: np.ndarray, num_nodes: np.ndarray) -> list[dict]:
    """The names of each graph's nodes, where they are not their numbers."""
    names = ids.tolist()
    if not is_json(names):
        return [{}] * len(num_nodes)
    ptr = pointers(num_nodes)
    other = pointers(ids.to_numpy() != local)[ptr]
    return [
        {"nodes": names[a:b]} if differ else {}
        for a, b, differ in zip(ptr[:-1], ptr[1:], np.diff(other), strict=True)
    ]


def is_json(names: list) -> bool:
    """Whether JSON can hold some names, which may be any objects."""
    try:
        json_text("names", names)
    except ValueError:
        return False
    return True
