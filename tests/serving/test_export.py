import importlib.util
import json

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.primitives import Banded, Grouped, Plan
from keras_bandgnn.serving.exporting import _WRITERS, FlatModel
from keras_bandgnn.serving.runtimes import ARTEFACTS
from keras_bandgnn.serving.signature import Signature
from tests.absent import BACKENDS, run_without

pytestmark = pytest.mark.every_backend("what_the_task_predicts")

BACKEND = keras.backend.backend()
FORMATS = [form for backend, form in _WRITERS if backend == BACKEND]
# Runs without packages beyond the backend, or with TensorFlow beside JAX.
FIRST = {"tensorflow": "tf_saved_model", "jax": "tf_saved_model", "torch": "torch"}


def need(form):
    modules = [module for module, _ in _WRITERS[BACKEND, form][1]]
    for module in (*modules, ARTEFACTS[form][1]):
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            pytest.skip(f"{module} is not installed")


def graphs_of(count=6, seed=0, types=2, low=4, high=9):
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        n = int(rng.integers(low, high))
        graphs.append(
            kb.Graph(
                n,
                *rng.integers(0, n, (2, 2 * n)),
                edge_type=rng.integers(0, types, 2 * n),
                node={"kind": rng.integers(0, 4, n)},
                candidates=rng.permutation(n)[: rng.integers(2, 4)],
            )
        )
    return graphs


def selector():
    backbone = kb.models.GGNNBackbone({"kind": 4}, 8, 1, num_edge_types=2)
    return kb.models.NodeSelector(backbone)


def plain(graphs):
    return [kb.Graph(g.num_nodes, g.senders, g.receivers, node=g.node) for g in graphs]


@pytest.mark.parametrize("form", FORMATS)
def test_runtime_gives_what_the_task_predicts(form, tmp_path):
    need(form)
    task, graphs = selector(), graphs_of()
    plan = Plan(Banded(8)) if form == "onnx" else None
    path = task.export(tmp_path / "out", form, graphs, plan=plan, verbose=False)
    # Other graphs, in an order of their own, in several supergraphs.
    new = graphs_of(14, seed=1)
    exported = kb.serving.ExportedModel(
        path, trusted=form in ("torch", "tf_saved_model")
    )
    assert len(exported.packer.pack(new)) > 1
    found, wanted = exported.predict(new), task.predict(new)
    for mine, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, right, atol=1e-4)
    assert exported.predict([]) == []
    facts = json.loads((path / "packing.json").read_text("utf-8"))
    assert facts["format"] == form and facts["task"] == "NodeSelector"
    assert (path / ARTEFACTS[form][0]).exists()


def exported(tmp_path, task, graphs, **options):
    need(FIRST[BACKEND])
    return task.export(tmp_path / "out", FIRST[BACKEND], graphs, **options)


def test_rows_of_nodes_come_in_the_order_of_the_graph(tmp_path):
    graphs = plain(graphs_of())
    preprocessor = kb.preprocessing.GraphPreprocessor([kb.preprocessing.RCMKCompile()])
    backbone = kb.models.GCNBackbone({"kind": 4}, 8, num_layers=1)
    task = kb.models.NodeClassifier(backbone, 3, preprocessor)
    model = kb.serving.ExportedModel(exported(tmp_path, task, graphs), trusted=True)
    for mine, right in zip(model.predict(graphs), task.predict(graphs), strict=True):
        np.testing.assert_allclose(mine, right, atol=1e-4)


