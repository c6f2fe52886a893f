"""Limits of readers of data, and files that single readers must refuse."""

import gzip
import io
import json
import os
import struct
import tarfile
import tracemalloc
import zipfile

import numpy as np
import pytest

from keras_bandgnn.data import Limits, load
from keras_bandgnn.data.datasets.archives import unpack
from keras_bandgnn.data.datasets.download import verify
from keras_bandgnn.data.datasets.parts import all_pairs
from keras_bandgnn.data.datasets.pickle_arrays import read_pickle
from keras_bandgnn.data.reading import (
    open_npz,
    parse_json,
    read_bytes,
    read_json,
    read_text,
    reading,
)
from keras_bandgnn.programs import read_varmisuse
from tests.fuzz import readers_of_data
from tests.fuzz.mutators import BOMB, DEEP, header, npy, zipped

READERS = {reader.name: reader for reader in readers_of_data.readers()}


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def test_an_array_of_80_gib_is_not_made(tmp_path):
    body = npy(np.zeros(4))
    path = tmp_path / "a.npz"
    path.write_bytes(zipped({"x.npy": header((10_737_418_240,)) + body[128:]}))
    tracemalloc.start()
    message = (
        r"a.npz to have a member 'x' .*\(10737418240,\).*85,899,345,920 bytes, but"
    )
    with open_npz(path) as arrays, pytest.raises(ValueError, match=message):
        arrays.load("x")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_members_of_npz(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(
        path, x=np.arange(6).reshape(2, 3), ptr=[0, 1, 2], t=["a"], w=[0.5, np.nan]
    )
    with open_npz(path) as arrays:
        assert arrays.take("x", "integers", (2, None)).tolist() == [
            [0, 1, 2],
            [3, 4, 5],
        ]
        assert arrays.counts("ptr", 2, "x").tolist() == [1, 1]
        assert arrays.take("w", "numbers", (None,), missing=True)[0] == 0.5
        for call, message in (
            (lambda: arrays.load("y"), "a.npz to have a member 'y'.*members x, ptr"),
            (lambda: arrays.take("w", "numbers", (2,)), r"a.npz: .*w\[1\]=nan"),
            (lambda: arrays.take("x", "integers", (2, 4)), r"shape \[2, 4\]"),
            (lambda: arrays.take("t", "numbers", (None,)), "of numbers"),
            (lambda: arrays.take("w", "integers", (None,)), "'w' of integers"),
            (lambda: arrays.counts("ptr", 3, "x"), "ascend from 0 to 3"),
        ):
            with pytest.raises(ValueError, match=f"(?s){message}"):
                call()
    path.write_bytes(zipped({"x.npy": b"", "y.npy": b""}).replace(b"y.npy", b"x.npy"))
    with pytest.raises(ValueError, match="a.npz to have members of distinct names"):
        with open_npz(path):
            pass


def test_what_a_small_file_unpacks_to_is_limited(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(BOMB)
    with pytest.raises(ValueError, match=r"a.txt.gz .*Limits\(ratio=\d+\)"):
        read_bytes(path)
    with Limits(ratio=2000):
        assert len(read_bytes(path)) == 80 << 20
    with Limits(array_bytes=1000), pytest.raises(ValueError, match="array_bytes="):
        read_bytes(write(tmp_path, {"b": bytes(2000)}) / "b")
    assert Limits.current() == Limits()
    with pytest.raises(ValueError, match="`ratio` to be at least 1"):
        Limits(ratio=0)


def test_limits_of_load(tmp_path):
    files = READERS["archive .zip"].files()["SET.zip"]
    with zipfile.ZipFile(io.BytesIO(files)) as packed:
        members = {name: packed.read(name) for name in packed.namelist()}
    path = tmp_path / "SET.zip"
    path.write_bytes(zipped({**members, "SET/more.txt": bytes(80 << 20)}))
    options = {"path": path, "cache": tmp_path / "cache", "progress": False}
    with pytest.raises(ValueError, match=r"SET.zip to need at most 67,108,864 bytes"):
        load("tu:SET", **options)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert len(load("tu:SET", limits=Limits(ratio=5000), **options))
    with pytest.raises(ValueError, match="at most 2 members"):
        load("tu:SET", limits=Limits(members=2), path=path, cache=tmp_path / "other")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a/b.txt", "a/b.txt"], "a name that another file has"),
        (["a/b.txt", "A/B.TXT"], "ignoring case"),
        (["a", "a/b"], "a name that another file has"),
        (["a/b", "a"], "a name that another file has"),
        ([""], "an empty name|complete archive"),
        (["."], "an empty name"),
        (["a" * 300], "a name above 255 bytes"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_in_archives(tmp_path, names, message):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as packed:
        for name in names:
            packed.writestr(zipfile.ZipInfo(name), b"1")
    with pytest.raises(ValueError, match=f"a.zip to .*({message})"):
        unpack(path, tmp_path / "out")
    assert not any((tmp_path / "out").rglob("*"))


def test_sparse_members_are_refused(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as packed:
        member = tarfile.TarInfo("zeros")
        member.type = tarfile.GNUTYPE_SPARSE
        packed.addfile(member)
    with pytest.raises(ValueError, match="a.tar .*('zeros', a sparse file|whole)"):
        unpack(path, tmp_path / "out")


def test_an_empty_checksum(tmp_path):
    write(tmp_path, {"a": b"1", "a.sha256": b""})
    with pytest.raises(ValueError, match="a.sha256 to begin with the SHA-256 of a"):
        verify(tmp_path / "a")


@pytest.mark.parametrize("read", [read_json, read_varmisuse], ids=["json", "varmisuse"])
def test_json_nested_too_deeply(tmp_path, read):
    path = write(tmp_path, {"a.json": DEEP + b"]" * 100_000}) / "a.json"
    with pytest.raises(ValueError, match="a.json.*nested too deeply|a.json.*JSON"):
        list(read(path))
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(DEEP)


def test_text_that_is_none(tmp_path):
    path = write(tmp_path, {"a.txt": b"one\ntwo\n\xff"}) / "a.txt"
    with pytest.raises(ValueError, match="a.txt to be UTF-8 text.*line 3"):
        read_text(path)
    with pytest.raises(ValueError, match="to be a file. Received: a folder"):
        read_text(tmp_path)
    with pytest.raises(FileNotFoundError, match="Expected a file at .*none"):
        read_text(tmp_path / "none")


@pytest.mark.parametrize(
    "error",
    [KeyError("y"), IndexError(1), TypeError("x"), EOFError(), OverflowError("big")]
    + [
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        RecursionError(),
        ZeroDivisionError(),
    ]
    + [
        zipfile.BadZipFile("bad"),
        struct.error("bad"),
        ValueError("no file"),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_net(tmp_path, error):
    with pytest.raises(ValueError, match=f"(?s)Expected {tmp_path}/a .*Received: "):
        with reading(tmp_path / "a", tmp_path / "b"):
            raise error


def test_the_net_lets_pass(tmp_path):
    path = tmp_path / "a"
    for error, message in (
        (ValueError("Expected 1. Received: 2."), f"{path}: Expected 1. Received: 2."),
        (ValueError(f"Expected {path} to be 1."), f"Expected {path} to be 1."),
        (ImportError("no rdkit"), "no rdkit"),
        (OSError(28, "No space left on device"), f"Expected {path} to be read and wri"),
        (
            OSError(13, "Permission denied", "/x"),
            f"Expected /x, for {path}, to be read",
        ),
    ):
        with pytest.raises(type(error), match=message):
            with reading(path):
                raise error


def test_a_matrix_that_does_not_fit_its_pointers(tmp_path):
    """The parts are compared before SciPy, whose loops trust them, sees them."""
    arrays = dict(
        np.load(
            io.BytesIO(readers_of_data.gnn_benchmark_npz().popitem()[1]),
            allow_pickle=True,
        )
    )
    path = tmp_path / "ms_academic_cs.npz"
    plain = {k: v for k, v in arrays.items() if v.dtype.kind != "O"}
    rows = len(plain["labels"])
    for name, value, message in (
        ("attr_shape", [50_000_000, 2], "attr_shape"),
        ("attr_indptr", [0, *[2**30] * rows], "'attr_indptr' of pointers"),
        ("attr_indices", plain["attr_indices"] + 2**30, "columns of attr in"),
        ("adj_indptr", plain["adj_indptr"][::-1].copy(), "'adj_indptr' of pointers"),
        ("adj_indices", plain["adj_indices"] - 5, "edges between nodes in"),
    ):
        np.savez(path, **{**plain, name: np.asarray(value)})
        with pytest.raises(ValueError, match=f"(?s)ms_academic_cs.npz.*{message}"):
            load("coauthor_cs", path=path)


def test_ids_of_2_tib_in_planetoid(tmp_path):
    files = readers_of_data.planetoid()
    (test,) = (name for name in files if name.endswith("test.index"))
    text = files[test].decode().split()
    files[test] = "\n".join([str(2**38), *text[1:]]).encode()
    write(tmp_path, files)
    with pytest.raises(ValueError, match="test.index to have 3 distinct ids"):
        load(test.split(".")[1], path=tmp_path)


def test_one_list_many_times_in_a_pickle(tmp_path):
    ends = b"](" + b"K\x01" * 1000 + b"eq\x01"
    body = (
        b"}(K\x00"
        + ends
        + b"".join(b"K" + bytes([i]) + b"h\x01" for i in range(1, 250))
    )
    files = readers_of_data.planetoid()
    (graph,) = (name for name in files if name.endswith(".graph"))
    files[graph] = b"\x80\x02" + body + b"u."
    write(tmp_path, files)
    with pytest.raises(ValueError, match="graph to hold a byte or more for each edge"):
        load(graph.split(".")[1], path=tmp_path)


def test_a_pickled_matrix_is_checked_before_scipy_sees_it(tmp_path):
    body = readers_of_data.pickled_matrix(np.eye(3))
    path = tmp_path / "a.pkl"
    path.write_bytes(
        b"\x80\x02"
        + body.replace(struct.pack("<4i", 0, 1, 2, 3), struct.pack("<4i", 0, 9, 2, 3))
        + b"."
    )
    with pytest.raises(
        ValueError, match="a.pkl to be a complete pickle.*rows do not fit"
    ):
        read_pickle(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"compound": "Ag1000000000"}, "1000000000 atoms, 2 positions"),
        ({"compound": "Xx2"}, "the element 'Xx'"),
        ({"geometry": [4, 4, 4, 10, 10, 170]}, "impossible angles"),
        ({"geometry": [4, 4, 0, 60, 60, 60]}, "the geometry"),
        ({"enthalpy_formation_atom": float("inf")}, "a target of inf"),
        ({"auid": [["x"]], "compound": None}, "x"),
    ],
)
def test_entries_of_aflow(tmp_path, change, message):
    name, content = readers_of_data.aflow_json().popitem()
    entries = json.loads(content)
    entries[0] |= change
    path = write(tmp_path, {name: json.dumps(entries).encode()}) / name
    with pytest.raises(ValueError, match=f"{name}.*{message}"):
        load("aflow", path=path)


@pytest.mark.parametrize(
    ("split", "text"), [("train", "-1\n"), ("valid", "99\n"), ("test", "0\n0\n")]
)
@pytest.mark.parametrize("level", ["graphs", "nodes"])
def test_splits_of_ogb(tmp_path, level, split, text):
    files = getattr(readers_of_data, f"ogb_{level}")()
    (name,) = (name for name in files if name.endswith(f"{split}.csv.gz"))
    files[name] = gzip.compress(text.encode())
    write(tmp_path, files)
    data_set = "ogb:ogbg-molhiv" if level == "graphs" else "ogb:ogbn-arxiv"
    with pytest.raises(
        ValueError, match=rf"{split}.csv.gz to have distinct ids in \[0"
    ):
        load(data_set, path=tmp_path)


def test_names_in_lists_of_malnet(tmp_path):
    files = readers_of_data.malnet()
    (name,) = (name for name in files if name.endswith("train.txt"))
    files[name] = b"../../secret\n"
    write(tmp_path, files)
    with pytest.raises(ValueError, match="train.txt to list names .*secret"):
        load("malnet_tiny", path=tmp_path)


def test_all_pairs_are_limited():
    ends = np.array([0]), np.array([1]), np.array([1])
    with Limits(array_bytes=47), pytest.raises(ValueError, match="all pairs of nodes"):
        all_pairs(np.array([3]), np.array([1]), *ends)
    loop = np.array([0]), np.array([0]), np.array([1])
    with pytest.raises(ValueError, match="Expected bonds between two nodes"):
        all_pairs(np.array([3]), np.array([1]), *loop)


def test_a_target_that_is_no_number(tmp_path):
    pytest.importorskip("rdkit")
    (tmp_path / "zinc.csv").write_text("smiles,y,z\nCC,1,1\nCO,x,2\nCN,3,3\n")
    with pytest.raises(ValueError, match="zinc.csv to have numbers in the column 'y'"):
        load("zinc", path=tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_pipes_are_refused(tmp_path):
    os.mkfifo(tmp_path / "questions.npz")
    with pytest.raises(
        ValueError, match="questions.npz to be a file. Received: a folder, a"
    ):
        load("questions", path=tmp_path / "questions.npz")
