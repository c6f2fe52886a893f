import itertools

import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.preprocessing import AttentionEdges, attention_conditions
from keras_bandgnn.preprocessing.attention import conditions
from keras_bandgnn.preprocessing.attention.adjacency import adjacency
from keras_bandgnn.preprocessing.attention.path_cover import canonical_path

nx = pytest.importorskip("networkx")


def graph_of(net):
    net = nx.convert_node_labels_to_integers(net)
    edges = np.array(net.edges(), int).reshape(-1, 2).T
    return Graph(len(net), *np.concatenate([edges, edges[::-1]], axis=1))


def shuffled(graph, seed=0):
    order = np.random.default_rng(seed).permutation(graph.num_nodes)
    return Graph(graph.num_nodes, order[graph.senders], order[graph.receivers])


def random_graph(rng, largest):
    size = int(rng.integers(1, largest + 1))
    count = int(rng.integers(0, 1 + 2 * size))
    return Graph(size, *rng.integers(0, size, (2, count)))


def paths_needed(graph):
    """Fewest paths that cover the nodes, over all orders with any number of gaps."""
    size = graph.num_nodes
    links = np.zeros((size, size), bool)
    links[graph.senders, graph.receivers] = links[graph.receivers, graph.senders] = True
    best = {(1 << node, node): 1 for node in range(size)}
    for nodes in range(1, 1 << size):
        for last, node in itertools.product(range(size), repeat=2):
            if (nodes, last) in best and not nodes >> node & 1:
                key = nodes | 1 << node, node
                cost = best[nodes, last] + (not links[last, node])
                best[key] = min(best.get(key, size), cost)
    return min(best[(1 << size) - 1, node] for node in range(size))


def all_reached(graph, steps, token):
    net = nx.DiGraph()
    net.add_nodes_from(range(graph.num_nodes))
    net.add_edges_from(np.stack([graph.senders, graph.receivers], axis=1).tolist())
    if token:
        others = range(graph.num_nodes)
        net.add_edges_from(("token", k) for k in others)
        net.add_edges_from((k, "token") for k in others)
    near = nx.all_pairs_shortest_path_length(net, cutoff=steps)
    return all(len(found) == len(net) for _, found in near)


def assert_is_path(graph, order, token):
    size = graph.num_nodes
    assert sorted(order.tolist()) == list(range(size + token))
    pairs = {*zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)}
    for a, b in itertools.pairwise(order.tolist()):
        assert size in (a, b) or (a, b) in pairs or (b, a) in pairs


CLIQUES = nx.disjoint_union_all([nx.complete_graph(9)] * 3)
CLIQUES.add_edges_from([("centre", 0), ("centre", 10), ("centre", 20)])
TWO_CLIQUES = nx.disjoint_union(nx.complete_graph(12), nx.complete_graph(12))
JOINED = nx.Graph(TWO_CLIQUES)
JOINED.add_edge(0, 23)


@pytest.mark.parametrize(
    "net, c2, with_token, diameter",
    [
        (nx.complete_graph(30), "yes", "yes", 1),
        (nx.cycle_graph(24), "yes", "yes", 12),
        (nx.path_graph(40), "yes", "yes", 39),
        (nx.star_graph(2), "yes", "yes", 2),
        (nx.star_graph(3), "no", "yes", 2),
        (nx.star_graph(4), "no", "no", 2),
        (nx.star_graph(50), "no", "no", 2),
        (nx.petersen_graph(), "yes", "yes", 2),
        (TWO_CLIQUES, "no", "yes", None),
        (JOINED, "yes", "yes", 3),
        (nx.disjoint_union(TWO_CLIQUES, nx.path_graph(2)), "no", "no", None),
        (CLIQUES, "unknown", "yes", 4),
        (nx.complete_bipartite_graph(10, 11), "yes", "yes", 2),
        (nx.complete_bipartite_graph(10, 12), "unknown", "yes", 2),
        (nx.complete_bipartite_graph(10, 13), "unknown", "unknown", 2),
        (nx.empty_graph(1), "yes", "yes", 0),
    ],
)
@pytest.mark.parametrize("exact", [20, 0])
def test_known_graphs(net, c2, with_token, diameter, exact, monkeypatch):
    monkeypatch.setattr(conditions, "_SEARCHED_NODES", exact)
    graph = shuffled(graph_of(net))
    for token, answer in ((False, c2), (True, with_token)):
        for layers in (1, 2, 3, 4, 12, 39):
            found = attention_conditions(graph, layers, global_token=token)
            if exact:
                assert found.path.answer == answer, found
            else:
                assert found.path.answer in (answer, "unknown")
            reached = diameter is not None and diameter <= layers
            reached |= token and layers > 1
            assert found.reach.answer == ("yes" if reached else "no"), found
            assert found.self_attention.answer == "yes"
            assert found.sparse_suffices == (reached and found.path.answer == "yes")
        if found.order is not None:
            assert_is_path(graph, found.order, token)


