"""Low-rank adaptation of a backbone."""

import re

import keras

from keras_bandgnn import compat
from keras_bandgnn.checks import (
    instance,
    optional,
    positive_int,
    positive_number,
    string,
)

_ADAPTED = (keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Embedding)


def enable_lora(
    model, rank: int = 4, alpha: float | None = None, layers: str | None = None
) -> list[str]:
    """Freeze a backbone but for low-rank changes of its linear maps.

        W' = W + (alpha / rank) A B

    with W frozen, A [K, rank] drawn and B [rank, U] zero at first, so that predictions
    do not change at once. Keras does this for a layer; here it is done for all `Dense`,
    `EinsumDense` and `Embedding` layers of a backbone. Its other weights (biases,
    norms, W of the messages of a `GGNNBackbone` and of GCN and GAT) are frozen. The
    head of a task keeps learning as before. Files have W' in place of W, so a
    saved preset loads as any other.

    Args:
        model: A task or a backbone.
        rank: Rank of the changes.
        alpha: Scale of the changes; `rank` if omitted, which is a factor of 1.
        layers: Regular expression that the path of a layer must contain, such as
            `"query|value"`; all layers if omitted.

    Returns:
        Paths of the layers that were adapted.

    Raises:
        ValueError: If no layer is left, or if a layer is adapted already.

    Weights that are loaded into a model with LoRA set A and B to zero, from where they
    have no gradient: load first, then call this.

    Reference:
        Hu et al. 2021, https://arxiv.org/abs/2106.09685.

    Example:
    >>> import keras_bandgnn as kb
    >>> backbone = kb.models.GTBackbone({"kind": 4}, 8, num_layers=1, num_heads=2)
    >>> task = kb.models.GraphClassifier(backbone, 2)
    >>> sorted(p[-15:] for p in enable_lora(task, rank=2, layers="query|value"))
    ['attention/query', 'attention/value']
    >>> len(backbone.trainable_variables)
    4
    """
    instance("model", model, keras.Model, "a task or a backbone")
    rank = positive_int("rank", rank)
    alpha = optional(positive_number, "alpha", alpha)
    layers = optional(string, "layers", layers)
    backbone = getattr(model, "backbone", model)
    adaptable = [
        layer
        for layer in compat.sublayers(backbone)
        if isinstance(layer, _ADAPTED) and layer.built
    ]
    chosen = [layer for layer in adaptable if re.search(layers or "", layer.path)]
    if not chosen:
        raise ValueError(
            f"Expected `layers` to match one of {[layer.path for layer in adaptable]}. "
            f"Received: layers={layers!r}."
        )
    adapted = [layer.path for layer in adaptable if layer.lora_enabled]
    if adapted:
        raise ValueError(
            f"Expected a backbone without LoRA. Received: {adapted} have it already."
        )
    for variable in backbone.trainable_variables:
        variable.trainable = False
    for layer in chosen:
        layer.enable_lora(rank, lora_alpha=alpha)
    _begin_anew(model)
    return [layer.path for layer in chosen]


def _begin_anew(model) -> None:
    """Forget programs and an optimiser that know the weights as they were."""
    for name in ("train_function", "test_function", "predict_function"):
        if hasattr(model, name):
            setattr(model, name, None)
    for name in ("_helpers", "_forces"):
        model.__dict__.pop(name, None)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and optimizer.built:
        model.compile_from_config(
            {**model.get_compile_config(), "optimizer_built": False}
        )
