"""`RegressionTask`: a task over numbers, one or several targets with their scales."""

from __future__ import annotations

import logging
import types
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Unpack

import keras
import numpy as np
from keras import ops

from keras_bandgnn.checks import boolean, positive_int
from keras_bandgnn.layers.target_normalizer import TargetNormalizer, target_labels
from keras_bandgnn.models.error_table import as_table, labelled_outputs
from keras_bandgnn.models.label_checks import distinct_names, require_labels
from keras_bandgnn.models.labels import NumberLabels
from keras_bandgnn.models.task import Task, refuse_preprocessor
from keras_bandgnn.preprocessing.loading.loader import Loader

if TYPE_CHECKING:
    from keras_bandgnn.aliases import (
        Batch,
        BatchShape,
        Data,
        Frame,
        Labels,
        Loss,
        Optimizer,
        Shape,
        TaskOptions,
        Tensor,
    )
    from keras_bandgnn.data.flat import FlatGraphs
    from keras_bandgnn.models.backbone import Backbone
    from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor

# Limit of float32, with room for errors twice as large as the labels.
_MOST_SQUARES = float(np.finfo(np.float32).max) / 4
# Distance of labels from those of a normaliser, from which on `fit` warns.
_MOST_DEVIATIONS = 3
# Graphs of each part that are compared with it.
_SAMPLE = 1000
_LOG = logging.getLogger(__name__)


