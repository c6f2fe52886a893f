import os
from pathlib import Path

import keras
import pytest


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


@pytest.fixture(autouse=True)
def same_random_numbers():
    """Weights, dropout and shuffles are the same in every run of a test."""
    keras.utils.set_random_seed(0)
