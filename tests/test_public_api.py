"""The public names are a contract: a change here is a change for users."""

import ast
import importlib
import inspect
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import keras
import pytest

import keras_bandgnn

ROOMS = ["keras_bandgnn"] + [
    f"keras_bandgnn.{name}"
    for name in sorted({*keras_bandgnn.__all__} - {"Graph", "__version__", "batch"})
]
DOCS = Path(keras_bandgnn.__file__).parents[1] / "docs"
NAMES = runpy.run_path(str(DOCS / "names.py"))


@pytest.mark.parametrize("module", ROOMS)
def test_public_names(module):
    room = importlib.import_module(module)
    names = set(room.__all__) - {"__version__"}
    assert all(getattr(room, name).__doc__ for name in names)


def test_rooms_have_no_names_of_others():
    rooms = {name: importlib.import_module(name) for name in ROOMS}
    names = {name: set(room.__all__) for name, room in rooms.items()}
    for name, room in rooms.items():
        others = set().union(*names.values()) - names[name]
        present = {other for other in others if hasattr(room, other)}
        modules = {x for x in present if isinstance(getattr(room, x), ModuleType)}
        assert not present - modules, name


def test_names_of_other_libraries():
    kb = keras_bandgnn
    assert kb.layers.GCNConv is kb.layers.GraphConvolution
    assert kb.layers.GATConv is kb.layers.GraphAttention
    assert kb.layers.GATv2Conv is kb.layers.GraphAttentionV2
    assert kb.layers.GINConv is kb.layers.GINEConv is kb.layers.GINConvolution
    assert kb.layers.HGTConv is kb.layers.HGTConvolution
    assert kb.layers.PNAConv is kb.layers.PNAConvolution
    assert kb.layers.ResGatedGraphConv is kb.layers.GatedGraphConvolution
    assert kb.layers.RGCNConv is kb.layers.RGCNConvolution
    assert kb.layers.SAGEConv is kb.layers.SAGEConvolution
    assert kb.layers.GraphNorm is kb.layers.GraphNormalization
    assert kb.layers.PairNorm is kb.layers.PairNormalization
    assert kb.preprocessing.KNNGraph is kb.preprocessing.KNearestGraph
    assert kb.visualization is kb.plotting
    assert importlib.import_module("keras_bandgnn.visualization") is kb.plotting
    assert "visualization" in dir(kb)


def code_for_users():
    """The Python of pages and examples, without benchmarks."""
    root = DOCS.parent
    for page in [*sorted(DOCS.rglob("*.md")), root / "README.md"]:
        text = page.read_text()
        for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
            yield page.name, ast.parse(block)
    examples = [*(root / "examples").glob("*.py")]
    examples += (root / "examples" / "keras_io").glob("*.py")
    for example in sorted(examples):
        yield example.name, ast.parse(example.read_text())


def not_public(dotted):
    """The part of a dotted name of the library that no room lists, or None."""
    value, name = keras_bandgnn, "keras_bandgnn"
    for part in dotted.split(".")[1:]:
        if not isinstance(value, ModuleType):
            return None
        name = f"{name}.{part}"
        names = getattr(value, "__all__", [part])
        # Pages say of these that they are experimental.
        if part not in [*names, *getattr(value, "EXPERIMENTAL", ())]:
            return name
        value = getattr(value, part)
    return None


def test_primitives_is_another_name_of_plans():
    kb = keras_bandgnn
    assert all(
        getattr(kb.primitives, name) is getattr(kb.plans, name)
        for name in kb.plans.__all__
    )


@pytest.mark.parametrize("room", ["preprocessing", "training"])
def test_experimental_names_are_importable_but_not_public(room):
    package = getattr(keras_bandgnn, room)
    for name in package.EXPERIMENTAL:
        assert getattr(package, name).__name__ == name and name not in package.__all__


def test_docs_and_examples_use_public_names_only():
    # The study of attention kernels times them as `planning` does.
    measured = "keras_bandgnn.ops.compiled_timer_step"
    imported, wrong = {}, []
    for where, tree in code_for_users():
        names = imported.setdefault(where, {})
        used = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                home = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                for alias in node.names:
                    name = f"{home}{alias.name}"
                    if name.partition(".")[0] == "keras_bandgnn":
                        used.append(name)
                        plain = name if home else "keras_bandgnn"
                        names[alias.asname or plain.rpartition(".")[2]] = name
        for node in ast.walk(tree):
            path = []
            while isinstance(node, ast.Attribute):
                path.insert(0, node.attr)
                node = node.value
            if path and isinstance(node, ast.Name) and node.id in names:
                used.append(".".join([names[node.id], *path]))
        found = {not_public(name) for name in used} - {None, measured}
        wrong += [f"{where}: {name}" for name in found]
    assert not wrong, "\n".join(wrong)


def run(code):
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()


# Imported on use; they take a quarter of a second.
ON_USE = (
    "assembly.block_assembler assembly.schedule_assembler cli data.converters.pyg "
    "data.converters.smiles data.datasets data.store data.store_writer explain "
    "models.calculator models.ensemble models.inspection "
    "models.labelled_graphs models.last_layer_laplace models.layerwise models.presets "
    "planning.cost planning.plan_choice plotting "
    "preprocessing.attention.conditions preprocessing.attention.elastic_tuner "
    "preprocessing.forecast preprocessing.loading.link_loader "
    "preprocessing.loading.sample_loader preprocessing.loading.sequence_loader "
    "preprocessing.sampling.sample_assembler programs.encode programs.function_source "
    "programs.linting programs.python_source programs.models.joint_selection workers "
    "saving.preset_hub serving.exporting "
    "serving.graph_packer testing tpu training.recompile_guard "
    "training.save_progress training.time_to_accuracy tuning"
).split()


