import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bandgnn import Graph
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphLoader,
    GraphPreprocessor,
    StaticBatcher,
)
from keras_bandgnn.preprocessing.batching.batcher import (
    round_up_64,
    round_up_power_of_two,
)
from keras_bandgnn.preprocessing.batching.dynamic_batcher import pack_best_fit
from keras_bandgnn.preprocessing.loading.graph_loader import GraphComposer


def path_graph(nodes, edges):
    return Graph(nodes, [0] * edges, [i % nodes for i in range(edges)])


def batches_of(nodes, edges, batcher):
    """Members and (N, E, B) of each batch, in the given order."""
    graphs = [path_graph(n, e) for n, e in zip(nodes, edges, strict=True)]
    loader = GraphLoader(graphs, batcher, shuffle=False)
    out = []
    for index in range(len(loader)):
        x = loader.build(index, 0)[0]
        ids = x["graph"]["id"][0]
        shape = (
            x["node"]["mask"].shape[1],
            x["edge"]["mask"].shape[1],
            x["graph"]["mask"].shape[1],
        )
        assert x["plan"]["segment"]["sender"].shape[1] == shape[1]
        out.append((ids[ids >= 0].tolist(), shape))
    return sorted(out)


# Sums of the batches with b = 4: nodes 60+60+7 = 127, 40+30+20 = 90, 64; edges
# 128+0+0 = 128, 100+29+0 = 129, 1.
NODES = [60, 60, 7, 40, 30, 20, 64]
EDGES = [128, 0, 0, 100, 29, 0, 1]


def test_static_64_by_hand():
    # 127 + 1 fills 128 exactly; 64 + 1 needs the next multiple.
    assert batches_of(NODES, EDGES, StaticBatcher(3, "64")) == [
        ([0, 1, 2], (128, 128, 4)),
        ([3, 4, 5], (128, 192, 4)),
        ([6], (128, 64, 4)),
    ]


def test_static_power_of_two_by_hand():
    assert batches_of(NODES, EDGES, StaticBatcher(3, "power_of_two")) == [
        ([0, 1, 2], (128, 128, 4)),
        ([3, 4, 5], (128, 256, 4)),
        ([6], (128, 1, 4)),
    ]


def test_static_constant_by_hand():
    # Largest 64 nodes and 128 edges, of the data set: 4 * 64 = 256 and 4 * 128 = 512
    # are multiples of 64, and the padded sizes lie strictly above.
    assert batches_of(NODES, EDGES, StaticBatcher(3, "constant")) == [
        ([0, 1, 2], (320, 576, 4)),
        ([3, 4, 5], (320, 576, 4)),
        ([6], (320, 576, 4)),
    ]


def test_dynamic_by_hand():
    # Mean nodes 281 / 7 = 40.14, times 4 = 160.6 -> 192; largest 64 -> 128.
    # Mean edges 258 / 7 = 36.86, times 4 = 147.4 -> 192; largest 128 -> 192.
    batcher = DynamicBatcher(3, packing="sequential")
    # 60 + 60 + 7 = 127, three graphs are the most; 40 + 30 + 20 = 90; 64.
    assert batches_of(NODES, EDGES, batcher) == [
        ([0, 1, 2], (192, 192, 4)),
        ([3, 4, 5], (192, 192, 4)),
        ([6], (192, 192, 4)),
    ]
    assert batcher.budget["segment"] == 192


def test_dynamic_opens_the_next_batch_with_the_graph_that_did_not_fit():
    budget = {"node": 128, "edge": 100, "graph": 10}
    nodes, edges = [60, 60, 7, 1, 50, 50, 28], [0, 0, 0, 50, 50, 1, 0]
    # 60 + 60 + 7 fills 127 of 128, one node is padding. 1 + 50 nodes have 100 edges,
    # which fills the budget exactly: no edge is padding. One edge more opens a batch.
    batcher = DynamicBatcher(budget=budget, packing="sequential")
    assert batches_of(nodes, edges, batcher) == [
        ([0, 1, 2], (128, 100, 10)),
        ([3, 4], (128, 100, 10)),
        ([5, 6], (128, 100, 10)),
    ]


def test_a_graph_above_the_budget_by_hand():
    budget = {"node": 64, "edge": 64, "graph": 4}
    nodes, edges = [30, 64, 30], [3, 3, 3]
    bucket = batches_of(nodes, edges, DynamicBatcher(budget=budget))
    assert bucket == [([0, 2], (64, 64, 4)), ([1], (128, 64, 4))]
    dropped = batches_of(nodes, edges, DynamicBatcher(budget=budget, oversize="drop"))
    assert dropped == [([0, 2], (64, 64, 4))]
    with pytest.raises(ValueError, match="first graph 1"):
        batches_of(nodes, edges, DynamicBatcher(budget=budget, oversize="raise"))


