"""Every attention pattern against dense oracles, saved, and with nodes renumbered."""

import inspect

import keras
import numpy as np
import pytest
from registered import BACKBONES

from keras_bandgnn import Graph, models
from keras_bandgnn.assembly.canonical_order import canonical_rank
from keras_bandgnn.batch import unbatch
from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.models import GraphClassifier, GraphormerBackbone, GraphRegressor
from keras_bandgnn.models.graph_transformer.graph_transformer_backbone import ATTENTION
from keras_bandgnn.preprocessing import (
    AttentionEdges,
    AttentionPlan,
    DynamicBatcher,
    GraphPreprocessor,
    StaticBatcher,
)
from tests.array_files import load_molecules
from tests.oracles import attention as oracle

pytestmark = pytest.mark.every_backend("dense_oracle")

# Arguments with which each pattern is tried; a new one needs an entry.
PATTERNS = {
    "sparse": [{}, {"global_token": True}],
    "full": [{}, {"global_token": True}, {"max_length": 16}],
    "periodic": [{}, {"full_every": 3}],
    "augment": [{}],
    "conditions": [{"conditions_hold": True}, {"conditions_hold": False}, {}],
}
# Biases with which all patterns are tried.
BIASES = [
    {"max_distance": 1, "num_edge_types": 1},
    {"max_distance": 2, "num_edge_types": 4},
    {"max_distance": 3, "num_edge_types": 4},
    {"max_distance": 3, "use_bias": False},
]
# The equations are NumPy's, and operations of one backend are tested on all elsewhere:
# those that compile each eager operation get the richest case of each pattern.
QUICK = keras.backend.backend() == "torch"
CASES = [
    (name, {**options, **bias})
    for name, variants in PATTERNS.items()
    for options in (variants if QUICK else variants[:1])
    for bias in (BIASES if QUICK else BIASES[2:3])
]
TRANSFORMERS = [
    c
    for c in (getattr(models, name) for name in models.__all__)
    if inspect.isclass(c)
    and issubclass(c, models.Backbone)
    and "attention" in inspect.signature(c.__mro__[1]).parameters
]


def odd_graphs():
    """Parallel edges, self-loops, one node, no edges, several parts."""
    rng = np.random.default_rng(0)
    edges = [
        (3, [(0, 1), (0, 1), (1, 0), (1, 2), (1, 2)]),
        (3, [(0, 0), (0, 0), (1, 1), (0, 1)]),
        (1, []),
        (1, [(0, 0), (0, 0)]),
        (5, []),
        (7, [(0, 1), (1, 2), (2, 3), (1, 4), (1, 5), (5, 6)]),
        (12, rng.integers(0, 12, (12, 2))),
        (9, rng.integers(0, 9, (30, 2))),
    ]
    graphs = []
    for n, ends in edges:
        ends = np.array(ends, int).reshape(-1, 2)
        kinds, node = rng.integers(0, 3, len(ends)), {"kind": rng.integers(0, 4, n)}
        graphs.append(Graph(n, *ends.T, edge_type=kinds, node=node, label=float(n)))
    return graphs


GRAPHS = odd_graphs()


def make(attention, kind=GraphormerBackbone, **options):
    backbone = kind({"kind": 4}, 8, 2, num_heads=2, attention=attention, **options)
    rng = np.random.default_rng(1)
    for weight in backbone.trainable_variables:
        weight.assign(
            0.4 * rng.normal(size=weight.shape) + (weight.path[-5:] == "gamma")
        )
    return backbone


def states_of(backbone, graphs, batcher=None, plan=None):
    preprocessor = GraphPreprocessor(backbone.graph_layers(), batcher)
    plan = plan or backbone.auto_plan()
    loader = preprocessor.loader(graphs, plan=plan, shuffle=False)
    rows = {}
    for index in range(len(loader)):
        x = loader[index][0]
        rows |= dict(unbatch(oracle.numpy(backbone(x)), x, "node"))
    return [rows[number] for number in range(len(graphs))]


def test_every_pattern_has_a_sample():
    assert set(PATTERNS) == set(ATTENTION), "add the pattern to PATTERNS in this file"
    assert {c.__name__ for c in TRANSFORMERS} == {"GTBackbone", "GraphormerBackbone"}


