"""Pairs of an edge set: numbered as rows, split, drawn and ranked within two sets."""

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.data import NodePairs, check_leaks, from_sets, split_links
from keras_bandgnn.data.link_ends import LinkEnds
from keras_bandgnn.preprocessing import (
    GraphPreprocessor,
    LinkLoader,
    NegativeSampler,
    NeighborSampler,
    NodeSetEncoder,
    RCMKCompile,
)
from keras_bandgnn.preprocessing.sampling.negative_sampler import KINDS

pytestmark = pytest.mark.every_backend

USERS, ITEMS, GROUPS = 14, 22, 3
BUYS = ("user", "buys", "item")
SETS = {
    "user": {"x": {"features": 2}},
    "item": {"id": ITEMS},
    "group": {"kind": 1},
}


def shop(seed=0, permuted=False):
    """Users of three groups buy items of their group, and view any."""
    rng = np.random.default_rng(seed)
    users = np.arange(USERS) % GROUPS
    items = np.arange(ITEMS) % GROUPS
    every = np.stack(np.nonzero(users[:, None] == items))
    buys = every[:, rng.random(every.shape[1]) < 0.8]
    views = np.unique(rng.integers(0, [[USERS], [ITEMS]], (2, 60)), axis=1)
    graph = from_sets(
        {
            "user": {"x": np.stack([np.cos(2 * users), np.sin(2 * users)], axis=1)},
            "item": {"id": np.arange(ITEMS)},
            "group": GROUPS,
        },
        {
            BUYS: buys,
            ("user", "views", "item"): views,
            ("user", "in", "group"): [np.arange(USERS), users],
        },
        reverse=True,
    )
    if permuted:
        order = rng.permutation(graph.num_nodes)
        place = np.argsort(order)
        graph = graph.replace(
            senders=place[graph.senders],
            receivers=place[graph.receivers],
            node={name: rows[order] for name, rows in graph.node.items()},
        )
    return graph


def predictor(head="dot", preprocessor=None, **options):
    keras.utils.set_random_seed(0)
    backbone = kb.models.RGCNBackbone({"sets": SETS}, 8, num_layers=2, num_edge_types=6)
    return kb.models.LinkPredictor(
        backbone, head, preprocessor=preprocessor, edge_set=BUYS, **options
    )


def rows_of(graph, edge_set):
    """Rows of the edges of an edge set as pairs of numbers."""
    kind = [tuple(key) for key in graph.info["edge_sets"]].index(edge_set)
    here, row = graph.edge_type == kind, graph.node["set_row"]
    ends = row[graph.senders[here]], row[graph.receivers[here]]
    return set(zip(*(end.tolist() for end in ends), strict=True))


def as_rows(pairs):
    assert pairs.edge_set == BUYS
    return set(zip(pairs.senders.tolist(), pairs.receivers.tolist(), strict=True))


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("undirected", [None, False, True])
@pytest.mark.parametrize("supervised", [None, 0.5])
def test_splits_have_rows_and_no_message_gives_a_pair_away(
    permuted, undirected, supervised
):
    graph = shop(permuted=permuted)
    split = split_links(
        graph, 0.1, 0.2, 3, undirected, supervised=supervised, edge_set=BUYS
    )
    parts = [as_rows(p) for p in (split.train_pairs, split.valid_pairs)]
    parts.append(as_rows(split.test_pairs))
    buys, views = rows_of(graph, BUYS), rows_of(graph, ("user", "views", "item"))
    assert as_rows(split.known) == buys and not split.undirected
    messages = rows_of(split.train, BUYS)
    if supervised is None:
        assert messages == parts[0]
    else:
        assert (
            not messages & parts[0]
            and messages | parts[0] | parts[1] | parts[2] == buys
        )
    assert sum(map(len, parts[1:])) == round(0.1 * len(buys)) + round(0.2 * len(buys))
    assert rows_of(split.train, ("item", "rev_buys", "user")) == {
        (i, u) for u, i in messages
    }
    silent = buys - messages
    seen = rows_of(split.train, ("user", "views", "item"))
    assert seen == (views if undirected is False else views - silent)
    assert len(rows_of(split.train, ("user", "in", "group"))) == USERS
    for pairs in (split.valid_pairs, split.test_pairs):
        check_leaks(split.train, pairs, undirected is not False, BUYS)
        with pytest.raises(ValueError, match="no edges of the graph"):
            check_leaks(graph, pairs, undirected is not False, BUYS)
    back = split.test_pairs.in_graph(graph)
    assert {*graph.node["set"][back.senders]} == {[*graph.sets].index("user")}
    assert as_rows(LinkEnds(graph, BUYS).rows(back)) == parts[2]


