import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pytest
from test_flat import assert_same, make_graph

from keras_bandgnn import Graph
from keras_bandgnn.data import StoreWriter, files, open_store, write_store


@pytest.fixture(scope="module")
def graphs():
    return [make_graph(seed) for seed in range(23)]


@pytest.fixture
def store(tmp_path, graphs):
    metadata = {"relations": ["a", "b"], "k": np.int64(3)}
    path = tmp_path / "a.store"
    with write_store(path, iter(graphs), shard_size=5, metadata=metadata) as store:
        yield store


def all_bytes(directory):
    return {file.name: file.read_bytes() for file in directory.iterdir()}


@pytest.mark.parametrize("level", ["graph", "node", "edge"])
def test_round_trip(tmp_path, level):
    graphs = [make_graph(seed, level) for seed in range(7)]
    store = write_store(str(tmp_path / "s"), graphs, shard_size=3)
    for a, b in zip(store, graphs, strict=True):
        assert_same(a, b)


def test_random_access(store, graphs):
    assert len(store) == 23 and len(store.shards) == 5
    assert store.metadata == {"relations": ["a", "b"], "k": 3}
    for i in (0, 4, 5, 22, -1, -23, np.int32(7)):
        assert_same(store[i], graphs[i])
    assert [g.info["name"] for g in store[3:12:4]] == ["graph 3", "graph 7", "graph 11"]
    with pytest.raises(IndexError, match=r"\[-23, 23\).*Received: 23"):
        store[23]
    np.testing.assert_array_equal(store.num_nodes, [g.num_nodes for g in graphs])
    np.testing.assert_array_equal(store.num_edges, [g.num_edges for g in graphs])
    shard, row = store.locate([0, 5, -1])
    assert (shard.tolist(), row.tolist()) == ([0, 1, 4], [0, 0, 2])
    store.verify()


def test_take(store, graphs):
    for indices in ([22, 0, 7, 7, -1, 6], [1, 2], [0, 9, 20], []):
        for graph, i in zip(store.take(indices), indices, strict=True):
            assert_same(graph, graphs[i])
    assert store.take([]).spec() == store.features


def test_reading_copies_nothing(store):
    shard = store.shards[0]
    assert np.shares_memory(store[1].node["x"], shard.node["x"])
    before = pa.total_allocated_bytes()
    for graph in store:
        graph.senders.sum()
    assert pa.total_allocated_bytes() == before
    with pytest.raises(ValueError, match="read-only"):
        store[0].senders[...] = 0


def test_only_used_shards_are_mapped(store):
    opened = open_store(store.path)
    opened[7]
    assert [s is not None for s in opened.shards._mapped] == [0, 1, 0, 0, 0]


def test_close_and_pickle(store, graphs):
    graph = store[2]
    copy = pickle.loads(pickle.dumps(store))
    store.close()
    with pytest.raises(ValueError, match="the closed .* Open it again"):
        store[2]
    assert_same(graph, graphs[2])
    assert_same(copy[2], graphs[2])


def test_equal_graphs_give_equal_bytes(tmp_path, graphs):
    for name in "ab":
        write_store(tmp_path / name, graphs, shard_size=4)
    assert all_bytes(tmp_path / "a") == all_bytes(tmp_path / "b")


def test_empty_store(tmp_path):
    store = write_store(tmp_path / "s", [])
    assert len(store) == 0 and list(store) == [] and len(store.take([])) == 0


def test_overwrite(store, graphs):
    with pytest.raises(FileExistsError, match="an existing store. Pass overwrite=True"):
        write_store(store.path, graphs)
    # A store may even be rewritten from itself.
    write_store(store.path, (g for g in store[:2]), overwrite=True)
    assert len(open_store(store.path)) == 2
    assert [p.name for p in store.path.parent.iterdir()] == ["a.store"]


