"""No message gives a held-out pair away, whatever layers the preprocessor has."""

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.data import NodePairs, check_leaks, split_links
from keras_bandgnn.preprocessing import GraphPreprocessor, LinkLoader, NegativeSampler
from keras_bandgnn.preprocessing.sampling.negative_sampler import KINDS
from tests.preprocessing.test_odd_graphs import LAYERS

NODES = 14
# Every layer that has a sample, which a test there demands of all that are registered.
SAMPLES = [layer for entry in LAYERS.values() if entry for layer in entry[0]]


def graph_of(ends, types=None):
    """A graph with the features that layers of the library read."""
    ends = np.array(ends, int).reshape(-1, 2)
    rng = np.random.default_rng(0)
    return kb.Graph(
        NODES,
        *ends.T,
        edge_type=types,
        node={
            "id": np.arange(NODES),
            "atomic_number": np.full(NODES, 6),
            "position": rng.normal(size=(NODES, 3)),
        },
        candidates=np.arange(NODES),
    )


def undirected_ends(seed=0):
    rng = np.random.default_rng(seed)
    one = np.argwhere(np.triu(rng.random((NODES, NODES)) < 0.3, 1))
    return np.concatenate([one, one[:, ::-1]])


def split_of_rows(seed=0):
    """The rows of an undirected graph split as if they were no pairs."""
    ends = undirected_ends()
    order = np.random.default_rng(seed).permutation(len(ends))
    test, train = ends[order[:8]], ends[order[8:]]
    graph, pairs = graph_of(train), NodePairs(*test.T)
    edges = set(map(tuple, train.tolist()))
    mirrored = [(r, s) in edges for s, r in test.tolist()]
    assert any(mirrored)
    return graph, pairs, np.array(mirrored)


def task_of(layer=None, head="dot", **options):
    keras.utils.set_random_seed(0)
    if type(layer).__name__ == "ClusterCompile":
        pytest.importorskip("pymetis")
    if getattr(layer, "ordering", "") == "metis":
        pytest.importorskip("pymetis")
    backbone = kb.models.EmbeddingBackbone({"id": NODES}, 4)
    preprocessor = None if layer is None else GraphPreprocessor([layer])
    task = kb.models.LinkPredictor(backbone, head, preprocessor=preprocessor, **options)
    task.compile("sgd", run_eagerly=keras.backend.backend() == "torch")
    return task


def messages_of(layer, graph):
    """Triples of sender, receiver and type of the transformed graph."""
    graph = layer(graph)
    row = np.arange(graph.num_nodes) if graph.origin is None else graph.origin
    rows = row[graph.senders], row[graph.receivers], graph.edge_type
    return set(zip(*(r.tolist() for r in rows), strict=True))


def makes_reverses(layer):
    """Whether an edge alone makes a layer add its reverse, with the type of edges."""
    ends = np.stack([np.arange(NODES - 1), np.arange(1, NODES)], axis=1)
    whole, lacking = (messages_of(layer, graph_of(e)) for e in (ends, ends[1:]))
    kinds = {kind for s, r, kind in whole if r == s + 1}
    return any((1, 0, kind) in whole - lacking for kind in kinds)


@pytest.mark.parametrize("layer", SAMPLES, ids=lambda layer: type(layer).__name__)
def test_layers_of_the_preprocessor_give_no_pair_away(layer):
    graph, pairs, mirrored = split_of_rows()
    task = task_of(layer)
    # By default links are compared, whatever the layers.
    for call in (task.evaluate, task.rank):
        with pytest.raises(ValueError, match=rf"{mirrored.sum()} of 8 pairs"):
            call(graph, pairs, verbose=0)
    with pytest.raises(ValueError, match="`validation_pairs` that are no edges"):
        task.fit(graph, validation_pairs=pairs, verbose=0)
    # Facts of their own: the layer may not make a message of one out of another.
    if makes_reverses(layer):
        with pytest.raises(ValueError, match=f"Of {type(layer).__name__} leave out"):
            task.evaluate(graph, pairs, undirected=False)
        with pytest.raises(ValueError, match="after the layers of the preprocessor"):
            task.fit(graph, validation_pairs=pairs, undirected=False, verbose=0)
    else:
        task.evaluate(graph, pairs, undirected=False)
    # The splits of the library are safe with any layer.
    whole = graph_of(undirected_ends()[:-3])
    split = split_links(whole, 0.1, 0.2)
    assert not split.undirected and len(split.test_pairs)
    task.fit(split.train, split.train_pairs, validation_pairs=split.valid_pairs,
             epochs=1, verbose=0)  # fmt: skip
    assert 0 <= task.evaluate(split.train, split.test_pairs)["auc"] <= 1


