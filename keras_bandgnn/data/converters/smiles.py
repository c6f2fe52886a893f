"""Molecules from SMILES, with RDKit."""

from typing import Any

import numpy as np

from keras_bandgnn.checks import having, one_of
from keras_bandgnn.graph import Graph
from keras_bandgnn.optional import optional_import

_HYBRIDISATIONS = {"SP": 1, "SP2": 2, "SP3": 3, "SP3D": 4, "SP3D2": 5}
_BONDS = {"SINGLE": 1, "DOUBLE": 2, "TRIPLE": 3, "AROMATIC": 4}
CHIRALITIES = ("canonical", "written")
"""What chiral tags refer to: canonical SMILES, or the atoms as they are written."""


def from_smiles(smiles: str, label: Any = None, chirality: str = "written") -> Graph:
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


def from_rdkit(molecule: Any, label: Any = None, chirality: str = "written") -> Graph:
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
    if not molecule.GetNumAtoms():
        raise ValueError(
            "Expected `molecule` to have at least one atom. Received: none. Remove it."
        )
    one_of("chirality", chirality, CHIRALITIES)
    tags = [int(atom.GetChiralTag()) for atom in molecule.GetAtoms()]
    if chirality == "canonical" and any(tags):
        tags = _canonical_tags(molecule, tags)
    atoms = [
        (
            atom.GetAtomicNum(),
            atom.GetTotalDegree(),
            atom.GetFormalCharge() + 8,
            atom.GetTotalNumHs(),
            _HYBRIDISATIONS.get(atom.GetHybridization().name, 0),
            atom.GetIsAromatic(),
            atom.IsInRing(),
            tag,
        )
        for atom, tag in zip(molecule.GetAtoms(), tags, strict=True)
    ]
    ends, bonds = [], []
    for bond in molecule.GetBonds():
        ends.append((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()))
        kind = _BONDS.get(bond.GetBondType().name, 0)
        bonds.append((kind, bond.GetIsConjugated(), bond.IsInRing()))
    ends = np.array(ends, np.int32).reshape(-1, 2)
    bond = np.repeat(np.array(bonds, np.int32).reshape(-1, 3), 2, axis=0)
    return Graph(
        len(atoms),
        senders=ends.ravel(),
        receivers=ends[:, ::-1].ravel(),
        edge_type=bond[:, 0],
        node={"atom": np.array(atoms, np.int32)},
        edge={"bond": bond},
        label=label,
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