def unhelpful(senders, receivers, num_nodes):
    return np.arange(num_nodes, dtype=np.int32)


def test_theorems(monkeypatch):
    monkeypatch.setattr(conditions, "path_order", unhelpful)
    # Every node is linked with all but its opposite and some others.
    dirac = shuffled(graph_of(nx.circulant_graph(40, range(1, 11))))
    found = attention_conditions(dirac, 2)
    assert found.path.answer == "yes" and "Dirac" in found.path.reason
    assert found.order is None and found.sparse_suffices
    # One node has few links; together with any other it has enough.
    net = nx.complete_graph(30)
    net.add_edges_from([("few", 0), ("few", 1)])
    ore = shuffled(graph_of(net))
    found = attention_conditions(ore, 2)
    assert found.path.answer == "yes" and "Ore" in found.path.reason
    # Without one link of the other nodes the sum falls short by one.
    net.remove_edge("few", 1)
    net.remove_edge(10, 20)
    less = shuffled(graph_of(net))
    assert attention_conditions(less, 2).path.answer == "unknown"
    found = attention_conditions(less, 2, global_token=True)
    assert found.path.answer == "yes" and "Ore" in found.path.reason


def test_ore_against_all_pairs():
    rng = np.random.default_rng(0)
    answers = set()
    for _ in range(200):
        size = int(rng.integers(2, 12))
        links = np.triu(rng.random((size, size)) < rng.uniform(0.3, 1), 1)
        links |= links.T
        row, column = np.nonzero(links)
        degree = links.sum(axis=1)
        for needed in (size - 2, size - 1):
            pairs = itertools.combinations(range(size), 2)
            wanted = all(
                links[a, b] or degree[a] + degree[b] >= needed for a, b in pairs
            )
            matrix = adjacency(size, row, column)
            assert conditions._ore(matrix, degree, row, needed) == wanted
            answers.add(wanted)
    assert answers == {True, False}


@pytest.mark.parametrize("exact, greedy", [(20, True), (20, False), (0, False)])
def test_random_graphs_against_all_paths(exact, greedy, monkeypatch):
    monkeypatch.setattr(conditions, "_SEARCHED_NODES", exact)
    if not greedy:
        monkeypatch.setattr(conditions, "path_order", unhelpful)
    rng = np.random.default_rng(1)
    answers = set()
    for trial in range(120):
        graph = random_graph(rng, 9 if trial % 10 == 0 else 7)
        needed = paths_needed(graph)
        for token in (False, True):
            layers = int(rng.integers(1, 5))
            found = attention_conditions(
                graph, layers, self_loops=False, global_token=token
            )
            right = "yes" if needed <= 1 + token else "no"
            answers.add((found.path.answer, right))
            assert found.path.answer == right or (
                not exact and found.path.answer == "unknown"
            ), found
            if found.order is not None:
                assert_is_path(graph, found.order, token)
            right = "yes" if all_reached(graph, layers, token) else "no"
            assert found.reach.answer == right, found
            looped = {*graph.senders[graph.senders == graph.receivers].tolist()}
            right = "yes" if len(looped) == graph.num_nodes else "no"
            assert found.self_attention.answer == right
    assert answers >= {("yes", "yes"), ("no", "no")}


