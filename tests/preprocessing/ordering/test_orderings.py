import argparse
import importlib.util
import sys
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bandgnn import Graph
from keras_bandgnn.cli.main import main
from keras_bandgnn.cli.options import add_ordering
from keras_bandgnn.data import open_store
from keras_bandgnn.preprocessing import RCMKCompile
from keras_bandgnn.preprocessing.ordering import orderings
from keras_bandgnn.preprocessing.ordering.bisection import BisectionLevel, split
from keras_bandgnn.preprocessing.ordering.metis import metis
from keras_bandgnn.preprocessing.ordering.orderings import (
    ORDERINGS,
    bisection,
    breadth_first,
    node_order,
    rcmk,
    swap_into_band,
)
from keras_bandgnn.preprocessing.ordering.rcm import links, lost, rows_of
from keras_bandgnn.programs import program_graphs, write_varmisuse

HAS_METIS = importlib.util.find_spec("pymetis") is not None
needs_metis = pytest.mark.skipif(not HAS_METIS, reason="needs pymetis")
PRESENT = [name for name in ORDERINGS if name != "metis" or HAS_METIS]


def covered(graph, order, block_size):
    """Edges in the band, one by one."""
    place = {int(node): k for k, node in enumerate(order)}
    pairs = zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)
    return sum(abs(place[s] - place[r]) < block_size for s, r in pairs)


def distances_to_read(graph):
    """Edges on the shortest path from each node to a read node; None without one."""
    level = {int(node): 0 for node in graph.candidates}
    if graph.slot is not None:
        level[graph.slot] = 0
    front, depth = set(level), 0
    while front:
        depth += 1
        pairs = zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)
        front = {s for s, r in pairs if r in front and s not in level}
        level |= dict.fromkeys(front, depth)
    return [level.get(node) for node in range(graph.num_nodes)]


def grid(width, height, seed=0):
    ids = np.random.default_rng(seed).permutation(width * height)
    ids = ids.reshape(height, width)
    senders = np.concatenate([ids[:, :-1].ravel(), ids[:-1].ravel()])
    receivers = np.concatenate([ids[:, 1:].ravel(), ids[1:].ravel()])
    return Graph(width * height, senders, receivers)


def clusters(count, size, seed=0):
    """Dense clusters in a ring, one edge between neighbours; nodes shuffled."""
    rng = np.random.default_rng(seed)
    inside = rng.integers(0, size, (2, count, 6 * size))
    inside = (inside + size * np.arange(count)[:, None]).reshape(2, -1)
    first = size * np.arange(count)
    order = rng.permutation(count * size)
    senders = np.concatenate([inside[0], first])
    receivers = np.concatenate([inside[1], np.roll(first, 1)])
    return Graph(count * size, order[senders], order[receivers]), order


def scale_free(num_nodes, seed=0):
    rng = np.random.default_rng(seed)
    hubs = rng.zipf(1.4, 3 * num_nodes) % num_nodes
    return Graph(num_nodes, rng.integers(0, num_nodes, hubs.size), hubs)


@st.composite
def graphs(draw):
    """Loops, repeated edges, isolated nodes and single nodes included."""
    num_nodes = draw(st.integers(1, 40))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=120))
    read = draw(st.none() | st.lists(node, min_size=1, max_size=4))
    return Graph(
        num_nodes,
        senders=[s for s, _ in edges],
        receivers=[r for _, r in edges],
        candidates=read,
        slot=draw(st.none() | node),
    )


@settings(deadline=None, max_examples=80, derandomize=True)
@given(graph=graphs(), block_size=st.integers(1, 12))
def test_any_graph_gets_a_permutation_the_same_each_time(graph, block_size):
    for name in PRESENT:
        order = node_order(graph, name, block_size)
        assert order.dtype == np.int32
        assert sorted(order.tolist()) == list(range(graph.num_nodes)), name
        again = node_order(graph, name, block_size)
        np.testing.assert_array_equal(order, again)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(graph=graphs(), block_size=st.integers(1, 12))
def test_bisection_never_covers_fewer_edges(graph, block_size):
    count = covered(graph, bisection(graph, block_size), block_size)
    assert count >= covered(graph, rcmk(graph), block_size)
    assert count >= covered(graph, range(graph.num_nodes), block_size)


def test_bisection_keeps_the_better_start(monkeypatch):
    """Also if the halves were bad and no swap helped."""

    def shuffled(adjacency, *_):
        return np.random.default_rng(0).permutation(adjacency.shape[0])

    def unchanged(adjacency, order, block_size):
        return order

    monkeypatch.setattr(orderings, "split", shuffled)
    monkeypatch.setattr(orderings, "swap_into_band", unchanged)
    mixed = grid(20, 20)
    np.testing.assert_array_equal(bisection(mixed, 19), rcmk(mixed))
    # A ring with chords to node 0: the given order is better than a breadth-first one.
    ring = np.arange(200)
    wheel = Graph(200, [*ring, *[0] * 100], [*np.roll(ring, 1), *ring[::2]])
    np.testing.assert_array_equal(bisection(wheel, 4), ring)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(graph=graphs())