@pytest.mark.parametrize(("attention", "options"), CASES, ids=str)
def test_states_are_those_of_the_dense_oracle(attention, options):
    backbone = make(attention, max_degree=5, **options)
    found = states_of(backbone, GRAPHS, DynamicBatcher(11))
    for rows, graph in zip(found, GRAPHS, strict=True):
        np.testing.assert_allclose(rows, oracle.states(backbone, graph), atol=3e-5)


@pytest.mark.parametrize("plan", [{"share": 1.0}, {"least_fill": 0.1}], ids=str)
@pytest.mark.parametrize(
    "attention", ["sparse", "augment", "periodic"] if QUICK else ["augment"]
)
def test_tiles_compute_the_same(attention, plan):
    backbone = make(attention, max_distance=2, num_edge_types=4)
    tiles = AttentionPlan(4, **plan)
    graphs = GRAPHS if QUICK else GRAPHS[-1:]
    found = states_of(backbone, graphs, StaticBatcher(1, "64"), tiles)
    for rows, graph in zip(found, graphs, strict=True):
        np.testing.assert_allclose(rows, oracle.states(backbone, graph), atol=3e-5)


@pytest.mark.parametrize("attention", PATTERNS)
def test_target_edges_change_no_state(attention):
    options = PATTERNS[attention][0]
    bias = {"max_distance": 3, "num_edge_types": 4, "target_type": 1}
    backbone = make(attention, max_degree=5, **options, **bias)
    found = states_of(backbone, GRAPHS, DynamicBatcher(11))
    tiled = []
    if attention == "augment":
        tiles = AttentionPlan(4, share=1.0)
        tiled = states_of(backbone, GRAPHS[-2:], StaticBatcher(1, "64"), tiles)
    for rows, graph in zip(
        found + tiled, GRAPHS + GRAPHS[len(GRAPHS) - len(tiled) :], strict=True
    ):
        np.testing.assert_allclose(rows, oracle.states(backbone, graph), atol=3e-5)
    assert backbone.get_config()["target_type"] == 1


def test_gt_equals_the_oracle_without_biases():
    backbone = make("augment", models.GTBackbone, laplacian=2)
    found = states_of(backbone, GRAPHS, DynamicBatcher(11))
    for rows, graph in zip(found, GRAPHS, strict=True):
        np.testing.assert_allclose(rows, oracle.states(backbone, graph), atol=3e-5)


def test_links_have_the_bias_of_their_distance():
    # A star: the path joins leaves, which are two steps apart.
    star = Graph(6, [0] * 5, [1, 2, 3, 4, 5], node={"kind": [0, 1, 2, 3, 1, 2]})
    for most, told in ((1, 2), (2, 2), (3, 2)):
        (*_, layer) = make("augment", max_distance=most).graph_layers()
        made = layer(star)
        assert set(made.edge["distance"].tolist()) == {1, told}
    apart = Graph(8, [0, 1, 2, 4, 5, 6], [1, 2, 3, 5, 6, 7])
    (*_, layer) = make("augment", max_distance=3).graph_layers()
    assert set(layer(apart).edge["distance"].tolist()) == {1, 4}


# === What is decided, and when ===


def complete(n, label=1.0):
    ends = np.nonzero(~np.eye(n, dtype=bool))
    return Graph(n, *ends, node={"kind": np.arange(n) % 4}, label=label)


def ring(n, label=0.0):
    ends = np.arange(n), np.roll(np.arange(n), 1)
    return Graph(n, *ends, node={"kind": np.arange(n) % 4}, label=label)


def patterns(task):
    return {block.attention.pattern for block in task.backbone.blocks}


@pytest.mark.parametrize(
    "kind", TRANSFORMERS if QUICK else TRANSFORMERS[:1], ids=lambda kind: kind.__name__
)
def test_conditions_are_decided_by_the_training_graphs_and_saved(kind, tmp_path):
    train, other = [complete(6), complete(7)], [ring(9), ring(8)]
    task = GraphRegressor(make("conditions", kind))
    task.compile("sgd")
    # Looking at graphs decides nothing.
    before = task.backbone.get_config()
    undecided = task.predict(other)
    assert patterns(task) == {"full"} and task.backbone.get_config() == before
    task.fit(train, verbose=0)
    assert patterns(task) == {"sparse"} and task.backbone.conditions_hold
    # Programs that were compiled before are not used again.
    assert np.abs(np.array(task.predict(other)) - undecided).max() > 1e-3
    # Nor does training on others change what was decided.
    task.backbone.adapt([FlatGraphs.from_graphs(other)])
    assert patterns(task) == {"sparse"}
    task.save_to_preset(tmp_path / "preset")
    loaded = GraphRegressor.from_preset(tmp_path / "preset")
    # The order in which graphs are met does not matter.
    for one, two in zip(loaded.predict(other), task.predict(other), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)
    task.backbone.save_weights(tmp_path / "task.weights.h5")
    fresh = make("conditions", kind)
    fresh.load_weights(tmp_path / "task.weights.h5")
    assert fresh.conditions_hold and fresh.pattern_of(0) == "sparse"
    assert fresh.blocks[0].attention.pattern == "sparse"


