"""Graphs from whatever yields them: lists, generators, data sets of other libraries.

What a source is shows in its methods; no library is imported to find out.
"""

import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from keras_bandgnn.checks import boolean
from keras_bandgnn.data.converters.attributes import (
    as_numpy,
    graph_of,
    levels_of,
    sized,
)
from keras_bandgnn.data.converters.pyg import pyg_values
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import check_same_spec
from keras_bandgnn.graph import Graph
from keras_bandgnn.progress import progress_bar

# Elements of data sets as graphs: dictionaries and objects of torch_geometric.


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


# Graphs are joined in chunks, because an object per graph costs more than its arrays,
# and chunks into parts, because a loader looks into every part for every batch.
_CHUNK_GRAPHS = 4096
_CHUNK_BYTES = 1 << 25
_PART_BYTES = 1 << 28


def parts_of(source: Any, progress: bool = True) -> list[FlatGraphs]:
    """Reads a source to its end into flat graphs, holding little more than one copy.

    Args:
        source: As for `graphs_of`, or a list of `FlatGraphs`. These and the shards of
            a store are returned as they are.
        progress: Whether to show a bar on standard error once it takes over two
            seconds.

    Returns:
        Parts that together hold all graphs in their order; none without graphs.

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
    parts, chunks, size, done, spec = [], [], 0, 0, None
    for chunk, weight in _chunks(graphs_of(source, progress)):
        chunks.append(_joined(chunk, done, spec))
        spec = spec or chunks[0].spec()
        done += len(chunk)
        size += weight
        if size > _PART_BYTES:
            parts.append(FlatGraphs.concatenate(chunks))
            chunks, size = [], 0
    return [*parts, FlatGraphs.concatenate(chunks)] if chunks else parts


def _is_parts(source: Any) -> bool:
    if not isinstance(source, list | tuple) or not source:
        return False
    return all(isinstance(part, FlatGraphs) for part in source)


def _chunks(graphs: Iterator[Graph]) -> Iterator[tuple[list[Graph], int]]:
    """Lists of consecutive graphs, and the bytes of their edges and features."""
    chunk, size = [], 0
    for graph in graphs:
        chunk.append(graph)
        features = (*graph.node.values(), *graph.edge.values())
        size += 3 * graph.senders.nbytes + sum(array.nbytes for array in features)
        if len(chunk) >= _CHUNK_GRAPHS or size > _CHUNK_BYTES:
            yield chunk, size
            chunk, size = [], 0
    if chunk:
        yield chunk, size


def _joined(chunk: list[Graph], done: int, spec: dict | None) -> FlatGraphs:
    """Joins the graphs from number `done` on, which are to be like the first one."""
    try:
        part = FlatGraphs.from_graphs(chunk)
        if spec is not None:
            check_same_spec(f"graph {done}", part.spec(), "graph 0", spec)
        return part
    except ValueError:  # which counts within the chunk
        for index, graph in enumerate(chunk):
            found = FlatGraphs.from_graphs([graph]).spec()
            spec = spec or found
            check_same_spec(f"graph {done + index}", found, "graph 0", spec)
        raise


def graphs_of(source: Any, progress: bool = True) -> Iterator[Graph]:
    """Yields the graphs of a source, one at a time.

    Sources: a list of graphs, `FlatGraphs`, an opened store; a generator, or a function
    without arguments that returns one; data sets of torch, map-style or iterable, and
    a torch `DataLoader` with `batch_size=None`; a torch_geometric data set or list of
    `Data`; a `tf.data.Dataset`; a `MapDataset`, `IterDataset` or `DataLoader` of Grain;
    anything with a length and items, such as a Hugging Face data set.

    Elements: `Graph`; a dictionary of the arguments of `Graph` (`num_nodes`, `senders`,
    `receivers`, ..., with `node`, `edge` and `context` as dictionaries); a
    torch_geometric `Data`, or a dictionary with its names (`edge_index`, `y`, ...).
    For the latter the first 64 elements show which attribute belongs to what.

    Args:
        source: Where the graphs come from. It must end.
        progress: Whether to show a bar on standard error once it takes over two
            seconds.

    Raises:
        ValueError: If the source is batched, endless or of an unknown kind, or an
            element is no graph; the message has its number.

    Example:
    >>> def pairs():
    ...     yield {"num_nodes": 2, "senders": [0], "receivers": [1]}
    >>> list(graphs_of(pairs))
    [Graph(num_nodes=2, num_edges=1)]
    """
    boolean("progress", progress)
    elements = _elements(source)
    shown = progress and sys.stderr.isatty()
    head = list(itertools.islice(elements, 1))
    if head and has_attributes(head[0]):
        head += itertools.islice(elements, SAMPLE - 1)
    convert = conversion(head)
    with progress_bar("Reading graphs", _length(source), shown) as advance:
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
    """Iterates over the elements of a source that ends and is not batched."""
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
            "Batches are made later: pass its data set, or set batch_size=None.",
        )
    if _endless(source):
        _refuse(
            f"an endless {type(source).__name__}",
            "Leave out .repeat() (num_epochs=1 in a sampler of Grain), or cut it "
            "with .take(n). Graphs are read once; epochs come later.",
        )
    if hasattr(source, "as_numpy_iterator"):
        return iter(source.as_numpy_iterator())
    if hasattr(type(source), "__iter__"):
        return iter(source)
    if _has_items(source):
        return (source[index] for index in range(len(source)))
    _refuse(type(source).__name__, "Convert it first, see kb.data.from_networkx etc.")


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
        return length == sys.maxsize  # what a repeated MapDataset of Grain says
    kind = type(source)
    if not kind.__module__.startswith("grain") or "Limit" in kind.__name__:
        return False
    # An iterated data set of Grain knows its parents, one of which may be repeated.
    behind = [*getattr(source, "_parents", ()), getattr(source, "_dataset", None)]
    return any(_endless(parent) for parent in behind if parent is not None)
