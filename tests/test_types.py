"""Type checkers know what is public: signatures are complete, and mistakes found."""

import ast
import importlib
import inspect
import json
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import docstrings
import keras
import pytest

import keras_bandgnn as kb
from keras_bandgnn import aliases, keras_bases

PACKAGE = Path(kb.__file__).parent
ROOT = PACKAGE.parent
MISTAKES = """\
import keras_bandgnn as kb

graph = kb.Graph(3, [0, 1], [1, 2], node={"kind": [0, 1, 1]}, label=1)
body = kb.models.GCNBackbone({"kind": 2}, hidden_dimension=8)  # a wrong keyword
task = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 2}), 2)
task.fitt([graph])  # a method that does not exist
layer = kb.layers.GraphConvolutions(8)  # a class that does not exist
batcher = kb.preprocessing.DynamicBatcher(graphs="32")  # a wrong type


def scores(task: kb.models.GraphClassifier, graph: kb.Graph) -> str:
    return task.predict([graph])  # a wrong return
"""
CORRECT = """\
import keras
import numpy as np

import keras_bandgnn as kb

graph = kb.Graph(3, [0, 1], np.array([1, 2]), node={"kind": [0, 1, 1]}, label=1)
graphs = kb.data.FlatGraphs.from_graphs([graph] * 8)
backbone = kb.models.GCNBackbone({"kind": 2}, hidden_dim=8, virtual_node=True)
task = kb.models.GraphClassifier(backbone, 2, name="task")
task.compile(keras.optimizers.Adam(1e-3), weighted_metrics=["accuracy"])
callbacks = [keras.callbacks.EarlyStopping("loss"), kb.training.ThroughputMonitor()]
history = task.fit(graphs, epochs=1, callbacks=callbacks, verbose=0)
loss: float = history.history["loss"][0]
rows = task.predict([graph])
print(rows[0].shape, task.count_params(), task.backbone.hidden_dim)
print(task.evaluate(graphs, return_dict=True)["loss"])
loader = task.loader(graphs, shuffle=True)
batch = loader[0][0]
print(task(batch).shape, loader.plan.keys, graph.label.ndim)
head = keras.Sequential([keras.layers.Dense(4), kb.layers.CumulativeLink(3)])
print(head(keras.Input((2,))))
print(keras.layers.TimeDistributed(kb.layers.GaussianBasis(3, stop=1.0)))
undirected = kb.preprocessing.ToUndirected()(graph)
print(undirected.num_edges, [item.num_nodes for item in graphs])
task.save("task.keras")
task.summary()
again = kb.models.GraphClassifier.from_preset("preset", load_weights=False)
print(again.predict_proba(graphs)[0])


class Halved(keras.layers.Layer):
    def call(self, states):
        return 0.5 * states
"""
# What Keras' classes have once they are built, compiled or trained.
LATER = {
    "beta",
    "bias",
    "gamma",
    "optimizer",
    "stop_evaluating",
    "stop_predicting",
    "stop_training",
}
SPECIAL = ("__init__", "__call__", "__getitem__", "__len__", "__iter__")


def mypy(script: Path) -> str:
    (script.parent / "mypy.ini").write_text(
        f"[mypy]\nmypy_path = {ROOT}\nignore_missing_imports = True\n"
        "check_untyped_defs = True\n[mypy-keras_bandgnn.*]\nfollow_imports = silent\n"
    )
    return checked("mypy", "--no-error-summary", str(script))


def pyright(script: Path) -> str:
    # The package of PyPI downloads the checker when it first runs.
    if find_spec("pyright") is None:
        pytest.skip("pyright is not installed")
    config = {"include": [script.name], "extraPaths": [str(ROOT)]}
    (script.parent / "pyrightconfig.json").write_text(json.dumps(config))
    return checked("pyright", "--pythonpath", sys.executable)


def checked(module: str, *options: str) -> str:
    """What a checker writes in the current folder."""
    command = [sys.executable, "-m", module, *options]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode in (0, 1), process.stdout + process.stderr
    return process.stdout


