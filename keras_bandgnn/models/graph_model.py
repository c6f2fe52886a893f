"""`GraphModel`: a Keras model that trains on graphs and predicts for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Self, Unpack

import keras

from keras_bandgnn import compat
from keras_bandgnn.batch import unbatch
from keras_bandgnn.checks import boolean, refuse
from keras_bandgnn.graph import Graph
from keras_bandgnn.models.backbone import Backbone, check_precision
from keras_bandgnn.models.entry_model import EntryModel
from keras_bandgnn.models.fitting import (
    as_fit_data,
    attach_loader,
    fit_resumable,
    options_for_graphs,
    say_batches,
    with_callbacks,
)
from keras_bandgnn.models.input_loader import input_loader
from keras_bandgnn.models.inputs import (
    BATCHES,
    LOADER,
    Inputs,
    check_batch,
    read_graphs,
    read_inputs,
    read_validation,
)
from keras_bandgnn.models.label_checks import check_labelled
from keras_bandgnn.models.step_lock import exclusive, one_thread
from keras_bandgnn.preprocessing.batching.static_batcher import StaticBatcher
from keras_bandgnn.preprocessing.loading.loader import Loader
from keras_bandgnn.preprocessing.loading.shape_buckets import prediction_batches
from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor
from keras_bandgnn.preprocessing.sampling.sampler import Sampler

if TYPE_CHECKING:
    from keras_bandgnn.aliases import (
        Batch,
        Callbacks,
        Data,
        EvaluateOptions,
        FitOptions,
        Graphs,
        Labels,
        MaybeNone,
        ModuleOptions,
        Results,
        Tensor,
    )
    from keras_bandgnn.data.flat import FlatGraphs
    from keras_bandgnn.primitives.receptive_field import ReceptiveField


class GraphModel(EntryModel):
    """A backbone and a head. `fit`, `evaluate` and `predict` take graphs.

    Graphs may come as a list of `Graph` (or of `ProgramGraph`, if the preprocessor
    encodes them), a `FlatGraphs`, an opened store or a `GraphLoader`. Anything else
    goes to Keras unchanged: a task is also a plain Keras model over the batch contract.

    Subclasses set `output_level`, the level of the output rows, and `labels`, which
    determine the losses and metrics that `compile` accepts.

    Args:
        backbone: The model from a batch to node states.
        preprocessor: `GraphPreprocessor` for graphs given to `fit`, `evaluate` and
            `predict`. If None, the first graphs given to them set `preprocessor` to
            `default_preprocessor(graphs)`; batches need none.
        compile: Whether to compile the task with its defaults.
        **kwargs: `name` and `dtype`, as for `keras.Model`.
    """

    host_side = (*EntryModel.host_side, "preprocessor")
    # Whether the task reads only candidates and the slot.
    reads_few = False
    # Whether a default batcher depends on the graphs: then training graphs determine
    # it, even after earlier predictions.
    sizes_batcher = False

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: GraphPreprocessor | None = None,
        compile: bool = True,
        **kwargs: Unpack[ModuleOptions],
    ):
        # Mixed precision must not round geometry; layers cast for themselves.
        super().__init__(autocast=False, **kwargs)
        check_precision(self.dtype_policy)
        if not isinstance(backbone, Backbone):
            raise ValueError(
                "Expected `backbone` to be a Backbone, such as GGNNBackbone(...). "
                f"Received: {type(backbone).__name__}."
            )
        for name in ("hidden_dim", "num_edge_types"):
            if getattr(backbone, name) is None:
                raise ValueError(
                    f"Expected the backbone to set `{name}`. Received: "
                    f"{type(backbone).__name__}.{name}=None. Set it in the class or "
                    "its constructor; num_edge_types=0 if it reads no types of edges."
                )
        if backbone.pools and self.output_level != "graph":
            raise ValueError(
                "Expected a backbone without `pooling`, after which some nodes have no "
                f"state. Received: {type(self).__name__} over a "
                f"{type(backbone).__name__} with pooling. Use GraphClassifier or "
                "GraphRegressor, or leave `pooling` out."
            )
        self.backbone = backbone
        self.preprocessor: GraphPreprocessor | MaybeNone = preprocessor
        self._compile_defaults = boolean("compile", compile)

    def __setattr__(self, name, value):
        if name == "preprocessor" and not isinstance(value, GraphPreprocessor | None):
            raise ValueError(
                "Expected `preprocessor` to be a GraphPreprocessor or None. "
                f"Received: {type(value).__name__}. Write GraphPreprocessor([layer, "
                "...], batcher) for encoders, graph layers and batchers."
            )
        super().__setattr__(name, value)

    def build_and_compile(self) -> None:
        """Build the head, and compile the task unless `compile=False`.

        Constructors of tasks call it last.
        """
        self.build()
        if self._compile_defaults:
            self.compile()

    def __call__(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        """Return the output for a batch; `predict` is for graphs."""
        check_batch(args[0] if args else kwargs.get("batch"), "")
        return super().__call__(*args, **kwargs)

    def default_preprocessor(self, graphs: Graphs) -> GraphPreprocessor:
        """Return the preprocessor of a task that was created without one.

        Args:
            graphs: The first graphs given to the task.
        """
        one = isinstance(graphs, Graph)
        if self.sizes_batcher and not one and not hasattr(graphs, "__len__"):
            refuse("graphs", "a list of graphs, a FlatGraphs or a store", graphs)
        preprocessor = GraphPreprocessor(self.backbone.default_layers(graphs))
        if self.sizes_batcher and (one or len(graphs) == 1):
            # A batch size above 1 would be nearly all padding.
            preprocessor.batcher = StaticBatcher(1, padding="64")
        return preprocessor

    def complete(self, graphs: Graphs, training: bool = False) -> None:
        """Set the default preprocessor, unless the task has one.

        Args:
            graphs: The graphs in a list, a `FlatGraphs` or a store.
            training: Whether they are training graphs.
        """
        temporary = self.__dict__.get("_for_predictions")
        again = training and temporary is not None and self.preprocessor is temporary
        if self.preprocessor is not None and not again:
            return
        self.preprocessor = self.default_preprocessor(graphs)
        temporary = self.sizes_batcher and not training
        # Bypass Keras' attribute tracking.
        self.__dict__["_for_predictions"] = self.preprocessor if temporary else None

    def preprocess(self, graphs: Data) -> Loader:
        """Return the batches that `predict` computes for graphs; see `loader`."""
        return self.loader(graphs, training=False)

    def loader(
        self,
        graphs: Data,
        shuffle: bool = False,
        seed: int = 0,
        adapt: bool = False,
        training: bool = True,
        sampler: Sampler | None = None,
    ) -> Loader:
        """Return a loader of the task's batches, after checking the graphs.

        Args:
            graphs: Graphs in any form that `fit` takes.
            shuffle: Whether each epoch has a new order.
            seed: Seed of the orders.
            adapt: Whether a batcher without a budget stores the one estimated here.
            training: Whether the batches are for training, where states of equal nodes
                may differ (see `Backbone.receptive_field`).
            sampler: Neighbour or subgraph sampler for large graphs; None for whole
                graphs.
        """
        boolean("adapt", adapt)
        boolean("training", training)
        self.distribution.check_task(self)
        inputs = read_graphs(self, "graphs", graphs, adapt, required=True)
        return input_loader(self, inputs, shuffle, seed, adapt, training, sampler)

    def receptive_field(self, training: bool) -> ReceptiveField | None:
        """Return the exact schedule of this task, or None; see `ReceptiveField`."""
        if not self.reads_few or not self.distribution.takes_schedules:
            return None
        return self.backbone.receptive_field(training)

    @property
    def program_variant(self) -> object:
        """State beyond the configuration that compiled steps depend on."""
        return self.backbone.variant

    def features_read(self) -> dict[str, tuple[str, ...]] | None:
        """Return the features that the task reads; see `Backbone.features_read`."""
        return self.backbone.features_read()

    def check(self, loader: Loader) -> None:
        """Raise a ValueError if the graphs do not fit the task."""

    def known_slopes(self, part: FlatGraphs) -> int:
        """Return the number of known training values besides the labels.

        Args:
            part: A `FlatGraphs`.
        """
        return 0

    def check_labels(self, loader: Loader) -> None:
        """Raise a ValueError if the labels do not fit the task."""

    def adapt(self, loader: Loader) -> None:
        """Compute constants that depend on the training graphs, before training.

        They are saved with the task; `check` and predictions do not change them.
        """
        if self.backbone.adapt(loader.parts):
            compat.forget_programs(self)
        self._before_steps()

    @one_thread
    def fit(
        self,
        x: Data | None = None,
        y: Labels = None,
        *args: int | str | Callbacks,
        validation_data: Data | tuple | None = None,
        seed: int = 0,
        sampler: Sampler | None = None,
        **kwargs: Unpack[FitOptions],
    ) -> keras.callbacks.History:
        """Train on graphs, as `keras.Model.fit` does on arrays.

        A line before the epochs describes the batches, their fill, and the plan of the
        edges.

        Args:
            x: Graphs; raw data that an encoder converts, such as SMILES strings, ASE
                atoms, networkx graphs or a data frame; or data of Keras. Without an
                encoder in the preprocessor, `fit` adds the one that accepts `x`.
            y: Labels of graphs or raw data, in their order, see `with_labels`; names of
                columns if `x` is a data frame; None if graphs hold their labels.
            *args: Passed on; for graphs `batch_size`, which must be None, `epochs`,
                `verbose` and `callbacks`.
            validation_data: Graphs with labels, a tuple (x, y) or (x, y,
                sample_weight), or data of Keras.
            seed: Seed of the order of the graphs and, on torch, of dropout. The
                caller's random states stay as they are.
            sampler: For tasks over nodes a neighbour or subgraph sampler for large
                graphs, such as `NeighborSampler`; also for the validation data, with
                the same draws in every epoch. None for whole graphs.
            **kwargs: Passed on, such as `epochs` and `callbacks`. For graphs
                `sample_weight` weighs them (or their nodes), `class_weight` their
                classes, and `validation_split` sets a share of the last graphs aside;
                equal graphs stay together. `shuffle=False` keeps the order of graphs;
                that of a loader is its own.

        Returns:
            Keras' `History`.
        """
        self._before_steps()
        inputs = read_inputs("x", x)
        if inputs.kind == BATCHES:
            valid = self._validation_loader(validation_data, sampler)
            kwargs["validation_data"] = as_fit_data(valid, self)
            return super().fit(inputs.data, y, *args, **kwargs)
        names = ("batch_size", "epochs", "verbose", "callbacks")
        kwargs = options_for_graphs(args, names, kwargs)
        inputs, validation_data = self._training_inputs(
            inputs, y, validation_data, kwargs
        )
        loader = self.loader(
            inputs,
            shuffle=bool(kwargs.get("shuffle", True)),
            seed=seed,
            adapt=True,
            sampler=sampler,
        )
        # The loader orders the batches itself, reproducibly.
        kwargs["shuffle"] = False
        check_labelled(self, loader, "x")
        self.adapt(loader)
        if not self.optimizer.built:
            # TensorFlow traces a step twice if it creates variables.
            self.optimizer.build(self.trainable_variables)
        kwargs = with_callbacks(self, loader, kwargs, seed)
        self._begin(loader, kwargs)
        if kwargs.get("verbose", "auto"):
            whole = inputs.kind == LOADER or sampler is not None
            say_batches(loader, None if whole else self.preprocessor.plan)
        valid = self._validation_loader(validation_data, sampler)
        kwargs["validation_data"] = as_fit_data(valid, self)
        return fit_resumable(self, super().fit, loader, **kwargs)

    def labelled(
        self, name: str, x: Data, y: Labels = None, *args: Labels, **kwargs: bool
    ) -> tuple:
        """Return graphs with labels and weights; see `labelled_graphs.labelled`."""
        from keras_bandgnn.models.labelled_graphs import labelled

        return labelled(self, name, x, y, *args, **kwargs)

    def _training_inputs(
        self,
        inputs: Inputs,
        y,
        validation_data,
        options: dict,
        weights: tuple[str, ...] = ("sample_weight", "class_weight"),
    ) -> tuple:
        """Return inputs with labels and weights, and the validation data.

        Args:
            inputs: `x` of `fit`.
            y: Its labels.
            validation_data: As for `fit`. As in Keras, it replaces a split.
            options: Options of `fit`, of which a split and the weights are removed.
            weights: Names of these.
        """
        split = options.pop("validation_split", None) or None
        graphs, valid = self.labelled(
            "x",
            inputs,
            y,
            **{name: options.pop(name, None) for name in weights},
            split=split if validation_data is None else None,
            adapt=True,
        )
        return inputs.with_graphs(graphs), validation_data if valid is None else valid

    def _validation_inputs(self, data) -> Inputs:
        """Return validation graphs with their labels, or data of Keras."""
        inputs, labels = read_validation(data)
        if not labels:
            return inputs
        return inputs.with_graphs(self.labelled("validation_data", inputs, *labels)[0])

    def _validation_loader(self, data, sampler=None):
        """Return a loader of validation graphs, or data of Keras unchanged."""
        if data is None:
            return None
        try:
            inputs = self._validation_inputs(data)
            if inputs.kind == BATCHES:
                return inputs.data
            loader = self.loader(inputs, training=False, sampler=sampler)
            check_labelled(self, loader, "validation_data")
            return loader
        except ValueError as error:
            if "validation_data" in str(error):
                raise
            raise ValueError(f"In validation_data: {error}") from error

    @one_thread
    def evaluate(
        self,
        x: Data | None = None,
        y: Labels = None,
        *args: int | str | Callbacks,
        sampler: Sampler | None = None,
        **kwargs: Unpack[EvaluateOptions],
    ) -> Results:
        """Evaluate on graphs, as `keras.Model.evaluate` does on arrays.

        Args:
            x: Graphs, raw data or data of Keras, as for `fit`.
            y: Labels, as for `fit`.
            *args: Passed on; for graphs `batch_size`, which must be None, and
                `verbose`.
            sampler: As for `fit`.
            **kwargs: Passed on, such as `return_dict`; `sample_weight` as for `fit`.
        """
        self._before_steps()
        inputs = read_inputs("x", x)
        if inputs.kind == BATCHES:
            return super().evaluate(inputs.data, y, *args, **kwargs)
        kwargs = options_for_graphs(args, ("batch_size", "verbose"), kwargs)
        weight = kwargs.pop("sample_weight", None)
        inputs = inputs.with_graphs(self.labelled("x", inputs, y, weight)[0])
        loader = self.loader(inputs, training=False, sampler=sampler)
        check_labelled(self, loader, "x")
        kwargs = with_callbacks(self, loader, kwargs)
        if not kwargs.get("_use_cached_eval_dataset"):
            self._begin(loader, kwargs, training=False)
        return super().evaluate(as_fit_data(loader, self), None, **kwargs)

    @one_thread
    def predict(
        self,
        x: Data,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        steps: int | None = None,
        callbacks: Callbacks = None,
    ) -> list | Results:
        """Predict for graphs, or for data of Keras.

        Args:
            x: Graphs, raw data that the task's encoder converts, or data of Keras.
                Without callbacks 65,536 items of raw data are graphs at a time.
            batch_size: As for Keras; None for graphs.
            verbose: 1 or 2 for a progress bar; `"auto"` has none for graphs.
            steps: As for Keras; None for graphs.
            callbacks: Callbacks, of which `on_predict_...` are called.

        Returns:
            For graphs a list with one array per graph, in the order of the graphs;
            None for graphs that the batcher drops, and for items that the encoder
            skips.
        """
        self._before_steps()
        if isinstance(x, Loader) and x.item == "sequence":
            raise ValueError(
                "Expected graphs. Received: a SequenceLoader, whose rows are cut from "
                "graphs. Write loader.predict(task), which puts them back."
            )
        inputs = read_inputs("x", x)
        if inputs.kind == BATCHES:
            return super().predict(inputs.data, batch_size, verbose, steps, callbacks)
        names = ("batch_size", "verbose", "steps", "callbacks")
        options_for_graphs((batch_size, verbose, steps, callbacks), names, {})
        predictions = []
        # Callbacks see one loader of all graphs.
        parts = inputs.parts() if callbacks is None else [(0, inputs)]
        for first, part in parts:
            part = read_graphs(self, "x", part, first=first)
            if part.is_empty:
                predictions += part.spread([])
                continue
            loader = self.loader(part, training=False)
            out: list = [None] * int(loader.starts[-1])
            ordered = self.in_given_order(part.data, loader)
            for graph, rows in self.outputs(loader, part.data, verbose, callbacks):
                out[graph] = ordered(graph, rows)
            predictions += part.spread(self.distribution.gather(out))
        return predictions

    def outputs(
        self,
        loader: Loader,
        graphs: Graphs,
        verbose: int | str = 0,
        callbacks: Callbacks = None,
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield the position of each graph in a loader, and the output for it.

        Args:
            loader: The graphs, as `loader` returns them.
            graphs: Their source; see `prediction_batches`.
            verbose: See `Task.predict`.
            callbacks: See `Task.predict`.
        """
        self._before_steps()
        self._begin(loader, {}, training=False)
        if verbose == "auto" or not self.distribution.is_main:
            verbose = 0
        callbacks = attach_loader(callbacks, loader)
        if not callbacks and not verbose:
            # A list starts a thread.
            callbacks = keras.callbacks.Callback()
        elif not isinstance(callbacks, keras.callbacks.CallbackList):
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
        for step, batch in enumerate(self.batches(loader, graphs)):
            callbacks.on_predict_batch_begin(step)
            with exclusive(self, "predict"):
                values = self.distribution.predict_on_batch(self, batch)
            yield from unbatch(values, batch, self.output_level)
            callbacks.on_predict_batch_end(step, {"outputs": values})
            if self.stop_predicting:
                break
        callbacks.on_predict_end()

    def batches(self, loader: Loader, graphs: Graphs) -> Iterator[Batch]:
        """Yield the batches of a loader for predictions; see `prediction_batches`."""
        as_loaded = isinstance(graphs, Loader) or self.distribution.several
        batcher = None if as_loaded else self.preprocessor.batcher
        return prediction_batches(loader, batcher)

    def in_given_order(self, graphs: Graphs, loader: Loader) -> Callable:
        """Return a function that maps (position, rows) of a graph to result rows."""
        del graphs, loader
        return lambda graph, rows: rows

    def _begin(self, loader: Loader, options: dict, training: bool = True) -> None:
        """Synchronise all processes, and let only one print."""
        self.distribution.check_same(loader)
        self.distribution.same_weights(self, optimizer=training)
        if not self.distribution.is_main:
            options["verbose"] = 0

    def encoder_advice(self) -> str:
        """Return advice on how the encoder reads labels, for errors; empty if none.

        It begins with a space.
        """
        encoder = None if self.preprocessor is None else self.preprocessor.encoder
        advice = "" if encoder is None else encoder.label_advice()
        return advice and f" {advice}"

    def get_config(self) -> dict:
        """Return the configuration: backbone, preprocessor and head."""
        with compat.without_tensorflow_checks():
            backbone = keras.saving.serialize_keras_object(self.backbone)
            preprocessor = None
            if self.preprocessor is not None:
                preprocessor = keras.saving.serialize_keras_object(self.preprocessor)
        config = {"name": self.name, "backbone": backbone, "preprocessor": preprocessor}
        if not self.compiled:
            # A file without an optimiser restores a task without one.
            config["compile"] = False
        return {**config, **self.head_config()}

    @property
    def head_layers(self) -> list[keras.layers.Layer]:
        """The layers beyond the backbone whose weights are in presets."""
        return [self.head]

    def head_config(self) -> dict:
        """Return arguments of the constructor beyond backbone and preprocessor."""
        return {}

    @classmethod
    def from_config(cls, config: dict) -> Self:
        """Build the model from `get_config()`."""
        config = dict(config)
        for name in ("backbone", "preprocessor"):
            if isinstance(config.get(name), dict):
                config[name] = keras.saving.deserialize_keras_object(config[name])
        return cls(**config)
