"""Which batches come, in which order, whoever builds them."""

import json
import os
import pickle
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bandgnn import Graph
from keras_bandgnn.assembly import assembler
from keras_bandgnn.data import open_store, write_store
from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader, StaticBatcher
from keras_bandgnn.primitives import Grouped, Plan

pytestmark = pytest.mark.every_backend(
    "to_tf_data", "differ_in_every_size", "signatures"
)

BATCHERS = {
    "dynamic": lambda b: DynamicBatcher(b - 1),
    "best_fit": lambda b: DynamicBatcher(b - 1, packing="best_fit", window=8),
    "budget": lambda b: DynamicBatcher(budget={"node": 8 * b}),
    "constant": lambda b: StaticBatcher(b - 1),
    "64": lambda b: StaticBatcher(b - 1, "64"),
    "power_of_two": lambda b: StaticBatcher(b - 1, "power_of_two"),
}


def graphs_of(sizes):
    return [
        Graph(n, [0] * (n // 2), [n - 1] * (n // 2), node={"a": np.arange(n)}, label=n)
        for n in sizes
    ]


def ids(batch):
    found = batch[0]["graph"]["id"]
    return [group[group >= 0].tolist() for group in found]


def same(a, b):
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        return all(same(a[k], b[k]) for k in a)
    if isinstance(a, tuple):
        return all(same(x, y) for x, y in zip(a, b, strict=True))
    return np.array_equal(a, b)


@settings(max_examples=80, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=60),
    batch_size=st.integers(2, 12),
    seed=st.integers(0, 5),
    replicas=st.integers(1, 3),
    hosts=st.integers(1, 3),
    threads=st.integers(1, 3),
    prefetch=st.integers(0, 3),
    kind=st.sampled_from(sorted(BATCHERS)),
)
def test_every_graph_once_per_epoch_over_hosts_replicas_and_threads(
    sizes, batch_size, seed, replicas, hosts, threads, prefetch, kind
):
    graphs = graphs_of(sizes)
    loaders = [
        GraphLoader(
            graphs,
            BATCHERS[kind](batch_size),
            seed=seed,
            replicas=replicas,
            host=host,
            num_hosts=hosts,
            threads=threads,
            prefetch=prefetch,
        )
        for host in range(hosts)
    ]
    assert len({len(loader) for loader in loaders}) == 1
    for _ in range(2):
        seen = []
        for index in range(len(loaders[0])):
            batches = [loader[index] for loader in loaders]
            shapes = {batch[0]["node"]["mask"].shape for batch in batches}
            assert len(shapes) == 1 and shapes.pop()[0] == replicas
            seen += [i for batch in batches for group in ids(batch) for i in group]
        assert sorted(seen) == list(range(len(sizes)))
        for loader in loaders:
            assert loader.stats.batches == len(loader)
            loader.on_epoch_end()


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=60),
    batch_size=st.integers(2, 12),
    epoch=st.integers(0, 3),
    share=st.floats(0, 1),
    kind=st.sampled_from(sorted(BATCHERS)),
)
def test_resumed_in_the_middle_the_same_batches_remain(
    sizes, batch_size, epoch, share, kind
):
    graphs = graphs_of(sizes)
    loader = GraphLoader(graphs, BATCHERS[kind](batch_size), seed=1)
    loader.epoch = epoch
    whole = [loader[i] for i in range(len(loader))]
    used = int(share * len(loader))
    state = json.loads(json.dumps(loader.state_dict(used)))
    other = GraphLoader(graphs, BATCHERS[kind](batch_size), seed=1, prefetch=0)
    other.load_state_dict(state)
    assert len(other) == len(whole) - used
    assert all(same(other[i], whole[used + i]) for i in range(len(other)))
    other.clear_resume()
    other.on_epoch_end()
    loader.on_epoch_end()
    assert len(other) == len(whole) and ids(other[0]) == ids(loader[0])


def test_resume_refuses_other_data():
    loader = GraphLoader(graphs_of([3, 4, 5]), DynamicBatcher(1))
    state = loader.state_dict(1)
    for other in (
        GraphLoader(graphs_of([3, 4, 6]), DynamicBatcher(1)),
        GraphLoader(graphs_of([3, 4, 5]), DynamicBatcher(2)),
        GraphLoader(graphs_of([3, 4, 5]), DynamicBatcher(1), seed=1),
        GraphLoader(graphs_of([3, 4, 5]), DynamicBatcher(1), shuffle=False),
    ):
        with pytest.raises(ValueError, match="training began with"):
            other.load_state_dict(state)
    with pytest.raises(ValueError, match="a batch in"):
        loader.load_state_dict({**state, "batch": 99})


