import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.models import GCNBackbone, GraphRegressor
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphLayer,
    GraphPreprocessor,
    RCMKCompile,
    ReachabilityFilter,
)
from keras_bandgnn.primitives import Banded, Plan
from keras_bandgnn.testing import random_graph


def grid(width, height):
    ids = np.arange(width * height).reshape(height, width)
    senders = np.concatenate([ids[:, :-1].ravel(), ids[:-1].ravel()])
    receivers = np.concatenate([ids[:, 1:].ravel(), ids[1:].ravel()])
    return Graph(width * height, senders, receivers, node={"id": ids.ravel()})


def test_rcmk_reduces_the_bandwidth_of_a_shuffled_grid():
    order = np.random.default_rng(0).permutation(200)
    graph = grid(5, 40).subgraph(order)
    layer = RCMKCompile(block_size=16)
    compiled = layer(graph)
    assert graph.bandwidth > 100 and compiled.bandwidth <= 10
    stats = layer.stats()
    assert stats["bandwidth_before"].tolist() == [graph.bandwidth]
    assert stats["bandwidth_after"].tolist() == [compiled.bandwidth]
    assert stats["covered_edges"] == 1.0


def test_rcmk_keeps_the_permutation():
    graph = random_graph(np.random.default_rng(1), 30)
    compiled = RCMKCompile(8)(graph)
    np.testing.assert_array_equal(
        compiled.node["type"], graph.node["type"][compiled.origin]
    )
    np.testing.assert_array_equal(
        compiled.origin[compiled.candidates], graph.candidates
    )
    assert compiled.origin[compiled.slot] == graph.slot
    edges = {
        (int(compiled.origin[s]), int(compiled.origin[r]), int(t))
        for s, r, t in zip(
            compiled.senders, compiled.receivers, compiled.edge_type, strict=True
        )
    }
    assert edges == set(
        zip(
            graph.senders.tolist(),
            graph.receivers.tolist(),
            graph.edge_type.tolist(),
            strict=True,
        )
    )


def test_natural_order_changes_nothing():
    graph = random_graph(np.random.default_rng(1), 30)
    assert RCMKCompile(8, ordering="natural")(graph) is graph


def test_reachability_follows_the_direction_of_messages():
    #  0 -> 1 -> 2 -> 3 (candidate) -> 4,  slot 5 with 6 -> 5
    graph = Graph(7, [0, 1, 2, 3, 6], [1, 2, 3, 4, 5], candidates=[3], slot=5)
    kept = ReachabilityFilter(2)(graph)
    assert kept.origin.tolist() == [1, 2, 3, 5, 6]
    assert ReachabilityFilter(9)(graph).origin.tolist() == [0, 1, 2, 3, 5, 6]
    plain = Graph(3, [0], [1])
    assert ReachabilityFilter(1)(plain) is plain


def test_layers_take_one_graph_or_many():
    graphs = [random_graph(np.random.default_rng(s)) for s in range(3)]
    many = list(RCMKCompile()(iter(graphs)))
    assert [g.num_nodes for g in many] == [12, 12, 12]
    with pytest.raises(ValueError, match="a Graph or an iterable"):
        RCMKCompile()(3)


def test_filtered_graphs_go_together():
    near = Graph(3, [0, 1], [1, 2], candidates=[2])
    far = Graph(3, [2, 1], [1, 0], candidates=[2])
    both = FlatGraphs.from_graphs(ReachabilityFilter(2)(g) for g in (near, far))
    assert both.origin.tolist() == [0, 1, 2, 2]


@pytest.mark.parametrize("layer", [RCMKCompile(64, "natural"), ReachabilityFilter(3)])
def test_layer_config(layer):
    assert type(layer).from_config(layer.get_config()).get_config() == (
        layer.get_config()
    )


def test_bad_arguments():
    for make, message in (
        (lambda: RCMKCompile(0), "at least 1"),
        (lambda: RCMKCompile(8, "metis-ish"), "one of 'rcmk', 'natural'"),
        (lambda: ReachabilityFilter(0), "at least 1"),
        (lambda: GraphPreprocessor([3]), "graph layers"),
        (lambda: GraphPreprocessor(RCMKCompile()), "a list of graph layers"),
        (lambda: GraphPreprocessor(batcher=5), "`batcher`"),
        (lambda: RCMKCompile()("abc"), "a Graph or an iterable"),
        (lambda: GraphPreprocessor(plan=RCMKCompile()), "Plan"),
        (lambda: GraphPreprocessor(plan="fast").loader([Graph(1, [], [])]), "plan"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_preprocessor_config_round_trip():
    made = GraphPreprocessor(
        [ReachabilityFilter(3), RCMKCompile(16)],
        DynamicBatcher(7, {"node": 256}, "drop"),
        Plan(Banded(16)),
    )
    again = GraphPreprocessor.from_config(made.get_config())
    assert again.get_config() == made.get_config()
    assert again.plan == made.plan
    config = made.get_config()
    config["layers"][0]["class_name"] = "Lambda"
    with pytest.raises(ValueError, match="a graph layer, with"):
        GraphPreprocessor.from_config(config)


class Path:
    """A path of some nodes: neither a graph nor the raw data of an encoder."""

    def __init__(self, length):
        self.length = length


class PathEncoder(GraphLayer):
    takes = (Path, Graph)

    def call(self, item):
        if isinstance(item, Graph):
            return item
        nodes = np.arange(item.length)
        return Graph(item.length, nodes[:-1], nodes[1:], node={"kind": nodes % 3})


def test_tasks_take_what_a_graph_layer_takes():
    layers = GraphPreprocessor([PathEncoder()])
    task = GraphRegressor(GCNBackbone({"kind": 3}, 8), preprocessor=layers)
    paths = [Path(2), Path(5), Path(3)]
    encoder = PathEncoder()
    expected = task.predict([encoder(path) for path in paths], verbose=0)
    for data in (paths, (path for path in paths)):
        np.testing.assert_allclose(task.predict(data, verbose=0), expected, rtol=1e-6)
    np.testing.assert_allclose(task.predict(paths[0], verbose=0), expected[:1])
    with pytest.raises(ValueError, match=r"PathEncoder\(\)\(graphs\)"):
        task.fit(paths, [1.0, 2.0, 3.0], verbose=0)
