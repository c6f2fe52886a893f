"""Graphs from lists, generators and data sets of other libraries.

The type of a source is recognised by its methods, without importing any library.
"""

from __future__ import annotations

import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from keras_bandgnn.checks import boolean
from keras_bandgnn.data.converters.attributes import (
    as_numpy,
    graph_of,
    levels_of,
    sized,
)
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import check_same_spec
from keras_bandgnn.graph import Graph
from keras_bandgnn.progress import progress_bar

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Source

SAMPLE = 64
"""Number of elements from which the level of each attribute is inferred."""

_FIELDS = tuple(inspect.signature(Graph).parameters)


def conversion(head: Sequence) -> Callable[[Any], Graph]:
    """Return the function that converts elements to graphs.

    Args:
        head: The first elements: one, or `SAMPLE` if they have attributes.

    Example:
    >>> fields = {"num_nodes": 2, "senders": [0], "receivers": [1]}
    >>> conversion([fields])(fields)
    Graph(num_nodes=2, num_edges=1)
    """
    if not head or not has_attributes(head[0]):
        return _as_graph
    levels = levels_of(
        [numbered(i, attributes_of, element) for i, element in enumerate(head)]
    )
    return lambda element: graph_of(attributes_of(element), levels)


def numbered(number: int, convert: Callable, element: Any) -> Any:
    """Convert an element unless it is a `Graph`; errors contain its number."""
    if isinstance(element, Graph):
        return element
    try:
        return convert(element)
    except ValueError as error:
        raise ValueError(f"Element {number} of the source: {error}") from error


def has_attributes(element: Any) -> bool:
    """Return whether an element has the attributes of torch_geometric."""
    if isinstance(element, Mapping):
        return "edge_index" in element
    return hasattr(element, "edge_index") or hasattr(element, "to_homogeneous")


def attributes_of(element: Any) -> dict[str, Any]:
    """Return the attributes of a `Data`, or of a dict of them, as arrays by name."""
    from keras_bandgnn.data.converters.pyg import pyg_values

    if not has_attributes(element):
        _refuse_element(element)
    return sized(element) if isinstance(element, Mapping) else pyg_values(element)


def _as_graph(element: Any) -> Graph:
    """Create a graph from a dictionary of the arguments of `Graph`."""
    if not isinstance(element, Mapping):
        _refuse_element(element)
    fields = {k: _argument(k, v) for k, v in element.items() if v is not None}
    missing = {"num_nodes", "senders", "receivers"} - fields.keys()
    if missing or fields.keys() - set(_FIELDS):
        raise ValueError(
            f"Expected a dictionary of Graph's arguments: {', '.join(_FIELDS)}. "
            f"Received: the keys {sorted(fields)}. Map the elements to Graph's "
            "arguments."
        )
    for name in {"num_nodes", "slot"} & fields.keys():
        if np.shape(fields[name]):
            raise ValueError(
                f"Expected `{name}` to be one integer. Received: shape "
                f"{np.shape(fields[name])}. If the source is batched, remove .batch() "
                "or add .unbatch()."
            )
        fields[name] = np.asarray(fields[name])[()]
    return Graph(**fields)


def _argument(name: str, value: Any) -> Any:
    """Convert an argument of `Graph` to arrays, and bytes of TensorFlow to str."""
    if isinstance(value, Mapping):
        return {k: _argument(name, v) for k, v in value.items() if v is not None}
    if isinstance(value, bytes):
        return value.decode()
    return value if name == "info" else as_numpy(value)


def _refuse_element(element: Any) -> NoReturn:
    kind = f"{type(element).__module__}.{type(element).__qualname__}"
    raise ValueError(
        "Expected a Graph, a dictionary of its arguments or a torch_geometric Data. "
        f"Received: an element of type {kind}. Convert the elements, for example with "
        "kb.data.from_networkx."
    )


# Graphs are merged into chunks, because an object per graph costs more than its arrays,
# and chunks into parts, because a loader searches every part for every batch.
CHUNK_GRAPHS = 4096
CHUNK_BYTES = 1 << 25
_PART_BYTES = 1 << 28


def parts_of(source: Any, progress: bool = True) -> list[FlatGraphs]:
    """Read a source into flat graphs, with little more memory than one copy.

    Args:
        source: As for `graphs_of`, or a list of `FlatGraphs`. These and the shards of
            a store are returned unchanged.
        progress: Whether to show a progress bar on standard error after two seconds.

    Returns:
        Parts that together hold all graphs in order; an empty list without graphs.

    Raises:
        ValueError: As for `graphs_of`, or if graphs disagree in their features.

    Example:
    >>> parts = parts_of(Graph(n, [], []) for n in range(1, 4))
    >>> [len(part) for part in parts]
    [3]
    """
    boolean("progress", progress)
    if isinstance(source, FlatGraphs):
        return [source] if len(source) else []
    if _is_parts(source):
        return [part for part in source if len(part)]
    if hasattr(source, "shards"):
        return [part for part in source.shards if len(part)]
    parts, chunks, size, count, spec = [], [], 0, 0, None
    for chunk, weight in _chunks(graphs_of(source, progress)):
        chunks.append(_merge_graphs(chunk, count, spec))
        spec = spec or chunks[0].spec()
        count += len(chunk)
        size += weight
        if size > _PART_BYTES:
            parts.append(FlatGraphs.concatenate(chunks))
            chunks, size = [], 0
    return [*parts, FlatGraphs.concatenate(chunks)] if chunks else parts


def _is_parts(source: Any) -> bool:
    if not isinstance(source, list | tuple) or not source:
        return False
    return all(isinstance(part, FlatGraphs) for part in source)


