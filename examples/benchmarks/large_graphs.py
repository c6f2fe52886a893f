"""Large graphs: sampled batches, GraphSAGE on them, and all nodes layer by layer.

FOLDER holds `edge_index.npy` int64 [2, E] (senders, receivers), `x.npy` float32 [N, F],
`y.npy` int64 [N], and ids of nodes in `train.npy` and `test.npy`; `--make N` makes one.
Parts, each in a process of its own, so that its peak of memory is its own:

- `sample`: seeds per second of sampling and assembling batches, beside
  torch_geometric's NeighborLoader.
- `train`: epochs of GraphSAGE: time, peak of memory and accuracy, ours and
  torch_geometric's; for ours also the time of the same epochs over ready-made batches.
- `predict`: predictions for all nodes, layer by layer.

The peer needs torch_geometric with pyg-lib or torch-sparse; without it ours runs alone.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from examples.benchmarks import allocator, figures
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report

PARTS = ("sample", "train", "predict")
CLASSES = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--make", type=shared.positive, help="nodes of a new graph")
    parser.add_argument("--features", type=shared.positive, default=128)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--fan-outs", type=shared.positive, nargs="+", default=[15, 10])
    parser.add_argument("--batch-size", type=shared.positive, default=1024)
    parser.add_argument("--hidden", type=shared.positive, default=128)
    parser.add_argument("--epochs", type=shared.positive, default=3)
    parser.add_argument("--batches", type=shared.positive, default=50)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rate", type=shared.above_zero, default=3e-3)
    parser.add_argument("--mapped", action="store_true", help="features stay on disk")
    parser.add_argument(
        "--memory", type=shared.above_zero, help="limit of each process in GB"
    )
    parser.add_argument("--no-peer", action="store_true", help="ours alone")
    figures.add_option(parser)
    allocator.add_option(parser, "default")
    parser.add_argument("--child", help=argparse.SUPPRESS)


# === Data ===


def make(folder: Path, count: int, features: int) -> None:
    """Write the graph of `examples/large_graphs.py`, and its splits."""
    import numpy as np

    from examples.large_graphs import block_model

    flat = block_model(count, features)
    folder.mkdir(parents=True, exist_ok=True)
    ends = np.stack([flat.senders, flat.receivers]).astype(np.int64)
    np.save(folder / "edge_index.npy", ends)
    np.save(folder / "x.npy", flat.node["feature"])
    np.save(folder / "y.npy", flat.label.astype(np.int64))
    order = np.random.default_rng(1).permutation(count)
    train, test = np.split(order[: count // 10 + 20_000], [count // 10])
    np.save(folder / "train.npy", np.sort(train))
    np.save(folder / "test.npy", np.sort(test))


def arrays_of(options) -> dict:
    """Return the arrays of the folder by name."""
    import numpy as np

    names = ("edge_index", "x", "y", "train", "test")
    return {
        name: np.load(
            options.folder / f"{name}.npy",
            mmap_mode="r" if options.mapped and name in ("x", "edge_index") else None,
        )
        for name in names
    }


def graph_of(arrays: dict):
    """Return the graph, with the labels of the nodes to train on."""
    import numpy as np

    import keras_bandgnn as kb

    label = np.full(len(arrays["y"]), -1, np.int32)
    label[arrays["train"]] = arrays["y"][arrays["train"]]
    return kb.data.FlatGraphs(
        num_nodes=[len(label)],
        num_edges=[arrays["edge_index"].shape[1]],
        senders=arrays["edge_index"][0],
        receivers=arrays["edge_index"][1],
        node={"x": arrays["x"]},
        label=label,
        label_level="node",
    )


def peak() -> dict[str, float]:
    """Return the peak of the memory that the process held, in GB, files apart."""
    lines = Path("/proc/self/status").read_text().splitlines()
    table = dict(line.split(":") for line in lines if ":" in line)
    held = {name: int(table[name].split()[0]) / 2**20 for name in ("VmHWM", "RssAnon")}
    return {"peak": held["VmHWM"], "anonymous": held["RssAnon"]}


# === Ours ===


def task_of(width: int, options):
    """Return a GraphSAGE over node features."""
    import keras

    from keras_bandgnn import models

    keras.utils.set_random_seed(0)
    backbone = models.SAGEBackbone(
        {"x": {"features": width}},
        options.hidden,
        len(options.fan_outs),
        norm=None,
        residual=False,
    )
    task = models.NodeClassifier(backbone, CLASSES)
    task.compile(keras.optimizers.Adam(options.rate))
    return task


def our_sampler(options):
    """Return the sampler."""
    from keras_bandgnn.preprocessing import NeighborSampler

    return NeighborSampler(options.fan_outs, options.batch_size)


def sample_ours(options) -> dict:
    """Sample and assemble batches with one thread and several."""
    from keras_bandgnn.preprocessing import SampleLoader

    graph, out = graph_of(arrays_of(options)), {}
    for workers in options.workers:
        loader = SampleLoader(
            graph,
            our_sampler(options),
            trimmed=True,
            threads=workers,
            prefetch=2 * workers,
        )
        count = min(options.batches, len(loader) - 2)
        for index in range(2):
            loader[index]
        start, seeds = time.perf_counter(), 0
        for index in range(2, 2 + count):
            seeds += int(loader[index][2].sum())
        out[str(workers)] = seeds / (time.perf_counter() - start)
        loader.stop_threads()
    return out


def ready_batches(loader):
    """Return the batches of an epoch as a data set of Keras, built beforehand."""
    import keras

    class Ready(keras.utils.PyDataset):
        def __init__(self):
            super().__init__(workers=1)
            self.batches = [loader[index] for index in range(len(loader))]

        def __len__(self):
            return len(self.batches)

        def __getitem__(self, index):
            return self.batches[index]

    return Ready()


def train_ours(options) -> dict:
    """Train, and predict for the test nodes layer by layer."""
    arrays = arrays_of(options)
    graph, width = graph_of(arrays), arrays["x"].shape[1]
    task = task_of(width, options)
    times, sampler = _epochs(options), our_sampler(options)
    start = time.perf_counter()
    task.fit(
        graph, sampler=sampler, epochs=options.epochs, verbose=0, callbacks=[times]
    )
    out = {"seconds": time.perf_counter() - start, "epochs": times.seconds, **peak()}
    start = time.perf_counter()
    rows = task.predict_by_layer(graph)[0][arrays["test"]]
    out["predict"] = time.perf_counter() - start
    right = rows.argmax(-1) == arrays["y"][arrays["test"]]
    out |= {"accuracy": float(right.mean()), "peak with prediction": peak()["peak"]}
    if options.memory is None:
        data = ready_batches(task.loader(graph, shuffle=True, sampler=sampler))
        times = _epochs(options)
        task.fit(data, epochs=2, verbose=0, shuffle=False, callbacks=[times])
        out["ready"] = times.seconds[-1]
    return out


def _epochs(options):
    import keras

    class Seconds(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seconds = []

        def on_epoch_begin(self, epoch, logs=None):
            self.start = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            self.seconds.append(time.perf_counter() - self.start)

    return Seconds()


def predict_ours(options) -> dict:
    """Predict for all nodes layer by layer, with states in files and in memory."""
    import tempfile

    arrays = arrays_of(options)
    graph, out = graph_of(arrays), {}
    task = task_of(arrays["x"].shape[1], options)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for name, place in (("files", folder), ("memory", None)):
            start = time.perf_counter()
            task.predict_by_layer(graph, folder=place)
            out[name] = {"seconds": time.perf_counter() - start, **peak()}
    return out


# === The peer ===


def peer_loader(arrays: dict, workers: int, options, **more):
    """Return torch_geometric's loader."""
    import torch
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    data = Data(
        **{name: torch.from_numpy(arrays[name]) for name in ("x", "edge_index", "y")}
    )
    return NeighborLoader(
        data,
        num_neighbors=options.fan_outs,
        batch_size=options.batch_size,
        num_workers=workers,
        persistent_workers=workers > 0,
        **more,
    )


