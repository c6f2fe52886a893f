"""`GraphLayer`: a preprocessing layer from graph to graph."""

from collections.abc import Iterable, Iterator, Mapping

import keras

from keras_bandgnn.checks import instance, refuse
from keras_bandgnn.graph import Graph


class GraphLayer(keras.layers.Layer):
    """A Keras layer that works on graphs, on the host, without tensors.

    Subclasses override `call(graph)`. The layer takes one graph, or an iterable of
    graphs, over which it returns an iterator.
    """

    # What `call` takes.
    takes: tuple[type, ...] = (Graph,)

    def __call__(self, graphs: Graph | Iterable[Graph]) -> Graph | Iterator[Graph]:
        """Applies the layer to one graph, or lazily to each of several."""
        # Keras' own __call__ converts its arguments to tensors.
        if isinstance(graphs, self.takes):
            return self.call(graphs)
        if isinstance(graphs, str | Mapping) or not isinstance(graphs, Iterable):
            refuse("graphs", "a Graph or an iterable of graphs", graphs)
        return map(self._checked, graphs)

    def _checked(self, graph) -> Graph:
        names = " or ".join(kind.__name__ for kind in self.takes)
        instance("graphs", graph, self.takes, f"graphs, each a {names}")
        return self.call(graph)

    def call(self, graph: Graph) -> Graph:
        """Returns the changed graph."""
        raise NotImplementedError
