"""Files made to run code, or to read or write outside their folder: none succeeds."""

import io
import json
import os
import pickle
import stat
import tarfile
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

import keras_bandgnn.models  # noqa: F401 - registers classes
from keras_bandgnn import Graph
from keras_bandgnn.data import open_store, write_store
from keras_bandgnn.data.datasets.archives import unpack
from keras_bandgnn.data.datasets.pickle_arrays import read_pickle
from keras_bandgnn.data.weights_files import check_weights
from keras_bandgnn.saving import preset_files
from tests.fuzz.readers import all_readers, write
from tests.fuzz.readers_of_data import pickled_array
from tests.fuzz.readers_of_models import repair_store

RAN = "ran"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for an attack; afterwards nothing may have run or lie beside it."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret").write_text("secret")
    monkeypatch.chdir(tmp_path)
    yield inside
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inside", "secret"]
    assert (tmp_path / "secret").read_text() == "secret"
    assert not list(inside.rglob(RAN))


class Runs:
    """A pickle of it makes a file when it is loaded."""

    def __reduce__(self):
        return os.mkdir, (RAN,)


# === Pickles ===

_GLOBALS = [
    *("os system", "os mkdir", "__builtin__ eval", "builtins exec", "builtins getattr"),
    *("subprocess Popen", "importlib import_module", "pickle loads", "numpy load"),
    *("copyreg _reconstructor", "operator methodcaller", "functools partial"),
    *("scipy.sparse load_npz", "torch load", "keras.models load_model"),
    *("keras_bandgnn.data load", "numpy.core.multiarray x"),
]


def _pickles():
    for name in _GLOBALS:
        module, _, function = name.partition(" ")
        word = f"{module}\n{function}\n".encode()
        argument = b"U" + bytes([len(RAN)]) + RAN.encode() + b"\x85"
        yield f"reduce {name}", b"c" + word + argument + b"R"
        if name.startswith(("os", "builtins", "numpy ")):
            text = b"(U" + bytes([len(RAN)]) + RAN.encode()
            yield f"inst {name}", text + b"i" + word
            yield f"newobj {name}", b"c" + word + argument + b"\x81"
            short = [b"\x8c" + bytes([len(w)]) + w for w in word.split()]
            yield f"stack {name}", b"".join(short) + b"\x93" + argument + b"R"
            yield f"state {name}", b"c" + word + b")R}b"
    good = pickled_array(np.arange(3))
    yield "objects", good.replace(b"U\x02i8", b"U\x02O8")
    yield "global as value", b"cnumpy\nndarray\n"
    yield "persistent", b"U\x01aQ"
    yield "extension", b"\x82\x01"
    yield "another after it", good + b".cos\nsystem\nU\x03ran\x85R"
    yield "protocol 4", pickle.dumps(Runs(), 4)[2:-1]
    yield "text protocol", pickle.dumps(Runs(), 0)[:-1]


@pytest.mark.parametrize(
    "body", [pytest.param(body, id=name) for name, body in _pickles()]
)
def test_pickles(folder, body):
    path = folder / "a.pkl"
    path.write_bytes(b"\x80\x02" + body + b".")
    try:
        found = read_pickle(path)
    except ValueError:
        return
    # A name alone is text; it is never looked up.
    assert isinstance(found, np.ndarray | list | dict | str)


@pytest.mark.parametrize(
    "name", [name for name, r in all_readers().items() if "npz" in name]
)
def test_objects_in_npz_files(folder, name):
    """Each member in turn is an array of objects whose pickle runs code."""
    reader = all_readers()[name]
    sample = reader.files()
    ((file, data),) = sample.items()
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        members = {member: packed.read(member) for member in packed.namelist()}
    bad = io.BytesIO()
    np.save(bad, np.array([Runs()], object), allow_pickle=True)
    for attacked in members:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for member, content in members.items():
                content = bad.getvalue() if member == attacked else content
                archive.writestr(member, content)
        write({file: packed.getvalue()}, folder)
        try:
            reader.read(folder)
        except ValueError as error:
            assert file in str(error)
        assert not Path(RAN).exists()


# === Archives ===

_NAMES = [
    *("../x", "a/../../x", "/x", "..", "C:\\x", "..\\x", "a/..\\..\\x", "\\\\host\\x"),
    *("./../x", "~/x", "x\x00/../y", "../inside-x", "a" * 5000, "a\n/../../x"),
]


def _zip(path, names, mode=0, content=b"1"):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, content)


def _tar(path, entries):
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        for name, kind, target in entries:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            info.size = 1 if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(b"1"))


