"""GPS on batches, and layers of the frame that gradients compute again."""

import keras
import numpy as np
import pytest
from registered import plain_graphs

import keras_bandgnn as kb
import keras_bandgnn.layers.dual_interleaved_attention as attention_layer
from keras_bandgnn.batch import unbatch
from keras_bandgnn.models.message_passing.gps_backbone import _FIXED, ATTENTION, LOCAL
from keras_bandgnn.preprocessing import DynamicBatcher, GraphPreprocessor

INPUTS = {"h": {"features": 3}}
EDGES = {"edge_inputs": {"type": 2, "w": {"features": 2}}, "num_edge_types": 2}


def graphs_of(sizes=(9, 4, 1, 6)):
    """Graphs of several sizes with features of edges."""
    rng = np.random.default_rng(2)
    graphs = []
    for size in sizes:
        (graph,) = plain_graphs(1, size, size)
        edge = {"w": rng.normal(size=(graph.num_edges, 2))}
        graphs.append(graph.replace(edge=edge, label=1.0, label_level="graph"))
    return graphs


def drawn(backbone):
    """Draw all weights anew, those that start at 0 as well."""
    rng = np.random.default_rng(3)
    for weight in backbone.weights:
        if not weight.path.endswith("seed_generator_state"):
            weight.assign(rng.uniform(0.2, 0.6, weight.shape) * rng.choice([1, -1]))
            if "variance" in weight.path:
                weight.assign(np.abs(weight))
    return backbone


def states_of(backbone, graphs, batcher):
    loader = GraphPreprocessor(backbone.graph_layers(), batcher).loader(
        graphs, num_edge_types=2, shuffle=False
    )
    rows = {}
    for index in range(len(loader)):
        batch = loader[index][0]
        states = keras.ops.convert_to_numpy(backbone(batch))
        rows |= dict(unbatch(states, batch, "node"))
    return [rows[number] for number in range(len(graphs))]


def renumbered(graph, order):
    place = np.argsort(order)
    return graph.replace(
        senders=place[graph.senders],
        receivers=place[graph.receivers],
        node={name: value[order] for name, value in graph.node.items()},
    )


CASES = [(local, "full", None) for local in [*LOCAL, None]]
CASES += [("gine", attention, 9) for attention in ATTENTION]


@pytest.mark.parametrize(("local", "attention", "max_length"), CASES)
def test_nothing_about_the_batch_changes_states(local, attention, max_length):
    options = EDGES if local else {}
    backbone = drawn(
        kb.models.GPSBackbone(
            INPUTS,
            8,
            2,
            local=local,
            num_heads=2,
            attention=attention,
            max_length=max_length,
            **options,
        )
    )
    graphs = graphs_of()
    few = DynamicBatcher(1)
    alone = [states_of(backbone, [graph], few)[0] for graph in graphs]
    roomy = DynamicBatcher(budget={"node": 64, "edge": 128, "graph": 9})
    order = [np.random.default_rng(4).permutation(g.num_nodes) for g in graphs]
    turned = [renumbered(*pair) for pair in zip(graphs, order, strict=True)]
    other = states_of(backbone, turned[::-1], roomy)[::-1]
    for one, rows, places in zip(alone, other, order, strict=True):
        assert one.std() > 1e-2 or len(one) == 1
        np.testing.assert_allclose(rows, one[places], atol=1e-5 * np.abs(one).max())


def test_attention_sees_all_nodes_and_no_other_graph():
    """Full attention reaches nodes without a path between them, sparse does not."""
    graph = kb.Graph(5, [0, 1], [1, 2], node={"h": np.eye(5, 3)})
    moved = graph.replace(node={"h": np.eye(5, 3) + np.eye(5, 3, -4)})
    for attention, sees in (("full", True), ("sparse", False), ("periodic", True)):
        backbone = drawn(
            kb.models.GPSBackbone(
                INPUTS, 8, 2, local=None, num_heads=2, attention=attention, norm="layer"
            )
        )
        batcher = DynamicBatcher(1)
        first = states_of(backbone, [graph, graph], batcher)
        second = states_of(backbone, [moved, graph], batcher)
        assert (np.abs(first[0][:4] - second[0][:4]).max() > 1e-4) == sees
        np.testing.assert_array_equal(first[1], second[1])


