"""Downloads, checksums and archives, against a server on this machine."""

import hashlib
import http.server
import io
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from keras_bandgnn import progress
from keras_bandgnn.data.datasets import load as registry
from keras_bandgnn.data.datasets.archives import unpack
from keras_bandgnn.data.datasets.download import (
    Remote,
    checksum,
    fetch,
    matches,
    sidecar,
)
from keras_bandgnn.data.datasets.files import Dataset, Form, cache_folder, locate
from keras_bandgnn.data.datasets.load import load

CONTENT = bytes(range(256)) * 400


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.asked.append(dict(self.headers))
        body = server.files.get(self.path)
        if body is None:
            self.send_error(404)
            return
        start = 0
        wanted = self.headers.get("Range")
        if wanted and self.headers.get("If-Range") == server.tag:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
        if start and start >= len(body):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.send_header("ETag", server.tag)
        self.end_headers()
        stop = server.break_after or len(body)
        self.wfile.write(body[start:stop])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files, server.asked = {"/file.bin": CONTENT}, []
        server.tag, server.break_after = '"one"', None
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def remote(server, expected=None):
    return Remote("file.bin", f"{server.url}/file.bin", expected)


def test_fetch_keeps_the_file_and_its_checksum(server, tmp_path):
    expected = f"md5:{hashlib.md5(CONTENT).hexdigest()}"
    path = fetch(remote(server, expected), tmp_path, progress=False)
    assert path.read_bytes() == CONTENT
    digits, name = sidecar(path).read_text().split()
    assert digits == hashlib.sha256(CONTENT).hexdigest() and name == "file.bin"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file.bin", "file.bin.sha256"]


def test_fetch_resumes_where_it_broke_off(server, tmp_path):
    server.break_after = 1000
    with pytest.raises(OSError):
        fetch(remote(server), tmp_path, progress=False)
    assert (tmp_path / "file.bin.part").stat().st_size == 1000
    assert not (tmp_path / "file.bin").exists()
    server.break_after = None
    path = fetch(remote(server), tmp_path, progress=False)
    assert path.read_bytes() == CONTENT
    assert server.asked[1]["Range"] == "bytes=1000-"


def test_fetch_begins_again_when_the_server_has_another_file(server, tmp_path):
    server.break_after = 1000
    with pytest.raises(OSError):
        fetch(remote(server), tmp_path, progress=False)
    server.break_after, server.tag = None, '"two"'
    server.files["/file.bin"] = CONTENT[::-1]
    path = fetch(remote(server), tmp_path, progress=False)
    assert path.read_bytes() == CONTENT[::-1]


def test_fetch_begins_again_when_the_range_is_refused(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT + b"more")
    (tmp_path / "file.bin.part.tag").write_text('"one"')
    path = fetch(remote(server), tmp_path, progress=False)
    assert path.read_bytes() == CONTENT and len(server.asked) == 2


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    with pytest.raises(ValueError, match=r"checksum md5:00.*md5:[0-9a-f]{32}"):
        fetch(remote(server, "md5:00"), tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_a_bar_is_drawn_for_slow_work_alone(monkeypatch):
    class Bar:
        seen = []

        def __init__(self, **_):
            self.seen.append("made")

        def add_task(self, title, total):
            self.seen.append((title, total))

        def update(self, _, completed):
            self.seen.append(completed)

        def start(self):
            pass

        def stop(self):
            self.seen.append("stopped")

    monkeypatch.setattr("rich.progress.Progress", Bar)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress.progress_bar("Reading", 3, shown=True) as advance:
        advance(1)
    assert Bar.seen == []
    monkeypatch.setattr(progress, "_QUIET_SECONDS", -1)
    with progress.progress_bar("Reading", 3, shown=False) as advance:
        advance(1)
    assert Bar.seen == []
    with progress.progress_bar("Reading", 3, shown=True) as advance:
        advance(1)
        advance(2)
    assert Bar.seen == ["made", ("Reading", 3), 1, 3, "stopped"]


def test_checksum_of_git(tmp_path):
    path = tmp_path / "hello"
    path.write_bytes(b"hello\n")
    assert matches(path, "git:ce013625030ba8dba906f756967f9e9ca394464a")


def data_set(*downloads, files=None, **more):
    files = files or {"npz": "file.bin"}
    forms = (Form("node_graphs:read_gnn_benchmark", files),)
    return Dataset("toy", "", "", "", "", forms, downloads, **more)


def test_locate_downloads_once_and_verifies_later(server, tmp_path):
    toy = data_set(remote(server))
    for _ in range(2):
        _, files = locate(toy, cache=tmp_path, progress=False)
        assert files == {"npz": tmp_path / "toy" / "file.bin"}
    assert len(server.asked) == 1
    files["npz"].write_bytes(b"changed")
    with pytest.raises(ValueError, match="changed or damaged"):
        locate(toy, cache=tmp_path)


def test_locate_gets_what_is_missing_of_several_files(server, tmp_path):
    server.files["/second.txt"] = server.files["/third.txt"] = b"2"
    paths = {"second.txt": "second.txt", "part/third.txt": "third.txt"}
    others = [Remote(name, f"{server.url}/{file}") for name, file in paths.items()]
    toy = data_set(remote(server), *others)
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "file.bin").write_bytes(b"placed by hand")
    locate(toy, cache=tmp_path, progress=False)
    assert (tmp_path / "toy" / "second.txt").read_bytes() == b"2"
    assert (tmp_path / "toy" / "part" / "third.txt").read_bytes() == b"2"
    assert (tmp_path / "toy" / "file.bin").read_bytes() == b"placed by hand"


