import keras
import numpy as np
import pytest

from keras_bandgnn import Graph, primitives
from keras_bandgnn.batch import unbatch
from keras_bandgnn.layers import BandedMessagePassing
from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader, GraphPreprocessor
from keras_bandgnn.primitives import Banded, Grouped, Plan, ReceptiveField, Segment
from keras_bandgnn.testing import random_graph

PLANS = {
    "segment": Plan(),
    "grouped": Plan(rest=Grouped(8)),
    "aggregate": Plan(rest=Grouped(8, "aggregate")),
    "banded": Plan(Banded(4), rest=Segment()),
}


def weighted(seed, count=3):
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        graph = random_graph(rng, 12, 25)
        weight = rng.normal(size=25).astype("float32")
        ends = (graph.senders, graph.receivers, graph.edge_type)
        out.append(Graph(12, *ends, node={"x": graph.node["x"]}, edge={"w": weight}))
    return out


def oracle(graph, kernel, bias, weight, reduce):
    """Messages joined per node, one edge at a time."""
    messages = [[] for _ in range(graph.num_nodes)]
    for edge in range(graph.num_edges):
        kind, sender = graph.edge_type[edge], graph.senders[edge]
        message = graph.node["x"][sender].astype("float64") @ kernel[kind] + bias[kind]
        messages[graph.receivers[edge]].append(weight[edge] * message)
    join = {"sum": np.sum, "mean": np.mean, "max": np.max}[reduce]
    width = kernel.shape[-1]
    return np.array([join(m, axis=0) if m else np.zeros(width) for m in messages])


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("edge_weight", ["w", None])
def test_reductions_equal_the_oracle(name, reduce, edge_weight):
    if reduce == "max" and name in ("banded", "aggregate"):
        pytest.skip("dense blocks and sums first can only add")
    graphs = weighted(0)
    loader = GraphLoader(
        graphs,
        DynamicBatcher(len(graphs) + 1),
        PLANS[name],
        shuffle=False,
        num_edge_types=3,
        edge_weight=edge_weight,
    )
    (x,) = loader[0]
    layer = BandedMessagePassing(5, 3, reduce=reduce)
    layer.build((None, None, 2))
    rng = np.random.default_rng(1)
    kernel, bias = rng.normal(size=(3, 2, 5)), rng.normal(size=(3, 5))
    layer.set_weights([kernel, bias])
    out = keras.ops.convert_to_numpy(layer(x["node"]["x"], x))
    for number, rows in unbatch(out, x, "node"):
        graph = graphs[number]
        weight = graph.edge["w"] if edge_weight else np.ones(graph.num_edges)
        expected = oracle(graph, kernel, bias, weight, reduce)
        np.testing.assert_allclose(rows, expected, atol=2e-5)


def test_dense_blocks_have_no_maximum():
    (x,) = GraphLoader(weighted(0), plan=PLANS["banded"], num_edge_types=3)[0]
    nodes = x["node"]["mask"].shape[1]
    prepared = primitives.prepare(x["plan"], nodes, 3, "float32", reduce="max")
    states, kernel = np.zeros((1, nodes, 4), "f4"), np.zeros((3, 4, 4), "f4")
    for matrix in (kernel, None):
        with pytest.raises(ValueError, match="reduce='max'"):
            primitives.propagate(prepared, states, matrix, reduce="max")


def test_wrong_weights_are_refused():
    graphs = weighted(0)
    with pytest.raises(ValueError, match="'missing', a number per edge"):
        GraphLoader(graphs, edge_weight="missing")
    with pytest.raises(ValueError, match="without a schedule"):
        plan = Plan(schedule=ReceptiveField(2, read="x"))
        GraphLoader(graphs, plan=plan, edge_weight="w")


def test_preprocessors_carry_the_weight():
    preprocessor = GraphPreprocessor(edge_weight="w")
    again = GraphPreprocessor.from_config(preprocessor.get_config())
    assert again.edge_weight == "w"
    (x,) = again.loader(weighted(0), shuffle=False)[0]
    assert "weight" in next(iter(x["plan"].values()))