def test_batches_of_one_file_and_of_several(tmp_path, monkeypatch):
    monkeypatch.setattr(assembler, "_MOST_JOINED", 0)
    graphs = graphs_of([4, 9, 5, 7, 3, 8, 2, 6])
    store = open_store(write_store(tmp_path / "s", graphs, shard_size=3).path)
    one = GraphLoader(graphs, StaticBatcher(3, "64"), replicas=2)
    many = GraphLoader(store, StaticBatcher(3, "64"), replicas=2)
    assert len(many.parts) == 3
    for index in range(len(one)):
        a, b = one.build(index, 0), many.build(index, 0)
        # Within a supergraph the graphs of several files are sorted.
        assert [sorted(g) for g in ids(a)] == ids(b)
        for group in range(2):
            for slot, graph in enumerate(ids(b)[group]):
                own = b[0]["node"]["graph_id"][group] == slot
                values = b[0]["node"]["a"][group][own & b[0]["node"]["mask"][group]]
                assert values.tolist() == list(range(graphs[graph].num_nodes))
                assert b[1][group, slot, 0] == graphs[graph].num_nodes


def test_a_copy_in_another_process_builds_the_same():
    loader = GraphLoader(graphs_of(range(1, 30)), DynamicBatcher(3))
    loader[0]
    copy = pickle.loads(pickle.dumps(loader))
    assert same(copy[1], loader[1])


def test_the_first_two_batches_differ_in_every_size_that_varies():
    sizes = [3] * 40 + [70] * 8 + [5] * 40
    loader = GraphLoader(graphs_of(sizes), StaticBatcher(3, "power_of_two"))
    for epoch in range(3):
        first, second = loader.composition(epoch)[:2]
        assert first.budget["node"] != second.budget["node"]
        assert first.budget["edge"] != second.budget["edge"]


def test_stats_count_what_was_padded():
    loader = GraphLoader(graphs_of([10] * 40), DynamicBatcher(budget={"node": 64}))
    for index in range(len(loader)):
        loader[index]
    stats = loader.stats
    assert stats.batches == len(loader) and stats.graphs == 40
    assert stats.fill["node"] == 400 / (64 * len(loader))
    assert len(stats.assembly_ms) == len(loader) and 0 <= stats.waiting <= 1
    assert f"{len(loader)} batches, 40 graphs" in stats.summary()
    loader.on_epoch_end()
    loader[0]
    assert loader.stats.epoch == 1 and loader.stats.batches == 1


def test_to_torch():
    torch = pytest.importorskip("torch")
    loader = GraphLoader(graphs_of(range(1, 30)), DynamicBatcher(3))
    data = loader.to_torch(epochs=2)
    assert len(data) == 2 * len(loader)
    batches = list(torch.utils.data.DataLoader(data, batch_size=None))
    assert isinstance(batches[0][0]["node"]["a"], torch.Tensor)
    seen = [
        i for batch in batches[: len(loader)] for g in ids(_numpy(batch)) for i in g
    ]
    assert sorted(seen) == list(range(29))
    assert same(_numpy(batches[-1]), loader.build(len(loader) - 1, 1))
    with pytest.raises(IndexError, match="a batch in"):
        data[len(data)]


def _numpy(tree):
    if isinstance(tree, dict):
        return {k: _numpy(v) for k, v in tree.items()}
    if isinstance(tree, tuple | list):
        return tuple(_numpy(v) for v in tree)
    return tree.numpy()


def test_to_grain():
    pytest.importorskip("grain")
    loader = GraphLoader(graphs_of(range(1, 30)), DynamicBatcher(3))
    data = loader.to_grain(epochs=2)
    assert len(data) == 2 * len(loader)
    assert same(data[len(loader) + 1], loader.build(1, 1))


def test_to_tf_data():
    tf = pytest.importorskip("tensorflow")
    loader = GraphLoader(graphs_of([3] * 40 + [70] * 8), StaticBatcher(3, "64"))
    data = loader.to_tf_data()
    assert int(data.cardinality()) == len(loader)
    spec = data.element_spec[0]
    assert spec["node"]["mask"].shape.as_list() == [1, None]
    assert spec["plan"]["segment"]["sender"].shape.as_list() == [1, None]
    assert spec["graph"]["mask"].shape.as_list() == [1, 4]
    batches = list(data)
    assert same(_numpy(batches[2]), loader[2])
    typed = [Graph(n, [0], [1], [n % 3]) for n in [3] * 40 + [70] * 8]
    loader = GraphLoader(typed, StaticBatcher(3, "64"))
    assert same(_numpy(list(loader.to_tf_data())[1]), loader[1])
    fixed = GraphLoader(graphs_of([3] * 40), DynamicBatcher(3)).to_tf_data()
    assert fixed.element_spec[0]["node"]["mask"].shape == tf.TensorShape([1, 64])


