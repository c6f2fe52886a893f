import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bandgnn import Graph
from keras_bandgnn.preprocessing import (
    AttentionEdges,
    DynamicBatcher,
    GraphPreprocessor,
)
from keras_bandgnn.preprocessing.attention import adjacency
from keras_bandgnn.preprocessing.attention.path_cover import canonical_path, path_order
from keras_bandgnn.primitives import Plan, Segment


@st.composite
def graphs(draw):
    """Loops, repeated edges, isolated nodes and single nodes included."""
    size = draw(st.integers(1, 14))
    node = st.integers(0, size - 1)
    edges = draw(st.lists(st.tuples(node, node, st.integers(0, 4)), max_size=30))
    senders, receivers, types = np.array(edges, int).reshape(-1, 3).T
    return Graph(size, senders, receivers, edge_type=types)


def expected(graph, symmetric, path, limit, told=0):
    """(receiver, sender) -> distance, attend, type + 1, pair by pair."""
    own = {}
    rows = zip(graph.senders, graph.receivers, graph.edge_type, strict=True)
    for sender, receiver, kind in sorted(map(tuple, np.transpose([*rows]).T.tolist())):
        if sender != receiver:
            pair = receiver, sender
            own[pair] = min(own.get(pair, kind), kind)
    if symmetric:
        own |= {p[::-1]: kind for p, kind in own.items() if p[::-1] not in own}
    found, steps = {}, {}
    for start in range(graph.num_nodes):
        front, seen = {start}, {start}
        for step in range(1, max(limit, told) + 1):
            front = {r for r, s in own if s in front} - seen
            seen |= front
            for node in front:
                steps[node, start] = step
                if step <= limit:
                    found[node, start] = (step, int(step == 1))
    if path:
        order = canonical_path(graph).tolist()
        for pair in zip(order[:-1], order[1:], strict=True):
            for key in (pair, pair[::-1]):
                found[key] = (steps.get(key, max(limit, told) + 1), 1)
    return {k: (*found[k], own.get(k, -1) + 1) for k in sorted(found)}


@settings(deadline=None, max_examples=150, derandomize=True)
@given(
    graph=graphs(),
    flags=st.tuples(*[st.booleans()] * 3),
    limit=st.integers(1, 5),
    told=st.integers(1, 5) | st.none(),
)
def test_against_pair_by_pair(graph, flags, limit, told):
    symmetric, path, typed = flags
    found = AttentionEdges(symmetric, path, limit, typed, told)(graph)
    wanted = expected(graph, symmetric, path, limit, told or 0)
    pairs = np.stack([found.receivers, found.senders], axis=1)
    assert list(map(tuple, pairs.tolist())) == list(wanted)
    facts = np.array([*wanted.values()]).reshape(-1, 3)
    np.testing.assert_array_equal(found.edge["distance"], facts[:, 0])
    np.testing.assert_array_equal(found.edge["attend"], facts[:, 1])
    np.testing.assert_array_equal(found.edge_type, facts[:, 2] if typed else 0)
    assert set(found.edge) == {"distance", "attend"}
    assert {v.dtype for v in found.edge.values()} == {np.dtype(np.int32)}


@pytest.mark.parametrize("entries", [1 << 24, 300])
def test_large_graphs_give_the_same(entries, monkeypatch):
    rng = np.random.default_rng(0)
    graph = Graph(150, *rng.integers(0, 150, (2, 250)))
    layers = [AttentionEdges(s, True, d) for s in (True, False) for d in (1, 2, 4, 9)]
    small = [layer(graph) for layer in layers]
    monkeypatch.setattr(adjacency, "_DENSE_NODES", 0)
    monkeypatch.setattr(adjacency, "_ENTRIES", entries)
    for layer, wanted in zip(layers, small, strict=True):
        found = layer(graph)
        np.testing.assert_array_equal(found.senders, wanted.senders)
        np.testing.assert_array_equal(found.receivers, wanted.receivers)
        for name in ("distance", "attend"):
            np.testing.assert_array_equal(found.edge[name], wanted.edge[name])


def test_types_of_reverse_edges():
    graph = Graph(3, [0, 1, 1, 1], [1, 0, 2, 2], edge_type=[3, 1, 4, 2])
    found = AttentionEdges(edge_types=True)(graph)
    assert found.receivers.tolist() == [0, 1, 1, 2]
    assert found.senders.tolist() == [1, 0, 2, 1]
    assert found.edge_type.tolist() == [2, 4, 3, 3]


