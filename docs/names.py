"""Writes `public-names.md`, `api.md`, `api/` and the stubs: every public name.

python docs/names.py

Layers and the classes of `models` have a page each, in `api/layers/` and `api/models/`,
which `docs/hooks.py` puts into the menu. Names come from `__all__` and Keras' registry.
`tests/test_public_api.py` checks that the committed pages are the ones written here.
"""

import importlib
import inspect
import re
import runpy
from pathlib import Path

import keras

import keras_bandgnn

FOLDER = Path(__file__).parent
BACKBONES = runpy.run_path(str(FOLDER / "backbones.py"))
TITLES = {
    "data": "Data",
    "programs": "Program graphs",
    "preprocessing": "Preprocessing",
    "plans": "Plans and primitives",
    "layers": "Layers",
    "models": "Models",
    "training": "Training",
    "explain": "Explanations",
    "distribution": "Distribution",
    "config": "Settings of the process",
    "serving": "Exporting and serving",
    "tuning": "Tuning",
    "plotting": "Figures",
    "ops": "Tensor functions",
}
# Sections of the page of a package, with patterns of names; the first match counts.
GROUPS = {
    "data": {
        "From other libraries": "from_.*|graphs_of|read_.*",
        "To other libraries": "to_.*",
        "Data sets": "load|list_datasets|Limits|scaffold_split",
        "Links": ".*[lL]ink.*|NodePairs|check_leaks",
        "Graphs on disk and in columns": ".*",
    },
    "preprocessing": {
        "Neighbours of atoms": "RadiusGraph|KNearestGraph|FullyConnectedGraph",
        "Batchers": ".*Batcher",
        "Preprocessor and loaders": "GraphPreprocessor|(Graph|Sequence)?Loader",
        "Links": "LinkLoader|NegativeSampler|SharedNegatives",
        "Large graphs": ".*Sampler|SampleLoader",
        "Transforms and splits": "ToUndirected|AddSelfLoops|LargestComponent"
        "|NormalizeFeatures|RandomNodeSplit|.*_splits",
        "Graph transformers": "Attention.*|ClusterCompile|StructuralEncoding",
        "Graph layers": ".*",
    },
    "plans": {
        "Primitives": "Banded|BlockSparse|Dense|Grouped|Segment|Supernode|Primitive",
        "Plans": ".*",
    },
    "layers": {
        "Messages and attention": "BandedMessagePassing|.*Convolution|GraphAttention.*"
        "|DualInterleavedAttention|GraphTransformerLayer|AttentionBias|GRUUpdate",
        "Encoders": ".*Encoder|ElementEmbedding|SignNet|HarmonicEncoding",
        "Norms": ".*Normalization",
        "Readouts and heads": ".*Readout|ReadoutHead|LinkScorer|CumulativeLink",
        "Pooling": ".*Pooling|pooled_batch",
        "Molecules and crystals": ".*",
    },
    "models": {
        "Tasks": ".*(Classifier|Regressor|Selector|Selection)|LinkPredictor|Task"
        "|Ensemble|LastLayerLaplace",
        "Backbones": ".*Backbone",
        "Presets and results": ".*",
    },
    "training": {
        "Callbacks": "Recompil.*|SaveProgress|Time.*",
        "Optimisers and schedules": ".*Decay|make_optimizer|enable_.*",
        "Losses, metrics and reports": ".*",
    },
    "tuning": {"Hypermodels": ".*HyperModel", "Searches": ".*"},
}
# Packages whose classes have a page each.
SPLIT = ("layers", "models")
# Values without a docstring.
CONSTANTS = {"RELATIONS": "programs.program_graph"}
# What public functions return, and bases of public classes.
RESULTS = (
    "preprocessing.loading.batch_builder.LoaderStats",
    "preprocessing.attention.conditions.AttentionConditions",
    "preprocessing.ordering.cluster_compile.ClusterOrder",
    "preprocessing.forecast.choose_batcher.BatcherChoice",
    "models.graph_transformer.graph_transformer_backbone.GraphTransformerBackbone",
    "models.classification_task.ClassificationTask",
    "models.regression_task.RegressionTask",
    "models.masked_task.MaskedTask",
    "models.pair_task.PairTask",
    "models.recommendations.Recommendations",
    "training.time_to_accuracy.TrainingClock",
    "programs.models.selection_report.Suspicion",
    "tuning.hypermodel.Objective",
    "distribution.replica_group.ReplicaGroup",
)
NAMES = """\
# Public names

All names that are public, by the module that has them, with links to their descriptions
in the [API](api.md). Other names are internal and may change in any version.
"""
FILES = """
## Names in files

Files refer to classes and functions by these names, which never change: the page is
not written while one of them is not registered.

"""
API = """\
# API

The reference of all [public names](public-names.md). Names that are not listed here are
internal and may change.

| package | |
| --- | --- |
"""


