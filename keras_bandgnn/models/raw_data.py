"""Raw data, and labels beside graphs, as tasks are given them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from keras_bandgnn.checks import optional
from keras_bandgnn.graph import Graph
from keras_bandgnn.models.graph_arguments import is_graphs, resolve_data
from keras_bandgnn.preprocessing.encoding.graph_encoder import (
    encoder_for,
    first_item,
    is_raw,
    raw_items,
    refuse_beside_graphs,
)


class Items(NamedTuple):
    """What a caller passed, and the graphs that it became.

    Row k of what methods of tasks take and return is that of item k, also where an
    encoder skips other items.

    Attributes:
        source: What the caller passed, raw data in a list.
        graphs: Graphs in a form that `GraphModel.loader` takes; None if there are none.
        positions: The item of each graph, int64 [n]; None for item k of graph k.
    """

    source: Any
    graphs: Any
    positions: np.ndarray | None = None

    def count(self, graphs: int) -> int:
        """Return the number of items, with that of the graphs."""
        return graphs if self.positions is None else len(self.source)

    def number(self, graph: int) -> int:
        """Return the item of a graph."""
        return graph if self.positions is None else int(self.positions[graph])

    def spread(self, rows: list) -> list:
        """Return rows of the items from those of the graphs, None where skipped."""
        if self.positions is None:
            return rows
        out: list = [None] * len(self.source)
        for position, row in zip(self.positions.tolist(), rows, strict=True):
            out[position] = row
        return out


def as_items(task, name: str, x, required: bool = False) -> Items:
    """Return graphs or raw data of a caller, converted if they are raw.

    Args:
        task: The task, whose encoder is adapted.
        name: Name of the argument, for errors.
        x: Graphs or raw data.
        required: Whether to raise a ValueError if no item could be converted.
    """
    x = resolve_data(name, x)
    if is_raw(x):
        items = raw_items(x)
        _, encoded = encode(task, items, adapt=False)
        if required:
            encoded.refuse_nothing()
        return Items(items, encoded.graphs, encoded.positions)
    empty = isinstance(x, list | tuple) and not x
    return Items(x, None if empty else x)


def labelled_items(task, name: str, x, y=None) -> tuple:
    """Return the items of a caller, and the labels of those that became graphs.

    Args:
        task: The task, whose encoder is adapted.
        name: Name of the argument, for errors.
        x: Graphs or raw data, a list if they come from a generator.
        y: Labels of all items, as for `fit`; None if graphs hold them.
    """
    from keras_bandgnn.models.labelled_graphs import (
        check_index,
        columns_of,
        graphs_for_labels,
        rows_of,
    )

    y = list(y) if isinstance(y, Iterator) else y
    check_index("y", x, y)
    items = as_items(task, name, x, required=True)
    if items.positions is not None:
        positions, count = items.positions, len(items.source)
        graphs, _ = graphs_for_labels(name, items.graphs)
        level = task.output_level
        y = rows_of("y", columns_of(x, y), positions, count, graphs, level)
    return items, y


def encode(task, items, adapt: bool) -> tuple:
    """Return the preprocessor's encoder, added if it has none, and the graphs.

    Args:
        task: The task.
        items: Raw data, see `raw_items`.
        adapt: Whether an encoder learns from the data.
    """
    encoder = None if task.preprocessor is None else task.preprocessor.encoder
    if encoder is None:
        item = first_item(items)
        refuse_beside_graphs(items, item)
        encoder = encoder_for(item)
    if adapt and not encoder.is_adapted:
        encoder.adapt(items)
    if not encoder.is_adapted:
        name = type(encoder).__name__
        raise ValueError(
            f"Expected a preprocessor with an adapted {name}. Received: a task "
            "that has seen no data (weights alone do not hold an encoder). Create "
            f"the task with GraphPreprocessor([{name}().adapt(items)]), fit it, or "
            "load a preset."
        )
    if task.preprocessor is not None and task.preprocessor.encoder is None:
        _check_names(task.backbone, encoder)
    encoded = encoder.encode(items)
    if encoded.graphs is None:
        return encoder, encoded
    if task.preprocessor is None:
        task.preprocessor = task.default_preprocessor(encoded.graphs)
    if task.preprocessor.encoder is None:
        task.preprocessor.add_encoder(encoder)
    elif len(task.preprocessor.graph_layers) == 1:
        # With options for the encoder alone, the rest is as without any.
        layers = task.backbone.default_layers(encoded.graphs)
        task.preprocessor.graph_layers = [encoder, *layers]
    if len(task.preprocessor.graph_layers) == 1:
        # Before types of edges: inputs of other data are the likelier mistake.
        task.backbone.check(encoded.graphs)
    if task.output_level == "edge":
        # One by one, as a `FlatGraphs` sorts edges by receiver: labels and
        # predictions are in the order of the items' edges.
        graphs = [encoder(items[i]) for i in encoded.positions]
        encoded = encoded._replace(graphs=graphs)
    return encoder, encoded


def _check_names(backbone, encoder) -> None:
    """Raise a ValueError if a backbone reads nothing that an encoder gives."""
    read = (backbone.features_read() or {}).get("node")
    given = tuple(encoder.inputs())
    if read and not set(read).intersection(given):
        name = type(encoder).__name__
        raise ValueError(
            f"Expected graphs with the node features {sorted(read)}, which the "
            f"backbone reads; the task has no encoder for raw data. Received: items "
            f"that {name} converts to graphs with {sorted(given)}. Convert the items "
            "to graphs with those features (the card of a preset says how), or put an "
            "encoder of those into the task: GraphPreprocessor([encoder])."
        )


def labelled(
    task,
    name: str,
    x,
    y=None,
    sample_weight=None,
    class_weight=None,
    split: float | None = None,
    adapt: bool = False,
) -> tuple:
    """Return graphs with labels and weights, and those to validate on or None.

    Args:
        task: The task.
        name: Name of the argument, for errors.
        x: Graphs or raw data.
        y: Labels, see `with_labels`; names of columns of a data frame.
        sample_weight: See `with_sample_weights`.
        class_weight: See `with_class_weights`.
        split: Share to validate on, see `split_off`.
        adapt: Whether an encoder learns from the data.
    """
    from keras_bandgnn.models.labelled_graphs import (
        check_index,
        class_numbers,
        columns_of,
        graphs_for_labels,
        rows_of,
        same_to_model,
        split_off,
        with_class_weights,
        with_labels,
        with_sample_weights,
    )

    y = list(y) if isinstance(y, Iterator) else y
    check_index("y", x, y)
    check_index("sample_weight", x, sample_weight)
    options = (y, sample_weight, class_weight, split)
    if not is_raw(x) and all(option is None for option in options):
        return x, None
    encoder = groups = order = None
    if is_raw(x):
        y, sample_weight = columns_of(x, y), columns_of(x, sample_weight)
        items = raw_items(x)
        encoder, encoded = encode(task, items, adapt)
        encoded.refuse_nothing()
        graphs, count = encoded.graphs, len(items)
        if task.output_level == "edge":
            graphs, order = graphs_for_labels(name, graphs)
        rows = (encoded.positions, count, graphs, task.output_level)
        y = rows_of("y", y, *rows)
        sample_weight = rows_of("sample_weight", sample_weight, *rows)
        if split is not None:
            # Graphs are compared as the model sees them.
            groups = [
                b"%d" % i if isinstance(items[i], Graph) else encoder.group(items[i])
                for i in encoded.positions
            ]
    else:
        graphs, order = graphs_for_labels(name, x)
    if y is not None:
        level = "graph" if task.output_level == "candidate" else task.output_level
        names = getattr(task, "class_names", None)
        graphs = with_labels(graphs, class_numbers(y, names), level, order)
    valid = None
    if sample_weight is not None:
        graphs = with_sample_weights(graphs, sample_weight, order)
    if split is not None:
        if task.preprocessor is not None:
            # As the model sees them; they are not transformed again.
            graphs = task.preprocessor.transform(graphs)
        groups = same_to_model(task, graphs, encoder, groups)
        graphs, valid = split_off(graphs, split, groups)
    if class_weight is not None:
        num_classes = None if task.labels is None else task.labels.num_classes
        names = getattr(task, "class_names", None)
        graphs = with_class_weights(graphs, class_weight, num_classes, names)
    return graphs, valid


def validation_graphs(task, data):
    """Return validation graphs with their labels; other data as it is.

    Args:
        task: The task.
        data: The argument `validation_data` of `fit`.
    """
    if isinstance(data, tuple) and len(data) in (2, 3):
        x = data[0]
        if isinstance(x, Graph) and not isinstance(data[1], Graph):
            x = [x]
        if not isinstance(x, Graph) and (is_graphs(x) or is_raw(x)):
            return task.labelled("validation_data", x, *data[1:])[0]
    if is_raw(data):
        return task.labelled("validation_data", data)[0]
    return optional(resolve_data, "validation_data", data)
