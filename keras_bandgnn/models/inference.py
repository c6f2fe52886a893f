"""`Inference`: what tasks compute for graphs without labels."""

import keras

from keras_bandgnn.batch import unbatch
from keras_bandgnn.preprocessing.graph_loader import GraphLoader
from keras_bandgnn.preprocessing.shape_buckets import prediction_batches


class Inference:
    """Outputs, vectors and attention weights of a task, graph by graph."""

    def embed(
        self, graphs, level: str = "node", reduce: str = "mean", layer: int = -1
    ) -> list:
        """Returns the states of nodes, or one vector per graph.

        They are those of the backbone, before the head and without dropout. All nodes
        are computed, also by a task that reads few of them.

        Args:
            graphs: Graphs, in any form that `fit` takes.
            level: `"node"` or `"graph"`.
            reduce: For graphs the `"mean"`, `"sum"` or `"max"` over the nodes, or
                `"token"`, the state of the token of a graph transformer with
                `global_token=True`.
            layer: Which states: 0 the embedded features, l those after layer (or step)
                l; negative numbers count from the end, and -1 is the output.

        Returns:
            For each graph, in their order, float [N, H] in the order of its nodes, or
            float [H]. Rows of nodes that the preprocessor leaves out are NaN; None for
            graphs that the batcher drops.

        Raises:
            ValueError: For arguments that do not fit.

        Example:
        >>> import keras_bandgnn as kb
        >>> graphs = [kb.Graph(n, [0], [n - 1], node={"kind": [1] * n}) for n in (2, 3)]
        >>> task = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 2}, 8), 2)
        >>> [rows.shape for rows in task.embed(graphs)]
        [(2, 8), (3, 8)]
        >>> task.embed(graphs, level="graph", layer=1)[0].shape
        (8,)
        """
        from keras_bandgnn.models.embedding import embed

        return embed(self, graphs, level, reduce, layer)

    def attention_weights(self, graphs) -> list:
        """Returns the attention weights of every layer of the backbone.

        Args:
            graphs: Graphs, in any form that `fit` takes.

        Returns:
            For each graph, in their order, a list with one `AttentionWeights` per
            layer: senders and receivers int32 [E], nodes as the graph numbers them,
            and weights float32 [E, K], without dropout. E counts what the layer sees:
            edges and a node itself, or all pairs of nodes under full attention. The
            token of a graph transformer has the number N.

        Raises:
            ValueError: For a backbone without attention, or several devices.

        Example:
        >>> import keras_bandgnn as kb
        >>> graph = kb.Graph(3, [0, 1], [2, 2], node={"kind": [0, 1, 1]})
        >>> backbone = kb.models.GATBackbone({"kind": 2}, 8, num_heads=2)
        >>> task = kb.models.GraphClassifier(backbone, 2)
        >>> first, second = task.attention_weights([graph])[0]
        >>> first.senders.tolist(), first.receivers.tolist(), first.weights.shape
        ([0, 1, 0, 1, 2], [0, 1, 2, 2, 2], (5, 2))
        """
        from keras_bandgnn.models.attention_weights import attention_weights

        return attention_weights(self, graphs)

    def outputs(self, loader: GraphLoader, given, verbose=0, callbacks=None):
        """Yields the position of each graph in a loader, and the output for it.

        Args:
            loader: The graphs, as `loader` returns them.
            given: What they were made of; see `prediction_batches`.
            verbose: See `Task.predict`.
            callbacks: See `Task.predict`.
        """
        self._begin(loader, {}, training=False)
        if verbose == "auto" or not self.distribution.is_main:
            verbose = 0
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = keras.callbacks.CallbackList(
                callbacks,
                add_progbar=verbose != 0,
                verbose=verbose,
                epochs=1,
                steps=len(loader),
                model=self,
            )
        self.stop_predicting = False
        callbacks.on_predict_begin()
        for step, batch in enumerate(self.batches(loader, given)):
            callbacks.on_predict_batch_begin(step)
            values = self.distribution.predict_on_batch(self, batch)
            yield from unbatch(values, batch, self.output_level)
            callbacks.on_predict_batch_end(step, {"outputs": values})
            if self.stop_predicting:
                break
        callbacks.on_predict_end()

    def batches(self, loader: GraphLoader, given):
        """Yields the batches of a loader for predictions; see `prediction_batches`."""
        own = isinstance(given, GraphLoader) or self.distribution.several
        batcher = None if own else self.preprocessor.batcher
        return prediction_batches(loader, batcher)
