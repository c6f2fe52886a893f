"""Presets by name, on the Hugging Face Hub and on Kaggle.

`hf://OWNER/NAME` or `hf://OWNER/NAME@REVISION` names a repository of the Hub,
`kaggle://OWNER/MODEL/FRAMEWORK/VARIATION` or `.../VARIATION/VERSION` a model of Kaggle.

The packages huggingface_hub and kagglehub are optional: `pip install
'keras-bandgnn[hub]'` or `'keras-bandgnn[kaggle]'`.
"""

import difflib
import os
import re
from pathlib import Path

from keras_bandgnn.checks import as_path, boolean, string
from keras_bandgnn.data.files import restore_replaced
from keras_bandgnn.optional import optional_import
from keras_bandgnn.saving.preset_paths import (
    CARD,
    CONFIG,
    ENSEMBLE,
    LAPLACE,
    NAMES,
    home,
    list_presets,
)
from keras_bandgnn.saving.remote_presets import (
    REMOTE_PRESETS,
    address_of,
    check_weights,
)


def _import_hub():
    return optional_import(
        "huggingface_hub", "keras-bandgnn[hub]", "presets of the Hub", "use a folder"
    )


def _split(uri: str) -> tuple[str, str | None]:
    """Return the name of the repository and its revision."""
    string("uri", uri)
    name, sign, revision = uri.removeprefix("hf://").partition("@")
    parts = name.split("/")
    if (
        not uri.startswith("hf://")
        or len(parts) != 2
        or not all(parts)
        or (sign and not revision)
    ):
        raise ValueError(
            "Expected `uri` to be hf://OWNER/NAME or hf://OWNER/NAME@REVISION. "
            f"Received: {uri!r}."
        )
    return name, revision or None


def _import_kaggle():
    return optional_import(
        "kagglehub", "keras-bandgnn[kaggle]", "presets of Kaggle", "use a folder"
    )


def _kaggle_handle(uri: str) -> str:
    """Return the handle of a model, as kagglehub takes it."""
    name = r"\w[\w.-]*"
    if not re.fullmatch(rf"kaggle://{name}/{name}/{name}/{name}(/\d+)?", uri):
        raise ValueError(
            "Expected `uri` to be kaggle://OWNER/MODEL/FRAMEWORK/VARIATION, and "
            f"/VERSION if it is not the newest. Received: {uri!r}."
        )
    return uri.removeprefix("kaggle://")


def _from_kaggle(uri: str) -> Path:
    handle, hub = _kaggle_handle(uri), _import_kaggle()
    try:
        folder = Path(hub.model_download(handle))
    except Exception as error:
        # kagglehub has a separate exception class for each cause.
        raise ValueError(
            f"Expected to find {uri} on Kaggle or in the cache of kagglehub. "
            f"Received: {type(error).__name__}: {error}"
        ) from error
    if not (folder / CONFIG).is_file():
        raise ValueError(
            f"Expected {uri} to hold a preset of keras-bandgnn. Received: a model "
            f"without {CONFIG}."
        )
    return folder


def download(uri: str) -> Path:
    """Download a preset, and return the folder.

    Of a repository of the Hub only the files of a preset are downloaded, to the cache
    of huggingface_hub (`HF_HOME`); with `HF_HUB_OFFLINE=1` they are read only from
    there. Models of Kaggle are downloaded to the cache of kagglehub.
    """
    if uri.startswith("kaggle://"):
        return _from_kaggle(uri)
    name, revision = _split(uri)
    hub = _import_hub()
    try:
        folder = hub.snapshot_download(
            name, revision=revision, allow_patterns=list(NAMES)
        )
    except Exception as error:
        # huggingface_hub has a separate exception class for each cause.
        raise ValueError(
            f"Expected to find {uri} on the Hugging Face Hub or in its cache. "
            f"Received: {type(error).__name__}: {error}"
        ) from error
    if not (Path(folder) / CONFIG).is_file():
        raise ValueError(
            f"Expected {uri} to hold a preset of keras-bandgnn. Received: a "
            f"repository without {CONFIG}."
        )
    return Path(folder)