def place_of(room: str, name: str) -> str:
    """Return where a public name is defined."""
    if name in CONSTANTS:
        return f"keras_bandgnn.{CONSTANTS[name]}.{name}"
    value = getattr(importlib.import_module(f"keras_bandgnn.{room}"), name)
    # Each backend has its own; the pages show one.
    home = re.sub(r"(?<=ops\.backend\.)\w+", "jax", value.__module__)
    return f"{home}.{name}"


def has_page(room: str, name: str) -> bool:
    """Return whether a public name has a page of its own."""
    package = importlib.import_module(f"keras_bandgnn.{room}")
    return room in SPLIT and inspect.isclass(getattr(package, name))


def link(room: str, name: str) -> str:
    """Return a name with a link to its description."""
    if has_page(room, name):
        return f"[`{name}`](api/{room}/{name}.md)"
    return f"[`{name}`](api/{room}.md#{place_of(room, name)})"


def reference(places) -> str:
    """Return what mkdocs replaces with the docstrings of some places."""
    return "".join(f"\n::: {place}\n" for place in places)


def summary(room: str, name: str) -> str:
    """Return the first sentence of a docstring, for a cell of a table."""
    value = getattr(importlib.import_module(f"keras_bandgnn.{room}"), name)
    first = " ".join(inspect.getdoc(value).partition("\n\n")[0].split())
    return first.replace("|", "\\|")


def class_page(room: str, name: str) -> str:
    """Return the page of a class."""
    page = f"# {name}\n\n`keras_bandgnn.{room}.{name}`\n\n"
    if name in BACKBONES["FIGURES"]:
        page += BACKBONES["section"](name)
    page += f"\n::: {place_of(room, name)}\n    options:\n"
    return page + "      heading: Reference\n      heading_level: 2\n"


def section_of(room: str, names: list[str]) -> str:
    """Return a section of a package: a table of pages, or the docstrings."""
    with_page = [name for name in names if has_page(room, name)]
    text = ""
    if with_page:
        text += "\n| class | |\n| --- | --- |\n"
    for name in with_page:
        text += f"| [`{name}`]({room}/{name}.md) | {summary(room, name)} |\n"
    return text + reference(
        place_of(room, name) for name in names if name not in with_page
    )


def package_page(room: str, names: list[str]) -> str:
    """Return the page of a package, in sections."""
    page = f"# {TITLES[room]}\n\n`keras_bandgnn.{room}`\n"
    sections = {}
    groups = GROUPS.get(room, {"": ".*"})
    for name in names:
        title = next(t for t, names in groups.items() if re.fullmatch(names, name))
        sections.setdefault(title, []).append(name)
    for title in [title for title in groups if title in sections]:
        page += f"\n## {title}\n" if title else ""
        page += section_of(room, sections[title])
    places = [place_of(room, name) for name in experimental(room)]
    if room == "plans":
        planning = importlib.import_module("keras_bandgnn.planning")
        places += [place_of("planning", name) for name in planning.__all__]
    if places:
        page += (
            "\n## Experimental\n\nOutside of the promise of version 1.0: these names "
        )
        page += "may change in any release.\n" + reference(places)
    return page


def registered() -> list[str]:
    """Return the names that Keras knows the classes of the library by."""
    return sorted(
        name
        for name, value in keras.saving.get_custom_objects().items()
        # Users and tests register classes of their own.
        if name.startswith("keras_bandgnn>")
        and value.__module__.startswith("keras_bandgnn.")
    )


