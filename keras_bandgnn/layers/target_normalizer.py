"""`TargetNormalizer`: standardisation of the labels of graphs, nodes or edges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

import keras
import numpy as np
from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import (
    LAST_ELEMENT,
    array,
    instance,
    one_of,
    optional,
    positive_int,
    string,
)
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import label_weights
from keras_bandgnn.layers.batch_layer import BatchLayer
from keras_bandgnn.ops.sequence import over_devices

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from keras_bandgnn.aliases import Batch, BatchShape, LayerOptions, Shape, Tensor


NUM_ELEMENTS = LAST_ELEMENT + 1
"""Ids of elements are below it: atomic numbers 1 to 118."""


_SET = {
    "graph": "Set Graph(..., label=1.5) or label=[1.5, 2.0].",
    "node": 'Set Graph(..., label=[...], label_level="node").',
    "edge": 'Set Graph(..., label=[...], label_level="edge").',
}


def target_labels(part: FlatGraphs, level: str = "graph") -> np.ndarray:
    """Return labels of graphs, nodes or edges as float64 [n, D], NaN where missing.

    Args:
        part: Graphs with labels.
        level: "graph", "node" or "edge".

    Raises:
        ValueError: If the graphs have no labels, or labels of something else.
    """
    received = None
    if part.label is None:
        received = "graphs with label=None"
    elif part.label_level != level:
        received = f"labels of {part.label_level}s (label_level={part.label_level!r})"
    elif part.candidates is not None:
        received = "graphs with candidates, whose label is the position of one of them"
    elif part.label.ndim > 2:
        received = f"labels of shape {part.label.shape[1:]}"
    elif np.isinf(part.label).any():
        received = "infinite labels"
    if received:
        raise ValueError(
            f"Expected one number or one vector [D] per {level} as the label. "
            f"Received: {received}. {_SET[level]}"
        )
    labels = np.asarray(part.label, np.float64)
    return labels[:, None] if labels.ndim == 1 else labels


def _require_references(elements: np.ndarray, available: np.ndarray) -> None:
    missing = np.setdiff1d(elements, available)
    if missing.size:
        raise ValueError(
            f"Expected elements with a reference value: {available.tolist()}. "
            f"Received: {missing.tolist()}. Adapt to graphs that have them and a label "
            "of a weight above 0, or pass `references`."
        )


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class TargetNormalizer(BatchLayer):
    """Maps labels y to normalised ones, and predictions back.

        mode="graph":           normalised = (y - r - mean) / std
        mode="atom":            normalised = (y - r - mean * N) / std
        mode="node", "edge":    normalised = (y - mean) / std

    With `"graph"` and `"atom"` y are labels of graphs, otherwise of nodes or edges.

    N is the number of nodes. `mean` and `std` are those of y - r over the training
    graphs or, with `"atom"`, of (y - r) / N, which suits a sum over nodes. r is 0 or,
    with `element_key`, the sum of one reference value per node by its element: the
    linear composition model of the labels.

    `adapt` computes the constants from training graphs, separately for each target and
    from the labels that are not NaN, with their `sample_weight`: those of weight 0 do
    not count. A `std` below float32 resolution becomes 1.

    Args:
        mode: `"graph"`, `"atom"`, `"node"` or `"edge"`.
        element_key: Name of the node feature with the element, ids below 119; for
            labels of graphs.
        references: Element -> value or [D] values. By default `adapt` fits them by
            least squares, in mode "graph" together with `mean`; it does not change
            explicit references.
        mean: [D], the constants of an adapted normaliser, with `std`.
        std: [D], above 0.

    Input shape:
        values: float [G, B, D], normalised; [G, N, D] of nodes, [G, E, D] of edges.
        batch: The batch (see `keras_bandgnn.batch`).

    Output shape:
        float32, the shape of the values, in the units of the labels.

    Raises:
        ValueError: For arguments that do not fit together.

    Reference:
        The code of Speckhard et al. 2025: labels are standardised with the training
        mean and deviation, for a sum over nodes per atom: (y - mu * N) / sigma.

    Example:
    >>> import keras_bandgnn as kb
    >>> graphs = [kb.Graph(n, [], [], label=2.0 * n) for n in (1, 2, 3)]
    >>> normalizer = TargetNormalizer()
    >>> normalizer.adapt(graphs)
    >>> normalizer.get_config()["mean"]
    [4.0]
    """

    splits_sequences = True
    takes_states = False

    def __init__(
        self,
        mode: str = "graph",
        element_key: str | None = None,
        references: Mapping | None = None,
        mean: ArrayLike | None = None,
        std: ArrayLike | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        kwargs.setdefault("dtype", "float32")
        super().__init__(trainable=False, **kwargs)
        self.mode = one_of("mode", mode, ("graph", "atom", "node", "edge"))
        self.element_key = optional(string, "element_key", element_key)
        if self.element_key is not None and self.level != "graph":
            raise ValueError(
                'Expected `element_key` with mode="graph" or "atom", for labels of '
                f"graphs. Received: element_key={element_key!r}, mode={mode!r}. Leave "
                "element_key out."
            )
        optional(instance, "references", references, Mapping, "a dict")
        mean = optional(array, "mean", mean)
        std = optional(array, "std", std)
        if references is not None and element_key is None:
            raise ValueError(
                "Expected `references` with `element_key`, the node feature that holds "
                "the element. Received: element_key=None."
            )
        if (mean is None) != (std is None):
            raise ValueError(
                "Expected `mean` and `std` together. "
                f"Received: mean={mean!r}, std={std!r}."
            )
        if mean is not None and element_key is not None and references is None:
            raise ValueError(
                "Expected `references` with `element_key` and `mean`. Received: "
                "references=None. Leave `mean` out and call adapt()."
            )
        self._references = self._checked(references)
        if mean is not None:
            mean, std = np.atleast_1d(mean), np.atleast_1d(std)
            if mean.shape != std.shape or not (std > 0).all():
                raise ValueError(
                    "Expected `mean` and `std` with one entry per target, std above 0. "
                    f"Received: mean={mean.tolist()}, std={std.tolist()}."
                )
            with np.errstate(over="ignore"):
                constants = np.concatenate([mean, std]).astype(np.float32)
            if not np.isfinite(constants).all():
                raise ValueError(
                    "Expected finite `mean` and `std`, also in float32. Received: "
                    f"mean={mean.tolist()}, std={std.tolist()}. Rescale the labels."
                )
            self.build((None, None, len(mean)))
            self._assign(mean, std)

    @staticmethod
    def _checked(references: Mapping | None) -> dict[int, np.ndarray] | None:
        if references is None:
            return None
        out = {}
        for key, value in references.items():
            # Files of JSON have strings for keys.
            element = int(key) if isinstance(key, str) and key.isdigit() else key
            element = positive_int("references (elements)", element, 0)
            value = array(f"references[{element}]", value)
            with np.errstate(over="ignore"):  # the weights are float32
                out[element] = np.atleast_1d(value).astype(np.float32).astype(float)
            if np.isfinite(out[element]).all():
                out[element] = np.atleast_1d(value).astype(float)
        for element, value in out.items():
            if not 0 <= element < NUM_ELEMENTS or not np.isfinite(value).all():
                raise ValueError(
                    f"Expected finite `references` of elements in [0, {NUM_ELEMENTS})."
                    f" Received: {value.tolist()} for element {element}."
                )
        return out

    def build(self, values_shape: Shape, batch_shape: BatchShape | None = None) -> None:
        """Build the constants for D targets: mean 0, deviation 1 until adapted."""
        targets = values_shape[-1]
        self.mean = self.add_weight((targets,), "zeros", trainable=False, name="mean")
        self.std = self.add_weight((targets,), "ones", trainable=False, name="std")
        self.adapted = self.add_weight(
            (), "zeros", dtype="int32", trainable=False, name="adapted"
        )
        if self.element_key is not None:
            self.reference = self.add_weight(
                (NUM_ELEMENTS, targets), "zeros", trainable=False, name="reference"
            )
            self.known = self.add_weight(
                (NUM_ELEMENTS,), "zeros", dtype="int32", trainable=False, name="known"
            )
            if self._references is not None:
                self._assign_references(self._references)
        self.built = True

    def _assign_references(self, references: Mapping) -> None:
        table = np.zeros(self.reference.shape, np.float32)
        has_reference = np.zeros(NUM_ELEMENTS, np.int32)
        for element, value in references.items():
            if value.size not in (1, table.shape[1]):
                raise ValueError(
                    f"Expected {table.shape[1]} values per element in `references`. "
                    f"Received: {value.tolist()} for element {element}."
                )
            table[element], has_reference[element] = value, 1
        self.reference.assign(table)
        self.known.assign(has_reference)

    def _assign(self, mean, std) -> None:
        self.mean.assign(mean)
        self.std.assign(std)
        self.adapted.assign(1)

    @property
    def level(self) -> str:
        """Level of the labels: "graph", "node" or "edge"."""
        return "graph" if self.mode == "atom" else self.mode

    @property
    def is_adapted(self) -> bool:
        """Whether the constants come from data, a file or the caller."""
        return self.built and bool(ops.convert_to_numpy(self.adapted))

    def adapt(self, graphs: FlatGraphs) -> None:
        """Compute the constants from labelled training graphs.

        Args:
            graphs: A list of `Graph`, a `FlatGraphs`, an opened store or a
                `GraphLoader`.

        Raises:
            ValueError: For missing or unsuitable labels, a target without any label of
                a weight above 0, or elements that no such graph or the references have.
        """
        from keras_bandgnn.layers import target_statistics as statistics

        parts = statistics.flat_parts(graphs)
        labels = np.concatenate([target_labels(part, self.level) for part in parts])
        if not self.built:
            self.build((None, None, labels.shape[1]))
        self.check_targets(labels.shape[1])
        weights = np.concatenate([label_weights(part) for part in parts])
        labels = np.where(weights[:, None] > 0, labels, np.nan)
        if np.isnan(labels).all(axis=0).any():
            raise ValueError(
                "Expected at least one label for each target that is not NaN and whose "
                f"sample_weight is above 0. Received: "
                f"{(~np.isnan(labels)).sum(axis=0).tolist()} labels."
            )
        sizes = np.ones((len(labels), 1))
        if self.mode == "atom":
            sizes = np.concatenate([part.num_nodes for part in parts])[:, None]
        limit = 1e-7 * np.nanmax(np.abs(labels / sizes), axis=0)
        if self.element_key is not None:
            labels = labels - self._fitted(parts, labels, weights)
        mean, std = statistics.mean_and_deviation(labels / sizes, weights)
        # Labels that differ only by rounding must not be scaled up to order 1.
        std = np.where(std > limit, std, 1.0)
        self._assign(mean, std)

    def distance(self, graphs: FlatGraphs) -> float:
        """Return how many deviations labels are from the mean, in the root mean square.

        It is near 1 for the labels that the constants come from.

        Args:
            graphs: See `adapt`.

        Returns:
            That of the target for which it is largest, over the labels that are known
            and have a weight above 0; 0 without such labels.
        """
        from keras_bandgnn.layers import target_statistics as statistics

        squares = []
        for part in statistics.flat_parts(graphs):
            counts = label_weights(part)[:, None] > 0
            labels = np.where(counts, target_labels(part, self.level), np.nan)
            if self.element_key is not None:
                table = ops.convert_to_numpy(self.reference).astype(float)
                labels -= statistics.composition(part, self._elements(part)) @ table
            if self.mode == "atom":
                labels /= part.num_nodes[:, None]
            mean = ops.convert_to_numpy(self.mean).astype(float)
            squares.append(((labels - mean) / ops.convert_to_numpy(self.std)) ** 2)
        squares = np.concatenate(squares)
        count = np.maximum((~np.isnan(squares)).sum(axis=0), 1)
        return float(np.sqrt(np.nansum(squares, axis=0) / count).max(initial=0))

    def check_targets(self, count: int) -> None:
        """Raise a ValueError if the constants are for another number of targets."""
        if count != self.mean.shape[0]:
            raise ValueError(
                f"Expected {self.mean.shape[0]} targets per {self.level}, as the "
                f"constants of the normaliser. Received: {count}."
            )

    def _fitted(self, parts: list, labels, weights) -> np.ndarray:
        """Return the sum of references [n, D], fitted unless they are explicit."""
        from keras_bandgnn.layers import target_statistics as statistics

        counts = np.concatenate(
            [statistics.composition(part, self._elements(part)) for part in parts]
        )
        elements = np.flatnonzero(counts.any(axis=0))
        if self._references is None:
            # Before the constants change: those of a failed call must not stay.
            labelled = ~np.isnan(labels).all(axis=1)
            fitted = np.flatnonzero(counts[labelled].any(axis=0))
            _require_references(elements, fitted)
        counts = counts[:, elements].astype(float)
        if self._references is None:
            design = counts
            if self.mode == "graph":  # `mean` is the constant of the fit.
                design = np.column_stack([counts, np.ones(len(counts))])
            values = statistics.least_squares(design, labels, weights)[: len(elements)]
            self._assign_references(dict(zip(elements.tolist(), values, strict=True)))
        for part in parts:
            self.check(part)
        return counts @ ops.convert_to_numpy(self.reference)[elements].astype(float)

    def _elements(self, part: FlatGraphs) -> np.ndarray:
        values = part.node.get(self.element_key)
        if values is None or values.ndim != 1 or values.dtype.kind != "i":
            shown = None if values is None else (values.dtype.name, values.shape)
            raise ValueError(
                f"Expected node[{self.element_key!r}] with one element id per node. "
                f"Received: {shown}; node features are {sorted(part.node)}."
            )
        low, high = values.min(initial=0), values.max(initial=0)
        if low < 0 or high >= NUM_ELEMENTS:
            raise ValueError(
                f"Expected elements in [0, {NUM_ELEMENTS}). Received: node"
                f"[{self.element_key!r}] in [{low}, {high}]."
            )
        return values

    def check(self, part: FlatGraphs) -> None:
        """Raise a ValueError if graphs have elements without a reference value."""
        if self.element_key is None:
            return
        occurring = np.unique(self._elements(part))
        has_reference = ops.convert_to_numpy(self.known)
        if not has_reference.any():  # Not adapted yet.
            return
        _require_references(occurring, np.flatnonzero(has_reference))

    def _shift(self, batch):
        shift = ops.convert_to_tensor(self.mean)
        counts = batch["graph"]["n_node"]
        if self.mode == "atom":
            shift = shift * ops.expand_dims(ops.cast(counts, shift.dtype), -1)
        if self.element_key is None:
            return shift
        # Padding nodes belong to the last slot, which is not a graph.
        ids, elements = (
            ops.convert_to_tensor(batch["node"][name], "int32")
            for name in ("graph_id", self.element_key)
        )
        values = graph_ops.gather(ops.convert_to_tensor(self.reference), elements)
        values = graph_ops.batched_segment_sum(values, ids, ops.shape(counts)[1])
        return shift + over_devices(values)

    def constants(self, elements: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the offset of the predictions of a graph, in double precision.

        Args:
            elements: Ids of the nodes, int [N].

        Returns:
            For each node float64 [N, D], and for the graph float64 [D].
        """
        elements = np.asarray(elements)
        mean = ops.convert_to_numpy(self.mean).astype(np.float64)
        nodes = np.zeros((len(elements), len(mean)))
        if self.element_key is not None:
            table = ops.convert_to_numpy(self.reference).astype(np.float64)
            nodes += table[elements]
        if self.mode == "atom":
            return nodes + mean, np.zeros_like(mean)
        return nodes, mean

    def normalize(self, y: Tensor, batch: Batch) -> Tensor:
        """Normalise labels [G, B, D]; NaN stays NaN."""
        y = ops.convert_to_tensor(y, self.compute_dtype)
        return (y - self._shift(batch)) / ops.convert_to_tensor(self.std)

    def denormalize(self, values: Tensor, batch: Batch) -> Tensor:
        """Map normalised predictions [G, B, D] to the units of the labels."""
        return values * ops.convert_to_tensor(self.std) + self._shift(batch)

    def call(self, values: Tensor, batch: Batch) -> Tensor:
        """Return `denormalize(values, batch)`."""
        return self.denormalize(values, batch)

    def compute_output_shape(
        self, values_shape: Shape, batch_shape: BatchShape | None = None
    ) -> Shape:
        """[G, B, D]."""
        return tuple(values_shape)

    def get_config(self) -> dict:
        """Return the arguments of the constructor as plain numbers."""
        config = {"mode": self.mode, "element_key": self.element_key}
        config.update(references=None, mean=None, std=None)
        references = self._references
        if self.is_adapted:
            config["mean"] = ops.convert_to_numpy(self.mean).tolist()
            config["std"] = ops.convert_to_numpy(self.std).tolist()
            if self.element_key is not None:
                table = ops.convert_to_numpy(self.reference)
                elements = np.flatnonzero(ops.convert_to_numpy(self.known))
                references = {element: table[element] for element in elements}
        if references is not None:
            config["references"] = {
                str(element): value.tolist() for element, value in references.items()
            }
        return config