def test_graphs_that_do_not_fit_are_refused_before_anything_runs(tmp_path):
    graphs = graphs_of()
    path = exported(tmp_path, selector(), graphs, budget={"node": 32})
    packer = kb.serving.GraphPacker.load(path)
    assert packer.budget["node"] == 32
    (large,) = graphs_of(1, low=40, high=41)
    with pytest.raises(ValueError, match=r"graph 1 needs \{'node': '40 \(at most 31\)"):
        packer.pack([graphs[0], large])
    wrong = graphs[0].replace(node={"kind": graphs[0].node["kind"] + 4})
    with pytest.raises(ValueError, match=r"Expected node\['kind'\] in \[0, 4\)"):
        packer.pack([wrong])
    without = graphs[0].replace(node={})
    with pytest.raises(ValueError, match="Expected graphs with 'node/kind'"):
        list(packer.pack([without]))
    floats = graphs[0].replace(node={"kind": np.ones(graphs[0].num_nodes, "float32")})
    with pytest.raises(ValueError, match="'node/kind' as int32 of shape .* float32"):
        list(packer.pack([floats]))
    packed = packer.pack(graphs[:2])
    with pytest.raises(ValueError, match="one output for each of 1 supergraphs"):
        packed.unpack([])


class OtherNames(kb.models.Backbone):
    num_edge_types, hidden_dim = 0, 4

    def __init__(self):
        super().__init__()
        self.read = kb.layers.NodeEncoder(4, {"kind": 4, "size": {"features": 1}})
        self.atoms = kb.layers.ElementEmbedding(4, (1, 6))
        self.read.build()
        self.atoms.build()
        self.built = True


def test_ids_are_those_of_the_layers_of_a_backbone():
    known = {"kind": {"below": 4}, "atomic_number": {"among": [1, 6]}}
    assert OtherNames().known_ids() == known
    assert kb.models.SchNetBackbone((8, 1)).known_ids() == {
        "atomic_number": {"among": [8, 1]}
    }
    assert kb.models.SchNetBackbone(9).known_ids() == {}


def test_the_packer_needs_neither_the_model_nor_its_file(tmp_path):
    graphs = graphs_of()
    made = kb.serving.GraphPacker.of_task(selector(), graphs)
    made.save(tmp_path)
    loaded = kb.serving.GraphPacker.load(tmp_path)
    for mine, right in zip(loaded.pack(graphs), made.pack(graphs), strict=True):
        assert list(mine) == list(right) == made.signature.names
        for name in mine:
            np.testing.assert_array_equal(mine[name], right[name])


def test_ids_in_columns_are_checked_by_column(tmp_path):
    atom = np.array([[0, 1], [3, 0], [2, 1]])
    graphs = [kb.Graph(3, [0, 1], [1, 2], node={"atom": atom}, label=1.0)] * 3
    backbone = kb.models.GCNBackbone({"atom": [4, 2]}, 4, num_layers=1)
    assert backbone.known_ids() == {"atom": {"below": [4, 2]}}
    task = kb.models.GraphRegressor(backbone)
    kb.serving.GraphPacker.of_task(task, graphs).save(tmp_path)
    packer = kb.serving.GraphPacker.load(tmp_path)
    assert len(packer.pack(graphs)) > 0
    wrong = graphs[0].replace(node={"atom": atom + [0, 1]})
    with pytest.raises(ValueError, match=r"in \[0, \[4, 2\]\), by column.*Received: 2"):
        packer.pack([wrong])
    with pytest.raises(ValueError, match="with 2 columns of ids"):
        packer.pack([graphs[0].replace(node={"atom": atom[:, 0]})])


def test_ids_of_edges_are_checked(tmp_path):
    edge = {"bond": [[0, 1], [2, 0]], "kind": [0, 3], "length": [0.5, 1.5]}
    node = {"kind": [0, 1, 0]}
    graphs = [kb.Graph(3, [0, 1], [1, 2], node=node, edge=edge, label=[0, 1])] * 3
    graphs = [g.replace(label_level="edge") for g in graphs]
    inputs = {"bond": [3, 2], "kind": 5, "length": {"features": 1}}
    backbone = kb.models.GINEBackbone({"kind": 2}, 4, 1, edge_inputs=inputs)
    task = kb.models.EdgeClassifier(backbone, 2, edge_inputs={"kind": 4, "type": 1})
    kb.serving.GraphPacker.of_task(task, graphs).save(tmp_path)
    packer = kb.serving.GraphPacker.load(tmp_path)
    assert packer.edge_ids == {"bond": {"below": [3, 2]}, "kind": {"below": 4}}
    assert len(packer.pack(graphs)) > 0
    for name, wrong in (("kind", [0, 4]), ("bond", [[0, 2], [0, 0]])):
        graph = graphs[0].replace(edge={**edge, name: wrong})
        with pytest.raises(ValueError, match=rf"Expected edge\['{name}'\] in \[0, "):
            packer.pack([graph])


