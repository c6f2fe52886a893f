"""Everything that is written is whole at any moment, and its errors name the file."""

import ast
import contextlib
import ctypes
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import keras_bandgnn
from keras_bandgnn.data import files

posix = pytest.mark.skipif(os.name == "nt", reason="no such locks or links there")
NAMES = ("first", "second")


def folder(path, **texts):
    with files.atomic_folder(path, NAMES, "a pair") as partial:
        for name, text in texts.items():
            (partial / name).write_text(text)


def content(path):
    return {p.name: p.read_text() for p in path.iterdir()}


# === Files ===


def write_atomic(path, text):
    with files.atomic_write(path) as file:
        file.write(text.encode())


def write_path(path, text):
    with files.atomic_path(path) as hidden:
        assert hidden.suffixes == path.suffixes[-2:] or hidden.suffix == path.suffix
        hidden.write_text(text)


def write_held(path, text):
    with files.buffered_write(path) as file:
        assert str(file) == str(path)
        file.write(text.encode())


WAYS = [write_atomic, write_path, write_held]


@pytest.mark.parametrize("write", WAYS)
def test_a_file_is_old_or_new(tmp_path, write):
    path = tmp_path / "a.weights.h5"
    write(path, "old")
    write(path, "new")
    assert content(tmp_path) == {"a.weights.h5": "new"}
    with pytest.raises(ZeroDivisionError):
        with files.atomic_write(path) as file:
            file.write(b"half")
            assert path.read_text() == "new"
            raise ZeroDivisionError
    assert content(tmp_path) == {"a.weights.h5": "new"}


def test_files_get_the_rights_of_other_files(tmp_path):
    files.write_json(tmp_path / "a", {})
    folder(tmp_path / "b", first="1")
    (tmp_path / "c").touch()
    (tmp_path / "d").mkdir()
    mode = {p.name: p.stat().st_mode for p in tmp_path.iterdir()}
    assert mode["a"] == mode["c"] and mode["b"] == mode["d"]


@posix
def test_a_device_stays_a_device(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_atomic(tmp_path / "pipe", "text")
    assert os.read(reader, 10) == b"text" and (tmp_path / "pipe").is_fifo()
    os.close(reader)


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
def test_a_full_disk_is_named():
    with pytest.raises(OSError, match="Expected to write /dev/full. Received: No sp"):
        write_atomic(Path("/dev/full"), "text")


class _Library(Exception):
    pass


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "full"),
        OSError(errno.EDQUOT, "quota"),
        RuntimeError(
            "Can't decrement id ref count (write failed, errno = 28, buf = 1)"
        ),
        _Library("[Errno 28] No space left on device"),
    ],
)
def test_errors_of_libraries_are_named(tmp_path, error):
    path = tmp_path / "model"
    folder(path, first="old")
    named = f"Expected to write {path}.*(Free some).*unchanged"
    with pytest.raises(OSError, match=named) as caught:
        with files.atomic_folder(path, NAMES, "a pair") as partial:
            (partial / "first").write_text("new")
            raise error
    assert caught.value.errno in (errno.ENOSPC, errno.EDQUOT)
    assert caught.value.__cause__ is error
    assert content(path) == {"first": "old"} and len(list(tmp_path.iterdir())) == 1


