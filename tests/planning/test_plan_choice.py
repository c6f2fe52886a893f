import keras
import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.planning import plan_choice as auto_module
from keras_bandgnn.planning.cost import Hardware
from keras_bandgnn.planning.plan_choice import (
    auto_plan,
    choose_plan,
    reason_of_auto,
    sampled,
)
from keras_bandgnn.primitives import Banded, Grouped, Plan, ReceptiveField, Segment
from tests.planning import machines

CPU = machines.machine(machines.CPU)


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


def cheap(*names, **rates):
    """A machine that can do some things well."""
    fast = dict.fromkeys((*names, "launch"), 1e15)
    return machines.uniform(1e6, **fast | rates)


def test_constants_of_cpus_choose_lists_of_edges():
    hardware = CPU
    graphs = [molecules(num_types=1)]
    assert choose_plan(graphs, 1, hardware=hardware).plan == Plan()
    graphs = [molecules(num_types=4)]
    plan = choose_plan(graphs, 4, hardware=hardware).plan
    assert isinstance(plan.rest, Grouped) and plan.rest.first == "transform"


def test_sparse_products_for_free_give_segment():
    hardware = cheap("sparse", "write", "matmul")
    assert choose_plan([molecules()], 4, hardware=hardware).plan == Plan()


def test_grouped_products_for_free_give_grouped():
    hardware = cheap("grouped", "gather", "write")
    plan = choose_plan([molecules()], 4, hardware=hardware).plan
    assert isinstance(plan.rest, Grouped) and plan.rest.first == "transform"
    # With rows that are dear to read, those that are summed first.
    hardware = cheap("grouped", "sparse", "write")
    plan = choose_plan([molecules()], 4, hardware=hardware).plan
    assert plan.rest.first == "aggregate"
    # Products of small groups may be slow, but not where a type is one product.
    hardware = cheap("gather", "write")
    hardware.rates["grouped"][:] = 1e3, 1e3, 1e15
    plan = choose_plan([molecules()], 4, hardware=hardware).plan
    torch = keras.backend.backend() == "torch"
    assert torch or plan == Plan(rest=Grouped(256))


def test_dense_products_for_free_give_a_primitive_of_blocks():
    hardware = cheap("matmul", "blocks", "write")
    choice = choose_plan([molecules(num_types=1)], 1, hardware=hardware)
    assert isinstance(choice.plan.primitives[0], Banded)
    assert choice.table[0]["dense"] > 0.99
    # Where no edge is near the diagonal, bands are no use.
    assert choose_plan([wide()], 1, hardware=hardware).plan == Plan()


def test_hubs_give_supernodes():
    size = 400
    hubs = [
        Graph(size, np.r_[np.arange(1, size), 0 * np.arange(1, size)],
              np.r_[0 * np.arange(1, size), np.arange(1, size)])
        for _ in range(3)
    ]  # fmt: skip
    hardware = cheap("matmul", "blocks", "write", "grouped")
    plan = choose_plan([FlatGraphs.from_graphs(hubs)], 1, hardware=hardware).plan
    assert plan.keys[0] == "supernode:64"


def test_full_tiles_give_tiles():
    # Cliques of 16, far apart: their tiles are full, all else is empty.
    clique = np.arange(16)
    sender, receiver = np.repeat(clique, 16), np.tile(clique, 16)
    graphs = FlatGraphs.from_graphs([Graph(200, sender, receiver)] * 20)
    hardware = cheap("gather", "scatter", "grouped", "write", matmul=1e9, blocks=1e9)
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
    times = {row["plan"].keys: row["ms"] for row in whole.table}
    for row in compact.table:
        assert row["ms"] < times[row["plan"].keys]
    schedule = ReceptiveField(3, merge=False, order="blocks")
    blocks = choose_plan([molecules()], 4, schedule=schedule, hardware=CPU)
    assert blocks.plan.schedule == schedule
    assert all(isinstance(r["plan"].primitives[0], Banded) for r in blocks.table)


def test_table_is_sorted_and_counts_work():
    hardware = machines.uniform(1.0, launch=1e30)
    choice = choose_plan([molecules(num_types=1)], 1, 32, nodes=360, hardware=hardware)
    times = [row["ms"] for row in choice.table]
    assert times == sorted(times) and choice.plan == choice.table[0]["plan"]
    assert "supergraphs of 360 nodes" in choice.reason
    rows = {row["plan"]: row for row in choice.table}
    nodes, edges, numbers = 360, 360 / 18 * 34, 4 * 32
    segment = edges * 32 + 2 * nodes * numbers + 6 * nodes * 32**2
    assert rows[Plan()]["ms"] == pytest.approx(1e3 * segment)
    assert rows[Plan()]["dense"] == 0
    banded = rows[Plan(Banded(64))]
    assert banded["dense"] == 1
    # Sums of blocks and of the rest are multiplied with the kernel once. A step takes
    # an eighth of building the blocks.
    blocks = 4 * 3 * nodes * 64 * 32 + 3 * nodes * 64 * 4 / 8 + edges * 64 / 8
    seconds = blocks + 2 * nodes * numbers + 6 * nodes * 32**2
    assert banded["ms"] == pytest.approx(1e3 * seconds, rel=0.01)


def test_blocks_of_two_gigabytes_are_left_out():
    hardware = cheap("matmul", "blocks", "write")
    graphs = FlatGraphs.from_graphs([Graph(600_000, [0, 1, 2], [1, 2, 3])])
    choice = choose_plan([graphs], 1, nodes=600_000, hardware=hardware)
    # N * 3 * S * 4 bytes: 0.46 GB for each 64 columns of the blocks.
    times = {row["plan"].keys[0]: row["ms"] for row in choice.table}
    assert times["banded:64"] < np.inf and times["banded:256"] < np.inf
    choice = choose_plan([graphs], 1, nodes=600_000, hardware=hardware, block_size=512)
    times = {row["plan"].keys[0]: row["ms"] for row in choice.table}
    assert times["banded:512"] == times["banded:1024"] == np.inf
    assert choice.plan.keys[0] not in ("banded:512", "banded:1024")


