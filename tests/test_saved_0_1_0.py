"""What version 0.1.0 saved loads and gives what it gave there."""

import json
import runpy
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_bandgnn as kb

SAVED = Path(__file__).with_name("saved_0_1_0")
SOURCE = "def area(width, height):\n    half = width / 2\n    return half * height\n"
PRESETS = sorted(path.name for path in (SAVED / "presets").iterdir())
ATOMS = ("SchNetBackbone", "MPEUBackbone", "PaiNNBackbone")


def graphs_of(name: str) -> list[kb.Graph]:
    """The graphs of a .npz file: arrays by "number/name"."""
    arguments = {}
    with np.load(SAVED / f"{name}.npz", allow_pickle=False) as arrays:
        for key, value in arrays.items():
            number, _, field = key.partition("/")
            graph = arguments.setdefault(int(number), {"node": {}})
            level, _, feature = field.partition(".")
            value = value if value.ndim else value.item()
            if feature:
                graph[level][feature] = value
            else:
                graph[field] = value
    return [kb.Graph(**arguments[number]) for number in sorted(arguments)]


def rows_of(file: str, name: str) -> list[np.ndarray]:
    """The rows that 0.1.0 gave, one entry per graph."""
    with np.load(SAVED / f"{file}.npz", allow_pickle=False) as arrays:
        keys = [key for key in arrays if key.partition("/")[0] == name]
        return [arrays[key] for key in sorted(keys, key=lambda k: int(k.split("/")[1]))]


def assert_same(rows, expected, tolerance: float = 1e-6):
    """Equal on the scale of the largest value, or of 1."""
    assert len(rows) == len(expected) > 0
    for row, wanted in zip(rows, expected, strict=True):
        row = keras.ops.convert_to_numpy(row)
        assert row.shape == wanted.shape
        scale = max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(row, wanted, rtol=0, atol=tolerance * scale)


def graphs_for(name: str, task) -> list:
    """The graphs that 0.1.0 predicted for a preset."""
    if name == "selector_program":
        return list(kb.data.program_graphs(SOURCE, max_instances=4))
    atoms = type(task.backbone).__name__ in ATOMS
    return graphs_of("molecules" if atoms else "networks")


def test_every_family_and_task_is_there():
    classes = set()
    for name in PRESETS:
        for file in ("config.json", "task.json"):
            entry = json.loads((SAVED / "presets" / name / file).read_text("utf-8"))
            classes.add(entry["class_name"])
    assert classes == {
        *("GATBackbone", "GCNBackbone", "GGNNBackbone", "GTBackbone"),
        *("GraphormerBackbone", *ATOMS),
        *("ForceRegressor", "GraphClassifier", "GraphRegressor"),
        *("NodeClassifier", "NodeSelector"),
    }


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name):
    task = kb.models.Task.from_preset(SAVED / "presets" / name)
    graphs = graphs_for(name, task)
    half = name.endswith("_float16")
    expected = rows_of("predictions", name.removesuffix("_float16"))
    assert_same(task.predict(graphs), expected, 3e-3 if half else 1e-6)
    if name == "forces_painn":
        forces = task.predict_forces(graphs)
        assert_same(forces, rows_of("predictions", f"{name}.forces"))


def test_backbone_and_preprocessor_of_a_preset():
    folder = SAVED / "presets" / "nodes_gcn"
    backbone = kb.models.Backbone.from_preset(folder)
    task = kb.models.Task.from_preset(folder)
    for mine, other in zip(backbone.weights, task.backbone.weights, strict=True):
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (mine, other)))
    config = json.loads((folder / "preprocessor.json").read_text("utf-8"))["config"]
    assert task.preprocessor.plan.get_config() == config["plan"]


def test_store_of_compiled_graphs(tmp_path):
    shutil.copytree(SAVED / "graphs", tmp_path / "store")
    task = kb.models.Task.from_preset(SAVED / "presets" / "selector_ggnn")
    # Compiled graphs know the order that their nodes had.
    rows = task.predict(kb.data.open_store(tmp_path / "store"))
    assert_same(rows, rows_of("predictions", "selector_ggnn"))


