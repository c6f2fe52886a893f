"""`check_training_step`: compiles a training step for TPUs that are not there.

The package `libtpu` holds the TPU compiler, which needs no TPU. What it says is true of
the program: whether it fits the memory of a core, what it computes and what the cores
send to each other. It does not say how fast the program runs.
"""

import dataclasses
import importlib.util
import os
import re
import time
from collections.abc import Mapping

import keras
import numpy as np

from keras_bandgnn import compat
from keras_bandgnn.graph import Graph
from keras_bandgnn.models.node_selector import NodeSelector
from keras_bandgnn.preprocessing.batching.dynamic_batcher import DynamicBatcher
from keras_bandgnn.preprocessing.loading.graph_loader import GraphLoader
from keras_bandgnn.preprocessing.program_encoder import ProgramEncoder
from keras_bandgnn.primitives.plan import Plan
from keras_bandgnn.tpu.hlo import ProgramCosts

# `made_up_batch`: a batch of the wanted sizes without data.


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


_GIB = 2.0**30
_UNITS = {"K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10}
# libtpu asks for the machine that it is on, and waits for an answer that never comes.
_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
    "TPU_ACCELERATOR_TYPE": "v2-8",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


@dataclasses.dataclass(frozen=True)
class StepReport:
    """What the compiler says about a training step.

    Args:
        topology: Name of the slice, such as "v5e:2x2".
        cores: Its cores, which is G.
        available: Memory of a core that programs can use, GiB.
        compile_seconds: Time that compilation took.
        memory: "arguments", "temporaries", "outputs" and "total" of a core, GiB. The
            total is the largest at any time; outputs take the place of arguments. Only
            "total" if the program does not fit.
        error: What the compiler said if it refused the program.
        costs: FLOPs and collectives per step and core, if it compiled.
    """

    topology: str
    cores: int
    available: float
    compile_seconds: float
    memory: Mapping[str, float]
    error: str | None = None
    costs: ProgramCosts | None = None

    @property
    def fits(self) -> bool:
        """Whether the program compiled."""
        return self.error is None


def check_training_step(
    task: NodeSelector, plan: Plan, sizes: Sizes, topology: str
) -> StepReport:
    """Compiles the step that `fit` runs, one supergraph per core of a TPU slice.

    Forward, masked loss, gradients, clipping, update of the weights and metrics:
    `task.train_step`, with weights on every core and batches split over the cores.

    Args:
        task: A compiled task. Its weights stay as they are.
        plan: Who carries which edge.
        sizes: Capacities of a supergraph.
        topology: A slice, such as "v2:2x2", "v4:2x2x1" or "v5e:16x16".

    Raises:
        ImportError: If libtpu is not installed, or the backend is not JAX.
        ValueError: If there is no such topology.
    """
    devices = topology_devices(topology)
    available = available_memory(devices[0])
    step, arguments = _step(task, made_up_batch(task, plan, sizes), devices)
    lowered = step.lower(*arguments)
    began = time.perf_counter()
    try:
        compiled = lowered.compile()
    except RuntimeError as error:
        # Also what the compiler has no code for; its first line says so.
        text = str(error).splitlines()[0]
        seconds = time.perf_counter() - began
        memory = {"total": needed} if (needed := _needed(text)) else {}
        return StepReport(topology, len(devices), available, seconds, memory, text)
    seconds = time.perf_counter() - began
    analysis = compiled.memory_analysis()
    memory = {
        "arguments": analysis.argument_size_in_bytes / _GIB,
        "temporaries": analysis.temp_size_in_bytes / _GIB,
        "outputs": analysis.output_size_in_bytes / _GIB,
        "total": analysis.peak_memory_in_bytes / _GIB,
    }
    costs = ProgramCosts.from_text(compiled.as_text())
    return StepReport(topology, len(devices), available, seconds, memory, costs=costs)


def topology_devices(topology: str) -> list:
    """Devices of a TPU slice to compile for; there need be none."""
    if keras.backend.backend() != "jax":
        raise ImportError(
            "Expected the backend 'jax', whose compiler makes TPU programs. Received: "
            f"{keras.backend.backend()!r}. Set KERAS_BACKEND=jax or pass --backend jax."
        )
    if not importlib.util.find_spec("libtpu"):
        raise ImportError(
            "Expected the TPU compiler libtpu. Received: not installed. Install it "
            'with pip install "keras-bandgnn[tpu]", best in an environment of its own.'
        )
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import jax
    from jax.experimental import topologies

    # JAX would look for a TPU when it makes the first array.
    jax.config.update("jax_platforms", os.environ["JAX_PLATFORMS"])
    try:
        found = topologies.get_topology_desc(topology, "tpu").devices
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(
            "Expected a TPU topology such as 'v2:2x2', 'v4:2x2x1' or 'v5e:4x4'. "
            f"Received: {topology!r}; libtpu says: {str(error).splitlines()[0]}"
        ) from error
    return list(found)


def available_memory(device) -> float:
    """Memory of a core that programs can use, GiB, as its compiler says."""
    import jax

    # Too much for any core: the refusal names what there is.
    sharding = jax.sharding.SingleDeviceSharding(device)
    large = jax.ShapeDtypeStruct((2**30, 1024), np.float32, sharding=sharding)
    try:
        jax.jit(lambda x: x + 1).lower(large).compile()
    except jax.errors.JaxRuntimeError as error:
        found = re.search(r"available \w+ \(([\d.]+)([KMGT])\)", str(error))
        if found:
            return float(found.group(1)) * _UNITS[found.group(2)]
        raise
    raise RuntimeError(
        "Expected the compiler to refuse 4 TiB. Received: a program. This version of "
        "libtpu does not say how much memory a core has."
    )


def _needed(text: str) -> float | None:
    """The memory that a refused program needs, GiB."""
    found = re.search(r"required .*?\(([\d.]+)([KMGT])\) exceeds", text)
    return float(found.group(1)) * _UNITS[found.group(2)] if found else None


def _step(task: NodeSelector, batch: tuple, devices: list):
    """The jitted step and its abstract arguments."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from keras_bandgnn.ops.backend.jax_mesh import split_over_cores

    # Metrics and optimizer have no variables before they have seen a batch.
    tree = keras.tree
    symbols = tree.map_structure(
        lambda a: keras.KerasTensor(a.shape, a.dtype.name), batch
    )
    compat.build_step(task, symbols)
    mesh = Mesh(np.array(devices), ("batch",))
    whole = NamedSharding(mesh, PartitionSpec())
    split = NamedSharding(mesh, PartitionSpec("batch"))
    state = tuple(
        [jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=whole) for v in variables]
        for variables in (
            task.trainable_variables,
            task.non_trainable_variables,
            task.optimizer.variables,
            task.metrics_variables,
        )
    )
    data = tree.map_structure(
        lambda a: jax.ShapeDtypeStruct(
            (len(devices), *a.shape[1:]), a.dtype, sharding=split
        ),
        batch,
    )
    whole_call = task.stateless_call

    def train_step(state, data):
        task.stateless_call = split_over_cores(whole_call, mesh)
        try:
            return task.train_step(state, data)
        finally:
            del task.stateless_call

    shardings = tree.map_structure(lambda _: whole, state)
    step = jax.jit(train_step, donate_argnums=0, out_shardings=(None, shardings))
    return step, (state, data)