def test_never_overwrites_something_else(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("...")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match="other content"):
            write_store(tmp_path / "thesis", [], overwrite=overwrite)
    (tmp_path / "s.partial").mkdir()
    (tmp_path / "s.partial" / "chapter.txt").write_text("...")
    with pytest.raises(FileExistsError, match="Move it away"):
        StoreWriter(tmp_path / "s", fingerprint={}, restart=True)
    assert (tmp_path / "s.partial" / "chapter.txt").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_links_are_not_written_to(tmp_path, graphs):
    outside = tmp_path / "outside"
    outside.mkdir()
    progress = outside / "progress.jsonl"
    progress.write_text("kept")
    place = tmp_path / "place"
    place.mkdir()
    (place / "s.partial").symlink_to(outside)
    for write in (
        lambda: write_store(place / "s", graphs),
        lambda: StoreWriter(place / "s", fingerprint={}, restart=True),
    ):
        with pytest.raises(FileExistsError, match="s.partial .*a symbolic link"):
            write()
    (place / "s.partial").unlink()
    (place / "s.partial").mkdir()
    for name in ("progress.jsonl", "sizes.arrow", "shard-00000.arrow"):
        (place / "s.partial" / name).symlink_to(progress)
        with pytest.raises(FileExistsError, match="other content"):
            write_store(place / "s", graphs)
        (place / "s.partial" / name).unlink()
    (place / "t").symlink_to(outside)
    with pytest.raises(FileExistsError, match="t to be new .*a symbolic link"):
        write_store(place / "t", graphs, overwrite=True)
    assert progress.read_text() == "kept" and len(list(outside.iterdir())) == 1


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_kill_while_a_store_is_replaced(tmp_path, graphs, monkeypatch, step):
    path = tmp_path / "s"
    write_store(path, graphs[:2]).close()
    rename, calls = os.rename, []

    def kill(*paths):
        calls.append(paths)
        if len(calls) > step:
            raise Killed
        rename(*paths)

    def work():
        with StoreWriter(path, fingerprint={}, overwrite=True) as writer:
            for unit in range(writer.done, 2):
                writer.add(graphs[unit : unit + 3])
            return writer.finish()

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", kill)
        patch.setattr(files, "_remove", lambda path: None)
        with contextlib.suppress(Killed):
            work()
    # Before both renames the old store is there; afterwards the new one.
    with open_store(path) as store:
        assert len(store) == (6 if step == 2 else 2)
    assert len(work()) == 6
    assert [p.name for p in tmp_path.iterdir()] == ["s"]
    assert not (path / "progress.jsonl").exists()


def test_failed_write_leaves_nothing(tmp_path, graphs):
    with pytest.raises(ValueError, match="in unit 1, as in the earlier units"):
        write_store(tmp_path / "s", [*graphs[:3], Graph(1, [], [])], shard_size=3)
    with pytest.raises(ValueError, match="info of graph 0.*a value of type object"):
        write_store(tmp_path / "s", [make_graph(0, info={"x": object()})])
    with pytest.raises(ValueError, match="shard_size"):
        write_store(tmp_path / "s", [], shard_size=0)
    with pytest.raises(ValueError, match="at least one value per row"):
        write_store(tmp_path / "s", [Graph(1, [], [], node={"x": np.zeros((1, 0))})])
    assert list(tmp_path.iterdir()) == []


def test_swapped_arguments(tmp_path, graphs):
    for given in (graphs, str(tmp_path / "s")), (tmp_path / "s", tmp_path / "t"):
        with pytest.raises(ValueError, match=r"write_store\(path, graphs\). Received"):
            write_store(*given)
    assert not list(tmp_path.iterdir())


def test_missing_files(store, tmp_path):
    with pytest.raises(FileNotFoundError, match="no such directory. Check"):
        open_store(tmp_path / "none")
    (tmp_path / "none.partial").mkdir()
    with pytest.raises(FileNotFoundError, match="unfinished store at .*none.partial"):
        open_store(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="store.json.*directory without it"):
        open_store(tmp_path)
    (store.path / "shard-00003.arrow").unlink()
    with pytest.raises(FileNotFoundError, match="shard-00003.arrow.*no such file"):
        open_store(store.path)


