"""`GGNNHyperModel`: the search space of Balog et al. 2019, and plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from keras_bandgnn import models
from keras_bandgnn.checks import one_of, positive_ints
from keras_bandgnn.preprocessing.ordering.rcmk_compile import RCMKCompile
from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor
from keras_bandgnn.preprocessing.reachability_filter import ReachabilityFilter
from keras_bandgnn.tuning import spaces
from keras_bandgnn.tuning.hypermodel import GraphHyperModel, without_order

if TYPE_CHECKING:
    import keras_tuner

    from keras_bandgnn.aliases import Graphs, HyperOptions
    from keras_bandgnn.models.backbone import Backbone
    from keras_bandgnn.models.task import Task


class GGNNHyperModel(GraphHyperModel):
    """Hypermodel of GGNNs with the search space of the low-bandwidth paper.

    `space="paper"` uses the ranges of Appendix E for one GPU, `"paper-large-batch"`
    those for large batches, both for SGD with momentum. `"adam"` is a small space for
    searches of a few minutes. `system=True` also searches the batcher, the batch size,
    the plan, its block size, tile size and tile budget, and the node ordering. A plan
    that drops edges is used in training only; validation uses all edges.

    Weight decay is an L2 term in the loss, over kernels and embeddings, and gradients
    are clipped by the global norm, see docs/training.md.

    Args:
        graphs: See `GraphHyperModel`. Stored graphs fix T if a `ReachabilityFilter` was
            applied to them.
        validation_data: See `GraphHyperModel`.
        space: `"paper"`, `"paper-large-batch"` or `"adam"`.
        hidden_dim: H, or several values to search.
        num_steps: T, or several values to search.
        readout: `"slot"`, `"candidate"` (the paper's) or `"auto"`: `"slot"` if all
            graphs have a slot.
        **options: `objective`, `target`, `seconds`, `epochs`, `system`, `batch_size`
            and `seed`, see `GraphHyperModel`.

    Reference:
        Balog et al. 2019, Appendix E: 40 draws.

    Example:
    >>> import keras_bandgnn as kb
    >>> graphs = [
    ...     kb.Graph(3, [0, 1], [1, 2], node={"type": [1, 2, 3]}, candidates=[1, 2],
    ...              label=1)
    ... ] * 8
    >>> hypermodel = GGNNHyperModel(graphs, space="paper", hidden_dim=8, num_steps=2)
    >>> import keras_tuner
    >>> task = hypermodel.build(keras_tuner.HyperParameters())
    >>> task.backbone.num_steps
    2
    """

    settings = ("hidden_dim", "num_steps", "readout")

    def __init__(
        self,
        graphs: Graphs,
        validation_data: Graphs | None = None,
        space: str = "paper",
        hidden_dim: int | Sequence[int] = 128,
        num_steps: int | Sequence[int] = 8,
        readout: str = "auto",
        **options: Unpack[HyperOptions],
    ):
        super().__init__(graphs, validation_data, **options)
        self.space_name = one_of("space", space, tuple(spaces.SPACES))
        self.hidden_dim = positive_ints("hidden_dim", hidden_dim)
        self.num_steps = self.spec.steps or positive_ints("num_steps", num_steps)
        self.readout = one_of("readout", readout, ("auto", "slot", "candidate"))

    def fixed(self) -> dict:
        """Return the settings that identify the search, as JSON values."""
        return super().fixed() | {"space": self.space_name}

    def space(self, hp: keras_tuner.HyperParameters) -> dict:
        """Declare the search space; return values by name, None for inactive ones."""
        values = spaces.draw_sgd(hp, self.space_name)
        values |= {
            "hidden_dim": spaces.choice(hp, "hidden_dim", self.hidden_dim),
            "num_steps": spaces.choice(hp, "num_steps", self.num_steps),
            **spaces.draw_batcher(hp, self.batch_size, self.system),
        }
        if self.system:
            values |= spaces.draw_plan(hp, self.spec.label == "candidate")
        return values

    def backbone(self, values: dict) -> Backbone:
        """Build the backbone."""
        return models.GGNNBackbone(
            self.spec.inputs,
            int(values["hidden_dim"]),
            int(values["num_steps"]),
            num_edge_types=self.spec.num_edge_types,
            dropout=round(1.0 - values["dropout_keep_prob"], 6),
            name="ggnn_backbone",
        )

    def preprocessor(self, values: dict, backbone: Backbone) -> GraphPreprocessor:
        """Build the preprocessor: layers, batcher and plan."""
        layers = list(self.spec.layers)
        stored = bool(layers)
        ordering = values.get("ordering")
        if ordering is not None:
            layers = without_order(layers)
        graph_layers = GraphPreprocessor.from_config(
            {
                "layers": layers,
                "batcher": {"class_name": "DynamicBatcher", "config": {}},
                "plan": "auto",
            }
        ).graph_layers
        if not stored and self.spec.label == "candidate":
            graph_layers.append(ReachabilityFilter(backbone.num_steps))
        if ordering is not None:
            size = values["block_size"] or values["tile_size"]
            graph_layers.append(RCMKCompile(int(size), ordering))
        elif not stored and graph_layers:
            # As `bandgnn compile` does; no other plan depends on the node order.
            graph_layers.append(RCMKCompile())
        plan = spaces.make_plan(values, backbone.receptive_field(training=True))
        return GraphPreprocessor(graph_layers, spaces.make_batcher(values), plan)

    def head(self, values: dict) -> dict:
        """Return further arguments of the task."""
        if self.spec.label != "candidate":
            return {}
        arguments = {"label_smoothing": values["label_smoothing"]}
        return (
            arguments
            if self.readout == "auto"
            else {"readout": self.readout, **arguments}
        )

    def compile(self, task: Task, values: dict) -> None:
        """Compile the task."""
        task.compile(spaces.make_sgd(values))
        spaces.add_l2(task, values["weight_decay"])
