"""Pictures of explanations: molecules, graphs, and text."""

import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_bandgnn.checks import fraction, one_of, optional
from keras_bandgnn.data.converters.smiles import from_rdkit
from keras_bandgnn.optional import optional_import
from keras_bandgnn.preprocessing.encoding.smiles_encoder import atom_ids

KINDS = ("auto", "molecule", "graph")
# For and against the prediction; both are readable to the colour-blind.
_FOR, _AGAINST = np.array([0.90, 0.45, 0.05]), np.array([0.12, 0.47, 0.71])
_FAINT = 0.85
_PIXELS = 800
_CHEM = "keras-bandgnn[chem]"
_PLOT = "keras-bandgnn[plot]"


def colours(scores: np.ndarray, ground: float = 1.0) -> np.ndarray:
    """Return a colour for each score: orange for positive, blue for negative ones.

    Args:
        scores: float [n]; the largest by size has the full colour.
        ground: Grey of the score 0, from 0 (black) to 1 (white).

    Returns:
        float [n, 3], red, green and blue from 0 to 1.
    """
    size = np.abs(scores)
    strength = (size / max(float(size.max(initial=0.0)), 1e-12))[:, None]
    full = np.where(scores[:, None] < 0, _AGAINST, _FOR)
    return ground * (1.0 - strength) + full * strength


def draw(explanation, kind: str = "auto", share: float | None = None):
    """Return the figure of `Explanation.plot`."""
    one_of("kind", kind, KINDS)
    optional(fraction, "share", share)
    figures = optional_import("matplotlib.figure", _PLOT, "figures")
    figure = figures.Figure(figsize=(6, 6), layout="constrained")
    axes = figure.subplots()
    molecule = None if kind == "graph" else _molecule(explanation)
    if kind == "molecule" or molecule is not None:
        _draw_molecule(axes, explanation, molecule)
    else:
        _draw_graph(axes, explanation, share)
    axes.set_axis_off()
    where = "" if explanation.index is None else f"node {explanation.index}, "
    axes.set_title(
        f"{explanation.method}: {where}target {explanation.target}, output "
        f"{explanation.output:.3g}",
        fontsize="medium",
    )
    return figure


def _molecule(explanation) -> Any:
    """Return the molecule of RDKit whose atoms are the nodes in order, or None.

    It is that which the caller passed, or that of the SMILES string.
    """
    source, smiles = explanation.source, explanation.graph.info.get("smiles")
    values = [*source.values()] if isinstance(source, Mapping) else [source]
    values = [value for value in values if hasattr(value, "GetAtoms")]
    if not values and not smiles:
        return None
    chem = optional_import("rdkit.Chem", _CHEM, "molecules")
    values.append(chem.MolFromSmiles(smiles) if smiles else None)
    for molecule in values:
        if molecule is None:
            continue
        for atoms in (molecule, chem.AddHs(molecule)):
            if _same_atoms(explanation, atoms):
                return atoms
    return None


def _same_atoms(explanation, molecule: Any) -> bool:
    """Return whether atoms and bonds of a molecule are, in order, those of a graph."""
    graph = explanation.graph
    if molecule.GetNumAtoms() != len(explanation.node):
        return False
    other = from_rdkit(molecule)
    bonds = {*zip(other.senders.tolist(), other.receivers.tolist(), strict=True)}
    edges = zip(explanation.senders, explanation.receivers, strict=True)
    edges = {(int(sender), int(receiver)) for sender, receiver in edges}
    edges |= {(receiver, sender) for sender, receiver in edges}
    atom = other.node["atom"]
    # Chiral tags depend on how a molecule is written.
    expected = {"atom": atom[:, :-1], "atom_ids": atom_ids(atom)[:, :-1]}
    for name, values in expected.items():
        values_of_graph = graph.node.get(name)
        if np.shape(values_of_graph) == atom.shape:
            same = np.array_equal(values_of_graph[:, :-1], values)
            return same and bonds <= edges
    if "atomic_number" in graph.node:
        numbers = np.ravel(graph.node["atomic_number"])
        return np.array_equal(numbers, atom[:, 0]) and bonds <= edges
    # Nothing names the elements: all bonds must be the edges.
    return bonds == {(s, r) for s, r in edges if s != r}