def preset_folder(preset, file: str = CONFIG) -> Path:
    """Return the folder of a preset: a local one, a built-in one, or a download.

    Args:
        preset: A folder, the name of a preset, `"hf://OWNER/NAME"` or
            `"kaggle://OWNER/MODEL/FRAMEWORK/VARIATION"`.
        file: The file that makes a folder a preset.
    """
    folder = as_path("preset", preset)
    if str(preset).startswith(("hf://", "kaggle://")):
        return download(str(preset))
    restore_replaced(folder)
    if os.path.isfile(folder / file):
        return folder
    if os.path.isfile(folder / ENSEMBLE):
        raise ValueError(
            f"Expected `preset` to hold one model. Received: {folder}, an ensemble. "
            f"Name the folder of a member, such as {folder / 'member_0'}. In Python, "
            "call Ensemble.from_preset(...)."
        )
    if os.path.isfile(folder / LAPLACE):
        raise ValueError(
            f"Expected `preset` to hold one model. Received: {folder}, a task with the "
            f"posterior of its last layer. Name the folder {folder / 'task'}. In "
            "Python, call LastLayerLaplace.from_preset(...)."
        )
    names = list_presets()
    if str(preset) in names:
        return home() / str(preset)
    if str(preset) in REMOTE_PRESETS:
        folder = download(address_of(str(preset)))
        check_weights(str(preset), folder)
        return folder
    near = difflib.get_close_matches(str(preset), names, 1, 0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(
        f"Expected `preset` to be a folder with {file}, hf://OWNER/NAME, "
        "kaggle://OWNER/MODEL/FRAMEWORK/VARIATION or one of the presets "
        f"{names}. Received: {str(preset)!r}.{hint}"
    )


def upload_preset(uri: str, preset: str | os.PathLike, private: bool = False) -> str:
    """Upload a folder that `save_to_preset` wrote to the Hugging Face Hub or to Kaggle.

    Log in first: with `hf auth login` or the environment variable `HF_TOKEN`, or with
    `kagglehub.login()`.

    Args:
        uri: `"hf://OWNER/NAME"`, or `"kaggle://OWNER/MODEL/FRAMEWORK/VARIATION"`.
            Creates what does not exist there; Kaggle adds a version.
        preset: The folder.
        private: Whether a new repository of the Hub is private. Models of Kaggle are
            until you publish them there.

    Returns:
        The address of the commit, or of the model.

    Raises:
        ValueError: If the folder is not a complete preset.
        ImportError: Without the package huggingface_hub or kagglehub.

    Example:
    >>> upload_preset("hf://me/model", "nowhere")
    Traceback (most recent call last):
        ...
    ValueError: Expected the file nowhere/config.json. Received: no such file. Copy \
the whole preset.
    """
    from keras_bandgnn.saving.preset_files import read

    string("uri", uri)
    on_kaggle = uri.startswith("kaggle://")
    handle = _kaggle_handle(uri) if on_kaggle else _split(uri)
    folder = as_path("preset", preset)
    boolean("private", private)
    read(folder / CONFIG)
    if not (folder / CARD).is_file():
        raise ValueError(
            f"Expected {folder / CARD}, the model's card. Received: no such file. "
            "Write the preset with save_to_preset(..., card={...})."
        )
    if on_kaggle:
        other = [path.name for path in folder.iterdir() if path.name not in NAMES]
        _import_kaggle().model_upload(handle, str(folder), ignore_patterns=other)
        return "https://www.kaggle.com/models/" + "/".join(handle.split("/")[:2])
    name, revision = handle
    api = _import_hub().HfApi()
    api.create_repo(name, private=private, exist_ok=True)
    commit = api.upload_folder(
        repo_id=name,
        folder_path=folder,
        allow_patterns=list(NAMES),
        revision=revision,
        commit_message="Upload a preset of keras-bandgnn",
    )
    return str(getattr(commit, "commit_url", commit))
