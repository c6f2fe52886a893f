import keras
import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.batch import unbatch
from keras_bandgnn.layers import DualInterleavedAttention
from keras_bandgnn.models import (
    GraphormerBackbone,
    GraphRegressor,
    GTBackbone,
    NodeClassifier,
)
from keras_bandgnn.preprocessing import (
    AttentionPlan,
    ClusterCompile,
    DynamicBatcher,
    GraphLoader,
    GraphPreprocessor,
    SequenceLoader,
    StaticBatcher,
)
from keras_bandgnn.preprocessing.attention.reformation import LADDER
from keras_bandgnn.training import ElasticTuner, RecompileGuard

pytestmark = pytest.mark.every_backend(
    "transformer_conv", "full_attention", "is_saved", "computed_again"
)

H, K, LAYERS, DISTANCE = 8, 2, 2, 2


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(tensor))


def graphs_of(count=5, seed=0, low=2, high=12):
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        n = int(rng.integers(low, high))
        ends = rng.integers(0, n, (2, 2 * n))
        node = {"kind": rng.integers(0, 4, n)}
        kind = rng.integers(0, 3, 2 * n)
        graphs.append(Graph(n, *ends, edge_type=kind, node=node, label=float(n)))
    return graphs


def make(attention="sparse", **options):
    options = {"max_distance": DISTANCE, "num_edge_types": 4, **options}
    backbone = GraphormerBackbone(
        {"kind": 4},
        H,
        LAYERS,
        num_heads=K,
        max_degree=5,
        attention=attention,
        **options,
    )
    rng = np.random.default_rng(1)
    for weight in backbone.trainable_variables:
        weight.assign(
            0.4 * rng.normal(size=weight.shape) + (weight.path[-5:] == "gamma")
        )
    return backbone


def states_of(backbone, graphs, **options):
    """Node states of each graph, with tokens if there are any."""
    preprocessor = GraphPreprocessor(backbone.graph_layers(), DynamicBatcher(7))
    loader = preprocessor.loader(graphs, plan=backbone.auto_plan(), **options)
    assert len(loader) == 1
    x = loader[0][0]
    return [rows for _, rows in sorted(unbatch(numpy(backbone(x)), x, "node"))]


@pytest.mark.parametrize("attention", ["sparse", "full", "augment"])
def test_nothing_about_the_batch_changes_states(attention):
    graphs = graphs_of()
    backbone, rows = make(attention), make(attention, max_length=12)
    rows.set_weights(backbone.get_weights())
    together = states_of(backbone, graphs)
    for index, graph in enumerate(graphs):
        (alone,) = states_of(backbone, [graph])
        np.testing.assert_allclose(alone, together[index], atol=2e-5)
    # Graph by graph, or the whole supergraph at once.
    for one, other in zip(states_of(rows, graphs), together, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)
    order = np.random.default_rng(0).permutation(graphs[0].num_nodes)
    place = np.argsort(order)
    turned = Graph(
        graphs[0].num_nodes,
        place[graphs[0].senders],
        place[graphs[0].receivers],
        edge_type=graphs[0].edge_type,
        node={"kind": graphs[0].node["kind"][order]},
        label=0.0,
    )
    (found,) = states_of(backbone, [turned])
    np.testing.assert_allclose(found, together[0][order], atol=2e-5)


@pytest.mark.parametrize("options", [{"share": 1.0}, {"threshold": 5.0}])
def test_tiles_change_nothing_unless_edges_are_dropped(options):
    pytest.importorskip("pymetis")
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 60, (2, 300))
    graph = Graph(60, *ends, node={"kind": rng.integers(0, 4, 60)}, label=1.0)
    backbone = make(num_edge_types=1)
    layers = [*backbone.graph_layers()]
    graph = ClusterCompile(4, block_size=8)(graph)
    for layer in layers:
        graph = layer(graph)

    def states(plan):
        loader = GraphLoader([graph], StaticBatcher(1, padding="64"), plan)
        x = loader[0][0]
        return numpy(backbone(x))[0, :60], x

    single, _ = states(AttentionPlan())
    kept, x = states(AttentionPlan(8, **options))
    arrays = x["plan"]["tiles:8"]
    held = (arrays["edge"] < x["edge"]["mask"].shape[1]).sum()
    rest = (arrays["rest"] < x["edge"]["mask"].shape[1]).sum()
    assert held > 0 and held + rest == (x["edge"]["attend"] > 0).sum()
    np.testing.assert_allclose(kept, single, atol=2e-5)
    dropped, _ = states(AttentionPlan(8, rest="drop", **options))
    assert np.abs(dropped - single).max() > 1e-3


