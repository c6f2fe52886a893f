import dataclasses

import keras
import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.planning import cost
from keras_bandgnn.planning import plan_choice as auto_module
from keras_bandgnn.planning.cost import Hardware
from keras_bandgnn.planning.estimate import sampled
from keras_bandgnn.planning.plan_choice import auto_plan, cheapest_plan, choose_plan
from keras_bandgnn.primitives import Banded, Grouped, Plan, ReceptiveField, Segment

CPU = Hardware.default("torch", "cpu")


def molecule(rng, num_types=4, num_nodes=18):
    """A tree with both directions of each bond."""
    child = np.arange(1, num_nodes)
    parent = np.array([rng.integers(max(0, i - 3), i) for i in child])
    kind = rng.integers(0, num_types, num_nodes - 1)
    return Graph(
        num_nodes,
        np.concatenate([child, parent]),
        np.concatenate([parent, child]),
        edge_type=np.concatenate([kind, kind]),
        candidates=[0, 3],
        label=0,
    )


def molecules(count=50, **options):
    rng = np.random.default_rng(0)
    return FlatGraphs.from_graphs([molecule(rng, **options) for _ in range(count)])


def wide(num_nodes=3000, degree=8):
    """A graph in which every edge is far from the diagonal."""
    rng = np.random.default_rng(0)
    sender = rng.integers(0, num_nodes, num_nodes * degree)
    receiver = (sender + num_nodes // 2) % num_nodes
    return FlatGraphs.from_graphs([Graph(num_nodes, sender, receiver)])


def cheap(**rates):
    """A machine that can do one thing well."""
    slow = {
        "matmul": ((1e6,) * 3,) * 3,
        "blocks": (1e6,) * 5,
        "write": (1e6,) * 2,
        **dict.fromkeys(("gather", "scatter", "sparse"), 1e6),
        "grouped": (1e6,) * 3,
        "launch": 1e-9,
    }
    return Hardware(**slow | rates)


def test_default_constants_of_cpus_choose_lists_of_edges():
    hardware = Hardware.default(keras.backend.backend(), "cpu")
    graphs = [molecules(num_types=1)]
    assert choose_plan(graphs, 1, hardware=hardware).plan == Plan()
    graphs = [molecules(num_types=4)]
    plan = choose_plan(graphs, 4, hardware=hardware).plan
    assert isinstance(plan.rest, Grouped) and plan.rest.first == "transform"


def test_sparse_products_for_free_give_segment():
    hardware = cheap(sparse=1e15, write=(1e15, 1e15), matmul=((1e15,) * 3,) * 3)
    assert choose_plan([molecules()], 4, hardware=hardware).plan == Plan()


def test_grouped_products_for_free_give_grouped():
    hardware = cheap(grouped=(1e15,) * 3, gather=1e15, write=(1e15, 1e15))
    plan = choose_plan([molecules()], 4, hardware=hardware).plan
    assert isinstance(plan.rest, Grouped) and plan.rest.first == "transform"
    # With rows that are dear to read, those that are summed first.
    hardware = cheap(grouped=(1e15,) * 3, sparse=1e15, write=(1e15, 1e15))
    plan = choose_plan([molecules()], 4, hardware=hardware).plan
    assert plan.rest.first == "aggregate"
    # Products of small groups may be slow, but not where a type is one product.
    hardware = cheap(grouped=(1e3, 1e3, 1e15), gather=1e15, write=(1e15, 1e15))
    plan = choose_plan([molecules()], 4, hardware=hardware).plan
    torch = keras.backend.backend() == "torch"
    assert torch or plan == Plan(rest=Grouped(256))


def test_dense_products_for_free_give_a_primitive_of_blocks():
    hardware = cheap(matmul=((1e15,) * 3,) * 3, blocks=(1e15,) * 5, write=(1e15, 1e15))
    choice = choose_plan([molecules(num_types=1)], 1, hardware=hardware)
    assert isinstance(choice.plan.primitives[0], Banded)
    assert choice.table[0]["dense"] > 0.99
    # Molecules have no hubs.
    assert not any("supernode" in k for r in choice.table for k in r["plan"].keys)
    # Where no edge is near the diagonal, bands are no use, and are not listed.
    choice = choose_plan([wide()], 1, hardware=hardware)
    assert not any("banded" in key for r in choice.table for key in r["plan"].keys)


def test_hubs_give_supernodes():
    size = 400
    hubs = [
        Graph(size, np.r_[np.arange(1, size), 0 * np.arange(1, size)],
              np.r_[0 * np.arange(1, size), np.arange(1, size)])
        for _ in range(3)
    ]  # fmt: skip
    hardware = cheap(
        matmul=((1e15,) * 3,) * 3,
        blocks=(1e15,) * 5,
        write=(1e15, 1e15),
        grouped=(1e15,) * 3,
    )
    plan = choose_plan([FlatGraphs.from_graphs(hubs)], 1, hardware=hardware).plan
    assert plan.keys[0] == "supernode:64"


def test_full_tiles_give_tiles():
    # Cliques of 16, far apart: their tiles are full, all else is empty.
    clique = np.arange(16)
    sender, receiver = np.repeat(clique, 16), np.tile(clique, 16)
    graphs = FlatGraphs.from_graphs([Graph(200, sender, receiver)] * 20)
    hardware = cheap(
        matmul=((1e9,) * 3,) * 3,
        blocks=(1e9,) * 5,
        gather=1e12,
        scatter=1e12,
        grouped=(1e12,) * 3,
        write=(1e12, 1e12),
    )
    choice = choose_plan([graphs], 1, hardware=hardware)
    assert choice.plan.keys[0].startswith("block_sparse")
    assert choice.table[0]["dense"] == 1.0


def test_schedule_compares_what_can_follow_it():
    compact = choose_plan([molecules()], 4, schedule=ReceptiveField(3), hardware=CPU)
    assert compact.plan.schedule == ReceptiveField(3)
    assert all(p.bipartite for row in compact.table for p in row["plan"].primitives)
    assert len(compact.table) == (3 if keras.backend.backend() == "torch" else 7)
    whole = choose_plan([molecules()], 4, hardware=CPU)
    # Far from the candidates nothing is computed.
    flops = {row["plan"].keys: row["flops"] for row in whole.table}
    for row in compact.table:
        assert row["flops"] < flops[row["plan"].keys]
    schedule = ReceptiveField(3, merge=False, order="blocks")
    blocks = choose_plan([molecules()], 4, schedule=schedule, hardware=CPU)
    assert blocks.plan.schedule == schedule
    assert all(isinstance(r["plan"].primitives[0], Banded) for r in blocks.table)


def test_table_is_sorted_and_counts_work():
    plans = [Plan(Banded(64)), Plan(), Plan(rest=Grouped())]
    graphs = molecules(num_types=1)
    choice = choose_plan([graphs], 1, 32, 16, nodes=360, hardware=CPU, candidates=plans)
    assert {row["plan"] for row in choice.table} == set(plans)
    times = [row["ms"] for row in choice.table]
    assert times == sorted(times) and choice.plan == choice.table[0]["plan"]
    rows = {row["plan"]: row for row in choice.table}
    nodes, edges = 360, 360 / 18 * 34
    assert choice.nodes == nodes
    segment = 4 * edges * 32 + 6 * nodes * 32 * 16
    assert rows[plans[1]]["flops"] == pytest.approx(segment)
    assert rows[plans[1]]["dense"] == 0 and rows[plans[1]]["block_bytes"] == 0
    banded = rows[plans[0]]
    assert banded["dense"] == 1
    # Sums of blocks and of the rest are multiplied with the kernel once.
    products = banded["flops"] - 6 * nodes * 32 * 16
    assert products / (3 * nodes * 64 * 32) in (pytest.approx(4), pytest.approx(6))
    assert banded["block_bytes"] == pytest.approx(3 * nodes * 64 * 4)


def test_blocks_that_do_not_fit_the_memory_are_left_out(monkeypatch):
    hardware = cheap(matmul=((1e15,) * 3,) * 3, blocks=(1e15,) * 5, write=(1e15, 1e15))
    graphs = [molecules(num_types=1)]
    monkeypatch.setattr(auto_module, "_most_block_bytes", lambda: 900 * 3 * 64 * 4)
    choice = choose_plan(graphs, 1, nodes=900, hardware=hardware)
    assert choice.plan.keys[0] == "banded:64"
    monkeypatch.setattr(auto_module, "_most_block_bytes", lambda: 0)
    choice = choose_plan(graphs, 1, nodes=900, hardware=hardware)
    assert not any(row["dense"] for row in choice.table)
    with pytest.raises(ValueError, match="at most 0 bytes.*Reduce the nodes"):
        choose_plan(graphs, 1, hardware=hardware, candidates=[Plan(Banded(64))])


def test_memory_limit_is_sane():
    assert 2**24 < auto_module._most_block_bytes() <= 2**31


def test_choice_says_which_constants_it_used(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BANDGNN_DATA", str(tmp_path))
    graphs = [molecules(5)]
    text = str(choose_plan(graphs, 4))
    assert "default constants" in text and "run `bandgnn calibrate`" in text
    assert "ms/step" in text and "Plan(rest='grouped:16')" in text
    dataclasses.replace(CPU, date="2026-01-02", name="toy").save()
    assert "calibrated on 2026-01-02 (toy)" in str(choose_plan(graphs, 4))


def test_supergraphs_hold_one_graph_at_least_and_all_at_most():
    assert choose_plan([molecules(10)], 4, hardware=CPU).nodes == 180
    assert choose_plan([molecules(10)], 4, nodes=5, hardware=CPU).nodes == 18
    assert choose_plan([molecules(10)], 4, nodes=90, hardware=CPU).nodes == 90


def test_samples_come_from_all_parts():
    parts = [molecules(300), molecules(300), molecules(10)]
    sample = sampled(parts)
    assert len(sample) == 200
    assert len(sampled(parts, 340)) == 10
    assert len(sampled(parts, 1)) == 1
    assert len(sampled([molecules(3)])) == 3
    with pytest.raises(ValueError, match="at least one graph"):
        choose_plan([], 1, hardware=CPU)


def test_graphs_without_edges_have_a_plan():
    graphs = FlatGraphs.from_graphs([Graph(3, [], [])] * 4)
    assert choose_plan([graphs], 1, hardware=CPU).plan == Plan()
    assert choose_plan([graphs], 2, hardware=CPU).plan.rest is not None


def test_one_large_graph_has_few_plans(monkeypatch):
    monkeypatch.setattr(auto_module, "_LARGE", 1000)
    choice = choose_plan([wide()], 1, hardware=CPU)
    kinds = {key.split(":")[0] for row in choice.table for key in row["plan"].keys}
    assert kinds <= {"segment", "banded"}


@pytest.mark.parametrize("kind", ["gpu", "tpu"])
def test_accelerators_that_were_not_calibrated(monkeypatch, kind):
    """TPUs multiply blocks of a band; GPUs gather and sum rows as fast."""
    for module in (auto_module, cost):
        monkeypatch.setattr(module, "device", lambda: (kind, "any"))
    monkeypatch.setattr(Hardware, "calibrated", lambda dtype: None)
    near = np.arange(400)[:, None] + np.arange(1, 17)
    band = Graph(416, np.repeat(np.arange(400), 16), near.ravel())
    ends = np.random.default_rng(0).integers(0, 40_000, (2, 80_000))
    cases = (band, kind == "tpu"), (Graph(40_000, *ends), False)
    for graph, is_banded in cases:
        plan = auto_module.cheapest_plan([FlatGraphs.from_graphs([graph] * 9)], 1, 8192)
        assert any(key.startswith("banded") for key in plan.keys) == is_banded


def test_auto_plan_needs_no_graphs(monkeypatch):
    monkeypatch.setattr(auto_module.graph_ops, "has_accelerator", lambda: False)
    torch = keras.backend.backend() == "torch"
    assert auto_plan(1) == Plan(rest=Segment())
    assert auto_plan(3) == Plan(rest=Grouped(16 if torch else 256))
    assert auto_plan(30) == Plan(rest=Grouped(16 if torch else 64))
    assert auto_plan(30, nodes=40_000) == Plan(rest=Grouped(16 if torch else 256))
    monkeypatch.setattr(auto_module.graph_ops, "has_accelerator", lambda: True)
    assert auto_plan(1, 64) == Plan(Banded(64))
    assert auto_plan(3) == Plan(Banded(128), rest=Grouped(256))
    monkeypatch.setattr(auto_module, "device", lambda: ("gpu", "any"))
    assert auto_plan(3) == Plan(rest=Grouped(256))


@pytest.mark.every_backend
@pytest.mark.skipif(keras.backend.backend() == "torch", reason="has no large groups")
def test_types_with_many_rows_have_large_groups(monkeypatch):
    monkeypatch.setattr(auto_module.graph_ops, "has_accelerator", lambda: False)
    monkeypatch.setattr(Hardware, "calibrated", lambda *_: None)
    parts, size = [molecules(400)], {"jax": 1024}.get(keras.backend.backend(), 256)
    # Each of the 7,200 atoms has at most three types.
    for schedule in (None, ReceptiveField(2)):
        monkeypatch.setattr(auto_module, "_MANY_ROWS", 200)
        plan = cheapest_plan(parts, 4, 7200, schedule=schedule)
        assert plan == Plan(rest=Grouped(size), schedule=schedule)
        plan = cheapest_plan(parts, 4, 7200, schedule=schedule, num_hosts=2)
        assert plan.rest == Grouped(256)
        monkeypatch.setattr(auto_module, "_MANY_ROWS", 20_000)
        plan = cheapest_plan(parts, 4, 7200, schedule=schedule)
        assert plan.rest == Grouped(256)
    assert cheapest_plan(parts, 1, 7200) == Plan(rest=Segment())
    for empty in ([], [parts[0].take([])]):
        assert cheapest_plan(empty, 4, 7200) == Plan(rest=Grouped(256))
