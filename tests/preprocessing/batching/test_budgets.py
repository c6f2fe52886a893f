"""Budgets hold what supergraphs need, not much more; and say so where they do not."""

import itertools
import logging
import threading

import numpy as np
import pytest
from registered import plans_of_primitives

from keras_bandgnn import Graph
from keras_bandgnn.assembly import padded_rows as levels
from keras_bandgnn.planning import plan_choice
from keras_bandgnn.planning.plan_choice import PlanChoice
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphLoader,
    RCMKCompile,
    StaticBatcher,
)
from keras_bandgnn.preprocessing.batching.dynamic_batcher import (
    pack_best_fit,
    pack_sequential,
)
from keras_bandgnn.preprocessing.loading.graph_loader import spread
from keras_bandgnn.preprocessing.ordering.rcmk_compile import block_size_of
from keras_bandgnn.primitives import (
    Banded,
    BlockSparse,
    Dense,
    Grouped,
    Plan,
    ReceptiveField,
    Segment,
    Supernode,
)
from tests.planning import machines

TYPES = 2
PLANS = plans_of_primitives(
    {
        "banded": [
            Plan(Banded(16)),
            Plan(Banded(16, "band"), rest=Grouped()),
            Plan(Banded(8), schedule=ReceptiveField(3, merge=False, order="blocks")),
        ],
        "block_sparse": [
            Plan(rest=BlockSparse(8)),
            Plan(rest=BlockSparse(16)),
            Plan(BlockSparse(8, 4)),
        ],
        "dense": [Plan(Dense(16)), Plan(Dense(128))],
        "grouped": [
            Plan(rest=Grouped()),
            Plan(rest=Grouped(16, "aggregate")),
            Plan(rest=Grouped(), schedule=ReceptiveField(3)),
        ],
        "segment": [Plan(Segment()), Plan(Segment(), schedule=ReceptiveField(3))],
        "supernode": [Plan(Supernode(16)), Plan(Supernode(8), Banded(16))],
    }
)
BATCHERS = [
    *(StaticBatcher(8, padding) for padding in ("constant", "64", "power_of_two")),
    DynamicBatcher(7),
    DynamicBatcher(7, packing="best_fit"),
]


def star(count, seed):
    """A hub with an edge from every node, and a ring of the nodes around it."""
    nodes = np.arange(count)
    rng = np.random.default_rng(seed)
    return Graph(
        count,
        np.concatenate([nodes, nodes]),
        np.concatenate([0 * nodes, np.roll(nodes, 1)]),
        edge_type=rng.integers(0, TYPES, 2 * count),
        candidates=[0, 1],
        label=0,
        slot=0,
    )


@pytest.mark.parametrize("name", sorted(PLANS))
@pytest.mark.parametrize("batcher", [*BATCHERS, StaticBatcher(1, "64")], ids=str)
def test_no_resource_has_much_more_room_than_it_needs(name, batcher):
    graphs = [star(n, n) for n in range(60, 100)]
    if batcher.graphs == 1:
        graphs = [star(1500, 0)]
    for plan in PLANS[name]:
        loader = GraphLoader(graphs, batcher.copy(), plan, num_edge_types=TYPES)
        for index in range(len(loader)):
            loader.build(index, 0)
        composed = loader.composition(0)
        for resource, sizes in loader.sizes.items():
            compact = plan.schedule and plan.schedule.order == "compact"
            if resource == "candidate" or (resource == "edge" and compact):
                # One graph's; and no array of the steps is as long as all edges.
                continue
            needed = [int(sizes[s.members].sum()) for s in composed]
            room = [s.budget[resource] for s in composed]
            assert all(n <= r for n, r in zip(needed, room, strict=True))
            # What is left over is rounding, up to 64 rows, and supergraphs that are
            # not full.
            assert sum(room) <= 2 * sum(needed) + 80 * len(room), (plan, resource)


def test_static_shapes_stay_few_whatever_the_plan_needs():
    graphs = [star(n, n) for n in range(60, 100)]
    for plan in itertools.chain(*PLANS.values()):
        loader = GraphLoader(graphs, StaticBatcher(8, "64"), plan, num_edge_types=TYPES)
        shapes = {tuple(s.budget.values()) for s in loader.composition(0)}
        pairs = {(s.budget["node"], s.budget["edge"]) for s in loader.composition(0)}
        assert len(shapes) <= len(pairs) + 2


# === Packing ===


def packers():
    def best(balanced):
        def pack(sizes, order, capacity):
            weight = np.ones(len(capacity))
            return pack_best_fit(sizes, order, capacity, 8, weight, balanced)

        return pack

    return [pack_sequential, best(False), best(True)]


@pytest.mark.parametrize("pack", packers())
def test_packers_end(pack):
    capacity, none = np.array([10, 4]), np.zeros(0, np.int64)
    sizes = np.array([[3, 1], [0, 0], [10, 1], [0, 1], [5, 4]])
    packed = pack(sizes, np.arange(5), capacity)
    assert sorted(np.concatenate(packed).tolist()) == [0, 1, 2, 3, 4]
    assert all((sizes[m].sum(axis=0) <= capacity).all() for m in packed)
    assert pack(sizes, none, capacity) == [] == pack(sizes[:0], none, capacity)
    zeros = np.zeros((4, 2), np.int64)
    assert len(pack(zeros, np.arange(4), capacity)) == 1
    assert len(pack(zeros, np.arange(4), np.zeros(2, np.int64))) == 1
    found = []

    def oversize():
        with pytest.raises(ValueError, match=r"graph 1 with \[11, 1\]"):
            pack(np.array([[3, 1], [11, 1]]), np.arange(2), capacity)
        found.append(True)

    # In a thread, so that packing without an end fails here.
    thread = threading.Thread(target=oversize, daemon=True)
    thread.start()
    thread.join(20)
    assert found


