"""`GraphLayer`: a preprocessing layer from graph to graph."""

from collections.abc import Iterable, Iterator

import keras

from keras_bandgnn.graph import Graph


class GraphLayer(keras.layers.Layer):
    """A Keras layer that works on graphs, on the host, without tensors.

    Subclasses override `call(graph)`. The layer takes one graph, or an iterable of
    graphs, over which it returns an iterator.
    """

    def __call__(self, graphs: Graph | Iterable[Graph]) -> Graph | Iterator[Graph]:
        """Applies the layer to one graph, or lazily to each of several."""
        # Keras' own __call__ converts its arguments to tensors.
        if isinstance(graphs, Graph):
            return self.call(graphs)
        if isinstance(graphs, str) or not isinstance(graphs, Iterable):
            raise ValueError(
                f"Expected a Graph or an iterable of graphs for {type(self).__name__}. "
                f"Received: {type(graphs).__name__}."
            )
        return map(self.call, graphs)

    def call(self, graph: Graph) -> Graph:
        """Returns the changed graph."""
        raise NotImplementedError
