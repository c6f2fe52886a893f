"""`GraphLayer`: a preprocessing layer from graph to graph."""

from collections.abc import Iterable, Iterator, Mapping
from typing import overload

from keras_bandgnn import keras_bases
from keras_bandgnn.checks import instance, refuse
from keras_bandgnn.graph import EDGE_SETS, Graph
from keras_bandgnn.host_keras import keras
from keras_bandgnn.registration import check_registered, registered_class

# Arguments that Keras adds to every layer: a layer on the host has no use for them.
_OF_KERAS = ("name", "trainable", "dtype")


class HostLayer(keras_bases.Layer):
    """A Keras layer that takes graphs on the host instead of tensors on a device.

    Base of graph layers, batchers and `GraphPreprocessor`. It has no weights and no
    `call` on tensors; its configuration is all there is to save. Files and other
    processes get `plain_config()`.
    """

    def plain_config(self) -> dict:
        """Return the arguments of the constructor without those that Keras adds."""
        config = self.whole_config()
        return {name: config[name] for name in config if name not in _OF_KERAS}

    def whole_config(self) -> dict:
        """Return `get_config()`, for which Keras imports no TensorFlow here."""
        if keras.backend.backend() is None:
            return self.get_config()
        from keras_bandgnn.compat import without_tensorflow_checks

        with without_tensorflow_checks():
            return self.get_config()

    @classmethod
    def from_config(cls, config: Mapping) -> "HostLayer":
        """Build the layer from `get_config()` or `plain_config()`."""
        # Keras would wrap the errors of the constructor, which say what to do.
        return cls(**config)

    def check_registered(self) -> None:
        """Raise a ValueError if a file cannot name the layer, or a part of it."""
        check_registered(self)

    def __reduce__(self):
        # Keras pickles layers as saved models, which need registered classes.
        return _rebuild, (type(self), _untracked(self.whole_config()))


def _untracked(value):
    """Return a configuration without Keras' own lists and dicts: they do not pickle."""
    if isinstance(value, dict):
        return {name: _untracked(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_untracked(item) for item in value]
    return tuple(map(_untracked, value)) if type(value) is tuple else value


def _rebuild(cls: type[HostLayer], config: dict) -> HostLayer:
    return cls.from_config(config)


class GraphLayer(HostLayer):
    """A preprocessing layer from graph to graph, in NumPy.

    Subclasses define `call(graph)`, which returns a new graph and leaves its argument
    as it is; state in attributes other than the constructor's arguments is lost when
    the layer is saved, copied or sent to another process. `get_config()` returns the
    constructor's arguments, as for every Keras layer. Registered with
    `keras.saving.register_keras_serializable`, a subclass is saved in presets.

    A layer takes one graph, or an iterable of graphs, over which it returns an
    iterator.

    Attributes:
        takes: The types that `call` accepts, `(Graph,)` unless a subclass reads others,
            such as molecules.

    Example:
    >>> class Reverse(GraphLayer):
    ...     def call(self, graph):
    ...         return Graph(graph.num_nodes, graph.receivers, graph.senders)
    >>> Reverse()(Graph(2, [0], [1])).receivers.tolist()
    [0]
    """

    takes: tuple[type, ...] = (Graph,)

    @overload
    def __call__(self, graphs: Graph) -> Graph: ...

    @overload
    def __call__(self, graphs: Iterable[Graph]) -> Iterator[Graph]: ...

    def __call__(self, graphs: Graph | Iterable[Graph]) -> Graph | Iterator[Graph]:
        """Apply the layer to one graph, or lazily to each of several."""
        # Keras' own __call__ converts its arguments to tensors.
        if isinstance(graphs, self.takes):
            return self.call(graphs)
        if isinstance(graphs, str | Mapping) or not isinstance(graphs, Iterable):
            refuse("graphs", "a Graph or an iterable of graphs", graphs)
        return map(self.call, map(self._checked, graphs))

    def _checked(self, graph) -> Graph:
        names = " or ".join(kind.__name__ for kind in self.takes)
        return instance("graphs", graph, self.takes, f"graphs, each a {names}")

    def call(self, graph: Graph) -> Graph:
        """Return the changed graph."""
        raise NotImplementedError


def layer_for(item) -> type[GraphLayer] | None:
    """Return the class of graph layers that takes an item, None for a `Graph`.

    Layers that make graphs of other items say so in `takes`.
    """
    if isinstance(item, Graph):
        return None
    classes = [GraphLayer]
    for cls in classes:
        # Text and mappings are raw items of a `GraphEncoder`.
        if isinstance(item, cls.takes) and not isinstance(item, str | bytes | Mapping):
            return cls
        classes += cls.__subclasses__()
    return None


def is_graph(item) -> bool:
    """Return whether an item is a `Graph`, or one that a graph layer makes a graph."""
    return isinstance(item, Graph) or layer_for(item) is not None


def only_graphs(data) -> bool:
    """Return whether data is a list of `Graph`, a `FlatGraphs` or a store."""
    if isinstance(data, list | tuple):
        return bool(data) and all(isinstance(item, Graph) for item in data)
    return hasattr(data, "node_ptr") or hasattr(data, "shards")


def refuse_edge_sets(graph: Graph, layer: GraphLayer) -> None:
    """Raise a ValueError for edge sets, to which the edges of a layer do not belong."""
    if graph.sets and EDGE_SETS in graph.info:
        raise ValueError(
            f"Expected a graph without edge sets, as the edges that "
            f"{type(layer).__name__} adds belong to none. Received: "
            f"{graph.info[EDGE_SETS]}. Add edges of their own edge sets, such as with "
            "from_sets(..., reverse=True) or NodeSetEncoder(reverse=True)."
        )


def without_edge_sets(info: Mapping) -> dict:
    """Return the `info` of a graph whose edges were replaced: types name no sets."""
    return {name: value for name, value in info.items() if name != EDGE_SETS}


def refuse_edge_labels(
    graphs,
    layer: GraphLayer,
    advice: str = "Leave the layer out, or take a backbone that does not need it.",
) -> None:
    """Raise a ValueError for labels of edges that a layer would replace.

    Args:
        graphs: A `Graph` or a `FlatGraphs`.
        layer: The layer.
        advice: Last sentence of the error.
    """
    if graphs.label is not None and graphs.label_level == "edge":
        raise ValueError(
            f"Expected labels of graphs or nodes, as {type(layer).__name__} replaces "
            f"the edges. Received: labels of edges (label_level='edge'). {advice}"
        )


def applied_layers(graphs) -> list[dict]:
    """Return the descriptions of the layers that compiled graphs went through.

    Args:
        graphs: Graphs in any form; a `FlatGraphs` that `GraphPreprocessor` returned and
            a store of such graphs hold them in their metadata.

    Returns:
        `GraphPreprocessor.layers_config()` of that time; empty for other graphs.
    """
    metadata = getattr(graphs, "metadata", None) or {}
    return list(metadata.get("layers") or ())


def layers_from_config(entries: Iterable[Mapping]) -> list[GraphLayer]:
    """Build graph layers, from registered classes.

    Args:
        entries: Result of `GraphPreprocessor.layers_config()`, as stores and presets
            hold it.

    Raises:
        ValueError: If a class is not registered.
    """
    return [
        registered_class(entry, GraphLayer, "a graph layer").from_config(
            dict(entry["config"])
        )
        for entry in entries
    ]
