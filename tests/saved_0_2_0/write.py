"""Writes the files of this folder; see README.md. Runs on version 0.2.0 alone.

The functions that name graphs, backbones and tasks are read by the tests, too; they
state what the files hold.
"""

import inspect
import json
import lzma
import sys
import tarfile
import tempfile
from pathlib import Path

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn import layers, models, preprocessing, primitives

CLASSES, ELEMENTS = 3, (1, 6, 8)
INPUTS = {
    "kind": 4,
    "columns": [3, 2],
    "letters": {"characters": 5},
    "value": {"features": 3},
}
EDGES = {"bond": 3, "displacement": {"features": 3}}
SIGNS = {"kind": 4, "eigenvector": {"eigenvectors": 2}}
WIDTH = 4
SEEDS = {"train": 0, "predict": 1}
# Batchers of 0.2.0 count the padding graph.
_PADDING = int(
    "batch_size" in inspect.signature(preprocessing.DynamicBatcher.__init__).parameters
)


# === Graphs ===


def graph_of(rng, level: str, label=None, **options) -> kb.Graph:
    """A ring with chords in space, with every feature that a backbone reads."""
    size = int(rng.integers(4, 8))
    ring = np.stack([np.arange(size), (np.arange(size) + 1) % size])
    ends = np.concatenate([ring, ring[::-1], rng.integers(0, size, (2, 3))], axis=1)
    edges = ends.shape[1]
    node = {
        "kind": rng.integers(0, 4, size),
        "columns": np.stack([rng.integers(0, 3, size), rng.integers(0, 2, size)], 1),
        "letters": rng.integers(0, 30, (size, 5)),
        "share": rng.integers(1, 9, (size, 2)) / 8,
        "value": quarter(rng.normal(size=(size, 3))),
        "eigenvector": quarter(rng.normal(size=(size, 2))),
        "atomic_number": rng.choice(ELEMENTS, size),
        "position": quarter(np.arange(size)[:, None] + rng.normal(0, 0.3, (size, 3))),
        "force": quarter(rng.normal(size=(size, 3))),
    }
    bonds = {
        "bond": rng.integers(0, 3, edges),
        "displacement": quarter(rng.normal(0, 0.7, (edges, 3)) + 1.0),
    }
    return kb.Graph(
        size,
        *ends,
        edge_type=rng.integers(0, 2, edges),
        node=node,
        edge=bonds,
        context={"hot": float(rng.integers(3))},
        label=None if label is None else label(rng, size, edges),
        label_level=level,
        **options,
    )


def quarter(values) -> np.ndarray:
    """Numbers that every backend and every file holds exactly."""
    return np.round(np.asarray(values) * 64) / 64


LABELS = {
    "NodeSelector": ("graph", lambda r, n, e: int(r.integers(3))),
    "NodeClassifier": ("node", lambda r, n, e: r.integers(0, CLASSES, n)),
    "GraphClassifier": ("graph", lambda r, n, e: int(r.integers(CLASSES))),
    "GraphRegressor": ("graph", lambda r, n, e: quarter(r.normal(size=2))),
    "ForceRegressor": ("graph", lambda r, n, e: float(quarter(r.normal()))),
    "NodeRegressor": ("node", lambda r, n, e: quarter(r.normal(size=(n, 2)))),
    "BugLocalizer": ("edge", lambda r, n, e: np.arange(e) == r.integers(e)),
    "EdgeClassifier": ("edge", lambda r, n, e: r.integers(0, CLASSES, e)),
    "EdgeRegressor": ("edge", lambda r, n, e: quarter(r.normal(size=e))),
    "LinkPredictor": ("graph", None),
}


def graphs_for(task: str, part: str, types: int | None = None, count: int = 3) -> list:
    """Graphs with labels of a task; part is "train" or "predict".

    Types of edges are left out where a backbone has one type only.
    """
    level, label = LABELS[task]
    rng = np.random.default_rng([SEEDS[part], list(LABELS).index(task)])
    if task == "LinkPredictor":
        count = 1
    extra = {"candidates": [0, 2, 3], "slot": 1} if task == "NodeSelector" else {}
    graphs = [graph_of(rng, level, label, **extra) for _ in range(count)]
    return [g.replace(edge_type=None) if types == 1 else g for g in graphs]


# === Backbones ===

