"""Padding, assembly and feeding of batches.

Padding: the share of nodes and edges of an epoch that are padding, including the last
supergraph and buckets. Assembly: milliseconds per batch in one thread, compared with
torch_geometric's DataLoader if it is installed. Feeding: an epoch of `fit` with the
loader, compared with as many steps on one prebuilt batch. Medians of alternating runs.
"""

import argparse
import time

from examples.benchmarks import figures
from keras_bandgnn.cli import data_sets, report
from keras_bandgnn.cli import options as shared


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    data_sets.add_data(parser)
    parser.add_argument("--batch-size", type=shared.positive, nargs="+", default=[32])
    parser.add_argument("--window", type=shared.positive, default=1024)
    parser.add_argument("--hidden", type=shared.positive, default=64)
    parser.add_argument("--layers", type=shared.positive, default=3)
    parser.add_argument("--runs", type=shared.positive, default=5)
    parser.add_argument(
        "--untyped", action="store_true", help="take all edges as of one type"
    )
    parser.add_argument("--no-fit", action="store_true", help="leave out feeding")
    figures.add_option(parser)


def batchers(size: int, window: int) -> dict:
    """The algorithms, by name."""
    from keras_bandgnn.preprocessing import DynamicBatcher, StaticBatcher

    return {
        "static-constant": StaticBatcher(size - 1, "constant"),
        "static-2^N": StaticBatcher(size - 1, "power_of_two"),
        "static-64": StaticBatcher(size - 1, "64"),
        "dynamic": DynamicBatcher(size - 1, packing="sequential"),
        "dynamic, best fit": DynamicBatcher(
            size - 1, packing="best_fit", window=window
        ),
    }


def untyped(graphs):
    """The same graphs with edges of one type."""
    from keras_bandgnn.data import FlatGraphs
    from keras_bandgnn.data.sources import parts_of

    whole = FlatGraphs.concatenate(parts_of(graphs))
    columns = whole.columns()
    columns["edge_type"] = columns["edge_type"] * 0
    return FlatGraphs.from_columns(columns, whole.info)


def padding(loader, epoch: int = 0) -> dict[str, float]:
    """Share of nodes and edges of an epoch that are padding."""
    made = loader.composition(epoch)
    return {
        name: 1 - loader.sizes[name].sum() / sum(s.budget[name] for s in made)
        for name in ("node", "edge")
    }


def pyg_batches(graphs, batch_size: int):
    """A DataLoader of torch_geometric on the same graphs; None if it is missing."""
    try:
        from torch_geometric.loader import DataLoader
    except ImportError:
        return None
    from keras_bandgnn.data import to_pyg

    return DataLoader([to_pyg(g) for g in graphs], batch_size, shuffle=True)


def seconds_per_batch(batches, count: int) -> float:
    """Mean seconds of `count` batches, after one that is not counted."""
    iterator = iter(batches)
    next(iterator)
    start = time.perf_counter()
    for _ in range(count):
        next(iterator)
    return (time.perf_counter() - start) / max(1, count)


def loader_batches(loader):
    """The batches of the next epoch, which is composed before it is timed."""
    loader.on_epoch_end()
    loader.composition(loader.epoch)
    for index in range(len(loader)):
        yield loader[index]


def feeding(graphs, loader, options) -> tuple[float, float]:
    """Seconds of an epoch with the loader, and on one ready-made batch."""
    import keras
    import numpy as np

    task = data_sets.make_model(graphs, options.hidden, options.layers)

    class Ready(keras.utils.PyDataset):
        """One batch, again and again."""

        batch = loader.build(0, 0)

        def __len__(self):
            return len(loader)

        def __getitem__(self, index):
            return self.batch

    ready = Ready()
    task.fit(loader, verbose=0)
    keras.Model.fit(task, ready, verbose=0)
    times = {"loader": [], "ready": []}
    for _ in range(options.runs):
        start = time.perf_counter()
        task.fit(loader, verbose=0)
        middle = time.perf_counter()
        keras.Model.fit(task, ready, verbose=0)
        times["loader"].append(middle - start)
        times["ready"].append(time.perf_counter() - middle)
    return float(np.median(times["loader"])), float(np.median(times["ready"]))


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    import numpy as np

    from keras_bandgnn.preprocessing import GraphLoader

    graphs = data_sets.read_graphs(options)
    if options.untyped:
        graphs = untyped(graphs)
    kept, measured = [], {}
    for size in options.batch_size:
        rows = []
        for name, batcher in batchers(size, options.window).items():
            loader = GraphLoader(graphs, batcher, prefetch=0)
            made = loader.composition(0)
            wasted = padding(loader)
            shapes = {(s.budget["node"], s.budget["edge"]) for s in made}
            per = len(graphs) / len(made)
            rows.append(
                [
                    name,
                    len(made),
                    f"{per:.1f}",
                    len(shapes),
                    report.percent(wasted["node"]),
                    report.percent(wasted["edge"]),
                ]
            )
        columns = ["", "batches", "graphs each", "shapes", "padding nodes", "edges"]
        report.table(f"padding, batch size {size}, {len(graphs)} graphs", columns, rows)
        subjects = {
            name: GraphLoader(graphs, batchers(size, options.window)[name], prefetch=0)
            for name in ("static-64", "dynamic", "dynamic, best fit")
        }
        times = {name: [] for name in (*subjects, "torch_geometric")}
        peer = pyg_batches(graphs, size - 1)
        for _ in range(options.runs):
            for name, loader in subjects.items():
                batches = loader_batches(loader)
                times[name].append(
                    seconds_per_batch(batches, min(100, len(loader) - 1))
                )
            if peer is not None:
                count = min(100, len(peer) - 1)
                times["torch_geometric"].append(seconds_per_batch(peer, count))
        middle = {k: 1e3 * float(np.median(v)) for k, v in times.items() if v}
        base = middle.get("torch_geometric")
        measured[str(size)] = {"ms": middle, "all": times}
        kept += [
            figures.row(f"assembly, {name}, batch size {size}", value, base, "ms")
            for name, value in middle.items()
            if name != "torch_geometric"
        ]
        rows = [
            [name, f"{value:.3f}", "" if base is None else f"{base / value:.1f}"]
            for name, value in middle.items()
        ]
        columns = ["", "ms per batch", "times faster than torch_geometric"]
        report.table(f"assembly, batch size {size}", columns, rows)
        if options.no_fit:
            continue
        loader = GraphLoader(graphs, batchers(size, options.window)["dynamic"])
        fed, ready = feeding(graphs, loader, options)
        measured[str(size)]["feeding"] = {"loader": fed, "ready": ready}
        kept.append(figures.row(f"feeding, batch size {size}", fed, ready, "s"))
        report.say(
            f"an epoch of fit, batch size {size}: {fed:.2f} s with the loader, "
            f"{ready:.2f} s on one ready-made batch, {100 * (fed / ready - 1):+.1f} %"
        )
        report.say(loader.stats.summary())
    figures.write(options, kept, measured)
