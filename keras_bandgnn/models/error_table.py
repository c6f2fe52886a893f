"""Tables of the errors of a task, one row per graph, for `Task.errors`."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from keras_bandgnn.checks import refuse
from keras_bandgnn.data.flat_columns import label_weights
from keras_bandgnn.models.inputs import BATCHES, read_graphs
from keras_bandgnn.optional import optional_import


class LabelledOutput(NamedTuple):
    """The prediction for a graph, and its labels.

    Attributes:
        number: Index of the item, as the caller passed it.
        outputs: Output of the task.
        label: float64, NaN or -1 where missing.
        weight: float64 [n], weights of the labels.
    """

    number: int
    outputs: np.ndarray
    label: np.ndarray
    weight: np.ndarray


def labelled_outputs(task, graphs, y=None) -> Iterator[LabelledOutput]:
    """Yield the outputs and labels of each graph with a prediction.

    Rows of nodes and edges are in the order of the compiled graph, the same in both.

    Args:
        task: The task.
        graphs: Graphs or raw data, in any form that `fit` takes.
        y: Labels; None if graphs hold them.

    Raises:
        ValueError: For graphs without labels, or labels that do not fit.
    """
    inputs = read_graphs(task, "graphs", graphs, required=True)
    if inputs.kind == BATCHES:
        refuse("graphs", "graphs, or raw data that an encoder converts", inputs.data)
    if not inputs.is_empty:
        inputs = inputs.with_graphs(task.labelled("graphs", inputs, y)[0])
    loader = task.loader(inputs, training=False)
    if any(part.label is None for part in loader.parts):
        raise ValueError(
            "Expected `graphs` to have labels. Received: graphs with label=None. Set "
            "Graph(..., label=...), or pass y=labels."
        )
    task.check_labels(loader)
    outputs: list = [None] * int(loader.starts[-1])
    for position, rows in task.outputs(loader, inputs.data):
        outputs[position] = np.asarray(rows)
    outputs = task.distribution.gather(outputs)
    position = 0
    for part in loader.parts:
        pointer = {"node": part.node_ptr, "edge": part.edge_ptr}.get(part.label_level)
        if pointer is None:
            pointer = np.arange(len(part) + 1)
        weights = label_weights(part)
        for low, high in zip(pointer[:-1], pointer[1:], strict=True):
            if outputs[position] is not None:
                label = np.asarray(part.label[low:high], np.float64)
                number = inputs.number(position)
                yield LabelledOutput(
                    number, outputs[position], label, weights[low:high]
                )
            position += 1


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return the log probabilities of classes, float64 [..., C]."""
    logits = np.asarray(logits, np.float64)
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def map_outputs(function: Callable, outputs):
    """Apply a function to the outputs of a batch, or of each graph in a list.

    Args:
        function: Function of an array.
        outputs: Result of `predict`, with None for graphs that the batcher drops.
    """
    if not isinstance(outputs, list):
        return function(outputs)
    return [None if rows is None else function(rows) for rows in outputs]


def as_table(names: Sequence[str], rows: Sequence[tuple], as_frame: bool):
    """Return rows as columns by name.

    Args:
        names: Names of the columns.
        rows: The rows, each as long as `names`.
        as_frame: Whether to return a `pandas.DataFrame`.
    """
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    table = {
        name: np.array(values, object if _is_text(values) else None)
        for name, values in zip(names, columns, strict=True)
    }
    if as_frame:
        return optional_import("pandas", "pandas").DataFrame(table)
    return table


def _is_text(values: Sequence) -> bool:
    return any(isinstance(value, str) for value in values)
