"""The files of a preset: where they lie, and how they are read and written."""

import functools
from pathlib import Path

import h5py
import numpy as np

from keras_bandgnn.data import files
from keras_bandgnn.data.files import held_write, json_text
from keras_bandgnn.data.reading import read_json, refuse
from keras_bandgnn.models.preset_checks import check_classes

CONFIG, TASK, PREPROCESSOR = "config.json", "task.json", "preprocessor.json"
METADATA, CARD = "metadata.json", "README.md"
WEIGHTS, HEAD = "model.weights.h5", "task.weights.h5"
NAMES = (CONFIG, TASK, PREPROCESSOR, METADATA, CARD, WEIGHTS, HEAD)


def home() -> Path:
    """The folder of the presets that come with the library."""
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
    folder = home()
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(p.name for p in found if (p / CONFIG).is_file())


def read(path: Path) -> dict:
    """The object in a JSON file; all classes that it names are known."""
    if not path.is_file():
        raise ValueError(
            f"Expected the file {path}. Received: no such file. Is the preset complete?"
        )
    value = read_json(path)
    if not isinstance(value, dict):
        refuse(path, "to hold a JSON object", type(value).__name__)
    check_classes(path, value)
    return value


def write(path: Path, value: dict) -> None:
    """Writes an object as JSON."""
    path.write_text(json_text(path.name, value, indent=2) + "\n", "utf-8")


check_target = functools.partial(files.check_target, names=NAMES, what="a preset")
whole_folder = functools.partial(files.whole_folder, names=NAMES, what="a preset")


def halve_weights(path: Path) -> None:
    """Rounds the floats of a file of weights to float16, which Keras reads as well."""
    with (
        h5py.File(path, "r") as source,
        held_write(path) as rounded,
        h5py.File(rounded, "w") as target,
    ):

        def copy(name, item):
            if isinstance(item, h5py.Group):
                made = target.require_group(name)
            else:
                values = item[()]
                if np.issubdtype(item.dtype, np.floating):
                    values = _as_half(values, name)
                made = target.create_dataset(name, data=values)
            made.attrs.update(item.attrs)

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
