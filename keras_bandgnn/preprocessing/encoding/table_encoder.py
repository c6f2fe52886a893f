"""`TableEncoder`: rows of a table with a column of molecules or graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from keras_bandgnn.checks import instance, optional, string
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.graph import Graph
from keras_bandgnn.host_keras import keras
from keras_bandgnn.preprocessing.encoding.graph_encoder import (
    Encoded,
    GraphEncoder,
    accepting,
    encoder_for,
)
from keras_bandgnn.preprocessing.encoding.vocabulary import (
    attribute_inputs,
    checked_attributes,
    encode_attribute,
    learn_attributes,
    several_categories,
)
from keras_bandgnn.preprocessing.graph_layer import layers_from_config
from keras_bandgnn.registration import class_entry

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Item, LayerOptions

# Names of the arrays of a graph, and of the parts of a batch.
_OF_GRAPHS = {"edge_index", "senders", "node", "edge", "edges"}
# Rows that are converted at once.
_PIECE_ROWS = 512


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class TableEncoder(GraphEncoder):
    """Converts rows of a table, one column of which holds inputs of another encoder.

    Rows are those of a pandas data frame, or dicts. Further columns, such as a solvent
    or a temperature, become a feature of every node of the row's graph, which backbones
    with `inputs` read. Strings, bools and integers of few values are categories, as
    for `NetworkXEncoder`; other numbers are standardized by the mean and the standard
    deviation of the rows that `adapt` saw and could convert.

    Args:
        column: Name of the column with molecules or graphs.
        encoder: The encoder of that column; None for the one that suits the data.
        context: Other columns to read: a list of names, none by default, or the dict
            that `adapt` learnt. Names of node features of the column's graphs are
            refused.
        on_error: See `GraphEncoder`.

    Example:
    >>> from keras_bandgnn.preprocessing import SmilesEncoder
    >>> encoder = TableEncoder("smiles", SmilesEncoder(), context=["solvent"])
    >>> encoder.adapt([{"smiles": "CCO", "solvent": "water"}]).context
    {'solvent': {'category': ['water']}}
    """

    def __init__(
        self,
        column: str,
        encoder: GraphEncoder | Mapping | None = None,
        context: Sequence[str] | Mapping | None = None,
        on_error: str = "raise",
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(on_error, **kwargs)
        self.column = string("column", column)
        if isinstance(encoder, Mapping) and "class_name" in encoder:
            # As in files.
            (encoder,) = layers_from_config([encoder])
        expected = "an encoder, such as SmilesEncoder()"
        self.encoder = optional(instance, "encoder", encoder, GraphEncoder, expected)
        self.context = checked_attributes("context", context)

    @classmethod
    def accepts(cls, item: Item) -> bool:
        """Return whether an item is a row, and not itself a graph or a batch."""
        return isinstance(item, Mapping) and not item.keys() & _OF_GRAPHS

    @classmethod
    def for_item(cls, item: Item) -> TableEncoder:
        """Return an encoder of the only column that can be graphs."""
        fitting = [
            name
            for name, cell in item.items()
            if not isinstance(cell, str | Mapping) and accepting(cell) is not None
        ]
        named = [name for name in item if str(name).lower() == "smiles"]
        columns = fitting or named
        if len(columns) != 1:
            raise ValueError(
                "Expected a table with one column of molecules or graphs, or one named "
                f"'smiles'. Received: columns {sorted(item)}. Name the column: "
                "GraphPreprocessor([TableEncoder('column', SmilesEncoder())])."
            )
        return cls(columns[0])

    def _expected(self) -> str:
        return "a row of a table"

    def _advice(self, item: Any) -> str:
        return "Pass rows as dicts, or a data frame; of one row table.iloc[[0]]."

    @property
    def is_adapted(self) -> bool:
        """Whether the encoder of the column and the other columns are known."""
        has_context = not isinstance(self.context, list)
        return has_context and self.encoder is not None and self.encoder.is_adapted

    @property
    def num_edge_types(self) -> int:
        """P of the encoder of the column."""
        self.require_adapted()
        return self.encoder.num_edge_types

    def learn(self, items: Iterable[Item]) -> None:
        """Learn the columns; see `GraphEncoder.adapt`."""
        rows = [item for item in items if self.accepts(item)]
        cells = [row[self.column] for row in rows if self.column in row]
        if not cells:
            raise ValueError(
                f"Expected a column {self.column!r}. Received: columns "
                f"{sorted(rows[0]) if rows else []}."
            )
        if self.encoder is None:
            self.encoder = encoder_for(cells[0])
        if not self.encoder.is_adapted:
            self.encoder.learn(cells)
        if isinstance(self.context, list):
            graphs = (_graph_of(self.encoder, row.get(self.column)) for row in rows)
            if self.on_error == "skip":
                # Rows that are skipped teach nothing.
                graphs = list(graphs)
                pairs = zip(rows, graphs, strict=True)
                rows = [row for row, graph in pairs if graph is not None] or rows
            graph = next((graph for graph in graphs if graph is not None), None)
            self._refuse_overwriting(self.context, graph.node if graph else ())
            learnt = self._columns(rows)
            whole = [row for row in rows if _is_whole(row, learnt)]
            if self.on_error == "skip" and whole and len(whole) < len(rows):
                learnt = self._columns(whole)
            lacking = [name for name in self.context if name not in learnt]
            if lacking:
                raise ValueError(
                    f"Expected values in the columns {lacking}, named in `context`. "
                    f"Received: columns {sorted(rows[0])}, of which these are missing "
                    "or empty."
                )
            self.context = learnt

    def _columns(self, rows: Sequence[Mapping]) -> dict[str, dict]:
        columns = {name: [row.get(name) for row in rows] for name in self.context}
        return learn_attributes("context", columns, {}, standardize=True)

    def _refuse_overwriting(self, context: Iterable[str], features: Iterable[str]):
        """Raise a ValueError for columns with the name of a feature of the nodes."""
        same = sorted(set(context) & set(features))
        if same:
            raise ValueError(
                f"Expected names in `context` that differ from the node features "
                f"{sorted(features)} of {type(self.encoder).__name__}. Received: the "
                f"columns {same}, which would replace them. Rename the columns."
            )

    def categories(self) -> dict[str, list[str]]:
        """Return the categories of the column's encoder and of the other columns."""
        inner = self.encoder.categories()
        columns = several_categories(self.context or {})
        return {**inner, "node": [*inner.get("node", []), *columns]}

    def encode_item(self, item: Item) -> Graph:
        """Convert a row; see `GraphEncoder`."""
        if self.column not in item:
            raise ValueError(
                f"Expected a column {self.column!r}. Received: columns {sorted(item)}."
            )
        graph = self.encoder.call(item[self.column])
        if not self.context:
            return graph
        self._refuse_overwriting(self.context, graph.node)
        node = dict(graph.node)
        for name, spec in self.context.items():
            if name not in item:
                raise ValueError(
                    f"Expected a column {name!r}, as in training. Received: columns "
                    f"{sorted(item)}."
                )
            value = encode_attribute("context", name, spec, [item[name]])
            node[name] = value.repeat(graph.num_nodes, axis=0)
        return graph.replace(node=node)

    def splits(self, items: Sequence) -> bool:
        """Return what the encoder of the column returns for its cells."""
        rows = [item for item in items if self.accepts(item)]
        return self.encoder.splits([row.get(self.column) for row in rows])

    def pieces(
        self, items: Sequence, first: int, advance: Callable
    ) -> Iterator[Encoded]:
        """Yield the graphs of consecutive rows; see `GraphEncoder`.

        The encoder of the column converts many rows at once, unless a subclass
        converts rows in its own way.
        """
        cls = type(self)
        several = cls.encode_item is TableEncoder.encode_item
        several &= cls.call is GraphEncoder.call and self.encoder is not None
        for start in range(0, len(items), _PIECE_ROWS):
            rows = items[start : start + _PIECE_ROWS]
            piece = self._piece(rows, first + start) if several else None
            if piece is not None:
                advance(len(rows))
                yield piece
                continue
            # Rows with errors, one by one: the messages say what is wrong.
            for piece in super().pieces(rows, first + start, advance):
                yield piece
                if piece.errors and self.on_error == "raise":
                    return

    def _piece(self, rows: Sequence, first: int) -> Encoded | None:
        """Convert rows at once, or return None if one of them cannot be converted."""
        context = self.context or {}
        names = {self.column, *context}
        if not all(self.accepts(row) and row.keys() >= names for row in rows):
            return None
        cells = [row[self.column] for row in rows]
        pieces = list(self.encoder.pieces(cells, first, lambda count: None))
        if any(piece.errors for piece in pieces):
            return None
        graphs = FlatGraphs.concatenate([piece.graphs for piece in pieces])
        self._refuse_overwriting(context, graphs.node)
        columns = graphs.columns()
        for name, spec in context.items():
            try:
                values = [row[name] for row in rows]
                values = encode_attribute("context", name, spec, values)
            except ValueError:
                return None
            if not np.isfinite(values).all():
                return None
            columns[f"node/{name}"] = values.repeat(graphs.num_nodes, axis=0)
        positions = np.arange(first, first + len(rows))
        return Encoded(FlatGraphs.from_columns(columns, graphs.info), positions, {})

    def content(self, item: Item) -> bytes:
        """Return the content of the column, and the other cells as text."""
        if not self.accepts(item) or self.encoder is None:
            return repr(item).encode()
        cells = repr([item.get(name) for name in self.context or ()]).encode()
        return self.encoder.content(item.get(self.column)) + b"\0" + cells

    def group(self, item: Item) -> bytes:
        """Return the key that rows of one molecule share."""
        if not self.accepts(item) or self.encoder is None:
            return self.content(item)
        return self.encoder.group(item.get(self.column))

    def varying(self) -> tuple[str, ...]:
        """Return the other columns, in which rows of one molecule may differ."""
        return tuple(self.context or ())

    def inputs(self) -> dict[str, dict[str, int]]:
        """Return the `inputs` of a backbone."""
        self.require_adapted()
        return {**self.encoder.inputs(), **attribute_inputs(self.context or {})}

    def edge_inputs(self) -> dict[str, dict] | None:
        """Return the `edge_inputs` of a backbone: those of the column's encoder."""
        self.require_adapted()
        return self.encoder.edge_inputs()

    def get_config(self) -> dict:
        """Return the arguments of the constructor, with the results of `adapt`."""
        encoder = self.encoder
        if encoder is not None:
            encoder = class_entry(encoder, encoder.plain_config())
        config = {"column": self.column, "encoder": encoder, "context": self.context}
        return {**super().get_config(), **config}


def _graph_of(encoder: GraphEncoder, cell: Any) -> Graph | None:
    try:
        return encoder.call(cell)
    except ValueError:
        return None


def _is_whole(row: Mapping, context: Mapping[str, Mapping]) -> bool:
    """Return whether a row has all numbers of the other columns."""
    try:
        for name, spec in context.items():
            encode_attribute("context", name, spec, [row.get(name)])
    except ValueError:
        return False
    return True
