"""Molecular dynamics: a regressor of energies as an ASE calculator."""

import dataclasses
import math
import warnings
import zlib

import numpy as np
from keras import ops

from keras_bandgnn import compat
from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import non_negative_number
from keras_bandgnn.data.converters.ase_atoms import from_ase
from keras_bandgnn.layers.graph_readout import GraphReadout
from keras_bandgnn.models.atomistic_backbone import AtomisticBackbone
from keras_bandgnn.models.forces import (
    TOUCHING,
    check_displacements,
    check_energy,
)
from keras_bandgnn.models.task_program import TaskProgram
from keras_bandgnn.optional import optional_import
from keras_bandgnn.preprocessing.encoding.atoms_encoder import AtomsEncoder
from keras_bandgnn.preprocessing.geometry.atoms import Atoms
from keras_bandgnn.preprocessing.geometry.geometry_layers import (
    GeometryLayer,
    RadiusGraph,
)
from keras_bandgnn.preprocessing.geometry.neighbours import (
    Pairs,
    measured,
    nearest_of,
    within,
)

_EXTRA = "keras-bandgnn[chem]"
_FLAT = 1e-6
"""Smallest volume that cell vectors of length 1 may span."""
_HEAD_ROOM = 1.25
_READ = {"atomic_number", "displacement", "distance"}


@dataclasses.dataclass
class CalculatorStats:
    """Counters of a calculator.

    Args:
        evaluations: Energies and forces computed on the device.
        neighbour_rebuilds: Searches for neighbours.
        compilations: Programs, one for each capacity of nodes and edges, except those
            of other calculators of the task. On torch, which runs eagerly, the number
            of such capacities.
        edge_capacity: Maximum number of edges of the current program.
    """

    evaluations: int = 0
    neighbour_rebuilds: int = 0
    compilations: int = 0
    edge_capacity: int = 0


class NeighbourList:
    """The neighbours that a layer finds, cached until they may change.

    For `RadiusGraph` it keeps the pairs within cutoff + skin. While no atom has moved
    by more than half the skin, all pairs within the cutoff are among them, and only
    their distances are recomputed. Other layers search at each call.

    Args:
        layer: A layer that finds neighbours.
        skin: Angstrom.
    """

    def __init__(self, layer: GeometryLayer, skin: float):
        self.layer = layer
        self.skin = skin
        self.searches = 0
        self._pairs: Pairs | None = None
        self._atoms: Atoms | None = None

    def forget(self) -> None:
        """Discard the pairs; the next call searches again."""
        self._pairs = None

    def pairs(self, atoms: Atoms) -> Pairs:
        """Return exactly the pairs that the layer finds for one structure.

        Args:
            atoms: One structure. Call `forget` after changes other than of positions.
        """
        radius = type(self.layer).find is RadiusGraph.find
        if not radius:
            self.searches += 1
            return self.layer.find(atoms)
        if self._pairs is None or self._moved(atoms) > self.skin / 2:
            self._pairs = within(atoms, self.layer.cutoff + self.skin)
            self._atoms = atoms
            self.searches += 1
        old = self._pairs
        # Backbones may have no cutoff of their own, or divide by the in-degree: pairs
        # beyond the cutoff are left out.
        pairs = measured(atoms, old.sender, old.receiver, old.shift)
        pairs = self.layer.near(atoms, pairs)
        if self.layer.max_neighbours is None:
            return pairs
        return nearest_of(pairs, self.layer.max_neighbours)

    def _moved(self, atoms: Atoms) -> float:
        moved = atoms.position - self._atoms.position
        return math.sqrt(np.einsum("ni,ni->n", moved, moved).max(initial=0))


def learnt_energies_and_slopes(task, batch, apart: bool):
    """Return learnt energies, and their gradient with respect to displacements.

    They exclude the constants of the normaliser, which are large: adding them in
    float32 would round the energies.

    Args:
        task: The regressor.
        batch: A batch.
        apart: Whether to return energies of atoms, whose sum is that of the structure;
            requires `has_atom_energies`.

    Returns:
        float [G, N or B, 1], and float [G, E, 3].
    """
    graphs = batch
    if apart:
        # The readout, a sum, treats each atom as a separate graph.
        mask = ops.convert_to_tensor(batch["node"]["mask"])
        ids = ops.cumsum(ops.ones_like(mask, dtype="int32"), axis=1) - 1
        node = {**batch["node"], "graph_id": ids}
        sizes = {"mask": mask, "n_node": ops.ones_like(ids)}
        graphs = {**batch, "node": node, "graph": sizes}

    def energies(displacement):
        edge = {**batch["edge"], "displacement": displacement}
        states = task.backbone({**batch, "edge": edge}, training=False)
        parts = {**graphs, "edge": edge}
        return task.learnt(task.head(states, parts), parts)

    displacement = ops.convert_to_tensor(batch["edge"]["displacement"], "float32")
    return graph_ops.value_and_gradient(energies, displacement)


