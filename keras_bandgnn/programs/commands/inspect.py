"""Shows sizes and bandwidths of graphs before and after reordering.

By default, program graphs keep all nodes and the edge types of their files, without
subtoken nodes; --subtokens and --steps change that. --ordering chooses the ordering,
Reverse Cuthill-McKee by default. --figure draws the histograms of Balog et al. 2019,
Figure 1.
"""

import argparse
import os

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report

LIMITS = (128, 256, 512, 1024)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "data", type=shared.path, help="program graphs, source code or store"
    )
    parser.add_argument("--split", default=None, help="only this split of a data set")
    parser.add_argument(
        "--subtokens", action="store_true", help="add nodes for subtokens"
    )
    parser.add_argument(
        "--steps",
        type=shared.positive,
        help="keep only nodes that reach a candidate in this many steps",
    )
    shared.add_ordering(parser, None)
    parser.add_argument(
        "--figure",
        type=shared.written_file,
        metavar="FILE",
        help="draw histograms (extra: plot)",
    )
    shared.add_reading(parser)


def measure(options: argparse.Namespace) -> dict:
    """Return sizes and bandwidths of the graphs that the options name, as arrays.

    "covered_edges" is the share of edges inside the band after reordering.
    """
    import numpy as np

    from keras_bandgnn.data import open_store
    from keras_bandgnn.preprocessing import (
        ProgramEncoder,
        RCMKCompile,
        ReachabilityFilter,
    )
    from keras_bandgnn.programs.models.program_store import bandwidths, compiled_files
    from keras_bandgnn.programs.program_files import find_programs

    if os.path.isfile(options.data / "store.json"):
        if options.subtokens or options.steps or options.split or options.ordering:
            raise shared.OptionError(
                "Expected --subtokens, --steps, --split and --ordering with program "
                "graphs or source code. Received: a store, whose graphs are compiled "
                "already. Leave these options out."
            )
        store = open_store(options.data)
        before, after = bandwidths(store)
        sizes = {"nodes": store.num_nodes, "edges": store.num_edges}
        as_stored = RCMKCompile(options.block_size, "natural")
        for _ in as_stored(store):
            pass
        covered = as_stored.stats()["covered_edges"]
        return {**sizes, "before": before, "after": after, "covered_edges": covered}
    kind, splits = find_programs(options.data, options.exclude, "none")
    if options.split is not None:
        if options.split not in splits:
            raise shared.OptionError(
                f"Expected --split to be one of {sorted(splits)}. "
                f"Received: {options.split!r}."
            )
        splits = {options.split: splits[options.split]}
    files = [file for split_files in splits.values() for file in split_files]
    language = "python" if kind == "python" else "csharp"
    encoder = ProgramEncoder("none", language, subtoken_nodes=options.subtokens)
    layers = [] if options.steps is None else [ReachabilityFilter(options.steps)]
    reading = {"max_instances": options.max_instances, "seed": options.seed}
    reorder, rows = RCMKCompile(options.block_size, options.ordering or "rcmk"), []
    outcomes = compiled_files(kind, files, encoder, layers, reading, options.processes)
    with report.progress("read") as progress:
        for count, (name, graphs, reasons) in enumerate(outcomes, start=1):
            for reason in reasons:
                report.say(f"left out: {name}: {reason}")
            for graph in graphs:
                # Half the edges are reverse edges, which the encoder adds.
                edges = graph.num_edges // 2
                row = [graph.num_nodes, edges, graph.bandwidth]
                rows.append([*row, reorder(graph).bandwidth])
            progress(count, len(files))
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    sizes = dict(zip(("nodes", "edges", "before", "after"), columns, strict=True))
    return {**sizes, "covered_edges": reorder.stats()["covered_edges"]}


def print_sizes(sizes: dict, block_size: int) -> None:
    """Print the tables."""
    import numpy as np

    names = {
        "nodes": "nodes",
        "edges": "edges",
        "before": "bandwidth before",
        "after": "bandwidth after",
    }
    rows = []
    for key, name in names.items():
        points = np.quantile(sizes[key], (0.05, 0.5, 0.95, 1.0)).astype(int)
        rows.append([name, *map(int, points), float(np.mean(sizes[key]))])
    columns = ["", "5 %", "median", "95 %", "largest", "mean"]
    report.table(f"graphs: {len(sizes['nodes'])}", columns, rows)
    rows = [
        [
            limit,
            report.percent(np.mean(sizes["before"] < limit)),
            report.percent(np.mean(sizes["after"] < limit)),
        ]
        for limit in LIMITS
    ]
    columns = ["bandwidth below", "before", "after"]
    report.table("share of graphs", columns, rows)
    ratio = sizes["nodes"] / np.maximum(sizes["after"], 1)
    report.say(
        f"nodes / bandwidth: median {np.median(ratio):.1f}, above 3 (three blocks "
        f"beat one dense matrix) in {report.percent(np.mean(ratio > 3))} of the graphs"
    )
    report.say(
        f"edges with |i - j| < {block_size} after reordering: "
        f"{report.percent(sizes['covered_edges'])}"
    )


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    sizes = measure(options)
    if not len(sizes["nodes"]):
        raise ValueError(
            f"Expected at least one graph in {options.data}. Received: none. Choose "
            "other files."
        )
    print_sizes(sizes, options.block_size)
    if options.figure is not None:
        from keras_bandgnn.plotting import plot_bandwidths

        plot_bandwidths(sizes, options.figure)
        report.say(f"figure written to {options.figure}")
