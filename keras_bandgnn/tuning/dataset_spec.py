"""`DatasetSpec`: sizes and types of features and labels that a hypermodel needs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bandgnn.data.sources import parts_of
from keras_bandgnn.graph import Graph
from keras_bandgnn.layers.encoder_inputs import inputs_of
from keras_bandgnn.preprocessing.encoding.graph_encoder import GraphEncoder
from keras_bandgnn.preprocessing.graph_layer import (
    GraphLayer,
    applied_layers,
    layers_from_config,
)

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Graphs

# Node features that are no inputs of a model.
_UNREAD = ("train_mask", "valid_mask", "test_mask", "position", "cluster")


@dataclasses.dataclass(frozen=True)
class DatasetSpec:
    """Sizes and types of the features and labels of a data set.

    Attributes:
        inputs: Inputs of a `NodeEncoder` for the node features.
        num_edge_types: P.
        label: The prediction target: `"candidate"`, `"class"` or `"number"`.
        level: `"graph"` or `"node"`.
        num_outputs: Number of classes, or of regression targets per graph.
        slots: Whether every graph has a slot.
        elements: The atomic numbers in the data set.
        max_nodes: Nodes of the largest graph.
        steps: The T of the `ReachabilityFilter` applied to stored graphs, or None.
        layers: Configurations of the layers that were applied to the graphs.
    """

    inputs: dict[str, Any]
    num_edge_types: int
    label: str
    level: str
    num_outputs: int
    slots: bool
    elements: tuple[int, ...]
    max_nodes: int
    steps: int | None
    layers: tuple[dict, ...]

    @classmethod
    def of(cls, *sources: Graphs) -> DatasetSpec:
        """Derive the spec from training and validation graphs.

        Args:
            *sources: Graphs in any form that `fit` of a task accepts.

        Raises:
            ValueError: If there are no graphs, or if they have no labels.
        """
        layers = tuple(applied_layers(sources[0]))
        sources = [[s] if isinstance(s, Graph) else s for s in sources]
        parts = [part for source in sources for part in parts_of(source)]
        if not parts or any(part.label is None for part in parts):
            raise ValueError(
                "Expected graphs with labels to search on. Received: "
                f"{'graphs without labels' if parts else 'no graphs'}. Pass labelled "
                "graphs."
            )
        first = parts[0]
        label, outputs = _label(parts)
        atomic_numbers = [
            p.node["atomic_number"] for p in parts if "atomic_number" in p.node
        ]
        encoder = _encoder(layers)
        filters = [e for e in layers if e["class_name"] == "ReachabilityFilter"]
        return cls(
            inputs=encoder.inputs() if encoder else inputs_of(parts, _UNREAD),
            num_edge_types=encoder.num_edge_types
            if encoder
            else max(int(p.edge_type.max(initial=0)) + 1 for p in parts),
            label=label,
            level=first.label_level,
            num_outputs=outputs,
            slots=first.candidates is not None
            and all(int(part.slot.min()) >= 0 for part in parts),
            elements=tuple(np.unique(np.concatenate(atomic_numbers)).tolist())
            if atomic_numbers
            else (),
            max_nodes=max(int(part.num_nodes.max()) for part in parts),
            steps=filters[0]["config"]["steps"] if filters else None,
            layers=layers,
        )


def _encoder(layers) -> GraphLayer | None:
    """Return the encoder of stored graphs if it fixes the ranges of ids."""
    first = next(iter(layers_from_config(layers[:1])), None)
    # Other encoders learn from data, and graphs show as much.
    fixed = hasattr(first, "inputs") and not isinstance(first, GraphEncoder)
    return first if fixed else None


def _label(parts) -> tuple[str, int]:
    """Return the prediction target and the number of outputs."""
    first = parts[0]
    if first.candidates is not None:
        return "candidate", 1
    if first.label.dtype.kind in "iu":
        return "class", max(2, max(int(p.label.max()) for p in parts) + 1)
    return "number", int(np.prod(first.label.shape[1:], dtype=int))
