import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.explain.drawing import _molecule, colours
from keras_bandgnn.explain.explanation import Explanation
from keras_bandgnn.programs import program_graphs


def explained(graph, node, edge, source=None, index=None):
    node, edge = np.array(node, float), np.array(edge, float)
    row = np.array([0.0, 2.0])
    return Explanation(
        "saliency",
        graph,
        graph if source is None else source,
        index,
        1,
        row,
        2.0,
        node,
        {},
        edge,
        graph.senders,
        graph.receivers,
    )


def pixels(figure):
    """The colours of a figure, [height, width, 3]."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].astype(int)


def is_orange(image):
    red, green, blue = (image[..., i] for i in range(3))
    return (red > green + 60) & (green > blue + 40)


def test_colours_say_sign_and_size():
    red, faint, blue = colours(np.array([2.0, 0.0, -1.0]))
    assert red[0] > red[2] and blue[2] > blue[0]
    assert (faint == 1).all()
    assert (colours(np.zeros(3)) == 1).all() and colours(np.zeros(0)).shape == (0, 3)


def test_a_molecule_is_drawn_with_its_atoms():
    pytest.importorskip("rdkit")
    graph = kb.data.from_smiles("CCO")
    strong = explained(graph, [0, 0, 1], np.ones(4)).plot()
    weak = explained(graph, [0, 0, 0], np.zeros(4)).plot()
    assert "target 1" in strong.axes[0].get_title()
    # Oxygen is drawn in red.
    assert is_orange(pixels(strong)).sum() > 10 * (1 + is_orange(pixels(weak)).sum())
    wrong = kb.Graph(2, [0], [1], info={"smiles": "CCO"})
    assert explained(wrong, [0, 0], [1]).plot().axes[0].collections
    with pytest.raises(ValueError, match="2 atoms and their bonds.*'CCO'. Draw kind"):
        explained(wrong, [0, 0], [1]).plot("molecule")
    with pytest.raises(ValueError, match=r"info\['smiles'\]. Received: None."):
        explained(kb.Graph(2, [0], [1]), [0, 0], [1]).plot("molecule")


def test_atoms_of_the_picture_are_the_nodes():
    chem = pytest.importorskip("rdkit.Chem")
    encoder = kb.preprocessing.SmilesEncoder()
    with_hydrogens = kb.preprocessing.SmilesEncoder(hydrogens=True)
    table = kb.preprocessing.TableEncoder("molecule", encoder)
    molecule = chem.MolFromSmiles("OC=CC")
    symbols = ["O", "C", "C", "C"]

    def drawn(graph, source=None):
        one = explained(
            graph, np.zeros(graph.num_nodes), np.zeros(graph.num_edges), source
        )
        atoms = _molecule(one)
        return atoms and [atom.GetSymbol() for atom in atoms.GetAtoms()]

    graph = encoder(molecule)
    assert graph.info["smiles"] != "OC=CC"
    assert drawn(graph, molecule) == symbols
    table.adapt([{"molecule": molecule}])
    row = {"molecule": molecule}
    assert drawn(table(row), row) == symbols
    assert drawn(encoder("OC=CC")) == symbols
    full = with_hydrogens("OC=CC")
    assert drawn(full) == symbols + ["H"] * (full.num_nodes - 4)
    assert drawn(full, "OC=CC") == symbols + ["H"] * (full.num_nodes - 4)
    # A string in another order is drawn as a graph, whatever names the atoms.
    for features in (graph, kb.data.from_rdkit(molecule)):
        assert drawn(features.replace(info={"smiles": "CC=CO"})) is None
        assert drawn(features.replace(info={"smiles": "OC=CC"})) == symbols
    atomic = graph.replace(node={"atomic_number": [8, 6, 6, 6]})
    assert drawn(atomic.replace(info={"smiles": "CC=CO"})) is None
    assert drawn(atomic.replace(info={"smiles": "OC=CC"})) == symbols


def test_a_graph_is_drawn_whole_or_in_part():
    pytest.importorskip("networkx")
    graph = kb.Graph(5, [0, 1, 2, 3], [1, 2, 3, 4])
    one = explained(graph, [1, 0, 0, 0, 0], [0, 0, 0, -1.0], index=2)
    (lines,) = one.plot().axes[0].collections[:1]
    assert len(lines.get_segments()) == 4
    # The strongest line comes last, in blue.
    assert lines.get_colors()[-1][2] > lines.get_colors()[-1][0]
    part = one.plot("graph", share=0.25).axes[0].collections
    assert len(part[0].get_segments()) == 1
    assert len(part[1].get_offsets()) == 2
    assert "node 2" in one.plot().axes[0].get_title()


def test_tokens_of_a_program_in_the_order_of_the_text():
    (program,) = program_graphs(
        "def f(a, b):\n    c = a < b\n    return c * a\n", max_instances=1
    )
    graph = kb.preprocessing.ProgramEncoder()(program)
    shuffled = program.shuffled()
    slot = shuffled.labels.index("<SLOT>")
    node = np.zeros(graph.num_nodes)
    node[slot] = 1
    # Nodes that a layer has reordered.
    order = np.arange(graph.num_nodes)[::-1].copy()
    moved = graph.subgraph(order)
    one = explained(moved, node[order], np.zeros(graph.num_edges), program)
    text = one.to_html()
    assert text.count("&lt;SLOT&gt;") == 1
    assert 'rgb(230, 115, 13)" title="1">&lt;SLOT&gt;' in text
    words = ["def", "f", "(", ")", ":", "return"]
    places = [text.index(f">{word}<") for word in words]
    assert places == sorted(places)
    with pytest.raises(ValueError, match="explanation of a ProgramGraph.*of a Graph"):
        explained(kb.Graph(2, [0], [1]), [0, 0], [1]).to_html()


def test_selection():
    graph = kb.Graph(5, [0, 1, 2, 3], [1, 2, 3, 4])
    one = explained(graph, [0, 0, 3, 1, 0], [0.1, -2, 1, 0])
    assert one.selection(0.5).tolist() == [False, True, True, False]
    # What has no influence is not selected.
    assert one.selection(0.9, "node").tolist() == [False, False, True, True, False]
    assert one.residual is None
    with pytest.raises(ValueError, match="`level` to be one of 'edge', 'node'"):
        one.scores("graph")
