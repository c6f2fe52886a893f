"""Types that signatures name: tensors, batches, graphs, and options of Keras.

Only type checkers import them. A tensor is of another class on each backend, so they
accept every operation on a `Tensor`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

if TYPE_CHECKING:
    import os

    import keras
    from numpy.typing import ArrayLike

    from keras_bandgnn import keras_bases
    from keras_bandgnn.data.flat import FlatGraphs
    from keras_bandgnn.data.link_ends import NodePairs
    from keras_bandgnn.data.store import GraphStore
    from keras_bandgnn.graph import Graph
    from keras_bandgnn.layers.target_normalizer import TargetNormalizer
    from keras_bandgnn.preprocessing.loading.loader import Loader
    from keras_bandgnn.preprocessing.sampling.sampler import Sampler
    from keras_bandgnn.programs.program_graph import ProgramGraph

# A tensor of the backend, or what it converts to one.
Tensor: TypeAlias = Any
# Of the backend or of NumPy, in dicts; see `keras_bandgnn.batch`.
Batch: TypeAlias = Mapping[str, Any]
# Sizes of axes, None for any.
Shape: TypeAlias = tuple[int | None, ...]
# The shapes of a batch, in dicts of the same keys.
BatchShape: TypeAlias = Mapping[str, Any]
# Arguments of a constructor, which JSON can hold.
Config: TypeAlias = dict[str, Any]
# One item of raw data, of a class of another library.
Item: TypeAlias = Any
# Added to the type of what is None for some data or arguments, which checkers need not
# know: `np.ndarray | MaybeNone`.
MaybeNone: TypeAlias = Any
# A data frame of pandas, if it was asked for.
Frame: TypeAlias = Any
# Graphs in a container of any library; see `data.graphs_of`.
Source: TypeAlias = Any
# Values by name.
Values: TypeAlias = Mapping[str, Any]

FilePath: TypeAlias = "str | os.PathLike[str]"
Arrays: TypeAlias = "Mapping[str, ArrayLike]"
GraphItem: TypeAlias = "Graph | ProgramGraph | Mapping"
Graphs: TypeAlias = "Graph | FlatGraphs | GraphStore | Loader | Iterable[GraphItem]"
# What `fit` takes: graphs, raw data of an encoder, or data of Keras.
Data: TypeAlias = "Graphs | ArrayLike | Iterable[object]"
Weights: TypeAlias = "ArrayLike | Sequence[ArrayLike] | None"
# Pairs of nodes: int [Q, 2], or [Q, 3] with types.
Pairs: TypeAlias = "NodePairs | ArrayLike"
Labels: TypeAlias = "ArrayLike | Sequence[ArrayLike | None] | None"

Activation: TypeAlias = str | Callable[..., Tensor] | None
Initializer: TypeAlias = str | Callable[..., Tensor] | Config
DType: TypeAlias = "str | keras.DTypePolicy | None"
Optimizer: TypeAlias = "str | keras.optimizers.Optimizer"
Loss: TypeAlias = str | Callable[..., Tensor] | None
# Of Keras or of the library.
Model: TypeAlias = "keras.Model | keras_bases.Model"
Layer: TypeAlias = "keras.layers.Layer | keras_bases.Layer"
Callback: TypeAlias = "keras.callbacks.Callback | keras_bases.Callback"
Callbacks: TypeAlias = (
    "Callback | keras.callbacks.CallbackList | Sequence[Callback] | None"
)
# What callbacks get: the loss and metrics by name.
Logs: TypeAlias = Mapping[str, Any] | None
# What Keras returns: of `evaluate` a number, a list, or with `return_dict` a dict; of
# `predict` for its own data an array.
Results: TypeAlias = Any


class ModuleOptions(TypedDict, total=False):
    """What every layer and model takes."""

    name: str | None
    dtype: DType
    trainable: bool


class LayerOptions(ModuleOptions, total=False):
    """What `keras.layers.Layer` takes."""

    activity_regularizer: Callable[..., Tensor] | str | None
    autocast: bool


class FrameOptions(ModuleOptions, total=False):
    """What every `MessagePassingBackbone` takes; see its documentation."""

    feed_forward: bool
    jumping_knowledge: str | None
    virtual_node: bool
    ego_separation: bool
    remat: bool


class PoolingOptions(TypedDict, total=False):
    """What `MessagePassingBackbone`s with pooling between the layers take."""

    pooling: Layer | Sequence[Layer | None] | None


class ConvolutionOptions(FrameOptions, PoolingOptions, total=False):
    """What `GCNBackbone` and `GATBackbone` take beyond their arguments."""

    embeddings_initializer: Initializer


class DropoutOptions(FrameOptions, total=False):
    """What `HGTBackbone` takes beyond its arguments."""

    dropout: float
    input_dropout: float | None
    activation_first: bool


class NormOptions(DropoutOptions, total=False):
    """What backbones with norms and residuals take."""

    norm: str | None
    activation: Activation
    residual: bool | str
    embeddings_initializer: Initializer


class RelationOptions(NormOptions, PoolingOptions, total=False):
    """What `RGCNBackbone` takes beyond its arguments."""


class EdgeOptions(TypedDict, total=False):
    """What `MessagePassingBackbone`s whose messages can read edge states take."""

    edge_inputs: Mapping | None
    num_edge_types: int | None


class GPSOptions(NormOptions, EdgeOptions, total=False):
    """What `GPSBackbone` takes beyond its arguments."""


class MessageOptions(RelationOptions, EdgeOptions, total=False):
    """What other backbones of message passing take beyond their arguments."""


class TransformerOptions(ModuleOptions, total=False):
    """What `GTBackbone` and `GraphormerBackbone` share."""

    ffn_dim: int | None
    attention: str
    full_every: int
    max_distance: int
    use_bias: bool
    num_edge_types: int
    global_token: bool
    dropout: float
    attention_dropout: float
    max_length: int | None
    fused: bool
    remat: bool
    conditions_hold: bool | None
    edge_inputs: Mapping | None
    target_type: int | None


class TaskOptions(ModuleOptions, total=False):
    """What `Task` takes beyond the backbone and the preprocessor."""

    compile: bool


class RegressorOptions(TaskOptions, total=False):
    """What `GraphRegressor` takes beyond its targets and its readout."""

    hidden: int | None
    activation: Activation
    use_bias: bool
    normalizer: TargetNormalizer | Mapping | str | None
    target_names: Iterable[str] | None
    zbl: bool


class LoaderOptions(TypedDict, total=False):
    """What `GraphPreprocessor.loader` passes to `GraphLoader`."""

    shuffle: bool
    seed: int
    replicas: int
    prefetch: int
    threads: int
    host: int
    num_hosts: int


class HyperOptions(TypedDict, total=False):
    """What `GraphHyperModel` takes beyond the graphs."""

    objective: str
    target: float | None
    seconds: float | None
    epochs: int | None
    system: bool
    batch_size: int | Iterable[int] | None
    seed: int


class LossOptions(TypedDict, total=False):
    """What losses take beyond `name` and `reduction`."""

    dtype: DType


class TaskLoaderOptions(TypedDict, total=False):
    """What `Task.loader` takes beyond the graphs."""

    shuffle: bool
    seed: int
    adapt: bool
    training: bool
    sampler: Sampler | None


class StepOptions(TypedDict, total=False):
    """What `predict` of pairs takes beyond its arguments."""

    verbose: int | str
    steps: int | None
    callbacks: Callbacks


class PredictOptions(StepOptions, total=False):
    """What `predict` takes beyond the graphs."""

    batch_size: int | None


class EvaluateOptions(PredictOptions, total=False):
    """What `evaluate` takes beyond graphs and labels."""

    sample_weight: Weights
    return_dict: bool


class MaskedEvaluateOptions(EvaluateOptions, total=False):
    """What `evaluate` of tasks over nodes and edges takes beyond its arguments."""

    sampler: Sampler | None


class EpochOptions(TypedDict, total=False):
    """What every `fit` takes."""

    epochs: int
    verbose: int | str
    callbacks: Callbacks
    validation_split: float
    shuffle: bool
    class_weight: Mapping[int, float] | None
    sample_weight: Weights
    initial_epoch: int
    steps_per_epoch: int | None
    validation_steps: int | None
    validation_batch_size: int | None
    validation_freq: int


class FitOptions(EpochOptions, total=False):
    """What `fit` takes beyond its arguments."""

    batch_size: int | None


class MaskedFitOptions(FitOptions, total=False):
    """What `fit` of tasks over nodes and edges takes beyond its arguments."""

    seed: int
    sampler: Sampler | None


class PairFitOptions(EpochOptions, total=False):
    """What `fit` of pairs takes beyond its arguments."""

    validation_data: Loader | None