def test_own_loops_resume_and_go_on_with_whole_epochs():
    graphs = graphs_of([5] * 50)
    loader = GraphLoader(graphs, DynamicBatcher(3))
    state = loader.state_dict(3)
    other = GraphLoader(graphs, DynamicBatcher(3))
    other.load_state_dict(state)
    left = other.to_torch(epochs=2)
    assert len(left) == 2 * len(loader) - 3
    assert same(_numpy(left[0]), loader.build(3, 0))
    assert same(_numpy(left[len(loader) - 3]), loader.build(0, 1))
    assert len(list(other.to_tf_data())) == len(loader) - 3
    other.on_epoch_end()
    assert len(other) == len(loader) and ids(other[0]) == ids(loader.build(0, 1))


def test_other_labels_are_other_data():
    graphs = graphs_of([3, 4, 5])
    state = GraphLoader(graphs).state_dict()
    changed = [g.replace(label=9.0) for g in graphs]
    with pytest.raises(ValueError, match="training began with"):
        GraphLoader(changed).load_state_dict(state)


def test_passes_over_tf_data_have_new_orders():
    pytest.importorskip("tensorflow")
    loader = GraphLoader(graphs_of(range(1, 40)), DynamicBatcher(3))
    data = loader.to_tf_data()
    orders = [[ids(_numpy(b)) for b in data] for _ in range(2)]
    assert orders[0] != orders[1]
    assert orders[1][0] == ids(loader.build(0, 1))


def test_signatures_of_sizes_that_are_divided():
    pytest.importorskip("tensorflow")
    graphs = [
        Graph(n, [0] * n, range(n), [i % 3 for i in range(n)]) for n in range(3, 40)
    ]
    loader = GraphLoader(graphs, StaticBatcher(7, "64"), Plan(rest=Grouped(100)))
    assert len(list(loader.to_tf_data())) == len(loader)


