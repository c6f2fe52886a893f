"""`GraphRegressorHyperModel`: SchNet, MPEU and PaiNN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

import keras

from keras_bandgnn import layers, models
from keras_bandgnn.checks import instance, one_of, positive_ints, sequence
from keras_bandgnn.preprocessing.graph_layer import GraphLayer
from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor
from keras_bandgnn.tuning import spaces
from keras_bandgnn.tuning.hypermodel import GraphHyperModel

if TYPE_CHECKING:
    import keras_tuner

    from keras_bandgnn.aliases import Graphs, HyperOptions
    from keras_bandgnn.models.backbone import Backbone
    from keras_bandgnn.models.task import Task

_BACKBONES = {
    "schnet": models.SchNetBackbone,
    "mpeu": models.MPEUBackbone,
    "painn": models.PaiNNBackbone,
}


class GraphRegressorHyperModel(GraphHyperModel):
    """Hypermodel of geometric models for regression on graphs.

    Searches Adam's learning rate (1e-4 to 1e-2), C, T and, if there are several, the
    layers that create the edges. `system=True` also searches the batcher and the batch
    size. These models use no plan.

    Args:
        graphs: See `GraphHyperModel`; molecules or crystals.
        validation_data: See `GraphHyperModel`.
        model: `"schnet"`, `"mpeu"` or `"painn"`.
        edges: Alternative layers that create the edges, such as
            `[FullyConnectedGraph(), RadiusGraph(5.0)]`; empty if the graphs have edges
            with lengths.
        reduce: Pooling of the atoms' outputs, `"mean"` or `"sum"`.
        hidden_dim: C, or several values to search.
        num_steps: T, or several values to search.
        **options: `objective`, `target`, `seconds`, `epochs`, `system`, `batch_size`
            and `seed`, see `GraphHyperModel`.

    Reference:
        Speckhard et al. 2025.

    Example:
    >>> import keras_bandgnn as kb
    >>> node = {"atomic_number": [8, 1], "position": [[0.0, 0, 0], [0.97, 0, 0]]}
    >>> graphs = [kb.Graph(2, [], [], node=node, label=float(n)) for n in range(4)]
    >>> edges = [kb.preprocessing.FullyConnectedGraph()]
    >>> hypermodel = GraphRegressorHyperModel(graphs, edges=edges, hidden_dim=8)
    >>> import keras_tuner
    >>> hypermodel.build(keras_tuner.HyperParameters()).backbone.hidden_dim
    8
    """

    settings = ("model", "reduce", "hidden_dim", "num_steps")

    def __init__(
        self,
        graphs: Graphs,
        validation_data: Graphs | None = None,
        model: str = "schnet",
        edges: Sequence[GraphLayer] = (),
        reduce: str = "mean",
        hidden_dim: int | Sequence[int] = (32, 64, 128),
        num_steps: int | Sequence[int] = (2, 3, 4),
        **options: Unpack[HyperOptions],
    ):
        super().__init__(graphs, validation_data, **options)
        if self.spec.label != "number" or not self.spec.elements:
            raise ValueError(
                "Expected graphs with the node feature 'atomic_number' and numbers as "
                f"labels. Received: labels of type {self.spec.label!r}, "
                f"{len(self.spec.elements)} elements. Choose another hypermodel."
            )
        self.model = one_of("model", model, tuple(_BACKBONES))
        edges = sequence("edges", edges, "a list of graph layers")
        for layer in edges:
            instance("edges", layer, GraphLayer, "a list of graph layers")
        self.edges = {_name(layer): layer for layer in edges}
        self.reduce = one_of("reduce", reduce, ("mean", "sum"))
        self.hidden_dim = positive_ints("hidden_dim", hidden_dim)
        self.num_steps = positive_ints("num_steps", num_steps)

    def fixed(self) -> dict:
        """Return the settings that identify the search, as JSON values."""
        return super().fixed() | {"edges": list(self.edges)}

    def space(self, hp: keras_tuner.HyperParameters) -> dict:
        """Declare the search space; return values by name, None for inactive ones."""
        values = {
            "learning_rate": hp.Float(
                "learning_rate", 1e-4, 1e-2, sampling="log", default=1e-3
            ),
            "hidden_dim": spaces.choice(hp, "hidden_dim", self.hidden_dim),
            "num_steps": spaces.choice(hp, "num_steps", self.num_steps),
            **spaces.draw_batcher(hp, self.batch_size, self.system),
        }
        if self.edges:
            values["edges"] = spaces.choice(hp, "edges", list(self.edges))
        return values

    def backbone(self, values: dict) -> Backbone:
        """Build the backbone."""
        arguments = {}
        if self.model != "painn":
            arguments["reduce"] = self.reduce
        return _BACKBONES[self.model](
            self.spec.elements,
            int(values["hidden_dim"]),
            int(values["num_steps"]),
            **arguments,
        )

    def preprocessor(self, values: dict, backbone: Backbone) -> GraphPreprocessor:
        """Build the preprocessor: layers and batcher."""
        graph_layers = [self.edges[values["edges"]]] if self.edges else []
        return GraphPreprocessor(graph_layers, spaces.make_batcher(values))

    def head(self, values: dict) -> dict:
        """Return further arguments of the task."""
        if self.model == "painn":
            return {"readout": self.reduce, "hidden": int(values["hidden_dim"])}
        return {
            "readout": self.reduce,
            "activation": layers.shifted_softplus,
            "use_bias": False,
        }

    def compile(self, task: Task, values: dict) -> None:
        """Compile the task."""
        task.compile(keras.optimizers.Adam(values["learning_rate"]))


def _name(layer: GraphLayer) -> str:
    """Return class and arguments of a layer, as a hyperparameter value."""
    config = layer.get_config()
    names = [k for k in config if k not in ("name", "trainable", "dtype")]
    arguments = ", ".join(f"{k}={config[k]}" for k in names if config[k] is not None)
    return f"{type(layer).__name__}({arguments})"