def test_constant_padding_meets_a_larger_graph_later():
    batcher = StaticBatcher(2)
    batches_of([5, 5], [2, 2], batcher)
    assert batches_of([5, 40, 5], [2, 2, 2], batcher) == [
        ([0, 2], (64, 64, 3)),
        ([1], (128, 64, 3)),
    ]


@pytest.mark.parametrize("packing", ["sequential", "best_fit"])
def test_dynamic_makes_no_room_for_graphs_that_are_not_there(packing):
    batcher = DynamicBatcher(packing=packing)
    batcher.adapt({"node": np.array([100]), "edge": np.array([400])})
    assert (batcher.budget["node"], batcher.budget["edge"]) == (128, 448)
    few = {"node": np.array([100, 30, 70]), "edge": np.array([400, 90, 300])}
    batcher = DynamicBatcher(packing=packing)
    batcher.adapt(few)
    # 200 nodes and one of padding; no edge need be padding.
    assert batcher.budget["node"] == 256
    assert 790 <= batcher.budget["edge"] <= 832
    assert len(batcher.pack(few, [0, 1, 2], batcher.budget)) == 1


def test_dynamic_estimates_from_the_first_graphs():
    sizes = {"node": np.array([10] * 1000 + [90] * 1000), "edge": np.full(2000, 4)}
    batcher = DynamicBatcher(31, estimate_from=1000)
    batcher.adapt(sizes)
    # 10 * 32 = 320 is a multiple of 64, and the target lies strictly above.
    assert (batcher.budget["node"], batcher.budget["edge"]) == (384, 192)
    batcher = DynamicBatcher(1, estimate_from=1000)
    batcher.adapt({"node": np.array([3, 70]), "edge": np.array([0, 0])})
    assert (batcher.budget["node"], batcher.budget["edge"]) == (128, 64)


def test_drop_trigger_loses_every_bth_graph_and_the_rest():
    graphs = [path_graph(3, 2)] * 11
    batcher = StaticBatcher(3, "64", drop_trigger=True)
    loader = GraphLoader(graphs, batcher, shuffle=False)
    kept = [s.members.tolist() for s in loader.composition(0)]
    # 0 1 2, 3 triggers; 4 5 6, 7 triggers; 8 9 10 are never yielded.
    assert kept == [[0, 1, 2], [4, 5, 6]]
    whole = GraphLoader(graphs, StaticBatcher(3, "64"), shuffle=False)
    assert sum(len(s.members) for s in whole.composition(0)) == 11


def test_replicas_are_padded_to_the_largest():
    graphs = [path_graph(n, n) for n in (10, 10, 100, 100)]
    loader = GraphLoader(graphs, StaticBatcher(2, "64"), shuffle=False, replicas=2)
    x = loader.build(0, 0)[0]
    assert x["node"]["mask"].shape == (2, 256) and x["node"]["mask"].sum() == 220


def test_rounding():
    assert round_up_64(np.array([0, 1, 64, 65])).tolist() == [64, 64, 64, 128]
    powers = round_up_power_of_two(np.array([0, 1, 2, 3, 4, 5, 1 << 20, (1 << 20) + 1]))
    assert powers.tolist() == [1, 1, 2, 4, 4, 8, 1 << 20, 1 << 21]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 50), st.integers(0, 80)), min_size=1, max_size=150
    ),
    window=st.integers(1, 64),
    slack=st.integers(0, 100),
    balanced=st.booleans(),
)
def test_best_fit_packs_every_graph_once_within_capacity(
    sizes, window, slack, balanced
):
    table = np.array([(n, e, 1) for n, e in sizes], np.int64)
    capacity = table.max(axis=0) + np.array([slack, slack, 5])
    weight = np.array([1.0, 1.0, 0.0])
    order = np.arange(len(table))
    packed = pack_best_fit(table, order, capacity, window, weight, balanced)
    assert sorted(np.concatenate(packed).tolist()) == list(range(len(table)))
    place = {g: i for i, members in enumerate(packed) for g in members.tolist()}
    for index, members in enumerate(packed):
        assert (table[members].sum(axis=0) <= capacity).all()
        # The oldest of the pool leaves with its supergraph: nobody waits for longer
        # than it takes to pack the window before it.
        assert min(members) <= min(
            [g for g, i in place.items() if i >= index], default=0
        )


