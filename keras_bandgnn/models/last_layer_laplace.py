"""`LastLayerLaplace`: the uncertainty of a trained regressor from its last layer."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from keras import ops

from keras_bandgnn.checks import as_path, boolean, one_of, refuse
from keras_bandgnn.data.files import atomic_folder, restore_replaced
from keras_bandgnn.data.reading import (
    LARGEST_NUMBER,
    open_npz,
    reading,
    refuse_file,
)
from keras_bandgnn.models.error_table import labelled_outputs
from keras_bandgnn.models.graph_regressor import GraphRegressor
from keras_bandgnn.models.regression_task import RegressionTask
from keras_bandgnn.models.task import Task
from keras_bandgnn.models.task_program import TaskProgram, compiled
from keras_bandgnn.saving.preset_paths import LAPLACE

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Data, DType, FilePath, Labels

NOISES = ("graph", "atom")


def features_outputs_sizes(task: GraphRegressor, batch):
    """Return the features of the last layer of a regressor, its outputs and sizes.

    Args:
        task: The regressor, with P features and D targets.
        batch: A batch.

    Returns:
        float [G, B, P + D + 1], with the number of nodes last.
    """
    read = task.backbone.readout_inputs(batch, training=False)
    outputs = task.denormalized(task.head(*read), batch)
    sizes = ops.expand_dims(ops.cast(batch["graph"]["n_node"], outputs.dtype), -1)
    features = ops.cast(task.head.features(*read), outputs.dtype)
    return ops.concatenate([features, outputs, sizes], axis=-1)


class LinearPosterior(NamedTuple):
    """The posterior of a linear regression under the most likely prior and noise.

    Args:
        covariance: Covariance of the weights, float64 [P, P].
        noise: Standard deviation of the labels around the outputs.
    """

    covariance: np.ndarray
    noise: float


def maximise_evidence(
    features: np.ndarray, residuals: np.ndarray, weights: np.ndarray, steps: int = 200
) -> LinearPosterior:
    """Return the posterior of linear weights under the most likely prior and noise.

        alpha = gamma / |w|^2,   beta = (n - gamma) / |r|^2,
        gamma = sum over i of beta l_i / (alpha + beta l_i)

    with l_i the eigenvalues of features^T features, repeated until convergence.

    Args:
        features: float64 [n, P].
        residuals: r, labels minus outputs, float64 [n].
        weights: w, the weights that were trained, float64 [P].
        steps: Maximum number of repetitions.

    Reference:
        MacKay, "Bayesian Interpolation", Neural Computation 1992, Eqs. 4.8 and 4.9.
    """
    values, vectors = np.linalg.eigh(features.T @ features)
    values = np.maximum(values, 0.0)
    count = len(residuals)
    # Weights and labels have a scale near 1: smaller values are 0 in float32.
    squares = max(float(residuals @ residuals), count * 1e-14)
    norm = max(float(weights @ weights), len(weights) * 1e-14)
    alpha, beta = len(weights) / norm, count / squares
    for _ in range(steps):
        gamma = float(np.sum(beta * values / (alpha + beta * values)))
        # At least one label determines the noise, also if there are as many weights.
        new = max(gamma, 1e-12) / norm, max(count - gamma, 1.0) / squares
        settled = np.allclose(new, (alpha, beta), rtol=1e-9)
        alpha, beta = new
        if settled:
            break
    covariance = (vectors / (alpha + beta * values)) @ vectors.T
    return LinearPosterior(covariance, float(1 / np.sqrt(beta)))


def _check_numbers(path: Path, name: str, values: np.ndarray, shape: tuple) -> None:
    """Refuse a file whose numbers have another shape, are negative or absurd."""
    right = values.shape == shape and (np.abs(values) <= LARGEST_NUMBER).all()
    if right:
        least = np.diagonal(values, 0, -2, -1) if values.ndim == 3 else values
        right = not (least < 0).any()
    if not right:
        refuse_file(
            path,
            f"to have finite numbers {list(shape)}, from 0 to {LARGEST_NUMBER:g}, as "
            f"{name!r}",
            f"shape {list(values.shape)}, up to {np.abs(values).max(initial=0):g}",
            "Copy the folder again.",
        )


class LastLayerLaplace:
    """Standard deviations for the predictions of one trained `GraphRegressor`.

    The output of a regressor is linear in the weights of its last layer. With a normal
    prior and normal noise, these weights have a normal posterior around those that were
    trained, given the features f of the training graphs:

        S = (alpha I + beta sum over the graphs of f f^T)^-1
        std^2 = f^T S f + 1 / beta

    alpha and beta maximise the evidence of the training labels. The first term is large
    if f points in directions that no training graph had; the second is the noise.
    Nothing is trained: `fit` takes one pass over the training graphs, and a prediction
    takes as long as that of the regressor. The noise is that of the training graphs,
    which a network often fits too well: `calibrate` with others sets a factor.

    Args:
        task: A trained `GraphRegressor` or `ForceRegressor`.
        noise: `"graph"` if errors are about as large for all graphs, `"atom"` if they
            grow with the number of nodes; None is "atom" for a `ForceRegressor` with
            `per_atom=True`, otherwise "graph".

    Raises:
        ValueError: For another task, and a readout whose output is not linear in its
            last layer.

    Reference:
        Daxberger et al., "Laplace Redux: Effortless Bayesian Deep Learning", NeurIPS
        2021; Bigi et al., "A prediction rigidity formalism for low-cost uncertainties
        in trained neural networks", 2024, for the factor.

    Example:
    >>> import keras_bandgnn as kb
    >>> graphs = [
    ...     kb.Graph(n, [0], [n - 1], node={"kind": [1] * n}, label=2.0 * n)
    ...     for n in (1, 2, 3, 4)
    ... ]
    >>> task = kb.models.GraphRegressor(kb.models.GCNBackbone({"kind": 2}, 8))
    >>> history = task.fit(graphs, epochs=1, verbose=0)
    >>> laplace = LastLayerLaplace(task).fit(graphs)
    >>> mean, std = laplace.predict_spread(graphs)
    >>> mean[0].shape, std[0].shape
    ((1,), (1,))
    """

    def __init__(self, task: GraphRegressor, noise: str | None = None):
        if not isinstance(task, GraphRegressor):
            refuse("task", "a GraphRegressor or ForceRegressor", task)
        if not hasattr(task.head, "features"):
            refuse("task", "a readout with `features`", type(task.head).__name__)
        if noise is None:
            noise = "atom" if getattr(task, "per_atom", False) else "graph"
        # === Config ===
        self.noise = one_of("noise", noise, NOISES)
        # === State ===
        self.task = task
        self.covariance: np.ndarray | None = None
        """Covariance of the weights, float64 [D, P, P]; None before `fit`."""
        self.noise_std: np.ndarray | None = None
        """Standard deviation of normalised labels, per graph or per node, [D]."""
        self.factor = np.ones(task.num_targets)
        """Factor of `calibrate`, float64 [D]."""
        self._digest = b""

    def fit(self, graphs: Data, y: Labels = None) -> LastLayerLaplace:
        """Compute the posterior from the graphs that the task was trained on.

        Args:
            graphs: Graphs with labels, or raw data, in any form that `Task.fit` takes.
                Graphs whose `sample_weight` is 0 do not count; other weights are not
                applied.
            y: Labels; None if graphs hold them.

        Returns:
            Itself.

        Raises:
            ValueError: Without labels of a target.
        """
        rows, labels = self._labelled(graphs, y)
        weights = self._weights()
        posteriors = []
        for target in range(self.task.num_targets):
            has_label = ~np.isnan(labels[:, target])
            self._check_labels(has_label, target)
            sizes = self._noise_sizes(rows)[has_label]
            residuals = (labels - rows.outputs)[has_label, target] / self._std()[target]
            features = rows.features[has_label] / sizes[:, None]
            posteriors.append(
                maximise_evidence(features, residuals / sizes, weights[:, target])
            )
        self.covariance = np.stack([posterior.covariance for posterior in posteriors])
        self.noise_std = np.array([posterior.noise for posterior in posteriors])
        self.factor = np.ones(self.task.num_targets)
        self._digest = self._weights_digest()
        return self

    def calibrate(self, graphs: Data, y: Labels = None) -> LastLayerLaplace:
        """Set the factor by which the standard deviations fit the errors of graphs.

        With it the mean of ((label - mean) / std)^2 is 1 on these graphs.

        Args:
            graphs: Graphs with labels that the task was not trained on.
            y: Labels; None if graphs hold them.

        Returns:
            Itself.

        Raises:
            ValueError: Before `fit`, or without labels of a target.
        """
        self._check_fitted()
        rows, labels = self._labelled(graphs, y)
        std = self._spread(rows, noise=True)
        squares = np.square((labels - rows.outputs) / std)
        has_label = ~np.isnan(labels)
        for target in range(self.task.num_targets):
            self._check_labels(has_label[:, target], target)
        self.factor = np.sqrt(np.nanmean(squares, axis=0))
        return self

    def predict(self, x: Data) -> list:
        """Return the predictions of the task."""
        return self.predict_spread(x)[0]

    def predict_spread(self, x: Data, noise: bool = True) -> tuple[list, list]:
        """Return the predictions of the task and their standard deviations.

        Args:
            x: Graphs, or raw data, in any form that `Task.predict` takes.
            noise: Whether the standard deviation is that of a label, including noise;
                otherwise it is that of the output without noise.

        Returns:
            Two lists, float32 [D] for each graph, in the units of the labels; None for
            graphs that have no prediction.

        Raises:
            ValueError: Before `fit`.
        """
        boolean("noise", noise)
        self._check_fitted()
        features = self._program().predict(x)
        # Skipped items have no features.
        places = [place for place, row in enumerate(features) if row is not None]
        mean: list = [None] * len(features)
        std: list = [None] * len(features)
        if places:
            rows = self._rows(np.stack([features[place] for place in places]))
            spread = self.factor * self._spread(rows, noise)
            for place, one, other in zip(places, rows.outputs, spread, strict=True):
                mean[place], std[place] = map(np.float32, (one, other))
        return mean, std

    def save_to_preset(
        self, path: FilePath, weights: str = "float32", card: Mapping | None = None
    ) -> None:
        """Write the task and its posterior to a folder, atomically.

        It has `laplace.npz` and the folder `task`, a preset that `Task.from_preset`
        reads.

        Args:
            path: The folder: new, empty, or one that this method wrote, which is
                replaced.
            weights: See `Task.save_to_preset`.
            card: Texts for the card, see `Task.save_to_preset`.

        Raises:
            ValueError: Before `fit`, and for a folder with other content.
            OSError: If it cannot be written.
        """
        path = as_path("path", path)
        self._check_fitted()
        names = (LAPLACE, "task")
        with atomic_folder(path, names, "a LastLayerLaplace") as folder:
            self.task.save_to_preset(folder / "task", weights, card)
            np.savez(
                folder / LAPLACE,
                covariance=self.covariance,
                noise_std=self.noise_std,
                factor=self.factor,
                per_atom=np.array(self.noise == "atom"),
            )

    @classmethod
    def from_preset(cls, preset: FilePath, dtype: DType = None) -> LastLayerLaplace:
        """Load a folder that `save_to_preset` wrote.

        Args:
            preset: The folder.
            dtype: See `Task.from_preset`.

        Raises:
            ValueError: For another folder, or a damaged one.
        """
        folder = as_path("preset", preset)
        restore_replaced(folder)
        path = folder / LAPLACE
        if not path.is_file():
            refuse(
                "preset",
                f"a folder with {LAPLACE}, as LastLayerLaplace.save_to_preset writes",
                str(preset),
                "Load a task with Task.from_preset.",
            )
        with open_npz(path) as arrays:
            per_atom = arrays.load("per_atom")
            parameters = {
                n: arrays.load(n) for n in ("covariance", "noise_std", "factor")
            }
            for name, values in parameters.items():
                if values.dtype != np.float64:
                    arrays.refuse(name, "float64", values.dtype)
            if per_atom.shape != () or per_atom.dtype != bool:
                arrays.refuse("per_atom", "one boolean", per_atom.dtype)
        task = Task.from_preset(folder / "task", dtype=dtype)
        with reading(path):
            laplace = cls(task, "atom" if per_atom else "graph")
        count, width = laplace.task.num_targets, len(laplace._weights())
        shapes = {
            "covariance": (count, width, width),
            "noise_std": (count,),
            "factor": (count,),
        }
        for name, shape in shapes.items():
            _check_numbers(path, name, parameters[name], shape)
            setattr(laplace, name, parameters[name])
        laplace._digest = laplace._weights_digest()
        return laplace

    # === Parts ===

    def _program(self) -> TaskProgram:
        """Return the program of `features_outputs_sizes`."""
        # The posterior does not use labels of forces.
        check = functools.partial(RegressionTask.check_labels, self.task)
        return compiled(self.task, features_outputs_sizes, check_labels=check)

    def _weights(self) -> np.ndarray:
        """Return the weights of the last layer, float64 [P, D]."""
        layer = self.task.head.output_dense
        parts = [ops.convert_to_numpy(layer.kernel)]
        if layer.use_bias:
            parts.append(ops.convert_to_numpy(layer.bias)[None])
        return np.concatenate(parts).astype(np.float64)

    def _std(self) -> np.ndarray:
        """Return the units of a normalised label, float64 [D]."""
        normalizer = self.task.normalizer
        if normalizer is None:
            return np.ones(self.task.num_targets)
        return np.asarray(ops.convert_to_numpy(normalizer.std), np.float64)

    def _rows(self, values: np.ndarray) -> Rows:
        """Split the outputs of the program."""
        values = np.asarray(values, np.float64)
        targets = self.task.num_targets
        return Rows(
            features=values[:, : -targets - 1],
            outputs=values[:, -targets - 1 : -1],
            sizes=values[:, -1],
        )

    def _labelled(self, graphs, y) -> tuple[Rows, np.ndarray]:
        """Return the rows of labelled graphs, and their labels float64 [n, D]."""
        rows = [
            row
            for row in labelled_outputs(self._program(), graphs, y)
            if row.weight > 0
        ]
        if not rows:
            raise ValueError(
                "Expected at least one graph with a label, and a sample_weight above 0 "
                "if it has one. Received: none. Pass labelled graphs."
            )
        outputs = [row.outputs for row in rows]
        labels = [row.label for row in rows]
        labels = np.stack(labels).reshape(len(labels), self.task.num_targets)
        return self._rows(np.stack(outputs)), labels

    def _noise_sizes(self, rows: Rows) -> np.ndarray:
        """Return the factor of the noise of each graph, [n]."""
        sizes = np.maximum(rows.sizes, 1.0)
        return sizes if self.noise == "atom" else np.ones_like(sizes)

    def _spread(self, rows: Rows, noise: bool) -> np.ndarray:
        """Return standard deviations without the factor, float64 [n, D]."""
        features = rows.features
        squares = np.einsum(
            "np,dpq,nq->nd", features, self.covariance, features, optimize=True
        )
        squares = np.maximum(squares, 0.0)
        if noise:
            squares += np.square(self._noise_sizes(rows)[:, None] * self.noise_std)
        return self._std() * np.sqrt(squares)

    @staticmethod
    def _check_labels(has_label: np.ndarray, target: int) -> None:
        if not has_label.any():
            raise ValueError(
                f"Expected at least one label of target {target} that is not NaN. "
                f"Received: none in {len(has_label)} graphs. Pass graphs that have it."
            )

    def _weights_digest(self) -> bytes:
        """Return a hash of all weights, to detect changes after `fit`."""
        digest = hashlib.blake2b()
        for variable in self.task.trainable_variables:
            digest.update(np.ascontiguousarray(ops.convert_to_numpy(variable)))
        return digest.digest()

    def _check_fitted(self) -> None:
        if self.covariance is not None and self._digest != self._weights_digest():
            raise ValueError(
                "Expected the weights that `fit` saw. Received: others, as the task "
                "was trained since then. Call fit(graphs) again."
            )
        if self.covariance is None:
            raise ValueError(
                "Expected a LastLayerLaplace that has seen the training graphs. "
                "Received: none. Call fit(graphs) first."
            )


class Rows(NamedTuple):
    """The results of `features_outputs_sizes` for n graphs.

    Args:
        features: float64 [n, P].
        outputs: In the units of the labels, float64 [n, D].
        sizes: Numbers of nodes, float64 [n].
    """

    features: np.ndarray
    outputs: np.ndarray
    sizes: np.ndarray