def test_features_of_edges_that_are_kept():
    bond = [[5, 0], [1, 2], [9, 9], [4, 4], [3, 7]]
    graph = Graph(
        4,
        [0, 1, 1, 1, 2],
        [1, 0, 2, 2, 2],
        edge_type=[3, 1, 2, 2, 0],
        edge={"bond": bond, "w": [0.5, 1.5, 2.5, 3.5, 4.5], "other": [0] * 5},
    )
    layer = AttentionEdges(path=True, max_distance=2, edge_features=["bond", "w"])
    assert AttentionEdges(**layer.get_config()).get_config() == layer.get_config()
    found = layer(graph)
    rows = {
        (s, r): (b.tolist(), w)
        for s, r, b, w in zip(
            found.senders.tolist(),
            found.receivers.tolist(),
            found.edge["bond"],
            found.edge["w"].tolist(),
            strict=True,
        )
    }
    assert rows[0, 1] == ([5, 0], 0.5) and rows[1, 0] == ([1, 2], 1.5)
    # Of two edges of one type that with the lower features; its reverse is not there.
    assert rows[1, 2] == rows[2, 1] == ([4, 4], 3.5)
    far = {pair: row for pair, row in rows.items() if pair not in _NEAR}
    assert len(far) == 4 and set(map(str, far.values())) == {"([0, 0], 0.0)"}
    assert set(found.edge) == {"distance", "attend", "bond", "w"}
    empty = Graph(2, [], [], edge={"bond": np.zeros((0, 2), int), "w": []})
    assert layer(empty).edge["bond"].shape == (2, 2)


_NEAR = {(0, 1), (1, 0), (1, 2), (2, 1)}


@settings(deadline=None, max_examples=100, derandomize=True)
@given(graph=graphs(), first=st.integers(0, 5), flags=st.tuples(*[st.booleans()] * 3))
def test_target_edges_follow_the_pairs(graph, first, flags):
    rng = np.random.default_rng(0)
    graph = graph.replace(
        edge={"bond": rng.integers(1, 9, (graph.num_edges, 2)), "w": graph.senders + 1},
        label=rng.integers(0, 3, graph.num_edges),
        label_level="edge",
    )
    symmetric, path, typed = flags
    options = {"max_distance": 2, "edge_features": ["bond"]}
    layer = AttentionEdges(symmetric, path, edge_types=typed, **options)
    pairs = layer(graph.replace(label=None))
    layer = AttentionEdges(
        symmetric, path, edge_types=typed, target_type=first, **options
    )
    assert AttentionEdges(**layer.get_config()).get_config() == layer.get_config()
    found, count = layer(graph), pairs.num_edges
    rows = graph.edge_type >= first
    for name in ("senders", "receivers", "edge_type"):
        own = (
            np.zeros(rows.sum()) if name == "edge_type" else getattr(graph, name)[rows]
        )
        expected = np.append(getattr(pairs, name), own)
        np.testing.assert_array_equal(getattr(found, name), expected)
    for name in ("attend", "distance", "bond"):
        np.testing.assert_array_equal(found.edge[name][:count], pairs.edge[name])
    assert not found.edge["attend"][count:].any()
    assert (found.edge["distance"][count:] > graph.num_nodes).all()
    assert not found.edge["target"][:count].any() and not found.edge["w"][:count].any()
    np.testing.assert_array_equal(
        found.edge["target"][count:] - 1, graph.edge_type[rows]
    )
    for name in ("bond", "w"):
        np.testing.assert_array_equal(found.edge[name][count:], graph.edge[name][rows])
    assert found.label_level == "edge" and np.isnan(found.label[:count]).all()
    np.testing.assert_array_equal(found.label[count:], graph.label[rows])


def test_layers_without_targets_are_described_as_before():
    names = {"symmetric", "path", "max_distance", "edge_types"}
    assert set(AttentionEdges().plain_config()) == names


