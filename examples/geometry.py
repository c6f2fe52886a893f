"""Molecules and crystals: neighbour lists, batches and pair energies.

Uses synthetic structures: water molecules, and an argon crystal with a Lennard-Jones
energy that is summed over the edges. Crystals and files are skipped if the extra `chem`
(ASE, vesin) is not installed.

    python examples/geometry.py
    python examples/geometry.py --short

Choose the backend with KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse
import importlib.util
import os
import tempfile
import time
from pathlib import Path

import numpy as np

import keras_bandgnn as kb
from keras_bandgnn.data import from_ase, read_structures
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    FullyConnectedGraph,
    GraphPreprocessor,
    KNearestGraph,
    RadiusGraph,
)

DEPTH, SIZE = 0.0104, 3.4  # of the Lennard-Jones potential of argon, eV and Angstrom


def waters(count: int) -> list[kb.Graph]:
    """Water molecules whose atoms were moved a little."""
    rng = np.random.default_rng(0)
    place = np.array([[0, 0, 0.119], [0, 0.763, -0.477], [0, -0.763, -0.477]])
    return [
        kb.Graph(
            3,
            senders=[],
            receivers=[],
            node={
                "atomic_number": [8, 1, 1],
                "position": place + rng.normal(scale=0.05, size=(3, 3)),
            },
        )
        for _ in range(count)
    ]


def argon(repeats: int) -> kb.Graph:
    """A cubic cell of the crystal, repeated along each lattice vector."""
    corners = np.array([[0, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]])
    cells = np.array(list(np.ndindex(*[repeats] * 3)))
    position = 5.26 * (cells[:, None] + corners).reshape(-1, 3)
    moves = np.random.default_rng(1).normal(scale=0.1, size=(4, 3))
    position += np.tile(moves, (len(cells), 1))
    return kb.Graph(
        len(position),
        senders=[],
        receivers=[],
        node={"atomic_number": np.full(len(position), 18), "position": position},
        context={"cell": 5.26 * repeats * np.eye(3)},
    )


def energy_and_forces(graph: kb.Graph) -> tuple[float, np.ndarray]:
    """Lennard-Jones energy in eV and forces in eV per Angstrom, from the edges."""
    distance = graph.edge["distance"].astype(float)
    power = (SIZE / distance) ** 6
    energy = 2 * DEPTH * (power**2 - power).sum()  # every pair has two edges
    slope = 2 * DEPTH * (6 * power - 12 * power**2) / distance
    gradient = (slope / distance)[:, None] * graph.edge["displacement"]
    forces = np.zeros((graph.num_nodes, 3))
    np.add.at(forces, graph.receivers, gradient)
    np.subtract.at(forces, graph.senders, gradient)
    return energy, forces


def molecules(short: bool) -> None:
    graphs = kb.data.FlatGraphs.from_graphs(waters(1_000 if short else 20_000))
    for layer in (RadiusGraph(1.2), KNearestGraph(1), FullyConnectedGraph()):
        start = time.perf_counter()
        linked = layer(graphs)
        took = time.perf_counter() - start
        name = type(layer).__name__
        print(f"  {name:20} {linked.edge_ptr[-1]:7} edges in {took:.2f} s")
    preprocessor = GraphPreprocessor([RadiusGraph(1.2)], DynamicBatcher(graphs=32))
    loader = preprocessor.loader(graphs)
    (x,) = loader[0]
    shapes = {name: x["edge"][name].shape for name in ("displacement", "distance")}
    print(f"  a batch: {int(x['graph']['mask'].sum())} molecules, {shapes}")


def crystals() -> None:
    for repeats in (1, 2):
        graph = RadiusGraph(8.5)(argon(repeats))
        energy, forces = energy_and_forces(graph)
        print(
            f"  {graph.num_nodes:2} atoms: {graph.num_edges // graph.num_nodes} "
            f"neighbours each, {energy / graph.num_nodes:.5f} eV per atom, "
            f"largest force {np.abs(forces).max():.5f} eV/Angstrom"
        )
    graph = RadiusGraph(8.5)(argon(1))
    self_images = graph.senders == graph.receivers
    print(
        f"  of the smaller cell {self_images.sum()} edges lead to an atom's own images"
    )


def files() -> None:
    import ase.build
    import ase.io

    with tempfile.TemporaryDirectory() as folder:
        for name in ("Cu", "Al", "Ni"):
            ase.io.write(Path(folder) / f"{name}.cif", ase.build.bulk(name))
        graphs = KNearestGraph(12)(read_structures(folder, progress=False))
    for graph in graphs:
        print(f"  {graph.info['file']}: nearest {graph.edge['distance'].max():.3f}")
    water = RadiusGraph(1.2)(from_ase(ase.build.molecule("H2O")))
    print(f"  {water}")


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--short", action="store_true", help="fewer molecules")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    print("molecules:")
    molecules(options.short)
    parts = {"crystals": ("vesin", crystals), "files": ("ase", files)}
    for name, (package, part) in parts.items():
        if importlib.util.find_spec(package) is None:
            print(f"{name}: skipped, {package} is not installed")
            continue
        print(f"{name}:")
        part()


if __name__ == "__main__":
    main()