@pytest.mark.parametrize("batcher", BATCHERS, ids=str)
def test_batchers_take_empty_orders_and_empty_sizes(batcher):
    sizes = {"node": np.array([5, 1, 9]), "edge": np.array([0, 0, 0])}
    batcher = batcher.copy()
    batcher.adapt(sizes)
    nothing = batcher.pack(sizes, np.zeros(0, np.int64), batcher.budget)
    assert sum(map(len, nothing)) == 0
    assert batcher.shapes(sizes, [], batcher.budget) == []
    packed = batcher.pack(sizes, [0, 1, 2], batcher.budget)
    shapes = batcher.shapes(sizes, [[m] for m in packed], batcher.budget)
    for members, shape in zip(packed, shapes, strict=True):
        assert sizes["node"][members].sum() < shape["node"]
    assert len(spread([], 3)) == 3
    with pytest.raises(ValueError, match="Expected at least one graph"):
        batcher.adapt({"node": np.zeros(0, int), "edge": np.zeros(0, int)})


def test_the_warning_says_which_graphs_how_large_and_what_it_costs(caplog):
    graphs = [star(n, n) for n in (5, 90, 6, 70)]
    with caplog.at_level(logging.WARNING, logger="keras_bandgnn"):
        GraphLoader(graphs, DynamicBatcher(budget={"node": 64, "edge": 64}), Plan())
    (record,) = caplog.records
    text = record.getMessage()
    assert "\n" not in text and "{" not in text and len(text) < 400
    assert "2 of 4 graphs (1, 3)" in text
    assert "graph 1 needs 180 of 'edge' where 64 fit" in text
    assert "one more compilation" in text and "times the usual memory" in text
    with pytest.raises(ValueError) as error:
        batcher = DynamicBatcher(budget={"node": 64, "edge": 64}, oversize="raise")
        GraphLoader(graphs, batcher, Plan(Supernode(4), Banded(8)))
    assert "graph 1 needs" in str(error.value) and "{" not in str(error.value)


# === Threads ===


class Replaced(np.ndarray):
    """A table that another thread replaces by a short one once it is looked at."""

    def __len__(self):
        levels._table = np.arange(1)
        return super().__len__()


def test_a_table_may_be_replaced_at_any_moment(monkeypatch):
    monkeypatch.setattr(levels, "_table", np.arange(100).view(Replaced))
    np.testing.assert_array_equal(levels._counting(50), np.arange(50))


def test_counting_keeps_no_long_table(monkeypatch):
    monkeypatch.setattr(levels, "_MOST_COUNTED", 1000)
    monkeypatch.setattr(levels, "_table", np.arange(1))
    for length in (10, 900, 5000, 1000, 1):
        np.testing.assert_array_equal(levels._counting(length), np.arange(length))
        assert len(levels._table) <= 1000


# === S of the order reaches the plan ===


@pytest.mark.parametrize("calibrated", [False, True])
def test_the_block_size_of_the_order_is_that_of_the_plan(monkeypatch, calibrated):
    from keras_bandgnn.preprocessing import GraphPreprocessor

    taken = []

    def hardware(dtype):
        return machines.machine(machines.GPU) if calibrated else None

    def choice_of(*facts, **options):
        choice = PlanChoice(*facts, **options)
        taken.extend(row["plan"] for row in choice.table)
        return choice

    monkeypatch.setattr(plan_choice.graph_ops, "has_accelerator", lambda: True)
    monkeypatch.setattr(plan_choice.Hardware, "calibrated", hardware)
    monkeypatch.setattr(plan_choice, "PlanChoice", choice_of)
    graphs = [star(n, n) for n in range(60, 70)]
    for size in (48, 128):
        taken.clear()
        loader = GraphPreprocessor([RCMKCompile(size)]).loader(graphs)
        bands = {
            p.block_size
            for plan in [loader.plan, *taken]
            for p in plan.primitives
            if isinstance(p, Banded)
        }
        assert bands == ({size, size // 2, 2 * size} if calibrated else {size})
    assert block_size_of(graphs) == 128


def test_compiled_stores_tell_their_block_size(tmp_path, monkeypatch):
    from keras_bandgnn.data import open_store, write_store
    from keras_bandgnn.preprocessing import GraphPreprocessor

    monkeypatch.setattr(plan_choice.graph_ops, "has_accelerator", lambda: True)
    monkeypatch.setattr(plan_choice.Hardware, "calibrated", lambda dtype: None)
    compiled = GraphPreprocessor([RCMKCompile(32)]).compile([star(60, 0)] * 3)
    write_store(tmp_path / "store", compiled, metadata=compiled.metadata)
    store = open_store(tmp_path / "store")
    assert GraphLoader(store).plan.primitives[0] == Banded(32)
