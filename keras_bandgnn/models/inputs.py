"""`Inputs`: the argument `x` of a task's methods, classified once.

`fit`, `evaluate`, `predict`, `loader` and their callers (`embed`, `explain`, ensembles,
posteriors) begin with `read_inputs` or `read_graphs`, and pass an `Inputs` on, which
both return unchanged.
"""

import dataclasses
import itertools
import numbers
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from keras_bandgnn import compat
from keras_bandgnn.checks import refuse, shown
from keras_bandgnn.graph import Graph
from keras_bandgnn.layers.batch_layer import is_symbolic
from keras_bandgnn.preprocessing.encoding.graph_encoder import (
    Encoded,
    accepting,
    encoder_for,
    is_raw,
    refuse_beside_graphs,
)
from keras_bandgnn.preprocessing.encoding.raw_items import (
    first_item,
    is_table,
    raw_items,
)
from keras_bandgnn.preprocessing.encoding.vocabulary import is_missing
from keras_bandgnn.preprocessing.graph_layer import is_graph, layer_for, only_graphs
from keras_bandgnn.preprocessing.loading.loader import Loader

# Kinds of inputs.
LOADER, GRAPHS, ITEMS, BATCHES = "loader", "graphs", "items", "batches"

# Raw items that are graphs at the same time.
_ITEMS_AT_ONCE = 1 << 16
_CONVERTERS = {"jraph": "from_jraph", "scipy": "from_scipy"}
_NOTHING = object()
# Libraries whose collections Keras takes as batches, beside torch's DataLoader.
_OF_BATCHES = ("grain", "keras", "keras_bandgnn", "tensorflow")
_SYMBOLIC = (
    "Take the inputs of a loader: inputs = task.loader(graphs).inputs(); outputs = "
    "task(inputs)."
)


