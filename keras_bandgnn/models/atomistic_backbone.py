"""`AtomisticBackbone`: base class of backbones of molecules and crystals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Unpack

from keras import ops

from keras_bandgnn.batch import explained
from keras_bandgnn.checks import positive_int
from keras_bandgnn.layers.element_embedding import ElementEmbedding
from keras_bandgnn.models.backbone import Backbone
from keras_bandgnn.preprocessing.geometry.geometry_layers import RadiusGraph

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, Config, Graphs, ModuleOptions, Tensor
    from keras_bandgnn.data.flat import FlatGraphs


class AtomisticBackbone(Backbone):
    """A backbone over atoms and edges between neighbours.

    Reads `batch["node"]["atomic_number"]` int32 [G, N] and, in `batch["edge"]`,
    `"displacement"` float [G, E, 3], the vector from the receiver to the sender in
    angstrom. Types of edges and `batch["plan"]` are not read.

    Args:
        elements: The atomic numbers that occur, or an integer V for all below V.
        hidden_dim: C.
        num_steps: T.
    """

    # Types of edges are not read, so graphs may have any.
    num_edge_types = 0
    # Whether edges need displacements; otherwise distances suffice.
    needs_directions = False

    def __init__(
        self,
        elements: int | Iterable[int],
        hidden_dim: int,
        num_steps: int,
        **kwargs: Unpack[ModuleOptions],
    ):
        # Mixed precision must not round the geometry; layers cast for themselves.
        super().__init__(autocast=False, **kwargs)
        # === Config ===
        self.hidden_dim = positive_int("hidden_dim", hidden_dim)
        self.num_steps = positive_int("num_steps", num_steps)
        # === Layers ===
        self.embedding = ElementEmbedding(
            self.hidden_dim, elements, dtype=self.dtype_policy, name="embedding"
        )

    def default_layers(self, graphs: Graphs) -> list:
        """Return `RadiusGraph` for positions without edges, else nothing.

        Its radius is the cutoff of the backbone, or 5 angstrom.
        """
        first = graphs[0] if isinstance(graphs, Sequence) and len(graphs) else None
        if first is None or "position" not in first.node:
            return []
        if {"displacement", "distance"} & first.edge.keys():
            return []
        return [self.radius_graph()]

    def radius_graph(self) -> RadiusGraph:
        """Return the layer with the cutoffs of the backbone, or with 5 angstrom."""
        config = self.get_config()
        limits = config.get("element_cutoffs")
        return RadiusGraph(config.get("cutoff") or 5.0, element_cutoffs=limits)

    def features_read(self) -> dict[str, tuple[str, ...]] | None:
        """Return atomic numbers, and the geometry of edges."""
        edge = ("displacement", "distance")
        return {"node": ("atomic_number",), "edge": edge, "graph": ()}

    def check(self, graphs: FlatGraphs) -> None:
        """Raise a ValueError if graphs lack geometry or have unknown elements.

        Args:
            graphs: `FlatGraphs`.
        """
        if graphs.sets:
            raise ValueError(
                f"Expected graphs of atoms for {type(self).__name__}. Received: graphs "
                f"with the node sets {[*graphs.sets]}, which it does not read. Take "
                "another backbone, such as RGCNBackbone."
            )
        if "atomic_number" not in graphs.node:
            raise ValueError(
                "Expected the node feature 'atomic_number'. "
                f"Received: node features {sorted(graphs.node)}. Pass ase.Atoms or "
                "Graph(node={'atomic_number': ..., 'position': ...}), or take a "
                "backbone that needs no positions, such as GGNNBackbone."
            )
        self.embedding.check(graphs.node["atomic_number"])
        if "displacement" in graphs.edge:
            shape = graphs.edge["displacement"].shape
            if shape[1:] != (3,):
                raise ValueError(
                    "Expected edge['displacement'] of shape [E, 3]. "
                    f"Received: shape {shape}."
                )
        elif self.needs_directions or "distance" not in graphs.edge:
            features = "'displacement'"
            if not self.needs_directions:
                features += " or 'distance'"
            raise ValueError(
                f"Expected the edge feature {features}. Received: edge features "
                f"{sorted(graphs.edge)}. Make the edges from the positions first, "
                "with a layer of the preprocessor."
            )
        elif (shortest := graphs.edge["distance"].min(initial=0)) < 0:
            raise ValueError(
                "Expected edge['distance'] of at least 0. Received: "
                f"{shortest}. Pass lengths, without a sign."
            )

    def first_states(self, batch: Batch) -> Tensor:
        """Return the embedded elements, float [G, N, C]."""
        embedded = explained(batch, "node") or {}
        if "atomic_number" in embedded:
            return ops.cast(embedded["atomic_number"], self.compute_dtype)
        return self.embedding(batch["node"]["atomic_number"])

    def call(self, batch: Batch, training: bool = False) -> Tensor:
        """Return the node states after T steps."""
        for states in self.hidden_states(batch, training):
            last = states
        return last

    def cutoff_config(self) -> dict:
        """Return the arguments of the cutoff, for `get_config`."""
        if self.cutoff is None:
            return {"cutoff": None}
        config = self.cutoff.get_config()
        # Presets name cutoffs of elements only where they are set.
        names = ("cutoff", "element_cutoffs")
        return {name: config[name] for name in names if name in config}

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "elements": self.embedding.elements,
            "hidden_dim": self.hidden_dim,
            "num_steps": self.num_steps,
        }
