"""Molecules from SMILES, with RDKit."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bandgnn.checks import having, one_of
from keras_bandgnn.graph import Graph
from keras_bandgnn.optional import optional_import

if TYPE_CHECKING:
    from rdkit import Chem

    from keras_bandgnn.aliases import Labels

_HYBRIDISATIONS = {"SP": 1, "SP2": 2, "SP3": 3, "SP3D": 4, "SP3D2": 5}
_BONDS = {"SINGLE": 1, "DOUBLE": 2, "TRIPLE": 3, "AROMATIC": 4}
# Without these a string names no chiral atom.
_CHIRAL = re.compile("[@|]")
CHIRALITIES = ("canonical", "written")
"""What chiral tags refer to: canonical SMILES, or the atoms as they are written."""


def from_smiles(smiles: str, label: Labels = None, chirality: str = "written") -> Graph:
    """Convert a SMILES string to a graph of heavy atoms and bidirectional bonds.

    Nodes are the atoms in the order of the string. Hydrogens are features, not nodes,
    unless RDKit keeps them (such as `[2H]`). Edge 2 b points from the first atom of
    bond b to the second one, edge 2 b + 1 back.

    Features:
        `node["atom"]`: int32 [N, 8]: atomic number; total degree (with hydrogens);
            formal charge + 8; number of hydrogens; hybridisation (0 other, 1 sp,
            2 sp2, 3 sp3, 4 sp3d, 5 sp3d2); aromatic; in a ring; chiral tag (0 none,
            1 clockwise, 2 counter-clockwise, others as in RDKit). As `inputs` of a
            backbone: `{"atom": [120, 12, 17, 10, 6, 2, 2, 10]}`.
        `edge["bond"]`: int32 [E, 3]: type (1 single, 2 double, 3 triple, 4 aromatic,
            0 other); conjugated; in a ring. As `edge_inputs`: `{"bond": [5, 2, 2]}`.
        `edge_type`: the type of the bond, 0 to 4.
        `info["smiles"]`: the string.

    Needs `pip install "keras-bandgnn[chem]"`.

    Args:
        smiles: The molecule, such as `"CCO"`.
        label: Label of the molecule, a number or vector.
        chirality: A chiral tag is relative to an order of the neighbours.
            `"written"`: that of the bonds in the string, as in RDKit and the graphs of
            OGB, so that two spellings of a molecule may have different tags.
            `"canonical"`: that of the canonical SMILES string, which all spellings
            share, as of `SmilesEncoder`.

    Raises:
        ValueError: If RDKit cannot parse the string, or it has no atoms.
        ImportError: If RDKit is not installed.

    Example:
    >>> from_smiles("C#N").edge["bond"].tolist()  # doctest: +SKIP
    [[3, 0, 0], [3, 0, 0]]
    """
    graph = from_rdkit(parse_smiles(smiles), label, chirality)
    return graph.replace(info={"smiles": smiles})


def from_rdkit(
    molecule: Chem.Mol, label: Labels = None, chirality: str = "written"
) -> Graph:
    """Convert a molecule of RDKit; see `from_smiles`, whose features it has.

    Nodes are the atoms of the molecule, so hydrogens are nodes if it has them
    explicitly.

    Args:
        molecule: A sanitised `rdkit.Chem.Mol`.
        label: Label of the molecule, a number or vector.
        chirality: See `from_smiles`.

    Raises:
        ValueError: If it has no atoms.

    Example:
    >>> from rdkit import Chem  # doctest: +SKIP
    >>> from_rdkit(Chem.MolFromSmiles("CCO"))  # doctest: +SKIP
    Graph(num_nodes=3, num_edges=4, node={atom: [3, 8]}, edge={bond: [4, 3]})
    """
    having("molecule", molecule, "GetAtoms", "a molecule of RDKit")
    one_of("chirality", chirality, CHIRALITIES)
    rows = MoleculeRows(chirality)
    rows.add(molecule)
    _, atom, ends, bond = rows.arrays()
    bond = bond.repeat(2, axis=0)
    return Graph(
        len(atom),
        senders=ends.ravel(),
        receivers=ends[:, ::-1].ravel(),
        edge_type=bond[:, 0],
        node={"atom": atom},
        edge={"bond": bond},
        label=label,
    )


class MoleculeRows:
    """The atoms and bonds of several molecules, one column for each property.

    Args:
        chirality: See `from_smiles`.
    """

    def __init__(self, chirality: str):
        self.chirality = chirality
        self._atom_readers, self._bond_readers = _readers()
        self._atoms = [[] for _ in range(len(self._atom_readers) + 1)]
        self._bonds = [[] for _ in self._bond_readers]
        self._counts: list[tuple[int, int]] = []

    def add(self, molecule: Any, smiles: str | None = None) -> None:
        """Add a molecule of RDKit.

        Args:
            molecule: The molecule.
            smiles: What it was parsed from, if that is known.

        Raises:
            ValueError: If it has no atoms.
        """
        if not molecule.GetNumAtoms():
            raise ValueError(
                "Expected `molecule` to have at least one atom. Received: none. Remove "
                "it."
            )
        # `GetAtoms` and `GetBonds` check their length at each step.
        atoms = [*map(molecule.GetAtomWithIdx, range(molecule.GetNumAtoms()))]
        bonds = [*map(molecule.GetBondWithIdx, range(molecule.GetNumBonds()))]
        tags = [0] * len(atoms)
        if smiles is None or _CHIRAL.search(smiles):
            tags = [int(atom.GetChiralTag()) for atom in atoms]
        if self.chirality == "canonical" and any(tags):
            tags = _canonical_tags(molecule, tags)
        for column, read in zip(self._atoms, self._atom_readers, strict=False):
            column.extend(map(read, atoms))
        self._atoms[-1].extend(tags)
        for column, read in zip(self._bonds, self._bond_readers, strict=True):
            column.extend(map(read, bonds))
        self._counts.append((len(atoms), len(bonds)))

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the numbers of atoms and bonds, atoms, ends of bonds, and bonds.

        They are int32 [molecules, 2], [N, 8], [B, 2] and [B, 3]; see `from_smiles`.
        """
        (hybridisations, kinds) = _tables()
        *atoms, tags = self._atoms
        atoms[4] = [hybridisations[value] for value in atoms[4]]
        begin, end, bonds, *flags = self._bonds
        bonds = [kinds[value] for value in bonds]
        atom = np.array([*atoms, tags], np.int32).T
        atom[:, 2] += 8
        return (
            np.array(self._counts, np.int32).reshape(-1, 2),
            np.ascontiguousarray(atom),
            np.array([begin, end], np.int32).T.copy(),
            np.array([bonds, *flags], np.int32).T.copy(),
        )


