import numpy as np
import pytest

from keras_bandgnn.layers import TopKPooling
from keras_bandgnn.layers.top_k_pooling import largest_of_graphs
from keras_bandgnn.ops.graph_segments import GraphSegments
from tests.layers.pooling_cases import (
    WIDTH,
    batch_of,
    check_layer,
    check_padding_and_packing,
    graphs_of,
    numpy,
    peer_inputs,
    peer_pooling,
    rows_by_graph,
)
from tests.oracles.pooling import pooled, projections


def with_weights(layer, seed=2):
    layer.build((None, None, WIDTH))
    layer.set_weights([np.random.default_rng(seed).normal(size=WIDTH)])
    return layer


@pytest.mark.parametrize("ratio", [0.5, 0.7, 0.1, 1])
@pytest.mark.parametrize("replicas", [1, 2])
def test_equals_the_oracle(ratio, replicas):
    x = batch_of(graphs_of(), replicas)
    layer = with_weights(TopKPooling(ratio))
    states, mask = map(numpy, layer(x["node"]["h"], x))
    direction = layer.get_weights()[0].astype("float64")
    for _, rows, out, stays in rows_by_graph(x, x["node"]["h"], states, mask):
        scores = projections(rows, direction)
        expected, expected_mask = pooled(rows, scores, ratio)
        np.testing.assert_array_equal(stays, expected_mask)
        np.testing.assert_allclose(out, expected, atol=1e-5)
    assert not mask[~x["node"]["mask"]].any()
    assert not states[~mask].any()


def test_equals_that_of_torch_geometric():
    torch, peer = peer_pooling()
    graphs = graphs_of()
    x = batch_of(graphs)
    layer = with_weights(TopKPooling(0.6))
    other = peer.TopKPooling(WIDTH, 0.6).double()
    with torch.no_grad():
        other.select.weight.copy_(torch.from_numpy(layer.get_weights()[0][None]))
        rows, edges, ids = peer_inputs(torch, graphs)
        expected, _, _, _, places, _ = other(rows, edges, batch=ids)
    states, mask = map(numpy, layer(x["node"]["h"], x))
    real = x["node"]["mask"][0]
    out = np.zeros((int(real.sum()), WIDTH))
    out[places.numpy()] = expected.numpy()
    np.testing.assert_allclose(states[0][real], out, atol=1e-5)
    np.testing.assert_array_equal(
        np.flatnonzero(mask[0][real]), np.sort(places.numpy())
    )


def test_of_equal_scores_the_first_rows_stay():
    x = batch_of(graphs_of((5, 4)))
    layer = with_weights(TopKPooling(0.5))
    _, mask = layer(np.ones_like(x["node"]["h"]), x)
    rows = [stays.tolist() for _, stays in rows_by_graph(x, numpy(mask))]
    assert rows == [[True, True, True, False, False], [True, True, False, False]]


@pytest.mark.parametrize(
    ("ratio", "count"), [(0.7, 7), (0.1, 1), (0.6, 6), (0.65, 7), (1, 10)]
)
def test_whole_products_are_not_rounded_up(ratio, count):
    x = batch_of(graphs_of((10,)))
    _, mask = with_weights(TopKPooling(ratio))(x["node"]["h"], x)
    assert numpy(mask).sum() == count


def test_scores_that_differ_in_their_last_bits_are_equal():
    """As those of nodes that are alike, by another order of the same sum."""
    rng = np.random.default_rng(0)
    x = batch_of(graphs_of((5,) * 40), nodes=201, slots=41, edges=600)
    mask, slots = x["node"]["mask"], x["node"]["graph_id"]
    scores = rng.normal(size=x["graph"]["n_node"].shape[1])[slots]
    near = scores * (1 + 1e-7 * rng.integers(-2, 3, scores.shape))
    graphs = GraphSegments(x)
    stays = numpy(largest_of_graphs(near.astype("float32"), graphs, 0.5))
    first = [[True] * 3 + [False] * 2] * 40
    assert stays[mask].reshape(40, 5).tolist() == first
    near[:, 4::5] = np.inf
    stays = numpy(largest_of_graphs(near.astype("float32"), graphs, 0.5))
    assert stays[mask].reshape(40, 5)[:, 4].all()


def test_padding_and_packing_change_nothing():
    check_padding_and_packing(with_weights(TopKPooling(0.6)), graphs_of())


def test_the_order_of_nodes_changes_nothing():
    x = batch_of(graphs_of())
    layer = with_weights(TopKPooling(0.6))
    states, mask = map(numpy, layer(x["node"]["h"], x))
    order = np.random.default_rng(0).permutation(x["node"]["mask"].shape[1])
    node = {name: x["node"][name][:, order] for name in ("mask", "graph_id")}
    mixed = layer(x["node"]["h"][:, order], {**x, "node": node})
    np.testing.assert_allclose(numpy(mixed[0]), states[:, order], atol=1e-6)
    np.testing.assert_array_equal(numpy(mixed[1]), mask[:, order])


def test_configuration_shapes_and_reduced_precision():
    check_layer(TopKPooling(0.3, activation="sigmoid"), batch_of(graphs_of()))


@pytest.mark.parametrize(
    ("ratio", "message"), [(0, "positive"), (1.5, "at most 1"), (True, "number")]
)
def test_bad_ratios(ratio, message):
    with pytest.raises(ValueError, match=message):
        TopKPooling(ratio)
