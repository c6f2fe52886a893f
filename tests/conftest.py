import gc
import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from run import EVERYWHERE, HOST_ONLY, PROGRAMS


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


def shared_out(
    case: int, backend: str, backends: list[str], turn: int, first: bool
) -> bool:
    """Whether a backend runs a case.

    Args:
        case: Its number.
        backend: The backend.
        backends: Those that share the cases. The only one, or none, runs all.
        turn: The case goes to another backend in the next turn.
        first: Whether the first backend runs all cases, and the others share them.
    """
    place = backends.index(backend) if backend in backends else 0
    if len(backends) < 2 or (first and place == 0):
        return True
    sharing = len(backends) - first
    # Counting the ones of the number, not every second case: in a product of two
    # tables each backend meets all values of both.
    return (case.bit_count() + turn) % sharing == place - first


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leaves out what another backend of tests/run.py runs in this turn."""
    backends = os.environ.get("KB_TEST_BACKENDS", "").split()
    backend = os.environ.get("KERAS_BACKEND", "")
    turn = int(os.environ.get("KB_TEST_TURN", 0))
    kept, left, cases = [], [], Counter()
    for item in items:
        node, sweep = next(item.iter_markers_with_node("sweep"), (None, None))
        options = sweep.kwargs if sweep else {}
        everywhere = item.nodeid.startswith(EVERYWHERE) or any(
            item.iter_markers("skipif")
        )
        if (not sweep and everywhere) or any(
            name in item.name for name in options.get("core", ())
        ):
            kept.append(item)
            continue
        # The cases of a test, or the tests of a file.
        name = item.nodeid.partition("[" if node is item else "::")[0]
        program = item.nodeid.startswith(PROGRAMS)
        program = program and not item.nodeid.startswith(HOST_ONLY)
        first = options.get("first", not program)
        shared = shared_out(cases[name], backend, backends, turn, first)
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
