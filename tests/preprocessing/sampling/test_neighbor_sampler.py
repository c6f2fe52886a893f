"""`NeighborSampler` against plain draws, one node at a time."""

import re

import numpy as np
import pytest
from scipy import stats

import keras_bandgnn as kb
from keras_bandgnn.preprocessing import NeighborSampler
from keras_bandgnn.preprocessing.sampling.sampled_graph import SampledGraph, key_of

NODES = 40


def large_graph(seed=0, nodes=NODES, edges=300, types=2):
    rng = np.random.default_rng(seed)
    return kb.Graph(
        nodes,
        *rng.integers(0, nodes, (2, edges)),
        edge_type=rng.integers(0, types, edges),
        node={"h": rng.normal(size=(nodes, 3)).astype("float32")},
        edge={"w": rng.uniform(0.1, 2.0, edges).astype("float32")},
        label=rng.integers(0, 3, nodes),
        label_level="node",
    )


def sampled(graph):
    return SampledGraph(kb.data.FlatGraphs.from_graphs([graph]))


def star(degree, weight=None):
    """Edges from nodes 1 .. degree into node 0."""
    edge = {} if weight is None else {"w": np.asarray(weight, "float32")}
    return sampled(
        kb.Graph(
            degree + 1,
            np.arange(1, degree + 1),
            np.zeros(degree, int),
            edge=edge,
            label=np.zeros(degree + 1, int),
            label_level="node",
        )
    )


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fan_outs", [[3], [4, 2], [-1, 3, 2], [{0: 2, 1: 1}, 3]])
def test_subgraphs_are_parts_of_the_graph(fan_outs, replace):
    graph = sampled(large_graph())
    sampler = NeighborSampler(fan_outs, batch_size=7, replace=replace)
    for number in range(5):
        rng = key_of(number)
        seeds = rng.choice(NODES, 7, replace=False)
        found = sampler.subgraph(graph, seeds, rng)
        assert (found.nodes[:7] == seeds).all()
        assert len(np.unique(found.nodes)) == len(found.nodes)
        assert (np.diff(found.receiver) >= 0).all()
        assert (found.nodes[found.sender] == graph.senders[found.edges]).all()
        assert (found.nodes[found.receiver] == graph.receivers[found.edges]).all()
        assert found.node_ends[-1] == len(found.nodes)
        assert found.edge_ends[-1] == len(found.edges)
        if not replace:
            assert len(np.unique(found.edges)) == len(found.edges)
        # What each hop needs stands before the rest.
        for hop, fan_out in enumerate(fan_outs):
            edges = slice(found.edge_ends[hop - 1] if hop else 0, found.edge_ends[hop])
            low = found.node_ends[hop - 1] if hop else 0
            receivers = found.receiver[edges]
            assert ((low <= receivers) & (receivers < found.node_ends[hop])).all()
            assert (found.sender[edges] < found.node_ends[hop + 1]).all()
            counts = np.bincount(receivers - low, minlength=found.node_ends[hop] - low)
            nodes = found.nodes[low : found.node_ends[hop]]
            assert (counts == expected_counts(graph, nodes, fan_out, replace)).all()
        # The numbering is as it was.
        assert (graph.numbering() == -1).all()
        bound = sampler.bound(graph)
        assert all(map(np.less_equal, found.node_ends, bound[0]))
        assert all(map(np.less_equal, found.edge_ends, bound[1]))


def expected_counts(graph, nodes, fan_out, replace):
    limits = fan_out if isinstance(fan_out, dict) else {None: fan_out}
    total = np.zeros(len(nodes), int)
    for kind, limit in limits.items():
        some = graph.flat.edge_type == kind if kind is not None else slice(None)
        degree = np.bincount(graph.receivers[some], minlength=NODES)[nodes]
        if limit == -1:
            total += degree
        else:
            total += (
                np.where(degree > 0, limit, 0) if replace else np.minimum(degree, limit)
            )
    return total


