"""`Backbone`: base class of graph networks without a head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self, Unpack

import keras

from keras_bandgnn import compat, keras_bases
from keras_bandgnn.batch import explained
from keras_bandgnn.layers.batch_layer import BatchLayer
from keras_bandgnn.layers.element_embedding import ElementEmbedding
from keras_bandgnn.layers.node_encoder import NodeEncoder
from keras_bandgnn.models.inputs import check_batch
from keras_bandgnn.saving.preset_files import Presets
from keras_bandgnn.saving.preset_paths import CONFIG

if TYPE_CHECKING:
    from keras_bandgnn.aliases import (
        Batch,
        BatchShape,
        Config,
        DType,
        FilePath,
        Graphs,
        ModuleOptions,
        Shape,
        Tensor,
    )
    from keras_bandgnn.data.flat import FlatGraphs
    from keras_bandgnn.primitives.plan import Plan
    from keras_bandgnn.primitives.receptive_field import ReceptiveField


def check_precision(policy) -> None:
    """Raise a ValueError for a dtype policy that computes in more than 32 bits."""
    if "float64" in (policy.compute_dtype, policy.variable_dtype):
        raise ValueError(
            "Expected a dtype policy of at most 32 bits, such as 'float32' or "
            f"'mixed_bfloat16'. Received: {policy.name!r}. Batches, positions and "
            "heads are float32, so 64 bits would not be more exact. Set "
            "keras.config.set_dtype_policy('float32'), or pass dtype='float32'."
        )


def _of_library(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in ("keras", "keras_bandgnn")


def names_read(encoder, edge_encoder) -> dict[str, tuple[str, ...]]:
    """Return the features that encoders of nodes and edges read, by level.

    Args:
        encoder: A `NodeEncoder`.
        edge_encoder: One of edges, or None.
    """
    edge = () if edge_encoder is None else tuple(edge_encoder.inputs)
    edge = tuple(name for name in edge if name != "type")
    return {"node": tuple(encoder.inputs), "edge": edge, "graph": ()}


def check_inputs(graphs: FlatGraphs, encoder, edge_encoder) -> None:
    """Raise a ValueError if graphs do not fit the encoders; see `names_read`."""
    encoder.check(graphs.node, graphs.sets)
    if edge_encoder is not None:
        edge_encoder.check({**graphs.edge, "type": graphs.edge_type})


class Network:
    """What backbones and tasks, as models of Keras layers, have in common."""

    def enable_lora(
        self, rank: int, alpha: float | None = None, layers: str | None = None
    ) -> list[str]:
        """Freeze all but low-rank updates; see `training.enable_lora`."""
        from keras_bandgnn.training.lora import enable_lora

        return enable_lora(self, rank, alpha, layers)

    def functional(self, batch: Mapping) -> keras.Model:
        """Return a functional model of the same layers and weights.

        `keras.utils.plot_model` draws its layers, `summary` has the shapes and the
        connections, and `keras.Model` takes the output of any layer; of several
        functional models of one backbone or task, that of the first. Train and save
        the backbone or the task itself.

        Args:
            batch: A batch of a loader, whose shapes the model has; or `loader.inputs()`
                for any shapes, where the layers allow them.

        Raises:
            ValueError: If it computes with arrays outside of layers, as SchNet,
                Graphormer and models under a schedule do.

        Example:
        >>> import keras_bandgnn as kb
        >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"kind": [0, 1, 1]})
        >>> batch, *_ = kb.preprocessing.GraphLoader([graph])[0]
        >>> backbone = kb.models.GINEBackbone({"kind": 2}, 8, num_layers=1)
        >>> model = backbone.functional(batch)
        >>> model.get_layer("message_0").output.shape[-1]
        8
        """
        from keras_bandgnn.models.functional_model import functional_model

        return functional_model(self, batch)


class Backbone(Network, keras_bases.Model):
    """A model from a batch to node states [G, N, H].

    Backbones build all weights from their configuration, so they need no data to be
    built, saved or loaded. Subclasses set `hidden_dim` and `num_edge_types` (0 if they
    do not read types of edges) and override `build`, `call` and `get_config`.
    """

    hidden_dim: int | None = None
    num_edge_types: int | None = None
    # First type of the original edges, which a task over edges reads, if preprocessing
    # replaces the edges; see `AttentionEdges`.
    target_type: int | None = None
    # Backbones set one of these, or override `depth`.
    num_layers: int | None = None
    num_steps: int | None = None
    # Whether several devices may share a supergraph. Each class declares it; see
    # `distribution.sequence_parallel`.
    splits_sequences = False
    # Whether a layer reads only the states of nodes and of their senders, which is all
    # that `NeighborSampler` provides.
    is_local = False
    # Whether layers take hops of a sampled batch; see `layers.batch_layer.hop_batch`.
    trims_hops = False
    # Whether the number of messages matters, because they are summed or compete with
    # the node itself in a softmax: messages of sampled edges then need weights.
    sums_messages = False
    # Whether sums are divided by the number of edges of their type: sampled batches
    # then have it for the whole graph, `x["sampled"]["type_degree"]`.
    means_by_type = False
    # Whether layers read the node sets, as well as the encoder.
    reads_node_sets = False
    # Whether messages are weighted by `explained(batch, "edge")`, as in all layers of
    # the library. Otherwise `explain` explains features only.
    weighs_edges = False
    # Whether some nodes do not reach the output, so that only tasks over graphs can
    # read it; see `readout_inputs`.
    pools = False
    # Whether the weights of a loader with `edge_weight` affect the output. None if
    # layers decide; see `BatchLayer.uses_edge_weight`.
    uses_edge_weight: bool | None = None
    # Metadata by name of the library's presets that hold a backbone of this class.
    presets = Presets(CONFIG)

    def __init__(self, **kwargs: Unpack[ModuleOptions]):
        super().__init__(**kwargs)
        check_precision(self.dtype_policy)

    def __call__(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        """Return the node states for a batch; see `call`."""
        batch = args[0] if args else kwargs.get("batch")
        check_batch(batch, "")
        states = explained(batch, "states")
        return super().__call__(*args, **kwargs) if states is None else states

    def readout_inputs(
        self, batch: Batch, training: bool = False
    ) -> tuple[Tensor, Batch]:
        """Return the states and the batch of the nodes that a readout reads.

        They are all nodes, but with pooling.

        Args:
            batch: A batch.
            training: Whether dropout is active.
        """
        return self(batch, training=training), batch

    def receptive_field(self, training: bool) -> ReceptiveField | None:
        """Return the `ReceptiveField` that is exact for this backbone, or None.

        Args:
            training: Whether dropout is active.
        """
        del training

    def graph_layers(self) -> list:
        """Return the preprocessing layers that graphs need for this model, in order."""
        return []

    def default_layers(self, graphs: Graphs) -> list:
        """Return the layers of the preprocessor of a task that has none.

        Args:
            graphs: The first graphs given to the task.
        """
        del graphs
        return self.graph_layers()

    def auto_plan(self) -> Plan | None:
        """Return the plan of loaders with `"auto"`; None for the cheapest one."""

    def hidden_states(self, batch: Batch, training: bool = False) -> Iterator[Tensor]:
        """Yield node states [G, N, H]: the embedded features, then after each layer.

        The last states are the backbone's output. Custom backbones need this only for
        `Task.embed(layer=...)`.
        """
        raise NotImplementedError(
            f"Expected a backbone that implements `hidden_states`. Received: "
            f"{type(self).__name__}. Use layer=-1."
        )

    def known_ids(self) -> dict[str, dict]:
        """Return the valid ids of node features; exported models reject others.

        By default they are those of layers of class `NodeEncoder` and
        `ElementEmbedding`.

        Returns:
            Node feature -> `{"below": n}`, `{"below": [n, ...]}` for columns, or
            `{"among": [...]}`.
        """
        ids = {}
        for layer in self.layers:
            of_edges = getattr(layer, "level", "node") == "edge"
            if isinstance(layer, NodeEncoder | ElementEmbedding) and not of_edges:
                ids |= layer.known_ids()
        return ids

    def features_read(self) -> dict[str, tuple[str, ...]] | None:
        """Return the features read from "node", "edge" and "graph"; None for any.

        Exported models have no other features as inputs.
        """

    def not_local(self) -> str:
        """Return the options that read more than neighbours; empty if none do."""
        return "" if self.is_local else type(self).__name__

    def check_hops(self, count: int, instead: str = "ClusterSampler") -> None:
        """Raise a ValueError if neighbours within some distance do not suffice.

        Args:
            count: The distance in edges.
            instead: Alternative to name in the error.
        """
        if self.not_local():
            raise ValueError(
                "Expected a backbone that reads nothing but neighbours. Received: "
                f"{self.not_local()}. Use {instead}, or set `is_local = True` in your "
                "own class if its layers read neighbours alone."
            )
        if self.depth is not None and self.depth != count:
            raise ValueError(
                f"Expected {self.depth} fan-outs, one for each layer or step of "
                f"{type(self).__name__}. Received: {count}. Pass "
                f"NeighborSampler({[10] * self.depth})."
            )

    @property
    def depth(self) -> int | None:
        """Number of layers or steps after the embedded features; None if unknown."""
        return self.num_layers or self.num_steps

    @property
    def variant(self) -> object:
        """State beyond the configuration that compiled steps depend on, or None."""

    def adapt(self, parts: Sequence[FlatGraphs]) -> bool:
        """Set options that depend on the training graphs, before training.

        They belong into `get_config`, so that a saved model computes the same. `check`
        and predictions must not change them.

        Args:
            parts: The graphs, each part a `FlatGraphs`.

        Returns:
            Whether the model's computation has changed.
        """
        del parts
        return False

    def check(self, graphs: FlatGraphs) -> None:
        """Raise a ValueError if the features of a `FlatGraphs` do not fit."""

    def check_edge_types(self, num_edge_types: int) -> None:
        """Raise a ValueError if batches may have more types of edges than the backbone.

        Args:
            num_edge_types: P of the loader.
        """
        types = self.num_edge_types
        if types and num_edge_types > types:
            raise ValueError(
                f"Expected edge types below {types}, as the backbone's "
                f"num_edge_types. Received: {num_edge_types} types."
            )

    def check_weights(
        self, parts: Sequence[FlatGraphs], edge_weight: str | None
    ) -> None:
        """Raise a ValueError if no layer uses the weights of edges, or one cannot.

        Args:
            parts: The graphs, each part a `FlatGraphs`.
            edge_weight: Edge feature with the weights, or None.
        """
        if edge_weight is None:
            return
        if not self._reads_weights():
            raise ValueError(
                "Expected a backbone whose messages have the weights of edges: "
                "GCNBackbone, GGNNBackbone, GINEBackbone, RGCNBackbone, SAGEBackbone "
                "with reduce='mean' or 'sum', or GPSBackbone with local='gine' or "
                "'sage'. "
                f"Received: {type(self).__name__} with edge_weight={edge_weight!r}, "
                "which would change nothing. Leave `edge_weight` out of the "
                "preprocessor, or set `uses_edge_weight = True` in your own class if "
                "it reads the weights."
            )
        layers = [n for n in compat.sublayers(self) if isinstance(n, BatchLayer)]
        # All layers of a class have the same rule.
        layers = {type(layer): layer for layer in layers}.values()
        first = 0
        for part in parts:
            for layer in layers:
                layer.check_weights(part, edge_weight, first)
            first += len(part)

    def _reads_weights(self) -> bool:
        """Return whether weights of edges may change the output."""
        if self.uses_edge_weight is not None:
            return self.uses_edge_weight
        layers = [layer for layer in compat.sublayers(self) if layer is not self]
        # Custom classes may read the plan, with or without layers of the library.
        if not any(isinstance(layer, BatchLayer) for layer in layers):
            layers.append(self)
        for layer in layers:
            declared = getattr(layer, "uses_edge_weight", None)
            if declared or (declared is None and not _of_library(type(layer))):
                return True
        return False

    def compute_output_shape(self, input_shape: BatchShape) -> Shape:
        """Return [G, N, H]."""
        return (*input_shape["node"]["mask"], self.hidden_dim)

    def get_config(self) -> dict:
        """Return name and dtype policy; subclasses add their own arguments."""
        config = {
            "name": self.name,
            "dtype": keras.saving.serialize_keras_object(self.dtype_policy),
        }
        # Written only if it is not the default.
        return config if self.trainable else {**config, "trainable": False}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Build the backbone from `get_config()`."""
        config = dict(config)
        trainable = config.pop("trainable", True)
        backbone = cls(**config)
        if not trainable:
            # Set after the layers are built, so that it applies to them.
            backbone.trainable = False
        return backbone

    def save_to_preset(
        self, path: FilePath, weights: str = "float32", card: Mapping | None = None
    ) -> None:
        """Write only the backbone to a folder; see `Task.save_to_preset`."""
        from keras_bandgnn.models import presets

        presets.save(path, self, None, weights, card)

    @classmethod
    def from_preset(
        cls,
        preset: FilePath,
        load_weights: bool = True,
        dtype: DType = None,
        **overrides: object,
    ) -> Self:
        """Load the backbone of a preset, for a custom head.

        Args:
            preset: See `Task.from_preset`.
            load_weights: Whether to load the weights; otherwise they are new.
            dtype: The dtype policy.
            **overrides: Arguments of the backbone to replace.

        Example:
        >>> backbone = Backbone.from_preset("schnet_qm9", load_weights=False)
        >>> backbone.hidden_dim
        64
        """
        from keras_bandgnn.models import presets

        return presets.load_backbone(
            cls, Backbone, preset, load_weights, dtype, overrides
        )
