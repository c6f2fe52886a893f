"""A small task of every class, and data for it.

A task that is exported from `kb.models` and missing here fails the tests that run over
all of them: add it to `TASKS`.
"""

import inspect

import keras
import numpy as np
from registered import SET_INPUTS, for_backbone

import keras_bandgnn as kb
from keras_bandgnn.models import Backbone, Task

NUM_CLASSES = 3
INPUTS = {"atomic_number": 9}
ELEMENTS = (1, 6, 8)
EDGES = {"displacement": {"features": 3}}


def graphs_of(count, seed=0, label=None, level="graph", **options):
    """Graphs of very different sizes, with what any backbone reads."""
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        size = int(rng.choice([3, 4, 9]))
        ends = np.stack([np.arange(size), (np.arange(size) + 1) % size])
        position = np.arange(size)[:, None] + rng.normal(0, 0.2, (size, 3))
        force = rng.normal(size=(size, 3))
        force[rng.uniform(size=size) < 0.3] = 0.0
        node = {
            # The first two nodes differ: no two candidates are alike.
            "atomic_number": np.r_[1, 8, rng.choice(ELEMENTS, size - 2)],
            "position": position,
            "force": force,
        }
        values = None if label is None else label(rng, size)
        graphs.append(
            kb.Graph(
                size,
                *np.concatenate([ends, ends[::-1]], axis=1),
                node=node,
                edge={"displacement": rng.normal(0, 1, (2 * size, 3)) + 2},
                label=values,
                label_level=level if values is not None else "graph",
                **options,
            )
        )
    return graphs


def with_labels(graphs, labels):
    """The same graphs with labels that a `Graph` refuses, such as NaN."""
    flat = kb.data.FlatGraphs.from_graphs(graphs)
    return kb.data.FlatGraphs.from_columns({**flat.columns(), "label/graph": labels})


def _selector(count, seed):
    def label(rng, size):
        return int(rng.integers(2))

    return graphs_of(count, seed, label, candidates=[0, 1], slot=1)


def _nodes(count, seed):
    def label(rng, size):
        # -1 is not known.
        return rng.integers(-1, NUM_CLASSES, size)

    return graphs_of(count, seed, label, "node")


def _classes(count, seed):
    # Some batches have no known label at all.
    def label(rng, size):
        return int(max(rng.integers(-NUM_CLASSES, NUM_CLASSES), -1))

    return graphs_of(count, seed, label)


def _targets(count, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, (count, 2)).astype("float32")
    labels[rng.uniform(size=labels.shape) < 0.4] = np.nan
    return with_labels(graphs_of(count, seed, lambda *_: 0.0), labels)


def _numbers(count, seed):
    rng = np.random.default_rng(seed)
    labels = rng.normal(size=(count, 2)).astype("float32")
    labels[rng.uniform(size=labels.shape) < 0.4] = np.nan
    return with_labels(graphs_of(count, seed, lambda *_: 0.0), labels)


def _node_numbers(count, seed):
    def label(rng, size):
        values = rng.normal(size=(size, 2))
        return np.where(rng.uniform(size=values.shape) < 0.4, np.nan, values)

    return graphs_of(count, seed, label, "node")


def _edge_classes(count, seed):
    def label(rng, size):
        return rng.integers(-1, NUM_CLASSES, 2 * size)

    return graphs_of(count, seed, label, "edge")


def _edge_numbers(count, seed):
    def label(rng, size):
        values = rng.normal(size=2 * size)
        return np.where(rng.uniform(size=2 * size) < 0.4, np.nan, values)

    return graphs_of(count, seed, label, "edge")


def _edge_choices(count, seed):
    def label(rng, size):
        return np.arange(2 * size) == rng.integers(2 * size)

    return graphs_of(count, seed, label, "edge")


def _links(count, seed):
    """One graph of several components, whose edges are the pairs."""
    graphs = graphs_of(count + 2, seed)
    starts = np.cumsum([0, *(graph.num_nodes for graph in graphs)])
    moved = list(zip(graphs, starts, strict=False))
    return [
        kb.Graph(
            int(starts[-1]),
            np.concatenate([graph.senders + start for graph, start in moved]),
            np.concatenate([graph.receivers + start for graph, start in moved]),
            node={
                n: np.concatenate([g.node[n] for g in graphs]) for n in graphs[0].node
            },
            edge={
                n: np.concatenate([g.edge[n] for g in graphs]) for n in graphs[0].edge
            },
        )
    ]


def _forces(count, seed):
    return graphs_of(count, seed, lambda rng, size: float(rng.normal()))


def _normalizer(*shape, mode="graph"):
    return kb.preprocessing.TargetNormalizer(
        mode, mean=np.zeros(shape).tolist(), std=np.full(shape, 2.0).tolist()
    )


