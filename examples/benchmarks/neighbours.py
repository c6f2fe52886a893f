"""Neighbours in crystals: matscipy, which the library uses, compared with vesin.

Both search the same structures up to the same cutoff, in alternating runs in one
process with one thread. Their pairs are compared one by one: those of the data, and
those of made cells, which are thin, skewed, periodic along some directions only, or
have neighbours exactly at the cutoff.

Needs `pip install vesin` and `pip install "keras-bandgnn[chem]"`.
"""

import argparse
import itertools
import time
from importlib.metadata import version

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report

SETS = ("mlearn", "aflow")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "sets",
        nargs="+",
        metavar="SET=PATH",
        help=f"data sets of crystals, of {', '.join(SETS)}, and where they are",
    )
    parser.add_argument("--cutoff", type=shared.above_zero, default=5.0)
    parser.add_argument("--runs", type=shared.positive, default=3)


def searches(cutoff: float) -> dict:
    """Return the searches by name: each gives receiver, sender and shift."""
    from matscipy.neighbours import neighbour_list
    from vesin import NeighborList

    # The order of pairs is set after the search in any case.
    cells = NeighborList(cutoff=cutoff, full_list=True, n_threads=1)

    def matscipy(position, cell, periodic):
        return neighbour_list(
            "ijS", positions=position, cell=cell, pbc=periodic, cutoff=cutoff
        )

    def vesin(position, cell, periodic):
        return cells.compute(position, cell, periodic, "ijS")

    return {"matscipy": matscipy, "vesin": vesin}


def structures_of(name: str, path: str) -> list:
    """Return position, cell and periodic directions of the crystals of a data set."""
    import numpy as np

    from keras_bandgnn.data import load

    graphs = load(name, path=path, download=False)
    return [
        (
            graphs.node["position"][start:stop].astype(float),
            cell.astype(float),
            np.ones(3, bool),
        )
        for start, stop, cell in zip(
            graphs.node_ptr, graphs.node_ptr[1:], graphs.context["cell"], strict=False
        )
    ]


def made() -> dict:
    """Return made cells by kind."""
    import numpy as np

    rng = np.random.default_rng(0)
    cells = {
        "thin": np.diag([0.7, 8.0, 9.0]),
        "left-handed": np.diag([-3.0, 4.0, 5.0]),
        "skewed": np.array([[3.5, 0, 0], [17.5, 3.5, 0], [-14.0, 10.5, 3.5]]),
        "needle": np.array([[1.1, 0, 0], [0, 2.0, 0], [0, 0, 19.0]]),
        "wide": np.diag([20.0, 21.0, 22.0]),
    }
    out = {}
    for (name, cell), periodic in itertools.product(
        cells.items(), itertools.product([True, False], repeat=3)
    ):
        position = rng.uniform(-0.5, 1.5, size=(6, 3)) @ cell
        kind = "periodic" if all(periodic) else "partly periodic"
        out.setdefault(f"{name}, {kind}", []).append(
            (position, cell, np.array(periodic))
        )
    # The fifth neighbours of a cubic lattice are at the cutoff, whatever the rounding.
    for scale in (1.0, 2.5, 5 / 3, 5 / 2**0.5):
        lattice = np.eye(3) * scale
        position = rng.normal(size=(1, 3)) + np.arange(2)[:, None] * lattice[0]
        cell = lattice * [[2], [1], [1]]
        out.setdefault("ties at 5 Angstrom", []).append(
            (position, cell, np.ones(3, bool))
        )
    return out


def pairs_of(search, structure):
    """Return the pairs of a structure, sorted, [E, 5], and their distances."""
    import numpy as np

    position, cell, _ = structure
    receiver, sender, shift = search(*structure)
    order = np.lexsort((*shift.T[::-1], sender, receiver))
    receiver, sender, shift = (
        np.asarray(ids)[order].astype(int) for ids in (receiver, sender, shift)
    )
    distance = position[sender] + shift @ cell - position[receiver]
    pairs = np.column_stack([receiver, sender, shift])
    return pairs, np.linalg.norm(distance, axis=1)


def compare(options: argparse.Namespace, structures: list) -> list:
    """Return the numbers of pairs, and of structures whose pairs differ.

    They are compared as they are, and as the library takes them: searched a little
    beyond the cutoff and cut off by distances of its own.
    """
    import numpy as np

    margin = 1e-4
    exact, wide = searches(options.cutoff), searches(options.cutoff + margin)
    count = raw = kept = 0
    for structure in structures:
        one, other = (pairs_of(search, structure)[0] for search in exact.values())
        count += len(one)
        raw += not np.array_equal(one, other)
        one, other = (
            pairs[distance <= options.cutoff]
            for pairs, distance in (pairs_of(s, structure) for s in wide.values())
        )
        kept += not np.array_equal(one, other)
    return [f"{count:,}", raw, kept]


def milliseconds(options: argparse.Namespace, structures: list) -> list[float]:
    """Return the medians of alternating runs, ms per structure."""
    import numpy as np

    methods = searches(options.cutoff)
    times = {name: [] for name in methods}
    for _ in range(options.runs):
        for name, search in methods.items():
            start = time.perf_counter()
            for structure in structures:
                search(*structure)
            seconds = time.perf_counter() - start
            times[name].append(1000 * seconds / len(structures))
    return [float(np.median(each)) for each in times.values()]


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    names = ("matscipy", "vesin", "ase", "numpy")
    report.say(", ".join(f"{name} {version(name)}" for name in names))
    rows = []
    for entry in options.sets:
        name, sign, path = entry.partition("=")
        if not sign or name not in SETS:
            raise shared.OptionError(
                f"Expected data sets as SET=PATH, with a SET of {', '.join(SETS)}. "
                f"Received: {entry!r}."
            )
        structures = structures_of(name, path)
        times = milliseconds(options, structures)
        rows.append([name, len(structures), *times, *compare(options, structures)])
    for name, structures in made().items():
        rows.append([name, len(structures), "", "", *compare(options, structures)])
    report.table(
        f"neighbours within {options.cutoff:g} Angstrom",
        ("structures", "number", "matscipy ms", "vesin ms", "pairs")
        + ("other pairs", "after cut"),
        rows,
    )
