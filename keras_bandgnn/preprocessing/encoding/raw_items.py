"""Raw items of data sets: which form they have, and how they are listed."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.encoding.vocabulary import is_missing

# Items among which the kind of data is looked for.
_HEAD = 1000


def raw_items(data: Any) -> Sequence:
    """Return raw items in a sequence: those of lists, generators and data frames.

    Args:
        data: A list or generator of items, a NumPy array of strings, a pandas series,
            a pandas data frame (whose rows become dicts), a data set with items; a
            single item becomes a list of one.
    """
    if is_table(data):
        names = [str(name) for name in data.columns]
        columns = [data[name].tolist() for name in data.columns]
        return [
            dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)
        ]
    if isinstance(data, FlatGraphs):
        return data
    if isinstance(data, str | bytes | Mapping | Graph) or not _is_collection(data):
        return [data]
    if hasattr(data, "tolist"):
        # A series of pandas, an array of NumPy.
        return data.tolist()
    return data if isinstance(data, list | tuple) else list(data)


def beside_graphs(data: Any) -> dict[int, Any]:
    """Return the other items of a list whose first one is a graph, by position.

    Program graphs and dicts of the arguments of `Graph` are graphs here.
    """
    if not isinstance(data, list | tuple):
        return {}
    head = itertools.islice(data, _HEAD)
    if not isinstance(next((i for i in head if not is_missing(i)), None), Graph):
        return {}
    others = {i: item for i, item in enumerate(data) if not isinstance(item, Graph)}
    return {i: item for i, item in others.items() if not _is_graph(item)}


def _is_graph(item: Any) -> bool:
    if isinstance(item, Mapping):
        return "senders" in item
    return _library(item) == "keras_bandgnn"


def is_table(data: Any) -> bool:
    """Return whether data is a pandas data frame."""
    return _library(data) == "pandas" and hasattr(data, "columns")


def first_item(data: Any) -> Any:
    """Return the first raw item of a collection that is not missing, or None.

    What is no collection is itself the item. Graphs count where there is nothing else.
    """
    if is_table(data):
        return next(iter(raw_items(data[:1])), None)
    if isinstance(data, str | bytes | Mapping | Graph) or not _is_collection(data):
        return data
    if isinstance(data, Iterator):
        # Reading it would use it up.
        return None
    if hasattr(data, "tolist"):
        data = data[:_HEAD].tolist()
    others = beside_graphs(data)
    head = others.values() if others else itertools.islice(iter(data), _HEAD)
    return next((item for item in head if not is_missing(item)), None)


def _library(item: Any) -> str:
    return type(item).__module__.partition(".")[0]


def _is_collection(data: Any) -> bool:
    """Return whether data is several items, rather than a molecule, a graph, ..."""
    library = _library(data)
    if library in ("numpy", "pandas"):
        return (
            getattr(data, "ndim", 0) == 1 and getattr(data.dtype, "kind", "O") in "OUST"
        )
    if library in ("ase", "networkx", "rdkit"):
        return False
    if library == "torch_geometric":
        if hasattr(data, "node_types"):
            return False
        return not hasattr(data, "edge_index") or hasattr(data, "indices")
    return isinstance(data, Iterable) or (
        hasattr(data, "__len__") and hasattr(data, "__getitem__")
    )
