"""Files of a preset: locating, validating, reading and writing them."""

import functools
import inspect
import math
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

from keras_bandgnn.checks import as_path
from keras_bandgnn.data import files
from keras_bandgnn.data.files import buffered_write, json_text
from keras_bandgnn.data.reading import LARGEST_NUMBER, read_json, refuse_file
from keras_bandgnn.registration import (
    PACKAGE,
    check_registered,
    class_entry,
    load_classes,
)
from keras_bandgnn.saving.preset_paths import (
    CARD,
    ENSEMBLE,
    METADATA,
    NAMES,
    RECIPE,
    home,
    list_presets,
)

# Model cards: the `README.md` of a preset.


# Headings of a card, in order.
HEADINGS = ("data", "licence", "recipe", "score", "seed", "command", "limits")


def count_parameters(model: keras.Model) -> int:
    """Count the weights of a backbone and its head, without constants of the data."""
    if not hasattr(model, "backbone"):
        return model.count_params()
    layers = [model.backbone, *model.head_layers]
    return sum(layer.count_params() for layer in layers)


def make_card(
    name: str,
    model: keras.Model,
    weights: str,
    texts: Mapping,
    members: int | None = None,
) -> str:
    """Return the text of a card.

    Args:
        name: Name of the preset.
        model: A task or a backbone.
        weights: "float32", "float16" or "none".
        texts: Texts by name, some of `HEADINGS`; also `title` and `repository_licence`,
            the licence's identifier.
        members: Number of models of an ensemble, of which `model` is one.

    Raises:
        ValueError: For other names.
    """
    headings = ("title", "repository_licence", *HEADINGS)
    unknown = sorted(set(texts) - set(headings))
    if unknown:
        raise ValueError(f"Expected `card` to have {headings}. Received: {unknown}.")
    backbone = getattr(model, "backbone", model)
    kind = type(model).__name__
    lines = ["---", "library_name: keras-bandgnn"]
    if "repository_licence" in texts:
        lines.append(f"license: {texts['repository_licence']}")
    lines += ["tags:", "- graph", "- keras", "---", "", f"# {name}", ""]
    lines += [
        str(texts.get("title", f"A {type(backbone).__name__} of keras-bandgnn.")),
        "",
        "| | |",
        "| --- | --- |",
        f"| backbone | `{type(backbone).__name__}` |",
    ]
    if backbone is not model:
        lines.append(f"| task | `{kind}` |")
    count = f"{count_parameters(model):,}"
    if members is not None:
        lines.append(f"| ensemble | {members} members, `member_0` and so on |")
        count, kind = f"{members} x {count}", "Ensemble"
    stored = {"none": "none: an architecture, to be trained"}.get(weights, weights)
    lines += [
        f"| parameters | {count} |",
        f"| weights | {stored} |",
        "",
        "```python",
        "import keras_bandgnn as kb",
        "",
    ]
    option = ", load_weights=False" if weights == "none" else ""
    lines += [f'model = kb.models.{kind}.from_preset("{name}"{option})', "```", ""]
    for heading in HEADINGS:
        if heading in texts:
            lines += [
                f"## {heading.capitalize()}",
                "",
                str(texts[heading]).strip("\n"),
                "",
            ]
    return "\n".join(lines)


# Validation of the contents of presets.
#
# Presets are untrusted input. Their files name classes to instantiate and sizes to
# allocate; both are checked before that happens.


# Keras namespaces whose classes all consist of numbers and formulas.
_NAMESPACES = (
    *("activations", "constraints", "dtype_policies", "initializers", "losses"),
    *("metrics", "optimizers", "optimizers.schedules", "regularizers"),
)
# Layers of weights and formulas, without files, code or other programs.
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
# Integers that are not sizes.
_SEEDS = ("seed", "random_seed")
# Limits that are always allowed, for small models whose files have no size.
_MIN_SIZE_LIMIT = 1 << 20
_MIN_WEIGHTS_LIMIT = 1000
_LOCK = threading.RLock()


