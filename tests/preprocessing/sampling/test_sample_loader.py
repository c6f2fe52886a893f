"""`SampleLoader`: epochs, seeds, shapes, resuming, hosts, workers, stores."""

import os
import pickle
import re

import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.preprocessing import (
    ClusterSampler,
    NeighborSampler,
    SampleLoader,
    SubgraphSampler,
)
from keras_bandgnn.preprocessing.sampling.reused_memory import ReusedMemory

NODES = 150
SAMPLERS = {
    "neighbours": (NeighborSampler([4, 3], batch_size=16), {"trimmed": True}),
    "typed": (NeighborSampler([{0: 2, 1: 1}, 3], batch_size=16), {"rescale": True}),
    "clusters": (ClusterSampler(10, batch_size=2, feature="cluster"), {}),
    "walks": (SubgraphSampler(9, walk_length=2, coverage=5), {"rescale": True}),
}


def large_graph(seed=0, **changes):
    rng = np.random.default_rng(seed)
    graph = kb.Graph(
        NODES,
        *rng.integers(0, NODES, (2, 900)),
        edge_type=rng.integers(0, 2, 900),
        node={
            "h": rng.normal(size=(NODES, 3)).astype("float32"),
            "cluster": np.arange(NODES) % 10,
        },
        edge={"w": rng.uniform(0.1, 2.0, 900).astype("float32")},
        label=np.where(np.arange(NODES) % 3, rng.integers(0, 3, NODES), -1),
        label_level="node",
    )
    return graph.replace(**changes)


def make(name, graph=None, **options):
    sampler, more = SAMPLERS[name]
    return SampleLoader(graph or large_graph(), sampler, **{**more, **options})


def equal(one, two):
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(equal(one[k], two[k]) for k in one)
    if isinstance(one, tuple | list):
        return len(one) == len(two) and all(map(equal, one, two))
    return np.array_equal(one, two)


def epoch_of(loader):
    batches = [loader[i] for i in range(len(loader))]
    loader.on_epoch_end()
    return batches


@pytest.mark.parametrize("name", ["neighbours", "typed"])
def test_each_seed_comes_once_per_epoch(name):
    graph = large_graph()
    loader = make(name)
    targets = np.flatnonzero(graph.label != -1)
    orders = []
    for epoch in range(3):
        members = np.concatenate([s.members for s in loader.composition(epoch)])
        assert sorted(members) == targets.tolist()
        labels = []
        for index in range(len(loader)):
            _, y, weight = loader.build(index, epoch)
            labels.append(y[weight > 0])
        assert (np.concatenate(labels) == graph.label[members]).all()
        orders.append(members)
    assert not np.array_equal(orders[0], orders[1])


@pytest.mark.parametrize("name", SAMPLERS)
def test_batches_follow_the_contract(name):
    graph = large_graph()
    loader = make(name)
    for index in range(len(loader)):
        x, y, weight = loader[index]
        real = x["node"]["mask"][0]
        count = int(real.sum())
        assert real[:count].all() and x["graph"]["n_node"][0].tolist() == [count, 0]
        edges = x["edge"]["mask"][0]
        sender, receiver = x["edge"]["sender"][0], x["edge"]["receiver"][0]
        assert (receiver[~edges] == len(real)).all() and (sender[~edges] == 0).all()
        assert (np.diff(receiver) >= 0).all() and (sender[edges] < count).all()
        # Every row is that of a node of the graph, every edge that of its ends.
        rows = [tuple(row) for row in np.asarray(graph.node["h"])]
        ids = np.array([rows.index(tuple(row)) for row in x["node"]["h"][0, :count]])
        known = set(zip(graph.senders, graph.receivers, graph.edge["w"], strict=True))
        ends = ids[sender[edges]], ids[receiver[edges]]
        assert set(zip(*ends, x["edge"]["w"][0][edges], strict=True)) <= known
        trained = weight[0] > 0
        assert (
            y[0][trained] == graph.label[ids[: len(trained)][trained[:count]]]
        ).all()
        assert (graph.label[ids[np.flatnonzero(trained)]] != -1).all()


