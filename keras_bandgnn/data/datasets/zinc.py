"""ZINC-12k from its published text files: SMILES, and the rows of the benchmark."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from keras_bandgnn.arrays import narrowed
from keras_bandgnn.checks import one_of
from keras_bandgnn.data.converters.smiles import from_rdkit, parse_smiles
from keras_bandgnn.data.datasets.parts import SPLITS, pick_targets
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.reading import read_text, refuse_file
from keras_bandgnn.graph import Graph
from keras_bandgnn.optional import optional_import
from keras_bandgnn.progress import progress_bar

# Mean and standard deviation of each term over the 250,000 molecules of the source.
_LOGP = (2.4570953396190123, 1.434324401111988)
_SYNTHESIS = (-3.0525811293166134, 0.8335207024513095)
_RINGS = (-0.0485696876403053, 0.2860212110245455)
_LARGEST_RING = 6
# Kinds of atoms of the benchmark: symbol, explicit hydrogens, sign of the charge.
KINDS = (
    *("C", "O", "N", "F", "C H1", "S", "Cl", "O -", "N H1 +", "Br", "N H3 +", "N H2 +"),
    *("N +", "N -", "S -", "I", "P", "O H1 +", "N H1", "O +", "S +", "P H1", "P H2"),
    *("C H2 -", "P +", "S H1 +", "C H1 -", "P H1 +"),
)
FEATURES = ("rdkit", "benchmark")


def read(
    files: Mapping[str, Path],
    *,
    split: str | None,
    progress: bool,
    target: str | Sequence[str] | None = "y",
    features: str = "rdkit",
) -> FlatGraphs:
    """Read `train.txt`, `valid.txt`, `test.txt` and `<split>.index`, with RDKit.

    Each text file has a SMILES string a line (icml18-jtnn), each index file the lines
    that belong to ZINC-12k (benchmarking-gnns): 10,000, 1,000 and 1,000. Graphs are in
    the order of the index files. Targets are computed; those of the benchmark are of an
    older RDKit and may differ slightly. It takes half a minute.

    Args:
        files: Paths by role: `train`, `valid`, `test`, `train_index`, `valid_index`,
            `test_index`.
        split: Molecules of the other splits are not converted.
        progress: Whether to show a progress bar.
        target: `"y"`, the sum of three normalised terms that benchmarks use,
            `"penalized_logp"`, that of the terms as they are, or both.
        features: `"rdkit"`, those of `from_smiles`, or `"benchmark"`, what scores in
            print are of, which say nothing of rings: `atom` int32 [N], one of 28
            kinds of atoms, 28 for others, and `bond` int32 [E], 1 to 3 for single,
            double and triple bonds.

    Returns:
        As `keras_bandgnn.data.datasets.molecules.read_csv`, with `info["smiles"]` and
        the context feature `split`.

    Raises:
        ValueError: If an index is no line of its file, or RDKit cannot read a line.
        ImportError: If RDKit or NetworkX is not installed.
    """
    one_of("features", features, FEATURES)
    rows = [
        (code, number, smiles)
        for code, name in enumerate(SPLITS)
        if split in (None, name)
        for number, smiles in _rows(files[name], files[f"{name}_index"])
    ]
    table = {"y": np.empty(len(rows)), "penalized_logp": np.empty(len(rows))}
    graphs = []
    with progress_bar("Reading ZINC", len(rows), progress) as advance:
        for row, (code, number, smiles) in enumerate(rows):
            try:
                molecule = parse_smiles(smiles)
            except ValueError as error:
                path = files[SPLITS[code]]
                refuse_file(path, f"to have a molecule in line {number + 1}", error)
            graph = from_rdkit(molecule)
            if features == "benchmark":
                graph = with_kinds(graph, molecule)
            graphs.append(
                graph.replace(
                    context={"split": np.int32(code)}, info={"smiles": smiles}
                )
            )
            table["y"][row], table["penalized_logp"][row] = _targets(molecule)
            advance(1)
    flat = FlatGraphs.from_graphs(graphs)
    label = {"label/graph": narrowed("label", pick_targets(table, target))}
    return FlatGraphs.from_columns({**flat.columns(), **label}, flat.info)


def _rows(path: Path, index: Path) -> list[tuple[int, str]]:
    """Return number and text of the lines that an index file names."""
    lines = read_text(path).split("\n")
    words = read_text(index).replace("\n", ",").split(",")
    words = [word.strip() for word in words if word.strip()]
    bad = [w for w in words if not w.isascii() or not w.isdigit() or len(w) > 9]
    bad = bad or [word for word in words if int(word) >= len(lines)]
    if bad or not words:
        expected = f"to have numbers of lines of {path.name}, below {len(lines)}"
        refuse_file(index, expected, bad[0] if bad else "none")
    return [(int(word), lines[int(word)].strip()) for word in words]


def with_kinds(graph: Graph, molecule) -> Graph:
    """Return the graph with the kinds of atoms and bonds that the benchmark has."""
    chem = optional_import("rdkit.Chem", "keras-bandgnn[chem]")
    plain = chem.Mol(molecule)
    chem.Kekulize(plain, clearAromaticFlags=True)
    kinds = []
    for atom in plain.GetAtoms():
        hydrogens, charge = atom.GetNumExplicitHs(), atom.GetFormalCharge()
        words = [atom.GetSymbol()]
        words += [f"H{hydrogens}"] if hydrogens else []
        words += ["+" if charge > 0 else "-"] if charge else []
        kinds.append(" ".join(words))
    codes = [KINDS.index(kind) if kind in KINDS else len(KINDS) for kind in kinds]
    bonds = [int(bond.GetBondTypeAsDouble()) for bond in plain.GetBonds()]
    # Bonds are in the order of the graph's, which has each twice.
    bond = np.repeat(np.array(bonds, np.int32), 2)
    return graph.replace(
        node={"atom": np.array(codes, np.int32)}, edge={"bond": bond}, edge_type=bond
    )


def _targets(molecule) -> tuple[float, float]:
    """Return the normalised target of a molecule, and its penalised logP."""
    chem = "keras-bandgnn[chem]"
    crippen = optional_import("rdkit.Chem.Crippen", chem)
    scorer = optional_import("rdkit.Contrib.SA_Score.sascorer", chem)
    operations = optional_import("rdkit.Chem.rdmolops", chem)
    networkx = optional_import("networkx", "networkx", "rings of ZINC")
    # Not RDKit's smallest rings: the published targets come from a cycle basis.
    bonds = networkx.Graph(operations.GetAdjacencyMatrix(molecule))
    largest = max(map(len, networkx.cycle_basis(bonds)), default=0)
    terms = (
        crippen.MolLogP(molecule),
        -scorer.calculateScore(molecule),
        -float(max(largest - _LARGEST_RING, 0)),
    )
    norms = (_LOGP, _SYNTHESIS, _RINGS)
    y = sum((term - mean) / std for term, (mean, std) in zip(terms, norms, strict=True))
    return y, sum(terms)
