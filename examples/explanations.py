"""Explanations: which edges and atoms decide, found in graphs where it is known.

    python examples/explanations.py
    python examples/explanations.py --data molecules --figures FOLDER
    python examples/explanations.py --short

Houses: random graphs of coloured nodes (Barabasi and Albert) with a house of five nodes
and six edges in half of them; the others have the same nodes, scattered or joined to
part of a house. Molecules: chains of rings and groups, half of them with a benzene
ring; the others have as many rings and groups, or a ring of which bonds are cut. Cut
bonds make the whole ring decide, and show the model what explanations ask of it: graphs
of which parts are missing. A model is trained to tell them apart and explained by every
method, and each explanation is compared with the motif.

Molecules need RDKit, figures matplotlib and networkx. Choose the backend with
KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn import explain, models

# Roof, walls and floor.
HOUSE = np.array([(0, 1), (1, 2), (2, 3), (3, 0), (0, 4), (1, 4)])
HOUSE_KINDS = (1, 1, 2, 2, 0)
NUM_KINDS = 6
RING = "c1ccccc1"
RIVALS = "C1CCCCC1 C1=CCCCC1 c1ccncc1 c1ccsc1 C1CCNCC1 c1ccoc1 C=CC=CC=C".split()
GROUPS = "C(=O)O C#N N O Cl F C S".split()
LINKS = "C CC CCC CO CN C(=O)N".split()
# Width, steps or layers, readout and learning rate.
SETTINGS = {"houses": (16, 2, "sum", 1e-2), "molecules": (32, 3, "mean", 5e-3)}


def attachment_graph(rng: np.random.Generator, count: int, links: int = 2) -> list:
    """Edges of a random graph whose nodes join others by their degree."""
    ends = list(range(links))
    edges = []
    for node in range(links, count):
        others = {int(other) for other in rng.choice(ends, links)}
        edges += [(node, other) for other in others]
        ends += [*others, *[node] * len(others)]
    return edges


def house_graph(rng: np.random.Generator, kind: str) -> tuple[kb.Graph, np.ndarray]:
    """A graph with a "house", the same nodes "scattered", a "part" of one, or "none".

    Returns:
        The graph, and whether each of its edges is one of the house.
    """
    count = int(rng.integers(10, 20))
    edges = attachment_graph(rng, count)
    kinds = rng.integers(3, NUM_KINDS, count).tolist()
    own = HOUSE
    if kind == "part":
        own = HOUSE[rng.permutation(6)[: rng.integers(0, 5)]]
    first = len(edges)
    if kind in ("house", "part"):
        edges += (own + count).tolist()
        edges.append((count, int(rng.integers(count))))
    elif kind == "scattered":
        edges += [(count + n, int(rng.integers(count))) for n in range(5)]
    truth = np.zeros(len(edges), bool)
    if kind == "house":
        truth[first : first + 6] = True
    if kind != "none":
        kinds += HOUSE_KINDS
    # Nothing is told by the order of nodes.
    place = rng.permutation(len(kinds))
    ends = place[np.array(edges)]
    graph = kb.Graph(
        len(kinds),
        senders=np.concatenate([ends[:, 0], ends[:, 1]]),
        receivers=np.concatenate([ends[:, 1], ends[:, 0]]),
        node={"kind": np.array(kinds)[np.argsort(place)]},
        label=int(kind == "house"),
    )
    return graph, np.concatenate([truth, truth])


def houses(rng: np.random.Generator, count: int) -> list:
    """Graphs, every second one with a house, and their edges that are of it."""
    kinds = ("house", "scattered", "house", "part", "house", "none")
    return [house_graph(rng, kinds[n % 6]) for n in range(count)]


def molecule(rng: np.random.Generator, kind: str) -> tuple[kb.Graph, np.ndarray]:
    """A chain of groups with a ring of "benzene", with a "rival", or a "cut" ring.

    Returns:
        The graph, and whether each of its bonds is one of the ring.
    """
    groups = [
        str(rng.choice(RIVALS if rng.random() < 0.5 else GROUPS))
        for _ in range(rng.integers(1, 4))
    ]
    groups.append(str(rng.choice(RIVALS)) if kind == "rival" else RING)
    groups = rng.permutation(groups).tolist()
    text = groups[0]
    for group in groups[1:]:
        # What ends a chain is a branch of it.
        text = f"C({text}){rng.choice(LINKS)}{group}"
    graph = kb.data.from_smiles(text, label=int(kind == "benzene"))
    atom = graph.node["atom"]
    node = {"element": atom[:, 0], "aromatic": atom[:, 5]}
    graph = graph.replace(node=node, edge={})
    truth = np.zeros(graph.num_edges, bool)
    if kind == "rival":
        return graph, truth
    from rdkit import Chem

    found = Chem.MolFromSmiles(text).GetSubstructMatch(Chem.MolFromSmarts(RING))
    truth = np.isin(graph.senders, found) & np.isin(graph.receivers, found)
    return (graph, truth) if kind == "benzene" else cut(rng, graph, truth)


def cut(
    rng: np.random.Generator, graph: kb.Graph, ring: np.ndarray, whole: bool = False
) -> tuple[kb.Graph, np.ndarray]:
    """Cut bonds of a molecule: some of the ring, unless it is to stay whole."""
    # The two directions of a bond follow each other.
    gone = rng.random(graph.num_edges // 2) < rng.choice([0.0, 0.2, 0.5])
    of_ring = np.flatnonzero(ring[::2])
    gone[of_ring] = False
    if not whole:
        count = int(rng.choice([1, int(rng.integers(1, 7))]))
        gone[rng.choice(of_ring, count, replace=False)] = True
    keep = np.repeat(~gone, 2)
    graph = graph.replace(
        senders=graph.senders[keep],
        receivers=graph.receivers[keep],
        edge_type=graph.edge_type[keep],
        # The string is that of the whole molecule.
        info={},
    )
    return graph, (ring & whole)[keep]


def molecules(rng: np.random.Generator, count: int, cuts: bool = True) -> list:
    """Molecules, every second one with a benzene ring, and the bonds of the ring.

    With `cuts` every second ring is one of a molecule whose other bonds are cut here
    and there, and every second molecule without one has a ring that is cut.
    """
    kinds = ("benzene", "rival", "benzene", "cut" if cuts else "rival")
    out = []
    for n in range(count):
        graph, truth = molecule(rng, kinds[n % 4])
        if cuts and n % 4 == 2:
            graph, truth = cut(rng, graph, truth, whole=True)
        out.append((graph, truth))
    return out


def known(rng: np.random.Generator, network: str, data: str, count: int) -> list:
    """Graphs to train on."""
    if data == "houses":
        made = houses(rng, count)
    else:
        # GAT does not read types of bonds, and cannot tell a chain from a ring.
        made = molecules(rng, count, cuts=network == "GGNN")
    return [graph for graph, _ in made]


def asked(rng: np.random.Generator, data: str, count: int) -> tuple[list, list]:
    """Graphs with the motif, and which of their edges are of it."""
    if data == "houses":
        made = [house_graph(rng, "house") for _ in range(count)]
    else:
        made = [molecule(rng, "benzene") for _ in range(count)]
    graphs, edges = zip(*made, strict=True)
    return list(graphs), list(edges)


def nodes_of(graph: kb.Graph, truth: np.ndarray) -> np.ndarray:
    """Which nodes the edges of a motif join."""
    return np.isin(np.arange(graph.num_nodes), graph.senders[truth])


def classifier(network: str, data: str, graphs: list) -> models.GraphClassifier:
    """A task to tell graphs with the motif from the others.

    Args:
        network: "GGNN" or "GAT".
        data: "houses" or "molecules".
        graphs: The graphs, whose types of edges count.
    """
    inputs = {"kind": NUM_KINDS}
    if data == "molecules":
        inputs = {"element": 18, "aromatic": 2}
        if network == "GGNN":
            # The bonds tell.
            del inputs["aromatic"]
    types = max(graph.num_edge_types for graph in graphs)
    width, steps, readout, rate = SETTINGS[data]
    if network == "GGNN":
        backbone = models.GGNNBackbone(inputs, width, steps, num_edge_types=types)
    else:
        backbone = models.GATBackbone(inputs, width, 2, steps, num_edge_types=types)
    task = models.GraphClassifier(backbone, 2, readout=readout)
    task.compile(keras.optimizers.Adam(rate))
    return task


def study(options: argparse.Namespace, network: str, seed: int) -> dict:
    """Train a model, explain it by every method; the AUC of edges by method."""
    settings: dict = {}
    if options.short:
        settings = {
            explain.gnn_explainer: {"steps": 5},
            explain.integrated_gradients: {"steps": 4, "tolerance": 1.0},
        }
    rng = np.random.default_rng(seed)
    keras.utils.set_random_seed(seed)
    trained = known(rng, network, options.data, options.graphs)
    graphs, edges = asked(rng, options.data, options.explained)
    nodes = [nodes_of(*each) for each in zip(graphs, edges, strict=True)]
    task = classifier(network, options.data, trained)
    task.fit(trained, epochs=options.epochs, verbose=0)
    accuracy = task.evaluate(trained, verbose=0, return_dict=True)["accuracy"]
    print(f"{network}, seed {seed}: accuracy {accuracy:.3f}, {len(graphs)} to explain")
    methods: list[Callable] = [
        explain.saliency,
        explain.integrated_gradients,
        explain.gnn_explainer,
    ]
    if network == "GAT":
        methods.append(explain.attention)
    out = {}
    for method in methods:
        start = time.perf_counter()
        more = settings.get(method, {})
        found = method(task, graphs, target=1, **more)
        seconds = time.perf_counter() - start
        scores = [
            np.nanmean(explain.ground_truth_auc(found, truth, level))
            for truth, level in ((edges, "edge"), (nodes, "node"))
        ]
        out[method.__name__] = scores
        measured = explain.fidelity(task, found)
        alike = explain.randomization_check(task, graphs[:4], method, target=1, **more)
        print(
            f"  {method.__name__}: AUC of edges {scores[0]:.3f}, of nodes "
            f"{scores[1]:.3f}; fidelity+ {measured.plus:.2f}, fidelity- "
            f"{measured.minus:.2f}; with shuffled weights {alike.mean():.2f}; "
            f"{seconds:.1f} s",
            flush=True,
        )
        if options.figures and seed == options.seeds[0]:
            options.figures.mkdir(exist_ok=True, parents=True)
            name = f"{options.data}_{network}_{method.__name__}.png"
            found[0].plot().savefig(options.figures / name)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--data", choices=("houses", "molecules"), default="houses")
    parser.add_argument("--graphs", type=int, default=600)
    parser.add_argument("--epochs", type=int, help="30 for houses, 12 for molecules")
    parser.add_argument("--explained", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--networks", nargs="+", default=["GGNN", "GAT"])
    parser.add_argument("--figures", type=Path, help="folder for a figure per method")
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args()
    if options.epochs is None:
        options.epochs = 30 if options.data == "houses" else 12
    if options.short:
        options.graphs, options.epochs, options.explained = 60, 3, 2
    for network in options.networks:
        found = [study(options, network, seed) for seed in options.seeds]
        if len(found) == 1:
            continue
        print(f"{network}, {len(found)} seeds, AUC of edges and of nodes: min, median")
        for name in found[0]:
            both = np.array([each[name] for each in found]).T
            figures = ", ".join(f"{s.min():.3f} {np.median(s):.3f}" for s in both)
            print(f"  {name}: {figures}")


if __name__ == "__main__":
    main()
