"""Elements of data sets as graphs: dictionaries and objects of torch_geometric."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from keras_bandgnn.data.converters.attributes import (
    as_numpy,
    graph_of,
    levels_of,
    sized,
)
from keras_bandgnn.data.converters.pyg import pyg_values
from keras_bandgnn.graph import Graph

SAMPLE = 64
"""Elements that show which attribute belongs to nodes, edges or graphs."""

_FIELDS = tuple(inspect.signature(Graph).parameters)


def conversion(head: Sequence) -> Callable[[Any], Graph]:
    """Returns the function that makes graphs of elements.

    Args:
        head: The first elements: one, or `SAMPLE` if they have attributes.

    Example:
    >>> fields = {"num_nodes": 2, "senders": [0], "receivers": [1]}
    >>> conversion([fields])(fields)
    Graph(num_nodes=2, num_edges=1)
    """
    if not head or not has_attributes(head[0]):
        return _as_graph
    levels = levels_of([numbered(i, _read, element) for i, element in enumerate(head)])
    return lambda element: graph_of(_read(element), levels)


def numbered(number: int, convert: Callable, element: Any) -> Any:
    """Converts an element unless it is a graph; errors name its number."""
    if isinstance(element, Graph):
        return element
    try:
        return convert(element)
    except ValueError as error:
        raise ValueError(f"Element {number} of the source: {error}") from error


def has_attributes(element: Any) -> bool:
    """Whether an element has the attributes of torch_geometric."""
    if isinstance(element, Mapping):
        return "edge_index" in element
    return hasattr(element, "edge_index") or hasattr(element, "to_homogeneous")


def _read(element: Any) -> dict[str, Any]:
    if not has_attributes(element):
        _unknown(element)
    return sized(element) if isinstance(element, Mapping) else pyg_values(element)


def _as_graph(element: Any) -> Graph:
    """Makes a graph of a dictionary of the arguments of `Graph`."""
    if not isinstance(element, Mapping):
        _unknown(element)
    fields = {k: _plain(k, v) for k, v in element.items() if v is not None}
    missing = {"num_nodes", "senders", "receivers"} - fields.keys()
    if missing or fields.keys() - set(_FIELDS):
        raise ValueError(
            f"Expected a dictionary of Graph's arguments: {', '.join(_FIELDS)}. "
            f"Received: the keys {sorted(fields)}. Map the elements to these keys."
        )
    for name in {"num_nodes", "slot"} & fields.keys():
        if np.shape(fields[name]):
            raise ValueError(
                f"Expected `{name}` to be one integer. Received: shape "
                f"{np.shape(fields[name])}. If the source is batched, leave out "
                ".batch(), or use .unbatch()."
            )
        fields[name] = np.asarray(fields[name])[()]
    return Graph(**fields)


def _plain(name: str, value: Any) -> Any:
    """An argument of `Graph` as arrays; text of TensorFlow, which is bytes, as str."""
    if isinstance(value, Mapping):
        return {k: _plain(name, v) for k, v in value.items() if v is not None}
    if isinstance(value, bytes):
        return value.decode()
    return value if name == "info" else as_numpy(value)


def _unknown(element: Any) -> NoReturn:
    kind = f"{type(element).__module__}.{type(element).__qualname__}"
    raise ValueError(
        "Expected a Graph, a dictionary of its arguments or a torch_geometric Data. "
        f"Received: an element of type {kind}. Convert the elements, for example with "
        "kb.data.from_networkx."
    )
