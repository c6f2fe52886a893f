"""`made_up_batch`: a batch of the wanted sizes without data."""

import dataclasses

import numpy as np

from keras_bandgnn.graph import Graph
from keras_bandgnn.models.node_selector import NodeSelector
from keras_bandgnn.preprocessing.dynamic_batcher import DynamicBatcher
from keras_bandgnn.preprocessing.graph_loader import GraphLoader
from keras_bandgnn.preprocessing.program_encoder import ProgramEncoder
from keras_bandgnn.primitives.plan import Plan

# Edges per node of the public VarMisuse graphs: 30,464 for 8,192 nodes.
EDGES_PER_NODE = 30_464 / 8_192
# Edges of a made-up graph join nodes at most so far apart, but for one in ten.
_NEAR = 16


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Capacities of a supergraph.

    Args:
        nodes: N.
        edges: E.
        graphs: Real graphs; the padding graph comes on top.
        candidates: C, candidates per graph.
    """

    nodes: int
    edges: int
    graphs: int
    candidates: int


def made_up_batch(task: NodeSelector, plan: Plan, sizes: Sizes) -> tuple:
    """Builds one supergraph of random graphs, as the loader gives it to `fit`.

    Nine edges of ten join near nodes, one joins any two nodes of its graph; with it a
    plan's rest has a size. Types are random.

    Args:
        task: The task.
        plan: Who carries which edge.
        sizes: Capacities.

    Returns:
        (x, y, sample_weight) with axis 0 = 1.

    Raises:
        ValueError: If the graphs cannot be that small.
    """
    graphs = made_up_graphs(task, sizes)
    budget = {
        "node": sizes.nodes,
        "edge": sizes.edges,
        "graph": sizes.graphs + 1,
        "candidate": sizes.candidates,
    }
    loader = GraphLoader(
        graphs,
        DynamicBatcher(budget=budget),
        plan,
        shuffle=False,
        num_edge_types=task.backbone.num_edge_types,
        prefetch=0,
    )
    return loader.build(0, 0)


def made_up_graphs(task: NodeSelector, sizes: Sizes) -> list[Graph]:
    """The graphs of `made_up_batch`.

    Raises:
        ValueError: If the graphs cannot be that small.
    """
    nodes, edges = (sizes.nodes - 1) // sizes.graphs, sizes.edges // sizes.graphs
    if nodes < 2 or edges < 1:
        raise ValueError(
            "Expected two nodes and an edge per graph, and a node for padding. "
            f"Received: {sizes}. Give more nodes and edges, or fewer graphs."
        )
    rng = np.random.default_rng(0)
    types = task.backbone.num_edge_types
    return [_graph(task, rng, nodes, edges, types) for _ in range(sizes.graphs)]


def _graph(task, rng, nodes: int, edges: int, types: int) -> Graph:
    receivers = rng.integers(0, nodes, edges)
    near = receivers + rng.integers(-_NEAR, _NEAR + 1, edges)
    senders = np.where(
        rng.random(edges) < 0.9, near.clip(0, nodes - 1), rng.integers(0, nodes, edges)
    )
    return Graph(
        nodes,
        senders,
        receivers,
        edge_type=rng.integers(0, types, edges),
        node=_features(task, nodes),
        candidates=[0, 1],
        slot=0,
        label=0,
    )


def _features(task, nodes: int) -> dict[str, np.ndarray]:
    """Node features of the shapes that the backbone's encoder takes."""
    several = {}
    layers = task.preprocessor.graph_layers if task.preprocessor else []
    for layer in layers:
        if isinstance(layer, ProgramEncoder):
            several["subtoken"] = layer.options["max_subtokens"]
    features = {}
    for name, spec in task.backbone.encoder.inputs.items():
        ((kind, size),) = spec.items()
        if kind == "ids":
            shape = (nodes, several[name]) if name in several else (nodes,)
            features[name] = np.zeros(shape, np.int32)
        elif kind == "characters":
            features[name] = np.zeros((nodes, size), np.int32)
        else:
            features[name] = np.zeros((nodes, size), np.float32)
    return features