def test_tiles_ask_for_one_graph_per_supergraph():
    backbone = make()
    layers = backbone.graph_layers()
    preprocessor = GraphPreprocessor(
        layers, DynamicBatcher(7), AttentionPlan(4, share=1)
    )
    with pytest.raises(ValueError, match="one graph per supergraph"):
        preprocessor.loader(graphs_of(), num_edge_types=4)[0]


def test_sparse_attention_equals_transformer_conv():
    torch = pytest.importorskip("torch")
    nn = pytest.importorskip("torch_geometric.nn")
    rng = np.random.default_rng(0)
    count, width = 9, 6
    pairs = np.argwhere(rng.random((count, count)) < 0.4)
    receiver, sender = pairs[pairs[:, 0] != pairs[:, 1]].T
    states = rng.normal(size=(1, count, width)).astype("float32")
    layer = DualInterleavedAttention(2, 3, self_loops=False)
    layer.build((None, None, width))
    layer.set_weights([rng.normal(size=w.shape) for w in layer.get_weights()])
    peer = nn.TransformerConv(width, 3, heads=2, root_weight=False)
    weights = {w.path.split("/", 1)[-1]: numpy(w) for w in layer.weights}
    with torch.no_grad():
        for ours, theirs in (
            ("query", peer.lin_query),
            ("key", peer.lin_key),
            ("value", peer.lin_value),
        ):
            kernel = getattr(layer, f"{ours}_dense").kernel
            theirs.weight.copy_(torch.tensor(numpy(kernel).T))
            bias = getattr(layer, f"{ours}_dense").bias
            theirs.bias.copy_(torch.tensor(numpy(bias)))
    del weights
    want = peer(torch.tensor(states[0]), torch.tensor(np.stack([sender, receiver])))
    output = layer.output_dense
    want = want.detach().numpy() @ numpy(output.kernel) + numpy(output.bias)
    graph = Graph(count, sender, receiver, node={"h": states[0]})
    x = GraphLoader([graph], plan=AttentionPlan())[0][0]
    room = x["node"]["mask"].shape[1] - count
    found = layer(np.pad(states, ((0, 0), (0, room), (0, 0))), x)
    np.testing.assert_allclose(numpy(found)[0, :count], want, atol=1e-5)


def test_fused_attention_is_full_attention():
    graphs = graphs_of()
    for length in (None, 12):
        plain = GTBackbone(
            {"kind": 4},
            H,
            1,
            num_heads=K,
            laplacian=2,
            attention="full",
            max_length=length,
        )
        fused = GTBackbone(
            {"kind": 4},
            H,
            1,
            num_heads=K,
            laplacian=2,
            attention="full",
            max_length=length,
            fused=True,
        )
        fused.set_weights(plain.get_weights())
        both = states_of(plain, graphs), states_of(fused, graphs)
        for one, other in zip(*both, strict=True):
            np.testing.assert_allclose(one, other, atol=2e-5)
    with pytest.raises(ValueError, match="neither biases nor tokens"):
        states_of(make("full", fused=True), graphs)


def test_conditions_choose_the_pattern_and_say_why():
    ring = [(i, (i + 1) % 6) for i in range(6)]
    complete = [(i, j) for i in range(6) for j in range(6) if i != j]

    def chosen(pairs):
        backbone = make("conditions", num_edge_types=1)
        task = GraphRegressor(backbone)
        graph = Graph(6, *np.transpose(pairs), node={"kind": [0] * 6}, label=1.0)
        task.compile("sgd")
        task.predict([graph])
        # Only training decides.
        assert {block.attention.pattern for block in backbone.blocks} == {"full"}
        task.fit([graph], verbose=0)
        patterns = {block.attention.pattern for block in backbone.blocks}
        return patterns, str(backbone.verdict)

    assert chosen(complete)[0] == {"sparse"}
    patterns, why = chosen(ring)
    assert patterns == {"full"} and "C3" in why