def test_errors_say_what_to_put_where(server, tmp_path):
    gone = data_set(Remote("file.bin", f"{server.url}/gone"))
    with pytest.raises(ConnectionError) as caught:
        locate(gone, cache=tmp_path)
    text = str(caught.value)
    assert "404" in text and f"{server.url}/gone  ->  file.bin" in text
    assert str(tmp_path / "toy") in text and "path=" in text
    unreachable = data_set(Remote("file.bin", "http://127.0.0.1:9/file.bin"))
    with pytest.raises(ConnectionError, match="refused"):
        locate(unreachable, cache=tmp_path)
    with pytest.raises(FileNotFoundError, match="no such files"):
        locate(gone, cache=tmp_path, download=False)
    with pytest.raises(FileNotFoundError, match="none can be downloaded"):
        locate(data_set(), cache=tmp_path)
    with pytest.raises(FileNotFoundError, match="nothing is there"):
        locate(gone, path=tmp_path / "no such file")


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_BANDGNN_DATA", str(tmp_path))
    mutag = registry.find_dataset("tu:MUTAG")
    assert cache_folder(mutag, None) == tmp_path / "tu_MUTAG"
    monkeypatch.delenv("KERAS_BANDGNN_DATA")
    folder = cache_folder(registry.find_dataset("cora"), None)
    assert folder == Path("~/.cache/keras_bandgnn/cora").expanduser()


def test_pickles_are_refused_with_the_reason(tmp_path):
    (tmp_path / "train.pickle").write_bytes(b"cos\nsystem\n.")
    for path in (tmp_path, tmp_path / "train.pickle"):
        with pytest.raises(ValueError, match="train.pickle. It is a pickle"):
            load("zinc", path=path)


TU = {
    "SET/SET_A.txt": "1, 2\n2, 1\n",
    "SET/SET_graph_indicator.txt": "1\n1\n",
    "SET/SET_graph_labels.txt": "1\n",
}


def zipped(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path


def test_load_downloads_an_archive_and_unpacks_it(server, tmp_path, monkeypatch):
    archive = zipped(tmp_path / "SET.zip", TU)
    server.files["/SET.zip"] = archive.read_bytes()
    files = {"edges": "SET_A.txt", "indicator": "SET_graph_indicator.txt"}
    url = f"{server.url}/SET.zip"
    toy = Dataset(
        "toy", "", "", "", "", (Form("tu:read", files),), (Remote("SET.zip", url),)
    )
    monkeypatch.setitem(registry.DATASETS, "toy", toy)
    for _ in range(2):
        assert load("toy", cache=tmp_path / "cache", progress=False).num_nodes[0] == 2
    assert len(server.asked) == 1
    folders = [p for p in (tmp_path / "cache" / "toy").iterdir() if p.is_dir()]
    assert [f.name for f in folders] == [f"SET-{checksum(archive)[:12]}"]


def test_load_takes_an_archive(tmp_path):
    archive = zipped(tmp_path / "SET.zip", TU)
    cache = tmp_path / "cache"
    assert len(load("tu:SET", path=archive, cache=cache)) == 1
    assert len(load("tu:SET", path=tmp_path, cache=cache)) == 1


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "C:\\evil"])
def test_names_that_lead_out_are_refused(tmp_path, name):
    archive = zipped(tmp_path / "bad.zip", {"fine": "1", name: "2"})
    with pytest.raises(ValueError, match="outside of the folder"):
        unpack(archive, tmp_path / "into")
    assert list((tmp_path / "into").iterdir()) == []
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_are_refused(tmp_path, kind):
    path = tmp_path / "bad.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("link")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(ValueError, match="a link or device"):
        unpack(path, tmp_path / "into")


def test_a_truncated_archive_leaves_nothing(tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo("big")
        member.size = len(CONTENT)
        archive.addfile(member, io.BytesIO(CONTENT))
    path = tmp_path / "cut.tar.gz"
    path.write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
    with pytest.raises(ValueError, match="complete archive"):
        unpack(path, tmp_path / "into")
    assert list((tmp_path / "into").iterdir()) == []


def test_unknown_names_get_close_ones():
    with pytest.raises(ValueError, match="Did you mean 'bace'"):
        load("bacee")
    with pytest.raises(ValueError, match="load_varmisuse"):
        load("varmisuse")
    with pytest.raises(ValueError, match="several types of nodes"):
        load("ogb:ogbn-mag")
    with pytest.raises(ValueError, match="name of a data set"):
        load("tu:../../etc")
    with pytest.raises(ValueError, match="`split` to be one of"):
        load("cora", split="val")


def test_every_name_is_complete():
    names = registry.list_datasets()
    assert {"qm9", "zinc", "cora", "malnet_tiny", "ogb:ogbn-arxiv"} <= set(names)
    for name in set(names) - {"tu:<name>"}:
        dataset = registry.find_dataset(name)
        assert dataset.forms and dataset.licence and dataset.task and names[name]
        assert dataset.downloads, "files without an official address"
        for file in dataset.downloads:
            kind, _, digits = (file.checksum or "sha256:").partition(":")
            assert not digits or len(digits) == {"git": 40, "md5": 32}[kind]