def test_fused_attention_is_the_same():
    graphs = graphs_of()
    plain, fused = (
        drawn(
            kb.models.GPSBackbone(
                INPUTS, 8, 1, num_heads=2, max_length=length, fused=fused, **EDGES
            )
        )
        for length, fused in ((None, False), (9, True))
    )
    both = (states_of(each, graphs, DynamicBatcher(3)) for each in (plain, fused))
    for one, other in zip(*both, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * np.abs(one).max())


def test_what_does_not_fit_is_refused():
    def make(**options):
        return kb.models.GPSBackbone(INPUTS, 8, 1, **options)

    with pytest.raises(ValueError, match="at most max_length=8"):
        kb.models.GraphRegressor(make(max_length=8, **EDGES)).predict(graphs_of())
    with pytest.raises(ValueError, match="multiple of `num_heads`"):
        make(num_heads=3)
    with pytest.raises(ValueError, match="no `edge_inputs` with local=None"):
        make(local=None, **EDGES)
    with pytest.raises(ValueError, match="no dropout with fused=True"):
        make(fused=True, attention_dropout=0.1)


@pytest.mark.parametrize("name", sorted(_FIXED))
def test_options_that_layers_of_gps_do_not_have_are_refused(name):
    kb.models.GPSBackbone(INPUTS, 8, 1, **{name: _FIXED[name]})
    others = [not _FIXED[name]] + ["linear"] * (name == "residual")
    for other in others:
        with pytest.raises(ValueError, match=f"Expected `{name}`.*Received"):
            kb.models.GPSBackbone(INPUTS, 8, 1, **{name: other})


@pytest.mark.parametrize("spec", [{"ids": 3}, {"columns": [3]}])
@pytest.mark.parametrize("level", ["node", "edge"])
def test_ids_that_are_no_integers_are_named_by_their_type(level, spec):
    backbone = kb.models.GINEBackbone(
        {"h": spec if level == "node" else {"features": 1}},
        8,
        1,
        edge_inputs={"w": spec if level == "edge" else {"features": 1}},
    )
    half = np.full((1, 1), 0.5)
    graph = kb.Graph(1, [0], [0], node={"h": half}, edge={"w": half})
    with pytest.raises(ValueError, match=r"Expected ids of .*Received: float32\. Give"):
        kb.models.GraphRegressor(backbone).predict([graph])


@pytest.mark.parametrize("fused", [False, True])
def test_sizes_of_the_training_graphs_change_no_result(fused):
    """Batches with larger graphs and without, also in several chunks of pairs."""
    kinds = {"fused": fused, "num_heads": 2, "norm": "layer"}
    plain, adapted = (
        drawn(kb.models.GPSBackbone(INPUTS, 8, 1, usual_length=n, **kinds, **EDGES))
        for n in (None, 12)
    )
    assert adapted.attentions[0].usual_length == 12
    for sizes in ([9, 4, 12, 1] * 2, [9, 4, 13, 12] * 2, [9, 1060, 4]):
        graphs, found = graphs_of(sizes), []
        for backbone in (plain, adapted):
            task = kb.models.GraphRegressor(backbone, normalizer=None)
            task.head.set_weights([np.full(w.shape, 0.1) for w in task.head.weights])
            task.compile(keras.optimizers.SGD(1e-3))
            batch = task.loader(graphs, shuffle=False)[0]
            drawn(backbone)
            task.train_on_batch(*batch)
            found.append(task.predict(graphs) + backbone.get_weights())
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_attention_after_training_costs_the_squares_of_the_graphs(monkeypatch):
    shapes = []
    whole = attention_layer.full_attention

    def counted(q, *arguments):
        shapes.append(tuple(q.shape))
        return whole(q, *arguments)

    monkeypatch.setattr(attention_layer, "full_attention", counted)
    task = kb.models.GraphRegressor(kb.models.GPSBackbone(INPUTS, 8, 1, **EDGES))
    graphs = graphs_of([9, 7, 8] * 10)
    batch = task.loader(graphs, shuffle=False)[0][0]
    slots, nodes = batch["graph"]["mask"].shape[1], batch["node"]["mask"].shape[1]
    task.backbone(batch)
    assert shapes == [(1, nodes, 8)]
    task.fit(graphs, epochs=1, verbose=0)
    assert task.backbone.usual_length == 9
    config = task.backbone.get_config()
    assert kb.models.GPSBackbone.from_config(config).attentions[0].usual_length == 9
    del shapes[:]
    task.backbone(batch)
    assert (slots, 9, 8) in shapes
    if keras.backend.backend() == "torch":
        assert len(shapes) == 1


