"""Names of the files of a preset, and the built-in presets; without Keras."""

from pathlib import Path

CONFIG, TASK, PREPROCESSOR = "config.json", "task.json", "preprocessor.json"
METADATA, CARD = "metadata.json", "README.md"
# The options of the command that trained it; not read here.
RECIPE = "recipe.toml"
WEIGHTS, HEAD = "model.weights.h5", "task.weights.h5"
# An ensemble has this file, and a preset of each member in a folder of its own.
ENSEMBLE = "ensemble.json"
# The posterior of a LastLayerLaplace, beside the folder of its task.
LAPLACE = "laplace.npz"
NAMES = (CONFIG, TASK, PREPROCESSOR, METADATA, CARD, WEIGHTS, HEAD, RECIPE)


def home() -> Path:
    """Return the folder of the built-in presets."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "presets"
    # In a checkout, the presets are next to the package.
    return installed if installed.is_dir() else package.parent / "presets"


def list_presets() -> list[str]:
    """Return the names of the built-in presets.

    Example:
    >>> "ggnn_varmisuse" in list_presets()
    True
    """
    folder = home()
    folders = folder.iterdir() if folder.is_dir() else ()
    return sorted(p.name for p in folders if (p / CONFIG).is_file())