@dataclasses.dataclass(frozen=True, eq=False)
class Inputs:
    """The argument `x` of a task's method, and its graphs.

    Row k of the arguments and results of tasks belongs to item k, also if an encoder
    skips other items.

    Attributes:
        kind: `"loader"`; `"graphs"`; `"items"`, raw data that an encoder converts; or
            `"batches"`, data of Keras.
        data: The loader; the graphs, in a form that `GraphPreprocessor.loader` takes,
            or None if no item could be converted; the items; or the data.
        source: The argument of the caller. Labels may name columns of a data frame.
        items: Sequence of raw items, also after conversion; None for graphs.
        positions: The item of each graph, int64 [n]; None for item k of graph k.
    """

    kind: str
    data: Any
    source: Any = None
    items: Any = None
    positions: np.ndarray | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether there are no graphs."""
        return self.data is None or (
            isinstance(self.data, list | tuple) and not self.data
        )

    def with_graphs(self, graphs) -> "Inputs":
        """Return the same inputs with their graphs replaced."""
        if graphs is self.data:
            return self
        return dataclasses.replace(self, kind=GRAPHS, data=graphs)

    def count(self, graphs: int) -> int:
        """Return the number of items, from the number of graphs."""
        return graphs if self.positions is None else len(self.items)

    def number(self, graph: int) -> int:
        """Return the index of the item of a graph."""
        return graph if self.positions is None else int(self.positions[graph])

    def parts(self) -> Iterator[tuple[int, "Inputs"]]:
        """Yield parts, and the position of their first items, to be converted in turn.

        Data that are no raw items are one part.
        """
        if self.kind != ITEMS:
            yield 0, self
            return
        for first in range(0, len(self.items), _ITEMS_AT_ONCE):
            items = self.items[first : first + _ITEMS_AT_ONCE]
            yield first, dataclasses.replace(self, data=items, items=items)

    def spread(self, rows: list) -> list:
        """Return rows of items from rows of graphs; None for skipped items."""
        if self.positions is None:
            return rows
        out: list = [None] * len(self.items)
        for position, row in zip(self.positions.tolist(), rows, strict=True):
            out[position] = row
        return out


def read_inputs(name: str, x: Any) -> Inputs:
    """Classify `x` as a loader, graphs, raw items or data of Keras.

    Args:
        name: Name of the argument.
        x: Graphs, raw data, a loader, data of Keras; or `Inputs`.

    Raises:
        ValueError: For graphs of another library, and data that Keras cannot take.
    """
    if isinstance(x, Inputs):
        return x
    if isinstance(x, Loader):
        return Inputs(LOADER, x, x)
    if only_graphs(x):
        return Inputs(GRAPHS, x, x)
    if isinstance(x, compat.DirectBatches):
        return Inputs(BATCHES, x, x)
    if isinstance(x, keras.utils.PyDataset):
        if not type(x).__module__.startswith("keras_bandgnn."):
            _check_yielded(name, x, x[0])
        return Inputs(BATCHES, x, x)
    if is_symbolic(x):
        refuse(name, "graphs, raw data or batches", x, _SYMBOLIC)
    if isinstance(x, Iterator):
        x = _read_iterator(name, x)
    if isinstance(x, Graph) or layer_for(x) is not None:
        return Inputs(GRAPHS, [x], x)
    if hasattr(x, "to_data_list") and hasattr(x, "ptr"):
        refuse(name, "a list of graphs", x, f"Pass {name}.to_data_list().")
    if _is_collection(x) and first_item(x) is not x:
        # As Python does, but data sets of torch need not end by themselves.
        sized = hasattr(x, "__getitem__") and hasattr(x, "__len__")
        x = [x[i] for i in range(len(x))] if sized else list(x)
    if isinstance(x, Mapping) and {"nodes", "edges"} <= x.keys():
        # A graph of node sets by itself.
        x = [x]
    if is_raw(x):
        items = raw_items(x)
        return Inputs(ITEMS, items, x, items)
    if is_table(x) or hasattr(x, "tolist") and np.ndim(x) == 1:
        x = x if len(x) else []
    if getattr(getattr(x, "dtype", None), "kind", None) == "O":
        # An array of NumPy or a series of pandas with graphs.
        x = x.tolist()
    _refuse_foreign(x)
    if is_graphs(x):
        return Inputs(GRAPHS, x, x)
    dataset = getattr(x, "dataset", None)
    if hasattr(dataset, "__getitem__") and is_graph(dataset[0]):
        # A DataLoader of torch.
        refuse(name, "graphs", x, f"Pass {name}.dataset: tasks batch graphs.")
    _check_arrays(name, x)
    return Inputs(BATCHES, x, x)


def _refuse_foreign(x: Any) -> None:
    """Refuse graphs of libraries from which there is a converter."""
    sample = x[0] if isinstance(x, list | tuple) and x else x
    library = type(sample).__module__.partition(".")[0]
    if library in _CONVERTERS:
        raise ValueError(
            "Expected graphs of keras_bandgnn. Received: "
            f"{type(sample).__module__}.{type(sample).__name__}. Convert each with "
            f"keras_bandgnn.data.{_CONVERTERS[library]}."
        )


def read_validation(data: Any) -> tuple[Inputs, tuple]:
    """Return the inputs of `validation_data`, and their labels and weights.

    Args:
        data: As for `read_inputs`, or a tuple (x, y) or (x, y, sample_weight).
    """
    name = "validation_data"
    if isinstance(data, tuple) and len(data) in (2, 3):
        x, y = data[:2]
        batch = isinstance(x, Mapping) and "edge_index" not in x
        if not batch and not (is_graph(x) and is_graph(y)):
            inputs = read_inputs(name, x)
            if inputs.kind != BATCHES:
                return inputs, data[1:]
    return read_inputs(name, data), ()


def read_graphs(
    task,
    name: str,
    x: Any,
    adapt: bool = False,
    required: bool = False,
    first: int = 0,
) -> Inputs:
    """Return inputs with raw items converted to graphs.

    Args:
        task: The task. If its preprocessor has no encoder, one is added.
        name: See `read_inputs`.
        x: See `read_inputs`.
        adapt: Whether an encoder learns from the data.
        required: Whether to raise a ValueError if no item could be converted.
        first: Position of the first item, in errors.
    """
    inputs = read_inputs(name, x)
    if inputs.kind != ITEMS:
        return inputs
    encoded = _encode(task, inputs.items, adapt, first)
    if required:
        encoded.require_graphs()
    return dataclasses.replace(
        inputs, kind=GRAPHS, data=encoded.graphs, positions=encoded.positions
    )


def _encode(task, items, adapt: bool, first: int) -> Encoded:
    """Convert raw items with the preprocessor's encoder."""
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
    if task.preprocessor is None or task.preprocessor.encoder is None:
        _check_edge_sets(task.backbone, encoder)
    if task.preprocessor is not None and task.preprocessor.encoder is None:
        _check_names(task.backbone, encoder)
    encoded = encoder.encode(items, first=first)
    if encoded.graphs is None:
        return encoded
    if task.preprocessor is None:
        task.preprocessor = task.default_preprocessor(encoded.graphs)
    if task.preprocessor.encoder is None:
        task.preprocessor.add_encoder(encoder)
    elif len(task.preprocessor.graph_layers) == 1:
        # A preprocessor with only an encoder gets the default layers, too.
        layers = task.backbone.default_layers(encoded.graphs)
        task.preprocessor.graph_layers = [encoder, *layers]
    if len(task.preprocessor.graph_layers) == 1:
        # Checked before types of edges: wrong features are the more likely mistake.
        task.backbone.check(encoded.graphs)
    if task.output_level == "edge":
        # Separate graphs, as a `FlatGraphs` sorts edges by receiver, but labels and
        # predictions are in the order of the items' edges.
        graphs = [encoder(items[i]) for i in encoded.positions]
        encoded = encoded._replace(graphs=graphs)
    return encoded