def graph_bytes(graph: Graph) -> int:
    """Return the bytes of a graph's edges and features."""
    features = (*graph.node.values(), *graph.edge.values())
    return 3 * graph.senders.nbytes + sum(array.nbytes for array in features)


def _chunks(graphs: Iterator[Graph]) -> Iterator[tuple[list[Graph], int]]:
    """Yield lists of consecutive graphs, and the bytes of edges and features."""
    chunk, size = [], 0
    for graph in graphs:
        chunk.append(graph)
        size += graph_bytes(graph)
        if len(chunk) >= CHUNK_GRAPHS or size > CHUNK_BYTES:
            yield chunk, size
            chunk, size = [], 0
    if chunk:
        yield chunk, size


def _merge_graphs(chunk: list[Graph], start: int, spec: dict | None) -> FlatGraphs:
    """Merge the graphs from number `start` on; their spec must be the first one's."""
    try:
        part = FlatGraphs.from_graphs(chunk)
        if spec is not None:
            check_same_spec(f"graph {start}", part.spec(), "graph 0", spec)
        return part
    except ValueError:  # its graph number is relative to the chunk
        for index, graph in enumerate(chunk):
            graph_spec = FlatGraphs.from_graphs([graph]).spec()
            spec = spec or graph_spec
            check_same_spec(f"graph {start + index}", graph_spec, "graph 0", spec)
        raise


def graphs_of(source: Source, progress: bool = True) -> Iterator[Graph]:
    """Yield the graphs of a source, one at a time.

    Sources: a list of graphs, `FlatGraphs` or an open store; a generator, or a function
    without arguments that returns one; a map-style or iterable torch data set, or a
    torch `DataLoader` with `batch_size=None`; a torch_geometric data set or list of
    `Data`; a `tf.data.Dataset`; a `MapDataset`, `IterDataset` or `DataLoader` of Grain;
    any object with a length and items, such as a Hugging Face data set.

    Elements: `Graph`; a dictionary of the arguments of `Graph` (`num_nodes`, `senders`,
    `receivers`, ..., with `node`, `edge` and `context` as dictionaries); a
    torch_geometric `Data`, or a dictionary with its names (`edge_index`, `y`, ...).
    For the latter, the first 64 elements determine whether an attribute belongs to
    nodes, edges or graphs.

    Args:
        source: The source. It must be finite.
        progress: Whether to show a progress bar on standard error after two seconds.

    Raises:
        ValueError: If the source is batched, infinite or of an unknown type, or an
            element is not a graph; the message contains its number.

    Example:
    >>> def pairs():
    ...     yield {"num_nodes": 2, "senders": [0], "receivers": [1]}
    >>> list(graphs_of(pairs))
    [Graph(num_nodes=2, num_edges=1)]
    """
    boolean("progress", progress)
    elements = _elements(source)
    head = list(itertools.islice(elements, 1))
    if head and has_attributes(head[0]):
        head += itertools.islice(elements, SAMPLE - 1)
    convert = conversion(head)
    with progress_bar("Reading graphs", _length(source), progress) as advance:
        for number, element in enumerate(itertools.chain(head, elements)):
            yield numbered(number, convert, element)
            advance(1)


def _length(source: Any) -> int | None:
    if hasattr(source, "cardinality"):
        count = int(source.cardinality())
        return count if count >= 0 else None
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        return None


def _elements(source: Any) -> Iterator[Any]:
    """Iterate over the elements of a finite source without batches."""
    if callable(source) and not hasattr(source, "__iter__") and not _has_items(source):
        source = source()
    if isinstance(source, Graph):
        _refuse("one Graph", "Pass a list of graphs, [graph].")
    if isinstance(source, str | os.PathLike):
        _refuse(f"{source!r}", "Open a store with kb.data.open_store(path).")
    if isinstance(source, Mapping):
        keys = [str(key) for key in source][:5]
        _refuse(
            f"{type(source).__name__} with the keys {keys}",
            "Pass one of its values, such as the split to read.",
        )
    if getattr(source, "batch_sampler", None) is not None:
        _refuse(
            f"{type(source).__name__} with batches",
            "Pass its data set, or set batch_size=None; the loader builds the batches.",
        )
    if _endless(source):
        _refuse(
            f"an infinite {type(source).__name__}",
            "Remove .repeat() (num_epochs=1 in a sampler of Grain), or limit it with "
            ".take(n). Graphs are read once, whatever the number of epochs.",
        )
    if hasattr(source, "as_numpy_iterator"):
        return iter(source.as_numpy_iterator())
    if hasattr(type(source), "__iter__"):
        return iter(source)
    if _has_items(source):
        return (source[index] for index in range(len(source)))
    _refuse(
        type(source).__name__, "Convert it first, such as with kb.data.from_networkx."
    )


def _has_items(source: Any) -> bool:
    return hasattr(source, "__len__") and hasattr(source, "__getitem__")


def _refuse(what: str, advice: str) -> None:
    raise ValueError(
        "Expected graphs: a list of Graph, a FlatGraphs, an opened store, a generator, "
        "or a data set of torch, torch_geometric, tf.data, Grain or Hugging Face. "
        f"Received: {what}. {advice}"
    )


def _endless(source: Any) -> bool:
    if hasattr(source, "cardinality"):
        return int(source.cardinality()) == -1
    length = _length(source)
    if length is not None:
        return length == sys.maxsize  # the length of a repeated MapDataset of Grain
    kind = type(source)
    if not kind.__module__.startswith("grain") or "Limit" in kind.__name__:
        return False
    # A parent of an iterable data set of Grain may be repeated.
    parents = [*getattr(source, "_parents", ()), getattr(source, "_dataset", None)]
    return any(_endless(parent) for parent in parents if parent is not None)