def sample_peer(options) -> dict:
    """Sample batches in the main process, and with workers."""
    import torch

    out = {}
    for workers in (0, *options.workers):
        loader = peer_loader(
            arrays_of(options),
            workers,
            options,
            input_nodes=torch.from_numpy(arrays_of(options)["train"]),
            shuffle=True,
        )
        batches = iter(loader)
        for _ in range(2):
            next(batches)
        count = min(options.batches, len(loader) - 2)
        start, seeds = time.perf_counter(), 0
        for _ in range(count):
            seeds += next(batches).batch_size
        out[str(workers)] = seeds / (time.perf_counter() - start)
        del batches, loader
    return out


def train_peer(options) -> dict:
    """Train torch_geometric's GraphSAGE, trimmed layer by layer."""
    import torch
    from torch_geometric.nn import SAGEConv
    from torch_geometric.utils import trim_to_layer

    torch.manual_seed(0)
    arrays = arrays_of(options)
    train, test = (torch.from_numpy(arrays[name]) for name in ("train", "test"))
    options.workers = options.workers[:1]
    loader = peer_loader(arrays, 0, options, input_nodes=train, shuffle=True)
    widths = [arrays["x"].shape[1], *[options.hidden] * (len(options.fan_outs) - 1)]
    convolutions = torch.nn.ModuleList(
        SAGEConv(width, units)
        for width, units in zip(widths, [*widths[1:], CLASSES], strict=True)
    )
    optimizer = torch.optim.Adam(convolutions.parameters(), options.rate)

    def outputs(batch):
        rows, edges = batch.x, batch.edge_index
        for number, convolution in enumerate(convolutions):
            rows, edges, _ = trim_to_layer(
                number,
                batch.num_sampled_nodes,
                batch.num_sampled_edges,
                rows,
                edges,
            )
            rows = convolution(rows, edges)
            if number < len(convolutions) - 1:
                rows = rows.relu()
        return rows[: batch.batch_size]

    seconds = []
    for _ in range(options.epochs):
        start = time.perf_counter()
        for batch in loader:
            optimizer.zero_grad()
            target = batch.y[: batch.batch_size]
            torch.nn.functional.cross_entropy(outputs(batch), target).backward()
            optimizer.step()
        seconds.append(time.perf_counter() - start)
    out = {"seconds": sum(seconds), "epochs": seconds, **peak()}
    right = total = 0
    with torch.no_grad():
        for batch in peer_loader(arrays, 0, options, input_nodes=test):
            right += int(
                (outputs(batch).argmax(-1) == batch.y[: batch.batch_size]).sum()
            )
            total += batch.batch_size
    return {**out, "accuracy": right / total}