@pytest.mark.parametrize("kind", ["graphormer", "gt"])
@pytest.mark.release(elsewhere=True)
def test_a_task_trains_is_saved_and_loaded(kind, tmp_path):
    if kind == "graphormer":
        backbone = make("periodic", attention_dropout=0.2, max_length=16)
    else:
        backbone = GTBackbone({"kind": 4}, H, 1, num_heads=K, laplacian=3, dropout=0.1)
    task = GraphRegressor(backbone)
    graphs = graphs_of(20)
    before = task.evaluate(graphs, return_dict=True, verbose=0)["loss"]
    task.compile(keras.optimizers.Adam(0.01))
    task.fit(graphs, epochs=15, verbose=0)
    assert task.evaluate(graphs, return_dict=True, verbose=0)["loss"] < before
    task.save_to_preset(tmp_path / "preset")
    loaded = GraphRegressor.from_preset(tmp_path / "preset")
    for one, other in zip(task.predict(graphs), loaded.predict(graphs), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    clone = type(backbone).from_config(backbone.get_config())
    assert clone.get_config() == backbone.get_config()


def test_graphs_that_do_not_fit_are_refused():
    task = GraphRegressor(make("full", max_length=3))
    with pytest.raises(ValueError, match="at most max_length=3"):
        task.predict(graphs_of())
    plain = GraphRegressor(make(), 1, GraphPreprocessor())
    with pytest.raises(ValueError, match="graph_layers"):
        graph = graphs_of(1)[0]
        degrees = {"in_degree": [0] * graph.num_nodes}
        degrees["out_degree"] = degrees["in_degree"]
        plain.predict([graph.replace(node={**graph.node, **degrees})])
    with pytest.raises(ValueError, match="multiple of `num_heads`"):
        GraphormerBackbone({"kind": 4}, 10, num_heads=4)


@pytest.mark.parametrize("order", ["random", "clusters"])
def test_sequences_hold_every_node_once(order):
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 50, (2, 200))
    mask = rng.integers(0, 2, 50)
    graph = Graph(
        50,
        *ends,
        node={
            "kind": rng.integers(0, 4, 50),
            "known": mask,
            "cluster": np.arange(50) // 10,
        },
        label=rng.integers(0, 3, 50),
        label_level="node",
    )
    backbone = make(num_edge_types=1)
    for layer in backbone.graph_layers():
        graph = layer(graph)
    loader = SequenceLoader(
        graph, 16, order, "known", plan=AttentionPlan(), num_edge_types=1
    )
    assert len(loader) == 4
    shapes = set()
    for _ in range(3):
        seen = []
        for index in range(len(loader)):
            x, y, weight = loader[index]
            real = x["node"]["mask"][0]
            nodes = loader.composer.at(loader.epoch).nodes[int(x["graph"]["id"][0, 0])]
            seen.append(nodes)
            np.testing.assert_array_equal(
                y[0][real].ravel(), np.where(mask, graph.label, -1)[nodes]
            )
            between = np.isin(graph.senders, nodes) & np.isin(graph.receivers, nodes)
            assert x["edge"]["mask"].sum() == between.sum()
            shapes.add(x["edge"]["mask"].shape)
        assert sorted(np.concatenate(seen)) == list(range(50))
        loader.on_epoch_end()
    assert len(shapes) <= 2
    task = NodeClassifier(backbone, 3)
    history = task.fit(loader, epochs=1, verbose=0, shuffle=False)
    assert np.isfinite(history.history["loss"][0])
    whole = SequenceLoader(graph, 50, plan=AttentionPlan(), shuffle=False)
    (want,) = task.predict(GraphLoader([graph], plan=AttentionPlan()))
    np.testing.assert_allclose(whole.predict(task), want, atol=2e-5)