def test_breadth_first_levels_are_distances_to_read_nodes(graph):
    if graph.candidates is None:
        graph = graph.replace(candidates=[0])
    levels = [distances_to_read(graph)[node] for node in breadth_first(graph)]
    reached = [level for level in levels if level is not None]
    assert reached == sorted(reached)
    assert levels == reached + [None] * (graph.num_nodes - len(reached))


@settings(deadline=None, max_examples=150, derandomize=True)
@given(graph=graphs())
def test_breadth_first_breaks_ties_as_cuthill_and_mckee(graph):
    if graph.candidates is None:
        graph = graph.replace(candidates=[0])
    level, order = distances_to_read(graph), breadth_first(graph)
    place = {int(node): k for k, node in enumerate(order)}
    pairs = set(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    keys = []
    for node in order.tolist():
        if level[node] is None:
            break
        before = [
            place[r]
            for s, r in pairs
            if s == node and level[r] is not None and level[r] == level[node] - 1
        ]
        neighbours = {s for s, r in pairs if r == node} | {
            r for s, r in pairs if s == node
        }
        degree = len(neighbours - {node})
        keys.append((level[node], min(before, default=-1), degree, node))
    assert keys == sorted(keys)


def test_breadth_first_starts_at_an_end_without_read_nodes():
    ids = np.random.default_rng(0).permutation(30)
    path = Graph(32, ids[:-1], ids[1:])  # and two isolated nodes
    order = breadth_first(path)
    assert order[:30].tolist() in (ids.tolist(), ids[::-1].tolist())
    # Of a directed path, whichever way the messages go.
    mixed = path.replace(
        senders=np.where(np.arange(29) % 2, path.senders, path.receivers),
        receivers=np.where(np.arange(29) % 2, path.receivers, path.senders),
    )
    np.testing.assert_array_equal(breadth_first(mixed), order)


def test_breadth_first_does_not_start_in_the_middle():
    # Node 0 hangs on the middle of a path: it has the fewest neighbours, too.
    path = np.arange(1, 22)
    graph = Graph(22, [*path[:-1], 0], [*path[1:], 11])
    assert breadth_first(graph)[0] in (1, 21)


@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize(
    ("graph", "share"), [(grid(30, 30), 0.5), (scale_free(800), 0.05)]
)
def test_bisection_covers_what_cuthill_mckee_loses(graph, share, block_size):
    rcm = covered(graph, rcmk(graph), block_size)
    lost_edges = graph.num_edges - rcm
    gained = covered(graph, bisection(graph, block_size), block_size) - rcm
    assert gained >= share * lost_edges


def test_bisection_keeps_an_order_that_loses_nothing():
    ring = np.arange(500)
    graph = Graph(500, ring[:-1], ring[1:])
    assert covered(graph, bisection(graph, 2), 2) == graph.num_edges
    narrow = grid(5, 100)
    np.testing.assert_array_equal(bisection(narrow, 16), rcmk(narrow))


def test_split_puts_clusters_into_parts():
    graph, shuffled = clusters(8, 50)
    order = split(links(graph), np.arange(graph.num_nodes), 50)
    cluster = (np.argsort(shuffled) // 50)[order]
    assert np.count_nonzero(np.diff(cluster)) == 7


def test_exchanges_separate_clusters():
    graph, shuffled = clusters(4, 40)
    adjacency = links(graph)
    cluster = np.argsort(shuffled) // 40
    right = cluster % 2 == 1
    position = np.argsort(np.argsort(cluster // 2, kind="stable"))
    level = BisectionLevel(
        adjacency, rows_of(adjacency), position, np.array([0, 80, 160])
    )
    upper = right.copy()
    for index in range(4):
        upper[np.flatnonzero(cluster == index)[:7]] ^= True
    np.testing.assert_array_equal(level.exchanged(upper), right)


def test_swaps_repair_an_order_and_are_measured_exactly():
    graph = grid(20, 20)
    adjacency = links(graph)
    order = np.random.default_rng(1).permutation(400)
    swapped = swap_into_band(adjacency, order, 40)
    assert covered(graph, swapped, 40) > 1.2 * covered(graph, order, 40)
    outside = lost(adjacency, rows_of(adjacency), np.argsort(swapped), 40) / 2
    assert graph.num_edges - outside == covered(graph, swapped, 40)


def test_repeated_edges_count_as_often_as_they_occur():
    # Either the pair (0, 1) or the pairs with 2 and 3 can be near.
    senders = [0] * 300 + [0, 1, 2]
    receivers = [1] * 300 + [2, 3, 3]
    graph = Graph(4, senders, receivers)
    assert covered(graph, bisection(graph, 2), 2) >= 302
    weights = links(graph)
    assert weights[0, 1] == weights[1, 0] == 300


@needs_metis
def test_metis_gives_contiguous_clusters():
    graph, shuffled = clusters(8, 50)
    order = metis(graph, 50)
    cluster = (np.argsort(shuffled) // 50)[order]
    assert np.count_nonzero(np.diff(cluster)) == 7


def test_linked_clusters_are_neighbours(monkeypatch):
    """Whatever the numbers that METIS gives them."""
    numbers = np.array([5, 0, 7, 2, 4, 1, 6, 3])
    graph, shuffled = clusters(8, 20)
    cluster = np.argsort(shuffled) // 20

    def part_graph(count, adjacency, eweights, options):
        assert count == 8 and len(eweights) == len(adjacency[1])
        return 0, numbers[cluster].tolist()

    fake = types.SimpleNamespace(
        CSRAdjacency=lambda *arrays: arrays, Options=dict, part_graph=part_graph
    )
    monkeypatch.setitem(sys.modules, "pymetis", fake)
    found = cluster[metis(graph, 20)][::20]
    assert sorted(found) == list(range(8))
    # The clusters form a ring; on a line, linked ones are neighbours or skip one.
    steps = np.abs(np.diff(found))
    assert np.count_nonzero(np.minimum(steps, 8 - steps) <= 2) == 7


@needs_metis
def test_metis_of_a_graph_of_one_block_is_cuthill_mckee():
    graph = grid(6, 6)
    np.testing.assert_array_equal(metis(graph, 36), rcmk(graph))


def test_metis_names_the_extra_when_it_is_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(ImportError, match=r'pip install "keras-bandgnn\[metis\]"'):
        RCMKCompile(4, ordering="metis")(grid(4, 4))


@pytest.mark.parametrize("name", PRESENT)
def test_layer_moves_the_graph_as_the_ordering_says(name):
    graph = scale_free(200).replace(
        node={"id": np.arange(200)}, candidates=[3, 4], label=1, slot=7
    )
    layer = RCMKCompile(32, ordering=name)
    compiled = layer(graph)
    order = node_order(graph, name, 32)
    np.testing.assert_array_equal(compiled.node["id"], order)
    assert order[compiled.candidates].tolist() == [3, 4]
    share = covered(graph, order, 32) / graph.num_edges
    assert layer.stats()["covered_edges"] == pytest.approx(share)
    assert RCMKCompile.from_config(layer.get_config()).ordering == name


def test_commands_take_an_ordering(tmp_path, capsys):
    parser = argparse.ArgumentParser()
    add_ordering(parser, None)
    offered = next(a.choices for a in parser._actions if a.dest == "ordering")
    assert sorted(offered) == sorted(ORDERINGS)
    source = "".join(f"def f{i}(a, b):\n    return a * b + a\n" for i in range(40))
    write_varmisuse(tmp_path / "p.jsonl.gz", program_graphs(source, max_instances=2))
    file, out = str(tmp_path / "p.jsonl.gz"), str(tmp_path / "out")
    given = ["--block-size", "4", "--processes", "1"]
    shares = {}
    for name in ("natural", "rcmk", "bisection"):
        assert main(["inspect", file, "--ordering", name, *given]) == 0
        line = capsys.readouterr().out.partition("|i - j| < 4 after reordering: ")[2]
        shares[name] = float(line.split()[0])
    assert shares["bisection"] > shares["rcmk"] + 5
    assert shares["bisection"] >= shares["natural"]
    assert main(["compile", file, "--out", out, "--ordering", "bisection", *given]) == 0
    (folder,) = (tmp_path / "out").iterdir()
    capsys.readouterr()
    store = open_store(folder)
    assert main(["inspect", str(folder), "--ordering", "rcmk"]) == 2
    assert "--ordering with program graphs" in capsys.readouterr().err
    assert main(["inspect", str(folder), "--block-size", "4"]) == 0
    line = capsys.readouterr().out.partition("|i - j| < 4 after reordering: ")[2]
    count = sum(covered(graph, range(graph.num_nodes), 4) for graph in store)
    assert float(line.split()[0]) == pytest.approx(
        100 * count / store.num_edges.sum(), abs=0.06
    )
    layers = store.metadata["layers"]
    assert layers[-1]["config"]["ordering"] == "bisection"


def test_unknown_ordering():
    with pytest.raises(ValueError, match="one of 'rcmk', 'natural', 'breadth_first'"):
        node_order(grid(3, 3), "best", 4)
