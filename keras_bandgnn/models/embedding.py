"""Vectors of nodes and graphs from the backbone of a task, for `Task.embed`."""

from keras_bandgnn.checks import INT32_MAX, one_of, positive_int
from keras_bandgnn.models.node_order import node_places, placed
from keras_bandgnn.models.task import Task
from keras_bandgnn.models.whole_graphs import helper_of

_REDUCED = {
    "mean": lambda rows: rows.sum(axis=0) / max(len(rows), 1),
    "sum": lambda rows: rows.sum(axis=0),
    "max": lambda rows: rows.max(axis=0) if len(rows) else rows.sum(axis=0),
}


class States(Task):
    """The states of a task's backbone, for `predict`.

    Args:
        task: The task.
        layer: Number of the layer, from 0; the backbone's depth for its output.
        tokens: Whether to give the tokens of the graphs instead.
    """

    output_level = "node"
    splits_sequences = True

    def __init__(self, task, layer: int, tokens: bool = False):
        super().__init__(task.backbone, task.preprocessor)
        self.distribution = task.distribution
        self.layer = layer
        self.tokens = tokens
        self.output_level = "graph" if tokens else "node"
        self.build()
        self.compile()

    def build(self, input_shape=None):
        """All weights are the backbone's."""
        self.built = True

    def call(self, x, training=False):
        """Returns states [G, N, H], or tokens [G, B, H]."""
        if self.tokens:
            return self.backbone(x, return_tokens=True)[1]
        if self.layer == self.backbone.depth:
            return self.backbone(x)
        for number, states in enumerate(self.backbone.hidden_states(x)):
            if number == self.layer:
                return states
        raise RuntimeError(f"no layer {self.layer}")

    def compute_output_shape(self, input_shape):
        """[G, N, H] or [G, B, H]."""
        kind = "graph" if self.tokens else "node"
        return (*input_shape[kind]["mask"], self.backbone.hidden_dim)


def embed(task, graphs, level: str, reduce: str, layer: int) -> list:
    """See `Task.embed`."""
    one_of("level", level, ("node", "graph"))
    one_of("reduce", reduce, (*_REDUCED, "token"))
    tokens = level == "graph" and reduce == "token"
    layer = _layer(task.backbone, layer)
    if tokens:
        _check_token(task.backbone, layer)
    if isinstance(graphs, list | tuple) and not graphs:
        return []
    model = helper_of(task, States, layer, tokens)
    loader = model.loader(graphs, training=False)
    out: list = [None] * int(loader.starts[-1])
    if level == "node":
        places = list(node_places(graphs, loader))
    for graph, rows in model.outputs(loader, graphs):
        if level == "node":
            rows = placed(rows, *places[graph])
        out[graph] = rows if level == "node" or tokens else _REDUCED[reduce](rows)
    return task.distribution.gather(out)


def _layer(backbone, layer: int) -> int:
    positive_int("layer", layer, -INT32_MAX)
    depth = backbone.depth
    number = layer + depth + 1 if layer < 0 else layer
    if not 0 <= number <= depth:
        raise ValueError(
            f"Expected `layer` in [{-depth - 1}, {depth}], as the backbone has {depth} "
            f"layers behind the embedded features, number 0. Received: layer={layer}."
        )
    return number


def _check_token(backbone, layer: int) -> None:
    if not getattr(backbone, "global_token", False):
        raise ValueError(
            "Expected a graph transformer with global_token=True for reduce='token'. "
            f"Received: {type(backbone).__name__} without one."
        )
    if layer != backbone.depth:
        raise ValueError(
            f"Expected layer=-1 for reduce='token'. Received: layer={layer}."
        )
