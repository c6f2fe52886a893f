"""Exports a preset for molecules to ONNX, for service.py and batches of two sizes.

    pip install "keras-bandgnn[torch,chem,onnx]"
    python export.py gine_esol model

Batches have a static size, whatever they hold. The small size is for single requests,
the large one for many requests at once. Any preset that takes SMILES can be exported,
also one in a folder of your own.
"""

import argparse
from pathlib import Path

import keras_bandgnn as kb

# Molecules from one atom to many; the sizes of batches are set below.
SAMPLE = ["C", "CCO", "c1ccccc1O", "CC(=O)Oc1ccccc1C(=O)O"]


def budget_of(molecules: int, atoms: int) -> dict[str, int]:
    """Return the capacities of a batch: atoms, directed bonds and molecules.

    A batch can hold 25 atoms per molecule on average, and one molecule of `atoms`
    atoms, without hydrogens. One atom and one molecule are padding.
    """
    nodes = max(atoms, 25 * molecules)
    return {"node": nodes + 1, "edge": 5 * nodes // 2, "graph": molecules + 1}


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("preset", help="a name, or a folder of save_to_preset")
    parser.add_argument("folder", type=Path, help="for the exported models")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 32])
    parser.add_argument("--atoms", type=int, default=100, help="of a molecule")
    options = parser.parse_args(arguments)
    task = kb.models.Task.from_preset(options.preset)
    options.folder.mkdir(parents=True, exist_ok=True)
    for molecules in options.sizes:
        budget = budget_of(molecules, options.atoms)
        path = options.folder / f"{molecules}-molecules"
        # `Segment` needs no budget other than that of edges.
        plan = kb.plans.Plan(kb.plans.Segment())
        task.export(path, "onnx", SAMPLE, budget=budget, plan=plan)
        print(f"{path}: {budget}")


if __name__ == "__main__":
    main()
