"""The table [tool.bandgnn] of pyproject.toml."""

import pytest

from keras_bandgnn.programs.linting.settings import Settings, find_settings

ALL = """
[tool.bandgnn]
baseline = "known.json"
cache-dir = "cache"
exclude = ["tests", "*_pb2.py"]
fail-on = 3
min-confidence = 0.9
model = "own"
"""


def test_every_key(tmp_path):
    (tmp_path / "pyproject.toml").write_text(ALL)
    (tmp_path / "own").mkdir()
    inner = tmp_path / "src" / "inner"
    inner.mkdir(parents=True)
    # A nearer file without the table does not count.
    (tmp_path / "src" / "pyproject.toml").write_text("[tool.ruff]\n")
    assert find_settings([inner, tmp_path / "src" / "a.py"]) == Settings(
        file=tmp_path / "pyproject.toml",
        model=str(tmp_path / "own"),
        min_confidence=0.9,
        fail_on=3,
        exclude=("tests", "*_pb2.py"),
        baseline=tmp_path / "known.json",
        cache_dir=tmp_path / "cache",
    )


def test_the_nearest_file_counts(tmp_path):
    (tmp_path / "pyproject.toml").write_text(ALL)
    (tmp_path / "a").mkdir()
    text = '[tool.bandgnn]\nmodel = "name"\nfail-on = "never"\n'
    (tmp_path / "a" / "pyproject.toml").write_text(text)
    near = find_settings([tmp_path / "a"])
    assert (near.model, near.never_fail, near.fail_on) == ("name", True, None)
    both = find_settings([tmp_path / "a", tmp_path])
    assert both.fail_on == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.bandgnn", "Expected TOML"),
        ("tool.bandgnn = 1", "Expected a table"),
        ("[tool.bandgnn]\nmin_confidence = 1", "min-confidence, model. Received: min_"),
        ("[tool.bandgnn]\nmin-confidence = 2", "a probability"),
        ("[tool.bandgnn]\nmin-confidence = nan", "a probability"),
        ("[tool.bandgnn]\nfail-on = 0", "at least 1"),
        ("[tool.bandgnn]\nfail-on = true", "at least 1"),
        ('[tool.bandgnn]\nfail-on = "x"', "at least 1"),
        ('[tool.bandgnn]\nexclude = "x"', "a list of patterns"),
        ("[tool.bandgnn]\nexclude = [1]", "a list of patterns"),
        ('[tool.bandgnn]\nmodel = ""', "a preset"),
        ("[tool.bandgnn]\nbaseline = 1", "a path"),
    ],
)
def test_wrong_settings(text, message, tmp_path):
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ValueError, match="pyproject.toml") as caught:
        find_settings([tmp_path])
    assert message in str(caught.value)
