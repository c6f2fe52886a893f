"""Graphs for `bandgnn tune`: stores, data sets, the demo."""

import argparse
import sysconfig
from pathlib import Path

from keras_bandgnn.cli import data_sets
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli.demo import EXCLUDED


def add_data(parser: argparse.ArgumentParser) -> None:
    """Adds the options that name graphs."""
    group = parser.add_argument_group("data")
    data_sets.add_files(group)
    group.add_argument(
        "--limit",
        type=shared.positive,
        metavar="N",
        help="use the first N graphs to train on, and N / 4 to validate",
    )
    group.add_argument("--source", type=shared.path, help="source code for demo")
    group.add_argument(
        "--processes", type=shared.positive, help="to compile with; one per core"
    )


def _demo(options: argparse.Namespace) -> dict:
    """Stores of the demo, compiled once."""
    from keras_bandgnn.cli import compile as compile_command
    from keras_bandgnn.data import open_store

    folder = Path(options.out) / "data"
    # A search goes on with its graphs, whatever has become of their source.
    begun = (folder.parent / "settings.json").is_file() and not options.overwrite
    made = all((folder / s / "store.json").is_file() for s in ("train", "valid"))
    if not (begun and made):
        parser = argparse.ArgumentParser()
        compile_command.add_arguments(parser)
        source = str(options.source or sysconfig.get_path("stdlib"))
        given = parser.parse_args(
            [source, "--out", str(folder), "--steps", "6", "--exclude", *EXCLUDED]
        )
        given.processes, given.restart = options.processes, options.overwrite
        try:
            compile_command.compile_splits(given)
        except FileExistsError:
            if not options.overwrite:
                raise
            given.overwrite = True
            compile_command.compile_splits(given)
    return {split: open_store(folder / split) for split in ("train", "valid")}


def read(options: argparse.Namespace) -> dict:
    """Graphs to train on and to validate on; one graph with masks is both."""
    from keras_bandgnn.data import open_store

    folder = Path(options.data)
    if options.data == "demo":
        splits = _demo(options)
    elif all((folder / s / "store.json").is_file() for s in ("train", "valid")):
        data_sets.check_stores(options)
        splits = {s: open_store(folder / s) for s in ("train", "valid")}
    else:
        whole = _split(options, None)
        if len(whole) == 1:
            if options.limit is not None:
                raise shared.OptionError(
                    "Expected --limit with several graphs. Received: one with masks."
                )
            return {"train": whole[0]}
        splits = {s: _split(options, s) for s in ("train", "valid")}
    counts = {"train": options.limit, "valid": options.limit and -(-options.limit // 4)}
    return {s: _first(graphs, counts[s]) for s, graphs in splits.items()}


def _split(options: argparse.Namespace, split: str | None):
    return data_sets.read_graphs(
        argparse.Namespace(**{**vars(options), "split": split})
    )


def _first(graphs, count: int | None):
    import numpy as np

    from keras_bandgnn.data import FlatGraphs, parts_of

    if count is None or count >= len(graphs):
        return graphs
    flat = FlatGraphs.concatenate(parts_of(graphs)).take(np.arange(count))
    flat.metadata = getattr(graphs, "metadata", {})
    return flat
