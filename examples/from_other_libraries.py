"""Graphs of other libraries: conversion, use as data sources, and training.

Each part uses one library and is skipped if it is not installed: SciPy, networkx,
pandas, torch_geometric, ASE, RDKit, tf.data and Grain.

    python examples/from_other_libraries.py
    python examples/from_other_libraries.py --short

Choose the backend with KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse
import importlib.util
import os
import warnings
from collections.abc import Iterator

import keras
import numpy as np
import scipy.sparse

import keras_bandgnn as kb
from keras_bandgnn.data import (
    from_ase,
    from_networkx,
    from_pandas,
    from_pyg,
    from_scipy,
    from_smiles,
    graphs_of,
    to_ase,
    to_networkx,
    to_pandas,
    to_pyg,
    to_scipy,
)


def from_a_matrix() -> None:
    matrix = scipy.sparse.random_array((50, 50), density=0.1, rng=0, format="csr")
    graph = from_scipy(matrix)
    print(f"  {graph}")
    print(f"  the same matrix again: {abs(to_scipy(graph) - matrix).max() < 1e-6}")


def from_a_club() -> None:
    import networkx

    club = networkx.karate_club_graph()
    sides = {name: int(side == "Officer") for name, side in club.nodes(data="club")}
    networkx.set_node_attributes(club, sides, "label")
    graph = from_networkx(club, node=["label"])
    print(f"  {graph}")
    central = networkx.pagerank(networkx.DiGraph(to_networkx(graph)), weight="weight")
    print(
        f"  members by rank: {sorted(central, key=lambda name: central[name])[:-6:-1]}"
    )


def from_tables() -> None:
    import pandas

    edges = pandas.DataFrame(
        {
            "team": ["red", "red", "blue"],
            "source": ["Ann", "Bob", "Cleo"],
            "target": ["Bob", "Ann", "Dan"],
            "mails": [3, 1, 7],
        }
    )
    graphs = from_pandas(edges, graph="team")
    print(f"  {graphs}: {[dict(graph.info) for graph in graphs]}")
    print(f"  {len(to_pandas(graphs).nodes)} rows of nodes")


def from_data() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it deprecates parts of torch as it loads
        from torch_geometric.data import Data
    import torch

    data = Data(
        x=torch.rand(4, 3), edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]), y=1.5
    )
    graph = from_pyg(data)
    print(f"  {graph}")
    print(f"  and back: {to_pyg(graph)}")


def from_a_crystal() -> None:
    import ase.build

    graph = from_ase(ase.build.bulk("NaCl", "rocksalt", a=5.64), cutoff=3.0)
    print(f"  {graph}")
    print(f"  and back: {to_ase(graph).get_chemical_formula()}")


def from_molecules() -> None:
    for smiles in ("CCO", "c1ccccc1", "C[C@H](N)C(=O)O"):
        print(f"  {smiles}: {from_smiles(smiles)}")


def rings(count: int) -> Iterator[dict]:
    """Rings whose label is the mean of a node feature, as dictionaries."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        size = int(rng.integers(3, 9))
        nodes = np.arange(size, dtype=np.int32)
        kind = rng.integers(0, 5, size).astype(np.int32)
        yield {
            "num_nodes": size,
            "senders": nodes,
            "receivers": np.roll(nodes, -1),
            "node": {"kind": kind},
            "label": np.float32(kind.mean()),
        }


def from_tf_data() -> None:
    import tensorflow as tf

    ids = tf.TensorSpec([None], tf.int32)
    data = tf.data.Dataset.from_generator(
        lambda: rings(100),
        output_signature={
            "num_nodes": tf.TensorSpec([], tf.int32),
            "senders": ids,
            "receivers": ids,
            "node": {"kind": ids},
            "label": tf.TensorSpec([], tf.float32),
        },
    )
    print(f"  {len(list(graphs_of(data)))} graphs")


def from_grain() -> None:
    import grain

    source = grain.MapDataset.source(list(rings(100)))
    print(f"  {len(list(graphs_of(source)))} graphs")


def from_a_generator(short: bool) -> None:
    loader = kb.preprocessing.GraphLoader(
        rings(200 if short else 5000),
        kb.preprocessing.DynamicBatcher(graphs=32),
    )
    x, y, weight = loader[0]
    print(f"  {loader}")
    print(f"  first batch: {int(weight.sum())} graphs, nodes {x['node']['kind'].shape}")
    print(f"  mean label: {float((y[..., 0] * weight).sum() / weight.sum()):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    parts = {
        "scipy": from_a_matrix,
        "networkx": from_a_club,
        "pandas": from_tables,
        "torch_geometric": from_data,
        "ase": from_a_crystal,
        "rdkit": from_molecules,
        "tensorflow": from_tf_data,
        "grain": from_grain,
    }
    for package, part in parts.items():
        if importlib.util.find_spec(package) is None:
            print(f"{package}: skipped, not installed")
            continue
        print(f"{package}:")
        part()
    print(f"a generator, for a model on {keras.backend.backend()}:")
    from_a_generator(options.short)


if __name__ == "__main__":
    main()
