import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.batch import unbatch
from keras_bandgnn.data import FlatGraphs, open_store, write_store
from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader
from keras_bandgnn.preprocessing.batching.batcher import ceil64
from keras_bandgnn.preprocessing.batching.dynamic_batcher import pack_sequential
from keras_bandgnn.preprocessing.loading.graph_loader import spread
from keras_bandgnn.primitives import Banded, Grouped, Plan
from keras_bandgnn.testing import random_graph

pytestmark = pytest.mark.every_backend("show_both_shapes", "batch_contract")


def graphs_of(sizes, seed=0):
    rng = np.random.default_rng(seed)
    return [random_graph(rng, int(n)) for n in sizes]


def ids_of(loader, epoch=0):
    out = []
    for index in range(len(loader)):
        ids = loader.build(index, epoch)[0]["graph"]["id"]
        out.extend(ids[ids >= 0].tolist())
    return out


def test_ceil64_is_strictly_above():
    assert ceil64(np.array([0, 1, 63, 64, 65])).tolist() == [64, 64, 64, 128, 128]


def test_sequential_packing_by_hand():
    sizes = np.array([[3, 1], [4, 1], [3, 1], [9, 1], [1, 1], [1, 1], [1, 1]])
    packed = pack_sequential(sizes, np.arange(7), np.array([10, 3]))
    # 3+4+3 fills ten exactly; 9+1 fits, the next would not; three graphs at most.
    assert [p.tolist() for p in packed] == [[0, 1, 2], [3, 4], [5, 6]]


def test_spread_splits_the_fullest():
    parts = spread([np.arange(4), np.arange(4, 5)], 4)
    assert sorted(np.concatenate(parts).tolist()) == [0, 1, 2, 3, 4]
    assert [len(p) for p in parts] == [1, 1, 2, 1]
    assert [len(p) for p in spread([np.arange(1)], 3)] == [1, 0, 0]


def test_batch_contract():
    graphs = graphs_of([5, 8, 3])
    budget = {"node": 20, "edge": 60, "graph": 5}
    loader = GraphLoader(graphs, DynamicBatcher(budget=budget), shuffle=False)
    x, y, weight = loader[0]
    assert x["node"]["mask"].shape == (1, 20) and x["node"]["mask"].sum() == 16
    assert x["node"]["graph_id"][0].tolist() == [0] * 5 + [1] * 8 + [2] * 3 + [4] * 4
    assert x["node"]["subtoken"].shape == (1, 20, 3)
    assert x["graph"]["n_node"].tolist() == [[5, 8, 3, 0, 0]]
    assert x["graph"]["n_edge"].tolist() == [[15, 24, 9, 0, 0]]
    assert x["graph"]["id"].tolist() == [[0, 1, 2, -1, -1]]
    assert x["graph"]["mask"].tolist() == [[True] * 3 + [False] * 2]
    receiver = x["edge"]["receiver"][0]
    assert (np.diff(receiver) >= 0).all() and (receiver[48:] == 20).all()
    assert not x["edge"]["sender"][0, 48:].any()
    # Candidates and slots point at their own graph.
    starts = np.array([0, 5, 13])
    for slot, graph in enumerate(graphs):
        nodes = x["candidate"]["node"][0, slot][x["candidate"]["mask"][0, slot]]
        assert nodes.tolist() == (graph.candidates + starts[slot]).tolist()
        assert x["candidate"]["slot"][0, slot] == graph.slot + starts[slot]
    assert y[0, :3].tolist() == [int(g.label) for g in graphs]
    assert weight.tolist() == [[1, 1, 1, 0, 0]]
    for leaf in (*x["node"].values(), *x["edge"].values(), *x["graph"].values()):
        assert leaf.shape[0] == 1 and leaf.dtype in (np.int32, np.float32, bool)


def test_labels_of_graphs_and_nodes():
    loader = GraphLoader([Graph(2, [], [], label=1.5), Graph(3, [], [], label=2.5)])
    _, y, weight = loader[0]
    assert y.shape == (*weight.shape, 1) and sorted(y[weight > 0].ravel()) == [1.5, 2.5]
    nodes = [Graph(2, [], [], label=[4, 5], label_level="node")]
    _, y, weight = GraphLoader(nodes)[0]
    assert y[weight > 0].tolist() == [4, 5]
    assert len(GraphLoader([Graph(2, [], [])])[0]) == 1


def test_epochs_differ_and_are_reproducible():
    loaders = [
        GraphLoader(graphs_of([4, 9, 5, 7] * 20), DynamicBatcher(7), seed=3)
        for _ in range(2)
    ]
    assert ids_of(loaders[0], 0) == ids_of(loaders[1], 0) != ids_of(loaders[0], 1)
    assert ids_of(loaders[0], 5) == ids_of(loaders[1], 5)
    still = GraphLoader(graphs_of([4] * 20), DynamicBatcher(7), shuffle=False)
    assert ids_of(still) == list(range(20))
    still.on_epoch_end()
    assert still.epoch == 0


