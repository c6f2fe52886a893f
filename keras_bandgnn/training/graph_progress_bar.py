"""`GraphProgressBar`: Keras' progress bar, counting graphs instead of steps."""

import threading

import keras
import numpy as np

from keras_bandgnn.checks import instance, optional
from keras_bandgnn.compat import RateProgbar
from keras_bandgnn.preprocessing.loading.graph_loader import GraphLoader


class GraphProgressBar(keras.callbacks.ProgbarLogger):
    """Keras' progress bar, counting graphs instead of steps.

    It replaces Keras' own bar in `fit`, `evaluate` and `predict`, and like it follows
    their `verbose`: 0 is silent, 1 a bar, 2 one line per epoch. Graphs per second leave
    out validation and the first step of an epoch, which may compile.

    Args:
        loader: The `GraphLoader` of a model that is not a task; tasks tell it.

    Example:
    >>> import keras_bandgnn as kb
    >>> graphs = [kb.Graph(2, [0], [1], node={"kind": [1, 0]}, label=0)] * 2
    >>> task = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 2}, 8), 2)
    >>> history = task.fit(graphs, verbose=2, callbacks=[GraphProgressBar()])
    Batches: ...
    2/2 - ... graphs/s - accuracy: ... - loss: ...
    """

    # Keras calls `on_..._batch_end` in threads, and need not wait for them.
    async_safe = True

    def __init__(self, loader: GraphLoader | None = None):
        super().__init__()
        optional(instance, "loader", loader, GraphLoader, "a GraphLoader")
        self.loader = loader
        self._graphs = np.zeros(0, np.int64)
        self._training = False
        self._lock = threading.Lock()

    def follow(self, loader: GraphLoader) -> None:
        """Set the loader whose graphs are counted; tasks call this.

        Args:
            loader: The loader of `fit`, `evaluate` or `predict`.
        """
        self.loader = loader

    def on_train_begin(self, logs=None):
        """Be silent during validation from here on."""
        self._training = True

    def on_train_end(self, logs=None):
        """Show evaluations again."""
        self._training = False

    def on_epoch_begin(self, epoch, logs=None):
        """Show the number of the epoch, and a new bar."""
        if self.verbose and self.epochs > 1:
            print(f"Epoch {epoch + 1}/{self.epochs}", flush=True)
        self._begin()

    def on_test_begin(self, logs=None):
        """Show a new bar, unless this is validation."""
        if not self._training:
            self._begin()

    def on_predict_begin(self, logs=None):
        """Show a new bar."""
        self._begin()

    def on_train_batch_end(self, batch, logs=None):
        """Count the graphs of the batch."""
        self._show(batch, logs)

    def on_test_batch_end(self, batch, logs=None):
        """Count the graphs of the batch, unless this is validation."""
        if not self._training:
            self._show(batch, logs)

    def on_predict_batch_end(self, batch, logs=None):
        """Count the graphs of the batch."""
        self._show(batch, None)

    def on_epoch_end(self, epoch, logs=None):
        """Complete the bar, with the metrics of validation."""
        self._end(logs)

    def on_test_end(self, logs=None):
        """Complete the bar, unless this is validation."""
        if not self._training:
            self._end(logs)

    def on_predict_end(self, logs=None):
        """Complete the bar."""
        self._end(None)

    def _begin(self) -> None:
        if self.loader is None:
            raise ValueError(
                "Expected GraphProgressBar with graphs or a GraphLoader. Received: "
                "other data. Pass the loader of a model that is not a task to "
                "GraphProgressBar(loader)."
            )
        graphs = self.loader.usage()["graph"][0, self.loader.resumed_batches :]
        self._graphs = graphs.cumsum()
        self.seen = 0
        self.progbar = RateProgbar(
            target=int(self._graphs[-1]),
            verbose=self.verbose,
            unit_name="graphs",
            # What Keras logs are means already.
            stateless_metrics=(),
        )

    def _show(self, batch: int, logs) -> None:
        graphs = int(self._graphs[min(batch, len(self._graphs) - 1)])
        with self._lock:
            # Threads may be late.
            if graphs > self.seen:
                self.seen = graphs
                self.progbar.update(graphs, list((logs or {}).items()), finalize=False)

    def _end(self, logs) -> None:
        self.progbar.update(self.seen, list((logs or {}).items()), finalize=True)