def test_choice_says_what_it_goes_by(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BANDGNN_DATA", str(tmp_path))
    graphs = [molecules(5)]
    choice = choose_plan(graphs, 4)
    assert choice.plan == auto_plan(4, nodes=90) and choice.table == ()
    assert (
        "edge lists, as on every" in str(choice) and choice.reason == reason_of_auto()
    )
    CPU.save()
    text = str(choose_plan(graphs, 4))
    assert "ms/step" in text and "Plan(rest='grouped:16')" in text
    assert "toy" in text and "2026-01-02" in text
    assert reason_of_auto() == "the cheapest by constants of this machine"
    # Hosts that train together must agree.
    assert choose_plan(graphs, 4, num_hosts=2).table == ()
    assert "constants" not in reason_of_auto(2)


def test_supergraphs_hold_one_graph_at_least_and_all_at_most():
    assert sampled([molecules(10)], 8192)[1] == 180
    assert sampled([molecules(10)], 5)[1] == 18
    assert sampled([molecules(10)], 90)[1] == 90


def test_samples_come_from_all_parts(monkeypatch):
    parts = [molecules(300), molecules(300), molecules(1), molecules(9)]
    assert 150 <= len(sampled(parts, 1)[0]) <= 200
    assert len(sampled([molecules(3)], 1)[0]) == 3
    monkeypatch.setattr(auto_module, "_EDGES", 340)
    assert len(sampled(parts, 1)[0]) == 10
    monkeypatch.setattr(auto_module, "_EDGES", 1)
    assert len(sampled(parts, 1)[0]) == 1
    # Sorted data gives an unbiased sample.
    monkeypatch.setattr(auto_module, "_EDGES", 10**6)
    sizes = [Graph(n, [0], [1]) for n in range(2, 1002)]
    sample, _ = sampled([FlatGraphs.from_graphs(sizes)], 1)
    assert sample.num_nodes.mean() == pytest.approx(501.5, abs=1)


def test_graphs_without_edges_have_a_plan():
    graphs = FlatGraphs.from_graphs([Graph(3, [], [])] * 4)
    assert choose_plan([graphs], 1, hardware=CPU).plan == Plan()
    assert choose_plan([graphs], 2, hardware=CPU).plan.rest is not None


def test_one_large_graph_has_few_plans(monkeypatch):
    monkeypatch.setattr(auto_module, "_LARGE", 1000)
    choice = choose_plan([wide()], 1, hardware=CPU)
    kinds = {key.split(":")[0] for row in choice.table for key in row["plan"].keys}
    assert kinds <= {"segment", "banded"}


def test_auto_plan_needs_no_graphs(monkeypatch):
    monkeypatch.setattr(auto_module.graph_ops, "has_accelerator", lambda: False)
    torch = keras.backend.backend() == "torch"
    assert auto_plan(1) == Plan(rest=Segment())
    assert auto_plan(3) == Plan(rest=Grouped(16 if torch else 256))
    assert auto_plan(30) == Plan(rest=Grouped(16 if torch else 64))
    assert auto_plan(30, nodes=40_000) == Plan(rest=Grouped(16 if torch else 256))
    blocks = ReceptiveField(3, merge=False, order="blocks")
    assert auto_plan(1, 32, blocks) == Plan(Banded(32), schedule=blocks)
    monkeypatch.setattr(auto_module.graph_ops, "has_accelerator", lambda: True)
    assert auto_plan(1, 64) == Plan(Banded(64))
    assert auto_plan(3) == Plan(Banded(128), rest=Grouped(256))
    monkeypatch.setattr(auto_module.backend, "device", lambda: ("gpu", "any"))
    assert auto_plan(3) == Plan(rest=Grouped(256))
    assert reason_of_auto(2) == "edge lists, as on every GPU"
    monkeypatch.setattr(auto_module.backend, "device", lambda: ("tpu", "any"))
    assert reason_of_auto(2) == "dense blocks, as on every TPU"


@pytest.mark.every_backend
@pytest.mark.skipif(keras.backend.backend() == "torch", reason="has no large groups")
def test_types_with_many_rows_have_large_groups(monkeypatch):
    monkeypatch.setattr(auto_module.graph_ops, "has_accelerator", lambda: False)
    monkeypatch.setattr(Hardware, "calibrated", lambda *_: None)
    parts, size = [molecules(400)], {"jax": 1024}.get(keras.backend.backend(), 256)
    # Each of the 7,200 atoms has at most three types.
    for schedule in (None, ReceptiveField(2)):
        monkeypatch.setattr(auto_module, "_MANY_ROWS", 200)
        plan = choose_plan(parts, 4, nodes=7200, schedule=schedule).plan
        assert plan == Plan(rest=Grouped(size), schedule=schedule)
        options = {"nodes": 7200, "schedule": schedule}
        plan = choose_plan(parts, 4, **options, num_hosts=2).plan
        assert plan.rest == Grouped(256)
        monkeypatch.setattr(auto_module, "_MANY_ROWS", 20_000)
        plan = choose_plan(parts, 4, nodes=7200, schedule=schedule).plan
        assert plan.rest == Grouped(256)
    assert choose_plan(parts, 1, nodes=7200).plan == Plan(rest=Segment())
    for empty in ([], [parts[0].take([])]):
        assert choose_plan(empty, 4, nodes=7200).plan == Plan(rest=Grouped(256))
