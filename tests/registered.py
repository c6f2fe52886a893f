"""A small sample of everything registered, for tests that look at all of it."""

import functools
import inspect

import keras
import numpy as np
from docstrings import sample

import keras_bandgnn as kb
from keras_bandgnn.models import MessagePassingBackbone
from keras_bandgnn.models.atomistic_backbone import AtomisticBackbone
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


def plans_of_primitives(plans: dict[str, list]) -> dict[str, list]:
    """Plans by the name of a primitive; where none are listed, that of its example."""
    return {
        name: plans.get(name) or [kb.plans.Plan(sample(cls))]
        for name, cls in registered_primitives().items()
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


# Inputs of graphs of `with_sets`.
SET_INPUTS = {
    "sets": {"even": {"x": {"features": 3}}, "odd.1": {"x": {"features": 3}, "id": 4}}
}


def with_sets(graphs) -> list:
    """The graphs with two node sets that have features of their own."""
    rng = np.random.default_rng(0)
    changed = []
    for graph in graphs:
        kind = np.arange(graph.num_nodes) % 2
        even, odd = (int((kind == number).sum()) for number in range(2))
        changed.append(
            graph.replace(
                node={
                    **graph.node,
                    "set": kind,
                    "set_row": np.arange(graph.num_nodes) // 2,
                },
                sets={
                    "even": {"x": rng.normal(size=(even, 3))},
                    "odd.1": {
                        "x": rng.normal(size=(odd, 3)),
                        "id": rng.integers(0, 4, odd),
                    },
                },
            )
        )
    return changed


def for_backbone(backbone, graphs) -> list:
    """The graphs, with node sets if a backbone or its class reads them."""
    return with_sets(graphs) if backbone.reads_node_sets else graphs


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


# Small arguments of constructors, by name.
SMALL = {
    "elements": 9,
    "inputs": {"h": {"features": 3}},
    "hidden_dim": WIDTH,
    "num_layers": 1,
    "num_steps": 1,
    "num_heads": 2,
    "num_edge_types": 2,
    "num_functions": 6,
    "num_gaussians": 30,
    "edge_inputs": {"type": 2},
    "laplacian": 2,
    "max_distance": 2,
    "global_token": True,
}


def small_backbone(cls: type, **options):
    """Return a small backbone, and graphs that it takes."""
    names = set(inspect.signature(cls).parameters)
    if issubclass(cls, MessagePassingBackbone):
        names |= {"num_edge_types", *(["edge_inputs"] * cls.reads_edge_states)}
    else:
        # Biases of graph transformers, and states of GGNN, have tests of their own.
        names.discard("edge_inputs")
    small = {name: value for name, value in SMALL.items() if name in names}
    graphs = molecules() if issubclass(cls, AtomisticBackbone) else plain_graphs()
    if cls.reads_node_sets:
        small["inputs"] = {**SMALL["inputs"], **SET_INPUTS}
    return cls(**{**small, **options}), for_backbone(cls, graphs)


# Name -> function of further options that returns a backbone and graphs for it.
BACKBONES = {
    name: functools.partial(small_backbone, cls)
    for name, cls in registered(kb.models.Backbone).items()
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