def _draw_molecule(axes, explanation, molecule) -> None:
    drawing = optional_import("rdkit.Chem.Draw.rdMolDraw2D", _CHEM, "molecules")
    image = optional_import("matplotlib.image", _PLOT, "figures")
    if molecule is None:
        smiles = explanation.graph.info.get("smiles")
        raise ValueError(
            f"Expected a molecule whose {len(explanation.node)} atoms and their bonds "
            "are, in order, those of the graph, in info['smiles']. Received: "
            f"{smiles!r}. Draw kind='graph'."
        )
    ends = [(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in molecule.GetBonds()]
    both = {}
    for sender, receiver, score in zip(
        explanation.senders, explanation.receivers, explanation.edge, strict=True
    ):
        pair = min(sender, receiver), max(sender, receiver)
        both[pair] = both.get(pair, 0.0) + float(score)
    bonds = np.array([both.get((min(pair), max(pair)), 0.0) for pair in ends])

    def by_number(scores):
        return {n: tuple(map(float, c)) for n, c in enumerate(colours(scores))}

    atom_colours = by_number(explanation.node)
    bond_colours = by_number(bonds)
    canvas = drawing.MolDraw2DCairo(_PIXELS, _PIXELS)
    drawing.PrepareAndDrawMolecule(
        canvas,
        molecule,
        highlightAtoms=list(atom_colours),
        highlightAtomColors=atom_colours,
        highlightBonds=list(bond_colours),
        highlightBondColors=bond_colours,
    )
    canvas.FinishDrawing()
    axes.imshow(image.imread(io.BytesIO(canvas.GetDrawingText()), format="png"))


def _draw_graph(axes, explanation, share: float | None) -> None:
    networkx = optional_import("networkx", "networkx", "drawings of graphs")
    collections = optional_import("matplotlib.collections", _PLOT, "figures")
    senders, receivers, edge = (
        explanation.senders,
        explanation.receivers,
        explanation.edge,
    )
    nodes = np.arange(len(explanation.node))
    if share is not None:
        selection = explanation.selection(share)
        senders, receivers, edge = (
            senders[selection],
            receivers[selection],
            edge[selection],
        )
        nodes = np.unique(np.concatenate([senders, receivers]))
    net = networkx.Graph()
    net.add_nodes_from(nodes.tolist())
    net.add_edges_from(zip(senders.tolist(), receivers.tolist(), strict=True))
    layout = networkx.spring_layout(net, seed=0, iterations=100)
    place = np.zeros((len(explanation.node), 2))
    for node, point in layout.items():
        place[node] = point
    # What matters most is drawn last.
    order = np.argsort(np.abs(edge), kind="stable")
    strength = np.abs(edge) / max(float(np.abs(edge).max(initial=0.0)), 1e-12)
    lines = collections.LineCollection(
        np.stack([place[senders], place[receivers]], axis=1)[order],
        colors=colours(edge, _FAINT)[order],
        linewidths=(1.0 + 3.0 * strength)[order],
        zorder=1,
    )
    axes.add_collection(lines)
    axes.scatter(
        *place[nodes].T,
        s=1500 / max(len(nodes), 10) + 20,
        c=colours(explanation.node, _FAINT)[nodes],
        edgecolors="black",
        linewidths=0.5,
        zorder=2,
    )
    if explanation.index is not None:
        axes.scatter(
            *place[explanation.index], s=250, facecolors="none", edgecolors="black"
        )
    axes.autoscale_view()
    axes.set_aspect("equal")


def source_text(explanation) -> str:
    """Return the text of `Explanation.to_html`."""
    source = explanation.source
    if not hasattr(source, "to_html"):
        raise ValueError(
            "Expected the explanation of a ProgramGraph, which has text. Received: "
            f"one of a {type(source).__name__}. Explain program graphs, with a "
            "ProgramEncoder in the preprocessor."
        )
    origin = explanation.graph.origin
    ids = np.arange(len(explanation.node)) if origin is None else origin
    return source.to_html(explanation.node, ids, colours)