CHILDREN = {
    "sample ours": sample_ours,
    "sample peer": sample_peer,
    "train ours": train_ours,
    "train peer": train_peer,
    "predict ours": predict_ours,
}


# === The command ===


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    if options.child:
        if options.memory is not None:
            import resource

            limit = int(options.memory * 2**30)
            # Memory of the process itself; pages of mapped files can be given back.
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        print(json.dumps(CHILDREN[options.child](options)))
        return
    allocator.apply(options.allocator)
    if options.make:
        make(options.folder, options.make, options.features)
    found = {}
    for child in CHILDREN:
        part, side = child.split()
        if part not in options.parts or side == "peer" and not _has_peer(options):
            continue
        found[child] = _in_process(child, options)
        report.say(f"{child}: {json.dumps(found[child])}")
    _show(found)
    figures.write(options, kept_rows(found), found)


def _has_peer(options) -> bool:
    if options.no_peer:
        return False
    try:
        import torch_geometric.typing as known
    except ImportError:
        return False
    return known.WITH_PYG_LIB or known.WITH_TORCH_SPARSE


def _in_process(child: str, options) -> dict:
    command = [sys.executable, "-m", "examples.benchmarks", "large_graphs"]
    command += [str(options.folder), "--child", child]
    for name in ("fan_outs", "workers"):
        values = map(str, getattr(options, name))
        command += [f"--{name.replace('_', '-')}", *values]
    for name in ("batch_size", "hidden", "epochs", "batches", "rate", "memory"):
        if getattr(options, name) is not None:
            command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    if options.mapped:
        command.append("--mapped")
    result = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, env=os.environ, check=False
    )
    if result.returncode:
        return {"failed": result.returncode}
    return json.loads(result.stdout.splitlines()[-1])


def kept_rows(found: dict) -> list[dict]:
    """Return the rows of the file of figures: sampling, an epoch, and its memory."""
    rows = []
    sides = {
        part: [found.get(f"{part} {side}", {"failed": 0}) for side in ("ours", "peer")]
        for part in ("sample", "train")
    }
    ours, peer = sides["sample"]
    if "failed" not in ours:
        for workers, rate in ours.items():
            other = peer.get(workers)
            name = f"sampling, {workers} workers"
            rows.append(figures.row(name, rate, other, "seeds/s", rate=True))
    ours, peer = sides["train"]
    if "failed" not in ours:
        # The first epoch compiles.
        epochs = [
            statistics.median(part["epochs"][1:] or part["epochs"])
            if "epochs" in part
            else None
            for part in (ours, peer)
        ]
        rows.append(figures.row("training, epoch", *epochs, "s"))
        peaks = ours["peak"], peer.get("peak")
        rows.append(figures.row("training, peak of memory", *peaks, "GB"))
    return rows


def _show(found: dict) -> None:
    rows = []
    for child, part in found.items():
        if "failed" in part:
            rows.append([child, "", json.dumps(part)])
        elif child.startswith("sample"):
            for workers, rate in part.items():
                rows.append([child, f"{workers} workers", f"{rate:,.0f} seeds/s"])
        elif child.startswith("train"):
            epochs = ", ".join(f"{seconds:.2f}" for seconds in part["epochs"])
            rows.append([child, f"epochs {epochs} s", f"peak {part['peak']:.2f} GB"])
            rows.append([child, "accuracy", f"{part['accuracy']:.4f}"])
            if "ready" in part:
                ready = f"{part['ready']:.2f} s"
                rows.append([child, "epoch of ready batches", ready])
        else:
            rows.append([child, "", json.dumps(part)])
    report.table("Large graphs", ["part", "", ""], rows)
