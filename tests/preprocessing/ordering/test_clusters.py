import importlib.util
import sys

import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.preprocessing import (
    ClusterCompile,
    DynamicBatcher,
    GraphPreprocessor,
    cluster_order,
    reform,
)
from keras_bandgnn.preprocessing.ordering import cluster_compile as clusters
from keras_bandgnn.preprocessing.ordering.cluster_compile import num_clusters_for

needs_metis = pytest.mark.skipif(
    importlib.util.find_spec("pymetis") is None, reason="needs pymetis"
)


def blocks(count, size, inside=6, seed=0):
    """Dense clusters in a ring, one edge between neighbours; nodes shuffled."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, size, (2, count, inside * size))
    ends = (ends + size * np.arange(count)[:, None]).reshape(2, -1)
    first = size * np.arange(count)
    order = rng.permutation(count * size)
    senders = np.concatenate([ends[0], first])
    receivers = np.concatenate([ends[1], np.roll(first, 1)])
    return Graph(count * size, order[senders], order[receivers]), order


def held(graph, order, block_size=16):
    """Edges in the best tiles, as many entries as edges."""
    graph = graph.subgraph(order)
    tiles = max(graph.num_edges // block_size**2, 1)
    return reform(
        graph.senders,
        graph.receivers,
        graph.num_nodes,
        block_size=block_size,
        num_tiles=tiles,
    ).edge_coverage


@needs_metis
@pytest.mark.parametrize("within", clusters.WITHIN)
def test_clusters_are_contiguous(within):
    graph, shuffled = blocks(4, 300)
    made = cluster_order(graph, 4, within)
    assert made.order.dtype == made.starts.dtype == made.cluster.dtype == np.int32
    assert sorted(made.order) == list(range(1200))
    assert made.starts[0] == 0 and made.starts[-1] == 1200 and made.starts.size == 5
    truth = (np.argsort(shuffled) // 300)[made.order]
    for cluster in range(4):
        places = made.cluster == cluster
        assert places[made.starts[cluster] : made.starts[cluster + 1]].all()
        assert np.bincount(truth[places]).max() > 0.95 * places.sum()
    assert within == "auto" or made.within == within
    again = cluster_order(graph, 4, within)
    np.testing.assert_array_equal(made.order, again.order)


@needs_metis
def test_auto_takes_the_order_that_holds_most():
    rng = np.random.default_rng(0)
    hubs = rng.zipf(1.3, 4000) % 400
    for graph in (
        blocks(16, 40)[0],
        Graph(400, rng.integers(0, 400, 4000), hubs),
        Graph(900, np.arange(899), np.arange(1, 900)),
    ):
        shares = {
            name: held(graph, cluster_order(graph, 3, name).order)
            for name in clusters.WITHIN
        }
        assert shares["auto"] == max(shares.values())
        made = cluster_order(graph, 3)
        assert shares[made.within] == shares["auto"]


def test_order_by_degree():
    rng = np.random.default_rng(1)
    graph = Graph(50, rng.integers(0, 50, 300), rng.integers(0, 50, 300))
    order = cluster_order(graph, 1, "degree").order
    neighbours = [set() for _ in range(50)]
    for s, r in zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True):
        if s != r:
            neighbours[s].add(r)
            neighbours[r].add(s)
    expected = sorted(range(50), key=lambda node: (-len(neighbours[node]), node))
    assert order.tolist() == expected


@needs_metis
def test_order_by_parts_puts_hubs_of_a_part_first():
    graph, _ = blocks(4, 64)
    # One part per cluster: parts have up to eight blocks.
    made = cluster_order(graph, 4, "metis", block_size=16)
    ordered = graph.subgraph(made.order)
    ends = np.concatenate(
        [[ordered.senders, ordered.receivers], [ordered.receivers, ordered.senders]],
        axis=1,
    )
    inner = made.cluster[ends[0]] == made.cluster[ends[1]]
    pairs = np.unique(ends[:, inner & (ends[0] != ends[1])], axis=1)
    degree = np.bincount(pairs[0], minlength=graph.num_nodes)
    for first, last in zip(made.starts[:-1], made.starts[1:], strict=True):
        assert (np.diff(degree[first:last]) <= 0).all()


@needs_metis
@pytest.mark.parametrize(
    "graph",
    [
        Graph(1, [], []),
        Graph(40, [], []),
        Graph(3, [0, 1, 1], [0, 2, 2]),
        Graph(300, np.zeros(299, int), np.arange(1, 300)),
    ],
)
@pytest.mark.parametrize("within", clusters.WITHIN)
def test_odd_graphs(graph, within):
    made = cluster_order(graph, 5, within, block_size=2)
    assert sorted(made.order) == list(range(graph.num_nodes))
    assert (np.diff(made.starts) > 0).all() and made.starts[-1] == graph.num_nodes
    assert made.starts.size <= 6


def test_number_of_clusters(tmp_path, monkeypatch):
    # The paper: 8 for 6 MB and 64 channels.
    assert num_clusters_for(64, 6 * 2**20) == 8
    assert num_clusters_for(64, 6 * 2**20 - 1) == 7
    assert num_clusters_for(10**6, 2**20) == 1
    assert num_clusters_for(64) >= 1
    folder = tmp_path / "cpu0" / "cache"
    monkeypatch.setattr(clusters, "_CPU", tmp_path)
    assert clusters.l2_cache_bytes() == 2**20
    for index, (level, size) in enumerate([("1", "48K"), ("2", "2M"), ("3", "32M")]):
        (folder / f"index{index}").mkdir(parents=True)
        (folder / f"index{index}" / "level").write_text(level + "\n")
        (folder / f"index{index}" / "size").write_text(size + "\n")
    assert clusters.l2_cache_bytes() == 2 * 2**20
    (folder / "index1" / "size").write_text("1024K\n")
    assert num_clusters_for(64) == 3
    (folder / "index1" / "size").write_text("unknown\n")
    assert clusters.l2_cache_bytes() == 2**20


@needs_metis
def test_layer_moves_the_graph():
    graph, _ = blocks(4, 64)
    graph = graph.replace(
        node={"id": np.arange(256), "cluster": np.full(256, 9)},
        edge={"weight": np.arange(graph.num_edges)},
        label=np.arange(256) % 7,
        label_level="node",
    )
    layer = ClusterCompile(4, block_size=8)
    compiled = layer(graph)
    made = cluster_order(graph, 4, block_size=8)
    np.testing.assert_array_equal(compiled.origin, made.order)
    np.testing.assert_array_equal(compiled.node["cluster"], made.cluster)
    assert compiled.node["cluster"].dtype == np.int32
    np.testing.assert_array_equal(compiled.node["id"], compiled.origin)
    np.testing.assert_array_equal(compiled.label, compiled.origin % 7)
    np.testing.assert_array_equal(compiled.origin[compiled.senders], graph.senders)
    np.testing.assert_array_equal(compiled.origin[compiled.receivers], graph.receivers)
    np.testing.assert_array_equal(compiled.edge["weight"], graph.edge["weight"])
    again = ClusterCompile.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()


@needs_metis
def test_layer_chooses_the_number_of_clusters():
    graph, _ = blocks(8, 100)
    sized = ClusterCompile(l2_bytes=6 * 2**20)(graph)
    assert sized.node["cluster"].max() == 7
    narrow = ClusterCompile(l2_bytes=6 * 2**20, hidden_dim=256)(graph)
    assert narrow.node["cluster"].max() == 3
    # Not more than leave each cluster four blocks.
    small = ClusterCompile(l2_bytes=6 * 2**20)(graph.subgraph(np.arange(130)))
    assert small.node["cluster"].max() == 1
    tiny = ClusterCompile(l2_bytes=6 * 2**20)(graph.subgraph(np.arange(20)))
    assert tiny.node["cluster"].max() == 0


def test_preprocessors_know_the_layer():
    made = GraphPreprocessor(
        [ClusterCompile(1, within="degree")], DynamicBatcher(budget={"node": 64})
    )
    again = GraphPreprocessor.from_config(made.get_config())
    (layer,) = again.graph_layers
    assert isinstance(layer, ClusterCompile) and layer.within == "degree"
    (compiled,) = again.compile([Graph(4, [0, 1, 2], [3, 3, 1])])
    assert compiled.node["cluster"].tolist() == [0, 0, 0, 0]


def test_names_the_extra_when_it_is_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    graph, _ = blocks(4, 64)
    with pytest.raises(ImportError, match=r'pip install "keras-bandgnn\[metis\]"'):
        ClusterCompile(4)(graph)
    # Without several parts there is nothing for METIS to do.
    assert ClusterCompile(1, within="rcm")(graph).num_nodes == 256


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_clusters": 0}, "`num_clusters` to be at least 1"),
        ({"within": "natural"}, "one of 'auto', 'metis', 'degree', 'rcm'"),
        ({"block_size": 1.5}, "`block_size` to be an integer"),
        ({"hidden_dim": 0}, "`hidden_dim`"),
        ({"l2_bytes": -1}, "`l2_bytes`"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        ClusterCompile(**arguments)


@needs_metis
def test_coverage_of_a_real_graph(shared_data):
    file = shared_data / "sparse_graphs" / "MIT8.npz"
    if not file.is_file():
        pytest.skip(f"no {file}")
    data = np.load(file)
    size = int(data["n"])
    row = np.repeat(np.arange(size), np.diff(data["indptr"]))
    graph = Graph(size, data["indices"], row)
    assert held(graph, cluster_order(graph, 8).order) > 0.25
    number = graph.num_edges // 256
    tiling = reform(graph.senders, graph.receivers, size, num_tiles=number)
    assert len(tiling.tiles) == number