def test_equal_keys_give_equal_subgraphs():
    graph, sampler = sampled(large_graph()), NeighborSampler([3, 2], batch_size=5)
    seeds = np.arange(5)
    one, two = (sampler.subgraph(graph, seeds, key_of(1, 2)) for _ in range(2))
    for a, b in zip(one, two, strict=True):
        assert np.array_equal(a, b)
    other = sampler.subgraph(graph, seeds, key_of(1, 3))
    assert not np.array_equal(one.edges, other.edges)


def plain_draw(rng, degree, most, weight, replace):
    """The draws of one node, by NumPy."""
    chance = None if weight is None else weight / weight.sum()
    if not replace and degree <= most:
        return list(range(degree))
    return rng.choice(degree, most, replace=replace, p=chance).tolist()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("degree, most", [(6, 3), (9, 8), (4, 1)])
@pytest.mark.release
def test_draws_are_distributed_as_plain_ones(degree, most, replace, weighted):
    """Chi-square over how often each edge, and each pair of them, is drawn."""
    weight = np.linspace(0.5, 2.0, degree) if weighted else None
    graph = star(degree, weight)
    sampler = NeighborSampler(
        [most], 1, replace=replace, edge_weight="w" if weighted else None
    )
    rng = np.random.default_rng(7)
    trials = 10000
    tables = np.zeros((2, degree)), np.zeros((2, degree * degree))
    for trial in range(trials):
        found = sampler.subgraph(graph, np.array([0]), key_of(3, trial))
        draws = found.edges.tolist(), plain_draw(rng, degree, most, weight, replace)
        for row, drawn in enumerate(draws):
            # One edge and one pair of each draw, as those of a draw are dependent.
            first, second = rng.permutation(drawn)[[0, -1]]
            tables[0][row, first] += 1
            tables[1][row, min(first, second) * degree + max(first, second)] += 1
    for table in tables:
        table = table[:, table.sum(0) >= 10]
        if table.shape[1] > 1:
            assert stats.chi2_contingency(table).pvalue > 1e-3


def test_uniform_draws_have_the_chances_of_theory():
    degree, most, trials = 7, 3, 8000
    graph, sampler = star(degree), NeighborSampler([most], 1)
    drawn = np.concatenate(
        [
            sampler.subgraph(graph, np.array([0]), key_of(trial)).edges
            for trial in range(trials)
        ]
    )
    counts = np.bincount(drawn, minlength=degree)
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(
    "options",
    [
        {"fan_outs": [3]},
        {"fan_outs": [3], "replace": True},
        {"fan_outs": [{0: 2, 1: 1}]},
        {"fan_outs": [4], "replace": True, "edge_weight": "w"},
        {"fan_outs": [{0: 2, 1: 1}], "replace": True, "edge_weight": "w"},
        {"fan_outs": [-1], "replace": True, "edge_weight": "w"},
    ],
    ids=str,
)
def test_weighed_sums_are_unbiased(options):
    """The mean over draws of the sum of messages is that over all edges."""
    graph = sampled(large_graph(edges=240))
    sampler = NeighborSampler(batch_size=NODES, **options)
    value = np.random.default_rng(5).normal(size=NODES)
    exact = np.bincount(graph.receivers, value[graph.senders], minlength=NODES)
    seeds, draws = np.arange(NODES), []
    for trial in range(1500):
        found = sampler.subgraph(graph, seeds, key_of(trial), rescale=True)
        messages = found.edge_weight * value[found.nodes[found.sender]]
        draws.append(np.bincount(found.receiver, messages, minlength=NODES))
    draws = np.array(draws)
    error = draws.std(0) / np.sqrt(len(draws)) + 1e-6
    assert (np.abs(draws.mean(0) - exact) < 5 * error).all()


