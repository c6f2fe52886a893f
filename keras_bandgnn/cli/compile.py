"""Reads Python source or program graphs and writes one store per split.

The input is a Python file or folder, or the program graphs of Allamanis et al. (a
file, a folder of files, or a folder with graphs-train, graphs-valid, graphs-test).
Python source is split by file or by package, never by usage. A killed run goes on
where it was when it is started again with the same options.
"""

import argparse
from pathlib import Path

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("input", type=Path, help="source code or program graphs")
    parser.add_argument("--out", type=Path, required=True, help="folder for the stores")
    parser.add_argument(
        "--split",
        choices=("file", "package", "none"),
        default="file",
        help="how Python source is divided into train, valid and test",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace stores")
    parser.add_argument(
        "--restart",
        action="store_true",
        help="throw away an unfinished run with other options",
    )
    shared.add_reading(parser)
    shared.add_compiling(parser)


def make_preprocessor(options: argparse.Namespace, language: str):
    """The preprocessor that the command line describes."""
    from keras_bandgnn import preprocessing

    return preprocessing.GraphPreprocessor(
        [
            preprocessing.ProgramEncoder(
                options.labels,
                language=language,
                subtoken_nodes=not options.no_subtoken_nodes,
            ),
            preprocessing.ReachabilityFilter(options.steps),
            preprocessing.RCMKCompile(options.block_size, options.ordering),
        ]
    )


def reading(options: argparse.Namespace) -> dict:
    """Options of `program_graphs` that the command line gives."""
    return {
        "max_instances": options.max_instances,
        "seed": options.seed,
        "steps": options.steps,
    }


def compile_splits(options: argparse.Namespace) -> dict:
    """Compiles every split of the input; returns split -> store."""
    from keras_bandgnn.data.program_files import find_programs
    from keras_bandgnn.preprocessing.compile_programs import compile_programs

    kind, splits = find_programs(options.input, options.exclude, options.split)
    language = "python" if kind == "python" else "csharp"
    preprocessor = make_preprocessor(options, language)
    stores = {}
    for split, files in splits.items():
        with report.progress(f"compile {split}") as progress:
            stores[split] = compile_programs(
                kind,
                files,
                options.out / split,
                preprocessor,
                reading(options) if kind == "python" else {},
                processes=options.processes,
                progress=progress,
                overwrite=options.overwrite,
                restart=options.restart,
            )
    show_stores(stores)
    return stores


def show_stores(stores: dict) -> None:
    """Prints the size of each store and the files that were left out."""
    rows, skipped = [], []
    for split, store in stores.items():
        nodes, edges = store.num_nodes, store.num_edges
        rows.append(
            [
                split,
                sum(entry["files"] for entry in store.reports),
                len(store),
                int(nodes.sum()),
                int(edges.sum()),
                float(nodes.mean()) if len(store) else 0.0,
            ]
        )
        skipped += [item for entry in store.reports for item in entry["skipped"]]
    columns = ["split", "files", "graphs", "nodes", "edges", "nodes per graph"]
    report.table("compiled graphs", columns, rows)
    for name, reason in skipped[:10]:
        report.say(f"left out: {name}: {reason}")
    if len(skipped) > 10:
        report.say(f"left out: {len(skipped) - 10} more; see store.json")


def run(options: argparse.Namespace) -> None:
    """Runs the command."""
    compile_splits(options)
    report.say(f"stores written to {options.out}")