@pytest.mark.parametrize("keep", [0, 100, -8])
def test_truncated_shard(store, keep):
    file = store.path / "shard-00001.arrow"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ValueError, match="shard-00001.arrow.*truncated or changed"):
        open_store(store.path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shard-00001.arrow", "to have sha256"),
        ("sizes.arrow", "to be a readable part"),
    ],
)
def test_foreign_bytes(store, name, message):
    file = store.path / name
    file.write_bytes(b"x" * file.stat().st_size)
    with pytest.raises(ValueError, match=f"{name} {message}"):
        open_store(store.path)[5]


def test_foreign_arrow_file(store):
    file = store.path / "sizes.arrow"
    batch = pa.record_batch([pa.array([1])], names=["x"])
    with pa.ipc.new_file(str(file), batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(ValueError, match="part of a graph store.*format=None"):
        open_store(store.path)


def test_changed_bytes_are_found_by_verify(store):
    file = store.path / "shard-00002.arrow"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(ValueError, match="shard-00002.arrow to have sha256"):
        open_store(store.path).verify()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"version": 3}, "version=3. Install a newer keras-bandgnn"),
        ({"format": "zip"}, "Received: format='zip'"),
        ({"units": None}, r"without \['units'\]"),
        ({"graphs": 22}, "to list 22 graphs"),
    ],
)
def test_descriptions_that_do_not_fit(store, change, message):
    file = store.path / "store.json"
    changed = {**json.loads(file.read_bytes()), **change}
    changed = {k: v for k, v in changed.items() if v is not None}
    file.write_text(json.dumps(changed))
    with pytest.raises(ValueError, match=message):
        open_store(store.path)
    file.write_text("{")
    with pytest.raises(ValueError, match="store.json to be JSON"):
        open_store(store.path)


def run_job(path, units, graphs, **options):
    with StoreWriter(path, fingerprint={"units": (1, 2)}, **options) as writer:
        for unit in range(writer.done, units):
            first = 3 * unit
            part = [] if unit == 2 else graphs[first : first + 3]
            writer.add(part, report={"first": first})
        return writer.finish()


def test_writer_with_reports_and_an_empty_unit(tmp_path, graphs):
    store = run_job(tmp_path / "s", 6, graphs)
    assert len(store) == 15 and len(store.shards) == 5
    assert [r["first"] for r in store.reports] == [0, 3, 6, 9, 12, 15]
    assert store.fingerprint == {"units": [1, 2]}
    assert_same(store[6], graphs[9])


def test_resume_at_every_point(tmp_path, graphs):
    expected = all_bytes(run_job(tmp_path / "whole", 4, graphs).path)
    for stop in range(4):
        path = tmp_path / f"stop{stop}"
        writer = StoreWriter(path, fingerprint={"units": [1, 2]})
        for unit in range(stop):
            part = [] if unit == 2 else graphs[3 * unit : 3 * unit + 3]
            writer.add(part, report={"first": 3 * unit})
        writer.close()
        # Rests of a unit that was being written when the job was killed.
        (writer.partial / f"shard-{stop:05d}.arrow.tmp").write_bytes(b"rest")
        (writer.partial / f"shard-{stop:05d}.arrow").write_bytes(b"rest")
        with open(writer.partial / "progress.jsonl", "ab") as file:
            file.write(b'{"file": "sha')
        assert all_bytes(run_job(path, 4, graphs).path) == expected
        with pytest.raises(ValueError, match="an open writer"):
            writer.add([])


def test_resume_after_the_last_step(tmp_path, graphs):
    expected = all_bytes(run_job(tmp_path / "whole", 4, graphs).path)
    (tmp_path / "whole").rename(tmp_path / "whole.partial")
    writer = StoreWriter(tmp_path / "whole", fingerprint={"units": [1, 2]})
    assert writer.done == 4
    assert all_bytes(writer.finish().path) == expected


