"""Weights of edges and numbers that a backbone cannot use are refused, or show."""

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.preprocessing import DynamicBatcher, GraphPreprocessor
from tests.registered import BACKBONES, backbone_and_loader, registered, sample_of

NAMES = sorted(set(registered(kb.models.Backbone)))
# The first node of each graph gets messages that weigh this much altogether.
TOTALS = {"zero": 0.0, "small": -0.5, "cancelled": -1.0, "negative": -3.0}
REFUSED = ("cancelled", "negative")


def numpy(tensor):
    return keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32"))


def weighted(graph, total):
    """The graph without loops, with weights that add up to `total` at node 0."""
    real = graph.senders != graph.receivers
    ends = graph.senders[real], graph.receivers[real]
    edge = {name: values[real] for name, values in graph.edge.items()}
    into = ends[1] == 0
    edge["w"] = np.where(into, total / max(into.sum(), 1), 1.0)
    return kb.Graph(
        graph.num_nodes,
        *ends,
        edge_type=graph.edge_type[real],
        node=graph.node,
        edge=edge,
        label=graph.label,
        label_level=graph.label_level,
    )


def task_of(name, **options):
    backbone, graphs = sample_of(BACKBONES, name)()
    keras.utils.set_random_seed(0)
    preprocessor = GraphPreprocessor(
        backbone.graph_layers(), DynamicBatcher(3), edge_weight="w"
    )
    return kb.models.NodeClassifier(backbone, 3, preprocessor, **options), graphs


@pytest.mark.parametrize("case", TOTALS)
@pytest.mark.parametrize("name", NAMES)
def test_weights_are_refused_or_leave_each_node_its_features(name, case):
    task, graphs = task_of(name)
    graphs = [weighted(graph, TOTALS[case]) for graph in graphs]
    try:
        out = [task.predict(graphs, verbose=0)]
    except ValueError as error:
        # Pairs that attend instead of the edges have no weights.
        assert "'w'" in str(error)
        assert name != "GCNBackbone" or case in REFUSED
        return
    assert all(np.isfinite(rows).all() for rows in out[0])
    changed = []
    for graph in graphs:
        node = {key: values.copy() for key, values in graph.node.items()}
        if "h" in node:
            node["h"][0] += 1
        else:
            node["atomic_number"][0] = 9 - node["atomic_number"][0]
        changed.append(graph.replace(node=node))
    out.append(task.predict(changed, verbose=0))
    for one, other in zip(*out, strict=True):
        assert np.abs(one[0] - other[0]).max() > 1e-6


def refusing():
    """A task, a graph whose second node has a degree below 0, and a right one."""
    backbone = kb.models.GCNBackbone({"x": {"features": 2}}, 4)
    ends = [0, 1, 2, 0], [1, 2, 0, 1]
    graphs = [
        kb.Graph(
            3,
            *ends,
            node={"x": np.eye(3, 2)},
            edge={"w": weights},
            label=[0, 1, 0],
            label_level="node",
        )
        for weights in ([1.0, 1, 1, 1], [-0.75, 1, 1, -0.75])
    ]
    preprocessor = GraphPreprocessor((), DynamicBatcher(3), edge_weight="w")
    return kb.models.NodeClassifier(backbone, 2, preprocessor), graphs


MESSAGE = (
    r"edge\['w'\].*weighted degree above 0.*-0.5 at node 1 of graph 1, with 2 "
    r"incoming edges of weight -0.75, -0.75.*weights above 0"
)


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict", "embed"])
def test_every_method_names_feature_graph_and_node(method):
    task, graphs = refusing()
    with pytest.raises(ValueError, match=MESSAGE):
        getattr(task, method)(graphs)


def test_loaders_ensembles_and_explanations_are_checked():
    task, graphs = refusing()
    with pytest.raises(ValueError, match=MESSAGE):
        kb.explain.saliency(task, graphs, index=0)
    loader = kb.preprocessing.GraphLoader(graphs, edge_weight="w")
    with pytest.raises(ValueError, match=MESSAGE):
        task.fit(loader)
    other, _ = refusing()
    with pytest.raises(ValueError, match=MESSAGE):
        kb.models.Ensemble([task, other]).predict(graphs)


def test_weights_that_cancel_but_for_rounding_are_refused():
    task, graphs = refusing()
    edge = {"w": np.full(10, -0.1)}
    graph = kb.Graph(
        11, [*range(1, 11)], [0] * 10, node={"x": np.ones((11, 2))}, edge=edge
    )
    with pytest.raises(ValueError, match="at node 0 of graph 0, with 10.*, \\.\\.\\."):
        task.predict([graph])
    # One self-loop of any weight above 0 is the node's part; parallel ones are not.
    for loops, fits in (([0.2], True), ([0.2, 0.2], False)):
        ends = [0] * len(loops)
        graph = kb.Graph(1, ends, ends, node={"x": [[1.0, 2]]}, edge={"w": loops})
        if fits:
            assert np.isfinite(task.predict([graph], verbose=0)[0]).all()
            continue
        with pytest.raises(ValueError, match="one self-loop per node"):
            task.predict([graph])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_are_finite(value):
    with pytest.raises(ValueError, match="`edge\\['w'\\]` to be finite"):
        kb.Graph(2, [0], [1], edge={"w": [value]})


def test_predictions_by_layer_do_not_drop_the_weights():
    task, graphs = refusing()
    with pytest.raises(ValueError, match="without `edge_weight` to predict by layer"):
        task.predict_by_layer(graphs[:1])


@pytest.mark.parametrize("name", NAMES)
def test_nan_in_the_inputs_is_nan_in_the_states(name):
    backbone, loader = backbone_and_loader(name)
    read = backbone.features_read()
    batch = keras.tree.map_structure(np.array, loader[0][0])
    assert np.isfinite(numpy(backbone(batch))[batch["node"]["mask"]]).all()
    edge = [key for key in read["edge"] if key in batch["edge"]]
    if "displacement" in edge:
        # Lengths are those of the displacements.
        edge = ["displacement"]
    for level, names in (("node", read["node"]), ("edge", edge)):
        for key in names:
            if batch[level][key].dtype.kind != "f":
                continue
            changed = keras.tree.map_structure(np.array, batch)
            changed[level][key][0, 0] = np.nan
            node = 0 if level == "node" else batch["edge"]["receiver"][0, 0]
            assert np.isnan(numpy(backbone(changed))[0, node]).any(), key


def test_lengths_below_0_are_refused():
    backbone = kb.models.SchNetBackbone(9, 8, 1, num_gaussians=30)
    task = kb.models.GraphRegressor(backbone, 1, preprocessor=GraphPreprocessor())
    node = {"atomic_number": [1, 8]}
    graph = kb.Graph(2, [0, 1], [1, 0], node=node, edge={"distance": [1.0, -1.0]})
    with pytest.raises(ValueError, match="edge\\['distance'\\] of at least 0"):
        task.predict([graph])