_FRAME = {
    "edge_inputs": EDGES,
    "norm": "layer",
    "activation": "gelu",
    "dropout": 0.1,
    "input_dropout": 0.2,
    "residual": "linear",
    "feed_forward": True,
    "jumping_knowledge": "max",
    "virtual_node": True,
    "ego_separation": True,
    "remat": True,
    "activation_first": True,
}
_FRAME_2 = {"num_edge_types": 2, "norm": "batch", "jumping_knowledge": "concat"}
_FRAME_3 = {"norm": "graph", "residual": False, "remat": True}
_PLAIN = {
    "num_edge_types": 2,
    "dropout": 0.1,
    "norm": "layer",
    "activation": "gelu",
    "input_dropout": 0.2,
    "residual": "linear",
    "activation_first": False,
}
_TRANSFORMER = {
    "ffn_dim": 6,
    "attention": "augment",
    "full_every": 3,
    "use_bias": False,
    "num_edge_types": 3,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "max_length": 12,
}
_TRANSFORMER_2 = {"remat": True, "fused": True, "edge_inputs": EDGES, "num_layers": 1}

# Name -> the options of each variant of it, most off their defaults.
BACKBONES = {
    "EmbeddingBackbone": [{"dropout": 0.1}, {"inputs": SIGNS}],
    "GATBackbone": [
        {"num_heads": 2},
        {**_PLAIN, "num_heads": 2, "attention_dropout": 0.1, "first_kernel": True},
        {
            "num_heads": 1,
            "num_layers": 1,
            "norm": "batch",
            "first_kernel": False,
            "virtual_node": True,
            "feed_forward": True,
            "remat": True,
            "jumping_knowledge": "concat",
        },
    ],
    "GCNBackbone": [
        {},
        {**_PLAIN, "last_kernel": False, "first_kernel": True},
        {
            **{"residual": True, "norm": "batch", "jumping_knowledge": "max"},
            **{"virtual_node": True, "feed_forward": True, "remat": True},
            **{"num_layers": 3, "num_edge_types": 2},
        },
    ],
    "GGNNBackbone": [
        {"num_steps": 2, "num_edge_types": 2},
        {"num_steps": 2, "num_edge_types": 2, "dropout": 0.1, "message_dropout": 0.1},
        {"num_steps": 1, "num_edge_types": 2, "edge_inputs": EDGES, "remat": True},
    ],
    "GTBackbone": [
        {"num_layers": 2, "num_heads": 2, "laplacian": 2},
        {"num_layers": 2, "num_heads": 2, "laplacian": 2, **_TRANSFORMER},
        {"num_heads": 1, "laplacian": 2, **_TRANSFORMER_2},
        {
            **{"num_layers": 1, "num_heads": 2, "laplacian": 2},
            **{"num_edge_types": 3, "attention": "conditions", "conditions_hold": True},
        },
    ],
    "GraphormerBackbone": [
        {"num_layers": 2, "num_heads": 2},
        {"num_layers": 2, "num_heads": 2, "max_degree": 5, **_TRANSFORMER},
        {"num_heads": 1, "max_degree": 7, **_TRANSFORMER_2},
        {
            **{"num_layers": 1, "num_heads": 2, "max_distance": 2},
            **{"global_token": True, "num_edge_types": 3},
        },
    ],
    "GATv2Backbone": [
        {"num_heads": 2, "num_layers": 2},
        {"num_heads": 1, "num_layers": 2, "attention_dropout": 0.1, **_FRAME},
    ],
    "GINEBackbone": [
        {"num_layers": 2},
        {"num_layers": 2, "train_epsilon": False, **_FRAME},
        {"num_layers": 2, **_FRAME_2},
    ],
    "GPSBackbone": [
        {"num_layers": 2, "num_heads": 2, "max_length": 9},
        {
            **{"num_layers": 2, "num_heads": 2, "local": "gatedgcn", **_FRAME},
            **{"attention": "periodic", "max_length": 9, "fused": True},
            **{"residual": True, "ego_separation": False, "activation_first": False},
        },
        {"num_layers": 1, "num_heads": 1, "local": None, "usual_length": 6},
        {"num_layers": 1, "num_heads": 1, "local": "pna", "delta": 1.5},
    ],
    "GatedGCNBackbone": [{"num_layers": 2}, {"num_layers": 2, **_FRAME}],
    "PNABackbone": [
        {"num_layers": 1},
        {
            **{"num_layers": 2, "aggregators": ("sum", "mean", "std"), **_FRAME},
            **{"scalers": ("identity", "attenuation"), "num_towers": 2, "delta": 1.5},
        },
        {"num_layers": 2, **_FRAME_3},
    ],
    "SAGEBackbone": [
        {"num_layers": 2},
        {"num_layers": 2, "reduce": "max", "normalize": True, **_FRAME},
        {"num_layers": 2, **_FRAME_3},
    ],
    "MPEUBackbone": [
        {"num_steps": 1, "num_gaussians": 6},
        {"num_steps": 2, "num_gaussians": 5, "reduce": "sum"},
    ],
    "PaiNNBackbone": [
        {"num_steps": 1, "num_functions": 4},
        {
            **{"num_steps": 2, "num_functions": 5, "basis": "sine"},
            **{"cutoff": 5.0, "epsilon": 1e-6},
        },
        {"num_steps": 1, "num_functions": 4, "element_cutoffs": {1: 3.0}},
    ],
    "SchNetBackbone": [
        {"num_steps": 1, "num_gaussians": 6},
        {
            **{"num_steps": 2, "num_gaussians": 5, "cutoff": 4.0, "reduce": "sum"},
            **{"use_bias": True, "activate_filters": False, "share_weights": True},
        },
        {
            "num_steps": 1,
            "num_gaussians": 6,
            "cutoff": 4.0,
            "element_cutoffs": {8: 3.5},
        },
    ],
}
ATOMISTIC = ("MPEUBackbone", "PaiNNBackbone", "SchNetBackbone")
TRANSFORMERS = ("GTBackbone", "GraphormerBackbone")
OF_EDGES = ("BugLocalizer", "EdgeClassifier", "EdgeRegressor")


