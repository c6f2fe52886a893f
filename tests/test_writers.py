"""Every public writer names the file on a full disk and leaves what was there."""

import errno
import os

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.programs.linting.baseline import Baseline
from keras_bandgnn.training import SaveProgress
from tests.planning import machines
from tests.programs.linting.samples import result

GRAPHS = [
    kb.Graph(3, [0, 1], [1, 2], node={"kind": [1, 2, i % 4]}, label=i % 2)
    for i in range(4)
]


@pytest.fixture(scope="module")
def task():
    backbone = kb.models.GCNBackbone({"kind": 4}, 8)
    made = kb.models.GraphClassifier(backbone, 2)
    made.compile("adam")
    return made


def write_units(path):
    with kb.data.StoreWriter(path, fingerprint={}, overwrite=True) as writer:
        if not writer.done:
            writer.add(GRAPHS)
        writer.finish()


def save_progress(task, path):
    saving = SaveProgress(path)
    saving.set_model(task)
    saving.follow(
        kb.preprocessing.GraphLoader(GRAPHS, kb.preprocessing.StaticBatcher(1))
    )
    saving.restore(task, saving.loader)
    try:
        saving.save(1, 0)
    finally:
        saving.release()


def calibrate(path, monkeypatch):
    monkeypatch.setenv("KERAS_BANDGNN_DATA", str(path))
    machines.machine(machines.CPU).save()


def draw(path):
    pytest.importorskip("matplotlib")
    sizes = {name: np.arange(4) for name in ("nodes", "before", "after")}
    kb.plotting.plot_bandwidths(sizes, path / "sizes.png")


def remember(path):
    finding = result("x = bad_a\n", str(path / "a.py"))
    Baseline(path / "known.json").write([finding])


def write_programs(path):
    from keras_bandgnn.programs import program_graphs, write_varmisuse

    source = "def f(a, b):\n    c = a\n    return a + b + c\n"
    write_varmisuse(path / "a.json.gz", program_graphs(source, "a.py"))


def write_corpus(path):
    from examples.corpora.build import build_corpus
    from examples.corpora.distributions import Requirement

    items = [Requirement("iniconfig", None, "train")]
    build_corpus(path, items, installed=True, processes=1)


def save_ensemble(task, path):
    again = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 4}, 8), 2)
    kb.models.Ensemble([task, again]).save_to_preset(path)


def save_laplace(path):
    graphs = [kb.Graph(n, [], [], node={"kind": [0] * n}, label=n) for n in (1, 2, 3)]
    task = kb.models.GraphRegressor(kb.models.GCNBackbone({"kind": 4}, 8))
    task.adapt(task.loader(graphs))
    kb.models.LastLayerLaplace(task).fit(graphs).save_to_preset(path)


def export(task, path):
    if keras.backend.backend() != "torch":
        pytest.skip("one backend shows it; others need TensorFlow's converters")
    task.export(path, "torch", GRAPHS, verify=False)


# Modules that write, and what shows what they do: (task, path, monkeypatch).
WRITERS = {
    "data/store_writer.py": lambda t, p, m: kb.data.write_store(
        p, GRAPHS, overwrite=True
    ),
    "data/store_writer.py, pieces": lambda t, p, m: write_units(p),
    "programs/corpus_files.py": lambda t, p, m: write_corpus(p),
    "programs/varmisuse.py": lambda t, p, m: write_programs(p),
    "preprocessing/preprocessor.py": lambda t, p, m: (
        kb.preprocessing.GraphPreprocessor().save_to_preset(p)
    ),
    "saving/preset_files.py": lambda t, p, m: t.save_to_preset(p, "float16"),
    "programs/linting/baseline.py": lambda t, p, m: remember(p),
    "models/ensemble.py": lambda t, p, m: save_ensemble(t, p),
    "models/last_layer_laplace.py": lambda t, p, m: save_laplace(p),
    "models/presets.py": lambda t, p, m: t.backbone.save_to_preset(p),
    "models/distributed_model.py": lambda t, p, m: t.save(p / "task.keras"),
    "models/distributed_model.py, weights": lambda t, p, m: t.save_weights(
        p / "task.weights.h5"
    ),
    "serving/exporting.py": lambda t, p, m: export(t, p),
    "training/save_progress.py": lambda t, p, m: save_progress(t, p),
    "planning/cost.py": lambda t, p, m: calibrate(p, m),
    "plotting/style.py": lambda t, p, m: draw(p),
}


def contents(path):
    return {
        str(p.relative_to(path)): p.read_bytes()
        for p in sorted(path.rglob("*"))
        if p.is_file()
    }


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_named_and_harms_nothing(name, task, tmp_path, monkeypatch):
    write, path = WRITERS[name], tmp_path / "out"
    if name not in ("data/store_writer.py", "data/store_writer.py, pieces"):
        path.mkdir()
    write(task, path, monkeypatch)
    old = contents(path)
    assert old, "nothing was written"
    whole = sorted(p.name for p in tmp_path.iterdir())

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError) as caught:
            write(task, path, monkeypatch)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename.startswith(str(path))
    assert contents(path) == old
    # An unfinished store may stay, to be resumed.
    left = {p.name for p in tmp_path.iterdir()} - set(whole)
    assert left <= {"out.partial"}, left
    write(task, path, monkeypatch)
    assert set(contents(path)) == set(old)
    assert sorted(p.name for p in tmp_path.iterdir()) == whole


@pytest.mark.skipif(os.name != "posix", reason="limits of processes")
@pytest.mark.parametrize("limit", [1_000, 5_000, 9_000, 11_000])
def test_presets_above_a_limit_of_file_sizes(limit, task, tmp_path):
    import resource

    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(OSError, match=f"File too large: '.*{tmp_path.name}/out"):
            task.save_to_preset(tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())
