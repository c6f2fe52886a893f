"""What is the same to a model has one key, and what is not has another."""

import itertools

import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.data import FlatGraphs, NodePairs
from keras_bandgnn.data.identity import (
    added_reverses,
    check_masks,
    graph_keys,
    link_keys,
    link_numbers,
    merged_groups,
    shared_links,
)


def keys_of(*graphs, **options):
    return graph_keys(FlatGraphs.from_graphs(graphs), **options).tolist()


def random_graph(seed=0, nodes=12, edges=30):
    rng = np.random.default_rng(seed)
    return Graph(
        nodes,
        *rng.integers(0, nodes, (2, edges)),
        edge_type=rng.integers(0, 3, edges),
        node={"kind": rng.integers(0, 3, nodes), "x": rng.normal(size=(nodes, 2))},
        edge={"w": rng.normal(size=edges)},
        context={"charge": float(seed)},
        candidates=rng.permutation(nodes)[:3],
        label=seed % 3,
        slot=int(rng.integers(nodes)),
    )


def renumbered(graph, seed=0):
    """The same graph with other numbers of nodes, edges in another order, a name."""
    order = np.random.default_rng(seed).permutation(graph.num_nodes)
    out = graph.subgraph(order)
    rows = np.random.default_rng(seed + 1).permutation(out.num_edges)
    return out.replace(
        senders=out.senders[rows],
        receivers=out.receivers[rows],
        edge_type=out.edge_type[rows],
        edge={k: v[rows] for k, v in out.edge.items()},
        origin=None,
        label=0,
        info={"name": str(seed)},
    )


@pytest.mark.parametrize("seed", range(5))
def test_renumbered_graphs_are_the_same(seed):
    graph = random_graph(seed)
    one, *others = keys_of(*(renumbered(graph, k) for k in range(4)))
    assert others == [one] * 3
    assert len(set(keys_of(*(random_graph(k) for k in range(6))))) == 6


def changed(values, row=0, by=1):
    out = np.array(values)
    out[row] = out[row] + by
    return out


def test_each_part_that_a_model_reads_counts():
    graph = random_graph()
    kinds = changed(graph.node["kind"])
    variants = {
        "node": graph.replace(node={**graph.node, "kind": kinds}),
        "edge": graph.replace(edge={"w": changed(graph.edge["w"])}),
        "type": graph.replace(edge_type=changed(graph.edge_type)),
        "direction": graph.replace(senders=graph.receivers, receivers=graph.senders),
        "context": graph.replace(context={"charge": 7.0}),
        "candidates": graph.replace(candidates=changed(graph.candidates, by=0)[:2]),
        "slot": graph.replace(slot=(graph.slot + 1) % 12),
    }
    every = keys_of(graph, *variants.values())
    assert len(set(every)) == len(every)
    # What the model does not read does not count.
    unread = {"node": ("x",), "edge": (), "graph": ()}
    key, *others = keys_of(graph, *variants.values(), read=unread, types=False)
    same = {name for name, k in zip(variants, others, strict=True) if k == key}
    assert same == {"node", "edge", "type", "context"}
    key, other = keys_of(graph, variants["node"], ignored=("kind",))
    assert key == other


def test_zeros_have_no_sign_and_weights_do_not_count():
    one, other = (
        Graph(2, [0], [1], node={"x": [zero, 1.0]}, context={"sample_weight": weight})
        for zero, weight in ((0.0, 1.0), (-0.0, 2.0))
    )
    assert len(set(keys_of(one, other))) == 1


def test_cycles_and_paths_of_all_lengths_differ():
    graphs = []
    for size in range(3, 40):
        ring = [*range(size)]
        graphs += [Graph(size, ring, [*ring[1:], 0]), Graph(size, ring[:-1], ring[1:])]
    assert len(set(keys_of(*graphs))) == len(graphs)
    # Alike to the ends far away, so that many rounds are needed.
    path = np.arange(60)
    marked = [
        Graph(60, path[:-1], path[1:], node={"k": (path == 0) * k}) for k in (1, 2)
    ]
    assert len(set(keys_of(*marked))) == 2


def test_groups_are_joined_through_either_key():
    groups = merged_groups("abcabd", [0, 1, 2, 3, 4, 2])
    assert groups == [0, 1, 2, 0, 1, 2]
    assert merged_groups([1, 2, 3], [1, 1, 2], [5, 6, 6]) == [0, 0, 0]
    assert merged_groups([]) == []


def test_links_have_no_direction():
    keys = link_keys([0, 2, 1, 2], [1, 1, 0, 2], 3)
    assert keys[0] == keys[2] and len(set(keys.tolist())) == 3
    pairs = NodePairs([5, 1, 2, 3], [2, 3, 5, 1], [0, 1, 2, 0])
    assert link_numbers(pairs, 6).tolist() == [0, 1, 0, 1]


def test_added_reverses():
    edges = NodePairs([0, 1, 2], [1, 2, 1], [0, 0, 0])
    both = NodePairs.concatenate([edges, NodePairs([1], [0], [0])])
    assert added_reverses(edges, both, 3).tolist() == [False] * 3 + [True]
    typed = NodePairs.concatenate([edges, NodePairs([1], [0], [1])])
    assert not added_reverses(edges, typed, 3).any()
    # Types anew, the same for both directions.
    again = NodePairs(both.senders, both.receivers, [4, 4, 4, 4])
    assert added_reverses(edges, again, 3).tolist() == [False] * 3 + [True]


def test_parts_of_a_split_share_no_rows():
    masks = {"train_mask": [1, 0, 0], "valid_mask": [0, 1, 0], "test_mask": [0, 0, 1]}
    masks = {name: np.array(mask) for name, mask in masks.items()}
    check_masks(masks, "node")
    for one, other in itertools.permutations(masks, 2):
        wrong = {**masks, other: masks[one] | masks[other]}
        with pytest.raises(ValueError, match=r"1 of 3 nodes in '\w+' and in '\w+'"):
            check_masks(wrong, "node")
    columns = {"train": np.array([[1, 0], [0, 1]]), "test": np.array([1, 0])}
    with pytest.raises(ValueError, match="the first edge 0"):
        check_masks(columns, "edge")


def test_links_on_two_sides():
    flat = FlatGraphs.from_graphs(
        [Graph(3, [0, 1, 2], [1, 0, 1]), Graph(3, [1, 0, 1], [0, 1, 2])]
    )
    # Sorted by receiver: 1->0, 0->1, 2->1; 1->0, 0->1, 1->2.
    train = np.array([1, 0, 0, 0, 0, 1])
    assert shared_links(flat, train, 1 - train) == 1