def _archives():
    for number, name in enumerate(_NAMES):
        yield f"zip {number}", "a.zip", lambda p, n=name: _zip(p, [n])
        entry = [(name.replace("\x00", "") or "x", tarfile.REGTYPE, "")]
        yield f"tar {number}", "a.tar.gz", lambda p, e=entry: _tar(p, e)
    kinds = {"symlink": tarfile.SYMTYPE, "hard link": tarfile.LNKTYPE}
    for word, kind in kinds.items():
        for target in ("/etc/passwd", "../../secret", "."):
            entries = [("a", kind, target), ("a/x", tarfile.REGTYPE, "")]
            yield f"{word} {target}", "a.tar", lambda p, e=entries: _tar(p, e)
    for word, kind in {"fifo": tarfile.FIFOTYPE, "device": tarfile.CHRTYPE}.items():
        yield word, "a.tar", lambda p, k=kind: _tar(p, [("a", k, "")])
    for word, mode in {"symlink": stat.S_IFLNK, "fifo": stat.S_IFIFO}.items():
        yield (
            f"zip {word}",
            "a.zip",
            lambda p, m=mode: _zip(p, ["a"], m | 0o777, b"../../secret"),
        )
    yield "twice", "a.zip", lambda p: _zip(p, ["a", "A", "a/b"])


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    "file, make", [pytest.param(f, m, id=name) for name, f, m in _archives()]
)
def test_archives(folder, file, make):
    make(folder / file)
    try:
        made = unpack(folder / file, folder / "cache")
    except (ValueError, OSError):
        assert not list((folder / "cache").rglob("x"))
        return
    # What has an odd name only lies within.
    for path in made.rglob("*"):
        assert not path.is_symlink() and path.resolve().is_relative_to(made.resolve())


# === Stores ===


def _store(folder):
    graphs = [Graph(2, [0], [1], label=i) for i in range(3)]
    write_store(folder / "s", graphs, shard_size=2).close()
    return folder / "s"


def _renamed(name):
    def change(store):
        path = store / "store.json"
        tree = json.loads(path.read_text())
        tree["units"][0]["file"] = name
        path.write_text(json.dumps(tree))

    return change


def _linked(name):
    def change(store):
        (store / name).replace(store.parent / f"copy-{name}")
        (store / name).symlink_to(f"../copy-{name}")

    return change


def _changed_ids(value):
    def change(store):
        import pyarrow as pa

        path = store / "shard-00000.arrow"
        base = pa.py_buffer(path.read_bytes())
        with pa.ipc.open_file(base) as file:
            column = file.get_batch(0).column("receivers")
        data = bytearray(base.to_pybytes())
        at = column.values.buffers()[1].address - base.address
        data[at : at + 4] = value.to_bytes(4, "little", signed=True)
        path.write_bytes(data)
        names = ("store.json", path.name)
        files = {name: (store / name).read_bytes() for name in names}
        write(repair_store(files), store)

    return change


_STORES = {
    **{
        f"name {name!r}": _renamed(name)
        for name in (
            *(
                "../secret",
                "/etc/passwd",
                "..",
                ".",
                "",
                "a/b",
                "..\\x",
                "C:x",
                "a\x00",
            ),
            *(".hidden", "shard-00001.arrow", 5, ["x"], "store.json/../x"),
        )
    },
    **{
        f"link {name}": _linked(name)
        for name in ("shard-00000.arrow", "sizes.arrow", "store.json")
    },
    **{f"receiver {value}": _changed_ids(value) for value in (2, -1, 10**9)},
}


@pytest.mark.parametrize("change", _STORES.values(), ids=_STORES)
def test_stores(folder, change):
    store = _store(folder)
    change(store)
    with pytest.raises((ValueError, OSError), match="Expected .*Received"):
        with open_store(store) as found:
            list(found)


# === Presets ===


def _entry(module, kind, registered=None, **config):
    return {
        "module": module,
        "class_name": kind,
        "config": config,
        "registered_name": registered,
    }


_CLASSES = [
    _entry("keras.layers", "Lambda", function="x"),
    _entry("keras.src.layers.core.lambda_layer", "Lambda"),
    _entry("keras.layers", "StringLookup", vocabulary="/etc/passwd"),
    *(
        _entry(module, name)
        for module, name in (
            *(("keras.layers", "TFSMLayer"), ("keras.layers", "TorchModuleWrapper")),
            *(("keras.layers", "Pipeline"), ("os", "system"), ("builtins", "eval")),
            *(("keras.models", "load_model"), ("keras.utils", "get_file")),
            *(("keras_bandgnn.data", "load"), ("keras_bandgnn.cli.main", "command")),
            *(("keras_bandgnn.serving", "ExportedModel"), ("torch.nn", "Module")),
        )
    ),
    *(
        {"module": "builtins", "class_name": "function", "config": name}
        for name in ("eval", "os.system", "keras.utils.get_file", "__class__", "x>y")
    ),
    *({"class_name": n, "config": {}} for n in ("__lambda__", "__tensor__", "Lambda")),
    {"module": None, "class_name": "__numpy__", "config": {"value": [1]}},
    _entry("keras.layers", "Dense", "other>Dense"),
    _entry("keras.layers", "Lambda", "keras_bandgnn>GGNNBackbone"),
    _entry("keras.layers.Dense.__init__", "__globals__"),
    {"class_name": ["Lambda"], "config": {}},
    {"class_name": "Dense", "module": {"x": 1}, "config": {}},
]


