"""`LinkPredictor.recommend` against a loop over all pairs."""

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn import ops as graph_ops
from keras_bandgnn.data import NodePairs, split_links
from keras_bandgnn.layers.link_scorer import SCORES
from keras_bandgnn.models import recommendations as module
from keras_bandgnn.models.recommendations import largest_columns
from keras_bandgnn.preprocessing import GraphPreprocessor, RCMKCompile
from tests.models.test_link_edge_sets import BUYS, ITEMS, USERS, predictor, shop
from tests.models.test_link_predictor import communities, kinship
from tests.models.test_link_predictor import predictor as plain_predictor

pytestmark = pytest.mark.every_backend


def brute(table, k, left_out):
    """The k best columns of each row by a loop; lower columns first."""
    items = np.full((len(table), k), -1)
    scores = np.full((len(table), k), -np.inf)
    for row, values in enumerate(table):
        columns = [c for c in range(len(values)) if (row, c) not in left_out]
        columns = sorted(columns, key=lambda c: (-values[c], c))[:k]
        items[row, : len(columns)] = columns
        scores[row, : len(columns)] = values[columns]
    return items, scores


def drawn(task):
    """The task, with weights that make scores differ."""
    for number, weight in enumerate(task.trainable_weights):
        draw = np.random.default_rng(number).normal(0, 0.5, weight.shape)
        weight.assign(draw.astype("float32"))
    return task


def table_of(task, graph, rows, columns, types=None):
    ends = np.indices((rows, columns)).reshape(2, -1)
    pairs = ends.T if types is None else np.vstack([ends, 0 * ends[:1] + types]).T
    return task.predict(graph, pairs).reshape(rows, columns)


def same(found, table, k, left_out):
    """The scores of a loop, at items that have them, each once."""
    items, scores = brute(table, k, left_out)
    np.testing.assert_allclose(found.scores, scores, rtol=1e-5, atol=1e-5)
    assert ((found.items >= 0) == (items >= 0)).all()
    for row, columns in enumerate(found.items.tolist()):
        columns = [column for column in columns if column >= 0]
        assert len(set(columns)) == len(columns)
        assert not {(row, column) for column in columns} & left_out
        np.testing.assert_allclose(
            table[row, columns], found.scores[row, : len(columns)], rtol=1e-5, atol=1e-5
        )
    # But for scores that are nearly equal.
    assert (found.items == items).mean() > 0.9


