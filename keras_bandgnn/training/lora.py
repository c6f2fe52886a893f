"""Low-rank adaptation of a backbone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import keras

from keras_bandgnn import compat
from keras_bandgnn.checks import (
    instance,
    optional,
    positive_int,
    positive_number,
    string,
)

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Model

_LAYERS = (keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Embedding)


def enable_lora(
    model: Model,
    rank: int = 4,
    alpha: float | None = None,
    layers: str | None = None,
) -> list[str]:
    """Freeze a backbone except for low-rank updates of its linear maps.

        W' = W + (alpha / rank) A B

    with W frozen, A [K, rank] random and B [rank, U] initially zero, so that
    predictions do not change at first. This is Keras' `enable_lora` for all `Dense`,
    `EinsumDense` and `Embedding` layers of a backbone. Its other weights (biases,
    norms, W of the messages of a `GGNNBackbone` and of GCN, GAT, RGCN and HGT) are
    frozen, and so are the moving averages of batch norms, which normalise as in
    predictions. The head of a task stays trainable. Files store W' in place of W, so a
    saved preset loads as any other.

    Args:
        model: A task or a backbone.
        rank: Rank of the updates.
        alpha: Scale of the updates; `rank` if omitted, which is a factor of 1.
        layers: Regular expression searched in the paths of layers, such as
            `"query|value"`; all layers if omitted.

    Returns:
        Paths of the adapted layers.

    Raises:
        ValueError: If no layer matches, or if one is frozen or has LoRA already.

    Loading weights into a model with LoRA sets A and B to zero, where their gradient
    is zero, too: load weights first, then call this.

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
        if isinstance(layer, _LAYERS) and layer.built
    ]
    selected = [layer for layer in adaptable if re.search(layers or "", layer.path)]
    if not selected:
        raise ValueError(
            f"Expected `layers` to match one of {[layer.path for layer in adaptable]}. "
            f"Received: layers={layers!r}."
        )
    lora_paths = [layer.path for layer in adaptable if layer.lora_enabled]
    if lora_paths:
        raise ValueError(
            f"Expected a backbone without LoRA. Received: LoRA in {lora_paths}. "
            "Call enable_lora once."
        )
    frozen = [layer.path for layer in selected if not layer.trainable]
    if frozen:
        raise ValueError(
            "Expected layers that are not frozen, as their updates would be, too. "
            f"Received: trainable=False in {len(frozen)} layers, such as {frozen[0]}. "
            "Set backbone.trainable = True first: enable_lora freezes all else itself."
        )
    for variable in backbone.trainable_variables:
        variable.trainable = False
    adapted = set(map(id, selected))
    for layer in compat.sublayers(backbone):
        # Batch norms move their averages unless the layer itself is frozen.
        if adapted.isdisjoint(map(id, compat.sublayers(layer))):
            layer.trainable = False
    for layer in selected:
        layer.enable_lora(rank, lora_alpha=alpha)
    _reset_programs(model)
    return [layer.path for layer in selected]


def _reset_programs(model) -> None:
    """Discard compiled programs and the optimiser built for the previous weights."""
    compat.forget_programs(model)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and optimizer.built:
        model.compile_from_config(
            {**model.get_compile_config(), "optimizer_built": False}
        )