@pytest.mark.parametrize("name", SAMPLERS)
def test_all_batches_have_one_shape(name):
    loader = make(name)

    def shapes(tree):
        if isinstance(tree, dict):
            return {k: shapes(v) for k, v in tree.items()}
        return tuple(map(shapes, tree)) if isinstance(tree, tuple) else tree.shape

    found = [shapes(batch) for _ in range(3) for batch in epoch_of(loader)]
    assert all(each == found[0] for each in found)
    assert len(loader.budgets) == 1


@pytest.mark.parametrize("name", SAMPLERS)
def test_threads_and_order_of_building_change_nothing(name):
    one, two = make(name, prefetch=0), make(name, prefetch=4, threads=3)
    for _ in range(2):
        assert equal(epoch_of(one), epoch_of(two))
    assert equal(one.build(2, 5), two.build(2, 5))


@pytest.mark.parametrize("name", SAMPLERS)
def test_resumes_in_the_middle_of_an_epoch(name):
    whole, rest = make(name), make(name)
    epoch_of(whole)
    state = whole.state_dict(batches=2, epoch=1)
    expected = epoch_of(whole)[2:]
    rest.load_state_dict(state)
    assert len(rest) == len(whole) - 2
    assert equal(epoch_of(rest), expected)
    other = SampleLoader(large_graph(), NeighborSampler([2, 2], batch_size=16))
    with pytest.raises(ValueError, match="training began with"):
        other.load_state_dict(state)


def test_hosts_and_replicas_share_an_epoch():
    graph = large_graph()
    hosts = [
        make("neighbours", replicas=2, num_hosts=2, host=host) for host in range(2)
    ]
    assert len(hosts[0]) == len(hosts[1]) == 2
    seen = []
    for index in range(2):
        batches = [host[index] for host in hosts]
        shapes = [batch[0]["node"]["h"].shape for batch in batches]
        assert shapes[0] == shapes[1] and shapes[0][0] == 2
        seen += [group.members for h in hosts for group in h.supergraphs(index, 0)]
    targets = np.flatnonzero(graph.label != -1)
    assert sorted(np.concatenate(seen)) == targets.tolist()


def test_hosts_train_on_their_parts():
    graph = large_graph()
    sampler = NeighborSampler([3, 2], batch_size=8, part="cluster")
    targets, seen = np.flatnonzero(graph.label != -1), []
    for host in range(3):
        loader = SampleLoader(graph, sampler, replicas=2, num_hosts=3, host=host)
        mine = [
            group.members
            for index in range(len(loader))
            for group in loader.supergraphs(index, 0)
        ]
        seen.append(np.concatenate(mine))
        assert (graph.node["cluster"][seen[-1]] % 3 == host).all()
        assert loader[0][0]["node"]["h"].shape[0] == 2
    assert sorted(np.concatenate(seen)) == targets.tolist()
    alone = SampleLoader(graph, sampler)
    members = np.concatenate([s.members for s in alone.composition(0)])
    assert sorted(members) == targets.tolist()
    one = graph.replace(node={"h": graph.node["h"], "cluster": np.zeros(NODES, int)})
    with pytest.raises(ValueError, match="nodes to train on for each of 2 hosts"):
        SampleLoader(one, sampler, num_hosts=2)


def test_subgraphs_above_the_budget_are_not_lost():
    loader = make("neighbours")
    usual = loader.budgets[0]
    small = {k: v if k in ("graph", "item") else 8 for k, v in usual.items()}
    loader.assembler.budgets[:] = [small]
    _, _, weight = loader[0]
    members = loader.supergraphs(0, 0)[0].members
    assert weight.sum() == len(members)
    assert loader.num_oversized and loader.budgets[-1]["node"] > 8


