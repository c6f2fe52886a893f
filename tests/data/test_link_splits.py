"""Splits of edges: nothing of what is predicted is among the messages."""

import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.data import NodePairs, check_leaks, split_by_masks, split_links
from keras_bandgnn.data.identity import link_keys, pair_keys
from keras_bandgnn.data.link_ends import as_pairs, is_undirected


def random_graph(nodes=30, count=150, types=3, undirected=False, seed=0):
    """A graph with parallel edges and self-loops; features name the edge."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, nodes, (2, count))
    kind = rng.integers(0, types, count)
    ends[:, 1] = ends[:, 0]
    kind[1] = kind[0]
    ends[1, :5] = ends[0, :5]
    if undirected:
        ends, kind = np.concatenate([ends, ends[::-1]], axis=1), np.tile(kind, 2)
    order = rng.permutation(len(kind))
    return Graph(
        nodes,
        *ends[:, order],
        edge_type=kind[order],
        edge={"number": np.arange(len(kind))},
        node={"h": rng.normal(size=(nodes, 2))},
    )


def triples(pairs):
    return list(
        zip(
            pairs.senders.tolist(),
            pairs.receivers.tolist(),
            pairs.types.tolist(),
            strict=True,
        )
    )


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_parts_are_disjoint_and_complete(undirected, seed):
    graph = random_graph(undirected=undirected, seed=seed)
    split = split_links(graph, 0.1, 0.2, seed)
    assert (
        split.undirected
        == undirected
        == is_undirected(NodePairs.of_edges(graph), graph.num_nodes)
    )

    def plain(pairs):
        every = triples(pairs)
        if undirected:
            every = [(min(s, r), max(s, r), t) for s, r, t in every]
        assert len(set(every)) == len(every)
        return set(every)

    parts = [plain(p) for p in (split.train_pairs, split.valid_pairs, split.test_pairs)]
    edges = set(triples(NodePairs.of_edges(graph)))
    real = {e for e in edges if e[0] != e[1]}
    if undirected:
        real = {(min(s, r), max(s, r), t) for s, r, t in real}
    assert set().union(*parts) == real
    assert sum(map(len, parts)) == len(real)
    # No two nodes are in two parts, and shares are those of links.
    links = [{(min(s, r), max(s, r)) for s, r, _ in part} for part in parts]
    total = len(set().union(*links))
    assert sum(map(len, links)) == total
    assert [len(links[1]), len(links[2])] == [
        round(share * total) for share in (0.1, 0.2)
    ]
    assert set(triples(split.known)) == edges
    check_leaks(split.train, split.valid_pairs)
    check_leaks(split.train, split.test_pairs)
    # Message edges are training pairs and self-loops, with their features.
    kept = split.train.edge["number"]
    assert (np.diff(kept) > 0).all()
    np.testing.assert_array_equal(split.train.senders, graph.senders[kept])
    np.testing.assert_array_equal(split.train.edge_type, graph.edge_type[kept])
    loops = (graph.senders == graph.receivers).sum()
    assert (split.train.senders == split.train.receivers).sum() == loops
    messages = set(triples(NodePairs.of_edges(split.train)))
    assert set(triples(split.train_pairs)) <= messages


@pytest.mark.parametrize("undirected", [False, True])
def test_supervised_pairs_carry_no_messages(undirected):
    graph = random_graph(undirected=undirected)
    split = split_links(graph, supervised=0.3)
    check_leaks(split.train, split.train_pairs)
    both = split_links(graph)
    links = [
        len(np.unique(link_keys(p.senders, p.receivers, graph.num_nodes)))
        for p in (split.train_pairs, both.train_pairs)
    ]
    assert links[0] == round(0.3 * links[1])
    # The same pairs to validate and to test on.
    assert triples(split.test_pairs) == triples(both.test_pairs)


@pytest.mark.parametrize("planted", ["edge", "reverse", "parallel"])
def test_a_planted_leak_is_found(planted):
    graph = random_graph(undirected=True)
    split = split_links(graph)
    leak = split.test_pairs.take([3])
    leak = leak.reversed() if planted == "reverse" else leak
    copies = 2 if planted == "parallel" else 1
    leaky = split.train.replace(
        senders=np.append(split.train.senders, np.tile(leak.senders, copies)),
        receivers=np.append(split.train.receivers, np.tile(leak.receivers, copies)),
        edge_type=np.append(split.train.edge_type, np.tile(leak.types, copies)),
        edge={},
    )
    message = r"no edges of the graph.*Received: 1 of \d+ pairs.*split_links"
    with pytest.raises(ValueError, match=message):
        check_leaks(leaky, split.test_pairs, undirected=True)
    # An edge of another type tells as much.
    typed = leaky.replace(edge_type=leaky.edge_type + 3 * (leaky.edge_type < 3))
    with pytest.raises(ValueError, match=message):
        check_leaks(typed, split.test_pairs)
    check_leaks(typed, split.test_pairs, undirected=False)
    # Of facts of their own the reverse says nothing.
    if planted == "reverse":
        check_leaks(leaky, split.test_pairs, undirected=False)


@pytest.mark.parametrize("lacking", [0, 1, 40])
def test_a_naive_split_of_an_undirected_graph_leaks(lacking):
    graph = random_graph(undirected=True)
    rows = np.arange(graph.num_edges) >= lacking
    graph = graph.replace(
        senders=graph.senders[rows],
        receivers=graph.receivers[rows],
        edge_type=graph.edge_type[rows],
        edge={},
    )
    naive = split_links(graph, undirected=False)
    check_leaks(naive.train, naive.test_pairs, undirected=False)
    with pytest.raises(ValueError, match="or its reverse"):
        check_leaks(naive.train, naive.test_pairs)
    # By default no edge need have a reverse for it to be kept with it.
    split = split_links(graph)
    assert split.undirected == (not lacking)
    check_leaks(split.train, split.test_pairs)


def test_splits_follow_from_the_seed():
    graph = random_graph()
    one, same, other = (split_links(graph, seed=seed) for seed in (1, 1, 2))
    assert triples(one.test_pairs) == triples(same.test_pairs)
    assert triples(one.test_pairs) != triples(other.test_pairs)


def test_labels_of_edges_are_kept():
    graph = random_graph()
    number = graph.edge["number"]
    split = split_links(graph.replace(label=number, label_level="edge"))
    np.testing.assert_array_equal(split.train.label, split.train.edge["number"])


def test_keys_tell_pairs_apart():
    pairs = NodePairs([0, 1, 1, 2], [1, 0, 0, 2], [0, 0, 1, 1])
    assert len(set(pair_keys(pairs, 3).tolist())) == 4
    ordered = pair_keys(pairs, 3, unordered=True)
    assert ordered[0] == ordered[1] != ordered[2]
    with pytest.raises(ValueError, match="below 2.*63.*Number the types"):
        pair_keys(NodePairs([0], [1], [2**30]), 2**20)


def test_forms_of_pairs():
    pairs = as_pairs("pairs", np.array([[0, 1, 2], [3, 4, 0]]), 5)
    assert triples(pairs) == [(0, 1, 2), (3, 4, 0)]
    assert triples(as_pairs("pairs", [[0, 1]], 2)) == [(0, 1, 0)]
    joined = NodePairs.concatenate([pairs, pairs.reversed()])
    assert triples(joined)[2:] == [(1, 0, 2), (4, 3, 0)]
    assert triples(joined.take(np.array([False, True, False, False]))) == [(3, 4, 0)]


@pytest.mark.parametrize(
    "wrong", [[0, 1], np.zeros((2, 4), int), np.zeros((2, 2)), "pairs", [[0, -1]]]
)
def test_wrong_pairs(wrong):
    with pytest.raises(ValueError, match="Expected.*pairs.*Received"):
        as_pairs("pairs", wrong, 5)


def test_wrong_arguments():
    graph = random_graph()
    with pytest.raises(ValueError, match="`valid` and `test` to leave pairs"):
        split_links(graph, 0.5, 0.5)
    with pytest.raises(ValueError, match="at least one pair.*a graph of 0 pairs"):
        split_links(Graph(2, [0], [0]))
    with pytest.raises(ValueError, match="at least one pair"):
        split_links(Graph(2, [0], [1]), 0.0, 0.0, supervised=0.9)
    with pytest.raises(ValueError, match=r"node ids in \[0, 5\).*node 7"):
        as_pairs("pairs", NodePairs([7], [0]), 5)
    with pytest.raises(ValueError, match=r"types in \[0, 2\).*type 2"):
        as_pairs("pairs", NodePairs([0], [1], [2]), 5, 2)
    with pytest.raises(ValueError, match="as many `senders` as"):
        NodePairs([0], [1, 2])


# === Splits by masks ===


def masked(graph, split):
    """The graph with masks of the parts of a split."""
    masks = {}
    parts = (split.train_pairs, split.valid_pairs, split.test_pairs)
    edges = list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    for name, pairs in zip(("train", "valid", "test"), parts, strict=True):
        here = {*zip(pairs.senders.tolist(), pairs.receivers.tolist(), strict=True)}
        if split.undirected:
            here |= {(b, a) for a, b in here}
        masks[f"{name}_mask"] = np.array([edge in here for edge in edges])
    return graph.replace(edge={**graph.edge, **masks})


def links_of(pairs, undirected):
    ends = zip(pairs.senders.tolist(), pairs.receivers.tolist(), strict=True)
    return sorted(tuple(sorted(pair)) if undirected else pair for pair in ends)


@pytest.mark.parametrize("undirected", [False, True])
def test_masks_of_a_split_give_it_again(undirected):
    rng = np.random.default_rng(0)
    ends = np.unique(rng.integers(0, 20, (2, 90)), axis=1)
    # Some self-loops, which are in no part.
    if undirected:
        ends = np.unique(np.concatenate([ends, ends[::-1]], axis=1), axis=1)
    else:
        ends = ends[:, ends[0] <= ends[1]]
    graph = Graph(20, *ends, node={"id": np.arange(20)})
    split = split_links(graph, 0.1, 0.2)
    again = split_by_masks(masked(graph, split))
    assert again.undirected == split.undirected == undirected
    for name in ("train_pairs", "valid_pairs", "test_pairs", "known"):
        one, other = (links_of(getattr(s, name), undirected) for s in (split, again))
        assert one == other
    np.testing.assert_array_equal(again.train.senders, split.train.senders)
    np.testing.assert_array_equal(again.train.receivers, split.train.receivers)
    assert not again.train.edge


def test_masks_that_leak_or_are_missing_are_refused():
    masks = {"train_mask": [1, 0], "test_mask": [0, 1]}
    graph = Graph(3, [0, 1], [1, 0], edge=masks)
    with pytest.raises(ValueError, match="no edges of the graph"):
        split_by_masks(graph)
    assert len(split_by_masks(graph, undirected=False).test_pairs) == 1
    for edge in ({}, {"train_mask": [1, 0]}, {"test_mask": [1, 0]}):
        with pytest.raises(ValueError, match="train_mask and test_mask"):
            split_by_masks(graph.replace(edge=edge))
