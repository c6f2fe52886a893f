"""Presets: folders that hold a task, its preprocessor and its weights as plain data.

The files are those of KerasHub: `config.json` (backbone), `task.json`,
`preprocessor.json`, `metadata.json`, `model.weights.h5` (backbone),
`task.weights.h5` (head) and `README.md`, the model's card. They name classes of this
library and of Keras only, so loading a preset executes no other code.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import keras

from keras_bandgnn.checks import boolean, mapping, one_of, optional, refuse
from keras_bandgnn.compat import without_tensorflow_checks
from keras_bandgnn.data.files import buffered_write
from keras_bandgnn.data.reading import reading, refuse_file
from keras_bandgnn.data.weights_files import (
    check_sum,
    check_weights,
    checksum,
    shapes,
)
from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor
from keras_bandgnn.registration import (
    registered_class,
)
from keras_bandgnn.saving import preset_files as files
from keras_bandgnn.saving import preset_paths as paths
from keras_bandgnn.saving.preset_files import (
    bounded_weights,
    check_sizes,
    count_parameters,
    make_card,
)
from keras_bandgnn.saving.preset_hub import preset_folder
from keras_bandgnn.version import __version__


def _class_of(entry: dict, base: type, path: Path) -> type:
    return registered_class(entry, base, f"{path} to name a {base.__name__}")


def _head_model(task) -> keras.Model:
    """Return a model of only the head, to save its weights separately."""
    model = keras.Sequential(task.head_layers)
    model.built = True  # The layers are built, and the model is not called.
    return model


def save(
    path, backbone, task=None, weights: str = "float32", card: Mapping | None = None
) -> None:
    """Write a preset to a folder, atomically.

    Args:
        path: The folder: new, empty or a preset, which is replaced.
        backbone: The backbone.
        task: The task over it, or None for a backbone alone.
        weights: See `Task.save_to_preset`.
        card: See `Task.save_to_preset`.
    """
    one_of("weights", weights, ("float32", "float16", "none"))
    card = optional(mapping, "card", card) or {}
    if any(weight.dtype == "int8" for weight in backbone.weights):
        raise ValueError(
            "Expected weights that were not quantised. Received: int8 weights, which "
            "the configuration cannot name. Save the preset first, and call "
            "quantize('int8') after loading it."
        )
    with without_tensorflow_checks(), files.atomic_folder(path) as folder:
        files.write(
            folder / paths.CONFIG, files.preset_entry(backbone, backbone.get_config())
        )
        if task is not None:
            files.write(
                folder / paths.TASK, files.preset_entry(task, task.head_config())
            )
        if task is not None and task.preprocessor is not None:
            entry = files.preset_entry(
                task.preprocessor, task.preprocessor.get_config()
            )
            files.write(folder / paths.PREPROCESSOR, entry)
        model = backbone if task is None else task
        metadata = {
            "keras_version": keras.__version__,
            "keras_bandgnn_version": __version__,
            "parameter_count": count_parameters(model),
            "preprocessor": (folder / paths.PREPROCESSOR).is_file(),
        }
        text = make_card(Path(path).name, model, weights, dict(card))
        (folder / paths.CARD).write_text(text, "utf-8")
        if weights != "none":
            with buffered_write(folder / paths.WEIGHTS) as buffer:
                backbone.save_weights(buffer)
            if task is not None:
                with buffered_write(folder / paths.HEAD) as buffer:
                    _head_model(task).save_weights(buffer)
        if weights == "float16":
            for name in (paths.WEIGHTS, paths.HEAD):
                if (folder / name).is_file():
                    files.halve_weights(folder / name)
        metadata["sha256"] = {
            name: checksum(folder / name)
            for name in (paths.WEIGHTS, paths.HEAD)
            if (folder / name).is_file()
        }
        files.write(folder / paths.METADATA, metadata)


class _PresetFiles:
    """The files of a preset, with their checks.

    Args:
        path: The folder.
        load_weights: Whether to read weights.
        head: Whether to read the weights of the head, too.
    """

    def __init__(self, path: Path, load_weights: bool, head: bool):
        self.path = path
        metadata = {}
        if (path / paths.METADATA).is_file():
            metadata = files.read(path / paths.METADATA)
        self._sums = metadata.get("sha256")
        self.has_preprocessor = metadata.get("preprocessor") is True
        self.numbers, self.arrays = metadata.get("parameter_count"), 0
        if type(self.numbers) is not int or self.numbers < 0:
            self.numbers = 0
        if load_weights:
            names = (paths.WEIGHTS, paths.HEAD) if head else (paths.WEIGHTS,)
            counts = [self._checked(name) for name in names]
            self.numbers = sum(numbers for numbers, _ in counts)
            self.arrays = sum(arrays for _, arrays in counts)

    def _checked(self, name: str) -> tuple[int, int]:
        path = self.path / name
        if not path.is_file():
            # Presets with weights="none" have no checksums.
            if self._sums == {} or self.path.parent == paths.home():
                raise ValueError(
                    f"Expected the preset {self.path} to hold weights. Received: an "
                    "architecture without weights. Name a preset with weights. In "
                    "Python, pass load_weights=False for new weights, to be trained."
                )
            raise ValueError(
                f"Expected the preset {self.path} to hold weights. Received: no {name}."
                " Get that file, too. In Python, pass load_weights=False for new "
                "weights, to be trained."
            )
        check_sum(path, self._sums)
        return check_weights(path)

    @contextmanager
    def build_limits(
        self, name: str, config: Mapping, random_weights: bool = True
    ) -> Iterator[list]:
        """Limit the size of the model that is built in the context.

        Args:
            name: The file of the configuration.
            config: The configuration.
            random_weights: Whether to draw random weights; otherwise they are zeros.

        Yields:
            The weights that are zeros.
        """
        path = self.path / name
        check_sizes(path, config, self.numbers)
        arrays = self.arrays or self.numbers
        with (
            reading(path),
            bounded_weights(path, self.numbers, arrays, random_weights) as zeros,
        ):
            yield zeros


def _check_dtype(dtype) -> None:
    """Raise a ValueError unless this is a dtype policy or its name."""
    try:
        policy = keras.dtype_policies.get(dtype)
    except Exception:  # Keras raises several kinds.
        policy = None
    if not isinstance(policy, keras.DTypePolicy | keras.dtype_policies.DTypePolicyMap):
        refuse("dtype", "a dtype policy, such as 'float32' or 'mixed_bfloat16'", dtype)


def load_backbone(
    cls,
    base: type,
    preset,
    load_weights: bool = True,
    dtype=None,
    overrides: Mapping | None = None,
):
    """Build the backbone of a preset; see `Backbone.from_preset`.

    Args:
        cls: The class that it must be of.
        base: `Backbone`.
        preset: See `Backbone.from_preset`.
        load_weights: See there.
        dtype: See there.
        overrides: See there.
    """
    boolean("load_weights", load_weights)
    if dtype is not None:
        _check_dtype(dtype)
    path = preset_folder(preset)
    entry = files.read(path / paths.CONFIG)
    backbone_class = _class_of(entry, base, path / paths.CONFIG)
    if not issubclass(backbone_class, cls):
        raise ValueError(
            f"Expected a preset for {cls.__name__}. Received: {path} holds a "
            f"{backbone_class.__name__}. In Python, call "
            f"{backbone_class.__name__}.from_preset(...)."
        )
    config = entry["config"]
    unknown = sorted(set(overrides or {}) - set(config))
    if unknown:
        raise ValueError(
            f"Expected arguments of {backbone_class.__name__}: {sorted(config)}. "
            f"Received: {unknown}."
        )
    stored = _PresetFiles(path, load_weights, head=False)
    check_sizes(path / paths.CONFIG, config, stored.numbers)
    config = {**config, **(overrides or {})}
    if dtype is not None:
        config["dtype"] = dtype
    if overrides:
        # Overrides of the caller may exceed the limits.
        backbone = backbone_class.from_config(config)
    else:
        with stored.build_limits(paths.CONFIG, config, not load_weights):
            backbone = backbone_class.from_config(config)
    if load_weights:
        try:
            _load_weights(backbone, path / paths.WEIGHTS, path / paths.CONFIG)
        except ValueError as error:
            if not overrides:
                raise
            raise ValueError(
                "Expected overrides that leave the shapes of the weights. Received: "
                f"{dict(overrides)} for {path}. In Python, pass load_weights=False."
            ) from error
    return backbone


def load_task(
    cls,
    base: type,
    backbone_base: type,
    preset,
    load_weights: bool = True,
    dtype=None,
    backbone: Mapping | None = None,
    compile: bool = True,
    /,
    **head,
):
    """Build the task of a preset; see `Task.from_preset`.

    Args:
        cls: The class that it must be of.
        base: `Task`.
        backbone_base: `Backbone`.
        preset: See `Task.from_preset`.
        load_weights: See there.
        dtype: See there.
        backbone: See there.
        compile: See there.
        **head: See there.
    """
    boolean("load_weights", load_weights)
    backbone = optional(mapping, "backbone", backbone)
    path = preset_folder(preset)
    task_class, entry = _task_entry(cls, base, path)
    config = task_class.head_overrides(entry["config"], head)
    stored_config = task_class.head_overrides(entry["config"], {})
    same_head = all(
        config[name] == stored_config.get(name)
        for name in set(config) - set(task_class.weightless)
    )
    stored = _PresetFiles(path, load_weights, head=same_head)
    check_sizes(path / paths.TASK, entry["config"], stored.numbers)
    backbone_model = load_backbone(
        backbone_base, backbone_base, path, load_weights, dtype, backbone
    )
    # Constructors of custom tasks need not take `compile`.
    arguments = {"preprocessor": _preprocessor(path, stored)}
    if not boolean("compile", compile):
        arguments["compile"] = False

    def build(random_weights: bool):
        limits = nullcontext([])
        if not head:
            limits = stored.build_limits(paths.TASK, config, random_weights)
        with limits as zeros:
            return task_class(backbone_model, **arguments, **config), zeros

    task, zeros = build(random_weights=not load_weights)
    head_weights = {id(weight) for weight in _head_model(task).weights}
    if any(id(weight) not in head_weights for weight in zeros):
        # Presets do not contain all weights of custom tasks.
        task, _ = build(random_weights=True)
    # A changed head has new weights.
    if load_weights and same_head:
        _load_weights(_head_model(task), path / paths.HEAD, path / paths.TASK)
    return task


def _task_entry(cls: type, base: type, path: Path) -> tuple[type, dict]:
    """Return the class of a stored task, which is `cls` or one of it, and its file."""
    if not (path / paths.TASK).is_file():
        raise ValueError(
            f"Expected a preset of a task. Received: {path} holds a backbone alone: "
            f"there is no {paths.TASK}. Get that file, too, or train a task. In "
            f"Python, call {cls.__name__}(Backbone.from_preset(...), ...)."
        )
    entry = files.read(path / paths.TASK)
    task_class = _class_of(entry, base, path / paths.TASK)
    if not issubclass(task_class, cls):
        raise ValueError(
            f"Expected a preset for {cls.__name__}. Received: {path} holds a "
            f"{task_class.__name__}. Name a preset of that task. In Python, call "
            f"{task_class.__name__}.from_preset(...), or "
            f"{cls.__name__}(Backbone.from_preset(...), ...) for a new head."
        )
    return task_class, entry


def _preprocessor(path: Path, stored: _PresetFiles) -> GraphPreprocessor | None:
    """Return the preprocessor of a preset, None if it was saved without one."""
    if (path / paths.PREPROCESSOR).is_file():
        entry = files.read(path / paths.PREPROCESSOR)
        with reading(path / paths.PREPROCESSOR):
            return GraphPreprocessor.from_config(entry["config"])
    if stored.has_preprocessor:
        raise ValueError(
            f"Expected the preset {path} to hold {paths.PREPROCESSOR}, as "
            f"{paths.METADATA} says. Received: none. Copy the whole folder again."
        )
    return None


def _load_weights(model, weights: Path, config: Path) -> None:
    """Load weights into the model that a configuration describes."""
    try:
        with reading(weights):
            model.load_weights(weights)
    except ValueError as error:
        # Keras does not say which shapes differ.
        with tempfile.TemporaryDirectory() as folder:
            built = Path(folder, "model.weights.h5")
            model.save_weights(built)
            expected, received = shapes(built), shapes(weights)
        for name in sorted({*expected, *received}):
            one, other = expected.get(name), received.get(name)
            if one != other:
                shape = "is not there" if one is None else f"has the shape {one}"
                refuse_file(
                    weights,
                    f"to fit {config}, by which {name[1:]} {shape}",
                    "no such array" if other is None else f"shape {other}",
                    "Take both files from the same preset.",
                    error,
                )
        raise
