"""`LightGCNBackbone` against NumPy and torch_geometric: states, gradients, plans."""

import warnings

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn import ops as graph_ops
from keras_bandgnn.data import from_sets
from keras_bandgnn.preprocessing import GraphLoader, NeighborSampler, StaticBatcher

pytestmark = pytest.mark.every_backend

USERS, ITEMS, WIDTH = 9, 14, 6
BUYS = ("user", "buys", "item")
SETS = {"sets": {"user": {"id": USERS}, "item": {"id": ITEMS}}}


def bought(seed=0):
    """Pairs of users and items; a user and an item have none."""
    rng = np.random.default_rng(seed)
    pairs = rng.integers(0, [[USERS - 1], [ITEMS - 1]], (2, 40))
    return np.unique(pairs, axis=1)


def market(seed=0):
    """A graph of two node sets and an edge set in both directions."""
    nodes = {"user": {"id": np.arange(USERS)}, "item": {"id": np.arange(ITEMS)}}
    return from_sets(nodes, {BUYS: bought(seed)}, reverse=True)


def plain(seed=0, loops=False):
    """The same as an undirected graph of numbered nodes."""
    users, items = bought(seed)
    ends = np.concatenate([[users, items + USERS], [items + USERS, users]], axis=1)
    if loops:
        ends = np.concatenate([ends, [[1, 1, 4], [1, 1, 4]]], axis=1)
    count = USERS + ITEMS
    return kb.Graph(count, *ends, node={"id": np.arange(count)})


def backbone_of(graph, **options):
    keras.utils.set_random_seed(0)
    inputs = SETS if graph.sets else {"id": USERS + ITEMS}
    backbone = kb.models.LightGCNBackbone(inputs, WIDTH, **options)
    for number, weight in enumerate(backbone.weights):
        drawn = np.random.default_rng(number).normal(size=weight.shape)
        weight.assign(drawn.astype("float32"))
    return backbone


def batch_of(graph, backbone, plan=None):
    loader = GraphLoader(
        [graph],
        StaticBatcher(1),
        plan=plan or kb.plans.Plan(),
        num_edge_types=backbone.num_edge_types,
    )
    return loader[0][0]


def table_of(graph, backbone):
    """The embeddings of the nodes of a graph, from the weights."""
    tables = [keras.ops.convert_to_numpy(w) for w in backbone.weights]
    if not graph.sets:
        return tables[0]
    # Sets are in the order of their names.
    tables = dict(zip(["item", "user"], tables, strict=True))
    names = [*graph.sets]
    return np.stack(
        [
            tables[names[part]][row]
            for part, row in zip(graph.node["set"], graph.node["set_row"], strict=True)
        ]
    )


def propagated(graph, table, num_layers, weights=None):
    """The states of all nodes by a dense matrix."""
    count = graph.num_nodes
    adjacency = np.zeros((count, count))
    np.add.at(adjacency, (graph.receivers, graph.senders), 1.0)
    degree = adjacency.sum(axis=1)
    root = np.where(degree > 0, 1 / np.sqrt(np.maximum(degree, 1)), 0)
    matrix = root[:, None] * adjacency * root
    if weights is None:
        weights = [1 / (num_layers + 1)] * (num_layers + 1)
    states, total = table.astype("float64"), 0
    for weight in weights:
        total = total + weight * states
        states = matrix @ states
    return total


GRAPHS = {"sets": market, "plain": plain, "loops": lambda: plain(loops=True)}
PLANS = {
    "segment": [],
    "banded": [kb.plans.Banded(4)],
    "dense": [kb.plans.Dense(32)],
    "supernode": [kb.plans.Supernode(4)],
    "grouped": [kb.plans.Grouped(16)],
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kind", GRAPHS)
def test_states_are_those_of_a_dense_matrix(kind, plan):
    graph = GRAPHS[kind]()
    for options in (
        {},
        {"num_layers": 1},
        {"num_layers": 2, "layer_weights": [0.5, -1.0, 2.0]},
    ):
        backbone = backbone_of(graph, **options)
        rest = kb.plans.Grouped(16) if plan == "grouped" else "segment"
        primitives = [] if plan == "grouped" else PLANS[plan]
        batch = batch_of(graph, backbone, kb.plans.Plan(*primitives, rest=rest))
        states = keras.ops.convert_to_numpy(backbone(batch))[0, : graph.num_nodes]
        expected = propagated(
            graph,
            table_of(graph, backbone),
            backbone.num_layers,
            backbone.layer_weights,
        )
        np.testing.assert_allclose(states, expected, atol=1e-5)


def test_types_of_edges_count_alike():
    graph = market()
    states = [
        keras.ops.convert_to_numpy(backbone(batch_of(graph, backbone)))
        for backbone in (backbone_of(graph, num_edge_types=n) for n in (0, 2))
    ]
    np.testing.assert_allclose(*states, atol=1e-5)


@pytest.mark.parametrize("num_layers", [1, 3])
def test_states_and_gradients_are_those_of_torch_geometric(num_layers):
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        # torch_geometric deprecates parts of torch as it loads.
        warnings.simplefilter("ignore", DeprecationWarning)
        peer = pytest.importorskip("torch_geometric.nn.models").LightGCN
    graph = plain()
    backbone = backbone_of(graph, num_layers=num_layers)
    theirs = peer(graph.num_nodes, WIDTH, num_layers)
    table = table_of(graph, backbone)
    with torch.no_grad():
        theirs.embedding.weight.copy_(torch.tensor(table))
    index = torch.tensor(np.stack([graph.senders, graph.receivers]).astype("int64"))
    rows = theirs.get_embedding(index)
    factor = np.random.default_rng(5).normal(size=rows.shape).astype("float32")
    (rows * torch.tensor(factor)).sum().backward()
    batch = batch_of(graph, backbone)
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(backbone(batch))[0, : graph.num_nodes],
        rows.detach().numpy(),
        atol=1e-5,
    )
    padded = np.zeros((1, batch["node"]["mask"].shape[1], WIDTH), "float32")
    padded[0, : graph.num_nodes] = factor
    padded = keras.ops.convert_to_tensor(padded)

    def loss(states):
        # Each node has a row of its own.
        features = {"node": {"id": states}}
        return keras.ops.sum(backbone({**batch, "explained": features}) * padded)

    rows = np.zeros(padded.shape, "float32")
    rows[0, : graph.num_nodes] = table
    _, gradient = graph_ops.value_and_gradient(loss, keras.ops.convert_to_tensor(rows))
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(gradient)[0, : graph.num_nodes],
        theirs.embedding.weight.grad.numpy(),
        atol=1e-5,
    )