def backbone_of(name: str, variant: int, edges: bool = False, dropout: bool = True):
    """A small backbone; variants are counted from 0, beyond the last from 0 again.

    Transformers name the edges to predict for, where a task predicts for edges.
    """
    variants = BACKBONES[name]
    options = dict(variants[variant % len(variants)])
    if not dropout:
        options = {key: v for key, v in options.items() if "dropout" not in key}
    if edges and name in TRANSFORMERS:
        options |= {"target_type": 0, "attention": "sparse", "conditions_hold": None}
    inputs = ELEMENTS if name in ATOMISTIC else options.pop("inputs", INPUTS)
    return getattr(models, name)(inputs, WIDTH, **options)


# === Preprocessors ===


def preprocessor_of(backbone, variant: int, edges: bool = False):
    """A preprocessor; what it holds changes with the number."""
    p, required = primitives, list(backbone.graph_layers())
    geometric = type(backbone).__name__ in ATOMISTIC
    neighbours = None if variant % 3 == 2 else 20
    before = (
        [preprocessing.RadiusGraph(4.0, neighbours)] if geometric and not edges else []
    )
    orders = [
        [],
        [preprocessing.RCMKCompile(4)],
        [preprocessing.RCMKCompile(4, "breadth_first")],
        [preprocessing.ClusterCompile(2, 4, "degree")],
    ]
    batchers = [
        preprocessing.DynamicBatcher(3 + _PADDING, packing="sequential"),
        preprocessing.StaticBatcher(2 + _PADDING, "64"),
        preprocessing.StaticBatcher(2 + _PADDING, "power_of_two", drop_trigger=True),
        preprocessing.DynamicBatcher(
            2 + _PADDING,
            budget={"node": 40, "edge": 200},
            **{"estimate": "mean", "window": 64, "estimate_from": 5},
        ),
    ]
    plans = [
        p.Plan(),
        p.Plan(p.Banded(4), p.Grouped(8)),
        p.Plan(p.Supernode(3), p.BlockSparse(4, 2)),
        p.Plan(p.Dense(8)),
    ]
    typed = backbone.num_edge_types and backbone.num_edge_types > 1
    attends = hasattr(backbone, "attention")
    plan = plans[variant % 4] if typed and not attends else plans[0]
    layers_ = [*before, *required, *orders[variant % 4]]
    return preprocessing.GraphPreprocessor(layers_, batchers[variant % 4], plan)


