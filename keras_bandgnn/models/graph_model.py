"""`GraphModel`: a Keras model that trains on graphs and predicts for them."""

from collections.abc import Callable

import keras
from keras import ops

from keras_bandgnn import compat
from keras_bandgnn.batch import unbatch
from keras_bandgnn.checks import boolean, instance, refuse
from keras_bandgnn.distribution.replica_group import callbacks_of
from keras_bandgnn.graph import Graph
from keras_bandgnn.models import raw_data
from keras_bandgnn.models.backbone import Backbone, check_precision
from keras_bandgnn.models.fitting import (
    Replicated,
    SeedFromEpoch,
    as_fit_data,
    fit_loader,
    follow,
    shown_by,
)
from keras_bandgnn.models.graph_arguments import (
    check_batch,
    is_graphs,
    options_for_graphs,
    resolve_data,
)
from keras_bandgnn.models.label_checks import require_weights
from keras_bandgnn.models.labels import Labels, NumberLabels
from keras_bandgnn.models.losses import EntryLoss, LossTracker
from keras_bandgnn.models.metrics import entry_metrics
from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.preprocessing.encoding.graph_encoder import is_raw, raw_items
from keras_bandgnn.preprocessing.loading.loader import Loader
from keras_bandgnn.preprocessing.loading.shape_buckets import prediction_batches
from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor
from keras_bandgnn.preprocessing.sampling.sampler import Sampler