@pytest.mark.parametrize(
    ("name", "option"),
    [("GGNNBackbone", "num_edge_types"), ("GraphormerBackbone", "num_heads")],
)
def test_models_with_edge_features_are_exported(name, option, tmp_path):
    rng = np.random.default_rng(0)
    graphs = [
        g.replace(edge={"w": rng.normal(size=(g.num_edges, 2)), "unread": g.senders})
        for g in plain(graphs_of())
    ]
    options = {option: 2, "edge_inputs": {"w": {"features": 2}}}
    backbone = getattr(kb.models, name)({"kind": 4}, 8, 1, **options)
    task = kb.models.NodeClassifier(backbone, 3)
    model = kb.serving.ExportedModel(exported(tmp_path, task, graphs), trusted=True)
    assert "edge_w" in model.packer.signature.names
    for mine, right in zip(model.predict(graphs), task.predict(graphs), strict=True):
        np.testing.assert_allclose(mine, right, atol=1e-4)


def test_folders_and_formats_are_checked(tmp_path):
    task, graphs = selector(), graphs_of()
    with pytest.raises(ValueError, match="Expected `format` to be one of"):
        task.export(tmp_path / "out", "docx", graphs)
    with pytest.raises(ValueError, match="Expected `graphs`"):
        task.export(tmp_path / "out", FIRST[BACKEND])
    (missing,) = {"torch", "tf_saved_model"} - {FIRST[BACKEND]}
    with pytest.raises(ValueError, match="Weights do not depend on the backend"):
        task.export(tmp_path / "out", missing, graphs)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    with pytest.raises(ValueError, match="other content"):
        exported(tmp_path, task, graphs)
        task.export(tmp_path / "notes", FIRST[BACKEND], graphs)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]
    with pytest.raises(ValueError, match="`path` to be a folder that task"):
        kb.serving.ExportedModel(tmp_path / "notes")


def test_an_export_that_differs_is_refused(tmp_path, monkeypatch):
    need(FIRST[BACKEND])
    right = FlatModel.call
    monkeypatch.setattr(FlatModel, "call", lambda self, x: right(self, x) + 0.01)
    task, graphs = selector(), graphs_of()
    with pytest.raises(ValueError, match="0.01 apart"):
        task.export(tmp_path / "out", FIRST[BACKEND], graphs)
    assert not list(tmp_path.iterdir())
    assert task.export(tmp_path / "out", FIRST[BACKEND], graphs, verify=False).is_dir()


def test_weights_of_eight_bits(tmp_path):
    task, graphs = selector(), graphs_of()
    before = task.predict(graphs)
    task.quantize("int8")
    # The embedding, both kernels of the GRU and the head.
    kinds = [keras.backend.standardize_dtype(v.dtype) for v in task.weights]
    assert kinds.count("int8") == 4
    model = kb.serving.ExportedModel(exported(tmp_path, task, graphs), trusted=True)
    after, found = task.predict(graphs), model.predict(graphs)
    for old, new, mine in zip(before, after, found, strict=True):
        np.testing.assert_allclose(mine, new, atol=1e-4)
        np.testing.assert_allclose(new, old, atol=0.02)
    if BACKEND != "torch":
        with pytest.raises(ValueError, match="Expected weights in float32"):
            task.export(tmp_path / "lite", "litert", graphs)


def test_models_that_were_never_called_are_quantised():
    backbone = kb.models.SchNetBackbone((1, 6), 8)
    task = kb.models.GraphRegressor(backbone, normalizer=None)
    task.quantize("int8")
    with pytest.raises(ValueError, match="int7"):
        task.quantize("int7")


