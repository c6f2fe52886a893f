"""What `fit`, `evaluate` and `predict` of a task are given: graphs, or arrays."""

import itertools
import numbers
import os
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_bandgnn.checks import boolean, one_of, positive_int, refuse
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.encoding.graph_encoder import (
    accepting,
    is_raw,
    is_table,
)
from keras_bandgnn.preprocessing.graph_layer import is_graph, layer_for
from keras_bandgnn.preprocessing.loading.loader import Loader

_CONVERTERS = {"jraph": "from_jraph", "scipy": "from_scipy"}
_BATCHES = (
    "Batches are those of the preprocessor, and all of them. Set the batcher's size "
    "or budget: GraphPreprocessor([], StaticBatcher(32)), DynamicBatcher(32)."
)
_MASKS = (
    "Masks choose nodes of NodeClassifier and NodeRegressor, and edges of "
    "EdgeClassifier and EdgeRegressor. Of graphs pass those to train on, such as "
    "graphs[:n]."
)
# True and False are 1 and 0.
VERBOSE = ("auto", 0, 1, 2)
_NOTHING = object()
_REFUSED = {
    "batch_size": _BATCHES,
    "steps_per_epoch": _BATCHES,
    "steps": "Pass fewer graphs: graphs[:n].",
    "validation_batch_size": _BATCHES,
    "validation_steps": "Pass fewer graphs: validation_data=graphs[:n].",
    "mask": _MASKS,
    "validation_mask": _MASKS,
}


def is_graphs(data) -> bool:
    """Return whether data is graphs, which tasks batch themselves."""
    if isinstance(data, Graph | Loader) or hasattr(data, "shards"):
        return True
    if isinstance(data, list | tuple):
        return not data or is_graph(data[0])
    return hasattr(data, "node_ptr")


def resolve_data(name: str, data):
    """Data as it is; one graph, or what a generator yields of graphs, in a list.

    Args:
        name: The argument of the task that it was given as.
        data: Graphs, or what Keras takes.

    Raises:
        ValueError: For graphs of another library, and for what Keras cannot take.
    """
    if isinstance(data, types.GeneratorType):
        first = next(data, _NOTHING)
        if first is _NOTHING:
            return []
        if is_graph(first) or accepting(first) is not None:
            return [first, *data]
        if isinstance(first, tuple) and first and accepting(first[0]) is not None:
            refuse(
                name,
                "graphs or raw items",
                first,
                "Pass labels of their own: x = [x for x, y in pairs], y = [y for ...].",
            )
        return _again(first, data)
    if layer_for(data) is not None:
        return [data]
    if hasattr(data, "to_data_list") and hasattr(data, "ptr"):
        refuse(name, "a list of graphs", data, f"Pass {name}.to_data_list().")
    if is_raw(data):
        return data
    if is_table(data) or hasattr(data, "tolist") and np.ndim(data) == 1:
        if not len(data):
            return []
    sample = data[0] if isinstance(data, list | tuple) and data else data
    library = type(sample).__module__.partition(".")[0]
    if library in _CONVERTERS:
        raise ValueError(
            "Expected graphs of keras_bandgnn. Received: "
            f"{type(sample).__module__}.{type(sample).__name__}. Convert each with "
            f"keras_bandgnn.data.{_CONVERTERS[library]}."
        )
    if not is_graphs(data):
        _check_arrays(name, data)
    return data


def _check_arrays(name: str, data) -> None:
    """Refuse what is neither graphs nor data of Keras."""
    expected = "graphs, raw data that an encoder converts, or data that Keras takes"
    advice = "See keras_bandgnn.Graph and keras_bandgnn.preprocessing.SmilesEncoder."
    # What models read is a dict of arrays.
    no_batch = f"Arrays alone are no batch of graphs. {advice}"
    if isinstance(data, list | tuple | Mapping):
        leaves = [leaf for leaf in _leaves(data) if leaf is not None]
        if isinstance(data, tuple) and data and is_graphs(data[0]):
            # The pair (graphs, labels), as of arrays.
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


def _leaves(data) -> Iterator:
    values = data.values() if isinstance(data, Mapping) else data
    for value in values:
        if isinstance(value, list | tuple | Mapping):
            yield from _leaves(value)
        else:
            yield value


def _again(first, rest: Iterator) -> Iterator:
    # Keras tells generators from other data by their type.
    yield from itertools.chain([first], rest)


def options_for_graphs(
    args: Sequence, names: Sequence[str], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Options of Keras' methods by name, those that graphs can have.

    Args:
        args: Options by position.
        names: Their names.
        options: Options by name.

    Raises:
        TypeError: For more positions than names.
        ValueError: For what has no meaning for graphs, and for wrong options.
    """
    if len(args) > len(names):
        raise TypeError(
            f"Expected at most {len(names)} options by position with graphs: "
            f"{', '.join(names)}. Received: {len(args)}. Pass the others by name."
        )
    options = {**options, **dict(zip(names, args, strict=False))}
    for name, advice in _REFUSED.items():
        value = options.pop(name, None)
        if value is not None:
            raise ValueError(
                f"Expected graphs without {name}. Received: {name}={value!r}. {advice}"
            )
    if options.get("epochs") is not None:
        positive_int("epochs", options["epochs"], 0)
    if options.get("initial_epoch") is not None:
        positive_int("initial_epoch", options["initial_epoch"], 0)
    if options.get("shuffle") is not None:
        boolean("shuffle", options["shuffle"])
    if "verbose" in options:
        one_of("verbose", options["verbose"], VERBOSE)
    check_callbacks(options.get("callbacks"))
    return options


def check_batch(x: Any, method: str, class_weight: Any = None) -> None:
    """Raise a ValueError for graphs, or class weights, where Keras takes a batch.

    Args:
        x: What the method was given.
        method: Its name; empty for the model itself, which is called.
        class_weight: Its argument of that name.
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
    if class_weight is not None:
        raise ValueError(
            "Expected no class_weight, which Keras cannot apply to padded labels. "
            f"Received: class_weight={class_weight!r}. Pass it to fit, or multiply the "
            "weights of the batch."
        )


def check_callbacks(callbacks: Any) -> None:
    """Raise a ValueError unless these are callbacks of Keras, or None."""
    kinds = (keras.callbacks.Callback, keras.callbacks.CallbackList)
    listed = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    for callback in listed:
        if not isinstance(callback, kinds) and callbacks is not None:
            refuse("callbacks", "a list of Keras callbacks", callbacks)