def test_states_by_layer_and_of_all_neighbours_are_those_of_the_graph():
    for graph in (market(), plain(loops=True)):
        task = kb.models.LinkPredictor(
            backbone_of(graph), edge_set=BUYS if graph.sets else None
        )
        pairs = [[0, 3], [2, 1], [5, 8]]
        whole = task.predict(graph, pairs)
        np.testing.assert_allclose(
            task.predict(graph, pairs, by_layer=True), whole, atol=1e-5
        )
        sampler = NeighborSampler([-1, -1, -1], batch_size=16)
        loader = kb.models.link_pairs.make_link_loader(
            task,
            task._links(graph),
            task._links(graph).read("pairs", pairs),
            sampler=sampler,
        )
        x, y, _ = loader[0]
        scores = keras.ops.convert_to_numpy(task(x))[0]
        np.testing.assert_allclose(scores[y[0] > 0][:3], whole, atol=1e-5)


def test_weights_of_edges_are_those_of_the_matrix():
    graph = plain()
    weight = np.random.default_rng(1).uniform(0.5, 2.0, graph.num_edges)
    graph = graph.replace(edge={"w": weight.astype("float32")})
    backbone = backbone_of(graph)
    loader = GraphLoader([graph], StaticBatcher(1), num_edge_types=0, edge_weight="w")
    count = graph.num_nodes
    matrix = np.zeros((count, count))
    np.add.at(matrix, (graph.receivers, graph.senders), weight)
    degree = matrix.sum(axis=1)
    root = np.where(degree > 0, 1 / np.sqrt(np.maximum(degree, 1e-9)), 0)
    matrix = root[:, None] * matrix * root
    table = table_of(graph, backbone)
    expected = sum(np.linalg.matrix_power(matrix, k) @ table for k in range(4)) / 4
    states = keras.ops.convert_to_numpy(backbone(loader[0][0]))[0, :count]
    np.testing.assert_allclose(states, expected, atol=1e-5)
    cancelled = graph.replace(edge={"w": np.where(weight > 1, 1.0, -1.0)})
    with pytest.raises(ValueError, match="weighted degree above 0"):
        backbone.check_weights([kb.data.FlatGraphs.from_graphs([cancelled])], "w")


def test_other_features_are_mapped_and_wrong_arguments_are_refused():
    features = {"user": {"x": {"features": 3}}, "item": {"x": {"features": 5}}}
    rng = np.random.default_rng(0)
    nodes = {
        "user": {"x": rng.normal(size=(USERS, 3))},
        "item": {"x": rng.normal(size=(ITEMS, 5))},
    }
    graph = from_sets(nodes, {BUYS: bought()}, reverse=True)
    backbone = kb.models.LightGCNBackbone({"sets": features}, WIDTH)
    states = keras.ops.convert_to_numpy(backbone(batch_of(graph, backbone)))
    assert states.std() > 0 and np.isfinite(states).all()
    for weights in ([1.0], "mean", [1.0, 2.0, 3.0, None]):
        with pytest.raises(ValueError, match="layer_weights"):
            kb.models.LightGCNBackbone({"id": 3}, 4, layer_weights=weights)


def test_there_are_no_weights_but_those_of_the_encoder():
    backbone = backbone_of(market(), layer_weights=[1.0, 0.5, 0.25, 0.0])
    assert [w.shape for w in backbone.weights] == [(ITEMS, WIDTH), (USERS, WIDTH)]
    again = kb.models.LightGCNBackbone.from_config(backbone.get_config())
    assert again.get_config() == backbone.get_config()


def test_edges_of_one_direction_are_warned_of(caplog):
    graph = market()
    backbone_of(graph).check(kb.data.FlatGraphs.from_graphs([graph]))
    assert not caplog.records
    nodes = {"user": {"id": np.arange(USERS)}, "item": {"id": np.arange(ITEMS)}}
    one_way = from_sets(nodes, {BUYS: bought()})
    backbone_of(graph).check(kb.data.FlatGraphs.from_graphs([one_way]))
    assert "reverse=True" in caplog.text
