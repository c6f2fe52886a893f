"""`MaskedTask`: a task with labels per node or edge, which masks select."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

import numpy as np

from keras_bandgnn.checks import refuse, string
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import SAMPLE_WEIGHT
from keras_bandgnn.data.identity import check_masks, shared_links
from keras_bandgnn.data.sources import parts_of
from keras_bandgnn.models.inputs import (
    BATCHES,
    GRAPHS,
    LOADER,
    Inputs,
    read_graphs,
    read_inputs,
)
from keras_bandgnn.models.label_checks import check_node_set
from keras_bandgnn.models.labels import ClassLabels
from keras_bandgnn.models.task import Task
from keras_bandgnn.preprocessing.loading.loader import Loader
from keras_bandgnn.preprocessing.loading.node_order import (
    caller_rows,
    scatter_to_caller_order,
    set_rows,
)

if TYPE_CHECKING:
    import keras

    from keras_bandgnn.aliases import (
        Callbacks,
        Data,
        FilePath,
        Graphs,
        Labels,
        MaskedEvaluateOptions,
        MaskedFitOptions,
        Results,
        TaskLoaderOptions,
    )


_LOG = logging.getLogger(__name__)


class MaskedTask(Task):
    """Predicts for the nodes or the edges of graphs, in the caller's order.

    Base of the tasks with `output_level` `"node"` or `"edge"`. `fit` and `evaluate`
    take masks, which name a feature of that level; all nodes send messages, and all
    edges carry them, regardless of masks.
    """

    output_level = "node"
    sizes_batcher = True
    # The node set whose nodes have labels and predictions; None for all nodes.
    node_set: str | None = None

    def check(self, loader: Loader) -> None:
        """Raise a ValueError if the graphs do not fit the task."""
        super().check(loader)
        if self.node_set is None:
            return
        for part in loader.parts:
            check_node_set(part, self.node_set)

    def fit(
        self,
        x: Data | None = None,
        y: Labels = None,
        *args: int | str | Callbacks,
        mask: str | None = None,
        validation_data: Data | tuple | None = None,
        validation_mask: str | None = None,
        **kwargs: Unpack[MaskedFitOptions],
    ) -> keras.callbacks.History:
        """Train on graphs, as `keras.Model.fit` does on arrays.

        Args:
            x: Graphs or raw data, see `Task.fit`, or data of Keras.
            y: Labels of the nodes (or edges): a list of one array per graph, or one
                array; None if graphs hold them.
            *args: Passed on.
            mask: Feature of the nodes (or edges) that is true for those to train on;
                all if None.
            validation_data: Graphs, or data of Keras; `x` if omitted and
                `validation_mask` is given.
            validation_mask: Feature that is true for those to validate on. Masks of
                different names may not share rows of `x`; edges that join the same two
                nodes on both sides are counted in a warning.
            **kwargs: Passed on, such as `epochs`, `seed`, `callbacks` and
                `sample_weight`.

        Returns:
            Keras' `History`.
        """
        inputs = read_inputs("x", x)
        if inputs.kind != BATCHES:
            # `super().fit` adds class weights, for the labels in the mask.
            inputs, validation_data = self._training_inputs(
                inputs, y, validation_data, kwargs, (SAMPLE_WEIGHT,)
            )
            y = None
            if inputs.kind != LOADER:
                self.complete(inputs.data, training=True)
        if validation_mask is not None:
            train, valid = None, inputs
            if validation_data is None:
                train = mask
            else:
                valid = self._validation_inputs(validation_data)
            validation_data = self._masked(
                valid, validation_mask, "validation_mask", train
            )
        if mask is not None:
            inputs = self._masked(inputs, mask)
        return super().fit(inputs, y, *args, validation_data=validation_data, **kwargs)

    def evaluate(
        self,
        x: Data | None = None,
        y: Labels = None,
        *args: int | str | Callbacks,
        mask: str | None = None,
        **kwargs: Unpack[MaskedEvaluateOptions],
    ) -> Results:
        """Evaluate on graphs, as `keras.Model.evaluate` does on arrays.

        Args:
            x: Graphs or raw data, see `Task.fit`, or data of Keras.
            y: Labels of the nodes (or edges): a list of one array per graph, or one
                array; None if graphs hold them.
            *args: Passed on.
            mask: Feature of the nodes (or edges) that is true for those to evaluate
                on; all if None.
            **kwargs: Passed on.
        """
        inputs = read_inputs("x", x)
        if mask is not None:
            if inputs.kind != BATCHES:
                weight = kwargs.pop(SAMPLE_WEIGHT, None)
                inputs = inputs.with_graphs(self.labelled("x", inputs, y, weight)[0])
                y = None
            inputs = self._masked(inputs, mask)
        return super().evaluate(inputs, y, *args, **kwargs)

    def loader(
        self,
        graphs: Data,
        *args: bool | int,
        mask: str | None = None,
        **kwargs: Unpack[TaskLoaderOptions],
    ) -> Loader:
        """Return a loader of the task's batches, see `Task.loader`.

        Args:
            graphs: Graphs in any form that `fit` takes.
            *args: Passed on.
            mask: Feature of the nodes (or edges) that is true for those whose labels
                count; all if None.
            **kwargs: Passed on, such as `sampler` and `shuffle`.
        """
        if mask is not None:
            adapt = bool(kwargs.get("adapt", False))
            graphs = read_graphs(self, "graphs", graphs, adapt, required=True)
            if graphs.kind == GRAPHS:
                self.complete(graphs.data, adapt)
            graphs = self._masked(graphs, mask)
        return super().loader(graphs, *args, **kwargs)

    def predict_by_layer(
        self,
        x: Data,
        block_size: int = 8192,
        folder: FilePath | None = None,
        verbose: int | str = "auto",
    ) -> list[np.ndarray]:
        """Predict for the nodes of large graphs, one layer of all nodes at a time.

        The result is that of `predict`, with all neighbours, but a graph need not fit
        into a step: a step computes one layer for a block of nodes, from the stored
        states of their senders. Each state is computed once.

        Args:
            x: A graph, graphs, or an opened store, whose features may be larger than
                memory.
            block_size: Nodes whose states are computed together.
            folder: A folder, made if it is missing, in which the states of all nodes
                are stored while they are needed; by default they are in memory, [N, H]
                twice, or L + 1 times with `jumping_knowledge`.
            verbose: 0 for no progress bar, which is shown after two seconds.

        Returns:
            One array [N, ...] per graph, in the caller's order of the nodes.

        Raises:
            ValueError: For a task over edges, backbones other than
                `MessagePassingBackbone`, those that read more than neighbours, or
                several devices.
        """
        from keras_bandgnn.models.layerwise import predict_by_layer

        if self.output_level != "node":
            raise ValueError(
                "Expected a task over nodes. Received: "
                f"{type(self).__name__}. Use predict."
            )
        inputs = read_graphs(self, "x", x, required=True)
        if inputs.kind != GRAPHS:
            refuse("x", "graphs", inputs.data)
        self.complete(inputs.data)
        rows = predict_by_layer(self, inputs.data, block_size, folder, verbose)
        return inputs.spread(rows)

    def in_given_order(self, graphs: Graphs, loader: Loader) -> Callable:
        """Return a function that restores the caller's order of nodes or edges.

        Row n belongs to node (or edge) n of the caller's graph, NaN for those that the
        preprocessor drops. For graphs that are compiled already (a loader, a compiled
        store) row n belongs to the n-th before compilation; the edges of a
        `FlatGraphs` are sorted by receiver. Over graph transformers rows of edges below
        the backbone's `target_type` are NaN, or left out for compiled graphs.
        """
        if self.node_set is not None:
            places = list(set_rows(loader, self.node_set))
        else:
            places = list(caller_rows(graphs, loader, self.output_level))
        return lambda graph, rows: scatter_to_caller_order(rows, *places[graph])

    def features_read(self) -> dict[str, tuple[str, ...]] | None:
        """Return the features that the task reads; see `Backbone.features_read`."""
        read = super().features_read()
        targets = self.output_level == "edge" and self.backbone.target_type is not None
        if read is None or not targets or "edge" not in read:
            return read
        return {**read, "edge": (*read["edge"], "target")}

    def head_config(self) -> dict:
        """Return the arguments of the head; `node_set` only where it is set."""
        config = super().head_config()
        return (
            config if self.node_set is None else {**config, "node_set": self.node_set}
        )

    def _masked(
        self,
        inputs: Inputs,
        name: str,
        argument: str = "mask",
        train: str | None = None,
    ) -> Inputs:
        """Return the preprocessed graphs, with missing labels outside the mask.

        Args:
            inputs: The graphs.
            name: Feature that is the mask.
            argument: Name of the argument, for errors.
            train: The mask of the same graphs to train on; None not to compare them.
        """
        string(argument, name)
        if inputs.kind in (BATCHES, LOADER):
            raise ValueError(
                f"Expected graphs to choose {self.output_level}s of with a mask. "
                f"Received: {type(inputs.data).__name__}, mask={name!r}. Pass the "
                f"graphs themselves, or weights of the {self.output_level}s as "
                "sample_weight."
            )
        inputs = read_graphs(self, argument, inputs, required=True)
        self.complete(inputs.data)
        parts = parts_of(self.preprocessor.transform(inputs.data))
        # Only classes have an integer for missing labels.
        missing = -1 if isinstance(self.labels, ClassLabels) else np.nan
        for part in parts:
            _check_sides(part, train, name, self.output_level)
        parts = [_with_mask(p, name, self.output_level, missing) for p in parts]
        flat = FlatGraphs.concatenate(parts)
        # The layers are applied already.
        flat.metadata = {"layers": self.preprocessor.layers_config()}
        return inputs.with_graphs(flat)


def _check_sides(part: FlatGraphs, train: str | None, valid: str, level: str) -> None:
    """Raise a ValueError for rows on both sides of a split; warn of shared links.

    Args:
        part: The graphs.
        train: The mask to train on; None, or the same as `valid`, without a split.
        valid: The mask to validate on.
        level: "node" or "edge".
    """
    features = getattr(part, level)
    if train in (None, valid) or not {train, valid} <= {*features}:
        return  # `_with_mask` rejects missing ones.
    masks = {name: features[name] for name in (train, valid)}
    check_masks(masks, level)
    if level == "edge" and (count := shared_links(part, *masks.values())):
        _LOG.warning(
            "%d of %d edges of validation_mask=%r join the same two nodes as edges of "
            "mask=%r do, in either direction. If such edges have the same label, it is "
            "known from training: put all edges of two nodes on one side.",
            count,
            int(np.count_nonzero(masks[valid])),
            valid,
            train,
        )


def _with_mask(part: FlatGraphs, name: str, level: str, missing) -> FlatGraphs:
    """Return graphs without the labels outside a mask.

    Args:
        part: Graphs with labels.
        name: The feature that is the mask.
        level: "node" or "edge".
        missing: Value of missing labels.
    """
    if part.label is None or part.label_level != level:
        return part  # `check_labels` rejects it.
    features = getattr(part, level)
    if name not in features:
        raise ValueError(
            f"Expected {'an' if level == 'edge' else 'a'} {level} feature {name!r} as "
            f"the mask. Received: {level} features {sorted(features)}."
        )
    mask = features[name]
    if mask.ndim != 1 or not np.isin(mask, (0, 1)).all():
        raise ValueError(
            f"Expected {level}[{name!r}] to be 0 or 1 for each {level}. Received: "
            f"{mask.dtype} of shape {mask.shape} in [{mask.min()}, {mask.max()}]. "
            "Choose one column of a feature with several splits. Give an attribute of "
            "networkx a name such as 'train_mask': others are encoded as categories."
        )
    rows = mask.astype(bool).reshape(-1, *[1] * (part.label.ndim - 1))
    dtype = part.label.dtype if missing == -1 else np.float32
    label = np.where(rows, part.label.astype(dtype), np.array(missing, dtype))
    columns = {**part.columns(), f"label/{level}": label}
    return FlatGraphs.from_columns(columns, part.info)
