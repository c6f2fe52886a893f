"""Presets of the library, and presets that travel."""

import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.models import Backbone, Task, list_presets
from keras_bandgnn.saving import preset_hub, preset_paths
from keras_bandgnn.saving.preset_files import count_parameters

pytestmark = pytest.mark.every_backend("pinned")

GOLDEN = Path(__file__).with_name("preset_outputs.json")
HOME = preset_paths.home()
SOURCE = "def area(width, height):\n    half = width / 2\n    return half * height\n"


def assert_close(rows, expected, tolerance=1e-5):
    for row, wanted in zip(rows, expected, strict=True):
        row, wanted = (keras.ops.convert_to_numpy(v) for v in (row, wanted))
        np.testing.assert_allclose(row, wanted, rtol=tolerance, atol=tolerance)


def molecules():
    rng = np.random.default_rng(0)
    for size in (3, 5, 4):
        line = 1.2 * np.arange(size)[:, None] * [0.8, 0.5, 0.3]
        yield kb.Graph(
            size,
            [],
            [],
            node={
                "atomic_number": rng.choice([1, 6, 7, 8], size),
                "position": line + 0.2 * rng.normal(size=(size, 3)),
            },
        )


def crystals():
    for molecule in molecules():
        # No two distances are equal: neighbours have one order.
        cell = np.array([[5.1, 0.3, 0.2], [0.1, 5.9, 0.4], [0.5, 0.2, 6.7]])
        yield molecule.replace(context={"cell": cell, "pbc": np.ones(3, bool)})