def test_degrees_of_the_training_graphs_are_saved(tmp_path):
    graphs = graphs_of()
    task = kb.models.GraphRegressor(
        kb.models.GPSBackbone(INPUTS, 8, 1, local="pna", num_heads=2, **EDGES)
    )
    task.fit(graphs, epochs=1, verbose=0)
    degrees = np.concatenate(
        [np.bincount(g.receivers, minlength=g.num_nodes) for g in graphs]
    )
    assert task.backbone.delta == pytest.approx(np.log(degrees + 1).mean())
    task.save_to_preset(tmp_path / "preset")
    loaded = kb.models.GraphRegressor.from_preset(tmp_path / "preset")
    assert loaded.backbone.messages[0].delta == task.backbone.delta
    for one, other in zip(task.predict(graphs), loaded.predict(graphs), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_message_of_ones_own_beside_attention():
    class Mean(kb.models.GPSBackbone):
        def message_layer(self, number):
            return kb.layers.SAGEConvolution(
                self.hidden_dim, num_edge_types=2, name=f"message_{number}"
            )

    backbone = Mean(INPUTS, 8, 1, num_heads=2)
    assert isinstance(backbone.messages[0], kb.layers.SAGEConvolution)
    states = states_of(backbone, graphs_of(), DynamicBatcher(3))
    assert [len(rows) for rows in states] == [9, 4, 1, 6]


# === Layers that gradients compute again ===


def values_of(model):
    """Values of all variables, seeds among them, numbered."""
    for number, variable in enumerate(model.variables):
        name = f"{number} {variable.path.partition('/')[2]}"
        yield name, np.asarray(keras.ops.convert_to_numpy(variable), "float64")


FRAMES = {
    "GCNBackbone": {"edge_inputs": None, "residual": "linear", "norm": "layer"},
    "GATv2Backbone": {"num_heads": 2, "attention_dropout": 0.2},
    "GINEBackbone": {"virtual_node": True, "norm": "batch"},
    "GatedGCNBackbone": {"feed_forward": True},
    "GPSBackbone": {
        "num_heads": 2,
        "attention_dropout": 0.2,
        "local": "gatedgcn",
        "virtual_node": True,
    },
    "PNABackbone": {"jumping_knowledge": "concat"},
    "SAGEBackbone": {"edge_inputs": None, "norm": "graph", "ego_separation": True},
}


@pytest.mark.every_backend("GPSBackbone")
@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.release(elsewhere=True)
def test_layers_that_are_computed_again_train_the_same(name):
    """Gradients, moving averages and seeds, which move once in a step."""
    found = []
    for remat in (False, True):
        options = {**EDGES, "dropout": 0.3, **FRAMES[name], "remat": remat}
        backbone = drawn(getattr(kb.models, name)(INPUTS, 8, 2, **options))
        task = kb.models.GraphRegressor(backbone, normalizer=None)
        task.compile(keras.optimizers.SGD(0.1, global_clipnorm=40.0))
        before = dict(values_of(task))
        keras.utils.set_random_seed(0)
        for variable in task.variables:
            if variable.path.endswith("seed_generator_state"):
                variable.assign([1, 0])
        batch = task.loader(graphs_of(), shuffle=False)[0]
        for _ in range(2):
            task.train_on_batch(*batch)
        found.append(dict(values_of(task)))
    plain, again = found
    moved = [name for name in plain if np.abs(plain[name] - before[name]).max() > 1e-4]
    assert len(moved) > 0.6 * len(plain)
    for key, value in plain.items():
        atol = 1e-5 * max(1, np.abs(value).max())
        np.testing.assert_allclose(again[key], value, atol=atol, err_msg=key)