class GraphModel(Replicated):
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

    # Keras would count the tracker twice.
    host_side = (
        *Replicated.host_side,
        "preprocessor",
        compat.LOSS_TRACKER,
        "_compile_arguments",
    )
    output_level = "graph"
    # None: losses and metrics are Keras' own.
    labels: Labels | None = None
    # Parts of the loss, each the mean over different entries.
    loss_parts = 1
    # Whether only candidates and the slot are read.
    reads_few = False

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: GraphPreprocessor | None = None,
        compile: bool = True,
        **kwargs,
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
        self.backbone = backbone
        self.preprocessor = preprocessor
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

        Constructors of tasks end with it.
        """
        self.build()
        if self._compile_defaults:
            self.compile()

    def __call__(self, *args, **kwargs):
        """Return the output for a batch; `predict` is for graphs."""
        check_batch(args[0] if args else kwargs.get("batch"), "")
        return super().__call__(*args, **kwargs)

    def default_preprocessor(self, graphs) -> GraphPreprocessor:
        """Return the preprocessor of a task that was created without one.

        Args:
            graphs: The first graphs given to the task.
        """
        return GraphPreprocessor(self.backbone.default_layers(graphs))

    def preprocess(self, graphs) -> Loader:
        """Return the batches that `predict` computes for graphs; see `loader`."""
        return self.loader(graphs, training=False)

    def loader(
        self,
        graphs,
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
            sampler: What cuts a large graph into batches; None for whole graphs.
        """
        boolean("adapt", adapt)
        boolean("training", training)
        self.distribution.check_task(self)
        if is_raw(graphs):
            encoded = raw_data.encode(self, raw_items(graphs), adapt)[1]
            encoded.refuse_nothing()
            graphs = encoded.graphs
        if self.preprocessor is None and not isinstance(graphs, Loader):
            self.preprocessor = self.default_preprocessor(graphs)
        if isinstance(graphs, Graph):
            graphs = [graphs]
        if sampler is None and not isinstance(graphs, Loader):
            # Before layers replace the edges, and with them the weights.
            self.backbone.check_weights([], self.preprocessor.edge_weight)
        if sampler is not None:
            graphs = self._sample_loader(graphs, sampler, shuffle, seed)
        elif not isinstance(graphs, Loader):
            graphs = self.preprocessor.loader(
                graphs,
                adapt,
                shuffle=shuffle,
                seed=seed,
                num_edge_types=self.backbone.num_edge_types,
                schedule=self.receptive_field(training),
                width=self.backbone.hidden_dim,
                plan=self.distribution.auto_plan(self, graphs),
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
        self.backbone.check_weights(graphs.parts, graphs.edge_weight)
        self.check(graphs)
        return graphs

    def _sample_loader(self, graphs, sampler, shuffle: bool, seed: int) -> Loader:
        """Return a loader of what a sampler cuts from a graph."""
        from keras_bandgnn.preprocessing.loading.sample_loader import SampleLoader

        name, backbone = type(self).__name__, self.backbone
        if self.output_level not in ("node", "pair"):
            raise ValueError(
                "Expected a task over nodes, such as NodeClassifier, with `sampler`. "
                f"Received: {name}. Leave the sampler out: graphs are batched whole."
            )
        if isinstance(graphs, Loader):
            refuse("x", "a graph, of which the sampler makes batches", graphs)
        if self.preprocessor.edge_weight is not None:
            raise ValueError(
                "Expected a preprocessor without `edge_weight` with a sampler, which "
                "weighs edges itself. Received: edge_weight="
                f"{self.preprocessor.edge_weight!r}. Draw edges in proportion to them: "
                "NeighborSampler(..., edge_weight=...)."
            )
        expected = "a sampler, such as NeighborSampler([15])"
        instance("sampler", sampler, Sampler, expected)
        if sampler.of_neighbours:
            instead = "ClusterSampler or SubgraphSampler"
            if self.output_level == "pair":
                instead = "a MessagePassingBackbone, such as SAGEBackbone"
            backbone.check_hops(sampler.num_hops, instead)
        return SampleLoader(
            self.preprocessor.transform(graphs),
            sampler,
            trimmed=sampler.of_neighbours and backbone.trims_hops,
            rescale=sampler.rescales(backbone.sums_messages),
            shuffle=shuffle,
            seed=seed,
            num_edge_types=backbone.num_edge_types,
            features=self.features_read(),
            classes=not isinstance(self.labels, NumberLabels),
            **self.distribution.loader_options(),
        )

    def receptive_field(self, training: bool):
        """Return the exact schedule of this task, or None; see `ReceptiveField`."""
        if not self.reads_few or not self.distribution.takes_schedules:
            return None
        return self.backbone.receptive_field(training)

    def _check_schedule(self, schedule, training: bool) -> None:
        if schedule is None:
            return
        exact = self.receptive_field(training)
        if exact is None:
            raise ValueError(
                f"Expected a plan without a schedule: {type(self).__name__} over "
                f"{type(self.backbone).__name__} reads all nodes. Received: {schedule}."
            )
        if schedule.steps != exact.steps:
            raise ValueError(
                f"Expected a schedule of {exact.steps} steps, as the backbone has. "
                f"Received: {schedule}."
            )
        if schedule.merge and not exact.merge:
            raise ValueError(
                "Expected ReceptiveField(..., merge=False), as equal nodes of "
                f"{type(self.backbone).__name__} differ in training. Received: "
                f"{schedule}."
            )

    @property
    def program_variant(self):
        """What compiled steps depend on beyond the configuration."""
        return self.backbone.variant

    def features_read(self) -> dict[str, tuple[str, ...]] | None:
        """Return the features that the task reads; see `Backbone.features_read`."""
        return self.backbone.features_read()

    def check(self, loader: Loader) -> None:
        """Raise a ValueError if the graphs do not fit the task."""

    def known_slopes(self, part) -> int:
        """Return how many numbers are known to train on, besides the labels.

        Args:
            part: A `FlatGraphs`.
        """
        return 0

    def check_labels(self, loader: Loader) -> None:
        """Raise a ValueError if the labels do not fit the task."""

    def adapt(self, loader: Loader) -> None:
        """Compute constants that depend on the training graphs, before training.

        They are saved with the task; `check` and predictions change nothing.
        """
        if self.backbone.adapt(loader.parts):
            compat.forget_programs(self)
        self._before_steps()

    def _before_steps(self) -> None:
        """Discard compiled steps if the backbone computes something else by now.

        Weights that were loaded, or other tasks over the same backbone, may have
        changed it.
        """
        variant = self.program_variant
        if self.__dict__.setdefault("_variant", variant) != variant:
            self.__dict__["_variant"] = variant
            compat.forget_programs(self)

    def default_optimizer(self):
        """Return the optimiser of `compile("auto")`."""
        return "rmsprop"

    def default_loss(self):
        """Return the loss of `compile(loss="auto")`."""

    def default_metrics(self) -> list | None:
        """Return the metrics of `compile(weighted_metrics="auto")`."""

    def compile(
        self,
        optimizer="auto",
        loss="auto",
        loss_weights=None,
        metrics=None,
        weighted_metrics="auto",
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        jit_compile="auto",
        auto_scale_loss: bool = True,
        record_steps: bool | str = "auto",
    ):
        """Configure training, as `keras.Model.compile` does, with padding masked.

        Losses and metrics may be names, functions, and objects of Keras or custom ones.
        They see entries, the graphs, nodes or edges of a batch flattened: labels
        [n, 1] and outputs [n, C] of a task over classes, [n, 1] and [n, 1] of one over
        numbers or binary targets; the class of the task documents the outputs.
        Functions, and `call` of losses, return one value per entry.

        Names are resolved to suit the outputs: "sparse_categorical_crossentropy" is
        that of logits. Keras' metrics of probabilities get probabilities. Unsuitable
        losses and metrics raise an error.

        The loss in the logs is the mean over all entries of the epoch, for any
        batching; terms added per step, such as regularisation, are averaged over steps.

        Args:
            optimizer: As for Keras; `"auto"` or None for the task's default.
            loss: As for Keras; `"auto"` or None for the task's default. All reductions
                are the mean over entries, except `"sum"`, which training then minimises
                (the logs still have the mean).
            loss_weights: A number that scales the loss. With several targets, a list or
                a dict by name of the target: the loss is the weighted sum of those of
                the targets, each the mean over its labels, as is that of a list or
                dict as `loss`. Logs have that of each target with a name and a weight
                above 0, without the weight, as `<target>_loss`.
            metrics: Names, functions or metrics over all real entries with a label, as
                in Keras regardless of `sample_weight`. In a dict by name of the target
                each sees that target, and is named `<target>_<metric>`.
            weighted_metrics: The same, with weights. `"auto"` for the task's defaults
                if `metrics` is None.
            run_eagerly: As for Keras.
            steps_per_execution: As for Keras.
            jit_compile: As for Keras.
            auto_scale_loss: As for Keras.
            record_steps: Which steps of `fit`, `evaluate` and `predict` torch traces
                once per shape of batch and replays without Python; other backends
                compile theirs and ignore it. `"auto"` records after 64 steps of a
                shape if all code of the step is of Keras or this library, and stays
                eager otherwise; a line of the logger "keras_bandgnn" says which, and
                names the first object of other code. A record ends when an attribute
                changes that the step reads. True records from the first step, and
                raises an error where it cannot. `"cuda_graphs"` does so, too, and
                replays steps on a GPU as CUDA graphs. False records nothing.

        Raises:
            ValueError: For losses and metrics that do not fit the labels, and for
                `record_steps` with `run_eagerly` or `jit_compile`.
        """
        _check_record_steps(record_steps, run_eagerly, jit_compile)
        # As for Keras, None is the same as an omitted argument.
        if optimizer is None or _is_auto(optimizer):
            optimizer = self.default_optimizer()
        optimizer = keras.optimizers.get(optimizer)
        own = loss is None or _is_auto(loss)
        loss = self.default_loss() if own else loss
        if isinstance(loss, EntryLoss):
            # That of a task: `compile(loss=task.loss)`.
            loss = loss.identifier
        if _is_auto(weighted_metrics):
            weighted_metrics = None if metrics is not None else self.default_metrics()
        options = {
            "run_eagerly": run_eagerly,
            "steps_per_execution": steps_per_execution,
            "jit_compile": jit_compile,
            "auto_scale_loss": auto_scale_loss,
        }
        self.record_steps = record_steps
        # As passed, not as resolved by Keras: other backends load files, too.
        self._compile_arguments = {
            "optimizer": optimizer,
            "loss": loss,
            "loss_weights": loss_weights,
            "metrics": metrics,
            "weighted_metrics": weighted_metrics,
            **options,
            "record_steps": record_steps,
        }
        if self.labels is not None:
            parts, weights = self.loss_parts, {}
            if loss is not None:
                loss, loss_weights = EntryLoss(loss, loss_weights, self.labels), None
                parts += len(loss.parts) - 1
                weights = loss.target_weights
            # Keras passes weights only to these. This order gives the same names as
            # Keras would.
            weighted_metrics = [
                *entry_metrics(metrics, self.labels, weighted=False),
                *entry_metrics(weighted_metrics, self.labels, weighted=True),
            ] or None
            metrics = None
        # Keras does not reset omitted options.
        compat.forget_compiled(self)
        compat.forget_steps(self)
        compat.set_built(self)
        super().compile(
            optimizer, loss, loss_weights, metrics, weighted_metrics, **options
        )
        if self.labels is not None:
            # Keras 3.15 creates its tracker in `compile`; the steps of all backends
            # call its `update_state`.
            group = self.distribution
            factor = group.size if group.sums_losses else 1
            tracker = LossTracker(parts, factor, weights)
            setattr(self, compat.LOSS_TRACKER, tracker)

    def loss_scale(self, y, y_pred):
        """Return labels and outputs as the loss sees them."""
        return y, y_pred

    def entries(self, x, y, y_pred, sample_weight=None):
        """Return labels, outputs and weights of entries; see `Labels.entries`."""
        if x is None:
            raise ValueError(
                "Expected the batch, which has the padding masks. Received: x=None. "
                "Call compute_loss(x, y, y_pred, sample_weight), and compute_metrics "
                "likewise."
            )
        level = self.output_level if self.output_level in ("node", "edge") else "graph"
        # Of sampled batches some nodes are read.
        mask = ops.convert_to_tensor(x.get("read", x[level])["mask"])
        weight = ops.cast(mask, y_pred.dtype)
        if sample_weight is not None:
            weights = ops.cast(sample_weight, y_pred.dtype)
            weight = ops.where(mask, ops.reshape(weights, ops.shape(mask)), 0.0)
        return self.labels.entries(y, y_pred, weight)

    def loss_terms(self, x, y, y_pred, sample_weight, training) -> list:
        """Return (mean over entries, number of them) of each part of the loss."""
        del training
        y, y_pred = self.loss_scale(y, y_pred)
        mask = self.entries(x, y, y_pred, _draw_factors(x))[2]
        y, y_pred, weight = self.entries(x, y, y_pred, sample_weight)
        return self.loss.terms(y, y_pred, weight, mask)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """Compute the loss over real entries; its average over devices is the total.

        The return value is for the gradient. The loss in the logs is recorded here,
        too, as the entries are known only here.
        """
        if self.labels is None or self.loss is None:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        terms = self.loss_terms(x, y, y_pred, sample_weight, training)
        share = self.distribution.share
        shared = [share(mean, weight) for mean, weight in self._per_step(x, terms)]
        if self.loss.is_sum:
            mean, weight = terms[0]
            shared[0] = self.distribution.total(mean * weight)
        more = list(self.losses)
        loss = sum(compat.added_loss(self, each) for each in [*shared, *more])
        added = sum(ops.sum(each) for each in more) if more else None
        compat.loss_tracker(self).record(terms, added, loss)
        return loss

    def _per_step(self, x, terms: list) -> list:
        """Return the terms of the loss over the labels that a step has in the mean.

        A step over a part of a graph has more or fewer of them. Divided by their number
        its gradient would be biased, so it is divided by the mean over all steps.
        """
        read = x.get("read", {}) if self.output_level == "node" else {}
        if "count" not in read:
            return terms
        count, total = (
            ops.sum(ops.convert_to_tensor(read[name]), axis=0)
            for name in ("count", "total")
        )
        expected = self.loss.expected(count, total)
        return [
            (ops.divide_no_nan(mean * weight, number), number)
            for (mean, weight), number in zip(terms, expected, strict=True)
        ]

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Return the metrics over real entries."""
        if self.labels is not None and compat.has_compiled_metrics(self):
            # How often a sampler draws an entry counts without weights, too.
            mask = self.entries(x, y, y_pred, _draw_factors(x))[2]
            y, y_pred, weight = self.entries(x, y, y_pred, sample_weight)
            sample_weight = ops.stack([mask, weight], axis=-1)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def fit(
        self,
        x=None,
        y=None,
        *args,
        validation_data=None,
        seed: int = 0,
        sampler: Sampler | None = None,
        **kwargs,
    ):
        """Train on graphs, as `keras.Model.fit` does on arrays.

        A line before the epochs says which batches there are, how full they are, and
        which plan carries the edges.

        Args:
            x: Graphs; raw data that an encoder converts, such as SMILES strings, ASE
                atoms, networkx graphs or a data frame; or what Keras takes. Without an
                encoder in the preprocessor, `fit` puts the one that suits there.
            y: Labels of graphs or raw data, in their order, see `with_labels`; names of
                columns if `x` is a data frame; None if graphs hold their labels.
            *args: Passed on; for graphs `batch_size`, which must be None, `epochs`,
                `verbose` and `callbacks`.
            validation_data: Graphs with labels, a tuple (x, y) or (x, y,
                sample_weight), or what Keras takes.
            seed: Seed of the order of the graphs and, on torch, of dropout. The
                caller's random states stay as they are.
            sampler: Of tasks over nodes, what cuts a large graph into batches, such as
                `NeighborSampler`; also for the validation data, with the same draws in
                every epoch. None for whole graphs.
            **kwargs: Passed on, such as `epochs` and `callbacks`. For graphs
                `sample_weight` weighs them (or their nodes), `class_weight` their
                classes, and `validation_split` sets a share of the last graphs aside;
                equal graphs stay together. `shuffle=False` keeps the order of graphs;
                that of a loader is its own.

        Returns:
            Keras' `History`.
        """
        self._before_steps()
        x = resolve_data("x", x)
        if is_graphs(x) or is_raw(x):
            names = ("batch_size", "epochs", "verbose", "callbacks")
            kwargs = options_for_graphs(args, names, kwargs)
            args = ()
            weights = {
                n: kwargs.pop(n, None) for n in ("sample_weight", "class_weight")
            }
            share = kwargs.pop("validation_split", None) or None
            # As in Keras, validation data replaces a split.
            share = share if validation_data is None else None
            x, valid = self.labelled("x", x, y, split=share, adapt=True, **weights)
            y, validation_data = None, validation_data if valid is None else valid
            shuffle = bool(kwargs.get("shuffle", True))
            # The loader orders the batches itself, reproducibly.
            kwargs["shuffle"] = False
            # The plan of a loader of the caller is not the preprocessor's.
            other_plan = isinstance(x, Loader) or sampler is not None
            x = self.loader(x, shuffle=shuffle, seed=seed, adapt=True, sampler=sampler)
            x = self._labelled(x, "x")
            self.adapt(x)
            if not self.optimizer.built:
                # TensorFlow traces a step that makes variables twice.
                self.optimizer.build(self.trainable_variables)
            callbacks = kwargs.pop("callbacks", None) or []
            callbacks = (
                callbacks if isinstance(callbacks, list | tuple) else [callbacks]
            )
            callbacks = callbacks_of(self.distribution, callbacks)
            if self.distribution.is_main:
                kwargs["verbose"], callbacks = shown_by(kwargs, callbacks)
            kwargs["callbacks"] = [SeedFromEpoch(x, seed), *follow(callbacks, x)]
            self._begin(x, kwargs)
            if kwargs.get("verbose", "auto"):
                self._say_batches(x, other_plan)
        validation_data = self._validation_data(validation_data, sampler)
        kwargs["validation_data"] = as_fit_data(validation_data, self)
        if isinstance(x, Loader):
            return fit_loader(self, super().fit, x, **kwargs)
        return super().fit(as_fit_data(x, self), y, *args, **kwargs)

    def labelled(
        self,
        name: str,
        x,
        y=None,
        sample_weight=None,
        class_weight=None,
        split: float | None = None,
        adapt: bool = False,
    ) -> tuple:
        """Return graphs with labels and weights; see `raw_data.labelled`."""
        return raw_data.labelled(
            self, name, x, y, sample_weight, class_weight, split, adapt
        )

    def _validation_data(self, data, sampler=None):
        """Return a loader of validation graphs; other data as it is."""
        try:
            data = raw_data.validation_graphs(self, data)
            if is_graphs(data):
                data = self.loader(data, training=False, sampler=sampler)
                data = self._labelled(data, "validation_data")
            return data
        except ValueError as error:
            if "validation_data" in str(error):
                raise
            raise ValueError(f"In validation_data: {error}") from error

    def evaluate(self, x=None, y=None, *args, sampler: Sampler | None = None, **kwargs):
        """Evaluate on graphs, as `keras.Model.evaluate` does on arrays.

        Args:
            x: Graphs, raw data or what Keras takes, as for `fit`.
            y: Labels, as for `fit`.
            *args: Passed on; for graphs `batch_size`, which must be None, and
                `verbose`.
            sampler: As for `fit`.
            **kwargs: Passed on, such as `return_dict`; `sample_weight` as for `fit`.
        """
        self._before_steps()
        x = resolve_data("x", x)
        if is_graphs(x) or is_raw(x):
            kwargs = options_for_graphs(args, ("batch_size", "verbose"), kwargs)
            args = ()
            x, _ = self.labelled("x", x, y, kwargs.pop("sample_weight", None))
            y = None
            x = self.loader(x, training=False, sampler=sampler)
            x = self._labelled(x, "x")
            callbacks = kwargs.get("callbacks")
            if self.distribution.is_main:
                kwargs["verbose"], callbacks = shown_by(kwargs, callbacks)
            kwargs["callbacks"] = follow(callbacks, x)
            if not kwargs.get("_use_cached_eval_dataset"):
                self._begin(x, kwargs, training=False)
        return super().evaluate(as_fit_data(x, self), y, *args, **kwargs)

    def predict(self, x, batch_size=None, verbose="auto", steps=None, callbacks=None):
        """Predict for graphs, or for what Keras takes.

        Args:
            x: Graphs, raw data that the task's encoder converts, or what Keras takes.
            batch_size: What Keras takes; None for graphs.
            verbose: 1 or 2 for a progress bar; `"auto"` has none for graphs.
            steps: What Keras takes; None for graphs.
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
        x = resolve_data("x", x)
        if not is_graphs(x) and not is_raw(x):
            return super().predict(x, batch_size, verbose, steps, callbacks)
        options = {
            "batch_size": batch_size,
            "verbose": verbose,
            "steps": steps,
            "callbacks": callbacks,
        }
        options_for_graphs((), (), options)
        items = raw_data.as_items(self, "x", x)
        if items.graphs is None:
            return items.spread([])
        loader = self.loader(items.graphs, training=False)
        out: list = [None] * int(loader.starts[-1])
        ordered = self.in_given_order(items.graphs, loader)
        for graph, rows in self.outputs(loader, items.graphs, verbose, callbacks):
            out[graph] = ordered(graph, rows)
        return items.spread(self.distribution.gather(out))

    def outputs(self, loader: Loader, graphs, verbose=0, callbacks=None):
        """Yield the position of each graph in a loader, and the output for it.

        Args:
            loader: The graphs, as `loader` returns them.
            graphs: What they were made of; see `prediction_batches`.
            verbose: See `Task.predict`.
            callbacks: See `Task.predict`.
        """
        self._before_steps()
        self._begin(loader, {}, training=False)
        if verbose == "auto" or not self.distribution.is_main:
            verbose = 0
        callbacks = follow(callbacks, loader)
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
        for step, batch in enumerate(self.batches(loader, graphs)):
            callbacks.on_predict_batch_begin(step)
            values = self.distribution.predict_on_batch(self, batch)
            yield from unbatch(values, batch, self.output_level)
            callbacks.on_predict_batch_end(step, {"outputs": values})
            if self.stop_predicting:
                break
        callbacks.on_predict_end()

    def batches(self, loader: Loader, graphs):
        """Yield the batches of a loader for predictions; see `prediction_batches`."""
        as_loaded = isinstance(graphs, Loader) or self.distribution.several
        batcher = None if as_loaded else self.preprocessor.batcher
        return prediction_batches(loader, batcher)

    def train_on_batch(
        self, x, y=None, sample_weight=None, class_weight=None, return_dict=False
    ):
        """Train on a batch of a loader; see `keras.Model.train_on_batch`."""
        check_batch(x, "train_on_batch", class_weight)
        self._before_steps()
        if backend.on_device is not None and not self.distribution.several:
            x, y, sample_weight = backend.on_device((x, y, sample_weight))
        return super().train_on_batch(x, y, sample_weight, return_dict=return_dict)

    def test_on_batch(self, x, y=None, sample_weight=None, return_dict=False):
        """Evaluate a batch of a loader; see `keras.Model.test_on_batch`."""
        check_batch(x, "test_on_batch")
        self._before_steps()
        return super().test_on_batch(x, y, sample_weight, return_dict)

    def predict_on_batch(self, x):
        """The output for a batch of a loader; see `keras.Model.predict_on_batch`."""
        check_batch(x, "predict_on_batch")
        self._before_steps()
        return super().predict_on_batch(x)

    def in_given_order(self, graphs, loader: Loader) -> Callable:
        """From (position, rows) of a graph to its rows in the order of `predict`."""
        del graphs, loader
        return lambda graph, rows: rows

    def _begin(self, loader: Loader, options: dict, training: bool = True) -> None:
        """All processes begin alike, and one of them prints."""
        self.distribution.check_same(loader)
        self.distribution.same_weights(self, optimizer=training)
        if not self.distribution.is_main:
            options["verbose"] = 0

    def _say_batches(self, loader: Loader, other_plan: bool) -> None:
        """Print in a line the batches, how full they are, and the plan and why."""
        if not keras.utils.is_interactive_logging_enabled():
            return
        line = f"Batches: {loader.summary()}"
        if loader.plan.keys:
            line += f"; plan: {loader.plan}"
            if not other_plan and self.preprocessor.plan == "auto":
                from keras_bandgnn.planning.plan_choice import reason_of_auto

                line += f", {reason_of_auto(loader.num_hosts)}"
        print(line)

    def _labelled(self, loader: Loader, name: str) -> Loader:
        if not self.compiled:
            raise ValueError(
                "Expected a compiled task. Received: a task that was created with "
                "compile=False. Call task.compile() before fit and evaluate."
            )
        if not loader.has_labels:
            pair = "fit(x, y)" if name == "x" else f"{name}=(x, y)"
            raise ValueError(
                f"Expected the graphs in `{name}` to have labels. Received: graphs "
                f"with label=None. Set Graph(..., label=...), or pass labels: {pair}."
                f"{self.encoder_advice()}"
            )
        self.check_labels(loader)
        if loader.pairs is None:
            require_weights(self, loader.parts)
        return loader

    def encoder_advice(self) -> str:
        """Return how the encoder gives labels that graphs lack; empty if it has none.

        It begins with a space.
        """
        encoder = None if self.preprocessor is None else self.preprocessor.encoder
        advice = "" if encoder is None else encoder.label_advice()
        return advice and f" {advice}"

    def compile_from_config(self, config: dict) -> None:
        """Compile a model that was read from a file as it was when saved."""
        config = dict(config)
        trained = config.pop("optimizer_built", True)
        if config.pop("backend", None) != keras.backend.backend():
            config["jit_compile"] = "auto"
        config = compat.portable_optimizers(config)
        self.compile(**keras.saving.deserialize_keras_object(config))
        if trained:
            self.optimizer.build(self.trainable_variables)

    def get_compile_config(self) -> dict | None:
        """Return the arguments of `compile`, and whether training has begun."""
        if not self.compiled:
            return None
        arguments = keras.saving.serialize_keras_object(self._compile_arguments)
        return {
            **compat.portable_optimizers(arguments),
            "optimizer_built": self.optimizer.built,
            "backend": keras.backend.backend(),
        }

    def get_config(self) -> dict:
        """Return the configuration: backbone, preprocessor and head."""
        with compat.without_tensorflow_checks():
            backbone = keras.saving.serialize_keras_object(self.backbone)
            preprocessor = None
            if self.preprocessor is not None:
                preprocessor = keras.saving.serialize_keras_object(self.preprocessor)
        config = {
            "name": self.name,
            "backbone": backbone,
            "preprocessor": preprocessor,
        }
        if not self.compiled:
            # A file without an optimiser needs a task without one.
            config["compile"] = False
        return {**config, **self.head_config()}

    @property
    def head_layers(self) -> list[keras.layers.Layer]:
        """The layers beyond the backbone whose weights presets keep."""
        return [self.head]

    def head_config(self) -> dict:
        """Return arguments of the constructor beyond backbone and preprocessor."""
        return {}

    @classmethod
    def from_config(cls, config: dict) -> "GraphModel":
        """Build the model from `get_config()`."""
        config = dict(config)
        for name in ("backbone", "preprocessor"):
            if isinstance(config.get(name), dict):
                config[name] = keras.saving.deserialize_keras_object(config[name])
        return cls(**config)


def _draw_factors(x):
    """Return the factors of labels by how often a sampler draws them, or None."""
    return None if x is None else x.get("read", {}).get("weight")


def _check_record_steps(record_steps, run_eagerly, jit_compile) -> None:
    """Raise a ValueError for a choice that `compile` does not know or cannot meet."""
    choices = ("auto", True, False, "cuda_graphs")
    if not isinstance(record_steps, bool | str) or record_steps not in choices:
        raise ValueError(
            "Expected `record_steps` to be 'auto', True, False or 'cuda_graphs'. "
            f"Received: record_steps={record_steps!r}."
        )
    required = record_steps not in ("auto", False)
    if required and keras.backend.backend() == "torch":
        for name, value in (("run_eagerly", run_eagerly), ("jit_compile", jit_compile)):
            if value is True:
                raise ValueError(
                    f"Expected record_steps='auto' or False with {name}=True, as such "
                    f"steps are not recorded. Received: record_steps={record_steps!r}."
                )


def _is_auto(argument) -> bool:
    return isinstance(argument, str) and argument == "auto"