@pytest.mark.parametrize("kind", TRANSFORMERS, ids=lambda kind: kind.__name__)
def test_conditions_are_checked_in_all_parts(kind):
    parts = [FlatGraphs.from_graphs([complete(5), complete(4)]), [ring(9)]]
    parts[1] = FlatGraphs.from_graphs(parts[1])
    backbone = make("conditions", kind)
    assert not backbone.adapt(parts) and backbone.conditions_hold is False
    again = kind.from_config(backbone.get_config())
    assert again.conditions_hold is False and again.pattern_of(0) == "full"
    assert "C3" in str(backbone.verdict)


def test_weights_of_other_patterns_hold_nothing_more(tmp_path):
    sparse, undecided = make("sparse"), make("conditions")
    sparse.save_weights(tmp_path / "sparse.weights.h5")
    undecided.load_weights(tmp_path / "sparse.weights.h5")
    assert undecided.conditions_hold is None
    with pytest.raises(ValueError, match="attention='conditions' only"):
        make("sparse", conditions_hold=True)
    again = type(sparse).from_config(make("full", use_bias=False).get_config())
    assert again.use_bias is False


# === Renumbering ===


def renumbered(graph, rng):
    order = rng.permutation(graph.num_nodes)
    # As given by somebody who numbers the nodes so: without the origin.
    return graph.subgraph(order).replace(origin=None)


def links_of(graph):
    """Edges of a graph by the canonical places of their ends."""
    rank = canonical_rank(graph)
    rows = rank[graph.senders], rank[graph.receivers], graph.edge_type
    return sorted(map(tuple, np.stack(rows, axis=1).tolist()))


def augmented(graph):
    """The graph whose edges are the pairs of `attention="augment"`, typed by all."""
    made = AttentionEdges(path=True, path_distance=3)(graph)
    kind = 8 * made.edge["distance"] + made.edge["attend"]
    return made.replace(edge_type=kind, edge={})


def plain_graphs(count=60):
    rng = np.random.default_rng(5)
    for index in range(count):
        n = int(rng.integers(1, 30))
        ends = rng.integers(0, n, (2, int(n * (0.5, 1, 2)[index % 3])))
        node = {"kind": rng.integers(0, 1 + index % 4, n)}
        yield Graph(n, *ends, edge_type=rng.integers(0, 2, ends.shape[1]), node=node)


def symmetric_graphs():
    cube = [(a, a ^ 1 << k) for a in range(8) for k in range(3)]
    grid = [(5 * i + j, 5 * i + j + 1) for i in range(5) for j in range(4)]
    grid += [(5 * i + j, 5 * i + 5 + j) for i in range(4) for j in range(5)]
    trees = [(0, i) for i in range(1, 5)] + [(i, 4 + i) for i in range(1, 5)]
    twice = [(a + 8 * k, b + 8 * k) for k in range(3) for a, b in cube]
    edges = {8: cube, 25: grid, 9: trees, 24: twice, 12: [], 40: []}
    edges[12] = [(i, (i + 1) % 6) for i in range(6)]
    for n, ends in edges.items():
        yield Graph(n, *np.array(ends, int).reshape(-1, 2).T, node={"kind": [0] * n})


@pytest.mark.parametrize("make_graphs", [plain_graphs, symmetric_graphs])
def test_generated_links_do_not_follow_the_numbers(make_graphs):
    rng = np.random.default_rng(6)
    for graph in make_graphs():
        other = renumbered(graph, rng)
        assert links_of(augmented(graph)) == links_of(augmented(other))


