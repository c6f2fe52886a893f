"""Reads Python source or program graphs and writes one store per split.

The input is a Python file or folder, or the program graphs of Allamanis et al. (a
file, a folder of files, or a folder with graphs-train, graphs-valid, graphs-test).
Python source is split by file or by package, never by usage. A killed run resumes when
it is started again with the same options, on any engine. All engines write identical
bytes.
"""

import argparse
import contextlib
import shutil

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("input", type=shared.path, help="source code or program graphs")
    parser.add_argument(
        "--out", type=shared.path, required=True, help="folder for the stores"
    )
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
        help="discard an unfinished run with other options",
    )
    parser.add_argument(
        "--engine",
        choices=("process", "ray"),
        default="process",
        help="processes of this machine, or workers of a running Ray cluster",
    )
    parser.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="cluster to join: host:port, or auto for that of this machine, as if "
        "omitted",
    )
    shared.add_reading(parser)
    shared.add_compiling(parser)


def make_preprocessor(options: argparse.Namespace, language: str):
    """Return the preprocessor that the command line describes."""
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
    """Return the options of `program_graphs` from the command line."""
    return {
        "max_instances": options.max_instances,
        "seed": options.seed,
        "steps": options.steps,
    }


def make_pool(options: argparse.Namespace):
    """Return the `RayPool` that the command line asks for, not started, or None."""
    if options.engine == "ray":
        from keras_bandgnn.programs.ray_pool import RayPool

        return RayPool(options.ray_address or "auto", options.processes)
    if options.ray_address is not None:
        raise shared.OptionError(
            "Expected --ray-address with --engine ray. Received: "
            f"--engine {options.engine}."
        )
    return None


def compile_splits(options: argparse.Namespace, pool=None) -> dict:
    """Compile every split of the input; return split -> store.

    Args:
        options: The command line.
        pool: A `RayPool`, entered only if a split is unfinished. Local processes do
            the work if omitted.
    """
    from keras_bandgnn.programs.models.program_store import ProgramStoreJob
    from keras_bandgnn.programs.program_files import find_programs

    kind, splits = find_programs(options.input, options.exclude, options.split)
    language = "python" if kind == "python" else "csharp"
    preprocessor = make_preprocessor(options, language)
    # Creating all jobs first reports errors in any split before work begins.
    jobs = {
        split: ProgramStoreJob(
            kind,
            files,
            options.out / split,
            preprocessor,
            reading(options) if kind == "python" else {},
            overwrite=options.overwrite,
            restart=options.restart,
        )
        for split, files in splits.items()
    }
    stores = {split: job.store for split, job in jobs.items()}
    unfinished = {split: job for split, job in jobs.items() if job.store is None}
    with pool if pool and unfinished else contextlib.nullcontext():
        for split, job in unfinished.items():
            with report.progress(f"compile {split}", "files") as progress:
                stores[split] = job.run(options.processes, pool, progress)
    if not any(map(len, stores.values())):
        left_out(stores)
        for split in unfinished:
            shutil.rmtree(options.out / split)
        with contextlib.suppress(OSError):  # the folder holds other files
            options.out.rmdir()
        count = sum(map(len, splits.values()))
        raise ValueError(
            "Expected at least one variable usage with two candidates in "
            f"{options.input}. Received: none in {count} files. Choose other files."
        )
    print_stores(stores)
    return stores


def left_out(stores: dict) -> None:
    """Print the files that the stores skipped."""
    entries = [entry for store in stores.values() for entry in store.reports]
    report.left_out([tuple(item) for entry in entries for item in entry["skipped"]])


def print_stores(stores: dict) -> None:
    """Print the size of each store and the skipped files."""
    rows = []
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
    columns = ["split", "files", "graphs", "nodes", "edges", "nodes per graph"]
    report.table("compiled graphs", columns, rows)
    left_out(stores)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    compile_splits(options, make_pool(options))
    report.say(f"stores written to {options.out}")
