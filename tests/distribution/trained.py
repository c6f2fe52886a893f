"""Trains small tasks under `data_parallel`, in as many processes as a test asks for.

python trained.py OPTIONS, where OPTIONS is a list in JSON of what `train` takes.
"""

import json
import os
import sys
import traceback

if __name__ == "__main__" and os.environ["KERAS_BACKEND"] == "tensorflow":
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2
    )
import keras
import numpy as np

import keras_bandgnn as kb


def selector_graphs(count):
    rng = np.random.default_rng(0)
    graphs = []
    for _ in range(count):
        # Sizes differ a lot: so do the numbers of graphs per supergraph.
        size = int(rng.choice([3, 4, 5, 30]))
        kind = rng.integers(0, 3, size)
        senders, receivers = rng.integers(0, size, (2, 2 * size))
        graphs.append(
            kb.Graph(
                size,
                senders,
                receivers,
                edge_type=rng.integers(0, 2, 2 * size),
                node={"kind": kind},
                candidates=[0, 1, 2],
                label=int(np.argmax(kind[:3])),
            )
        )
    return graphs


def large_graph(nodes=61):
    rng = np.random.default_rng(0)
    return kb.Graph(
        nodes,
        *rng.integers(0, nodes, (2, 300)),
        node={"kind": rng.integers(0, 3, nodes)},
        label=rng.integers(0, 2, nodes),
        label_level="node",
    )


def molecules(count, forces):
    rng = np.random.default_rng(0)
    graphs = []
    for _ in range(count):
        size = int(rng.choice([2, 3, 12]))
        node = {
            "atomic_number": rng.choice([1, 6], size),
            # No two at one place, where a distance has no slope.
            "position": np.arange(size)[:, None] + rng.normal(0, 0.2, (size, 3)),
        }
        if forces:
            node["force"] = rng.normal(0, 0.1, (size, 3))
        label = node["position"].std() + rng.normal(0, 0.1)
        graphs.append(kb.Graph(size, [], [], node=node, label=label))
    return graphs


def made(kind, dropout=0.0):
    batcher = kb.preprocessing.DynamicBatcher(5)
    plan = kb.primitives.Plan(kb.primitives.Segment())
    if kind == "selector":
        backbone = kb.models.GGNNBackbone(
            {"kind": 3},
            hidden_dim=8,
            num_steps=2,
            num_edge_types=2,
            dropout=dropout,
        )
        prepare = kb.preprocessing.GraphPreprocessor([], batcher, plan)
        # Clips the global norm: of the gradient of all devices, not of each.
        return kb.models.NodeSelector(backbone, prepare), selector_graphs(50)
    if kind == "norms":
        # Statistics of the nodes of all devices.
        backbone = kb.models.GINEBackbone(
            {"kind": 3}, 8, 2, edge_inputs={"type": 2}, num_edge_types=2, norm="batch"
        )
        prepare = kb.preprocessing.GraphPreprocessor([], batcher, plan)
        task = kb.models.NodeSelector(backbone, prepare)
        task.compile(keras.optimizers.SGD(0.05))
        return task, selector_graphs(50)
    if kind == "sampled":
        backbone = kb.models.SAGEBackbone({"kind": 3}, 8, 2, norm=None)
        batcher = kb.preprocessing.StaticBatcher(1, "64")
        prepare = kb.preprocessing.GraphPreprocessor([], batcher, plan)
        task = kb.models.NodeClassifier(backbone, 2, prepare)
        task.compile(keras.optimizers.SGD(0.05))
        return task, [large_graph()]
    if kind in ("banded", "attention"):
        return of_sequences(kind)
    softplus = {"activation": kb.layers.shifted_softplus}
    backbone = kb.models.SchNetBackbone(
        [1, 6], hidden_dim=8, num_gaussians=10, num_steps=2
    )
    layers = [kb.preprocessing.RadiusGraph(4.0)]
    prepare = kb.preprocessing.GraphPreprocessor(layers, batcher, plan)
    if kind == "forces":
        task = kb.models.ForceRegressor(backbone, 1, prepare, **softplus)
    else:
        task = kb.models.GraphRegressor(backbone, 1, prepare, **softplus)
        # Counted once, however many devices there are.
        for layer in task._flatten_layers():
            if isinstance(layer, keras.layers.Dense):
                layer.kernel.regularizer = keras.regularizers.L2(0.01)
    rate = 1e-4 if kind == "forces" else 0.05
    task.compile(keras.optimizers.SGD(rate))
    return task, molecules(40, kind == "forces")


def of_sequences(kind):
    """A task whose devices may share a graph, and graphs with short edges and long."""
    rng = np.random.default_rng(0)
    level, graphs = "node" if kind == "banded" else "graph", []
    for size in rng.integers(20, 60, 8):
        sender = rng.integers(0, size, 3 * size)
        receiver = np.clip(sender + rng.integers(-9, 10, 3 * size), 0, size - 1)
        label = rng.integers(0, 3, size) if level == "node" else rng.normal()
        graph = kb.Graph(
            size,
            sender,
            receiver,
            edge_type=rng.integers(0, 2, 3 * size),
            node={"h": rng.normal(size=(size, 5))},
            label=label,
            label_level=level,
        )
        graphs.append(graph)
    inputs, batcher = {"h": {"features": 5}}, kb.preprocessing.DynamicBatcher(2)
    if kind == "banded":
        backbone = kb.models.GGNNBackbone(inputs, 8, num_steps=2, num_edge_types=2)
        plan = kb.primitives.Plan(kb.primitives.Banded(4), rest=kb.primitives.Segment())
        prepare = kb.preprocessing.GraphPreprocessor([], batcher, plan)
        task = kb.models.NodeClassifier(backbone, 3, prepare)
    else:
        backbone = kb.models.GraphormerBackbone(
            inputs, 8, num_layers=2, num_heads=4, global_token=True
        )
        layers = backbone.graph_layers()
        plan = kb.preprocessing.AttentionPlan()
        prepare = kb.preprocessing.GraphPreprocessor(layers, batcher, plan)
        task = kb.models.GraphRegressor(backbone, 1, prepare)
    task.compile(keras.optimizers.SGD(0.05))
    return task, graphs


