"""Command line of the three scripts, and small made-up tables of the same format."""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd


def arguments(
    description: str, write: Callable[[Path], Path], epochs: int
) -> tuple[Path, int]:
    """Read the command line: where the data is, and how many epochs to train."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("path", type=Path, nargs="?", help="file or folder of the data")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--short", action="store_true", help="made-up data, few epochs")
    options = parser.parse_args()
    if options.short:
        return write(Path(tempfile.mkdtemp())), 2
    if options.path is None:
        parser.error("Expected the path of the data, or --short")
    return options.path, options.epochs


def molecules(folder: Path) -> Path:
    """Write a table of chains with groups at their ends: an acid does not pass."""
    rng = np.random.default_rng(0)
    ends = ["O", "N", "Cl", "C(=O)O", "C#N", "c1ccccc1"]
    smiles = ["C" * rng.integers(1, 8) + rng.choice(ends) for _ in range(120)]
    smiles[7] = "CN(C)(C)(C)C"  # some rows of the real table cannot be read, either
    table = pd.DataFrame({"num": np.arange(120), "name": "made up"})
    table["p_np"] = [int("=O" not in text) for text in smiles]
    table["smiles"] = smiles
    table.to_csv(folder / "BBBP.csv", index=False)
    return folder / "BBBP.csv"


def papers(folder: Path) -> Path:
    """Write 140 papers on three subjects, which have words of their own."""
    rng = np.random.default_rng(0)
    subject = rng.integers(0, 3, 140)
    identifier = rng.permutation(100_000)[:140]
    own = np.repeat(np.arange(3), 10) == subject[:, None]
    word = (rng.uniform(size=(140, 30)) < np.where(own, 0.3, 0.1)).astype(int)
    content = pd.DataFrame(word)
    content.insert(0, "paper", identifier)
    content["subject"] = np.array(["Logic", "Optics", "Topology"])[subject]
    content.to_csv(folder / "cora.content", sep="\t", header=False, index=False)
    same = subject[:, None] == subject
    cited, citing = np.nonzero(
        rng.uniform(size=same.shape) < np.where(same, 0.05, 0.01)
    )
    cites = pd.DataFrame({"cited": identifier[cited], "citing": identifier[citing]})
    cites.to_csv(folder / "cora.cites", sep="\t", header=False, index=False)
    return folder