def test_a_pair_leaks_through_the_reverse_edge_set():
    graph, split = shop(), split_links(shop(), edge_set=BUYS)
    back = graph.info["edge_sets"].index(["item", "rev_buys", "user"])
    plain = split.train
    here = graph.edge_type == back
    leaky = plain.replace(
        senders=np.append(plain.senders, graph.senders[here]),
        receivers=np.append(plain.receivers, graph.receivers[here]),
        edge_type=np.append(plain.edge_type, graph.edge_type[here]),
    )
    task = predictor()
    for undirected in (None, False):
        options = {"undirected": undirected, "verbose": 0}
        with pytest.raises(ValueError, match="no edges in reverse or of another type"):
            task.rank(leaky, split.test_pairs, **options)
        with pytest.raises(ValueError, match=r"no edges|pairs to train on"):
            task.fit(leaky, validation_pairs=split.valid_pairs, **options)
        assert len(task.rank(plain, split.test_pairs, **options))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("replace", ["receiver", "sender", "either"])
def test_negatives_are_free_pairs_of_the_two_sets(kind, replace):
    graph = shop(permuted=True)
    split = split_links(graph, edge_set=BUYS)
    loader = LinkLoader(
        split.train,
        split.train_pairs,
        NegativeSampler(3, kind, replace),
        known=split.known,
        edge_set=BUYS,
    )
    (x, y, _), _ = loader.assembler.build(loader.composer.composition(0), 1)[0]
    order = np.argsort(loader.assembler._row)
    ends = [order[x["pair"][end][0]] for end in ("sender", "receiver")]
    drawn = [graph.node["set_row"][end[y[0] == 0]] for end in ends]
    drawn = set(zip(*(end.tolist() for end in drawn), strict=True))
    for end, name in zip(ends, ("user", "item"), strict=True):
        assert {*graph.node["set"][end]} == {[*graph.sets].index(name)}
    assert not drawn & rows_of(graph, BUYS)
    if kind == "uniform":
        assert drawn & rows_of(graph, ("user", "views", "item"))


@pytest.mark.parametrize("head", ["dot", "bilinear", "mlp", "distmult", "complex"])
def test_ranks_are_those_of_a_loop_over_the_set(head):
    graph = shop(permuted=True)
    split = split_links(graph, edge_set=BUYS)
    options = {"num_relations": 1} if head in ("distmult", "complex") else {}
    task, rng = predictor(head, **options), np.random.default_rng(0)
    for weight in task.trainable_weights:
        # Scores that differ.
        weight.assign(weight + rng.normal(size=weight.shape))
    table = task.predict(
        split.train, np.stack(np.indices((USERS, ITEMS)).reshape(2, -1), axis=1)
    ).reshape(USERS, ITEMS)
    assert np.unique(table.round(3)).size > USERS
    true = as_rows(split.known)
    for side, got in zip(
        ("receiver", "sender"),
        task.rank(split.train, split.test_pairs, split.known, "both", chunk=3),
        strict=True,
    ):
        expected = []
        for u, i in zip(
            split.test_pairs.senders, split.test_pairs.receivers, strict=True
        ):
            if side == "receiver":
                others = [table[u, k] for k in range(ITEMS) if (u, k) not in true]
            else:
                others = [table[k, i] for k in range(USERS) if (k, i) not in true]
            others = np.array(others)
            ties = np.isclose(others, table[u, i], rtol=1e-5, atol=1e-6)
            above = (others > table[u, i]) & ~ties
            expected.append(1 + above.sum() + 0.5 * ties.sum())
        np.testing.assert_allclose(got, expected)