def test_some_layers_make_reverses():
    names = {type(layer).__name__ for layer in SAMPLES if makes_reverses(layer)}
    assert names == {"ToUndirected", "AttentionEdges"}


class TypedReverses(kb.preprocessing.GraphLayer):
    """Adds reverse edges with a type of their own."""

    def call(self, graph):
        """Return the graph with edges both ways."""
        return graph.replace(
            senders=np.concatenate([graph.senders, graph.receivers]),
            receivers=np.concatenate([graph.receivers, graph.senders]),
            edge_type=np.concatenate([graph.edge_type, graph.edge_type + 1]),
        )


def test_reverses_of_a_type_of_their_own_are_told_apart():
    graph, pairs, _ = split_of_rows()
    task = task_of(TypedReverses())
    with pytest.raises(ValueError, match="in reverse"):
        task.evaluate(graph, pairs)
    assert "auc" in task.evaluate(graph, pairs, undirected=False)


def test_triples_are_compared_as_they_are():
    graph, pairs, _ = split_of_rows()
    task = task_of(head="distmult", num_relations=1)
    task.fit(graph, validation_pairs=pairs, epochs=1, verbose=0)
    assert task.rank(graph, pairs, sides="both").shape == (2, 8)
    with pytest.raises(ValueError, match="8 pairs that are.*or its reverse"):
        task.fit(graph, validation_pairs=pairs, undirected=True, verbose=0)
    edges = NodePairs.of_edges(graph).take(slice(3))
    with pytest.raises(ValueError, match="3 of 3 pairs that are"):
        task.fit(graph, validation_pairs=edges, verbose=0)
    # Without messages the pairs to train on tell as much.
    bare = graph.replace(senders=[], receivers=[], edge_type=[])
    with pytest.raises(ValueError, match="`validation_pairs` that are no pairs to"):
        task.fit(bare, edges, validation_pairs=edges, verbose=0)


def test_loaders_are_checked_as_graphs_are():
    graph, pairs, _ = split_of_rows()
    task = task_of()
    train = LinkLoader(graph, NodePairs.of_edges(graph), NegativeSampler())
    valid = LinkLoader(graph, pairs, NegativeSampler(), shuffle=False)
    with pytest.raises(ValueError, match="`validation_pairs` that are no edges"):
        task.fit(train, validation_data=valid, verbose=0)
    with pytest.raises(ValueError, match="in reverse"):
        task.evaluate(valid, verbose=0)
    options = {"undirected": False, "verbose": 0}
    assert task.fit(train, validation_data=valid, **options).history["val_loss"]
    assert task.evaluate(valid, **options)


def test_a_bipartite_graph_with_typed_reverses_has_no_leaks():
    ends = undirected_ends()
    half = len(ends) // 2
    whole = graph_of(ends, np.repeat([0, 1], half))
    for options in ({}, {"undirected": True}, {"supervised": 0.3}):
        split = split_links(whole, 0.1, 0.2, **options)
        for held in (split.valid_pairs, split.test_pairs):
            assert set(held.types.tolist()) == {0, 1}
            check_leaks(split.train, held)
        if "supervised" in options:
            check_leaks(split.train, split.train_pairs)
    naive = split_links(whole, 0.1, 0.2, undirected=False)
    check_leaks(naive.train, naive.test_pairs, undirected=False)
    with pytest.raises(ValueError, match="no edges of the graph"):
        check_leaks(naive.train, naive.test_pairs)


# === Negatives and filtered ranks ===

ENDS = ("sender", "receiver")
# The option, num_relations, and whether pairs count in both directions.
DIRECTIONS = [
    (None, None, True),
    (True, None, True),
    (False, None, False),
    (None, 1, False),
    (True, 1, True),
]


