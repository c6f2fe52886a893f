"""Presets that are too large for the wheel."""

import hashlib
from pathlib import Path
from typing import NamedTuple

from keras_bandgnn.saving.preset_paths import WEIGHTS


class RemotePreset(NamedTuple):
    """Where a preset is.

    Attributes:
        address: `hf://OWNER/NAME@REVISION`; None before it is uploaded.
        sha256: Of its file of weights.
    """

    address: str | None
    sha256: str


REMOTE_PRESETS = {
    "complex_fb15k237": RemotePreset(
        None, "75831ebe9758ebd2b84f13a30026046815cc44a8cb5aa8b8efa42edb09b10e00"
    ),
    "gcn_coauthor_cs": RemotePreset(
        None, "d16aed8a14cef2f50dacc0d6e633b0e59bacc0e862a014c014335e944c3401ef"
    ),
    "ggnn_bugs_python": RemotePreset(
        None, "1d0ab21df3f7571eb4838e5305d8ff470b7c9ef21564655816748eba18cb3d72"
    ),
    "ggnn_bugs_python_large": RemotePreset(
        None, "f3f0ff1edbaeed2e5c0052ada627449535d2f58fa74336f48616463b0f05f930"
    ),
    "ggnn_varmisuse_python": RemotePreset(
        None, "b0653455164bff607b3d2a02f02cfb6f98ebd1decf3387f339f3879aa3927297"
    ),
}
"""Presets of the repository that the wheel leaves out, by name."""


def address_of(name: str) -> str:
    """Return the address of a preset that the wheel leaves out.

    Raises:
        ValueError: If it has none.
    """
    address = REMOTE_PRESETS[name].address
    if address is None:
        raise ValueError(
            f"Expected the folder of the preset {name!r}, which is too large for the "
            f"wheel. Received: its name. Pass the path of presets/{name} in a checkout "
            "of the repository."
        )
    return address


def check_weights(name: str, folder: Path) -> None:
    """Raise a ValueError if downloaded weights are not those of the preset."""
    digest = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    if digest != REMOTE_PRESETS[name].sha256:
        raise ValueError(
            f"Expected {folder / WEIGHTS} with the SHA-256 "
            f"{REMOTE_PRESETS[name].sha256}. Received: {digest}. Remove the folder, "
            "and download the preset again."
        )