# === Classes ===


def check_classes(path: Path, value: Any) -> None:
    """Raise a ValueError if a configuration names an unknown class.

    Known classes are those of this library, those of Keras that consist of numbers and
    formulas, and those that this process has registered with
    `keras.saving.register_keras_serializable`.

    Args:
        path: The file of the configuration.
        value: Its contents.
    """
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending += item
        elif isinstance(item, Mapping):
            pending += item.values()
            if "class_name" in item and not _is_known(item):
                name, advice = _unknown_class(item)
                refuse_file(
                    path,
                    "to name classes of Keras and of keras_bandgnn that hold data, "
                    "or classes that are registered here",
                    name[:200],
                    advice,
                )


def _unknown_class(entry: Mapping) -> tuple[str, str]:
    """Return the name of an unknown class, and advice."""
    registered, module = entry.get("registered_name"), entry.get("module")
    # A file whose two names differ was not written by this library.
    if not isinstance(registered, str) or not registered.endswith(
        f">{entry['class_name']}"
    ):
        return f"{module or 'keras'}.{entry['class_name']}", _NO_CODE
    home = f", of the module {module}" if isinstance(module, str) else ""
    return f"{registered!r}{home}", (
        "Import the module that registers this class before loading, if it is your "
        "own. " + _NO_CODE
    )


def _is_known(entry: Mapping) -> bool:
    name, module = entry["class_name"], entry.get("module")
    registered = entry.get("registered_name")
    texts = (name, module or "", registered or "")
    if not all(isinstance(text, str) for text in texts):
        return False
    if (module, name) == ("builtins", "function"):
        # Keras serialises its functions and registered ones like this.
        return isinstance(entry.get("config"), str) and _is_function(entry["config"])
    if registered and ">" in registered:
        target = keras.saving.get_registered_object(registered)
        return target is not None and target.__name__ == name
    if registered not in (None, name):
        return False
    if not module or module.partition(".")[0] == "keras_bandgnn":
        if _is_library_class(name):
            return True
    return _is_keras_class(module or "keras", name)


def _is_function(name: str) -> bool:
    if ">" in name:
        return keras.saving.get_registered_object(name) is not None
    function = vars(keras.activations).get(name)
    return inspect.isfunction(function) and name not in _NO_ACTIVATIONS


def _is_library_class(name: str) -> bool:
    return isinstance(keras.saving.get_registered_object(f"{PACKAGE}>{name}"), type)


def _is_keras_class(module: str, name: str) -> bool:
    if module == "keras":
        spaces = ("layers", *_NAMESPACES)
    else:
        spaces = (module.removeprefix("keras."),)
        if not module.startswith("keras."):
            return False
    for space in spaces:
        if space == "layers":
            is_known = name in _LAYERS
        else:
            is_known = space in _NAMESPACES and _is_class_of(space, name)
        # The dtype policies are in the top-level namespace.
        if is_known or (
            module == "keras" and name in ("DTypePolicy", "DTypePolicyMap")
        ):
            return True
    return False


def _is_class_of(space: str, name: str) -> bool:
    namespace: Any = keras
    for part in space.split("."):
        namespace = getattr(namespace, part)
    return isinstance(getattr(namespace, name, None), type)


# === Sizes ===


def check_sizes(path: Path, config: Any, stored: int) -> None:
    """Raise a ValueError for sizes that exceed the number of weights of a preset.

    Args:
        path: The file of the configuration.
        config: Its contents.
        stored: Parameter count of the weights files, or that in the metadata.
    """
    limit = max(stored, _MIN_SIZE_LIMIT)
    pending: list[tuple[Any, Any]] = [("", config)]
    while pending:
        key, item = pending.pop()
        if isinstance(item, Mapping):
            pending += item.items()
        elif isinstance(item, list):
            pending += [(key, inner) for inner in item]
        elif type(item) is int and abs(item) > limit and key not in _SEEDS:
            refuse_file(
                path,
                f"to have sizes of at most {limit:,} by its weights",
                f"{key}={item}",
                "Fetch or copy the preset again.",
            )


