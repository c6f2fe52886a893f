"""Training from raw data: SMILES strings in a table, without writing a graph.

    python examples/raw_data.py --table molecules.csv --smiles smiles --target value
    python examples/raw_data.py --short

Without --table the script makes up alcohols, amines and acids, whose target counts
atoms that form hydrogen bonds. Needs `pip install "keras-bandgnn[chem]" pandas`.
Choose the backend with KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse
import tempfile

import keras
import numpy as np
import pandas as pd

import keras_bandgnn as kb


def made_up(count: int) -> pd.DataFrame:
    """Chains with groups at their ends, and the number of their O and N atoms."""
    rng = np.random.default_rng(0)
    groups = ["", "O", "N", "C(=O)O", "C#N", "F", "c1ccccc1"]
    smiles = []
    for _ in range(count):
        chain = "C" * rng.integers(1, 8)
        first, last = rng.choice(groups[:3]), rng.choice(groups)
        smiles.append(f"{first}{chain}{last}")
    target = [sum(s.count(letter) for letter in "ON") for s in smiles]
    return pd.DataFrame({"smiles": smiles, "value": np.array(target, float)})


def main() -> None:
    """Fits, saves, loads and predicts."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--table", help="a CSV file")
    parser.add_argument("--smiles", default="smiles", help="column of the molecules")
    parser.add_argument("--target", default="value", help="column of the target")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--short", action="store_true", help="little data, one epoch")
    options = parser.parse_args()
    if options.table:
        table = pd.read_csv(options.table)
    else:
        table = made_up(64 if options.short else 2000)
    keras.utils.set_random_seed(0)
    smiles = kb.preprocessing.SmilesEncoder()
    encoder = kb.preprocessing.TableEncoder(options.smiles, smiles, on_error="skip")
    backbone = kb.models.GGNNBackbone(
        smiles.inputs(),
        hidden_dim=64,
        num_steps=3,
        num_edge_types=smiles.num_edge_types,
    )
    preprocessor = kb.preprocessing.GraphPreprocessor(
        [encoder], kb.preprocessing.DynamicBatcher(32)
    )
    task = kb.models.GraphRegressor(backbone, 1, preprocessor, readout="sum")
    task.fit(
        table,
        options.target,
        validation_split=0.2,
        epochs=1 if options.short else options.epochs,
        verbose=2,
    )
    with tempfile.TemporaryDirectory() as folder:
        task.save_to_preset(f"{folder}/regressor")
        loaded = kb.models.Task.from_preset(f"{folder}/regressor")
    rows = table[:5]
    for row, predicted in zip(rows[options.smiles], loaded.predict(rows), strict=True):
        print(f"{row:24s} {float(predicted[0]):8.3f}")


if __name__ == "__main__":
    main()
