import gc
import os
import random
from pathlib import Path

import numpy as np
import pytest

# What is tested here is computed by the backend.
EVERY_BACKEND = (
    "tests/distribution",
    "tests/layers",
    "tests/ops",
    "tests/primitives",
    "tests/tpu",
)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of the public data sets (varmisuse/, ...); skips where absent."""
    if "KB_DATA" in os.environ:
        folder = Path(os.environ["KB_DATA"])
        if folder.is_dir():
            return folder
        pytest.skip(f"KB_DATA={folder} is not a folder")
    for parent in Path(__file__).resolve().parents:
        if (parent / "shared" / "data").is_dir():
            return parent / "shared" / "data"
    pytest.skip("no shared data; set KB_DATA to the folder that holds varmisuse/")


# Set by tests/run.py: "release" for all tests, "landing" for all but those marked
# `release`, "backends" for those of them that may differ between backends.
SCOPE = os.environ.get("KB_TEST_SCOPE", "release")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Import no file without a test for this backend."""
    if SCOPE != "backends" or not collection_path.name.startswith("test_"):
        return None
    path = collection_path.relative_to(Path(__file__).parents[1]).as_posix()
    if path.startswith(EVERY_BACKEND):
        return None
    return None if "every_backend" in collection_path.read_text("utf-8") else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave out the tests that are not of the scope."""
    if SCOPE == "release":
        return
    selected = [item for item in items if not waits_for_release(item)]
    if SCOPE == "backends":
        selected = [item for item in selected if differs_by_backend(item)]
    inside = set(selected)
    config.hook.pytest_deselected(items=[i for i in items if i not in inside])
    items[:] = selected


def waits_for_release(item: pytest.Item) -> bool:
    """Return whether a test runs before releases alone, on this backend at least."""
    elsewhere = SCOPE == "backends"
    return any(
        elsewhere or not mark.kwargs.get("elsewhere")
        for mark in item.iter_markers("release")
    )


def differs_by_backend(item: pytest.Item) -> bool:
    """Return whether a test runs on every backend.

    So do the tests of `EVERY_BACKEND` and those marked `every_backend`. With words, the
    mark selects tests that have one in their name, in those folders as well.
    """
    mark = item.get_closest_marker("every_backend")
    if mark:
        return any(word in item.name for word in mark.args or ("",))
    return item.nodeid.startswith(EVERY_BACKEND)


@pytest.fixture(autouse=True)
def same_random_numbers():
    """Weights and dropout are the same in every run of a test.

    Seeds of Keras are drawn from `random`. `keras.utils.set_random_seed` would import
    TensorFlow on every backend.
    """
    random.seed(0)
    np.random.seed(0)


@pytest.fixture(scope="module", autouse=True)
def short_collections():
    """What is alive between modules stays: collections need not look at it again."""
    gc.collect()
    gc.freeze()