class RegressionTask(Task):
    """Predicts D numbers per graph, node or edge, in the units of the labels.

    Base of `GraphRegressor`, `NodeRegressor` and `EdgeRegressor`, which set
    `output_level`, a head, and `normalizer`. The loss sees labels and outputs divided
    by the normaliser's `std`. Labels that are NaN are ignored, each target by itself.

    Args:
        backbone: The model from a batch to node states.
        num_targets: D.
        preprocessor: `GraphPreprocessor` of graphs, see `Task`.
        target_names: Names of the targets.
        **kwargs: Passed to `Task`.
    """

    # Not a class attribute, which torch would return instead of the layer.
    normalizer: TargetNormalizer | None

    def __init__(
        self,
        backbone: Backbone,
        num_targets: int = 1,
        preprocessor: GraphPreprocessor | None = None,
        target_names: Iterable[str] | None = None,
        **kwargs: Unpack[TaskOptions],
    ):
        refuse_preprocessor("num_targets", num_targets)
        super().__init__(backbone, preprocessor, **kwargs)
        self.num_targets = positive_int("num_targets", num_targets)
        self.target_names = distinct_names(
            "target_names", target_names, self.num_targets, "num_targets"
        )
        self.labels = NumberLabels(self.num_targets, self.target_names)

    def build(self, input_shape: BatchShape | None = None) -> None:
        """Build the weights of the head and the constants of the normaliser."""
        self.head.build((None, None, self.backbone.hidden_dim))
        targets = (None, None, self.num_targets)
        if self.normalizer is not None and not self.normalizer.built:
            self.normalizer.build(targets)
        elif self.normalizer is not None:
            self.normalizer.check_targets(self.num_targets)
        self.built = True

    def compute_output_shape(self, input_shape: BatchShape) -> Shape:
        """Return [G, M, D], of M graphs, nodes or edges."""
        return (*self.rows_shape(input_shape), self.num_targets)

    def denormalized(self, values: Tensor, batch: Batch) -> Tensor:
        """Return outputs of the head in the units of the labels."""
        if self.normalizer is None:
            return values
        return self.normalizer(values, batch)

    def default_optimizer(self) -> Optimizer:
        """Return Adam with rate 1e-3."""
        return keras.optimizers.Adam(1e-3)

    def default_loss(self) -> Loss:
        """Return the mean squared error over known labels, on the normal scale."""
        return keras.losses.MeanSquaredError()

    def default_metrics(self) -> list:
        """Return MAE and RMSE over known labels, in their units.

        Targets with names also have an MAE each, `<name>_mae`.
        """
        metrics = [
            keras.metrics.MeanAbsoluteError(name="mae"),
            keras.metrics.RootMeanSquaredError(name="rmse"),
        ]
        if self.target_names is not None and self.num_targets > 1:
            metrics.append({name: "mae" for name in self.target_names})
        return metrics

    def loss_scale(self, y: Tensor, y_pred: Tensor) -> tuple[Tensor, Tensor]:
        """Divide by the normaliser's `std`; metrics are in the units of the labels."""
        if self.normalizer is None:
            return y, y_pred
        scale = ops.convert_to_tensor(self.normalizer.std)
        y = ops.reshape(ops.cast(y, y_pred.dtype), ops.shape(y_pred))
        return y / scale, y_pred / scale

    def check(self, loader: Loader) -> None:
        """Raise a ValueError if graphs lack inputs of the normaliser."""
        super().check(loader)
        if self.normalizer is not None:
            for part in loader.parts:
                self.normalizer.check(part)

    def check_labels(self, loader: Loader) -> None:
        """Raise a ValueError if the labels are not D numbers per graph (node, edge)."""
        level, num_labels = self.output_level, 0
        for part in loader.parts:
            labels = target_labels(part, level)
            width = labels.shape[1]
            if width != self.num_targets:
                raise ValueError(
                    f"Expected labels with {self.num_targets} numbers per {level}, as "
                    f"num_targets={self.num_targets}. Received: {width}. Set "
                    f"{type(self).__name__}(..., num_targets=...)."
                )
            if np.nansum(np.square(labels)) > _MOST_SQUARES:
                raise ValueError(
                    "Expected labels whose squares add up to a float32, as losses and "
                    "metrics need them. Received: a label of size "
                    f"{np.nanmax(np.abs(labels)):g}. Give them in a larger unit."
                )
            num_labels += np.isfinite(labels).sum() + self.known_slopes(part)
        require_labels(num_labels, level, "NaN")

    def adapt(self, loader: Loader) -> None:
        """Adapt the backbone and the normaliser to the training graphs, once."""
        super().adapt(loader)
        if self.normalizer is None:
            return
        if not self.normalizer.is_adapted:
            self.normalizer.adapt(self.learnt_labels(loader))
            return
        some = [part.take(np.arange(min(len(part), _SAMPLE))) for part in loader.parts]
        some = self.learnt_labels(types.SimpleNamespace(parts=some))
        distance = self.normalizer.distance(some)
        if distance > _MOST_DEVIATIONS:
            _LOG.warning(
                "The labels are %.3g standard deviations from the mean of those that "
                "the normaliser of %s was adapted to (mean %s, deviation %s), so "
                "training may not converge. For labels of another kind or unit load "
                "the preset with num_targets=%d, which makes a new head, or write "
                'normalizer="auto".',
                distance,
                type(self).__name__,
                ops.convert_to_numpy(self.normalizer.mean).tolist(),
                ops.convert_to_numpy(self.normalizer.std).tolist(),
                self.num_targets,
            )

    def learnt_labels(self, loader: Loader) -> list[FlatGraphs]:
        """Return the graphs with the labels to which the normaliser is adapted.

        Args:
            loader: A `Loader`, or an object with such `parts`.
        """
        return loader

    def ensemble_outputs(self, outputs: np.ndarray) -> np.ndarray:
        """Return the numbers; see `Task.ensemble_outputs`."""
        return outputs

    def errors(
        self, graphs: Data, y: Labels = None, as_frame: bool = False
    ) -> dict[str, np.ndarray] | Frame:
        """Return the predictions and errors of labelled graphs as a table.

        Args:
            graphs: Graphs or raw data, in any form that `fit` takes.
            y: Labels, as for `fit`; None if graphs hold them.
            as_frame: Whether to return a `pandas.DataFrame`.

        Returns:
            Columns by name, one row per graph with a label: `graph`, the number of the
            item that was passed, also where the encoder skips others; for graphs
            `label`, `prediction` and `error`, prediction minus label; for nodes and
            edges `labels`, how many are known, `mae` and `rmse`. All are in the units
            of the labels, NaN where a target has no label. With several targets each
            has columns of its own, `<name>_label`, or `target_0_label` without names.

        Raises:
            ValueError: For graphs without labels, or labels that do not fit.
            ImportError: If pandas is not installed, with `as_frame=True`.

        Example:
        >>> import keras_bandgnn as kb
        >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"kind": [0, 1, 1]}, label=1.5)
        >>> task = kb.models.GraphRegressor(kb.models.GCNBackbone({"kind": 2}, 8))
        >>> list(task.errors([graph]))
        ['graph', 'label', 'prediction', 'error']
        """
        boolean("as_frame", as_frame)
        of_graphs, rows = self.output_level == "graph", []
        for number, values, label, _ in labelled_outputs(self, graphs, y):
            values = np.asarray(values, np.float64).reshape(-1, self.num_targets)
            label = label.reshape(values.shape)
            if np.isnan(label).all():
                continue
            row = [number]
            for one, other in zip(values.T, label.T, strict=True):
                has_label = ~np.isnan(other)
                error = (one - other)[has_label]
                if of_graphs:
                    row += [other[0], one[0], one[0] - other[0]]
                    continue
                scores = np.nan, np.nan
                if len(error):
                    scores = np.abs(error).mean(), np.sqrt((error**2).mean())
                row += [len(error), *scores]
            rows.append(tuple(row))
        names = ("label", "prediction", "error") if of_graphs else ("labels", "mae")
        names = names if of_graphs else (*names, "rmse")
        if self.num_targets > 1:
            targets = self.target_names or [
                f"target_{number}" for number in range(self.num_targets)
            ]
            names = [f"{target}_{name}" for target in targets for name in names]
        return as_table(("graph", *names), rows, as_frame)

    @classmethod
    def head_overrides(cls, config: dict, overrides: dict) -> dict:
        """Return arguments of a preset's task with some of them replaced."""
        named = "target_names" in config
        head = super().head_overrides({"target_names": None, **config}, overrides)
        if "num_targets" in overrides and "target_names" not in overrides:
            # The names of the preset belong to other targets.
            head["target_names"] = None
        scales = {"num_targets", "readout"} & set(overrides)
        if scales and "normalizer" not in overrides and head["normalizer"]:
            # The constants of the preset belong to other targets.
            head["normalizer"] = "auto"
        if head["target_names"] is None and not named:
            # Presets omit it if there are none.
            del head["target_names"]
        return head

    def head_config(self) -> dict:
        """Return the arguments of the head, with the normaliser's constants."""
        normalizer = self.normalizer and self.normalizer.get_config()
        config = {"num_targets": self.num_targets, "normalizer": normalizer}
        if self.target_names is not None:
            config["target_names"] = list(self.target_names)
        return config


def as_normalizer(normalizer, mode: str) -> TargetNormalizer | None:
    """Convert the argument of a task to a normaliser.

    Args:
        normalizer: `"auto"`, a `TargetNormalizer`, its configuration, or None.
        mode: The mode of `"auto"`.
    """
    if isinstance(normalizer, str) and normalizer == "auto":
        return TargetNormalizer(mode)
    if isinstance(normalizer, Mapping):
        normalizer = TargetNormalizer.from_config(dict(normalizer))
    if not isinstance(normalizer, TargetNormalizer | None):
        raise ValueError(
            "Expected `normalizer` to be 'auto', a TargetNormalizer or None. "
            f"Received: normalizer={normalizer!r}."
        )
    level = "graph" if mode == "atom" else mode
    if normalizer is not None and normalizer.level != level:
        raise ValueError(
            f"Expected `normalizer` to be one of labels of {level}s. Received: "
            f"TargetNormalizer({normalizer.mode!r}). Pass TargetNormalizer({mode!r})."
        )
    return normalizer
