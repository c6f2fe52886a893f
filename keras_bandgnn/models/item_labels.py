"""Labels and weights of items: columns of tables, and rows of converted items."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_bandgnn.data.converters.attributes import as_numpy
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.preprocessing.encoding.raw_items import (
    is_table,
)


def rows_of(
    name: str,
    values: Any,
    positions: np.ndarray,
    count: int,
    graphs: FlatGraphs,
    level: str,
    node_set: str | None = None,
) -> Any:
    """Return the labels or weights of the converted items among `count` items.

    Args:
        name: Name of the argument, for errors.
        values: Labels or weights of all items. For nodes and edges also one array for
            the converted items.
        positions: Indices of the converted items.
        count: Number of items.
        graphs: The graphs of the converted items.
        level: `"node"` or `"edge"` where each item has several labels.
        node_set: The node set that labels of nodes belong to; None for all nodes.

    Raises:
        ValueError: For another number of values, and for values that do not fit,
            numbered as the items.
    """
    if values is None or len(positions) == count or not hasattr(values, "__len__"):
        return values
    several = level in ("node", "edge")
    nested = isinstance(values, list | tuple)
    nested = several and nested and any(np.ndim(v) for v in values if v is not None)
    if len(values) != count:
        if several and not nested:
            return values
        raise ValueError(
            f"Expected `{name}` to have an entry for each of the {count} items, also "
            f"for the {count - len(positions)} that are left out. Received: "
            f"{len(values)} entries. Write NaN for items without a label."
        )
    if hasattr(values, "iloc"):
        rows = values.iloc[positions]
    elif isinstance(values, list | tuple):
        rows = [values[i] for i in positions]
    else:
        rows = values[positions]
    if not nested:
        _check_rows(name, rows, positions)
        return rows
    counts = graphs.num_nodes if level == "node" else graphs.num_edges
    if node_set is not None:
        counts = np.diff(graphs.set_ptr[node_set])
    for number, row, size in zip(positions.tolist(), rows, counts, strict=True):
        check_size(f"{name}[{number}]", row, int(size), level, number)
        _check_rows(f"{name}[{number}]", row)
    return rows


def _check_rows(name: str, rows: Any, numbers: np.ndarray | None = None) -> None:
    """Raise a ValueError for infinite numbers, with the index of their item."""
    values = rows.to_numpy() if hasattr(rows, "to_numpy") else rows
    try:
        array = np.asarray(as_numpy(values), np.float64)
    except (TypeError, ValueError):
        return  # Names of classes are checked later.
    wrong = np.isinf(array)
    if not wrong.any():
        return
    place = [int(i) for i in np.argwhere(wrong)[0]]
    value = array[tuple(place)]
    if numbers is not None and place:
        place[0] = int(numbers[place[0]])
    raise ValueError(
        f"Expected `{name.partition('[')[0]}` to be finite. Received: {name}"
        f"{place or ''}={value}. Write NaN where a value is not known."
    )


def check_size(name: str, row: Any, count: int, level: str, number: int) -> None:
    """Raise a ValueError unless a graph's labels have a row for each node or edge."""
    if np.shape(row)[:1] != (count,):
        raise ValueError(
            f"Expected {name} to have a row for each of the {count} {level}s of graph "
            f"{number}. Received: shape {np.shape(row)}."
        )


def check_index(name: str, x: Any, values: Any, node_set: str | None = None) -> None:
    """Raise a ValueError if the pandas index of values has the rows in another order.

    Labels belong to items, and to the nodes of a graph, by position, as in Keras.

    Args:
        name: Name of the argument `values`.
        x: Data. A data frame or a series has an index, a graph of networkx names.
        values: Labels or weights; of several graphs a list.
        node_set: The node set that they belong to; its table may be a data frame.
    """
    if isinstance(x, list | tuple):
        if isinstance(values, list | tuple) and len(x) == len(values):
            for graph, rows in zip(x, values, strict=True):
                check_index(name, graph, rows, node_set)
        elif len(x) == 1:
            check_index(name, x[0], values, node_set)
        return
    if node_set is not None and isinstance(x, Mapping):
        x = x.get("nodes", {}).get(node_set)
    if not hasattr(values, "iloc"):
        return
    if hasattr(x, "iloc"):
        rows, owner, index = x.index, "rows of `x`", "x.index"
    elif hasattr(x, "nodes") and hasattr(x, "adj"):
        rows, owner, index = list(x.nodes), "nodes of the graph", "list(graph)"
    else:
        return
    other = values.index
    if len(rows) != len(other) or list(rows) == list(other):
        return
    if set(rows) == set(other):
        raise ValueError(
            f"Expected `{name}` in the order of the {owner}. Received: their index in "
            f"another order. Write {name}.loc[{index}], or {name}.to_numpy() if row k "
            f"of {name} belongs to the k-th of the {owner}."
        )


def columns_of(x: Any, y: Any) -> Any:
    """Return the columns of a data frame that `y` names; other labels unchanged.

    For a list of dicts, return their values with the key `y`.
    """
    dicts = isinstance(x, list | tuple) and x and isinstance(x[0], Mapping)
    if dicts and isinstance(y, str):
        missing = [k for k, row in enumerate(x) if y not in row]
        if missing:
            raise ValueError(
                f"Expected {y!r} in each item of `x`. Received: item {missing[0]} with "
                f"{sorted(x[missing[0]])}. Pass labels for all items."
            )
        return [row[y] for row in x]
    names = [y] if isinstance(y, str) else y
    if not isinstance(names, list | tuple) or not all(
        isinstance(n, str) for n in names
    ):
        return y
    if not is_table(x):
        return y
    missing = [name for name in names if name not in x.columns]
    if missing:
        raise ValueError(
            f"Expected columns of the table, one of {list(x.columns)}. Received: "
            f"{missing}."
        )
    return x[y] if isinstance(y, str) else x[list(y)]