def dense_ends():
    """All pairs of nodes but those of a ring, each once."""
    ends = np.argwhere(np.triu(np.ones((NODES, NODES)), 1))
    step = ends[:, 1] - ends[:, 0]
    return ends[(step != 1) & (step != NODES - 1)]


def negatives_of(loader):
    x, y, weight = loader[0]
    rows = (y[0] == 0) & (weight[0] > 0)
    return set(zip(*(x["pair"][n][0][rows].tolist() for n in ENDS), strict=True))


@pytest.mark.parametrize("undirected, relations, expected", DIRECTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_reverses_of_true_pairs_are_no_negatives(
    kind, undirected, relations, expected, monkeypatch
):
    """Pairs that are listed once: of the batch, of the graph, and known ones."""
    ends = dense_ends()
    thirds = [ends[k::3] for k in range(3)]
    pairs, known = (NodePairs(*rows.T) for rows in thirds[:2])
    graph = graph_of(thirds[2])
    reverses = {(r, s) for s, r in ends.tolist()}
    sampler = NegativeSampler(8, kind, "either")
    task = task_of(kb.preprocessing.ToUndirected(), "mlp", num_relations=relations)
    drawn = []
    options = {"undirected": undirected, "known": known}

    def record(self, x, pairs=None, **kwargs):
        rows = pairs.senders.tolist(), pairs.receivers.tolist()
        drawn.append(set(zip(*rows, strict=True)))
        return np.zeros(len(pairs), np.float32)

    def watch(self, loader, *args, **kwargs):
        drawn.append(negatives_of(loader))

    monkeypatch.setattr(kb.models.Task, "fit", watch)
    task.fit(graph, pairs, sampler, **options)
    monkeypatch.setattr(type(task), "predict", record)
    task.evaluate(graph, pairs, sampler, **options)
    drawn[-1] -= set(map(tuple, thirds[0].tolist()))
    if undirected is not None or relations is None:
        options = {"known": known, "undirected": undirected}
        drawn.append(negatives_of(LinkLoader(graph, pairs, sampler, **options)))
    for rows in drawn:
        assert rows
        assert not rows & set(map(tuple, ends.tolist()))
        assert bool(rows & reverses) is not expected


@pytest.mark.parametrize("undirected, relations, expected", DIRECTIONS)
def test_filtered_ranks_leave_out_reverses(undirected, relations, expected):
    ends = dense_ends()
    known, test = NodePairs(*ends.T), NodePairs(*ends[:9].T)
    graph = graph_of([])
    task = task_of(head="mlp", num_relations=relations)
    both = NodePairs.concatenate([known, known.reversed()])

    def ranks(known, undirected):
        options = {"sides": "both", "undirected": undirected, "verbose": 0}
        return task.rank(graph, test, known=known, **options)

    one, other = ranks(known, undirected), ranks(both, False)
    assert np.array_equal(one, other) is expected
    if not expected:
        np.testing.assert_array_equal(one, ranks(known, False))


@pytest.mark.parametrize("end", [[0, 1], [1, 0]])
def test_an_edge_of_another_type_leaks_wherever_links_do(end):
    """All that check pairs agree, also on pairs that are edges of the graph."""
    graph = graph_of([[0, 1], [2, 3], [3, 4]], [1, 0, 1])
    task = task_of(head="distmult", num_relations=2)
    other, free = NodePairs(*np.array([end]).T, [0]), NodePairs([5], [6], [0])
    train = NodePairs.of_edges(graph).take([1])
    calls = [
        lambda pairs, **o: task.fit(graph, train, validation_pairs=pairs, **o),
        lambda pairs, **o: task.evaluate(graph, pairs, **o),
        lambda pairs, **o: task.rank(graph, pairs, **o),
        lambda pairs, **o: task.evaluate(
            LinkLoader(graph, pairs, NegativeSampler(), shuffle=False), **o
        ),
        lambda pairs, undirected, verbose: check_leaks(graph, pairs, undirected),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="1 of 1 pairs that are"):
            call(other, undirected=True, verbose=0)
        call(other, undirected=False, verbose=0)
        call(free, undirected=True, verbose=0)
    for call in calls[1:4]:
        call(NodePairs.of_edges(graph), undirected=True, verbose=0)
    loader = LinkLoader(graph, NodePairs.of_edges(graph), NegativeSampler())
    task_of().evaluate(loader, verbose=0)
