"""Message passing with edge features: six backbones on molecules that SMILES name.

PATH is a CSV file with a column of SMILES and a column of numbers.

    python examples/message_passing.py --data PATH --smiles smiles --target measured
    python examples/message_passing.py --short

Without --data the script makes chains of carbon with single and double bonds; the
number is how many double bonds there are, which messages without edge features cannot
tell from hydrogens that are not there. Choose the backend with
KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse
import csv

import keras
import numpy as np

import keras_bandgnn as kb

BACKBONES = {
    "GINE": kb.models.GINEBackbone,
    "GPS": kb.models.GPSBackbone,
    "GATv2": kb.models.GATv2Backbone,
    "GatedGCN": kb.models.GatedGCNBackbone,
    "PNA": kb.models.PNABackbone,
    "SAGE": kb.models.SAGEBackbone,
}


def chains(count: int, seed: int = 0) -> tuple[list[str], list[float]]:
    """SMILES of chains of carbon, and their numbers of double bonds."""
    rng = np.random.default_rng(seed)
    strings, numbers = [], []
    for _ in range(count):
        bonds = rng.integers(0, 2, rng.integers(4, 12))
        bonds[1:] &= 1 - bonds[:-1]  # No carbon has two double bonds.
        strings.append("C" + "".join("=C" if double else "C" for double in bonds))
        numbers.append(float(bonds.sum()))
    return strings, numbers


def read(path: str, smiles: str, target: str) -> tuple[list[str], list[float]]:
    """Columns of a CSV file."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [row[smiles] for row in rows], [float(row[target]) for row in rows]


def main() -> None:
    """Train each backbone with and without the features of the bonds."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--data", metavar="PATH")
    parser.add_argument("--smiles", default="smiles")
    parser.add_argument("--target", default="measured")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--short", action="store_true", help="few molecules and steps")
    arguments = parser.parse_args()
    if arguments.data:
        strings, numbers = read(arguments.data, arguments.smiles, arguments.target)
    else:
        strings, numbers = chains(64 if arguments.short else 1000)
    epochs = 1 if arguments.short else arguments.epochs
    names = ["GINE", "PNA"] if arguments.short else list(BACKBONES)
    # The same split for all: the last fifth is for the test.
    order = np.random.default_rng(0).permutation(len(strings))
    test = len(order) // 5
    x, y = [strings[i] for i in order], np.asarray(numbers)[order]
    print(
        f"mean of the training data: {np.abs(y[-test:] - y[:-test].mean()).mean():.3f}"
    )
    for name in names:
        encoder = kb.preprocessing.SmilesEncoder()
        for bonds in (None, encoder.edge_inputs()):
            keras.utils.set_random_seed(0)
            backbone = BACKBONES[name](
                encoder.inputs(),
                hidden_dim=32,
                num_layers=3,
                edge_inputs=bonds,
                num_edge_types=encoder.num_edge_types,
            )
            task = kb.models.GraphRegressor(
                backbone,
                preprocessor=kb.preprocessing.GraphPreprocessor([encoder]),
            )
            task.compile(keras.optimizers.Adam(1e-3))
            task.fit(x[:-test], y[:-test], epochs=epochs, verbose=0)
            error = np.abs(np.ravel(task.predict(x[-test:])) - y[-test:]).mean()
            with_or_without = "with" if bonds else "without"
            print(f"{name} {with_or_without} features of bonds: MAE {error:.3f}")


if __name__ == "__main__":
    main()
