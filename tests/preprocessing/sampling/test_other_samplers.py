"""`ClusterSampler` and `SubgraphSampler`: what they cut, and their factors."""

import re

import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.preprocessing import ClusterSampler, SubgraphSampler
from keras_bandgnn.preprocessing.sampling.sampled_graph import SampledGraph, key_of

NODES = 60


def large_graph(seed=0):
    rng = np.random.default_rng(seed)
    senders, receivers = rng.integers(0, NODES, (2, 150))
    return kb.Graph(
        NODES,
        np.concatenate([senders, receivers]),
        np.concatenate([receivers, senders]),
        node={"h": rng.normal(size=(NODES, 3)), "cluster": np.arange(NODES) // 12},
        label=rng.integers(0, 3, NODES),
        label_level="node",
    )


def sampled(graph):
    return SampledGraph(kb.data.FlatGraphs.from_graphs([graph]))


@pytest.mark.parametrize("feature", [None, "cluster"])
def test_clusters_are_induced_subgraphs(feature):
    graph = sampled(large_graph())
    if feature is None:
        pytest.importorskip("pymetis")
    sampler = ClusterSampler(5, batch_size=2, feature=feature)
    items = sampler.items(graph, np.arange(NODES))
    assert items.tolist() == [0, 1, 2, 3, 4]
    seen = []
    for group in ([0, 3], [1, 2], [4]):
        found = sampler.subgraph(graph, np.array(group), key_of(0))
        seen.append(found.nodes)
        inside = np.isin(graph.senders, found.nodes) & np.isin(
            graph.receivers, found.nodes
        )
        assert sorted(found.edges) == np.flatnonzero(inside).tolist()
        assert (found.nodes[found.sender] == graph.senders[found.edges]).all()
        assert (found.nodes[found.receiver] == graph.receivers[found.edges]).all()
        assert (np.diff(found.receiver) >= 0).all()
        assert len(found.nodes) <= sampler.bound(graph)[0][0]
    assert sorted(np.concatenate(seen)) == list(range(NODES))


def test_clusters_without_targets_are_left_out():
    graph = sampled(large_graph())
    sampler = ClusterSampler(5, feature="cluster")
    assert sampler.items(graph, np.array([13, 14, 59])).tolist() == [1, 4]


def test_walks_visit_neighbours():
    graph = sampled(large_graph())
    sampler = SubgraphSampler(1, walk_length=2, coverage=0)
    linked = np.zeros((NODES, NODES), bool)
    linked[graph.receivers, graph.senders] = True
    near = np.eye(NODES, dtype=bool) | linked | (linked @ linked)
    for root in range(NODES):
        found = sampler.subgraph(graph, np.array([root]), key_of(root))
        assert root in found.nodes and len(found.nodes) <= 3
        assert near[root, found.nodes].all()


def test_factors_make_losses_and_messages_unbiased():
    """GraphSAINT, Section 3.2: over many subgraphs, sums are those of the graph."""
    graph = sampled(large_graph())
    sampler = SubgraphSampler(8, walk_length=2, coverage=4000)
    sampler.items(graph, np.arange(NODES))
    value = np.random.default_rng(1).normal(size=NODES)
    exact = np.bincount(graph.receivers, value[graph.senders], minlength=NODES)
    times, sums, losses = np.zeros(NODES), np.zeros(NODES), np.zeros(NODES)
    trials = 20000
    for trial in range(trials):
        rng = key_of(11, trial)
        roots = rng.choice(NODES, 8, replace=False)
        found = sampler.subgraph(graph, roots, rng, rescale=True)
        messages = found.edge_weight * value[found.nodes[found.sender]]
        total = np.bincount(found.receiver, messages, minlength=len(found.nodes))
        times[found.nodes] += 1
        sums[found.nodes] += total
        losses[found.nodes] += found.node_weight
    some = graph.degree > 0
    # Messages, given that a node is in the subgraph.
    assert np.abs(sums / times - exact)[some].max() < 0.25
    assert np.corrcoef((sums / times)[some], exact[some])[0, 1] > 0.999
    # Each node has the same total weight.
    assert np.abs(losses / losses.mean() - 1).max() < 0.06


@pytest.mark.parametrize("coverage", [10, 200])
def test_rare_edges_count_too_little_without_coverage(coverage):
    """A star: each edge is in 1 of 25 subgraphs that have its center."""
    leaves = 200
    graph = sampled(kb.Graph(leaves + 1, np.arange(leaves) + 1, [0] * leaves))
    sampler = SubgraphSampler(8, walk_length=1, coverage=coverage)
    sampler.items(graph, np.arange(leaves + 1))
    total = 0.0
    for trial in range(400):
        rng = key_of(5, trial)
        roots = np.r_[0, 1 + rng.choice(leaves, 7, replace=False)]
        subgraph = sampler.subgraph(graph, roots, rng, rescale=True)
        total += subgraph.edge_weight.sum() / (400 * leaves)
    # The docstring's expectation, with the mean number of subgraphs.
    expected = 1 - (1 - 8 / leaves) ** (coverage + 1)
    assert abs(total - expected) < 0.15


def test_an_epoch_of_walks_visits_as_many_nodes_as_there_are():
    loader = kb.preprocessing.SampleLoader(
        large_graph(), SubgraphSampler(5, walk_length=2)
    )
    assert len(loader) == NODES // 3 // 5
    one, two = (
        np.concatenate([s.members for s in loader.composition(e)]) for e in (0, 1)
    )
    assert len(np.unique(one)) == NODES // 3
    assert sorted(one) != sorted(two)


@pytest.mark.parametrize(
    "cls, arguments, text",
    [
        (ClusterSampler, {"num_clusters": 0}, "num_clusters"),
        (ClusterSampler, {"num_clusters": 2, "batch_size": 0}, "batch_size"),
        (SubgraphSampler, {"batch_size": 0}, "batch_size"),
        (SubgraphSampler, {"batch_size": 2, "walk_length": 0}, "walk_length"),
        (SubgraphSampler, {"batch_size": 2, "coverage": -1}, "coverage"),
    ],
)
def test_bad_arguments(cls, arguments, text):
    with pytest.raises(ValueError, match=text):
        cls(**arguments)


@pytest.mark.parametrize(
    "sampler, text",
    [
        (ClusterSampler(NODES + 1), "at most as many clusters as nodes"),
        (ClusterSampler(2, feature="cluster"), "ids in [0, 2)"),
        (ClusterSampler(2, feature="no"), "Expected a node feature 'no'"),
        (ClusterSampler(2, feature="h"), "an id per node"),
    ],
)
def test_graphs_that_do_not_fit(sampler, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        kb.preprocessing.SampleLoader(large_graph(), sampler)