def test_damaged_unit_is_written_again(tmp_path, graphs):
    writer = StoreWriter(tmp_path / "s", fingerprint={})
    writer.add(graphs[:2])
    writer.add(graphs[2:4])
    writer.close()
    (writer.partial / "shard-00001.arrow").write_bytes(b"short")
    with StoreWriter(tmp_path / "s", fingerprint={}) as writer:
        assert writer.done == 1 and writer.reports == [None]


def test_other_fingerprint(tmp_path, graphs):
    with StoreWriter(tmp_path / "s", fingerprint={"steps": 8}) as writer:
        writer.add(graphs[:1])
    with pytest.raises(
        ValueError, match=r"fingerprint.steps is 9, was 8.*restart=True"
    ):
        StoreWriter(tmp_path / "s", fingerprint={"steps": 9})
    with pytest.raises(ValueError, match="delete"):
        write_store(tmp_path / "s", graphs)
    with StoreWriter(tmp_path / "s", fingerprint={"steps": 9}, restart=True) as writer:
        assert writer.done == 0
        writer.add(graphs[:2])
        assert len(writer.finish()) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks there")
def test_one_writer_at_a_time(tmp_path):
    with StoreWriter(tmp_path / "s", fingerprint={}):
        with pytest.raises(RuntimeError, match="one job at a time"):
            StoreWriter(tmp_path / "s", fingerprint={})


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_killed_job_resumes_to_the_same_bytes(tmp_path):
    code = textwrap.dedent(
        """
        import sys, time
        sys.argv[0] = "bandgnn"  # which does not import Keras
        import numpy as np
        from keras_bandgnn import Graph
        from keras_bandgnn.data import StoreWriter

        path, stop = sys.argv[1], int(sys.argv[2])

        def unit(i):
            rng = np.random.default_rng(i)
            for n in rng.integers(1, 30, 4):
                ends = rng.integers(0, n, (2, 2 * n))
                yield Graph(n, *ends, node={"x": rng.random((n, 2))})
                if i == stop:
                    print("now", flush=True)
                    time.sleep(60)

        with StoreWriter(path, fingerprint={"seed": 0}) as writer:
            print("done", writer.done, flush=True)
            for i in range(writer.done, 6):
                writer.add(unit(i), report=i)
            writer.finish()
        """
    )

    def start(path, stop):
        command = [sys.executable, "-c", code, str(path), str(stop)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    with start(tmp_path / "killed", 3) as job:
        assert [job.stdout.readline() for _ in range(2)] == ["done 0\n", "now\n"]
        job.send_signal(signal.SIGKILL)
    assert not (tmp_path / "killed").exists()
    for name, done in (("killed", 3), ("whole", 0)):
        with start(tmp_path / name, -1) as job:
            assert job.communicate()[0] == f"done {done}\n"
        assert job.returncode == 0
    assert all_bytes(tmp_path / "killed") == all_bytes(tmp_path / "whole")
    assert open_store(tmp_path / "killed").reports == list(range(6))


def test_another_job_is_told_apart_by_the_fields_that_differ(tmp_path):
    one = {"files": 2, "options": {"steps": 4, "layers": [{"a": 1}, {"b": "x" * 999}]}}
    other = {
        "files": 2,
        "options": {"steps": 8, "layers": [{"a": 3}, {"b": "x" * 999}]},
    }
    with pytest.raises(KeyboardInterrupt):
        with StoreWriter(tmp_path / "s", fingerprint=one):
            raise KeyboardInterrupt
    with pytest.raises(ValueError, match="unfinished store") as caught:
        StoreWriter(tmp_path / "s", fingerprint=other)
    text = str(caught.value)
    assert "fingerprint.options.steps is 8, was 4; " in text
    assert "fingerprint.options.layers[0].a is 3, was 1" in text
    assert "xxx" not in text and "files" not in text