def test_best_fit_fills_many_resources_alike():
    rng = np.random.default_rng(0)
    nodes = rng.lognormal(6, 0.7, 3000).clip(20, 3000).astype(np.int64)
    sizes = {"node": nodes, "edge": 3 * nodes}
    for step in range(8):
        share = rng.beta(2, 4, 3000)
        sizes[f"node@{step}"] = (share * nodes).astype(np.int64) + 1
    batcher = DynamicBatcher(budget={"node": 20_000}, packing="best_fit")
    batcher.adapt(sizes)
    packed = batcher.pack(sizes, rng.permutation(3000), batcher.budget)
    assert sorted(np.concatenate(packed).tolist()) == list(range(3000))
    for step in range(8):
        name = f"node@{step}"
        filled = sum(sizes[name]) / (len(packed) * batcher.budget[name])
        # 0.91 to 0.93 if only the last two graphs are chosen.
        assert filled > 0.95


def test_best_fit_wastes_little():
    rng = np.random.default_rng(0)
    nodes = rng.normal(18, 3, 4000).clip(3, 29).astype(np.int64)
    sizes = {"node": nodes, "edge": nodes * (nodes - 1)}
    waste = {}
    for packing in ("sequential", "best_fit"):
        batcher = DynamicBatcher(31, packing=packing)
        batcher.adapt(sizes)
        epochs = GraphComposer(sizes, batcher, 0, 1)
        made = epochs.composition(1)
        assert sorted(np.concatenate([s.members for s in made])) == list(range(4000))
        waste[packing] = [
            1 - sizes[k].sum() / sum(s.budget[k] for s in made) for k in sizes
        ]
    assert waste["best_fit"][0] < 0.03 and waste["best_fit"][1] < 0.06
    assert waste["sequential"][0] > 0.05


def test_quantile_budgets_of_few_graphs_fill_the_last_supergraph():
    rng = np.random.default_rng(1)
    nodes = np.minimum(rng.lognormal(6, 0.8, 300), 4000).astype(np.int64)
    sizes = {"node": nodes, "edge": (nodes * rng.uniform(3, 4, 300)).astype(np.int64)}
    batcher = DynamicBatcher(31, packing="best_fit")
    batcher.adapt(sizes)
    made = GraphComposer(sizes, batcher, 0, 1).composition(0)
    for name, most in (("node", 0.05), ("edge", 0.1)):
        padded = sum(s.budget[name] for s in made)
        assert 1 - sizes[name].sum() / padded < most


@pytest.mark.parametrize(
    "batcher",
    [
        StaticBatcher(4, "power_of_two"),
        StaticBatcher(4, oversize="drop"),
        StaticBatcher(4, "64", drop_trigger=True),
        DynamicBatcher(6, packing="best_fit", window=99),
        DynamicBatcher(6, estimate="quantile", estimate_from=10),
    ],
)
def test_configurations_come_back(batcher):
    batcher.adapt({"node": np.array([4, 9]), "edge": np.array([3, 5])})
    read = type(batcher).from_config(batcher.get_config())
    assert read.get_config() == batcher.get_config()
    kept = GraphPreprocessor([], batcher)
    again = GraphPreprocessor.from_config(kept.get_config()).batcher
    assert type(again) is type(batcher) and again.budget == batcher.budget
    copied = batcher.copy()
    copied.adapt({"node": np.array([400, 9]), "edge": np.array([900, 5])})
    assert again.budget == batcher.budget


@pytest.mark.parametrize("cls", [DynamicBatcher, StaticBatcher])
def test_files_that_count_the_padding_graph_keep_their_graphs(cls):
    config = cls(7).get_config()
    del config["graphs"]
    old = cls.from_config({**config, "batch_size": 8})
    copies = [old, old.copy(), pickle.loads(pickle.dumps(old))]
    assert [batcher.graphs for batcher in copies] == [7, 7, 7]


@pytest.mark.parametrize("entry", [{"class_name": "Dense", "config": {}}, {}])
def test_entries_of_other_classes_are_refused(entry):
    with pytest.raises(ValueError, match="a batcher, with"):
        GraphPreprocessor.from_config({"layers": [], "batcher": entry, "plan": "auto"})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StaticBatcher(3, "32"), "'constant', '64', 'power_of_two'"),
        (lambda: StaticBatcher(0), "at least 1"),
        (lambda: StaticBatcher(batch_size=4), "graphs=B - 1"),
        (lambda: DynamicBatcher(packing="best"), "'sequential', 'best_fit'"),
        (lambda: DynamicBatcher(estimate="max"), "'auto', 'mean', 'quantile'"),
        (lambda: DynamicBatcher(window=0), "at least 1"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
