"""Weights of edges change the predictions of a backbone, or it refuses them."""

import keras
import numpy as np
import pytest
from task_samples import BACKBONES, EDGES, INPUTS, check_complete, graphs_of

import keras_bandgnn as kb
from keras_bandgnn.layers.batch_layer import BatchLayer
from keras_bandgnn.preprocessing import DynamicBatcher, GraphPreprocessor

REFUSED = "whose messages have the weights of edges.*edge_weight='w'"


def _with_option(cls, **options):
    return lambda: cls(INPUTS, 8, 1, **options)


CASES = {
    **BACKBONES,
    **{
        f"SAGEBackbone, {reduce}, edges={edges is not None}": _with_option(
            kb.models.SAGEBackbone, reduce=reduce, edge_inputs=edges
        )
        for reduce in ("mean", "sum", "max", "pool")
        for edges in (None, EDGES)
    },
    **{
        f"SAGEBackbone, {reduce}, by type": _with_option(
            kb.models.SAGEBackbone, reduce=reduce, type_reduce="mean"
        )
        for reduce in ("mean", "sum", "max", "pool")
    },
    **{
        f"GPSBackbone, {local}, edges={edges is not None}": _with_option(
            kb.models.GPSBackbone, local=local, edge_inputs=edges, num_heads=2
        )
        for local in ("gine", "gatedgcn", "gatv2", "sage", "pna")
        for edges in (None, EDGES)
    },
    **{
        f"RGCNBackbone, {reduce}": _with_option(kb.models.RGCNBackbone, reduce=reduce)
        for reduce in ("mean", "sum")
    },
    "GPSBackbone, None": _with_option(kb.models.GPSBackbone, local=None, num_heads=2),
    "GGNNBackbone, edges, remat": lambda: kb.models.GGNNBackbone(
        INPUTS, 8, 2, num_edge_types=1, edge_inputs=EDGES, remat=True
    ),
}
USES = ("GCN", "GGNN", "GINE", "RGCN", "SAGE", "GPS")


def weighted(graphs, values):
    return [
        graph.replace(edge={**graph.edge, "w": np.resize(values, graph.num_edges)})
        for graph in graphs
    ]


def without_zeros(graph):
    keep = graph.edge["w"] != 0
    return kb.Graph(
        graph.num_nodes,
        graph.senders[keep],
        graph.receivers[keep],
        node=graph.node,
        edge={name: values[keep] for name, values in graph.edge.items()},
    )


def task_over(backbone, edge_weight="w"):
    layers = backbone.graph_layers()
    preprocessor = GraphPreprocessor(layers, DynamicBatcher(3), edge_weight=edge_weight)
    return kb.models.NodeClassifier(backbone, 3, preprocessor)


def labelled(graphs):
    return [
        g.replace(label=np.zeros(g.num_nodes, int), label_level="node") for g in graphs
    ]


@pytest.mark.parametrize("name", CASES)
def test_weights_change_the_predictions_or_are_refused(name):
    check_complete()
    keras.utils.set_random_seed(0)
    graphs = graphs_of(3)
    ones, other = weighted(graphs, [1.0]), weighted(graphs, [0.5, 2.0, 1.5])
    task = task_over(CASES[name]())
    try:
        first = task.predict(ones)
    except ValueError as error:
        refused = error
    else:
        change = [
            np.abs(a - b).max() for a, b in zip(first, task.predict(other), strict=True)
        ]
        assert max(change) > 1e-4
        plain = kb.models.NodeClassifier(
            task.backbone,
            3,
            GraphPreprocessor(task.backbone.graph_layers(), DynamicBatcher(3)),
        )
        plain.set_weights(task.get_weights())
        for a, b in zip(first, plain.predict(ones), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
        return
    with pytest.raises(ValueError, match=REFUSED):
        raise refused
    for call in (
        lambda: task.fit(labelled(other), epochs=1, verbose=0),
        lambda: task.evaluate(labelled(other), verbose=0),
    ):
        with pytest.raises(ValueError, match=REFUSED):
            call()
    kind = name.partition("Backbone")[0]
    assert kind not in USES or any(
        option in name for option in ("max", "pool", "gate", "gatv2", "pna", "None")
    )


@pytest.mark.parametrize(
    "name",
    ["GGNNBackbone, with edge features", "GGNNBackbone, edges, remat"]
    + ["SAGEBackbone, sum, edges=True", "GINEBackbone", "RGCNBackbone, sum"],
)
def test_an_edge_of_weight_0_equals_none(name):
    keras.utils.set_random_seed(0)
    backbone = CASES[name]()
    task = task_over(backbone)
    graphs = weighted(graphs_of(3), [0.5, 0.0, -1.5])
    removed = [without_zeros(graph) for graph in graphs]
    for a, b in zip(task.predict(graphs), task.predict(removed), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


class _Silent(BatchLayer):
    """Says nothing about weights, and reads the plan with another layer's help."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, states_shape, *shapes):
        self.kernel = self.add_weight(shape=(1, states_shape[-1], self.units))

    def call(self, states, batch, edge_states=None, training=False):
        num_nodes = keras.ops.shape(states)[1]
        plan = kb.primitives.prepare(batch["plan"], num_nodes, 1, self.compute_dtype)
        kernel = keras.ops.convert_to_tensor(self.kernel)
        return kb.primitives.propagate(plan, states, kernel)


class _Frame(kb.models.MessagePassingBackbone):
    def __init__(self, make, **kwargs):
        super().__init__(INPUTS, 8, 1, norm="batch", **kwargs)
        self.make = make
        self.make_layers()

    def message_layer(self, number):
        return self.make(8)


@pytest.mark.parametrize(
    "make, uses",
    [
        (_Silent, True),
        (kb.layers.SAGEConvolution, True),
        (lambda units: kb.layers.SAGEConvolution(units, "max"), False),
        (lambda units: kb.layers.GraphAttention(units, 2), False),
    ],
)
def test_custom_backbones_follow_their_layers(make, uses):
    backbone = _Frame(make)
    if uses:
        backbone.check_weights([], "w")
        return
    with pytest.raises(ValueError, match=REFUSED):
        backbone.check_weights([], "w")
    backbone.uses_edge_weight = True
    backbone.check_weights([], "w")


def test_samplers_may_draw_by_weight_over_any_backbone():
    graph = weighted(labelled(graphs_of(1)), [0.5, 1.0])[0]
    task = kb.models.NodeClassifier(kb.models.GATBackbone(INPUTS, 8, 2, 1), 3)
    sampler = kb.preprocessing.NeighborSampler([2], 4, replace=True, edge_weight="w")
    task.fit(graph, sampler=sampler, epochs=1, verbose=0)
