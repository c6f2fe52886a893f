"""Neighbours by time: no edge at or after its seed, and trees that share nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import keras_bandgnn as kb
from keras_bandgnn import data, models, preprocessing
from keras_bandgnn.preprocessing import NeighborSampler
from keras_bandgnn.preprocessing.sampling.sampled_graph import SampledGraph, key_of

# Milliseconds since 1970.
NOW = 1_700_000_000_000


def events(seed=0, nodes=12, edges=150, spread=40, types=2, start=NOW):
    """Return a graph with parallel edges, loops and equal times."""
    rng = np.random.default_rng(seed)
    return kb.Graph(
        nodes,
        *rng.integers(0, nodes, (2, edges)),
        edge_type=rng.integers(0, types, edges),
        node={
            "h": rng.normal(size=(nodes, 3)),
            "time": start + rng.integers(0, spread + 5, nodes),
        },
        edge={"time": start + rng.integers(0, spread, edges)},
        label=rng.integers(0, 3, nodes),
        label_level="node",
    )


def sampled(graph) -> SampledGraph:
    return SampledGraph(data.FlatGraphs.from_graphs([graph]))


def trees_of(subgraph) -> np.ndarray:
    """Return the seed of each row, which the edges lead to."""
    count = subgraph.node_ends[0]
    tree = np.full(len(subgraph.nodes), -1)
    tree[:count] = np.arange(count)
    # Receivers are found before the nodes that send to them.
    for sender, receiver in zip(subgraph.sender, subgraph.receiver, strict=True):
        assert tree[receiver] >= 0
        assert tree[sender] in (-1, tree[receiver])
        tree[sender] = tree[receiver]
    assert (tree >= 0).all()
    return tree


FAN_OUTS = ([3], [4, 2], [-1, 2], [{0: 2, 1: 1}, 3], [{1: 2}, {0: -1}])


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 100_000),
    nodes=st.integers(1, 9),
    edges=st.integers(0, 80),
    spread=st.sampled_from([1, 3, 50]),
    start=st.sampled_from([0, NOW, -NOW, 2**61]),
    fan_outs=st.sampled_from(FAN_OUTS),
    time=st.sampled_from(["uniform", "recent"]),
    replace=st.booleans(),
)
def test_no_edge_is_at_or_after_its_seed(
    seed, nodes, edges, spread, start, fan_outs, time, replace
):
    flat = events(seed, nodes, edges, spread, types=2, start=start)
    flat = flat.replace(edge_type=np.r_[flat.edge_type[:-1], [1] * (edges > 0)])
    graph = sampled(flat)
    fan_outs = fan_outs if graph.by_type()[2] == 2 else [3, 2]
    replace = replace and time == "uniform"
    sampler = NeighborSampler(fan_outs, batch_size=8, replace=replace, time=time)
    rng = np.random.default_rng(seed)
    items = rng.integers(0, nodes, 8)
    times = start + rng.integers(-2, spread + 3, 8)
    part = sampler.subgraph(graph, items, rng, times=times)
    moments = np.asarray(graph.flat.edge["time"])
    assert (part.nodes[:8] == items).all()
    assert (part.nodes[part.sender] == graph.senders[part.edges]).all()
    assert (part.nodes[part.receiver] == graph.receivers[part.edges]).all()
    assert (np.diff(part.receiver) >= 0).all()
    # No drawn edge is at or after the time of its tree, whose nodes come once each.
    tree = trees_of(part)
    assert (part.time == times[tree]).all()
    assert (moments[part.edges] < times[tree[part.receiver]]).all()
    assert len({*zip(tree.tolist(), part.nodes.tolist(), strict=True)}) == len(tree)
    # Each node has as many edges as there are, up to the limit.
    for hop, fan_out in enumerate(fan_outs):
        low = part.node_ends[hop - 1] if hop else 0
        for row in range(low, part.node_ends[hop]):
            check_draws(graph, part, row, part.time[row], fan_out, replace, time)
    nodes_bound, edges_bound = sampler.bound(graph)
    assert all(map(np.less_equal, part.node_ends, nodes_bound))
    assert all(map(np.less_equal, part.edge_ends, edges_bound))


def check_draws(graph, part, row, moment, fan_out, replace, time) -> None:
    """Compare the edges into a row with a plain search."""
    drawn = part.edges[part.receiver == row]
    moments = np.asarray(graph.flat.edge["time"])
    kinds = np.asarray(graph.flat.edge_type)
    earlier = np.flatnonzero((graph.receivers == part.nodes[row]) & (moments < moment))
    limits = fan_out if isinstance(fan_out, dict) else {None: fan_out}
    total = 0
    for kind, limit in limits.items():
        some = earlier if kind is None else earlier[kinds[earlier] == kind]
        mine = drawn if kind is None else drawn[kinds[drawn] == kind]
        if limit == -1:
            count = len(some)
        elif replace:
            count = limit if len(some) else 0
        else:
            count = min(limit, len(some))
        assert len(mine) == count
        assert np.isin(mine, some).all()
        if not replace:
            assert len(np.unique(mine)) == len(mine)
        if time == "recent":
            last = sorted(some, key=lambda edge: (moments[edge], edge))
            assert sorted(mine) == sorted(last[len(last) - count :])
        total += count
    assert len(drawn) == total


def test_draws_are_uniform_among_earlier_edges():
    # Nine of twelve edges are earlier; three have the time of the seed or later.
    count = 12
    graph = sampled(
        kb.Graph(
            count + 1,
            np.arange(1, count + 1),
            np.zeros(count, int),
            edge={"time": NOW + np.array([0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9])},
        )
    )
    sampler = NeighborSampler([4], time="uniform")
    rng, draws = key_of(3), 4000
    items, times = np.zeros(draws, int), np.full(draws, NOW + 7)
    part = sampler.subgraph(graph, items, rng, times=times)
    senders = np.bincount(graph.senders[part.edges], minlength=count + 1)[1:]
    assert senders[9:].tolist() == [0, 0, 0]
    expected = np.full(9, draws * 4 / 9)
    # Draws of a seed are without replacement, so counts vary less than assumed.
    assert stats.chisquare(senders[:9], expected).pvalue > 0.01
    pairs = part.edges.reshape(draws, 4)
    together = ((pairs == 0).any(1) & (pairs == 1).any(1)).mean()
    assert abs(together - (4 * 3) / (9 * 8)) < 0.02


def test_weights_make_sums_unbiased():
    graph = sampled(events(edges=400, nodes=6))
    sampler = NeighborSampler([3, {0: 2, 1: 1}], time="uniform")
    items, times = np.arange(6), np.full(6, NOW + 25)
    part = sampler.subgraph(graph, items, key_of(0), True, times)
    moments, kinds = (
        np.asarray(v) for v in (graph.flat.edge["time"], graph.flat.edge_type)
    )
    for row in range(part.node_ends[1]):
        here = part.receiver == row
        earlier = (graph.receivers == part.nodes[row]) & (moments < part.time[row])
        if row < part.node_ends[0]:
            assert np.isclose(part.edge_weight[here].sum(), earlier.sum())
            continue
        for kind in (0, 1):
            some = here & (kinds[part.edges] == kind)
            total = part.edge_weight[some].sum()
            assert np.isclose(total, (earlier & (kinds == kind)).sum())
    recent = NeighborSampler([3], time="recent")
    assert not recent.rescales(True)
    assert sampler.rescales(False)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("GCN", {}),
        ("SAGE", {}),
        ("GAT", {"num_heads": 2}),
        ("GINE", {}),
        ("PNA", {"delta": 1.0}),
        ("RGCN", {}),
    ],
)
@pytest.mark.parametrize("time", ["uniform", "recent"])
def test_all_earlier_neighbours_are_the_graph_before_the_seed(name, options, time):
    graph = events()
    options = {"num_edge_types": 2, **options}
    make = getattr(models, f"{name}Backbone")
    backbone = make({"h": {"features": 3}}, 8, num_layers=2, **options)
    task = models.NodeClassifier(backbone, 3)
    task.predict([graph])
    sampler = NeighborSampler([-1, -1], batch_size=5, time=time)
    loader = task.loader(graph, sampler=sampler)
    flat = data.FlatGraphs.from_graphs([graph])
    assembler = loader.assembler
    for step in range(len(loader)):
        members = loader.composer.composition(0)[step].members
        x = loader[step][0]
        logits = np.asarray(task.predict_on_batch(x))[0]
        times = assembler.times[members]
        for row, (node, moment) in enumerate(zip(members, times, strict=True)):
            before = data.edges_before(flat[0], int(moment))
            expected = task.predict([before])[0][node]
            np.testing.assert_allclose(logits[row], expected, atol=2e-4)


def test_degrees_are_those_before_the_seed():
    graph = sampled(events(edges=300))
    moments = np.asarray(graph.flat.edge["time"])
    kinds = np.asarray(graph.flat.edge_type)
    items, times = np.arange(12), np.full(12, NOW + 20) + np.arange(12)
    for time in ("uniform", "recent"):
        for fan_outs in ([2, 3], [{0: 2}, {0: 1}], [4, {1: 2}]):
            sampler = NeighborSampler(fan_outs, time=time)
            part = sampler.subgraph(graph, items, key_of(1), times=times)
            table = preprocessing.sampling.time_trees.degrees_before(
                sampler, graph, part, 2
            )
            for row, node in enumerate(part.nodes):
                into = (graph.receivers == node) & (moments < part.time[row])
                if fan_outs == [{0: 2}, {0: 1}]:
                    into &= kinds == 0
                hop = np.searchsorted(part.node_ends, row, side="right")
                if time == "uniform":
                    assert table["degree"][row] == into.sum()
                    loops = into & (graph.senders == node)
                    assert table["loops"][row] == loops.sum()
                elif hop < 2:
                    drawn = part.receiver == row
                    assert table["degree"][row] == drawn.sum()
                    kind = kinds[part.edges[drawn]]
                    assert (
                        table["type_degree"][row].tolist()
                        == np.bincount(kind, minlength=2).tolist()
                    )
                elif not isinstance(fan_outs[-1], dict):
                    assert table["degree"][row] == min(fan_outs[-1], into.sum())


# === Batches ===


def test_ages_are_differences_of_int64():
    graph = events(start=2**60)
    sampler = NeighborSampler([-1, -1], batch_size=4, time="uniform")
    loader = preprocessing.SampleLoader(graph, sampler, trimmed=True)
    for step in range(len(loader)):
        x = loader[step][0]
        age, mask = x["edge"]["age"][0], x["edge"]["mask"][0]
        assert age.dtype == np.float32
        assert (age[~mask] == 0).all()
        assert (age[mask] > 0).all()
        assert age[mask].max() <= 45
        assert (age == np.round(age)).all()
        assert "time" not in x["edge"]
        assert "time" not in x["node"]


def test_batches_have_one_shape_and_follow_from_the_seed():
    graph = events(nodes=200, edges=4000, spread=500)
    sampler = NeighborSampler([5, 3], batch_size=32, time="uniform")

    def shapes(loader):
        return {
            str({k: v.shape for k, v in loader[step][0]["edge"].items()})
            for step in range(len(loader))
        }

    loader = preprocessing.SampleLoader(graph, sampler, trimmed=True)
    assert len(shapes(loader)) == 1
    again = preprocessing.SampleLoader(graph, sampler, trimmed=True)
    for step in (3, 0):
        for name, values in loader[step][0]["edge"].items():
            np.testing.assert_array_equal(values, again[step][0]["edge"][name])


def test_node_sets_by_time():
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 6, (2, 60))
    graph = data.from_sets(
        {
            "a": {"x": rng.normal(size=(6, 2)), "time": NOW + np.arange(6)},
            "b": {"y": rng.normal(size=(6, 3)), "time": NOW + np.arange(6)},
        },
        {("a", "to", "b"): {"edge_index": ends, "time": NOW - rng.integers(0, 9, 60)}},
        label={"b": rng.integers(0, 2, 6)},
        reverse=True,
    )
    inputs = {"sets": {"a": {"x": {"features": 2}}, "b": {"y": {"features": 3}}}}
    backbone = models.SAGEBackbone(inputs, 8, 2, num_edge_types=2)
    task = models.NodeClassifier(backbone, 2, node_set="b")
    sampler = NeighborSampler([4, 4], batch_size=6, time="recent")
    history = task.fit(graph, sampler=sampler, epochs=1, verbose=0)
    assert np.isfinite(history.history["loss"][0])


@pytest.mark.every_backend
def test_a_node_classifier_learns_from_what_was_before():
    graph = events(nodes=60, edges=600)
    task = models.NodeClassifier(
        models.GCNBackbone({"h": {"features": 3}}, 8, 2, num_edge_types=2), 3
    )
    sampler = NeighborSampler([4, 3], batch_size=16, time="uniform")
    history = task.fit(graph, sampler=sampler, epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert np.isfinite(task.evaluate(graph, sampler=sampler, verbose=0)[0])


# === Pairs ===


def interactions(seed=0, **options):
    graph = events(seed, nodes=30, edges=500, spread=300, types=1, **options)
    return graph.replace(node={"id": np.arange(30)}, label=None, label_level="graph")


def test_ends_of_pairs_are_trees_of_their_own_time():
    graph = interactions()
    pairs = data.NodePairs.of_edges(graph).take(slice(0, 40))
    negatives = preprocessing.NegativeSampler(2, "source", exclude_known=False)
    sampler = NeighborSampler([4, 2], batch_size=64, time="uniform")
    samples = preprocessing.SampleLoader(graph, sampler, trimmed=True)
    loader = preprocessing.LinkLoader(
        graph, pairs, negatives, batch_size=16, loader=samples, shuffle=False
    )
    budgets = [dict(budget) for budget in loader.budgets]
    flat_time = np.asarray(samples.graph.flat.edge["time"])
    shapes = set()
    for step in range(len(loader)):
        group = loader.composer.composition(0)[step]
        x = loader[step][0]
        shapes.add(x["edge"]["sender"].shape)
        columns, count = loader.assembler._columns(group)
        seeds, ends = loader.assembler._seeds(dict(columns), group)
        part = samples.assembler.subgraph(seeds)
        times = np.tile(columns["time"], 2)
        nodes = np.concatenate([columns["sender"], columns["receiver"]])
        assert (part.nodes[ends] == nodes).all()
        assert (part.time[ends] == times).all()
        mask = x["pair"]["mask"][0]
        assert mask.sum() == count * 3
        assert (x["pair"]["sender"][0][mask] == ends[: mask.sum()]).all()
        assert (flat_time[part.edges] < part.time[part.receiver]).all()
        assert times[: 3 * count : 3].tolist() == pairs.time[group.members].tolist()
    assert len(shapes) == 1
    assert loader.budgets == budgets


def test_pairs_without_times_are_refused():
    graph = interactions()
    task = models.LinkPredictor(models.SAGEBackbone({"id": 30}, 8, 2))
    sampler = NeighborSampler([4, 2], time="recent")
    with pytest.raises(ValueError, match="pairs with times"):
        task.fit(graph, [[0, 1]], sampler=sampler, verbose=0)


def test_nodes_with_labels_need_times():
    graph = events()
    graph = graph.replace(node={"h": graph.node["h"]})
    task = models.NodeClassifier(
        models.SAGEBackbone({"h": {"features": 3}}, 8, 2, num_edge_types=2), 3
    )
    with pytest.raises(ValueError, match="nodes with times"):
        task.fit(graph, sampler=NeighborSampler([4, 2], time="recent"), verbose=0)
    bare = graph.replace(edge={})
    with pytest.raises(ValueError, match="edges with times"):
        task.fit(bare, sampler=NeighborSampler([4, 2], time="recent"), verbose=0)
    aged = graph.replace(edge={**graph.edge, "age": np.ones(graph.num_edges)})
    with pytest.raises(ValueError, match="no edge feature 'age'"):
        task.fit(aged, sampler=NeighborSampler([4, 2], time="recent"), verbose=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time": "last"}, "one of"),
        ({"time": "recent", "replace": True}, "replace"),
        ({"time": "uniform", "edge_weight": "w"}, "edge_weight"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        NeighborSampler([3], **options)


@pytest.mark.every_backend("recent")
@pytest.mark.parametrize("time", ["uniform", "recent"])
def test_a_link_predictor_trains_on_a_graph_of_all_times(time):
    graph = interactions()
    split = data.split_links(graph, 0.15, 0.15, undirected=False, time=True)
    task = models.LinkPredictor(models.SAGEBackbone({"id": 30}, 8, 2), "mlp")
    sampler = NeighborSampler([4, 2], batch_size=64, time=time)
    guard = kb.training.RecompileGuard()
    history = task.fit(
        graph,
        split.train_pairs,
        preprocessing.NegativeSampler(1, "source", exclude_known=False),
        validation_pairs=split.valid_pairs,
        sampler=sampler,
        epochs=2,
        verbose=0,
        callbacks=[guard],
    )
    assert np.isfinite(history.history["val_loss"]).all()
    # Pairs of the training are events, each at its time.
    assert len(task.fit(graph, sampler=sampler, epochs=1, verbose=0).epoch) == 1


def test_a_model_reads_ages():
    graph = interactions()
    edge_inputs = {"age": {"harmonic": 8}}
    backbone = models.GINEBackbone({"id": 30}, 8, 2, edge_inputs=edge_inputs)
    task = models.LinkPredictor(backbone)
    sampler = NeighborSampler([4, 2], batch_size=64, time="recent")
    history = task.fit(graph, sampler=sampler, epochs=1, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    plain = models.LinkPredictor(models.GINEBackbone({"id": 30}, 8, 2))
    assert "age" not in plain.loader(graph)[0][0]["edge"]
    with pytest.raises(ValueError, match="Draw neighbours by time"):
        task.fit(graph, sampler=NeighborSampler([4, 2]), epochs=1, verbose=0)


def test_whole_graphs_with_later_edges_are_refused():
    graph = events(start=0)
    task = models.NodeClassifier(
        models.SAGEBackbone({"h": {"features": 3}}, 8, 2, num_edge_types=2), 3
    )
    last = int(graph.edge["time"].max())
    for call in (task.fit, task.evaluate):
        with pytest.raises(ValueError, match="earlier than all nodes with labels"):
            call(graph, verbose=0)
    # Only nodes with labels count.
    node = {**graph.node, "time": np.where(np.arange(12) < 6, last + 1, 0)}
    late = graph.replace(
        node={**node, "late_mask": np.arange(12) < 6, "early_mask": np.arange(12) > 5}
    )
    task.fit(late, mask="late_mask", verbose=0)
    with pytest.raises(ValueError, match="150 of 150 edges"):
        task.evaluate(late, mask="early_mask", verbose=0)
    task.fit(graph, sampler=NeighborSampler([4, 2], time="recent"), verbose=0)
