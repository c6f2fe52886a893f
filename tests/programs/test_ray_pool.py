import logging
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from keras_bandgnn.data.store_writer import StoreWriter
from keras_bandgnn.preprocessing import (
    GraphPreprocessor,
    ProgramEncoder,
    RCMKCompile,
    ReachabilityFilter,
)
from keras_bandgnn.programs import ray_pool
from keras_bandgnn.programs.models.program_store import compile_programs
from keras_bandgnn.programs.program_files import find_programs
from keras_bandgnn.programs.ray_pool import RayPool, connect

ray = pytest.importorskip("ray")
# Ray leaves files and sockets to the end of the process.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

LAYERS = [ProgramEncoder(), ReachabilityFilter(3), RCMKCompile(16)]


class Killed(Exception):
    pass


@pytest.fixture(scope="module")
def pool():
    with pytest.MonkeyPatch.context() as patch:
        # Workers import this module.
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        # They give way to everything else by default, such as other tests.
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        with ray_pool._restored_handlers():
            ray.init(
                address="local",
                num_cpus=2,
                include_dashboard=False,
                object_store_memory=128 * 2**20,
                logging_level=logging.ERROR,
                log_to_driver=False,
            )
        with RayPool(workers=2) as made:
            yield made
        assert ray.is_initialized()  # The connection is the caller's.
        ray.shutdown()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("src")
    for index in range(112):
        body = "".join(f"    total = total * left + {k}\n" for k in range(3))
        text = f"def f{index}(left):\n    total = left\n{body}    return total\n"
        (folder / f"m{index:03}.py").write_text(text)
    (folder / "m999.py").write_text("def broken(:\n")
    return find_programs(folder, by="none")


def compiled(files, path, **options):
    kind, splits = files
    made = GraphPreprocessor(LAYERS)
    return compile_programs(kind, splits["all"], path, made, **options)


def content(path):
    return {p.name: p.read_bytes() for p in sorted(path.iterdir())}


@pytest.fixture(scope="module")
def whole(files, tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "store"
    compiled(files, path, processes=1)
    return content(path)


def stat(process):
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def at_work(name):
    """Processes below this one that do a job of Ray just now."""
    folders = [p for p in Path("/proc").iterdir() if p.name.isdigit()]
    parents = {p.name: found[1] for p in folders if (found := stat(p))}
    for process in parents:
        above = process
        while above in parents and above != str(os.getpid()):
            above = parents[above]
        if above == str(os.getpid()):
            try:
                title = Path("/proc", process, "cmdline").read_bytes()
            except OSError:
                continue
            if title.startswith(f"ray::{name}".encode()):
                yield int(process)


def kill_one(name, killed):
    for _ in range(1000):
        for process in at_work(name):
            os.kill(process, signal.SIGKILL)
            killed.append(process)
            return
        time.sleep(0.01)


@pytest.mark.release
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_killed_worker_changes_nothing(pool, files, whole, tmp_path):
    killed, seen = [], []
    killer = threading.Thread(target=kill_one, args=("read_compiled", killed))

    def progress(done, total):
        seen.append(done)
        if len(seen) == 2:
            killer.start()

    compiled(files, tmp_path / "store", pool=pool, progress=progress)
    killer.join()
    assert len(killed) == 1
    assert seen[0] == 0 and seen[-1] == 113 and seen == sorted(seen)
    assert content(tmp_path / "store") == whole
    assert [p.name for p in tmp_path.iterdir()] == ["store"]


@pytest.mark.release
def test_a_killed_job_goes_on_with_any_engine(
    pool, files, whole, tmp_path, monkeypatch
):
    take = StoreWriter.take

    def kill(writer, piece):
        if writer.done == 2:
            raise Killed
        take(writer, piece)

    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "take", kill)
        with pytest.raises(Killed):
            compiled(files, tmp_path / "store", pool=pool)
    seen = []
    compiled(
        files,
        tmp_path / "store",
        processes=1,
        progress=lambda done, total: seen.append(done),
    )
    assert seen[:2] == [64, 65]
    assert content(tmp_path / "store") == whole


def test_joining_a_cluster_leaves_the_handlers_of_signals(monkeypatch):
    numbers = (signal.SIGINT, signal.SIGTERM)

    def init(**options):
        for number in numbers:
            signal.signal(number, lambda *_: None)

    monkeypatch.setattr(ray_pool, "_check_address", lambda *_: None)
    monkeypatch.setattr(ray, "init", init)
    handlers = [signal.getsignal(number) for number in numbers]
    ray_pool.connect("auto", 1.0)
    assert [signal.getsignal(number) for number in numbers] == handlers


# Jobs; workers find them by the name of this module.


def die_once(marker, value):
    try:
        open(marker, "x").close()
    except FileExistsError:
        return 2 * value
    os.kill(os.getpid(), signal.SIGKILL)


def fail(value):
    raise ValueError(f"no {value}")


def slow_first(value, folder=None):
    """The first waits for three others to write their files in the folder."""
    if value:
        if folder is not None:
            (folder / str(value)).touch()
        return value
    end = time.monotonic() + 60
    while len(list(folder.iterdir())) < 3 and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.3)  # Their results are on their way.
    return value


def test_results_come_in_order_and_the_window_is_bounded(pool, tmp_path):
    results = pool.ordered_map(slow_first, ((value, tmp_path) for value in range(20)))
    assert next(results) == 0
    # Others came first, but no more than may wait.
    assert 3 <= len(list(tmp_path.iterdir())) <= 8
    assert list(results) == list(range(1, 20))


def test_a_dead_worker_does_its_job_again(pool, tmp_path):
    jobs = [(str(tmp_path / "marker"), 3), (str(tmp_path / "marker"), 4)]
    assert list(pool.ordered_map(die_once, jobs)) == [6, 8]


def test_an_error_of_a_job_is_raised_as_it_is(pool):
    with pytest.raises(ValueError, match="no 5"):
        list(pool.ordered_map(fail, [(5,)]))


@pytest.mark.release
def test_jobs_that_kill_their_workers(pool, monkeypatch):
    monkeypatch.setattr("keras_bandgnn.programs.ray_pool._RETRIES", 0)
    results = pool.ordered_map(os._exit, [(7,)], died="died")
    assert list(results) == ["died"]


def test_an_address_that_does_not_answer():
    with pytest.raises(ValueError, match="host:port"):
        connect("cluster", 1.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConnectionError, match="ray start --head"):
            connect(address, 1.0)
        silent.listen()
        with pytest.raises(ConnectionError, match="no answer in 1 s"):
            connect(address, 1.0)