def test_the_rest_of_a_graph_stays():
    graph = Graph(
        3,
        [0, 1],
        [1, 2],
        node={"type": [1, 2, 3]},
        edge={"bond": [1.0, 2.0]},
        context={"charge": 1.0},
        candidates=[0, 2],
        label=1,
        slot=1,
        info={"name": "three"},
        origin=[2, 1, 0],
    )
    found = AttentionEdges()(graph)
    assert found.node["type"].tolist() == [1, 2, 3] and found.context["charge"] == 1
    assert found.candidates.tolist() == [0, 2] and found.label == 1 and found.slot == 1
    assert dict(found.info) == {"name": "three"} and found.origin.tolist() == [2, 1, 0]


def test_batches_and_configuration():
    rng = np.random.default_rng(0)
    data = [Graph(6, *rng.integers(0, 6, (2, 9)), label=0.0) for _ in range(20)]
    layer = AttentionEdges(False, True, 3, True)
    made = GraphPreprocessor([layer], DynamicBatcher(7), Plan(Segment()))
    again = GraphPreprocessor.from_config(made.get_config())
    assert again.get_config() == made.get_config()
    x, _, _ = again.loader(data, shuffle=False)[0]
    first = layer(data[0])
    for name, value in first.edge.items():
        np.testing.assert_array_equal(x["edge"][name][0, : len(value)], value)


def test_bad_arguments():
    with pytest.raises(ValueError, match="`max_distance` to be at least 1"):
        AttentionEdges(max_distance=0)
    with pytest.raises(ValueError, match=r"\['attend'\]. Rename the feature"):
        AttentionEdges(edge_features=["attend"])
    with pytest.raises(ValueError, match="`target_type` to be at least 0"):
        AttentionEdges(target_type=-1)
    written = Graph(2, [0], [1], edge={"target": [1]})
    with pytest.raises(ValueError, match=r"\['target'\]. Rename the feature"):
        AttentionEdges(target_type=0)(written)
    labelled = Graph(2, [0], [1], label=[1], label_level="edge")
    with pytest.raises(ValueError, match="Set `target_type` of the backbone"):
        AttentionEdges()(labelled)
    with pytest.raises(ValueError, match="'bond' is missing. Give the `edge_inputs`"):
        AttentionEdges(edge_features=["bond"])(Graph(2, [0], [1]))


def gaps(graph, order):
    pairs = {*zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)}
    steps = zip(order[:-1].tolist(), order[1:].tolist(), strict=True)
    return sum((a, b) not in pairs and (b, a) not in pairs for a, b in steps)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(graph=graphs(), seed=st.integers(0, 99))
def test_path_is_a_permutation_that_follows_edges(graph, seed):
    order = path_order(graph.senders, graph.receivers, graph.num_nodes)
    assert order.dtype == np.int32
    assert sorted(order.tolist()) == list(range(graph.num_nodes))
    # The order and direction of the edges do not matter.
    mixed = np.random.default_rng(seed).permutation(graph.num_edges)
    again = path_order(graph.receivers[mixed], graph.senders[mixed], graph.num_nodes)
    np.testing.assert_array_equal(order, again)
    # No path could be joined to another by an edge.
    place = np.empty(graph.num_nodes, int)
    place[order] = np.arange(graph.num_nodes)
    if graph.num_edges and gaps(graph, order):
        links = np.abs(place[graph.senders] - place[graph.receivers]) == 1
        assert links.any() == (graph.senders != graph.receivers).any()


def test_path_of_known_graphs():
    ring = np.arange(500)
    for senders, receivers, missing in (
        (ring, np.roll(ring, 1), 0),
        (ring[:-1], ring[1:], 0),
        (np.zeros(499, int), ring[1:], 497),
        (np.repeat(ring[:40], 40), np.tile(ring[:40], 40), 460),
    ):
        graph = Graph(500, senders, receivers)
        assert gaps(graph, path_order(senders, receivers, 500)) == missing
    grid = np.arange(900).reshape(30, 30)
    senders = np.concatenate([grid[1:].ravel(), grid[:, 1:].ravel()])
    receivers = np.concatenate([grid[:-1].ravel(), grid[:, :-1].ravel()])
    graph = Graph(900, senders, receivers)
    assert gaps(graph, path_order(senders, receivers, 900)) < 45


def test_path_of_many_edges():
    rng = np.random.default_rng(0)
    edges = rng.integers(0, 20_000, (2, 200_000))
    order = path_order(*edges, 20_000)
    assert gaps(Graph(20_000, *edges), order) < 200