def test_a_file_of_a_later_version_is_refused(tmp_path):
    kb.serving.GraphPacker.of_task(selector(), graphs_of()).save(tmp_path)
    file = tmp_path / "packing.json"
    with pytest.raises(ValueError, match="Expected a format among"):
        kb.serving.ExportedModel(tmp_path)
    file.write_text(file.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(ValueError, match="of version 1. Received: version 2"):
        kb.serving.GraphPacker.load(tmp_path)


def test_edges_outside_of_the_receptive_field_count_in_the_budget(tmp_path):
    rng = np.random.default_rng(0)
    # The candidates receive no message from the nodes that most edges join.
    ends = rng.integers(4, 400, (2, 70_000))
    graph = kb.Graph(
        400,
        ends[0],
        ends[1],
        node={"kind": np.zeros(400, "int32")},
        candidates=[0, 1],
        label=0,
    )
    backbone = kb.models.GGNNBackbone({"kind": 1}, 4, 2, num_edge_types=1)
    task = kb.models.NodeSelector(backbone)
    made = kb.serving.GraphPacker.of_task(task, [graph])
    made.save(tmp_path)
    assert made.preprocessor.batcher.budget["edge"] >= 70_000
    largest = max(np.prod(spec.shape) for spec in made.signature.inputs)
    assert largest < 1_000
    (packed,) = kb.serving.GraphPacker.load(tmp_path).pack([graph])
    assert packed


def test_names_of_inputs_are_unique():
    x = {"node": {"a b": np.zeros(1), "a_b": np.zeros(1)}}
    with pytest.raises(ValueError, match="names differ in letters"):
        Signature.of(x)


def test_formats_that_may_run_code_are_loaded_only_if_trusted(tmp_path):
    path = exported(tmp_path, selector(), graphs_of())
    with pytest.raises(ValueError, match="trusted=True.*may run code"):
        kb.serving.ExportedModel(path)
    with pytest.raises(ValueError, match="`trusted`"):
        kb.serving.ExportedModel(path, trusted="yes")


def test_modified_files_are_refused(tmp_path):
    path = exported(tmp_path, selector(), graphs_of())
    name = ARTEFACTS[FIRST[BACKEND]][0]
    extra = path / name / "more" if (path / name).is_dir() else path / name
    with open(extra, "ab") as file:
        file.write(b"1")
    with pytest.raises(ValueError, match=f"{name}.* to have (sha256|the files)"):
        kb.serving.ExportedModel(path, trusted=True)


def test_features_that_are_not_read_are_not_asked_for(tmp_path):
    graphs = [
        g.replace(node={**g.node, "note": np.ones(g.num_nodes, "float32")})
        for g in plain(graphs_of())
    ]
    graphs = [g.replace(context={"site": np.float32(2)}) for g in graphs]
    task = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 4}, 8), 2)
    path = exported(tmp_path, task, graphs)
    names = kb.serving.GraphPacker.load(path).signature.names
    assert "node_kind" in names
    assert not {"node_note", "graph_site"} & set(names)
    new = plain(graphs_of(3, seed=2))
    found = kb.serving.ExportedModel(path, trusted=True).predict(new)
    for mine, right in zip(found, task.predict(new), strict=True):
        np.testing.assert_allclose(mine, right, atol=1e-4)


def test_files_of_others_in_the_folder_are_kept(tmp_path):
    graphs = graphs_of()
    task = selector()
    task.save_to_preset(tmp_path / "preset")
    task.save_to_preset(tmp_path / "preset")
    path = exported(tmp_path / "preset", task, graphs)
    with pytest.raises(ValueError, match=r"Received: also \['out'\]"):
        task.save_to_preset(tmp_path / "preset")
    (path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="notes.txt"):
        exported(tmp_path / "preset", task, graphs)
    assert (path / "notes.txt").read_text() == "mine"


def test_quantised_tasks_are_not_saved(tmp_path):
    task = selector()
    task.quantize("int8")
    with pytest.raises(ValueError, match="not quantised"):
        task.save(tmp_path / "task.keras")
    if BACKEND == "torch":
        need("onnx")
        with pytest.raises(ValueError, match="KERAS_BACKEND=tensorflow"):
            task.export(tmp_path / "out", "onnx", graphs_of())


