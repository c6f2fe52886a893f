"""Edge features of GGNN, GT and Graphormer, against NumPy and other batches."""

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.batch import unbatch
from keras_bandgnn.preprocessing import DynamicBatcher, GraphPreprocessor
from keras_bandgnn.primitives import Banded, Grouped, Plan, ReceptiveField
from keras_bandgnn.testing import gradients_of
from tests.oracles import attention, dense

EDGES = {"length": {"features": 2}, "bond": [3, 2], "type": 2}


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(tensor))


def graphs_of(count=4, seed=0, low=3, high=9):
    """Graphs with numbers and columns of ids on their edges, some of them twice."""
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        n = int(rng.integers(low, high))
        count = 2 * n
        graphs.append(
            kb.Graph(
                n,
                *rng.integers(0, n, (2, count)),
                edge_type=rng.integers(0, 2, count),
                node={"kind": rng.integers(0, 4, n)},
                edge={
                    "length": rng.normal(size=(count, 2)),
                    "bond": rng.integers(0, [3, 2], (count, 2)),
                },
                label=float(n),
            )
        )
    return graphs


def drawn(backbone, seed=1):
    """The backbone with weights that are not small."""
    rng = np.random.default_rng(seed)
    for weight in backbone.trainable_variables:
        norm = float(weight.path.endswith("gamma"))
        weight.assign(norm + 0.4 * rng.normal(size=weight.shape))
    return backbone


def turned(graph, seed=0):
    """The graph with its nodes and edges in another order, and the nodes' order."""
    rng = np.random.default_rng(seed)
    order, edges = rng.permutation(graph.num_nodes), rng.permutation(graph.num_edges)
    place = np.argsort(order)
    other = kb.Graph(
        graph.num_nodes,
        place[graph.senders[edges]],
        place[graph.receivers[edges]],
        edge_type=graph.edge_type[edges],
        node={name: rows[order] for name, rows in graph.node.items()},
        edge={name: rows[edges] for name, rows in graph.edge.items()},
        label=graph.label,
    )
    return other, order


def states_of(backbone, graphs, plan=None, layers=()):
    """Node states of each graph."""
    layers = [*layers, *backbone.graph_layers()]
    plan = plan or backbone.auto_plan() or Plan()
    loader = GraphPreprocessor(layers, DynamicBatcher(7)).loader(
        graphs, plan=plan, num_edge_types=backbone.num_edge_types, shuffle=False
    )
    x = loader[0][0]
    return [rows for _, rows in sorted(unbatch(numpy(backbone(x)), x, "node"))]


def ggnn(**options):
    options = {"edge_inputs": EDGES, "num_steps": 2, "num_edge_types": 2, **options}
    return drawn(kb.models.GGNNBackbone({"kind": 4}, 6, **options))


def test_ggnn_against_numpy():
    graphs, backbone = graphs_of(), ggnn()
    for graph, states in zip(graphs, states_of(backbone, graphs), strict=True):
        np.testing.assert_allclose(states, dense.ggnn(graph, backbone), atol=1e-5)
    again = kb.models.GGNNBackbone.from_config(backbone.get_config())
    assert again.get_config() == backbone.get_config()
    assert [w.path for w in again.weights] == [w.path for w in backbone.weights]
    assert backbone.features_read()["edge"] == ("length", "bond")


def test_ggnn_without_edge_features_is_as_before():
    backbone = ggnn(edge_inputs=None)
    assert "edge_inputs" not in backbone.get_config()
    assert not any("edge" in weight.path for weight in backbone.weights)
    assert backbone.receptive_field(False) and backbone.splits_sequences
    graphs = graphs_of()
    for graph, states in zip(graphs, states_of(backbone, graphs), strict=True):
        np.testing.assert_allclose(states, dense.ggnn(graph, backbone), atol=1e-5)


def test_edge_features_of_ggnn_do_not_depend_on_batch_plan_or_order():
    graphs, backbone = graphs_of(), ggnn()
    together = states_of(backbone, graphs)
    for plan in (Plan(Banded(4)), Plan(Grouped()), Plan(Banded(2))):
        for one, other in zip(states_of(backbone, graphs, plan), together, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
    np.testing.assert_allclose(
        states_of(backbone, graphs[:1])[0], together[0], atol=1e-5
    )
    other, order = turned(graphs[0])
    (found,) = states_of(backbone, [other])
    np.testing.assert_allclose(found, together[0][order], atol=1e-5)


def test_rematerialised_steps_have_the_gradients_of_edge_features():
    graphs, backbone, again = graphs_of(), ggnn(), ggnn(remat=True)
    again.set_weights(backbone.get_weights())
    tasks = [kb.models.GraphRegressor(model) for model in (backbone, again)]
    tasks[1].set_weights(tasks[0].get_weights())
    found = []
    for task in tasks:
        task.compile("sgd")
        found.append(gradients_of(task, task.loader(graphs)[0]))
    one, other = (list(gradients.values()) for gradients in found)
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-4, rtol=1e-4)
    edges = [g for path, g in found[1].items() if "edge_encoder" in path]
    assert len(edges) == 4 and all(np.abs(g).max() > 0 for g in edges)


def test_bad_edge_features_of_ggnn():
    backbone = ggnn()
    with pytest.raises(
        ValueError, match=r"edge\['bond'\]\[:, 1\] in \[0, 2\).*edge_in"
    ):
        graph = graphs_of(1)[0]
        bond = graph.edge["bond"] + [[0, 5]]
        edge = {**graph.edge, "bond": bond}
        kb.models.GraphRegressor(backbone).predict([graph.replace(edge=edge)])
    with pytest.raises(ValueError, match="edge features .*'length' is missing"):
        kb.models.GraphRegressor(backbone).predict([graph.replace(edge={})])
    plan = Plan(schedule=ReceptiveField(2))
    task = kb.models.NodeSelector(backbone, GraphPreprocessor(plan=plan))
    graphs = [g.replace(candidates=[0, 1], label=0) for g in graphs_of()]
    assert np.isfinite(kb.models.NodeSelector(backbone).predict(graphs)).all()
    with pytest.raises(ValueError, match="without a schedule"):
        task.predict(graphs)