def counted(loader, monkeypatch):
    """The number of batches that a loader has built, as a list of one for each call."""
    calls, build = [], loader.assembler.build

    def counting(supergraphs, replicas):
        calls.extend([None] * (len(supergraphs) // replicas))
        return build(supergraphs, replicas)

    monkeypatch.setattr(loader.assembler, "build", counting)
    return calls


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_whole_graph_is_built_once(monkeypatch, shuffle):
    loader = GraphLoader(graphs_of([30]), shuffle=shuffle)
    expected = GraphLoader(graphs_of([30]), prefetch=0)[0]
    calls = counted(loader, monkeypatch)
    for _ in range(3):
        found = loader[0]
        assert same(found, expected)
        # What a step does to a batch does not reach the next epoch.
        found[0]["node"]["a"][:] = found[1][:] = -1
        loader.on_epoch_end()
    assert loader.stats.batches == 1 and loader.stats.graphs == 1
    assert len(calls) == 1


def test_other_orders_are_other_batches():
    loader = GraphLoader(graphs_of(range(2, 40)), DynamicBatcher(3))
    alone = GraphLoader(graphs_of(range(2, 40)), DynamicBatcher(3), prefetch=0)
    for epoch in (0, 1, 2, 1, 5, 0):
        loader.epoch = alone.epoch = epoch
        for index in range(len(loader)):
            assert same(loader[index], alone.build(index, epoch))


@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_batches_of_the_next_epoch_are_built_ahead(monkeypatch, threads):
    loader = GraphLoader(graphs_of(range(2, 60)), DynamicBatcher(2), threads=threads)
    calls = counted(loader, monkeypatch)
    for index in range(len(loader)):
        loader[index]
    end = time.monotonic() + 5
    while len(calls) == len(loader) and time.monotonic() < end:
        time.sleep(0.01)
    assert len(calls) > len(loader)
    seen = len(loader.stats.assembly_ms)
    loader.on_epoch_end()
    loader[0]
    # They count for the epoch that they belong to.
    assert seen == len(loader) and 0 < len(loader.stats.assembly_ms) < seen
    # Nothing more is built after the last epoch.
    last = GraphLoader(graphs_of(range(2, 60)), DynamicBatcher(2), prefetch=99)
    calls = counted(last, monkeypatch)
    last.end_after(0)
    for index in range(len(last)):
        last[index]
    time.sleep(0.1)
    assert len(calls) == len(last)
    # Without new orders nothing is known of what follows.
    given = GraphLoader(graphs_of(range(2, 60)), DynamicBatcher(2), shuffle=False)
    calls = counted(given, monkeypatch)
    for index in range(len(given)):
        given[index]
    time.sleep(0.1)
    assert len(calls) == len(given)


def test_nothing_more_is_built_once_threads_were_stopped(monkeypatch):
    loader = GraphLoader(graphs_of(range(2, 90)), DynamicBatcher(2), prefetch=99)
    calls, build, go_on = [], loader.assembler.build, threading.Event()

    def first_of_all(supergraphs, replicas):
        if calls:
            go_on.wait(20)
        calls.append(len(supergraphs))
        return build(supergraphs, replicas)

    monkeypatch.setattr(loader.assembler, "build", first_of_all)
    loader[0]
    loader.stop_threads()
    go_on.set()
    time.sleep(0.2)
    # The first block, and at most the one that was under way.
    assert len(loader) > sum(calls) and len(calls) <= 2


def test_random_access_builds_what_is_asked_for():
    loader = GraphLoader(graphs_of([5] * 80), DynamicBatcher(1))
    order = np.random.default_rng(0).permutation(len(loader))
    for index in order.tolist():
        assert same(loader[index], loader.build(index, 0))
    assert len(loader.stats.assembly_ms) < 4 * len(loader)


def test_no_step_is_empty_while_graphs_can_be_split():
    loader = GraphLoader(graphs_of([30] * 40), DynamicBatcher(budget={"node": 2}))
    assert loader.num_oversized == 40
    for epoch in range(5):
        assert all(len(s.members) for s in loader.composition(epoch))


def test_a_second_data_set_keeps_the_budget():
    train = [Graph(20, [0, 1], [1, 2], [0, 2])] * 30
    batcher = DynamicBatcher(3)
    budget = dict(GraphLoader(train, batcher).batcher.budget)
    GraphLoader([Graph(3, [0], [1], [0])] * 9, batcher)
    assert {k: batcher.budget[k] for k in budget} == budget


def test_drop_trigger_counts_what_it_loses():
    batcher = StaticBatcher(4, drop_trigger=True)
    assert GraphLoader(graphs_of([4] * 22), batcher).num_dropped == 22 - 4 * 4
    with pytest.raises(ValueError, match="at least one graph"):
        GraphLoader(graphs_of([4] * 3), StaticBatcher(4, drop_trigger=True))


def test_a_failed_composition_is_forgotten(monkeypatch):
    loader = GraphLoader(graphs_of([4] * 9), DynamicBatcher(3))
    compose = loader.composer.composition

    def interrupted(epoch):
        raise KeyboardInterrupt

    monkeypatch.setattr(loader.composer, "composition", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loader.composition(0)
    monkeypatch.setattr(loader.composer, "composition", compose)
    assert loader.composition(0)


def test_wrong_places():
    loader = GraphLoader(graphs_of([4] * 9), DynamicBatcher(3))
    for index in (-1, len(loader)):
        with pytest.raises(IndexError, match="Expected a batch in"):
            loader.build(index, 0)
    with pytest.raises(ValueError, match="`batcher` to be a batcher"):
        GraphLoader(graphs_of([4]), 32)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
# On a machine with one core.
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_workers_of_torch():
    torch = pytest.importorskip("torch")
    loader = GraphLoader(graphs_of(range(1, 30)), DynamicBatcher(3))
    loader[0]
    data = loader.to_torch(epochs=2)
    loader._builder._lock.acquire()  # As if the epoch was being composed at the fork.
    batches = torch.utils.data.DataLoader(
        data, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60
    )
    found = [ids(_numpy(batch)) for batch in batches]
    loader._builder._lock.release()
    assert found == [ids(_numpy(batch)) for batch in loader.to_torch(epochs=2)]
    pickle.loads(pickle.dumps(data))


@pytest.mark.parametrize(
    "batcher", [DynamicBatcher(3), StaticBatcher(3, "power_of_two")]
)
def test_usage_is_what_the_batches_hold(batcher):
    loader = GraphLoader(graphs_of(range(2, 30)), batcher, replicas=2)
    for epoch in range(2):
        for index in range(len(loader)):
            x, *_ = loader[index]
            usage = {k: counts[:, index] for k, counts in loader.usage(epoch).items()}
            for name in ("graph", "node", "edge"):
                mask = x[name]["mask"]
                assert usage[name].tolist() == [mask.sum(), mask.size]
        fill = loader.fill()
        assert fill.items() >= loader.stats.fill.items()
        # Those of the plan, too.
        assert len(fill) > 3
        loader.on_epoch_end()