def test_layers_by_type_and_without_are_unbiased_together():
    graph, trials = sampled(large_graph(edges=240)), 1500
    sampler = NeighborSampler([{0: -1, 1: -1}, 1], batch_size=1)
    value = np.random.default_rng(5).normal(size=NODES)
    exact = np.bincount(graph.receivers, value[graph.senders], minlength=NODES)
    draws = np.zeros((trials, NODES))
    for trial in range(trials):
        found = sampler.subgraph(graph, np.array([0]), key_of(trial), rescale=True)
        messages = found.edge_weight * value[found.nodes[found.sender]]
        np.add.at(draws[trial], found.nodes[found.receiver], messages)
    some = found.nodes[: found.node_ends[1]]
    error = draws.std(0) / np.sqrt(trials) + 1e-6
    assert (np.abs(draws.mean(0) - exact) < 5 * error)[some].all()


def test_degrees_are_those_of_the_types_that_layers_name():
    graph = sampled(large_graph())
    kind = graph.flat.edge_type
    for fan_outs, some in (
        ([3, 2], kind >= 0),
        ([{1: 3}, 2], kind >= 0),
        ([{1: 3}, {0: 1}], kind >= 0),
        ([{1: 3}, {1: 1}], kind == 1),
    ):
        degree, loops = NeighborSampler(fan_outs).degrees(graph)
        own = some & (graph.senders == graph.receivers)
        for found, edges in ((degree, some), (loops, own)):
            expected = np.bincount(graph.receivers[edges], minlength=NODES)
            assert (found == expected).all()


def test_degrees_leave_out_edges_that_are_never_drawn():
    weight = np.array([0.0, 1.0, 2.0, 0.0])
    sampler = NeighborSampler([2], replace=True, edge_weight="w")
    degree, _ = sampler.degrees(star(4, weight))
    assert degree[0] == 2


@pytest.mark.parametrize(
    "options, sums, scaled",
    [
        ({"fan_outs": [3]}, False, False),
        ({"fan_outs": [3]}, True, True),
        ({"fan_outs": [-1]}, True, False),
        ({"fan_outs": [{0: -1, 1: -1}]}, True, False),
        ({"fan_outs": [{0: 1, 1: -1}]}, False, True),
        ({"fan_outs": [-1], "replace": True, "edge_weight": "w"}, True, True),
    ],
    ids=str,
)
def test_edges_have_factors_where_they_matter(options, sums, scaled):
    assert NeighborSampler(**options).rescales(sums) == scaled


def test_means_over_weighted_draws_by_type_are_refused():
    sampler = NeighborSampler([{0: 2, 1: 1}], edge_weight="w")
    with pytest.raises(ValueError, match="Expected uniform draws for means"):
        sampler.rescales(False)


def test_zero_weights_are_never_drawn():
    graph = star(5, [0.0, 1.0, 0.0, 1.0, 1.0])
    for replace in (False, True):
        sampler = NeighborSampler([2], 1, replace=replace, edge_weight="w")
        for trial in range(200):
            edges = sampler.subgraph(graph, np.array([0]), key_of(trial)).edges
            assert not {0, 2}.intersection(edges.tolist())


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"fan_outs": []}, "at least one number"),
        ({"fan_outs": 15}, "a list of numbers"),
        ({"fan_outs": [0]}, "at least 1, or -1"),
        ({"fan_outs": [-2]}, "fan_outs"),
        ({"fan_outs": [{}]}, "types of edges"),
        ({"fan_outs": [5], "batch_size": 0}, "batch_size"),
        ({"fan_outs": [5], "replace": 1}, "replace"),
    ],
)
def test_bad_arguments(arguments, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        NeighborSampler(**arguments)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"edge_weight": "no"}, "Expected an edge feature 'no'"),
        ({"edge_weight": "below"}, "at least 0"),
        ({"fan_outs": [{7: 2}]}, "types of edges in [0, 2)"),
    ],
)
def test_graphs_that_do_not_fit(options, text):
    graph = large_graph()
    graph = graph.replace(edge={"below": graph.edge["w"] - 1.0})
    sampler = NeighborSampler(**{"fan_outs": [2], **options})
    with pytest.raises(ValueError, match=re.escape(text)):
        kb.preprocessing.SampleLoader(graph, sampler)