PATTERNS = ["full", "periodic", "augment"]
TYPES = ["GTBackbone", "GraphormerBackbone"]


def transformer(name, pattern="sparse", **options):
    options = {"edge_inputs": EDGES, **options}
    if name == "GTBackbone":
        options = {"laplacian": 0, **options}
    else:
        options = {"max_distance": 2, **options}
    cls = getattr(kb.models, name)
    return drawn(cls({"kind": 4}, 8, 2, num_heads=2, attention=pattern, **options))


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", TYPES)
def test_biases_of_edge_features_against_numpy(name, pattern):
    graphs, backbone = graphs_of(), transformer(name, pattern)
    for graph, states in zip(graphs, states_of(backbone, graphs), strict=True):
        expected = attention.states(backbone, graph)
        np.testing.assert_allclose(states, expected, atol=2e-5)
    again = type(backbone).from_config(backbone.get_config())
    assert again.get_config() == backbone.get_config()
    assert [w.path for w in again.weights] == [w.path for w in backbone.weights]
    assert backbone.features_read()["edge"] == ("attend", "distance", "length", "bond")
    assert backbone.num_edge_types == 3 and not backbone.splits_sequences
    # Without biases by distance and type.
    backbone = transformer("GTBackbone", pattern, edge_inputs={"bond": [3, 2]})
    assert backbone.bias is None
    (states,) = states_of(backbone, graphs[:1])
    expected = attention.states(backbone, graphs[0])
    np.testing.assert_allclose(states, expected, atol=2e-5)


@pytest.mark.parametrize("name", TYPES)
def test_transformers_without_edge_features_are_as_before(name):
    backbone = transformer(name, edge_inputs=None)
    assert "edge_inputs" not in backbone.get_config()
    assert not any("edge" in weight.path for weight in backbone.weights)
    (edges,) = (x for x in backbone.graph_layers() if hasattr(x, "edge_features"))
    assert "edge_features" not in edges.get_config() and backbone.splits_sequences


@pytest.mark.parametrize("name", TYPES)
def test_biases_of_edge_features_do_not_depend_on_batch_or_order(name):
    graphs, backbone = graphs_of(), transformer(name, "periodic")
    rows = transformer(name, "periodic", max_length=9)
    rows.set_weights(backbone.get_weights())
    together = states_of(backbone, graphs)
    for one, other in zip(states_of(rows, graphs), together, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)
    np.testing.assert_allclose(
        states_of(backbone, graphs[:1])[0], together[0], atol=2e-5
    )
    other, order = turned(graphs[0])
    (found,) = states_of(backbone, [other])
    np.testing.assert_allclose(found, together[0][order], atol=2e-5)


def test_tiles_have_the_biases_of_edge_features():
    pytest.importorskip("pymetis")
    (graph,) = graphs_of(1, low=40, high=41)
    graph = kb.preprocessing.ClusterCompile(4, block_size=8)(graph)
    backbone = transformer("GraphormerBackbone", edge_inputs={"bond": [3, 2]})
    (one,) = states_of(backbone, [graph])
    plan = kb.preprocessing.AttentionPlan(8, share=1.0)
    prepared = graph
    for layer in backbone.graph_layers():
        prepared = layer(prepared)
    batcher = kb.preprocessing.StaticBatcher(1, padding="64")
    x = kb.preprocessing.GraphLoader([prepared], batcher, plan)[0][0]
    assert (x["plan"]["tiles:8"]["edge"] < x["edge"]["mask"].shape[1]).any()
    np.testing.assert_allclose(numpy(backbone(x))[0, :40], one, atol=2e-5)


def test_training_changes_the_biases_of_edge_features(tmp_path):
    graphs, backbone = graphs_of(6), transformer("GTBackbone", edge_inputs=EDGES)
    task = kb.models.GraphRegressor(backbone)
    before = [w.numpy().copy() for w in backbone.edge_encoder.trainable_variables]
    task.fit(graphs, epochs=1, verbose=0)
    after = [numpy(w) for w in backbone.edge_encoder.trainable_variables]
    assert all(np.abs(a - b).max() > 0 for a, b in zip(after, before, strict=True))
    task.save_to_preset(tmp_path / "gt")
    again = kb.models.Task.from_preset(tmp_path / "gt")
    np.testing.assert_allclose(again.predict(graphs), task.predict(graphs), atol=1e-5)


def test_bad_edge_features_of_transformers():
    with pytest.raises(ValueError, match="use_bias=True with 'type'"):
        transformer("GTBackbone", use_bias=False)
    with pytest.raises(ValueError, match="to be the number of types"):
        transformer("GTBackbone", edge_inputs={"type": {"features": 2}})
    with pytest.raises(ValueError, match=r"'distance'\].*Rename"):
        transformer("GTBackbone", edge_inputs={"distance": 3})
    task = kb.models.GraphRegressor(transformer("GraphormerBackbone"))
    graph = graphs_of(1)[0]
    with pytest.raises(ValueError, match="'length' is missing"):
        task.predict([graph.replace(edge={"bond": graph.edge["bond"]})])
    bond = graph.edge["bond"] + [[0, 5]]
    with pytest.raises(ValueError, match=r"edge\['bond'\]\[:, 1\] in \[0, 2\)"):
        task.predict([graph.replace(edge={**graph.edge, "bond": bond})])