def test_larger_graphs_are_never_judged_wrongly(monkeypatch):
    """The search over all paths, up to 12 nodes here, is right; the rest must agree."""
    rng = np.random.default_rng(2)
    reasons = set()
    for _ in range(150):
        size = int(rng.integers(8, 13))
        graph = Graph(size, *rng.integers(0, size, (2, int(rng.integers(size, 26)))))
        for token in (False, True):
            monkeypatch.setattr(conditions, "_SEARCHED_NODES", 20)
            right = attention_conditions(graph, 3, global_token=token).path
            monkeypatch.setattr(conditions, "_SEARCHED_NODES", 0)
            found = attention_conditions(graph, 3, global_token=token).path
            assert found.answer in (right.answer, "unknown"), (found, right)
            reasons.add(found.reason.lstrip("0123456789 ")[:12])
    assert len(reasons) >= 4


@pytest.mark.parametrize("seed", range(5))
def test_augmented_edges_meet_all_conditions(seed):
    rng = np.random.default_rng(seed)
    graph = Graph(60, *rng.integers(0, 60, (2, 15 * seed)))
    order = canonical_path(graph)
    for symmetric, distance in ((True, 1), (False, 3)):
        edges = AttentionEdges(symmetric, path=True, max_distance=distance)(graph)
        found = attention_conditions(edges, 2, path=order, global_token=True)
        assert found.sparse_suffices
        found = attention_conditions(edges, 59, path=order)
        assert found.sparse_suffices and found.path.reason.startswith("the given path")
        np.testing.assert_array_equal(found.order, order)


def test_pairs_that_do_not_attend_do_not_count():
    graph = graph_of(nx.star_graph(5))
    edges = AttentionEdges(max_distance=2)(graph)
    assert edges.num_edges == 30
    found = attention_conditions(edges, 1)
    assert found.path.answer == "no" and found.reach.answer == "no"


def test_given_paths(monkeypatch):
    monkeypatch.setattr(conditions, "path_order", unhelpful)
    graph = shuffled(graph_of(nx.cycle_graph(30)), 3)
    wrong = np.arange(30)
    found = attention_conditions(graph, 15, path=wrong)
    assert found.path.answer == "unknown" and "given path" in found.path.reason
    right = np.random.default_rng(3).permutation(30)
    assert attention_conditions(graph, 15, path=right).sparse_suffices
    # A token joins two parts of the ring in any order.
    halves = np.concatenate([right[20:], right[5:20][::-1], right[:5][::-1]])
    assert attention_conditions(graph, 15, path=halves).path.answer == "unknown"
    found = attention_conditions(graph, 2, path=halves, global_token=True)
    assert found.sparse_suffices and found.order[10] == 30
    assert_is_path(graph, found.order, True)
    for bad in (right[:-1], np.zeros(30, int)):
        with pytest.raises(ValueError, match="an order of the 30 nodes, each once"):
            attention_conditions(graph, 4, path=bad)


def test_reach_of_larger_graphs(monkeypatch):
    rng = np.random.default_rng(0)
    graph = Graph(300, *rng.integers(0, 300, (2, 3600)))
    matrix = adjacency(300, graph.senders, graph.receivers)
    answers = [
        conditions.reachable_within(matrix, steps, False).answer
        for steps in range(1, 12)
    ]
    wanted = [all_reached(graph, steps, False) for steps in range(1, 12)]
    assert answers == ["yes" if yes else "no" for yes in wanted]
    assert {*answers} == {"yes", "no"}
    again = [
        conditions.reachable_within(matrix, steps, False).answer
        for steps in range(1, 12)
    ]
    assert again == answers
    monkeypatch.setattr(conditions, "_EXACT_NODES", 10)
    monkeypatch.setattr(conditions, "_MAX_NODES", 10)
    quick = [
        conditions.reachable_within(matrix, steps, False).answer
        for steps in range(1, 30)
    ]
    assert quick[0] == "no" and quick[-1] == "yes" and "unknown" in quick
    for answer, right in zip(quick, answers, strict=False):
        assert answer in (right, "unknown")


def test_readable():
    found = attention_conditions(graph_of(nx.star_graph(4)), 2)
    assert str(found) == (
        "C1 self-attention  yes: self-loops are added\n"
        "C2 path            no: 4 nodes with at most one neighbour must be ends of "
        "paths\n"
        "C3 reach           yes: node 0 is reached by all within 1 and reaches all "
        "within 1 steps\n"
        "Sparse attention is not known to suffice."
    )
    with pytest.raises(ValueError, match="`num_layers` to be at least 1"):
        attention_conditions(Graph(1, [], []), 0)