def _check_edge_sets(backbone, encoder) -> None:
    """Raise a ValueError if a new encoder has other edge sets than a backbone."""
    types = backbone.num_edge_types
    alike = (0, None, encoder.num_edge_types)
    if getattr(encoder, "edge_sets", None) and types not in alike:
        raise ValueError(
            f"Expected {types} edge sets, as the backbone's num_edge_types. Received: "
            f"{encoder.num_edge_types}, of an encoder that the task made itself. Put "
            "yours into it: GraphPreprocessor([NodeSetEncoder(reverse=True).adapt("
            "items)])."
        )


def _check_names(backbone, encoder) -> None:
    """Raise a ValueError if a backbone reads no feature of an encoder."""
    read = (backbone.features_read() or {}).get("node")
    features = tuple(encoder.inputs())
    if read and not set(read).intersection(features):
        name = type(encoder).__name__
        raise ValueError(
            f"Expected graphs with the node features {sorted(read)}, which the "
            f"backbone reads; the task has no encoder for raw data. Received: items "
            f"that {name} converts to graphs with {sorted(features)}. Convert the "
            "items to graphs with those features (the card of a preset says how), or "
            "put an encoder of those into the task: GraphPreprocessor([encoder])."
        )


def is_graphs(data: Any) -> bool:
    """Return whether data are graphs, which tasks batch themselves."""
    if isinstance(data, Graph | Loader) or hasattr(data, "shards"):
        return True
    if isinstance(data, list | tuple):
        return not data or is_graph(data[0])
    return hasattr(data, "node_ptr")


def _is_collection(data: Any) -> bool:
    """Return whether data are items in a collection that Keras does not take."""
    if isinstance(data, list | tuple | Mapping | str | bytes | Iterator):
        return False
    if is_graphs(data) or hasattr(data, "shape"):
        return False
    for cls in type(data).__mro__:
        if cls.__module__.partition(".")[0] in _OF_BATCHES:
            return False
        if cls.__name__ == "DataLoader":
            return False
    sized = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    return sized or isinstance(data, Iterable)


