"""`link_tables`: tables joined by keys, as node sets and edge sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bandgnn.checks import instance, mapping, refuse, shown
from keras_bandgnn.graph import EdgeSet

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Item


def link_tables(
    nodes: Mapping[str, Item],
    keys: Mapping[str, str],
    edges: Mapping[EdgeSet, str | tuple[Item, str, str]],
) -> dict[str, dict]:
    """Return node sets and edge sets of tables whose rows refer to one another.

    The result is an item of `NodeSetEncoder`. Columns with keys are left out of it, as
    names of rows tell nothing about new rows.

    Args:
        nodes: Node set -> its table, a data frame of pandas or a dict of columns.
        keys: Node set -> the column of its table with the key of each row, of any
            type; of sets that edges refer to.
        edges: (source set, relation, target set) -> the column of the source's table
            with keys of the target; or, for a table of edges, (table, column with keys
            of the source, column with keys of the target), whose other columns are
            features of the edges. Rows with a missing key have no edge.

    Raises:
        ValueError: If a column is missing, a key occurs twice or is not known.

    Example:
    >>> item = link_tables(
    ...     {"shop": {"id": ["a", "b"], "size": [3, 1]}, "till": {"of": ["b", None]}},
    ...     {"shop": "id"},
    ...     {("till", "in", "shop"): "of"},
    ... )
    >>> item["edges"]["till", "in", "shop"]["edge_index"].tolist(), item["nodes"]
    ([[0], [1]], {'shop': {'size': [3, 1]}, 'till': 2})
    """
    mapping("nodes", nodes)
    mapping("keys", keys)
    instance("edges", edges, Mapping, "a dict with (source, relation, target) as keys")
    tables = {name: _columns(f"nodes[{name!r}]", t) for name, t in nodes.items()}
    numbers = {}
    for name, column in keys.items():
        _check_set("keys", name, tables)
        values = _column(f"nodes[{name!r}]", tables[name], column)
        numbers[name] = {value: row for row, value in enumerate(values)}
        if len(numbers[name]) < len(values):
            twice = next(v for v in values if values.count(v) > 1)
            raise ValueError(
                f"Expected each key of {name!r} once in the column {column!r}. "
                f"Received: {shown(twice)} twice. Choose the column that names rows."
            )
    used = {name: {column} for name, column in keys.items()}
    linked = {}
    for key, value in edges.items():
        if not isinstance(key, tuple) or len(key) != 3:
            refuse("edges", "keys (source set, relation, target set)", key)
        what, (source, _, target) = f"edges[{key!r}]", key
        for name in (source, target):
            _check_set(what, name, tables)
        features: dict[str, list] = {}
        if isinstance(value, str):
            targets = _column(f"nodes[{source!r}]", tables[source], value)
            sources = list(range(len(targets)))
            used.setdefault(source, set()).add(value)
        else:
            if not isinstance(value, tuple) or len(value) != 3:
                expected = "a column, or (table, column of the source, of the target)"
                refuse(what, expected, value)
            table = _columns(what, value[0])
            ends = [_column(what, table, column) for column in value[1:]]
            sources = _rows(what, source, ends[0], numbers)
            targets = ends[1]
            features = {k: v for k, v in table.items() if k not in value[1:]}
        targets = _rows(what, target, targets, numbers)
        pairs = zip(sources, targets, strict=True)
        joined = [k for k, pair in enumerate(pairs) if None not in pair]
        linked[key] = {
            "edge_index": np.array(
                [[sources[k] for k in joined], [targets[k] for k in joined]], np.int64
            ),
            **{name: [values[k] for k in joined] for name, values in features.items()},
        }
    features_of = {}
    for name, table in tables.items():
        columns = {k: v for k, v in table.items() if k not in used.get(name, ())}
        features_of[name] = columns or max((len(v) for v in table.values()), default=0)
    return {"nodes": features_of, "edges": linked}


def _columns(what: str, table: Any) -> dict[str, list]:
    """Return the columns of a table as lists."""
    if hasattr(table, "columns") and hasattr(table, "iloc"):
        names = [str(name) for name in table.columns]
        if len({*names}) < len(names):
            refuse(what, "a data frame with each column once", names)
        return {str(name): table[name].tolist() for name in table.columns}
    instance(what, table, Mapping, "a data frame, or a dict of columns")
    columns = {name: list(values) for name, values in table.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        refuse(what, "columns of one length", lengths)
    return columns


def _column(what: str, table: Mapping[str, list], name: str) -> list:
    if name not in table:
        raise ValueError(
            f"Expected a column {name!r} in {what}. Received: columns {sorted(table)}."
        )
    return table[name]


def _check_set(what: str, name: str, tables: Mapping) -> None:
    if name not in tables:
        refuse(what, f"node sets of {sorted(tables)}", name)


def _rows(what: str, name: str, values: list, numbers: Mapping) -> list[int | None]:
    """Return the row of each key, None where it is missing."""
    if name not in numbers:
        raise ValueError(
            f"Expected `keys` to name the key column of {name!r}, to which {what} "
            f"refers. Received: keys of {sorted(numbers)}."
        )
    rows = []
    for value in values:
        # NaN, None and NA of pandas.
        is_na = value is None or type(value).__name__ == "NAType"
        missing = is_na or value != value
        if not missing and value not in numbers[name]:
            raise ValueError(
                f"Expected keys of {name!r} in {what}. Received: {shown(value)}, which "
                "no row of that table has. Remove such rows first."
            )
        rows.append(None if missing else numbers[name][value])
    return rows