@pytest.mark.parametrize("head", SCORES)
@pytest.mark.release(elsewhere=True)
def test_items_of_an_edge_set_are_those_of_a_loop(head):
    graph = shop(permuted=True)
    split = split_links(graph, edge_set=BUYS)
    typed = {"num_relations": 1} if head in ("distmult", "complex") else {}
    task = drawn(predictor(head, **typed))
    table = table_of(task, split.train, USERS, ITEMS)
    known = set(
        zip(split.known.senders.tolist(), split.known.receivers.tolist(), strict=True)
    )
    for k in (1, 4, ITEMS, ITEMS + 3):
        for exclude, left_out in ((None, set()), (split.known, known)):
            found = task.recommend(split.train, k=k, exclude=exclude, chunk=5)
            same(found, table, k, left_out)
            assert found.items.shape == found.scores.shape == (USERS, k)
    users = [3, 0, 3]
    found = task.recommend(split.train, users, 4, split.known)
    expected = task.recommend(split.train, k=4, exclude=split.known)
    np.testing.assert_array_equal(found.items, expected.items[users])
    array = np.stack([split.known.senders, split.known.receivers], axis=1)
    again = task.recommend(split.train, users, 4, array, by_layer=True)
    np.testing.assert_array_equal(again.items, found.items)
    np.testing.assert_allclose(again.scores, found.scores, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_nodes_of_a_graph_are_no_answers_to_themselves(compiled):
    graph = communities()
    preprocessor = GraphPreprocessor([RCMKCompile()]) if compiled else None
    task = drawn(plain_predictor(preprocessor=preprocessor))
    count = graph.num_nodes
    table = table_of(task, graph, count, count)
    loops = {(n, n) for n in range(count)}
    same(task.recommend(graph, k=5, chunk=7), table, 5, loops)
    same(task.recommend(graph, k=5, self_pairs=True), table, 5, set())
    # The reverse of a pair is excluded, too.
    pairs = NodePairs([0, 5, 7], [3, 1, 9])
    edges = set(zip([0, 5, 7], [3, 1, 9], strict=True))
    back = {(b, a) for a, b in edges}
    same(
        task.recommend(graph, k=5, exclude=pairs),
        table,
        5,
        loops | edges | back,
    )
    same(
        task.recommend(graph, k=5, exclude=pairs, undirected=False),
        table,
        5,
        loops | edges,
    )


def test_relations_have_answers_of_their_own():
    graph = kinship()
    backbone = kb.models.EmbeddingBackbone({"id": graph.num_nodes}, 8)
    task = drawn(plain_predictor("complex", backbone, num_relations=2))
    known = NodePairs.of_edges(graph)
    for relation in range(2):
        table = table_of(task, graph, graph.num_nodes, graph.num_nodes, relation)
        here = known.types == relation
        left_out = set(
            zip(
                known.senders[here].tolist(),
                known.receivers[here].tolist(),
                strict=True,
            )
        )
        left_out |= {(n, n) for n in range(graph.num_nodes)}
        found = task.recommend(graph, k=6, exclude=known, relation=relation)
        same(found, table, 6, left_out)
        ends = known.take(here)
        array = np.stack([ends.senders, ends.receivers], axis=1)
        again = task.recommend(graph, k=6, exclude=array, relation=relation)
        np.testing.assert_array_equal(again.items, found.items)
    with pytest.raises(ValueError, match="relation"):
        task.recommend(graph, relation=2)


@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("count", [64, 65, 300, 1000])
def test_equal_entries_are_in_the_order_of_columns(count, k):
    rng = np.random.default_rng(count + k)
    width = -(-count // 64) * 64
    for levels in (1, 2, 4, 1000):
        table = rng.integers(0, levels, (11, width)).astype("float32")
        table[rng.random(table.shape) < 0.2] = -np.inf
        # Padding is never among them.
        table[:, count:] = 1e6
        table[3] = -np.inf
        score, column = (
            keras.ops.convert_to_numpy(part)
            for part in largest_columns(keras.ops.convert_to_tensor(table), count, k)
        )
        order = np.argsort(-table[:, :count], axis=1, kind="stable")[:, :k]
        np.testing.assert_array_equal(column, order)
        np.testing.assert_array_equal(score, np.take_along_axis(table, order, axis=1))


def test_ties_of_a_model_that_scores_all_alike():
    graph, task = shop(), predictor()
    for weight in task.weights:
        weight.assign(np.zeros(weight.shape, "float32"))
    found = task.recommend(graph, k=3, exclude=[[0, 0], [0, 2], [2, 1]])
    assert found.items[:3].tolist() == [[1, 3, 4], [0, 1, 2], [0, 2, 3]]


def test_many_users_have_one_program(monkeypatch):
    graph, task = shop(), drawn(predictor())
    shapes, count = set(), 0
    program = type(module.compiled(task, module._best_columns, ITEMS, 4))
    original = program.predict_on_batch

    def counted(self, x):
        nonlocal count
        if self.function is module._best_columns:
            count += 1
            shapes.add(str(keras.tree.map_structure(np.shape, x)))
        return original(self, x)

    monkeypatch.setattr(program, "predict_on_batch", counted)
    buys = split_links(graph, 0.0, 0.0, edge_set=BUYS).train_pairs
    users = np.random.default_rng(0).integers(0, USERS, 100)
    found = task.recommend(graph, users, 4, buys, chunk=8)
    assert count == 13 and len(shapes) == 1
    whole = task.recommend(graph, k=4, exclude=buys)
    np.testing.assert_array_equal(found.items, whole.items[users])


def test_no_users_and_no_answers():
    graph, task = shop(), predictor()
    found = task.recommend(graph, [], 3)
    assert found.items.shape == found.scores.shape == (0, 3)
    every = np.stack(np.indices((USERS, ITEMS)).reshape(2, -1), axis=1)
    found = task.recommend(graph, k=3, exclude=every)
    assert (found.items == -1).all() and np.isneginf(found.scores).all()


def test_wrong_arguments_are_refused():
    graph, task = shop(), predictor()
    for options, message in (
        ({"users": [USERS]}, "rows of 'user'"),
        ({"users": [[0, 1]]}, "users"),
        ({"users": [0.5]}, "users"),
        ({"k": 0}, "`k`"),
        ({"chunk": 0}, "`chunk`"),
        ({"relation": 1}, "relation"),
        ({"exclude": [[0, ITEMS]]}, "`exclude`|rows of 'item'"),
        ({"exclude": NodePairs([0], [1])}, "`exclude` of the edge set"),
        ({"self_pairs": 1}, "self_pairs"),
    ):
        with pytest.raises(ValueError, match=message):
            task.recommend(graph, **options)
    with pytest.raises(ValueError, match="`users`|nodes of the graph"):
        plain_predictor().recommend(communities(), [40])


def test_top_k_is_stable():
    values = np.array([[1.0, 3.0, 3.0, 0.0, 3.0]], "float32")
    top, place = graph_ops.top_k(keras.ops.convert_to_tensor(values), 3)
    assert keras.ops.convert_to_numpy(place).tolist() == [[1, 2, 4]]
    assert keras.ops.convert_to_numpy(top).tolist() == [[3.0, 3.0, 3.0]]
