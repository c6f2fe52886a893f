"""Presets that the wheel leaves out."""

import shutil
import tomllib
from pathlib import Path

import pytest

from keras_bandgnn.saving import preset_hub
from keras_bandgnn.saving.preset_paths import WEIGHTS, home
from keras_bandgnn.saving.remote_presets import REMOTE_PRESETS, check_weights

ROOT = Path(__file__).parents[2]


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """The folder of the presets of a wheel, of which one is copied."""
    folder = tmp_path / "presets"
    shutil.copytree(ROOT / "presets" / "gcn", folder / "gcn")
    for module in ("preset_hub", "preset_paths"):
        monkeypatch.setattr(f"keras_bandgnn.saving.{module}.home", lambda: folder)
    return folder


def test_the_wheel_leaves_them_out_and_they_are_those_of_the_repository():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    excluded = project["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"]
    assert sorted(excluded) == [f"/presets/{name}" for name in sorted(REMOTE_PRESETS)]
    for name in REMOTE_PRESETS:
        check_weights(name, home() / name)
        assert preset_hub.preset_folder(name) == home() / name


def test_presets_stay_small():
    """A larger one goes to `REMOTE_PRESETS`."""
    files = [path for path in home().rglob("*") if path.is_file()]
    size = sum(f.stat().st_size for f in files if f.parent.name not in REMOTE_PRESETS)
    assert size < 6e6


@pytest.mark.parametrize("name", REMOTE_PRESETS)
def test_the_error_names_the_folder(wheel, name):
    with pytest.raises(
        ValueError, match=f"(?s)too large.*presets/{name} in a checkout"
    ):
        preset_hub.preset_folder(name)


def test_downloads_are_checked(wheel, monkeypatch, tmp_path):
    name = "gcn_coauthor_cs"
    copy = tmp_path / "download"
    shutil.copytree(ROOT / "presets" / name, copy)
    monkeypatch.setitem(
        REMOTE_PRESETS, name, REMOTE_PRESETS[name]._replace(address="hf://me/cs@1")
    )
    monkeypatch.setattr(preset_hub, "download", {"hf://me/cs@1": copy}.__getitem__)
    assert preset_hub.preset_folder(name) == copy
    with open(copy / WEIGHTS, "ab") as file:
        file.write(b"0")
    with pytest.raises(ValueError, match="SHA-256"):
        preset_hub.preset_folder(name)
