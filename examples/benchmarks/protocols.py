"""Published protocols: data sets, splits, metrics and the settings of training."""

import argparse
import dataclasses
import inspect
import json
from collections.abc import Callable, Iterator

from keras_bandgnn import checks

# === Protocols ===


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How a data set is split, and what counts.

    Attributes:
        metric: "accuracy", "auc", "mae" or "rmse".
        split: "official", "public", "by class", "shchur", "given" or "scaffold".
        seeds: Seeds, draws or splits to average over.
        name: Name of the data set in `kb.data.load`.
        licence: Licence of the data, for the card of a preset.
        what: What is predicted of what, for the card.
    """

    metric: str
    split: str
    seeds: int
    name: str
    licence: str
    what: str

    @property
    def level(self) -> str:
        """Whether nodes or graphs are labelled."""
        return "graph" if self.split in ("official", "scaffold") else "node"

    @property
    def higher(self) -> bool:
        """Whether higher scores are better."""
        return self.metric in ("accuracy", "auc")


_PLANETOID = "citations of public papers; no licence is stated"
_SHCHUR = "MIT (gnn-benchmark)"
_OPEN = "MIT (heterophilous-graphs)"
_MOLECULENET = "MIT (MoleculeNet)"
# Data set -> what is predicted of what.
_NODES = {
    "amazon_computers": "categories of computers in a shop",
    "amazon_photo": "categories of photographic goods in a shop",
    "coauthor_cs": "fields of authors of computer science",
}
_HETEROPHILOUS = {
    "roman_empire": ("accuracy", "syntactic roles of the words of an article"),
    "amazon_ratings": ("accuracy", "ratings of products"),
    "minesweeper": ("auc", "mines on a board"),
    "tolokers": ("auc", "workers who were banned"),
    "questions": ("auc", "users who stay active"),
}
_MOLECULES = {
    "esol": ("rmse", "solubility of molecules in water, log10 of mol/l"),
    "freesolv": ("rmse", "hydration free energy of molecules, kcal/mol"),
    "lipo": ("rmse", "lipophilicity of molecules, log D"),
    "bbbp": ("auc", "molecules that pass the blood-brain barrier"),
    "bace": ("auc", "inhibitors of human beta-secretase 1"),
    "hiv": ("auc", "molecules that inhibit the replication of HIV"),
    "tox21": ("auc", "toxicity of molecules in twelve assays"),
}
_PAPERS = "topics of papers"
PROTOCOLS = {
    "zinc": Protocol(
        *("mae", "official", 3, "zinc", "ZINC is free to use"),
        "penalised logP of drug-like molecules, each term normalised",
    ),
    "cora": Protocol("accuracy", "public", 10, "cora", _PLANETOID, _PAPERS),
    "citeseer": Protocol("accuracy", "public", 10, "citeseer", _PLANETOID, _PAPERS),
    **{
        f"{name}_by_class": Protocol(
            "accuracy", "by class", 5, name, _PLANETOID, _PAPERS
        )
        for name in ("cora", "citeseer")
    },
    **{
        name: Protocol("accuracy", "shchur", 20, name, _SHCHUR, what)
        for name, what in _NODES.items()
    },
    **{
        name: Protocol(metric, "given", 10, name, _OPEN, what)
        for name, (metric, what) in _HETEROPHILOUS.items()
    },
    **{
        name: Protocol(metric, "scaffold", 3, name, _MOLECULENET, what)
        for name, (metric, what) in _MOLECULES.items()
    },
}


# === Models ===

NODE = {
    "hidden_dim": 64,
    "num_layers": 2,
    "dropout": 0.5,
    "rate": 0.01,
    "decay": 5e-4,
    "epochs": 1000,
    "patience": 100,
}
GRAPH = {
    "hidden_dim": 64,
    "num_layers": 5,
    "dropout": 0.1,
    "rate": 1e-3,
    "decay": 1e-5,
    "epochs": 100,
    "patience": 30,
    "batch": 128,
}
DEEP = {"norm": "batch", "residual": True, "input_dropout": 0.2}
# Deviations from these, by data set and model; "" is every model.
SETTINGS = {
    ("zinc", ""): {
        "hidden_dim": 72,
        "num_layers": 6,
        "dropout": 0.0,
        "epochs": 150,
        "patience": 150,
        "walk": 20,
        # Atoms and bonds as the scores in print have them; False is RDKit's features,
        # which say what is in a ring.
        "published": True,
        "readout": "sum",
        "feed_forward": True,
    },
    # Luo et al. 2024.
    ("cora_by_class", "gcn"): {
        "hidden_dim": 512,
        "num_layers": 3,
        "dropout": 0.7,
        "rate": 1e-3,
        "activation_first": False,
        "first_kernel": True,
    },
    ("citeseer_by_class", "gcn"): {
        "hidden_dim": 512,
        "rate": 1e-3,
        "decay": 1e-2,
        "activation_first": False,
        "first_kernel": True,
    },
}
for _name in ("esol", "freesolv", "lipo"):
    SETTINGS[_name, ""] = {"num_layers": 3, "batch": 32, "readout": "sum"}
for _name in ("bbbp", "bace"):
    SETTINGS[_name, ""] = {"num_layers": 3, "batch": 32, "dropout": 0.3}
for _name in _NODES:
    # Shchur et al. 2018, as in their repository.
    SETTINGS[_name, ""] = {"monitor": "loss", "patience": 50, "epochs": 2000}
    SETTINGS[_name, "gcn"] = {"dropout": 0.8, "decay": 1e-3}
    SETTINGS[_name, "gat"] = {"dropout": 0.6, "attention_dropout": 0.3, "decay": 1e-2}
    SETTINGS[_name, "sage"] = {"dropout": 0.4, "decay": 5e-3, "rate": 3e-3}
for _name in ("roman_empire", "amazon_ratings", "minesweeper", "tolokers", "questions"):
    SETTINGS[_name, ""] = {
        **DEEP,
        "num_layers": 8,
        "dropout": 0.2,
        "decay": 0.0,
        "rate": 3e-3,
        "patience": 200,
        "residual": "linear",
    }
# Not options of a backbone.
TRAINING = (
    *("rate", "decay", "epochs", "patience", "batch", "walk", "readout"),
    *("published", "monitor"),
)


def backbones() -> dict[str, tuple[Callable, dict]]:
    """Return model name -> backbone and its own options for nodes."""
    from keras_bandgnn import models

    plain = {"norm": None, "residual": False}
    attention = {"num_heads": 8}
    return {
        "gcn": (models.GCNBackbone, {"last_kernel": False}),
        "gat": (models.GATBackbone, {"attention_dropout": 0.5, **attention}),
        "gatv2": (models.GATv2Backbone, plain),
        "sage": (models.SAGEBackbone, plain),
        "gine": (models.GINEBackbone, {}),
        "gatedgcn": (models.GatedGCNBackbone, {}),
        "pna": (models.PNABackbone, {}),
        "gps": (models.GPSBackbone, {}),
    }


MODELS = ("gcn", "gat", "gatv2", "sage", "gine", "gatedgcn", "pna", "gps")


def settings_of(options: argparse.Namespace) -> dict:
    """Return all settings of a run; those of the command line come last."""
    protocol = PROTOCOLS[options.set]
    found = dict(NODE if protocol.level == "node" else GRAPH)
    if protocol.level == "node":
        found |= backbones()[options.model][1]
    found |= SETTINGS.get((options.set, ""), {})
    found |= SETTINGS.get((options.set, options.model), {})
    if protocol.level == "graph" and options.model in ("gcn", "gat"):
        found |= {"norm": "batch", "residual": True, "activation_first": False}
    if options.model == "gps":
        # Its equations fix it.
        found.pop("residual", None)
    for item in options.setting:
        name, equals, value = item.partition("=")
        if not equals or not value:
            raise ValueError(
                f"Expected --setting NAME=VALUE. Received: --setting {item}."
            )
        try:
            found[name] = _WORDS[value] if value in _WORDS else json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    check_settings(options, found)
    return found


# Values as Python and the tables write them.
_WORDS = {"None": None, "True": True, "False": False}


def read_settings(options: argparse.Namespace) -> list[str]:
    """Return the names of the settings that a run reads."""
    from keras_bandgnn.models import Backbone

    protocol, (kind, _) = PROTOCOLS[options.set], backbones()[options.model]
    names = ["rate", "decay", "epochs", "patience", "monitor"]
    if protocol.level == "graph":
        names += ["batch", "walk", "readout"]
    names += ["published"] if protocol.split == "official" else []
    parameters = [
        parameter.name
        for owner in kind.__mro__
        if "__init__" in vars(owner) and issubclass(owner, Backbone)
        for parameter in inspect.signature(owner.__init__).parameters.values()
    ]
    # The data says what these are.
    given = ("self", "inputs", "edge_inputs", "num_edge_types", "args", "kwargs")
    return names + [name for name in dict.fromkeys(parameters) if name not in given]


def check_settings(options: argparse.Namespace, settings: dict) -> None:
    """Raise a ValueError for settings that a run cannot have, before it reads data."""
    from keras_bandgnn import models

    known = read_settings(options)
    for name in settings:
        if name not in known:
            raise ValueError(
                f"Expected settings that {options.model} on {options.set} has: "
                f"{', '.join(known)}. Received: {name}={settings[name]!r}."
            )
    for name in ("epochs", "patience", "batch", "walk"):
        if settings.get(name) is not None:
            checks.positive_int(name, settings[name])
    checks.positive_number("rate", settings["rate"])
    checks.non_negative_number("decay", settings["decay"])
    if "published" in settings:
        checks.boolean("published", settings["published"])
    if "monitor" in settings:
        metric = PROTOCOLS[options.set].metric
        checks.one_of("monitor", settings["monitor"], ("loss", metric))
    kind, _ = backbones()[options.model]
    backbone = kind(
        {"x": {"features": 1}},
        **{k: v for k, v in settings.items() if k not in TRAINING},
    )
    if settings.get("readout") is not None:
        models.GraphRegressor(backbone, readout=settings["readout"])


# === Data ===


def node_graphs(options) -> Iterator:
    """Yield the graph with the masks of one split after the other, and its seed."""
    from keras_bandgnn import data, preprocessing

    protocol = PROTOCOLS[options.set]
    graph = data.load(protocol.name, path=options.path)[0]
    count = options.seeds or protocol.seeds
    if protocol.split == "public":
        for seed in range(count):
            yield graph, seed
        return
    if protocol.split == "by class":
        # One split for all seeds, as in the program of Luo et al.
        split = preprocessing.RandomNodeSplit(train=20, valid=500, test=1000, seed=0)
        graph = split(without_masks(graph))
        for seed in range(count):
            yield next(iter(preprocessing.node_splits(graph))), seed
        return
    if protocol.split == "shchur":
        graph = without_masks(graph)
        # Whether a word is there, as in their repository.
        node = {name: (x > 0).astype("float32") for name, x in graph.node.items()}
        graph = graph.replace(node=node)
        graph = preprocessing.shchur_splits(graph, num_splits=count)
    graphs = preprocessing.node_splits(graph)
    for seed, split in zip(range(count), graphs, strict=False):
        yield split, seed


def without_masks(graph):
    """Return a graph without the splits that its file has."""
    node = {k: v for k, v in graph.node.items() if not k.endswith("_mask")}
    return graph.replace(node=node)


def load_options(protocol: Protocol, settings: dict) -> dict:
    """Return what a run gives `kb.data.load` beside the name of its data set."""
    if protocol.split == "scaffold":
        return {"split_by": "scaffold"}
    if protocol.split == "official" and settings["published"]:
        return {"features": "benchmark"}
    return {}


def molecules(options, settings):
    """Return the training, validation and test graphs.

    Molecules that are given as SMILES are encoded as `SmilesEncoder` does, so that a
    preset takes SMILES.
    """
    from keras_bandgnn import data, preprocessing

    protocol = PROTOCOLS[options.set]
    given = load_options(protocol, settings)
    parts = [
        list(data.load(protocol.name, part, path=options.path, **given))
        for part in ("train", "valid", "test")
    ]
    if protocol.metric == "auc" and parts[0][0].label.size == 1:
        parts = [[g.replace(label=int(g.label.item())) for g in p] for p in parts]
    if is_encoded(protocol, parts[0]):
        encode = preprocessing.SmilesEncoder()
        parts = [
            [encode(g.info["smiles"]).replace(label=g.label) for g in part]
            for part in parts
        ]
    return parts


def is_encoded(protocol: Protocol, graphs) -> bool:
    """Return whether molecules are encoded as `SmilesEncoder` does."""
    return protocol.split == "scaffold" and "smiles" in graphs[0].info


def inputs_of(graphs, level: str, names) -> dict:
    """Return the inputs of an encoder for features: ids in columns, or numbers."""
    found = {}
    for name in names:
        values = [getattr(graph, level)[name] for graph in graphs]
        if values[0].dtype.kind == "f":
            found[name] = {"features": values[0].shape[1]}
        elif values[0].ndim == 1:
            found[name] = {"ids": 1 + max(int(v.max(initial=0)) for v in values)}
        else:
            tops = [v.max(axis=0, initial=0) for v in values]
            found[name] = {
                "columns": [1 + int(t) for t in map(max, zip(*tops, strict=True))]
            }
    return found