@pytest.mark.parametrize("sampler", [None, NeighborSampler([4, 4], batch_size=8)])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.release(elsewhere=True)
def test_learns_who_buys_what_and_keeps_it_in_a_file(sampler, compiled, tmp_path):
    split = split_links(shop(), 0.1, 0.1, edge_set=BUYS)
    preprocessor = GraphPreprocessor([RCMKCompile()]) if compiled else None
    task = predictor("mlp", preprocessor)
    task.fit(
        split.train,
        split.train_pairs,
        negatives=NegativeSampler(4),
        known=split.known,
        validation_pairs=split.valid_pairs,
        sampler=sampler,
        epochs=80 if sampler is None else 30,
        verbose=0,
    )
    result = task.evaluate(split.train, split.test_pairs, known=split.known)
    assert result["auc"] > 0.75
    task.save(tmp_path / "task.keras")
    loaded = keras.models.load_model(tmp_path / "task.keras")
    assert loaded.edge_set == BUYS
    np.testing.assert_allclose(
        loaded.predict(split.train, split.test_pairs),
        task.predict(split.train, split.test_pairs),
        atol=1e-6,
    )
    pairs = task.predict(split.train)
    assert len(pairs) == len(rows_of(split.train, BUYS))


def test_pairs_of_other_numbers_are_refused():
    graph, task = shop(), predictor()
    split = split_links(graph, edge_set=BUYS)
    nodes = split.test_pairs.in_graph(graph)
    plain = kb.models.LinkPredictor(
        kb.models.GCNBackbone({"sets": SETS}, 8, num_edge_types=6)
    )
    for call, pairs, message in (
        (task.predict, nodes, "Received: pairs numbered as the nodes"),
        (task.predict, [[0, 1, 0]], r"an array \[Q, 2\] of rows"),
        (task.predict, [[0, ITEMS]], "rows of 'item'"),
        (task.predict, [[USERS, 0]], "rows of 'user'"),
        (task.fit, nodes, "numbered as the nodes"),
        (plain.predict, split.test_pairs, r"pairs.in_graph\(graph\)"),
        (plain.fit, split.test_pairs, "numbered as the nodes of the graph"),
        (lambda g, p: NegativeSampler().sample(p, 9), split.test_pairs, "in_graph"),
        (lambda g, p: check_leaks(g, p), split.test_pairs, "in_graph"),
        (lambda g, p: p.reversed(), split.test_pairs, "pairs of one node set"),
        (
            lambda g, p: NodePairs.concatenate([p, nodes]),
            split.test_pairs,
            "pairs of one edge set",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call(split.train, pairs)
    with pytest.raises(ValueError, match="one of the edge sets of the graph"):
        split_links(graph, edge_set=("user", "sells", "item"))
    with pytest.raises(ValueError, match="one of the edge sets of the graph"):
        task.fit(kb.Graph(3, [0], [1]), verbose=0)
    with pytest.raises(ValueError, match="num_relations"):
        predictor("distmult", num_relations=2)
    loader = LinkLoader(graph, nodes, NegativeSampler())
    with pytest.raises(ValueError, match="LinkLoader with edge_set"):
        task.fit(loader, verbose=0)
    loader = LinkLoader(graph, split.train_pairs, NegativeSampler(), edge_set=BUYS)
    with pytest.raises(ValueError, match="LinkLoader with edge_set"):
        plain.fit(loader, verbose=0)
    assert task.fit(loader, verbose=0).history["loss"]


def test_rows_of_dropped_nodes_are_refused():
    graph = shop()
    keep = np.delete(
        np.arange(graph.num_nodes), LinkEnds(graph, BUYS).nodes["sender"][2]
    )
    smaller = graph.subgraph(keep)
    ends = LinkEnds(smaller, BUYS)
    assert len(ends.nodes["sender"]) == USERS - 1
    with pytest.raises(ValueError, match="The node of this row was dropped"):
        ends.read("pairs", [[2, 0]])
    pairs = ends.read("pairs", [[3, 1]])
    assert as_rows(ends.rows(pairs)) == {(3, 1)}


def test_tables_are_read_by_the_encoder_of_the_preprocessor():
    rng = np.random.default_rng(0)
    item = {
        "nodes": {
            "user": {"town": [*"abcab"]},
            "item": {"price": rng.normal(size=7)},
        },
        "edges": {BUYS: rng.integers(0, [[5], [7]], (2, 20))},
    }
    encoder = NodeSetEncoder(reverse=True).adapt([item])
    backbone = kb.models.RGCNBackbone(encoder.inputs(), 8, num_edge_types=2)
    task = kb.models.LinkPredictor(
        backbone, preprocessor=GraphPreprocessor([encoder]), edge_set=BUYS
    )
    task.fit(item, epochs=1, verbose=0)
    pairs = [[0, 6], [4, 0]]
    np.testing.assert_array_equal(
        task.predict(item, pairs), task.predict(encoder(item), pairs)
    )
    with pytest.raises(ValueError, match="of one graph"):
        task.predict([item, item], pairs)
