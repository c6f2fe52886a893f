"""`Task`: a backbone with a head, which takes graphs and gives results per graph."""

import keras

from keras_bandgnn.distribution.callbacks import callbacks_of
from keras_bandgnn.graph import Graph
from keras_bandgnn.models.backbone import Backbone
from keras_bandgnn.models.exportable import Exportable
from keras_bandgnn.models.fitting import FollowEpoch, fit_loader, on_this_backend
from keras_bandgnn.models.graph_arguments import (
    given_graphs,
    is_graphs,
    options_for_graphs,
)
from keras_bandgnn.models.inference import Inference
from keras_bandgnn.models.presets import PresetTask
from keras_bandgnn.models.replicated import Replicated
from keras_bandgnn.preprocessing.graph_loader import GraphLoader
from keras_bandgnn.preprocessing.graph_preprocessor import GraphPreprocessor


class Task(Inference, Exportable, PresetTask, Replicated):
    """A backbone and a head. `fit`, `evaluate` and `predict` take graphs.

    Graphs may come as a list of `Graph` (or of `ProgramGraph`, if the preprocessor
    encodes them), a `FlatGraphs`, an opened store or a `GraphLoader`. Anything else
    goes to Keras unchanged: a task is also a plain Keras model over the batch contract.

    Subclasses set `output_level`, what a row of the output belongs to.

    Args:
        backbone: The model from a batch to node states.
        preprocessor: `GraphPreprocessor` for graphs given to `fit`, `evaluate` and
            `predict`; without one graphs are batched as they are.
    """

    host_side = (*Replicated.host_side, "preprocessor")
    output_level = "graph"
    # Whether only candidates and the slot are read.
    reads_few = False

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: GraphPreprocessor | None = None,
        **kwargs,
    ):
        # Mixed precision must not round geometry; layers cast for themselves.
        super().__init__(autocast=False, **kwargs)
        if not isinstance(backbone, Backbone):
            raise ValueError(
                "Expected `backbone` to be a Backbone, such as GGNNBackbone(...). "
                f"Received: {type(backbone).__name__}."
            )
        if not isinstance(preprocessor, GraphPreprocessor | None):
            raise ValueError(
                "Expected `preprocessor` to be a GraphPreprocessor or None. "
                f"Received: {type(preprocessor).__name__}."
            )
        self.backbone = backbone
        self.preprocessor = preprocessor

    def loader(
        self,
        graphs,
        shuffle: bool = False,
        seed: int = 0,
        adapt: bool = False,
        training: bool = True,
    ) -> GraphLoader:
        """Returns a loader of the task's batches, after checking the graphs.

        Args:
            graphs: Graphs in any form that `fit` takes.
            shuffle: Whether each epoch has a new order.
            seed: Seed of the orders.
            adapt: Whether a batcher without a budget keeps the one estimated here.
            training: Whether the batches must suit training, where dropout rules out
                to compute equal states once (see `ReceptiveField`).
        """
        if self.preprocessor is None and not isinstance(graphs, GraphLoader):
            self.preprocessor = GraphPreprocessor(self.backbone.graph_layers())
        if isinstance(graphs, Graph):
            graphs = [graphs]
        if not isinstance(graphs, GraphLoader):
            graphs = self.preprocessor.loader(
                graphs,
                adapt,
                shuffle=shuffle,
                seed=seed,
                num_edge_types=self.backbone.num_edge_types,
                schedule=self.receptive_field(training),
                width=self.backbone.hidden_dim,
                plan=self.distribution.auto_plan(self),
                **self.distribution.loader_options(),
            )
        self.distribution.check(graphs)
        self._check_schedule(graphs.plan.schedule, training)
        types = self.backbone.num_edge_types
        if types and graphs.num_edge_types > types:
            raise ValueError(
                f"Expected edge types below {types}, as the backbone's "
                f"num_edge_types. Received: {graphs.num_edge_types} types."
            )
        for part in graphs.parts:
            self.backbone.check(part)
        self.check(graphs)
        return graphs

    def receptive_field(self, training: bool):
        """The schedule that is exact for this task, or None; see `ReceptiveField`."""
        if not self.reads_few or not self.distribution.takes_schedules:
            return None
        return self.backbone.receptive_field(training)

    def _check_schedule(self, given, training: bool) -> None:
        if given is None:
            return
        exact = self.receptive_field(training)
        if exact is None:
            raise ValueError(
                f"Expected a plan without a schedule: {type(self).__name__} over "
                f"{type(self.backbone).__name__} reads all nodes. Received: {given}."
            )
        if given.steps != exact.steps:
            raise ValueError(
                f"Expected a schedule of {exact.steps} steps, as the backbone has. "
                f"Received: {given}."
            )
        if given.merge and not exact.merge:
            raise ValueError(
                "Expected ReceptiveField(..., merge=False) for training with dropout, "
                f"which makes equal nodes differ. Received: {given}."
            )

    def check(self, loader: GraphLoader) -> None:
        """Raises a ValueError if the graphs do not fit the task."""

    def check_labels(self, loader: GraphLoader) -> None:
        """Raises a ValueError if the labels do not fit the task."""

    def adapt(self, loader: GraphLoader) -> None:
        """Computes constants that depend on the training graphs, before training."""

    def fit(self, x=None, y=None, *args, validation_data=None, seed: int = 0, **kwargs):
        """Trains on graphs, as `keras.Model.fit` does on arrays.

        Args:
            x: Graphs with labels, or what Keras takes.
            y: What Keras takes; None for graphs, which hold their labels.
            *args: Passed on; for graphs `batch_size`, which must be None, `epochs`,
                `verbose` and `callbacks`.
            validation_data: Graphs with labels, or what Keras takes.
            seed: Seed of the order of the graphs and, on torch, of dropout, which
                draws from torch's global generator there.
            **kwargs: Passed on, such as `epochs` and `callbacks`. `shuffle=False`
                keeps the order of graphs; that of a loader is its own.

        Returns:
            Keras' `History`.
        """
        x, validation_data = given_graphs(x), given_graphs(validation_data)
        if is_graphs(x):
            names = ("batch_size", "epochs", "verbose", "callbacks")
            kwargs = options_for_graphs(y, args, names, kwargs)
            shuffle = bool(kwargs.get("shuffle", True))
            # The loader orders the batches itself, reproducibly.
            kwargs["shuffle"] = False
            x = self.loader(x, shuffle=shuffle, seed=seed, adapt=True)
            x = self._labelled(x, "x")
            self.adapt(x)
            if not self.optimizer.built:
                # TensorFlow traces a step that makes variables twice.
                self.optimizer.build(self.trainable_variables)
            given = kwargs.pop("callbacks", None) or []
            given = given if isinstance(given, list | tuple) else [given]
            given = callbacks_of(self.distribution, given)
            kwargs["callbacks"] = [FollowEpoch(x, seed), *given]
            self._begin(x, kwargs)
        if is_graphs(validation_data):
            validation_data = self._labelled(
                self.loader(validation_data, training=False), "validation_data"
            )
        kwargs["validation_data"] = on_this_backend(validation_data, self)
        if isinstance(x, GraphLoader):
            return fit_loader(self, super().fit, x, **kwargs)
        return super().fit(on_this_backend(x, self), y, *args, **kwargs)

    def evaluate(self, x=None, y=None, *args, **kwargs):
        """Evaluates on graphs, as `keras.Model.evaluate` does on arrays."""
        x = given_graphs(x)
        if is_graphs(x):
            kwargs = options_for_graphs(y, args, ("batch_size", "verbose"), kwargs)
            args = ()
            x = self._labelled(self.loader(x, training=False), "x")
            if not kwargs.get("_use_cached_eval_dataset"):
                self._begin(x, kwargs, training=False)
        return super().evaluate(on_this_backend(x, self), y, *args, **kwargs)

    def predict(self, x, *args, **kwargs):
        """Predicts for graphs, or for what Keras takes.

        Returns:
            For graphs a list with one array per graph, in the order of the graphs;
            None for graphs that the batcher drops.
        """
        x = given_graphs(x)
        if not is_graphs(x):
            return super().predict(x, *args, **kwargs)
        options_for_graphs(None, args, ("batch_size", "verbose"), kwargs)
        if isinstance(x, list | tuple) and not x:
            return []
        loader = self.loader(x, training=False)
        out: list = [None] * int(loader.starts[-1])
        for graph, rows in self.outputs(loader, x):
            out[graph] = rows
        return self.distribution.gather(out)

    def _begin(self, loader: GraphLoader, options: dict, training: bool = True) -> None:
        """All processes begin alike, and one of them prints."""
        self.distribution.check_same(loader)
        self.distribution.same_weights(self, optimizer=training)
        if not self.distribution.is_main:
            options["verbose"] = 0

    def _labelled(self, loader: GraphLoader, name: str) -> GraphLoader:
        if any(part.label is None for part in loader.parts):
            raise ValueError(
                f"Expected the graphs in `{name}` to have labels. Received: graphs "
                "with label=None. Set Graph(..., label=...)."
            )
        self.check_labels(loader)
        return loader

    def compile_from_config(self, config: dict) -> None:
        """Compiles a model that was read from a file as it was when saved."""
        config = dict(config)
        trained = config.pop("optimizer_built", True)
        self.compile(**keras.saving.deserialize_keras_object(config))
        if trained:
            self.optimizer.build(self.trainable_variables)

    def get_compile_config(self) -> dict | None:
        """Returns the arguments of `compile`, and whether training has begun."""
        config = super().get_compile_config()
        return config and {**config, "optimizer_built": self.optimizer.built}

    def get_config(self) -> dict:
        """Returns the configuration: backbone, preprocessor and head."""
        config = {
            "name": self.name,
            "backbone": keras.saving.serialize_keras_object(self.backbone),
            "preprocessor": None,
        }
        if self.preprocessor is not None:
            config["preprocessor"] = keras.saving.serialize_keras_object(
                self.preprocessor
            )
        return {**config, **self.head_config()}

    def head_config(self) -> dict:
        """Arguments of the constructor beyond backbone and preprocessor."""
        return {}

    @classmethod
    def from_config(cls, config: dict) -> "Task":
        """Builds the task from `get_config()`."""
        config = dict(config)
        for name in ("backbone", "preprocessor"):
            if isinstance(config.get(name), dict):
                config[name] = keras.saving.deserialize_keras_object(config[name])
        return cls(**config)
