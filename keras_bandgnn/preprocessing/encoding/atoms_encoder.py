"""`AtomsEncoder`: structures of ASE as graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from keras_bandgnn.checks import boolean, one_of, optional, string
from keras_bandgnn.data.converters.ase_atoms import OCCUPANCY, from_ase
from keras_bandgnn.graph import Graph
from keras_bandgnn.host_keras import keras
from keras_bandgnn.preprocessing.encoding.graph_encoder import GraphEncoder

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Item, LayerOptions


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class AtomsEncoder(GraphEncoder):
    """Converts `ase.Atoms` to graphs of atoms without edges; see `from_ase`.

    Put a layer that adds edges after it, such as `RadiusGraph`; tasks over atomistic
    backbones without a preprocessor do. The results of a calculator
    are read only if they are named, so that structures with and without one give the
    same features.

    Features:
        `node["atomic_number"]`, `node["position"]`: int32 [N], float32 [N, 3].
        `context["cell"]`, `context["pbc"]`: float32 [3, 3], int32 [3].
        `node["force"]`: float32 [N, 3], if `forces` and the item has them.
        `context["stress"]`: float32 [6], if `stress`; NaN if the item has none.

    Needs `pip install "keras-bandgnn[chem]"`.

    Args:
        label: Result of the calculator that is the label, such as `"energy"`, or a key
            of `atoms.info`; None where `fit` gets `y`. Items without it have no label.
        forces: Whether to keep the forces that a calculator has stored, for training.
        on_error: See `GraphEncoder`.
        stress: Whether to keep stresses for training, or the key of `atoms.info` that
            holds stresses or virials; see `from_ase`.
        occupancy: What to do with sites that several elements share or that may be
            empty: `"raise"`, or `"highest"` for the element with the largest share;
            see `from_ase`.

    Example:
    >>> encoder = AtomsEncoder(label="energy")
    >>> from ase.build import molecule  # doctest: +SKIP
    >>> encoder(molecule("H2O")).num_nodes  # doctest: +SKIP
    3
    """

    def __init__(
        self,
        label: str | None = None,
        forces: bool = False,
        on_error: str = "raise",
        stress: bool | str = False,
        occupancy: str = "raise",
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(on_error, **kwargs)
        self.label = optional(string, "label", label)
        self.forces = boolean("forces", forces)
        check = string if isinstance(stress, str) else boolean
        self.stress = check("stress", stress)
        self.occupancy = one_of("occupancy", occupancy, OCCUPANCY)

    @classmethod
    def accepts(cls, item: Item) -> bool:
        """Return whether an item is a structure of ASE."""
        return hasattr(item, "get_atomic_numbers") and hasattr(item, "get_positions")

    def splits(self, items: Sequence) -> bool:
        """Return whether no structure has a calculator beyond stored results."""
        if not all(map(self.accepts, items)):
            return False
        calculators = (item.calc for item in items)
        modules = {type(c).__module__ for c in calculators if c is not None}
        return modules <= {"ase.calculators.singlepoint"}

    def _expected(self) -> str:
        return "an Atoms of ASE"

    def _advice(self, item: Any) -> str:
        """Return how to make structures of molecules that have no coordinates."""
        if isinstance(item, str) or type(item).__module__.startswith("rdkit."):
            return (
                "SMILES have no coordinates. With RDKit: molecule = Chem.AddHs(Chem."
                "MolFromSmiles(smiles)); AllChem.EmbedMolecule(molecule); AllChem."
                "MMFFOptimizeMolecule(molecule); atoms = ase.Atoms([a.GetSymbol() for "
                "a in molecule.GetAtoms()], molecule.GetConformer().GetPositions()). "
                "For files write kb.data.read_structures(path)."
            )
        return super()._advice(item)

    def label_advice(self) -> str:
        """Return how to read the results of a calculator."""
        if self.label is not None and self.forces:
            return ""
        return (
            "For results of a calculator write GraphPreprocessor([AtomsEncoder("
            "label='energy', forces=True)])."
        )

    def encode_item(self, item: Item) -> Graph:
        """Convert a structure; see `GraphEncoder`."""
        graph = from_ase(item, stress=self.stress, occupancy=self.occupancy)
        changes = {"info": {}, "context": dict(graph.context), "node": dict(graph.node)}
        energy = changes["context"].pop("energy", None)
        force = changes["node"].pop("force", None)
        if self.forces and force is not None:
            changes["node"]["force"] = force
        if self.label == "energy":
            changes["label"] = energy
        elif self.label == "force":
            changes |= {"label": force, "label_level": "node"}
        elif self.label is not None:
            changes["label"] = item.info.get(self.label)
        return graph.replace(**changes)

    def content(self, item: Item) -> bytes:
        """Return numbers, positions, cell and the labels."""
        if not self.accepts(item):
            return repr(item).encode()
        arrays = [
            item.get_atomic_numbers(),
            item.get_positions(),
            np.asarray(item.get_cell()),
            np.asarray(item.get_pbc()),
        ]
        ordered = self.occupancy != "raise"
        if self.label is not None or self.forces or self.stress or ordered:
            graph = self.encode_item(item)
            arrays += [graph.label, graph.node.get("force")]
            arrays += [graph.context.get("stress")]
            if ordered:
                arrays += [graph.node["atomic_number"], graph.node["position"]]
        return b"".join(
            np.ascontiguousarray(a).tobytes() for a in arrays if a is not None
        )

    def inputs(self) -> dict[str, dict[str, int]]:
        """Return the `inputs` of a backbone that is not atomistic."""
        return {"atomic_number": {"ids": 120}}

    def get_config(self) -> dict:
        """Return the arguments of the constructor."""
        config = {"label": self.label, "forces": self.forces, "stress": self.stress}
        if self.occupancy != "raise":  # files of 0.2.0 have none
            config["occupancy"] = self.occupancy
        return {**super().get_config(), **config}
