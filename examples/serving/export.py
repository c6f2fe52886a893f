"""Exports a model of molecules for service.py: a preset, as ONNX, for two sizes.

    pip install "keras-bandgnn[torch,chem,onnx]"
    python export.py gine_esol model

A batch has one static size, whatever it holds. The small one serves a request that
comes alone, the large one many at once. Any preset that takes SMILES will do, also a
folder of your own.
"""

import argparse
from pathlib import Path

import keras_bandgnn as kb

# From one atom to many; sizes are set below.
SAMPLE = ["C", "CCO", "c1ccccc1O", "CC(=O)Oc1ccccc1C(=O)O"]


def budget_of(molecules: int, atoms: int) -> dict[str, int]:
    """Return the capacities of a batch: atoms, directed bonds and molecules.

    A batch has room for 25 atoms per molecule on average, and for one molecule of
    `atoms` atoms, hydrogens not counted. One atom and one molecule are padding.
    """
    nodes = max(atoms, 25 * molecules)
    return {"node": nodes + 1, "edge": 5 * nodes // 2, "graph": molecules + 1}


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
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
        # `Segment` has no budget but that of edges.
        plan = kb.plans.Plan(kb.plans.Segment())
        task.export(path, "onnx", SAMPLE, budget=budget, plan=plan)
        print(f"{path}: {budget}")


if __name__ == "__main__":
    main()
