"""Accuracy and time of an epoch of GCN on one graph, compared with kgcnn.

One process trains both libraries' models, seed by seed, on the same features, public
split and epochs, with the same optimizer: a dense layer, graph convolutions of one
width, and a dense layer to the classes, without dropout and weight decay, which
kgcnn's GCN does not have. The weights of the best validation accuracy are tested. An
epoch is a step over the graph and its validation; times are medians, without those of
the first epoch, which compiles.

kgcnn imports `tree` without requiring it: `pip install kgcnn dm-tree`.
"""

import argparse
import time

from examples.benchmarks import allocator, figures
from examples.benchmarks.accuracy import stopping
from examples.benchmarks.protocols import PROTOCOLS, inputs_of, node_graphs
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report

SETS = tuple(name for name, each in PROTOCOLS.items() if each.split == "public")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("set", choices=SETS)
    parser.add_argument(
        "--path", type=shared.path, help="file or folder with the data set's files"
    )
    parser.add_argument("--seeds", type=shared.positive, default=5)
    parser.add_argument("--epochs", type=shared.positive, default=100)
    parser.add_argument("--hidden", type=shared.positive, default=64)
    parser.add_argument("--layers", type=shared.positive, default=2)
    parser.add_argument("--rate", type=shared.above_zero, default=1e-2)
    figures.add_option(parser)
    allocator.add_option(parser)


def arrays_of(graph) -> dict:
    """Return the arrays that kgcnn reads: a batch of one graph with self-loops."""
    import numpy as np

    loops = np.arange(graph.num_nodes)
    senders = np.concatenate([graph.senders, loops])
    receivers = np.concatenate([graph.receivers, loops])
    degree = np.bincount(receivers, minlength=graph.num_nodes).astype("float32")
    weight = 1 / np.sqrt(degree[senders] * degree[receivers])
    return {
        "node_attributes": graph.node["feature"][None].astype("float32"),
        "edge_weights": weight[None, :, None],
        # kgcnn has the receiver in front.
        "edge_indices": np.stack([receivers, senders], 1)[None].astype("int32"),
        "total_nodes": np.array([graph.num_nodes], "int32"),
        "total_edges": np.array([len(senders)], "int32"),
    }


def peer_model(arrays: dict, classes: int, options):
    """Return kgcnn's GCN, from arrays to probabilities of the nodes' classes."""
    from kgcnn.literature.GCN import make_model

    nodes = arrays["node_attributes"].shape[1]
    return make_model(
        inputs=[
            {"name": name, "shape": each.shape[1:], "dtype": str(each.dtype)}
            for name, each in arrays.items()
        ],
        # Static shapes, which JAX needs.
        cast_disjoint_kwargs={
            "padded_disjoint": True,
            "static_batched_node_output_shape": (nodes, classes),
        },
        input_node_embedding=None,
        input_edge_embedding=None,
        gcn_args={"units": options.hidden, "use_bias": True, "activation": "relu"},
        depth=options.layers,
        output_embedding="node",
        output_mlp={"units": [classes], "use_bias": True, "activation": ["softmax"]},
    )


def clock():
    """Return a callback that keeps the seconds of each epoch, and of all its cores."""
    import keras

    class Clock(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.times = []

        @staticmethod
        def now():
            return time.perf_counter(), time.process_time()

        def on_epoch_begin(self, epoch, logs=None):
            self.start = self.now()

        def on_epoch_end(self, epoch, logs=None):
            pairs = zip(self.now(), self.start, strict=True)
            self.times.append([end - start for end, start in pairs])

    return Clock()


def train_ours(graph, options) -> dict:
    """Train our GCN; return its accuracy, times and size."""
    import keras

    from keras_bandgnn import models

    inputs = inputs_of([graph], "node", ["feature"])
    # As in kgcnn, every convolution has a kernel, also that of the encoded features.
    backbone = models.GCNBackbone(
        inputs, options.hidden, options.layers, first_kernel=True
    )
    task = models.NodeClassifier(backbone, int(graph.label.max()) + 1)
    task.compile(keras.optimizers.Adam(options.rate), metrics=["accuracy"])
    timer, best = (
        clock(),
        stopping(PROTOCOLS[options.set], {"patience": options.epochs}),
    )
    task.fit(
        graph,
        mask="train_mask",
        validation_mask="valid_mask",
        epochs=options.epochs,
        callbacks=[timer, best],
        verbose=0,
    )
    found = task.evaluate(graph, mask="test_mask", verbose=0, return_dict=True)
    size = task.count_params()
    return {"score": found["accuracy"], "times": timer.times, "size": size}


def train_peer(graph, options) -> dict:
    """Train kgcnn's GCN; return its accuracy, times and size."""
    import keras
    import numpy as np

    arrays, labels = arrays_of(graph), graph.label[None]
    train, valid, test = (
        np.asarray(graph.node[f"{part}_mask"], "float32")[None]
        for part in ("train", "valid", "test")
    )
    model = peer_model(arrays, int(graph.label.max()) + 1, options)
    model.compile(
        keras.optimizers.Adam(options.rate),
        loss="sparse_categorical_crossentropy",
        weighted_metrics=[keras.metrics.SparseCategoricalAccuracy("accuracy")],
    )
    timer, best = (
        clock(),
        stopping(PROTOCOLS[options.set], {"patience": options.epochs}),
    )
    model.fit(
        arrays,
        labels,
        sample_weight=train,
        validation_data=(arrays, labels, valid),
        batch_size=1,
        epochs=options.epochs,
        callbacks=[timer, best],
        verbose=0,
    )
    right = model.predict(arrays, verbose=0).argmax(-1) == labels
    score = float(right[test > 0].mean())
    return {"score": score, "times": timer.times, "size": model.count_params()}


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    allocator.apply(options.allocator)
    import keras
    import numpy as np

    from keras_bandgnn.optional import optional_import

    optional_import("kgcnn", "kgcnn", "the comparison")
    optional_import("tree", "dm-tree", "kgcnn")
    runs = {"keras-bandgnn": [], "kgcnn": []}
    for graph, seed in node_graphs(options):
        for name, train in (("keras-bandgnn", train_ours), ("kgcnn", train_peer)):
            keras.utils.set_random_seed(seed)
            runs[name].append(train(graph, options))
            report.say(f"{seed}, {name}: accuracy {runs[name][-1]['score']:.3f}")
    rows, epochs = [], {}
    for name, found in runs.items():
        scores = [100 * each["score"] for each in found]
        first = np.median([each["times"][0] for each in found], axis=0)
        later = [each["times"][1:] or each["times"] for each in found]
        later = 1e3 * np.median(np.concatenate(later), axis=0)
        epochs[name] = float(later[0])
        rows.append(
            [
                f"GCN, {name}",
                f"{np.mean(scores):.1f} ± {np.std(scores):.1f}",
                f"{found[0]['size']:,}",
                f"{later[0]:.0f} ms ({later[1]:.0f} ms)",
                f"{first[0]:.1f} s ({first[1]:.1f} s)",
            ]
        )
    head = ["model", "accuracy in %", "parameters", "epoch", "first epoch"]
    title = f"{options.set}, {options.epochs} epochs, {keras.backend.backend()}"
    report.table(title, head, rows)
    report.say("Times in brackets are those of the process on all cores.")
    row = figures.row("epoch", epochs["keras-bandgnn"], epochs["kgcnn"], "ms")
    figures.write(options, [row], runs)