@contextmanager
def bounded_weights(
    path: Path, stored: int, arrays: int, drawn: bool = True
) -> Iterator[list]:
    """Reject, within the block, models with more weights than a preset has.

    Args:
        path: The file of the configuration to build.
        stored: Parameter count of the weights files, or that in the metadata.
        arrays: Number of arrays in them.
        drawn: Whether to draw random weights. If not they are zeros: JAX compiles a
            program for each shape that it draws.

    Yields:
        The weights that are zeros instead of random.
    """
    undrawn: list = []
    numbers, count = 2 * stored + _MIN_SIZE_LIMIT, 2 * arrays + _MIN_WEIGHTS_LIMIT
    totals, thread = [0, 0], threading.get_ident()
    with _LOCK:
        add_weight = keras.layers.Layer.add_weight

        def limited_add_weight(self, shape=None, initializer=None, *args, **kwargs):
            if threading.get_ident() == thread:
                sizes = (shape,) if isinstance(shape, int) else shape or ()
                totals[0] += math.prod(int(size) for size in sizes)
                totals[1] += 1
                if totals[0] > numbers or totals[1] > count:
                    refuse_file(
                        path,
                        f"to describe a model of {stored:,} numbers, those of the "
                        "preset",
                        f"more than {totals[0] - 1:,} in {totals[1]} weights",
                        "Fetch or copy the preset again.",
                    )
                if not drawn and _is_random(initializer):
                    undrawn.append(add_weight(self, shape, "zeros", *args, **kwargs))
                    return undrawn[-1]
            return add_weight(self, shape, initializer, *args, **kwargs)

        # All layers, including those of Keras, create their weights through it.
        keras.layers.Layer.add_weight = limited_add_weight
        try:
            yield undrawn
        finally:
            keras.layers.Layer.add_weight = add_weight


def _is_random(initializer) -> bool:
    kinds = ("RandomNormal", "RandomUniform", "TruncatedNormal")
    kinds = (*kinds, "VarianceScaling", "Orthogonal")
    classes = tuple(getattr(keras.initializers, kind) for kind in kinds)
    return isinstance(keras.initializers.get(initializer), classes)


class Presets:
    """Descriptor: the built-in presets of a class and its subclasses.

    Args:
        file: The file of a preset that names the class.
    """

    def __init__(self, file: str):
        self.file = file

    def __get__(self, instance, owner: type) -> dict[str, dict]:
        """Return the metadata of each preset by its name.

        They are those of its file, and as in KerasHub `description`, from the card,
        `params`, the number of parameters, and `path`, the folder; also `score`, from
        the card, empty for an architecture without weights.
        """
        presets = {}
        for name in list_presets():
            path = home() / name / self.file
            entry = read_json(path) if path.is_file() else {}
            cls = keras.saving.get_registered_object(entry.get("registered_name", ""))
            if isinstance(cls, type) and issubclass(cls, owner):
                metadata = read_json(home() / name / METADATA)
                presets[name] = {
                    **metadata,
                    "description": _paragraph(home() / name / CARD, "\n# "),
                    "score": _paragraph(home() / name / CARD, "\n## Score"),
                    "params": metadata["parameter_count"],
                    "path": str(home() / name),
                }
        return presets


def _paragraph(card: Path, heading: str) -> str:
    """Return the first paragraph below a heading of a card; empty without one."""
    if not card.is_file():
        return ""
    _, _, text = card.read_text("utf-8").partition(heading)
    _, _, text = text.partition("\n\n")
    return " ".join(text.partition("\n\n")[0].split())


