"""A small sample of everything registered, for tests that look at all of it.

What is added to the library fails these tests until it has a sample here.
"""

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn.preprocessing import DynamicBatcher, FullyConnectedGraph
from keras_bandgnn.primitives.base import primitive_classes

WIDTH = 8


def registered(base: type) -> dict[str, type]:
    """Registered classes of the library below a class, by name."""
    prefix = "keras_bandgnn>"
    return {
        name.removeprefix(prefix): cls
        for name, cls in keras.saving.get_custom_objects().items()
        if name.startswith(prefix) and isinstance(cls, type) and issubclass(cls, base)
    }


def registered_primitives() -> dict[str, type]:
    """Primitives of the library, by the prefix of their keys."""
    return {
        name: cls
        for name, cls in primitive_classes().items()
        if cls.__module__.startswith("keras_bandgnn.")
    }


def sample_of(samples: dict, name: str):
    """The sample of a class; a clear failure where there is none."""
    assert name in samples, f"add a sample of {name} to {__name__}.py"
    return samples[name]


def plain_graphs(count: int = 4, nodes: int = 9, seed: int = 0) -> list:
    """Graphs with two types of edges and labels of their nodes."""
    rng = np.random.default_rng(seed)
    return [
        kb.Graph(
            nodes,
            *rng.integers(0, nodes, (2, 3 * nodes)),
            edge_type=rng.integers(0, 2, 3 * nodes),
            node={"h": rng.normal(size=(nodes, 3))},
            label=rng.integers(0, 3, nodes),
            label_level="node",
        )
        for _ in range(count)
    ]


def molecules(count: int = 4, nodes: int = 4, seed: int = 0) -> list:
    """Atoms in space with labels of their own, all joined by edges."""
    rng = np.random.default_rng(seed)
    layer = FullyConnectedGraph()
    return [
        layer(
            kb.Graph(
                nodes,
                [],
                [],
                node={
                    "atomic_number": rng.integers(1, 9, nodes),
                    "position": 1.5 * rng.normal(size=(nodes, 3)),
                },
                label=rng.integers(0, 3, nodes),
                label_level="node",
            )
        )
        for _ in range(count)
    ]


def _plain(cls, *arguments, **options):
    return lambda **more: (
        cls({"h": {"features": 3}}, WIDTH, *arguments, **options, **more),
        plain_graphs(),
    )


def _framed(cls, **options):
    edges = {"edge_inputs": {"type": 2}, "num_edge_types": 2}
    return _plain(cls, num_layers=1, **edges, **options)


def _atoms(cls, *arguments, **options):
    return lambda **more: (cls(9, WIDTH, 1, *arguments, **options, **more), molecules())


# Name -> function of further options that returns a backbone and graphs for it.
BACKBONES = {
    "EmbeddingBackbone": _plain(kb.models.EmbeddingBackbone),
    "GATBackbone": _plain(
        kb.models.GATBackbone, num_heads=2, num_layers=1, num_edge_types=2
    ),
    "GATv2Backbone": _framed(kb.models.GATv2Backbone, num_heads=2),
    "GCNBackbone": _plain(kb.models.GCNBackbone, num_layers=1, num_edge_types=2),
    "GINEBackbone": _framed(kb.models.GINEBackbone),
    "GPSBackbone": _framed(kb.models.GPSBackbone, num_heads=2),
    "GatedGCNBackbone": _framed(kb.models.GatedGCNBackbone),
    "GGNNBackbone": _plain(kb.models.GGNNBackbone, num_steps=1, num_edge_types=2),
    "GTBackbone": _plain(kb.models.GTBackbone, 1, 2, laplacian=2),
    "PNABackbone": _framed(kb.models.PNABackbone),
    "SAGEBackbone": _framed(kb.models.SAGEBackbone),
    "GraphormerBackbone": _plain(
        kb.models.GraphormerBackbone, 1, 2, max_distance=2, global_token=True
    ),
    "MPEUBackbone": _atoms(kb.models.MPEUBackbone, num_gaussians=30),
    "PaiNNBackbone": _atoms(kb.models.PaiNNBackbone, num_functions=6),
    "SchNetBackbone": _atoms(kb.models.SchNetBackbone, num_gaussians=30),
}


def backbone_and_loader(name: str, plan=None, batcher=None, **options):
    """A small backbone, and a loader of graphs that fit it."""
    backbone, graphs = sample_of(BACKBONES, name)(**options)
    prepared = kb.preprocessing.GraphPreprocessor(
        backbone.graph_layers(), batcher or DynamicBatcher(1, packing="sequential")
    )
    plan = plan or backbone.auto_plan() or kb.primitives.Plan()
    types = backbone.num_edge_types
    loader = prepared.loader(graphs, plan=plan, num_edge_types=types, shuffle=False)
    return backbone, loader