def networks(width):
    rng = np.random.default_rng(1)
    for size in (9, 6):
        ring = np.arange(size)
        ends = np.concatenate([ring, (ring + 1) % size, ring[: size // 2]])
        others = np.concatenate([(ring + 1) % size, ring, (ring[: size // 2] + 3)])
        others %= size
        feature = rng.normal(size=(size, width)).astype("float32")
        yield kb.Graph(size, ends, others, node={"feature": feature})


def labelled_networks(inputs, num_edge_types):
    """Graphs with ids of nodes and types of edges."""
    rng = np.random.default_rng(2)
    for graph in networks(1):
        node = {
            name: rng.integers(0, spec["ids"], graph.num_nodes)
            for name, spec in inputs.items()
        }
        types = rng.integers(0, num_edge_types - 1, len(graph.senders))
        yield graph.replace(node=node, edge_type=types)


def drawn_ids(rng, spec, rows):
    """Ids that an input takes, in columns if it has columns."""
    if "ids" in spec:
        return rng.integers(0, spec["ids"], rows)
    return rng.integers(0, spec["columns"], (rows, len(spec["columns"])))


def featured_networks(backbone):
    """Graphs with ids of nodes and of edges."""
    rng = np.random.default_rng(3)
    made = ("random_walk",)  # Layers of the preprocessor add them.
    for graph in networks(1):
        edges = len(graph.senders)
        node, edge = (
            {n: drawn_ids(rng, s, rows) for n, s in inputs.items() if n not in made}
            for inputs, rows in (
                (backbone.encoder.inputs, graph.num_nodes),
                (backbone.get_config()["edge_inputs"], edges),
            )
        )
        types = rng.integers(0, backbone.num_edge_types, edges)
        yield graph.replace(node=node, edge=edge, edge_type=types)


def graphs_for(task):
    if isinstance(task, kb.models.NodeSelector):
        from keras_bandgnn.programs.python_source import program_graphs

        return program_graphs(SOURCE)
    if isinstance(task, kb.models.BugLocalizer):
        from keras_bandgnn.programs import function_graph

        return [function_graph(SOURCE)]
    if isinstance(task, kb.models.NodeClassifier):
        (spec,) = (s for n, s in task.backbone.encoder.inputs.items() if n == "feature")
        return list(networks(spec["features"]))
    if isinstance(task.backbone, kb.models.GraphormerBackbone):
        backbone = task.backbone
        return list(labelled_networks(backbone.own_inputs, backbone.num_edge_types))
    if isinstance(task.backbone, kb.models.MessagePassingBackbone):
        return list(featured_networks(task.backbone))
    layers = task.preprocessor.graph_layers
    periodic = any(isinstance(x, kb.preprocessing.KNearestGraph) for x in layers)
    return list(crystals() if periodic else molecules())


def fill(task):
    """Weights that are the same everywhere."""
    for number, weight in enumerate(task.backbone.weights + task.head.weights):
        rng = np.random.default_rng(number)
        shape = tuple(weight.shape)
        scale = 0.3 if len(shape) < 2 else 0.7 / np.sqrt(np.prod(shape[:-1]))
        weight.assign(scale * rng.standard_normal(shape, "float32"))


def outputs(name):
    trained = (HOME / name / preset_paths.WEIGHTS).is_file()
    task = Task.from_preset(name, load_weights=trained)
    if not trained:
        fill(task)
    if isinstance(task, kb.models.LinkPredictor):
        count = task.backbone.encoder.inputs["id"]["ids"]
        graph = kb.Graph(count, [], [], node={"id": np.arange(count)})
        pairs = [[i, 7 * i + 1, i % 5] for i in range(8)]
        return task, [task.predict(graph, pairs, verbose=0).tolist()]
    judges = isinstance(task, kb.models.BugLocalizer)
    if judges:
        # Calibrated, all rewrites would be within the tolerance of 0.
        task.calibration = None
    predict = task.rewrite_probabilities if judges else task.predict
    values = predict(graphs_for(task))
    return task, [np.ravel(v)[:8].tolist() for v in values]


@pytest.mark.release(elsewhere=True)
@pytest.mark.parametrize("name", list_presets())
def test_outputs_are_pinned(name):
    task, values = outputs(name)
    metadata = json.loads((HOME / name / "metadata.json").read_text())
    assert count_parameters(task) == metadata["parameter_count"]
    golden = json.loads(GOLDEN.read_text())[name]
    for found, wanted in zip(values, golden, strict=True):
        scale = max(1.0, np.abs(wanted).max())
        np.testing.assert_allclose(found, wanted, atol=1e-5 * scale)


def test_every_architecture_of_the_papers_is_there():
    assert set(list_presets()) >= {
        "ggnn_varmisuse",
        "schnet_qm9",
        "schnet_aflow",
        "mpeu_small_qm9",
        "mpeu_small_aflow",
        "mpeu_qm9",
        "mpeu_aflow",
        "painn_qm9",
        "painn_aflow",
        "graphormer_slim",
        "graphormer_large",
        "gt",
        "gcn",
        "gat",
    }
    for name in list_presets():
        card = (HOME / name / "README.md").read_text()
        assert card.startswith("---\nlibrary_name: keras-bandgnn")
        assert f'from_preset("{name}"' in card


def small_task(**options):
    backbone = kb.models.SchNetBackbone((1, 6, 7, 8, 9), 8, num_steps=1, **options)
    layers = [kb.preprocessing.FullyConnectedGraph()]
    return kb.models.GraphRegressor(
        backbone, preprocessor=kb.preprocessing.GraphPreprocessor(layers)
    )


OTHER = """
import sys
import types
import keras
import numpy as np
from test_presets import molecules
from keras_bandgnn.models import Task
task = Task.from_preset(sys.argv[1])
print(*[float(v[0]) for v in task.predict(list(molecules()))])
trained = keras.saving.load_model(sys.argv[2])
assert isinstance(trained.optimizer, keras.optimizers.AdamW)
trained.fit([g.replace(label=1.0) for g in molecules()], epochs=1, verbose=0)
"""


@pytest.mark.release
def test_another_backend_reads_what_this_one_wrote(tmp_path):
    backends = ["jax", "tensorflow", "torch"]
    place = backends.index(keras.backend.backend())
    others = (backends[place + 1 :] + backends[:place])[:2]
    found = [b for b in others if importlib.util.find_spec(b)]
    if not found:
        pytest.skip("needs a second backend")
    task = small_task()
    fill(task)
    task.save_to_preset(tmp_path / "preset")
    graphs = [graph.replace(label=1.0) for graph in molecules()]
    trained = small_task()
    trained.compile(keras.optimizers.AdamW(1e-3))
    trained.fit(graphs, epochs=1, verbose=0)
    trained.save(tmp_path / "trained.keras")
    path = [str(Path(__file__).parent), *(p for p in sys.path if p)]
    done = subprocess.run(
        [sys.executable, "-c", OTHER]
        + [str(tmp_path / "preset"), str(tmp_path / "trained.keras")],
        env={
            **os.environ,
            "KERAS_BACKEND": found[0],
            "PYTHONPATH": os.pathsep.join(path),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    wanted = [float(v[0]) for v in task.predict(list(molecules()))]
    assert_close(np.array(done.stdout.split(), float), wanted)


def test_half_precision_files(tmp_path):
    task = small_task()
    fill(task)
    task.save_to_preset(tmp_path / "full")
    task.save_to_preset(tmp_path / "half", weights="float16")
    for name in ("model.weights.h5", "task.weights.h5"):
        kinds = []
        with h5py.File(tmp_path / "half" / name) as file:
            file.visititems(
                lambda _, item, kinds=kinds: kinds.append(
                    str(getattr(item, "dtype", "float16"))
                )
            )
        assert set(kinds) == {"float16"}
    again = Task.from_preset(tmp_path / "half")
    for weight, rounded in zip(task.weights, again.weights, strict=True):
        assert rounded.dtype == weight.dtype
        if rounded.dtype != "float32":
            continue
        wanted = np.asarray(keras.ops.convert_to_numpy(weight), "float16")
        assert_close([rounded], [wanted.astype("float32")])
    task.backbone.weights[0].assign(task.backbone.weights[0] * 0 + 1e6)
    with pytest.raises(ValueError, match="weights='float32'"):
        task.save_to_preset(tmp_path / "half", weights="float16")
    # The preset that was there is whole.
    Task.from_preset(tmp_path / "half")


def test_quantised_weights_are_made_after_loading(tmp_path):
    task = small_task()
    task.save_to_preset(tmp_path / "p")
    task.quantize("int8")
    with pytest.raises(ValueError, match="Save the preset first"):
        task.save_to_preset(tmp_path / "q")
    assert not (tmp_path / "q").exists()
    again = Task.from_preset(tmp_path / "p")
    again.quantize("int8")
    graphs = list(molecules())
    assert_close(again.predict(graphs), task.predict(graphs))


def test_overrides(tmp_path):
    task = small_task()
    task.save_to_preset(tmp_path / "p")
    graphs = list(molecules())
    mixed = Task.from_preset(tmp_path / "p", dtype="mixed_bfloat16")
    assert mixed.backbone.compute_dtype == "bfloat16"
    assert_close(mixed.predict(graphs), task.predict(graphs), 0.05)
    with pytest.raises(ValueError, match="leave the shapes of the weights"):
        Task.from_preset(tmp_path / "p", backbone={"hidden_dim": 16})
    wider = Task.from_preset(tmp_path / "p", False, backbone={"hidden_dim": 16})
    assert wider.backbone.hidden_dim == 16
    with pytest.raises(ValueError, match="Expected arguments of SchNetBackbone"):
        Task.from_preset(tmp_path / "p", backbone={"hidden": 16})
    with pytest.raises(ValueError, match="Expected arguments of GraphRegressor"):
        Task.from_preset(tmp_path / "p", num_classes=16)
    # A new head over the same backbone.
    two = Task.from_preset(tmp_path / "p", num_targets=2)
    assert two.predict(graphs)[0].shape == (2,)
    assert_close(two.backbone.weights, task.backbone.weights)


def test_a_backbone_alone(tmp_path):
    task = small_task()
    task.save_to_preset(tmp_path / "task")
    task.backbone.save_to_preset(tmp_path / "backbone")
    for name in ("task", "backbone"):
        backbone = Backbone.from_preset(tmp_path / name)
        assert_close(backbone.weights, task.backbone.weights)
    kb.models.SchNetBackbone.from_preset("schnet_aflow", load_weights=False)
    with pytest.raises(ValueError, match="call SchNetBackbone.from_preset"):
        kb.models.GCNBackbone.from_preset(tmp_path / "task")
    with pytest.raises(ValueError, match="holds a backbone alone"):
        Task.from_preset(tmp_path / "backbone")


def test_weights_to_be_loaded_are_not_drawn(tmp_path, monkeypatch):
    small_task().save_to_preset(tmp_path / "p")
    drawn = []

    def draw(self, shape, dtype=None):
        drawn.append(shape)
        return keras.ops.ones(shape, dtype)

    for kind in ("VarianceScaling", "RandomUniform", "RandomNormal", "Orthogonal"):
        monkeypatch.setattr(getattr(keras.initializers, kind), "__call__", draw)
    Task.from_preset(tmp_path / "p")
    assert not drawn
    Task.from_preset(tmp_path / "p", load_weights=False)
    assert drawn


@keras.saving.register_keras_serializable(package="tests")
class WithLess(kb.models.GraphRegressor):
    """A task with weights that presets do not keep."""

    head_layers = ()


def test_weights_that_presets_do_not_keep_are_drawn(tmp_path):
    task = WithLess(kb.models.GCNBackbone({"kind": 3}, 4))
    task.save_to_preset(tmp_path / "p")
    loaded = Task.from_preset(tmp_path / "p")
    assert_close(loaded.backbone.weights, task.backbone.weights)
    kernel = max(loaded.head.weights, key=lambda weight: tuple(weight.shape))
    assert np.all(keras.ops.convert_to_numpy(kernel))


@pytest.mark.parametrize(
    "entry",
    [
        {"module": "os", "class_name": "system", "config": {}},
        {"module": "builtins", "class_name": "eval", "config": "1"},
        {"module": "builtins", "class_name": "__lambda__", "config": {}},
        {"module": "keras.layers", "class_name": "Lambda", "config": {}},
    ],
)
def test_presets_bring_no_code(tmp_path, entry):
    small_task().save_to_preset(tmp_path / "p")
    path = tmp_path / "p" / "task.json"
    value = json.loads(path.read_text())
    value["config"]["activation"] = entry
    path.write_text(json.dumps(value))
    with pytest.raises(ValueError, match="may not bring code"):
        Task.from_preset(tmp_path / "p")


@pytest.mark.parametrize("dtype", ["float61", 3, {"class_name": "no"}])
def test_a_wrong_dtype_is_named(dtype):
    with pytest.raises(ValueError, match="^Expected `dtype` .*Received: dtype="):
        Task.from_preset("gcn", load_weights=False, dtype=dtype)


def test_architectures_have_no_weights(tmp_path):
    small_task().save_to_preset(tmp_path / "p", weights="none")
    for preset in ("gcn", tmp_path / "p"):
        with pytest.raises(ValueError, match="Received: an architecture without"):
            Task.from_preset(preset)
    small_task().save_to_preset(tmp_path / "q")
    (tmp_path / "q" / preset_paths.WEIGHTS).unlink()
    with pytest.raises(ValueError, match=r"no model.weights.h5\. Get that file"):
        Task.from_preset(tmp_path / "q")


def test_cards(tmp_path):
    card = {"title": "A model.", "data": "Three molecules.", "seed": "0"}
    small_task().save_to_preset(tmp_path / "p", card=card)
    text = (tmp_path / "p" / "README.md").read_text()
    assert "## Data\n\nThree molecules." in text and "A model." in text
    with pytest.raises(ValueError, match="Expected `card` to have"):
        small_task().save_to_preset(tmp_path / "q", card={"dat": ""})
    assert not (tmp_path / "q").exists()


def test_a_preset_in_the_cache_of_the_hub(tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    commit = "0" * 40
    repository = tmp_path / "models--me--molecules"
    task = small_task()
    task.save_to_preset(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    again = Task.from_preset("hf://me/molecules")
    assert_close(again.weights, task.weights)
    with pytest.raises(ValueError, match="Expected to find hf://me/other"):
        Task.from_preset("hf://me/other")
    with pytest.raises(ValueError, match="`uri` to be hf://OWNER/NAME"):
        Task.from_preset("hf://molecules")


def test_upload(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    calls = []

    class Api:
        def create_repo(self, name, **options):
            calls.append((name, options))

        def upload_folder(self, **options):
            calls.append(options)
            return "https://huggingface.co/me/molecules/commit/1"

    monkeypatch.setattr(hub, "HfApi", Api)
    with pytest.raises(ValueError, match="config.json"):
        kb.models.upload_preset("hf://me/molecules", tmp_path)
    small_task().save_to_preset(tmp_path / "p")
    found = kb.models.upload_preset("hf://me/molecules", tmp_path / "p", private=True)
    assert found.endswith("commit/1")
    assert calls[0] == ("me/molecules", {"private": True, "exist_ok": True})
    assert "model.weights.h5" in calls[1]["allow_patterns"]


def test_presets_of_kaggle(tmp_path, monkeypatch):
    """Against the two functions of kagglehub that are called."""
    task, uploads = small_task(), []
    task.save_to_preset(tmp_path / "p")
    (tmp_path / "p" / "notes.txt").write_text("mine")
    (tmp_path / "empty").mkdir()
    folders = {"me/a/keras/b": tmp_path / "p", "me/a/keras/c/2": tmp_path / "empty"}
    hub = types.SimpleNamespace(
        model_download=lambda handle: str(folders[handle]),
        model_upload=lambda *args, **options: uploads.append((args, options)),
    )
    monkeypatch.setitem(sys.modules, "kagglehub", hub)
    again = Task.from_preset("kaggle://me/a/keras/b")
    assert_close(again.weights, task.weights)
    with pytest.raises(ValueError, match="a model without config.json"):
        Task.from_preset("kaggle://me/a/keras/c/2")
    with pytest.raises(ValueError, match="to find kaggle://me/a/keras/d on Kaggle"):
        Task.from_preset("kaggle://me/a/keras/d")
    for uri in ("kaggle://me/a", "kaggle://me/a/keras/b/two", "kaggle://me/../keras/b"):
        with pytest.raises(ValueError, match="`uri` to be kaggle://OWNER/MODEL"):
            Task.from_preset(uri)
    address = kb.models.upload_preset("kaggle://me/a/keras/b", tmp_path / "p")
    assert address == "https://www.kaggle.com/models/me/a"
    (call,) = uploads
    options = {"ignore_patterns": ["notes.txt"]}
    assert call == (("me/a/keras/b", str(tmp_path / "p")), options)


def test_the_functions_of_kagglehub_take_these_arguments():
    hub = pytest.importorskip("kagglehub")
    inspect.signature(hub.model_download).bind("me/a/keras/b")
    inspect.signature(hub.model_upload).bind("me/a/keras/b", "p", ignore_patterns=[])


def test_without_kagglehub(monkeypatch):
    monkeypatch.setitem(sys.modules, "kagglehub", None)
    with pytest.raises(ImportError, match=r"keras-bandgnn\[kaggle\]"):
        preset_hub.download("kaggle://me/a/keras/b")


def test_without_the_hub(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"keras-bandgnn\[hub\]"):
        preset_hub.download("hf://me/molecules")


def test_a_preprocessor_that_is_lost_is_named(tmp_path):
    task = kb.models.GraphClassifier(
        kb.models.GCNBackbone({"kind": 2}, 4), 2, kb.preprocessing.GraphPreprocessor()
    )
    path = tmp_path / "whole"
    task.save_to_preset(path)
    (path / "preprocessor.json").unlink()
    with pytest.raises(ValueError, match="Expected.*hold preprocessor.json"):
        kb.models.GraphClassifier.from_preset(path)


def test_damaged_weights_are_named(tmp_path):
    task = Task.from_preset("gcn", load_weights=False)
    task.save_to_preset(tmp_path / "p")
    path = tmp_path / "p" / preset_paths.WEIGHTS
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="damaged file"):
        Task.from_preset(tmp_path / "p")


def test_weights_that_do_not_fit_the_configuration(tmp_path):
    task = kb.models.GraphRegressor(
        kb.models.GGNNBackbone({"x": {"features": 3}}, 8, 2, num_edge_types=1)
    )
    for name in ("config.json", "task.json"):
        task.save_to_preset(tmp_path / "p")
        file = tmp_path / "p" / name
        entry = json.loads(file.read_text())
        width = "hidden_dim" if name == "config.json" else "num_targets"
        entry["config"][width] = 5
        file.write_text(json.dumps(entry))
        with pytest.raises(ValueError, match=f"to fit .*{name}, by which") as caught:
            Task.from_preset(tmp_path / "p")
        assert re.search(
            r"has the shape \(.*5.*\)\. Received: shape", str(caught.value)
        )