def preprocessors() -> dict:
    """Name -> a preprocessor on its own, and raw items for it."""
    import networkx as nx

    p = preprocessing
    graphs = graphs_for("NodeClassifier", "train", 1, count=3)
    typed = graphs_for("NodeClassifier", "train", count=3)
    smiles = ["CCO", "c1ccccc1O", "C[C@H](N)C(=O)O"]
    networks = [nx.cycle_graph(n) for n in (4, 5)]
    for network in networks:
        nx.set_node_attributes(network, {n: "ab"[n % 2] for n in network}, "letter")
        nx.set_edge_attributes(network, {e: 0.5 * e[0] for e in network.edges}, "w")
    encoder = p.NetworkXEncoder()
    encoder.adapt(networks)
    layers_ = {
        "undirected": ([p.ToUndirected(), p.AddSelfLoops()], graphs),
        "normalized": ([p.NormalizeFeatures("share")], graphs),
        "component": ([p.LargestComponent()], graphs),
        "split": ([p.RandomNodeSplit(0.5, 0.25, None)], graphs),
        "structural": ([p.StructuralEncoding(max_degree=4, random_walk=3)], graphs),
        "laplacian": ([p.StructuralEncoding(laplacian=2)], graphs),
        "nearest": ([p.KNearestGraph(2)], graphs),
        "connected": ([p.FullyConnectedGraph()], graphs),
        "attention": ([p.AttentionEdges(max_distance=2, edge_types=True)], typed),
        "reachable": ([p.ReachabilityFilter(2)], typed),
        "smiles": ([p.SmilesEncoder()], smiles),
        "networkx": ([encoder], networks),
    }
    return {
        name: (p.GraphPreprocessor(stack, p.DynamicBatcher(2 + _PADDING)), items)
        for name, (stack, items) in layers_.items()
    }


# === Tasks ===

_SCALE = {"mean": [0.5], "std": [2.0]}
_NORMALIZER = {"mean": [0.5, 0.25], "std": [2.0, 1.5]}
_NAMES = {"class_names": ["a", "b", "c"]}

# Name -> the options of each variant of it, after the backbone and the outputs.
TASKS = {
    "NodeSelector": [
        {},
        {"readout": "slot", "label_smoothing": 0.1},
    ],
    "NodeClassifier": [
        {"num_classes": CLASSES},
        {"num_classes": CLASSES, **_NAMES},
        {"num_classes": CLASSES, "ordinal": True},
        {"num_classes": CLASSES, "multi_label": True},
    ],
    "GraphClassifier": [
        {"num_classes": CLASSES},
        {"num_classes": CLASSES, "readout": "attention", "hidden": 3, **_NAMES},
        {"num_classes": CLASSES, "readout": "sum", "ordinal": True, "use_bias": False},
        {"num_classes": CLASSES, "readout": "mean", "multi_label": True, "hidden": 2},
        {"num_classes": CLASSES, "readout": "GRUReadout", "activation": "relu"},
    ],
    "GraphRegressor": [
        {"num_targets": 2, "normalizer": _NORMALIZER},
        {"num_targets": 2, "normalizer": None, "target_names": ["p", "q"]},
        {"num_targets": 2, "normalizer": "atoms", "readout": "sum", "hidden": 3},
        {"num_targets": 2, "normalizer": None, "activation": "shifted_softplus"},
    ],
    "ForceRegressor": [
        {"normalizer": _SCALE},
        {"force_weight": 5.0, "normalizer": {"mean": [0.0], "std": [3.0]}},
        {
            **{"readout": "mean", "zbl": True, "normalizer": None},
            **{"stress_weight": 0.5, "stress_key": "virial", "per_atom": True},
            **{"force_key": "pull", "hidden": 3, "activation": "relu"},
        },
    ],
    "NodeRegressor": [
        {"num_targets": 2, "normalizer": _NORMALIZER},
        {"num_targets": 2, "normalizer": None, "target_names": ["p", "q"]},
    ],
    "BugLocalizer": [
        {"first_type": 0},
        {"first_type": 1, "hidden": 3, "min_confidence": 0.5},
    ],
    "EdgeClassifier": [
        {"num_classes": CLASSES, "edge_inputs": EDGES},
        {"num_classes": CLASSES, "symmetric": True, "hidden": 3, "use_bias": False},
        {"num_classes": CLASSES, "ordinal": True, **_NAMES},
        {"num_classes": CLASSES, "multi_label": True, "activation": "relu"},
    ],
    "EdgeRegressor": [
        {"edge_inputs": EDGES, "normalizer": _SCALE},
        {
            **{"symmetric": True, "hidden": 3, "normalizer": None},
            **{"target_names": ["p"], "activation": "relu", "use_bias": False},
        },
    ],
    "LinkPredictor": [
        {},
        {"head": "distmult", "num_relations": 2},
        {"head": "complex", "num_relations": 2, "objective": "softmax"},
        {"head": "mlp", "hidden": 3, "activation": "gelu", "symmetric": True},
        {"head": "bilinear", "num_relations": 2},
    ],
}