def test_import_after_keras_leaves_what_registers_nothing_for_its_use():
    # Keras imports scikit-learn where it is installed, which imports SciPy.
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import keras; before = set(sys.modules)\n"
        "import keras_bandgnn\n"
        "heavy = {'scipy', 'rdkit', 'ase', 'pandas', 'networkx', 'matplotlib'}\n"
        "classes = keras.saving.get_custom_objects().values()\n"
        "names = {n for n in sys.modules if n.startswith('keras_bandgnn.')}\n"
        "print(*names, '|', *{cls.__module__ for cls in classes})\n"
        "print('|', *(heavy & (set(sys.modules) - before)))"
    )
    modules, classes, heavy = (
        {name.removeprefix("keras_bandgnn.") for name in names.split()}
        for names in run(code).split("|")
    )
    assert not heavy
    early = {
        room
        for room in ON_USE
        for name in modules
        if name == room or name.startswith(f"{room}.")
    }
    assert not early, f"import them in the functions that use them: {sorted(early)}"
    # 295 modules took 0.4 s where Python kept no bytecode.
    others = modules - classes
    assert len(others) <= 151, "a module that registers nothing is imported on use"


@pytest.mark.every_backend
@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="it is used")
@pytest.mark.release(elsewhere=True)
def test_training_and_files_import_no_other_backend_and_print_nothing(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    code = (
        "import sys, keras, keras_bandgnn as kb\n"
        "graphs = [kb.Graph(2, [0], [1], node={'kind': [0, 1]}, label=0)] * 4\n"
        "task = kb.models.GraphClassifier(kb.models.GCNBackbone({'kind': 2}, 4), 2)\n"
        "task.fit(graphs, verbose=0); task.evaluate(graphs, verbose=0)\n"
        "task.predict(graphs)\n"
        f"task.save_to_preset({str(tmp_path / 'preset')!r})\n"
        f"task.save({str(tmp_path / 'task.keras')!r})\n"
        f"kb.models.Task.from_preset({str(tmp_path / 'preset')!r}).predict(graphs)\n"
        "print('tensorflow' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


def test_registered_names_are_a_file_format():
    assert not NAMES["lost"](), f"files name {NAMES['lost']()}: register them again"


def documented(value):
    """The functions of a public name, each with the docstring of its arguments."""
    if not inspect.isclass(value):
        yield value, value.__doc__
        return
    yield value.__init__, value.__doc__
    for name, method in vars(value).items():
        method = inspect.unwrap(getattr(method, "__func__", method))
        if not name.startswith("_") and inspect.isfunction(method):
            yield method, method.__doc__


@pytest.mark.parametrize("module", ROOMS)
def test_sections_of_arguments_are_complete(module):
    wrong = []
    room = importlib.import_module(module)
    for value in (getattr(room, name) for name in sorted(room.__all__)):
        for function, text in documented(value) if callable(value) else ():
            section = re.search(r"^ *Args:\n(.*?)(\n\n|\Z)", text or "", re.M | re.S)
            if not section or not inspect.isfunction(function):
                continue
            variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            parameters = inspect.signature(function).parameters.values()
            names = {each.name for each in parameters if each.kind not in variadic}
            # An entry may have several: "rows, columns: ..."
            entries = re.findall(r"^ *((?:\w+, )*\w+):", section[1], re.M)
            missing = names - {"self", "cls"} - set(", ".join(entries).split(", "))
            wrong += [f"{function.__qualname__}: {each}" for each in sorted(missing)]
    assert not wrong, f"add to `Args:` of the docstrings: {wrong}"


def test_pages_of_names_are_the_ones_that_the_script_writes():
    for page, text in (NAMES["pages"]() | NAMES["stubs"]()).items():
        message = "public names have changed: run `python docs/names.py` and commit"
        assert (DOCS / page).read_text() == text, message


def test_the_reference_has_no_page_of_a_name_that_left():
    pages = {f"api/{p.relative_to(DOCS / 'api')}" for p in (DOCS / "api").rglob("*.md")}
    assert pages == {page for page in NAMES["pages"]() if page.startswith("api/")}


def test_every_backbone_has_its_figure_and_equation():
    backbones = NAMES["BACKBONES"]
    names = {n for n in keras_bandgnn.models.__all__ if n.endswith("Backbone")}
    message = "add the backbone to FIGURES of docs/backbones.py"
    assert names - set(backbones["WITHOUT"]) == set(backbones["FIGURES"]), message
    for path, svg in backbones["drawings"]().items():
        assert (DOCS / path).read_text() == svg, "run `python docs/backbones.py`"


def test_the_reference_has_every_public_name():
    pages = [DOCS / "api.md", *(DOCS / "api").rglob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    shown = set(re.findall(r"^::: .*?(\w+)$", text, re.M))
    for room in ROOMS[1:]:
        assert set(importlib.import_module(room).__all__) - {"Graph"} <= shown
