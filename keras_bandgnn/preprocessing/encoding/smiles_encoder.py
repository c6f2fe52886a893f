"""`SmilesEncoder`: molecules of SMILES strings or RDKit as graphs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from keras_bandgnn.checks import boolean, one_of
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import sorted_by_receiver
from keras_bandgnn.graph import Graph
from keras_bandgnn.host_keras import keras
from keras_bandgnn.optional import optional_import
from keras_bandgnn.preprocessing.encoding.graph_encoder import Encoded, GraphEncoder
from keras_bandgnn.preprocessing.encoding.vocabulary import is_missing

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Item, LayerOptions

# Values of the columns of `from_rdkit`; larger ones become the last value.
_ATOM = {
    "atomic number": 120,
    "degree": 12,
    "formal charge": 17,
    "hydrogens": 10,
    "hybridisation": 6,
    "aromatic": 2,
    "in a ring": 2,
    "chiral tag": 10,
}
_BOND = {"type": 5, "conjugated": 2, "in a ring": 2}
FEATURES = ("ids", "columns", "zinc")
"""Forms of the features of atoms and bonds."""
# Molecules whose arrays are made at once.
_PIECE_ITEMS = 512
_LOG = logging.getLogger(__name__)
# Kinds of atoms of ZINC-12k, and others; none, single, double and triple bonds.
_ZINC_ATOMS, _ZINC_BONDS = 29, 4


def _offsets(sizes: dict[str, int]) -> np.ndarray:
    """Return the first id of each column; 0 stays free."""
    return 1 + np.cumsum([0, *sizes.values()])[:-1].astype(np.int32)


def _ids(values: np.ndarray, sizes: dict[str, int]) -> np.ndarray:
    largest = np.array(list(sizes.values()), np.int32) - 1
    return np.clip(values, 0, largest) + _offsets(sizes)


def atom_ids(atoms: np.ndarray) -> np.ndarray:
    """Return `node["atom_ids"]`, int32 [N, 8], for `node["atom"]` of `from_rdkit`."""
    return _ids(atoms, _ATOM)


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class SmilesEncoder(GraphEncoder):
    """Converts SMILES strings and molecules of RDKit to graphs of atoms and bonds.

    Each value of each property has an id of its own, so that one embedding serves them
    all; rare values share the last id of their property. Nothing is learnt from data.

    Features:
        `node["atom_ids"]`: int32 [N, 8], ids below 180 of the properties of
            `from_smiles`: atomic number, degree, charge, hydrogens, hybridisation,
            aromatic, in a ring, chirality.
        `edge["bond_ids"]`: int32 [E, 3], ids below 10: type, conjugated, in a ring.
        `edge_type`: the type of the bond, 0 to 4, for `num_edge_types=5`.
        `info["smiles"]`: the string, canonical for molecules of RDKit.

    Needs `pip install "keras-bandgnn[chem]"`.

    Args:
        hydrogens: Whether hydrogens become nodes.
        on_error: See `GraphEncoder`.
        chirality: `"canonical"`: chiral tags do not depend on how a molecule is
            written. `"written"`: they are those of RDKit, as for encoders of files of
            version 0.2.0. See `from_smiles`.
        features: `"ids"`, as above. `"columns"`: those of `from_smiles` as they are,
            `node["atom"]` int32 [N, 8] and `edge["bond"]` int32 [E, 3]. `"zinc"`: those
            of the benchmark ZINC-12k, `node["atom"]` int32 [N], one of 28 kinds of
            atoms, 28 for others, and `edge["bond"]` int32 [E], 1 to 3; see
            `load("zinc", features="benchmark")`.

    Example:
    >>> encoder = SmilesEncoder()
    >>> encoder("CCO").num_nodes  # doctest: +SKIP
    3
    >>> encoder.inputs(), encoder.num_edge_types
    ({'atom_ids': {'ids': 180}}, 5)
    >>> encoder.edge_inputs()
    {'bond_ids': {'ids': 10}}
    """

    def __init__(
        self,
        hydrogens: bool = False,
        on_error: str = "raise",
        chirality: str = "canonical",
        features: str = "ids",
        **kwargs: Unpack[LayerOptions],
    ):
        from keras_bandgnn.data.converters.smiles import CHIRALITIES

        super().__init__(on_error, **kwargs)
        self.hydrogens = boolean("hydrogens", hydrogens)
        self.chirality = one_of("chirality", chirality, CHIRALITIES)
        self.features = one_of("features", features, FEATURES)

    @classmethod
    def accepts(cls, item: Item) -> bool:
        """Return whether an item is a string or a molecule of RDKit."""
        is_molecule = type(item).__module__.startswith("rdkit.")
        return isinstance(item, str) or is_molecule and hasattr(item, "GetAtoms")

    def _expected(self) -> str:
        return "a SMILES string or a molecule of RDKit"

    def _molecule(self, item: Any) -> Any:
        from keras_bandgnn.data.converters.smiles import parse_smiles

        molecule = parse_smiles(item) if isinstance(item, str) else item
        if not self.hydrogens:
            return molecule
        return optional_import("rdkit.Chem", "keras-bandgnn[chem]").AddHs(molecule)

    def encode_item(self, item: Item) -> Graph:
        """Convert a SMILES string or a molecule; see `GraphEncoder`."""
        from keras_bandgnn.data.converters.smiles import from_rdkit

        molecule = self._molecule(item)
        graph = from_rdkit(molecule, chirality=self.chirality)
        smiles = item if isinstance(item, str) else _canonical(item)
        if self.features == "columns":
            return graph.replace(info={"smiles": smiles})
        if self.features == "zinc":
            from keras_bandgnn.data.datasets.zinc import with_kinds

            return with_kinds(graph, molecule).replace(info={"smiles": smiles})
        return Graph.unchecked(
            num_nodes=graph.num_nodes,
            senders=graph.senders,
            receivers=graph.receivers,
            edge_type=graph.edge_type,
            node={"atom_ids": atom_ids(graph.node["atom"])},
            edge={"bond_ids": _ids(graph.edge["bond"], _BOND)},
            info={"smiles": smiles},
        )

    def splits(self, items: Sequence) -> bool:
        """Return whether all items are strings; RDKit's molecules lose properties."""
        return all(isinstance(item, str) or is_missing(item) for item in items)

    def pieces(
        self, items: Sequence, first: int, advance: Callable
    ) -> Iterator[Encoded]:
        """Yield the graphs of consecutive items; see `GraphEncoder`.

        The arrays of many molecules are made at once, unless a subclass converts
        items in its own way.
        """
        cls, several = type(self), self.features != "zinc"
        several &= cls.encode_item is SmilesEncoder.encode_item
        several &= cls.call is GraphEncoder.call
        if not several or any(isinstance(item, Graph) for item in items):
            yield from super().pieces(items, first, advance)
            return
        for start in range(0, len(items), _PIECE_ITEMS):
            piece = self._piece(items[start : start + _PIECE_ITEMS], first + start)
            yield piece
            if piece.errors and self.on_error == "raise":
                return
            advance(min(_PIECE_ITEMS, len(items) - start))

    def _piece(self, items: Sequence, first: int) -> Encoded:
        from keras_bandgnn.data.converters.smiles import MoleculeRows

        rows, info, positions, errors = MoleculeRows(self.chirality), [], [], {}
        for position, item in enumerate(items, first):
            try:
                self._check(item)
                text = item if isinstance(item, str) else None
                molecule = self._molecule(item)
                smiles = text or _canonical(molecule)
                rows.add(molecule, text)
                info.append({"smiles": smiles})
                positions.append(position)
            except ValueError as error:
                errors[position] = str(error)
                if self.on_error == "raise":
                    break
        graphs = self._flat(rows, info) if info else None
        return Encoded(graphs, np.array(positions, np.int64), errors)

    def _flat(self, rows: Any, info: list[dict]) -> FlatGraphs:
        """Return the graphs of the rows of molecules."""
        counts, atoms, ends, bonds = rows.arrays()
        bonds = bonds.repeat(2, axis=0)
        columns = {
            "num_nodes": counts[:, 0].copy(),
            "num_edges": 2 * counts[:, 1],
            "slot": np.full(len(counts), -1, np.int32),
            "senders": ends.ravel(),
            "receivers": ends[:, ::-1].ravel(),
            "edge_type": bonds[:, 0].copy(),
        }
        if self.features == "columns":
            columns |= {"node/atom": atoms, "edge/bond": bonds}
        else:
            columns |= {
                "node/atom_ids": atom_ids(atoms),
                "edge/bond_ids": _ids(bonds, _BOND),
            }
        return FlatGraphs.from_columns(sorted_by_receiver(columns), info)

    def content(self, item: Item) -> bytes:
        """Return the string, or the canonical one of a molecule."""
        if isinstance(item, str):
            return item.encode()
        return repr(item).encode() if not self.accepts(item) else item.ToBinary()

    def group(self, item: Item) -> bytes:
        """Return the canonical SMILES string without properties that graphs lack."""
        from keras_bandgnn.data.converters.smiles import parse_smiles
        from keras_bandgnn.data.identity import molecule_key

        try:
            molecule = parse_smiles(item) if isinstance(item, str) else item
            return molecule_key(molecule).encode()
        except ValueError:
            return self.content(item)

    def _warn_unknown(self, graphs: FlatGraphs, positions: Sequence[int]) -> None:
        """Warn of atoms of other kinds than those of ZINC, which share one id."""
        if self.features != "zinc":
            return
        counts = np.cumsum(graphs.node["atom"] == _ZINC_ATOMS - 1)
        unknown = np.flatnonzero(
            np.diff(np.concatenate([[0], counts])[graphs.node_ptr])
        )
        if unknown.size:
            _LOG.warning(
                "ZINC has no atoms of some kinds in %d of %d molecules (first: item "
                "%d). All such kinds share one id, so predictions cannot tell them "
                "apart.",
                unknown.size,
                len(graphs),
                positions[unknown[0]],
            )

    @property
    def num_edge_types(self) -> int:
        """P: the types of bonds, and others."""
        return _ZINC_BONDS if self.features == "zinc" else _BOND["type"]

    def inputs(self) -> dict[str, dict]:
        """Return the `inputs` of a backbone."""
        if self.features == "columns":
            return {"atom": {"columns": list(_ATOM.values())}}
        if self.features == "zinc":
            return {"atom": {"ids": _ZINC_ATOMS}}
        return {"atom_ids": {"ids": 1 + sum(_ATOM.values())}}

    def edge_inputs(self) -> dict[str, dict]:
        """Return the `edge_inputs` of a backbone: the properties of bonds."""
        if self.features == "columns":
            return {"bond": {"columns": list(_BOND.values())}}
        if self.features == "zinc":
            return {"bond": {"ids": _ZINC_BONDS}}
        return {"bond_ids": {"ids": 1 + sum(_BOND.values())}}

    def get_config(self) -> dict:
        """Return the arguments of the constructor."""
        config = {**super().get_config(), "hydrogens": self.hydrogens}
        # Files and stores of version 0.2.0 do not name it.
        if self.chirality != "written":
            config["chirality"] = self.chirality
        if self.features != "ids":
            config["features"] = self.features
        return config

    @classmethod
    def from_config(cls, config: dict) -> SmilesEncoder:
        """Return the encoder of a configuration, `"written"` if it names no other."""
        return cls(**{"chirality": "written", **config})


def _canonical(molecule: Any) -> str:
    return optional_import("rdkit.Chem", "keras-bandgnn[chem]").MolToSmiles(molecule)