def test_renumbered_graphs_are_predicted_alike(shared_data):
    rng = np.random.default_rng(7)
    flat = load_molecules(shared_data / "graph_zinc")
    graphs = [flat[int(i)] for i in rng.permutation(len(flat))[:64]]
    name = min(graphs[0].node)
    graphs = [
        Graph(
            g.num_nodes,
            g.senders,
            g.receivers,
            edge_type=g.edge_type,
            node={"kind": g.node[name].reshape(g.num_nodes, -1)[:, 0] % 4},
            label=[1.0],
        )
        for g in graphs
    ] + [g.replace(label=[1.0]) for g in plain_graphs(30)]
    backbone = make("augment", max_distance=3)
    task = GraphRegressor(backbone)
    before = np.array(task.predict(graphs))
    after = np.array(task.predict([renumbered(g, rng) for g in graphs]))
    assert before.std() > 1e-3
    np.testing.assert_allclose(after, before, atol=1e-5 * max(1, np.abs(before).max()))


# === No state is left behind by looking ===

INPUTS = {"kind": 4}


def plain_state(thing, depth=6):
    """What objects of the library hold in attributes, without weights and caches."""
    if isinstance(thing, dict):
        return {k: plain_state(v, depth - 1) for k, v in thing.items()}
    if isinstance(thing, list | tuple):
        return [plain_state(v, depth - 1) for v in thing]
    if isinstance(thing, str | int | float | bool | None):
        return thing
    if not type(thing).__module__.startswith("keras_bandgnn") or depth < 0:
        return type(thing).__name__
    return {
        k: plain_state(v, depth - 1)
        for k, v in vars(thing).items()
        if not k.startswith("_") and k != "distribution"
    }


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_looking_at_graphs_changes_no_state(name):
    attentive = getattr(models, name) in TRANSFORMERS
    backbone, graphs = BACKBONES[name](
        **({"attention": "conditions"} if attentive else {})
    )
    graphs = [
        graph.replace(label=k % 2, label_level="graph")
        for k, graph in enumerate(graphs)
    ]
    task = GraphClassifier(
        backbone, 2, GraphPreprocessor(backbone.graph_layers(), DynamicBatcher(2))
    )
    state, config = plain_state(backbone), task.get_config()
    loader = task.loader(graphs)
    for part in loader.parts:
        backbone.check(part)
    task.check(loader)
    if name in ("GTBackbone", "GATBackbone"):
        task.predict(graphs)
        task.embed(graphs)
    assert plain_state(backbone) == state
    assert task.get_config() == config


def test_training_graphs_choose_the_batcher_whatever_was_predicted_before():
    one = ring(6).replace(label=np.zeros(6), label_level="node")
    several = [one] * 5

    def made():
        backbone = models.GCNBackbone(INPUTS, 8, num_layers=1)
        return models.NodeClassifier(backbone, 2)

    for before, train, kind in (
        ([one], several, DynamicBatcher),
        (several, one, StaticBatcher),
    ):
        task = made()
        task.loader(before)
        task.loader(train, adapt=True)
        assert type(task.preprocessor.batcher) is kind
        # What was trained stays.
        kept = task.preprocessor
        task.loader(before, adapt=True)
        assert task.preprocessor is kept


def test_programs_follow_what_weights_decide(tmp_path):
    """Loaded weights hold whether conditions hold: compiled steps begin anew."""

    def path(length):
        ends = np.arange(length - 1)
        return Graph(
            length,
            np.r_[ends, ends + 1],
            np.r_[ends + 1, ends],
            node={"h": np.random.default_rng(length).normal(size=(length, 3))},
            label=float(length),
        )

    def make():
        keras.utils.set_random_seed(0)
        backbone = models.GTBackbone(
            {"h": {"features": 3}}, 8, num_layers=6, num_heads=2, attention="conditions"
        )
        return GraphRegressor(backbone)

    graphs = [path(3 + i % 3) for i in range(6)]
    task = make()
    task.fit(graphs, epochs=1, verbose=0)
    task.backbone.save_weights(tmp_path / "backbone.weights.h5")
    expected = task.predict(graphs), task.embed(graphs)
    other = make()
    before = other.predict(graphs), other.embed(graphs)
    assert other.backbone.conditions_hold != task.backbone.conditions_hold
    other.set_weights(task.get_weights())
    other.backbone.load_weights(tmp_path / "backbone.weights.h5")
    after = other.predict(graphs), other.embed(graphs)
    for wanted, rows, old in zip(expected, after, before, strict=True):
        np.testing.assert_allclose(np.ravel(wanted[0]), np.ravel(rows[0]), atol=1e-5)
        assert np.abs(np.ravel(old[0]) - np.ravel(rows[0])).max() > 1e-3