@functools.cache
def _readers() -> tuple[tuple, tuple]:
    """Return the methods of RDKit for the properties of atoms and of bonds."""
    chem = optional_import("rdkit.Chem", "keras-bandgnn[chem]")
    atom, bond = chem.Atom, chem.Bond
    atoms = (
        atom.GetAtomicNum,
        atom.GetTotalDegree,
        atom.GetFormalCharge,
        atom.GetTotalNumHs,
        atom.GetHybridization,
        atom.GetIsAromatic,
        atom.IsInRing,
    )
    bonds = (
        bond.GetBeginAtomIdx,
        bond.GetEndAtomIdx,
        bond.GetBondType,
        bond.GetIsConjugated,
        bond.IsInRing,
    )
    return atoms, bonds


@functools.cache
def _tables() -> tuple[dict, dict]:
    """Return the columns' values of RDKit's hybridisations and types of bonds."""
    chem = optional_import("rdkit.Chem", "keras-bandgnn[chem]")
    hybridisations = chem.HybridizationType.values.values()
    types = chem.BondType.values.values()
    return (
        {value: _HYBRIDISATIONS.get(value.name, 0) for value in hybridisations},
        {value: _BONDS.get(value.name, 0) for value in types},
    )


def _canonical_tags(molecule: Any, tags: list[int]) -> list[int]:
    """Return the chiral tags that the atoms have in the canonical SMILES string.

    Args:
        molecule: A molecule of RDKit.
        tags: Its own tags, which molecules keep that SMILES cannot write.
    """
    chem = optional_import("rdkit.Chem", "keras-bandgnn[chem]")
    plain = chem.Mol(molecule)
    for atom in plain.GetAtoms():
        # Numbers of atoms in reactions would change the order.
        atom.SetAtomMapNum(0)
    options = chem.SmilesParserParams()
    options.removeHs = False
    with optional_import("rdkit.rdBase", "keras-bandgnn[chem]").BlockLogs():
        canonical = chem.MolFromSmiles(chem.MolToSmiles(plain), options)
    if canonical is None or canonical.GetNumAtoms() != len(tags):
        return tags
    order = plain.GetPropsAsDict(True, True)["_smilesAtomOutputOrder"]
    tags = list(tags)
    for place, atom in zip(order, canonical.GetAtoms(), strict=True):
        tags[place] = int(atom.GetChiralTag())
    return tags


def parse_smiles(smiles: str) -> Any:
    """Return the RDKit molecule of a SMILES string.

    Raises:
        ValueError: If RDKit cannot parse the string, or it has no atoms.
        ImportError: If RDKit is not installed.
    """
    chem = optional_import("rdkit.Chem", "keras-bandgnn[chem]")
    if not isinstance(smiles, str):
        raise ValueError(
            "Expected `smiles` to be a string. "
            f"Received: {smiles!r} ({type(smiles).__name__}). Pass a SMILES string."
        )
    lines = smiles.splitlines()
    if len(lines) > 1:
        # RDKit would read the first line alone.
        raise ValueError(
            f"Expected `smiles` to be one line. Received: {len(lines)} lines, which "
            f"begin with {lines[0][:40]!r}. Pass one molecule; a table may lack a "
            "closing quote."
        )
    # The error contains the problem that RDKit would print.
    with optional_import("rdkit.rdBase", "keras-bandgnn[chem]").BlockLogs():
        molecule = chem.MolFromSmiles(smiles)
        if molecule is None:
            rough = chem.MolFromSmiles(smiles, sanitize=False)
            problems = [] if rough is None else chem.DetectChemistryProblems(rough)
    if molecule is None:
        why = problems[0].Message() if problems else "invalid SMILES syntax"
        raise ValueError(
            f"Expected `smiles` to be a molecule that RDKit can read. Received: "
            f"{smiles!r} ({why}). Correct it or remove it."
        )
    if not molecule.GetNumAtoms():
        raise ValueError(
            f"Expected `smiles` to have at least one atom. Received: {smiles!r}. "
            "Remove it."
        )
    return molecule
