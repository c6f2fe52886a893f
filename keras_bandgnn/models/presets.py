"""Presets: folders that hold a task, its preprocessor and its weights as plain data.

The files are those of KerasHub: `config.json` (backbone), `task.json`,
`preprocessor.json`, `metadata.json`, `model.weights.h5` (backbone) and
`task.weights.h5` (head). They name classes of this library only, and loading one
executes nothing that is not in this library.
"""

import difflib
import json
import os
import shutil
import tempfile
from pathlib import Path

import keras

_CONFIG, _TASK, _PREPROCESSOR = "config.json", "task.json", "preprocessor.json"
_METADATA, _WEIGHTS, _HEAD = "metadata.json", "model.weights.h5", "task.weights.h5"


def _home() -> Path:
    package = Path(__file__).resolve().parents[1]
    installed = package / "presets"
    # In a checkout the presets lie beside the package.
    return installed if installed.is_dir() else package.parent / "presets"


def list_presets() -> list[str]:
    """Names of the presets that come with the library.

    Example:
    >>> "ggnn_varmisuse" in list_presets()
    True
    """
    home = _home()
    found = home.iterdir() if home.is_dir() else ()
    return sorted(p.name for p in found if (p / _CONFIG).is_file())


def _resolve(preset) -> Path:
    path = Path(preset)
    if (path / _CONFIG).is_file():
        return path
    names = list_presets()
    if str(preset) in names:
        return _home() / str(preset)
    near = difflib.get_close_matches(str(preset), names, 1, 0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(
        f"Expected a folder with {_CONFIG} or one of the presets {names}. "
        f"Received: {str(preset)!r}.{hint}"
    )


def _read(path: Path) -> dict:
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ValueError(
            f"Expected the file {path}. Received: no such file. Is the preset complete?"
        ) from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"Expected {path} to hold JSON. Received: {error}.") from error


def _write(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", "utf-8")


def _entry(instance, config: dict) -> dict:
    cls = type(instance)
    return {
        "module": "keras_bandgnn.models",
        "class_name": cls.__name__,
        "registered_name": f"keras_bandgnn>{cls.__name__}",
        "config": config,
    }


def _class_of(entry: dict, base: type, path: Path) -> type:
    from keras_bandgnn import models

    name = entry.get("class_name")
    known = {
        n: c
        for n in models.__all__
        if isinstance(c := getattr(models, n), type) and issubclass(c, base)
    }
    if name not in known:
        raise ValueError(
            f"Expected `class_name` in {path} to be one of {sorted(known)}. "
            f"Received: {name!r}."
        )
    return known[name]


def _head_model(task) -> keras.Model:
    """The head alone, so that its weights have a file without the backbone's."""
    model = keras.Sequential([task.head])
    model.built = True  # Heads have their weights; none is called here.
    return model


def check_target(path) -> Path:
    """Raises a ValueError if a preset cannot be written to a path."""
    path = Path(path)
    if path.is_file() or (
        path.exists() and not (path / _CONFIG).is_file() and any(path.iterdir())
    ):
        raise ValueError(
            f"Expected {path} to be new, an empty folder or a preset. Received: "
            "something else is there. Choose another folder."
        )
    return path


def save_task(task, path) -> None:
    """Writes a task to a folder, which appears whole or not at all."""
    from keras_bandgnn import __version__

    path = check_target(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        _write(partial / _CONFIG, _entry(task.backbone, task.backbone.get_config()))
        _write(partial / _TASK, _entry(task, task.head_config()))
        if task.preprocessor is not None:
            entry = _entry(task.preprocessor, task.preprocessor.get_config())
            _write(partial / _PREPROCESSOR, entry)
        metadata = {
            "keras_version": keras.__version__,
            "keras_bandgnn_version": __version__,
            "parameter_count": task.count_params(),
        }
        _write(partial / _METADATA, metadata)
        task.backbone.save_weights(partial / _WEIGHTS)
        _head_model(task).save_weights(partial / _HEAD)
        partial.chmod(0o755)
        old = partial.with_name(partial.name + ".old")
        if path.exists():
            os.replace(path, old)
        os.replace(partial, path)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def load_task(cls, preset, load_weights: bool = True):
    """Builds a task from a folder or the name of a preset."""
    from keras_bandgnn.models.backbone import Backbone
    from keras_bandgnn.models.task import Task
    from keras_bandgnn.preprocessing.graph_preprocessor import GraphPreprocessor

    path = _resolve(preset)
    entry = _read(path / _CONFIG)
    backbone = _class_of(entry, Backbone, path / _CONFIG).from_config(entry["config"])
    entry = _read(path / _TASK)
    task_class = _class_of(entry, Task, path / _TASK)
    if not issubclass(task_class, cls):
        raise ValueError(
            f"Expected a preset for {cls.__name__}. Received: {path} holds a "
            f"{task_class.__name__}. Call {task_class.__name__}.from_preset(...)."
        )
    preprocessor = None
    if (path / _PREPROCESSOR).is_file():
        config = _read(path / _PREPROCESSOR)["config"]
        preprocessor = GraphPreprocessor.from_config(config)
    task = task_class(backbone, preprocessor=preprocessor, **entry["config"])
    if load_weights:
        for name in (_WEIGHTS, _HEAD):
            if not (path / name).is_file():
                raise ValueError(
                    f"Expected the preset {path} to hold weights. Received: no {name}."
                    " Pass load_weights=False for new weights, to be trained."
                )
        task.backbone.load_weights(path / _WEIGHTS)
        _head_model(task).load_weights(path / _HEAD)
    return task