def _values(task: str, options: dict) -> dict:
    """Options that are objects, from how the tables name them."""
    options = dict(options)
    if options.get("readout") == "GRUReadout":
        options["readout"] = layers.GRUReadout(WIDTH, 2)
    if options.get("activation") == "shifted_softplus":
        options["activation"] = layers.shifted_softplus
    if options.get("normalizer") == "atoms":
        options["normalizer"] = preprocessing.TargetNormalizer(
            "atom",
            "atomic_number",
            {1: [-0.5, 0.0], 6: [-3.0, 1.0], 8: [-7.0, 2.0]},
            mean=[0.25, 0.5],
            std=[1.5, 2.0],
        )
    level = {"NodeRegressor": "node", "EdgeRegressor": "edge"}.get(task)
    if level and options.get("normalizer"):
        options["normalizer"] = preprocessing.TargetNormalizer(
            level, **options["normalizer"]
        )
    return options


def task_of(name: str, backbone: str, variant: int, dropout: bool = True):
    """A task over a backbone, compiled; the variant chooses the options of both."""
    edges = name in OF_EDGES
    body = backbone_of(backbone, variant, edges, dropout)
    options = _values(name, TASKS[name][variant % len(TASKS[name])])
    if not dropout:
        options.pop("label_smoothing", None)
    if backbone not in ATOMISTIC:
        options.pop("zbl", None)
    task = getattr(models, name)(
        body, preprocessor=preprocessor_of(body, variant, edges), **options
    )
    if name == "LinkPredictor":
        task.preprocessor.batcher = preprocessing.DynamicBatcher(2 + _PADDING)
    fill(task, variant)
    return task


def fill(task, seed: int) -> None:
    """Weights that are far from symmetric, and short to write down."""
    rng = np.random.default_rng(seed)
    for weight in task.trainable_weights:
        shape = tuple(weight.shape)
        scale = 0.3 if len(shape) < 2 else 0.7 / np.sqrt(np.prod(shape[:-1]))
        value = np.clip(rng.standard_normal(shape), -3, 3) * scale
        value = np.round(value * 64) / 64
        if "epsilon" in weight.path or not weight.trainable:
            continue
        weight.assign(value.astype("float32"))


def pairs_of(graphs) -> np.ndarray:
    """Pairs for a `LinkPredictor`: sender, receiver, type."""
    size = graphs[0].num_nodes
    ends = np.stack([np.arange(size), (np.arange(size) + 2) % size], 1)
    return np.concatenate([ends, np.arange(size)[:, None] % 2], 1)


def predict(name: str, task) -> list[np.ndarray]:
    """Predictions, one array per graph (all pairs in one for links)."""
    graphs = graphs_for(name, "predict", task.backbone.num_edge_types)
    if name == "LinkPredictor":
        pairs = pairs_of(graphs)[:, : 2 if task.head.num_relations is None else 3]
        return [np.asarray(task.predict(graphs[0], pairs, verbose=0))]
    rows = task.predict(graphs, verbose=0)
    # None for graphs that the batcher drops.
    return [np.asarray([] if row is None else row, "float32") for row in rows]


def cases() -> dict[str, tuple[str, str, int]]:
    """Name of a case -> task, backbone and variant: each task with each backbone."""
    table = {}
    for row, task in enumerate(TASKS):
        for column, backbone in enumerate(BACKBONES):
            if task == "ForceRegressor" and backbone not in ATOMISTIC:
                continue
            variant = row + column
            table[f"{task}-{backbone}"] = (task, backbone, variant)
    # Every variant of each, where the table above has not met it.
    for backbone in BACKBONES:
        for variant in range(len(BACKBONES[backbone])):
            task = "GraphRegressor" if backbone in ATOMISTIC else "GraphClassifier"
            table[f"{task}-{backbone}-{variant}"] = (task, backbone, variant)
    for task, variants in TASKS.items():
        for variant in range(len(variants)):
            backbone = "SchNetBackbone" if task == "ForceRegressor" else "GCNBackbone"
            table[f"{task}-{backbone}-{variant}"] = (task, backbone, variant)
    return table


# === Training ===