def _read_iterator(name: str, data: Iterator) -> Any:
    """Return graphs or raw items of an iterator as a list, batches as a generator."""
    first = next(data, _NOTHING)
    if first is _NOTHING:
        return []
    if is_missing(first) or is_graph(first) or accepting(first) is not None:
        return [first, *data]
    _check_yielded(name, data, first)
    # A generator expression, because Keras recognises generators by type.
    return (batch for batch in itertools.chain([first], data))


def _check_yielded(name: str, data: Any, first: Any) -> None:
    """Raise a ValueError for an iterator or a data set whose items are no batches.

    Args:
        name: The argument.
        data: Its value.
        first: The first item.
    """
    x = first[0] if isinstance(first, tuple) and first else first
    is_item = is_graph(x) or accepting(x) is not None
    if isinstance(x, Mapping) and not is_item:
        return
    advice = (
        "Pass all graphs in one list, of which the task makes batches, and their "
        "labels as `y`; or yield batches, such as task.loader(graphs)[0]."
    )
    if is_item:
        advice = (
            "Pass labels of their own: x = [x for x, y in pairs], y = [y for x, y in "
            "pairs]."
        )
    raise ValueError(
        f"Expected `{name}` to yield graphs, raw items or batches of a loader. "
        f"Received: a {type(data).__name__} that yields {shown(first)}. {advice}"
    )


def _check_arrays(name: str, data: Any) -> None:
    """Raise a ValueError for data that are neither graphs nor for Keras."""
    expected = "graphs, raw data that an encoder converts, or data that Keras takes"
    advice = "See keras_bandgnn.Graph and keras_bandgnn.preprocessing.SmilesEncoder."
    # Models read a dict of arrays.
    no_batch = f"Arrays alone are no batch of graphs. {advice}"
    if isinstance(data, list | tuple | Mapping):
        leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None]
        if isinstance(data, tuple) and data and is_graphs(data[0]):
            # A pair (graphs, labels), as one may pass arrays.
            advice = f"Pass them one by one: {name}=graphs, y=labels."
        if not leaves or not all(hasattr(leaf, "shape") for leaf in leaves):
            if isinstance(data, Mapping) and accepting(data) is not None:
                advice = f"Pass a row in a list: [{name}]."
            refuse(name, expected, data, advice)
        values = [data] if isinstance(data, Mapping) else data
        if not any(isinstance(value, Mapping) for value in values):
            refuse(name, expected, data, no_batch)
    elif data is None or isinstance(data, numbers.Number | str | bytes | os.PathLike):
        refuse(name, expected, data, advice)
    elif hasattr(data, "shape") and hasattr(data, "dtype"):
        refuse(name, expected, data, no_batch)


def check_batch(x: Any, method: str, class_weight: Any = None) -> None:
    """Raise a ValueError for graphs, or class weights, if Keras expects a batch.

    Args:
        x: First argument of the method.
        method: Name of the method; empty for a call of the model.
        class_weight: The argument `class_weight`.
    """
    if is_graphs(x):
        call = f"task.{method}(x)" if method else "model(x)"
        raise ValueError(
            "Expected a batch. Received: graphs. Write x, y, weight = "
            f"task.loader(graphs)[0], then task.{method}(x, y, weight)."
            if method in ("train_on_batch", "test_on_batch")
            else "Expected a batch. Received: graphs. Write task.predict(graphs), or "
            f"x, *_ = task.loader(graphs)[0], then {call}."
        )
    other = isinstance(x, Mapping) and "node" not in x and is_symbolic(x)
    if other or hasattr(x, "shape"):
        advice = "Take one of task.loader(graphs)."
        if is_symbolic(x):
            advice = _SYMBOLIC
        refuse("batch", "a batch of a loader, a dict of arrays", x, advice)
    if class_weight is not None:
        raise ValueError(
            "Expected no class_weight, which Keras cannot apply to padded labels. "
            f"Received: class_weight={class_weight!r}. Pass it to fit, or multiply the "
            "weights of the batch."
        )
