"""What a preset may hold: classes that are data, weights that fit what is built.

A preset comes from others. Its files name classes, which are built, and sizes, which
are allocated; this module compares both with what is known before that happens.
"""

import inspect
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras

from keras_bandgnn.data.reading import refuse

# Whole namespaces of Keras whose classes are numbers and formulas.
_NAMESPACES = (
    *("activations", "constraints", "dtype_policies", "initializers", "losses"),
    *("metrics", "optimizers", "optimizers.schedules", "regularizers"),
)
# Layers that hold weights or formulas, and neither files, code nor other programs.
_LAYERS = {
    *(
        "Activation",
        "Add",
        "AlphaDropout",
        "Attention",
        "Average",
        "BatchNormalization",
    ),
    *("Concatenate", "Dense", "Dot", "Dropout", "ELU", "EinsumDense", "Embedding"),
    *("Flatten", "GRU", "GRUCell", "GaussianDropout", "GaussianNoise", "Identity"),
    *("GroupNormalization", "InputLayer", "LSTM", "LSTMCell", "LayerNormalization"),
    *("LeakyReLU", "Masking", "Maximum", "Minimum", "MultiHeadAttention", "Multiply"),
    *("PReLU", "Permute", "RMSNormalization", "ReLU", "RepeatVector", "Rescaling"),
    *("Reshape", "SimpleRNN", "SimpleRNNCell", "Softmax", "SpectralNormalization"),
    *("Subtract", "UnitNormalization"),
}
_NO_ACTIVATIONS = ("deserialize", "get", "serialize")
_NO_CODE = "A preset from others may not bring code."
# Integers that are no sizes.
_SEEDS = ("seed", "random_seed")
# What is always allowed: small models whose files say nothing of their size.
_FREE_SIZE = 1 << 20
_FREE_WEIGHTS = 1000
_LOCK = threading.RLock()


# === Classes ===


def check_classes(path: Path, value: Any) -> None:
    """Raises a ValueError if a configuration names a class that is not known.

    Known are the classes of this library, those of Keras that hold numbers and
    formulas alone, and what this process has registered with
    `keras.saving.register_keras_serializable`.

    Args:
        path: The file of the configuration.
        value: What it holds.
    """
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, list):
            left += item
        elif isinstance(item, Mapping):
            left += item.values()
            if "class_name" in item and not _is_known(item):
                module, name = item.get("module") or "keras", item["class_name"]
                refuse(
                    path,
                    "to name classes of Keras and of keras_bandgnn that hold data, "
                    "or classes that are registered here",
                    f"{module}.{name}"[:200],
                    _NO_CODE,
                )


def _is_known(entry: Mapping) -> bool:
    name, module = entry["class_name"], entry.get("module")
    registered = entry.get("registered_name")
    texts = (name, module or "", registered or "")
    if not all(isinstance(text, str) for text in texts):
        return False
    if (module, name) == ("builtins", "function"):
        # Keras writes its own and registered functions so.
        return isinstance(entry.get("config"), str) and _is_function(entry["config"])
    if registered and ">" in registered:
        known = keras.saving.get_registered_object(registered)
        return known is not None and known.__name__ == name
    if registered not in (None, name):
        return False
    if not module or module.partition(".")[0] == "keras_bandgnn":
        if _is_ours(name):
            return True
    return _is_of_keras(module or "keras", name)


def _is_function(name: str) -> bool:
    if ">" in name:
        return keras.saving.get_registered_object(name) is not None
    known = vars(keras.activations).get(name)
    return inspect.isfunction(known) and name not in _NO_ACTIVATIONS


def _is_ours(name: str) -> bool:
    from keras_bandgnn import layers, models, preprocessing

    return any(
        name in module.__all__ and isinstance(getattr(module, name), type)
        for module in (layers, models, preprocessing)
    )


def _is_of_keras(module: str, name: str) -> bool:
    if module == "keras":
        spaces = ("layers", *_NAMESPACES)
    else:
        spaces = (module.removeprefix("keras."),)
        if not module.startswith("keras."):
            return False
    for space in spaces:
        if space == "layers":
            found = name in _LAYERS
        else:
            found = space in _NAMESPACES and _is_class_of(space, name)
        # "keras.DTypePolicy" and the like have no namespace of their own.
        if found or (module == "keras" and name in ("DTypePolicy", "DTypePolicyMap")):
            return True
    return False


def _is_class_of(space: str, name: str) -> bool:
    found: Any = keras
    for part in space.split("."):
        found = getattr(found, part)
    return isinstance(getattr(found, name, None), type)


# === Sizes ===


def check_sizes(path: Path, config: Any, stored: int) -> None:
    """Raises a ValueError for numbers above what the weights of a preset can have.

    Args:
        path: The file of the configuration.
        config: What it holds.
        stored: Numbers in the files of weights, or as counted when it was written.
    """
    most = max(stored, _FREE_SIZE)
    left: list[tuple[Any, Any]] = [("", config)]
    while left:
        key, item = left.pop()
        if isinstance(item, Mapping):
            left += item.items()
        elif isinstance(item, list):
            left += [(key, inner) for inner in item]
        elif type(item) is int and abs(item) > most and key not in _SEEDS:
            refuse(
                path,
                f"to have sizes of at most {most:,}, as many numbers as the preset has",
                f"{key}={item}",
                "Fetch or copy the preset again.",
            )


@contextmanager
def bounded_weights(path: Path, stored: int, arrays: int) -> Iterator[None]:
    """Refuses, within the block, to allocate more weights than a preset has.

    Args:
        path: The file of the configuration that is built.
        stored: Numbers in the files of weights, or as counted when it was written.
        arrays: Arrays there.
    """
    numbers, count = 2 * stored + _FREE_SIZE, 2 * arrays + _FREE_WEIGHTS
    made, thread = [0, 0], threading.get_ident()
    with _LOCK:
        add_weight = keras.layers.Layer.add_weight

        def counted(self, shape=None, *args, **kwargs):
            if threading.get_ident() == thread:
                sizes = (shape,) if isinstance(shape, int) else shape or ()
                made[0] += math.prod(int(size) for size in sizes)
                made[1] += 1
                if made[0] > numbers or made[1] > count:
                    refuse(
                        path,
                        f"to describe a model of {stored:,} numbers, those of the "
                        "preset",
                        f"a model of more than {made[0] - 1:,} in {made[1]} weights",
                        "Fetch or copy the preset again.",
                    )
            return add_weight(self, shape, *args, **kwargs)

        # The one place through which all layers, also those of Keras, get weights.
        keras.layers.Layer.add_weight = counted
        try:
            yield
        finally:
            keras.layers.Layer.add_weight = add_weight