def lost() -> set[str]:
    """Return the names on the committed page that nothing is registered by."""
    committed = (FOLDER / "public-names.md").read_text().partition(FILES)[2]
    return set(re.findall(r"`(keras_bandgnn>\w+)`", committed)) - set(registered())


def experimental(room: str) -> list[str]:
    """Return the names of a package that are not among its public ones yet."""
    module = importlib.import_module(f"keras_bandgnn.{room}")
    return getattr(module, "EXPERIMENTAL", [])


def pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    missing = set(keras_bandgnn.__all__) - {*TITLES, "Graph", "batch", "__version__"}
    assert not missing, f"add {missing} to TITLES"
    navigation = (FOLDER.parent / "mkdocs.yml").read_text()
    names, api, packages = NAMES, API, {}
    names += "\n## keras_bandgnn\n\n[`Graph`](api.md#keras_bandgnn.graph.Graph),\n"
    names += "[`batch`](api.md#keras_bandgnn.batch)\n"
    for room, title in TITLES.items():
        assert f"api/{room}.md" in navigation, f"add api/{room}.md to mkdocs.yml"
        module = importlib.import_module(f"keras_bandgnn.{room}")
        listed = sorted(module.__all__, key=str.lower)
        names += f"\n## keras_bandgnn.{room}\n\n"
        names += ",\n".join(link(room, name) for name in listed) + "\n"
        packages[f"api/{room}.md"] = package_page(room, listed)
        for name in listed:
            if has_page(room, name):
                packages[f"api/{room}/{name}.md"] = class_page(room, name)
        first = module.__doc__.partition("\n\n")[0]
        api += f"| [{title}](api/{room}.md) | `keras_bandgnn.{room}`: "
        api += f"{' '.join(first.split())} |\n"
    names += FILES + ",\n".join(f"`{name}`" for name in registered()) + "\n"
    api += "| [Results and base classes](api/results.md) | what public functions "
    api += "return, and what public classes inherit from |\n"
    api += "\n## Graphs\n"
    api += reference(["keras_bandgnn.graph.Graph", "keras_bandgnn.batch"])
    results = "# Results and base classes\n\nPublic functions return them, or public "
    results += "classes inherit from them.\n"
    results += reference(f"keras_bandgnn.{place}" for place in RESULTS)
    packages["api/results.md"] = results
    return {"public-names.md": names, "api.md": api, **packages}


def stubs() -> dict[str, str]:
    """Return the stub of each package whose names load on first use, by its path.

    Type checkers and editors read them in place of `__init__.py`.
    """
    head = "# Written by docs/names.py, for type checkers and editors.\n"
    rooms = [name for name in keras_bandgnn.__all__ if name in (*TITLES, "batch")]
    rooms += ["planning", "primitives", "visualization"]
    text = head
    for room in rooms:
        text += f"from keras_bandgnn import {room} as {room}\n"
    for name, home in (("Graph", "graph"), ("__version__", "version")):
        text += f"from keras_bandgnn.{home} import {name} as {name}\n"
    out = {"__init__.pyi": text}
    for room in rooms:
        module = importlib.import_module(f"keras_bandgnn.{room}")
        if not hasattr(module, "__getattr__"):
            continue
        text = head
        for name in sorted({*module.__all__, *experimental(room)}):
            home = place_of(room, name).rpartition(".")[0]
            text += f"from {home} import {name} as {name}\n"
        out[f"{room}/__init__.pyi"] = text
    return {f"../keras_bandgnn/{path}": text for path, text in out.items()}


if __name__ == "__main__":
    texts = pages() | stubs()
    assert not lost(), f"files name {sorted(lost())}: register them again"
    for room in SPLIT:
        (FOLDER / "api" / room).mkdir(parents=True, exist_ok=True)
        for page in (FOLDER / "api" / room).glob("*.md"):
            if f"api/{room}/{page.name}" not in texts:
                page.unlink()
    for page, text in texts.items():
        (FOLDER / page).write_text(text)