def trained_cases() -> dict[str, tuple[str, str, int]]:
    """Each backbone and each task once, for twenty steps of training."""
    table = {}
    for backbone in BACKBONES:
        task = "GraphRegressor" if backbone in ATOMISTIC else "NodeClassifier"
        table[f"{task}-{backbone}"] = (task, backbone, 0)
    for task in TASKS:
        backbone = "SchNetBackbone" if task == "ForceRegressor" else "GCNBackbone"
        table[f"{task}-{backbone}"] = (task, backbone, 0)
    return table


def train(name: str, backbone: str, variant: int):
    """A task after twenty steps of SGD without dropout, all graphs in one batch."""
    task = task_of(name, backbone, variant, dropout=False)
    graphs = graphs_for(name, "train", task.backbone.num_edge_types, 4)
    budget = {"node": 64, "edge": 256}
    task.preprocessor.batcher = preprocessing.StaticBatcher(
        7 + _PADDING, "64", budget=budget
    )
    task.preprocessor.plan = primitives.Plan()
    task.compile(keras.optimizers.SGD(0.01, momentum=0.5))
    if name == "LinkPredictor":
        pairs = pairs_of(graphs)[:, :2]
        options = {"epochs": 20, "verbose": 0, "batch_size": len(pairs)}
        # In 0.2.0, which lacks the argument, a pair and its reverse were two facts.
        if "undirected" in inspect.signature(task.fit).parameters:
            options["undirected"] = False
        task.fit(graphs[0], pairs, **options)
    else:
        task.fit(graphs, epochs=20, verbose=0)
    return task


# === Files ===


def rows_of(name: str, rows) -> dict:
    return {f"{name}/{number}": np.asarray(row) for number, row in enumerate(rows)}


def write_models(folder: Path) -> dict:
    arrays = {}
    for name, (task_name, backbone, variant) in cases().items():
        print(name, flush=True)
        task = task_of(task_name, backbone, variant)
        task.compile(keras.optimizers.Adam(0.01))
        task.save_to_preset(folder / "presets" / name)
        task.save(folder / "files" / f"{name}.keras")
        arrays |= rows_of(name, predict(task_name, task))
    return arrays


def write_trained(folder: Path) -> dict:
    arrays = {}
    for name, (task_name, backbone, variant) in trained_cases().items():
        print("training", name, flush=True)
        task = train(task_name, backbone, variant)
        task.save(folder / "trained" / f"{name}.keras")
        arrays |= rows_of(name, predict(task_name, task))
    return arrays


def write_loader(folder: Path) -> None:
    """The state of a loader in its second epoch, and what it gives next."""
    loader = loader_of(kb.data.open_store(folder / "graphs"))
    loader.on_epoch_end()
    state = loader.state_dict(batches=1)
    x, y, _ = loader.build(1, 1)
    (folder / "loader.json").write_text(json.dumps(state, indent=1) + "\n")
    np.savez(
        folder / "loader_batch.npz",
        value=x["node"]["value"],
        sender=x["edge"]["sender"],
        receiver=x["edge"]["receiver"],
        y=y,
    )


def loader_of(graphs):
    batcher = preprocessing.DynamicBatcher(2 + _PADDING, packing="sequential")
    return preprocessing.GraphLoader(graphs, batcher, primitives.Plan(), seed=5)


def write_preprocessors(folder: Path) -> None:
    """Each as a preset, and a store of what it gives."""
    for name, (preprocessor, items) in preprocessors().items():
        preprocessor.save_to_preset(folder / "preprocessors" / name)
        compiled = preprocessor.compile(items)
        kb.data.write_store(folder / "compiled" / name, compiled)


def pack(folder: Path, archive: Path) -> None:
    """One compressed archive; times and owners are left out."""

    def plain(entry):
        entry.mtime = entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 1 << 26}]
    with lzma.open(archive, "wb", filters=filters) as stream:
        with tarfile.open(fileobj=stream, mode="w") as tar:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    tar.add(path, path.relative_to(folder).as_posix(), filter=plain)


def main(folder: Path) -> None:
    assert kb.__version__ == "0.2.0", kb.__version__
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        for name in ("presets", "files", "trained", "preprocessors", "compiled"):
            (work / name).mkdir()
        np.savez_compressed(folder / "predictions.npz", **write_models(work))
        np.savez_compressed(folder / "trained.npz", **write_trained(work))
        kb.data.write_store(
            work / "graphs", graphs_for("GraphRegressor", "train", count=12)
        )
        write_loader(work)
        write_preprocessors(work)
        pack(work, folder / "saved.tar.xz")


if __name__ == "__main__":
    keras.utils.set_random_seed(0)
    main(Path(sys.argv[1]))
