"""`GraphTransformerHyperModel`: Graphormer and GT."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

import keras

from keras_bandgnn import models
from keras_bandgnn.checks import one_of, positive_ints, strings
from keras_bandgnn.models.graph_transformer.graph_transformer_backbone import ATTENTION
from keras_bandgnn.preprocessing.attention.attention_plan import AttentionPlan
from keras_bandgnn.preprocessing.batching.static_batcher import StaticBatcher
from keras_bandgnn.preprocessing.ordering.cluster_compile import ClusterCompile
from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor
from keras_bandgnn.tuning import spaces
from keras_bandgnn.tuning.hypermodel import GraphHyperModel

if TYPE_CHECKING:
    import keras_tuner

    from keras_bandgnn.aliases import Graphs, HyperOptions
    from keras_bandgnn.models.backbone import Backbone
    from keras_bandgnn.models.task import Task

_BACKBONES = {"graphormer": models.GraphormerBackbone, "gt": models.GTBackbone}


class GraphTransformerHyperModel(GraphHyperModel):
    """Hypermodel of graph transformers, for graph-level and node-level tasks.

    Searches AdamW's learning rate (1e-4 to 1e-2), dropout, H, L, the attention pattern
    and, where a pattern has them, the largest distance with a separate bias
    (Graphormer) and the interval of full-attention layers. `system=True` also searches
    the batcher and the batch size. For node-level tasks it searches dense tiles for the
    sparse pattern instead: whether to use them, their size, and their budget, which is
    the number of tile entries as a multiple of the number of edges (extra: metis).

    Args:
        graphs: See `GraphHyperModel`.
        validation_data: See `GraphHyperModel`. With one graph pass `mask` and
            `validation_mask` to `search` instead.
        model: `"graphormer"` or `"gt"`.
        attention: The patterns to search, see `GraphTransformerBackbone`.
        hidden_dim: H, or several values to search.
        num_layers: L, or several values to search.
        num_heads: K, or several values to search.
        **options: `objective`, `target`, `seconds`, `epochs`, `system`, `batch_size`
            and `seed`, see `GraphHyperModel`.

    Reference:
        Zhang et al. 2024 (TorchGT).

    Example:
    >>> import keras_bandgnn as kb
    >>> graphs = [
    ...     kb.Graph(3, [0], [1], node={"kind": [0, 1, 2]}, label=i % 2)
    ...     for i in range(4)
    ... ]
    >>> hypermodel = GraphTransformerHyperModel(graphs, model="gt", hidden_dim=8)
    >>> import keras_tuner
    >>> type(hypermodel.build(keras_tuner.HyperParameters())).__name__
    'GraphClassifier'
    """

    settings = ("model", "attention", "hidden_dim", "num_layers", "num_heads")

    def __init__(
        self,
        graphs: Graphs,
        validation_data: Graphs | None = None,
        model: str = "graphormer",
        attention: Sequence[str] = ("sparse", "augment", "periodic", "full"),
        hidden_dim: int | Sequence[int] = (32, 64, 128),
        num_layers: int | Sequence[int] = (2, 3, 4),
        num_heads: int | Sequence[int] = 8,
        **options: Unpack[HyperOptions],
    ):
        super().__init__(graphs, validation_data, **options)
        self.model = one_of("model", model, tuple(_BACKBONES))
        self.attention = tuple(strings("attention", attention))
        for name in self.attention:
            one_of("attention", name, ATTENTION)
        self.hidden_dim = positive_ints("hidden_dim", hidden_dim)
        self.num_layers = positive_ints("num_layers", num_layers)
        self.num_heads = positive_ints("num_heads", num_heads)

    def space(self, hp: keras_tuner.HyperParameters) -> dict:
        """Declare the search space; return values by name, None for inactive ones."""
        values = {
            "learning_rate": hp.Float(
                "learning_rate", 1e-4, 1e-2, sampling="log", default=1e-3
            ),
            "dropout": hp.Choice("dropout", [0.0, 0.1, 0.3]),
            "attention": spaces.choice(hp, "attention", self.attention),
        }
        for name in ("hidden_dim", "num_layers", "num_heads"):
            values[name] = spaces.choice(hp, name, getattr(self, name))
        several = len(self.attention) > 1
        long = [name for name in self.attention if name in ("periodic", "full")]
        if self.model == "graphormer" and several and long:
            with hp.conditional_scope("attention", long):
                values["max_distance"] = hp.Choice("max_distance", [1, 3, 5])
        if several and "periodic" in long:
            with hp.conditional_scope("attention", ["periodic"]):
                values["full_every"] = hp.Choice("full_every", [2, 4])
        if self.spec.level == "graph":
            return values | spaces.draw_batcher(hp, self.batch_size, self.system)
        metis = importlib.util.find_spec("pymetis") is not None
        if self.system and metis and several and "sparse" in self.attention:
            with hp.conditional_scope("attention", ["sparse"]):
                values["tiles"] = hp.Boolean("tiles")
                with hp.conditional_scope("tiles", [True]):
                    values["tile_size"] = hp.Choice("tile_size", [8, 16])
                    values["tile_budget"] = hp.Choice("tile_budget", [0.5, 1.0, 2.0])
        return values

    def backbone(self, values: dict) -> Backbone:
        """Build the backbone."""
        arguments = {k: values.get(k) for k in ("max_distance", "full_every")}
        types = self.spec.num_edge_types
        return _BACKBONES[self.model](
            self.spec.inputs,
            int(values["hidden_dim"]),
            int(values["num_layers"]),
            num_heads=int(values["num_heads"]),
            attention=values["attention"],
            dropout=values["dropout"],
            # One more type for pairs without an edge.
            num_edge_types=types + 1 if types > 1 else 1,
            max_length=self.spec.max_nodes,
            **{k: int(v) for k, v in arguments.items() if v is not None},
        )

    def preprocessor(self, values: dict, backbone: Backbone) -> GraphPreprocessor:
        """Build the preprocessor: layers, batcher and plan."""
        graph_layers, plan = backbone.graph_layers(), backbone.auto_plan()
        if values.get("tiles"):
            size = int(values["tile_size"])
            graph_layers.insert(0, ClusterCompile(block_size=size))
            plan = AttentionPlan(size, share=values["tile_budget"])
        if self.spec.level == "node":
            return GraphPreprocessor(graph_layers, StaticBatcher(1, "64"), plan)
        return GraphPreprocessor(graph_layers, spaces.make_batcher(values), plan)

    def compile(self, task: Task, values: dict) -> None:
        """Compile the task."""
        rate = values["learning_rate"]
        task.compile(keras.optimizers.AdamW(rate, 1e-5, global_clipnorm=1.0))