def has_atom_energies(task) -> bool:
    """Return whether the prediction of a task is a sum over atoms."""
    sums = isinstance(task.head, GraphReadout) and task.head.reduce == "sum"
    return sums and (task.normalizer is None or task.normalizer.mode == "atom")


class Potential:
    """Energies, forces and stresses of one structure after another.

    All structures of a run share the shapes of one program: arrays of edges have spare
    capacity, and grow when it is exhausted.

    Args:
        task: A `GraphRegressor` with one target, in eV.
        skin: See `NeighbourList`.
    """

    properties = ("energy", "free_energy", "forces", "stress")

    def __init__(self, task, skin: float):
        check_energy(task)
        self.task = task
        self.members = [task]
        self.apart = has_atom_energies(task)
        if self.apart:
            self.properties = (*self.properties, "energies")
        self.stats = CalculatorStats()
        layer = geometry_layer(task)
        warn_of_jumps(task.backbone, layer)
        self.neighbours = NeighbourList(layer, skin)
        # Numbers, cell and periodicity of the last structure that passed the checks.
        self._system: tuple | None = None
        self._capacity = (0, 0)

    def compute(self, atoms) -> dict:
        """Return energies, forces and, for a cell with a volume, the stress.

        Args:
            atoms: `ase.Atoms`.
        """
        structure, pairs = self._pairs(atoms)
        energies, slopes = self._run(atoms.numbers, pairs)
        self.stats.evaluations += 1
        return self.results(structure, pairs, energies, slopes)

    def checksum(self) -> int:
        """Return a number that differs once weights have changed."""
        checksum = 0
        for member in self.members:
            for weight in member.weights:
                values = np.ascontiguousarray(ops.convert_to_numpy(weight))
                checksum = zlib.adler32(values, checksum)
        return checksum

    def results(self, structure: Atoms, pairs: Pairs, energies, slopes, member=0):
        """Return the results of the calculator.

        Args:
            structure: One structure.
            pairs: Its E edges.
            energies: Learnt energies, float64 [N] of atoms or [1] of the structure.
            slopes: float64 [E, 3].
            member: Index of the task that computed them.
        """
        # Sums in double precision: forces add up to 0.
        count = len(structure.position)
        forces = np.empty((count, 3))
        for axis in range(3):
            component = slopes[:, axis]
            forces[:, axis] = np.bincount(pairs.receiver, component, count)
            forces[:, axis] -= np.bincount(pairs.sender, component, count)
        whole, normalizer = 0.0, self.members[member].normalizer
        if normalizer is not None:
            nodes, (whole,) = normalizer.constants(structure.number)
            nodes = nodes[:, 0]
            energies = energies + (nodes if self.apart else nodes.sum())
        energy = float(energies.sum() + whole)
        results = {"energy": energy, "free_energy": energy, "forces": forces}
        if self.apart:
            results["energies"] = energies
        if has_volume(structure.cell[0], np.ones(3, bool)):
            # A strain e maps a displacement d to d + d e.
            virial = pairs.displacement.T @ slopes
            stress = (virial + virial.T) / (2 * abs(np.linalg.det(structure.cell[0])))
            results["stress"] = stress.flat[[0, 4, 8, 5, 2, 1]]
        return results

    def _pairs(self, atoms) -> tuple[Atoms, Pairs]:
        structure = self._checked(atoms)
        pairs = self.neighbours.pairs(structure)
        self.stats.neighbour_rebuilds = self.neighbours.searches
        _check_apart(pairs)
        return structure, pairs

    def _checked(self, atoms) -> Atoms:
        """Return one structure; raise a ValueError if it has no defined energy."""
        if len(atoms) == 0:
            raise ValueError(
                "Expected at least one atom. Received: an Atoms object without atoms."
            )
        position = np.array(atoms.positions, np.float64)
        bad = ~np.isfinite(position).all(axis=1)
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise ValueError(
                f"Expected finite positions. Received: {position[at].tolist()} for "
                f"atom {at} ({int(bad.sum())} such atoms). In a simulation, take a "
                "shorter time step."
            )
        cell, pbc = np.array(atoms.cell, np.float64), np.array(atoms.pbc, bool)
        if not np.isfinite(cell).all():
            raise ValueError(f"Expected a finite cell. Received: {cell.tolist()}.")
        if not has_volume(cell, pbc):
            raise ValueError(
                "Expected independent cell vectors along the periodic directions. "
                f"Received: cell={cell.tolist()}, pbc={pbc.tolist()}. Set atoms.cell, "
                "or atoms.pbc to False along directions without a period."
            )
        numbers = np.array(atoms.numbers)
        count = np.array([len(atoms)])
        structure = Atoms(count, position, cell[None], pbc[None], numbers)
        system = (numbers, cell, pbc)
        if self._system is None or not all(map(np.array_equal, system, self._system)):
            self.neighbours.forget()
            self.neighbours.layer.check(structure, 0)
            same = self._system is not None and np.array_equal(
                system[0], self._system[0]
            )
            self._system = None
            if not same:
                self._check_elements(atoms)
            self._system = system
        return structure

    def _check_elements(self, atoms) -> None:
        """Raise the errors of `predict`, for example for unknown elements."""
        bare = atoms.copy()
        bare.info = {}
        with warnings.catch_warnings():
            # Warnings about its size do not apply: it is not batched.
            warnings.simplefilter("ignore")
            loader = self.task.loader([from_ase(bare)], training=False)
        check_displacements(loader)

    def _run(self, numbers: np.ndarray, pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
        nodes, edges = len(numbers), len(pairs.sender)
        # Calculators of a task share its programs, each with static shapes.
        programs = compat.model_cache(self.task).setdefault("calculator", {})
        node_room, edge_room = self._capacity
        if nodes >= node_room or edges > edge_room:
            # One node is padding.
            node_room = max(node_room, nodes + 1)
            edge_room = max(edge_room, 16 * math.ceil(_HEAD_ROOM * edges / 16), 16)
            large = [c for c in programs if c[0] == node_room and c[1] >= edges]
            near = [c for c in large if c[1] <= 2 * edge_room]
            self._capacity = min(near, default=(node_room, edge_room))
        if self._capacity not in programs:
            programs[self._capacity] = TaskProgram(
                self.members, learnt_energies_and_slopes, self.apart
            )
            self.stats.compilations += 1
        self.stats.edge_capacity = self._capacity[1]
        batch = one_graph(numbers, pairs, *self._capacity)
        energies, slopes = programs[self._capacity].predict_on_batch(batch)
        slopes = np.asarray(slopes[0, :edges], np.float64)
        count = nodes if self.apart else 1
        return np.asarray(energies[0, :count, 0], np.float64), slopes


def one_graph(numbers: np.ndarray, pairs: Pairs, nodes: int, edges: int) -> dict:
    """Return the padded batch of one structure; see `keras_bandgnn.batch`.

    Args:
        numbers: int [n], atomic numbers.
        pairs: Its edges.
        nodes: N, above n.
        edges: E.
    """
    count, used = len(numbers), len(pairs.sender)
    number, graph_id = np.zeros((2, 1, nodes), np.int32)
    number[0, :count], graph_id[0, count:] = numbers, 1
    sender, receiver = np.zeros((2, 1, edges), np.int32)
    sender[0, :used], receiver[0, :used] = pairs.sender, pairs.receiver
    receiver[0, used:] = nodes
    displacement = np.zeros((1, edges, 3), np.float32)
    displacement[0, :used] = pairs.displacement
    return {
        "node": {
            "atomic_number": number,
            "graph_id": graph_id,
            "mask": graph_id == 0,
        },
        "edge": {
            "sender": sender,
            "receiver": receiver,
            "type": np.zeros_like(sender),
            "mask": np.arange(edges)[None] < used,
            "displacement": displacement,
        },
        "graph": {
            "mask": np.array([[True, False]]),
            "n_node": np.array([[count, 0]], np.int32),
            "n_edge": np.array([[used, 0]], np.int32),
            "id": np.array([[0, -1]], np.int32),
        },
    }


def has_volume(cell: np.ndarray, directions: np.ndarray) -> bool:
    """Return whether some of the cell vectors are independent."""
    rows = cell[directions]
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows / np.where(lengths > 0, lengths, 1)
    return math.sqrt(max(np.linalg.det(rows @ rows.T), 0)) > _FLAT


def _check_apart(pairs: Pairs) -> None:
    touching = np.flatnonzero(pairs.distance < TOUCHING)
    if len(touching):
        one, other = (int(ids[touching[0]]) for ids in (pairs.receiver, pairs.sender))
        raise ValueError(
            f"Expected atoms at least {TOUCHING} Angstrom apart. Received: atoms "
            f"{one} and {other} at a distance of "
            f"{pairs.distance[touching[0]]:.2g} Angstrom. Remove one of them."
        )


def geometry_layer(task) -> GeometryLayer:
    """Return the layer that finds the neighbours for a task.

    Raises:
        ValueError: If the task reads more than elements and edges between neighbours.
    """
    backbone = task.backbone
    if not isinstance(backbone, AtomisticBackbone):
        raise ValueError(
            "Expected a backbone over atoms, such as PaiNNBackbone. Received: "
            f"{type(backbone).__name__}."
        )
    read = task.features_read() or {}
    names = {name for part in read.values() for name in part}
    if names - _READ:
        raise ValueError(
            "Expected a backbone that reads only atomic numbers and displacements, "
            f"which ase.Atoms has. Received: one that reads {sorted(names - _READ)}."
        )
    if task.distribution.several:
        raise ValueError(
            "Expected a task on one device. Received: a task under a distribution, "
            "which needs a structure per device."
        )
    if task.preprocessor is None:
        return backbone.radius_graph()
    layers = list(task.preprocessor.graph_layers)
    if layers and isinstance(layers[0], AtomsEncoder):
        layers = layers[1:]
    if len(layers) != 1 or not isinstance(layers[0], GeometryLayer):
        names = [type(layer).__name__ for layer in task.preprocessor.graph_layers]
        raise ValueError(
            "Expected a preprocessor with one layer that finds neighbours, such as "
            f"RadiusGraph(5.0). Received: the layers {names}. Set task.preprocessor = "
            "GraphPreprocessor([RadiusGraph(cutoff)]), with the cutoff of the training "
            "graphs."
        )
    return layers[0]


def warn_of_jumps(backbone, layer: GeometryLayer) -> None:
    """Warn if edges end where the backbone's messages have not reached 0.

    Args:
        backbone: The backbone.
        layer: The layer that finds its edges.
    """
    if getattr(backbone, "cutoff", None) is None or not isinstance(layer, RadiusGraph):
        return
    elements = backbone.embedding.elements
    elements = np.arange(elements) if isinstance(elements, int) else np.array(elements)
    reach = backbone.radius_graph().reach(elements)
    radius = layer.reach(elements)
    short = np.flatnonzero(radius < reach - 1e-6)
    if len(short):
        at = short[0]
        warnings.warn(
            f"Expected edges as long as the messages of the backbone, {reach[at]:g} "
            f"Angstrom for element {elements[at]}. Received: RadiusGraph with "
            f"{radius[at]:g} Angstrom: energies jump where edges end, and drift in a "
            "simulation. Train with the backbone's cutoffs in RadiusGraph.",
            stacklevel=4,
        )


def make_calculator(task, skin: float, kind: type = Potential):
    """Return an ASE calculator; see `GraphRegressor.as_calculator`.

    Args:
        task: The regressor, or another argument of `kind`.
        skin: See `NeighbourList`.
        kind: `Potential`, or a subclass.
    """
    skin = non_negative_number("skin", skin)
    if skin == math.inf:
        raise ValueError("Expected `skin` to be finite. Received: skin=inf.")
    ase = optional_import(
        "ase.calculators.calculator", _EXTRA, "molecular dynamics", "predict_forces"
    )
    potential = kind(task, skin)

    class TaskCalculator(ase.Calculator):
        """Energies in eV, forces in eV/Angstrom and stresses in eV/Angstrom^3."""

        implemented_properties = potential.properties
        # Nothing else of a structure changes its energy.
        ignored_changes = {"initial_charges", "initial_magmoms"}
        stats = potential.stats

        def calculate(self, atoms=None, properties=("energy",), system_changes=()):
            """Compute all properties of a structure."""
            super().calculate(atoms, properties, system_changes)
            if "stress" in properties and not has_volume(
                np.array(self.atoms.cell), np.ones(3, bool)
            ):
                raise ase.PropertyNotImplementedError(
                    "Expected a cell with a volume for the stress. Received: cell="
                    f"{np.array(self.atoms.cell).tolist()}. Give three vectors; along "
                    "directions without a period their lengths set the volume."
                )
            self.results = potential.compute(self.atoms)
            self._checksum = potential.checksum()

        def check_state(self, atoms, tol=1e-15):
            """Return the changes since the last structure; all if weights changed."""
            changes = super().check_state(atoms, tol)
            if not changes and self.results:
                # Otherwise ASE reuses results from before further training.
                same = self._checksum == potential.checksum()
                changes = changes if same else list(ase.all_changes)
            return changes

        def export_properties(self):
            """Return the results whose names ASE defines."""
            names = ase.all_outputs
            return ase.Properties({n: v for n, v in self.results.items() if n in names})

    return TaskCalculator()
