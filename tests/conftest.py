import gc
import os
import random
from pathlib import Path

import numpy as np
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
