"""What is written is whole at any moment, and writers of one folder meet a lock."""

import ast
import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import keras_bandgnn
from keras_bandgnn.data import files

posix = pytest.mark.skipif(os.name == "nt", reason="no such links or signals there")
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
        assert hidden.name.endswith(path.name)
        hidden.write_text(text)


def write_buffered(path, text):
    with files.buffered_write(path) as file:
        assert str(file) == str(path)
        file.write(text.encode())


WRITERS = [write_atomic, write_path, write_buffered]


@pytest.mark.parametrize("write", WRITERS)
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
def test_the_error_of_a_full_disk_names_the_file():
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_atomic(Path("/dev/full"), "text")


@posix
@pytest.mark.parametrize("write", WRITERS)
def test_errors_name_the_file_that_the_user_knows(tmp_path, write):
    resource = pytest.importorskip("resource")
    write_atomic(tmp_path / "a", "old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError) as caught:
            write(tmp_path / "a", "x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG
    assert caught.value.filename == str(tmp_path / "a")
    assert content(tmp_path) == {"a": "old"}
    with pytest.raises(FileNotFoundError) as caught:
        write(tmp_path / "none" / "a", "text")
    assert caught.value.filename == str(tmp_path / "none" / "a")
    (tmp_path / "d").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write(tmp_path / "d", "text")
    assert caught.value.filename == str(tmp_path / "d")


def test_errors_of_other_files_are_unchanged(tmp_path):
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


class Killed(BaseException):
    pass


@pytest.mark.parametrize("moment", [0, 1, 2])
def test_a_kill_at_any_rename_leaves_a_whole_folder(tmp_path, monkeypatch, moment):
    path = tmp_path / "model"
    folder(path, first="old")
    rename, calls = os.rename, []

    def kill(source, target):
        calls.append(source)
        if len(calls) > moment:
            raise Killed
        rename(source, target)

    with monkeypatch.context() as patch:
        # A killed process runs no handler.
        patch.setattr(os, "rename", kill)
        patch.setattr(files.shutil, "rmtree", lambda *args, **kwargs: None)
        with contextlib.suppress(Killed):
            folder(path, first="new")
    files.restore_replaced(path)
    assert content(path) == {"first": "new" if moment == 2 else "old"}
    folder(path, first="last")
    assert content(path) == {"first": "last"}
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


@posix
def test_readers_wait_for_a_writer_between_two_renames(tmp_path, monkeypatch):
    path = tmp_path / "model"
    folder(path, first="old")
    reader = threading.Thread(target=files.restore_replaced, args=(path,))
    rename = os.rename

    def renamed(source, target):
        rename(source, target)
        if source == path:
            reader.start()
            time.sleep(0.1)

    monkeypatch.setattr(os, "rename", renamed)
    folder(path, first="new")
    reader.join()
    assert content(path) == {"first": "new"}


def test_other_content_is_never_replaced(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.txt").touch()
    with pytest.raises(ValueError, match="to be new, an empty folder or a pair"):
        folder(tmp_path / "a", first="1")
    folder(tmp_path / "b", first="1")
    (tmp_path / "b" / "thesis.txt").touch()
    with pytest.raises(ValueError, match="also .*thesis.txt"):
        folder(tmp_path / "b", first="2")


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
    (place / ".model.replaced").symlink_to(outside)
    (place / "model").unlink()
    files.restore_replaced(place / "model")
    assert not (place / "model").exists()
    assert content(outside) == {"first": "outside"}


# === Processes ===

WRITER = """
import sys, time
sys.argv[0] = "bandgnn"  # which does not import Keras
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


def test_two_writers_of_one_folder_meet_a_lock(tmp_path, writer):
    with pytest.raises(RuntimeError, match="folder to be written by one job at a time"):
        folder(tmp_path / "folder", first="own")
    with pytest.raises(RuntimeError, match="work to be written by one job at a time"):
        files.FolderLock(tmp_path / "work")
    write_atomic(tmp_path / "file", "own")
    writer.communicate("\n")
    assert writer.returncode == 0
    # The last one wins, whole.
    assert (tmp_path / "file").read_text() == "other"
    assert content(tmp_path / "folder") == {"first": "other"}
    files.FolderLock(tmp_path / "work").close()
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["file", "folder", "work"]


@posix
def test_a_killed_writer_leaves_no_lock(tmp_path, writer):
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    files.FolderLock(tmp_path / "work").close()
    write_atomic(tmp_path / "file", "own")
    folder(tmp_path / "folder", first="own")
    names = [p.name for p in tmp_path.iterdir() if ".partial.file" not in p.name]
    assert sorted(names) == ["file", "folder", "work"]


LOOP = """
import sys
sys.argv[0] = "bandgnn"  # which does not import Keras
from pathlib import Path
from keras_bandgnn.data import files
path = Path(sys.argv[1])
for number in range(10**6):
    with files.atomic_folder(path / "folder", ("a", "b"), "a pair") as partial:
        for name in ("a", "b"):
            (partial / name).write_text(str(number) * 1000)
    files.write_json(path / "file", {str(number): 1})
    print(number, flush=True)
"""


@posix
@pytest.mark.parametrize("seconds", [0.003, 0.01, 0.02, 0.03])
@pytest.mark.release
def test_a_writer_killed_at_any_moment_leaves_whole_files(tmp_path, seconds):
    root = str(Path(keras_bandgnn.__file__).parents[1])
    command = [sys.executable, "-c", LOOP, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": root}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout.readline() == "0\n"
        time.sleep(seconds)
        process.kill()
    files.restore_replaced(tmp_path / "folder")
    texts = content(tmp_path / "folder")
    assert sorted(texts) == ["a", "b"] and texts["a"] == texts["b"] != ""
    assert len(json.loads((tmp_path / "file").read_text())) == 1
    with files.atomic_folder(tmp_path / "folder", ("a", "b"), "a pair") as partial:
        (partial / "a").write_text("new")
    assert content(tmp_path / "folder") == {"a": "new"}
    # Neither locks nor hidden folders stay.
    names = {p.name for p in tmp_path.iterdir() if ".partial.file" not in p.name}
    assert names == {"file", "folder"}


def test_a_lock_below_a_read_only_folder_is_in_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with files.FolderLock(tmp_path / "out"):
        assert [p.name for p in (tmp_path / "out").iterdir()] == [".out.lock"]
        with pytest.raises(RuntimeError, match="one job at a time"):
            files.FolderLock(tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


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
    "distribution/jax_group.py": "a temporary folder",
    "cli/tune_workers.py": "the output of worker processes",
    "training/save_progress.py": "a temporary folder, on hosts that keep nothing",
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
