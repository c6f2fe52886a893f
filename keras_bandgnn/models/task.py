"""`Task`: a backbone with a head, which takes graphs and returns results per graph."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

import numpy as np

from keras_bandgnn import compat
from keras_bandgnn.models.backbone import Backbone, Network
from keras_bandgnn.models.graph_model import GraphModel
from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor
from keras_bandgnn.saving.preset_files import Presets
from keras_bandgnn.saving.preset_paths import TASK

if TYPE_CHECKING:
    from keras_bandgnn.aliases import BatchShape, Data, DType, FilePath, Shape
    from keras_bandgnn.primitives.plan import Plan

# Part of a batch, and one of its arrays, with an entry for each output of a level.
_ROWS = {
    "graph": ("graph", "mask"),
    "node": ("node", "mask"),
    "edge": ("edge", "sender"),
}


def refuse_preprocessor(name: str, value) -> None:
    """Raise a ValueError for a preprocessor as another argument.

    Args:
        name: The second argument of a task's constructor.
        value: Its value.
    """
    if isinstance(value, GraphPreprocessor):
        raise ValueError(
            f"Expected `{name}` as the second argument. Received: a GraphPreprocessor. "
            "Pass it by name: preprocessor=..."
        )


class Task(Network, GraphModel):
    """A backbone and a head. `fit`, `evaluate` and `predict` take graphs.

    Graphs may come as a list of `Graph` (or of `ProgramGraph`, if the preprocessor
    encodes them), a `FlatGraphs`, an opened store or a `GraphLoader`. Anything else
    goes to Keras unchanged: a task is also a plain Keras model over the batch contract.

    Subclasses set `output_level`, the level of the output rows, and `labels`, which
    determine the losses and metrics that `compile` accepts; see `GraphModel`.

    Args:
        backbone: The model from a batch to node states.
        preprocessor: `GraphPreprocessor` for graphs given to `fit`, `evaluate` and
            `predict`. If None, the first graphs given to them set `preprocessor` to
            `default_preprocessor(graphs)`; batches need none.
        compile: Whether to compile the task with its defaults, as `compile()` does.
        **kwargs: `name` and `dtype`, as for `keras.Model`.
    """

    # Arguments that do not determine the weights: `from_preset` may replace them.
    weightless: tuple[str, ...] = ("class_names", "target_names")
    # Metadata by name of the library's presets that hold a task of this class.
    presets = Presets(TASK)

    def save_to_preset(
        self, path: FilePath, weights: str = "float32", card: Mapping | None = None
    ) -> None:
        """Write the task, its preprocessor and its weights to a folder.

        Args:
            path: The folder; an existing preset is replaced.
            weights: `"float32"`, `"float16"` for half the size (rounded, and loaded to
                float32), or `"none"` for an architecture to be trained.
            card: Texts for `README.md`: any of "title", "data", "licence", "recipe",
                "score", "seed", "command", "limits", "repository_licence".
        """
        from keras_bandgnn.models import presets

        presets.save(path, self.backbone, self, weights, card)

    @classmethod
    def from_preset(
        cls,
        preset: FilePath,
        load_weights: bool = True,
        dtype: DType = None,
        backbone: Mapping | None = None,
        compile: bool = True,
        **head: object,
    ) -> Self:
        """Load a task from a folder, the name of a preset or the Hugging Face Hub.

        Args:
            preset: A folder that `save_to_preset` wrote, one of `list_presets()`, or
                `"hf://OWNER/NAME"`.
            load_weights: Whether to load the weights; otherwise they are new.
            dtype: The backbone's dtype policy, such as `"mixed_bfloat16"`.
            backbone: Arguments of the backbone to replace, such as `{"dropout": 0.1}`.
            compile: Whether to compile the task with its defaults.
            **head: Arguments of the task to replace, such as `num_classes=3`. The
                head is then new, and only the backbone has the preset's weights;
                those of `weightless`, such as `class_names`, leave the head as it is.

        Raises:
            ValueError: For a preset that does not exist, holds another task or no
                weights, or for invalid arguments.
        """
        from keras_bandgnn.models import presets

        return presets.load_task(
            cls, Task, Backbone, preset, load_weights, dtype, backbone, compile, **head
        )

    def ensemble_outputs(self, outputs: np.ndarray) -> np.ndarray:
        """Convert outputs of one graph to the scale on which an ensemble averages them.

        Numbers of regressors, and probabilities of classifiers, instead of logits.
        Tasks that do not define it cannot be members of an `Ensemble`.

        Args:
            outputs: Result of `predict` for a graph.
        """
        raise NotImplementedError

    def rows_shape(self, input_shape: BatchShape) -> Shape:
        """Return the first axes [G, M] of outputs, of M graphs, nodes or edges."""
        part, name = _ROWS[self.output_level]
        return input_shape[part][name]

    @classmethod
    def head_overrides(cls, config: dict, overrides: dict) -> dict:
        """Return arguments of a preset's task with some of them replaced."""
        unknown = sorted(set(overrides) - set(config))
        if unknown:
            raise ValueError(
                f"Expected arguments of {cls.__name__}: {sorted(config)}. "
                f"Received: {unknown}."
            )
        return {**config, **overrides}

    def embed(
        self, graphs: Data, level: str = "node", reduce: str = "mean", layer: int = -1
    ) -> list:
        """Return the states of nodes, or one vector per graph.

        They are those of the backbone, before the head and without dropout. All nodes
        are computed, even by tasks that read few of them.

        Args:
            graphs: Graphs, in any form that `fit` takes.
            level: `"node"` or `"graph"`.
            reduce: For graphs the `"mean"`, `"sum"` or `"max"` over the nodes, or
                `"token"`, the state of the token of a graph transformer with
                `global_token=True`.
            layer: Which states: 0 the embedded features, l those after layer (or step)
                l; negative numbers count from the end, and -1 is the output.

        Returns:
            For each graph, in their order, float [N, H] in the order of its nodes, or
            float [H]. Rows of nodes that the preprocessor drops are NaN; None for
            graphs that the batcher drops and items that the encoder skips.

        Raises:
            ValueError: For arguments that do not fit.

        Example:
        >>> import keras_bandgnn as kb
        >>> graphs = [kb.Graph(n, [0], [n - 1], node={"kind": [1] * n}) for n in (2, 3)]
        >>> task = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 2}, 8), 2)
        >>> [rows.shape for rows in task.embed(graphs)]
        [(2, 8), (3, 8)]
        >>> task.embed(graphs, level="graph", layer=1)[0].shape
        (8,)
        """
        from keras_bandgnn.models import inspection

        return inspection.embed(self, graphs, level, reduce, layer)

    def attention_weights(self, graphs: Data) -> list:
        """Return the attention weights of every layer of the backbone.

        Args:
            graphs: Graphs, in any form that `fit` takes.

        Returns:
            For each graph, in their order, a list with one `AttentionWeights` per
            layer: senders and receivers int32 [E], nodes as the graph numbers them,
            and weights float32 [E, K], without dropout. E counts all pairs that attend:
            edges and self-loops, or all pairs of nodes under full attention. The
            token of a graph transformer has the number N.

        Raises:
            ValueError: For a backbone without attention, or several devices.

        Example:
        >>> import keras_bandgnn as kb
        >>> graph = kb.Graph(3, [0, 1], [2, 2], node={"kind": [0, 1, 1]})
        >>> backbone = kb.models.GATBackbone({"kind": 2}, 8, num_heads=2)
        >>> task = kb.models.GraphClassifier(backbone, 2)
        >>> first, second = task.attention_weights([graph])[0]
        >>> first.senders.tolist(), first.receivers.tolist(), first.weights.shape
        ([0, 1, 0, 1, 2], [0, 1, 2, 2, 2], (5, 2))
        """
        from keras_bandgnn.models import inspection

        return inspection.attention_weights(self, graphs)

    def export(
        self,
        path: FilePath,
        format: str = "tf_saved_model",
        graphs: Data | None = None,
        budget: Mapping[str, int] | None = None,
        plan: Plan | None = None,
        verify: bool = True,
        **options: object,
    ) -> FilePath:
        """Write the task, with its preprocessing, for another runtime.

        The folder has the model for supergraphs of one shape, and `packing.json`, with
        which `serving.GraphPacker` turns graphs into its inputs. Run both with
        `serving.ExportedModel(path, trusted=True).predict(graphs)`.

        Args:
            path: A new folder, or one that this method wrote.
            format: `"tf_saved_model"`, `"onnx"`, `"litert"` or `"torch"` (a `.pt2`
                file); which backend writes which, see the page on exporting.
            graphs: Graphs that are as large as those to come, in any form that
                `predict` takes. They give the names, shapes and types of the inputs.
            budget: Capacities by name, such as `{"node": 512}`, instead of those
                of the preprocessor's batcher.
            plan: A `Plan` instead of that of `predict`.
            verify: Whether to run the exported model in its runtime and compare its
                outputs with the task's, to 1e-4.
            **options: Passed to `keras.Model.export`, such as `verbose`. Not
                `input_signature`, which follows from `graphs`.

        Returns:
            The path.

        Raises:
            ImportError: If the converter, or the runtime for `verify`, is missing.
            ValueError: For a format that the backend does not write, an
                `input_signature`, or outputs that differ.

        Example:
        >>> import keras_bandgnn as kb
        >>> graphs = [kb.Graph(3, [0, 1], [1, 2], node={"kind": [1, 2, 3]})] * 4
        >>> task = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 4}, 8), 2)
        >>> task.export("exported", "docx", graphs)
        Traceback (most recent call last):
        ...
        ValueError: Expected `format` to be one of ...
        """
        from keras_bandgnn.serving.exporting import export_task

        return export_task(self, path, format, graphs, budget, plan, verify, **options)

    @property
    def is_quantized(self) -> bool:
        """Return whether `quantize` has rounded weights of a layer."""
        return any(
            getattr(layer, "quantization_mode", None)
            for layer in compat.sublayers(self)
        )

    def save(self, filepath: FilePath, *args: bool, **kwargs: bool) -> None:
        """Write the task to a `.keras` file, see `keras.Model.save`.

        Raises:
            ValueError: For a quantised task, which no file could be read back to.
        """
        if self.is_quantized:
            raise ValueError(
                "Expected weights that were not quantised. Received: int8 weights, "
                "which the configuration cannot name. Save before quantize('int8'), "
                "which takes no data and can be called after loading."
            )
        return super().save(filepath, *args, **kwargs)

    def quantize(
        self, mode: str | None = None, *args: object, **kwargs: object
    ) -> None:
        """Round weights, see `keras.Model.quantize`; last, before `export`.

        Args:
            mode: `"int8"`.
            *args: Passed on.
            **kwargs: Passed on.
        """
        compat.set_built(self)
        with warnings.catch_warnings():
            # Keras also warns about every layer without weights to quantize.
            warnings.filterwarnings("ignore", ".*`quantize` method implemented")
            super().quantize(mode, *args, **kwargs)
