"""Reading, compiling and packing, in graphs per second.

Compiling is compared with SciPy's reverse_cuthill_mckee on the same graphs, including
the construction of its symmetric CSR matrix. One process; medians of alternating runs.
"""

import argparse
import itertools
import time
from collections.abc import Callable

from examples.benchmarks import figures
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("data", type=shared.path, help="program graphs or source code")
    parser.add_argument(
        "--graphs", type=shared.positive, default=800, help="maximum number of graphs"
    )
    parser.add_argument("--runs", type=shared.positive, default=5)
    parser.add_argument("--batch-nodes", type=shared.positive, default=8192)
    shared.add_reading(parser)
    figures.add_option(parser)


def timed(function: Callable) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def scipy_orders(graphs) -> None:
    """What SciPy alone does: the symmetric CSR matrix and its order."""
    import numpy as np
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    for graph in graphs:
        row = np.concatenate([graph.senders, graph.receivers])
        column = np.concatenate([graph.receivers, graph.senders])
        ones = np.ones(row.size, np.int8)
        size = (graph.num_nodes, graph.num_nodes)
        matrix = csr_matrix((ones, (row, column)), shape=size)
        reverse_cuthill_mckee(matrix, symmetric_mode=True)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    import numpy as np

    from keras_bandgnn import preprocessing
    from keras_bandgnn.programs.program_files import find_programs, read_programs

    kind, splits = find_programs(options.data, options.exclude, "none")
    files = [file for split in splits.values() for file in split]
    reading = {"max_instances": options.max_instances, "seed": options.seed}

    def programs():
        for path, name in files:
            yield from read_programs(kind, path, name, reading)[0] or ()

    start = time.perf_counter()
    samples = list(itertools.islice(programs(), options.graphs))
    read = time.perf_counter() - start
    language = "python" if kind == "python" else "csharp"
    plain = preprocessing.ProgramEncoder("none", language, subtoken_nodes=False)
    full = preprocessing.ProgramEncoder("subtoken", language)
    rows, kept, measured = [["read (1 run)", len(samples) / read, "", ""]], [], {}
    for title, encoder in (("", plain), (", with subtokens", full)):
        graphs = list(encoder(samples))
        compiler = preprocessing.RCMKCompile(128)
        compiled = list(compiler(graphs))
        loader = preprocessing.GraphLoader(
            compiled,
            preprocessing.DynamicBatcher(budget={"node": options.batch_nodes}),
            prefetch=0,
        )
        subjects = {
            f"encode{title}": lambda e=encoder: list(e(samples)),
            f"SciPy's order{title}": lambda g=graphs: scipy_orders(g),
            f"compile{title}": lambda c=compiler, g=graphs: list(c(g)),
            f"pack and assemble{title}": lambda x=loader: [
                x.build(i, 0) for i in range(len(x))
            ],
        }
        times = {name: [] for name in subjects}
        for _ in range(options.runs):
            for name, function in subjects.items():
                times[name].append(timed(function))
        base = np.median(times[f"SciPy's order{title}"])
        for name, seconds in times.items():
            middle = np.median(seconds)
            ratio = base / middle if name.startswith("compile") else None
            peer = None if ratio is None else 1e3 * base / len(graphs)
            own = 1e3 * middle / len(graphs)
            kept.append(figures.row(name, own, peer, "ms per graph"))
            measured[name] = seconds
            rows.append(
                [
                    name,
                    len(graphs) / middle,
                    f"{1e3 * middle / len(graphs):.2f}",
                    "" if ratio is None else f"{ratio:.2f} of SciPy's order",
                ]
            )
    nodes = np.mean([len(program.labels) for program in samples])
    report.table(
        f"{len(samples)} graphs of {nodes:.0f} nodes on average, one process",
        ["", "graphs/s", "ms per graph", ""],
        rows,
    )
    figures.write(options, kept, measured)