def test_store_of_programs(tmp_path):
    shutil.copytree(SAVED / "programs" / "all", tmp_path / "store")
    store = kb.data.open_store(tmp_path / "store")
    config = {"layers": store.metadata["layers"], "batcher": {}, "plan": "auto"}
    made = kb.preprocessing.GraphPreprocessor.from_config(config)
    assert [type(layer).__name__ for layer in made.graph_layers] == [
        "ProgramEncoder",
        "ReachabilityFilter",
        "RCMKCompile",
    ]
    programs = list(kb.data.program_graphs(SOURCE))
    assert len(store) == len(programs) == 3
    for graph, program in zip(store, programs, strict=True):
        (expected,) = made.compile([program])
        np.testing.assert_array_equal(graph.senders, expected.senders)
        # The order of candidates follows from the name of the file.
        assert sorted(graph.candidates) == sorted(expected.candidates)
        right = (g.candidates[g.label] for g in (graph, expected))
        assert next(right) == next(right)
        assert graph.node.keys() == expected.node.keys()
        for key, value in graph.node.items():
            np.testing.assert_array_equal(value, expected.node[key])


def test_keras_file():
    task = keras.models.load_model(SAVED / "task.keras")
    assert_same(task.predict(graphs_of("networks")), rows_of("training", "keras"))
    assert int(task.optimizer.iterations) == 5
    results = task.evaluate(graphs_of("networks"), verbose=0, return_dict=True)
    with np.load(SAVED / "training.npz", allow_pickle=False) as expected:
        for name, value in results.items():
            assert value == pytest.approx(float(expected[name]), rel=1e-5)


def test_training_goes_on(tmp_path):
    networks = graphs_of("networks")
    progress = tmp_path / "progress"
    shutil.copytree(SAVED / "progress", progress)
    backbone = kb.models.GCNBackbone({"kind": 4}, 4, 1, 2)
    preprocessor = kb.preprocessing.GraphPreprocessor(
        # The packing that was the default.
        [],
        kb.preprocessing.DynamicBatcher(2, packing="sequential"),
        kb.primitives.Plan(),
    )
    task = kb.models.NodeSelector(backbone, preprocessor)
    rate = kb.training.WarmupDecay(0.1, 2, 30)
    task.compile(keras.optimizers.SGD(rate, momentum=0.9))
    saving = kb.training.SaveProgress(progress, save_freq=2)
    assert saving.saved()["loader"]["epoch"] == 1
    more = graphs_of("more_networks")
    task.fit(more, epochs=3, verbose=0, callbacks=[saving])
    assert int(task.optimizer.iterations) == 24
    assert_same(task.predict(networks), rows_of("training", "trained"), 1e-5)


def test_search(tmp_path):
    pytest.importorskip("keras_tuner")
    shutil.copytree(SAVED / "search", tmp_path / "search")

    class Stub(kb.tuning.GraphHyperModel):
        def space(self, hp):
            return {"x": hp.Choice("x", [0.1, 0.3, 0.7]), "y": hp.Float("y", 0.0, 1.0)}

    hypermodel = Stub(graphs_of("networks"))
    tuner = kb.tuning.make_tuner(hypermodel, tmp_path / "search", "random", 3)
    assert tuner.remaining_trials == 1
    rows = json.loads((SAVED / "search.json").read_text("utf-8"))
    assert json.loads(json.dumps(kb.tuning.trial_table(tuner))) == rows


def test_arrays_of_batches_have_their_order():
    write = runpy.run_path(str(SAVED / "write.py"))
    orders = json.loads((SAVED / "orders.json").read_text("utf-8"))
    assert write["orders_of_arrays"]() == orders


def test_functional_model():
    write = runpy.run_path(str(SAVED / "write.py"))
    batch = write["batch_of"](graphs_of("networks"), kb.primitives.Plan())
    model = keras.models.load_model(SAVED / "functional.keras")
    outputs = [keras.ops.convert_to_numpy(y) for y in model(batch)]
    with np.load(SAVED / "functional.npz", allow_pickle=False) as expected:
        assert_same(outputs, list(expected.values()))


@pytest.mark.parametrize("form", ["litert", "onnx", "tf_saved_model", "torch"])
def test_exported_models(form, tmp_path):
    runtimes = {"litert": "ai_edge_litert", "onnx": "onnxruntime"}
    module = runtimes.get(form, form.partition("_")[0].replace("tf", "tensorflow"))
    pytest.importorskip(module)
    shutil.unpack_archive(SAVED / "exports" / f"{form}.zip", tmp_path / form)
    exported = kb.serving.ExportedModel(tmp_path / form)
    rows = exported.predict(graphs_of("networks"))
    assert_same(rows, rows_of(f"exports/{form}", "exported"))