def test_rows_of_a_layer_are_the_first_of_those_before():
    # Nearly all nodes are within one edge of some seeds, so sizes hardly differ.
    rng = np.random.default_rng(0)
    senders = np.where(rng.random(4000) < 0.02, rng.integers(0, 400, 4000), 0)
    hub = kb.Graph(
        400,
        np.concatenate([senders, rng.integers(0, 400, 1200)]),
        np.concatenate([rng.integers(0, 400, 4000), np.zeros(1200, int)]),
        label=np.zeros(400, int),
        label_level="node",
    )
    sampler = NeighborSampler([-1, -1, -1], batch_size=8)
    budget = SampleLoader(hub, sampler, trimmed=True).budgets[0]
    for kind in ("node", "edge"):
        sizes = [budget[n] for n in (kind, f"{kind}:1", f"{kind}:2")]
        assert sizes == sorted(sizes, reverse=True)


def test_memory_is_used_again_only_when_nobody_holds_it():
    memory = ReusedMemory()
    one = memory.empty((3, 1 << 18), "float32")
    one[:] = 1.0
    address, view = one.ctypes.data, one[1:, 5:][:1]
    two = memory.empty((3, 1 << 18), "float32")
    two[:] = 2.0
    assert two.ctypes.data != address
    del one
    three = memory.empty((3, 1 << 18), "float32")
    three[:] = 3.0
    assert three.ctypes.data != address and (view == 1.0).all()
    del view
    assert memory.empty((3, 1 << 18), "float32").ctypes.data == address


def test_pickled_loaders_go_on():
    for name in SAMPLERS:
        loader = make(name)
        again = pickle.loads(pickle.dumps(loader))
        assert equal(loader[1], again[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
# On a machine with one core.
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_workers_of_torch():
    torch = pytest.importorskip("torch")
    loader = make("neighbours")
    data = torch.utils.data.DataLoader(
        loader.to_torch(epochs=2),
        batch_size=None,
        num_workers=2,
        multiprocessing_context="fork",
    )
    batches = list(data)
    assert len(batches) == 2 * len(loader)
    for index in (0, len(loader) + 1):
        epoch, place = divmod(index, len(loader))
        expected = loader.build(place, epoch)[0]["node"]["h"]
        assert np.array_equal(batches[index][0]["node"]["h"].numpy(), expected)


def test_a_memory_mapped_store_gives_the_same(tmp_path):
    graph = large_graph()
    with kb.data.write_store(tmp_path / "store", [graph]) as store:
        loader = make("neighbours", store)
        base = loader.parts[0].node["h"]
        while getattr(base, "base", None) is not None:
            base = base.base
        assert not isinstance(base, np.ndarray)
        assert equal(epoch_of(loader), epoch_of(make("neighbours")))


def test_several_graphs_count_as_one():
    graphs = [large_graph(0), large_graph(1)]
    loader = SampleLoader(graphs, NeighborSampler([-1], batch_size=8), shuffle=False)
    members = np.concatenate([s.members for s in loader.composition(0)])
    labels = np.concatenate([g.label for g in graphs])
    assert members.tolist() == np.flatnonzero(labels != -1).tolist()
    x, _, _ = loader[len(loader) - 1]
    rows = {tuple(row) for row in graphs[1].node["h"].tolist()}
    real = x["node"]["mask"]
    assert {tuple(row) for row in x["node"]["h"][real].tolist()} <= rows


def test_figures():
    loader = make("neighbours")
    epoch_of(loader)
    assert 0.3 < loader.fill()["graph"] <= 1
    assert loader.usage()["graph"][0].sum() == 100
    assert repr(loader).startswith("Loader(items=100, batches=7, budget=")


@pytest.mark.parametrize(
    "graph, text",
    [
        (large_graph(label=np.full(NODES, -1)), "none of 150 nodes has a known label"),
        ([], "Expected one graph"),
    ],
)
def test_graphs_that_do_not_fit(graph, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        SampleLoader(graph, NeighborSampler([3]))


def test_hosts_and_features_are_checked():
    sampler = NeighborSampler([3])
    with pytest.raises(ValueError, match=re.escape("`host` to be in [0, 1)")):
        SampleLoader(large_graph(), sampler, host=3)
    with pytest.raises(ValueError, match="features"):
        SampleLoader(large_graph(), sampler, features=["h"])


def test_a_sampler_is_needed():
    with pytest.raises(ValueError, match="a sampler, such as NeighborSampler"):
        SampleLoader(large_graph(), 15)
