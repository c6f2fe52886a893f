"""`layers_to_dot`: the layers of a functional model, with the batch as one box."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from keras_bandgnn.checks import instance
from keras_bandgnn.optional import optional_import

if TYPE_CHECKING:
    import pydot

_BATCH = "batch"


def layers_to_dot(model: keras.Model, **options: bool | int | str) -> pydot.Dot:
    """Return a picture of a functional model, in which the batch is one box.

    It is that of `keras.utils.model_to_dot`, where each array of a batch has a box and
    an arrow to every layer.

    Args:
        model: A functional model, such as `task.functional(batch)`.
        **options: Passed to `keras.utils.model_to_dot`, such as `show_shapes=True`.

    Returns:
        A `pydot.Dot`; `.write_png("model.png")` writes it.

    Raises:
        ImportError: If pydot is not installed. Files also need Graphviz.
        ValueError: If the model is not functional.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"kind": [0, 1, 1]})
    >>> batch, *_ = kb.preprocessing.GraphLoader([graph])[0]
    >>> model = kb.models.GCNBackbone({"kind": 2}, 8).functional(batch)
    >>> layers_to_dot(model).write_png("gcn.png")  # doctest: +SKIP
    """
    instance("model", model, keras.Model, "a functional model")
    if not getattr(model, "inputs", None):
        raise ValueError(
            "Expected a functional model, such as task.functional(batch). Received: "
            f"a {type(model).__name__}, which Keras draws as one box."
        )
    pydot = optional_import("pydot", "pydot", "pictures of models")
    dot = keras.utils.model_to_dot(model, **options)
    inputs = {
        node.get_name()
        for node in dot.get_nodes()
        if "InputLayer" in str(node.get_label())
    }
    merged = pydot.Dot(**dot.get_attributes())
    merged.add_node(pydot.Node(_BATCH, label=_BATCH, shape="box", fontname="Helvetica"))
    for node in dot.get_nodes():
        if node.get_name() not in inputs:
            merged.add_node(node)
    ends = [(arrow.get_source(), arrow.get_destination()) for arrow in dot.get_edges()]
    for begin, end in dict.fromkeys((_BATCH if a in inputs else a, b) for a, b in ends):
        merged.add_edge(pydot.Edge(begin, end))
    return merged