@pytest.mark.parametrize("entry", _CLASSES, ids=lambda e: str(e["class_name"]))
@pytest.mark.parametrize("wrap", [lambda e: e, lambda e: {"x": [{"config": [e]}]}])
def test_classes_in_presets(folder, entry, wrap):
    path = folder / "config.json"
    path.write_text(json.dumps(wrap(entry)))
    with pytest.raises(ValueError, match="config.json to name classes.*bring code"):
        preset_files.read(path)


@pytest.mark.parametrize(
    "entry",
    [
        _entry("keras", "DTypePolicy", name="float32"),
        _entry("keras.initializers", "GlorotUniform"),
        _entry("keras.optimizers.schedules", "CosineDecay"),
        _entry("keras.layers", "Dense", units=3),
        _entry("keras_bandgnn.models", "GGNNBackbone", "keras_bandgnn>GGNNBackbone"),
        {"class_name": "RCMKCompile", "config": {}},
        {"module": "builtins", "class_name": "function", "config": "relu"},
    ],
    ids=lambda e: e["class_name"],
)
def test_classes_that_hold_data(folder, entry):
    path = folder / "config.json"
    path.write_text(json.dumps({"x": entry}))
    assert preset_files.read(path) == {"x": entry}


def test_classes_that_the_user_registered(folder):
    import keras

    path = folder / "config.json"
    entry = _entry("mine", "Mine", "attacks>Mine")
    path.write_text(json.dumps(entry))
    with pytest.raises(ValueError, match="registered here"):
        preset_files.read(path)

    @keras.saving.register_keras_serializable("attacks")
    class Mine(keras.layers.Layer):
        pass

    assert preset_files.read(path) == entry and Mine


def _external_link(file):
    file["a"] = h5py.ExternalLink("/etc/passwd", "/")


def _relative_link(file):
    file["a"] = h5py.ExternalLink("../secret", "/")


def _soft_link(file):
    file["a"] = h5py.SoftLink("/b")


def _external_values(file):
    file.create_dataset("a", (6,), "u1", external=[("../secret", 0, 6)])


def _virtual(file):
    layout = h5py.VirtualLayout((3,), "f4")
    layout[...] = h5py.VirtualSource("../secret", "x", (3,))
    file.create_virtual_dataset("a", layout)


def _huge(file):
    file.create_dataset("a", (2**40,), "f4", chunks=(1,))


def _cycle(file):
    group = file.create_group("a/b")
    group["c"] = file["a"]


def _not_finite(file):
    file["a"] = np.array([1, np.nan], "f4")


def _too_large(file):
    # Infinite once it is the float32 of a weight.
    file["a"] = np.array([1, 1e300])


def _text(file):
    file["a"] = "text"


def _structure(file):
    file["a"] = np.zeros(2, [("x", "f4"), ("y", "i4")])


def _packed(file):
    file.create_dataset("a", data=np.zeros(10**6, "f4"), compression="gzip")


def _reference(file):
    file["a"] = np.array([file.ref], h5py.ref_dtype)


_WEIGHTS = [
    *(_external_link, _relative_link, _soft_link, _external_values, _virtual, _huge),
    *(_cycle, _not_finite, _too_large, _text, _structure, _packed, _reference),
]


@pytest.mark.parametrize("make", _WEIGHTS, ids=lambda f: f.__name__)
def test_weights(folder, make):
    path = folder / "model.weights.h5"
    with h5py.File(path, "w") as file:
        file["b"] = np.ones(3, "f4")
        make(file)
    with pytest.raises(ValueError, match="model.weights.h5.*Received"):
        check_weights(path)


# === Training and searches ===


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "a/b", "..", 5, None])
def test_progress_that_names_other_files(folder, name):
    from keras_bandgnn.training import SaveProgress

    loader = {"epoch": 0, "batch": 1}
    tree = {"weights": name, "loader": loader, "seeds": []}
    (folder / "progress.json").write_text(json.dumps(tree))
    saver = SaveProgress(folder)
    for use in (saver.saved, saver.clear):
        with pytest.raises(ValueError, match="damaged or incomplete"):
            use()