class Stop(keras.callbacks.Callback):
    """Ends the process in the middle of an epoch, as a crash does."""

    def __init__(self, place, end):
        super().__init__()
        self.place, self.end = tuple(place), end

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.place == (self.epoch, batch):
            self.end()


class Stopped(Exception):
    pass


def stopped():
    raise Stopped


def train(
    task,
    folder=None,
    stop=None,
    stopped_host=None,
    end=stopped,
    epochs=2,
    differ=False,
    by_keras=False,
    sequence=None,
    **options,
):
    """Trains, evaluates and predicts; returns plain results.

    Args:
        task: "selector", "norms", "schnet", "forces", "sampled", "banded" or
            "attention".
        folder: Where progress and checkpoints go.
        stop: Epoch and batch after which `stopped_host` calls `end`.
        stopped_host: Number of the process.
        end: What ends it.
        epochs: Number of epochs.
        differ: Whether each process gets other graphs.
        by_keras: Whether a distribution of Keras says which devices there are.
        sequence: Number of devices that share a supergraph.
        **options: Of `data_parallel`.
    """
    if by_keras:
        # Joins the processes, and says which of them this one is.
        keras.distribution.initialize()
        distribution = keras.distribution.DataParallel(auto_shard_dataset=False)
        host = distribution.data_shard_id
    elif sequence:
        distribution = kb.distribution.sequence_parallel(sequence, **options)
        host = int(os.environ["RANK"])
    else:
        distribution = kb.distribution.data_parallel(**options)
        host = getattr(distribution, "host", 0)
    # Other weights in every process: the first one's count. JAX itself asks for the
    # same ones.
    differs = host if keras.backend.backend() != "jax" else 0
    kb.compat.set_random_seed(100 * differs)
    more = {}
    if task == "sampled":
        more["sampler"] = kb.preprocessing.NeighborSampler([3, 2], batch_size=8)
    with distribution.scope():
        task, graphs = made(task)
        if differs:
            for variable in task.trainable_variables:
                variable.assign(variable + 1.0)
        if differ and host:
            graphs = graphs[::-1]
        callbacks = []
        if folder:
            file = os.path.join(folder, f"host{host}.weights.h5")
            saved = keras.callbacks.ModelCheckpoint(file, save_weights_only=True)
            progress = os.path.join(folder, "progress")
            callbacks = [kb.training.SaveProgress(progress, save_freq=1)]
            if not getattr(distribution, "saves_together", False):
                callbacks.append(saved)
        if stop and host == stopped_host:
            callbacks.append(Stop(stop, end))
        valid = graphs[:13]
        history = task.fit(
            graphs,
            epochs=epochs,
            validation_data=valid,
            callbacks=callbacks,
            verbose=2,
            **more,
        )
        evaluated = task.evaluate(valid, verbose=2, return_dict=True, **more)
        predicted = task.predict(valid)
        composition = task.loader(graphs, shuffle=True, **more).composition(0)
    return {
        "counts": [len(supergraph.members) for supergraph in composition],
        "history": history.history,
        "epochs": history.epoch,
        "evaluated": evaluated,
        "weights": [np.ravel(w).tolist() for w in task.get_weights()],
        "predicted": [np.ravel(rows).tolist() for rows in predicted],
    }


def assert_same(one, other, tolerance=1e-5):
    """Compares what `train` returned."""
    assert one["counts"] == other["counts"]
    assert one["epochs"] == other["epochs"]
    for part in ("history", "evaluated"):
        assert one[part].keys() == other[part].keys()
        for name, values in one[part].items():
            np.testing.assert_allclose(
                values, other[part][name], rtol=tolerance, atol=tolerance, err_msg=name
            )
    for part in ("weights", "predicted"):
        for mine, theirs in zip(one[part], other[part], strict=True):
            np.testing.assert_allclose(
                mine, theirs, rtol=tolerance, atol=tolerance, err_msg=part
            )


def run_all(wanted):
    """`train` with each of the options; errors in the place of results."""
    results = []
    for options in wanted:
        try:
            results.append(train(**options))
        except Exception as error:
            traceback.print_exc()
            results.append(f"{type(error).__name__}: {error}")
    return results


def child(rank, world, port, out, wanted):
    """A process as `torchrun` starts it."""
    import torch

    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        MASTER_ADDR="localhost",
        MASTER_PORT=str(port),
    )
    log = open(f"{out}.{rank}.log", "w", buffering=1)
    sys.stdout = sys.stderr = log
    for options in wanted:
        if "stop" in options:
            options["end"] = lambda: os._exit(7)
    results = run_all(wanted)
    with open(f"{out}.{rank}.json", "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    if os.environ["KERAS_BACKEND"] == "jax" and "PROCESS" in os.environ:
        port, world, rank = os.environ["PROCESS"].split()
        keras.distribution.initialize(f"localhost:{port}", int(world), int(rank))
        for options in wanted:
            if "stop" in options:
                options["end"] = lambda: os._exit(7)
    print(json.dumps(run_all(wanted)), flush=True)
