"""`scaffold_split`: molecules that share a scaffold are in one part."""

from collections.abc import Iterable, Sequence

import numpy as np

from keras_bandgnn.checks import boolean, number, refuse, seed_number, sequence
from keras_bandgnn.data.converters.smiles import parse_smiles
from keras_bandgnn.data.identity import scaffold_key


def scaffold_split(
    smiles: Iterable[str],
    fractions: Sequence[float] = (0.8, 0.1, 0.1),
    balanced: bool = False,
    chirality: bool = False,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split molecules into train, valid and test by their Bemis-Murcko scaffolds.

    A scaffold is what is left of a molecule without side chains; atom maps, isotopes
    and E/Z do not count. Groups of molecules
    with the same one are taken from the largest to the smallest, and go to the first
    part that has room, the test part last. So test molecules have rare scaffolds. The
    split is that of DeepChem's `ScaffoldSplitter`, on which most scores of MoleculeNet
    are published; it has no random numbers.

    Needs `pip install "keras-bandgnn[chem]"`.

    Args:
        smiles: SMILES of the molecules. Of graphs from SMILES these are
            `[info["smiles"] for info in graphs.info]`.
        fractions: Share of the molecules in train, valid and test; their sum is 1.
        balanced: Whether to shuffle the groups, those larger than half of valid or
            test first, as Chemprop's `scaffold_balanced` does. Then splits with
            different seeds differ, and test has scaffolds of all sizes.
        chirality: Whether scaffolds that are mirror images differ.
        seed: Seed of a balanced split.

    Returns:
        Three arrays of positions in `smiles`, int64, for `graphs.take`.

    Raises:
        ValueError: If RDKit cannot read a molecule, or the fractions do not sum to 1.
        ImportError: If RDKit is not installed.

    Reference:
        Bemis and Murcko 1996; Wu et al. 2018, "MoleculeNet".

    Example:
    >>> names = ["c1ccccc1", "Cc1ccccc1", "Oc1ccccc1", "C1CCCC1", "CCO"]
    >>> train, valid, test = scaffold_split(names, (0.6, 0.2, 0.2))  # doctest: +SKIP
    >>> train.tolist(), valid.tolist(), test.tolist()  # doctest: +SKIP
    ([0, 1, 2], [4], [3])
    """
    names = sequence("smiles", smiles, "a list of SMILES")
    shares = sequence("fractions", fractions, "three fractions that sum to 1")
    shares = [number(f"fractions[{i}]", share) for i, share in enumerate(shares)]
    if len(shares) != 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        refuse("fractions", "three fractions that sum to 1", fractions)
    boolean("balanced", balanced)
    seed_number("seed", seed)
    groups = _groups(names, boolean("chirality", chirality))
    if balanced:
        half = min(shares[1:]) * len(names) / 2
        order = np.random.default_rng(seed).permutation(len(groups)).tolist()
        groups = [groups[place] for place in order]
        groups.sort(key=lambda group: len(group) <= half)
    parts: tuple[list, list, list] = ([], [], [])
    train, valid, test = parts
    # Sums of fractions are not exact: 0.8 + 0.1 of ten molecules are nine.
    room = shares[0] * len(names) + 1e-6
    both = (shares[0] + shares[1]) * len(names) + 1e-6
    for group in groups:
        if len(train) + len(group) <= room:
            train += group
        elif len(train) + len(valid) + len(group) <= both:
            valid += group
        else:
            test += group
    return tuple(np.array(part, np.int64) for part in parts)


def _groups(names: list[str], chirality: bool) -> list[list[int]]:
    """Return the positions of the molecules of each scaffold, largest group first."""
    groups: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        try:
            molecule = parse_smiles(name)
        except ValueError as error:
            raise ValueError(f"smiles[{place}]: {error}") from error
        groups.setdefault(scaffold_key(molecule, chirality), []).append(place)
    # Of equally large groups that of the later molecule comes first, as in DeepChem.
    return sorted(
        groups.values(), key=lambda group: (len(group), group[0]), reverse=True
    )
