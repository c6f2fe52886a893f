"""Share of the edges inside a band for each node ordering.

A banded plan computes edges with |i - j| < S as dense blocks. The node ordering
determines their number. Without options the graphs are synthetic: a grid with shuffled
nodes, and trees with hubs and long edges, similar to programs.

    python examples/orderings.py
    python examples/orderings.py --short
    python examples/orderings.py --programs original/graphs-train --subtokens
    python examples/orderings.py --store data/train
    python examples/orderings.py --matrices sparse_graphs

`--programs` reads the files of Allamanis et al. 2018, `--store` a store that `bandgnn
compile` wrote, `--matrices` a folder of `.npz` files with `n`, `indptr` and `indices`
of sparse matrices. The backend (KERAS_BACKEND) does none of the work.
"""

import argparse
import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import keras_bandgnn as kb
from keras_bandgnn import data, preprocessing

ORDERINGS = ["natural", "rcmk", "breadth_first", "bisection"]
if importlib.util.find_spec("pymetis"):
    ORDERINGS.append("metis")


def grid(rng: np.random.Generator, side: int) -> kb.Graph:
    """A square grid, its nodes in random order."""
    ids = rng.permutation(side * side).reshape(side, side)
    senders = np.concatenate([ids[:, :-1].ravel(), ids[:-1].ravel()])
    receivers = np.concatenate([ids[:, 1:].ravel(), ids[1:].ravel()])
    return kb.Graph(side * side, senders, receivers)


def program_like(rng: np.random.Generator, num_nodes: int) -> kb.Graph:
    """A tree with edges between neighbouring nodes, hubs and a few long edges."""
    child = np.arange(1, num_nodes)
    parent = np.maximum(child - rng.geometric(0.05, child.size), 0)
    parents = rng.integers(0, num_nodes, num_nodes // 2)
    hub = rng.zipf(1.5, parents.size) % num_nodes
    senders = np.concatenate([child, child, parents])
    receivers = np.concatenate([parent, child - 1, hub])
    return kb.Graph(
        num_nodes,
        np.concatenate([senders, receivers]),
        np.concatenate([receivers, senders]),
        edge_type=np.repeat([0, 1], senders.size),
        candidates=rng.choice(num_nodes, 5, replace=False),
        slot=0,
    )


def matrices(folder: Path) -> Iterator[tuple[str, list[kb.Graph]]]:
    """Sparse matrices as graphs; an entry (i, j) is an edge from j to i."""
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as file:
            size = int(file["n"])
            rows = np.repeat(np.arange(size), np.diff(file["indptr"]))
            yield path.stem, [kb.Graph(size, file["indices"], rows)]


def groups(options: argparse.Namespace) -> Iterator[tuple[str, list[kb.Graph]]]:
    """Names of groups of graphs and the graphs."""
    if options.programs:
        encoding = {"labels": "none", "subtoken_nodes": options.subtokens}
        programs = kb.programs.read_varmisuse(options.programs)
        yield (
            "programs",
            [
                kb.programs.encode_program(p, language="csharp", **encoding)
                for p in programs
            ],
        )
    if options.store:
        yield "store", list(data.open_store(options.store))
    if options.matrices:
        yield from matrices(options.matrices)
    if not (options.programs or options.store or options.matrices):
        rng = np.random.default_rng(0)
        side, count = (40, 3) if options.short else (150, 30)
        yield "grid", [grid(rng, side)]
        sizes = rng.integers(500, 1500 if options.short else 5000, count)
        yield "made programs", [program_like(rng, int(n)) for n in sizes]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    parser.add_argument("--programs", type=Path, help="file or folder of programs")
    parser.add_argument("--subtokens", action="store_true", help="nodes for subtokens")
    parser.add_argument("--store", type=Path, help="folder of a store")
    parser.add_argument("--matrices", type=Path, help="folder of .npz files")
    parser.add_argument("--block-sizes", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--orderings", nargs="+", default=ORDERINGS)
    options = parser.parse_args()
    pooled = {}  # (S, ordering) -> edges in the band, edges
    head = "".join(f"{name:>22}" for name in options.orderings)
    print("edges with |i - j| < S, milliseconds per graph")
    print(f"{'':16}{'edges':>10}{'S':>6}{head}")
    for name, graphs in groups(options):
        edges = sum(graph.num_edges for graph in graphs)
        for size in options.block_sizes:
            cells = ""
            for ordering in options.orderings:
                layer = preprocessing.RCMKCompile(size, ordering)
                start = time.perf_counter()
                for graph in graphs:
                    layer(graph)
                seconds = (time.perf_counter() - start) / len(graphs)
                share = layer.stats()["covered_edges"]
                counts = pooled.setdefault((size, ordering), np.zeros(2))
                counts += [share * edges, edges]
                cells += f"{100 * share:9.1f} %{1e3 * seconds:8.1f} ms"
            print(f"{name:16}{edges:10,}{size:6}{cells}", flush=True)
    for size in options.block_sizes:
        shares = [pooled[size, name] for name in options.orderings]
        cells = "".join(f"{100 * a / b:9.1f} %{'':11}" for a, b in shares)
        print(f"{'all':16}{int(shares[0][1]):10,}{size:6}{cells}")


if __name__ == "__main__":
    main()
