"""`check_training_step`: compiles a training step ahead of time for TPU topologies.

The package `libtpu` contains the TPU compiler, which needs no TPU. It reports whether
the program fits the memory of a core, its operations and its collectives, but not how
fast it runs.
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
from keras_bandgnn.checks import refuse
from keras_bandgnn.graph import Graph
from keras_bandgnn.layers.node_encoder import NUMBERS, channels
from keras_bandgnn.models.node_selector import NodeSelector
from keras_bandgnn.ops.context import for_accelerator
from keras_bandgnn.preprocessing.batching.dynamic_batcher import DynamicBatcher
from keras_bandgnn.preprocessing.loading.graph_loader import GraphLoader
from keras_bandgnn.primitives.plan import Plan
from keras_bandgnn.tpu.hlo import ProgramCosts

# Edges per node of the public VarMisuse graphs: 30,464 for 8,192 nodes.
EDGES_PER_NODE = 30_464 / 8_192
# Largest distance of the nodes that most edges of a synthetic graph connect.
_NEAR = 16


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Capacities of a supergraph.

    Args:
        nodes: N.
        edges: E.
        graphs: Real graphs, not counting the padding graph.
        candidates: C, candidates per graph.
    """

    nodes: int
    edges: int
    graphs: int
    candidates: int


def synthetic_batch(task: NodeSelector, plan: Plan, sizes: Sizes) -> tuple:
    """Build one supergraph of random graphs, as the loader passes it to `fit`.

    Nine of ten edges connect nearby nodes. The others connect random nodes of a graph,
    so that the plan's rest is not empty. Edge types are random.

    Returns:
        (x, y, sample_weight) with axis 0 = 1.
    """
    graphs = synthetic_graphs(task, sizes)
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


def synthetic_graphs(task: NodeSelector, sizes: Sizes) -> list[Graph]:
    """Return the graphs of `synthetic_batch`."""
    nodes, edges = (sizes.nodes - 1) // sizes.graphs, sizes.edges // sizes.graphs
    if nodes < 2 or edges < 1:
        expected = "two nodes and an edge per graph, and a node for padding"
        refuse("sizes", expected, sizes, "Pass more nodes or fewer graphs.")
    rng = np.random.default_rng(0)
    types = max(task.backbone.num_edge_types, 1)
    return [
        _synthetic_graph(task, rng, nodes, edges, types) for _ in range(sizes.graphs)
    ]


def _synthetic_graph(task, rng, nodes: int, edges: int, types: int) -> Graph:
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
        node=_synthetic_features(task.backbone.encoder, nodes, _lengths(task)),
        edge=_synthetic_features(getattr(task.backbone, "edge_encoder", None), edges),
        candidates=[0, 1],
        slot=0,
        label=0,
    )


def _lengths(task) -> dict[str, int]:
    """Return the number of ids per node of features that have several."""
    lengths = {}
    layers = task.preprocessor.graph_layers if task.preprocessor else []
    for layer in layers:
        if hasattr(layer, "feature_lengths"):
            lengths |= layer.feature_lengths()
    return lengths


def _synthetic_features(
    encoder, rows: int, lengths: Mapping[str, int] | None = None
) -> dict[str, np.ndarray]:
    """Return features with the shapes that a `NodeEncoder` expects; {} for None."""
    features = {}
    for name, spec in ({} if encoder is None else encoder.inputs).items():
        if encoder.level == "edge" and name == "type":
            continue  # Each edge has one.
        ((kind, size),) = spec.items()
        shape = (rows, len(size) if kind == "columns" else size)
        if kind in NUMBERS:
            shape = (rows, channels(kind, size))
        if kind == "ids":
            width = (lengths or {}).get(name)
            shape = (rows,) if width is None else (rows, width)
        features[name] = np.zeros(shape, np.float32 if kind in NUMBERS else np.int32)
    return features