# Name: a task over a backbone, and graphs with labels (number, seed).
TASKS = {
    "NodeSelector": (lambda b, **o: kb.models.NodeSelector(b, **o), _selector),
    "NodeClassifier": (
        lambda b, **o: kb.models.NodeClassifier(b, NUM_CLASSES, **o),
        _nodes,
    ),
    "GraphClassifier": (
        lambda b, **o: kb.models.GraphClassifier(b, NUM_CLASSES, **o),
        _classes,
    ),
    "GraphClassifier, several targets": (
        lambda b, **o: kb.models.GraphClassifier(b, 2, multi_label=True, **o),
        _targets,
    ),
    "GraphClassifier, ordered classes": (
        lambda b, **o: kb.models.GraphClassifier(b, NUM_CLASSES, ordinal=True, **o),
        _classes,
    ),
    "GraphRegressor": (
        lambda b, **o: kb.models.GraphRegressor(
            b, num_targets=2, normalizer=_normalizer(2), **o
        ),
        _numbers,
    ),
    "ForceRegressor": (
        lambda b, **o: kb.models.ForceRegressor(b, normalizer=_normalizer(1), **o),
        _forces,
    ),
    "NodeRegressor": (
        lambda b, **o: kb.models.NodeRegressor(
            b, 2, normalizer=_normalizer(2, mode="node"), **o
        ),
        _node_numbers,
    ),
    "BugLocalizer": (
        lambda b, **o: kb.models.BugLocalizer(b, first_type=0, **o),
        _edge_choices,
    ),
    "EdgeClassifier": (
        lambda b, **o: kb.models.EdgeClassifier(
            b, NUM_CLASSES, edge_inputs={"displacement": {"features": 3}}, **o
        ),
        _edge_classes,
    ),
    "LinkPredictor": (
        lambda b, **o: kb.models.LinkPredictor(b, "mlp", hidden=4, **o),
        _links,
    ),
    "EdgeRegressor": (
        lambda b, **o: kb.models.EdgeRegressor(
            b, normalizer=_normalizer(1, mode="edge"), symmetric=True, **o
        ),
        _edge_numbers,
    ),
}


def exported(base) -> set[str]:
    """Names of the classes of `kb.models` below a base, without bases of others."""
    found = {name: getattr(kb.models, name) for name in kb.models.__all__}
    return {
        name
        for name, cls in found.items()
        if isinstance(cls, type) and issubclass(cls, base) and cls is not base
    } - {"MessagePassingBackbone"}


# Small arguments of constructors, by name; further ones in some classes.
SMALL = {
    "elements": ELEMENTS,
    "inputs": INPUTS,
    "hidden_dim": 8,
    "num_layers": 1,
    "num_steps": 1,
    "num_heads": 2,
    "num_gaussians": 8,
}
MORE = {
    "GATBackbone": {"num_layers": 2},
    "GCNBackbone": {"num_layers": 2},
    "GGNNBackbone": {"num_steps": 2, "num_edge_types": 1},
    "GINEBackbone": {"virtual_node": True},
    "GPSBackbone": {"max_length": 9},
    "GatedGCNBackbone": {"feed_forward": True},
    "PNABackbone": {"norm": "graph"},
    "RGCNBackbone": {"num_bases": 2},
    "SAGEBackbone": {"norm": "layer", "ego_separation": True},
}


def small_backbone(name: str, **options):
    """Return a small backbone of a class."""
    cls = getattr(kb.models, name)
    names = set(inspect.signature(cls).parameters)
    arguments = {key: value for key, value in SMALL.items() if key in names}
    if issubclass(cls, kb.models.MessagePassingBackbone) and cls.reads_edge_states:
        arguments |= {"num_layers": 2, "edge_inputs": EDGES}
    if cls.reads_node_sets:
        arguments["inputs"] = {**INPUTS, **SET_INPUTS}
    return cls(**{**arguments, **MORE.get(name, {}), **options})


def variant(name: str, **changes):
    """Return a function of further options that returns a backbone."""
    return lambda **options: small_backbone(name, **{**changes, **options})


BACKBONES = {name: variant(name) for name in sorted(exported(Backbone))} | {
    "GATBackbone, with options": variant(
        "GATBackbone",
        norm="batch",
        residual="linear",
        activation_first=False,
    ),
    "GCNBackbone, with options": variant(
        "GCNBackbone",
        norm="layer",
        residual=True,
        jumping_knowledge="max",
    ),
    "GGNNBackbone, with edge features": variant("GGNNBackbone", edge_inputs=EDGES),
    "GTBackbone, with edge features": variant("GTBackbone", edge_inputs=EDGES),
    "GTBackbone, with target edges": variant(
        "GTBackbone", laplacian=2, num_edge_types=2, target_type=0
    ),
    "GraphormerBackbone, with edge features": variant(
        "GraphormerBackbone", edge_inputs=EDGES
    ),
    "GATBackbone, by type": variant(
        "GATBackbone", type_reduce="mean", residual="linear", num_edge_types=2
    ),
    "SAGEBackbone, by type": variant(
        "SAGEBackbone", type_reduce="mean", edge_inputs=None, num_edge_types=2
    ),
    "SAGEBackbone, maxima by type": variant(
        "SAGEBackbone", type_reduce="sum", reduce="max", num_edge_types=2
    ),
    "GINEBackbone, without edge features": variant(
        "GINEBackbone",
        edge_inputs=None,
        virtual_node=False,
        jumping_knowledge="concat",
    ),
}


def check_complete():
    """Fails where a task has no sample."""
    missing = exported(Task) - {name.partition(",")[0] for name in TASKS}
    assert not missing, f"add {sorted(missing)} to tests/models/task_samples.py"


def task_of(name, backbone=None, **options):
    """A task; over a backbone that has all it needs if none is named."""
    keras.utils.set_random_seed(0)
    if backbone is None:
        own = {"ForceRegressor": "SchNetBackbone", "NodeSelector": "GGNNBackbone"}
        backbone = own.get(name, "GCNBackbone")
    return TASKS[name][0](BACKBONES[backbone](), **options)


def data_of(name, count, seed=0, backbone=None):
    """Graphs with labels for a task, with node sets if the backbone reads them."""
    graphs = TASKS[name][1](count, seed)
    if backbone is None:
        return graphs
    return for_backbone(getattr(kb.models, backbone.partition(",")[0]), graphs)
