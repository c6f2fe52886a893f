"""`Probe`: the output of a task as a function of features and edges."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_bandgnn import compat
from keras_bandgnn import ops as graph_ops
from keras_bandgnn.layers.element_embedding import ElementEmbedding
from keras_bandgnn.layers.node_encoder import NUMBERS, NodeEncoder
from keras_bandgnn.models.labels import ClassLabels, TargetLabels
from keras_bandgnn.models.task import Task
from keras_bandgnn.models.task_program import compiled
from keras_bandgnn.ops.context import portable
from keras_bandgnn.ops.loops import repeated
from keras_bandgnn.primitives.segment import Segment

# Name of the factors of edges among the inputs; features of nodes cannot have it.
EDGE = ""
SEGMENT = Segment().key()
# Node arrays of a batch that are no features.
_NODE_ARRAYS = ("graph_id", "mask")
# The class that the model predicts.
PREDICTED = -1


def encoders(backbone) -> dict[str, keras.layers.Layer]:
    """Return the layer that embeds each node feature of ids or characters.

    Raises:
        ValueError: If two layers embed the same feature.
    """
    layers: dict[str, keras.layers.Layer] = {}
    for layer in compat.sublayers(backbone):
        names: Sequence[str] = ()
        if isinstance(layer, NodeEncoder) and layer.level == "node":
            inputs = layer.inputs.items()
            names = [n for n, spec in inputs if {*NUMBERS}.isdisjoint(spec)]
        elif isinstance(layer, ElementEmbedding):
            names = ["atomic_number"]
        for name in names:
            if layers.setdefault(name, layer) is not layer:
                raise ValueError(
                    "Expected one layer that embeds each node feature. Received: two "
                    f"for {name!r}. Embed it once, or pass features=False."
                )
    return layers


class Probe:
    """The output of a task that is explained, one number for each graph.

    Subclasses define `compute`, a function of a batch that `compiled` compiles; their
    results come from `explanations`.

    Args:
        task: The task.
        features: Whether node features are varied.
        edges: Whether edges are varied.
    """

    def __init__(self, task: Task, features: bool = True, edges: bool = True):
        self.task = task
        self.edges = edges
        self.features = features

    def __call__(self, batch) -> dict:
        """Return the results for a batch with a part "request"."""
        sparse = SEGMENT in batch["plan"]
        # Sparse products have no gradient by the entries of their matrix.
        with portable() if sparse else contextlib.nullcontext():
            return self.compute(batch)

    def compute(self, batch) -> dict:
        """Return arrays by name; "rows" float [G, B, C] and "column" int32 [G, B].

        Args:
            batch: A batch with a part "request".
        """
        raise NotImplementedError

    def repeated(self, method: str, steps: int, state, constants):
        """Apply a method of a step, a state and constants again and again.

        Args:
            method: Name of the method; it reads none of the arguments of subclasses.
            steps: Number of steps.
            state: The first state, nested tensors.
            constants: Nested tensors.
        """
        static = type(self), method, self.features, self.edges

        def program():
            return compiled(self.task, _take_step, *static)

        return repeated(getattr(self, method), steps, state, constants, program)

    # === What is varied ===

    @property
    def embedding_layers(self) -> dict[str, keras.layers.Layer]:
        """The layer that embeds each node feature of ids."""
        return encoders(self.task.backbone) if self.features else {}

    def feature_names(self, node: Mapping) -> list[str]:
        """Return the names of the node features that are varied."""
        if not self.features:
            return []
        read = self.task.backbone.features_read()
        names = node if read is None else read["node"]
        embedded = self.embedding_layers
        varied = []
        for name in names:
            if name in _NODE_ARRAYS or name not in node:
                continue
            if name in embedded or _is_float(node[name]):
                varied.append(name)
            elif read is not None:
                raise ValueError(
                    "Expected ids to be embedded by a NodeEncoder or an "
                    f"ElementEmbedding. Received: {name!r}, which another layer of "
                    f"{type(self.task.backbone).__name__} reads. Use one of them, or "
                    "pass features=False."
                )
        return varied

    def inputs(self, batch) -> dict:
        """Return the varied inputs by name, as they are in the batch.

        Features of numbers are float [G, N, ...], embedded ids float [G, N, H]; `EDGE`
        are the factors of edges, float [G, E], all 1.
        """
        node, out = batch["node"], {}
        for name in self.feature_names(node):
            layer = self.embedding_layers.get(name)
            values = ops.convert_to_tensor(node[name])
            if isinstance(layer, NodeEncoder):
                values = layer.encode(name, values, batch)
            elif layer is not None:
                values = layer(values)
            out[name] = ops.cast(values, "float32")
        if self.edges:
            out[EDGE] = ops.ones(ops.shape(batch["edge"]["receiver"]), "float32")
        return out

    def is_embedded(self, name: str) -> bool:
        """Return whether an input is the embedding of ids."""
        return name in self.embedding_layers

    def rows(self, batch, inputs: Mapping):
        """Return the task's output for the explained node or graph of each graph.

        Args:
            batch: A batch with a part "request".
            inputs: What `inputs` returned, varied.

        Returns:
            float32 [G, B, C].
        """
        node = dict(batch["node"])
        varied: dict[str, Any] = {"node": {}}
        for name, values in inputs.items():
            if name == EDGE:
                varied["edge"] = values
            elif self.is_embedded(name):
                varied["node"][name] = values
            else:
                node[name] = values
        batch = {**batch, "node": node, "explained": varied}
        return self.select_rows(self.task({**batch, "plan": self._plan(batch)}), batch)

    def select_rows(self, output, batch):
        """Select the rows of the task's output that "request" names."""
        if self.task.output_level == "node":
            output = graph_ops.batched_gather(output, batch["request"]["row"])
        return ops.cast(output, "float32")

    def _plan(self, batch) -> dict:
        """Return a plan whose messages have the factors of the edges."""
        if SEGMENT not in batch["plan"]:
            return batch["plan"]
        arrays = dict(batch["plan"][SEGMENT])
        factor = batch["explained"].get("edge")
        if factor is not None:
            order = batch["request"]["order"]
            factor = ops.take_along_axis(factor, order, axis=1)
            weight = arrays.get("weight")
            arrays["weight"] = factor if weight is None else factor * weight
        return {SEGMENT: arrays}

    def graph_of(self, name: str, batch):
        """Return the graph slot of each row of an input, int32 [G, N] or [G, E]."""
        graph = ops.convert_to_tensor(batch["node"]["graph_id"])
        if name != EDGE:
            return graph
        # Padded edges have the receiver N.
        last = ops.shape(graph)[1] - 1
        ends = ops.minimum(ops.convert_to_tensor(batch["edge"]["receiver"]), last)
        return graph_ops.batched_gather(graph, ends)

    # === Selection of outputs ===

    def columns(self, rows, batch):
        """Return the explained column of each row, int32 [G, B]."""
        column = ops.convert_to_tensor(batch["request"]["column"])
        best = ops.cast(ops.argmax(rows, axis=-1), "int32")
        return ops.where(column == PREDICTED, best, column)

    def scores(self, rows, column, batch):
        """Return the explained numbers, float32 [G, B]; 0 where there is no graph."""
        every = ops.arange(rows.shape[-1], dtype="int32")
        is_column = ops.equal(ops.expand_dims(column, -1), every)
        real = ops.convert_to_tensor(batch["graph"]["mask"])
        is_column = ops.logical_and(is_column, ops.expand_dims(real, -1))
        return ops.sum(ops.where(is_column, rows, 0.0), axis=-1)

    def slopes(self, function, inputs: Mapping) -> dict:
        """Return the gradient of a function of inputs by each of them.

        Args:
            function: Takes inputs by name, returns float [G, B].
            inputs: Inputs by name.
        """
        names = list(inputs)
        if not names:
            return {}

        def values(tensors):
            return function(dict(zip(names, tensors, strict=True)))

        _, slopes = graph_ops.value_and_gradient(values, list(inputs.values()))
        return dict(zip(names, slopes, strict=True))


def run_probe(task: Task, batch, kind: type[Probe], *options) -> dict:
    """Return the results of a probe, for `compiled`.

    Args:
        task: The task.
        batch: A batch with a part "request".
        kind: The class of the probe.
        *options: Its arguments after the task.
    """
    return kind(task, *options)(batch)


def _take_step(task: Task, data, kind: type[Probe], method: str, features, edges):
    step = getattr(kind(task, features, edges), method)
    return step(data["step"], data["state"], data["constants"])


def output_kind(task: Task) -> str:
    """Return "class", "binary" (logits of targets) or "number"."""
    if isinstance(task.labels, ClassLabels):
        return "class"
    return "binary" if isinstance(task.labels, TargetLabels) else "number"


def _is_float(values) -> bool:
    return "float" in keras.backend.standardize_dtype(values.dtype)
