"""Regression on molecules: a GGNN, the mean and a linear composition model.

PATH is a file of QM9 bond graphs in the format of tf-gnn-samples, `.jsonl` or
`.jsonl.gz`: one JSON object per line with `graph`, a list of [atom, bond type, atom],
`node_features`, [n][15] with the atomic number at position 5, and `targets`, [13][1].

    python examples/molecules.py --data PATH --target 7
    python examples/molecules.py --short

Without --data the script uses synthetic molecule-like trees, whose energy is a sum over
atoms and over bonds, by bond type and both atoms. Choose the backend with
KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse
import gzip
import json
from pathlib import Path

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn import models, preprocessing

VALENCE = {6: 4, 7: 3, 8: 2, 9: 1}
ENERGY = {1: -13.6, 6: -1029.9, 7: -1485.3, 8: -2042.6, 9: -2713.5}
NUM_BOND_TYPES = 4
ATOMIC_NUMBER = 5  # Position among the node features of a file.


def molecule(atoms, bonds, label: float) -> kb.Graph:
    """A graph with both directions of each bond [atom, type from 1, atom]."""
    first, kind, second = np.asarray(bonds, np.int32).reshape(-1, 3).T
    return kb.Graph(
        len(atoms),
        senders=np.concatenate([first, second]),
        receivers=np.concatenate([second, first]),
        edge_type=np.concatenate([kind, kind]) - 1,
        node={"atomic_number": np.asarray(atoms, np.int32)},
        label=label,
    )


def make_molecule(rng: np.random.Generator) -> kb.Graph:
    """A random tree of heavy atoms; hydrogen takes the places that are left."""
    atoms = [6]
    places = [4]
    bonds = []
    for _ in range(int(rng.integers(2, 9))):
        atom = int(rng.choice([6, 6, 6, 7, 8, 9]))
        open_atoms = [i for i, free in enumerate(places) if free]
        if not open_atoms:
            break
        parent = int(rng.choice(open_atoms))
        most = min(places[parent], VALENCE[atom], 3)
        order = int(rng.integers(1, most + 1))
        bonds.append((parent, order, len(atoms)))
        places[parent] -= order
        atoms.append(atom)
        places.append(VALENCE[atom] - order)
    for heavy, free in enumerate(places):
        for _ in range(free):
            bonds.append((heavy, 1, len(atoms)))
            atoms.append(1)
    energy = sum(ENERGY[atom] for atom in atoms)
    for a, order, b in bonds:
        polar = abs(atoms[a] - atoms[b]) if min(atoms[a], atoms[b]) > 1 else 1
        energy -= 2.0 * order**0.7 + 0.5 * polar
    # Shuffled, since the atom order of real files carries no information.
    new = rng.permutation(len(atoms))
    bonds = [(new[a], order, new[b]) for a, order, b in bonds]
    return molecule(np.array(atoms)[np.argsort(new)], bonds, energy)


def read_molecules(path: Path, target: int) -> list[kb.Graph]:
    """Read a file in the format of tf-gnn-samples."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        entries = [json.loads(line) for line in lines]
    return [
        molecule(
            [int(atom[ATOMIC_NUMBER]) for atom in entry["node_features"]],
            entry["graph"],
            float(entry["targets"][target][0]),
        )
        for entry in entries
    ]


def labels_of(graphs: list[kb.Graph]) -> np.ndarray:
    return np.array([float(graph.label) for graph in graphs])


def composition(graphs: list[kb.Graph]) -> np.ndarray:
    """How often each element occurs in each molecule, and a column of ones."""
    counts = [np.bincount(g.node["atomic_number"], minlength=10) for g in graphs]
    return np.concatenate([counts, np.ones((len(graphs), 1))], axis=1)


def rmse(predicted, graphs: list[kb.Graph]) -> float:
    return float(np.sqrt(np.mean((np.asarray(predicted) - labels_of(graphs)) ** 2)))


def make_task(options: argparse.Namespace, batch_size: int) -> models.GraphRegressor:
    """A GGNN over typed bonds that learns what the linear model leaves."""
    backbone = models.GGNNBackbone(
        {"atomic_number": 10},
        hidden_dim=options.hidden,
        num_steps=options.steps,
        num_edge_types=NUM_BOND_TYPES,
    )
    return models.GraphRegressor(
        backbone,
        preprocessor=preprocessing.GraphPreprocessor(
            batcher=preprocessing.DynamicBatcher(batch_size)
        ),
        readout=options.reduce,
        normalizer=preprocessing.TargetNormalizer("graph", "atomic_number"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--data", type=Path, help="file of QM9 bond graphs")
    parser.add_argument("--target", type=int, default=7, help="0 to 12; 7: U0")
    parser.add_argument("--reduce", choices=("sum", "mean"), default="sum")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args()
    count, batch_size = 4000, 32
    if options.short:
        count, batch_size = 200, 16
        options.epochs, options.hidden, options.steps = 2, 32, 2
    keras.utils.set_random_seed(options.seed)
    rng = np.random.default_rng(options.seed)
    if options.data:
        graphs = read_molecules(options.data, options.target)
    else:
        graphs = [make_molecule(rng) for _ in range(count)]
    order = rng.permutation(len(graphs))[: count if options.short else None]
    graphs = [graphs[i] for i in order]
    # Speckhard et al. 2025: 80 % to train, 10 % to validate, 10 % to test.
    tenth = len(graphs) // 10
    test, valid, train = graphs[:tenth], graphs[tenth : 2 * tenth], graphs[2 * tenth :]
    print(f"{len(train)} training, {len(valid)} validation, {len(test)} test graphs")

    task = make_task(options, batch_size)
    steps = options.epochs * len(task.loader(train))
    rate = keras.optimizers.schedules.CosineDecay(3e-3, steps)
    task.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0))
    task.fit(train, validation_data=valid, epochs=options.epochs, verbose=2)

    weights = np.linalg.lstsq(composition(train), labels_of(train), rcond=None)[0]
    predicted = np.array(task.predict(test))[:, 0]
    print("RMSE on the test graphs, in the units of the labels:")
    print(f"  mean of the training labels {rmse(labels_of(train).mean(), test):9.4f}")
    print(
        f"  linear composition model    {rmse(composition(test) @ weights, test):9.4f}"
    )
    print(f"  GraphRegressor              {rmse(predicted, test):9.4f}")


if __name__ == "__main__":
    main()
