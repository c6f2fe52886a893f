"""`EntryModel`: a model whose losses and metrics ignore padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import keras
from keras import ops

from keras_bandgnn import compat
from keras_bandgnn.models.distributed_model import DistributedModel
from keras_bandgnn.models.inputs import check_batch
from keras_bandgnn.models.labels import Labels
from keras_bandgnn.models.losses import EntryLoss, LossTracker
from keras_bandgnn.models.metrics import entry_metrics
from keras_bandgnn.models.step_lock import one_thread
from keras_bandgnn.ops.backend import current as backend

if TYPE_CHECKING:
    from keras_bandgnn.aliases import (
        Batch,
        Data,
        Loss,
        Optimizer,
        Results,
        Tensor,
        Values,
    )


class EntryModel(DistributedModel):
    """A model of batches that applies Keras' losses and metrics to entries.

    Entries are the real graphs, nodes, edges or pairs of a batch, flattened. Subclasses
    set `output_level`, the level of the output rows, and `labels`, which determine the
    losses and metrics that `compile` accepts.
    """

    # Keras would count the tracker twice.
    host_side = (*DistributedModel.host_side, compat.LOSS_TRACKER, "_compile_arguments")
    output_level = "graph"
    # None for Keras' own losses and metrics.
    labels: Labels | None = None
    # Number of parts of the loss, each a mean over different entries.
    loss_parts = 1

    @property
    def program_variant(self) -> object:
        """State beyond the configuration that compiled steps depend on."""
        return None

    def default_optimizer(self) -> Optimizer:
        """Return the optimiser for `compile("auto")`."""
        return "rmsprop"

    def default_loss(self) -> Loss:
        """Return the loss for `compile(loss="auto")`."""

    def default_metrics(self) -> list | None:
        """Return the metrics for `compile(weighted_metrics="auto")`."""

    def compile(
        self,
        optimizer: Optimizer | None = "auto",
        loss: Loss | Mapping | Sequence = "auto",
        loss_weights: float | Sequence[float] | Mapping[str, float] | None = None,
        metrics: Sequence | Mapping | None = None,
        weighted_metrics: str | Sequence | Mapping | None = "auto",
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        jit_compile: bool | str = "auto",
        auto_scale_loss: bool = True,
        record_steps: bool | str = "auto",
    ) -> None:
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
                compile theirs and ignore it. `"auto"` records after 32 steps of a
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
        if loss is None or _is_auto(loss):
            loss = self.default_loss()
        if isinstance(loss, EntryLoss):
            # The loss of a task: `compile(loss=task.loss)`.
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
        # As passed, not as resolved by Keras: files are independent of the backend.
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

    def loss_scale(self, y: Tensor, y_pred: Tensor) -> tuple[Tensor, Tensor]:
        """Return labels and outputs on the scale of the loss."""
        return y, y_pred

    def entries(
        self, x: Batch, y: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return labels, outputs and weights of entries; see `Labels.entries`."""
        if x is None:
            raise ValueError(
                "Expected the batch, which has the padding masks. Received: x=None. "
                "Call compute_loss(x, y, y_pred, sample_weight), and compute_metrics "
                "likewise."
            )
        level = self.output_level if self.output_level in ("node", "edge") else "graph"
        # Only some nodes of sampled batches are read.
        mask = ops.convert_to_tensor(x.get("read", x[level])["mask"])
        weight = ops.cast(mask, y_pred.dtype)
        if sample_weight is not None:
            weights = ops.cast(sample_weight, y_pred.dtype)
            weight = ops.where(mask, ops.reshape(weights, ops.shape(mask)), 0.0)
        return self.labels.entries(y, y_pred, weight)

    def loss_terms(
        self,
        x: Batch,
        y: Tensor,
        y_pred: Tensor,
        sample_weight: Tensor | None,
        training: bool,
    ) -> list:
        """Return (mean over entries, number of them) of each part of the loss."""
        del training
        y, y_pred = self.loss_scale(y, y_pred)
        mask = self.entries(x, y, y_pred, _draw_factors(x))[2]
        y, y_pred, weight = self.entries(x, y, y_pred, sample_weight)
        return self.loss.terms(y, y_pred, weight, mask)

    def compute_loss(
        self,
        x: Batch | None = None,
        y: Tensor | None = None,
        y_pred: Tensor | None = None,
        sample_weight: Tensor | None = None,
        training: bool = True,
    ) -> Tensor:
        """Compute the loss over real entries; its average over devices is the total.

        The return value is for the gradient. The loss in the logs is recorded here,
        too, because only this method has the entries.
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
        loss = sum(compat.added_loss(self, term) for term in [*shared, *more])
        added = sum(ops.sum(term) for term in more) if more else None
        compat.loss_tracker(self).record(terms, added, loss)
        return loss

    def _per_step(self, x, terms: list) -> list:
        """Return the terms of the loss, divided by the mean number of labels per step.

        Steps over parts of a graph have different numbers of labels. Dividing by the
        number in each step would bias the gradient.
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

    def compute_metrics(
        self, x: Batch, y: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return the metrics over real entries."""
        if self.labels is not None and compat.has_compiled_metrics(self):
            # The factors of a sampler apply without weights, too.
            mask = self.entries(x, y, y_pred, _draw_factors(x))[2]
            y, y_pred, weight = self.entries(x, y, y_pred, sample_weight)
            sample_weight = ops.stack([mask, weight], axis=-1)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def load_own_variables(self, store: Values) -> None:
        """Load the variables; the first step then checks all weights of the model."""
        super().load_own_variables(store)
        self._check_weights_once()

    def _check_weights_once(self) -> None:
        # Keras loads the weights of layers after those of the model.
        self.__dict__["_unchecked_weights"] = True

    def _before_steps(self) -> None:
        """Check weights that were loaded, and discard steps that are of no use now.

        Loading weights, or another task over the same backbone, may change the
        computation of the backbone.

        Raises:
            ValueError: If loaded weights are not finite or too large to compute with.
        """
        if self.__dict__.get("_unchecked_weights"):
            from keras_bandgnn.data.weights_files import check_loaded_weights

            check_loaded_weights(
                {w.path: ops.convert_to_numpy(w) for w in self.weights}
            )
            del self.__dict__["_unchecked_weights"]
        variant = self.program_variant
        if self.__dict__.setdefault("_variant", variant) != variant:
            self.__dict__["_variant"] = variant
            compat.forget_programs(self)

    @one_thread
    def train_on_batch(
        self,
        x: Batch,
        y: Tensor | None = None,
        sample_weight: Tensor | None = None,
        class_weight: Mapping[int, float] | None = None,
        return_dict: bool = False,
    ) -> Results:
        """Train on a batch of a loader; see `keras.Model.train_on_batch`."""
        check_batch(x, "train_on_batch", class_weight)
        self._before_steps()
        if backend.on_device is not None and not self.distribution.several:
            x, y, sample_weight = backend.on_device((x, y, sample_weight))
        return super().train_on_batch(x, y, sample_weight, return_dict=return_dict)

    @one_thread
    def test_on_batch(
        self,
        x: Batch,
        y: Tensor | None = None,
        sample_weight: Tensor | None = None,
        return_dict: bool = False,
    ) -> Results:
        """Evaluate a batch of a loader; see `keras.Model.test_on_batch`."""
        check_batch(x, "test_on_batch")
        self._before_steps()
        return super().test_on_batch(x, y, sample_weight, return_dict)

    @one_thread
    def predict_on_batch(self, x: Data) -> Tensor:
        """Return the output for a batch; see `keras.Model.predict_on_batch`."""
        check_batch(x, "predict_on_batch")
        self._before_steps()
        return super().predict_on_batch(x)

    def compile_from_config(self, config: dict) -> None:
        """Compile a model from a file with the arguments that it was saved with."""
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


def _draw_factors(x):
    """Return the factors that correct a sampler's drawing of labels, or None."""
    return None if x is None else x.get("read", {}).get("weight")


def _check_record_steps(record_steps, run_eagerly, jit_compile) -> None:
    """Raise a ValueError for an unknown value, or a conflict with other options."""
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
