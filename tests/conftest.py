import gc
import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from run import HOST_ONLY


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


def shared_out(case: int, backend: str, backends: list[str]) -> bool:
    """Whether a backend runs a case of a sweep: the first all, the others in turn."""
    place = backends.index(backend) if backend in backends else 0
    # Counting the ones of the number, not every second case: in a product of two
    # tables each backend meets all values of both.
    return place == 0 or case.bit_count() % (len(backends) - 1) == place - 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leaves out the cases of sweeps that another backend of tests/run.py runs."""
    backends = os.environ.get("KB_TEST_BACKENDS", "").split()
    backend = os.environ.get("KERAS_BACKEND", "")
    kept, left, cases = [], [], Counter()
    for item in items:
        node, sweep = next(item.iter_markers_with_node("sweep"), (None, None))
        core = sweep and sweep.kwargs.get("core", ())
        if not sweep or any(name in item.name for name in core):
            kept.append(item)
            continue
        # The cases of a test, or the tests of a file that is marked as a whole.
        name = item.nodeid.partition("[")[0] if node is item else node.nodeid
        shared = shared_out(cases[name], backend, backends)
        (kept if shared else left).append(item)
        cases[name] += 1
    items[:] = kept
    if left:
        config.hook.pytest_deselected(items=left)


@pytest.fixture(autouse=True)
def host_alone(request):
    """Fails where a test that runs on one backend alone calls that backend."""
    folder = Path(__file__).parents[1]
    path = request.path.relative_to(folder).as_posix()
    if not path.startswith(HOST_ONLY) or os.environ.get("KERAS_BACKEND") != "torch":
        yield
        return
    from torch.overrides import TorchFunctionMode

    class Refuse(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            raise AssertionError(f"{path} calls torch: not HOST_ONLY of tests/run.py")

    with Refuse():
        yield


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