def read(path: Path) -> dict:
    """Return the object in a JSON file, after checking its classes and numbers."""
    if not path.is_file():
        raise ValueError(
            f"Expected the file {path}. Received: no such file. Copy the whole preset."
        )
    value = read_json(path)
    if not isinstance(value, dict):
        refuse_file(path, "to hold a JSON object", type(value).__name__)
    load_classes()
    check_classes(path, value)
    _check_numbers(path, value)
    return value


def _check_numbers(path: Path, value: Any, place: str = "") -> None:
    """Refuse numbers with which a model predicts infinity or NaN."""
    if isinstance(value, dict):
        for name, item in value.items():
            _check_numbers(path, item, f"{place}.{name}" if place else name)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            _check_numbers(path, item, f"{place}[{at}]")
    elif isinstance(value, int | float) and not abs(value) <= LARGEST_NUMBER:
        refuse_file(
            path,
            f"to have finite numbers of at most {LARGEST_NUMBER:g}",
            f"{value!r:.20} at {place}",
            "Copy the file again.",
        )


def preset_entry(instance, config: dict) -> dict:
    """Return the entry of a backbone, task or preprocessor in a preset."""
    check_registered(instance)
    cls = type(instance)
    in_library = cls.__module__.partition(".")[0] == PACKAGE
    return {
        "module": "keras_bandgnn.models" if in_library else cls.__module__,
        "registered_name": keras.saving.get_registered_name(cls),
        **class_entry(instance, config),
    }


def write(path: Path, value: dict) -> None:
    """Write an object as JSON."""
    path.write_text(json_text(path.name, value, indent=2) + "\n", "utf-8")


# === Ensembles ===

MEMBER = re.compile(r"member_\d{1,4}")
"""Names of the folders of an ensemble's members."""


def member_names(count: int) -> list[str]:
    """Return the names of the folders of so many members."""
    return [f"member_{number}" for number in range(count)]


def ensemble_names(path: Path, count: int) -> tuple[str, ...]:
    """Return the entries that the folder of an ensemble may have, for `check_target`.

    Args:
        path: The folder; an ensemble that is there is replaced with all its members.
        count: Number of members of the new ensemble.
    """
    present = path.iterdir() if path.is_dir() else ()
    replaced = [entry.name for entry in present if MEMBER.fullmatch(entry.name)]
    names = (ENSEMBLE, CARD, RECIPE, *member_names(count), *replaced)
    return tuple(dict.fromkeys(names))


def check_ensemble_target(path, count: int) -> Path:
    """Raise a ValueError if no ensemble of so many members can be written to a path."""
    path = as_path("path", path)
    return files.check_target(path, ensemble_names(path, count), "an ensemble")


check_target = functools.partial(files.check_target, names=NAMES, what="a preset")
atomic_folder = functools.partial(files.atomic_folder, names=NAMES, what="a preset")


def halve_weights(path: Path) -> None:
    """Round the floats of a weights file to float16, which Keras can load, too."""
    with (
        h5py.File(path, "r") as source,
        buffered_write(path) as target_path,
        h5py.File(target_path, "w") as target,
    ):

        def copy(name, item):
            if isinstance(item, h5py.Group):
                copied_item = target.require_group(name)
            else:
                values = item[()]
                if np.issubdtype(item.dtype, np.floating):
                    values = _as_half(values, name)
                copied_item = target.create_dataset(name, data=values)
            copied_item.attrs.update(item.attrs)

        target.attrs.update(source.attrs)
        source.visititems(copy)


def _as_half(values: np.ndarray, name: str) -> np.ndarray:
    limit = np.finfo(np.float16).max
    largest = np.abs(values).max(initial=0)
    if not largest <= limit:
        raise ValueError(
            f"Expected weights within ±{limit:g} for weights='float16'. Received: "
            f"{largest:g} in {name}. Pass weights='float32'."
        )
    return values.astype(np.float16)
