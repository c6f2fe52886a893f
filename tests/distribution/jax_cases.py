"""Steps on eight devices of a CPU and on one: `python jax_cases.py KIND:HOW ...`."""

import functools
import json
import os
import sys

os.environ["XLA_FLAGS"] = " ".join(
    (os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=8")
)

import jax
import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn.preprocessing import AttentionPlan, DynamicBatcher, StaticBatcher
from keras_bandgnn.primitives import Banded, Plan, Segment
from keras_bandgnn.tpu.hlo import ProgramCosts

WIDTH, HEADS, SIZE = 32, 8, 16


def graph(rng, nodes):
    """Most edges are short; labels of nodes, as many as a graph likes."""
    sender = rng.integers(0, nodes, 3 * nodes)
    receiver = np.clip(sender + rng.integers(-12, 13, 3 * nodes), 0, nodes - 1)
    far = rng.random(3 * nodes) < 0.1
    receiver[far] = rng.integers(0, nodes, far.sum())
    return kb.Graph(
        nodes,
        sender,
        receiver,
        edge_type=rng.integers(0, 2, 3 * nodes),
        node={"h": rng.normal(size=(nodes, 5))},
        label=np.where(rng.random(nodes) < 0.8, rng.integers(0, 3, nodes), -1),
        label_level="node",
    )


def in_sets(rng, one):
    """The graph with its nodes in two sets, of which the second has other features."""
    kind = rng.integers(0, 2, one.num_nodes)
    rows = np.where(kind, np.cumsum(kind), np.cumsum(1 - kind)) - 1
    other = {"c": rng.normal(size=(kind.sum(), 3))}
    tables = {"a": {"h": one.node["h"][kind == 0]}, "b": other}
    return one.replace(node={"set": kind, "set_row": rows}, sets=tables)


def molecule(rng):
    nodes = int(rng.integers(3, 9))
    node = {
        "atomic_number": rng.integers(1, 9, nodes),
        "position": rng.normal(size=(nodes, 3)) * 2,
    }
    bare = kb.Graph(nodes, [], [], node=node, label=float(rng.normal()))
    return kb.preprocessing.FullyConnectedGraph()(bare)


def parts(kind):
    """A task, graphs, a batcher and a plan."""
    rng = np.random.default_rng(0)
    if kind == "schnet":
        backbone = kb.models.SchNetBackbone(100, 16, 2)
        graphs = [molecule(rng) for _ in range(60)]
        return kb.models.GraphRegressor(backbone), graphs, DynamicBatcher(3), Plan()
    inputs = {"h": {"features": 5}}
    graphs = [graph(rng, int(n)) for n in rng.integers(60, 120, 20)]
    if "sets" in kind:
        inputs = {"sets": {"a": {"h": {"features": 5}}, "b": {"c": {"features": 3}}}}
        graphs = [in_sets(rng, one) for one in graphs]
    batcher = DynamicBatcher(1)
    if kind.startswith("ggnn"):
        backbone = kb.models.GGNNBackbone(inputs, WIDTH, num_steps=3, num_edge_types=2)
        plan = Plan(Banded(SIZE), rest="drop" if "drop" in kind else Segment())
    elif kind == "sets":
        backbone = kb.models.RGCNBackbone(
            inputs, WIDTH, num_layers=2, num_edge_types=2, norm=None
        )
        plan = Plan(Segment())
    elif kind.startswith("sets_"):
        # Weights by type of edge and by node set.
        backbones = {
            "sets_sage": (kb.models.SAGEBackbone, {"type_reduce": "mean"}),
            "sets_gat": (kb.models.GATBackbone, {"type_reduce": "sum"}),
            "sets_hgt": (kb.models.HGTBackbone, {}),
        }
        cls, options = backbones[kind]
        options |= {"num_edge_types": 2, "norm": None}
        backbone = cls(inputs, WIDTH, num_layers=2, **options)
        plan = Plan(Segment())
    elif kind == "gps":
        # Batch statistics of the nodes of all devices, also where computed again.
        backbone = kb.models.GPSBackbone(
            inputs, 8, 1, edge_inputs={"type": 2}, num_heads=2, remat=True
        )
        plan = Plan(Segment())
    else:
        patterns = {"full": "full", "augment": "augment"}
        backbone = kb.models.GraphormerBackbone(
            inputs,
            WIDTH,
            num_layers=2,
            num_heads=HEADS,
            attention=patterns.get(kind, "sparse"),
        )
        plan = AttentionPlan()
        if kind == "blocks":
            batcher = StaticBatcher(1, "64")
            plan = AttentionPlan(8, share=2.0)
        for layer in backbone.graph_layers():
            graphs = [layer(one) for one in graphs]
    return kb.models.NodeClassifier(backbone, 3), graphs, batcher, plan


def step(kind, distribution, supergraphs):
    """Loss, gradients and the compiled program of a step of training."""
    with distribution.scope():
        kb.compat.set_random_seed(3)
        task, graphs, batcher, plan = parts(kind)
        task.compile(keras.optimizers.SGD(1.0), loss=task.loss)
        loader = kb.preprocessing.GraphLoader(
            graphs,
            batcher,
            plan,
            shuffle=False,
            num_edge_types=task.backbone.num_edge_types,
            replicas=supergraphs,
        )
        batch = task.distribution.data(task, loader)[0]
        compiled, given = program(task, batch)
        logs, (after, *_) = compiled(*given)
        slopes = {
            v.path.split("/", 1)[-1]: np.asarray(v.value) - np.asarray(new)
            for v, new in zip(task.trainable_variables, after, strict=True)
        }
        nodes = batch[0]["node"]["mask"].shape[1]
        return float(logs["loss"]), slopes, compiled, nodes, bytes_of_weights(task)


def bytes_of_weights(task):
    """Bytes of the weights, on the first device and of all."""
    arrays = [v.value for v in task.trainable_variables]
    first = sum(a.addressable_shards[0].data.nbytes for a in arrays)
    return first, sum(a.nbytes for a in arrays)


def program(task, batch):
    """The compiled step, and its arguments."""
    group = task.distribution
    task._symbolic_build(data_batch=batch)
    task.optimizer.build(task.trainable_variables)
    if group.several:
        batch = jax.tree.map(
            lambda a: jax.device_put(
                a, group.layouts.get_data_layout(a.shape).backend_layout
            ),
            batch,
        )
    state = task._get_jax_state(
        trainable_variables=True,
        non_trainable_variables=True,
        optimizer_variables=True,
        metrics_variables=True,
    )
    return jax.jit(task.train_step).lower(state, batch).compile(), (state, batch)


def compare(kind, make, supergraphs):
    """Differences from one device, relative to the largest gradient; collectives."""
    one = kb.distribution.data_parallel(devices=["cpu:0"], supergraphs=supergraphs)
    loss, slopes, *_ = step(kind, one, supergraphs)
    other, found, compiled, nodes, weights = step(kind, make(), supergraphs)
    largest = max(float(np.abs(a).max()) for a in slopes.values())
    worst = max(float(np.abs(slopes[n] - found[n]).max()) for n in slopes)
    costs = ProgramCosts.from_text(compiled.as_text())
    return {
        "loss": abs(loss - other),
        "slopes": worst / largest,
        "collectives": {
            name: [c.count, c.bytes] for name, c in costs.collectives.items()
        },
        "nodes": nodes,
        "parameters": sum(a.size for a in slopes.values()),
        "weights": weights,
    }


def trained(distribution):
    """Weights after two epochs of `fit`, and predictions."""
    with distribution.scope():
        kb.compat.set_random_seed(3)
        task, graphs, batcher, plan = parts("ggnn")
        task.preprocessor = kb.preprocessing.GraphPreprocessor([], batcher, plan)
        task.compile(keras.optimizers.Adam(1e-2), loss=task.loss)
        task.fit(graphs, epochs=2, verbose=0, validation_data=graphs)
        weights = [keras.ops.convert_to_numpy(v) for v in task.trainable_variables]
        return weights, task.predict(graphs)


@functools.cache
def trained_alone(supergraphs):
    return trained(
        kb.distribution.data_parallel(devices=["cpu:0"], supergraphs=supergraphs)
    )


def fit(make, supergraphs):
    """Differences of weights and predictions from one device."""
    weights, rows = trained_alone(supergraphs)
    found, others = trained(make())
    pairs = zip(weights, found, strict=True)
    worst = max(float(np.abs(a - b).max()) for a, b in pairs)
    pairs = zip(rows, others, strict=True)
    return {
        "slopes": worst,
        "loss": max(float(np.abs(a - b).max()) for a, b in pairs),
    }


def memory(kind):
    """Bytes of temporaries per device for one long graph, by number of devices."""
    found = {}
    for devices in (1, 2, 4, 8):
        names = [f"cpu:{n}" for n in range(devices)]
        group = kb.distribution.sequence_parallel(devices, 1, names)
        with group.scope():
            task, *_, batcher, plan = parts(kind)
            graphs = [graph(np.random.default_rng(0), 8000)]
            for layer in task.backbone.graph_layers():
                graphs = [layer(one) for one in graphs]
            types = task.backbone.num_edge_types
            loader = kb.preprocessing.GraphLoader(
                graphs, batcher, plan, num_edge_types=types
            )
            data = task.distribution.data(task, loader)
            analysis = program(task, data[0])[0].memory_analysis()
            found[devices] = analysis.temp_size_in_bytes
    return found


def sharded(batch):
    """A distribution of Keras that shards the last axis of large kernels."""
    devices = keras.distribution.list_devices()
    shape = batch, len(devices) // batch
    mesh = keras.distribution.DeviceMesh(shape, ("batch", "model"), devices)
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*backbone.*/kernel"] = (None, "model")
    return keras.distribution.ModelParallel(
        layout_map=layouts, batch_dim_name="batch", auto_shard_dataset=False
    )


def main(case):
    makers = {
        "keras": (lambda: keras.distribution.DataParallel(), 8),
        "layouts": (lambda: sharded(2), 2),
        "weights": (lambda: sharded(1), 1),
        "data": (lambda: kb.distribution.data_parallel(), 8),
        "sequence": (lambda: kb.distribution.sequence_parallel(8), 1),
        "mixed": (lambda: kb.distribution.sequence_parallel(4, 2), 2),
    }
    kind, how = case.split(":")
    if how == "memory":
        print(json.dumps(memory(kind)))
    elif kind == "fit":
        print(json.dumps(fit(*makers[how])))
    else:
        print(json.dumps(compare(kind, *makers[how])))


if __name__ == "__main__":
    for case in sys.argv[1:]:
        main(case)