MODEL_PLANS = {
    "banded": Plan(Banded(8)),
    "grouped": Plan(Grouped(16)),
    "segment": Plan(),
}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A model in ONNX, a store of graphs, their predictions, and their inputs."""
    need("onnx")
    folder = tmp_path_factory.mktemp("served")
    task, graphs = selector(), graphs_of()
    for name, plan in MODEL_PLANS.items():
        task.export(folder / name, "onnx", graphs, plan=plan)
    kb.data.write_store(folder / "graphs", graphs)
    np.savez(folder / "right.npz", *task.predict(graphs))
    packed = kb.serving.GraphPacker.load(folder / "banded").pack(graphs)
    for number, arrays in enumerate(packed):
        np.savez(folder / f"inputs-{number}.npz", **arrays)
    return folder


def test_serving_needs_no_backend(model_folder):
    script = f"""
import numpy as np
import keras_bandgnn as kb

graphs = kb.data.open_store({str(model_folder / "graphs")!r})
right = np.load({str(model_folder / "right.npz")!r})
for plan in {[*MODEL_PLANS]!r}:
    model = kb.serving.ExportedModel({str(model_folder)!r} + "/" + plan)
    outputs = model.predict(graphs)
    for name, output in zip(right.files, outputs, strict=True):
        np.testing.assert_allclose(output, right[name], atol=1e-4, err_msg=plan)
    print(plan, len(outputs))
print({{"keras", *{BACKENDS!r}}} & set(sys.modules))
"""
    lines = [f"{plan} 6" for plan in MODEL_PLANS] + ["set()"]
    assert run_without(BACKENDS, script).splitlines() == lines


def test_a_file_runs_with_numpy_and_the_runtime_alone(model_folder):
    script = f"""
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession({str(model_folder / "banded" / "model.onnx")!r})
names = [spec.name for spec in session.get_inputs()]
arrays = np.load({str(model_folder / "inputs-0.npz")!r})
print(session.run(None, {{name: arrays[name] for name in names}})[0].shape[0])
"""
    absent = ("keras", "keras_bandgnn", "jax", "torch", "tensorflow")
    assert run_without(absent, script) == "1\n"


def test_items_that_the_encoder_skips_are_none():
    pytest.importorskip("rdkit")
    encoder = kb.preprocessing.SmilesEncoder(on_error="skip")
    preprocessor = kb.preprocessing.GraphPreprocessor([encoder])
    backbone = kb.models.GINEBackbone(encoder.inputs(), 8, num_edge_types=5)
    task = kb.models.GraphRegressor(backbone, 2, preprocessor)
    packer = kb.serving.GraphPacker.of_task(task, ["CCO", "CC"])
    for smiles in (["CCO", "nope", "CC"], ["nope"], ["CC"]):
        packed = packer.pack(smiles)
        outputs = [np.ones((1, packer.budget["graph"], 2)) for _ in packed]
        shapes = [None if r is None else r.shape for r in packed.unpack(outputs)]
        assert shapes == [None if s == "nope" else (2,) for s in smiles]


def test_missing_packages_are_no_missing_backend():
    script = """
import keras_bandgnn as kb

try:
    kb.serving.ExportedModel
except ImportError as error:
    print(error.name)
"""
    assert run_without((*BACKENDS, "h5py"), script) == "h5py\n"


@pytest.mark.parametrize(
    "name",
    ["models.Task", "layers", "training", "ops.segment_sum(ones(2), ones(2), 2)"],
)
def test_what_needs_a_backend_says_so(name):
    script = f"""
from numpy import ones
import keras_bandgnn as kb

assert kb.Graph(2, [0], [1]).num_edges == 1
try:
    kb.{name}
except ImportError as error:
    print(error)
"""
    lines = run_without(BACKENDS, script).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("Expected a backend of Keras: jax")
