"""`Atoms`: positions and cells of graphs, checked."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_bandgnn.data.flat import FlatGraphs

_FLAT = 1e-12
"""Square of the smallest volume that cell vectors of length 1 may span."""
_IMAGES = 1e6
"""No crystal has as many images of an atom within a cutoff."""


def graph_name(graph: int, info: Sequence[Mapping[str, Any]] = (), first: int = 0):
    """Return how errors name a graph: its number, and its file and frame if known.

    Args:
        graph: Its number in `info`.
        info: `FlatGraphs.info`.
        first: What to add to the number.

    Example:
    >>> graph_name(1, [{}, {"file": "a.xyz", "frame": 3}], first=10)
    'graph 11 (a.xyz, frame 3)'
    """
    name = f"graph {first + graph}"
    fields = info[graph] if len(info) > graph else {}
    if "file" not in fields:
        return name
    frame = f", frame {fields['frame']}" if "frame" in fields else ""
    return f"{name} ({fields['file']}{frame})"


class Atoms(NamedTuple):
    """Where the atoms of n graphs are, in double precision.

    Attributes:
        num_nodes: int64 [n].
        position: float64 [N, 3], Angstrom.
        cell: float64 [n, 3, 3], rows are lattice vectors; None without.
        periodic: bool [n, 3], along which of them a structure repeats.
        number: Atomic numbers, int [N]; None where they are unknown.
    """

    num_nodes: np.ndarray
    position: np.ndarray
    cell: np.ndarray | None
    periodic: np.ndarray
    number: np.ndarray | None = None

    def part(self, start: int, stop: int) -> "Atoms":
        """Return the graphs from number `start` to `stop`."""
        nodes = slice(self.num_nodes[:start].sum(), self.num_nodes[:stop].sum())
        graphs = slice(start, stop)
        cell = None if self.cell is None else self.cell[graphs]
        return Atoms(
            num_nodes=self.num_nodes[graphs],
            position=self.position[nodes],
            cell=cell,
            periodic=self.periodic[graphs],
            number=None if self.number is None else self.number[nodes],
        )


def atoms_of(part: FlatGraphs, first: int = 0) -> Atoms:
    """Read `node["position"]`, `context["cell"]` and `context["pbc"]`.

    Without `pbc` a graph repeats in all directions if its cell is not 0.

    Args:
        part: The graphs.
        first: Number of the first graph, for errors.

    Raises:
        ValueError: For missing positions, wrong shapes, numbers that are not finite,
            or a periodic graph whose lattice vectors lie in a plane.

    Example:
    >>> from keras_bandgnn import Graph
    >>> pair = Graph(2, [], [], node={"position": [[0, 0, 0], [0, 0, 1.1]]})
    >>> atoms_of(FlatGraphs.from_graphs([pair])).periodic.tolist()
    [[False, False, False]]
    """
    graphs = len(part)
    position = part.node.get("position")
    if position is None:
        raise ValueError(
            "Expected node['position'], the coordinates of the atoms in Angstrom. "
            f"Received: the node features {sorted(part.node)}. Add them with "
            "Graph(node={'position': ...})."
        )
    position = _finite(part, first, "node['position']", position, (3,))
    cell, pbc = part.context.get("cell"), part.context.get("pbc")
    if cell is not None:
        cell = _finite(part, first, "context['cell']", cell, (3, 3))
    if pbc is not None:
        periodic = _finite(part, first, "context['pbc']", pbc, (3,)) != 0
    else:
        some = np.zeros(graphs, bool) if cell is None else cell.any(axis=(1, 2))
        periodic = np.repeat(some[:, None], 3, axis=1)
    _check_cells(cell, periodic, part.info, first)
    number = part.node.get("atomic_number")
    return Atoms(part.num_nodes.astype(np.int64), position, cell, periodic, number)


def _finite(part, first: int, name: str, values: np.ndarray, shape) -> np.ndarray:
    if values.shape[1:] != shape:
        raise ValueError(
            f"Expected `{name}` of shape {[*shape]} for each of "
            f"{'the nodes' if name.startswith('node') else 'the graphs'}. "
            f"Received: {list(values.shape[1:])}."
        )
    values = values.astype(np.float64)
    bad = ~np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        graph = at
        if name.startswith("node"):
            graph = int(np.searchsorted(part.node_ptr, at, "right")) - 1
        raise ValueError(
            f"Expected finite numbers in `{name}`. Received: {values[at].tolist()} "
            f"in {graph_name(graph, part.info, first)}. Leave the graph out, or "
            "correct it."
        )
    return values


def _check_cells(
    cell: np.ndarray | None,
    periodic: np.ndarray,
    info: Sequence[Mapping[str, Any]],
    first: int,
) -> None:
    if cell is None:
        cell = np.zeros((len(periodic), 3, 3))
    lengths = np.linalg.norm(cell, axis=2)
    rows = cell / np.where(lengths > 0, lengths, 1)[..., None]
    flat = _gram(rows, periodic) < _FLAT
    if flat.any():
        at = int(np.flatnonzero(flat)[0])
        raise ValueError(
            "Expected independent lattice vectors (rows of context['cell']) along the "
            f"periodic directions. Received: cell={cell[at].tolist()}, periodic="
            f"{periodic[at].tolist()} in {graph_name(at, info, first)}. Set "
            "context['pbc'] to 0 along directions without a period."
        )


def check_images(
    atoms: Atoms,
    radius: float,
    info: Sequence[Mapping[str, Any]] = (),
    first: int = 0,
) -> None:
    """Raise a ValueError for cells far too small for the radius, in another unit.

    Args:
        atoms: The graphs.
        radius: Angstrom.
        info: `FlatGraphs.info`, for errors.
        first: Number of the first graph, for errors.
    """
    if atoms.cell is None:
        return
    size = np.sqrt(np.maximum(_gram(atoms.cell, atoms.periodic), 0))
    # Length, area or volume of the sphere of images.
    reach = np.array([0, 2, math.pi, 4 / 3 * math.pi]) * radius ** np.arange(4)
    reach = reach[atoms.periodic.sum(axis=1)]
    many = np.flatnonzero(reach > _IMAGES * size)
    if many.size:
        at = int(many[0])
        raise ValueError(
            f"Expected at most {_IMAGES:,.0f} images of an atom within {radius:g} "
            f"Angstrom. Received: about {reach[at] / size[at]:,.0f}, for cell="
            f"{atoms.cell[at].tolist()} in {graph_name(at, info, first)}. Give the "
            "cell in Angstrom."
        )


def _gram(rows: np.ndarray, periodic: np.ndarray) -> np.ndarray:
    """Return the squares of the volumes that periodic vectors span, float64 [n]."""
    rows = np.where(periodic[..., None], rows, 0)
    gram = rows @ rows.transpose(0, 2, 1)
    gram[:, range(3), range(3)] += ~periodic
    return np.linalg.det(gram)
