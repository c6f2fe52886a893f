"""Writes `public-names.md` and `api.md`: every public name and its description.

python docs/names.py

Names come from `__all__`, descriptions from the first lines of docstrings.
`tests/test_public_api.py` checks that the committed pages are the ones written here.
"""

import importlib
import re
from pathlib import Path

import keras_bandgnn

FOLDER = Path(__file__).parent
TITLES = {
    "data": "Data",
    "programs": "Program graphs",
    "preprocessing": "Preprocessing",
    "primitives": "Primitives and plans",
    "planning": "Choosing a plan",
    "layers": "Layers",
    "models": "Models",
    "training": "Training",
    "distribution": "Distribution",
    "serving": "Exporting and serving",
    "tuning": "Tuning",
    "plotting": "Figures",
    "ops": "Tensor functions",
}
# Values without a docstring.
CONSTANTS = {
    "RELATIONS": (
        "programs.program_graph",
        "Relations of C# program graphs; the position of each is its edge type.",
    )
}
# What public functions return, and bases of public classes.
RESULTS = (
    "preprocessing.loading.graph_loader.LoaderStats",
    "preprocessing.attention.conditions.AttentionConditions",
    "preprocessing.ordering.cluster_compile.ClusterOrder",
    "preprocessing.forecast.choose_batcher.BatcherChoice",
    "models.graph_transformer.graph_transformer_backbone.GraphTransformerBackbone",
    "training.time_to_accuracy.TrainingClock",
    "training.selection_report.Suspicion",
    "tuning.hypermodel.Objective",
    "distribution.replica_group.ReplicaGroup",
)
NAMES = """\
# Public names

All names that are public, by the module that has them; [API](api.md) has their
arguments. Other names are internal and may change in any version. Modules load at first
use, so that `import keras_bandgnn as kb` is quick.
"""
API = """\
# API

The reference of all [public names](public-names.md). Names that are not listed here are
internal and may change.

## Graphs

::: keras_bandgnn.graph.Graph

::: keras_bandgnn.batch
"""


def entry(room: str, name: str) -> tuple[str, str]:
    """Return where a public name is defined, and its meaning."""
    if name in CONSTANTS:
        home, meaning = CONSTANTS[name]
        return f"keras_bandgnn.{home}.{name}", meaning
    value = getattr(importlib.import_module(f"keras_bandgnn.{room}"), name)
    first = value.__doc__.strip().partition("\n\n")[0]
    # Each backend has its own; the pages show one.
    home = re.sub(r"(?<=ops\.backend\.)\w+", "jax", value.__module__)
    return f"{home}.{name}", " ".join(first.split())


def row(room: str, name: str) -> str:
    """Return a row of the table of names."""
    place, meaning = entry(room, name)
    return f"| [`{name}`](api.md#{place}) | {meaning} |\n".replace("`|`", "`\\|`")


def pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    missing = set(keras_bandgnn.__all__) - {*TITLES, "Graph", "batch", "__version__"}
    assert not missing, f"add {missing} to TITLES"
    names, api = NAMES, API
    table = "\n| name | meaning |\n| --- | --- |\n"
    names += "\n## keras_bandgnn\n" + table
    graph = keras_bandgnn.Graph.__doc__.partition("\n")[0]
    names += f"| [`Graph`](api.md#keras_bandgnn.graph.Graph) | {graph} |\n"
    names += "| [`batch`](api.md#keras_bandgnn.batch) | The batch contract; `unbatch` "
    names += "cuts outputs into those of each graph. |\n"
    for room, title in TITLES.items():
        module = importlib.import_module(f"keras_bandgnn.{room}")
        listed = sorted(module.__all__, key=str.lower)
        names += f"\n## keras_bandgnn.{room}\n" + table
        names += "".join(row(room, name) for name in listed)
        api += f"\n## {title}\n"
        for name in listed:
            api += f"\n::: {entry(room, name)[0]}\n"
    api += "\n## Results and base classes\n\nPublic functions return them, or public "
    api += "classes inherit from them.\n"
    for place in RESULTS:
        api += f"\n::: keras_bandgnn.{place}\n"
    return {"public-names.md": names, "api.md": api}


if __name__ == "__main__":
    for page, text in pages().items():
        (FOLDER / page).write_text(text)