@pytest.mark.parametrize("check", [mypy, pyright])
def test_checkers_find_mistakes_and_nothing_else(check, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "script.py"
    script.write_text(CORRECT + MISTAKES)
    expected = {
        number
        for number, line in enumerate(script.read_text().splitlines(), 1)
        if "  # a " in line
    }
    assert len(expected) == 5
    text = check(script)
    lines = {int(line) for line in re.findall(r"script\.py:(\d+).* error:", text)}
    assert lines == expected, text


@pytest.mark.release
def test_pyright_finds_nothing_in_the_examples():
    """Mypy reads them in `.ci/run`."""
    pytest.importorskip("pyright")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def functions() -> dict[str, object]:
    """All functions and methods of public and registered classes, and of results."""
    names = runpy.run_path(str(ROOT / "docs" / "names.py"))
    values = dict(docstrings.public())
    for room in names["TITLES"]:
        for name in names["experimental"](room):
            values[f"{room}.{name}"] = getattr(getattr(kb, room), name)
    for place in names["RESULTS"]:
        module, _, name = place.rpartition(".")
        values[place] = getattr(
            importlib.import_module(f"keras_bandgnn.{module}"), name
        )
    values |= {
        name: keras.saving.get_registered_object(name) for name in names["registered"]()
    }
    found = {}
    for value in values.values():
        members = [value]
        if inspect.isclass(value):
            members = [
                getattr(member, "__func__", getattr(member, "fget", member))
                for cls in value.__mro__
                for name, member in vars(cls).items()
                if name in SPECIAL or not name.startswith("_")
            ]
        for function in map(inspect.unwrap, filter(inspect.isfunction, members)):
            if PACKAGE in Path(function.__code__.co_filename).parents:
                found[f"{function.__module__}.{function.__qualname__}"] = function
    return found


def test_every_public_signature_is_complete():
    wrong = []
    for name, function in functions().items():
        # `dataclasses` and `serializable` write some.
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())
        if parameters and parameters[0].name in ("self", "cls"):
            parameters = parameters[1:]
        types = {p.name: p.annotation for p in parameters}
        if not name.endswith("__init__"):
            types["return"] = signature.return_annotation
        wrong += [
            f"{name}: {what}"
            for what, annotation in types.items()
            if annotation is inspect.Signature.empty
            or re.search(r"\bAny\b", inspect.formatannotation(annotation))
        ]
    assert len(functions()) > 1000
    assert not wrong, "\n".join(wrong)


def test_options_are_those_of_the_constructors():
    options = vars(aliases)
    for name, cls in docstrings.public().items():
        if not inspect.isclass(cls):
            continue
        for base in cls.__mro__:
            own = vars(base).get("__init__")
            types = getattr(own, "__annotations__", {})
            unpacked = re.fullmatch(r"Unpack\[(\w+)\]", str(types.get("kwargs")))
            if unpacked:
                # mypy takes overlapping ones for any.
                overlap = {*options[unpacked[1]].__annotations__} & {*types}
                assert not overlap, (name, unpacked[1], overlap)


def test_classes_for_checkers_have_what_those_of_keras_have():
    text = Path(keras_bases.__file__).with_suffix(".pyi").read_text()
    names = {}
    for cls in ast.parse(text).body:
        if isinstance(cls, ast.ClassDef):
            names[cls.name] = {n.name for n in cls.body if hasattr(n, "name")}
            names[cls.name] |= {n.target.id for n in cls.body if hasattr(n, "target")}
    others = {
        "Dense": keras.layers.Dense(1),
        "Dropout": keras.layers.Dropout(0.5),
        "Model": keras.Sequential(),
        "MeanMetricWrapper": keras.metrics.MeanMetricWrapper(abs),
    }
    for name, members in names.items():
        if name != "_Saved":
            cls = getattr(keras_bases, name)
            value = others[name] if name in others else cls()
            absent = members - {*dir(value)} - LATER
            assert not absent, (name, absent)