def test_tuner_moves_the_tiles_of_a_loader():
    pytest.importorskip("pymetis")
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 60, (2, 300))
    graph = Graph(
        60,
        *ends,
        node={"kind": rng.integers(0, 4, 60)},
        label=rng.integers(0, 3, 60),
        label_level="node",
    )
    backbone = make(num_edge_types=1)
    for layer in (ClusterCompile(4, block_size=8), *backbone.graph_layers()):
        graph = layer(graph)
    loader = SequenceLoader(graph, 60, plan=AttentionPlan(8))
    task = NodeClassifier(backbone, 3)
    tuner = ElasticTuner(loader.set_threshold, delta=1)
    guard = RecompileGuard(budget=len(LADDER) + 1)
    task.fit(loader, epochs=8, verbose=0, shuffle=False, callbacks=[tuner, guard])
    seen = {entry["after"] for entry in tuner.decisions if "after" in entry}
    assert len(tuner.decisions) > 0
    assert loader.plan.threshold == tuner.threshold
    assert all(value in LADDER for value in seen)


@pytest.mark.parametrize("token", [False, True])
@pytest.mark.release(elsewhere=True)
def test_blocks_that_are_computed_again_have_the_same_gradients(token, monkeypatch):
    if keras.backend.backend() == "tensorflow":
        with pytest.raises(ValueError, match="JAX or torch for remat"):
            make(remat=True)
        return
    graphs, found = graphs_of(), []
    # Rows of a chunk, of which there is one, or several on JAX.
    for remat, rows in ((False, 8192), (True, 8192), (True, 7)):
        monkeypatch.setattr("keras_bandgnn.ops.remat._ROWS", rows)
        options = {"dropout": 0.3, "attention_dropout": 0.2}
        backbone = make("periodic", remat=remat, global_token=token, **options)
        task = GraphRegressor(backbone, normalizer=None)
        rng = np.random.default_rng(3)
        task.set_weights([0.3 * rng.normal(size=w.shape) for w in task.get_weights()])
        batch = task.loader(graphs)[0]
        keras.utils.set_random_seed(0)
        for variable in task.variables:
            if variable.path.endswith("seed_generator_state"):
                variable.assign([1, 0])
        # Blocks are computed again in training alone.
        task.compile(keras.optimizers.SGD(0.1))
        before = [keras.ops.convert_to_numpy(w) for w in task.trainable_variables]
        task.train_on_batch(*batch)
        after = [keras.ops.convert_to_numpy(w) for w in task.trainable_variables]
        found.append([b - a for b, a in zip(before, after, strict=True)])
    assert max(np.abs(change).max() for change in found[0]) > 1e-2
    for each in zip(*found, strict=True):
        for other in each[1:]:
            np.testing.assert_allclose(each[0], other, atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="reads XLA's analysis")
@pytest.mark.release(elsewhere=True)
def test_memory_of_a_step_that_is_computed_again():
    import jax

    count = 20_000
    rng = np.random.default_rng(0)
    node = np.arange(count).repeat(8)
    graph = Graph(
        count,
        node,
        rng.integers(0, count, node.size),
        node={"kind": rng.integers(0, 3, count)},
        label=rng.integers(0, 3, count),
        label_level="node",
    )
    backbone = GraphormerBackbone({"kind": 3}, num_layers=3, remat=True)
    for layer in backbone.graph_layers():
        graph = layer(graph)
    batcher = StaticBatcher(1, "64")
    loader = GraphLoader([graph], batcher, backbone.auto_plan())
    batch = jax.device_put(loader[0])
    task = NodeClassifier(backbone, 3)
    names = ("trainable_variables", "non_trainable_variables")
    state = [[v.value for v in getattr(task, name)] for name in names]

    def loss(trainable, rest, batch):
        out, _ = task.stateless_call(trainable, rest, batch[0], training=True)
        return jax.numpy.square(out).sum()

    program = jax.jit(jax.grad(loss)).lower(*state, batch).compile()
    held = program.memory_analysis().temp_size_in_bytes
    # Two states of each layer, and what one layer holds meanwhile: 11 arrays of the
    # size of the states and, with twice as many edges as here, 2 of edges and heads.
    nodes = batch[0]["node"]["mask"].size
    assert held < (6 + 11 + 4) * nodes * 64 * 4