_GIB = 2.0**30
_UNITS = {"K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10}
# Keeps libtpu from querying the metadata server, which hangs outside Google Cloud.
_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
    "TPU_ACCELERATOR_TYPE": "v2-8",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


@dataclasses.dataclass(frozen=True)
class StepReport:
    """The compiler's report on a training step.

    Args:
        topology: Name of the slice, such as "v5e:2x2".
        cores: Number of cores, which is G.
        available: Memory of a core that is available to programs, GiB.
        compile_seconds: Compilation time.
        memory: "arguments", "temporaries", "outputs" and "total" of a core, GiB. The
            total is the peak; outputs reuse the memory of arguments. Only "total" if
            the program does not fit.
        error: The compiler's error message if compilation failed.
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
        """Whether the program compiled, and so fits."""
        return self.error is None


def check_training_step(
    task: NodeSelector, plan: Plan, sizes: Sizes, topology: str
) -> StepReport:
    """Compile the step that `fit` runs, one supergraph per core of a TPU slice.

    This is `task.train_step` with forward pass, masked loss, gradients, clipping, and
    updates of weights and metrics. Weights are replicated, batches are sharded over the
    cores.

    Args:
        task: A compiled task. Its weights do not change.
        plan: The plan.
        sizes: Capacities of a supergraph.
        topology: A slice, such as "v2:2x2", "v4:2x2x1" or "v5e:16x16".
    """
    devices = topology_devices(topology)
    available = available_memory(devices[0])
    step, arguments = _jitted_step(task, synthetic_batch(task, plan, sizes), devices)
    with for_accelerator():
        lowered = step.lower(*arguments)
    start = time.perf_counter()
    try:
        compiled = lowered.compile()
    except RuntimeError as error:
        # Out of memory, or not implemented; the first line of the message says which.
        text = str(error).splitlines()[0]
        match = re.search(r"required .*?\(([\d.]+)([KMGT])\) exceeds", text)
        memory = {"total": _gib(match)} if match else {}
        seconds = time.perf_counter() - start
        return StepReport(topology, len(devices), available, seconds, memory, text)
    seconds = time.perf_counter() - start
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
    """Return the devices of a TPU slice to compile for; no TPU is needed."""
    if keras.backend.backend() != "jax":
        raise ImportError(
            "Expected the backend 'jax', which compiles for TPUs. Received: "
            f"{keras.backend.backend()!r}. Set KERAS_BACKEND=jax or pass --backend jax."
        )
    if not importlib.util.find_spec("libtpu"):
        raise ImportError(
            "Expected the TPU compiler libtpu. Received: not installed. Install it "
            'with pip install "keras-bandgnn[tpu]".'
        )
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import jax
    from jax.experimental import topologies

    # JAX would look for a TPU when it creates the first array.
    jax.config.update("jax_platforms", os.environ["JAX_PLATFORMS"])
    try:
        devices = topologies.get_topology_desc(topology, "tpu").devices
    except jax.errors.JaxRuntimeError as error:
        expected = "a TPU topology such as 'v2:2x2', 'v4:2x2x1' or 'v5e:4x4'"
        refuse("topology", expected, topology, str(error).splitlines()[0])
    return list(devices)


def available_memory(device) -> float:
    """Return the memory of a core that is available to programs, GiB."""
    import jax

    # Too large for any core: the error message names the available memory.
    sharding = jax.sharding.SingleDeviceSharding(device)
    large = jax.ShapeDtypeStruct((2**30, 1024), np.float32, sharding=sharding)
    try:
        jax.jit(lambda x: x + 1).lower(large).compile()
    except jax.errors.JaxRuntimeError as error:
        match = re.search(r"available \w+ \(([\d.]+)([KMGT])\)", str(error))
        if match:
            return _gib(match)
        raise
    raise RuntimeError("This version of libtpu does not report the memory of a core.")


def _gib(match: re.Match) -> float:
    """Return a size in the compiler's messages, such as "7.48G", in GiB."""
    return float(match.group(1)) * _UNITS[match.group(2)]


def _jitted_step(task: NodeSelector, batch: tuple, devices: list):
    """Return the jitted step and its abstract arguments."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from keras_bandgnn.ops.backend.jax_mesh import split_over_cores

    # Metrics and optimizer create their variables on the first batch.
    tree = keras.tree
    symbols = tree.map_structure(
        lambda a: keras.KerasTensor(a.shape, a.dtype.name), batch
    )
    compat.build_step(task, symbols)
    mesh = Mesh(np.array(devices), ("batch",))
    replicated = NamedSharding(mesh, PartitionSpec())
    sharded = NamedSharding(mesh, PartitionSpec("batch"))
    state = tuple(
        [jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=replicated) for v in variables]
        for variables in (
            task.trainable_variables,
            task.non_trainable_variables,
            task.optimizer.variables,
            task.metrics_variables,
        )
    )
    data = tree.map_structure(
        lambda a: jax.ShapeDtypeStruct(
            (len(devices), *a.shape[1:]), a.dtype, sharding=sharded
        ),
        batch,
    )
    stateless_call = task.stateless_call

    def train_step(state, data):
        task.stateless_call = split_over_cores(stateless_call, mesh)
        try:
            return task.train_step(state, data)
        finally:
            del task.stateless_call

    shardings = tree.map_structure(lambda _: replicated, state)
    step = jax.jit(train_step, donate_argnums=0, out_shardings=(None, shardings))
    return step, (state, data)
