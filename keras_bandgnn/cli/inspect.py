"""Shows sizes and bandwidths of graphs before and after reordering.

Program graphs are taken whole, with the relations of their files and without
subtokens; --subtokens and --steps change that. They are reordered as --ordering says,
by Reverse Cuthill-McKee if it is omitted. With --figure the histograms of Balog et al.
2019, Figure 1, are drawn.
"""

import argparse

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report

LIMITS = (128, 256, 512, 1024)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument(
        "data", type=shared.path, help="program graphs, source code or store"
    )
    parser.add_argument("--split", default=None, help="only this split of a data set")
    parser.add_argument(
        "--subtokens", action="store_true", help="with nodes for subtokens"
    )
    parser.add_argument(
        "--steps",
        type=shared.positive,
        help="keep only nodes that reach a candidate in so many steps",
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
    """Sizes and bandwidths of the graphs that the options name, as arrays.

    "covered_edges" is the share of edges in the band after reordering.
    """
    import numpy as np

    from keras_bandgnn.data import open_store
    from keras_bandgnn.preprocessing import (
        ProgramEncoder,
        RCMKCompile,
        ReachabilityFilter,
    )
    from keras_bandgnn.preprocessing.program_store import bandwidths, compiled_files
    from keras_bandgnn.programs.program_files import find_programs

    if (options.data / "store.json").is_file():
        if options.subtokens or options.steps or options.split or options.ordering:
            raise shared.OptionError(
                "Expected --subtokens, --steps, --split and --ordering with program "
                "graphs or source code. Received: a store, whose graphs are compiled "
                "already."
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
    files = [file for found in splits.values() for file in found]
    language = "python" if kind == "python" else "csharp"
    encoder = ProgramEncoder("none", language, subtoken_nodes=options.subtokens)
    layers = [] if options.steps is None else [ReachabilityFilter(options.steps)]
    reading = {"max_instances": options.max_instances, "seed": options.seed}
    reorder, rows = RCMKCompile(options.block_size, options.ordering or "rcmk"), []
    outcomes = compiled_files(kind, files, encoder, layers, reading, options.processes)
    with report.progress("read") as progress:
        for done, (name, graphs, reasons) in enumerate(outcomes, start=1):
            for reason in reasons:
                report.say(f"left out: {name}: {reason}")
            for graph in graphs:
                # Each relation has its reverse: half the edges are the program's.
                edges = graph.num_edges // 2
                row = [graph.num_nodes, edges, graph.bandwidth]
                rows.append([*row, reorder(graph).bandwidth])
            progress(done, len(files))
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    sizes = dict(zip(("nodes", "edges", "before", "after"), columns, strict=True))
    return {**sizes, "covered_edges": reorder.stats()["covered_edges"]}


def show(sizes: dict, block_size: int) -> None:
    """Prints the tables."""
    import numpy as np

    names = {
        "nodes": "nodes",
        "edges": "edges",
        "before": "bandwidth as given",
        "after": "bandwidth reordered",
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
    columns = ["bandwidth below", "as given", "reordered"]
    report.table("share of graphs", columns, rows)
    ratio = sizes["nodes"] / np.maximum(sizes["after"], 1)
    report.say(
        f"nodes / bandwidth: median {np.median(ratio):.1f}, above 3 (three blocks "
        f"beat one dense matrix) in {report.percent(np.mean(ratio > 3))} of the graphs"
    )
    report.say(
        f"edges with |i - j| < {block_size}, reordered: "
        f"{report.percent(sizes['covered_edges'])}"
    )


def run(options: argparse.Namespace) -> None:
    """Runs the command."""
    sizes = measure(options)
    if not len(sizes["nodes"]):
        raise ValueError(
            f"Expected at least one graph in {options.data}. Received: none."
        )
    show(sizes, options.block_size)
    if options.figure is not None:
        from keras_bandgnn.plotting import plot_bandwidths

        plot_bandwidths(sizes, options.figure)
        report.say(f"figure written to {options.figure}")
