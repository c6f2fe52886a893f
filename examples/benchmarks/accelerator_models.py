"""Agreement with the CPU, training steps, and several devices."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np

from examples.benchmarks import accelerator_device as device
from examples.benchmarks.accelerator_part import Part, Setting, alternated
from examples.benchmarks.train import epoch_of_fit

_TYPES = 20
_HOST = "cpu"


# === Agreement with the CPU ===


def measure_numerics(part: Part, setting: Setting) -> None:
    """Largest differences from NumPy and from the CPU, relative to the largest value.

    "default" is the precision that the backend chooses for products of float32, such as
    TF32; "full" is float32.
    """
    _sums(part, setting)
    _attention(part, setting)
    makers = {"GGNN": _small_ggnn, "PaiNN": _small_painn}
    for name in setting.sizes.numeric_models:
        if part.has_time_for(name):
            with part.attempt(name):
                _losses(part, name, makers[name])


def _error(found, expected) -> float:
    scale = np.abs(expected).max()
    return float(np.abs(np.asarray(found, "float64") - expected).max() / (scale or 1))


def _results(function, leaves, constants) -> list[np.ndarray]:
    """Return values of a function and the gradients of their sum, as NumPy."""
    from keras import ops

    from keras_bandgnn import ops as graph_ops

    leaves = [ops.convert_to_tensor(each) for each in leaves]
    constants = keras.tree.map_structure(ops.convert_to_tensor, constants)

    def run(leaves, constants):
        def of_leaves(leaves):
            return function(*leaves, constants)

        return graph_ops.value_and_gradient(of_leaves, leaves)

    if keras.backend.backend() == "jax":
        import jax

        run = jax.jit(run)
    values, slopes = run(leaves, constants)
    return [
        np.asarray(ops.convert_to_numpy(each), "float64") for each in (values, *slopes)
    ]


def _on_all(function, leaves, constants) -> tuple:
    """Return results on the device, on it in full precision, and on the CPU."""
    default = _results(function, leaves, constants)
    with device.full_precision():
        full = _results(function, leaves, constants)
        with keras.device(_HOST):
            host = _results(function, leaves, constants)
    return default, full, host


def _sums(part: Part, setting: Setting) -> None:
    """Compare sums of messages under every plan with NumPy in float64."""
    from examples.benchmarks.accelerator_plans import (
        budget_of,
        edges_of,
        graphs_of,
        plans_of,
    )
    from keras_bandgnn import primitives

    width = min(setting.sizes.width, 32)
    graphs, types = graphs_of("small graphs", 3, min(setting.sizes.nodes, 512))
    edges = edges_of(graphs, types)
    rng = np.random.default_rng(0)
    nodes = edges.num_nodes
    states = rng.normal(size=(1, nodes, width)).astype("float32")
    kernel = rng.normal(size=(types, width, width)).astype("float32")
    matrix = np.zeros((types, nodes, nodes))
    np.add.at(matrix, (edges.type, edges.receiver, edges.sender), 1.0)
    whole = kernel.astype("float64")
    expected = [
        sum(
            a @ states[0].astype("float64") @ w
            for a, w in zip(matrix, whole, strict=True)
        )[None],
        sum(
            a.T @ np.ones((nodes, width)) @ w.T
            for a, w in zip(matrix, whole, strict=True)
        )[None],
        np.stack([(a @ states[0]).T @ np.ones((nodes, width)) for a in matrix]),
    ]

    def work(x, kernel, arrays):
        prepared = primitives.prepare(arrays, nodes, types, "float32", False)
        return primitives.propagate(prepared, x, kernel)

    # The first of each set of primitives.
    kinds = {tuple(map(type, p.primitives)): p for p in [*plans_of(types)][::-1]}
    plans = list(kinds.values())[::-1][: setting.sizes.numeric_plans]
    for number, plan in enumerate(plans):
        # The other checks take the rest of the time.
        with part.share(2 * (len(plans) - number)):
            if not part.has_time_for(str(plan)):
                continue
            with part.attempt(str(plan)):
                arrays = plan.pack(edges, budget_of(plan, edges))
                arrays = keras.tree.map_structure(lambda a: a[None], arrays)
                found = _on_all(work, [states, kernel], arrays)
                names = ("sums", "gradient of states", "gradient of kernels")
                for place, name in enumerate(names):
                    errors = [_error(each[place], expected[place]) for each in found]
                    part.add(
                        "sums of messages: errors against NumPy in float64",
                        plan=str(plan),
                        of=name,
                        default=errors[0],
                        full=errors[1],
                        cpu=errors[2],
                    )


def _attention(part: Part, setting: Setting) -> None:
    """Compare attention with that on the CPU."""
    from examples.benchmarks.accelerator_plans import tiles_of
    from keras_bandgnn.ops.attention import (
        edge_attention,
        full_attention,
        tile_attention,
    )

    heads, size = setting.sizes.heads, 16
    width, nodes = heads * setting.sizes.key_dim, 128
    tiles, sender, receiver = tiles_of(nodes, 12, size, 0.25)
    rng = np.random.default_rng(0)
    leaves = [rng.normal(size=(1, nodes, width)).astype("float32") for _ in range(3)]
    bias = rng.normal(size=(1, sender.shape[1], heads)).astype("float32")
    constants = {"bias": bias, "tiles": tiles, "ends": [sender, receiver]}
    constants["mask"] = np.ones((1, nodes), "int32")

    def edges(q, k, v, c):
        return edge_attention(q, k, v, c["bias"], None, *c["ends"], heads)[0]

    def in_tiles(q, k, v, c):
        return tile_attention(q, k, v, c["bias"], None, c["tiles"], heads)[0]

    def full(q, k, v, c):
        return full_attention(q, k, v, c["mask"], None, None, heads, logs=False)[0]

    for name, function in (("edges", edges), ("tiles", in_tiles), ("full", full)):
        if not part.has_time_for(f"attention, {name}"):
            continue
        with part.attempt(f"attention, {name}"):
            default, exact, host = _on_all(function, leaves, constants)
            for place, of in enumerate(("values", "of q", "of k", "of v")):
                part.add(
                    "attention: errors against the CPU",
                    kind=name,
                    of=of if place == 0 else f"gradient {of}",
                    default=_error(default[place], host[place]),
                    full=_error(exact[place], host[place]),
                )


def _losses(part: Part, name: str, make) -> None:
    """Compare the losses of five steps from the same weights."""
    task, batch = make()
    # The batch decides the shapes of the weights.
    task.train_on_batch(*batch)
    weights = task.get_weights()

    def losses(task):
        task.set_weights(weights)
        # The loss in the logs is a mean over steps.
        task.reset_metrics()
        found = [task.train_on_batch(*batch, return_dict=True) for _ in range(5)]
        return np.array([float(each["loss"]) for each in found])

    with device.full_precision():
        # Steps that were compiled before have the default precision.
        fresh, _ = make()
        fresh.train_on_batch(*batch)
        full = losses(fresh)
        with keras.device(_HOST):
            host, _ = make()
            host.train_on_batch(*batch)
            expected = losses(host)
    default = losses(task)
    part.add(
        "losses of five steps of SGD: differences from the CPU",
        model=name,
        default=_error(default, expected),
        full=_error(full, expected),
        last_loss=float(expected[-1]),
    )


def _small_ggnn():
    graphs = program_graphs(6, 30)
    task, loader = ggnn(graphs, 128, 16, 3, optimizer=keras.optimizers.SGD(0.01))
    return task, loader[0]


def _small_painn():
    from keras_bandgnn import models

    batch = molecules(4)
    task = models.GraphRegressor(
        models.PaiNNBackbone(100, 16, 2, cutoff=5.0, num_functions=8)
    )
    task.compile(keras.optimizers.SGD(1e-3))
    return task, batch


# === Models and their data ===


def program_graphs(count: int, largest: int):
    """Return trees with a chain through their nodes, as of programs, in many types."""
    from keras_bandgnn import Graph
    from keras_bandgnn.data import FlatGraphs

    rng, graphs = np.random.default_rng(0), []
    for _ in range(count):
        nodes = int(rng.integers(max(largest // 4, 8), largest))
        child = np.arange(1, nodes)
        parent = child - np.minimum(rng.geometric(0.3, nodes - 1), child)
        kind = rng.integers(0, _TYPES // 2 - 1, nodes - 1)
        before = child - 1
        last = np.full(nodes - 1, _TYPES // 2 - 1)
        types = np.concatenate([kind, last])
        ends = np.concatenate([parent, before]), np.concatenate([child, child])
        graphs.append(
            Graph(
                nodes,
                np.concatenate(ends),
                np.concatenate(ends[::-1]),
                edge_type=np.concatenate([types, types + _TYPES // 2]),
                node={"kind": rng.integers(0, 50, nodes)},
                candidates=rng.permutation(nodes)[:4],
                slot=int(rng.integers(nodes)),
                label=int(rng.integers(4)),
            )
        )
    return FlatGraphs.from_graphs(graphs)


def ggnn(
    graphs, nodes: int, hidden: int, steps: int, plan=None, optimizer=None, dtype=None
):
    """Return a GGNN that selects nodes, and a loader of the graphs."""
    from keras_bandgnn import models
    from keras_bandgnn.layers.encoder_inputs import inputs_of
    from keras_bandgnn.plans import Plan
    from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader

    keras.utils.set_random_seed(0)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype or before)
    try:
        backbone = models.GGNNBackbone(
            inputs_of([graphs]), hidden, steps, num_edge_types=_TYPES
        )
        task = models.NodeSelector(backbone, readout="slot")
    finally:
        keras.config.set_dtype_policy(before)
    task.compile(optimizer or keras.optimizers.Adam(1e-3))
    batcher = DynamicBatcher(budget={"node": nodes}, packing="best_fit")
    loader = GraphLoader(
        graphs,
        batcher,
        plan or Plan(),
        num_edge_types=_TYPES,
        prefetch=1,
        **task.distribution.loader_options(),
    )
    return task, loader


def molecules(count: int):
    """Return a batch of random molecules, with neighbours within 5 angstrom."""
    from keras_bandgnn import Graph
    from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader, RadiusGraph

    rng, graphs = np.random.default_rng(0), []
    for _ in range(count + 1):
        atoms = int(rng.integers(12, 26))
        node = {
            "atomic_number": rng.integers(1, 10, atoms),
            "position": rng.normal(size=(atoms, 3)).astype("float32") * 2.5,
        }
        graphs.append(Graph(atoms, [], [], node=node, label=float(rng.normal())))
    graphs = list(RadiusGraph(5.0)(graphs))
    return GraphLoader(graphs, DynamicBatcher(count - 1, packing="best_fit"))[0]


# === Training ===


def measure_training(part: Part, setting: Setting) -> None:
    """Training steps of GGNN under several plans, of PaiNN and of SchNet."""
    with part.share(2):
        with part.attempt("GGNN"):
            _train_ggnn(part, setting)
    with part.attempt("models over atoms"):
        _train_atoms(part, setting)


def _train_ggnn(part: Part, setting: Setting) -> None:
    from keras_bandgnn.planning import choose_plan
    from keras_bandgnn.planning.plan_choice import auto_plan
    from keras_bandgnn.plans import Banded, Grouped, Plan, ReceptiveField

    sizes = setting.sizes
    graphs = program_graphs(sizes.graphs, max(sizes.batch_nodes // 20, 30))
    shape = sizes.batch_nodes, sizes.hidden, sizes.steps
    choice = choose_plan(
        [graphs],
        _TYPES,
        sizes.hidden,
        nodes=sizes.batch_nodes,
        hardware=setting.hardware,
    )
    field = ReceptiveField(sizes.steps)
    banded = Plan(Banded(128), rest=Grouped(64))
    lists = str(Plan(rest=Grouped(64)))
    scheduled = auto_plan(_TYPES, schedule=field, nodes=sizes.batch_nodes)
    plans = {
        f"auto, {choice.plan}": (choice.plan, None),
        str(banded): (banded, None),
        "receptive field": (scheduled, None),
        f"{banded}, mixed_bfloat16": (banded, "mixed_bfloat16"),
        lists: (Plan(rest=Grouped(64)), None),
    }
    tasks, unrecorded = {}, {}

    def maker(name, plan, dtype):
        def make():
            task, loader = ggnn(graphs, *shape, plan=plan, dtype=dtype)
            batch = loader[0]
            tasks[name] = task, loader, batch
            return _warmed(
                part,
                name,
                lambda: task.train_on_batch(*batch),
                setting,
                unrecorded,
                task,
            )

        return make

    chosen = list(plans.items())[: sizes.most_models]
    makers = {name: maker(name, *each) for name, each in chosen}
    found = alternated(part, makers, setting.rounds, "GGNN")
    for name, timing in found.items():
        task, loader, (x, *_) = tasks[name]
        epoch = None
        if part.left() > 3 * len(loader) * timing.ms / 1e3:
            with part.attempt(f"GGNN, {name}, an epoch of fit"):
                epoch = 1e3 * epoch_of_fit(task, loader) / len(loader)
        part.add(
            f"GGNN, H = {sizes.hidden}, T = {sizes.steps}, P = {_TYPES}",
            plan=name,
            graphs=int(x["graph"]["mask"].sum()),
            nodes=int(x["node"]["mask"].sum()),
            edges=int(x["graph"]["n_edge"].sum()),
            ms=timing.ms,
            ms_before_record=unrecorded.get(name),
            ms_of_fit=epoch,
            gib=timing.gib,
            first_s=timing.first,
        )
        if lists in found and name != lists:
            what = "auto" if name.startswith("auto") else name
            part.ratio(f"GGNN, {what} and edge lists", timing.ms, found[lists].ms)
    tasks.clear()


def _warmed(part: Part, name: str, step, setting: Setting, unrecorded: dict, task=None):
    """Return a step after those before torch records it; the others need none."""
    from examples.benchmarks.geometry import recorded_steps

    step()
    if keras.backend.backend() != "torch":
        return step
    times = []
    for _ in range(setting.sizes.repeats):
        start = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - start))
        if part.left() < 0:
            break
    if task is not None:
        unrecorded[name] = float(np.median(times[:20]))
        task.record_steps = recorded_steps()
    for _ in range(3):
        step()
    return step


def _train_atoms(part: Part, setting: Setting) -> None:
    from examples.benchmarks import geometry

    sizes = setting.sizes
    options = argparse.Namespace(hidden=sizes.hidden, steps=3, cutoff=5.0, functions=20)
    batch = molecules(sizes.molecules)
    edges = int(batch[0]["graph"]["n_edge"].sum())
    peers = {"painn": "SchNetPack", "schnet": "torch_geometric"}
    unrecorded: dict = {}
    for number, model in enumerate(sizes.atoms):
        peer = peers[model]
        with part.share(len(sizes.atoms) - number):
            if not part.has_time_for(model):
                continue

            def ours(model=model):
                step = geometry.our_step(model, batch, options)
                return _warmed(part, model, step, setting, unrecorded)

            makers = {"ours": ours}
            if keras.backend.backend() == "torch":
                makers[peer] = lambda model=model: geometry.peer_step(
                    model, batch, options, device.torch_device()
                )
            found = alternated(part, makers, setting.rounds, model)
            for name, timing in found.items():
                part.add(
                    f"models over atoms, C = {sizes.hidden}, three steps",
                    model=model,
                    of=name,
                    graphs=sizes.molecules,
                    edges=edges,
                    ms=timing.ms,
                    ms_before_record=unrecorded.get(model) if name == "ours" else None,
                    gib=timing.gib,
                    first_s=timing.first,
                )
            if len(found) == 2:
                part.ratio(model, found["ours"].ms, found[peer].ms)


# === Several devices ===


def measure_collectives(part: Part, setting: Setting, processes: int | None) -> None:
    """All-reduce and data-parallel training of GGNN, where there are two devices.

    Args:
        part: The part.
        setting: Sizes and rounds.
        processes: Processes of torch; one per device if omitted.
    """
    number = processes or device.count()
    if number < 2:
        part.skip("collectives", "one device")
        return
    if keras.backend.backend() != "torch":
        with part.attempt("collectives"):
            for row in collective_rows(setting):
                part.add("several devices", **row)
        return
    with part.attempt("collectives"), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(number), "-m", "examples.benchmarks"]
        command += ["accelerator", "--child", str(path)]
        command += ["--small"] if setting.sizes.repeats < 64 else []
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=max(part.left(), 60.0),
            env={**os.environ, "KERAS_BACKEND": "torch"},
        )
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "rror: " in line]
            first = (lines or ["no error message"])[0]
            raise RuntimeError(f"torchrun ended with {done.returncode}: {first}")
        for row in json.loads(path.read_text()):
            part.add("several devices", **row)


def collective_rows(setting: Setting) -> list[dict]:
    """Return rates of an all-reduce, and of training on one device and on all."""
    from keras_bandgnn.distribution import data_parallel

    sizes, rows = setting.sizes, []
    seconds, size = _all_reduce(2**16 if sizes.repeats < 64 else 2**26)
    row = {"what": f"all-reduce of {size / 2**20:.2g} MiB", "devices": device.count()}
    rows.append({**row, "value": size / seconds / 1e9, "unit": "GB/s"})
    graphs = program_graphs(sizes.graphs, max(sizes.batch_nodes // 20, 30))
    whole = data_parallel()
    rows[0]["devices"] = whole.size
    settings = [(whole.size, whole)]
    if keras.backend.backend() == "jax":
        import jax

        first = jax.devices()[0]
        one = data_parallel(devices=[f"{first.platform}:{first.id}"])
        settings.insert(0, (1, one))
    for number, distribution in settings:
        with distribution.scope():
            task, loader = ggnn(graphs, sizes.batch_nodes, sizes.hidden, sizes.steps)
            seconds = epoch_of_fit(task, loader)
        what = "GGNN, data-parallel training"
        rate = len(graphs) / seconds
        rows.append(
            {"what": what, "devices": number, "value": rate, "unit": "graphs/s"}
        )
    return rows


def _all_reduce(count: int) -> tuple[float, int]:
    """Return seconds of a sum of float32 over the devices, and its bytes."""
    backend, times = keras.backend.backend(), []
    if backend == "jax":
        import jax
        import jax.numpy as jnp
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        mesh = Mesh(np.array(jax.devices()), ("device",))
        shards = PartitionSpec("device")

        def total(values):
            return jax.lax.psum(values, "device")

        run = jax.jit(
            jax.shard_map(total, mesh=mesh, in_specs=shards, out_specs=PartitionSpec())
        )
        values = jnp.ones((jax.device_count() * count,), "float32")
        values = jax.device_put(values, NamedSharding(mesh, shards))

        def step():
            jax.block_until_ready(run(values))

    elif backend == "torch":
        import torch
        import torch.distributed as dist

        from keras_bandgnn.distribution import data_parallel

        # Starts the processes' group.
        values = torch.ones(count, device=data_parallel().device)

        def step():
            dist.all_reduce(values)
            float(values[0])

    else:
        import tensorflow as tf

        strategy = tf.distribute.MirroredStrategy()
        reduce = tf.distribute.ReduceOp.SUM

        @tf.function
        def run():
            def of_replica():
                context = tf.distribute.get_replica_context()
                return context.all_reduce(reduce, tf.ones(count))[:1]

            return strategy.run(of_replica)

        def step():
            [float(each[0]) for each in strategy.experimental_local_results(run())]

    for number in range(6):
        start = time.perf_counter()
        step()
        if number:
            times.append(time.perf_counter() - start)
    return float(np.median(times)), 4 * count


def run_child(path: Path, setting: Setting) -> None:
    """Measure what one process of several does; the first writes the rows."""
    from examples.benchmarks import figures
    from keras_bandgnn.distribution import data_parallel

    is_main = data_parallel().is_main
    rows = collective_rows(setting)
    if is_main:
        figures.write_json(path, rows)