def test_prefetching_changes_nothing():
    graphs = graphs_of([4, 9, 5, 7] * 10)
    ahead = GraphLoader(graphs, DynamicBatcher(7), prefetch=3)
    alone = GraphLoader(graphs, DynamicBatcher(7), prefetch=0)
    for index in [0, 0, 1, 2, 1, len(alone) - 1]:
        a, b = ahead[index], alone[index]
        np.testing.assert_array_equal(a[0]["node"]["type"], b[0]["node"]["type"])
    for loader in (ahead, alone):
        loader.on_epoch_end()
    np.testing.assert_array_equal(ahead[1][1], alone[1][1])
    with pytest.raises(IndexError, match="batch index"):
        ahead[len(ahead)]


def test_oversized_graphs_get_a_bucket_of_their_own():
    graphs = graphs_of([5, 200, 6, 7, 300])
    loader = GraphLoader(graphs, DynamicBatcher(budget={"node": 64}))
    assert sorted(ids_of(loader)) == [0, 1, 2, 3, 4]
    shapes = {loader.build(i, 0)[0]["node"]["mask"].shape for i in range(len(loader))}
    assert shapes == {(1, 64), (1, 320)}
    dropping = GraphLoader(
        graphs, DynamicBatcher(budget={"node": 64}, oversize="drop"), shuffle=False
    )
    assert ids_of(dropping) == [0, 2, 3] and dropping.num_dropped == 2
    with pytest.raises(ValueError, match="2 graphs above it, first graph 1"):
        GraphLoader(graphs, DynamicBatcher(budget={"node": 64}, oversize="raise"))


def test_adapted_budget_is_at_least_the_papers():
    rng = np.random.default_rng(0)
    nodes = rng.integers(3, 30, 500)
    batcher = DynamicBatcher(31, packing="sequential")
    batcher.adapt({"node": nodes, "edge": nodes * (nodes - 1)})
    assert batcher.budget["graph"] == 32
    assert batcher.budget["node"] == max(ceil64(nodes.mean() * 32), ceil64(nodes.max()))
    assert batcher.budget["edge"] >= ceil64((nodes * (nodes - 1)).max())


def test_a_graph_that_fills_the_budget_exactly_fits():
    graph = random_graph(np.random.default_rng(0), 63)
    loader = GraphLoader([graph], DynamicBatcher(budget={"node": 64}))
    assert len(loader.budgets) == 1
    assert loader[0][0]["node"]["mask"].sum() == 63


def test_stores_and_lists_give_the_same_batches(tmp_path):
    graphs = graphs_of([4, 9, 5, 7, 3, 8])
    store = write_store(tmp_path / "s", graphs, shard_size=4)
    plan = Plan(Banded(4), rest=Grouped())
    for source in (graphs, FlatGraphs.from_graphs(graphs), open_store(store.path)):
        loader = GraphLoader(source, DynamicBatcher(3), plan, shuffle=False)
        assert sorted(ids_of(loader)) == list(range(6))
        x = loader.build(0, 0)[0]
        types = unbatch(x["node"]["type"], x, "node")
        for index, rows in types:
            np.testing.assert_array_equal(rows, graphs[index].node["type"])


def test_replicas_share_one_shape():
    loader = GraphLoader(graphs_of([4, 9, 5, 7, 3]), DynamicBatcher(2), replicas=2)
    for index in range(len(loader)):
        x = loader.build(index, 0)[0]
        assert x["node"]["mask"].shape[0] == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GraphLoader([]), "at least one graph"),
        (lambda: GraphLoader(3), "list of Graph"),
        (lambda: GraphLoader([1]), "a Graph, a dictionary"),
        (
            lambda: GraphLoader([Graph(1, [], [])], DynamicBatcher(3, {"nodes": 8})),
            "unknown resources",
        ),
        (lambda: GraphLoader([Graph(1, [], [])], plan=3), "`plan` to be"),
        (
            lambda: GraphLoader([Graph(2, [0], [1], [4])], num_edge_types=3),
            "Received: type 4",
        ),
        (
            lambda: GraphLoader([Graph(1, [], []), Graph(1, [], [], node={"a": [1]})]),
            "graph 1",
        ),
        (lambda: DynamicBatcher(0), "at least 1"),
        (lambda: DynamicBatcher(3, {"node": 0}), "at least 1"),
        (lambda: DynamicBatcher(3, oversize="ignore"), "'bucket', 'drop', 'raise'"),
        (lambda: DynamicBatcher().fits({"node": np.ones(3)}), "are missing"),
        (
            lambda: GraphLoader(
                [Graph(99, [], [])], DynamicBatcher(3, {"node": 8}, "drop")
            ),
            "within the budget",
        ),
        (
            lambda: unbatch(
                np.zeros((1, 2)),
                {
                    "graph": {
                        "mask": [[True, False]],
                        "id": [[0, -1]],
                        "n_node": [[1, 0]],
                    }
                },
                "step",
            ),
            "`level`",
        ),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_first_two_batches_show_both_shapes(shuffle):
    graphs = graphs_of([5, 200, 6, 7, 300, 8, 9, 200] * 3)
    loader = GraphLoader(graphs, DynamicBatcher(3, {"node": 64}), shuffle=shuffle)
    for epoch in range(3):
        first, second = (s.budget["node"] for s in loader.composition(epoch)[:2])
        assert (first, second) == (320, 64)
        assert sorted(ids_of(loader, epoch)) == list(range(24))