@posix
def test_limits_of_the_system_are_named(tmp_path):
    resource = pytest.importorskip("resource")
    write_atomic(tmp_path / "a", "old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        for write in WAYS:
            with pytest.raises(OSError, match=f"write {tmp_path / 'a'}.*ulimit -f"):
                write(tmp_path / "a", "x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert content(tmp_path) == {"a": "old"}


def test_missing_folders_and_wrong_names_are_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="to write .*Create its folder"):
        write_atomic(tmp_path / "none" / "a", "text")
    (tmp_path / "f").touch()
    with pytest.raises(NotADirectoryError, match="Expected to write .*inside a folder"):
        write_atomic(tmp_path / "f" / "a", "text")
    (tmp_path / "d").mkdir()
    with pytest.raises(IsADirectoryError, match="Expected to write .*not a folder"):
        write_atomic(tmp_path / "d", "text")


def test_errors_of_what_is_read_meanwhile_stay(tmp_path):
    with pytest.raises(FileNotFoundError, match="No such file.*none"):
        with files.atomic_write(tmp_path / "a"):
            open(tmp_path / "none")
    with pytest.raises(ValueError, match="^bad$"):
        with files.atomic_write(tmp_path / "a"):
            raise ValueError("bad")


# === Folders ===


def test_a_folder_is_old_or_new(tmp_path):
    path = tmp_path / "model"
    folder(path, first="old", second="old")
    with pytest.raises(ZeroDivisionError):
        with files.atomic_folder(path, NAMES, "a pair") as partial:
            (partial / "first").write_text("half")
            assert content(path) == {"first": "old", "second": "old"}
            raise ZeroDivisionError
    assert content(path) == {"first": "old", "second": "old"}
    folder(path, first="new")
    assert content(path) == {"first": "new"}
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def _is_there(path, found):
    found.append(path.is_dir() and content(path))


@posix
def test_a_name_always_has_a_whole_folder(tmp_path, monkeypatch):
    path, found = tmp_path / "model", []
    folder(path, first="old")
    for name in ("rename", "replace", "unlink", "rmdir", "fsync"):
        call = getattr(os, name)

        def watched(*args, call=call, **kwargs):
            _is_there(path, found)
            result = call(*args, **kwargs)
            _is_there(path, found)
            return result

        monkeypatch.setattr(os, name, watched)
    swapped = files._exchange

    def exchange(one, other):
        _is_there(path, found)
        done = swapped(one, other)
        _is_there(path, found)
        return done

    monkeypatch.setattr(files, "_exchange", exchange)
    if not swapped(*_pair(tmp_path)):
        pytest.skip("this file system cannot swap two names")
    folder(path, first="new")
    assert {"first": "old"} in found and {"first": "new"} in found
    assert all(each in ({"first": "old"}, {"first": "new"}) for each in found)


def _pair(folder):
    pair = folder / "one", folder / "other"
    for each in pair:
        each.mkdir()
    return pair


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("moment", [1, 2])
def test_without_a_swap_the_next_open_brings_it_back(tmp_path, monkeypatch, moment):
    path = tmp_path / "model"
    folder(path, first="old")
    with monkeypatch.context() as patch:
        patch.setattr(files, "_exchange", lambda one, other: False)
        folder(path, first="middle")
        assert content(path) == {"first": "middle"}
        rename, calls = os.rename, []

        def kill(source, target):
            calls.append(source)
            if len(calls) == 1 + moment:
                raise _Killed
            rename(source, target)

        # As a kill, which runs no handler, between the renames.
        patch.setattr(os, "rename", kill)
        patch.setattr(files.shutil, "rmtree", lambda *args, **kwargs: None)
        with pytest.raises(_Killed):
            folder(path, first="new")
    files.restore_replaced(path)
    assert content(path)["first"] in ("middle", "new")
    folder(path, first="last")
    assert content(path) == {"first": "last"}
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_swap_that_is_not_to_be_had(tmp_path, monkeypatch):
    one, other = _pair(tmp_path)
    monkeypatch.setattr(sys, "platform", "other")
    assert not files._exchange(one, other)
    monkeypatch.setattr(ctypes, "CDLL", lambda *args, **kwargs: object())
    monkeypatch.setattr(sys, "platform", "linux")
    assert not files._exchange(one, other)


def test_other_content_is_never_replaced(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.txt").touch()
    with pytest.raises(ValueError, match="to be new, an empty folder or a pair"):
        folder(tmp_path / "a", first="1")
    folder(tmp_path / "b", first="1")
    (tmp_path / "b" / "thesis.txt").touch()
    with pytest.raises(ValueError, match="also .*thesis.txt"):
        folder(tmp_path / "b", first="2")


# === Links ===


@posix
def test_links_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    folder(outside, first="outside")
    place = tmp_path / "place"
    place.mkdir()
    (place / "model").symlink_to(outside)
    with pytest.raises(FileExistsError, match="a symbolic link, which is not followed"):
        folder(place / "model", first="new")
    with pytest.raises(FileExistsError, match="a symbolic link"):
        files.FolderLock(place / "model")
    # A link at the name of a file is replaced, not followed.
    (place / "file").symlink_to(outside / "first")
    write_atomic(place / "file", "new")
    assert (place / "file").read_text() == "new"
    # Nor is one that looks like what a killed writer left.
    hidden = place / ".01234567.partial.file"
    hidden.symlink_to(outside)
    (place / ".model.replaced").symlink_to(outside)
    (place / "model").unlink()
    files.restore_replaced(place / "model")
    write_atomic(place / "file", "newer")
    assert not (place / "model").exists() and hidden.is_symlink()
    assert content(outside) == {"first": "outside"}


# === Processes ===

WRITER = """
import sys, time
from pathlib import Path
from keras_bandgnn.data import files
path = Path(sys.argv[1])
with files.atomic_write(path / "file") as file:
    with files.atomic_folder(path / "folder", ("first",), "a pair") as partial:
        (partial / "first").write_text("other")
        with files.FolderLock(path / "work"):
            print("ready", flush=True)
            sys.stdin.readline()
        file.write(b"other")
"""


@pytest.fixture
def writer(tmp_path):
    """Another process in the middle of writing."""
    root = str(Path(keras_bandgnn.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    with process:
        assert process.stdout.readline() == "ready\n"
        yield process
        with contextlib.suppress(ProcessLookupError):
            process.kill()


@posix
def test_what_a_living_writer_has_is_left_alone(tmp_path, writer):
    write_atomic(tmp_path / "file", "own")
    folder(tmp_path / "folder", first="own")
    with pytest.raises(RuntimeError, match="work to be written by one job at a time"):
        files.FolderLock(tmp_path / "work")
    assert len([p for p in tmp_path.iterdir() if ".partial." in p.name]) == 2
    writer.communicate("\n")
    assert writer.returncode == 0
    # The last one wins, whole.
    assert (tmp_path / "file").read_text() == "other"
    assert content(tmp_path / "folder") == {"first": "other"}
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["file", "folder", "work"]


@posix
def test_what_a_killed_writer_left_is_removed(tmp_path, writer):
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    assert len([p for p in tmp_path.iterdir() if ".partial." in p.name]) == 2
    files.FolderLock(tmp_path / "work").close()
    write_atomic(tmp_path / "file", "own")
    folder(tmp_path / "folder", first="own")
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["file", "folder", "work"]


@posix
def test_a_lock_follows_the_name(tmp_path):
    lock = files.FolderLock(tmp_path / "a")
    os.rename(tmp_path / "a", tmp_path / "b")
    with files.FolderLock(tmp_path / "a"):
        with pytest.raises(RuntimeError, match="one job at a time"):
            files.FolderLock(tmp_path / "b")
    lock.close()
    files.FolderLock(tmp_path / "b").close()


# === All writers ===

# What else may write, and why.
ELSEWHERE = {
    "data/files.py": "the one way",
    "data/store_writer.py": "files of an unfinished store, and its progress",
    "data/datasets/archives.py": "a hidden folder, renamed when it is complete",
    "data/datasets/download.py": "downloads resume from what is there",
    "saving/preset_files.py": "within `atomic_folder`",
    "models/ensemble.py": "within `atomic_folder`",
    "models/layerwise.py": "a temporary folder",
    "models/last_layer_laplace.py": "within `atomic_folder`",
    "models/presets.py": "within `atomic_folder`",
    "serving/exporting.py": "within `atomic_folder`",
    "serving/graph_packer.py": "within `atomic_folder`",
    "plotting/style.py": "to an open `atomic_write`",
    "distribution/jax_data_parallel.py": "a temporary folder",
    "training/save_progress.py": "a temporary folder, on hosts that keep nothing",
    "tuning/workers.py": "logs of workers, appended to",
}
CALLS = {"write_text", "write_bytes", "savefig", "mkdtemp", "mkstemp", "rename"}
CALLS |= {"NamedTemporaryFile", "TemporaryDirectory", "symlink_to", "savez", "to_csv"}


def writes(tree):
    """Calls that write files, by their names; those of docstrings do not count."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = getattr(function, "attr", getattr(function, "id", ""))
        if name in CALLS:
            yield name
        elif name == "replace" and getattr(function.value, "id", "") == "os":
            yield "os.replace"
        elif name == "open":
            texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
            texts += [k.value for k in node.keywords if k.arg == "mode"]
            if any(set(str(t)) & set("wax+") and len(str(t)) < 4 for t in texts):
                yield "open"


def test_everything_is_written_in_the_one_way():
    root = Path(keras_bandgnn.__file__).parent
    found = {}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        calls = sorted(set(writes(ast.parse(path.read_text("utf-8")))))
        if calls:
            found[name] = calls
    new = {name: calls for name, calls in found.items() if name not in ELSEWHERE}
    assert not new, (
        f"{new} write files directly. Use atomic_write, atomic_path, buffered_write, "
        "write_json or atomic_folder of keras_bandgnn.data.files, or add the module to "
        "ELSEWHERE in this test, with the reason why a kill, a link or a full disk "
        "does no harm there."
    )
    assert set(ELSEWHERE) <= set(found)
